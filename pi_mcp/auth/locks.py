"""One lock per login, across processes: who renews, replaces or removes it holds it meanwhile.

Comes in: the login's id. Goes out: the lock, within a bound. The kernel frees it when its holder dies. Who waits
polls in short turns, and goes without the lock as soon as what it waited for was done by someone else: fifty
processes that wait for one renewal do not queue up behind each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path

from pi_mcp import files
from pi_mcp.auth.threads import off_loop

WAIT = 60.0
"""Seconds for the lock: longer than a token request and its writing to a slow keyring take together."""
TURN = 0.2
"""Seconds of one attempt; between two it is looked whether the wait is still worth it."""


class _Holding:
    """That this task, or one that it started meanwhile, has the lock; over when its holder is."""

    def __init__(self, locks: Locks, id: str) -> None:
        self.locks = locks
        self.id = id
        self.active = True


_held: ContextVar[tuple[_Holding, ...]] = ContextVar("pi_mcp_credential_locks", default=())


class Locks:
    """The locks of one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._local: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(
        self, id: str, *, wait: float = WAIT, settled: Callable[[], bool] | None = None
    ) -> AsyncIterator[bool]:
        """Hold the lock; True within. False, without the lock, once `settled` says that waiting is of no use.

        May be nested in one task and those that it starts. Raises TimeoutError after `wait` seconds, OSError or
        ConfigurationError where the directory cannot be used.
        """
        if any(one.active and one.id == id and one.locks is self for one in _held.get()):
            yield True
            return
        local = self._local.setdefault(id, asyncio.Lock())
        async with asyncio.timeout(wait) as limit:
            async with local:
                free = await self._acquire(id, settled)
                limit.reschedule(None)
                if free is None:
                    yield False
                    return
                holding = _Holding(self, id)
                token = _held.set((*_held.get(), holding))
                try:
                    yield True
                finally:
                    holding.active = False
                    _held.reset(token)
                    free()

    async def _acquire(self, id: str, settled: Callable[[], bool] | None) -> Callable[[], None] | None:
        path = self._directory / f"{id}.lock"

        def attempt(abandoned: threading.Event) -> Callable[[], None] | None:
            stack = contextlib.ExitStack()
            try:
                stack.enter_context(files.locked(path, timeout=TURN))
            except TimeoutError:
                return None
            if abandoned.is_set():
                stack.close()
                return None
            return stack.close

        while True:
            free = await off_loop(attempt, TURN + 30.0, discard=lambda late: late() if late is not None else None)
            if free is not None:
                return free
            if settled is not None and settled():
                return None
