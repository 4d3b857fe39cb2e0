"""A gateway that is shared, for a test: with a store, and credentials of every kind for whatever scopes are wanted.

Comes in: `mcpServers` entries. Goes out: the running gateway, its store, and the headers of a caller.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pi_mcp.access import Key, Limits, Scopes, SignIn
from pi_mcp.access import secrets as minted
from pi_mcp.plugin import Plugin
from pi_mcp.server.authenticate import Authentication
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.server import AuthorizationServer
from pi_mcp.server.pages.browser import SESSION
from pi_mcp.server.scoped_gate import AuditSettings, ScopedGate
from pi_mcp.store import SqliteStore, open_store
from tests.gateway_support import Running, gateway_of

PLACES = Places.of("http://127.0.0.1:9")
"""How the gateway is called from outside in these tests; where it listens is another matter."""
KINDS = ("bearer", "x-api-key", "cookie", "oauth")
CODE_VERIFIER = "v" * 50
REDIRECT = "http://127.0.0.1:1/callback"


class Shared:
    """What `shared_gateway` yields."""

    def __init__(self, running: Running, store: SqliteStore, authentication: Authentication, gate: ScopedGate) -> None:
        self.running = running
        self.url = running.url
        self.store = store
        self.authentication = authentication
        self.gate = gate
        self.server = authentication.verifier
        self._client: str | None = None

    async def key(self, scopes: str, *, subject: str = "ann", limits: Limits | None = None, **members: Any) -> str:
        """The text of a new API key."""
        made = minted.mint("key")
        limits = limits or Limits()
        await self.store.add_key(
            Key(made.id, made.digest, subject, Scopes.parse(scopes), time.time(), limits=limits, **members)
        )
        return made.text

    async def headers(self, kind: str, scopes: str, **more: Any) -> dict[str, str]:
        """The headers of a caller with these scopes, by a credential of that kind."""
        if kind == "bearer":
            return {"authorization": f"Bearer {await self.key(scopes, **more)}"}
        if kind == "x-api-key":
            return {"x-api-key": await self.key(scopes, **more)}
        if kind == "cookie":
            made = minted.mint("session")
            now = time.time()
            await self.store.add_sign_in(
                SignIn(made.id, made.digest, "ann", Scopes.parse(scopes), now, now + 600, **more)
            )
            return {"cookie": f"other=1; {SESSION}={made.text}", "origin": PLACES.issuer}
        return {"authorization": f"Bearer {await self.token(scopes)}"}

    async def token(self, scopes: str) -> str:
        """An access token of the embedded authorization server, by way of a code."""
        server = self.server
        assert isinstance(server, AuthorizationServer)
        if self._client is None:
            said = {"redirect_uris": [REDIRECT], "client_name": "c", "token_endpoint_auth_method": "none"}
            self._client = (await server.register(said, "test")).body["client_id"]
        challenge = base64.urlsafe_b64encode(hashlib.sha256(CODE_VERIFIER.encode()).digest()).decode().rstrip("=")
        asked = await server.asked(
            [
                ("response_type", "code"),
                ("client_id", self._client),
                ("redirect_uri", REDIRECT),
                ("scope", scopes),
                ("state", "s"),
                ("code_challenge", challenge),
                ("code_challenge_method", "S256"),
                ("resource", PLACES.resource),
            ]
        )
        now = time.time()
        person = SignIn("s1", b"", "ann", Scopes.parse(scopes), now, now + 600)
        answer = await server.agree(asked, person, Scopes.parse(scopes))
        code = parse_qs(urlsplit(str(answer.location)).query)["code"][0]
        pairs = [
            ("grant_type", "authorization_code"),
            ("client_id", self._client),
            ("redirect_uri", REDIRECT),
            ("code", code),
            ("code_verifier", CODE_VERIFIER),
            ("resource", PLACES.resource),
        ]
        return str((await server.token(pairs, None)).body["access_token"])


@contextlib.asynccontextmanager
async def shared_gateway(
    servers: Mapping[str, Mapping[str, Any]],
    folder: Path,
    *,
    audit: AuditSettings | None = None,
    http: Mapping[str, Any] | None = None,
    anonymous: Any = None,
    store: SqliteStore | None = None,
    **options: Any,
) -> AsyncIterator[Shared]:
    """A gateway over HTTP that wants credentials; `store` is one that stays its owner's."""
    opened = store or await open_store(folder / "store.sqlite3")
    plugins: list[Plugin] = []
    gate = ScopedGate(lambda: plugins[0].configuration, opened, audit=audit)
    server = AuthorizationServer(PLACES, opened)
    authentication = Authentication(opened, server, PLACES, anonymous, limits=gate.limits)
    try:
        asked = {"authenticate": authentication, "statuses": authentication.statuses, **(http or {})}
        async with gateway_of(servers, folder, gate=gate, http=asked, **options) as running:
            plugins.append(running.plugin)
            yield Shared(running, opened, authentication, gate)
    finally:
        if store is None:
            await opened.close()
