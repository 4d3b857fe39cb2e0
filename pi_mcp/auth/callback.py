"""The loopback listener that a browser comes back to, and the reading of what it brings.

Comes in: one GET to one path with the state of this login. Goes out: an `Answer`. It binds loopback addresses only,
checks Host, path and state, takes one answer, and shows a plain page that holds nothing of the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from pi_mcp.auth.tokens import ERRORS
from pi_mcp.errors import failure

DEFAULT_PORT = 19847
DEFAULT_PATH = "/callback"
READ_LIMIT = 5.0
"""Seconds that a browser has to send its request."""
LARGEST_REQUEST = 32 * 1024
"""Bytes of request line and headers; a code may be long."""
_MOST_SOCKETS = 32
_LAST_WORDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the authorization server sent back with the browser (RFC 6749 §4.1.2, RFC 9207)."""

    code: str | None = field(default=None, repr=False)
    error: str | None = None
    """A registered error's name, or "unknown"."""
    iss: str | None = field(default=None, repr=False)


class NotThisLogin(Exception):
    """The parameters are not those of the login that runs; the text says why and quotes nothing."""


def read_answer(query: str, state: str) -> Answer:
    """The answer in a query string. Raises NotThisLogin for another state, a repeated or a missing parameter."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        raise NotThisLogin("It cannot be read.") from None
    values = dict(pairs)
    for name in ("code", "state", "error", "iss"):
        if sum(key == name for key, _ in pairs) > 1:
            raise NotThisLogin("A parameter is there twice.")
    if not hmac.compare_digest(values.get("state", "").encode(errors="replace"), state.encode()):
        raise NotThisLogin("It does not belong to this login.")
    error, code = values.get("error"), values.get("code")
    if not error and not code:
        raise NotThisLogin("It holds no code.")
    iss = values.get("iss")
    if error:
        return Answer(None, error if error in ERRORS else "unknown", iss)
    return Answer(code, None, iss)


class CallbackListener:
    """Listens from `async with` to its end. Raises `callback_unavailable` when the port is taken."""

    def __init__(
        self, server: str, *, host: str = "127.0.0.1", port: int = DEFAULT_PORT, path: str = DEFAULT_PATH
    ) -> None:
        self.redirect_uri = f"http://{host}:{port}{path}"
        self._server = server
        self._host, self._port, self._path = host, port, path
        self._state: str | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._listening: list[asyncio.Server] = []
        self._sockets: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        # A browser may take "localhost" for either address.
        addresses = ["127.0.0.1", "::1"] if self._host == "localhost" else ["127.0.0.1"]
        for address in addresses:
            try:
                self._listening.append(
                    await asyncio.start_server(self._connected, address, self._port, limit=LARGEST_REQUEST)
                )
            except OSError as error:
                if address == "::1" and error.errno != errno.EADDRINUSE:
                    continue  # no IPv6 here
                await self.close()
                raise failure(
                    "callback_unavailable",
                    "authenticate",
                    self._server,
                    f"Port {self._port} of {address} is taken by another process, so the browser could not come back.",
                    "End what listens there (perhaps an earlier login), or set `callbackPort` in `oauth` to another "
                    "port; a client registered beforehand has to allow it.",
                ) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def expect(self, state: str) -> asyncio.Future[Answer]:
        """Wait for the answer with this state; replaces an earlier wait."""
        self._state = state
        self._answer = asyncio.get_running_loop().create_future()
        return self._answer

    async def close(self) -> None:
        """Close the port and every socket; about a second at most."""
        self._closed = True
        try:
            # asyncio loses a socket that was accepted a moment before its server is closed: accept no more, let
            # what is on its way arrive (it is turned away), then close.
            loop = asyncio.get_running_loop()
            for server in self._listening:
                for one in server.sockets:
                    with contextlib.suppress(NotImplementedError):  # Windows
                        loop.remove_reader(one.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
        finally:
            for server in self._listening:
                server.close()
            self._listening.clear()
        tasks = set(self._sockets)
        if tasks:
            # A browser that is about to get its page may have it.
            _, late = await asyncio.wait(tasks, timeout=_LAST_WORDS if self._done else 0.05)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_LAST_WORDS)

    @property
    def _done(self) -> bool:
        return self._answer is not None and self._answer.done()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed or len(self._sockets) >= _MOST_SOCKETS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._sockets.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._sockets.discard(task)
            # Nothing is left to be sent, or nobody to read it. Not in the task: one that is cancelled early never runs.
            writer.transport.abort()

        task.add_done_callback(ended)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_LIMIT):
                head = await reader.readuntil(b"\r\n\r\n")
                status, title, text = self._judge(head.decode("latin-1"))
                writer.write(_page(status, title, text))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass

    def _judge(self, head: str) -> tuple[str, str, str]:
        """Status, title and text of the page; takes the answer when it is the one."""
        lines = head.split("\r\n")
        words = lines[0].split(" ")
        hosts = [line.partition(":")[2].strip().lower() for line in lines[1:] if line.lower().startswith("host:")]
        allowed = {f"{name}:{self._port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if self._port == 80:
            allowed |= {"127.0.0.1", "localhost", "[::1]"}
        # A page elsewhere whose name was bent to this machine sends its own name (DNS rebinding).
        if len(hosts) != 1 or hosts[0] not in allowed:
            return "400 Bad Request", "Not here", "This address is for a login only."
        if len(words) != 3:
            return "400 Bad Request", "Not here", "This address is for a login only."
        method, target, _ = words
        path, _, query = target.partition("?")
        if path != self._path:
            return "404 Not Found", "Not here", "This address is for a login only."
        if method != "GET":
            return "405 Method Not Allowed", "Not here", "This address is for a login only."
        if self._answer is None or self._state is None or self._answer.done():
            return "410 Gone", "No login waits here", "Return to the terminal."
        try:
            answer = read_answer(query, self._state)
        except NotThisLogin:
            return "400 Bad Request", "Not this login", "Return to the terminal and use the address shown there."
        self._answer.set_result(answer)
        if answer.error is not None:
            return "200 OK", "The login was refused", "Return to the terminal; it says more."
        return "200 OK", "Almost done", "You can close this page and return to the terminal."


def pasted_answer(text: str, redirect_uri: str, state: str) -> Answer:
    """The answer in an address that a person pasted. Raises NotThisLogin."""
    text = "".join(text.split())
    if text.startswith("?"):
        return read_answer(text[1:], state)
    try:
        found, own = urlsplit(text), urlsplit(redirect_uri)
        place = (found.scheme, found.hostname, found.port, found.path)
    except ValueError:
        raise NotThisLogin("It is no address.") from None
    names = {"127.0.0.1", "localhost"}
    if place[0] != own.scheme or place[1] not in names or place[2:] != (own.port, own.path):
        raise NotThisLogin(f"It does not begin with {redirect_uri}.")
    return read_answer(found.query, state)


def _page(status: str, title: str, text: str) -> bytes:
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>pi-mcp: {title}</title>'
        f"<h1>{title}</h1><p>{text}</p></html>\n"
    ).encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
        "Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
