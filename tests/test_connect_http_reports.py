"""The field reports about HTTP servers, each driven through `Connection` against a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import configuration_of
from pi_mcp.connect import CallHandlers, Connection, Connections
from pi_mcp.errors import AuthenticationError, NotExecuted, PiMcpError, ServerError
from tests.auth_support import until
from tests.hostile.certificate import certificate_in
from tests.hostile.http_server import HttpServer, Request, closed_port
from tests.support import run

PLANTED = "S3CR3T-planted-0451"


@contextlib.asynccontextmanager
async def connections(
    servers: Mapping[str, Mapping[str, Any]], environ: Mapping[str, str] | None = None
) -> AsyncIterator[Connections]:
    """Connections to these entries; at the end nothing of them is left, and no secret was shown."""
    entries = {
        name: {"type": "http", "headers": {"X-Planted": PLANTED}, **entry} if "url" in entry else dict(entry)
        for name, entry in servers.items()
    }
    configuration = configuration_of(entries, environ={"HOME": os.environ["HOME"], **(environ or {})})
    assert set(configuration.servers) == set(servers), configuration
    all_of_them = Connections(configuration)
    try:
        yield all_of_them
    finally:
        started = time.monotonic()
        await all_of_them.close()
        assert time.monotonic() - started < 5
        for name in servers:
            connection = all_of_them.get(name)
            told = "\n".join([*connection.log.lines(), repr(connection.diagnostic)])
            assert PLANTED not in told


@contextlib.asynccontextmanager
async def connected(
    server: HttpServer, environ: Mapping[str, str] | None = None, **fields: Any
) -> AsyncIterator[Connection]:
    entry = {"url": f"{server.url}?key={PLANTED}", "timeoutMs": 3000, "protocol": "legacy", **fields}
    async with connections({"web": entry}, environ) as found:
        yield found.get("web")


async def text_of(connection: Connection, **arguments: Any) -> str:
    result = await connection.call_tool("echo", arguments, handlers=CallHandlers())
    return str(result["content"][0]["text"])


async def error_of(connection: Connection) -> PiMcpError:
    """The error of a call; it quotes nothing of the planted secret."""
    with pytest.raises(PiMcpError) as raised:
        await text_of(connection)
    assert PLANTED not in str(raised.value)
    assert PLANTED not in repr(raised.value.diagnostic)
    return raised.value


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate_in(tmp_path_factory.mktemp("tls"))


def unknown_outcome(error: PiMcpError) -> bool:
    return "is unknown" in error.diagnostic.message


def test_b047_a_server_without_a_stream_of_its_own_is_connected() -> None:
    async def main() -> None:
        script = {"GET": {"status": 405, "headers": {"Allow": "POST"}}, "DELETE": {"status": 405}}
        with HttpServer(script, session=True) as server:
            async with connected(server) as connection:
                assert len((await connection.list_tools()).tools) == 2
                assert "echo" in await text_of(connection)
                assert connection.state == "connected"
            assert len(server.of("GET")) == 1

    run(main())


@pytest.mark.parametrize("reaction", [{"hang": True}, {"status": 404, "type": "text/html"}, {"status": 400}])
def test_b049_b050_a_stream_that_hangs_or_is_refused_blocks_nothing(reaction: dict[str, Any]) -> None:
    async def main() -> None:
        for session in (True, False):
            with HttpServer({"GET": reaction}, session=session) as server:
                started = time.monotonic()
                async with connected(server) as connection:
                    await connection.list_tools()
                    assert "echo" in await text_of(connection)
                assert time.monotonic() - started < 10
                assert connection.generation == 1

    run(main())


def test_b052_a_400_about_the_session_makes_the_next_use_start_a_new_one() -> None:
    async def main() -> None:
        body = '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: no valid session id"},"id":null}'
        lost = {"status": 400, "type": "application/json", "body": body}
        with HttpServer(session=True, lost=lost) as server:
            async with connected(server) as connection:
                await text_of(connection)
                server.forget_sessions()
                error = await error_of(connection)
                assert not isinstance(error, NotExecuted)
                assert unknown_outcome(error)
                assert "session" in error.diagnostic.message
                assert "/mcp reconnect web" in (error.diagnostic.hint or "")
                assert len(server.of("tools/call")) == 2
                assert "echo" in await text_of(connection)
                assert connection.generation == 2

    run(main())


def test_b053_after_a_dead_session_concurrent_calls_share_one_new_handshake() -> None:
    async def main() -> None:
        with HttpServer(session_ttl=0.3) as server:
            async with connected(server) as connection:
                await text_of(connection)
                await asyncio.sleep(0.6)
                with pytest.raises(NotExecuted):
                    await text_of(connection)
                answers = await asyncio.gather(*(text_of(connection, n=n) for n in range(6)))
                assert all("echo" in answer for answer in answers)
                assert len(server.of("initialize")) == 2

    run(main())


def test_b055_a_refused_connection_is_that_servers_failure_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with HttpServer() as server:
            bad = f"http://127.0.0.1:{closed_port()}/mcp?key={PLANTED}"
            async with connections({"good": {"url": server.url}, "bad": {"url": bad}}) as found:
                good, refused = await asyncio.gather(
                    found.get("good").connect(), found.get("bad").connect(), return_exceptions=True
                )
                assert not isinstance(good, BaseException)
                assert isinstance(refused, ServerError)
                assert refused.diagnostic.code == "connection_failed"
                assert "refused" in refused.diagnostic.message
                assert "echo" in await text_of(found.get("good"))
        gc.collect()

    run(main())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("case", ["refused", "500", "tls", "401"])
def test_b056_after_a_failed_connect_the_task_goes_on(case: str) -> None:
    async def main() -> None:
        script = {"*": {"status": int(case), "body": PLANTED}} if case.isdigit() else {}
        with HttpServer(script) as server:
            url = {
                "refused": f"http://127.0.0.1:{closed_port()}/mcp",
                "tls": f"https://127.0.0.1:{server.port}/mcp",
            }.get(case, server.url)
            async with connections({"bad": {"url": url}}) as found:
                for _ in range(2):
                    with pytest.raises(PiMcpError) as raised:
                        await found.get("bad").connect()
                    assert PLANTED not in str(raised.value)
                    await asyncio.sleep(0.05)
                assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
                expected = {"401": "authentication_required"}.get(case, "failed")
                assert found.get("bad").state == expected

    run(main())


def test_b058_a_mount_that_redirects_to_its_slash_form_works() -> None:
    async def main() -> None:
        def guarded(request: Request, server: HttpServer) -> dict[str, Any]:
            return {} if request.headers.get("x-planted") == PLANTED else {"status": 401}

        script = {"/mcp": {"redirect": "/mcp/"}, "*": guarded}
        with HttpServer(script, path="/mcp/", session=True) as server:
            async with connections({"web": {"url": f"{server.origin}/mcp"}}) as found:
                assert len((await found.get("web").list_tools()).tools) == 2
                assert "echo" in await text_of(found.get("web"))

    run(main())


def test_b061_a_redirect_to_a_sign_in_page_is_told_and_no_page_is_shown() -> None:
    async def main() -> None:
        script = {"*": {"redirect": "/signin", "status": 302}, "/signin": {"type": "text/html", "body": PLANTED}}
        with HttpServer(script) as server:
            async with connections({"web": {"url": server.url}}) as found:
                with pytest.raises(ServerError) as raised:
                    await found.get("web").connect()
                told = str(raised.value)
                assert "sign-in" in told
                assert "/signin" in told
                assert not [one for one in server.requests if one.path == "/signin"]
        with HttpServer({"*": {"type": "text/html", "body": f"<html>{PLANTED}"}}) as server:
            async with connections({"web": {"url": server.url}}) as found:
                with pytest.raises(ServerError) as raised:
                    await found.get("web").connect()
                assert "web page" in str(raised.value)

    run(main())


def test_b062_a_certificate_that_is_not_trusted_is_told_with_the_way_to_trust_it(
    certificate: tuple[Any, Any],
) -> None:
    async def main() -> None:
        with HttpServer(tls=certificate) as server:
            async with connected(server) as connection:
                with pytest.raises(ServerError) as raised:
                    await connection.connect()
                told = str(raised.value)
                assert "certificate" in told
                assert "SSL_CERT_FILE" in told
            async with connected(server, {"SSL_CERT_FILE": str(certificate[0])}) as connection:
                assert "echo" in await text_of(connection)

    run(main())


def test_b064_a_search_and_a_call_cost_a_handful_of_requests() -> None:
    async def main() -> None:
        count = 0

        def limited(request: Request, server: HttpServer) -> dict[str, Any]:
            nonlocal count
            count += 1
            return {"status": 429} if count > 8 else {}

        with HttpServer({"GET": {"status": 405}, "*": limited}, session=True) as server:
            async with connected(server, protocol="auto") as connection:
                await connection.list_tools()
                assert "echo" in await text_of(connection)
                await asyncio.sleep(1.5)
            assert len(server.of("GET")) == 1
            assert len(server.of("POST")) <= 5

    run(main())


def test_b065_a_rate_limit_delays_a_listing_once_and_never_repeats_a_call() -> None:
    async def main() -> None:
        script: dict[str, Any] = {
            "tools/list": [{"status": 429, "headers": {"Retry-After": "1"}}, {}],
            "tools/call": {"status": 429, "headers": {"Retry-After": "3600"}, "body": PLANTED},
        }
        with HttpServer(script) as server:
            async with connected(server) as connection:
                started = time.monotonic()
                assert len((await connection.list_tools()).tools) == 2
                assert 0.9 < time.monotonic() - started < 10
                started = time.monotonic()
                error = await error_of(connection)
                assert time.monotonic() - started < 5
                assert "3600 s" in str(error)
                assert unknown_outcome(error)
                assert len(server.of("tools/call")) == 1
                assert connection.state == "connected"

    run(main())


def test_b065_a_wait_that_does_not_fit_is_not_waited_for() -> None:
    async def main() -> None:
        limited = {"status": 429, "headers": {"Retry-After": "3600"}}
        with HttpServer({"tools/list": limited, "initialize": [{}, limited]}) as server:
            async with connected(server) as connection:
                started = time.monotonic()
                with pytest.raises(ServerError) as raised:
                    await connection.list_tools()
                assert "3600 s" in str(raised.value)
                with pytest.raises(ServerError):
                    await connection.reconnect()
                assert time.monotonic() - started < 10
                assert len(server.of("tools/list")) == 1

    run(main())


def test_b065_a_rate_limit_delays_a_handshake_once() -> None:
    async def main() -> None:
        limited = {"status": 429, "headers": {"Retry-After": "1"}}
        for protocol in ("legacy", "auto"):
            first = "initialize" if protocol == "legacy" else "server/discover"
            with HttpServer({first: [limited, {}]}) as server:
                async with connected(server, protocol=protocol) as connection:
                    await connection.connect()
                    assert connection.state == "connected"

    run(main())


def test_b067_a_tools_own_error_is_no_failure_of_the_server() -> None:
    async def main() -> None:
        result = {"content": [{"type": "text", "text": "429 rate limited"}], "isError": True}
        with HttpServer({"tools/call": {"result": result}}) as server:
            async with connected(server) as connection:
                for _ in range(5):
                    assert (await connection.call_tool("echo", {}, handlers=CallHandlers()))["isError"] is True
                assert connection.state == "connected"

    run(main())


def test_b068_any_answer_to_the_initialized_notification_is_fine() -> None:
    async def main() -> None:
        for reaction in (
            {"type": "application/json", "body": "null"},
            {"status": 204},
            {"status": 202, "chunked": True},
        ):
            with HttpServer({"notifications/initialized": reaction}) as server:
                async with connected(server) as connection:
                    assert "echo" in await text_of(connection)

    run(main())


def test_b070_empty_events_and_pings_are_ignored() -> None:
    async def main() -> None:
        events = [": ping\n\n", "data:\n\n", "event: ping\ndata: 2025\n\n", {"answer": True}]
        with HttpServer({"tools/call": {"events": events}}) as server:
            async with connected(server) as connection:
                assert "echo" in await text_of(connection)

    run(main())


def test_b071_heartbeats_are_counted_and_do_not_extend_the_limit() -> None:
    async def main() -> None:
        beat = {"repeat": 500, "event": {"data": {"type": "heartbeat"}, "event": "keepalive"}, "every": 0.1}
        with HttpServer({"tools/call": [{"events": [beat]}, {}]}, session=True) as server:
            async with connected(server, toolTimeoutMs=600) as connection:
                await connection.connect()
                started = time.monotonic()
                error = await error_of(connection)
                assert error.diagnostic.code == "timeout"
                assert unknown_outcome(error)
                assert time.monotonic() - started < 10
                assert connection.log.noise >= 4
                assert len(connection.log.lines()) < 5
                assert "echo" in await text_of(connection)
                assert len(server.of("notifications/cancelled")) == 1

    run(main())


def test_b073_a_cut_stream_is_taken_up_by_its_event_id() -> None:
    async def main() -> None:
        def resumed(request: Request, server: HttpServer) -> dict[str, Any]:
            waiting = server.of("tools/call")[0].message["id"]
            result = {"content": [{"type": "text", "text": "late"}]}
            return {"events": [{"data": {"jsonrpc": "2.0", "id": waiting, "result": result}}]}

        script = {"tools/call": {"events": [{"id": "7", "data": "", "retry": 20}]}, "RESUME": resumed}
        with HttpServer(script, session=True) as server:
            async with connected(server) as connection:
                assert await text_of(connection) == "late"
        with HttpServer({"tools/call": {"events": [": no id\n\n"]}}) as server:
            async with connected(server) as connection:
                assert unknown_outcome(await error_of(connection))
                assert len(server.of("tools/call")) == 1
                assert not server.of("GET")

    run(main())


def test_b074_a_server_that_stops_answering_ends_every_request_by_its_own_limit() -> None:
    async def main() -> None:
        script: dict[str, Any] = {"GET": {"events": []}}
        with HttpServer(script, session=True) as server:
            async with connected(server, timeoutMs=400, toolTimeoutMs=400) as connection:
                assert "echo" in await text_of(connection)
                script_of_silence = {"*": {"hang": True}, "GET": {"hang": True}}
                server.script.update(script_of_silence)
                started = time.monotonic()
                errors = await asyncio.gather(*(error_of(connection) for _ in range(3)))
                assert {error.diagnostic.code for error in errors} == {"timeout"}
                with pytest.raises(PiMcpError):
                    await connection.list_tools()
                assert time.monotonic() - started < 20
                assert connection.diagnostic is not None
                assert connection.state != "connected"
                server.script.clear()
                assert "echo" in await text_of(connection)
                assert connection.state == "connected"

    run(main())


@pytest.mark.parametrize(
    "reaction",
    [
        {"close": True},
        {"reset": True},
        {"short": 10},
        {"events": ['data: {"jsonrpc":"2.0",']},
        {"events": ["data: {", {"reset": True}]},
        {"status": 502, "type": "text/html", "body": PLANTED},
    ],
)
def test_b076_a_server_that_dies_during_the_call_is_told_at_once(reaction: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer({"tools/call": [reaction, {}]}, session=True) as server:
            async with connected(server) as connection:
                await connection.connect()
                started = time.monotonic()
                error = await error_of(connection)
                assert time.monotonic() - started < 5
                assert error.diagnostic.code == "connection_failed"
                assert unknown_outcome(error)
                assert not isinstance(error, NotExecuted)
                assert len(server.of("tools/call")) == 1
                assert "echo" in await text_of(connection)

    run(main())


def test_b101_the_configured_limit_is_the_one_in_force() -> None:
    async def main() -> None:
        with HttpServer({"tools/call": {"sleep": 1.2}}, answers="sse") as server:
            async with connected(server, timeoutMs=500, toolTimeoutMs=4000) as connection:
                assert "echo" in await text_of(connection)

    run(main())


def test_b128_a_401_asks_for_a_login_and_shows_nothing_of_its_body() -> None:
    async def main() -> None:
        refusal = {"status": 401, "headers": {"WWW-Authenticate": "Bearer"}, "body": f"unauthorized {PLANTED}"}
        with HttpServer({"*": refusal}) as server:
            async with connections({"web": {"url": server.url}}) as found:
                with pytest.raises(AuthenticationError) as raised:
                    await found.get("web").connect()
                assert raised.value.diagnostic.code == "authentication_required"
                assert "/mcp auth web" in str(raised.value)
                assert "unauthorized" not in str(raised.value)
                assert found.get("web").state == "authentication_required"
                assert len(server.requests) <= 2

    run(main())


def test_b193_only_configured_headers_reach_the_server() -> None:
    async def main() -> None:
        with HttpServer(session=True) as server:
            async with connected(server) as connection:
                await text_of(connection)
            for request in server.requests:
                assert request.headers["x-planted"] == PLANTED
                assert "authorization" not in request.headers
                assert request.headers["user-agent"].startswith("pi-mcp/")

    run(main())


# hard use


def test_a_server_that_is_killed_and_started_again_is_found_again() -> None:
    async def main() -> None:
        with HttpServer({"tools/call": [{}, {"hang": True}]}, session=True) as server:
            async with connected(server) as connection:
                await text_of(connection)
                hanging = [asyncio.create_task(error_of(connection)) for _ in range(4)]
                await asyncio.sleep(0.3)
                started = time.monotonic()
                await asyncio.to_thread(server.stop)
                assert all(unknown_outcome(error) for error in await asyncio.gather(*hanging))
                assert time.monotonic() - started < 10
                refused = await error_of(connection)
                assert isinstance(refused, NotExecuted)
                with HttpServer(session=True, port=server.port) as restarted:
                    with pytest.raises(NotExecuted):
                        await text_of(connection)
                    assert "echo" in await text_of(connection)
                    assert len(restarted.of("initialize")) == 1

    run(main())


def test_a_cancelled_call_frees_its_caller_and_harms_no_other() -> None:
    async def main() -> None:
        def react(request: Request, server: HttpServer) -> dict[str, Any]:
            return {"hang": True} if request.message["params"]["arguments"].get("n") == 0 else {"sleep": 0.3}

        for answers in ("json", "sse"):
            with HttpServer({"tools/call": react}, session=True, answers=answers) as server:
                async with connected(server) as connection:
                    await connection.connect()
                    slow = asyncio.create_task(text_of(connection, n=0))
                    others = [asyncio.create_task(text_of(connection, n=n)) for n in range(1, 20)]
                    await until(lambda server=server: len(server.of("tools/call")) == 20)
                    slow.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await asyncio.wait_for(slow, 10)
                    assert all("echo" in answer for answer in await asyncio.gather(*others))
                    await until(lambda server=server: len(server.of("notifications/cancelled")) == 1)
                    await asyncio.sleep(0.1)
                    assert connection.state == "connected"

    run(main())


def test_many_connects_and_closes_leave_no_socket() -> None:
    async def main() -> None:
        with HttpServer(session=True) as server:
            for _ in range(15):
                async with connected(server) as connection:
                    assert "echo" in await text_of(connection)
            for _ in range(100):
                if not server.open:
                    break
                await asyncio.sleep(0.02)
            assert not server.open
            assert len(asyncio.all_tasks()) <= 2

    run(main())


# real peers

SDK_SERVER = """
import sys, warnings
warnings.simplefilter("ignore")
import mcp_types as T, uvicorn
from mcp.server.lowlevel import Server
async def tools(ctx, params):
    return T.ListToolsResult(tools=[T.Tool(name="echo", input_schema={"type": "object"})])
