"""The gateway's HTTP side: who is let in, sessions, streams, bounds, and the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pi_mcp.access import Grant, Scopes
from pi_mcp.cli.serve import _Faults
from pi_mcp.server import http as http_module
from pi_mcp.server.doors import Doors
from pi_mcp.server.streams import HttpSession
from tests.auth_support import until
from tests.gateway_support import ACCEPT, NO_TLS, Client, Failed, ModernClient, gateway_of
from tests.hostile.script import entry, methods_of
from tests.plugin_support import greeting
from tests.support import run

SECRET = "planted-secret-8fd2"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@contextlib.asynccontextmanager
async def browser() -> Any:
    async with httpx2.AsyncClient(timeout=20.0, trust_env=False, verify=NO_TLS) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "admitted"),
    [
        ("localhost:8000", True), ("LOCALHOST", True), ("[::1]:8000", True), ("127.0.0.1:1", True),
        ("mcp.example.test", False), ("mcp.example.test:443", False), ("localhost.evil.test", False), ("", False),
        ("127.0.0.1.evil.test:80", False), ("evil.test#localhost", False), ("localhost:80:80", False),
        ("localhost:x", False), ("[::1]x", False), ("user@localhost", False),
    ],
)  # fmt: skip
def test_b191_loopback_names_are_let_in_and_others_are_not(host: str, admitted: bool) -> None:
    assert Doors().host(host) is admitted


def test_b191_named_hosts_and_the_public_address_are_let_in() -> None:
    doors = Doors(public_url="https://Mcp.Example.test/mcp", allowed_hosts=["other.test:8443", "any.test"])
    for host in ("mcp.example.test", "mcp.example.test:8443", "other.test:8443", "ANY.test:1", "any.test."):
        assert doors.host(host), host
    for host in ("other.test", "other.test:80", "x.mcp.example.test", "example.test"):
        assert not doors.host(host), host
    for origin in (None, "https://mcp.example.test", "http://localhost:6274"):
        assert doors.origin(origin), origin
    for origin in ("https://evil.test", "null", "", "file://", "https://localhost@evil.test", "javascript:localhost"):
        assert not doors.origin(origin), origin


def test_b191_a_foreign_host_or_origin_is_refused_before_parsing_and_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running, browser() as client:
            for headers, status in (({"host": "mcp.example.test"}, 421), ({"origin": "https://evil.test"}, 403)):
                for body in (b"no json", json.dumps(INITIALIZE).encode()):
                    answer = await client.post(running.url, headers={**ACCEPT, **headers}, content=body)
                    assert answer.status_code == status
            assert running.application.endpoint.sessions == 0

    run(work())
    assert "mcp.example.test" in caplog.text
    assert "--allowed-host" in caplog.text


def test_a_session_begins_with_initialize_and_ends_with_delete(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path, expose="all") as running,
            Client(running.url) as client,
            browser() as http,
        ):
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert client.session
            for session, status in ((None, 400), ("unknown", 404)):
                headers = {**ACCEPT, **({} if session is None else {"mcp-session-id": session})}
                assert (await http.post(running.url, headers=headers, json=ping)).status_code == status
            # The alias is the same endpoint.
            headers = {**ACCEPT, "mcp-session-id": client.session}
            answer = await http.post(f"{running.url}/oauth", headers=headers, json=ping)
            assert answer.json() == {"jsonrpc": "2.0", "id": 1, "result": {}}
            assert (await http.delete(running.url, headers=headers)).status_code == 200
            assert (await http.post(running.url, headers=headers, json=ping)).status_code == 404
            client.session = None

    run(work())


def test_a_session_belongs_to_the_credential_that_began_it(tmp_path: Path) -> None:
    def authenticate(app: Any) -> Any:
        async def layer(scope: Any, receive: Any, send: Any) -> None:
            name = dict(scope["headers"]).get(b"x-api-key", b"").decode()
            scope.setdefault("state", {})["grant"] = Grant(name, name, "key", Scopes.everything())
            await app(scope, receive, send)

        return layer

    async def work() -> None:
        options = {"authenticate": authenticate}
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path, expose="all", http=options) as running,
            Client(running.url, **{"x-api-key": "one"}) as client,
            browser() as http,
        ):
            headers = {**ACCEPT, "mcp-session-id": str(client.session), "x-api-key": "two"}
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert (await http.post(running.url, headers=headers, json=ping)).status_code == 404
            assert (await http.get(running.url, headers=headers)).status_code == 404
            assert (await http.delete(running.url, headers=headers)).status_code == 404
            assert await client.request("ping") == {}

    run(work())


def test_sessions_that_nobody_uses_end_and_there_are_no_more_than_allowed(tmp_path: Path) -> None:
    async def work() -> None:
        options = {"session_timeout": 0.4, "max_sessions": 1}
        async with gateway_of({"s": entry(tmp_path)}, tmp_path, http=options) as running:
            first = Client(running.url)
            await first.begin()
            async with browser() as http:
                assert (await http.post(running.url, headers=ACCEPT, json=INITIALIZE)).status_code == 503
            await until(lambda: running.application.endpoint.sessions == 0)
            with pytest.raises(Failed) as caught:
                await first.request("ping")
            assert caught.value.status == 404
            await first._http.aclose()
            async with Client(running.url) as second:
                await second.listen()
                await asyncio.sleep(0.8)  # an open stream keeps its session
                assert await second.request("ping") == {}

    run(work())


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"content-type": "text/plain"}, b"{}", 415, -32600),
        ({"accept": "text/html"}, b"{}", 406, -32600),
        ({}, b"no json", 400, -32700),
        ({}, b"[" * 200_000, 400, -32700),
        ({}, b"[]", 400, -32600),
        ({}, b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600),
        ({}, b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32600),
        ({}, b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600),
        ({}, b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', 400, -32600),
        ({}, b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}', 200, -32602),
        ({}, b"x" * 70_000, 413, -32600),
        ({"mcp-protocol-version": "1999-01-01"}, b'{"jsonrpc":"2.0","id":1,"method":"ping"}', 400, -32602),
    ],
)
def test_a_request_that_cannot_be_used_gets_an_error_of_ours(
    tmp_path: Path, headers: dict[str, str], body: bytes, status: int, code: int
) -> None:
    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path, http={"max_body": 66_000}) as running,
            browser() as http,
        ):
            answer = await http.post(running.url, headers={**ACCEPT, **headers}, content=body)
            assert answer.status_code == status
            assert answer.json()["error"]["code"] == code
            assert running.application.endpoint.sessions == 0

    if len(body) == 200_000:
        body = body[:60_000]
    run(work())


def test_a_body_that_does_not_come_is_waited_for_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "BODY_TIME", 0.3)

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running:
            port = int(running.url.split(":")[2].split("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 408")
            writer.close()

    run(work())


def test_b196_keep_alives_are_comments_and_every_event_is_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "PING", 0.1)

    async def work() -> None:
        slow = [{"sleep": 0.5}, {"progress": 1}, {"sleep": 0.3}, {"echo": True}]
        async with gateway_of({"s": entry(tmp_path, {"tools/call": [slow]})}, tmp_path, expose="all") as running:
            for kind in (Client, ModernClient):
                async with kind(running.url) as client:
                    await client.request("tools/list")
                    message = client.message(
                        "tools/call", {"name": "s__echo", "arguments": {}, "_meta": {"progressToken": 1}}
                    )
                    headers = client._sent(message)
                    async with client._http.stream("POST", running.url, headers=headers, json=message) as answer:
                        lines = [line async for line in answer.aiter_lines() if line]
                    comments = [line for line in lines if line.startswith(":")]
                    assert len(comments) >= 3
                    others = [line for line in lines if not line.startswith(":")]
                    assert [line for line in others if not line.startswith("data:")] == ["event: message"] * 2
                    data = [json.loads(line[5:]) for line in others if line.startswith("data:")]
                    assert data[0]["method"] == "notifications/progress"
                    assert data[1]["id"] == message["id"]

    run(work())


def test_a_session_has_one_stream_which_opens_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path) as running,
            Client(running.url) as client,
            browser() as http,
        ):
            await client.listen()
            headers = {"accept": "text/event-stream", "mcp-session-id": str(client.session)}
            assert (await http.get(running.url, headers=headers)).status_code == 409
            assert (await http.get(running.url, headers={**headers, "accept": "text/html"})).status_code == 406
            assert client._listener is not None
            client._listener.cancel()
            await asyncio.gather(client._listener, return_exceptions=True)
            [session] = running.application.endpoint._sessions.values()
            await until(lambda: session.stream is None)
            # What came while there was no stream is kept for the next one.
            session.changed("tools")
            client.listening.clear()
            await client.listen()
            await until(lambda: client.methods() == ["notifications/tools/list_changed"])

    run(work())


def test_stateless_clients_need_no_handshake(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"progress": 1}, {"echo": True}]})
        options = {"stateless": True}
        async with gateway_of({"s": server}, tmp_path, expose="all", http=options) as running, browser() as http:
            client = Client(running.url)
            listed = await client.request("tools/list")
            assert len(listed["tools"]) == 2
            await client.call("s__echo", _meta={"progressToken": "p"})
            assert client.methods() == ["notifications/progress"]
            await client.begin()
            assert client.session is None
            for verb in ("GET", "DELETE"):
                assert (await http.request(verb, running.url, headers=ACCEPT)).status_code == 405
            await client._http.aclose()

    run(work())


def test_json_alone_is_answered_where_that_is_all_that_is_wanted(tmp_path: Path) -> None:
    asks = [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {}}]}, {"answer": True}]

    async def work() -> None:
        script = {"tools/call:echo": [{"progress": 2}, {"echo": True}], "tools/call:other": [asks]}
        server = entry(tmp_path, script, shared=False)
        for options, accept in (({"json_response": True}, ACCEPT["accept"]), ({}, "application/json")):
            async with (
                gateway_of({"s": server}, tmp_path, expose="all", http=options) as running,
                Client(running.url, capabilities={"elicitation": {}}, accept=accept) as client,
            ):
                await client.call("s__echo", _meta={"progressToken": 1})
                assert client.heard == []
                # There is no stream on which the client could be asked.
                said = json.loads(await client.text("s__other"))
                assert said["error"]["code"] == -32600

    run(work())


def test_after_the_signal_running_calls_end_and_new_ones_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"sleep": 1.0}, {"echo": True}]})
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            browser() as http,
            Client(running.url) as client,
            ModernClient(running.url) as modern,
        ):
            await client.listen()
            listening = asyncio.create_task(
                modern.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            )
            calling = asyncio.create_task(client.call("s__echo", {"a": 1}))
            await until(lambda: "tools/call" in methods_of(server) and modern.heard)
            assert (await http.get(running.url.replace("/mcp", "/healthz"))).text == "ok\n"
            running.stop()
            await until(lambda: running.gateway.draining)
            assert (await http.get(running.url.replace("/mcp", "/healthz"))).status_code == 503
            with pytest.raises(Failed) as caught:
                await client.request("ping")
            assert caught.value.status == 503
            # A subscription ends with its own last message.
            assert (await listening)["resultType"] == "complete"
            assert json.loads((await calling)["content"][0]["text"])["arguments"] == {"a": 1}
            assert running.task is not None
            await asyncio.wait_for(asyncio.shield(running.task), 5)
            client.session = None

    run(work())


def test_a_running_call_may_still_ask_its_client_while_the_gateway_ends(tmp_path: Path) -> None:
    asks = [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {}}]}, {"answer": True}]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [asks]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            client = Client(running.url, capabilities={"elicitation": {}})

            async def after_the_signal(method: str, params: dict[str, Any]) -> dict[str, Any]:
                running.stop()
                await until(lambda: running.gateway.draining)
                return {"action": "decline"}

            client.answer = after_the_signal
            await client.begin()
            assert json.loads(await client.text("s__echo")) == {"action": "decline"}
            await client._http.aclose()

    run(work())


def test_a_call_that_does_not_end_is_cut_off_when_the_bound_has_passed(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"hang": True}]})
        async with gateway_of({"s": server}, tmp_path, expose="all", drain=0.3) as running:
            client = Client(running.url)
            await client.begin()
            calling = asyncio.create_task(client.call("s__echo"))
            await until(lambda: "tools/call" in methods_of(server))
            running.stop()
            assert running.task is not None
            await asyncio.wait_for(asyncio.shield(running.task), 8)
            with pytest.raises(Failed) as caught:
                await calling
            assert caught.value.code == -32000
            assert "shutting down" in caught.value.message
            await client._http.aclose()

    run(work())


@pytest.mark.slow
def test_a_client_that_does_not_end_begins_no_second_time_to_drain(tmp_path: Path) -> None:
    """Else a supervisor that was told of one kills the gateway, and its upstreams are nobody's."""

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"hang": True}]})
        async with gateway_of({"s": server}, tmp_path, expose="all", drain=8.0) as running:
            client = Client(running.url)
            await client.begin()
            calling = asyncio.create_task(client.call("s__echo"))
            await until(lambda: "tools/call" in methods_of(server))
            port = int(running.url.split(":")[2].split("/")[0])
            _, half = await asyncio.open_connection("127.0.0.1", port)
            half.write(
                f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                "Accept: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
            )
            await half.drain()
            await client.request("ping")  # what came before has arrived
            running.stop()
            with pytest.raises(Failed):
                await calling
            assert running.task is not None
            await asyncio.wait_for(asyncio.shield(running.task), 7)
            half.close()
            await client._http.aclose()

    run(work())


