"""The pages: signing in by key or link, consent, status. Each form is proven to be ours, from this browser.

Comes in: requests of a browser. Goes out: pages and redirects. Redirects go to our own pages, or to an address that the
OAuth client registered; never to one that a request merely names.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pi_mcp.access import AuditFilter, AuditRow, Client, Key, Scopes, SignIn, Store
from pi_mcp.access import secrets as minted
from pi_mcp.access.scopes import meaning
from pi_mcp.errors import Diagnostic, PiMcpError
from pi_mcp.server.disclosure import sentence
from pi_mcp.server.oauth import places as at
from pi_mcp.server.oauth import redirects
from pi_mcp.server.oauth.grants import CONSENT_LIFE, Answer, Asked, Refused
from pi_mcp.server.oauth.limits import Throttle
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.server import AuthorizationServer
from pi_mcp.server.oauth.wire import Unreadable, address_of, form_of, pairs_of, query_of
from pi_mcp.server.pages import browser
from pi_mcp.server.pages.render import headers, page
from pi_mcp.text import clean_line, visible

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

FAILURES = 10
"""Wrong keys and links that one address may try a minute."""
ROWS = 50
"""Rows of the audit trail, and ended keys and grants, on the status page."""
MOST = 500
"""Keys and grants on it; of more the newest."""
END = f"{at.STATUS}/end"

_LOG = logging.getLogger("pi_mcp.server.pages")
Handler = Callable[["Pages", "Request"], Awaitable["Response"]]


@dataclass(frozen=True, slots=True)
class ServerRow:
    """One upstream server on the status page; `tools` is None while unknown, `problem` where there is none."""

    name: str
    state: str
    tools: int | None
    problem: Diagnostic | None = None


def person(handler: Handler) -> Handler:
    """For pages: what cannot be read or done is a page, too."""

    @functools.wraps(handler)
    async def guarded(self: Pages, request: Request) -> Response:
        try:
            return await handler(self, request)
        except Unreadable as error:
            return self.message("That did not work", error.description, status=error.status)
        except PiMcpError as error:
            _LOG.warning("a page failed: %s", error.diagnostic.line())
            return self.message("Not now", "The gateway's store cannot be used at the moment.", status=503)

    return guarded


class Pages:
    """The pages of one gateway."""

    def __init__(
        self,
        places: Places,
        store: Store,
        server: AuthorizationServer | None = None,
        *,
        servers: Callable[[], Sequence[ServerRow]] = tuple,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`server`: the embedded authorization server, which brings the consent page; `servers` are the upstreams."""
        self.places = places
        self.store = store
        self.server = server
        self._servers = servers
        self._clock = clock
        self._failures = Throttle(FAILURES, 60.0)

    def routes(self) -> list[Route]:
        from starlette.routing import Route

        consent = [
            Route(at.AUTHORIZE, self.consent, methods=["GET"]),
            Route(at.AUTHORIZE, self.decide, methods=["POST"]),
        ]
        return [
            Route("/", self.home, methods=["GET"]),
            Route(at.SIGN_IN, self.sign_in, methods=["GET"]),
            Route(at.SIGN_IN, self.with_key, methods=["POST"]),
            Route(f"{at.LINK}/{{link}}", self.link, methods=["GET"]),
            Route(f"{at.LINK}/{{link}}", self.with_link, methods=["POST"]),
            Route(at.SIGN_OUT, self.sign_out, methods=["POST"]),
            Route(at.STATUS, self.status, methods=["GET"]),
            Route(END, self.end, methods=["POST"]),
            *(consent if self.server is not None else ()),
        ]

    # Signing in

    @person
    async def home(self, request: Request) -> Response:
        del request
        return self._go(at.STATUS)

    @person
    async def sign_in(self, request: Request) -> Response:
        wanted = next((value for name, value in pairs_of(query_of(request)) if name == "next"), "")
        return await self._sign_in_page(request, _own_page(wanted))

    async def _sign_in_page(
        self, request: Request, wanted: str, problem: str | None = None, status: int = 200
    ) -> Response:
        cookie, new = browser.before_cookie(request)
        response = page(
            "signin",
            status=status,
            issuer=self.places.issuer,
            action=at.SIGN_IN,
            next=wanted,
            proof=browser.proof(cookie, "signin"),
            problem=problem,
            client=await self._client_of(wanted),
        )
        if new:
            browser.set_cookie(response, browser.BEFORE, cookie, browser.BEFORE_LIFE)
        return response

    @person
    async def with_key(self, request: Request) -> Response:
        fields = dict(await form_of(request))
        wanted = _own_page(fields.get("next", ""))
        if (refusal := self._foreign(request, fields, "signin")) is not None:
            return refusal
        now = self._clock()
        found = minted.recognise(fields.get("key", "").strip(), "key")
        key = await self.store.key(found[0]) if found else None
        right = key is not None and found is not None and minted.same(key.digest, found[1])
        if key is None or not right or not key.valid(now):
            # A right key always gets in: many people may share one address, behind a proxy, with somebody who guesses.
            if (late := self._too_often(request)) is not None:
                return late
            self._failures.count(address_of(request))
            _LOG.warning("a sign-in with a key failed")
            said = "That key is not valid." if not right else "That key has expired or was revoked."
            return await self._sign_in_page(request, wanted, said, status=401)
        self.store.used("key", key.id, now)
        return await self._enter(request, key.subject, key.scopes, key, wanted)

    async def _enter(self, request: Request, subject: str, scopes: Scopes, key: Key | None, wanted: str) -> Response:
        """Sign the browser in: always with a new cookie, and the sign-in that it had ends."""
        now = self._clock()
        before = await self._who(request)
        if before is not None:
            await self.store.revoke_sign_in(before.id, now)
        ends = now + browser.SESSION_LIFE
        if key is not None and key.expires is not None:
            ends = min(ends, key.expires)
        made = minted.mint("session")
        await self.store.add_sign_in(
            SignIn(made.id, made.digest, subject, scopes, now, ends, key=None if key is None else key.id)
        )
        response = self._go(wanted)
        browser.set_cookie(response, browser.SESSION, made.text, ends - now)
        browser.drop_cookie(response, browser.BEFORE)
        return response

    @person
    async def link(self, request: Request) -> Response:
        """What a link is for. It is not used up by being looked at: mail programs and chats do that, too."""
        found = minted.recognise(request.path_params["link"], "link")
        once = await self.store.peek("link", found[0], self._clock()) if found else None
        if once is None or found is None or not minted.same(once.digest, found[1]):
            return self._dead_link(request)
        cookie, new = browser.before_cookie(request)
        response = page(
            "link",
            issuer=self.places.issuer,
            action=f"{at.LINK}/{request.path_params['link']}",
            subject=once.subject,
            proof=browser.proof(cookie, "link", once.id),
        )
        if new:
            browser.set_cookie(response, browser.BEFORE, cookie, browser.BEFORE_LIFE)
        return response

    @person
    async def with_link(self, request: Request) -> Response:
        fields = dict(await form_of(request))
        found = minted.recognise(request.path_params["link"], "link")
        if found is None:
            return self._dead_link(request)
        if (refusal := self._foreign(request, fields, "link", found[0])) is not None:
            return refusal
        now = self._clock()
        once = await self.store.take("link", found[0], found[1], now)
        of = None if once is None else once.payload.get("key")
        key = await self.store.key(of) if isinstance(of, str) else None
        if once is None or (of is not None and (key is None or not key.valid(now))):
            return self._dead_link(request)
        return await self._enter(request, once.subject, once.scopes, key, at.STATUS)

    def _dead_link(self, request: Request) -> Response:
        if (late := self._too_often(request)) is not None:
            return late
        self._failures.count(address_of(request))
        return self.message(
            "This link does not work",
            "It was used already, has expired, or was not copied whole. `pi-mcp keys link` prints a new one.",
            status=404,
        )

    @person
    async def sign_out(self, request: Request) -> Response:
        fields = dict(await form_of(request))
        cookie = request.cookies.get(browser.SESSION, "")
        if not self._is_ours(request, cookie, fields, "signout"):
            return self._not_ours()
        who = await self._who(request)
        if who is not None:
            await self.store.revoke_sign_in(who.id, self._clock())
        response = self.message("Signed out", "This browser is signed out.", alert=False, link=at.SIGN_IN)
        browser.drop_cookie(response, browser.SESSION)
        return response

    # Consent

    @person
    async def consent(self, request: Request) -> Response:
        query = query_of(request)
        pairs = pairs_of(query)
        who = await self._who(request)
        own = f"{at.AUTHORIZE}?{query}"
        client_id = next((value for name, value in pairs if name == "client_id"), "")
        if who is None and self._server.is_document(client_id):
            # Nobody who is not signed in makes us fetch anything.
            return self._go(f"{at.SIGN_IN}?next={quote(own, safe='')}")
        try:
            asked = await self._server.asked(pairs)
        except Refused as refused:
            # Anybody may register a client: a person goes to its site knowingly or not at all (RFC 9700 §4.11.2).
            # And the answer to our own sign-in form Chromium lets redirect to us alone (`form-action`).
            ours = request.headers.get("sec-fetch-site") == "same-origin"
            if refused.redirect is not None and (ours or not redirects.on_own_machine(refused.redirect)):
                return self._back(refused, _state(pairs))
            return self._refused(refused, _state(pairs))
        if who is None:
            return self._go(f"{at.SIGN_IN}?next={quote(own, safe='')}")
        grantable = self._server.grantable(asked, who.scopes)
        if not grantable:
            denied = Refused("access_denied", "The person may give none of it.", asked.redirect_uri)
            return self._back(
                denied, asked.state, f"{_name(asked.client)} asks for rights that {who.subject} does not have.", 403
            )
        return self._consent_page(request, asked, who, grantable, query)

    def _consent_page(self, request: Request, asked: Asked, who: SignIn, grantable: Any, query: str) -> Response:
        metadata = asked.client.metadata
        return page(
            "consent",
            form_sources=(redirects.form_source(asked.redirect_uri),),
            issuer=self.places.issuer,
            action=at.AUTHORIZE,
            name=_name(asked.client),
            subject=who.subject,
            document=urlsplit(asked.client.id).hostname if asked.client.kind == "document" else None,
            site=metadata.get("client_uri"),
            redirect=visible(asked.redirect_uri),
            where=redirects.where_to(asked.redirect_uri),
            request=query,
            proof=browser.proof(request.cookies.get(browser.SESSION, ""), "consent", query),
            scopes=[{"token": token, "meaning": visible(meaning(token))} for token in grantable],
            left_out=[token for token in asked.scopes if not grantable.holds(token)][:20],
            days=int(CONSENT_LIFE // 86400),
            status_page=at.STATUS,
        )

    @person
    async def decide(self, request: Request) -> Response:
        form = await form_of(request)
        fields = dict(form)
        query = fields.get("request", "")
        cookie = request.cookies.get(browser.SESSION, "")
        if not self._is_ours(request, cookie, fields, "consent", query):
            return self._not_ours()
        who = await self._who(request)
        if who is None:
            return self.message(
                "Signed out", "This browser is not signed in any more. Start again in the program.", status=401
            )
        pairs = pairs_of(query)
        try:
            asked = await self._server.asked(pairs)
            if fields.get("decision") != "allow":
                raise Refused("access_denied", "The person refused.", asked.redirect_uri)
            answer = await self._server.agree(asked, who, [value for name, value in form if name == "scope"])
        except Refused as refused:
            return self._refused(refused, _state(pairs), status=303)
        return _redirected(answer, 303)

    def _refused(self, refused: Refused, state: str | None, status: int = 302) -> Response:
        if refused.redirect is None:
            return self.message("This request cannot be answered", refused.description, status=400)
        return _redirected(self._server.refuse(refused, state), status)

    def _back(self, refused: Refused, state: str | None, text: str | None = None, status: int = 400) -> Response:
        """A page in place of a redirect to the client, which is a link on it."""
        return self.message(
            "Nothing to allow" if text else "This request cannot be answered",
            text or refused.description,
            status=status,
            link=self._server.refuse(refused, state).location,
            link_text=f"Back to the program: {redirects.where_to(refused.redirect or '')}",
        )

    # Status

    @person
    async def status(self, request: Request) -> Response:
        who = await self._who(request)
        if who is None:
            return self._go(f"{at.SIGN_IN}?next={quote(at.STATUS, safe='')}")
        now = self._clock()
        everything = who.scopes.has("admin")
        subject = None if everything else who.subject
        cookie = request.cookies.get(browser.SESSION, "")
        keys = await self.store.keys(subject=subject)
        consents = await self.store.consents(subject=subject)
        rows = await self.store.audit(AuditFilter(subject=subject, limit=ROWS))
        return page(
            "status",
            issuer=self.places.issuer,
            subject=who.subject,
            everything=everything,
            notice="It has ended." if request.query_params.get("ended") == "1" else None,
            sign_out=at.SIGN_OUT,
            sign_out_proof=browser.proof(cookie, "signout"),
            revoke=END,
            servers=[
                {
                    "name": row.name,
                    "state": row.state,
                    "tools": row.tools,
                    "problem": _problem(row, everything=everything),
                }
                for row in self._servers()
                if everything or who.scopes.server(row.name)
            ],
            keys=[
                {
                    "id": key.id,
                    "label": key.label,
                    "subject": key.subject,
                    "scopes": key.scopes,
                    "last_used": key.last_used,
                    "state": _state_of(key.revoked, key.expires, now),
                }
                for key in _recent(keys, now)
            ],
            grants=[
                {
                    "id": consent.id,
                    "name": clean_line(consent.client_name or consent.client, 80),
                    "subject": consent.subject,
                    "scopes": consent.scopes,
                    "created": consent.created,
                    "last_used": consent.last_used,
                    "live": consent.valid(now),
                    "proof": browser.proof(cookie, "end", consent.id),
                }
                for consent in _recent(consents, now)
            ],
            audit=[
                {
                    "time": row.time,
                    "subject": row.subject,
                    "what": _what(row),
                    "action": row.action,
                    "outcome": row.outcome,
                }
                for row in rows
            ],
        )

    @person
    async def end(self, request: Request) -> Response:
        """End a program's access."""
        fields = dict(await form_of(request))
        id = fields.get("grant", "")
        if not self._is_ours(request, request.cookies.get(browser.SESSION, ""), fields, "end", id):
            return self._not_ours()
        who = await self._who(request)
        if who is None:
            return self._go(f"{at.SIGN_IN}?next={quote(at.STATUS, safe='')}")
        mine = await self.store.consents(subject=None if who.scopes.has("admin") else who.subject)
        if id not in {consent.id for consent in mine}:
            return self.message("Not there", "There is no such grant of yours.", status=404, link=at.STATUS)
        await self.store.revoke_consent(id, self._clock())
        return self._go(f"{at.STATUS}?ended=1")

    # Shared

    @property
    def _server(self) -> AuthorizationServer:
        if self.server is None:
            raise RuntimeError("consent belongs to the embedded authorization server")
        return self.server

    def message(
        self,
        heading: str,
        text: str,
        *,
        status: int = 200,
        alert: bool = True,
        link: str | None = None,
        link_text: str = "Go on",
    ) -> Response:
        return page(
            "message",
            status=status,
            issuer=self.places.issuer,
            heading=heading,
            text=text,
            alert=alert,
            link=link,
            link_text=link_text,
        )

    def _go(self, path: str) -> Response:
        from starlette.responses import Response

        return Response(status_code=303, headers={**headers(), "Location": path})

    async def _who(self, request: Request) -> SignIn | None:
        """Who is signed in with this browser."""
        return await browser.signed_in(request.cookies.get(browser.SESSION, ""), self.store, self._clock())

    def _is_ours(self, request: Request, cookie: str, fields: dict[str, str], form: str, *covered: str) -> bool:
        return browser.own_form(request, self.places.issuer) and browser.proven(
            cookie, fields.get("proof", ""), form, *covered
        )

    def _foreign(self, request: Request, fields: dict[str, str], form: str, *covered: str) -> Response | None:
        """The answer to a form that was not ours, before anybody is signed in; None for one that was."""
        cookie = request.cookies.get(browser.BEFORE, "")
        return None if self._is_ours(request, cookie, fields, form, *covered) else self._not_ours()

    def _not_ours(self) -> Response:
        return self.message(
            "Nothing was done",
            "The form came from another address than the gateway's own, was open for too long, or the browser keeps no "
            f"cookies. Allow cookies for {self.places.issuer}, open it by this very name, and fill the form in again.",
            status=403,
            link=at.SIGN_IN,
        )

    def _too_often(self, request: Request) -> Response | None:
        wait = self._failures.wait(address_of(request))
        if wait <= 0:
            return None
        response = self.message("Too many tries", f"Wait {int(wait) + 1} seconds, then try again.", status=429)
        response.headers["Retry-After"] = str(int(wait) + 1)
        return response

    async def _client_of(self, wanted: str) -> str | None:
        """The name of the registered client that somebody signs in for. Nothing is fetched for it."""
        if self.server is None or not wanted.startswith(f"{at.AUTHORIZE}?"):
            return None
        client_id = dict(pairs_of(wanted.partition("?")[2])).get("client_id", "")
        if self.server.is_document(client_id):
            return clean_line(urlsplit(client_id).hostname or "", 80) or None
        client = await self.server.client(client_id)
        return None if client is None else _name(client)


def _own_page(wanted: str) -> str:
    """Where to go after signing in: consent or status, and never anywhere else."""
    plain = len(wanted) <= 16_000 and wanted.isascii() and wanted.isprintable() and " " not in wanted
    return wanted if plain and wanted.startswith(f"{at.AUTHORIZE}?") else at.STATUS


def _name(client: Client) -> str:
    return str(client.metadata.get("client_name") or clean_line(client.id, 80))


def _state(pairs: Sequence[tuple[str, str]]) -> str | None:
    return next((value for name, value in pairs if name == "state"), None)


def _redirected(answer: Answer, status: int) -> Response:
    from starlette.responses import Response

    return Response(status_code=status, headers={**headers(), "Location": answer.location or ""})


def _recent(records: Sequence[Any], now: float) -> list[Any]:
    """Those that live, and the last ones that ended; newest first."""
    ended = {one.id for one in [one for one in records if not one.valid(now)][-ROWS:]}
    return [one for one in reversed(records) if one.valid(now) or one.id in ended][:MOST]


def _state_of(revoked: float | None, expires: float | None, now: float) -> str:
    if revoked is not None:
        return "revoked"
    return "expired" if expires is not None and now >= expires else "valid"


def _problem(row: ServerRow, *, everything: bool) -> str | None:
    """The operator's words for who may see everything; others hear what callers hear."""
    if row.problem is None:
        return None
    if not everything:
        return sentence(row.problem)
    return " ".join(part for part in (row.problem.message, row.problem.hint) if part)


def _what(row: AuditRow) -> str:
    parts = [part for part in (row.server, row.tool) if part]
    return clean_line(" · ".join(parts) or row.action, 160)
