"""Two implementations of the protocol, the same hostile server: what one makes of it, the other makes of it.

Each case is run against the SDK's way (`connect.Connection`) and against `MCPHTTPClient`, and what comes out has to be
the same: the result, or the diagnostic word by word and whether the answer proves that nothing ran. The client repeats
nothing: where the SDK's way asks again for a listing or a handshake, after a lost session or a rate limit, it does not,
and those are the rows at the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli.direct import explained
from pi_mcp.config import Configuration, configuration_of, resolve
from pi_mcp.connect import CallHandlers
from pi_mcp.errors import NotExecuted, PiMcpError
from pi_mcp.http_client import MCPClientError, MCPHTTPClient
from tests.hostile.certificate import certificate_in
from tests.hostile.connecting import SECRET, connected
from tests.hostile.http_server import HttpServer, Request, closed_port
from tests.support import run

Outcome = tuple[Any, ...]
ANSWER = {"jsonrpc": "2.0", "id": 3, "result": {"content": []}}
LIMITS = {"toolTimeoutMs": 700, "timeoutMs": 700, "startupTimeoutMs": 4000}


@dataclass(frozen=True)
class Case:
    """One server, and what is asked of it."""

    name: str
    script: Mapping[str, Any]
    ask: str = "call"
    options: Mapping[str, Any] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the `mcpServers` entry."""

    def __repr__(self) -> str:
        return self.name


def call(name: str, reaction: Any, **options: Any) -> Case:
    """A case about the answer to `tools/call`, of a server of the older protocol."""
    return Case(name, {"tools/call": reaction}, options=options)


def answered(value: Any) -> Callable[[Request, HttpServer], Mapping[str, Any]]:
    """The JSON-RPC answer under the request's own id, with a spelling of the test's."""

    def react(request: Request, server: HttpServer) -> Mapping[str, Any]:
        del server
        return {"message": value(request.message["id"])}

    return react


def refused_with(status: int, code: int, **error: Any) -> Callable[[Request, HttpServer], Mapping[str, Any]]:
    def react(request: Request, server: HttpServer) -> Mapping[str, Any]:
        del server
        body = {"jsonrpc": "2.0", "id": request.message["id"], "error": {"code": code, "message": "no", **error}}
        return {"status": status, "type": "application/json", "body": json.dumps(body)}

    return react


