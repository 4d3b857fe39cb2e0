"""The legacy HTTP+SSE transport (2024-11-05), for servers that are configured with `type: sse` and nothing else.

Comes in: a `ResolvedServer`. Goes out: the SDK's pair of message streams. The server's GET stream names the
address to POST to, which must be of the same origin. It never posts before that, never takes up a broken stream
again, and never stands in for Streamable HTTP.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pi_mcp.connect.faults import Fault, Faults, RequestId, error_for
from pi_mcp.connect.guard import (
    NOTIFICATION_LIMIT,
    NOTIFICATION_WAIT,
    error_of_fault,
    judge_refusal,
    peek,
)
from pi_mcp.connect.http import sender_for
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.messages import EventParser, TooLarge, is_answer, messages_in
from pi_mcp.connect.sendable import SendableStream
from pi_mcp.connect.sender import Credentials, RequestFailed, Sender, fault_of, media_type, pieces, shown
from pi_mcp.jsontext import json_line

if TYPE_CHECKING:
    import httpx2

    from pi_mcp.config.resolve import ResolvedServer

_QUEUE = 8
"""Events that may wait for the SDK before the socket is left unread."""
PLACEHOLDER = "http://server.invalid/mcp"
"""The address that the SDK is given; `.invalid` can never resolve (RFC 6761)."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the SDK wants sent: the message, and the same as the body to send."""

    method: str
    message: Mapping[str, Any]
    body: bytes


@dataclass(slots=True)
class Answer:
    """What the SDK gets: a status, or a stream of events."""

    status: int
    events: AsyncGenerator[bytes] | None = None


class LegacyGuard:
    """Answers the SDK's one GET and its POSTs. A POST that fails is answered on the stream, as its answer would be."""

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
        self._endpoint: httpx2.URL | None = None
        self._waiting: dict[str, RequestId] = {}
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False

    async def handle(self, request: Asked) -> Answer:
        """Raises `RequestFailed` for the GET only: without its stream there is no connection."""
        if request.method == "GET":
            response = await self._open()
            self._start(self._pump(response))
            return Answer(200, self._stream())
        await self._post(request)
        return Answer(202)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._sender.aclose()

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # the stream

    async def _open(self) -> httpx2.Response:
        headers = [("accept", "text/event-stream"), ("cache-control", "no-store")]
        response = await self._sender.send("GET", headers, silence=None)
        if response.status_code == 200 and media_type(response) == "text/event-stream":
            return response
        try:
            if response.status_code == 200:
                page = media_type(response) in ("text/html", "application/xhtml+xml")
                raise RequestFailed(Fault("html" if page else "not_mcp", detail="no event stream", executed="no"))
            fault, _ = judge_refusal(response, await peek(response), 0, session=False)
            raise RequestFailed(fault or Fault("status", status=response.status_code, executed="no"))
        finally:
            await response.aclose()

    async def _pump(self, response: httpx2.Response) -> None:
        """Read the stream to its end, then fail whatever still waits for an answer."""
        fault = await self._read(response)
        self._ended = True
        self._faults.note(None, fault)
        for request_id in list(self._waiting.values()):
            await self._fail(request_id, fault)
        await self._events.put(None)

    async def _read(self, response: httpx2.Response) -> Fault:
        parser = EventParser()
        try:
            async for chunk in pieces(response):
                for event in parser.feed(chunk):
                    if event.name == "endpoint":
                        if self._endpoint is None and not await self._adopt_endpoint(event.data):
                            return Fault("redirect", executed="no", detail="its messages would go to another origin")
                    elif event.data:
                        await self._take(event.data)
        except TooLarge:
            return Fault("too_large", detail="64 MiB")
        except Exception as error:
            return fault_of(error, sent=True, address=self._sender.address, answered=True)
        finally:
            await response.aclose()
        return Fault("no_response" if self._endpoint is None else "disconnected")

    async def _adopt_endpoint(self, data: str) -> bool:
        """The address for messages, which must be of the same origin. The SDK gets a placeholder for it."""
        import httpx2

        own = self._sender.url
        try:
            endpoint = own.join(data.strip())
        except (httpx2.InvalidURL, ValueError):
            return False
        if (endpoint.scheme, endpoint.host, endpoint.port) != (own.scheme, own.host, own.port):
            self._log.add(f"pi-mcp: the server names {shown(endpoint)} for messages; that is another origin")
            return False
        self._endpoint = endpoint.copy_with(userinfo=b"")
        session = endpoint.params.get("sessionId") or endpoint.params.get("session_id")
        if session and self._on_session_id is not None:
            self._on_session_id(session)
        await self._events.put(b"event: endpoint\ndata: /messages\n\n")
        return True

    async def _take(self, data: str) -> None:
        found = messages_in(data, self._waiting)
        self._log.noise += found.noise
        for message in found.messages:
            if is_answer(message):
                self._waiting.pop(str(message["id"]), None)
            await self._events.put(event_of(message))
        for request_id in found.malformed:
            await self._fail(request_id, Fault("malformed"))

    async def _stream(self) -> AsyncGenerator[bytes]:
        while (event := await self._events.get()) is not None:
            yield event

    async def _fail(self, request_id: RequestId, fault: Fault) -> None:
        if self._waiting.pop(str(request_id), None) is None:
            return
        self._faults.note(request_id, fault)
        await self._events.put(event_of(error_of_fault(request_id, fault)))

    # messages to the server

    async def _post(self, request: Asked) -> None:
        """Hand a message to a task of its own: the SDK sends one by one, and a slow one must not hold the next."""
        message = request.message
        request_id: RequestId | None = message.get("id") if "method" in message else None
        if request_id is None:
            task = self._start(self._deliver(request.body, None))
            await asyncio.wait({task}, timeout=NOTIFICATION_WAIT)
            return
        self._waiting[str(request_id)] = request_id
        if self._ended:
            self._start(self._fail(request_id, Fault("disconnected", executed="no")))
            return
        self._start(self._deliver(request.body, request_id))

    async def _deliver(self, body: bytes, request_id: RequestId | None) -> None:
        limit = NOTIFICATION_LIMIT if request_id is None else None
        fault: Fault | None = None
        try:
            async with asyncio.timeout(limit):
                headers = [("accept", "application/json"), ("content-type", "application/json")]
                response = await self._sender.send("POST", headers, body, url=self._endpoint)
                try:
                    said = await peek(response)
                    if response.status_code >= 300:
                        fault, error = judge_refusal(response, said, request_id or 0, session=True)
                        if error is not None and self._waiting.pop(str(request_id), None) is not None:
                            await self._events.put(event_of(error))
                finally:
                    await response.aclose()
        except RequestFailed as failed:
            fault = failed.fault
        except TimeoutError:
            fault = Fault("no_response")
        except Exception as error:
            fault = fault_of(error, sent=True, address=self._sender.address, answered=True)
        if fault is None:
            return
        if request_id is None:
            self._log.add(f"pi-mcp: a notification was not delivered ({fault.kind})")
        else:
            await self._fail(request_id, fault)


