"""TCP without TLS for the HTTP library, on asyncio alone.

Comes in: host and port, bytes to send. Goes out: the library's network stream, and its exceptions. It speaks no TLS and
no proxy's protocol, and it reads ahead by no more than `UNREAD` bytes.

Not the library's own: anyio's streams let the event loop turn once more for each write and ask the kernel twice more
for each read, and the library makes a scope of each and a table of all that is known of a socket to look at one entry.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from typing import Any, cast

UNREAD = 256 * 1024
"""Bytes that wait to be read before the socket is left alone."""
STAGGER = 0.25
"""Seconds after which a host's next address is tried beside the one before (RFC 8305)."""


async def connect(host: str, port: int, timeout: float | None) -> PlainStream:
    """A connection. Raises OSError, and TimeoutError after `timeout` seconds.

    Not asyncio's own race of addresses: one that is cancelled in the moment in which it is won forgets its socket.
    """
    from aiohappyeyeballs import start_connection

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        connected = await start_connection(found, happy_eyeballs_delay=STAGGER)
        _, stream = await loop.create_connection(PlainStream, sock=connected)
    return stream


class PlainStream(asyncio.Protocol):
    """One connection, in the shape of the library's `AsyncNetworkStream`, which is imported late.

    What was received before it broke can still be read.
    """

    def __init__(self) -> None:
        self._unread: deque[bytes] = deque()
        self._size = 0
        self._paused = False
        self._full = False
        self._ended = False
        self._lost = False
        self._closed = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[bool] | None = None
        self._writer: asyncio.Future[bool] | None = None

    # what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)

    def data_received(self, data: bytes) -> None:
        self._unread.append(bytes(data))  # some event loops hand out a bytearray
        self._size += len(data)
        if self._size > UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        _settle(self._reader, True)

    def eof_received(self) -> bool:
        self._ended = True
        _settle(self._reader, True)
        return True  # the other direction may still be open

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._error = exc
        self._full = False
        _settle(self._reader, True)
        _settle(self._writer, True)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        _settle(self._writer, True)

    # what the HTTP library asks

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        while not self._unread:
            if self._closed or (self._lost and self._error is not None):
                from httpcore2 import ReadError

                raise ReadError from self._error
            if self._ended or self._lost:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            if not await _settled(self._reader, timeout):
                from httpcore2 import ReadTimeout

                raise ReadTimeout
        chunk = self._unread.popleft()
        if len(chunk) > max_bytes:
            self._unread.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._size -= len(chunk)
        if self._paused and not self._unread and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return chunk

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        if not (self._closed or self._lost or self._transport.is_closing()):
            self._transport.write(buffer)
            while self._full:
                self._writer = asyncio.get_running_loop().create_future()
                if not await _settled(self._writer, timeout):
                    from httpcore2 import WriteTimeout

                    raise WriteTimeout
            if not (self._closed or self._lost):
                return
        from httpcore2 import WriteError

        raise WriteError from self._error

    async def aclose(self) -> None:
        self._closed = True
        self._full = False
        self._transport.abort()
        _settle(self._reader, True)
        _settle(self._writer, True)
        await asyncio.sleep(0)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._readable()
        return self._transport.get_extra_info({"client_addr": "sockname", "server_addr": "peername"}.get(info, info))

    def _readable(self) -> bool:
        """Whether there is anything to read: on an idle connection that is its end."""
        if self._unread or self._ended or self._lost or self._transport.is_closing():
            return True
        # What has arrived since the event loop looked last.
        ours = self._transport.get_extra_info("socket")
        if not hasattr(select, "poll"):
            return bool(select.select([ours], [], [], 0)[0])
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        return bool(poll.poll(0))


def _settle(waiter: asyncio.Future[bool] | None, value: bool) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(value)


async def _settled(waiter: asyncio.Future[bool], timeout: float | None) -> bool:
    """Whether something happened within `timeout` seconds."""
    if timeout is None:
        return await waiter
    late = asyncio.get_running_loop().call_later(timeout, _settle, waiter, False)
    try:
        return await waiter
    finally:
        late.cancel()
