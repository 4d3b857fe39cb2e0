"""One scriptable authorization server and the MCP server that it protects, on loopback, over real sockets.

Comes in: options and overrides, which a test may change while it runs. Goes out: a record of every request. It grants
whatever is asked for by a request that OAuth 2.1 allows, and refuses every other one; `authorize` approves by itself,
so that a GET without following its redirect is a person who agrees.

    with AuthServer(lifetime=60) as server:
        server.url            the protected MCP server
        server.issuer         the authorization server, on the same origin
        server.override["/register"] = {"status": 403, "text": "Forbidden"}
        server.at("/token")   the requests to that path
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

Reaction = Mapping[str, Any]
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
# Every secret that the server gives out begins with one of these, so that a test can search for them all.
PLANTED = ("tok-", "rft-", "cod-", "sec-", "dev-")
TOOLS: list[dict[str, Any]] = [
    {"name": "whoami", "description": "Say who is signed in.", "inputSchema": {"type": "object"}},
    {"name": "write", "description": "Needs the scope `write`.", "inputSchema": {"type": "object"}},
]


@dataclass
class Seen:
    """One request: lower-case header names; `form` holds what a form or a query says."""

    method: str
    path: str
    headers: dict[str, str]
    form: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None


@dataclass
class Grant:
    """What one authorization gave: a family of tokens."""

    client_id: str
    user: str
    scope: str
    resource: str | None
    alive: bool = True


class AuthServer:
    """Both servers on one port of 127.0.0.1, between `with` and its end."""

    def __init__(
        self,
        *,
        path: str = "/mcp",
        lifetime: float | str | None = 3600,
        refresh: bool = True,
        rotate: bool = True,
        expose_prm: bool = True,
        scopes_supported: list[str] | None = None,
        resource_scopes: list[str] | None = None,
        challenge: str | list[str] | None = None,
        needs_scope: Mapping[str, str] | None = None,
        token_format: str = "json",
        call_delay: float = 0.0,
        confidential: bool = False,
        pending: int = 1,
        port: int = 0,
    ) -> None:
        """`challenge`: the `WWW-Authenticate` lines of a 401, with {prm} for the metadata's address. `needs_scope`
        maps tools to scopes. `pending`: polls of the device flow before it is granted. Times in seconds.
        """
        self.path = path
        self.lifetime = lifetime
        self.refresh = refresh
        self.rotate = rotate
        self.expose_prm = expose_prm
        self.scopes_supported = scopes_supported
        self.resource_scopes = resource_scopes
        self.challenge = challenge
        self.needs_scope = dict(needs_scope or {})
        self.token_format = token_format
        self.call_delay = call_delay
        self.confidential = confidential
        self.pending = pending
        self.metadata_changes: dict[str, Any] = {}
        """Members of the authorization server's metadata; None removes one. {origin} is replaced."""
        self.prm_changes: dict[str, Any] = {}
        self.override: dict[str, Reaction | Callable[[Seen], Reaction | None]] = {}
        """By path: {"status", "headers", "json" | "text" | "form"}, or a function that gives one or None."""
        self.clients: dict[str, dict[str, Any]] = {}
        self.exact_redirects: set[str] | None = None
        """Where set, the only redirect addresses that `authorize` accepts, whatever was registered."""
        self.seen: list[Seen] = []
        self.grants: list[Grant] = []
        self._codes: dict[str, tuple[Grant, dict[str, str]]] = {}
        self._access: dict[str, tuple[Grant, float | None]] = {}
        self._refresh: dict[str, Grant] = {}
        self._spent: dict[str, Grant] = {}
        self._devices: dict[str, tuple[Grant, int]] = {}
        self._users = 0
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    # What a test looks at

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return self.origin + self.path

    @property
    def issuer(self) -> str:
        return self.origin

    def at(self, path: str) -> list[Seen]:
        return [one for one in list(self.seen) if one.path == path]

    def tokens(self, grant_type: str | None = None) -> list[Seen]:
        """The token requests, of one grant type or all."""
        return [one for one in self.at("/token") if grant_type in (None, one.form.get("grant_type"))]

    def calls(self, method: str) -> list[Seen]:
        """The requests of a JSON-RPC method to the MCP server."""
        return [one for one in self.at(self.path) if isinstance(one.json, dict) and one.json.get("method") == method]

    def expire(self) -> None:
        """All access tokens that were given out are over."""
        self._access = {token: (grant, 0.0) for token, (grant, _) in self._access.items()}

    def revoke_all(self) -> None:
        """As if an administrator had ended every login."""
        for grant in self.grants:
            grant.alive = False

    def secrets(self) -> set[str]:
        """Every token, code and secret that this server has given out."""
        given = {*self._access, *self._refresh, *self._spent, *self._codes, *self._devices}
        return given | {str(one["client_secret"]) for one in self.clients.values() if one.get("client_secret")}

    # Life

    def __enter__(self) -> Self:
        app = Starlette(routes=[Route("/{path:path}", self._handle, methods=["GET", "POST", "DELETE", "PUT"])])
        config = uvicorn.Config(app, log_level="critical", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        assert self._thread is not None
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    # Requests

    async def _handle(self, request: Request) -> Response:
        body = await request.body()
        headers = {key.lower(): value for key, value in request.headers.items()}
        form = dict(request.query_params)
        if headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            form.update(parse_qsl(body.decode()))
        seen = Seen(request.method, request.url.path, headers, form, body)
        self.seen.append(seen)
        reaction = self.override.get(seen.path)
        if callable(reaction):
            reaction = reaction(seen)
        if reaction is not None:
            return await _response(reaction)
        if seen.path == self.path:
            return await self._resource(seen)
        if seen.path.startswith("/.well-known/"):
            return self._well_known(seen)
        handlers: dict[str, Callable[[Seen], Response]] = {
            "/authorize": self._authorize,
            "/token": self._token,
            "/register": self._register,
            "/device": self._device,
            "/revoke": self._revoke,
        }
        handler = handlers.get(seen.path)
        return handler(seen) if handler else PlainTextResponse("nothing here", 404)

    # Metadata

    def _well_known(self, seen: Seen) -> Response:
        suffix = self.path if self.path != "/" else ""
        if self.expose_prm and seen.path == f"/.well-known/oauth-protected-resource{suffix}":
            return JSONResponse(self.resource_metadata())
        if seen.path == "/.well-known/oauth-authorization-server":
            return JSONResponse(self.metadata())
        return PlainTextResponse("nothing here", 404)

    def resource_metadata(self) -> dict[str, Any]:
        document: dict[str, Any] = {"resource": self.url, "authorization_servers": [self.issuer]}
        if self.resource_scopes is not None:
            document["scopes_supported"] = self.resource_scopes
        return self._changed(document, self.prm_changes)

    def metadata(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": (
                ["client_secret_basic"] if self.confidential else ["none", "client_secret_basic", "client_secret_post"]
            ),
            "authorization_response_iss_parameter_supported": True,
        }
        if self.scopes_supported is not None:
            document["scopes_supported"] = self.scopes_supported
        return self._changed(document, self.metadata_changes)

    def _changed(self, document: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        for key, value in changes.items():
            if value is None:
                document.pop(key, None)
            else:
                document[key] = json.loads(json.dumps(value).replace("{origin}", self.origin))
        return document

    # Authorization server

    def client(self, client_id: str = "app", **members: Any) -> dict[str, Any]:
        """A client that was registered beforehand."""
        self.clients[client_id] = {"client_id": client_id, **members}
        return self.clients[client_id]

    def _register(self, seen: Seen) -> Response:
        asked = seen.json
        client_id = f"client-{len(self.clients) + 1}"
        client = {**asked, "client_id": client_id}
        if asked.get("token_endpoint_auth_method") not in (None, "none"):
            client["client_secret"] = "sec-" + secrets.token_urlsafe(16)
        self.clients[client_id] = client
        return JSONResponse(client, 201)

    def _authorize(self, seen: Seen) -> Response:
        form = seen.form
        client = self._client_of(form.get("client_id", ""))
        if client is None:
            return PlainTextResponse("unknown client", 400)
        redirect = form.get("redirect_uri", "")
        known = self.exact_redirects if self.exact_redirects is not None else set(client.get("redirect_uris", ()))
        if known and redirect not in known:
            return PlainTextResponse("redirect_uri mismatch", 400)
        answer = {"state": form.get("state", ""), "iss": self.issuer}
        problem = None
        if form.get("response_type") != "code" or form.get("code_challenge_method") != "S256":
            problem = "invalid_request"
        elif self.scopes_supported is not None and not set(form.get("scope", "").split()) <= set(self.scopes_supported):
            problem = "invalid_scope"
        elif self.expose_prm and form.get("resource") != self.resource_metadata()["resource"]:
            problem = "invalid_target"
        if problem is not None:
            return RedirectResponse(f"{redirect}?{urlencode({**answer, 'error': problem})}", 302)
        code = "cod-" + secrets.token_urlsafe(16)
        self._codes[code] = (self._granted(form), dict(form))
        return RedirectResponse(f"{redirect}?{urlencode({**answer, 'code': code})}", 302)

    def _granted(self, form: Mapping[str, str]) -> Grant:
        self._users += 1
        grant = Grant(form.get("client_id", ""), f"user-{self._users}", form.get("scope", ""), form.get("resource"))
        self.grants.append(grant)
        return grant

    def _client_of(self, client_id: str) -> dict[str, Any] | None:
        if client_id.startswith("https://"):
            return {"client_id": client_id}
        return self.clients.get(client_id)

    def _proven(self, seen: Seen) -> dict[str, Any] | None:
        """The client of a token request, where it has proven itself as it should."""
        client_id, secret = seen.form.get("client_id", ""), seen.form.get("client_secret")
        basic = seen.headers.get("authorization", "")
        if basic.startswith("Basic "):
            name, _, word = base64.b64decode(basic[6:]).decode().partition(":")
            client_id, secret = unquote(name), unquote(word)
        client = self._client_of(client_id)
        if client is None or (client.get("client_secret") and client["client_secret"] != secret):
            return None
        if client.get("public_key") and not self._assertion_holds(seen, client):
            return None
        return client

    def _assertion_holds(self, seen: Seen, client: Mapping[str, Any]) -> bool:
        import jwt

        try:
            jwt.decode(
                seen.form.get("client_assertion", ""),
                client["public_key"],
                algorithms=["ES256", "RS256"],
                audience=self.issuer,
                issuer=client["client_id"],
            )
        except jwt.PyJWTError:
            return False
        return True

    def _token(self, seen: Seen) -> Response:
        form = seen.form
        client = self._proven(seen)
        if client is None:
            return self._refusal("invalid_client", 401)
        kind = form.get("grant_type")
        if kind == "authorization_code":
            found = self._codes.pop(form.get("code", ""), None)
            if found is None:
                return self._refusal("invalid_grant")
            grant, asked = found
            challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
            if (
                challenge.rstrip(b"=").decode() != asked["code_challenge"]
                or form.get("redirect_uri") != asked["redirect_uri"]
                or client["client_id"] != grant.client_id
            ):
                return self._refusal("invalid_grant")
            return self._tokens(grant)
        if kind == "refresh_token":
            token = form.get("refresh_token", "")
            if token in self._spent:
                # A rotated token that comes back is a theft: the whole family is over.
                self._spent[token].alive = False
            grant_or_none = self._refresh.get(token)
            if grant_or_none is None or not grant_or_none.alive:
                return self._refusal("invalid_grant")
            if self.rotate:
                self._spent[token] = self._refresh.pop(token)
            return self._tokens(grant_or_none)
        if kind == "client_credentials":
            if not client.get("client_secret") and not client.get("public_key"):
                return self._refusal("unauthorized_client")
            return self._tokens(self._granted({**form, "client_id": client["client_id"]}), refresh=False)
        if kind == DEVICE_GRANT:
            return self._polled(form.get("device_code", ""))
        return self._refusal("unsupported_grant_type")

    def _tokens(self, grant: Grant, *, refresh: bool = True) -> Response:
        if self.expose_prm and grant.resource != self.resource_metadata()["resource"]:
            return self._refusal("invalid_target")
        token = "tok-" + secrets.token_urlsafe(24)
        seconds = float(self.lifetime) if self.lifetime is not None else None
        self._access[token] = (grant, None if seconds is None else time.time() + seconds)
        reply: dict[str, Any] = {"access_token": token, "token_type": "bearer"}
        if self.lifetime is not None:
            reply["expires_in"] = self.lifetime
        if grant.scope:
            reply["scope"] = grant.scope
        if self.refresh and refresh:
            reply["refresh_token"] = "rft-" + secrets.token_urlsafe(24)
            self._refresh[reply["refresh_token"]] = grant
        if self.token_format == "form":
            return Response(urlencode(reply), media_type="application/x-www-form-urlencoded")
        return JSONResponse(reply)

    def _refusal(self, error: str, status: int = 400) -> Response:
        # As careless servers do: the description repeats what was sent.
        return JSONResponse({"error": error, "error_description": " ".join(map(str, self.secrets()))}, status)

    def _device(self, seen: Seen) -> Response:
        if self._proven(seen) is None:
            return self._refusal("invalid_client", 401)
        code = "dev-" + secrets.token_urlsafe(16)
        self._devices[code] = (self._granted(seen.form), self.pending)
        return JSONResponse(
            {
                "device_code": code,
                "user_code": "WDJB-MJHT",
                "verification_uri": f"{self.origin}/enter",
                "verification_uri_complete": f"{self.origin}/enter?user_code=WDJB-MJHT",
                "expires_in": 60,
                "interval": 0.05,
            }
        )

    def _polled(self, code: str) -> Response:
        found = self._devices.get(code)
        if found is None:
            return self._refusal("invalid_grant")
        grant, left = found
        if left > 0:
            self._devices[code] = (grant, left - 1)
            return self._refusal("authorization_pending")
        del self._devices[code]
        return self._tokens(grant)

    def _revoke(self, seen: Seen) -> Response:
        token = seen.form.get("token", "")
        grant = self._refresh.pop(token, None) or self._access.get(token, (None, None))[0]
        self._access.pop(token, None)
        if grant is not None and seen.form.get("token_type_hint") == "refresh_token":
            grant.alive = False
        return Response(status_code=200)

    # The protected MCP server

    async def _resource(self, seen: Seen) -> Response:
        grant = self._bearer(seen)
        if grant is None:
            return self._unauthorized()
        message = seen.json
        if seen.method != "POST" or not isinstance(message, dict):
            return Response(status_code=405)
        if "id" not in message:
            return Response(status_code=202)
        method, params = message.get("method"), message.get("params") or {}
        result: dict[str, Any]
        if method == "initialize":
            result = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "protected", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call":
            wanted = self.needs_scope.get(str(params.get("name")))
            if wanted is not None and wanted not in grant.scope.split():
                line = f'Bearer error="insufficient_scope", scope="{wanted}", resource_metadata="{self._prm_url()}"'
                return PlainTextResponse("more is needed", 403, headers={"WWW-Authenticate": line})
            await asyncio.sleep(self.call_delay)
            result = {"content": [{"type": "text", "text": grant.user}]}
        else:
            error = {"code": -32601, "message": "no such method"}
            return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "error": error})
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _bearer(self, seen: Seen) -> Grant | None:
        scheme, _, token = seen.headers.get("authorization", "").partition(" ")
        grant, until = self._access.get(token, (None, None))
        over = until is not None and until <= time.time()
        return grant if scheme == "Bearer" and grant is not None and grant.alive and not over else None

    def _prm_url(self) -> str:
        return f"{self.origin}/.well-known/oauth-protected-resource{self.path}"

    def _unauthorized(self) -> Response:
        default = 'Bearer resource_metadata="{prm}"' if self.expose_prm else "Bearer"
        lines = default if self.challenge is None else self.challenge
        response = PlainTextResponse("unauthorized", 401)
        for line in [lines] if isinstance(lines, str) else lines:
            response.headers.append("WWW-Authenticate", line.replace("{prm}", self._prm_url()))
        return response


async def _response(reaction: Reaction) -> Response:
    await asyncio.sleep(reaction.get("sleep", 0))
    status, headers = reaction.get("status", 200), dict(reaction.get("headers", {}))
    if "json" in reaction:
        return JSONResponse(reaction["json"], status, headers=headers)
    if "form" in reaction:
        return Response(
            urlencode(reaction["form"]), status, headers=headers, media_type="application/x-www-form-urlencoded"
        )
    return Response(reaction.get("text", ""), status, headers=headers, media_type=reaction.get("type", "text/plain"))


def free_port() -> int:
    """A port that nobody listens on now, for a callback."""
    with contextlib.closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