def test_a_process_without_files_waits_for_one_and_does_nothing_else(tmp_path: Path) -> None:
    """asyncio tries as often as the backlog is long, and reports each try and repeats it: megabytes a second."""
    resource = pytest.importorskip("resource")
    reports: list[Any] = []

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running, browser() as http:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, context: reports.append(context))
            port = int(running.url.split(":")[2].split("/")[0])
            waiting = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
            limits, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
            try:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(os.open(os.devnull, os.O_RDONLY))
                await until(lambda: reports)
                await asyncio.sleep(0.3)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                for number in taken:
                    os.close(number)
            assert all(report["exception"].errno == errno.EMFILE for report in reports)
            assert len(reports) < 10
            assert (await http.get(running.url.replace("/mcp", "/healthz"))).text == "ok\n"
            for one in waiting:
                one.close()

    run(work())


def test_what_the_loop_has_to_tell_is_a_line_without_values(caplog: pytest.LogCaptureFixture) -> None:
    faults = _Faults()
    full = {"message": "m", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None}
    loop = asyncio.new_event_loop()
    try:
        loop.set_exception_handler(faults)
        with caplog.at_level(logging.WARNING, "pi_mcp.server"):
            for _ in range(3):
                loop.call_exception_handler(full)
            loop.call_exception_handler({"message": SECRET, "exception": ValueError(SECRET)})
            with socket.socket() as closed:
                pass
            loop.call_soon(loop._start_serving, None, closed)  # type: ignore[attr-defined]
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    first, second = [record.getMessage() for record in caplog.records]
    assert "no further connection" in first
    assert "ulimit -n" in first
    assert second == "something failed inside pi-mcp: ValueError"
    assert SECRET not in caplog.text


