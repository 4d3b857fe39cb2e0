"""The whole HTTP surface of a gateway process under a fuzzer: whatever comes, it is no fault of ours (no 5xx).

Schemathesis makes the requests from a description of the surface: valid ones, ones that are nearly valid, and others.
A second run sends what no description allows: odd bytes in paths, headers and bodies.
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway_oauth_support import ALL, VERIFIER, Browser
from tests.gateway_serve_support import Served
from tests.support import run
from tests.test_gateway_oauth_hostile import CALLBACK, CHALLENGE

pytestmark = pytest.mark.slow
SEED = 20260728


def text(*examples: str) -> dict[str, Any]:
    return {"type": "string", "examples": list(examples)} if examples else {"type": "string"}


def form(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": fields}}}}


def body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def operation(
    *, query: dict[str, Any] | None = None, sent: dict[str, Any] | None = None, headers: dict[str, Any] | None = None
) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": place, "schema": schema}
        for place, found in (("query", query), ("header", headers))
        for name, schema in (found or {}).items()
    ]
    return {
        "parameters": parameters,
        "responses": {"default": {"description": "anything but a fault of ours"}},
        **({"requestBody": sent} if sent else {}),
    }


def description(client: str, key: str, code: str, cookie: str) -> dict[str, Any]:
    """The surface as OpenAPI; examples are real, so that the requests get past the doors."""
    asking = {
        "client_id": text(client, "https://127.0.0.1/client"), "redirect_uri": text(CALLBACK), "state": text("x"),
        "response_type": text("code"), "scope": text("tools:read", "tool:a/b"), "resource": text(),
        "code_challenge": text(CHALLENGE), "code_challenge_method": text("S256", "plain"),
    }  # fmt: skip
    secrets = {
        "client_id": text(client), "client_secret": text(), "token": text(code), "token_type_hint": text(),
    }  # fmt: skip
    token = {
        "grant_type": text("authorization_code", "refresh_token"), "code": text(code), "redirect_uri": text(CALLBACK),
        "client_id": text(client), "client_secret": text(), "code_verifier": text(VERIFIER), "refresh_token": text(),
        "scope": text("tools:read"), "resource": text(),
    }  # fmt: skip
    metadata = {
        "type": "object",
        "properties": {
            "redirect_uris": {"type": "array", "items": text(CALLBACK, "https://c.example/cb", "javascript:x")},
            "client_name": text("A client"),
            "grant_types": {"type": "array", "items": text("authorization_code")},
            "response_types": {"type": "array", "items": text("code")},
            "token_endpoint_auth_method": text("none", "client_secret_basic"),
            "scope": text("tools:read"),
            "client_uri": text("https://c.example/"),
        },
    }
    message = {
        "type": "object",
        "properties": {
            "jsonrpc": {"enum": ["2.0"]},
            "id": {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]},
            "method": {
                "enum": [
                    "initialize", "server/discover", "tools/list", "tools/call", "resources/list", "resources/read",
                    "prompts/get", "completion/complete", "ping", "logging/setLevel", "tasks/get", "x",
                ]
            },
            "params": {
                "type": "object",
                "properties": {
                    "name": text("mcp_search", "mcp_call", "files__look"),
                    "uri": text("ui://files/x", "file:///x"),
                    "cursor": text(),
                    "arguments": {"type": "object"},
                    "_meta": {"type": "object"},
                },
            },
        },
        "required": ["jsonrpc", "method"],
    }  # fmt: skip
    mcp = operation(
        sent=body(message),
        headers={
            "Authorization": text(f"Bearer {key}", "Bearer a.b.c", "Basic eDp5"),
            "X-Api-Key": text(key),
            "Accept": text("application/json, text/event-stream", "application/json"),
            "MCP-Protocol-Version": text("2025-11-25", "2026-07-28"),
            "Mcp-Session-Id": text(),
            "Mcp-Method": text("tools/list"),
            "X-Mcp-Scopes": text("tools:read", "admin"),
            "Origin": text(),
        },
    )
    signed = {"Cookie": text(f"__Host-pi-mcp-session={cookie}", "__Host-pi-mcp-session=x")}
    only_read = {"get": operation()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "gateway", "version": "1"},
        "paths": {
            "/mcp": {"post": mcp, "delete": operation()},
            "/mcp/oauth": {"post": mcp},
            "/healthz": only_read,
            **{
                f"/.well-known/{name}": only_read
                for name in (
                    "oauth-protected-resource", "oauth-protected-resource/mcp", "oauth-protected-resource/mcp/oauth",
                    "oauth-authorization-server", "openid-configuration",
                )
            },
            "/oauth/jwks": only_read,
            "/oauth/register": {"post": operation(sent=body(metadata))},
            "/oauth/token": {"post": operation(sent=form(**token), headers={"Authorization": text("Basic eDp5")})},
            "/oauth/revoke": {"post": operation(sent=form(**secrets))},
            "/oauth/authorize": {
                "get": operation(query=asking, headers=signed),
                "post": operation(
                    sent=form(request=text("client_id=x"), proof=text(), decision=text("allow"), scope=text()),
                    headers=signed,
                ),
            },
            "/": only_read,
            "/signin": {
                "get": operation(query={"next": text("/status", "/oauth/authorize?client_id=x")}),
                "post": operation(sent=form(key=text(key), next=text(), proof=text())),
            },
            "/signin/link/x": {"get": operation(), "post": operation(sent=form(proof=text()))},
            "/signout": {"post": operation(sent=form(proof=text()), headers=signed)},
            "/status": {"get": operation(query={"ended": text("1")}, headers=signed)},
            "/status/end": {"post": operation(sent=form(grant=text(), proof=text()), headers=signed)},
        },
    }  # fmt: skip


async def prepared(gate: Served, key: str) -> tuple[str, str, str]:
    """A client, a code of it, and the cookie of a browser that is signed in."""
    async with Browser(gate.url) as browser, httpx2.AsyncClient(trust_env=False) as http:
        said = {"redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none"}
        client = str((await http.post(f"{gate.url}/oauth/register", json=said)).json()["client_id"])
        query = {
            "client_id": client, "redirect_uri": CALLBACK, "response_type": "code", "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
        }  # fmt: skip
        location = await browser.agree(f"/oauth/authorize?{httpx2.QueryParams(query)}", key)
        return client, httpx2.URL(location).params["code"], browser.cookies["__Host-pi-mcp-session"]


def test_no_request_of_a_fuzzer_is_answered_with_a_fault(tmp_path: Path) -> None:
    with Served(tmp_path, "--oauth", "embedded", "--expose", "all") as gate:
        key = gate.key(ALL + " admin")
        client, code, cookie = run(prepared(gate, key))
        (tmp_path / "surface.json").write_text(json.dumps(description(client, key, code, cookie)))
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run", "surface.json", "--url", gate.url,
                "--checks", "not_a_server_error", "--mode", "all", "--phases", "examples,coverage,fuzzing",
                "--max-examples", "15", "--seed", str(SEED), "--max-redirects", "5", "--request-timeout", "20",
                "--suppress-health-check", "all", "--warnings", "off", "--no-color", "--continue-on-failure",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
        assert "Traceback" not in gate.output
        assert key not in gate.output
        assert odd_requests(gate) == []


def odd_requests(gate: Served) -> list[str]:
    """Bytes that no description allows, each on a connection of its own; the requests that were answered by 5xx."""
    dice = random.Random(SEED)
    odd = [
        b"\x00",
        b"\xff\xfe",
        b"%00",
        b"%ff",
        b"%",
        b"..",
        b"//",
        b"\xf0\x9f\x92\xa9",
        b";",
        b"&&==",
        b"\\",
        b"?",
        b"#",
    ]
    paths = [
        b"/mcp",
        b"/oauth/token",
        b"/oauth/register",
        b"/oauth/authorize",
        b"/signin",
        b"/signin/link/",
        b"/status",
    ]
    kinds = [b"application/json", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x", b"\xff"]
    failed = []
    for _ in range(250):
        piece = b"".join(dice.choices(odd, k=3)).replace(b" ", b"")
        path = dice.choice(paths) + dice.choice([b"", b"/", b"?a=", b"?client_id="]) + piece
        content = dice.choice([b"", piece * 20, b"{" * 2000, b"[" + piece + b"]", b"a=" + piece + b"&a=b" * 200])
        method = dice.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH"])
        connection = http.client.HTTPConnection("127.0.0.1", gate.port, timeout=20)
        try:
            connection.putrequest(method, path.decode("latin-1"), skip_accept_encoding=True)
        except (ValueError, http.client.HTTPException):
            connection.close()
            continue
        connection.putheader("Content-Type", dice.choice(kinds))
        connection.putheader("Content-Length", str(len(content)))
        connection.putheader("Cookie", b"__Host-pi-mcp-session=" + piece.replace(b"\x00", b""))
        connection.putheader("Authorization", b"Basic " + piece.replace(b"\x00", b""))
        try:
            connection.endheaders(content)
            status = connection.getresponse().status
            if status >= 500:
                failed.append(f"{status} {method} {path!r}")
        except (http.client.HTTPException, OSError):
            pass  # the server may close on bytes that are no HTTP
        finally:
            connection.close()
    return failed
