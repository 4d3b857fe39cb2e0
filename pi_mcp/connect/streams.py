"""The SDK's pair of message streams, for transports that are ours: messages go to its dispatcher and come from it.

Comes in: JSON-RPC messages as plain objects. Goes out: the SDK's message objects, in order. It knows no network and
no process.

Not the SDK's own streams: a pair of memory streams with a task between them costs each call four turns of the event
loop over stdio, and nine over HTTP, where each message is decoded and encoded twice besides (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.connect.faults import Fault, Faults

if TYPE_CHECKING:
    from typing import Self

    from mcp.shared.message import SessionMessage

FAULT_CODE = -32000
"""Code of the error put in the place of an answer that cannot come; the fault noted beside it says why."""
ROOM = 64
"""Messages that wait to be dispatched before a stream is left unread."""


class MessageStream:
    """What the SDK's stream protocols ask for beside reading and writing."""

    def __init__(self) -> None:
        self._closed = False

    async def aclose(self) -> None:
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Around:
    """A stream around another, which is left and closed with it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stream.__aexit__(*exc)


class Received:
    """Iteration over a stream that has `receive`, up to its end."""

    async def receive(self) -> Any:
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Inbox(MessageStream, Received):
    """The SDK's `ReadStream` of a transport whose messages come from many tasks: each puts in its own."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults
        self._ready: deque[tuple[contextvars.Context, SessionMessage]] = deque()
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended = False
        self.last_context: contextvars.Context | None = None
        """The context of whoever put in what was received last: the SDK runs its handling in that."""

    async def put(self, message: Mapping[str, Any]) -> None:
        """Hand on one message of the server's; waits while many wait already. Dropped when nobody reads any more."""
        from mcp.shared.message import SessionMessage

        while len(self._ready) >= ROOM and not self._ended:
            self._room.clear()
            await self._room.wait()
        shaped = shape(message, self._faults)
        if shaped is None or self._ended:
            return
        self._ready.append((contextvars.copy_context(), SessionMessage(shaped)))
        self._news.set()

    async def receive(self) -> SessionMessage:
        """The next message. Raises anyio.EndOfStream when there will be none."""
        while not self._ready:
            if self._closed or self._ended:
                import anyio

                raise anyio.ClosedResourceError if self._closed else anyio.EndOfStream
            self._news.clear()
            await self._news.wait()
        self.last_context, item = self._ready.popleft()
        self._room.set()
        return item

    def end(self) -> None:
        """Nothing more is put in."""
        self._ended = True
        self._news.set()
        self._room.set()

    async def aclose(self) -> None:
        await super().aclose()
        self.end()


def wire_form(message: Any) -> bytes:
    """A message of the SDK as JSON, without a line's end. Raises what pydantic or `json` raise for what is none."""
    try:
        return bytes(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
    except ValueError:
        # A lone surrogate in an argument: JSON can carry it escaped.
        return json.dumps(message.model_dump(by_alias=True, exclude_unset=True)).encode()


def failed(request_id: int | str) -> Any:
    """The SDK's message that ends a request whose answer cannot come."""
    from mcp_types import ErrorData, JSONRPCError

    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=FAULT_CODE, message="failed"))


def shape(raw: Mapping[str, Any], faults: Faults) -> Any:
    """As `envelope`, for one whose names may hold what is no text: an answer fails then, anything else is None."""
    try:
        return envelope(raw, faults)
    except ValueError:
        # Half of a surrogate pair in a name of the envelope: the SDK's models refuse it.
        request_id = raw.get("id")
        if "method" not in raw and isinstance(request_id, int | str) and _is_text(request_id):
            faults.note(request_id, Fault("malformed"))
            return failed(request_id)
        return None


def _is_text(request_id: int | str) -> bool:
    try:
        str(request_id).encode()
    except UnicodeEncodeError:
        return False
    return True


def envelope(raw: Mapping[str, Any], faults: Faults) -> Any:
    """The SDK's message object for a JSON-RPC object, or None when its envelope cannot be used.

    Tolerant where the meaning is plain: a missing `jsonrpc`, an id of 1.0 for 1, an error that is a string, a
    null result. A result that is no object fails its own request only.
    """
    from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

    request_id = raw.get("id")
    if isinstance(request_id, float) and request_id.is_integer():
        request_id = int(request_id)
    if isinstance(request_id, bool) or not isinstance(request_id, int | str | None):
        return None
    params = raw.get("params")
    params = params if isinstance(params, dict) else None
    method = raw.get("method")
    if isinstance(method, str):
        extra = {} if params is None else {"params": params}
        if request_id is None:
            return JSONRPCNotification(jsonrpc="2.0", method=method, **extra)
        return JSONRPCRequest(jsonrpc="2.0", id=request_id, method=method, **extra)
    if request_id is None and "error" not in raw:
        return None
    if raw.get("error") is not None:
        error = raw["error"] if isinstance(raw["error"], dict) else {"message": str(raw["error"])}
        code = error.get("code")
        return JSONRPCError(
            jsonrpc="2.0",
            id=request_id,
            error=ErrorData(
                code=code if isinstance(code, int) else -32603,
                message=str(error.get("message", "")),
                data=error.get("data"),
            ),
        )
    if request_id is None or "result" not in raw:
        return None
    result = raw["result"] if raw["result"] is not None else {}
    if not isinstance(result, dict):
        faults.note(request_id, Fault("malformed"))
        return failed(request_id)
    return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