EARLY = (
    "HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{json.dumps(ANSWER)}"
)
GOOD = {"content": [{"type": "text", "text": "good"}]}
SCOPE = 'Bearer error="insufficient_scope", scope="write"'
NO_TOOLS = {"protocolVersion": "2025-06-18", "capabilities": {"prompts": {}}}
ODD_NAMES = [{"name": ""}, {"name": 3}, 7, {"name": "a"}, {"name": "a"}]
FIRST_PAGE = {"tools": [{"name": "a"}], "nextCursor": ""}
LIMITED = {"status": 429, "headers": {"Retry-After": "0"}}
STATUSES = (400, 401, 403, 404, 405, 407, 408, 410, 413, 500, 503)
CASES = [
    # good answers in every spelling
    call("json", {}),
    call("sse", {}, answers="sse"),
    call("session", {}, session=True),
    call("sse session", {}, session=True, answers="sse"),
    call("modern", {}, era="modern"),
    call("both eras", {}, era="both", answers="sse"),
    call("chunked", {"chunked": True}),
    call("gzip", {"gzip": True}),
    call("id as text", answered(lambda i: {"jsonrpc": "2.0", "id": str(i), "result": GOOD})),
    call("id as float", answered(lambda i: {"jsonrpc": "2.0", "id": float(i), "result": GOOD})),
    call("no jsonrpc member", answered(lambda i: {"id": i, "result": GOOD})),
    call("batch", answered(lambda i: [{"jsonrpc": "2.0", "method": "x"}, {"jsonrpc": "2.0", "id": i, "result": GOOD}])),
    call("result null", answered(lambda i: {"jsonrpc": "2.0", "id": i, "result": None})),
    call("error null", answered(lambda i: {"jsonrpc": "2.0", "id": i, "result": GOOD, "error": None})),
    call("text/plain", {"type": "text/plain", "result": GOOD}),
    call("is error", {"result": {"isError": True, "content": [{"type": "text", "text": "bad"}]}}),
    call("server error", {"error": {"code": -32000, "message": "\x1b[31mred\x07 and more"}}),
    call("invalid params", {"error": {"code": -32602, "message": "no such argument"}}),
    call("method missing", {"error": {"code": -32601, "message": "?"}}),
    call("error as text", answered(lambda i: {"jsonrpc": "2.0", "id": i, "error": "nothing"})),
    call("error without id", answered(lambda i: {"jsonrpc": "2.0", "id": None, "error": {"code": 5, "message": "x"}})),
    call("browser first", {"error": {"code": -32042, "message": "open https://x.invalid"}}),
    call("lone surrogate", {"result": {"content": [{"type": "text", "text": "\ud83d"}]}}),
    # events
    call("events: comments", {"events": [": hello\n\n", {"id": "1", "data": ""}, {"answer": True}]}),
    call("events: cr", {"events": ["data: {}\r\r".format(json.dumps(ANSWER | {"id": 3}))]}),
    call(
        "events: progress",
        {"events": [{"data": {"jsonrpc": "2.0", "method": "notifications/message"}}, {"answer": True}]},
    ),
    call("events: empty", {"events": []}),
    call("events: cut", {"events": ["data: {"]}),
    call("events: reset", {"events": [{"reset": True}]}),
    call("events: other ids", {"events": [{"data": {"jsonrpc": "2.0", "id": 999, "result": {}}}]}),
    call("events: result no object", {"result": [1], "as": "sse"}),
    call("events: hang", {"events": [": x\n\n", {"hang": True}]}),
    call("events: dripping", {"events": [{"repeat": 200, "event": ": x\n\n", "every": 0.05}]}),
    call("events: resumed", {"events": [{"id": "7", "retry": 50, "data": ""}]}),
    # faults of one answer
    call("close", {"close": True}),
    call("reset", {"reset": True}),
    call("no http", {"raw": "SSH-2.0-OpenSSH_9\r\n\r\n"}),
    call("short", {"short": 5}),
    call("short chunked", {"short": 5, "chunked": True}),
    call("early hints", {"raw": EARLY}),
    call("half", {"raw": 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"jsonrpc":"2.0","id":'}),
    call("hang", {"hang": True}),
    call("html", {"status": 200, "type": "text/html", "body": f"<html>{SECRET}"}),
    call("html as json", {"status": 200, "type": "application/json", "body": f"<html>{SECRET}"}),
    call("png", {"status": 200, "type": "image/png", "body": SECRET}),
    call("202", {"status": 202, "body": ""}),
    call("204", {"status": 204}),
    call("null", {"body": "null", "type": "application/json"}),
    call("empty array", {"body": "[]", "type": "application/json"}),
    call("deep", {"body": "[" * 100_000, "type": "application/json"}),
    call("another id", {"message": {"jsonrpc": "2.0", "id": 9999, "result": {}}}),
    call("result no object", {"result": [1]}),
    *[call(f"status {n}", {"status": n, "body": SECRET}) for n in STATUSES],
    call("429", {"status": 429, "headers": {"Retry-After": "3600"}}),
    call("503 with a wait", {"status": 503, "headers": {"Retry-After": "7"}}),
    call("403 of a scope", {"status": 403, "headers": {"WWW-Authenticate": SCOPE}}),
    call("400 with an error", refused_with(400, -32602)),
    call("404 with a missing method", refused_with(404, -32601), session=True),
    call("lost session", {"status": 404, "body": "gone"}, session=True),
    call("lost session as 400", {"status": 400, "body": "Bad Request: no valid session"}, session=True),
    # redirects
    call("307 within", [{"redirect": "/other"}, {}]),
    call("307 away", {"redirect": "http://elsewhere.invalid/mcp"}),
    call("302", {"redirect": f"/signin?x={SECRET}", "status": 302}),
    call("circle", {"redirect": "/mcp"}),
    # the newer protocol's refusals
    call("capability missing", refused_with(400, -32021), era="modern"),
    call(
        "form wanted",
        {"result": {"resultType": "input_required", "inputRequests": {"a": {"method": "sampling/x"}}}},
        era="modern",
    ),
    # the handshake
    *[Case(f"everything {n}", {"*": {"status": n, "body": SECRET}}, "connect") for n in (400, 401, 403, 404, 429, 500)],
    Case("handshake html", {"*": {"type": "text/html", "body": "<html>"}}, "connect"),
    Case("handshake closes", {"*": {"close": True}}, "connect"),
    Case("handshake version", {"initialize": {"result": {"protocolVersion": "1.0", "capabilities": {}}}}, "connect"),
    Case("handshake hangs", {"initialize": {"hang": True}}, "connect", entry={"startupTimeoutMs": 500}),
    Case("handshake error", {"initialize": {"error": {"code": -32603, "message": "no"}}}, "connect"),
    Case("probe refused as 403", {"server/discover": {"status": 403}}),
    Case("probe answered by html", {"server/discover": {"type": "text/html", "body": "<html>"}}),
    Case("initialized refused", {"notifications/initialized": {"status": 500}}),
    Case("legacy only", {}, options={"era": "both"}, entry={"protocol": "legacy"}),
    # listings
    Case("list", {}, "list"),
    Case("list sse", {}, "list", {"answers": "sse", "era": "both"}),
    Case("list of nothing", {"tools/list": {"result": {}}}, "list"),
    Case("list refused", {"tools/list": {"status": 500}}, "list"),
    Case("list hangs", {"tools/list": {"hang": True}}, "list"),
    Case("list missing", {"tools/list": {"error": {"code": -32601, "message": "x"}}}, "list"),
    Case("list of odd names", {"tools/list": {"result": {"tools": ODD_NAMES}}}, "list"),
    Case("list in a circle", {"tools/list": {"result": {"tools": [{"name": "a"}], "nextCursor": "1"}}}, "list"),
    Case("list, second page fails", {"tools/list": [{"result": FIRST_PAGE}, {"status": 500}]}, "list"),
    Case("no tools declared", {"initialize": {"result": NO_TOOLS}}, "list"),
    Case(
        "odd headers named",
        {},
        "list",
        {
            "era": "modern",
            "tools": [
                {"name": "bad", "inputSchema": {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}}},
                {"name": "good", "inputSchema": {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}},
            ],
        },
    ),
]


def outcome_of(error: PiMcpError) -> Outcome:
    shown = json.dumps(error.diagnostic.to_json())
    assert SECRET not in shown
    return ("failed", isinstance(error, NotExecuted), *error.diagnostic.to_json().items())


def by_the_sdk(case: Case, entry: Mapping[str, Any], environ: Mapping[str, str]) -> Outcome:
    async def main() -> Outcome:
        async with connected({"s": entry}, environ=environ) as connections:
            one = connections.get("s")
            try:
                if case.ask == "connect":
                    await one.connect()
                    return ("connected",)
                if case.ask == "list":
                    return ("listed", [tool["name"] for tool in (await one.list_tools()).tools])
                return ("result", await one.call_tool("echo", {"a": 1}, handlers=CallHandlers(), schema={}))
            except PiMcpError as error:
                return outcome_of(error)

    return run(main(), 60)


def by_the_client(case: Case, entry: Mapping[str, Any], environ: Mapping[str, str]) -> Outcome:
    configuration: Configuration = configuration_of({"s": entry}, environ=environ)
    definition = configuration.servers["s"]
    resolved = resolve(definition, configuration)
    client = MCPHTTPClient(
        resolved.url or "",
        headers={name: secret.reveal() for name, secret in resolved.headers.items()},
        timeout=definition.timeout,
        connect_timeout=definition.startup_timeout * 0.9,
        environ=resolved.environ,
        era="legacy" if definition.protocol == "legacy" else None,
        capabilities={"elicitation": {"form": {}}, "roots": {}},
    )
    try:
        with client:
            client.initialize(timeout=definition.startup_timeout)
            if case.ask == "connect":
                return ("connected",)
            if case.ask == "list":
                return ("listed", [tool["name"] for tool in client.list_tools()])
            return ("result", client.call_tool("echo", {"a": 1}, timeout=definition.tool_timeout, schema={}))
    except MCPClientError as error:
        if error.kind == "tool_error":
            return ("result", error.result)
        shown = f"{error} {error!r} {error.detail} {error.server_message}"
        found = explained(error, error.diagnostic.operation, definition, resolved)
    assert SECRET not in shown
    return outcome_of(found)


def both(case: Case, url: Callable[[HttpServer], str], **more: Any) -> tuple[Outcome, Outcome]:
    environ = {"PLANTED": SECRET, **more.pop("environ", {})}
    found = []
    for side in (by_the_sdk, by_the_client):
        with HttpServer(case.script, **case.options, **more) as server:
            entry = {"url": url(server), "headers": {"X-Key": "${PLANTED}"}, "oauth": False, **LIMITS, **case.entry}
            outcome = json.loads(json.dumps(side(case, entry, environ)).replace(str(server.port), "PORT"))
            found.append(outcome)
            calls = [request.path for request in server.of("tools/call")]
            assert len(calls) <= (6 if "redirect" in repr(case.script) else 1), f"{side.__name__} sent it again"
    return found[0], found[1]


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_both_make_the_same_of_it(case: Case) -> None:
    sdk, client = both(case, lambda server: f"{server.url}?key={SECRET}")
    assert client == sdk


@pytest.mark.parametrize(
    "name",
    [
        "refused",
        "dns",
        "redirected out of tls",
        "tls to a plain port",
        "self-signed",
        "trusted",
        "no proxy",
        "no proxy: https",
    ],
)
def test_both_say_the_same_of_the_way_to_the_server(name: str, tmp_path: Path) -> None:
    case = Case(name, {}, "connect")
    tls = certificate_in(tmp_path)
    if name == "refused":
        port = closed_port()
        sdk, client = both(case, lambda _: f"http://127.0.0.1:{port}/mcp")
    elif name.startswith("no proxy"):
        place = f"127.0.0.1:{closed_port()}"
        environ = {f"{scheme}_PROXY": f"http://somebody:{SECRET}@{place}" for scheme in ("HTTP", "HTTPS")}
        scheme = "https" if name.endswith("https") else "http"
        sdk, client = both(case, lambda _: f"{scheme}://server.invalid/mcp", environ=environ)
        assert f"The proxy did not connect ({place})" in json.dumps(client)
    elif name == "dns":
        sdk, client = both(case, lambda _: "http://nowhere.invalid/mcp")
    elif name == "tls to a plain port":
        sdk, client = both(case, lambda server: server.url.replace("http:", "https:"))
    elif name == "self-signed":
        sdk, client = both(case, lambda server: server.url, tls=tls)
    elif name == "trusted":
        sdk, client = both(case, lambda server: server.url, tls=tls, environ={"SSL_CERT_FILE": str(tls[0])})
        assert client == ["connected"]
    else:
        away = Case(name, {"*": {"redirect": "http://127.0.0.1/mcp"}}, "connect")
        sdk, client = both(away, lambda server: server.url, tls=tls, environ={"SSL_CERT_FILE": str(tls[0])})
        assert "in clear" in json.dumps(client)
    assert client == sdk


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (Case("lost session", {"tools/list": [{"status": 404}, {}]}, "list", {"session": True}), "connection_failed"),
        (Case("rate limit", {"tools/list": [LIMITED, {}]}, "list"), "operation_failed"),
        (Case("limited handshake", {"*": [LIMITED, {}]}, "connect"), "operation_failed"),
    ],
    ids=repr,
)
def test_the_client_asks_nothing_twice_where_the_sdks_way_asks_again(case: Case, kind: str) -> None:
    sdk, client = both(case, lambda server: server.url)
    assert sdk[0] in ("listed", "connected")
    assert client[0] == "failed"
    assert ["code", kind] in client


def test_the_loop_of_the_sdk_is_not_needed_for_the_client() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    with HttpServer() as server, MCPHTTPClient(server.url) as client:
        client.initialize()
        assert client.call_tool("echo")["content"]
