"""A client's session over HTTP in the handshake era, and the messages on their way to it.

Comes in: messages, put in without waiting. Goes out: their text, taken out in order by whoever writes to the network.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from pi_mcp.jsontext import json_line
from pi_mcp.plugin import RpcError
from pi_mcp.server import rpc
from pi_mcp.server.clients import ClientSession

BACKLOG = 4096
BACKLOG_BYTES = 8 * 1024 * 1024
"""Messages, and bytes of them, that a stream may leave unread. Beyond that, those that need no answer are dropped, and
the client cannot be asked. One alone may be longer."""
KEPT = 64
KEPT_BYTES = 256 * 1024
"""Messages that belong to no request, and bytes of them, kept while a session has no stream for them; the newest."""


class Stream:
    """The messages on their way to one client over one HTTP response; put in without waiting, taken out in order."""

    def __init__(self, limit: int = BACKLOG) -> None:
        self.messages: deque[bytes] = deque()
        self.news = asyncio.Event()
        self.ended = False
        self._limit = limit
        self._size = 0

    def put(self, message: dict[str, Any]) -> None:
        """Raises RpcError for a question that would wait behind too much."""
        if self.ended:
            return
        full = len(self.messages) >= self._limit
        if full and "id" not in message:
            return
        text = json_line(message)
        if self.messages and self._size + len(text) > BACKLOG_BYTES:
            if "id" in message:
                raise RpcError(rpc.INVALID_REQUEST, "The client takes nothing at the moment")
            return
        self.add(text)

    def add(self, text: bytes) -> None:
        self.messages.append(text)
        self._size += len(text)
        self.news.set()

    def take(self) -> bytes:
        """The next message. Raises IndexError where there is none."""
        text = self.messages.popleft()
        self._size -= len(text)
        return text

    def end(self) -> None:
        self.ended = True
        self.news.set()


class HttpSession(ClientSession):
    """A session of the handshake era: what its client is told beside the answers goes to its GET stream."""

    def __init__(self, id: str, owner: str) -> None:
        super().__init__(f"session:{id}", owner, id=id)
        self.can_be_asked = True
        self.stream: Stream | None = None
        self._kept: deque[bytes] = deque()

    def open(self) -> Stream:
        self.stream = Stream()
        while self._kept:
            self.stream.add(self._kept.popleft())
        self.outbox = self.stream.put
        return self.stream

    def shut(self, stream: Stream, *, lost: bool = True) -> None:
        """End the stream: nothing more is put into it. What one that was lost has not taken waits for the next one."""
        stream.end()
        if self.stream is stream:
            self.stream = self.outbox = None
            while lost and stream.messages:
                self._keep(stream.take())

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        if self.outbox is None and self.streaming() is None:
            self._keep(json_line(rpc.notification(method, params)))
            return
        super().tell(method, params)

    def _keep(self, text: bytes) -> None:
        self._kept.append(text)
        while len(self._kept) > KEPT or sum(map(len, self._kept)) > KEPT_BYTES:
            self._kept.popleft()

    def close(self) -> list[asyncio.Task[Any]]:
        if self.stream is not None:
            self.stream.end()
        return super().close()
