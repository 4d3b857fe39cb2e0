"""What the tests of `pi-mcp chat` share: a configuration with a real server, and the chat as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "tests" / "chat_server.py"


@dataclass
class Desk:
    """A folder with a configuration of one server, `desk`, and what that server saw."""

    folder: Path
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entry = {"command": sys.executable, "args": [str(SERVER), str(self.seen_file)], **self.extra}
        self.config.write_text(json.dumps({"mcpServers": {"desk": entry}}))

    @property
    def config(self) -> Path:
        return self.folder / "mcp.json"

    @property
    def seen_file(self) -> Path:
        return self.folder / "seen"

    @property
    def seen(self) -> list[dict[str, Any]]:
        if not self.seen_file.exists():
            return []
        return [json.loads(line) for line in self.seen_file.read_text().splitlines()]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pi_mcp.cli", "chat", "--config", str(self.config), *arguments]

    def run(
        self, *arguments: str, typed: str = "", environ: dict[str, str] | None = None, limit: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the chat with `typed` as its piped input."""
        return subprocess.run(
            self.command(*arguments),
            input=typed,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=self.folder,
            env={**chat_environ(), **(environ or {})},
        )


def chat_environ() -> dict[str, str]:
    """This environment without model keys, with the source tree importable."""
    kept = {
        k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and k not in ("NO_COLOR", "PYTHONUNBUFFERED")
    }
    return {**kept, "PYTHONPATH": str(ROOT)}
