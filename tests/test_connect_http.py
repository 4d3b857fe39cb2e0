"""The HTTP transport by itself, message by message: every fault stays with its request, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from pi_mcp.config import ResolvedServer, ServerDefinition, configuration_of
from pi_mcp.config.definition import Source
from pi_mcp.config.secret import Secret
from pi_mcp.connect import guard, sender, streams
from pi_mcp.connect.faults import UNKNOWN_OUTCOME, Fault, Faults, diagnose, diagnose_error, late
from pi_mcp.connect.http import http_transport
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.messages import MOST_LEVELS, EventParser, TooLarge, messages_in
from pi_mcp.connect.sender import Credentials, proxy_for, retry_after
from pi_mcp.errors import ConfigurationError, PiMcpError, failure
from tests.hostile.certificate import certificate_in
from tests.hostile.http_server import HttpServer, Script, closed_port
from tests.support import run

PLANTED = "S3CR3T-planted-0451"
INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


def resolved(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    startup_timeout: float = 5.0,
) -> ResolvedServer:
    definition = ServerDefinition(
        "web", "http", Source(None, "code"), url="https://x.invalid", startup_timeout=startup_timeout
    )
    server = ResolvedServer(
        definition,
        url=url,
        headers={name: Secret(value) for name, value in (headers or {}).items()},
        environ={"UNUSED": "1", **(environ or {})},
    )
    server.redactor.add(PLANTED)
    return server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate_in(tmp_path_factory.mktemp("tls"))


class Wire:
    """JSON-RPC over the transport's streams, without a session in between."""

    def __init__(self, read: Any, write: Any, faults: Faults, log: LogRing) -> None:
        self.read, self.write, self.faults, self.log = read, write, faults, log
        self.received: list[dict[str, Any]] = []
        self.sessions: list[str] = []
        self.ended = asyncio.Event()
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._next = 0

    async def pump(self) -> None:
        async for item in self.read:
            assert not isinstance(item, Exception), item
            message = item.message.model_dump(by_alias=True, exclude_unset=True)
            future = self._waiting.pop(message.get("id"), None) if "method" not in message else None
            if future is None:
                self.received.append(message)
            else:
                future.set_result(message)
        self.ended.set()

    async def send(self, message: dict[str, Any]) -> None:
        from mcp.shared.message import ClientMessageMetadata, SessionMessage
        from mcp_types.jsonrpc import jsonrpc_message_adapter

        parsed = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message})
        await self.write.send(SessionMessage(parsed, metadata=ClientMessageMetadata()))

    def start(self, method: str, params: dict[str, Any] | None = None) -> asyncio.Task[dict[str, Any]]:
        self._next += 1
        number = self._next
        future = self._waiting[number] = asyncio.get_running_loop().create_future()

        async def work() -> dict[str, Any]:
            await self.send({"id": number, "method": method, "params": params or {}})
            return await future

        return asyncio.create_task(work())

    async def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.start(method, params)

    async def fault(self, method: str = "tools/call", params: dict[str, Any] | None = None) -> Fault:
        """The fault of a request that gets no answer of the server."""
        answer = await self.request(method, params or {"name": "echo"})
        assert answer["error"]["code"] == guard.FAULT_CODE, answer
        fault = self.faults.take(answer["id"])
        assert fault is not None, answer
        assert PLANTED not in repr(fault)
        return fault

    async def arrived(self, count: int) -> None:
        """Wait until so many messages came that answer nothing."""
        while len(self.received) < count:  # noqa: ASYNC110 - the reader is the test's own pump
            await asyncio.sleep(0.01)

    async def text(self) -> str:
        answer = await self.request("tools/call", {"name": "echo", "arguments": {"a": 1}})
        return str(answer["result"]["content"][0]["text"])

    async def handshake(self) -> dict[str, Any]:
        answer = await self.request("initialize", INITIALIZE)
        await self.send({"method": "notifications/initialized"})
        return answer


@contextlib.asynccontextmanager
async def wire(
    url: str,
    *,
    handshake: bool = True,
    credentials: Credentials | None = None,
    **fields: Any,
) -> AsyncIterator[Wire]:
    faults, log = Faults(), LogRing()
    sessions: list[str] = []
    async with http_transport(
        resolved(url, **fields), faults, log, on_session_id=sessions.append, credentials=credentials
    ) as (read, write):
        one = Wire(read, write, faults, log)
        one.sessions = sessions
        pump = asyncio.create_task(one.pump())
        try:
            if handshake:
                await one.handshake()
            yield one
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            assert PLANTED not in "\n".join(log.lines())


def one_fault(script: Script, **options: Any) -> Fault:
    """The fault of a call to a server that behaves so."""

    async def main() -> Fault:
        with HttpServer(script, **options) as server:
            async with wire(f"{server.url}?key={PLANTED}") as link:
                found = await link.fault()
                server.script.pop("tools/call", None)
                if not found.session_lost:
                    assert "echo" in await link.text(), "the connection lives on"
                assert len(server.of("tools/call")) <= 2, "nothing is sent twice"
                return found

    return run(main())


# what comes back


@pytest.mark.parametrize("answers", ["json", "sse"])
@pytest.mark.parametrize("session", [True, False])
def test_calls_work_in_both_answer_forms_with_and_without_sessions(answers: str, session: bool) -> None:
    async def main() -> None:
        with HttpServer(answers=answers, session=session) as server:
            async with wire(f"{server.url}?key={PLANTED}") as link:
                calls = [link.start("tools/call", {"name": f"t{n}"}) for n in range(20)]
                for number, call in enumerate(calls):
                    assert f"t{number}" in (await call)["result"]["content"][0]["text"]
            assert bool(link.sessions) is session
            assert len(server.of("DELETE")) == int(session)
            assert all(request.target == f"/mcp?key={PLANTED}" for request in server.requests)

    run(main())


