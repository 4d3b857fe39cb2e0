"""One SQLite file with a thread that writes and threads that read; the event loop never waits for the disk.

Comes in: functions that take a connection. Goes out: their results, once they are durable. Writes that wait together
share one transaction and so one flush of the disk: a call's two rows cost the same for one caller as for fifty. Each
has its own savepoint, so that one that fails undoes itself alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pi_mcp.errors import PiMcpError, failure
from pi_mcp.store.faults import store_failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
Work = Callable[["Connection"], T]

LOCK_SECONDS = 10.0
"""How long a write waits for another process that holds the file."""
GROUP = 256
"""Writes in one transaction at most."""
GATHER_SECONDS = 0.002
"""How long a write waits at most for others to share its transaction, after some did."""
READERS = 2
LAZY_SECONDS = 20.0
"""How long work that nobody waits for may lie before it is written."""

_LOG = logging.getLogger("pi_mcp.store")


def engine_for(path: Path) -> Engine:
    """An engine whose transactions are SQLite's own, begun with the lock when `immediate` is set on the connection."""
    import sqlalchemy
    from sqlalchemy import event

    engine = sqlalchemy.create_engine(
        sqlalchemy.URL.create("sqlite+pysqlite", database=str(path)),
        # Statements and values are in SQLAlchemy's exceptions: values never.
        hide_parameters=True,
        connect_args={"timeout": LOCK_SECONDS, "check_same_thread": False, "isolation_level": None},
        pool_size=READERS + 1,
        max_overflow=0,
    )

    @event.listens_for(engine, "connect")
    def _settings(connection: Any, _: object) -> None:
        cursor = connection.cursor()
        # FULL: a transaction is on the disk when COMMIT returns, which is what a reply waits for.
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF", "temp_store=MEMORY"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and writes later could fail at the change, with nothing to wait for.
        immediate = connection.get_execution_options().get("immediate")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


class _Waiting(NamedTuple):
    """One write that waits for its transaction."""

    work: Work[Any]
    done: Future[Any]
    single: bool


