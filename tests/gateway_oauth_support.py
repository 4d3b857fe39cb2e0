"""A gateway's OAuth and pages on a real socket, with a protected resource behind it, and a browser for people.

Comes in: what a test wants of it. Goes out: addresses, keys, a browser that keeps cookies as Chromium does (a Secure
cookie goes to http on this machine, too) and fills in forms.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pi_mcp.access import Grant, Key, Once, Scopes
from pi_mcp.access import secrets as minted
from pi_mcp.errors import Diagnostic
from pi_mcp.server.oauth.bearer import BadToken, CannotTell
from pi_mcp.server.oauth.documents import Documents
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.routes import Endpoints, resource_routes
from pi_mcp.server.oauth.server import AuthorizationServer
from pi_mcp.server.pages.routes import Pages, ServerRow
from pi_mcp.store import SqliteStore, open_store
from tests.auth_server import free_port

ALL = "tools:read tools:write resources:read prompts:read apps:render"
VERIFIER = "v" * 50


BROKEN = Diagnostic(
    "configuration_invalid", "connect", "mail", "`/opt/mail <b>` is not there.", "Set MAIL_HOME in its env."
)


class TestGateway:
    """What `gateway()` yields."""

    __test__ = False

    def __init__(self, port: int, store: SqliteStore, **options: Any) -> None:
        self.places = Places.of(options.pop("public_url", None) or f"http://127.0.0.1:{port}")
        self.local = f"http://127.0.0.1:{port}"
        self.store = store
        clock = options.pop("clock", time.time)
        documents = options.pop("documents", None) or Documents(store, reach="loopback", clock=clock)
        self.server = AuthorizationServer(self.places, store, documents=documents, clock=clock)
        self.pages = Pages(
            self.places,
            store,
            self.server,
            servers=lambda: (
                ServerRow("files", "connected", 3),
                ServerRow("mail", "failed", None, BROKEN),
                ServerRow("notes", "idle", None),
            ),
            clock=clock,
        )
        self.app = Starlette(
            routes=[
                *resource_routes(self.places, [self.places.issuer]),
                *Endpoints(self.server).routes(),
                *self.pages.routes(),
                Route("/mcp", self._resource, methods=["GET", "POST"]),
            ]
        )

    @property
    def issuer(self) -> str:
        return self.places.issuer

    async def _resource(self, request: Request) -> Response:
        """Says who calls, as authentication will."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        challenge = f'Bearer resource_metadata="{self.places.resource_metadata()}"'
        try:
            grant = await self.server.verify(token if scheme.lower() == "bearer" else "")
        except BadToken:
            return Response(status_code=401, headers={"WWW-Authenticate": challenge})
        except CannotTell:
            return Response(status_code=503)
        return JSONResponse(said_of(grant))

    async def key(self, subject: str = "ann", scopes: str = ALL, **members: Any) -> str:
        made = minted.mint("key")
        await self.store.add_key(Key(made.id, made.digest, subject, Scopes.parse(scopes), time.time(), **members))
        return made.text

    async def link(self, subject: str = "ann", scopes: str = ALL, life: float = 60.0) -> str:
        made = minted.mint("link")
        await self.store.keep(Once("link", made.id, made.digest, time.time() + life, subject, Scopes.parse(scopes), {}))
        return f"/signin/link/{made.text}"


def said_of(grant: Grant) -> dict[str, Any]:
    return {
        "subject": grant.subject,
        "scopes": list(grant.scopes),
        "kind": grant.kind,
        "client": grant.client,
        "credential": grant.credential_id,
    }


