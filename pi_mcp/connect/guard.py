"""The HTTP side of a connection: every message to the server passes here, and a fault stays with its own request.

Comes in: JSON-RPC messages, each the body of one POST. Goes out: that POST to the configured address with the
configured headers, and for each request always an answer: the server's, or a JSON-RPC error while the facts go into
`Faults`. It never raises a network error, never sends a request twice, never turns certificate checks off, never lets
the configured address, a header, a session id or a body reach a log or an exception.

Not the SDK's own transport: there an error of one request ends the whole connection, and its library logs addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pi_mcp.connect.faults import Fault, Faults, RequestId
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.messages import (
    LARGEST_MESSAGE,
    EventParser,
    Found,
    TooLarge,
    decoded,
    id_text,
    is_answer,
    is_message,
    messages_in,
    normalized,
)
from pi_mcp.connect.sender import (
    LONGEST_SILENCE,
    RequestFailed,
    Sender,
    fault_of,
    media_type,
    pieces,
    read_body,
    retry_after,
)
from pi_mcp.connect.streams import FAULT_CODE
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import httpx2

CLOSING = 1.0
"""Seconds that the DELETE at the end of a session may take."""
NOTIFICATION_WAIT = 0.5
"""Seconds that the next message waits for a notification to be taken; the rest goes on in the background."""
INITIALIZED_WAIT = 2.0
NOTIFICATION_LIMIT = 5.0
RESUMPTIONS = 20
FRUITLESS_RESUMPTIONS = 2
STREAM_WORTH_REOPENING = 30.0
"""Seconds that a listening stream must have lived to be opened again: a proxy cuts idle streams after a minute,
a server that closes at once would be asked again and again (reports B047, B064)."""
_JSON_TYPES = ("", "application/json", "application/json-rpc", "text/json", "text/plain", "application/octet-stream")
"""Under these the body decides. Anything else is no answer of an MCP server."""
_ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_PEEK = 64 * 1024
_PEEK_WAIT = 5.0
_END_WAIT = 0.5
"""Seconds that the end of a stream may take after its answer."""


STREAM = "pi-mcp/stream"
"""The member of `_meta` that names the request in whose stream a message came; it never leaves this process."""


class Flight:
    """One request under way, in a task of its own."""

    def __init__(self, request_id: RequestId, method: str, *, modern: bool) -> None:
        self.request_id = request_id
        self.method = method
        self.modern = modern
        """Sent in the era of 2026-07-28, in which closing its stream is what cancels it."""
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Its task runs: before that, cancelling it would leave nobody to answer."""
        self.aborted = False
        self.silent = False
        """Aborted by whoever waited for it: no answer is wanted."""

    def abort(self, *, silent: bool = False) -> None:
        """End its network waits, from the same event loop."""
        self.aborted = True
        self.silent = silent
        if self.begun and self.task is not None:
            self.task.cancel()


