"""Memory with all catalogs loaded and ten servers connected: ours, the bare SDK, FastMCP's client.

Each side is a process of its own that runs one of the functions at the end of this file: it loads every saved
catalog from disk into what that side has for it, connects ten servers, waits a moment, and prints its peak and its
present resident size. Ours has the search index built and a search done besides.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CONNECTED = 10
SIDES = ("pi-mcp", "sdk", "fastmcp")


def memory(options: Any, home: Path) -> list[Any]:
    from measure import Row, environment, output_of
    from setting import catalogs, entries, warm, write_config

    if options.data is None:
        return [Row("memory with 39 catalogs", "skipped", "PI_MCP_TEST_DATA is not set")]
    config = write_config(home, entries(options.data, None))
    warm(home, config)
    count = len(catalogs(options.data))
    pythons = {"pi-mcp": sys.executable, "sdk": sys.executable, "fastmcp": str(options.fastmcp or "")}
    sizes: dict[str, list[tuple[int, int]]] = {side: [] for side in SIDES if pythons[side]}
    for _ in range(options.times(3, 1)):
        for side, taken in sizes.items():
            env = environment(home, PI_MCP_CONFIG=str(config))
            if side == "fastmcp":
                del env["PYTHONPATH"]
            peak, idle = output_of([pythons[side], __file__, side, str(config)], env, home).split()[-2:]
            taken.append((int(peak), int(idle)))
    middle = {side: [statistics.median(pair[at] for pair in taken) for at in (0, 1)] for side, taken in sizes.items()}
    rows = []
    for at, what in enumerate(("peak", "idle")):
        own = middle["pi-mcp"][at]
        beside, ratios = [], []
        for side, name in (("sdk", "bare SDK"), ("fastmcp", "FastMCP client")):
            if side in middle:
                beside.append(f"{name}: {middle[side][at] / 1024:.0f} MiB")
                ratios.append(f"{own / middle[side][at]:.2f}×")
            else:
                beside.append(f"{name}: not installed")
        rows.append(
            Row(
                f"memory, {what}: {count} catalogs, {CONNECTED} servers connected",
                f"{own / 1024:.0f} MiB",
                "; ".join(beside),
                ", ".join(ratios),
            )
        )
    return rows


def own_sizes() -> tuple[int, int]:
    """(peak, present) resident size of this process in KiB."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(fields["VmHWM"].split()[0]), int(fields["VmRSS"].split()[0])


async def settle() -> None:
    """Print both sizes after a quiet moment."""
    gc.collect()
    await asyncio.sleep(0.5)
    print(*own_sizes(), flush=True)


async def with_pi_mcp(servers: dict[str, Any]) -> None:
    from pi_mcp import Plugin, load_config

    async with Plugin(load_config()) as plugin:
        session = plugin.session("memory", keep=False)
        answer = await session.search("create an issue in a repository", load=False)
        assert len(answer.searched) == len(servers), answer.not_searched
        names = list(servers)[:CONNECTED]
        await asyncio.gather(*(plugin.connections.get(name).connect() for name in names))
        await settle()


def parsed(servers: dict[str, Any]) -> list[Any]:
    from mcp_types import ListToolsResult

    found = []
    for entry in servers.values():
        tools = json.loads(Path(entry["args"][-1]).read_text())["tools"]
        for tool in tools:
            tool.setdefault("inputSchema", {"type": "object"})
        found.append(ListToolsResult.model_validate({"tools": tools}))
    return found


async def with_sdk(servers: dict[str, Any]) -> None:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    catalogs = parsed(servers)
    with Path(os.devnull).open("w") as nowhere:  # noqa: ASYNC230 -- nothing waits there
        async with contextlib.AsyncExitStack() as stack:
            for entry in list(servers.values())[:CONNECTED]:
                started = StdioServerParameters(command=entry["command"], args=entry["args"])
                await stack.enter_async_context(Client(stdio_client(started, errlog=nowhere)))
            await settle()
    assert len(catalogs) == len(servers)


async def with_fastmcp(servers: dict[str, Any]) -> None:
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    catalogs = parsed(servers)
    async with contextlib.AsyncExitStack() as stack:
        for entry in list(servers.values())[:CONNECTED]:
            await stack.enter_async_context(
                Client(StdioTransport(command=entry["command"], args=entry["args"], keep_alive=False))
            )
        await settle()
    assert len(catalogs) == len(servers)


if __name__ == "__main__":
    side, configured = sys.argv[1:]
    # A script's own folder is first on the path, where `discovery` and others would hide packages' modules.
    sys.path.remove(str(HERE))
    work = {"pi-mcp": with_pi_mcp, "sdk": with_sdk, "fastmcp": with_fastmcp}[side]
    asyncio.run(work(json.loads(Path(configured).read_text())["mcpServers"]))