class Database:
    """Reads and writes of one file. `write` and `read` may be awaited from any loop."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self.path = path
        self._engine = engine
        self._file = _file_at(path)
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lazy: dict[tuple[str, ...], Work[Any]] = {}
        self._lock = threading.Lock()
        # For `glance`. It never waits: what it cannot have at once the readers get.
        self._window = sqlite3.connect(path, timeout=0.0, isolation_level=None, check_same_thread=False)
        self._window.execute("PRAGMA query_only=ON")
        self._closed = False
        self._gather = 0.0
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="pi-mcp store reader")
        self._writer = threading.Thread(target=self._write_all, name="pi-mcp store writer", daemon=True)
        self._writer.start()

    async def write(self, work: Work[T], *, single: bool = False) -> T:
        """Run `work` in a transaction; return when it is durable. A cancelled caller's write may have been made.

        `single`: it is one statement, which undoes itself when it fails and needs no savepoint.
        """
        done: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise _closed()
            self._waiting.put(_Waiting(work, done, single))
        return await asyncio.wrap_future(done)

    async def read(self, work: Work[T]) -> T:
        """Run `work` over one consistent state of the file."""
        with self._lock:
            if self._closed:
                raise _closed()
            done = self._readers.submit(self._read, work)
        return await asyncio.wrap_future(done)

    def glance(self, query: str) -> Any:
        """The one value of a query that touches a page or two; None where it cannot be had without waiting.

        On the caller's own thread: a reader of a WAL waits for no writer, and the pages are in memory.
        """
        if self._closed:
            raise _closed()
        self._check()
        try:
            row = self._window.execute(query).fetchone()
        except sqlite3.Error:
            return None
        return None if row is None else row[0]

    def later(self, what: tuple[str, ...], work: Work[Any]) -> None:
        """Have `work` written some time, in the place of earlier work of that name. Lost if that fails."""
        with self._lock:
            first = not self._lazy
            self._lazy[what] = work
            if first and not self._closed:
                self._waiting.put(_Waiting(_nothing, Future(), True))

    async def close(self) -> None:
        """Write what is waiting, end the threads, let go of the file."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._waiting.put(None)
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._writer.join()
        self._readers.shutdown()
        self._window.close()
        self._engine.dispose()

    def _read(self, work: Work[T]) -> T:
        try:
            self._check()
            with self._engine.connect() as connection:
                return work(connection)
        except PiMcpError:
            raise
        except Exception as error:
            raise self._failure(error) from None

    def _write_all(self) -> None:
        last = time.monotonic()
        going_on = True
        while going_on:
            group, going_on = self._group(last)
            with self._lock:
                lazy: list[Work[Any]] = []
                if self._lazy and (not going_on or time.monotonic() >= last + LAZY_SECONDS):
                    lazy, self._lazy = list(self._lazy.values()), {}
            if lazy:
                last = time.monotonic()
            began = time.monotonic()
            self._commit([*group, *(_Waiting(work, Future(), True) for work in lazy)])
            # Those who were answered together come back together: a moment's patience saves a flush for the first one.
            self._gather = min((time.monotonic() - began) / 4, GATHER_SECONDS) if len(group) > 1 else 0.0

    def _group(self, last: float) -> tuple[list[_Waiting], bool]:
        """The writes that wait now, at least one; less when only lazy work is due. False: it is the last group."""
        group: list[_Waiting] = []
        patience = max(last + LAZY_SECONDS - time.monotonic(), 0.05) if self._lazy else None
        try:
            item = self._waiting.get(timeout=patience)
            if self._gather:
                time.sleep(self._gather)
            while item is not None:
                if item.work is not _nothing and item.done.set_running_or_notify_cancel():
                    group.append(item)
                if len(group) >= GROUP:
                    return group, True
                item = self._waiting.get_nowait()
        except queue.Empty:
            return group, True
        return group, False

    def _commit(self, group: list[_Waiting]) -> None:
        """One transaction for all of them. A future is answered after the commit, or with the failure."""
        if not group:
            return
        outcomes: list[tuple[Future[Any], Any, BaseException | None]] = []
        try:
            self._check()
            with self._engine.connect().execution_options(immediate=True) as connection, connection.begin():
                for one in group:
                    result: Any = None
                    fault: BaseException | None = None
                    try:
                        with contextlib.nullcontext() if one.single else connection.begin_nested():
                            result = one.work(connection)
                    except Exception as error:
                        fault = error
                        if not connection.in_transaction() or _ends_transaction(error):
                            raise
                    outcomes.append((one.done, result, fault))
        except Exception as error:
            problem = self._failure(error)
            outcomes = [(one.done, None, problem) for one in group]
        for done, result, fault in outcomes:
            with contextlib.suppress(Exception):  # a caller that was cancelled takes no answer
                if fault is None:
                    done.set_result(result)
                else:
                    done.set_exception(fault if isinstance(fault, PiMcpError) else self._failure(fault))

    def _check(self) -> None:
        """Raises PiMcpError where the file that is open is not the one that has the name now.

        What is written to a file without a name is lost, and of a key that is revoked in the new one nobody would hear.
        """
        if _file_at(self.path) != self._file:
            raise failure(
                "operation_failed",
                "command",
                None,
                f"The store ({clean_line(str(self.path), 300)}) was removed or replaced while it was in use.",
                "Start the gateway again; to put a backup in the store's place, stop it first.",
            )

    def _failure(self, error: BaseException) -> PiMcpError:
        if isinstance(error, PiMcpError):
            return error
        _LOG.warning("the store failed: %s", type(getattr(error, "orig", None) or error).__name__)
        return store_failure(error, self.path)


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file it is, whatever its name; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - at each request: a Path costs more than the question
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _nothing(connection: Connection) -> None:
    """Wakes the writer, so that it sees when lazy work is due."""
    del connection


def _ends_transaction(error: Exception) -> bool:
    """Did SQLite itself undo the whole transaction, or can nothing more be said of it? Anything but a conflict."""
    from sqlalchemy.exc import DBAPIError, IntegrityError

    return isinstance(error, DBAPIError) and not isinstance(error, IntegrityError)


def _closed() -> PiMcpError:
    return failure("operation_failed", "command", None, "The store is closed already.")
