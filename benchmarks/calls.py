"""What a call costs through a session, the live check included, beside the bare SDK on a server of the same kind.

The two sides call in turns, a few calls each, in one process and on one event loop; each has a server of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from measure import Options, Row, at_most, milliseconds
from setting import SERVERS, catalogs, replay

Call = Callable[[], Awaitable[Any]]
BATCH = 20
"""Calls of one side before it is the other's turn."""
HELLO = {"text": "hello"}


def p50(options: Options, home: Path) -> list[Row]:
    """The median call of a thousand, for each kind of server."""
    stdio = {"command": sys.executable, "args": [str(SERVERS / "sdk_server.py")]}
    rows = [
        asyncio.run(_p50(options, home, "SDK low-level server, stdio", stdio, "echo", HELLO, ratio_aim=1.15)),
        asyncio.run(_p50(options, home, "the same, output schema checked", stdio, "checked", HELLO, ratio_aim=1.15)),
    ]
    with http_server() as url:
        rows.append(
            asyncio.run(_p50(options, home, "SDK low-level server, HTTP", {"url": url}, "echo", HELLO, ratio_aim=1.15))
        )
    if options.data is None:
        rows.append(Row("p50 of a call, replay server", "skipped", "PI_MCP_TEST_DATA is not set"))
    else:
        catalog, tool = _replayed(options.data)
        entry = replay(options.data, catalog)
        rows.append(asyncio.run(_p50(options, home, "standard-library server, stdio", entry, tool, {}, added_aim=0.15)))
    return rows


def parallel(options: Options, home: Path) -> list[Row]:
    """Twenty calls at once, each of which the server answers after half a second."""
    stdio = {"command": sys.executable, "args": [str(SERVERS / "sdk_server.py")]}
    rows = [asyncio.run(_parallel(options, home, "stdio", stdio))]
    with http_server() as url:
        rows.append(asyncio.run(_parallel(options, home, "HTTP", {"url": url})))
    return rows


async def _p50(
    options: Options,
    home: Path,
    what: str,
    entry: dict[str, Any],
    tool: str,
    arguments: dict[str, Any],
    *,
    ratio_aim: float | None = None,
    added_aim: float | None = None,
) -> Row:
    count = options.times(1000, 40)
    taken: dict[str, list[float]] = {"pi-mcp": [], "sdk": []}
    async with ours(home, entry, tool, arguments) as own, bare(entry, tool, arguments) as other:
        sides = {"pi-mcp": own, "sdk": other}
        for call in sides.values():
            for _ in range(BATCH):
                await call()
        for number in range(count // BATCH):
            for side in list(sides) if number % 2 else list(reversed(sides)):
                call = sides[side]
                for _ in range(BATCH):
                    began = time.perf_counter()
                    await call()
                    taken[side].append(time.perf_counter() - began)
    own_p50, other_p50 = statistics.median(taken["pi-mcp"]), statistics.median(taken["sdk"])
    ratio, added = own_p50 / other_p50, (own_p50 - other_p50) * 1000
    aim, met = "–", None
    if ratio_aim is not None:
        aim, met = f"≤ {ratio_aim}×", at_most(ratio, ratio_aim)
    if added_aim is not None:
        aim, met = f"≤ +{added_aim} ms", at_most(added, added_aim)
    return Row(
        f"p50 of {count} calls, {what}",
        milliseconds(own_p50),
        f"bare SDK session: {milliseconds(other_p50)}",
        f"{ratio:.2f}× ({added:+.2f} ms)",
        aim,
        met,
    )


async def _parallel(options: Options, home: Path, what: str, entry: dict[str, Any]) -> Row:
    rounds = options.times(5, 1)
    taken: dict[str, list[float]] = {"pi-mcp": [], "sdk": []}
    arguments = {"seconds": 0.5}
    async with ours(home, entry, "pause", arguments) as own, bare(entry, "pause", arguments) as other:
        for number in range(rounds):
            for side, call in (("pi-mcp", own), ("sdk", other)) if number % 2 else (("sdk", other), ("pi-mcp", own)):
                began = time.perf_counter()
                await asyncio.gather(*(call() for _ in range(20)))
                taken[side].append(time.perf_counter() - began)
    own_time, other_time = statistics.median(taken["pi-mcp"]), statistics.median(taken["sdk"])
    return Row(
        f"20 parallel calls of 0.5 s on one server, {what}",
        milliseconds(own_time),
        f"bare SDK session: {milliseconds(other_time)}",
        f"{own_time / other_time:.2f}×",
        "≤ 0.7 s",
        at_most(own_time, 0.7),
    )


@contextlib.asynccontextmanager
async def ours(home: Path, entry: dict[str, Any], tool: str, arguments: dict[str, Any]) -> AsyncIterator[Call]:
    """A session with `tool` loaded and called once: the first call lists, as every first call does."""
    from pi_mcp import Plugin
    from pi_mcp.config import configuration_of

    configuration = configuration_of({"one": entry}, cwd=home)
    async with Plugin(configuration, state_dir=home / "state", cache_dir=home / "cache") as plugin:
        session = plugin.session("benchmark", keep=False)
        native = (await session.load([f"one.{tool}"])).loaded[0].native

        async def call() -> None:
            answer = await session.call(native, arguments)
            assert not answer.is_error

        await session.call(native, arguments)
        yield call


@contextlib.asynccontextmanager
async def bare(entry: dict[str, Any], tool: str, arguments: dict[str, Any]) -> AsyncIterator[Call]:
    """The SDK's own client on its own session, with the tools listed once, as its output checks want it."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    with Path(os.devnull).open("w") as nowhere:  # noqa: ASYNC230 -- nothing waits there
        if "url" in entry:
            target: Any = entry["url"]
        else:
            target = stdio_client(StdioServerParameters(command=entry["command"], args=entry["args"]), errlog=nowhere)
        async with Client(target) as client:
            await client.list_tools()

            async def call() -> None:
                answer: Any = await client.session.call_tool(tool, arguments)
                assert not answer.is_error

            await call()
            yield call


@contextlib.contextmanager
def http_server(*options: str) -> Iterator[str]:
    """The SDK server over HTTP in a process of its own; its address."""
    command = [sys.executable, str(SERVERS / "sdk_server.py"), "--http", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().decode().strip()
        finally:
            process.terminate()


def _replayed(data: Path) -> tuple[Path, str]:
    """The first saved catalog, and the first tool in it, that the bare SDK can call: no output schema anywhere."""
    for path in catalogs(data):
        tools = json.loads(path.read_text())["tools"]
        if not any("outputSchema" in tool for tool in tools):
            name: str = tools[0]["name"]
            return path, name
    raise RuntimeError("every saved catalog has output schemas")
