"""The stdio transport: one child process, one JSON-RPC message a line.

Comes in: a resolved definition. Goes out: the SDK's `(read_stream, write_stream)` pair while the process lives,
and in `Faults` why it ended. It never interprets a message beyond its envelope, never blocks the event loop on a
pipe, and leaves no process behind when the context is left.

Not the SDK's own transport: its line reader takes quadratic time (50 MB: 21 s with the loop blocked), has no bound,
and it lets grandchildren live on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pi_mcp.connect.command import CannotStart, CommandLine, command_line
from pi_mcp.connect.faults import Fault, Faults
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.messages import finite
from pi_mcp.connect.streams import MessageStream, Received, failed, shape, wire_form

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from pi_mcp.config import ResolvedServer

MESSAGE_LIMIT = 64 * 1024 * 1024
"""Bytes of one message; a larger one is drained and fails only its own request (DESIGN §5)."""
EOF_GRACE = 2.0
"""Seconds a server has to end by itself when its stdin is closed."""
TERM_GRACE = 2.0
"""Seconds more after SIGTERM. The supervisor's own grace is the same; ours is a little longer."""
_ENDS = 4096
"""Bytes kept of either end of a message that is too large, to find its id."""
_BACKLOG = 8 * 1024 * 1024
"""Bytes of complete lines waiting to be dispatched before reading pauses."""
_FAIR = 32
"""Lines in a row before everything else has its turn."""


class LineReader:
    """Cuts a byte stream into lines, in linear time and bounded space. Pure.

    `feed` returns complete lines without their ending, and `Oversized` for each that went over the limit.
    """

    def __init__(self, limit: int = MESSAGE_LIMIT) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None
        self._tail = b""

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        found: list[bytes | Oversized] = []
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data[start:end])
            found.append(self._finish())
            start = end + 1
        if start < len(data):
            self._take(data[start:])
        return found

    def end(self) -> list[bytes | Oversized]:
        """The stream has ended; a last line without an ending counts."""
        return [self._finish()] if self._size else []

    def _take(self, part: bytes) -> None:
        self._size += len(part)
        if self._head is not None:
            self._tail = (self._tail + part)[-_ENDS:]
        elif self._size > self._limit:
            whole = b"".join(self._parts) + part
            self._parts.clear()
            self._head, self._tail = whole[:_ENDS], whole[-_ENDS:]
        else:
            self._parts.append(part)

    def _finish(self) -> bytes | Oversized:
        line: bytes | Oversized
        if self._head is not None:
            line = Oversized(self._head, self._tail, self._size)
        else:
            line = b"".join(self._parts).removesuffix(b"\r")
        self._parts, self._size, self._head, self._tail = [], 0, None, b""
        return line


class Oversized:
    """A message that was drained: its two ends and its size in bytes."""

    _FIRST = re.compile(rb'^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")\s*,')
    _LAST = re.compile(
        rb',\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")\s*'
        rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$'
    )

    def __init__(self, head: bytes, tail: bytes, size: int) -> None:
        self.size = size
        # An id that stands first or last in the object can be told without parsing; deeper ones could be data.
        match = self._FIRST.search(head) or self._LAST.search(tail)
        self.request_id: int | str | None = json.loads(match.group(1)) if match else None
        self.is_request = b'"method"' in head


@dataclass(frozen=True, slots=True)
class _Undelivered:
    """A request of which nothing was written."""

    request_id: int | str


def parse(line: bytes) -> list[dict[str, Any]] | None:
    """The JSON-RPC objects of a line (an array is a batch of 2025-03-26), or None when it is no message.

    Invalid UTF-8 is replaced. NaN and infinities, which are not JSON, become strings.
    """
    stripped = line.lstrip(b"\xef\xbb\xbf \t")
    if not stripped.startswith((b"{", b"[")):
        return None
    try:
        value = json.loads(line.decode("utf-8-sig", "replace"), parse_constant=str, parse_float=finite)
    except (ValueError, RecursionError):
        return None
    found = value if isinstance(value, list) else [value]
    messages = [item for item in found if isinstance(item, dict) and ("method" in item or "id" in item)]
    return messages or None


@contextlib.asynccontextmanager
async def stdio_transport(
    resolved: ResolvedServer,
    faults: Faults,
    log: LogRing,
    *,
    environ: Mapping[str, str] | None = None,
    limit: int = MESSAGE_LIMIT,
) -> AsyncIterator[tuple[_Incoming, _Outgoing]]:
    """Start the server and yield the SDK's stream pair. Leaving ends the process within about 5 s.

    Raises `CannotStart` (its `fault` is noted as fatal, too) when nothing could be started. When the process
    ends or closes its stdout, the read stream ends and `faults.fatal` says why.
    """
    try:
        line = command_line(resolved, os.environ if environ is None else environ, supervised=sys.platform != "win32")
        child = await _start(line, log, limit)
    except CannotStart as error:
        faults.note(None, error.fault)
        raise
    incoming = _Incoming(child, faults, log, limit)
    outgoing = _Outgoing(child, faults)
    try:
        yield incoming, outgoing
    finally:
        try:
            await child.stop(eof_first=True)
        finally:
            await incoming.aclose()
            await outgoing.aclose()


