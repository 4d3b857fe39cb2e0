"""All real catalogs at once: every tool is discovered, found by its name, and called under its original name."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.catalog import Catalog
from pi_mcp.plugin import Plugin
from pi_mcp.tools.names import native_name
from pi_mcp.tools.schema import Quarantined, model_schema
from tests.plugin_support import AskingHost, plugin_of
from tests.support import run, shared_data

pytestmark = pytest.mark.slow

PROVIDERS_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def catalogs_of(data: Path) -> dict[str, list[dict[str, Any]]]:
    """The saved `tools/list` results by server; the folder holds an index of them too."""
    read = {path.stem: json.loads(path.read_text()) for path in sorted((data / "catalogs").glob("*.json"))}
    return {name: result["tools"] for name, result in read.items() if isinstance(result, dict)}


def servers_of(data: Path) -> dict[str, dict[str, Any]]:
    replay = str(data / "tools/replay_server.py")
    return {
        name: {"command": sys.executable, "args": ["-S", replay, str(data / "catalogs" / f"{name}.json")]}
        for name in catalogs_of(data)
    }


async def discovered(plugin: Plugin) -> dict[str, Catalog]:
    """All catalogs; on a slow machine one search's 15 s are too short for 39 processes."""
    end = time.monotonic() + 120
    while True:
        discovery = await plugin.catalogs.discover(plugin.configuration.servers)
        if not discovery.not_searched or time.monotonic() > end:
            assert discovery.not_searched == ()
            return dict(discovery.catalogs)


@pytest.mark.timeout(400)
def test_every_tool_of_every_real_server_is_found_by_name_and_reaches_its_server(tmp_path: Path) -> None:
    data = shared_data()
    servers = servers_of(data)
    offered = {(name, tool["name"]): tool for name, tools in catalogs_of(data).items() for tool in tools}
    assert len(offered) > 1000

    async def main() -> None:
        async with plugin_of(servers, tmp_path) as plugin:
            catalogs = await discovered(plugin)
            found = {(tool.server, tool.name): tool for catalog in catalogs.values() for tool in catalog.tools}
            assert found.keys() == offered.keys()
            assert all(found[key].wire == offered[key] for key in offered)

            natives = {key: native_name(*key) for key in offered}
            assert len(set(natives.values())) == len(offered)
            assert all(PROVIDERS_NAME.fullmatch(native) for native in natives.values())

            session = plugin.session("find", keep=False)
            lost = []
            for server, name in offered:
                for query in (f"{server}.{name}", natives[server, name]):
                    hits = (await session.search(query, limit=1, load=False)).hits
                    if [(hit.tool.server, hit.tool.name) for hit in hits] != [(server, name)]:
                        lost.append(query)
                by_name = (await session.search(name, server=server, limit=1, load=False)).hits
                if [hit.tool.name for hit in by_name] != [name]:
                    lost.append(f"{name} in {server}")
            assert lost == []

            # One call per server, and 61 more: the right server, the original name, the very arguments.
            chosen = [next(key for key in offered if key[0] == server) for server in servers]
            chosen += random.Random(7).sample(sorted(offered), 61)
            host = AskingHost()
            host.max_tools = len(offered)
            session = plugin.session("call", host, keep=False)
            for server, name in chosen:
                try:
                    model_schema(offered[server, name].get("inputSchema"))
                except Quarantined:
                    continue
                await session.load([natives[server, name]])
                answer = await session.call(natives[server, name], {"from": f"{server} {name}"})
                reached = json.loads(answer.content[0]["text"])
                assert reached == {"name": name, "arguments": {"from": f"{server} {name}"}}

    run(main(), 390)


@pytest.mark.timeout(200)
def test_one_search_over_all_real_servers_names_those_that_were_not_ready(tmp_path: Path) -> None:
    servers = servers_of(shared_data())

    async def main() -> None:
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            began = time.monotonic()
            answer = await session.search("create an issue in a github repository")
            assert time.monotonic() - began < 17
            late = {diagnostic.server for diagnostic in answer.not_searched}
            assert {diagnostic.code for diagnostic in answer.not_searched} <= {"timeout"}
            assert late | set(answer.searched) == set(servers)
            assert late.isdisjoint(answer.searched)

    run(main(), 180)
