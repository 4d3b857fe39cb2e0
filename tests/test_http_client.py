"""`MCPHTTPClient` and `StatelessMCPClient` in front of real sockets: what they promise, and what they never do."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.http_client import MCPClientError, MCPHTTPClient, StatelessMCPClient, exchange, messages, wire
from pi_mcp.http_client.address import parse
from pi_mcp.http_client.messages import Events
from pi_mcp.http_client.mirror import annotated, header_value, parameter_headers
from tests.chat_support import wait_until
from tests.hostile.certificate import certificate_in
from tests.hostile.http_server import HttpServer, Request

SECRET = "s3cr3t-planted-value"
ROOT = Path(__file__).resolve().parent.parent


def ready(server: HttpServer, **options: Any) -> MCPHTTPClient:
    client = MCPHTTPClient(server.url, **options)
    client.initialize()
    return client


def failed(work: Callable[[], Any]) -> MCPClientError:
    with pytest.raises(MCPClientError) as caught:
        work()
    error = caught.value
    assert SECRET not in f"{error} {error!r} {error.detail} {error.diagnostic}"
    return error


# the contract


def test_nothing_can_be_asked_before_initialize() -> None:
    with HttpServer() as server, MCPHTTPClient(server.url) as client:
        for work in (client.list_tools, lambda: client.call_tool("echo"), client.list_resources):
            assert failed(work).kind == "not_initialized"
        assert not client.initialized
        assert server.requests == []


@pytest.mark.parametrize("answers", ["json", "sse"])
def test_initialize_returns_the_capabilities_and_keeps_the_session_until_close(answers: str) -> None:
    with HttpServer(session=True, answers=answers) as server:
        client = MCPHTTPClient(server.url)
        assert client.initialize() == {"tools": {"listChanged": True}}
        assert client.session_id in server.sessions
        assert client.initialize() == client.capabilities, "asked again, it sends nothing"
        assert [tool["name"] for tool in client.list_tools()] == ["echo", "other"]
        client.call_tool("echo", {"a": 1})
        client.close()
        assert client.session_id is None
        assert failed(client.list_tools).kind == "not_initialized"
        assert server.sessions == {}
        sent = [request.method or request.verb for request in server.requests]
        assert sent[0] == "server/discover"
        assert sent[1:] == ["initialize", "notifications/initialized", "tools/list", "tools/call", "DELETE"]
        assert all(request.headers["mcp-protocol-version"] == "2025-11-25" for request in server.requests[2:])


def test_a_server_of_the_newer_protocol_needs_no_handshake_and_no_session() -> None:
    with HttpServer(era="modern") as server, ready(server) as client:
        client.call_tool("größe", {})
        assert client.session_id is None
    assert [request.method for request in server.requests] == ["server/discover", "tools/call"]
    sent = server.requests[1]
    assert sent.headers["mcp-method"] == "tools/call"
    assert base64.b64decode(sent.headers["mcp-name"][9:-2]).decode() == "größe"
    meta = sent.message["params"]["_meta"]
    assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
    assert set(meta) == {
        f"io.modelcontextprotocol/{key}" for key in ("protocolVersion", "clientInfo", "clientCapabilities")
    }


@pytest.mark.parametrize("status", [200, 202, 204, 404, 405])
def test_these_answers_to_the_end_of_a_session_are_fine(status: int) -> None:
    with HttpServer({"DELETE": {"status": status}}, session=True) as server:
        client = ready(server)
        client.close()
        assert client.session_id is None


def test_another_answer_to_the_end_is_raised_and_the_session_forgotten_all_the_same() -> None:
    with HttpServer({"DELETE": {"status": 500}}, session=True) as server:
        client = ready(server)
        assert failed(client.close).status == 500
        assert client.session_id is None
        with ready(server) as other:
            assert other.session_id, "a context manager hides what the end brings"


def test_a_tools_own_error_is_raised_with_the_whole_result() -> None:
    result = {"isError": True, "content": [{"type": "text", "text": "bad"}], "structuredContent": {"n": 1}}
    with HttpServer({"tools/call": {"result": result}}) as server, ready(server) as client:
        error = failed(lambda: client.call_tool("echo"))
        assert (error.kind, error.result, error.diagnostic.code) == ("tool_error", result, "tool_error")


def test_a_404_for_the_session_clears_it_and_repeats_nothing() -> None:
    with HttpServer(session=True) as server, ready(server) as client:
        server.forget_sessions()
        error = failed(lambda: client.call_tool("echo"))
        assert (error.kind, error.executed, client.session_id) == ("session_lost", "no", None)
        assert len(server.of("tools/call")) == 1
        assert failed(lambda: client.call_tool("echo")).kind == "not_initialized"
        client.initialize()
        client.call_tool("echo")


def test_resources_are_listed_and_read() -> None:
    pages = [
        {"result": {"resources": [{"uri": "a:1"}, {"uri": "a:1"}], "nextCursor": "x"}},
        {"result": {"resources": [{"uri": "a:2"}]}},
    ]
    contents = [{"uri": "a:2", "text": "two"}]
    script: dict[str, Any] = {"resources/list": pages, "resources/read": {"result": {"contents": contents}}}
    with HttpServer(script, era="both") as server, ready(server) as client:
        assert [one["uri"] for one in client.list_resources()] == ["a:1", "a:2"]
        assert client.read_resource("a:2") == {"contents": contents}
        assert server.of("resources/read")[0].headers["mcp-name"] == "a:2"


def test_a_listing_is_bounded_and_says_so() -> None:
    def page(request: Request, server: HttpServer) -> dict[str, Any]:
        number = len(server.of("tools/list"))
        tools = [{"name": f"t{number}-{n}", "description": "x" * 1000} for n in range(1000)]
        return {"result": {"tools": tools, "nextCursor": str(number)}}

    with HttpServer({"tools/list": page}) as server, ready(server) as client:
        tools = client.list_tools()
        assert 7000 < len(tools) < 9000
        assert client.notes == ["The listing was cut at 10,000 entries or 8 MiB."]
        assert len(server.of("tools/list")) < 10


# repetition: −32020 and −32022 alone


SCHEMA = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}


def test_a_call_refused_for_a_missing_header_is_sent_once_more_with_it() -> None:
    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        if request.headers.get("mcp-param-region") == "eu":
            return {}
        error = {"jsonrpc": "2.0", "id": request.message["id"], "error": {"code": -32020, "message": "header"}}
        return {"status": 400, "type": "application/json", "body": json.dumps(error)}

    tools = [{"name": "echo", "inputSchema": SCHEMA}]
    with HttpServer({"tools/call": react}, era="modern", tools=tools) as server, ready(server) as client:
        client.call_tool("echo", {"region": "eu"})
        assert [request.method for request in server.requests[1:]] == ["tools/call", "tools/list", "tools/call"]
        client.call_tool("echo", {"region": "eu"}, schema=SCHEMA)
        assert len(server.of("tools/call")) == 3, "with its schema at hand it is right at once"
        assert failed(lambda: client.call_tool("echo", {"region": "us"})).code == -32020
        assert len(server.of("tools/call")) == 5, "once, whatever comes"


@pytest.mark.parametrize(("supported", "era"), [(["2026-07-28"], "modern"), (["2031-01-01"], "legacy"), (7, "legacy")])
def test_a_probe_refused_for_its_version_is_asked_in_one_that_the_server_names(supported: Any, era: str) -> None:
    def refuse(request: Request, server: HttpServer) -> dict[str, Any]:
        if len(server.of("server/discover")) > 1:
            return {}
        error = {"code": -32022, "message": "unsupported", "data": {"supported": supported}}
        body = {"jsonrpc": "2.0", "id": request.message["id"], "error": error}
        return {"status": 400, "type": "application/json", "body": json.dumps(body)}

    with HttpServer({"server/discover": refuse}, era="both") as server, ready(server) as client:
        assert client.era == era
        assert len(server.of("server/discover")) == (2 if era == "modern" else 1)
        assert len(server.of("initialize")) == (0 if era == "modern" else 1)


# time


@pytest.mark.parametrize(
    "reaction",
    [
        {"hang": True},
        {"events": [{"repeat": 500, "event": ": still here\n\n", "every": 0.02}]},
        {"events": [{"repeat": 500, "event": "d", "every": 0.02}]},
    ],
)
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_deadline_counts_from_the_request_however_the_answer_drips(reaction: dict[str, Any], era: str) -> None:
    with HttpServer({"tools/call": reaction}, era=era) as server, ready(server) as client:
        began = time.monotonic()
        assert failed(lambda: client.call_tool("echo", timeout=0.4)).kind == "timeout"
        assert time.monotonic() - began < 5
        told = server.of("notifications/cancelled")
        assert len(told) == (1 if era == "legacy" else 0)
        if told:
            assert told[0].message["params"]["requestId"] == server.of("tools/call")[0].message["id"]
        server.script.clear()
        client.call_tool("echo")
        assert len(server.of("tools/call")) == 2


class Dripping:
    """A server that writes its head byte by byte."""

    def __enter__(self) -> Dripping:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/mcp"

    def _serve(self) -> None:
        self._socket.settimeout(0.1)
        while not self._ended.is_set():
            try:
                one, _ = self._socket.accept()
            except TimeoutError:
                continue
            with one:
                one.recv(65536)
                for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"y" * 500:
                    if self._ended.wait(0.05):
                        return
                    try:
                        one.sendall(bytes([byte]))
                    except OSError:
                        break

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)
        self._socket.close()


@pytest.mark.slow
def test_a_head_that_drips_is_late_too() -> None:
    with Dripping() as server, StatelessMCPClient(server.url, timeout=0.5, era="legacy") as client:
        began = time.monotonic()
        assert failed(lambda: client.call_tool("echo")).kind == "timeout"
        assert time.monotonic() - began < 4


def test_what_nobody_needs_to_read_is_not_waited_for(monkeypatch: Any) -> None:
    monkeypatch.setattr("pi_mcp.http_client.conversation.NOTIFICATION_WAIT", 3600)
    monkeypatch.setattr("pi_mcp.http_client.conversation.PEEK_WAIT", 0.2)
    silent = {"events": [{"hang": True}]}
    script = {"notifications/initialized": silent, "tools/call": {"status": 500, **silent}}
    with HttpServer(script) as server, ready(server) as client:
        assert failed(lambda: client.call_tool("echo", timeout=3600)).status == 500


def test_a_listing_has_a_time_for_all_its_pages_together(monkeypatch: Any) -> None:
    monkeypatch.setattr("pi_mcp.http_client.client.LISTING_AT_MOST", 0.5)

    def page(request: Request, server: HttpServer) -> dict[str, Any]:
        number = len(server.of(request.method or ""))
        slow = {"hang": True} if number > 3 else {}
        items = [{"name": f"n{number}", "uri": f"a:{number}"}]
        return {"result": {"tools": items, "resources": items, "nextCursor": str(number)}, **slow}

    script = {"tools/list": page, "resources/list": page}
    with HttpServer(script) as server, ready(server, timeout=3600) as client:
        for listed in (client.list_tools(), client.list_resources()):
            assert len(listed) == 3
            assert client.notes == ["A later page of the listing failed (timeout)."]


def test_progress_of_this_call_is_a_sign_of_life_and_others_are_none() -> None:
    def working(token: Callable[[Request], Any]) -> Callable[[Request, HttpServer], dict[str, Any]]:
        def react(request: Request, server: HttpServer) -> dict[str, Any]:
            note = {"progressToken": token(request), "progress": 1, "total": 2, "message": "on it"}
            event = {"data": {"jsonrpc": "2.0", "method": "notifications/progress", "params": note}}
            return {"events": [{"repeat": 8, "event": event, "every": 0.15}, {"answer": True}]}

        return react

    heard: list[tuple[Any, ...]] = []
    own = working(lambda request: request.message["params"]["_meta"]["progressToken"])
    with HttpServer({"tools/call": own}) as server, ready(server) as client:
        client.call_tool("echo", timeout=0.6, on_progress=lambda *said: heard.append(said))
        assert heard == [(1, 2, "on it")] * 8
        server.script["tools/call"] = working(lambda _: 99)
        error = failed(lambda: client.call_tool("echo", timeout=0.6, on_progress=lambda *said: heard.append(said)))
        assert error.kind == "timeout"


def test_a_server_that_ignores_what_it_does_not_know_is_initialized_after_the_probe(monkeypatch: Any) -> None:
    monkeypatch.setattr("pi_mcp.http_client.client.PROBE_WAIT", 0.2)
    with HttpServer({"server/discover": {"hang": True}}) as server, ready(server) as client:
        assert client.era == "legacy"


@pytest.mark.parametrize("kind", [MCPHTTPClient, StatelessMCPClient])
def test_a_long_way_to_a_server_is_no_sign_of_an_older_one(kind: Any, monkeypatch: Any) -> None:
    def slowly(*arguments: Any) -> Any:
        time.sleep(0.3)
        return connected(*arguments)

    connected = wire._connected
    monkeypatch.setattr("pi_mcp.http_client.client.PROBE_WAIT", 0.2)
    monkeypatch.setattr(wire, "_connected", slowly)
    with HttpServer(era="modern") as server, kind(server.url) as client:
        if kind is MCPHTTPClient:
            client.initialize()
        client.call_tool("echo")
        assert client.era == "modern"
        assert [request.method for request in server.requests] == ["server/discover", "tools/call"]


def test_a_ctrl_c_ends_the_call_and_tells_the_server() -> None:
    code = (
        "import sys\nfrom pi_mcp.http_client import MCPHTTPClient\n"
        "c = MCPHTTPClient(sys.argv[1]); c.initialize(); print('calling', flush=True); c.call_tool('echo', timeout=30)"
    )
    with HttpServer({"tools/call": {"hang": True}}) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", code, server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            wait_until(lambda: server.of("tools/call") != [], 20)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
        assert b"KeyboardInterrupt" in said
        assert len(server.of("notifications/cancelled")) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_another_thread_can_stop_a_call(era: str) -> None:
    with HttpServer({"tools/call": {"hang": True}}, era=era) as server, ready(server) as client:
        threading.Timer(0.2, client.abort).start()
        assert failed(lambda: client.call_tool("echo", timeout=30)).kind == "aborted"
        assert len(server.of("notifications/cancelled")) == (1 if era == "legacy" else 0)
        server.script.clear()
        assert client.call_tool("echo")["content"]  # it is at an end with that


# what goes out


def test_only_configured_and_own_headers_go_out() -> None:
    given = {"Authorization": f"Bearer {SECRET}", "X-Team": "grün", "mcp-session-id": "forged", "Host": "x"}
    with HttpServer(session=True) as server, ready(server, headers=given) as client:
        client.call_tool("echo")
        expected = {
            "accept", "authorization", "cache-control", "content-length", "content-type", "host",
            "mcp-protocol-version", "mcp-session-id", "user-agent", "x-team",
        }  # fmt: skip
        for request in server.of("POST")[1:]:
            assert set(request.headers) <= expected
            assert request.headers["x-team"] == "grün"
            assert request.headers["host"] == f"127.0.0.1:{server.port}"
            assert request.headers.get("mcp-session-id") != "forged"
            assert "accept-encoding" not in request.headers


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b", "a\x1b[0m"])
def test_a_header_that_would_break_the_request_is_refused(value: str) -> None:
    with HttpServer() as server:
        error = failed(lambda: MCPHTTPClient(server.url, headers={"X-Key": SECRET + value}))
        assert (error.kind, server.requests) == ("usage", [])
        assert "X-Key" in str(error)
        assert failed(lambda: MCPHTTPClient(server.url, headers={"X Key": "a"})).kind == "usage"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/x",
        "http://",
        "no url",
        "http://h:99999/",
        "http://h/a b",
        f"http://{SECRET}\n/",
        f"http://h/{SECRET}\ud800",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_shown(url: str) -> None:
    assert failed(lambda: MCPHTTPClient(url)).kind == "usage"


def test_a_login_in_the_address_goes_out_as_a_header_and_is_shown_nowhere() -> None:
    with HttpServer({"tools/call": {"status": 500}}) as server:
        url = server.url.replace("127.0.0.1", f"me:{SECRET}@127.0.0.1")
        with MCPHTTPClient(url) as client:
            client.initialize()
            failed(lambda: client.call_tool("echo"))
        pair = base64.b64encode(f"me:{SECRET}".encode()).decode()
        assert {request.headers["authorization"] for request in server.requests} == {f"Basic {pair}"}
        assert failed(lambda: MCPHTTPClient(url, headers={"Authorization": "x"})).kind == "usage"


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://[::1]:8080/mcp", "[::1]:8080", "/mcp"),
        ("https://example.com", "example.com", "/"),
        ("https://example.com:443/a?b=c", "example.com", "/a?b=c"),
        ("http://EXAMPLE.com/gr%C3%BC/ß?q=ü", "example.com", "/gr%C3%BC/%C3%9F?q=%C3%BC"),
        ("https://bücher.example/", "xn--bcher-kva.example", "/"),
    ],
)
def test_addresses_are_put_into_the_request_as_http_wants_them(url: str, host: str, target: str) -> None:
    address = parse(url)
    assert (address.netloc, address.target) == (host, target)


def test_a_host_with_an_ipv6_address_is_reached() -> None:
    try:
        probe = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    port = probe.getsockname()[1]
    seen: list[bytes] = []

    def serve() -> None:
        one, _ = probe.accept()
        with one:
            seen.append(one.recv(65536))
            one.sendall(b"HTTP/1.1 401 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with probe:
        error = failed(lambda: MCPHTTPClient(f"http://[::1]:{port}/mcp").initialize())
        thread.join(5)
    assert error.status == 401
    assert f"Host: [::1]:{port}".encode() in seen[0]


def test_arguments_that_are_no_json_send_nothing() -> None:
    with HttpServer() as server, ready(server) as client:
        for odd in (float("nan"), {1, 2}, object()):
            assert failed(lambda odd=odd: client.call_tool("echo", {"a": odd})).kind == "unsendable"
        assert server.of("tools/call") == []


# what comes back


def test_requests_of_the_server_are_answered_on_the_way() -> None:
    ask = [
        {"jsonrpc": "2.0", "id": f"q{n}", "method": m, "params": {}}
        for n, m in enumerate(["ping", "roots/list", "x/y"])
    ]
    events = [*({"data": one} for one in ask), {"answer": True}]

    def answer(method: str, params: Any) -> dict[str, Any] | None:
        return {"roots": []} if method == "roots/list" else None

    with HttpServer({"tools/call": {"events": events}}, session=True) as server:
        with ready(server, capabilities={"roots": {}}, on_request=answer) as client:
            client.call_tool("echo")
        replies = {one.message["id"]: one.message for one in server.of("response")}
        assert replies["q0"]["result"] == {}
        assert replies["q1"]["result"] == {"roots": []}
        assert replies["q2"]["error"]["code"] == -32601
        assert server.of("initialize")[0].message["params"]["capabilities"] == {"roots": {}}


def test_a_server_that_asks_a_lot_and_takes_no_answer_is_late_like_any_other() -> None:
    asks = [{"data": {"jsonrpc": "2.0", "id": f"q{n}", "method": "ping"}} for n in range(200)]
    script: dict[str, Any] = {"tools/call": {"events": [*asks, {"answer": True}]}, "response": {"sleep": 5.0}}
    with HttpServer(script, session=True) as server, ready(server) as client:
        with pytest.raises(MCPClientError) as late:
            client.call_tool("echo", timeout=0.5)
        assert late.value.kind == "timeout"
        assert len(server.of("response")) < 5


def test_a_stream_that_breaks_off_is_taken_up_by_its_last_id() -> None:
    def resume(request: Request, server: HttpServer) -> dict[str, Any]:
        call = server.of("tools/call")[0].message["id"]
        return {"events": [{"id": "e3", "data": {"jsonrpc": "2.0", "id": call, "result": {"content": []}}}]}

    script: dict[str, Any] = {
        "tools/call": {"events": [{"id": "e1", "retry": 30, "data": ""}, {"id": "e2", "data": ""}, {"reset": True}]},
        "RESUME": resume,
    }
    with HttpServer(script, session=True) as server, ready(server) as client:
        assert client.call_tool("echo") == {"content": []}
        [taken_up] = server.of("GET")
        assert taken_up.headers["last-event-id"] == "e2"
        assert taken_up.headers["mcp-session-id"] == client.session_id
        assert len(server.of("tools/call")) == 1


def test_a_servers_sentence_is_kept_without_what_it_should_not_repeat() -> None:
    said = {"error": {"code": -32000, "message": f"\x1b[31mBearer {SECRET} is odd\u202e", "data": [1]}}
    headers = {"Authorization": f"Bearer {SECRET}"}
    with HttpServer({"tools/call": said}) as server, ready(server, headers=headers) as client:
        error = failed(lambda: client.call_tool("echo"))
    assert (error.kind, error.code, error.data) == ("error", -32000, [1])
    assert SECRET not in error.server_message
    assert "is odd" in str(error)
    assert "\x1b" not in str(error)


def test_answers_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGEST", 100_000)
    monkeypatch.setattr("pi_mcp.http_client.conversation.LARGEST", 100_000)
    text = {"content": [{"type": "text", "text": "x" * 200_000}]}
    endless = {"events": [{"repeat": 100_000, "event": "data: " + "y" * 1000 + "\n", "every": 0}]}
    for reaction in ({"result": text}, {"result": text, "as": "sse"}, endless, {"result": text, "gzip": True}):
        with HttpServer({"tools/call": reaction}) as server, ready(server) as client:
            assert failed(lambda: client.call_tool("echo")).kind == "too_large"


def test_a_kept_socket_that_the_server_closed_is_not_used_again() -> None:
    with HttpServer() as server, ready(server) as client:
        client.call_tool("echo")
        assert server.connections == 1, "one connection serves them all"
        server.drop_connections()
        wait_until(lambda: server.open == 0, 5)
        client.call_tool("echo")
        assert len(server.of("tools/call")) == 2
        assert server.connections == 2


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\r"])
def test_events_are_read_whatever_ends_their_lines_and_wherever_they_are_cut(ends: bytes) -> None:
    raw = ends.join([b"\xef\xbb\xbf: hi", b"id: 7", b"data: one", b"data: two", b"", b"retry: 20", b"data:x", b"", b""])
    for size in (1, 2, 3, len(raw)):
        events = Events()
        found = [event for start in range(0, len(raw), size) for event in events.feed(raw[start : start + size])]
        assert [(event.data, event.id, event.retry) for event in found] == [("one\ntwo", "7", None), ("x", None, 0.02)]


# proxies and certificates


class Proxy:
    """A proxy that passes on what it is asked to, or refuses; it keeps the first line and the login of each request."""

    def __init__(self, answer: bytes | None = None) -> None:
        self.asked: list[bytes] = []
        self._answer = answer

    def __enter__(self) -> Proxy:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._ended = False
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def _serve(self) -> None:
        while not self._ended:
            try:
                one, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(one,), daemon=True).start()

    def _pass_on(self, one: socket.socket) -> None:
        with one:
            head = one.recv(65536)
            self.asked.append(head)
            if self._answer is not None:
                one.sendall(self._answer)
                return
            verb, target, _ = head.split(b" ", 2)
            place = target if verb == b"CONNECT" else target.split(b"/")[2]
            host, _, port = place.rpartition(b":")
            with socket.create_connection((host.decode(), int(port))) as other:
                if verb == b"CONNECT":
                    one.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
                else:
                    other.sendall(head.replace(target, b"/" + target.split(b"/", 3)[3], 1))
                back = threading.Thread(target=self._copy, args=(other, one), daemon=True)
                back.start()
                self._copy(one, other)
                back.join(5)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def test_an_http_address_goes_to_the_proxy_of_the_environment_whole() -> None:
    with HttpServer() as server, Proxy() as proxy:
        environ = {"http_proxy": f"http://me:{SECRET}@{proxy.place}"}
        with ready(server, environ=environ) as client:
            client.call_tool("echo")
        assert proxy.asked[0].startswith(f"POST {server.url} HTTP/1.1".encode())
        assert b"Proxy-Authorization: Basic " in proxy.asked[0]
        with ready(server, environ={**environ, "NO_PROXY": "127.0.0.0/8"}) as client:
            client.call_tool("echo")
        assert len(proxy.asked) == 1


def test_an_https_address_goes_through_a_tunnel_and_its_headers_stay_inside(tmp_path: Path) -> None:
    tls = certificate_in(tmp_path)
    with HttpServer(tls=tls) as server, Proxy() as proxy:
        environ = {"HTTPS_PROXY": f"http://me:{SECRET}@{proxy.place}", "SSL_CERT_FILE": str(tls[0])}
        with ready(server, environ=environ, headers={"X-Key": SECRET}) as client:
            client.call_tool("echo")
        assert {asked.split(b"\r\n")[0] for asked in proxy.asked} == {
            f"CONNECT 127.0.0.1:{server.port} HTTP/1.1".encode()
        }
        assert all(SECRET.encode() not in asked for asked in proxy.asked)
        assert all("proxy-authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 407 No\r\n\r\n", b"HTTP/1.1 502 Bad\r\n\r\n", b"nonsense\r\n\r\n", b""])
def test_a_proxy_that_refuses_the_tunnel_is_the_proxys_fault(answer: bytes) -> None:
    with Proxy(answer) as proxy:
        client = MCPHTTPClient("https://127.0.0.1:9/mcp", environ={"https_proxy": f"http://me:{SECRET}@{proxy.place}"})
        error = failed(client.initialize)
        assert (error.kind, error.executed) == ("proxy", "no")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "https://127.0.0.1:1"])
def test_a_proxy_of_a_kind_that_is_not_known_is_told(proxy: str) -> None:
    client = MCPHTTPClient("https://127.0.0.1:9/mcp", environ={"https_proxy": proxy})
    assert failed(client.initialize).detail == "the proxy's address or kind is not supported"


def test_an_unusable_certificate_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    tls = certificate_in(tmp_path)
    with HttpServer(tls=tls) as server:
        for path in ("none.pem", "missing.pem"):
            error = failed(MCPHTTPClient(server.url, environ={"SSL_CERT_FILE": str(tmp_path / path)}).initialize)
            assert (error.kind, "SSL_CERT_FILE" in error.detail) == ("tls", True)


# mirrored headers


@pytest.mark.parametrize(
    ("schema", "headers"),
    [
        (SCHEMA, {"Mcp-Param-Region": "eu"}),
        ({"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}, {"Mcp-Param-N": "3"}),
        ({"properties": {"b": {"type": "boolean", "x-mcp-header": "B"}}}, {"Mcp-Param-B": "true"}),
        ({"properties": {"o": {"properties": {"i": {"type": "string", "x-mcp-header": "I"}}}}}, {"Mcp-Param-I": "x"}),
        ({"properties": {"none": {"type": "string", "x-mcp-header": "None"}}}, {}),
        ({"properties": {"region": {"type": "number", "x-mcp-header": "R"}}}, {}),
        ({"properties": {"region": {"type": "string", "x-mcp-header": "a b"}}}, {}),
        ({"items": {"properties": {"region": {"type": "string", "x-mcp-header": "R"}}}}, {}),
    ],
)
def test_arguments_are_repeated_in_headers_as_the_schema_says(schema: dict[str, Any], headers: dict[str, str]) -> None:
    arguments = {"region": "eu", "n": 3, "b": True, "o": {"i": "x"}, "none": None}
    assert parameter_headers(schema, arguments) == headers


def test_the_mirroring_is_that_of_the_sdk() -> None:
    inbound = pytest.importorskip("mcp.shared.inbound")
    texts = ["plain", " edge", "edge ", "ü", "a\nb", "=?base64?eA==?=", "", "a\tb", "x" * 300]
    assert [header_value(text) for text in texts] == [inbound.encode_header_value(text) for text in texts]
    two = {"a": {"type": "string", "x-mcp-header": "X"}, "b": {"type": "string", "x-mcp-header": "x"}}
    for schema in (
        SCHEMA,
        {"properties": two},
        {"x-mcp-header": "r"},
        {"$defs": {"a": {"x-mcp-header": "R"}}},
        True,
        None,
    ):
        assert (annotated(schema) is None) == (inbound.find_invalid_x_mcp_header(schema) is not None)


# without a session


def test_a_stateless_client_sends_the_request_alone() -> None:
    with HttpServer(era="both") as server, StatelessMCPClient(server.url) as client:
        client.call_tool("echo", {"a": 1})
        client.call_tool("echo", {"a": 2})
        assert [request.method for request in server.requests] == ["server/discover", "tools/call", "tools/call"]
    with HttpServer() as server, StatelessMCPClient(server.url) as client:
        assert [tool["name"] for tool in client.list_tools()] == ["echo", "other"]
        assert client.call_tool("echo", {"a": 1})["content"]
        assert server.of("initialize") == []
        assert server.of("DELETE") == []


@pytest.mark.parametrize(
    "lost",
    [
        {"status": 404, "body": "unknown session"},
        {"status": 400, "body": "Bad Request: Missing session ID"},
        {"status": 400, "type": "application/json", "body": '{"jsonrpc":"2.0","id":null,"error":{"code":-32000,'
         '"message":"Bad Request: No valid session ID provided"}}'},
    ],
)  # fmt: skip
def test_a_server_that_insists_on_a_session_is_told_from_one_that_is_not_there(lost: dict[str, Any]) -> None:
    with HttpServer(session=True, lost=lost) as server, StatelessMCPClient(server.url) as client:
        assert failed(lambda: client.call_tool("echo")).kind == "session_required"
    with HttpServer({"*": {"status": 404, "body": "no such page"}}) as server, StatelessMCPClient(server.url) as client:
        assert failed(lambda: client.call_tool("echo")).kind == "status"


# what it costs


@pytest.fixture
def modules() -> set[str]:
    code = "import sys; import pi_mcp.http_client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_client_loads_neither_an_event_loop_nor_anything_of_others(modules: set[str]) -> None:
    assert "http.client" in modules
    assert modules.isdisjoint({"asyncio", "httpx2", "mcp", "pydantic", "keyring", "platformdirs", "logging"})
    ours = {name for name in modules if name.startswith("pi_mcp.") and not name.startswith("pi_mcp.http_client")}
    assert ours == {"pi_mcp._version", "pi_mcp.errors", "pi_mcp.network"}


def test_nothing_stays_open_after_the_end() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with HttpServer(session=True, answers="sse") as server:
        for _ in range(20):
            with ready(server) as client:
                client.call_tool("echo")
        for reaction in ({"reset": True}, {"short": 3, "as": "json"}, {"status": 500}, {"hang": True}):
            server.script["tools/call"] = reaction
            with ready(server) as client:
                failed(lambda client=client: client.call_tool("echo", timeout=0.2))
        wait_until(lambda: server.open == 0, 5)
    assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1
    assert exchange.KEEPALIVE < 5
    assert wire.Deadline(1).left() <= 1