class _Incoming(MessageStream, Received):
    """The SDK's `ReadStream`: messages straight from the child's lines.

    A pair of memory streams with a task between them, as the SDK's own transport has, costs each call four turns
    of the event loop (docs/performance.md).
    """

    def __init__(self, child: _Child, faults: Faults, log: LogRing, limit: int) -> None:
        super().__init__()
        self._child = child
        self._faults = faults
        self._log = log
        self._limit = limit
        self._ready: deque[SessionMessage] = deque()
        self._in_a_row = 0

    async def receive(self) -> SessionMessage:
        """The next message. Raises anyio.EndOfStream when there will be none; the fault is noted then."""
        import anyio
        from mcp.shared.message import SessionMessage

        while not self._ready:
            if self._closed:
                raise anyio.ClosedResourceError
            item = await self._child.next_line()
            if item is None:
                self._faults.note(None, await self._child.fault())
                raise anyio.EndOfStream
            if isinstance(item, _Undelivered):
                self._ready.append(SessionMessage(failed(item.request_id)))
            else:
                self._ready.extend(
                    SessionMessage(message) for message in _messages(item, self._faults, self._log, self._limit)
                )
            self._in_a_row += 1
            if self._in_a_row >= _FAIR:
                # A server that writes without end must not keep everything else from running.
                self._in_a_row = 0
                await asyncio.sleep(0)
        return self._ready.popleft()


class _Outgoing(MessageStream):
    """The SDK's `WriteStream`: messages straight into the child's pipe, waiting while it takes no more."""

    def __init__(self, child: _Child, faults: Faults) -> None:
        super().__init__()
        self._child = child
        self._faults = faults

    async def send(self, item: SessionMessage, /) -> None:
        """Write one message. Raises anyio.ClosedResourceError once the transport has been left."""
        if self._closed:
            import anyio

            raise anyio.ClosedResourceError
        message: Any = item.message
        try:
            data = wire_form(message)
        except Exception:  # arguments that a program passed and JSON cannot hold
            kind = "unsendable"
            if not hasattr(message, "method"):
                # The server waits for an answer: the dispatcher writes an error in the place of this one.
                from mcp.shared.exceptions import MCPError

                raise MCPError(code=-32603, message="Internal error") from None
        else:
            if await self._child.write(data + b"\n"):
                return
            kind = "disconnected"
            # Where the process is gone, its exit is the reason, whoever notices first: the reader or this write.
            ended = await self._child.fault()
            if ended.kind == "exit":
                self._faults.note(None, ended)
        request_id = getattr(message, "id", None)
        if request_id is not None and hasattr(message, "method"):
            # Nothing of it was written, so the request provably did not run.
            self._faults.note(request_id, Fault(kind, executed="no"))
            self._child.deliver(_Undelivered(request_id))


def _messages(item: bytes | Oversized, faults: Faults, log: LogRing, limit: int) -> list[Any]:
    if isinstance(item, Oversized):
        size = f"{limit // (1024 * 1024)} MiB" if limit >= 1024 * 1024 else f"{limit} bytes"
        if item.request_id is None or item.is_request:
            log.noise += 1
            log.add(f"pi-mcp: a message of {item.size} bytes was dropped (limit {size}).")
            return []
        faults.note(item.request_id, Fault("too_large", detail=size))
        return [failed(item.request_id)]
    if not item.strip():
        return []
    parsed = parse(item)
    if parsed is None:
        log.stray(item)
        told = Oversized(item[:_ENDS], item[-_ENDS:], len(item)) if b'"jsonrpc"' in item else None
        if told is None or told.request_id is None or told.is_request:
            return []
        # Nested beyond what can be read, or broken: whoever waits for it need not wait for a time-out.
        faults.note(told.request_id, Fault("malformed"))
        return [failed(told.request_id)]
    found = []
    for raw in parsed:
        message = shape(raw, faults)
        if message is None:
            log.stray(item)
        else:
            found.append(message)
    return found


