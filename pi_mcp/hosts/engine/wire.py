"""Lines of JSON-RPC over two pipes: bounded in size, in number and in time, whatever the other side does.

Comes in: file descriptors. Goes out: `Incoming` values and written lines. It knows no method. Reading and writing have
a thread each: a host that is slow, or gone, must never stop the event loop, and a pipe may be anything that a host
opens (a pipe, a socket, a file, a terminal).
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LINE_LIMIT = 16 * 1024 * 1024
"""Bytes of one line from the host."""
PENDING_LIMIT = 8 * 1024 * 1024
"""Bytes that wait for the host to read them; above it nothing more is read from it, and news is dropped."""
QUEUE = 32
"""Lines that wait to be handled."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
FAILED = -32000
"""The error code whose `data` is a diagnostic."""

_SURROGATES = re.compile("[\ud800-\udfff]")

Id = int | str


@dataclass(frozen=True, slots=True)
class Request:
    id: Id
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Response:
    """The host's answer to a question of ours; `result` is None for an error."""

    id: Any
    result: Any


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that is no JSON-RPC: the error's code and message. `last` ends the engine."""

    code: int
    message: str
    id: Id | None = None
    last: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """The host has closed its side."""


Incoming = Request | Notification | Response | Malformed | End


def parse(line: bytes) -> Incoming:
    """One line as a message. Never raises, whatever the bytes are."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return Malformed(PARSE_ERROR, "This line is no JSON.")
    if not isinstance(message, dict):
        return Malformed(INVALID_REQUEST, "A message is one JSON object.")
    number = message.get("id")
    known = number if isinstance(number, str) or (isinstance(number, int) and not isinstance(number, bool)) else None
    if message.get("jsonrpc") != "2.0":
        return Malformed(INVALID_REQUEST, 'A message has "jsonrpc": "2.0".', known)
    method = message.get("method")
    if method is None and ("result" in message or "error" in message):
        return Response(number, None if "error" in message else message["result"])
    if not isinstance(method, str):
        return Malformed(INVALID_REQUEST, "A message has a method, a result or an error.", known)
    params = message.get("params", {})
    if not isinstance(params, dict):
        return Malformed(INVALID_REQUEST, "The params of a message are a JSON object.", known)
    if "id" not in message:
        return Notification(method, params)
    if known is None:
        return Malformed(INVALID_REQUEST, "An id is a string or a whole number.")
    return Request(known, method, params)


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as a line. What a server's JSON may hold and hosts could not keep or send on goes: NaN, infinities and
    numbers of thousands of digits become null, halves of surrogate pairs U+FFFD (a record with one is not restored).
    Raises RecursionError for what is nested too deep."""
    try:
        text = json.dumps(message, allow_nan=False)
    except ValueError:
        message = _plain(message)
        text = json.dumps(message, allow_nan=False)
    if "\\ud" in text:  # whole pairs are written like this, too
        plain = json.dumps(message, ensure_ascii=False)
        whole = _SURROGATES.sub("\ufffd", plain)
        return (text if whole == plain else whole).encode() + b"\n"
    return text.encode() + b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and value.bit_length() > 8192:
        return None
    return value


class Reader:
    """Reads `fd` in a thread of its own; `next()` gives one message after the other, an `End` at last."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Incoming] = asyncio.Queue(QUEUE)
        # A daemon: a read that never comes back must not keep the process.
        threading.Thread(target=self._run, name="engine reads", daemon=True).start()

    async def next(self) -> Incoming:
        return await self._queue.get()

    def _run(self) -> None:
        buffer = bytearray()
        searched = 0
        while True:
            try:
                chunk = os.read(self._fd, 65536)
            except OSError:
                chunk = b""
            if not chunk:
                self._put(End())
                return
            buffer += chunk
            while (cut := buffer.find(b"\n", searched)) >= 0:
                line = bytes(buffer[:cut])
                del buffer[: cut + 1]
                searched = 0
                if len(line) > LINE_LIMIT:
                    break
                if line.strip() and not self._put(parse(line)):
                    return
            else:
                searched = len(buffer)
                if searched <= LINE_LIMIT:
                    continue
            self._put(Malformed(INVALID_REQUEST, "A line over 16 MiB: the engine ends.", last=True))
            return

    def _put(self, message: Incoming) -> bool:
        """Wait until there is room: what the engine cannot handle yet stays in the host's pipe."""
        try:
            asyncio.run_coroutine_threadsafe(self._queue.put(message), self._loop).result()
        except Exception:  # the loop has ended
            return False
        return True


@dataclass
class Writer:
    """Writes lines to `fd` in a thread of its own, in order."""

    fd: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the host does not read any more."""

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = threading.Condition()
        self._lines: list[bytes] = []
        self._pending = 0
        self._stopped = False
        self._room = asyncio.Event()
        self._room.set()
        self._thread = threading.Thread(target=self._run, name="engine writes", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """The host is behind with reading."""
        return self._pending > PENDING_LIMIT

    def send(self, message: Mapping[str, Any], *, news: bool = False) -> None:
        """Put a line into the queue; never blocks. `news` is dropped while the host is behind.

        Raises ValueError or RecursionError for what no JSON can hold.
        """
        if self._stopped or (news and self.full):
            return
        line = encode({"jsonrpc": "2.0", **message})
        with self._wake:
            self._lines.append(line)
            self._pending += len(line)
            if self.full:
                self._room.clear()
            self._wake.notify()

    async def room(self) -> None:
        """Wait until the host has read enough, or is gone."""
        await self._room.wait()

    async def finish(self, seconds: float) -> None:
        """Let what was sent go out, for at most that long."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join, seconds)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._lines and not self._stopped:
                    self._wake.wait()
                if not self._lines:
                    return
                line = self._lines.pop(0)
            try:
                view = memoryview(line)
                while view:
                    view = view[os.write(self.fd, view) :]
            except OSError:
                self._stopped = True
                self._tell(self.closed.set)
                self._tell(self._room.set)
                return
            with self._wake:
                self._pending -= len(line)
                if not self.full:
                    self._tell(self._room.set)

    def _tell(self, what: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:  # the loop has ended
            return
