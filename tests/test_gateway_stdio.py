"""`pi-mcp serve` as a process over stdio: one client, the two faces, and how it ends."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.auth_support import until
from tests.gateway_support import StdioClient, command, stdio_gateway
from tests.hostile.connecting import text_of
from tests.hostile.processes import descendants_of, gone
from tests.hostile.script import entry, methods_of, pids_of, record_of, tool
from tests.plugin_support import spoken
from tests.support import run

WEATHER = tool("weather_forecast", description="The weather forecast for a city.", outputSchema={"type": "object"})
MAIL = tool("send_mail", description="Send an electronic mail.")


def test_a_found_tool_is_announced_before_the_answer_which_waits_for_the_new_list(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, spoken([WEATHER, MAIL], **{"tools/call": [{"pid": True}]}))
        async with stdio_gateway({"city": server}, tmp_path) as process, StdioClient(process) as client:
            first = (await client.request("tools/list"))["tools"]
            assert [one["name"] for one in first] == ["mcp_search", "mcp_call"]
            assert all(one["_meta"] == {"anthropic/alwaysLoad": True} for one in first)
            # A client that lists as soon as it hears of the change, as clients do.
            message = client.message("tools/call", {"name": "mcp_search", "arguments": {"query": "weather"}})
            searching = asyncio.create_task(client.send(message))
            await until(lambda: "notifications/tools/list_changed" in client.methods())
            assert not searching.done()
            listing = client.message("tools/list", {})
            listed = (await client.send(listing))["tools"]
            result = await searching
            assert client.order.index(f"answer {listing['id']}") < client.order.index(f"answer {message['id']}")
            assert listed[2] == {**WEATHER, "name": "city__weather_forecast"}
            assert "city__weather_forecast" in text_of(result)
            assert "mcp__" not in text_of(result)
            # One process for the search and the call.
            assert await client.text("city__weather_forecast") == str(pids_of(server)[0])
            called = await client.call("mcp_call", {"name": "city__weather_forecast", "arguments": {"a": 1}})
            assert text_of(called) == str(pids_of(server)[0])
            assert len(pids_of(server)) == 1
            calls = [line["params"] for line in record_of(server) if line.get("method") == "tools/call"]
            assert calls[1] == {"name": "weather_forecast", "arguments": {"a": 1}}

    run(work())


@pytest.mark.slow
def test_a_client_that_never_lists_again_is_waited_for_twice(tmp_path: Path) -> None:
    async def work() -> None:
        tools = [tool(name, description=f"Handles the {name}.") for name in ("alpha", "beta", "gamma")]
        server = entry(tmp_path, spoken(tools))
        async with stdio_gateway({"s": server}, tmp_path) as process, StdioClient(process) as client:
            loop = asyncio.get_running_loop()
            waited = []
            for name in ("alpha", "beta", "gamma"):
                began = loop.time()
                await client.call("mcp_search", {"query": name, "limit": 1})
                waited.append(loop.time() - began)
            assert min(waited[:2]) >= 1.5
            assert waited[2] < 1.5
            assert client.methods().count("notifications/tools/list_changed") == 3

    run(work())


def test_the_one_client_of_stdio_is_asked_what_its_upstreams_ask(tmp_path: Path) -> None:
    asks = [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}}]}, {"answer": True}]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [asks]})
        async with (
            stdio_gateway({"s": server}, tmp_path, "--expose", "all") as process,
            StdioClient(process, capabilities={"elicitation": {}}) as client,
        ):
            client.answer = lambda method, params: {"action": "accept", "content": {}}
            assert json.loads(await client.text("s__echo")) == {"action": "accept", "content": {}}

    run(work())


def test_a_client_of_the_newer_protocol_is_served_over_stdio_too(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"progress": 1}, {"echo": True}]})
        async with (
            stdio_gateway({"s": server}, tmp_path, "--expose", "all") as process,
            StdioClient(process, begins=False) as client,
        ):
            found = await client.request("server/discover", {"_meta": meta})
            assert found["supportedVersions"] == ["2026-07-28"]
            params = {"name": "s__echo", "arguments": {}, "_meta": {**meta, "progressToken": 7}}
            result = await client.request("tools/call", params)
            assert result["resultType"] == "complete"
            assert client.heard[0]["params"]["progressToken"] == 7

    run(work())


def test_what_is_no_message_is_answered_and_the_connection_lives_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with stdio_gateway({"s": entry(tmp_path)}, tmp_path) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            odd: list[tuple[bytes, int]] = [
                (b"no json", -32700),
                (b'{"jsonrpc":"2.0"}', -32600),
                (b"[1]", -32600),
                (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
                (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
                (b"[" * 100000, -32700),
            ]
            for line, code in odd:
                process.stdin.write(line + b"\n")
                message = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
                assert (message["error"]["code"], message["id"]) == (code, None)
            process.stdin.write(b'{"jsonrpc":"2.0","id":"x","method":"ping"}\n')
            message = json.loads(await asyncio.wait_for(process.stdout.readline(), 20))
            assert message == {"jsonrpc": "2.0", "id": "x", "result": {}}

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGKILL"])
def test_the_gateways_end_leaves_no_process(tmp_path: Path, how: str) -> None:
    async def work() -> None:
        servers = {name: entry(tmp_path, {"tools/call": [{"hang": True}]}) for name in ("a", "b")}
        async with stdio_gateway(servers, tmp_path, "--expose", "all") as process:
            client = StdioClient(process)
            await client.begin()
            await client.request("tools/list")
            calling = asyncio.create_task(client.call("a__echo"))
            await until(lambda: "tools/call" in methods_of(servers["a"]))
            pids = [process.pid, *descendants_of(process.pid)]
            assert len(pids) >= 3
            assert process.stdin is not None
            if how == "end of input":
                process.stdin.close()
            else:
                os.kill(process.pid, getattr(signal, how))
            await asyncio.wait_for(process.wait(), 15)
            assert await asyncio.to_thread(gone, pids, 10.0)
            with pytest.raises((EOFError, asyncio.CancelledError, OSError)):
                await calling
            await client._http.aclose()
            await asyncio.gather(client._reader, return_exceptions=True)

    run(work())


def test_several_upstreams_without_a_prefix_are_refused_at_the_start(tmp_path: Path) -> None:
    async def work() -> None:
        servers: dict[str, Any] = {"a": entry(tmp_path), "b": entry(tmp_path)}
        async with stdio_gateway(servers, tmp_path, "--expose", "all", "--no-prefix") as process:
            assert await asyncio.wait_for(process.wait(), 30) == 2
            assert process.stderr is not None
            assert b"--no-prefix" in await process.stderr.read()

    run(work())


def test_a_client_of_the_newer_protocol_that_listens_hears_of_a_found_tool_before_the_answer(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }

    async def work() -> None:
        server = entry(tmp_path, spoken([WEATHER]))
        async with (
            stdio_gateway({"city": server}, tmp_path) as process,
            StdioClient(process, begins=False) as client,
        ):
            wanted = {"notifications": {"toolsListChanged": True}, "_meta": meta}
            listening = asyncio.create_task(client.request("subscriptions/listen", wanted))
            await until(lambda: client.heard)
            params = {"name": "mcp_search", "arguments": {"query": "weather"}, "_meta": meta}
            searching = asyncio.create_task(client.request("tools/call", params))
            await until(lambda: "notifications/tools/list_changed" in client.methods())
            assert not searching.done()
            listed = (await client.request("tools/list", {"_meta": meta}))["tools"]
            assert listed[2]["name"] == "city__weather_forecast"
            assert "city__weather_forecast" in text_of(await searching)
            assert process.stdin is not None
            process.stdin.close()
            # The end is told: a subscription has a last message of its own.
            assert (await listening)["resultType"] == "complete"

    run(work())


@pytest.mark.parametrize("what", ["nothing", "a file"])
def test_an_input_that_is_no_pipe_is_read_to_its_end(tmp_path: Path, what: str) -> None:
    file, config = tmp_path / "requests", tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"s": entry(tmp_path)}}))
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    file.write_text(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}) + "\n")
    with (file if what == "a file" else Path(os.devnull)).open("rb") as given:
        done = subprocess.run(command(config), stdin=given, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["id"] for line in done.stdout.splitlines()]
    assert answers == ([1] if what == "a file" else [])


def test_an_output_that_is_a_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    config, file = tmp_path / "mcp.json", tmp_path / "answers"
    config.write_text(json.dumps({"mcpServers": {"s": entry(tmp_path)}}))
    with file.open("wb") as taking:
        done = subprocess.run(
            command(config), stdin=subprocess.DEVNULL, stdout=taking, stderr=subprocess.PIPE, timeout=30
        )
    assert done.returncode == 2
    assert b"--http" in done.stderr
    assert file.read_bytes() == b""


def test_what_is_left_out_of_the_configuration_is_told_to_who_starts_it(private_home: Path, tmp_path: Path) -> None:
    """Its callers cannot tell a server that is invalid from one that nobody named."""
    user, pi = private_home / ".config/pi-mcp/mcp.json", private_home / ".pi/agent/mcp.json"
    for file in (user, pi):
        file.parent.mkdir(parents=True, exist_ok=True)
    user.write_text('{"mcpServers": {"s": {"env": {"T": "S3CRET"}}')
    ready = {**entry(tmp_path), "timeout": 3}
    pi.write_text(json.dumps({"mcpServers": {"ok": ready, "bad": {"command": "x", "env": {"T": "S3CRET"}, "zzz": 1}}}))
    project = tmp_path / "project"
    project.mkdir()
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"one": entry(tmp_path), "two": entry(tmp_path)}}))

    def said() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "pi_mcp", "serve"],
            cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert "S3CRET" not in done.stderr
        return done.stderr.splitlines()

    lines = said()
    assert len(lines) == 4, lines
    assert sum(str(user) in line and line.startswith("pi-mcp: [configuration_invalid] ") for line in lines) == 1
    assert sum(str(project / ".mcp.json") in line and line.startswith("pi-mcp: [refused] ") for line in lines) == 1
    assert sum(line.startswith("pi-mcp: bad: [configuration_invalid] ") and "`zzz`" in line for line in lines) == 1
    assert sum(line.startswith("pi-mcp: ok: [configuration_invalid] ") and "`timeout`" in line for line in lines) == 1
    pi.unlink()
    lines = said()
    assert lines[-1] == "pi-mcp: There is no server to serve. `pi-mcp servers` shows what was read, and from where."
    assert len(lines) == 3, lines


@pytest.mark.parametrize("cached", [False, True])
def test_a_rule_that_covers_no_tool_is_told_to_who_runs_the_gateway(tmp_path: Path, cached: bool) -> None:
    """Also where the catalog comes from the disk, and once however often it is listed."""
    upstream = entry(tmp_path, access={"write": ["echo(text)"]}, env={"T": "S3CRET"})

    async def said() -> str:
        async with (
            stdio_gateway({"s": upstream}, tmp_path, "--expose", "search") as process,
            StdioClient(process) as client,
        ):
            for _ in range(2):
                await client.call("mcp_search", {"query": "echo"})
            assert process.stdin is not None
            process.stdin.close()
            assert process.stderr is not None
            return (await asyncio.wait_for(process.stderr.read(), 30)).decode()

    if cached:
        run(said())
    lines = run(said()).splitlines()
    assert lines == ["pi-mcp: s: `access.write` names echo(text), and the server has no such tool."]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGTERM", "the client has gone"])
def test_the_end_is_not_put_off_by_an_upstream_that_is_still_starting(tmp_path: Path, how: str) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"start": [{"sleep": 50}]})
        async with stdio_gateway({"s": server}, tmp_path, "--expose", "all", "--no-prefix") as process:
            client = StdioClient(process)
            beginning = asyncio.create_task(client.begin())
            await until(lambda: bool(pids_of(server)), 30)
            assert process.stdin is not None
            if how == "SIGTERM":
                process.terminate()
            else:
                process.stdin.close()
                process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
            assert await asyncio.wait_for(process.wait(), 30) == 0
            beginning.cancel()
            await asyncio.gather(beginning, client._reader, client._http.aclose(), return_exceptions=True)

    run(work())


def test_a_client_that_takes_no_answer_does_not_put_off_the_end(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"big": 12_000_000}]})
        async with stdio_gateway({"s": server}, tmp_path, "--expose", "all") as process:
            assert process.stdin is not None
            output = process._transport.get_pipe_transport(1)  # type: ignore[attr-defined]
            output.pause_reading()
            call = {"method": "tools/call", "params": {"name": "s__echo", "arguments": {}}}
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, **call}).encode() + b"\n")

            def full() -> bool:
                there = fcntl.ioctl(output.get_extra_info("pipe").fileno(), termios.FIONREAD, b"\0" * 4)
                return int.from_bytes(there, sys.byteorder) >= 60_000

            await until(full, 30)
            process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"ping"}\n' * 2)
            await process.stdin.drain()
            process.terminate()
            assert await asyncio.to_thread(gone, [process.pid], 15.0)
            output.resume_reading()
            assert await asyncio.wait_for(process.wait(), 10) == 0

    run(work())