def test_only_configured_and_transport_headers_go_out_b193() -> None:
    async def main() -> None:
        with HttpServer(session=True) as server:
            headers = {"Authorization": f"Bearer {PLANTED}", "X-Team": "grün", "mcp-session-id": "forged", "Host": "x"}
            async with wire(server.url, headers=headers) as link:
                await link.text()
                assert any("Host" in line for line in link.log.lines())
            expected = {
                "accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host",
                "mcp-session-id", "user-agent", "x-team",
            }  # fmt: skip
            for request in server.requests:
                assert request.headers["authorization"] == f"Bearer {PLANTED}"
                assert request.headers["x-team"] == "grün"
                assert request.headers["host"] == f"127.0.0.1:{server.port}"
                assert request.headers.get("mcp-session-id") != "forged"
                assert set(request.headers) <= expected | {"cache-control"}

    run(main())


@pytest.mark.parametrize("line", ["lb=\x9b31m", "lb=x; max-age", 'lb=x; version=1; port="a"', "=", "\xff"])
def test_a_cookie_that_no_request_can_carry_harms_nothing(line: str) -> None:
    async def main() -> None:
        with HttpServer({"initialize": {"headers": {"Set-Cookie": line}}}) as server:
            async with wire(server.url) as link:
                assert "echo" in await link.text()
                assert "echo" in await link.text()
            assert "cookie" not in server.of("tools/call")[1].headers or line.isascii()

    run(main())


def test_cookies_of_the_server_come_back_to_it() -> None:
    async def main() -> None:
        script: Script = {"initialize": {"headers": {"Set-Cookie": "lb=node7; Path=/"}}}
        with HttpServer(script) as server:
            async with wire(server.url) as link:
                await link.text()
            assert server.of("tools/call")[0].headers["cookie"] == "lb=node7"

    run(main())


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b", "a\x1b[0m"])
def test_a_header_value_with_control_characters_is_refused_before_any_request(value: str) -> None:
    async def main() -> None:
        with HttpServer() as server:
            with pytest.raises(ConfigurationError) as raised:
                async with wire(server.url, headers={"X-Key": PLANTED + value}):
                    pass
            assert "X-Key" in str(raised.value)
            assert PLANTED not in str(raised.value)
            assert not server.requests

    run(main())


@pytest.mark.parametrize("url", ["ftp://host/x", "http://", "no url"])
def test_an_address_that_cannot_be_used_is_an_error_of_the_configuration(url: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigurationError):
            async with wire(url, handshake=False):
                pass

    run(main())


# faults, one by one


def test_a_refused_connection_is_known_not_to_have_run() -> None:
    async def main() -> None:
        port = closed_port()
        async with wire(f"http://127.0.0.1:{port}/mcp?key={PLANTED}", handshake=False) as link:
            fault = await link.fault()
            assert (fault.kind, fault.executed) == ("refused", "no")
            assert fault.detail == f"127.0.0.1:{port}"

    run(main())


def test_an_unknown_host_is_told_as_such() -> None:
    async def main() -> None:
        async with wire("http://nowhere.invalid/mcp", handshake=False) as link:
            fault = await link.fault()
            assert (fault.kind, fault.executed, fault.detail) == ("dns", "no", "nowhere.invalid")

    run(main())


def test_a_host_that_does_not_accept_is_a_timeout_of_the_connection() -> None:
    import socket

    async def main() -> None:
        with socket.socket() as full:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            port = full.getsockname()[1]
            fillers = [socket.socket() for _ in range(8)]
            try:
                for filler in fillers:
                    filler.setblocking(False)
                    filler.connect_ex(("127.0.0.1", port))
                async with wire(f"http://127.0.0.1:{port}/mcp", handshake=False, startup_timeout=0.5) as link:
                    fault = await link.fault()
                    assert (fault.kind, fault.executed) == ("connect_timeout", "no")
            finally:
                for filler in fillers:
                    filler.close()

    run(main())


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


DEEP_ERROR = json.dumps({"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": PLANTED, "data": nested(500)}})


