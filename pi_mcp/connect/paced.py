"""A session's streams, so that a server that asks without end waits for its answers.

Comes in: the two streams of a transport. Goes out: the same; reading pauses while more of the server's own requests are
under way, or more answers to them on their way, than `MOST_ASKED`. Else each of them would be a task of ours for as
long as the server takes no answer, and the event loop would have nothing else to do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from pi_mcp.connect.streams import Around, Received

MOST_ASKED = 512


class Asked:
    """What a server has asked of us and has not been answered."""

    def __init__(self) -> None:
        self._count = 0
        self._fewer = asyncio.Event()

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """One request that is answered, or one answer that is written."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._fewer.set()

    async def few(self) -> None:
        while self._count >= MOST_ASKED:
            self._fewer.clear()
            await self._fewer.wait()


class _Stream(Around):
    def __init__(self, stream: Any, asked: Asked) -> None:
        super().__init__(stream)
        self._asked = asked


class PacedReading(_Stream, Received):
    """The SDK's `ReadStream` around a transport's."""

    def __init__(self, stream: Any, asked: Asked) -> None:
        super().__init__(stream, asked)
        self._begins = False

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        if self._begins:
            self._begins = False
            await asyncio.sleep(0)  # the last request's task begins, and counts
            await self._asked.few()
        item = await self._stream.receive()
        message = getattr(item, "message", None)
        self._begins = hasattr(message, "method") and getattr(message, "id", None) is not None
        return item


class PacedWriting(_Stream):
    """The SDK's `WriteStream` around a transport's."""

    async def send(self, item: Any, /) -> None:
        if hasattr(item.message, "method"):
            await self._stream.send(item)
            return
        with self._asked.one():
            await self._stream.send(item)