def test_the_newer_protocols_envelope_and_headers_have_to_agree(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path, expose="all") as running,
            ModernClient(running.url) as client,
            browser() as http,
        ):
            message = client.message("tools/call", {"name": "s__echo", "arguments": {}})
            good = client._sent(message)
            for changed in ({"mcp-method": "tools/list"}, {"mcp-name": "other"}):
                answer = await http.post(running.url, headers={**good, **changed}, json=message)
                assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
            older = {key: good[key] for key in good if key != "mcp-protocol-version"}
            answer = await http.post(running.url, headers=older, json=message)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
            for gone in ("ping", "logging/setLevel", "resources/subscribe", "initialize"):
                with pytest.raises(Failed) as caught:
                    await client.request(gone, {"uri": "x", "level": "info"})
                assert (caught.value.status, caught.value.code) == (404, -32601)

    run(work())


def test_a_handshake_that_fails_names_no_session_and_ends_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path) as running,
            Client(running.url) as client,
            browser() as http,
        ):
            bad = client.message("initialize", {"protocolVersion": "2025-11-25"})
            answer = await http.post(running.url, headers=ACCEPT, json=bad)
            assert "error" in answer.json()
            assert "mcp-session-id" not in answer.headers
            assert running.application.endpoint.sessions == 1
            answer = await http.post(running.url, headers=client._sent(bad), json=bad)
            assert "error" in answer.json()
            assert await client.request("ping") == {}
            assert await client.text("mcp_search", {"query": "echo", "load": False})

    run(work())