@pytest.mark.parametrize(
    ("reaction", "kind", "executed"),
    [
        ({"close": True}, "reset", "unknown"),
        ({"reset": True}, "reset", "unknown"),
        ({"raw": "SSH-2.0-OpenSSH_9\r\n\r\n"}, "not_mcp", "unknown"),
        ({"short": 5}, "reset", "unknown"),
        ({"short": 5, "chunked": True}, "reset", "unknown"),
        ({"raw": 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"jsonrpc":"2.0","id":'}, "malformed", None),
        ({"status": 500, "body": PLANTED}, "status", "unknown"),
        ({"status": 400, "body": PLANTED}, "status", "unknown"),
        ({"status": 404, "type": "text/html", "body": PLANTED}, "status", "no"),
        ({"status": 405}, "status", "no"),
        ({"status": 403, "body": PLANTED}, "status", "no"),
        ({"status": 200, "type": "text/html", "body": f"<html>{PLANTED}"}, "html", "unknown"),
        ({"status": 200, "type": "image/png", "body": PLANTED}, "not_mcp", "unknown"),
        ({"status": 202, "body": ""}, "not_mcp", "unknown"),
        ({"status": 204}, "not_mcp", "unknown"),
        ({"body": "null", "type": "application/json"}, "malformed", "unknown"),
        ({"body": "[]", "type": "application/json"}, "malformed", "unknown"),
        ({"body": "[" * 100_000, "type": "application/json"}, "malformed", "unknown"),
        ({"result": {"content": [{"text": PLANTED}], "deep": nested(500)}}, "malformed", "unknown"),
        ({"result": {"content": [{"text": PLANTED}], "deep": nested(500)}, "as": "sse"}, "malformed", "unknown"),
        ({"status": 400, "type": "application/json", "body": DEEP_ERROR}, "status", "unknown"),
        ({"message": {"jsonrpc": "2.0", "id": 9999, "result": {}}}, "malformed", "unknown"),
        ({"result": [1]}, "malformed", "unknown"),
        ({"result": [1], "as": "sse"}, "malformed", "unknown"),
        ({"events": []}, "no_response", "unknown"),
        ({"events": ["data: {"]}, "no_response", "unknown"),
        ({"events": ['data: {"jsonrpc":"2.0","id":2,"resu\n\n', {"hang": True}]}, "malformed", "unknown"),
        ({"events": [{"reset": True}]}, "reset", "unknown"),
        ({"redirect": "http://elsewhere.invalid/mcp"}, "redirect", "no"),
        ({"redirect": "/signin?x=S3CR3T-planted-0451", "status": 302}, "redirect", "no"),
        ({"status": 429, "headers": {"Retry-After": "3600"}}, "rate_limited", "unknown"),
    ],
)
def test_a_fault_stays_with_its_request(reaction: dict[str, Any], kind: str, executed: str | None) -> None:
    fault = one_fault({"tools/call": reaction})
    assert fault.kind == kind
    if executed:
        assert fault.executed == executed


@pytest.mark.parametrize("how", ["json", "sse"])
def test_what_is_nested_as_deep_as_it_may_be_comes_through(how: str) -> None:
    """A contract with the SDK, which reads no deeper than it likes."""

    async def main() -> None:
        result = {"content": [], "deep": nested(MOST_LEVELS - 2)}
        with HttpServer({"tools/call": {"result": result, "as": how}}) as server:
            async with wire(server.url) as link:
                assert (await link.request("tools/call", {"name": "echo"}))["result"] == result

    run(main())


def test_a_fault_of_one_request_leaves_the_others_alone() -> None:
    async def main() -> None:
        def react(request: Any, server: HttpServer) -> dict[str, Any]:
            name = request.message["params"]["name"]
            return {"reset": True} if name == "bad" else {"sleep": 0.3}

        with HttpServer({"tools/call": react}, session=True) as server:
            async with wire(server.url) as link:
                good = [link.start("tools/call", {"name": f"good{n}"}) for n in range(5)]
                bad = [link.start("tools/call", {"name": "bad"}) for _ in range(3)]
                assert ["error" in answer for answer in await asyncio.gather(*bad)] == [True] * 3
                assert ["result" in answer for answer in await asyncio.gather(*good)] == [True] * 5

    run(main())


def test_the_servers_own_error_passes_whatever_the_status() -> None:
    async def main() -> None:
        error = {"code": -32602, "message": "bad argument", "data": {"x": 1}}
        for status in (200, 400, 422, 500):
            body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
            script: Script = {"tools/call": {"status": status, "type": "application/json", "body": body}}
            with HttpServer(script, session=True) as server:
                async with wire(server.url) as link:
                    answer = await link.request("tools/call", {"name": "echo"})
                    assert answer["error"] == error
                    assert link.faults.take(answer["id"]) is None

    run(main())


def test_ids_and_envelopes_are_read_as_they_are_meant_b106() -> None:
    async def main() -> None:
        def react(request: Any, server: HttpServer) -> dict[str, Any]:
            ident = request.message["id"]
            stray = {"jsonrpc": "2.0", "id": 4711, "result": {"content": []}}
            right = {"id": str(ident), "result": {"content": [{"type": "text", "text": "echo"}]}}
            return {"events": [{"data": stray}, {"data": right}]} if ident % 2 else {"message": right}

        with HttpServer({"tools/call": react}) as server:
            async with wire(server.url) as link:
                for _ in range(4):
                    assert await link.text() == "echo"
                assert link.log.noise == 2
                assert not link.received

    run(main())


def test_a_batch_from_an_old_server_is_taken_apart() -> None:
    async def main() -> None:
        def react(request: Any, server: HttpServer) -> dict[str, Any]:
            answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": {"content": [{"text": "echo"}]}}
            note = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
            return {"message": [answer, note]}

        with HttpServer({"tools/call": react}) as server:
            async with wire(server.url) as link:
                assert await link.text() == "echo"
                assert [one["method"] for one in link.received] == ["notifications/tools/list_changed"]

    run(main())


def test_half_a_surrogate_pair_does_not_lose_an_answer() -> None:
    async def main() -> None:
        result = {"content": [{"type": "text", "text": "echo \ud83d!"}]}
        with HttpServer({"tools/call": [{"result": result}, {"result": result, "as": "sse"}]}) as server:
            async with wire(server.url) as link:
                assert [await link.text() for _ in range(2)] == ["echo \ufffd!"] * 2

    run(main())


@pytest.mark.parametrize("wrapped", ["json", "sse"])
def test_an_answer_nested_beyond_reason_fails_alone_and_tells_nothing_of_itself(wrapped: str) -> None:
    async def main() -> None:
        def nested(levels: int) -> dict[str, Any]:
            value: Any = PLANTED
            for _ in range(levels):
                value = [value]
            return {"result": {"content": [{"type": "text", "text": "echo"}], "structuredContent": {"a": value}}}

        with HttpServer({"tools/call": [nested(190), nested(300), nested(900), {}]}, answers=wrapped) as server:
            async with wire(server.url) as link:
                assert await link.text() == "echo"
                for _ in range(2):
                    assert (await link.fault()).kind == "malformed"
                assert "echo" in await link.text()

    run(main())


def test_arguments_that_json_cannot_hold_fail_their_own_request_and_are_not_sent() -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with wire(server.url) as link:
                fault = await link.fault(params={"name": "echo", "arguments": {"a": object()}})
                assert (fault.kind, fault.executed) == ("unsendable", "no")
                assert "echo" in await link.text()
            assert len(server.of("tools/call")) == 1

    run(main())


def test_half_a_surrogate_pair_in_an_argument_is_sent() -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with wire(server.url) as link:
                await link.request("tools/call", {"name": "echo", "arguments": {"a": "\ud83d!"}})
            assert server.of("tools/call")[0].message["params"]["arguments"] == {"a": "\ud83d!"}

    run(main())


def test_a_request_written_behind_a_notification_waits_until_that_is_taken() -> None:
    async def main() -> None:
        with HttpServer({"notifications/roots/list_changed": {"sleep": 0.2}}) as server:
            async with wire(server.url) as link:
                await link.send({"method": "notifications/roots/list_changed"})
                assert "echo" in await link.text()
            taken = [one.method for one in server.requests if one.method and one.method != "initialize"]
            noted, called = (server.of(name)[0] for name in ("notifications/roots/list_changed", "tools/call"))
            assert taken.index("notifications/roots/list_changed") < taken.index("tools/call")
            assert called.at - noted.at > 0.15

    run(main())


def test_a_server_that_sends_without_end_is_read_no_faster_than_its_messages_are_taken() -> None:
    async def main() -> None:
        event = {"data": {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x" * 1000}}}
        many = {"events": [{"repeat": 5000, "event": event, "every": 0}, {"answer": True}]}
        with HttpServer({"tools/call": many}) as server:
            faults, log = Faults(), LogRing()
            async with http_transport(resolved(server.url), faults, log) as (read, write):
                link = Wire(read, write, faults, log)
                call = link.start("tools/call", {"name": "echo"})
                while len(read._ready) < streams.ROOM:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)
                assert len(read._ready) == streams.ROOM
                pump = asyncio.create_task(link.pump())
                assert "result" in await call
                assert len(link.received) == 5000
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)

    run(main(), 60)


def test_what_the_server_sends_after_the_reader_has_gone_is_dropped() -> None:
    async def main() -> None:
        with HttpServer({"tools/call": {"sleep": 0.3}}) as server:
            faults, log = Faults(), LogRing()
            async with http_transport(resolved(server.url), faults, log) as (read, write):
                link = Wire(read, write, faults, log)
                call = link.start("tools/call", {"name": "echo"})
                while not server.of("tools/call"):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
                await read.aclose()
                with pytest.raises(anyio.ClosedResourceError):
                    await read.receive()
                await asyncio.sleep(0.5)
                assert not read._ready
                await write.aclose()
                with pytest.raises(anyio.ClosedResourceError):
                    await link.send({"method": "notifications/roots/list_changed"})
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)

    run(main())


def test_compressed_answers_are_read_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LARGEST_MESSAGE", 100_000)

    async def main() -> None:
        big = {"content": [{"type": "text", "text": "x" * 200_000}]}
        script: Script = {"tools/call": [{"gzip": True}, {"gzip": True, "result": big}, {"result": big}, {}]}
        with HttpServer(script) as server:
            async with wire(server.url) as link:
                assert "echo" in await link.text()
                for _ in range(2):
                    assert (await link.fault()).kind == "too_large"
                assert "echo" in await link.text()

    run(main())


def test_an_event_above_a_megabyte_arrives_whole() -> None:
    async def main() -> None:
        big = {"content": [{"type": "text", "text": "x" * 5_000_000}]}
        with HttpServer({"tools/call": {"result": big}}, answers="sse") as server:
            async with wire(server.url) as link:
                assert len(await link.text()) == 5_000_000

    run(main())


# redirects


@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_within_the_origin_keeps_method_headers_and_body_b058(status: int) -> None:
    async def main() -> None:
        with HttpServer({"/mcp": {"redirect": "/mcp/", "status": status}}, path="/mcp/", session=True) as server:
            headers = {"Authorization": f"Bearer {PLANTED}"}
            async with wire(f"{server.origin}/mcp", headers=headers) as link:
                assert "echo" in await link.text()
            arrived = [one for one in server.requests if one.path == "/mcp/" and one.method == "tools/call"]
            assert len(arrived) == 1
            assert arrived[0].headers["authorization"] == f"Bearer {PLANTED}"
            assert arrived[0].message["params"]["arguments"] == {"a": 1}
            detours = [one for one in server.requests if one.path == "/mcp"]
            assert len(detours) == (1 if status == 308 else len(server.requests) // 2)

    run(main())


def test_a_circle_of_redirects_ends() -> None:
    async def main() -> None:
        script: Script = {"/a": {"redirect": "/b"}, "/b": {"redirect": "/a"}}
        with HttpServer(script) as server:
            async with wire(f"{server.origin}/a", handshake=False) as link:
                assert (await link.fault()).kind == "redirect"
            assert len(server.requests) == sender.REDIRECTS + 1

    run(main())


def test_a_redirect_to_another_origin_sends_nothing_there() -> None:
    async def main() -> None:
        with HttpServer() as other, HttpServer({"tools/call": {"redirect": f"{other.url}?t={PLANTED}"}}) as server:
            async with wire(server.url, headers={"Authorization": PLANTED}) as link:
                fault = await link.fault()
            assert "another origin" in fault.detail
            assert str(other.port) in fault.detail
            assert str(server.port) in fault.detail
            assert not other.requests

    run(main())


def test_a_redirect_out_of_tls_is_refused_and_names_both_addresses_b059(certificate: tuple[Path, Path]) -> None:
    async def main() -> None:
        with HttpServer() as plain, HttpServer(tls=certificate) as server:
            target = f"http://127.0.0.1:{server.port}/mcp/?t={PLANTED}"
            server.script["tools/call"] = {"redirect": target}
            async with wire(
                f"{server.url}?t={PLANTED}",
                environ={"SSL_CERT_FILE": str(certificate[0])},
                headers={"Authorization": PLANTED},
            ) as link:
                fault = await link.fault()
            assert f"https://127.0.0.1:{server.port}/mcp " in fault.detail
            assert f"http://127.0.0.1:{server.port}/mcp/" in fault.detail
            assert f"try https://127.0.0.1:{server.port}/mcp/" in fault.detail
            assert not plain.requests

    run(main())


# TLS and proxies


def test_a_private_authority_is_trusted_through_the_environment_b062(certificate: tuple[Path, Path]) -> None:
    async def main() -> None:
        with HttpServer(tls=certificate) as server:
            async with wire(server.url, environ={"SSL_CERT_FILE": str(certificate[0])}) as link:
                assert "echo" in await link.text()
            async with wire(server.url, handshake=False) as link:
                fault = await link.fault("initialize", INITIALIZE)
                assert (fault.kind, fault.executed) == ("tls", "no")
                assert "self-signed" in fault.detail
            assert len(server.of("initialize")) == 1

    run(main())


def test_a_directory_of_authorities_is_trusted_too_b062(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    hashed = subprocess.run(
        ["openssl", "x509", "-hash", "-noout", "-in", certificate[0]], check=True, capture_output=True, timeout=20
    ).stdout.decode()
    (tmp_path / f"{hashed.strip()}.0").write_bytes(certificate[0].read_bytes())

    async def main() -> None:
        with HttpServer(tls=certificate) as server:
            async with wire(server.url, environ={"SSL_CERT_DIR": str(tmp_path)}) as link:
                assert "echo" in await link.text()

    run(main())


def test_an_unusable_certificate_file_is_named(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer(tls=certificate) as server:
            async with wire(server.url, handshake=False, environ={"SSL_CERT_FILE": str(tmp_path / "no")}) as link:
                fault = await link.fault()
                assert fault.kind == "tls"
                assert "SSL_CERT_FILE" in fault.detail

    run(main())


def test_tls_to_a_plain_port_is_told(certificate: tuple[Path, Path]) -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with wire(f"https://127.0.0.1:{server.port}/mcp", handshake=False) as link:
                fault = await link.fault()
                assert (fault.kind, fault.executed) == ("tls", "no")
                assert "does not speak TLS" in fault.detail

    run(main())


def test_the_context_of_certificates_is_built_once() -> None:
    async def main() -> None:
        one = await sender.shared_context({})
        assert one is await sender.shared_context({"PATH": "/bin"})
        assert one.verify_mode.name == "CERT_REQUIRED"
        assert one.check_hostname

    run(main())


def test_the_proxy_of_the_environment_is_used() -> None:
    async def main() -> None:
        with HttpServer() as proxy:
            environ = {"HTTP_PROXY": f"http://me:{PLANTED}@127.0.0.1:{proxy.port}"}
            async with wire("http://far.invalid/mcp", environ=environ) as link:
                assert "echo" in await link.text()
            assert all(one.target == "http://far.invalid/mcp" for one in proxy.requests)
            assert all("proxy-authorization" in one.headers for one in proxy.requests)

    run(main())


def test_a_dead_proxy_is_known_not_to_have_passed_anything_on() -> None:
    async def main() -> None:
        for url in ("http://far.invalid/mcp", "https://far.invalid/mcp"):
            place = f"127.0.0.1:{closed_port()}"
            environ = {"ALL_PROXY": f"http://somebody:{PLANTED}@{place}"}
            async with wire(url, environ=environ, handshake=False) as link:
                fault = await link.fault()
                assert (fault.kind, fault.executed, fault.detail) == ("proxy", "no", place)

    run(main())


def test_a_proxy_that_refuses_the_tunnel_is_the_proxys_fault() -> None:
    async def main() -> None:
        with HttpServer({"CONNECT": {"status": 403, "body": PLANTED}}) as proxy:
            environ = {"HTTPS_PROXY": proxy.origin}
            async with wire("https://far.invalid/mcp", environ=environ, handshake=False) as link:
                fault = await link.fault()
                assert (fault.kind, fault.executed) == ("proxy", "no")

    run(main())


@pytest.mark.parametrize(
    ("environ", "address", "expected"),
    [
        ({"HTTP_PROXY": "p:1"}, ("http", "h", 80), "http://p:1"),
        ({"HTTP_PROXY": "p:1"}, ("https", "h", 443), None),
        ({"http_proxy": "http://low:1", "HTTP_PROXY": "http://up:1"}, ("http", "h", 80), "http://low:1"),
        ({"ALL_PROXY": "socks5://p:1"}, ("https", "h", 443), "socks5://p:1"),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "*"}, ("https", "h", 443), None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "a.b, .c.d"}, ("https", "x.c.d", 443), None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "a.b"}, ("https", "x.a.b", 443), None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "a.b"}, ("https", "xa.b", 443), "http://p:1"),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, ("https", "10.1.2.3", 443), None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "::1,[fe80::1]:80"}, ("http", "::1", 80), None),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "h:8080"}, ("http", "h", 80), "http://p:1"),
        ({"ALL_PROXY": "p:1", "NO_PROXY": "h:80"}, ("http", "h", 80), None),
        ({"HTTP_PROXY": "p:1", "REQUEST_METHOD": "GET"}, ("http", "h", 80), None),
        ({}, ("http", "h", 80), None),
    ],
)
def test_proxy_variables_mean_what_they_mean_to_curl(
    environ: dict[str, str], address: tuple[str, str, int], expected: str | None
) -> None:
    assert proxy_for(*address, environ) == expected


