"""Who sends a request: the layer before the MCP endpoint that turns a credential into a `Grant`.

Comes in: HTTP requests. Goes out: the same with `scope["state"]["grant"]` and without the headers that hold
credentials, or 401, 429 or 503. A credential that was brought and is bad fails, also where none is needed. Requests
that go on for long are looked after: when their credential ends, so do they. Nothing of a secret is ever logged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

from pi_mcp.access import AuditRow, Grant, Limits, Store
from pi_mcp.access import secrets as minted
from pi_mcp.errors import PiMcpError
from pi_mcp.plugin import RpcError
from pi_mcp.server import rpc
from pi_mcp.server.credentials import SCOPES_HEADER, Supplied, header, supplied, without_credentials
from pi_mcp.server.gate import Denial
from pi_mcp.server.limits import TOO_MANY, KeyLimits, Limit, retry_after, too_many
from pi_mcp.server.oauth.bearer import BadToken, CannotTell, Verifier
from pi_mcp.server.oauth.limits import Throttle, counted_as
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.pages.browser import SESSION, signed_in
from pi_mcp.server.replies import ASGIApp, Receive, Scope, Send, reply_error

FAILURES = 20
"""Bad credentials that one address may bring a minute; beyond that the answer is 429."""
FORWARDED = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers that a proxy adds: whoever calls through one may be anywhere, although the connection is of this machine."""
WATCH = 1.0
"""Seconds after which a request under way notices that its credential has ended, in whatever process."""
DOUBT = 30.0
"""Seconds for which a request under way goes on while nobody can say whether its credential still holds."""

steady = time.monotonic
_LOG = logging.getLogger("pi_mcp.server")