def test_news_that_a_stream_did_not_take_wait_for_the_next_one() -> None:
    session = HttpSession("id", "owner")
    stream = session.open()
    session.tell("notifications/one")
    session.shut(stream)
    session.tell("notifications/two")
    assert stream.ended
    again = session.open()
    assert [json.loads(one)["method"] for one in again.messages] == ["notifications/one", "notifications/two"]
    # One that the gateway ends gives what it has.
    session.shut(again, lost=False)
    session.tell("notifications/three")
    assert len(again.messages) == 2


def test_stateless_clients_are_promised_no_news_and_each_gets_the_version_that_it_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        offers = greeting(capabilities={"tools": {"listChanged": True}, "resources": {"subscribe": True, "x": 1}})
        server = entry(tmp_path, {"initialize": offers, "start": [{"sleep": 0.5}]})
        options: dict[str, Any] = {"expose": "all", "prefix": False, "http": {"stateless": True}}
        async with (
            gateway_of({"s": server}, tmp_path, **options) as running,
            contextlib.AsyncExitStack() as stack,
        ):
            clients = {version: Client(running.url) for version in ("2024-11-05", "2025-06-18", "2025-11-25")}
            for client in clients.values():
                stack.push_async_callback(client._http.aclose)
            await asyncio.gather(*(client.begin(version) for version, client in clients.items()))
            for version, client in clients.items():
                assert client.initialized["protocolVersion"] == version
                assert client.initialized["capabilities"] == {"tools": {}, "resources": {"x": 1}}
            with pytest.raises(Failed) as caught:
                await client.request("resources/subscribe", {"uri": "file:///a"})
            assert caught.value.code == -32601

    run(work())