async def call(ctx, params):
    return T.CallToolResult(content=[T.TextContent(type="text", text=f"{params.name} {params.arguments}")])
server = Server("real", on_list_tools=tools, on_call_tool=call)
app = server.streamable_http_app(stateless_http="stateless" in sys.argv, json_response="json" in sys.argv)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


@pytest.fixture(params=["", "json", "stateless", "stateless json"])
def sdk_server(request: pytest.FixtureRequest) -> Iterator[str]:
    port = closed_port()
    process = subprocess.Popen([sys.executable, "-c", SDK_SERVER, str(port), *request.param.split()])
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.slow
def test_the_sdks_own_server_works_in_every_mode_and_both_eras(sdk_server: str) -> None:
    async def main() -> None:
        for protocol, version in (("auto", "2026-07-28"), ("legacy", "2025-11-25")):
            async with connections({"web": {"url": sdk_server, "protocol": protocol}}) as found:
                connection = found.get("web")
                info = await connection.connect()
                assert info.protocol_version == version
                assert [tool["name"] for tool in (await connection.list_tools()).tools] == ["echo"]
                answers = await asyncio.gather(*(text_of(connection, n=n) for n in range(20)))
                assert [f"'n': {n}" in answer for n, answer in enumerate(answers)] == [True] * 20

    run(main(), 60)
