"""The engine's process as a shim sees it: started, spoken to, reaped; and the one thread in which all of that happens.

Comes in: a command line and JSON-RPC requests. Goes out: results, `EngineError`, and what the engine asks and tells. It
knows no session and no host, has the standard library alone (Python 3.10), and never prints.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

END_WAIT = 2.0
"""Seconds that the engine has to end by itself, when the host ends."""
LINE_LIMIT = 16 * 1024 * 1024
"""Bytes of one line to the engine; it ends at a longer one."""
READ_LIMIT = 256 * 1024 * 1024
"""Bytes of one line of the engine."""
PING_EVERY = 10.0
"""Seconds without a line of the engine, while something waits for it, after which it is asked for one."""
PINGS = 5
"""So many of these without any line: the engine stands still, and is ended. One that works answers all the while."""
TASKS: set[Any] = set()
"""Work that nobody awaits, until it has ended."""

T = TypeVar("T")


class EngineError(Exception):
    """A failure as the engine told it, or the engine's own; `str()` is one line for the model or the person."""

    def __init__(self, diagnostic: Mapping[str, Any]) -> None:
        super().__init__(diagnostic.get("message"))
        self.diagnostic = dict(diagnostic)
        """`{code, operation, server, message, hint}`; server and hint may be None."""

    @property
    def code(self) -> str:
        return str(self.diagnostic.get("code"))

    @property
    def details(self) -> dict[str, Any]:
        """In the shape of `Answer.details`, to be kept in its place."""
        return {"loaded": [], "diagnostics": [self.diagnostic], "files": []}

    def __str__(self) -> str:
        lead = f"{self.diagnostic['server']}: " if self.diagnostic.get("server") else ""
        hint = f" {self.diagnostic['hint']}" if self.diagnostic.get("hint") else ""
        return f"{lead}[{self.code}] {self.diagnostic.get('message')}{hint}"


def trouble(message: str, hint: str | None, operation: str = "connect", code: str = "connection_failed") -> EngineError:
    """A failure of the engine itself."""
    return EngineError({"code": code, "operation": operation, "server": None, "message": message, "hint": hint})


