"""JSON-RPC messages as HTTP servers send them: bodies and event streams, taken apart and put into the SDK's shape.

Comes in: bytes and JSON texts. Goes out: events, and messages that the SDK can read. It does no I/O, and it
never raises for a server's nonsense but `TooLarge` and ValueError.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pi_mcp.connect.faults import RequestId
from pi_mcp.jsontext import json_line

LARGEST_MESSAGE = 64 * 1024 * 1024
"""Bytes of one JSON body or of one event's data, after decompression (DESIGN §5)."""
MOST_LEVELS = 200
"""Arrays and objects within one another in one message over HTTP. Whatever walks over it later takes a few frames of
the stack for each level, and some libraries do not survive the stack's end."""
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class TooLarge(Exception):
    """More bytes than a message may have."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event (WHATWG HTML §9.2). `id` is None where the event itself names none."""

    name: str
    data: str
    id: str | None
    retry: float | None
    """Seconds."""


class EventParser:
    """Bytes of an event stream to events; lines end in CR, LF or CRLF. Raises `TooLarge` beyond `limit` bytes."""

    def __init__(self, limit: int = LARGEST_MESSAGE) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._line_size = 0
        self._size = 0
        self._after_cr = False
        self._first = True
        self._clear()

    def _clear(self) -> None:
        self._data: list[bytes] = []
        self._name = ""
        self._id: str | None = None
        self._retry: float | None = None
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that `chunk` completes."""
        if self._after_cr and chunk:
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *rest = chunk.split(b"\n")
        self._append(first)
        for piece in rest:
            line = b"".join(self._pieces)
            self._pieces.clear()
            self._line_size = 0
            event = self._line(line)
            if event is not None:
                yield event
            self._append(piece)

    def rest(self) -> str:
        """The data of an event that the end of the stream cut off, perhaps empty."""
        line = b"".join(self._pieces)
        self._pieces.clear()
        if line:
            self._line(line)
        data = b"\n".join(self._data).decode("utf-8", "replace")
        self._clear()
        return data

    def _append(self, piece: bytes) -> None:
        if piece:
            self._line_size += len(piece)
            if self._size + self._line_size > self._limit + 64:
                raise TooLarge
            self._pieces.append(piece)

    def _line(self, line: bytes) -> Event | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            event = None
            if self._data or self._id is not None or self._retry is not None:
                data = b"\n".join(self._data).decode("utf-8", "replace")
                event = Event(self._name or "message", data, self._id, self._retry)
            self._clear()
            return event
        if line.startswith(b":"):
            return None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._size += len(value) + 1
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit() and len(value) < 10:
            self._retry = int(value) / 1000
        return None


def is_message(value: object) -> bool:
    """Whether a JSON value has the shape of a JSON-RPC message that the SDK can read (B070, B071)."""
    if not isinstance(value, dict):
        return False
    ident = value.get("id")
    named = isinstance(ident, int | str | float) and not isinstance(ident, bool)
    if isinstance(value.get("method"), str):
        params = value.get("params")
        # A request's id has to go back as it came; 1.5 cannot.
        whole = not isinstance(ident, float) or ident.is_integer()
        return ((named and whole) or "id" not in value) and (params is None or isinstance(params, dict))
    if "result" in value:
        return named
    return "error" in value and (named or ident is None)


def is_answer(value: Mapping[str, Any]) -> bool:
    """Whether a message is a result or an error."""
    return "method" not in value and ("result" in value or "error" in value)


def normalized(message: Mapping[str, Any], request_id: RequestId | None = None) -> dict[str, Any] | None:
    """A message in the exact shape that the SDK reads, or None when a result is no object.

    Some servers leave `jsonrpc` out, spell the id as a string, or give an error as bare text.
    """
    out = dict(message)
    out["jsonrpc"] = "2.0"
    if not is_answer(out):
        if out.get("params", 0) is None:
            del out["params"]
        if isinstance(out.get("id"), float):
            out["id"] = int(out["id"])
        return out
    if request_id is not None:
        out["id"] = request_id
    if "error" in out and out["error"] is not None:
        error = out["error"]
        if not isinstance(error, dict):
            error = {"message": error}
        code, text = error.get("code"), error.get("message")
        out["error"] = {
            **error,
            "code": code if isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**53 else -32603,
            "message": text if isinstance(text, str) else "",
        }
        out.pop("result", None)
        return out
    out.pop("error", None)
    result = out.get("result")
    if result is None:
        out["result"] = {}
    elif not isinstance(result, dict):
        return None
    return out


def decoded(text: str) -> Any:
    """JSON of any text; raises ValueError where it is none, or is nested beyond `MOST_LEVELS`.

    Halves of surrogate pairs, which are no text and which nobody could write again, become U+FFFD.
    """
    try:
        value = json.loads(text, parse_constant=str, parse_float=finite)  # NaN and infinities are no JSON
        if _too_deep(text, value):
            raise ValueError("nested too deeply")
        # Decoded bytes hold no half; escapes may, and may as well be pairs, which are one character by now.
        return json.loads(json_line(value)) if _ESCAPED_SURROGATE.search(text) else value
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _too_deep(text: str, value: Any) -> bool:
    """Whether the value of a JSON text is nested beyond `MOST_LEVELS`."""
    if text.count("[") + text.count("{") <= MOST_LEVELS:
        return False
    layer = [value]
    for _ in range(MOST_LEVELS):
        layer = [
            inner
            for one in layer
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def finite(text: str) -> float | str:
    """A number with a fraction or an exponent; one beyond a float's range stays as it is spelled."""
    value = float(text)
    return value if math.isfinite(value) else text


@dataclass(slots=True)
class Found:
    """What was in one JSON text: messages in the SDK's shape, requests whose answer is unusable, and the rest."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    malformed: list[RequestId] = field(default_factory=list)
    noise: int = 0


def messages_in(text: str, waiting: Mapping[str, RequestId]) -> Found:
    """The messages of a body or an event; an array is a batch (2025-03-26).

    `waiting` are the requests that may be answered here, by their id as text, so that "1" answers 1; an answer to
    anything else is noise (report B106). An error without an id answers the only request there is. Within the
    result answers come last: the reader stops at the answer it waits for.
    """
    found = Found()
    only = next(iter(waiting.values())) if len(waiting) == 1 else None
    try:
        value = decoded(text)
    except ValueError:
        found.noise = 1
        if only is not None and '"jsonrpc"' in text:
            found.malformed.append(only)
        return found
    for one in value if isinstance(value, list) else [value]:
        if not is_message(one):
            found.noise += 1
            continue
        request_id = None
        if is_answer(one):
            ident = one.get("id")
            request_id = only if ident is None else waiting.get(id_text(ident))
            if request_id is None:
                found.noise += 1
                continue
        shaped = normalized(one, request_id)
        if shaped is None and request_id is not None:
            found.malformed.append(request_id)
        elif shaped is not None:
            found.messages.append(shaped)
    found.messages.sort(key=is_answer)
    return found


def id_text(value: object) -> str:
    """An id as text: 1, "1" and 1.0 are one, as the protocol's peers mean it."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)
