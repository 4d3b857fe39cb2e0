"""Signing in to one server, on a person's explicit wish: the only thing that opens a browser or registers a client.

Comes in: a resolved server, a host with its person, the store. Goes out: a stored `Credential`, or a `PiMcpError`. The
stored login stays as it is until the new one is stored; verifier, state and codes live in memory alone and are in no
error. Cancelling closes the listener at once.

    port ─► challenge ─► discovery ─► client ─► browser ∥ pasted address ─► code ─► tokens ─► store
                                          └► device flow, client credentials ──────┘
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from pi_mcp.auth.addresses import shown_url
from pi_mcp.auth.callback import (
    DEFAULT_PATH,
    DEFAULT_PORT,
    Answer,
    CallbackListener,
    NotThisLogin,
    pasted_answer,
)
from pi_mcp.auth.device import device_login
from pi_mcp.auth.discovery import Discovered, discover
from pi_mcp.auth.dpop import KeyProofs, proofs_for_login
from pi_mcp.auth.proof import oauth_of, proof_of
from pi_mcp.auth.records import Client, Credential, Tokens
from pi_mcp.auth.registration import client_for, given_client, reusable
from pi_mcp.auth.scopes import TRIES, WantedScopes, choose, configured, union
from pi_mcp.auth.tokens import ERRORS, TokenRefused, request_tokens
from pi_mcp.auth.unattended import NOBODY, needs_nobody, unattended_login
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.host import show_progress
from pi_mcp.text import clean_line, quoted, redact

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher, Reply
    from pi_mcp.auth.store import CredentialStore
    from pi_mcp.config.definition import Configuration
    from pi_mcp.config.resolve import ResolvedServer
    from pi_mcp.host import Host

LOGIN_LIMIT = 120.0
"""Seconds that a person has in the browser."""
OPEN_LIMIT = 10.0
"""Seconds that a host may take to open a browser."""
PASTES = 5
"""Pasted texts that may be wrong before only the listener waits."""
CANNOT_ASK = 0.2
"""Seconds: no person dismisses a question so soon, so a host that answers None within them has nobody to ask."""

# Registered clients whose last login came to nothing: the authorization server may have forgotten them, and shows that
# to nobody but the browser. The next login registers anew.
_doubted: set[tuple[str, str, str]] = set()


class _Forgotten(Exception):
    """The authorization server does not know the client that was registered there before."""

    def __init__(self, error: PiMcpError) -> None:
        super().__init__()
        self.error = error


async def login(
    resolved: ResolvedServer,
    configuration: Configuration,
    host: Host,
    store: CredentialStore,
    *,
    browser: bool = True,
    wanted: WantedScopes | None = None,
    fetcher: Fetcher | None = None,
) -> Credential:
    """Sign in and store it. `browser` False: the address is shown, and a code or an address is typed in.

    `wanted` knows what calls were refused for. Raises PiMcpError; asyncio.CancelledError when it is cancelled.
    """
    check_allowed(resolved, host)
    return await _Login(resolved, configuration, host, store, browser, wanted, fetcher).run()


def check_allowed(resolved: ResolvedServer, host: Host) -> None:
    """Raise where this server has no login by OAuth, or nobody is there for one. Contacts nothing."""
    definition = resolved.definition
    name = definition.name
    if definition.transport == "stdio" or resolved.url is None:
        raise failure(
            "refused",
            "authenticate",
            name,
            "A stdio server signs in by itself.",
            "Give it what it needs in `env`, for example by a !command.",
        )
    if resolved.oauth is False:
        raise failure(
            "refused", "authenticate", name, "`oauth` is switched off for this server.", "Remove `oauth: false`."
        )
    if any(key.lower() == "authorization" for key in (*resolved.headers, *definition.headers)):
        raise failure(
            "configuration_invalid",
            "authenticate",
            name,
            "The server has an `Authorization` header, which is its login.",
            "Remove the header to sign in with OAuth.",
        )
    if not needs_nobody(resolved) and not host.interactive:
        raise failure(
            "authentication_required",
            "authenticate",
            name,
            "Signing in needs a person, and nobody can be asked here.",
            f"Run `pi-mcp auth {quoted(name)}` in a terminal (`--no-browser` where there is none), set "
            '"grant": "client_credentials" in `oauth`, or put a token into `headers`.',
        )


class _Login:
    """One login. Its parts are in the order in which they happen."""

    def __init__(
        self,
        resolved: ResolvedServer,
        configuration: Configuration,
        host: Host,
        store: CredentialStore,
        browser: bool,
        wanted: WantedScopes | None,
        fetcher: Fetcher | None,
    ) -> None:
        from pi_mcp.auth.fetch import Fetcher as AnyFetcher

        self.resolved = resolved
        self.server = resolved.definition.name
        self.url = resolved.url or ""
        self.host = host
        self.store = store
        self.browser = browser
        self.wanted = wanted
        self.dpop: KeyProofs | None = None
        self.oauth: Mapping[str, Any] = oauth_of(resolved)
        self.grant = str(self.oauth.get("grant", "authorization_code"))
        self.fetcher = fetcher or AnyFetcher(self.server, self.url, environ=resolved.environ or configuration.environ)
        self.redirect_uri = (
            f"http://{self.oauth.get('callbackHost', '127.0.0.1')}:{self.oauth.get('callbackPort', DEFAULT_PORT)}"
            f"{self.oauth.get('callbackPath', DEFAULT_PATH)}"
        )

    async def run(self) -> Credential:
        await self.store.check(self.server)
        stored = await self.store.load(self.server, self.url)
        async with AsyncExitStack() as stack:
            listener: CallbackListener | None = None
            if self.grant == "authorization_code":
                # Before anything else: without the port the browser could not come back (reports B121, B125).
                listener = await stack.enter_async_context(
                    CallbackListener(
                        self.server,
                        host=str(self.oauth.get("callbackHost", "127.0.0.1")),
                        port=int(self.oauth.get("callbackPort", DEFAULT_PORT)),
                        path=str(self.oauth.get("callbackPath", DEFAULT_PATH)),
                    )
                )
            show_progress(self.host, f"Signing in to {clean_line(self.server)}")
            found = await discover(
                self.fetcher, self.url, await self.challenges(), trust_issuer=self.oauth.get("trustIssuer")
            )
            self.dpop = proofs_for_login(
                self.server, found.metadata, self.oauth.get("dpop"), required=found.dpop_required
            )
            scopes = self.scopes(found, stored)
            client, tokens = await self.obtained(found, scopes, stored, listener)
            if self.dpop is not None and tokens.token_type != self.dpop.token_type:
                raise self.failed(
                    "The authorization server gave a token that is not bound to a key, as `dpop` demands.",
                    'Set "dpop": false in `oauth` to use such tokens.',
                )
        credential = Credential(
            server=self.server,
            url=self.url,
            issuer=found.issuer,
            resource=found.resource,
            client=replace(client, secret=None) if client.kind == "configured" else client,
            tokens=tokens,
            token_endpoint=found.metadata.token_endpoint,
            revocation_endpoint=found.metadata.revocation_endpoint,
            authorization_endpoint=found.metadata.authorization_endpoint,
            dpop_key=self.dpop.pem if self.dpop is not None else None,
        )
        self.hide(tokens, client)
        await self.store.save(credential)
        if self.wanted is not None:
            await asyncio.to_thread(self.wanted.tried, self.server, self.url)
        return credential

    # What the server asks for

    async def challenges(self) -> tuple[str, ...]:
        """The `WWW-Authenticate` lines that the server gives to somebody who is not signed in."""
        resolved = self.resolved
        if resolved.commands:
            from pi_mcp.config.lookup import resolve_secrets

            resolved = await resolve_secrets(resolved)
        own = ("accept", "content-type", "content-length", "host", "mcp-session-id")
        headers = {name: value.reveal() for name, value in resolved.headers.items() if name.lower() not in own}
        if resolved.definition.transport == "sse":
            headers["Accept"] = "text/event-stream"
            reply = await self.fetcher.request("GET", self.url, headers=headers, limit=None)
            return reply.header_lines("www-authenticate")
        headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        reply = await self.fetcher.request("POST", self.url, headers=headers, body=_INITIALIZE, limit=None)
        lines = reply.header_lines("www-authenticate")
        session = reply.header("mcp-session-id")
        if reply.ok and not lines:
            # Some let anybody shake hands and ask for a login at the first question.
            if session is not None:
                headers["Mcp-Session-Id"] = session
            with contextlib.suppress(PiMcpError):
                asked = await self.fetcher.request("POST", self.url, headers=headers, body=_LIST, limit=None)
                lines = asked.header_lines("www-authenticate")
        await self._leave(reply, headers)
        return lines

    async def _leave(self, reply: Reply, headers: Mapping[str, str]) -> None:
        """A server that answers anybody has begun a session for this question: end it."""
        if reply.header("mcp-session-id") is None or not reply.ok:
            return
        try:
            await self.fetcher.request("DELETE", self.url, headers=headers, follow=False, limit=None)
        except PiMcpError:
            pass

    def scopes(self, found: Discovered, stored: Credential | None) -> tuple[str, ...]:
        """What to ask for; with a refused call behind us the union of what there was and what was wanted (B134)."""
        scopes = choose(
            configured(self.oauth.get("scopes")),
            found.challenge_scopes,
            found.scopes,
            found.metadata.scopes_supported,
        )
        missing = self.wanted.of(self.server, self.url) if self.wanted is not None else ()
        if not missing:
            return scopes
        if self.wanted is not None and self.wanted.in_vain(self.server, self.url):
            self.wanted.forget(self.server, self.url)
            raise failure(
                "permission_denied",
                "authenticate",
                self.server,
                f"{TRIES} logins did not give what the server wants: {redact(clean_line(' '.join(missing), 200))}.",
                "Ask whoever runs the service for the right; then sign in again.",
            )
        granted = stored.tokens.scopes if stored is not None and stored.issuer == found.issuer else ()
        return union(granted, scopes, missing)

    # Client and grant

    async def obtained(
        self,
        found: Discovered,
        scopes: tuple[str, ...],
        stored: Credential | None,
        listener: CallbackListener | None,
    ) -> tuple[Client, Tokens]:
        """A client and its tokens; once more with a new registration where the server has forgotten the old one."""
        if needs_nobody(self.resolved):
            given = given_client(found.metadata, self.oauth, None)
            tokens = await unattended_login(
                self.resolved,
                self.fetcher,
                issuer=found.issuer,
                endpoint=found.metadata.token_endpoint,
                client=given,
                resource=found.resource,
                scopes=scopes,
                dpop=self.dpop,
            )
            return given or NOBODY, tokens
        self.check_flow(found)
        old = stored.client if stored is not None and stored.issuer == found.issuer else None
        if old is not None and self.doubt(old) in _doubted:
            old = None
        client = await self.client(found, scopes, old)
        reused = old is not None and client == old and reusable(client, self.redirect_uri)
        try:
            return client, await self.tokens(found, client, scopes, stored, listener, reused)
        except _Forgotten:
            _doubted.discard(self.doubt(client))
            client = await self.client(found, scopes, None)
            return client, await self.tokens(found, client, scopes, stored, listener, False)

    def doubt(self, client: Client) -> tuple[str, str, str]:
        return (self.server, self.url, client.client_id)

    def client(self, found: Discovered, scopes: tuple[str, ...], old: Client | None) -> Any:
        return client_for(
            self.fetcher, found.metadata, self.oauth, redirect_uri=self.redirect_uri, stored=old, scopes=scopes
        )

    def check_flow(self, found: Discovered) -> None:
        """Raise where the authorization server cannot do what is wanted, before a client is registered there."""
        metadata = found.metadata
        if self.grant == "device_code":
            if metadata.device_authorization_endpoint is None:
                raise self.failed(
                    "The authorization server offers no device flow.", 'Set "grant": "authorization_code" in `oauth`.'
                )
            return
        if metadata.authorization_endpoint is None:
            raise self.failed("The authorization server has no page for a login.", "Choose another `grant` in `oauth`.")
        # Some know S256 and do not say so (Entra): the person may vouch for one exact issuer, never against its word.
        vouched = metadata.code_challenge_methods is None and self.oauth.get("trustIssuer") == metadata.issuer
        if not metadata.pkce and not vouched:
            told = ""
            if metadata.code_challenge_methods is None:
                issuer = redact(clean_line(metadata.issuer, 200))
                told = f' If its documentation says so, set "trustIssuer": "{issuer}" in `oauth`.'
            raise self.failed(
                "The authorization server does not say that it knows PKCE with S256, without which a login could be "
                "stolen on its way.",
                f"Tell whoever runs it, or put a token into `headers`.{told}",
            )

    async def tokens(
        self,
        found: Discovered,
        client: Client,
        scopes: tuple[str, ...],
        stored: Credential | None,
        listener: CallbackListener | None,
        reused: bool,
    ) -> Tokens:
        try:
            if listener is None or (not self.browser and found.metadata.device_authorization_endpoint is not None):
                try:
                    return await self.by_device(found, client, scopes)
                except TokenRefused as refused:
                    unfit = refused.error in ("unauthorized_client", "unsupported_grant_type", "invalid_request")
                    if listener is None or not unfit:
                        raise
                    # The flow is there, for other clients: the pasted address is left.
            return await self.by_browser(found, client, scopes, stored, listener, reused)
        except TokenRefused as refused:
            if reused and refused.error in ("invalid_client", "unauthorized_client"):
                raise _Forgotten(refused) from None
            raise

    async def by_device(self, found: Discovered, client: Client, scopes: tuple[str, ...]) -> Tokens:
        return await device_login(
            self.fetcher,
            found.metadata,
            client,
            await proof_of(self.resolved, found.issuer),
            self.host,
            resource=found.resource,
            scopes=scopes,
            browser=self.browser,
            dpop=self.dpop,
        )

    async def by_browser(
        self,
        found: Discovered,
        client: Client,
        scopes: tuple[str, ...],
        stored: Credential | None,
        listener: CallbackListener,
        reused: bool,
    ) -> Tokens:
        proof = await proof_of(self.resolved, found.issuer)
        verifier, state = secrets.token_urlsafe(64), secrets.token_urlsafe(32)
        fields = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": self.redirect_uri,
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
            .rstrip(b"=")
            .decode(),
            "code_challenge_method": "S256",
            "resource": found.resource,
        }
        if scopes:
            fields["scope"] = " ".join(scopes)
        if self.dpop is not None:
            fields["dpop_jkt"] = self.dpop.thumbprint
        prompt = prompt_of(found, scopes, again=stored is not None)
        if prompt:
            fields["prompt"] = prompt
        url = _with_query(str(found.metadata.authorization_endpoint), fields)
        self.resolved.redactor.add(verifier)
        try:
            answer = await self.answer(url, state, listener)
        except BaseException:
            if reused:
                _doubted.add(self.doubt(client))
            raise
        self.judge(answer, found, reused)
        self.resolved.redactor.add(answer.code or "")
        return await request_tokens(
            self.fetcher,
            found.metadata.token_endpoint,
            client,
            proof,
            {
                "grant_type": "authorization_code",
                "code": str(answer.code),
                "redirect_uri": self.redirect_uri,
                "code_verifier": verifier,
            },
            resource=found.resource,
            scopes=scopes,
            dpop=self.dpop,
        )

    # The person

    async def answer(self, url: str, state: str, listener: CallbackListener) -> Answer:
        """The first of what comes to the listener and what is pasted, within two minutes (report B136)."""
        heard = listener.expect(state)
        await self.host.notify("info", f"To sign in to {clean_line(self.server)}, open this address:\n{url}")
        opening = asyncio.create_task(self.open(url)) if self.browser else None
        pasting = asyncio.create_task(self.pasted(state, opening))
        try:
            async with asyncio.timeout(LOGIN_LIMIT):
                both: set[asyncio.Future[Any]] = {heard, pasting}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if heard.done():
                    return heard.result()
                pasted = pasting.result()
                return pasted if pasted is not None else await heard
        except TimeoutError:
            raise failure(
                "timeout",
                "authenticate",
                self.server,
                f"Nobody came back from the browser within {LOGIN_LIMIT:g} s.",
                f"If the browser runs on another machine, forward the port {listener.redirect_uri} to this one, or "
                f"use `pi-mcp auth --no-browser {quoted(self.server)}` and paste the address that the browser ends at.",
            ) from None
        finally:
            heard.cancel()
            for task in (opening, pasting):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def open(self, url: str) -> None:
        """Open a browser. Whatever becomes of that, the login goes on with the address shown (report B137)."""
        try:
            opened = await asyncio.wait_for(self.host.open_url(url), OPEN_LIMIT)
        except Exception:
            opened = False
        if not opened:
            await self.host.notify("warning", "No browser could be opened: open the address yourself.")

    async def pasted(self, state: str, opening: asyncio.Task[None] | None) -> Answer | None:
        """A pasted address with the right state; None where the host cannot ask. Dismissed, it ends the login."""
        if opening is not None:
            # What is said about the browser comes before the question, not into it.
            await asyncio.wait({opening})
        where = "the browser" if self.browser else "your browser"
        question = f"Waiting for {where}. You may also paste the address that it ends at ({self.redirect_uri}?…):"
        loop = asyncio.get_running_loop()
        for _ in range(PASTES):
            asked = loop.time()
            text = await self.host.input(question, secret=True)
            if text is None:
                if loop.time() - asked < CANNOT_ASK:
                    return None
                raise failure(
                    "cancelled", "authenticate", self.server, "The login was stopped.", "Nothing was changed."
                )
            if not text.strip():
                continue
            try:
                return pasted_answer(text, self.redirect_uri, state)
            except NotThisLogin as problem:
                await self.host.notify("warning", f"That address is not used: {problem}")
        return None

    def judge(self, answer: Answer, found: Discovered, reused: bool) -> None:
        """Raise where the answer is a refusal, or from somebody else (RFC 9207)."""
        metadata = found.metadata
        if (answer.iss is not None or metadata.iss_param) and answer.iss != metadata.issuer:
            raise self.failed(
                "The answer in the browser does not come from the authorization server that was asked, "
                f"{shown_url(metadata.issuer)}.",
                "Nothing was stored. Tell whoever runs the server.",
            )
        if answer.error is None:
            return
        if reused and answer.error in ("invalid_client", "unauthorized_client"):
            raise _Forgotten(self.failed("The client is not known."))
        why = f"{ERRORS[answer.error]} ({answer.error})" if answer.error in ERRORS else "it does not say why"
        hint = "Try again, and allow access in the browser."
        if answer.error in ("invalid_scope", "invalid_target", "unauthorized_client", "invalid_client"):
            hint = "Look at `scopes` and `clientId` in `oauth`, and at what the service offers."
        raise self.failed(f"The authorization server gave no access: {why}.", hint)

    # Words

    def failed(self, message: str, hint: str | None = None) -> PiMcpError:
        return failure("oauth_failed", "authenticate", self.server, message, hint)

    def hide(self, tokens: Tokens, client: Client) -> None:
        for secret in (tokens.access_token, tokens.refresh_token, client.secret):
            if secret:
                self.resolved.redactor.add(secret)


def prompt_of(found: Discovered, scopes: tuple[str, ...], *, again: bool) -> str | None:
    """`prompt` of OpenID Connect, so that an explicit login is no silent reuse of the last one (report B139).

    Sent where the authorization server lists it or speaks OpenID Connect. Somebody who is signed in already may want
    another account. `offline_access` is granted with a consent only (OpenID Connect Core §11).
    """
    metadata = found.metadata
    offline = "offline_access" in scopes
    if metadata.prompts is not None:
        wishes = ("select_account", "login", "consent")
        best = next((one for one in wishes if one in metadata.prompts), None)
        if offline and "consent" in metadata.prompts and best != "consent":
            return f"{best} consent" if best == "select_account" else "consent"
        return best
    if offline:
        return "consent"
    return "login" if again and metadata.openid else None


def _with_query(endpoint: str, fields: Mapping[str, str]) -> str:
    parts = urlsplit(endpoint)
    query = "&".join(part for part in (parts.query, urlencode(fields)) if part)
    return parts._replace(query=query, fragment="").geturl()


_INITIALIZE = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
    b'"capabilities":{},"clientInfo":{"name":"pi-mcp","version":"1"}}}'
)
_LIST = b'{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}'
