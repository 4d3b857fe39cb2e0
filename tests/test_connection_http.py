"""Connections to HTTP servers: what a lost session, a refused login or a dead server does to later uses."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.connect import CallHandlers
from pi_mcp.errors import AuthenticationError, NotExecuted
from tests.hostile.connecting import SECRET, connected, refused, text_of
from tests.hostile.http_server import HttpServer, Request, closed_port
from tests.support import run


def test_b053_a_lost_session_is_replaced_once_for_all_who_call() -> None:
    async def main() -> None:
        with HttpServer(session=True) as server:
            async with connected({"s": {"url": server.url}}) as connections:
                one = connections.get("s")
                await one.call_tool("echo", {})
                server.forget_sessions()
                errors = await asyncio.gather(*(refused(one.call_tool("echo", {})) for _ in range(3)))
                assert all(isinstance(error, NotExecuted) for error in errors)
                assert all("unknown" not in error.diagnostic.message for error in errors)
                await asyncio.gather(*(one.call_tool("echo", {}) for _ in range(3)))
                assert one.generation == 2
                server.forget_sessions()
                assert len((await one.list_tools()).tools) == 2
                assert one.generation == 3

    run(main())


def test_a_server_that_is_restarted_is_found_again() -> None:
    async def main() -> None:
        port = closed_port()
        entries = {"s": {"url": f"http://127.0.0.1:{port}/mcp"}}
        async with connected(entries) as connections:
            one = connections.get("s")
            with HttpServer(port=port):
                await one.call_tool("echo", {})
            error = await refused(one.call_tool("echo", {}))
            assert error.diagnostic.code == "connection_failed"
            with HttpServer(port=port):
                try:
                    await one.call_tool("echo", {})
                except NotExecuted:
                    await one.call_tool("echo", {})

    run(main())


@pytest.mark.parametrize(("status", "code"), [(401, "authentication_required"), (403, "permission_denied")])
def test_a_refused_login_is_asked_for_once_and_shown_as_such(status: int, code: str) -> None:
    async def main() -> None:
        with HttpServer({"*": {"status": status, "body": SECRET}}) as server:
            async with connected({"s": {"url": server.url}}) as connections:
                one = connections.get("s")
                error = await refused(one.connect())
                assert error.diagnostic.code == code
                assert isinstance(error, AuthenticationError)
                assert one.state == ("authentication_required" if status == 401 else "failed")
            # A gateway may answer an unknown method with 403, so `initialize` is tried, too.
            assert len(server.requests) == (1 if status == 401 else 2)

    run(main())


def test_a_login_that_expires_during_use_is_seen_at_the_call_and_tried_again_later() -> None:
    async def main() -> None:
        with HttpServer({"tools/call": [{}, {"status": 401}, {}]}) as server:
            async with connected({"s": {"url": server.url}}) as connections:
                one = connections.get("s")
                await one.call_tool("echo", {})
                error = await refused(one.call_tool("echo", {}))
                assert error.diagnostic.code == one.state == "authentication_required"
                await one.call_tool("echo", {})
                assert one.state == "connected"

    run(main())


def test_a_header_command_runs_again_after_a_401_and_the_request_is_sent_once_more(tmp_path: Path) -> None:
    counter = tmp_path / "count"
    counter.write_text("")
    command = f"!printf x >> {counter}; printf 'Bearer {SECRET}-'; wc -c < {counter}"

    async def main() -> None:
        with HttpServer({"tools/call": [{}, {"status": 401}, {}]}) as server:
            entries = {"s": {"url": server.url, "headers": {"Authorization": command}}}
            async with connected(entries) as connections:
                one = connections.get("s")
                await one.call_tool("echo", {})
                await one.call_tool("echo", {})
                assert (one.state, one.generation) == ("connected", 1)
            sent = [request.headers["authorization"] for request in server.of("tools/call")]
            assert sent == [f"Bearer {SECRET}-1", f"Bearer {SECRET}-1", f"Bearer {SECRET}-2"]

    run(main())


def test_the_legacy_transport_connects_lists_and_calls_when_it_is_asked_for() -> None:
    pytest.importorskip("mcp.server.mcpserver")
    code = (
        "import sys\n"
        "from mcp.server.mcpserver import MCPServer\n"
        "m = MCPServer('old')\n"
        "@m.tool()\n"
        "def echo(a: int) -> str:\n    return str(a)\n"
        "import uvicorn\n"
        "uvicorn.run(m.sse_app(), host='127.0.0.1', port=int(sys.argv[1]), log_level='critical')\n"
    )

    async def main() -> None:
        port = closed_port()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(port))
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
            async with connected({"s": {"type": "sse", "url": f"http://127.0.0.1:{port}/sse"}}) as connections:
                one = connections.get("s")
                assert [tool["name"] for tool in (await one.list_tools()).tools] == ["echo"]
                assert text_of(await one.call_tool("echo", {"a": 3}, handlers=CallHandlers())) == "3"
                await one.reconnect()
        finally:
            process.kill()
            await process.wait()

    run(main(), 60)


def test_no_error_of_an_http_server_shows_its_body_or_a_header() -> None:
    bodies = [{"status": status, "body": f"<html>{SECRET}"} for status in (400, 404, 418, 500, 502, 429)]

    async def main() -> None:
        for body in bodies:
            with HttpServer({"*": body}) as server:
                entries = {"s": {"url": server.url, "headers": {"X-Key": SECRET}}}
                async with connected(entries) as connections:
                    error = await refused(connections.get("s").connect())
                    assert SECRET not in json.dumps(connections.get("s").log.lines())
                    assert str(body["status"]) in error.diagnostic.message

    run(main())


def test_a_modern_server_gets_the_call_repeated_in_headers() -> None:
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "n": {"type": "integer"}},
    }

    async def main() -> None:
        tools = [{"name": "größe", "inputSchema": schema}]
        with HttpServer(era="modern", tools=tools) as server:
            async with connected({"s": {"url": server.url}}) as connections:
                one = connections.get("s")
                [tool] = (await one.list_tools()).tools
                await one.call_tool(tool["name"], {"region": "eu", "n": 1}, schema=tool["inputSchema"])
            [call] = server.of("tools/call")
            assert call.headers["mcp-protocol-version"] == "2026-07-28"
            assert call.headers["mcp-method"] == "tools/call"
            assert call.headers["mcp-name"].startswith("=?base64?")
            assert call.headers["mcp-param-region"] == "eu"
            assert server.of("initialize") == []

    run(main())


@pytest.mark.parametrize(("supported", "era"), [(["2026-07-28"], "modern"), (["2031-01-01"], "legacy"), (7, "legacy")])
def test_a_server_that_refuses_the_version_is_asked_once_more_in_one_that_it_names(supported: Any, era: str) -> None:
    def refuse(request: Request, server: HttpServer) -> dict[str, Any]:
        if len(server.of("server/discover")) > 1:
            return {}
        error = {"code": -32022, "message": "unsupported", "data": {"supported": supported}}
        answer = {"jsonrpc": "2.0", "id": request.message["id"], "error": error}
        return {"status": 400, "headers": {"Content-Type": "application/json"}, "body": json.dumps(answer)}

    async def main() -> None:
        with HttpServer({"server/discover": refuse}, era="both") as server:
            async with connected({"s": {"url": server.url}}) as connections:
                assert (await connections.get("s").connect()).era == era
            probes = server.of("server/discover")
            assert len(probes) == (2 if era == "modern" else 1)
            assert len({one.message["id"] for one in probes}) == len(probes)
            assert (server.of("initialize") == []) == (era == "modern")

    run(main())


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_a_tool_whose_headers_cannot_be_sent_is_dropped_and_the_others_stay(era: str) -> None:
    def tool(name: str, *headers: Any, kind: str = "string") -> dict[str, Any]:
        fields = {f"p{place}": {"type": kind, "x-mcp-header": header} for place, header in enumerate(headers)}
        return {"name": name, "inputSchema": {"type": "object", "properties": fields}}

    async def main() -> None:
        tools = [
            tool("good", "Region", "Zone"),
            tool("empty", ""),
            tool("blank", "My Region"),
            tool("twice", "Region", "region"),
            tool("object", "Data", kind="object"),
            tool("number", "Score", kind="number"),
            tool("no text", 7),
            {"name": "odd", "inputSchema": {"type": "object", "properties": [1]}},
            {"name": "none"},
        ]
        with HttpServer(era=era, tools=tools) as server:
            async with connected({"s": {"url": server.url}}) as connections:
                listing = await connections.get("s").list_tools()
        kept = [one["name"] for one in listing.tools]
        if era == "legacy":
            # Nobody had agreed on what the word means.
            assert kept == [one["name"] for one in tools]
        else:
            assert kept == ["good", "odd", "none"]
            assert "6 entries whose `x-mcp-header` is not valid dropped." in listing.notes

    run(main())


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


UNWRITABLE = {"object": object()}


@pytest.mark.parametrize("name", ["half", "halves", "deep", *UNWRITABLE])
def test_what_cannot_be_written_costs_its_own_call_and_no_other(name: str) -> None:
    """Models write halves of surrogate pairs now and then; the connection ended, and every call on it with it."""
    written = {"half": "a \ud83d b", "halves": {"\ud83d": "\udc00"}, "deep": nested(300)}
    sent = written.get(name)

    async def main() -> None:
        arrived = asyncio.Event()
        loop = asyncio.get_running_loop()

        def react(request: Request, server: HttpServer) -> dict[str, Any]:
            if request.message["params"]["name"] == "other":
                loop.call_soon_threadsafe(arrived.set)
                return {"sleep": 1.0}
            return {}

        with HttpServer({"tools/call": react}) as server:
            async with connected({"s": {"url": server.url}}) as connections:
                one = connections.get("s")
                other = asyncio.ensure_future(one.call_tool("other", {}))
                await asyncio.wait_for(arrived.wait(), 30)
                if sent is None:
                    error = await refused(one.call_tool("echo", {"secret": SECRET, "value": UNWRITABLE[name]}))
                    assert "nothing was sent" in error.diagnostic.message
                    assert SECRET not in error.diagnostic.line()
                else:
                    await one.call_tool("echo", {"value": sent})
                    assert server.of("tools/call")[-1].message["params"]["arguments"] == {"value": sent}
                await other
                assert one.generation == 1

    run(main())
