"""JSON-RPC as HTTP servers send it: bodies and event streams taken apart.

Comes in: bytes and texts. Goes out: events, and messages in the protocol's shape. No I/O; a server's nonsense raises
nothing but ValueError and `TooLarge`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pi_mcp.http_client.exchange import TooLarge

LARGEST = 64 * 1024 * 1024
"""Bytes of one JSON body or of one event."""
_HALF_PAIR = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_SURROGATES = re.compile("[\ud800-\udfff]")
"""Halves of surrogate pairs are no text: they could be neither written nor sent on."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `id` is None where it names none; `retry` is in seconds."""

    data: str
    id: str | None
    retry: float | None


class Events:
    """Bytes of an event stream to events (WHATWG HTML §9.2); lines end in CR, LF or CRLF."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._id: str | None = None
        self._retry: float | None = None
        self._seen = False
        self._after_cr = False
        self._start = True

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that `chunk` completes. Raises TooLarge."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return
        self._after_cr = chunk.endswith(b"\r")
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._line += line
            whole, self._line = bytes(self._line), bytearray()
            event = self._take(whole)
            if event is not None:
                yield event
        self._line += rest
        if self._size + len(self._line) > LARGEST:
            raise TooLarge

    def rest(self) -> str:
        """The data of an event whose last empty line was lost with the stream's end."""
        if self._line:
            self._take(bytes(self._line))
        return b"\n".join(self._data).decode("utf-8", "replace")

    def _take(self, line: bytes) -> Event | None:
        if self._start:
            line, self._start = line.removeprefix(b"\xef\xbb\xbf"), False
        if not line:
            event = None
            if self._seen:
                event = Event(b"\n".join(self._data).decode("utf-8", "replace"), self._id, self._retry)
            self._data, self._size, self._id, self._retry, self._seen = [], 0, None, None, False
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            if self._size > LARGEST:
                raise TooLarge
            self._data.append(value)
            self._seen = True
        elif name == b"id" and b"\0" not in value:
            self._id, self._seen = value.decode("utf-8", "replace"), True
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry, self._seen = int(value) / 1000, True
        return None


@dataclass(slots=True)
class Found:
    """What one JSON text holds for a request that waits: its answer, the server's own messages, or nonsense."""

    answer: dict[str, Any] | None = None
    others: list[dict[str, Any]] = field(default_factory=list)
    malformed: bool = False
    """It was meant as the answer, and cannot be used."""


def messages_in(text: str, request_id: int) -> Found:
    """The messages of a body or an event; an array is a batch (2025-03-26). "1" answers 1."""
    found = Found()
    try:
        value = decoded(text)
        if _HALF_PAIR.search(text):
            value = decoded(_SURROGATES.sub("\ufffd", json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError):
        found.malformed = '"jsonrpc"' in text
        return found
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, dict):
            continue
        if isinstance(one.get("method"), str):
            params = one.get("params")
            if params is None or isinstance(params, dict):
                found.others.append({**one, "params": params or {}})
        elif answers(one, request_id) and found.answer is None:
            found.answer = normalized(one)
            found.malformed = found.answer is None
    return found


def answers(message: Mapping[str, Any], request_id: int) -> bool:
    """Whether a message is this request's result or error. An error without an id is, since only one waits."""
    ident = message.get("id")
    if isinstance(ident, bool) or not isinstance(ident, int | float | str | None):
        return False
    if isinstance(ident, float) and ident.is_integer():
        ident = int(ident)
    if ident is None:
        return "error" in message
    return ("result" in message or "error" in message) and str(ident) == str(request_id)


def normalized(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """`{"result": object}` or `{"error": {code, message, …}}`; None when a result is no object."""
    error = message.get("error")
    if error is not None:
        error = error if isinstance(error, dict) else {"message": error}
        code, text = error.get("code"), error.get("message")
        whole = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**53
        return {"error": {**error, "code": code if whole else -32603, "message": text if isinstance(text, str) else ""}}
    result = message.get("result")
    if result is None:
        return {"result": {}}
    return {"result": result} if isinstance(result, dict) else None


def decoded(text: str | bytes) -> Any:
    """JSON of any depth; raises ValueError where it is none. Infinite numbers stay as they are spelled."""
    try:
        return json.loads(text, parse_constant=str, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _finite(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def encoded(message: Mapping[str, Any]) -> bytes:
    """Raises ValueError, TypeError or RecursionError for what is no JSON."""
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _SURROGATES.sub("\ufffd", text).encode()