# sessions


def test_a_404_for_an_issued_session_proves_that_nothing_ran() -> None:
    fault = one_fault(
        {
            "tools/call": {
                "status": 404,
                "type": "application/json",
                "body": '{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}',
            }
        },
        session=True,
    )
    assert (fault.session_lost, fault.executed) == (True, "no")


@pytest.mark.parametrize(
    "body",
    [
        '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: no valid session id"},"id":null}',
        '{"jsonrpc":"2.0","error":{"code":-32000,"message":"Server not initialized"},"id":null}',
        "Invalid or missing session ID",
    ],
)
def test_a_400_that_speaks_of_the_session_ends_it_and_proves_nothing_b052(body: str) -> None:
    kind = "application/json" if body.startswith("{") else "text/plain"
    fault = one_fault({"tools/call": {"status": 400, "type": kind, "body": body}}, session=True)
    assert (fault.session_lost, fault.executed) == (True, "unknown")


def test_a_404_without_a_session_is_no_lost_session() -> None:
    assert not one_fault({"tools/call": {"status": 404}}).session_lost


def test_a_missing_method_as_404_is_no_lost_session() -> None:
    async def main() -> None:
        def react(request: Any, server: HttpServer) -> dict[str, Any]:
            error = {"code": -32601, "message": "Method not found"}
            body = json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "error": error})
            return {"status": 404, "type": "application/json", "body": body}

        with HttpServer({"prompts/list": react}, session=True) as server:
            async with wire(server.url) as link:
                assert (await link.request("prompts/list"))["error"]["code"] == -32601
                assert "echo" in await link.text()

    run(main())


