"""Whole engines and real servers: who is killed, and what is left; the SDK's own server in both eras."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.connect import CallHandlers
from tests.hostile.connecting import connected, text_of, until
from tests.hostile.http_server import closed_port
from tests.hostile.processes import alive, children_of, descendants_of, gone
from tests.hostile.script import entry, pids_of
from tests.support import run

ENGINE = """
import asyncio, json, sys
from pi_mcp.config import configuration_of
from pi_mcp.connect import Connections

async def main():
    connections = Connections(configuration_of(json.loads(sys.argv[1])))
    await asyncio.gather(*(connections.get(name).connect() for name in json.loads(sys.argv[1])))
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""

STUBBORN: dict[str, Any] = {
    "ignore_eof": True,
    "ignore_term": True,
    "start": [{"spawn": "child"}, {"spawn": "setsid"}, {"spawn": "daemon"}],
}


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["outer", "inner", "server", "all"])
def test_processes_that_were_stopped_end_with_their_connection(tmp_path: Path, stopped: str) -> None:
    async def main() -> None:
        async with connected({"stubborn": entry(tmp_path, STUBBORN)}) as connections:
            before = set(descendants_of(os.getpid()))
            await connections.get("stubborn").connect()
            pids = [pid for pid in descendants_of(os.getpid()) if pid not in before]
            outer = next(pid for pid in children_of(os.getpid()) if pid in pids)
            (inner,) = children_of(outer)
            server = next(pid for pid in children_of(inner) if pid in pids)
            for pid in {"outer": [outer], "inner": [inner], "server": [server], "all": pids}[stopped]:
                os.kill(pid, signal.SIGSTOP)

    run(main())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_engine_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    servers = {"plain": entry(tmp_path), "stubborn": entry(tmp_path, STUBBORN)}
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, json.dumps(servers)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert engine.stdout is not None
        with engine.stdout as pipe:
            assert pipe.readline() == b"ready\n"
        pids = [pid for server in servers.values() for pid in pids_of(server)] + descendants_of(engine.pid)
        assert len(set(pids)) == 9
        engine.send_signal(number)
        engine.wait(15)
        assert gone(pids, 8.0), alive(pids)
    finally:
        engine.kill()
        engine.wait()


@pytest.mark.slow
@pytest.mark.parametrize("which", ["outer", "inner"])
def test_a_supervisor_that_is_killed_alone_is_an_exit_of_the_server(tmp_path: Path, which: str) -> None:
    async def main() -> None:
        server = entry(tmp_path, STUBBORN)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            [outer] = children_of(os.getpid())
            [inner] = [pid for pid in children_of(outer) if pid not in pids_of(server)]
            pids = [*pids_of(server), outer, inner]
            call = asyncio.create_task(one.call_tool("hang", {}))
            await asyncio.sleep(0.05)
            os.kill(outer if which == "outer" else inner, signal.SIGKILL)
            await until(lambda: one.state == "failed")
            assert await asyncio.to_thread(gone, pids, 5.0)
            await asyncio.gather(call, return_exceptions=True)
            await one.call_tool("echo", {})
            assert one.generation == 2

    run(main())


def test_connections_may_live_on_a_loop_in_a_thread(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected({"s": entry(tmp_path)}) as connections:
            await connections.get("s").call_tool("echo", {})

    failed: list[BaseException] = []

    def thread_main() -> None:
        try:
            run(main())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=thread_main)
    thread.start()
    thread.join(30)
    assert failed == []


SDK_SERVER = textwrap.dedent(
    """
    import sys
    from mcp.server.mcpserver import Context, MCPServer
    from pydantic import BaseModel

    server = MCPServer("real")

    class Copies(BaseModel):
        copies: int

    @server.tool()
    async def steps(n: int, ctx: Context) -> str:
        for i in range(n):
            await ctx.report_progress(i + 1, n, f"step {i + 1}")
        return "done"

    @server.tool()
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", Copies)
        return f"{answer.action} {getattr(answer, 'data', None)}"

    if sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
    """
)


async def forms(schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
    assert message == "How many?"
    assert "copies" in schema["properties"]
    return {"copies": 3}


@pytest.mark.slow
@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_sdks_own_server_reports_progress_and_asks(tmp_path: Path, era: str, transport: str) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    program = tmp_path / "real.py"
    program.write_text(SDK_SERVER)

    async def use(server: dict[str, Any]) -> None:
        async with connected({"s": {**server, "protocol": era}}) as connections:
            one = connections.get("s")
            info = await one.connect()
            assert info.era == ("modern" if era == "auto" else "legacy")
            heard: list[tuple[float, float | None, str | None]] = []
            handlers = CallHandlers(on_progress=lambda *step: heard.append(step), elicit=forms)
            assert text_of(await one.call_tool("steps", {"n": 3}, handlers=handlers)) == "done"
            assert heard == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
            if info.era == "legacy":
                assert text_of(await one.call_tool("ask", {}, handlers=handlers)) == "accept copies=3"
            # What the SDK logs when a modern server uses the old way to ask is not for the terminal.

    async def main() -> None:
        if transport == "stdio":
            await use({"command": sys.executable, "args": [str(program)]})
            return
        port = closed_port()
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(program), str(port), stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with asyncio.timeout(20):
                while True:
                    try:
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                    except OSError:
                        await asyncio.sleep(0.1)
                    else:
                        writer.close()
                        await writer.wait_closed()
                        break
            await use({"url": f"http://127.0.0.1:{port}/mcp"})
        finally:
            process.kill()
            await process.wait()

    run(main(), 60)
