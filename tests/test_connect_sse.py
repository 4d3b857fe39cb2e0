"""The legacy event-stream transport: connects, lists and calls where it is asked for by name, and no more."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pi_mcp.errors import PiMcpError, ServerError
from tests.hostile.http_server import HttpServer, Request, closed_port
from tests.support import run
from tests.test_connect_http_reports import PLANTED, connections, error_of, text_of, unknown_outcome


class LegacyServer(HttpServer):
    """The 2024-11-05 transport: GET /sse names an address, answers to its POSTs come on the stream."""

    def __init__(self, script: dict[str, Any] | None = None, *, endpoint: str = "/messages?sessionId=abc") -> None:
        super().__init__({"/messages": self._accept, "GET": self._stream}, path="/sse")
        self.behaviour = script or {}
        self.endpoint = endpoint
        self.outbox: asyncio.Queue[Any] = asyncio.Queue()

    def _stream(self, request: Request, server: HttpServer) -> dict[str, Any]:
        self.outbox = asyncio.Queue()
        return self.behaviour.get("GET") or {"events": _Endless(self)}

    def _accept(self, request: Request, server: HttpServer) -> dict[str, Any]:
        reaction: dict[str, Any] = dict(self.behaviour.get(request.method or "", {}))
        if "status" not in reaction and "id" in request.message and not reaction.get("silent"):
            self.outbox.put_nowait({"data": self._answer(request, reaction, {}), "event": "message"})
        for event in reaction.get("then", []):
            self.outbox.put_nowait(event)
        return {"status": reaction.get("status", 202), "body": reaction.get("body", "Accepted")}


class _Endless:
    """The events of a stream that lives on; the server writes each as it comes."""

    def __init__(self, server: LegacyServer) -> None:
        self.server = server

    def __aiter__(self) -> Any:
        return self.events()

    async def events(self) -> Any:
        yield {"event": "endpoint", "data": self.server.endpoint}
        while (event := await self.server.outbox.get()) is not None:
            yield event


def entry(server: HttpServer) -> dict[str, dict[str, Any]]:
    return {"old": {"type": "sse", "url": f"{server.url}?key={PLANTED}", "timeoutMs": 3000, "toolTimeoutMs": 3000}}


def test_a_legacy_server_is_connected_listed_and_called() -> None:
    async def main() -> None:
        with LegacyServer() as server:
            async with connections(entry(server)) as found:
                connection = found.get("old")
                assert len((await connection.list_tools()).tools) == 2
                answers = await asyncio.gather(*(text_of(connection, n=n) for n in range(10)))
                assert all("echo" in answer for answer in answers)
            assert all(one.headers["x-planted"] == PLANTED for one in server.requests)
            assert server.of("tools/call")[0].target == "/messages?sessionId=abc"

    run(main())


@pytest.mark.parametrize("status", [405, 404])
def test_b014_a_refused_stream_posts_nothing_and_points_to_http(status: int) -> None:
    async def main() -> None:
        with LegacyServer({"GET": {"status": status, "body": PLANTED}}) as server:
            async with connections(entry(server)) as found:
                with pytest.raises(ServerError) as raised:
                    await found.get("old").connect()
                assert raised.value.diagnostic.code == "connection_failed"
                assert "type: http" in str(raised.value).replace('"', "").replace("`", "")
                assert PLANTED not in str(raised.value)
            assert not server.of("POST")

    run(main())


def test_an_address_of_another_origin_gets_no_message() -> None:
    async def main() -> None:
        with HttpServer() as other, LegacyServer(endpoint=f"{other.origin}/messages") as server:
            async with connections(entry(server)) as found:
                started = time.monotonic()
                with pytest.raises(PiMcpError) as raised:
                    await found.get("old").connect()
                assert "another origin" in str(raised.value)
                assert time.monotonic() - started < 10
            assert not other.requests

    run(main())


@pytest.mark.parametrize(
    "reaction", [{"events": []}, {"events": [{"event": "message", "data": "{}"}]}, {"type": "text/html", "body": "<p>"}]
)
def test_a_stream_that_names_no_address_is_a_failure_at_once(reaction: dict[str, Any]) -> None:
    async def main() -> None:
        with LegacyServer({"GET": reaction}) as server:
            async with connections(entry(server)) as found:
                started = time.monotonic()
                with pytest.raises(ServerError):
                    await found.get("old").connect()
                assert time.monotonic() - started < 8  # and no time limit of 15 s

    run(main())


def test_a_closed_port_is_a_refused_connection() -> None:
    async def main() -> None:
        servers = {"old": {"type": "sse", "url": f"http://127.0.0.1:{closed_port()}/sse"}}
        async with connections(servers) as found:
            with pytest.raises(ServerError) as raised:
                await found.get("old").connect()
            assert "refused" in str(raised.value)

    run(main())


def test_a_failed_post_fails_its_own_request() -> None:
    async def main() -> None:
        with LegacyServer({"tools/call": {"status": 500, "body": PLANTED}}) as server:
            async with connections(entry(server)) as found:
                connection = found.get("old")
                assert unknown_outcome(await error_of(connection))
                server.behaviour.clear()
                assert "echo" in await text_of(connection)
                assert len(server.of("GET")) == 1

    run(main())


def test_a_stream_that_ends_ends_the_calls_and_the_next_use_connects_again() -> None:
    async def main() -> None:
        with LegacyServer({"tools/call": {"silent": True, "then": [None]}}) as server:
            async with connections(entry(server)) as found:
                connection = found.get("old")
                await connection.connect()
                started = time.monotonic()
                error = await error_of(connection)
                assert time.monotonic() - started < 5
                assert unknown_outcome(error)
                server.behaviour.clear()
                assert "echo" in await text_of(connection)
                assert connection.generation == 2

    run(main())


def test_noise_on_the_stream_is_skipped() -> None:
    async def main() -> None:
        noise = [": ping\n\n", "data:\n\n", {"data": {"type": "heartbeat"}}, {"event": "ping", "data": "1"}]
        script = {"tools/list": {"then": noise}, "notifications/initialized": {"then": noise}}
        with LegacyServer(script) as server:
            async with connections(entry(server)) as found:
                connection = found.get("old")
                await connection.list_tools()
                assert "echo" in await text_of(connection)
                assert connection.log.noise >= 2

    run(main())


def test_what_cannot_be_written_costs_its_own_call_alone() -> None:
    async def main() -> None:
        with LegacyServer() as server:
            async with connections(entry(server)) as found:
                connection = found.get("old")
                assert "\\ufffd" in await text_of(connection, half="\ud83d")
                deep: list[Any] = []
                for _ in range(300):
                    deep = [deep]
                with pytest.raises(PiMcpError) as caught:
                    await text_of(connection, deep=deep, secret=PLANTED)
                assert "nothing was sent" in caught.value.diagnostic.message
                assert PLANTED not in caught.value.diagnostic.line()
                assert "echo" in await text_of(connection, n=1)
            assert len(server.of("initialize")) == 1

    run(main())