class _Child(asyncio.SubprocessProtocol):
    """The process and its pipes. All methods run on the event loop."""

    def __init__(self, log: LogRing, limit: int) -> None:
        self._log = log
        self._reader = LineReader(limit)
        self._lines: deque[bytes | Oversized | _Undelivered] = deque()
        self._waiting = 0
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._stdout_ended = False
        self._paused = False
        self.exited = asyncio.Event()
        self._closed = asyncio.Event()
        self.transport: asyncio.SubprocessTransport | None = None

    # what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._log.feed(data)
            return
        self._arrived(self._reader.feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        del exc
        if fd == 1:
            self._arrived(self._reader.end())
            self._stdout_ended = True
        elif fd == 2:
            self._log.end()
        else:
            self._writable.set()
        self._news.set()

    def process_exited(self) -> None:
        self.exited.set()
        self._writable.set()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._closed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # what the transport asks

    def _arrived(self, lines: list[bytes | Oversized]) -> None:
        for line in lines:
            self._lines.append(line)
            self._waiting += len(line) if isinstance(line, bytes) else 0
        if lines:
            self._news.set()
        if self._waiting > _BACKLOG and not self._paused:
            self._paused = True
            self._stdout("pause_reading")

    def _stdout(self, action: str) -> None:
        pipe = self.transport.get_pipe_transport(1) if self.transport else None
        if pipe is not None and not pipe.is_closing():
            getattr(pipe, action)()

    def deliver(self, item: _Undelivered) -> None:
        """Put the failure of a request among what is read."""
        self._lines.append(item)
        self._news.set()

    async def next_line(self) -> bytes | Oversized | _Undelivered | None:
        """The next line; None when there will be no more."""
        while not self._lines:
            if self._stdout_ended:
                return None
            if self.exited.is_set():
                # A descendant may hold the pipe open; what the server itself wrote is in it already.
                await self._settle()
                if not self._lines:
                    return None
                break
            self._news.clear()
            await self._news.wait()
        line = self._lines.popleft()
        self._waiting -= len(line) if isinstance(line, bytes) else 0
        if self._paused and self._waiting < _BACKLOG // 2:
            self._paused = False
            self._stdout("resume_reading")
        return line

    async def _settle(self) -> None:
        for _ in range(10):
            if self._lines or self._stdout_ended:
                return
            await asyncio.sleep(0.02)

    async def fault(self) -> Fault:
        """Why there are no more lines: the exit, waited for a moment, or a stdout closed by a living process."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.exited.wait()
        code = self.transport.get_returncode() if self.transport else None
        if code is None:
            return Fault("stdout_closed")
        return Fault("exit", signal=-code) if code < 0 else Fault("exit", exit_status=code)

    async def write(self, data: bytes) -> bool:
        """Hand one message to the pipe, when it takes more; False when it is gone."""
        await self._writable.wait()
        pipe = self.transport.get_pipe_transport(0) if self.transport else None
        if pipe is None or pipe.is_closing() or self.exited.is_set():
            return False
        cast("asyncio.WriteTransport", pipe).write(data)
        # It tries at once: a pipe that nobody reads any more is closing now, and has taken nothing. An event loop
        # that was blocked meanwhile learns of the process's death only in its next turn.
        return not pipe.is_closing()

    async def stop(self, *, eof_first: bool) -> None:
        """End the process: EOF, SIGTERM, SIGKILL, each with its grace; then let go of the pipes."""
        transport = self.transport
        if transport is None:
            return
        try:
            self._wake()
            pipe = cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0))
            if pipe is not None:
                # close() would wait until what is buffered was read, which may be never.
                if pipe.get_write_buffer_size():
                    pipe.abort()
                else:
                    pipe.close()
            if not (eof_first and await self._gone(EOF_GRACE)):
                self._send(signal.SIGTERM)
                await self._gone(TERM_GRACE + 0.5)
        finally:
            if not self.exited.is_set():
                # Cancelled, or the process does not react. The supervisor's own death ends its tree.
                self._kill()
                await self._gone(1.0)  # closing earlier would take the exit status away, as in `_send`
            transport.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.exited.wait()
                    await self._closed.wait()

    async def _gone(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.exited.wait()
        return self.exited.is_set()

    def _send(self, number: int) -> None:
        if self.transport is None or self.exited.is_set():
            return
        if sys.platform == "win32":
            self.transport.send_signal(number)
            return
        # Not the transport's own: it asks first whether the process has ended, and takes its exit status away
        # from asyncio's watcher, which then reports 255 and prints that it knows no such child.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.transport.get_pid(), number)

    def _wake(self) -> None:
        """Let stopped supervisors go on, which are a group of their own: a stopped one ends nothing, and stays."""
        if sys.platform != "win32" and self.transport is not None and not self.exited.is_set():
            with contextlib.suppress(OSError):
                os.killpg(self.transport.get_pid(), signal.SIGCONT)

    def _kill(self) -> None:
        self._wake()
        # The outer supervisor alone: its group would take the inner one, too, which has the tree to end.
        self._send(signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL)


async def _start(line: CommandLine, log: LogRing, limit: int) -> _Child:
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {"cwd": line.cwd, "env": dict(line.env)}
    if sys.platform != "win32":
        # The terminal's Ctrl-C goes to its foreground group and must not reach the server (B103).
        options["start_new_session"] = True
    try:
        if line.shell_line is not None:
            _, child = await loop.subprocess_shell(lambda: _Child(log, limit), line.shell_line, **options)
        else:
            _, child = await loop.subprocess_exec(lambda: _Child(log, limit), *line.argv, **options)
    except (OSError, ValueError) as error:
        kind = "not_executable" if isinstance(error, PermissionError) else "spawn_failed"
        raise CannotStart(Fault(kind, executed="no", detail=line.argv[0])) from None
    return child
