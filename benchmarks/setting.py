"""The setting that several figures share: catalogs, a configuration of servers that replay them, a warm cache.

Comes in: the folder with saved catalogs, or none. Goes out: files in a temporary home. Without saved catalogs the
servers are ten of our own, so that every figure can be seen to work anywhere; the published ones use the saved ones.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import environment, output_of, python

SERVERS = Path(__file__).resolve().parent / "servers"

WARM = """
import asyncio
from pi_mcp import Plugin, load_config

async def main():
    async with Plugin(load_config()) as plugin:
        names = list(plugin.configuration.servers)
        found = await plugin.catalogs.discover(names, wait=120)
        assert not found.not_searched, [str(problem.line()) for problem in found.not_searched]

asyncio.run(main())
"""


def catalogs(data: Path | None) -> list[Path]:
    """The saved catalogs, one server each, by name."""
    if data is None:
        return []
    return [path for path in sorted((data / "catalogs").glob("*.json")) if path.name != "index.json"]


def server_names(paths: list[Path]) -> list[str]:
    return [path.stem.replace(".", "-") for path in paths]


def replay(data: Path, catalog: Path) -> dict[str, Any]:
    """The entry of a server that answers with a saved catalog."""
    return {"command": sys.executable, "args": ["-I", "-S", str(data / "tools" / "replay_server.py"), str(catalog)]}


def slow(seconds: float) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "slow_server.py"), str(seconds)]}


def entries(data: Path | None, count: int | None) -> dict[str, dict[str, Any]]:
    """Entries for the first `count` saved catalogs (None for all), or as many of our own servers."""
    if data is None:
        return {f"server-{number}": slow(0) for number in range(10 if count is None else count)}
    paths = catalogs(data)[:count]
    return {name: replay(data, path) for name, path in zip(server_names(paths), paths, strict=True)}


def write_config(home: Path, servers: Mapping[str, Mapping[str, Any]], name: str = "mcp.json") -> Path:
    path = home / name
    path.write_text(json.dumps({"mcpServers": servers}, indent=2))
    return path


def warm(home: Path, config: Path) -> dict[str, str]:
    """Fill the catalog cache once by asking every server; the variables for later processes."""
    env = environment(home, PI_MCP_CONFIG=str(config))
    output_of(python(WARM), env, home)
    return env
