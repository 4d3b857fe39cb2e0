"""One HTTP request and its answer, over `http.client`: headers, cookies, redirects, and which sockets are kept.

Comes in: a verb, headers and a body. Goes out: an `Answer` with its body unread, or `MCPClientError`.
A request is never sent again: a kept socket is looked at before it is used, not tried.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from pi_mcp._version import __version__
from pi_mcp.http_client.address import REDIRECTS, Address, redirected
from pi_mcp.http_client.fault import MCPClientError
from pi_mcp.http_client.wire import Connection, Deadline

KEEPALIVE = 4.0
"""Seconds that an idle socket is kept: less than the five after which most servers close theirs."""
STREAM_END = 0.02
"""Seconds that the end of a stream whose answer is there is waited for: less than a new connection costs."""
_MOST_COOKIES = 100
_READ = 64 * 1024

# What the transport itself decides; a configured header of this name would break the protocol or the framing.
_OWN_HEADERS = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "keep-alive", "te", "trailer", "upgrade"}
    | {"expect", "accept", "accept-encoding", "content-type", "last-event-id"}
    | {"mcp-session-id", "mcp-protocol-version", "mcp-method", "mcp-name"}
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_UNSAFE_VALUE = re.compile("[\x00-\x08\x0a-\x1f\x7f]")


class TooLarge(Exception):
    """More bytes than a message may have."""


def checked(headers: Mapping[str, str]) -> dict[str, str]:
    """The configured headers that are sent. Raises `usage` for one that HTTP cannot carry, without its value."""
    kept: dict[str, str] = {}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise MCPClientError("usage", detail="A header name holds characters that HTTP does not allow")
        if _UNSAFE_VALUE.search(value):
            detail = f"The value of header `{name}` holds a line break or a control character"
            raise MCPClientError("usage", detail=detail)
        lower = name.lower()
        if lower not in _OWN_HEADERS and not lower.startswith("mcp-param-"):
            kept[name] = value.strip(" \t")
    return kept


class Answer:
    """Status, headers, and a body that is read by `chunks` within the request's deadline."""

    def __init__(self, pool: Exchange, connection: Connection, response: http.client.HTTPResponse) -> None:
        self._pool = pool
        self._connection = connection
        self._response = response
        self.status = response.status

    def header(self, name: str) -> str:
        return str(self._response.headers.get(name) or "")

    def headers(self, name: str) -> list[str]:
        return [str(value) for value in self._response.headers.get_all(name) or ()]

    @property
    def media_type(self) -> str:
        return self.header("content-type").partition(";")[0].strip().lower()

    def chunks(self) -> Iterator[bytes]:
        """The decoded body. Raises TimeoutError, `reset` for one that breaks off, `malformed` for odd packing."""
        unpack = _unpacker(self.header("content-encoding"))
        while True:
            try:
                chunk = self._response.read1(_READ)
            except TimeoutError:
                raise
            except (http.client.HTTPException, OSError, ValueError):
                raise self._pool.broken_off() from None
            if not chunk:
                # `http.client` ends a short body without a word.
                if self._response.length:
                    raise self._pool.broken_off()
                return
            yield from unpack(chunk) if unpack is not None else (chunk,)

    def body(self, limit: int) -> bytes:
        """The whole body; raises TooLarge beyond `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise TooLarge
            parts.append(chunk)
        return b"".join(parts)

    def hurry(self, seconds: float) -> None:
        """Let the rest of the body take so long at most. Raises TimeoutError where no time is left at all."""
        wire = self._connection.wire
        if wire is not None:
            wire.deadline = Deadline(min(seconds, wire.deadline.left()))

    def finish(self) -> None:
        """After the answer in a stream: read its end, where that comes at once, so that the socket can be kept."""
        if self._response.will_close:
            return
        with contextlib.suppress(TimeoutError, MCPClientError):
            self.hurry(STREAM_END)
            for _ in self.chunks():
                pass

    def close(self) -> None:
        """Keep the socket where the whole body was read, else close it."""
        ended = self._response.isclosed() or self._response.length == 0
        whole = ended and not self._response.will_close
        self._response.close()
        self._pool.give_back(self._connection, keep=whole)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exchange:
    """Requests to one configured address."""

    def __init__(
        self, address: Address, headers: Mapping[str, str], environ: Mapping[str, str], connect_timeout: float
    ) -> None:
        self.address = address
        self._headers = checked(headers)
        if address.login is not None:
            if any(name.lower() == "authorization" for name in self._headers):
                raise MCPClientError("usage", detail="The address holds a login beside an `Authorization` header")
            self._headers["Authorization"] = address.login
        self._environ = environ
        self._connect_timeout = connect_timeout
        self._cookies: dict[str, str] = {}
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._lock = threading.Lock()
        self._aborted = False

    @property
    def secrets(self) -> list[str]:
        """What a server's own sentence must not repeat to a reader."""
        values = list(self._headers.values())
        return [part for value in values for part in {value, *value.split()} if len(part) >= 4]

    def send(self, verb: str, headers: Mapping[str, str], body: bytes | None, deadline: Deadline) -> Answer:
        """The answer to one request, redirects followed. Raises MCPClientError, TimeoutError."""
        address = self.address
        for _ in range(REDIRECTS + 1):
            answer = self._once(verb, address, headers, body, deadline)
            target = redirected(address, answer.status, answer.header("location"))
            if target is None:
                return answer
            status = answer.status
            answer.close()
            if isinstance(target, str):
                raise MCPClientError("redirect", status=status, executed="no", detail=target)
            if status == 308 and address == self.address:
                self.address = target  # permanent: spare the detour from now on
            address = target
        raise MCPClientError("redirect", executed="no", detail=f"more than {REDIRECTS} times, in a circle")

    def _once(
        self, verb: str, address: Address, headers: Mapping[str, str], body: bytes | None, deadline: Deadline
    ) -> Answer:
        connection = self._connection(address, deadline)
        try:
            target = address.target
            if connection.absolute:
                target = f"http://{address.netloc}{address.target}"
            connection.putrequest(verb, target, skip_host=True, skip_accept_encoding=True)
            for name, value in self._all(address, connection, headers, body).items():
                connection.putheader(name, value.encode("utf-8"))
            # A server may answer before it has read everything, and close: then its answer counts.
            with contextlib.suppress(BrokenPipeError):
                connection.endheaders(body)
            response = connection.getresponse()
        except BaseException as error:
            self.give_back(connection, keep=False)
            raise self._explained(error, address) from None
        answer = Answer(self, connection, response)
        self._keep_cookies(answer)
        return answer

    def _all(
        self, address: Address, connection: Connection, headers: Mapping[str, str], body: bytes | None
    ) -> dict[str, str]:
        # What a cache on the way answers is not what the server says now.
        own = {"Host": address.netloc, "User-Agent": f"pi-mcp/{__version__}", "Cache-Control": "no-cache"}
        if self._cookies:
            own["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        if connection.absolute and connection.proxy_login:
            own["Proxy-Authorization"] = connection.proxy_login
        if body is not None:
            own["Content-Length"] = str(len(body))
        sent: dict[str, tuple[str, str]] = {}
        for name, value in [*own.items(), *self._headers.items(), *headers.items()]:
            sent[name.lower()] = (name, value)
        return dict(sent.values())

    def _explained(self, error: BaseException, address: Address) -> BaseException:
        if self._aborted:
            return MCPClientError("aborted")
        if isinstance(error, MCPClientError | TimeoutError) or not isinstance(error, Exception):
            return error
        if isinstance(error, http.client.RemoteDisconnected | OSError):
            return MCPClientError("reset")
        return MCPClientError("not_mcp", detail=f"{address.place} does not speak HTTP")

    # sockets

    def _connection(self, address: Address, deadline: Deadline) -> Connection:
        """A kept socket on which nothing came since, or a new one."""
        found = None
        with self._lock:
            if self._aborted:
                raise MCPClientError("aborted", executed="no")
            while self._idle and found is None:
                one = self._idle.pop()
                young = time.monotonic() - one.used < KEEPALIVE and one.wire is not None and one.wire.is_fresh()
                if young and (one.host, one.port) == (address.host, address.port):
                    found = one
                else:
                    one.close()
        if found is None:
            found = Connection(address, self._environ, self._connect_timeout)
            found.open(deadline)
        if found.wire is not None:
            found.wire.deadline = deadline
        self._take(found)
        return found

    def connect(self, deadline: Deadline) -> None:
        """Have a socket ready for the next request. Raises as `send`."""
        self.give_back(self._connection(self.address, deadline), keep=True)

    def _take(self, connection: Connection) -> None:
        with self._lock:
            if not self._aborted:
                self._busy.add(connection)
                return
        connection.close()  # it was stopped while the connection was made
        raise MCPClientError("aborted", executed="no")

    def give_back(self, connection: Connection, *, keep: bool) -> None:
        self._busy.discard(connection)
        if keep and connection.sock is not None and not self._aborted:
            connection.used = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()

    def abort(self) -> None:
        """From any thread: end every request under way, and refuse new ones until `resume`."""
        with self._lock:
            self._aborted = True
            busy = list(self._busy)
        for connection in busy:
            if connection.wire is not None:
                connection.wire.interrupt()

    def broken_off(self) -> MCPClientError:
        return MCPClientError("aborted" if self._aborted else "reset")

    def resume(self) -> None:
        self._aborted = False

    def close(self) -> None:
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()
        self._busy.clear()

    def _keep_cookies(self, answer: Answer) -> None:
        """A load balancer's cookie has to come back. Attributes are not looked at: all goes to one origin."""
        for line in answer.headers("set-cookie"):
            name, equals, value = line.partition(";")[0].strip().partition("=")
            if not equals or not _TOKEN.fullmatch(name) or not re.fullmatch("[\x21-\x3a\x3c-\x7e]*", value):
                continue
            if re.search(r";\s*max-age\s*=\s*(0|-\d+)\s*(;|$)", line, re.IGNORECASE):
                self._cookies.pop(name, None)
            else:
                self._cookies[name] = value
        if len(self._cookies) > _MOST_COOKIES:
            self._cookies.clear()


def _unpacker(content_encoding: str) -> Any:
    """How a body is decoded that came packed without having been asked for; None for a plain one."""
    codings = [one for one in (part.strip().lower() for part in content_encoding.split(",")) if one]
    codings = [one for one in codings if one != "identity"]
    if not codings:
        return None
    if codings[0] not in ("gzip", "x-gzip", "deflate") or len(codings) > 1:
        raise MCPClientError("malformed", detail="packed in a way that was not asked for")
    import zlib

    engine = zlib.decompressobj(47 if codings[0] != "deflate" else 15)

    def unpack(chunk: bytes) -> Iterator[bytes]:
        try:
            # Piece by piece: a few bytes can unpack to a thousand times as many.
            while chunk:
                yield engine.decompress(chunk, _READ * 16)
                chunk = engine.unconsumed_tail
        except zlib.error:
            raise MCPClientError("malformed") from None

    return unpack
