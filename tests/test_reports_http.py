"""The field reports about HTTP servers, each through the whole product against a real socket.

The planted secret goes out in a header of every entry; `product` asserts at its end that nothing shows it and that
nothing is left.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.http_server import HttpServer, closed_port
from tests.hostile.product import HEADERS, SECRET, product
from tests.hostile.script import entry
from tests.support import run


def web(url: str, **fields: Any) -> dict[str, Any]:
    return {"url": url, "headers": HEADERS, **fields}


def bad_request(message: str) -> dict[str, Any]:
    error = {"code": -32000, "message": message}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return {"status": 400, "type": "application/json", "body": body}


def calls_of(server: HttpServer) -> int:
    return len(server.of("tools/call"))


def test_b047_no_standalone_stream_and_no_delete_is_a_good_server(tmp_path: Path) -> None:
    async def main() -> None:
        allow = {"status": 405, "headers": {"Allow": "POST"}}
        with HttpServer({"GET": allow, "DELETE": allow}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                assert '"a": 1' in await made.text(a=1)
                assert made.state("web") == "connected"
                await asyncio.sleep(0.3)
            assert len(server.of("GET")) <= 1
            assert len(server.of("DELETE")) <= 1

    run(main())


@pytest.mark.parametrize("stream", [{"hang": True}, {"events": [{"hang": True}]}, {"raw": "HTTP/1.1 200 OK\r\n"}])
def test_b049_a_stream_whose_headers_never_arrive_blocks_nothing(tmp_path: Path, stream: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer({"GET": stream}, session=True) as server:
            begun = time.monotonic()
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                assert "2 tools" in await made.mcp("refresh web")
            assert time.monotonic() - begun < 4

    run(main())


@pytest.mark.parametrize(
    "stream",
    [
        {"status": 404, "type": "text/html", "body": f"<html>{SECRET}"},
        {"status": 400, "body": SECRET},
        {"status": 500},
        {"status": 401},
        {"status": 200, "type": "text/html", "body": "<html>"},
        {"status": 204},
        {"reset": True},
        {"redirect": "http://elsewhere.invalid/"},
    ],
)
def test_b050_whatever_get_answers_post_is_used(tmp_path: Path, stream: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer({"GET": stream}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                for _ in range(3):
                    await made.text()
                assert made.state("web") == "connected"
            assert len(server.of("initialize")) == 1
            assert len(server.of("GET")) <= 1

    run(main())


@pytest.mark.parametrize(
    "lost",
    [
        bad_request("Bad Request: no valid session id"),
        bad_request("Server not initialized"),
        {"status": 400, "type": "text/plain", "body": "Invalid or expired session"},
    ],
)
def test_b052_a_400_for_a_dead_session_starts_a_new_one_at_the_next_use(tmp_path: Path, lost: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer(session=True, lost=lost) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                server.forget_sessions()
                diagnostic = await made.fails()
                assert diagnostic.code == "connection_failed"
                assert "no longer knows this session" in diagnostic.message
                assert "unknown" in diagnostic.message
                assert "/mcp reconnect web" in str(diagnostic.hint)
                assert calls_of(server) == 2
                assert made.state("web") == "failed"
                await made.text()
                assert calls_of(server) == 3
                assert len(server.of("initialize")) == 2

    run(main())


def test_b053_a_session_that_ran_out_is_renewed_once_for_all_who_call(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer(session_ttl=0.5) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                await asyncio.sleep(0.8)
                # 404 for an issued session proves that nothing ran: the calls go out once more.
                answers = await asyncio.gather(*(made.text(n=n) for n in range(5)))
                assert [f'"n": {n}' in answer for n, answer in enumerate(answers)] == [True] * 5
            assert len(server.of("initialize")) == 2

    run(main())


def test_b053_after_a_400_the_next_calls_share_one_new_session(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer(session_ttl=0.5, lost=bad_request("no valid session id")) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                await asyncio.sleep(0.8)
                await made.fails()
                await asyncio.gather(*(made.text() for _ in range(5)))
            assert len(server.of("initialize")) == 2

    run(main())


def test_b055_a_closed_port_harms_nobody_else(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            servers = {"bad": web(f"http://127.0.0.1:{closed_port()}/mcp"), "good": web(server.url)}
            async with product(tmp_path, servers) as made:
                answer = await made.search("echo")
                assert [one.server for one in answer.not_searched] == ["bad"]
                assert answer.not_searched[0].code == "connection_failed"
                assert "refused" in answer.not_searched[0].message
                assert {tool.server for tool in answer.loaded} == {"good"}
                await made.text()
                assert made.state("bad") == "failed"
                assert made.state("good") == "connected"

    run(main())


def test_b056_after_a_failed_connection_the_same_task_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        with (
            HttpServer({"*": {"status": 500, "body": SECRET}}) as broken,
            HttpServer() as plain,
            HttpServer() as good,
        ):
            servers = {
                "refused": web(f"http://127.0.0.1:{closed_port()}/mcp"),
                "broken": web(broken.url),
                "tls": web(f"https://127.0.0.1:{plain.port}/mcp"),
                "good": web(good.url),
            }
            async with product(tmp_path, servers) as made:
                for name in ("refused", "broken", "tls"):
                    answer = await made.search("echo", server=name)
                    assert [one.code for one in answer.not_searched] == ["connection_failed"], name
                    await asyncio.sleep(0.1)
                await made.search("echo", server="good")
                await made.text()

    run(main())


@pytest.mark.parametrize("status", [307, 308])
def test_b058_a_redirect_to_the_slash_keeps_method_body_and_headers(tmp_path: Path, status: int) -> None:
    async def main() -> None:
        script = {"/mcp": {"redirect": "/mcp/", "status": status}}
        with HttpServer(script, path="/mcp/", session=True) as server:
            async with product(tmp_path, {"web": web(f"{server.origin}/mcp")}) as made:
                await made.search("echo")
                assert '"a": 1' in await made.text(a=1)
            (call,) = [one for one in server.of("tools/call") if one.path == "/mcp/"]
            assert call.verb == "POST"
            assert call.headers["authorization"] == f"Bearer {SECRET}"

    run(main())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", cert, "-subj", "/CN=hostile", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True, timeout=20,
    )  # fmt: skip
    return cert, key


def test_b059_a_redirect_out_of_tls_is_refused_before_anything_is_sent(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    async def main() -> None:
        with HttpServer() as plain, HttpServer(tls=certificate) as server:
            server.script["*"] = {"redirect": f"http://127.0.0.1:{plain.port}/mcp/?t={SECRET}"}
            environ = {"SSL_CERT_FILE": str(certificate[0])}
            async with product(tmp_path, {"web": web(server.url)}, environ=environ) as made:
                answer = await made.search("echo")
                (diagnostic,) = answer.not_searched
                assert diagnostic.code == "connection_failed"
                for part in (server.url, f"http://127.0.0.1:{plain.port}/mcp/", f"try https://127.0.0.1:{plain.port}/"):
                    assert part in diagnostic.message
            assert not plain.requests

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        {"redirect": "/signin", "status": 302},
        {"redirect": "/signin", "status": 303},
        {"redirect": "https://login.invalid/?next=1", "status": 307},
        {"status": 200, "type": "text/html", "body": f"<html><title>Sign in {SECRET}"},
        {"status": 200, "type": "application/json", "body": f"<!doctype html>{SECRET}"},
    ],
)
def test_b061_a_sign_in_page_is_named_and_not_shown(tmp_path: Path, answer: dict[str, Any]) -> None:
    async def main() -> None:
        page = {"status": 200, "type": "text/html", "body": f"<html>{SECRET}"}
        with HttpServer({"*": answer, "/signin": page}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                found = await made.search("echo")
                (diagnostic,) = found.not_searched
                text = diagnostic.line()
                assert "web page" in text or "sign-in" in text or "another origin" in text
                assert "`url`" in text
                assert "<" not in text
            assert not [one for one in server.requests if one.path == "/signin"]

    run(main())


def test_b062_a_private_authority_is_trusted_by_ssl_cert_file_only(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    async def main() -> None:
        with HttpServer(tls=certificate) as server:
            trusting, doubting = tmp_path / "a", tmp_path / "b"
            environ = {"SSL_CERT_FILE": str(certificate[0])}
            async with product(trusting, {"web": web(server.url)}, environ=environ) as made:
                await made.search("echo")
                await made.text()
            before = len(server.requests)
            async with product(doubting, {"web": web(server.url)}) as made:
                (diagnostic,) = (await made.search("echo")).not_searched
                assert diagnostic.code == "connection_failed"
                assert "certificate" in diagnostic.message
                assert "SSL_CERT_FILE" in str(diagnostic.hint)
            assert len(server.requests) == before

    run(main())


def test_b064_a_search_and_a_call_cost_a_handful_of_requests(tmp_path: Path) -> None:
    async def main() -> None:
        def limited(request: Any, server: HttpServer) -> dict[str, Any]:
            return {"status": 429} if len(server.requests) > 20 else {}

        with HttpServer({"*": limited}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                await asyncio.sleep(1.0)
            assert len(server.of("GET")) <= 1
            assert len(server.requests) <= 8, [one.method or one.verb for one in server.requests]

    run(main())


def test_b065_a_listing_waits_as_told_and_a_call_is_not_repeated(tmp_path: Path) -> None:
    async def main() -> None:
        script = {
            "tools/list": [{"status": 429, "headers": {"Retry-After": "1"}, "body": SECRET}, {}],
            "tools/call": {"status": 429, "headers": {"Retry-After": "3600"}, "body": SECRET},
        }
        with HttpServer(script) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                answer = await made.search("echo")
                assert not answer.not_searched
                first, second = server.of("tools/list")
                assert 0.9 < second.at - first.at < 3
                begun = time.monotonic()
                diagnostic = await made.fails()
                assert time.monotonic() - begun < 5
                assert "429" in diagnostic.message
                assert "3600 s" in diagnostic.message
                assert calls_of(server) == 1

    run(main())


@pytest.mark.parametrize("wait", ["3600", "tomorrow", None])
def test_b065_a_wait_that_does_not_fit_is_told_at_once(tmp_path: Path, wait: str | None) -> None:
    async def main() -> None:
        limited = {"status": 429, "headers": {} if wait is None else {"Retry-After": wait}}
        with HttpServer({"tools/list": limited}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                begun = time.monotonic()
                (diagnostic,) = (await made.search("echo")).not_searched
                assert time.monotonic() - begun < 10
                assert "429" in diagnostic.message
                assert ("3600 s" in diagnostic.message) is (wait == "3600")
            assert len(server.of("tools/list")) == 1

    run(main())


def test_b067_rate_limits_in_results_are_the_tools_own_and_break_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        result = {"content": [{"type": "text", "text": "429 rate limited"}], "isError": True}
        with HttpServer({"tools/call": {"result": result}}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                for _ in range(5):
                    answer = await made.call()
                    assert answer.is_error
                    assert answer.text == "429 rate limited"
                    assert answer.details["diagnostics"][0]["code"] == "tool_error"
                assert made.state("web") == "connected"
            assert calls_of(server) == 5
            assert len(server.of("initialize")) == 1

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 200, "type": "application/json", "body": "null"},
        {"status": 200, "type": "application/json", "body": ""},
        {"status": 204},
        {"status": 202, "type": "text/plain", "body": "Accepted"},
        {"status": 202, "body": "", "chunked": True},
        {"status": 200, "type": "text/html", "body": f"<html>{SECRET}"},
        {"status": 200, "type": "text/event-stream", "body": ""},
    ],
)
def test_b068_the_answer_to_a_notification_is_not_looked_at(tmp_path: Path, answer: dict[str, Any]) -> None:
    async def main() -> None:
        with HttpServer({"notifications/initialized": answer}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
            assert len(server.of("initialize")) == 1

    run(main())


def test_b070_empty_events_and_pings_before_the_answer_are_ignored(tmp_path: Path) -> None:
    async def main() -> None:
        noise = [": ping\n\n", "data:\n\n", "event: ping\ndata: 2025\n\n", "\n\n", ":\r\n\r\n", "id\n\n", "x: y\n\n"]
        reaction = {"events": [*noise, {"answer": True}]}
        script = dict.fromkeys(("initialize", "tools/list", "tools/call"), reaction)
        with HttpServer(script) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                assert '"a": 1' in await made.text(a=1)

    run(main())


def spelled(answer: str) -> Any:
    """A reaction whose event stream spells the answer so; `$` stands for it."""

    def react(request: Any, server: HttpServer) -> dict[str, Any]:
        result = {"content": [{"type": "text", "text": "spelled"}]}
        text = json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "result": result})
        lines = text.replace(", ", ",\ndata: ")
        return {"events": [answer.replace("$LINES", lines).replace("$", text)]}

    return react


@pytest.mark.parametrize(
    "stream",
    [
        "data: $\n\n",
        "data:$\r\n\r\n",
        ": x\r\rdata: $\r\r",
        "\ufeffevent: message\ndata: $\n\n",
        "id: 1\nretry: 5\ndata: $LINES\n\n",
        "data: $\n",
        "data: $",
    ],
)
def test_b070_every_spelling_of_an_event_is_read(tmp_path: Path, stream: str) -> None:
    async def main() -> None:
        with HttpServer({"tools/call": spelled(stream)}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                assert await made.text() == "spelled"
            assert calls_of(server) == 1

    run(main())


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "text/json", "text/plain", "", "APPLICATION/JSON", "application/x+json"]
)
def test_a_json_body_is_read_under_every_name_that_it_goes_by(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        with HttpServer({"*": {"type": kind}}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                assert '"a": 1' in await made.text(a=1)

    run(main())


def test_b065_a_limited_handshake_waits_as_told(tmp_path: Path) -> None:
    async def main() -> None:
        limited = {"status": 429, "headers": {"Retry-After": "1"}, "body": SECRET}
        with HttpServer({"initialize": [limited, {}]}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                assert not (await made.search("echo")).not_searched
                await made.text()
            assert len(server.of("initialize")) == 2

    run(main())


def test_a_login_in_the_address_goes_out_as_a_header_and_is_shown_nowhere(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            address = server.url.replace("http://", "http://ada:${PLANTED}@")
            async with product(tmp_path, {"web": {"url": address}}) as made:
                await made.search("echo")
                await made.text()
                await made.mcp("get web")
                server.script["*"] = {"status": 401}
                await made.fails()
            expected = base64.b64encode(f"ada:{SECRET}".encode()).decode()
            assert {one.headers.get("authorization") for one in server.requests} == {f"Basic {expected}"}

    run(main())


@pytest.mark.parametrize("name", ["keepalive", ""])
def test_b071_heartbeats_are_skipped_and_do_not_extend_a_call(tmp_path: Path, name: str) -> None:
    async def main() -> None:
        beat: dict[str, Any] = {"data": {"type": "heartbeat"}}
        if name:
            beat["event"] = name
        events = [{"repeat": 3, "event": beat, "every": 0.02}, {"answer": True}]
        endless = [{"repeat": 200, "event": beat, "every": 0.05}]
        with HttpServer({"tools/call": [{"events": events}, {"events": endless}]}) as server:
            async with product(tmp_path, {"web": web(server.url, toolTimeoutMs=500)}) as made:
                await made.search("echo")
                await made.text()
                assert made.plugin.connections.get("web").log.noise == 3
                begun = time.monotonic()
                diagnostic = await made.fails()
                assert 0.4 < time.monotonic() - begun < 5
                assert diagnostic.code == "timeout"
                assert "0.5 s" in diagnostic.message
                assert "unknown" in diagnostic.message
                assert len(made.plugin.connections.get("web").log.lines()) < 20

    run(main())


def test_b073_a_broken_stream_is_taken_up_where_it_has_ids(tmp_path: Path) -> None:
    async def main() -> None:
        def resume(request: Any, server: HttpServer) -> dict[str, Any]:
            assert request.headers["last-event-id"] == "7"
            number = server.of("tools/call")[-1].message["id"]
            result = {"content": [{"type": "text", "text": "resumed"}]}
            return {"events": [{"data": {"jsonrpc": "2.0", "id": number, "result": result}}]}

        cut = {"events": [{"id": "7", "retry": 50, "data": ""}]}
        with HttpServer({"tools/call": cut, "RESUME": resume}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                assert await made.text() == "resumed"
            assert calls_of(server) == 1

    run(main())


@pytest.mark.parametrize("events", [[], [{"data": ""}], ["data: {"], [{"reset": True}]])
def test_b073_without_ids_the_outcome_is_unknown_and_nothing_is_sent_again(tmp_path: Path, events: list[Any]) -> None:
    async def main() -> None:
        with HttpServer({"tools/call": {"events": events}}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                diagnostic = await made.fails()
                assert diagnostic.code == "connection_failed"
                assert "unknown" in diagnostic.message
                assert calls_of(server) == 1

    run(main())


def test_b073_a_stream_that_cannot_be_taken_up_ends(tmp_path: Path) -> None:
    async def main() -> None:
        cut = {"events": [{"id": "7", "retry": 50, "data": ""}]}
        with HttpServer({"tools/call": cut, "RESUME": {"events": []}}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                assert "unknown" in (await made.fails()).message
            assert calls_of(server) == 1
            assert len([one for one in server.of("GET") if "last-event-id" in one.headers]) <= 5

    run(main())


def test_b074_a_server_that_stops_answering_is_not_called_connected(tmp_path: Path) -> None:
    async def main() -> None:
        script: dict[str, Any] = {"GET": {"events": [{"sleep": 0.05}]}}
        with HttpServer(script, session=True) as server:
            async with product(tmp_path, {"web": web(server.url, timeoutMs=300, toolTimeoutMs=400)}) as made:
                await made.search("echo")
                await made.text()
                await asyncio.sleep(0.2)
                await made.text()
                server.script["*"] = {"hang": True}
                begun = time.monotonic()
                assert (await made.fails()).code == "timeout"
                assert time.monotonic() - begun < 10
                assert made.state("web") == "failed"
                assert "[timeout]" in await made.mcp()
                assert (await made.fails()).code == "timeout"
                del server.script["*"]
                await made.text()
                assert made.state("web") == "connected"
                assert "[timeout]" not in await made.mcp()

    run(main())


@pytest.mark.parametrize(
    "reaction",
    [
        {"close": True},
        {"reset": True},
        {"raw": 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"jsonrpc"'},
        {"events": ['data: {"jsonrpc":"2.0",', {"reset": True}]},
        {"short": 9},
        {"status": 502, "type": "text/html", "body": SECRET},
    ],
)
def test_b076_a_server_that_dies_during_a_call_ends_it_at_once_and_once(
    tmp_path: Path, reaction: dict[str, Any]
) -> None:
    async def main() -> None:
        with HttpServer({"tools/call": [reaction, {}]}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                begun = time.monotonic()
                diagnostic = await made.fails()
                assert time.monotonic() - begun < 5
                assert diagnostic.code == "connection_failed"
                assert "unknown" in diagnostic.message
                assert calls_of(server) == 1
                await made.text()

    run(main())


def test_b211_a_server_that_was_stopped_is_not_called_healthy(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                assert "last success" in await made.mcp()
                server.stop()
                diagnostic = await made.fails()
                assert diagnostic.code == "connection_failed"
                assert "refused" in diagnostic.message
                assert made.state("web") == "failed"
                shown = await made.mcp()
                assert "web: failed" in shown
                assert "last success" in shown
                with HttpServer(port=server.port):
                    await made.text()
                    assert made.state("web") == "connected"

    run(main())


def test_b014_sse_on_a_streamable_server_gets_the_hint_and_posts_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            servers = {"old": web(server.url, type="sse"), "good": entry(tmp_path)}
            async with product(tmp_path, servers) as made:
                answer = await made.search("echo")
                (diagnostic,) = answer.not_searched
                assert (diagnostic.server, diagnostic.code) == ("old", "connection_failed")
                assert "`type: http`" in diagnostic.line()
                assert {tool.server for tool in answer.loaded} == {"good"}
            assert [one.verb for one in server.requests] == ["GET"]

    run(main())


def test_b014_the_other_way_round_points_at_sse(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer({"*": {"status": 405}}) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                (diagnostic,) = (await made.search("echo")).not_searched
                assert diagnostic.code == "connection_failed"
                assert "`type: sse`" in diagnostic.line()

    run(main())


def test_b028_nothing_is_sent_before_a_slow_secret_command_has_ended(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            mark = tmp_path / "mark"
            headers = {"Authorization": f"!sleep 0.7; touch {mark}; printf 'Bearer %s' \"$PLANTED\""}
            async with product(tmp_path, {"web": {"url": server.url, "headers": headers}}) as made:
                task = asyncio.ensure_future(made.search("echo"))
                await asyncio.sleep(0.4)
                assert not server.requests
                assert not mark.exists()
                await task
                await made.text()
            assert {one.headers["authorization"] for one in server.requests} == {f"Bearer {SECRET}"}

    run(main())


@pytest.mark.parametrize(
    ("command", "limit"),
    [
        ("sleep 60; echo x", 300),
        ("true", None),
        ("printf ' \\n'", None),
        ("printf '%s\\nb' \"$PLANTED\"", None),
        ("printf '%s\\033[0m' \"$PLANTED\"", None),
        ('echo "$PLANTED"; exit 1', None),
        ('echo "$PLANTED" >&2; exit 3', None),
        ("head -c 102400 /dev/zero | tr '\\0' x", None),
        ("no-such-helper-4711", None),
    ],
)
def test_b029_a_secret_command_without_a_usable_value_sends_nothing(
    tmp_path: Path, command: str, limit: int | None
) -> None:
    async def main() -> None:
        with HttpServer() as server:
            fields = {"timeoutMs": limit} if limit else {}
            headers = {"Authorization": f"!{command}"}
            async with product(tmp_path, {"web": {"url": server.url, "headers": headers, **fields}}) as made:
                (diagnostic,) = (await made.search("echo")).not_searched
                assert diagnostic.code == "secret_lookup_failed"
                assert "Authorization" in diagnostic.line()
                assert not server.requests

    run(main())


def test_b187_a_looked_up_value_is_gone_from_every_repr(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            headers = {"Authorization": "!printf 'Bearer %s' \"$PLANTED\""}
            async with product(tmp_path, {"web": {"url": server.url, "headers": headers}}) as made:
                await made.search("echo")
                await made.text()
                connection = made.plugin.connections.get("web")
                made.shown += [repr(vars(connection)), repr(connection.log.redactor), await made.mcp("get web")]
            assert server.requests[-1].headers["authorization"] == f"Bearer {SECRET}"

    run(main())


@pytest.mark.parametrize("challenge", [None, "Negotiate", 'Bearer resource_metadata="http://127.0.0.1:1/x"', "Basic"])
def test_b212_a_login_that_is_asked_for_after_the_handshake_is_told_and_not_an_empty_catalog(
    tmp_path: Path, challenge: str | None
) -> None:
    async def main() -> None:
        headers = {} if challenge is None else {"WWW-Authenticate": challenge}
        wanted = {"status": 401, "type": "text/plain", "headers": headers, "body": SECRET}
        with HttpServer({"tools/list": wanted}, session=True) as server:
            async with product(tmp_path, {"web": {"url": server.url}}) as made:
                answer = await made.search("echo")
                (diagnostic,) = answer.not_searched
                assert diagnostic.code == "authentication_required"
                assert "/mcp auth web" in str(diagnostic.hint)
                assert "No tool of" not in answer.text
                assert made.state("web") == "authentication_required"
                assert "web: authentication required" in await made.mcp()

    run(main())


def test_b053_a_server_that_was_started_anew_takes_all_calls_on_one_new_session(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer(session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                server.stop()
                with HttpServer(session=True, port=server.port) as again:
                    answers = await asyncio.gather(*(made.text(n=n) for n in range(5)))
                    assert [f'"n": {n}' in answer for n, answer in enumerate(answers)] == [True] * 5
                    assert len(again.of("initialize")) == 1

    run(main())


def test_b053_calls_under_way_on_a_lost_session_get_their_own_answers(tmp_path: Path) -> None:
    async def main() -> None:
        def react(request: Any, server: HttpServer) -> dict[str, Any]:
            slow = request.message["params"]["arguments"].get("slow")
            if slow:
                return {"status": 200, "sleep": 0.8, **slow_answer(request)}
            return {} if request.headers["mcp-session-id"] in server.sessions else {"status": 404}

        with HttpServer({"tools/call": react}, session=True) as server:
            async with product(tmp_path, {"web": web(server.url)}) as made:
                await made.search("echo")
                await made.text()
                slow = asyncio.ensure_future(made.text(slow=True))
                await asyncio.sleep(0.2)
                server.forget_sessions()
                await asyncio.gather(*(made.text(n=n) for n in range(3)))
                assert await slow == "slow answer"
            assert len(server.of("initialize")) == 2

    run(main())


def slow_answer(request: Any) -> dict[str, Any]:
    result = {"content": [{"type": "text", "text": "slow answer"}]}
    body = json.dumps({"jsonrpc": "2.0", "id": request.message["id"], "result": result})
    return {"type": "application/json", "body": body}