def event_of(message: Mapping[str, Any]) -> bytes:
    """One message as a server-sent event."""
    return b"data: " + json_line(message) + b"\n\n"


def _client_for(guard: LegacyGuard) -> httpx2.AsyncClient:
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
            if answer.events is None:
                return httpx2.Response(answer.status)
            headers = {"content-type": "text/event-stream"}
            return httpx2.Response(answer.status, headers=headers, stream=Events(answer.events))

        async def aclose(self) -> None:
            await guard.aclose()

    class GuardClient(httpx2.AsyncClient):
        def build_request(self, method: str, url: httpx2.URL | str, **given: Any) -> httpx2.Request:
            """The message put by for the guard, as it is: headers are the guard's matter."""
            message = given.get("json") or {}
            body = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
            return httpx2.Request(method, url, extensions={"asked": Asked(method, message, body)})

        async def send(self, request: httpx2.Request, *, stream: bool = False, **_: Any) -> httpx2.Response:
            """Straight to the guard: redirects, logins, cookies and proxies are its sender's matter."""
            response = await transport.handle_async_request(request)
            response.request = request
            if not stream:
                await response.aread()
            return response

    transport = GuardTransport()
    # Leaving the client closes its transport.
    return GuardClient(transport=transport, timeout=None, trust_env=False)


@asynccontextmanager
async def sse_transport(
    resolved: ResolvedServer,
    faults: Faults,
    log: LogRing,
    *,
    on_session_id: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> AsyncGenerator[tuple[Any, Any]]:
    """The SDK's (read, write) streams for one connection; to be left by the task that entered it.

    Entering connects, without a bound of its own: the caller's start-up limit counts. Raises a `PiMcpError` when
    there is no stream or it names no address; the fault is noted as fatal, too. When the stream ends later the
    read stream ends and `faults.fatal` says why.
    """
    sender = sender_for(resolved, log, environ, credentials)
    from mcp.client.sse import sse_client

    guard = LegacyGuard(sender, faults, log, on_session_id=on_session_id)
    entered = False

    def factory(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        del headers, timeout, auth
        return _client_for(guard)

    try:
        async with sse_client(PLACEHOLDER, httpx_client_factory=factory) as (read, write):
            entered = True
            yield read, SendableStream(write, faults)
    except BaseException as error:
        if entered or not isinstance(error, Exception):
            raise
        fault = error.fault if isinstance(error, RequestFailed) else faults.fatal or Fault("disconnected")
        faults.note(None, fault)
        name = resolved.definition.name
        raise error_for(fault, operation="connect", server=name, definition=resolved.definition) from None
