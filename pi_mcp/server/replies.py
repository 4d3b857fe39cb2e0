"""What goes out over HTTP, and how requests are turned away: plain replies, event streams, errors.

Comes in: messages and reasons. Goes out: ASGI events. Every event of a stream is one JSON-RPC message (B196). It knows
no session and no gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from pi_mcp.jsontext import json_line
from pi_mcp.plugin import RpcError
from pi_mcp.server import rpc

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
COMMENT = b": keep-alive\n\n"


BODY_TIME = 30.0
"""Seconds in which a request's body has to come."""
REST = 64 * 1024
REST_TIME = 1.0
"""Bytes and seconds of a body that are still taken before a request is turned away; then its connection can go on."""
LINGER = 32 * 1024 * 1024
LINGER_TIME = 5.0
"""Bytes and seconds of a longer body that are read and dropped after the refusal, before the connection is closed."""


class Body:
    """A request's body, and an answer that may be ready before it has come.

    A server that answers and closes while a proxy still sends takes the answer away from it: the proxy's client then
    hears of a broken connection in the place of a 401. A small rest is therefore read first, and a long one afterwards.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._whole = False
        self._lingers = False

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._whole = self._whole or message["type"] != "http.request" or not message.get("more_body", False)
        return message

    def answered_by(self, send: Send) -> Send:
        """`send`, which neither hurries a refusal ahead of a body's rest nor closes while that still comes."""

        async def patient(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                await self._take_rest(REST, REST_TIME)
                self._lingers = not self._whole
                if self._lingers:
                    message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not (last and self._lingers):
                await send(message)
                return
            await send({**message, "more_body": True})
            await self._take_rest(LINGER, LINGER_TIME)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        return patient

    async def _take_rest(self, size: int, seconds: float) -> None:
        taken = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._whole and taken < size:
                    taken += len((await self.receive()).get("body", b""))


class Rejected(Exception):
    """A request that is answered before it reaches the gateway."""

    def __init__(
        self, status: int, code: int, message: str, request_id: int | str | None = None, data: Any = None
    ) -> None:
        super().__init__(status)
        self.status = status
        self.error = RpcError(code, message, data)
        self.request_id = request_id


def accepted(accept: str | None) -> tuple[bool, bool]:
    """Whether JSON and event streams are accepted; a header that is not there accepts everything."""
    if accept is None:
        return True, True
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    anything = "*/*" in kinds
    return (
        anything or bool(kinds & {"application/json", "application/*"}),
        anything or bool(kinds & {"text/event-stream", "text/*"}),
    )


def only(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The header's value; of one that came twice none, which no check lets pass."""
    found = [value for key, value in headers if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else "" if found else None


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancel_when_gone(receive: Receive, task: asyncio.Task[Any]) -> None:
    """A client of 2026-07-28 cancels a request by closing its stream."""
    await disconnected(receive)
    task.cancel()


def event_of(text: bytes) -> bytes:
    """A message's text as an event."""
    return b"event: message\ndata: " + text + b"\n\n"


async def begin(send: Send, extra: list[tuple[bytes, bytes]], *, begun: bool) -> bool:
    if not begun:
        await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEADERS, *extra]})
    return True


async def part(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def reply(
    send: Send,
    status: int,
    body: bytes,
    content_type: bytes | None,
    extra: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    headers = [(b"content-length", str(len(body)).encode()), *extra]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def reply_error(
    send: Send,
    status: int,
    error: RpcError,
    request_id: int | str | None,
    extra: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    await reply(send, status, json_line(rpc.error_message(request_id, error)), b"application/json", extra)
