"""`pi-mcp serve` over HTTP as a process of its own, with one upstream, and the other commands beside it.

Comes in: options of `serve`. Goes out: its address, keys of its store, and everything that it wrote, for a search
after secrets.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.auth_server import free_port

ROOT = Path(__file__).resolve().parent.parent
TOOLS = [
    {"name": "look", "description": "Only looks.", "inputSchema": {"type": "object"},
     "annotations": {"readOnlyHint": True}},
    {"name": "change", "description": "Changes something.", "inputSchema": {"type": "object"}},
]  # fmt: skip


class Served:
    """A gateway process between `with` and its end; its folder holds configuration, store and output."""

    def __init__(self, folder: Path, *options: str, tools: list[dict[str, Any]] | None = None, **environ: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
        upstream = folder / "upstream"
        upstream.mkdir()
        (upstream / "behaviour.json").write_text(json.dumps({"tools": TOOLS if tools is None else tools}))
        self.seen = upstream / "seen"
        entry = {"command": sys.executable, "args": [str(ROOT / "tests/catalog_server.py"), str(upstream)]}
        config = folder / "gateway.json"
        config.write_text(json.dumps({"mcpServers": {"files": entry}}))
        self._output = folder / "output"
        self._words = ["serve", "--http", f"127.0.0.1:{self.port}", "--config", str(config), *options]

    def __enter__(self) -> Self:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pi_mcp.cli", *self._words],
                cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        end = time.monotonic() + 30
        while "pi-mcp serves" not in self.output:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: TracebackType | BaseException | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        if kind is None:
            assert code == 0, self.output
            assert "Traceback" not in self.output

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "pi_mcp.cli"]

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Another `pi-mcp` command, with the same home."""
        return subprocess.run(
            [sys.executable, "-m", "pi_mcp.cli", *words],
            cwd=self.folder, env={**self.environ, **environ}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=90,
        )  # fmt: skip

    def key(self, scopes: str, *words: str) -> str:
        done = self.run("keys", "create", "--scope", scopes, "--json", *words)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["key"])
