"""Thirty-nine real catalogs behind one gateway: every tool, in pages, and the official inspector finds no fault."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.environments import node22, npm
from tests.gateway_support import Client, ModernClient, command, gateway_of, http_gateway
from tests.hostile.connecting import text_of
from tests.support import run, shared_data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
TOOLS = 1945


def catalogs() -> dict[str, Any]:
    data = shared_data()
    replay = str(data / "tools" / "replay_server.py")
    files = sorted(path for path in (data / "catalogs").glob("*.json") if path.name != "index.json")
    return {path.stem: {"command": sys.executable, "args": ["-S", replay, str(path)]} for path in files}


def recorded(server: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(Path(server["args"][-1]).read_text())["tools"]
    return found


def test_every_tool_of_every_catalog_is_listed_in_pages_under_a_name_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        servers = catalogs()
        assert len(servers) == 39
        async with gateway_of(servers, tmp_path, expose="all") as running:
            for kind in (Client, ModernClient):
                async with kind(running.url) as client:
                    first = await client.request("tools/list")
                    assert len(first["tools"]) == 100
                    listed = await client.every("tools/list", "tools")
                    names = [one["name"] for one in listed]
                    assert len(names) == len(set(names)) == TOOLS
                    assert all(re.fullmatch("[A-Za-z0-9_-]{1,48}", name) for name in names)
            wires = [tool for server in servers.values() for tool in recorded(server)]
            assert [{**one, "name": ""} for one in listed] == [{**one, "name": ""} for one in wires]
            # Every name leads back to its own tool.
            async with Client(running.url) as client:
                for name, wire in list(zip(names, wires, strict=True))[::40]:
                    assert json.loads(text_of(await client.call(name)))["name"] == wire["name"]

    run(work(), 240)


def test_the_inspector_accepts_the_gateway_over_stdio_and_http(tmp_path: Path) -> None:
    node = node22()
    inspector = npm(INSPECTOR) / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
    servers = catalogs()
    file = tmp_path / "all.json"
    file.write_text(json.dumps({"mcpServers": servers}))

    def inspected(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(node), str(inspector), "--cli", *words, "--method", "tools/list", "--strict"],
            capture_output=True,
            text=True,
            timeout=180,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
        )

    async def work() -> None:
        for face in ("search", "all"):
            # The inspector takes `--config` for itself.
            script = tmp_path / f"serve-{face}"
            script.write_text(f"#!/bin/sh\nexec {shlex.join(command(file, '--expose', face))}\n")
            script.chmod(0o755)
            over_stdio = await asyncio.to_thread(inspected, str(script))
            checked(over_stdio, face)
            async with http_gateway(servers, tmp_path, "--expose", face) as (_, url):
                for era in ("legacy", "modern") if face == "search" else ("modern",):
                    over_http = await asyncio.to_thread(inspected, url, "--protocol-era", era)
                    checked(over_http, face)

    def checked(done: subprocess.CompletedProcess[str], face: str) -> None:
        assert done.returncode == 0, done.stderr[:3000]
        # What it remarks on is what the upstreams wrote into their schemas, which is passed on as it is.
        places = re.findall(r"Path: (\w+)", done.stderr)
        assert done.stderr.count("Warning:") == done.stderr.count("\n  Path: ") == len(places)
        assert set(places) <= ({"inputSchema", "outputSchema"} if face == "all" else set()), done.stderr[:3000]
        count = len(json.loads(done.stdout)["tools"])
        assert count == (2 if face == "search" else TOOLS)

    run(work(), 500)