class Unauthorized(Exception):
    """The request's credential is missing or worth nothing. `reason` is for the log, never of the secret."""

    def __init__(self, reason: str, id: str | None = None, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.id = id
        self.missing = missing


class Unavailable(Exception):
    """Whoever could say what the credential is worth does not answer; nobody is let in."""


@dataclass(frozen=True, slots=True)
class Authentication:
    """How callers are known. `anonymous` is who calls without a credential; None: nobody may."""

    store: Store | None = None
    """Without one no key is known, and every credential is bad."""
    verifier: Verifier | None = None
    """For OAuth access tokens, of the embedded server or an outside issuer."""
    places: Places | None = None
    """What the gateway is called from outside: needed for cookies, and for OAuth's challenges."""
    anonymous: Grant | None = None
    limits: KeyLimits = field(default_factory=KeyLimits)
    clock: Callable[[], float] = time.time

    def __call__(self, app: ASGIApp) -> Layer:
        return Layer(app, self)

    def statuses(self, grant: Grant, denial: Denial) -> tuple[int, list[tuple[bytes, bytes]]] | None:
        """HTTP status and headers of a denial: a client of OAuth can ask for more (RFC 6750 §3.1), and a limit is 429.

        Keys and cookies have all that they ever will: for them a refusal is an answer like any other.
        """
        data = denial.data if isinstance(denial.data, dict) else {}
        if denial.code == TOO_MANY:
            return 429, [(b"retry-after", str(data.get("retryAfter", 1)).encode())]
        scope = data.get("scope")
        if grant.kind != "oauth" or not isinstance(scope, str):
            return None
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        if self.places is not None:
            challenge += f', resource_metadata="{self.places.resource_metadata()}"'
        return 403, [(b"www-authenticate", challenge.encode("latin-1", "replace"))]

    async def grant(self, given: Supplied | None, origin: str | None, *, ask: bool = True) -> Grant:
        """The caller. Raises Unauthorized or Unavailable. `ask` False: as far as nobody else has to be asked."""
        try:
            if given is None:
                if self.anonymous is None:
                    raise Unauthorized("no credential", missing=True)
                return self.anonymous
            if given.kind == "bad":
                raise Unauthorized("credentials that cannot be read, or two that differ")
            if given.kind == "cookie":
                return await self._browser(given.text, origin)
            if given.kind == "key" or minted.is_ours(given.text) or self.verifier is None:
                return await self._key(given.text)
            return await self.verifier.verify(given.text, ask=ask)
        except BadToken as error:
            raise Unauthorized(f"a token that is worth nothing ({error.reason})") from None
        except CannotTell as error:
            raise Unavailable(error.reason) from None
        except PiMcpError as error:
            raise Unavailable(error.diagnostic.line()) from None

    async def _key(self, text: str) -> Grant:
        found = minted.recognise(text, "key")
        if self.store is None:
            raise Unauthorized("a credential, although there are no keys here and nobody needs one")
        if found is None:
            raise Unauthorized("a credential that does not have the form of a key")
        now = self.clock()
        key = await self.store.key(found[0])
        if key is None or not minted.same(key.digest, found[1]):
            raise Unauthorized("a key that nobody has")
        if not key.valid(now):
            raise Unauthorized("a key that was revoked or has expired", key.id)
        self.store.used("key", key.id, now)
        return Grant(key.subject, key.id, "key", key.scopes, limits=key.limits, key=key.id, expires=key.expires)

    async def _browser(self, text: str, origin: str | None) -> Grant:
        if self.store is None or self.places is None or origin != self.places.issuer:
            # A browser adds the cookie to any page's requests: the page has to be ours.
            raise Unauthorized("a cookie without our own origin")
        sign_in = await signed_in(text, self.store, self.clock())
        if sign_in is None:
            raise Unauthorized("a cookie that nobody has, or that has ended")
        key = None if sign_in.key is None else await self.store.key(sign_in.key)
        limits = Limits() if key is None else key.limits
        return Grant(
            sign_in.subject,
            sign_in.id,
            "session",
            sign_in.scopes,
            limits=limits,
            key=sign_in.key,
            expires=sign_in.expires,
        )


class Layer:
    """The ASGI application around the endpoint."""

    def __init__(self, app: ASGIApp, how: Authentication) -> None:
        self._app = app
        self._how = how
        self._failures = Throttle(FAILURES, 60.0)
        self._open: set[_Open] = set()
        self._watcher: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        client = scope.get("client")
        address = counted_as(client[0] if client else None)
        given, origin = supplied(headers, SESSION), header(headers, b"origin")
        wait = self._failures.wait(address)
        try:
            if given is None and self._how.anonymous is not None and any(name in FORWARDED for name, _ in headers):
                _LOG.warning("refused a request without a credential that came through a proxy")
                raise Unauthorized("no credential", missing=True)
            # Whoever shares the address with somebody who guesses is not locked out, as far as it can be told here.
            grant = await self._how.grant(given, origin, ask=not wait)
        except Unauthorized as error:
            if not error.missing:
                if wait:
                    await _slow_down(send, "failures", wait)
                    return
                _LOG.warning("refused %s%s", error.reason, f" ({error.id})" if error.id else "")
                self._failures.count(address)
            await _unauthorized(send, self._challenge(scope, error))
            return
        except Unavailable as error:
            _LOG.error("a credential could not be checked: %s", error)
            problem = RpcError(rpc.INTERNAL_ERROR, "Credentials cannot be checked at the moment")
            await _refuse(send, 503, problem, [(b"retry-after", b"5")])
            return
        grant = grant.narrowed(header(headers, SCOPES_HEADER))
        wait = self._how.limits.request(grant)
        if wait:
            await self._record_limit(grant)
            await _slow_down(send, self._how.limits.passed(grant) or "requestsPerMinute", wait)
            return
        state = {**(scope.get("state") or {}), "grant": grant}
        inner = {**scope, "headers": without_credentials(headers), "state": state}
        if given is None:
            await self._app(inner, receive, send)
        else:
            await self._looked_after(inner, receive, send, _Open(given, origin, grant.expires))

    async def _record_limit(self, grant: Grant) -> None:
        """A row of the audit trail for the first request over a limit within its minute: one of each would let a
        caller who is refused fill the trail. Its body was not read, so that nobody knows what it asked for."""
        store = self._how.store
        if store is None or not self._how.limits.newly_passed(grant):
            return
        try:
            await store.record(AuditRow.by(grant, "request", self._how.clock(), outcome="limited"))
        except PiMcpError as error:
            _LOG.error("a request over a limit has no audit row: %s", error.diagnostic.line())

    def _challenge(self, scope: Scope, error: Unauthorized) -> tuple[bytes, bytes]:
        parts = []
        if not error.missing:
            parts.append('error="invalid_token", error_description="The credential is not valid"')
        if self._how.places is not None and self._how.verifier is not None:
            parts.append(f'resource_metadata="{self._how.places.resource_metadata(scope["path"])}"')
        return b"www-authenticate", f"Bearer {', '.join(parts)}".strip().encode("latin-1", "replace")

    # requests under way

    async def _looked_after(self, scope: Scope, receive: Receive, send: Send, request: _Open) -> None:
        """Run the application; when the credential ends meanwhile, so does the response."""
        began = ended = False

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal began, ended
            began = True
            ended = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        request.task = asyncio.current_task()
        self._open.add(request)
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            if not request.revoked:
                raise
            if request.task is not None:
                request.task.uncancel()
            if not began:
                await _unauthorized(send, self._challenge(scope, Unauthorized("ended")))
            elif not ended:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._open.discard(request)

    async def _watch(self) -> None:
        """While requests are under way: look whether their credentials still hold."""
        revision: int | None = None
        store = self._how.store
        while self._open:
            await asyncio.sleep(WATCH)
            try:
                current = None if store is None else await store.revision()
                changed, revision = current != revision, current
            except PiMcpError:
                changed, revision = True, None  # nobody says what has been revoked meanwhile
            now = self._how.clock()
            due = [
                request for request in self._open if changed or (request.expires is not None and now >= request.expires)
            ]
            for request, holds in zip(due, await asyncio.gather(*map(self._holds, due)), strict=True):
                if not holds and request in self._open:
                    request.revoke()

    async def _holds(self, request: _Open) -> bool:
        try:
            request.expires = (await self._how.grant(request.given, request.origin)).expires
            request.doubted = None
        except Unauthorized:
            return False
        except Unavailable:
            # It was good a moment ago, and nobody says otherwise; somebody may soon. But not for ever: of a credential
            # that was revoked or has expired meanwhile nobody would hear either.
            now = steady()
            request.expires = 0.0
            request.doubted = now if request.doubted is None else request.doubted
            return now - request.doubted < DOUBT
        return True


@dataclass(slots=True, eq=False)
class _Open:
    """A request under way, and the credential that it came with."""

    given: Supplied
    origin: str | None
    expires: float | None
    """When to look whether the credential still holds."""
    task: asyncio.Task[Any] | None = None
    revoked: bool = False
    doubted: float | None = None
    """Since when nobody can say, by a clock that is never set back."""

    def revoke(self) -> None:
        if self.task is not None and not self.revoked:
            self.revoked = True
            self.task.cancel()


def developer(subject: str | None = None) -> Grant:
    """Who calls with --dev-no-auth: `dev`, or whom --dev-as names, with every right."""
    return replace(Grant.everything("dev", "dev"), subject=subject or "dev")


async def _refuse(send: Send, status: int, error: RpcError, headers: list[tuple[bytes, bytes]]) -> None:
    await reply_error(send, status, error, None, [(b"cache-control", b"no-store"), *headers])


async def _slow_down(send: Send, what: Limit, wait: float) -> None:
    await _refuse(send, 429, too_many(what, wait), [(b"retry-after", str(retry_after(wait)).encode())])


async def _unauthorized(send: Send, challenge: tuple[bytes, bytes]) -> None:
    # In the same words whatever is wrong with a credential: unknown, expired, revoked, or none at all.
    await _refuse(send, 401, RpcError(rpc.INVALID_REQUEST, "A valid credential is needed"), [challenge])
