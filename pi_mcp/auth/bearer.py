"""The bearer of a signed-in server's traffic: the stored token as a header, renewed before its end or after a 401.

Comes in: requests that need a header, and refusals. Goes out: `Authorization`, or an error that names `/mcp auth`. It
never asks a person, never holds one request up for another, and only a renewal is shared (reports B119, B148).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pi_mcp.auth.challenges import of_login
from pi_mcp.auth.index import id_of
from pi_mcp.auth.records import Credential
from pi_mcp.auth.renewal import REFUSED, RequestTokens, due, login_required, renew, renewable
from pi_mcp.auth.scopes import WantedScopes
from pi_mcp.errors import PiMcpError

if TYPE_CHECKING:
    from pi_mcp.auth.dpop import KeyProofs
    from pi_mcp.auth.store import CredentialStore
    from pi_mcp.config.resolve import ResolvedServer


class OAuthBearer:
    """Credentials of an HTTP server (see `connect.sender.Credentials`) from the store of logins."""

    def __init__(
        self, resolved: ResolvedServer, store: CredentialStore, *, request: RequestTokens | None = None
    ) -> None:
        self._resolved = resolved
        self._store = store
        self._request = request
        self._server = resolved.definition.name
        self._url = resolved.url or ""
        self._id = id_of(self._server, self._url)
        self._wanted = WantedScopes(store.state_dir)
        self._given: Credential | None = None
        self._hidden: Credential | None = None
        self._proofs: KeyProofs | None = None

    async def headers(self) -> Mapping[str, str]:
        """The header to send now; nothing where nobody has signed in. Raises PiMcpError."""
        credential = await self._store.load(self._server, self._url)
        if credential is None:
            self._given = None
            return {}
        self._hide(credential)
        if not credential.tokens.access_token:
            raise login_required(self._server, REFUSED)
        now = time.time()
        if due(credential.tokens, now) and renewable(self._resolved, credential):
            try:
                credential = await renew(self._store, self._resolved, credential, self._request)
            except PiMcpError as error:
                over = (credential.tokens.expires_at or 0.0) <= time.time()
                if over or error.diagnostic.code == "authentication_required":
                    raise
                # It is still good for some seconds; the next request tries again.
        self._hide(credential)
        self._given = credential
        return {"Authorization": _header(credential)}

    async def refused(self, status: int, challenges: tuple[str, ...]) -> bool:
        """After a 401: a newer token of another process, or one renewal. Raises PiMcpError where neither helps."""
        del status, challenges
        given = self._given
        if given is None:
            raise self._not_signed_in()
        latest = await self._store.load(self._server, self._url)
        if latest is not None and latest.tokens.access_token not in ("", given.tokens.access_token):
            return True
        if _header(given) == self._store.useless.get(self._id):
            raise login_required(self._server, "The server refuses the login, and a renewed one too.")
        if latest is not None and latest.tokens.access_token and not renewable(self._resolved, latest):
            raise login_required(self._server, "The server refuses the login, and there is no refresh token.")
        await renew(self._store, self._resolved, given, self._request)
        return True

    def still_refused(self, headers: Mapping[str, str]) -> None:
        """The request that was sent again with what came after `refused` was refused too."""
        self._store.useless[self._id] = headers.get("Authorization")

    def denied(self, challenges: tuple[str, ...]) -> None:
        """Keep the scopes that a 403 named, for the next `/mcp auth`. Nothing is asked for by itself (B134)."""
        challenge = of_login(challenges)
        if self._given is None or challenge is None or challenge.error != "insufficient_scope" or not challenge.scopes:
            return
        with contextlib.suppress(OSError, TimeoutError, PiMcpError):
            self._wanted.note(self._server, self._url, challenge.scopes)

    def proof(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A proof for this very request, where the token that goes with it is bound to a key (RFC 9449)."""
        kind, _, token = headers.get("Authorization", "").partition(" ")
        if self._proofs is None or kind != self._proofs.token_type:
            return {}
        return self._proofs.headers(method, url, token=token)

    def answered(self, url: str, status: int, nonce: str | None, challenges: tuple[str, ...]) -> bool:
        """Keep the nonce that an answer brought; True where the request was refused for want of it alone."""
        if self._proofs is None:
            return False
        from pi_mcp.auth.dpop import wants_nonce

        # Another request may have learned it while this one was under way without it, so it need not be new.
        self._proofs.learned(url, nonce)
        return nonce is not None and wants_nonce(status, challenges)

    def _hide(self, credential: Credential) -> None:
        """No log and no message shows what goes out from here."""
        if credential is self._hidden:
            return
        self._proofs = None
        if credential.dpop_key is not None:
            from pi_mcp.auth.dpop import stored_proofs

            self._proofs = stored_proofs(credential)
        self._hidden = credential
        for secret in (
            credential.tokens.access_token,
            credential.tokens.refresh_token,
            credential.client.secret,
        ):
            if secret:
                self._resolved.redactor.add(secret)

    def _not_signed_in(self) -> PiMcpError:
        """Nobody has signed in to this name at this address; a login that a renaming left behind is named (B149)."""
        entry = self._store.entry(self._server, self._url)
        if entry is not None:
            return login_required(self._server, "The credential store has lost the login that was stored in it.")
        other = self._store.elsewhere(self._server, self._url)
        if other is None:
            return login_required(self._server, "The server wants a login (HTTP 401).")
        if other.place != self._store.place:
            where = "in the keyring" if other.place == "keyring" else "in an encrypted file"
            message = f"The server wants a login; the stored one is {where}, which is not in use now."
        elif other.server == self._server:
            message = f"The server wants a login; the stored one of this name is for {other.url_shown}."
        else:
            message = f"The server wants a login; the stored one for this address has the name {other.server}."
        return login_required(self._server, message)


def _header(credential: Credential) -> str:
    return f"{credential.tokens.token_type} {credential.tokens.access_token}"


def credentials_for(resolved: ResolvedServer, store: CredentialStore) -> OAuthBearer | None:
    """The bearer of this server; None where OAuth has no say: switched off, or another credential is configured.

    With `oauth` absent, a header that comes from a command counts as one, unless somebody has signed in.
    """
    definition = resolved.definition
    if definition.transport == "stdio" or resolved.url is None or definition.oauth is False:
        return None
    if any(name.lower() == "authorization" for name in (*resolved.headers, *definition.headers)):
        return None
    by_command = definition.oauth is None and bool(definition.secret_names)
    if by_command and store.entry(definition.name, resolved.url) is None:
        return None
    return OAuthBearer(resolved, store)
