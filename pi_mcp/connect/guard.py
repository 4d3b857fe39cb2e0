"""The HTTP side of a connection: every request of the SDK passes here, and a fault stays with its own request.

Comes in: HTTP requests that carry one JSON-RPC message each, addressed to a placeholder. Goes out: the same
requests to the configured address with the configured headers, and to the SDK always an answer that it can
read: the server's, or a JSON-RPC error while the facts go into `Faults`. It never raises a network error into
the SDK, never sends a request twice, never turns certificate checks off, never lets the configured address,
a header, a session id or a body reach a log or an exception.

Why the SDK sees a placeholder: an HTTP library logs URLs, and an error of one request ends the SDK's whole
connection. With the placeholder there is nothing to leak, and with a guard there is nothing to raise.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pi_mcp.connect.faults import Fault, Faults, RequestId
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.messages import (
    LARGEST_MESSAGE,
    EventParser,
    Found,
    TooLarge,
    decoded,
    encoded,
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
    read_body,
    retry_after,
)
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

PLACEHOLDER = "http://server.invalid/mcp"
"""The address that the SDK is given; `.invalid` can never resolve (RFC 6761)."""
HELD_SESSION = "held-by-the-transport"
"""What the SDK knows in place of the session id."""

CLOSING = 1.0
"""Seconds that the DELETE at the end of a session may take."""
NOTIFICATION_WAIT = 0.5
"""Seconds that the next message waits for a notification to be taken; the rest goes on in the background."""
INITIALIZED_WAIT = 2.0
NOTIFICATION_LIMIT = 5.0
FAULT_CODE = -32000
RESUMPTIONS = 20
FRUITLESS_RESUMPTIONS = 2
STREAM_WORTH_REOPENING = 30.0
"""Seconds that a listening stream must have lived to be opened again: a proxy cuts idle streams after a minute,
a server that closes at once would be asked again and again (reports B047, B064)."""
_JSON_TYPES = ("", "application/json", "application/json-rpc", "text/json", "text/plain", "application/octet-stream")
"""Under these the body decides. Anything else is no answer of an MCP server."""
_PEEK = 64 * 1024
_PEEK_WAIT = 5.0


class _Aborted(Exception):
    """The request was cancelled by its sender."""


# --- requests ----------------------------------------------------------------------------------------------


class Flight:
    """One request under way; `abort` ends its network waits, from the same event loop."""

    def __init__(self) -> None:
        self.aborted = False
        self._scope: Any = None
        self.started = time.monotonic()

    def abort(self) -> None:
        self.aborted = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`; raises `_Aborted` when the request is aborted first."""
        import anyio

        if self.aborted:
            raise _Aborted
        with anyio.CancelScope() as scope:
            self._scope = scope
            try:
                return await work()
            finally:
                self._scope = None
        raise _Aborted


# --- the guard of Streamable HTTP --------------------------------------------------------------------------


