"""The pages of a listing put together, however odd they are.

Comes in: the result object of each page. Goes out: what to ask for next, and the items with distinct names. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

MAX_ITEMS = 10_000
MAX_BYTES = 8 * 1024 * 1024
"""Bytes of JSON over all items."""
MAX_PAGES = 1_000
_MAX_NAME = 1_000


class Pages:
    """Ask with `params` while `more` is true, and `add` what comes."""

    def __init__(
        self, *, key: str = "name", items: str = "tools", can_call: Callable[[Mapping[str, Any]], bool] | None = None
    ) -> None:
        self.more = True
        self.first = True
        self.params: dict[str, Any] = {}
        self.notes: list[str] = []
        self._key = key
        self._member = items
        self._can_call = can_call
        self._names: set[str] = set()
        self._cursors: set[str | int] = set()
        self._bytes = 0
        self._received = 0
        self._pages = 0

    def add(self, result: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
        """What this page, of so many characters, adds."""
        self.first, self.more = False, False
        self._pages += 1
        if self._received + size <= MAX_BYTES:
            self._bytes = self._received + size
        self._received += size
        listed = result.get(self._member)
        if not isinstance(listed, list):
            self._note(f"A page of the listing holds no `{self._member}` array.")
            listed = []
        new: list[dict[str, Any]] = []
        for item in listed:
            if not self._is_new(item):
                continue
            if self._received > MAX_BYTES:  # measured only where it may matter: that takes longer than the rest
                text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
                self._bytes += len(text.encode("utf-8", "replace"))
            if len(self._names) >= MAX_ITEMS or self._bytes > MAX_BYTES:
                self.cut("The listing was cut at 10,000 entries or 8 MiB.")
                break
            self._names.add(item[self._key])
            new.append(item)
        else:
            self._next(result.get("nextCursor"))
        return new

    def cut(self, note: str) -> None:
        self.more = False
        self._note(note)

    def _is_new(self, item: Any) -> bool:
        name = item.get(self._key) if isinstance(item, dict) else None
        if not isinstance(name, str) or not name.strip() or len(name) > _MAX_NAME or name in self._names:
            self._note("Entries without a usable name, or with one that was listed before, were dropped.")
            return False
        if self._can_call is not None and not self._can_call(item):
            self._note("Tools whose `x-mcp-header` is not valid were dropped.")
            return False
        return True

    def _next(self, cursor: Any) -> None:
        # Presence decides, not truth: an empty string is a genuine cursor for some servers.
        if cursor is None:
            return
        if not isinstance(cursor, str | int) or isinstance(cursor, bool):
            self.cut("The listing ended at a cursor that is no string.")
        elif cursor in self._cursors:
            self.cut("The server repeats a page cursor; the listing ended there.")
        elif self._pages >= MAX_PAGES:
            self.cut(f"The listing was cut after {MAX_PAGES} pages.")
        else:
            self._cursors.add(cursor)
            self.params = {"cursor": cursor}
            self.more = True

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
