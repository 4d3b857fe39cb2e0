"""Blocking work with a time limit, on threads that never keep a process alive.

Comes in: a function that may block for ever (a keyring whose prompter never answers). Goes out: its result, or
TimeoutError. It never joins a thread: one that hangs is left alone, and the next call says so at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def off_loop(
    work: Callable[[threading.Event], T], limit: float, *, discard: Callable[[T], None] | None = None
) -> T:
    """The result of `work` on a daemon thread of its own; TimeoutError after `limit` seconds.

    `work` gets an event that is set when nobody waits any more: it looks at it before every step that must not be
    taken late. `discard` gets a result that came too late.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    abandoned = threading.Event()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            if error is None and discard is not None:
                discard(value)
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)

    def main() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = work(abandoned)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:  # the loop has ended meanwhile
            if error is None and discard is not None:
                with contextlib.suppress(Exception):
                    discard(value)

    threading.Thread(target=main, name="pi-mcp credentials", daemon=True).start()
    try:
        async with asyncio.timeout(limit):
            return await done
    finally:
        if done.cancelled():
            abandoned.set()


class Patience:
    """Bounded calls to one thing that may hang: while an abandoned call still hangs, no other is started."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._hanging: list[threading.Event] = []

    async def run(self, work: Callable[[threading.Event], T]) -> T:
        """As `off_loop`; TimeoutError at once while an earlier call hangs."""
        self._hanging = [ended for ended in self._hanging if not ended.is_set()]
        if self._hanging:
            raise TimeoutError
        ended = threading.Event()

        def watched(abandoned: threading.Event) -> T:
            try:
                return work(abandoned)
            finally:
                ended.set()

        try:
            return await off_loop(watched, self.limit)
        except TimeoutError:
            if not ended.is_set():
                self._hanging.append(ended)
            raise