def test_the_session_id_is_used_and_stays_inside(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        with HttpServer(session=True, answers="sse") as server:
            async with wire(f"{server.url}/{PLANTED}?k={PLANTED}", headers={"X-Key": PLANTED}) as link:
                server.path = f"/mcp/{PLANTED}"
                await link.text()
            session = server.of("tools/call")[0].headers["mcp-session-id"]
            assert link.sessions == [session]
            assert server.of("DELETE")[0].headers["mcp-session-id"] == session
            for record in caplog.records:
                if record.name.startswith(("mcp", "httpx2", "client")):
                    assert session not in record.getMessage()
                    assert str(server.port) not in record.getMessage()
                assert PLANTED not in record.getMessage()

    run(main())


# notifications, the GET stream, the end


@pytest.mark.parametrize(
    "reaction",
    [
        {"status": 200, "type": "application/json", "body": "null"},
        {"status": 200, "body": ""},
        {"status": 204},
        {"status": 202, "body": "Accepted"},
        {"status": 202, "body": "", "chunked": True},
        {"status": 200, "type": "application/json", "body": '{"jsonrpc":"2.0","id":null,"result":{}}'},
        {"status": 500, "body": "x"},
        {"events": []},
        {"close": True},
    ],
)
def test_whatever_a_notification_is_answered_is_ignored_b068(reaction: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer({"notifications/initialized": reaction}, session=True) as server:
            async with wire(server.url) as link:
                assert "echo" in await link.text()

    run(main())


def test_a_notification_that_is_never_answered_holds_nothing_up() -> None:
    async def main() -> None:
        script: Script = {"notifications/cancelled": {"hang": True}, "tools/call": [{"hang": True}, {}]}
        with HttpServer(script, session=True) as server:
            async with wire(server.url) as link:
                stuck = link.start("tools/call", {"name": "slow"})
                await asyncio.sleep(0.1)
                started = time.monotonic()
                await link.send({"method": "notifications/cancelled", "params": {"requestId": 2}})
                assert "echo" in await link.text()
                assert time.monotonic() - started < 5
                # The socket of the cancelled call is freed, though the server never answers it.
                assert "error" in await stuck
                started = time.monotonic()
            assert time.monotonic() - started < 5

    run(main())


@pytest.mark.parametrize(
    "reaction",
    [
        {"status": 405, "headers": {"Allow": "POST"}},
        {"status": 404, "type": "text/html", "body": "<html>"},
        {"status": 400},
        {"status": 500},
        {"status": 401},
        {"status": 200, "type": "application/json", "body": "{}"},
        {"hang": True},
        {"close": True},
        {"reset": True},
        {"redirect": "http://elsewhere.invalid/"},
        {"events": []},
        {"events": ["retry: 1\n\n"]},
        {"events": ["garbage\n\n", {"data": "{"}, {"data": {"id": 1, "result": {}}}]},
    ],
)
def test_the_optional_stream_harms_nothing_and_is_asked_for_once_b047_b049_b050_b064(reaction: dict[str, Any]) -> None:
    async def main() -> None:
        script: Script = {"GET": reaction, "DELETE": {"status": 405}}
        with HttpServer(script, session=True) as server:
            started = time.monotonic()
            async with wire(server.url) as link:
                assert "echo" in await link.text()
                assert time.monotonic() - started < 5
                await asyncio.sleep(0.4)
                assert "echo" in await link.text()
                started = time.monotonic()
            assert time.monotonic() - started < 5
            assert len(server.of("GET")) == 1
            assert len(server.requests) == 6  # initialize, initialized, GET, two calls, DELETE

    run(main())


def test_messages_of_the_servers_stream_arrive_and_are_answered() -> None:
    async def main() -> None:
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        ping = {"jsonrpc": "2.0", "id": "srv-1", "method": "ping"}
        script: Script = {"GET": {"events": [{"data": changed}, {"data": ping}, {"hang": True}]}}
        with HttpServer(script, session=True) as server:
            async with wire(server.url) as link:
                await link.arrived(2)
                assert link.received[1]["id"] == "srv-1"
                await link.send({"id": "srv-1", "result": {}})
                assert "echo" in await link.text()
                assert server.of("response")[0].message == {"jsonrpc": "2.0", "id": "srv-1", "result": {}}

    run(main())


def test_a_stream_that_lived_long_is_opened_again_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "STREAM_WORTH_REOPENING", 0.2)

    async def main() -> None:
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        script: Script = {
            "GET": {"events": [{"sleep": 0.3}, {"data": changed, "id": "41"}]},
            "RESUME": {"events": [{"data": changed}, {"hang": True}]},
        }
        with HttpServer(script, session=True) as server:
            async with wire(server.url) as link:
                await link.arrived(2)
            assert [one.headers.get("last-event-id") for one in server.of("GET")] == [None, "41"]

    run(main())


@pytest.mark.parametrize("reaction", [{"hang": True}, {"status": 405}, {"close": True}, {"status": 500}])
def test_the_end_of_a_session_is_tolerant_and_bounded(reaction: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer({"DELETE": reaction}, session=True) as server:
            async with wire(server.url) as link:
                await link.text()
                started = time.monotonic()
            assert time.monotonic() - started < 5
            assert len(server.of("DELETE")) == 1

    run(main())


# event streams


def test_noise_in_a_stream_is_skipped_and_counted_b070_b071() -> None:
    async def main() -> None:
        events = [
            ": ping\n\n",
            "data:\n\n",
            "event: ping\ndata: 2025\n\n",
            "event: keepalive\ndata: {}\n\n",
            {"repeat": 50, "event": {"data": {"type": "heartbeat"}}},
            "retry: nonsense\nid\n\n",
            "\r\r\n: x\r\n",
            {"answer": True},
        ]
        with HttpServer({"tools/call": {"events": events}}) as server:
            async with wire(server.url) as link:
                assert "echo" in await link.text()
                assert link.log.noise == 52
                assert len(link.log.lines()) < 5

    run(main())


def test_heartbeats_do_not_count_as_an_answer_b071() -> None:
    async def main() -> None:
        beat = {"repeat": 1000, "event": {"data": {"type": "heartbeat"}, "event": "keepalive"}, "every": 0.02}
        with HttpServer({"tools/call": {"events": [beat]}}) as server:
            async with wire(server.url) as link:
                call = link.start("tools/call", {"name": "echo"})
                await asyncio.sleep(0.3)
                assert not call.done()
                assert not link.received
                await link.send({"method": "notifications/cancelled", "params": {"requestId": 2}})
                assert "error" in await call

    run(main())


def test_a_broken_stream_is_taken_up_where_it_broke_and_never_posted_again_b073() -> None:
    async def main() -> None:
        def resume(request: Any, server: HttpServer) -> dict[str, Any]:
            answer = {"jsonrpc": "2.0", "id": 2, "result": {"content": [{"type": "text", "text": "late"}]}}
            return {"events": [{"data": answer, "id": "8"}]}

        progress = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        script: Script = {
            "tools/call": {"events": [{"data": progress, "id": "7", "retry": 50}]},
            "RESUME": resume,
        }
        with HttpServer(script, session=True) as server:
            async with wire(server.url) as link:
                assert await link.text() == "late"
                assert len(link.received) == 1
            assert len(server.of("tools/call")) == 1
            resumed = [one for one in server.of("GET") if "last-event-id" in one.headers]
            assert [one.headers["last-event-id"] for one in resumed] == ["7"]
            assert resumed[0].headers["mcp-session-id"] == link.sessions[0]

    run(main())


@pytest.mark.parametrize(
    ("resume", "most"),
    [({"status": 405}, 2), ({"reset": True}, 2), ({"events": []}, 2), ({"events": [{"id": "9", "retry": 1}]}, 20)],
)
def test_taking_up_a_stream_is_bounded_b073(resume: dict[str, Any], most: int) -> None:
    async def main() -> None:
        script: Script = {
            "tools/call": {"events": [{"id": "7", "retry": 1, "data": ""}]},
            "RESUME": resume,
        }
        with HttpServer(script) as server:
            async with wire(server.url) as link:
                fault = await link.fault()
                assert fault.kind in ("no_response", "reset")
                assert fault.executed == "unknown"
            assert len(server.of("GET")) == most
            assert len(server.of("tools/call")) == 1

    run(main())


def test_the_event_parser_takes_any_cut_and_any_line_end() -> None:
    stream = b"\xef\xbb\xbfdata: a\r\ndata:b\r\n\r\n: note\rid: 7\revent: x\rdata: \xc3\xbc\r\rretry: 1500\n\ndata: end"
    expected = [("message", "a\nb", None, None), ("x", "ü", "7", None), ("message", "", None, 1.5)]
    for size in range(1, len(stream) + 1):
        parser = EventParser()
        found = [
            (event.name, event.data, event.id, event.retry)
            for start in range(0, len(stream), size)
            for event in parser.feed(stream[start : start + size])
        ]
        assert found == expected, size


def test_the_event_parser_has_a_bound() -> None:
    for chunk in (b"x" * 50, b"data: " + b"x" * 40 + b"\n"):
        parser = EventParser(limit=100)
        with pytest.raises(TooLarge):
            [list(parser.feed(chunk)) for _ in range(10)]


def test_an_endless_event_ends_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventParser.__init__, "__defaults__", (1000,))
    fault = one_fault({"tools/call": {"events": ["data: " + "x" * 5000, {"hang": True}]}})
    assert fault.kind == "too_large"


def test_messages_in_a_text_are_told_from_noise() -> None:
    waiting = {"1": 1}
    assert messages_in("{", waiting).noise == 1
    assert messages_in('{"jsonrpc": "2.0", "id', waiting).malformed == [1]
    assert messages_in('{"id":1.0,"result":null}', waiting).messages == [{"jsonrpc": "2.0", "id": 1, "result": {}}]
    assert messages_in('{"id":null,"error":"no"}', waiting).messages[0]["error"] == {"code": -32603, "message": "no"}
    assert messages_in('{"id":true,"result":{}}', waiting).noise == 1
    assert messages_in('{"id":1.5,"method":"x"}', waiting).noise == 1
    assert messages_in('{"method":"x","params":[1]}', waiting).noise == 1
    assert messages_in('{"id":3,"method":"x","params":null}', {}).messages == [
        {"jsonrpc": "2.0", "id": 3, "method": "x"}
    ]
    assert messages_in('{"id":1,"result":{"n":NaN}}', waiting).messages[0]["result"] == {"n": "NaN"}


# limits, credentials, rates


@pytest.mark.parametrize(
    ("headers", "oauth", "said"),
    [
        ({}, None, "wants a login (HTTP 401). Run `/mcp auth s`"),
        ({"X-Tenant": PLANTED}, None, "wants a login (HTTP 401). Run `/mcp auth s`"),
        ({}, False, "wants a login (HTTP 401). Put a credential into `headers`"),
        ({"authorization": PLANTED}, None, "Check the value of `authorization` in `headers`."),
        ({"X-API-Key": PLANTED}, None, "Check the value of `X-API-Key` in `headers`; if it wants a login instead"),
        ({"PRIVATE-TOKEN": PLANTED}, False, "Check the value of `PRIVATE-TOKEN` in `headers`."),
    ],
)
def test_a_401_says_whether_a_configured_credential_was_refused(
    headers: dict[str, str], oauth: bool | None, said: str
) -> None:
    entry = {"url": "https://a.example/mcp", "headers": headers, **({} if oauth is None else {"oauth": oauth})}
    definition = configuration_of({"s": entry}).servers["s"]
    fault = Fault("status", status=401)
    line = diagnose(fault, operation="connect", server="s", definition=definition).line()
    assert said in line
    assert PLANTED not in line
    assert ("The server refused the configured credential (HTTP 401)." in line) is ("Check" in said)


def test_what_a_gateway_in_between_has_said_already_is_not_said_again() -> None:
    said = diagnose_error(-32000, f"The stream broke. {UNKNOWN_OUTCOME}", None, operation="call", server="s").message
    assert said.count(UNKNOWN_OUTCOME) == 1
    assert diagnose_error(-32000, "No.", None, operation="call", server="s").message.endswith(UNKNOWN_OUTCOME)


def test_a_401_carries_its_challenges_and_nothing_of_its_body_b128() -> None:
    challenges = ["Negotiate", 'Bearer resource_metadata="https://x/y"']
    fault = one_fault(
        {"tools/call": {"status": 401, "headers": {"WWW-Authenticate": challenges}, "body": f"unauthorized {PLANTED}"}}
    )
    assert (fault.status, fault.executed) == (401, "no")
    assert fault.headers["www-authenticate"] == ", ".join(challenges)


def test_renewed_credentials_repeat_a_refused_request_once() -> None:
    class Renewing:
        def __init__(self, useful: bool) -> None:
            self.token, self.useful, self.asked = "old", useful, 0
            self.again: dict[str, str] | None = None

        async def headers(self) -> Mapping[str, str]:
            return {"Authorization": f"Bearer {self.token}"}

        async def refused(self, status: int, challenges: tuple[str, ...]) -> bool:
            self.asked += 1
            self.token = "new"
            assert challenges == ("Bearer",)
            return self.useful

        def still_refused(self, headers: Mapping[str, str]) -> None:
            self.again = dict(headers)

        def denied(self, challenges: tuple[str, ...]) -> None:
            raise AssertionError

        def proof(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
            return {}

        def answered(self, url: str, status: int, nonce: str | None, challenges: tuple[str, ...]) -> bool:
            return False

    def react(request: Any, server: HttpServer) -> dict[str, Any]:
        if request.headers["authorization"] == "Bearer new" and server.era == "legacy":
            return {}
        return {"status": 401, "headers": {"WWW-Authenticate": "Bearer"}}

    async def main() -> None:
        with HttpServer({"tools/call": react}) as server:
            async with wire(server.url, credentials=Renewing(True)) as link:
                assert "echo" in await link.text()
            assert len(server.of("tools/call")) == 2
            server.era = "never"
            for useful, sent in ((True, 2), (False, 1)):
                server.requests.clear()
                credentials = Renewing(useful)
                async with wire(server.url, credentials=credentials, handshake=False) as link:
                    assert (await link.fault()).status == 401
                assert credentials.asked == 1
                assert credentials.again == ({"Authorization": "Bearer new"} if useful else None)
                assert len(server.of("tools/call")) == sent

    run(main())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("1", 1.0), (" 3600 ", 3600.0), ("0.5", 0.5), ("soon", None), ("-1", None), ("", None), (None, None),
     ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0), ("9" * 50, None),
     ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, now=10.0) == seconds