@contextlib.asynccontextmanager
async def gateway(folder: Path, **options: Any) -> AsyncIterator[TestGateway]:
    """A gateway while it runs."""
    port = free_port()
    store = await open_store(folder / "store.sqlite3")
    made = TestGateway(port, store, **options)
    try:
        async with serving(made.app, port):
            yield made
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def serving(app: Any, port: int, **more: Any) -> AsyncIterator[str]:
    """An ASGI application on a port of 127.0.0.1; `more` for uvicorn (a certificate)."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=port, log_level="critical", lifespan="off", access_log=False, **more
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment, method-assign]
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(10):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
        yield f"{'https' if more else 'http'}://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


class Form(HTMLParser):
    """The last form of a page that has a `proof`, and the page's text."""

    def __init__(self, html: str, action: str | None = None) -> None:
        super().__init__()
        self.actions: list[str] = []
        self.fields: dict[str, list[tuple[str, str]]] = {}
        self.text = ""
        self.feed(html)
        self.action = action or (self.actions[-1] if self.actions else "")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.actions.append(values.get("action", ""))
            self.fields.setdefault(values.get("action", ""), [])
        elif tag == "input" and self.actions and (values.get("type") != "checkbox" or "checked" in values):
            self.fields[self.actions[-1]].append((values.get("name", ""), values.get("value", "")))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def values(self) -> list[tuple[str, str]]:
        return self.fields.get(self.action, [])


class Browser:
    """A person's browser: cookies, forms, redirects within the gateway."""

    def __init__(self, gateway: TestGateway | str) -> None:
        self.origin = gateway if isinstance(gateway, str) else gateway.issuer
        self.local = gateway if isinstance(gateway, str) else gateway.local
        self.cookies: dict[str, str] = {}
        self.answers: list[httpx2.Response] = []

    async def __aenter__(self) -> Browser:
        self._client = await httpx2.AsyncClient(trust_env=False).__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def send(
        self, method: str, url: str, body: Sequence[tuple[str, str]] | None = None, **headers: str
    ) -> httpx2.Response:
        """One request, without its redirect."""
        url = urljoin(self.local + "/", url.replace(self.origin, self.local, 1))
        sent = {"Sec-Fetch-Site": "none"}
        if body is not None:
            sent = {"Sec-Fetch-Site": "same-origin", "Origin": self.origin}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        content = None
        if body is not None:
            content = urlencode(body).encode()
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        answer = await self._client.request(method, url, content=content, headers=sent)
        # httpx2 would hold Secure cookies back from http; a browser takes them for its own machine.
        self._client.cookies.clear()
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            if "max-age=0" in line.lower() or value in ("", '""'):
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        self.answers.append(answer)
        return answer

    async def open(self, url: str) -> httpx2.Response:
        """As `send`, and on through redirects that stay here; the last answer."""
        answer = await self.send("GET", url)
        return await self._onward(answer)

    async def submit(
        self,
        page: httpx2.Response,
        *,
        change: Callable[[list[tuple[str, str]]], list[tuple[str, str]]] | None = None,
        action: str | None = None,
        **fields: str,
    ) -> httpx2.Response:
        """Fill in the page's form and send it; on through redirects that stay here."""
        form = Form(page.text, action)
        values = [(name, value) for name, value in form.values if name not in fields]
        values += list(fields.items())
        answer = await self.send("POST", form.action, change(values) if change else values)
        return await self._onward(answer)

    async def _onward(self, answer: httpx2.Response) -> httpx2.Response:
        for _ in range(10):
            target = answer.headers.get("location", "")
            if not 300 <= answer.status_code < 400 or not target.startswith(("/", self.origin)):
                return answer
            answer = await self.send("GET", target, Sec_Fetch_Site=str(answer.request.headers["sec-fetch-site"]))
        raise AssertionError("it redirects for ever")

    async def sign_in(self, key: str) -> httpx2.Response:
        return await self.submit(await self.open("/signin"), key=key)

    async def agree(self, url: str, key: str | None = None, **fields: str) -> str:
        """Open an authorization address, sign in where asked, allow it; where the browser is sent."""
        page = await self.open(url)
        if 'name="key"' in page.text:
            assert key is not None, page.text
            page = await self.submit(page, key=key)
        assert 'name="decision"' in page.text, page.text
        answer = await self.submit(page, **{"decision": "allow", **fields})
        assert answer.status_code == 303, answer.text
        return str(answer.headers["location"])