class Process:
    """A started engine: its pipes, the requests that wait for an answer, and the questions that it has asked."""

    def __init__(self, process: subprocess.Popen[bytes], received: Callable[[dict[str, Any]], Any]) -> None:
        self._popen = process
        self._received = received
        self._requests: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._shows: dict[int, dict[int, Any]] = {}
        self._questions: dict[Any, asyncio.Task[None]] = {}
        self._number = 0
        self._heard = time.monotonic()
        self._owes = False  # it has said nothing since the last request
        self._watching: asyncio.Task[None] | None = None
        self._stuck = False
        self._answered = False  # whatever it ended of, it had worked
        self._writer: asyncio.StreamWriter | None = None
        self.alive = True

    @classmethod
    async def start(cls, command: Sequence[str], cwd: str, received: Callable[[dict[str, Any]], Any]) -> Process:
        environ = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
        process = subprocess.Popen(  # noqa: ASYNC220 -- this loop serves nobody else
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=environ,
            start_new_session=True,  # Ctrl-C in the host's terminal is for the host
        )
        self = cls(process, received)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=READ_LIMIT)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), process.stdout)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), process.stdin
        )
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)
        task = loop.create_task(self._read(reader))
        TASKS.add(task)
        task.add_done_callback(TASKS.discard)
        return self

    async def request(
        self, method: str, params: Mapping[str, Any], limit: float, progress: tuple[dict[int, Any], Any] | None = None
    ) -> dict[str, Any]:
        """One request and its answer. Raises EngineError; cancelling cancels it in the engine, too."""
        self._number += 1
        number = self._number
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._requests[number] = future
        self._owes = True
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        if progress is not None:
            progress[0][number] = progress[1]
        try:
            line = {"id": number, "method": method, "params": dict(params)}
            # Sending counts, too: an engine that has stopped reads nothing.
            return await asyncio.wait_for(self._exchange(line, future), limit)
        except asyncio.TimeoutError:  # noqa: UP041 -- another class in 3.10
            self._forget(number)
            raise trouble(
                f"The pi-mcp engine did not answer within {limit:g} s; whether a call took effect is unknown.",
                "Check before calling it again.",
                code="timeout",
            ) from None
        except asyncio.CancelledError:
            self._forget(number)
            raise
        finally:
            self._requests.pop(number, None)
            if progress is not None:
                progress[0].pop(number, None)

    async def _exchange(self, message: Mapping[str, Any], answer: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        await self._send(message)
        return await answer

    @property
    def silent(self) -> float:
        """Seconds since the engine's last line, or its start."""
        return time.monotonic() - self._heard

    def kill(self) -> None:
        """End an engine that does not answer any more; whatever waits for it hears of that."""
        self._stuck = True
        self._signal_end()
        self._settle()

    async def _watch(self) -> None:
        """End an engine that says nothing although it is asked again and again; from a request on until all is quiet.

        Counted in turns of this loop and not by the clock: a host that was stopped itself has waited for one turn.
        """
        silent = 0
        while self.alive and (self._requests or self._owes):
            heard = self._heard
            await asyncio.sleep(PING_EVERY)
            silent = silent + 1 if heard == self._heard else 0
            if silent > PINGS:
                self.kill()
            elif silent:
                self._number += 1
                self._write({"id": self._number, "method": "ping", "params": {}})

    def _forget(self, number: int) -> None:
        self.tell("cancel", {"id": number})

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification; nothing happens when the engine has ended."""
        self._write({"method": method, "params": dict(params)})

    def _write(self, message: Mapping[str, Any]) -> None:
        """A small line that nobody waits for."""
        if self.alive and self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.write(_line(message))

    async def _send(self, message: Mapping[str, Any]) -> None:
        try:
            line = _line(message)
        except (TypeError, ValueError, RecursionError):
            raise trouble(
                "The arguments are no JSON; nothing was sent.", "Write them again.", "call", "usage"
            ) from None
        if len(line) > LINE_LIMIT:
            raise trouble("The arguments are over 16 MiB; nothing was sent.", "Send less at once.", "call", "usage")
        if not self.alive or self._writer is None:
            raise self._gone(sent=False)
        try:
            self._writer.write(line)
            await self._writer.drain()
        except (OSError, RuntimeError):
            raise self._gone() from None

    def _gone(self, sent: bool = True) -> EngineError:
        if not self._answered and not self._stuck:
            words: Any = self._popen.args
            return trouble(
                "The pi-mcp engine ended before it answered anything; no call was sent.",
                f"Run `{shlex.join(words)}` in a terminal: it says why. The next search starts it again.",
            )
        ended = "did not answer any more and was ended" if self._stuck else "ended"
        return trouble(
            f"The pi-mcp engine {ended}; whether a call that was under way took effect is unknown."
            if sent
            else "The pi-mcp engine has ended; nothing was sent.",
            "The next search starts it again.",
        )

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._heard, self._owes = time.monotonic(), False
                with contextlib.suppress(Exception):  # a line that no engine of ours writes ends nothing
                    self._took(line)
        except (OSError, ValueError):  # a line over the limit: what it answers is unknown
            pass
        finally:
            self._settle()
            if self._watching is not None:
                self._watching.cancel()
            if self._writer is not None:
                self._writer.close()
            await self._reap(END_WAIT)

    def _settle(self) -> None:
        """The engine is no more: who waits for it hears of it, and its questions are void."""
        self.alive = False
        for future in list(self._requests.values()):
            if not future.done():
                future.set_exception(self._gone())
        for task in list(self._questions.values()):
            task.cancel()

    def _took(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(message, dict):
            return
        if "method" not in message:
            number = message.get("id")
            future = self._requests.get(number) if isinstance(number, int) else None
            if future is not None and not future.done():
                self._answered = True
                error = message.get("error")
                if isinstance(error, dict):
                    data = error.get("data")
                    if isinstance(data, dict) and "code" in data:
                        future.set_exception(EngineError(data))
                    else:
                        said = str(error.get("message", "The engine refused it."))
                        future.set_exception(trouble(said, None, code="protocol_error"))
                else:
                    result = message.get("result")
                    future.set_result(result if isinstance(result, dict) else {})
            return
        if message["method"] == "cancel":
            params = message.get("params")
            task = self._questions.get(params.get("id")) if isinstance(params, dict) else None
            if task is not None:
                task.cancel()
            return
        asked, number = "id" in message, message.get("id")
        if asked and not isinstance(number, str):
            return  # no engine of ours asks like that
        work = self._received(message) if isinstance(message.get("params"), dict) else None
        if asked:
            task = asyncio.get_running_loop().create_task(self._respond(number, work))
            self._questions[number] = task
            task.add_done_callback(lambda _: self._questions.pop(number, None))

    async def _respond(self, number: Any, work: Coroutine[Any, Any, Any] | None) -> None:
        answer: dict[str, Any] = {"error": {"code": -32601, "message": "This host cannot answer that."}}
        if work is not None:
            with contextlib.suppress(EngineError):
                answer = {"result": await work}
        with contextlib.suppress(EngineError):
            await self._send({"id": number, **answer})

    async def end(self) -> None:
        """Ask the engine to end, and see to it that it has."""
        self._write({"id": 0, "method": "shutdown", "params": {}})
        if self.alive and self._writer is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._writer.close()
        await self._reap(END_WAIT)

    async def _reap(self, wait: float) -> None:
        if not await self._exited(wait):
            self._signal_end()
            await self._exited(END_WAIT)
        self.alive = False

    async def _exited(self, wait: float) -> bool:
        """Reaped within so many seconds. No thread waits: at the interpreter's end there are no new ones."""
        end = time.monotonic() + wait
        while self._popen.poll() is None:
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.01)  # no event tells it, wherever the host runs
        return True

    def _signal_end(self) -> None:
        # Its servers have supervisors of their own, which end them when it is gone.
        with contextlib.suppress(OSError):
            self._popen.send_signal(getattr(signal, "SIGKILL", signal.SIGTERM))


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, allow_nan=False).encode() + b"\n"


# The thread


_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner = 0


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Run `work` on the one loop of this module, in its daemon thread."""
    global _loop, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():  # a forked child has no thread
            _owner = os.getpid()
            # Not by the host's policy, which may be for loops that run in the main thread only.
            if sys.platform == "win32":
                _loop = asyncio.ProactorEventLoop()
            else:
                _loop = asyncio.SelectorEventLoop()
            _loop.set_exception_handler(lambda *_: None)  # its own way is to print
            threading.Thread(target=_loop.run_forever, name="pi-mcp engine", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop)
