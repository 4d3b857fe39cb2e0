"""The official suite's server requirements, with the gateway in front of the SDK's everything-server.

Everything is real: the example server from the SDK's source archive, the suite and its Node from npm, `pi-mcp serve`
as a process of its own. The server alone reaches 30 and 37, so does the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.auth_server import free_port
from tests.environments import node22, npm, sdist, venv
from tests.gateway_support import http_gateway
from tests.support import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SCORED = {"2025-11-25": 30, "2026-07-28": 37}
_LINE = re.compile(r"^(✓|✗) (\S+):", re.MULTILINE)
_NOT_SCORED = re.compile(r"^  (?:✓|✗) (\S+) \(", re.MULTILINE)


def test_the_gateway_meets_every_scored_requirement_of_both_eras(tmp_path: Path) -> None:
    source = sdist("mcp", "2.3.0")
    python = venv("everything-server", "mcp==2.3.0", str(source / "examples/servers/everything-server"))
    suite = npm(SUITE) / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
    node = node22()
    wanted = list(SCORED.items())

    async def work() -> None:
        async with everything_server(python) as upstream:
            servers = {"everything": {"url": upstream, "shared": False}}
            async with http_gateway(servers, tmp_path, "--expose", "all", "--no-prefix") as (_, url):
                for version, count in wanted:
                    words = [str(node), str(suite), "server", "--url", url, "--requirements", version]
                    said = await asyncio.to_thread(ran, [*words, "-o", str(tmp_path / version)], node)
                    before, _, after = said.partition("Not scored")
                    verdicts = {name: verdict for verdict, name in _LINE.findall(before)}
                    for name in _NOT_SCORED.findall(after):
                        verdicts.pop(name, None)
                    failed = [name for name, verdict in verdicts.items() if verdict != "✓"]
                    assert (failed, len(verdicts)) == ([], count), said

    run(work(), 600)


@contextlib.asynccontextmanager
async def everything_server(python: Path) -> AsyncIterator[str]:
    """The SDK's example server on a free port, and its address."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        str(python.with_name("mcp-everything-server")), "--port", str(port),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        end = asyncio.get_running_loop().time() + 60
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert asyncio.get_running_loop().time() < end, "the example server does not start"
                assert process.returncode is None
                await asyncio.sleep(0.1)
            else:
                writer.close()
                await writer.wait_closed()
                break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]


def ran(words: list[str], node: Path) -> str:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