class StreamableGuard:
    """Answers the SDK's POST, GET and DELETE. One per connection; lives on one event loop."""

    def __init__(
        self,
        sender: Sender,
        faults: Faults,
        log: LogRing,
        *,
        on_session_id: Callable[[str], None] | None = None,
    ) -> None:
        self._sender = sender
        self._faults = faults
        self._log = log
        self._on_session_id = on_session_id
        self._session: str | None = None
        self._session_lost = False
        self._flights: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._streaming = False

    async def handle(self, request: Asked) -> Answer:
        """The answer to one request of the SDK. Never raises anything but cancellation."""
        if request.method == "GET":
            return Answer(200, "text/event-stream", self._listening(self._headers(request)))
        if request.method == "DELETE":
            await self._end_session(self._headers(request))
            return Answer(200)
        if "method" in request.message and "id" in request.message:
            return await self._request(request.message, request)
        await self._notification(request.message, request)
        return Answer(202)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sender.aclose()

    def _headers(self, request: Asked) -> list[tuple[str, str]]:
        """What the SDK put on a request, with the real session id in the place of the held one."""
        return [
            (name, value if name != "mcp-session-id" or self._session is None else self._session)
            for name, value in request.headers
            if name != "mcp-session-id" or self._session is not None
        ]

    # requests

    async def _request(self, message: Mapping[str, Any], request: Asked) -> Answer:
        request_id: RequestId = message["id"]
        flight = self._flights[str(request_id)] = Flight()
        streaming = False
        listens = message["method"] == "subscriptions/listen"
        try:
            response = await flight.wait(
                lambda: self._sender.send(
                    "POST",
                    self._headers(request),
                    request.body,
                    silence=None if listens else LONGEST_SILENCE,
                )
            )
            try:
                answer = await self._answer(message, request, response, flight)
                streaming = answer.events is not None
                return answer
            finally:
                if not streaming:
                    await response.aclose()
        except RequestFailed as failed:
            return self._error(request_id, failed.fault)
        except _Aborted:
            return self._error(request_id, Fault("disconnected"))
        except Exception as error:
            # A mistake of ours, or of a login: it ends this request, as anything else does.
            self._log.add(f"pi-mcp: a request failed inside the transport ({type(error).__name__})")
            return self._error(request_id, Fault("unexpected"))
        finally:
            if not streaming:
                self._landed(request_id, flight)

    def _landed(self, request_id: RequestId, flight: Flight) -> None:
        if self._flights.get(str(request_id)) is flight:
            del self._flights[str(request_id)]

    def _error(self, request_id: RequestId, fault: Fault) -> Answer:
        """The fault noted, and a JSON-RPC error that ends the request and nothing else."""
        return Answer(200, "application/json", body=self._error_body(request_id, fault))

    def _error_body(self, request_id: RequestId, fault: Fault) -> bytes:
        self._faults.note(request_id, fault)
        return error_of_fault(request_id, fault)

    async def _answer(
        self, message: Mapping[str, Any], request: Asked, response: httpx2.Response, flight: Flight
    ) -> Answer:
        request_id: RequestId = message["id"]
        status = response.status_code
        if not 200 <= status < 300:
            return await self._refusal(request_id, response, flight)
        headers: dict[str, str] = {}
        if message["method"] == "initialize":
            headers = self._adopt_session(response)
        kind = media_type(response)
        if kind == "text/event-stream" and status == 200:
            messages = self._messages(request_id, self._headers(request), response, flight)
            if message["method"] == "subscriptions/listen":
                return Answer(200, "text/event-stream", _framed(messages), headers=headers)
            return await _first_of(messages, headers)
        if kind in ("text/html", "application/xhtml+xml"):
            return self._error(request_id, Fault("html", status=status))
        if not (kind in _JSON_TYPES or kind.endswith("+json")):
            shown_kind = clean_line(kind, 60) if re.fullmatch("[a-z0-9.+-]+/[a-z0-9.+-]+", kind) else "unreadable"
            return self._error(request_id, Fault("not_mcp", detail=f"content type {shown_kind}"))
        try:
            body = await flight.wait(lambda: read_body(response, LARGEST_MESSAGE))
        except TooLarge:
            return self._error(request_id, Fault("too_large", detail="64 MiB"))
        except Exception as error:
            if isinstance(error, _Aborted):
                raise
            fault = fault_of(error, sent=True, address=self._sender.address, answered=True)
            return self._error(request_id, fault)
        if not body.strip():
            said = f"HTTP {status} without a body"
            return self._error(request_id, Fault("not_mcp", detail=f"a request was answered by {said}"))
        found = self._found(body.decode("utf-8-sig", "replace"), request_id)
        if not any(is_answer(one) for one in found.messages):
            kind = "html" if body.lstrip()[:1] == b"<" else "malformed"
            return self._error(request_id, Fault(kind, status=status))
        if len(found.messages) == 1:
            return Answer(200, "application/json", body=encoded(found.messages[0]), headers=headers)

        async def several() -> AsyncGenerator[bytes]:
            for one in found.messages:
                yield event_of(encoded(one))

        return Answer(200, "text/event-stream", several(), headers=headers)

    def _adopt_session(self, response: httpx2.Response) -> dict[str, str]:
        session = response.headers.get("mcp-session-id", "")
        if not re.fullmatch("[\x21-\x7e]{1,1024}", session):
            return {}
        self._session = session
        if self._on_session_id is not None:
            self._on_session_id(session)
        return {"mcp-session-id": HELD_SESSION}

    async def _refusal(self, request_id: RequestId, response: httpx2.Response, flight: Flight) -> Answer:
        body = await flight.wait(lambda: peek(response))
        fault, error = judge_refusal(response, body, request_id, session=self._session is not None)
        if fault is None:
            return Answer(200, "application/json", body=encoded(error or {}))
        self._session_lost = self._session_lost or fault.session_lost
        return self._error(request_id, fault)

    def _found(self, text: str, request_id: RequestId | None) -> Found:
        found = messages_in(text, {} if request_id is None else {str(request_id): request_id})
        self._log.noise += found.noise
        return found

    async def _messages(
        self,
        request_id: RequestId,
        headers: list[tuple[str, str]],
        response: httpx2.Response,
        flight: Flight,
    ) -> AsyncGenerator[tuple[bytes, bool]]:
        """The messages of one request's stream, and whether each is the last: an answer, or an error of ours.

        Where the server gave event ids, a broken stream is taken up again by GET with Last-Event-ID, a bounded
        number of times; the POST is never repeated (report B073).
        """
        last_id: str | None = None
        wait = 1.0
        resumed = fruitless = 0
        current: httpx2.Response | None = response
        fault = Fault("no_response")
        try:
            while True:
                if current is not None:
                    fault = Fault("no_response")
                    parser = EventParser()
                    chunks = current.aiter_bytes()
                    try:
                        while True:
                            chunk = await flight.wait(lambda: anext(chunks, None))  # noqa: B023
                            if chunk is None:
                                # A whole answer whose last empty line was lost is an answer all the same.
                                rest = parser.rest()
                                for message in self._found(rest, request_id).messages if rest else ():
                                    if is_answer(message):
                                        yield encoded(message), True
                                        return
                                break
                            for event in parser.feed(chunk):
                                if event.retry is not None:
                                    wait = event.retry
                                if event.id:
                                    last_id, fruitless = event.id, 0
                                if not event.data:
                                    continue
                                found = self._found(event.data, request_id)
                                for message in found.messages:
                                    yield encoded(message), is_answer(message)
                                    if is_answer(message):
                                        return
                                if found.malformed:
                                    yield self._error_body(request_id, Fault("malformed")), True
                                    return
                    except TooLarge:
                        fault = Fault("too_large", detail="64 MiB")
                        last_id = None
                    except _Aborted:
                        raise
                    except Exception as error:
                        fault = fault_of(error, sent=True, address=self._sender.address, answered=True)
                    finally:
                        await current.aclose()
                        current = None
                expired = time.monotonic() - flight.started > LONGEST_SILENCE
                if last_id is None or expired or resumed == RESUMPTIONS or fruitless == FRUITLESS_RESUMPTIONS:
                    yield self._error_body(request_id, fault), True
                    return
                resumed += 1
                fruitless += 1
                await flight.wait(lambda: asyncio.sleep(min(max(wait, 0.05), 30.0)))  # noqa: B023
                current = await flight.wait(lambda: self._resume(headers, str(last_id)))  # noqa: B023
        except _Aborted:
            yield self._error_body(request_id, Fault("disconnected")), True
        finally:
            if current is not None:
                await current.aclose()
            self._landed(request_id, flight)

    async def _resume(self, headers: list[tuple[str, str]], last_id: str) -> httpx2.Response | None:
        kept = [
            (name, value)
            for name, value in headers
            if name in ("mcp-session-id", "mcp-protocol-version", "accept-encoding")
        ]
        kept += [("accept", "text/event-stream"), ("last-event-id", last_id)]
        try:
            response = await self._sender.send("GET", kept)
        except RequestFailed:
            return None
        if response.status_code == 200 and media_type(response) == "text/event-stream":
            return response
        await response.aclose()
        return None

    # notifications and answers to the server

    async def _notification(self, message: Mapping[str, Any], request: Asked) -> None:
        """A message without an answer. The SDK sends these one by one, so a slow one must not hold the next."""
        method = message.get("method")
        task = asyncio.create_task(self._deliver(self._headers(request), request.body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        wait = INITIALIZED_WAIT if method == "notifications/initialized" else NOTIFICATION_WAIT
        await asyncio.wait({task}, timeout=wait)
        if method == "notifications/cancelled":
            params = message.get("params")
            flight = self._flights.get(str(params.get("requestId"))) if isinstance(params, dict) else None
            if flight is not None:
                flight.abort()

    async def _deliver(self, headers: list[tuple[str, str]], body: bytes) -> None:
        try:
            async with asyncio.timeout(NOTIFICATION_LIMIT):
                response = await self._sender.send("POST", headers, body)
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

    async def _listening(self, headers: list[tuple[str, str]]) -> AsyncGenerator[bytes]:
        """The optional GET stream. Whatever happens to it harms nothing: in the end it is just silent.

        The SDK would ask again each time that it ends, so it does not end (reports B047, B049, B050, B064).
        """
        if not self._streaming:
            self._streaming = True
            last_id: str | None = None
            while True:
                opened = time.monotonic()
                asked = [*headers, ("last-event-id", last_id)] if last_id else headers
                try:
                    response = await self._sender.send("GET", asked, silence=None)
                except RequestFailed:
                    break
                try:
                    if response.status_code != 200 or media_type(response) != "text/event-stream":
                        break
                    parser = EventParser()
                    async for chunk in response.aiter_bytes():
                        for event in parser.feed(chunk):
                            last_id = event.id or last_id
                            if not event.data:
                                continue
                            for message in self._found(event.data, None).messages:
                                yield event_of(encoded(message))
                except GeneratorExit:
                    raise
                except Exception:
                    self._log.add("pi-mcp: the server's stream of notifications broke off")
                finally:
                    await response.aclose()
                if time.monotonic() - opened < STREAM_WORTH_REOPENING:
                    break
                await asyncio.sleep(1.0)
        await asyncio.Event().wait()

    async def _end_session(self, headers: list[tuple[str, str]]) -> None:
        if self._session is None or self._session_lost:
            return
        try:
            async with asyncio.timeout(CLOSING):
                response = await self._sender.send("DELETE", headers)
                await response.aclose()
        except Exception:
            self._log.add("pi-mcp: the session could not be ended")


async def peek(response: httpx2.Response) -> bytes:
    """The start of a body that is of no great interest; empty where it is long, slow or broken."""
    try:
        async with asyncio.timeout(_PEEK_WAIT):
            return await read_body(response, _PEEK)
    except Exception:
        return b""


async def _first_of(messages: AsyncGenerator[tuple[bytes, bool]], headers: Mapping[str, str]) -> Answer:
    """A stream that is only an answer as that answer alone: most are, and the SDK reads a body far quicker."""
    try:
        first, last = await anext(messages)
    except BaseException:
        await messages.aclose()
        raise
    if last:
        await messages.aclose()
        return Answer(200, "application/json", body=first, headers=headers)
    return Answer(200, "text/event-stream", _framed(messages, first), headers=headers)


async def _framed(messages: AsyncGenerator[tuple[bytes, bool]], first: bytes | None = None) -> AsyncGenerator[bytes]:
    """The messages as server-sent events, after `first`."""
    try:
        if first is not None:
            yield event_of(first)
        async for message, _ in messages:
            yield event_of(message)
    finally:
        await messages.aclose()


def event_of(message: bytes) -> bytes:
    """One message as a server-sent event."""
    return b"data: " + message + b"\n\n"


def error_of_fault(request_id: RequestId, fault: Fault) -> bytes:
    """The JSON-RPC error that stands in for an answer that cannot come; the fault noted beside it says why."""
    error = {"code": FAULT_CODE, "message": fault.kind}
    return encoded({"jsonrpc": "2.0", "id": request_id, "error": error})


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
        value = decoded(body)
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


# --- towards the SDK ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """What the SDK wants sent: header names in lower case, the message, and the same as the body to send."""

    method: str
    headers: list[tuple[str, str]]
    message: Mapping[str, Any]
    body: bytes


@dataclass(slots=True)
class Answer:
    """What the SDK gets: a body, or a stream of events."""

    status: int
    content_type: str | None = None
    events: AsyncGenerator[bytes] | None = None
    body: bytes = b""
    headers: Mapping[str, str] | None = None


class Handler(Protocol):
    async def handle(self, request: Asked) -> Answer: ...

    async def aclose(self) -> None: ...


def client_for(guard: Handler) -> httpx2.AsyncClient:
    """An HTTP client for the SDK whose requests all go to `guard`. Closing it closes the guard."""
    import httpx2

    class Events(httpx2.AsyncByteStream):
        def __init__(self, source: AsyncGenerator[bytes]) -> None:
            self._source = source

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for part in self._source:
                yield part

        async def aclose(self) -> None:
            await self._source.aclose()

    class GuardTransport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            answer = await guard.handle(request.extensions["asked"])
            headers = dict(answer.headers or {})
            if answer.content_type:
                headers["content-type"] = answer.content_type
            if answer.events is not None:
                return httpx2.Response(answer.status, headers=headers, stream=Events(answer.events))
            return httpx2.Response(answer.status, headers=headers, content=answer.body)

        async def aclose(self) -> None:
            await guard.aclose()

    addresses: dict[str, httpx2.URL] = {}

    class GuardClient(httpx2.AsyncClient):
        def build_request(self, method: str, url: httpx2.URL | str, **given: Any) -> httpx2.Request:
            """The message and the headers put by for the guard, as they are. To merge them with what a client may
            hold besides, and to encode and decode them once more, took as long as a fast server's answer."""
            address = addresses.get(str(url))
            if address is None:
                address = addresses[str(url)] = httpx2.URL(url)
            said = dict(given.get("headers") or {})
            headers = [("accept-encoding", self.headers["accept-encoding"])]
            headers += [(name.lower(), value) for name, value in said.items()]
            message = given.get("json") or {}
            body = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            return httpx2.Request(method, address, extensions={"asked": Asked(method, headers, message, body)})

        async def send(self, request: httpx2.Request, *, stream: bool = False, **_: Any) -> httpx2.Response:
            """Straight to the guard: redirects, logins, cookies and proxies are its sender's matter, and looking
            for them here as well took a fifth of each call's time."""
            response = await transport.handle_async_request(request)
            response.request = request
            if not stream:
                await response.aread()
            return response

    transport = GuardTransport()
    # Leaving the client closes its transport.
    return GuardClient(transport=transport, timeout=None, trust_env=False)
