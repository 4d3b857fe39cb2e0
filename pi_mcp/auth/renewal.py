"""Renewing a login: one token request for all processes, its outcome stored before it is used.

Comes in: the login whose token is over or was refused. Goes out: one with a newer token, or an error that says what to
do. It opens no browser, registers no client, and gives up a stored token only when the authorization server
refused the newest one with `invalid_grant` (reports B118, B119).

    lock ─► read the store again ─► newer token there? use it
                                 └► one request ─► tokens: store, then use
                                                ├► invalid_grant: a newer one of the store, or the client alone stays
                                                └► 5xx, network, other refusals: everything stays
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from pi_mcp.auth.index import id_of
from pi_mcp.auth.records import Credential, Tokens
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import quoted

if TYPE_CHECKING:
    from pi_mcp.auth.store import CredentialStore
    from pi_mcp.config.resolve import ResolvedServer

EARLY = 30.0
"""Seconds before its end that a token is renewed; half of its life where that is shorter."""

RequestTokens = Callable[["ResolvedServer", Credential], Awaitable[Tokens]]
"""One token request for this login: by its refresh token, or by the configured client credentials."""


def due(tokens: Tokens, now: float) -> bool:
    """Whether a token is at its end, or close to it."""
    if tokens.expires_at is None:
        return False
    life = max(tokens.expires_at - tokens.obtained_at, 0.0) if tokens.obtained_at else EARLY * 2
    return now >= tokens.expires_at - min(EARLY, life / 2)


def renewable(resolved: ResolvedServer, credential: Credential) -> bool:
    """Whether new tokens can be had without a person."""
    return credential.tokens.refresh_token is not None or _needs_nobody(resolved)


def _needs_nobody(resolved: ResolvedServer) -> bool:
    from pi_mcp.auth.unattended import needs_nobody

    return needs_nobody(resolved)


async def renew(
    store: CredentialStore, resolved: ResolvedServer, stale: Credential, request: RequestTokens | None = None
) -> Credential:
    """A login with another access token than `stale` has. Who asks at the same time shares one renewal.

    Raises AuthenticationError (`authentication_required`), what `request_tokens` raises, or
    `credential_store_unavailable`.
    """
    id = id_of(stale.server, stale.url)
    for _ in range(2):
        found = await store.shared("renew", id, lambda: _renew(store, resolved, stale, request or by_refresh_token))
        if found.tokens.access_token != stale.tokens.access_token:
            break
        # The renewal that was joined had begun for an older token, and ended with this very one.
    return found


async def _renew(
    store: CredentialStore, resolved: ResolvedServer, stale: Credential, request: RequestTokens
) -> Credential:
    server, url = stale.server, stale.url
    seen = store.entry(server, url)

    def settled() -> bool:
        now = store.entry(server, url)
        return now is None or seen is None or now.revision != seen.revision

    async with store.lock_unless(server, url, settled) as held:
        found = await _newer(store, stale)
        if found is not None:
            return found
        if held:
            return await _request(store, resolved, stale, request)
    # The entry changed, yet not to a token of use: look at it with the lock.
    async with store.lock(server, url):
        return await _newer(store, stale) or await _request(store, resolved, stale, request)


async def _newer(store: CredentialStore, stale: Credential) -> Credential | None:
    """What another process has stored meanwhile, where it is of use. Raises where nobody is signed in any more."""
    current = await store.load(stale.server, stale.url, fresh=True)
    if current is None:
        raise login_required(stale.server, "The stored login is gone.")
    if not current.tokens.access_token:
        raise login_required(stale.server, REFUSED)
    changed = current.tokens.access_token != stale.tokens.access_token
    return current if changed and not due(current.tokens, time.time()) else None


async def _request(
    store: CredentialStore, resolved: ResolvedServer, stale: Credential, request: RequestTokens
) -> Credential:
    """With the lock held and the store read: the one request."""
    from pi_mcp.auth.tokens import TokenRefused

    server, url = stale.server, stale.url
    id = id_of(server, url)
    current = await store.load(server, url)
    if current is None:
        raise login_required(server, "The stored login is gone.")
    base = current.tokens.refresh_token
    unsaved = store.unsaved.get(id)
    if unsaved is not None and unsaved[0] == base:
        # The store failed when this was to be kept; the old refresh token may be of no use any more.
        await store.save(unsaved[1], renewed=True)
        return unsaved[1]
    if not renewable(resolved, current):
        raise login_required(server, "The login has run out, and there is no refresh token.")
    try:
        tokens = await request(resolved, current)
    except TokenRefused as error:
        if error.error != "invalid_grant" or _needs_nobody(resolved):
            # What is refused there is the configuration's, and may be better at the next request.
            raise
        latest = await store.load(server, url, fresh=True)
        if latest is not None and latest.tokens != current.tokens and latest.tokens.access_token:
            return latest
        if latest is not None:
            over = Tokens(access_token="", scopes=current.tokens.scopes, obtained_at=time.time())
            await store.save(latest.with_tokens(over), renewed=True)
        raise login_required(server, REFUSED) from None
    kept = replace(
        tokens,
        refresh_token=tokens.refresh_token or base,
        scopes=tokens.scopes or current.tokens.scopes,
        obtained_at=tokens.obtained_at or time.time(),
    )
    renewed = current.with_tokens(kept)
    for token in (kept.access_token, kept.refresh_token):
        resolved.redactor.add(token or "")
    store.unsaved[id] = (base, renewed)
    await store.save(renewed, renewed=True)
    return renewed


REFUSED = "The authorization server does not accept the stored login any more."


def login_required(server: str, message: str) -> PiMcpError:
    return failure("authentication_required", "authenticate", server, message, f"Run `/mcp auth {quoted(server)}`.")


async def by_refresh_token(resolved: ResolvedServer, credential: Credential) -> Tokens:
    """The token request of a renewal (RFC 6749 §6), or again the grant that needs nobody. Sent once."""
    from pi_mcp.auth.dpop import stored_proofs
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.proof import proof_of
    from pi_mcp.auth.tokens import request_tokens
    from pi_mcp.auth.unattended import unattended_login

    tokens = credential.tokens
    fetcher = Fetcher(credential.server, credential.url, environ=resolved.environ)
    dpop = stored_proofs(credential)
    if _needs_nobody(resolved):
        return await unattended_login(
            resolved,
            fetcher,
            issuer=credential.issuer,
            endpoint=credential.token_endpoint,
            client=credential.client,
            resource=credential.resource,
            scopes=tokens.scopes,
            dpop=dpop,
        )
    return await request_tokens(
        fetcher,
        credential.token_endpoint,
        credential.client,
        await proof_of(resolved, credential.issuer),
        {"grant_type": "refresh_token", "refresh_token": str(tokens.refresh_token)},
        resource=credential.resource,
        scopes=tokens.scopes,
        dpop=dpop,
    )