class StreamableGuard:
    """Sends messages by POST, and hands on what comes back. One per connection; lives on one event loop."""

    def __init__(
        self,
        sender: Sender,
        faults: Faults,
        log: LogRing,
        hand_on: Callable[[Mapping[str, Any]], Awaitable[None]],
        *,
        on_session_id: Callable[[str], None] | None = None,
        mark: bool = False,
    ) -> None:
        """`hand_on` takes each message of the server's, and may wait. `mark`: whatever the server sends in a request's
        own stream beside the answer has the request's id as `params._meta[STREAM]`; nothing else tells the streams
        apart.
        """
        self._sender = sender
        self._mark = mark
        self._faults = faults
        self._log = log
        self._hand_on = hand_on
        self._on_session_id = on_session_id
        self._version: str | None = None
        """The protocol version that the last request named; messages that name none are of the same."""
        self._session: str | None = None
        self._session_lost = False
        self._flights: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._streaming = False

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sender.aclose()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The protocol's headers, with lower-case names, and `more`: those of one message."""
        headers = {**_ACCEPT, "accept-encoding": accept_encoding()}
        if self._session is not None:
            headers["mcp-session-id"] = self._session
        if self._version is not None:
            headers["mcp-protocol-version"] = self._version
        if more:
            headers.update((name.lower(), value) for name, value in more.items())
        return headers

    # requests

    def request(
        self, request_id: RequestId, method: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a request, without waiting. What comes in its stream is handed on: its answer, or an error, last.

        `headers` are this message's own.
        """
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        if method == "initialize":
            self._version = None  # what a probe before it named does not hold for the handshake
        elif headers is not None:
            self._version = headers.get("mcp-protocol-version", self._version)
        flight = Flight(request_id, method, modern=self._version in MODERN_PROTOCOL_VERSIONS)
        earlier = self._flights.get(str(request_id))
        if earlier is not None:
            earlier.abort(silent=True)
        self._flights[str(request_id)] = flight
        flight.task = self._start(self._fly(flight, self._headers(headers), body))

    def closes(self, request_id: RequestId | None) -> bool:
        """Cancel a request of 2026-07-28 by closing its stream. False where `notifications/cancelled` has to tell."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        flight = None if request_id is None else self._flights.get(str(request_id))
        if flight is None:
            return self._version in MODERN_PROTOCOL_VERSIONS
        if flight.modern:
            flight.abort(silent=True)
        return flight.modern

    async def _fly(self, flight: Flight, headers: Mapping[str, str], body: bytes) -> None:
        flight.begun = True
        fault: Fault | None = Fault("disconnected")
        try:
            if not flight.aborted:
                fault = await self._exchange(flight, headers, body)
        except RequestFailed as failed:
            fault = failed.fault
        except asyncio.CancelledError:
            if not flight.aborted:
                raise
        except Exception as error:
            # A mistake of ours, or of a login: it ends this request, as anything else does.
            self._log.add(f"pi-mcp: a request failed inside the transport ({type(error).__name__})")
            fault = Fault("unexpected")
        finally:
            self._landed(flight)
        if fault is not None and not flight.silent:
            self._faults.note(flight.request_id, fault)
            await self._hand_on(error_of_fault(flight.request_id, fault))

    def _landed(self, flight: Flight) -> None:
        """It can no longer be aborted."""
        if self._flights.get(str(flight.request_id)) is flight:
            del self._flights[str(flight.request_id)]

    async def _exchange(self, flight: Flight, headers: Mapping[str, str], body: bytes) -> Fault | None:
        """Send the request and hand on its answer; the fault where there is none. Raises RequestFailed."""
        silence = None if flight.method == "subscriptions/listen" else LONGEST_SILENCE
        response = await self._sender.send("POST", headers.items(), body, silence=silence)
        try:
            return await self._answer(flight, headers, response)
        finally:
            await response.aclose()

    async def _arrived(self, flight: Flight, message: Mapping[str, Any]) -> bool:
        """Hand on a message of a request's stream; whether it was the answer."""
        answered = is_answer(message)
        if answered:
            self._landed(flight)
        await self._hand_on(message)
        return answered

    async def _answer(self, flight: Flight, headers: Mapping[str, str], response: httpx2.Response) -> Fault | None:
        status = response.status_code
        if not 200 <= status < 300:
            return await self._refused(flight, response)
        if flight.method == "initialize":
            self._adopt_session(response)
        kind = media_type(response)
        if kind == "text/event-stream" and status == 200:
            return await self._stream(flight, headers, response)
        if kind in ("text/html", "application/xhtml+xml"):
            return Fault("html", status=status)
        if not (kind in _JSON_TYPES or kind.endswith("+json")):
            shown_kind = clean_line(kind, 60) if re.fullmatch("[a-z0-9.+-]+/[a-z0-9.+-]+", kind) else "unreadable"
            return Fault("not_mcp", detail=f"content type {shown_kind}")
        try:
            body = await read_body(response, LARGEST_MESSAGE)
        except TooLarge:
            return Fault("too_large", detail="64 MiB")
        except Exception as error:
            return fault_of(error, sent=True, address=self._sender.address, answered=True)
        if not body.strip():
            return Fault("not_mcp", detail=f"a request was answered by HTTP {status} without a body")
        found = self._found(body.decode("utf-8-sig", "replace"), flight.request_id)
        if not any(is_answer(one) for one in found.messages):
            return Fault("html" if body.lstrip()[:1] == b"<" else "malformed", status=status)
        for one in found.messages:
            if await self._arrived(flight, one):
                break
        return None

    def _adopt_session(self, response: httpx2.Response) -> None:
        session = response.headers.get("mcp-session-id", "")
        if not re.fullmatch("[\x21-\x7e]{1,1024}", session):
            return
        self._session = session
        if self._on_session_id is not None:
            self._on_session_id(session)

    async def _refused(self, flight: Flight, response: httpx2.Response) -> Fault | None:
        body = await peek(response)
        fault, error = judge_refusal(response, body, flight.request_id, session=self._session is not None)
        if error is not None:
            await self._arrived(flight, error)
        if fault is None:
            return None
        self._session_lost = self._session_lost or fault.session_lost
        return fault

    def _found(self, text: str, request_id: RequestId | None) -> Found:
        found = messages_in(text, {} if request_id is None else {str(request_id): request_id})
        self._log.noise += found.noise
        if self._mark and request_id is not None:
            for message in found.messages:
                if not is_answer(message):
                    _mark(message, request_id)
        return found

    async def _stream(self, flight: Flight, headers: Mapping[str, str], response: httpx2.Response) -> Fault | None:
        """Hand on the messages of one request's stream up to its answer; the fault where there is none.

        Where the server gave event ids, a broken stream is taken up again by GET with Last-Event-ID, a bounded
        number of times; the POST is never repeated (report B073).
        """
        last_id: str | None = None
        wait = 1.0
        resumed = fruitless = 0
        current: httpx2.Response | None = response
        fault = Fault("no_response")
        while True:
            if current is not None:
                fault = Fault("no_response")
                parser = EventParser()
                chunks = pieces(current)
                try:
                    async for chunk in chunks:
                        for event in parser.feed(chunk):
                            if event.retry is not None:
                                wait = event.retry
                            if event.id:
                                last_id, fruitless = event.id, 0
                            if not event.data:
                                continue
                            found = self._found(event.data, flight.request_id)
                            for message in found.messages:
                                if await self._arrived(flight, message):
                                    await _let_end(chunks)
                                    return None
                            if found.malformed:
                                return Fault("malformed")
                    # A whole answer whose last empty line was lost is an answer all the same.
                    rest = parser.rest()
                    for message in self._found(rest, flight.request_id).messages if rest else ():
                        if is_answer(message):
                            await self._arrived(flight, message)
                            return None
                except TooLarge:
                    fault = Fault("too_large", detail="64 MiB")
                    last_id = None
                except Exception as error:
                    fault = fault_of(error, sent=True, address=self._sender.address, answered=True)
                finally:
                    await chunks.aclose()
                    await current.aclose()
            expired = time.monotonic() - flight.started > LONGEST_SILENCE
            if last_id is None or expired or resumed == RESUMPTIONS or fruitless == FRUITLESS_RESUMPTIONS:
                return fault
            resumed += 1
            fruitless += 1
            await asyncio.sleep(min(max(wait, 0.05), 30.0))
            current = await self._resume(headers, last_id)

    async def _resume(self, headers: Mapping[str, str], last_id: str) -> httpx2.Response | None:
        kept = {
            name: value
            for name, value in headers.items()
            if name in ("mcp-session-id", "mcp-protocol-version", "accept-encoding")
        }
        kept |= {"accept": "text/event-stream", "last-event-id": last_id}
        try:
            response = await self._sender.send("GET", kept.items())
        except RequestFailed:
            return None
        if response.status_code == 200 and media_type(response) == "text/event-stream":
            return response
        await response.aclose()
        return None

    # notifications and answers to the server

    def tell(
        self,
        method: str | None,
        params: Mapping[str, Any] | None,
        body: bytes,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Task[None]:
        """Send a message without an answer: a notification, or with `method` None what answers the server.

        The next message waits for the task that comes back. It ends when the server has taken this one, or after
        half a second: then the rest goes on beside everything else.
        """
        if headers is not None:
            self._version = headers.get("mcp-protocol-version", self._version)
        return self._start(self._tell(method, params, body, headers))

    async def _tell(
        self,
        method: str | None,
        params: Mapping[str, Any] | None,
        body: bytes,
        headers: Mapping[str, str] | None,
    ) -> None:
        task = self._start(self._deliver(self._headers(headers), body))
        if method == "notifications/initialized" and self._session is not None and not self._streaming:
            self._streaming = True
            self._start(self._listen(self._headers()))
        wait = INITIALIZED_WAIT if method == "notifications/initialized" else NOTIFICATION_WAIT
        await asyncio.wait({task}, timeout=wait)
        if method == "notifications/cancelled":
            flight = self._flights.get(str((params or {}).get("requestId")))
            if flight is not None:
                flight.abort()

    async def _deliver(self, headers: Mapping[str, str], body: bytes) -> None:
        try:
            async with asyncio.timeout(NOTIFICATION_LIMIT):
                response = await self._sender.send("POST", headers.items(), body)
                # Whatever a server says to a notification is not looked at (report B068); a short body is read
                # so that the socket can be used again.
                try:
                    await peek(response)
                finally:
                    await response.aclose()
            if response.status_code >= 300:
                self._log.add(f"pi-mcp: a notification was answered with HTTP {response.status_code}")
        except RequestFailed as failed:
            self._log.add(f"pi-mcp: a notification was not delivered ({failed.fault.kind})")
        except TimeoutError:
            self._log.add("pi-mcp: a notification was not taken in time")
        except Exception:
            self._log.add("pi-mcp: a notification was not delivered")

    # the server's own stream, and the end

    async def _listen(self, headers: Mapping[str, str]) -> None:
        """The optional GET stream. Whatever happens to it harms nothing: in the end it is just silent
        (reports B047, B049, B050, B064).
        """
        headers = {**headers, "cache-control": "no-store"}
        while True:
            opened = time.monotonic()
            try:
                response = await self._sender.send("GET", headers.items(), silence=None)
            except Exception:
                return
            try:
                if response.status_code != 200 or media_type(response) != "text/event-stream":
                    return
                parser = EventParser()
                async with contextlib.aclosing(pieces(response)) as chunks:
                    async for chunk in chunks:
                        for event in parser.feed(chunk):
                            if event.id:
                                headers["last-event-id"] = event.id
                            if not event.data:
                                continue
                            for message in self._found(event.data, None).messages:
                                await self._hand_on(message)
            except Exception:
                self._log.add("pi-mcp: the server's stream of notifications broke off")
            finally:
                await response.aclose()
            if time.monotonic() - opened < STREAM_WORTH_REOPENING:
                return
            await asyncio.sleep(1.0)

    async def end_session(self) -> None:
        """Tell the server that its session is over, where it has one. A second at most."""
        if self._session is None or self._session_lost:
            return
        try:
            async with asyncio.timeout(CLOSING):
                response = await self._sender.send("DELETE", self._headers().items())
                await response.aclose()
        except Exception:
            self._log.add("pi-mcp: the session could not be ended")


async def _let_end(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows an answer, its stream's end as a rule: closed before that, its connection is lost."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_END_WAIT):
            size = 0
            while size < _PEEK and (chunk := await anext(chunks, None)) is not None:
                size += len(chunk)


@functools.cache
def accept_encoding() -> str:
    """The encodings that the HTTP library can decode here."""
    import httpx2

    return str(httpx2.AsyncClient(transport=httpx2.AsyncBaseTransport(), trust_env=False).headers["accept-encoding"])


def _mark(message: dict[str, Any], request_id: RequestId) -> None:
    params = dict(message.get("params") or {})
    meta = params.get("_meta")
    params["_meta"] = {**(meta if isinstance(meta, dict) else {}), STREAM: request_id}
    message["params"] = params


async def peek(response: httpx2.Response) -> bytes:
    """The start of a body that is of no great interest; empty where it is long, slow or broken."""
    try:
        async with asyncio.timeout(_PEEK_WAIT):
            return await read_body(response, _PEEK)
    except Exception:
        return b""


def error_of_fault(request_id: RequestId, fault: Fault) -> dict[str, Any]:
    """The JSON-RPC error that stands in for an answer that cannot come; the fault noted beside it says why."""
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": FAULT_CODE, "message": fault.kind}}


def judge_refusal(
    response: httpx2.Response, body: bytes, request_id: RequestId, *, session: bool
) -> tuple[Fault | None, dict[str, Any] | None]:
    """What an answer that is no success means: a fault, or the server's own JSON-RPC error for this request.

    `session`: the server had issued a session id. A 404 then ends the session, and proves that nothing ran; a 400
    that speaks of the session ends it too and proves nothing (report B052).
    """
    status = response.status_code
    error = _error_in(body)
    fault = Fault(
        "status",
        status=status,
        headers={
            name: ", ".join(response.headers.get_list(name))
            for name in ("www-authenticate", "retry-after")
            if name in response.headers
        },
        retry_after=retry_after(response.headers.get("retry-after")),
        executed="no" if status in (401, 403, 404, 405, 407, 413, 421) else "unknown",
    )
    if status == 404 and session and not _is_method_missing(error, request_id):
        return replace(fault, kind="session_lost", session_lost=True), None
    if status == 400 and session and _speaks_of_session(error, body):
        return replace(fault, kind="session_lost", session_lost=True), None
    if status == 429:
        return replace(fault, kind="rate_limited"), None
    if error is not None and status not in (401, 403, 407):
        answer = normalized(error, request_id)
        if answer is not None:
            return None, answer
    return fault, None


def _error_in(body: bytes) -> dict[str, Any] | None:
    try:
        value = decoded(body.decode("utf-8-sig", "replace"))
    except ValueError:
        return None
    if is_message(value) and is_answer(value) and isinstance(value.get("error"), dict):
        return dict(value)
    return None


def _is_method_missing(error: Mapping[str, Any] | None, request_id: RequestId) -> bool:
    """A 404 that is the HTTP spelling of "method not found" and says nothing about the session."""
    return error is not None and id_text(error.get("id")) == str(request_id) and error["error"].get("code") == -32601


def _speaks_of_session(error: Mapping[str, Any] | None, body: bytes) -> bool:
    """A 400 that means an unknown session: many servers answer so in place of 404."""
    if error is not None:
        text = error["error"].get("message")
        return isinstance(text, str) and re.search("session|not initialized", text, re.IGNORECASE) is not None
    return len(body) < 4096 and re.search(rb"session", body, re.IGNORECASE) is not None