@pytest.mark.slow
def test_no_limit_of_the_library_ends_a_long_call_b101() -> None:
    """The library's own limit would be 5 s; here only a silence above every configurable limit counts."""

    async def main() -> None:
        with HttpServer({"tools/call": {"sleep": 6}}) as server:
            async with wire(server.url) as link:
                assert "echo" in await link.text()

    from pi_mcp.connect.sender import LONGEST_SILENCE

    assert LONGEST_SILENCE > 600
    run(main())


def test_nothing_stays_open_after_the_end() -> None:
    async def main() -> None:
        with HttpServer({"GET": {"events": [{"hang": True}]}, "tools/call": {"hang": True}}, session=True) as server:
            async with wire(server.url) as link:
                calls = [link.start("tools/call", {"name": "echo"}) for _ in range(5)]
                await asyncio.sleep(0.3)
                assert server.open >= 6
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            for _ in range(100):
                if server.open == 0:
                    break
                await asyncio.sleep(0.02)
            assert server.open == 0
            assert len(asyncio.all_tasks()) <= 2  # this one and, before Python 3.12, the one that bounds it

    run(main())


def test_errors_of_the_transport_are_ours() -> None:
    assert issubclass(ConfigurationError, PiMcpError)


class Logins:
    """Credentials of a test: a token that changes when it is refused, or an error."""

    def __init__(self) -> None:
        self.token = "old"
        self.error: Exception | None = None
        self.runs = 0

    async def headers(self) -> Mapping[str, str]:
        if self.error is not None:
            raise self.error
        return {"Authorization": f"Bearer {self.token}"}

    async def refused(self, status: int, challenges: tuple[str, ...]) -> bool:
        self.runs += 1
        self.token = "new"
        return self.runs == 1

    def still_refused(self, headers: Mapping[str, str]) -> None:
        assert headers == {"Authorization": "Bearer new"}

    def denied(self, challenges: tuple[str, ...]) -> None:
        raise AssertionError

    def proof(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        return {}

    def answered(self, url: str, status: int, nonce: str | None, challenges: tuple[str, ...]) -> bool:
        return False


def test_requests_refused_one_after_the_other_share_one_renewal() -> None:
    async def main() -> None:
        def react(request: Any, server: HttpServer) -> dict[str, Any]:
            if request.headers["authorization"] == "Bearer new":
                return {}
            return {"status": 401, "sleep": 0.1 * request.message["id"]}

        with HttpServer({"tools/call": react}) as server:
            logins = Logins()
            async with wire(server.url, credentials=logins) as link:
                calls = [link.start("tools/call", {"name": "echo"}) for _ in range(5)]
                assert ["result" in answer for answer in await asyncio.gather(*calls)] == [True] * 5
            assert logins.runs == 1
            assert len(server.of("tools/call")) == 10

    run(main())


def test_a_login_that_cannot_be_had_ends_its_request_only() -> None:
    async def main() -> None:
        with HttpServer() as server:
            logins = Logins()
            async with wire(server.url, credentials=logins) as link:
                logins.error = failure("credential_store_unavailable", "authenticate", "web", "It is locked.")
                fault = await link.fault()
                assert diagnose(fault, operation="call", server="web").code == "credential_store_unavailable"
                logins.error = RuntimeError(PLANTED)
                assert (await link.fault()).kind == "unexpected"
                logins.error = None
                assert "echo" in await link.text()

    run(main())


def test_blanks_around_a_header_value_are_not_sent() -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with wire(server.url, headers={"X-Key": "  v \t"}) as link:
                assert "echo" in await link.text()
            assert server.requests[0].headers["x-key"] == "v"

    run(main())


@pytest.mark.parametrize("operation", ["connect", "list"])
def test_only_of_a_process_is_it_said_where_it_writes(operation: Literal["connect", "list"]) -> None:
    servers = configuration_of({"web": {"url": "https://h/mcp"}, "local": {"command": "x"}}).servers
    assert late(servers["web"], operation).hint == "See that the server is well; raise the limit if it needs longer."
    assert "`/mcp get local` shows what it wrote to stderr" in str(late(servers["local"], operation).hint)
