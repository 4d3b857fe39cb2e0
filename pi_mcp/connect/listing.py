"""Collect the pages of a `tools/list`, however odd they are.

Comes in: the result object of each page. Goes out: which cursor to ask for next, and in the end a `Listing` of
tools with distinct names. It does no I/O and raises for no server's content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pi_mcp.jsontext import compact_json
from pi_mcp.text import clean_line

MAX_TOOLS = 10_000
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of UTF-8 JSON over all tools."""
MAX_PAGES = 1_000
_MAX_NAME = 1_000
"""Characters of a tool's name; the protocol recommends at most 128."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server listed. `tools` are the JSON objects as sent, with distinct, non-blank names.

    `complete` is False where a bound cut it. `notes` are sentences of ours. `ttl`: seconds the server states.
    """

    tools: tuple[dict[str, Any], ...]
    complete: bool = True
    notes: tuple[str, ...] = ()
    ttl: float | None = None


NOT_DECLARED = Listing((), notes=("The server offers no tools (it does not declare them).",))
METHOD_UNKNOWN = Listing((), notes=("The server offers no tools (it does not know `tools/list`).",))


class Pages:
    """The state of one listing. Ask for `cursor` while `more` is true, and `add` what comes."""

    def __init__(
        self,
        *,
        max_tools: int = MAX_TOOLS,
        max_bytes: int = MAX_BYTES,
        max_pages: int = MAX_PAGES,
        can_call: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        """`can_call` says of a tool whether the transport could carry a call of it; others are dropped."""
        self.more = True
        self._can_call = can_call
        self.cursor: str | int | None = None
        """What to send as `cursor`; None on the first page, where the member is left out."""
        self._limits = (max_tools, max_bytes, max_pages)
        self._tools: dict[str, dict[str, Any]] = {}
        self._bytes = 0
        self._pages = 0
        self._seen: set[str | int] = set()
        self._dropped: Counter[str] = Counter()
        self._notes: list[str] = []
        self._complete = True
        self._ttl: float | None = None

    def add(self, result: Mapping[str, Any]) -> None:
        """One page: the result object of `tools/list`."""
        max_tools, max_bytes, max_pages = self._limits
        self._pages += 1
        self.more = False
        self._state_ttl(result.get("ttlMs"))
        tools = result.get("tools")
        if not isinstance(tools, list):
            self._note("A page of the listing holds no `tools` array.")
            tools = []
        for tool in tools:
            name = self._name(tool)
            if name is None:
                continue
            if len(self._tools) >= max_tools:
                self._cut(f"The listing was cut at {max_tools} tools.")
                return
            size = _size(tool)
            if self._bytes + size > max_bytes:
                self._cut(f"The listing was cut at {max_bytes / (1024 * 1024):g} MiB.")
                return
            self._bytes += size
            self._tools[name] = tool
        self._next(result, max_pages)

    def _next(self, result: Mapping[str, Any], max_pages: int) -> None:
        # Presence decides, not truth: an empty string is a genuine cursor for some servers (B079).
        cursor = result.get("nextCursor")
        if cursor is None:
            return
        if not isinstance(cursor, str | int) or isinstance(cursor, bool):
            self._cut("The listing ended at a cursor that is no string.")
        elif cursor in self._seen:
            self._note("The server repeats a page cursor; the listing ended there.")
        elif self._pages >= max_pages:
            self._cut(f"The listing was cut after {max_pages} pages.")
        else:
            self._seen.add(cursor)
            self.cursor = cursor
            self.more = True

    def cut(self, note: str) -> None:
        """End here for a reason of the caller's (a failure or a time limit after the first page)."""
        self.more = False
        self._cut(note)

    def listing(self) -> Listing:
        notes = list(self._notes)
        words = {
            "shape": "that are no objects",
            "name": "without a usable name",
            "twice": "whose name was listed before",
            "headers": "whose `x-mcp-header` is not valid",
        }
        for kind, words_for in words.items():
            if count := self._dropped[kind]:
                notes.append(f"{count} {'entry' if count == 1 else 'entries'} {words_for} dropped.")
        return Listing(tuple(self._tools.values()), self._complete, tuple(notes), self._ttl)

    def _name(self, tool: Any) -> str | None:
        if not isinstance(tool, dict):
            self._dropped["shape"] += 1
            return None
        name = tool.get("name")
        if not isinstance(name, str) or not clean_line(name) or len(name) > _MAX_NAME or not _encodable(name):
            self._dropped["name"] += 1
            return None
        if name in self._tools:
            self._dropped["twice"] += 1
            return None
        if self._can_call is not None and not self._can_call(tool):
            self._dropped["headers"] += 1
            return None
        return name

    def _state_ttl(self, value: Any) -> None:
        # 0 states nothing: it is what servers send whose author set no TTL (the SDK's default of 2026-07-28).
        # Read as "never keep", it would start every such server for every search.
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            seconds = max(0.0, min(float(value) / 1000.0, 1e9))
            self._ttl = seconds if self._ttl is None else min(self._ttl, seconds)

    def _note(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    def _cut(self, note: str) -> None:
        self._complete = False
        self._note(note)


def _encodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(tool: dict[str, Any]) -> int:
    return len(compact_json(tool).encode("utf-8", "surrogatepass"))
