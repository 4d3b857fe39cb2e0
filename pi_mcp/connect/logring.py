"""The last 64 KiB of what a server wrote beside the protocol: stderr, log notifications, stray stdout lines.

Comes in: bytes and lines, as much as the server likes. Goes out: cleaned and redacted lines for `/mcp get`. It
never blocks, never grows, and writes nothing anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pi_mcp.text import clean_metadata, redact

LIMIT = 64 * 1024
"""Characters kept over all lines."""
_LINE = 2000
"""Characters of one line; longer ones are cut into several."""
_OVERLAP = 4096
"""Characters beyond a cut that are looked at, or held back when an endless line is cut: a secret that is cut in two
is found no more. Signed tokens of two thousand characters are common."""


class LogRing:
    """Bounded, cleaned and redacted text of one connection over all its processes."""

    def __init__(self, redactor: Callable[[str], str] | None = None, *, limit: int = LIMIT) -> None:
        self.redactor = redactor
        """Set when the secrets of the connection are known; used when lines are read, too."""
        self.noise = 0
        """How many lines on stdout were no protocol messages."""
        self._limit = limit
        self._lines: deque[str] = deque()
        self._size = 0
        self._partial = bytearray()

    def feed(self, data: bytes) -> None:
        """Bytes of stderr, cut anywhere. Invalid UTF-8 is replaced."""
        if len(data) > 2 * self._limit:
            data = data[-2 * self._limit :]
            # What stands at the cut may be the second half of a secret.
            data = data.partition(b"\n")[2] or data[_OVERLAP:]
            self._partial.clear()
        self._partial += data
        if b"\n" in data or b"\r" in data:
            *whole, rest = self._partial.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            self._partial = bytearray(rest)
            for line in whole[-2 * self._limit // 16 :]:
                self.add(line.decode("utf-8", "replace"))
        if len(self._partial) > 4 * _LINE + _OVERLAP:
            text = self._safe(self._partial.decode("utf-8", "replace"))
            self._keep(text[:-_OVERLAP])
            self._partial = bytearray(text[-_OVERLAP:].encode())

    def end(self) -> None:
        """The process has ended: what it left without a line end is a line."""
        if self._partial:
            text = self._partial.decode("utf-8", "replace")
            self._partial.clear()
            self.add(text)

    def add(self, text: str) -> None:
        """Whole lines: a log notification, or a line of our own."""
        for line in self._safe(text[-self._limit - _OVERLAP :])[-self._limit :].splitlines():
            self._keep(line)

    def stray(self, line: bytes) -> None:
        """A line on stdout that is no message: counted and kept."""
        self.noise += 1
        if line.strip():
            text = self._safe(line[: _LINE + _OVERLAP].decode("utf-8", "replace"))
            for part in f"stdout: {text[:_LINE]}".splitlines():
                self._keep(part)

    def lines(self) -> list[str]:
        """The kept lines, oldest first, with what has no line end yet."""
        found = [self._safe(line) for line in self._lines]
        if self._partial:
            found.extend(self._safe(self._partial.decode("utf-8", "replace")).splitlines())
        return found

    def _safe(self, text: str) -> str:
        text = clean_metadata(text)
        if self.redactor is not None:
            text = self.redactor(text)
        return redact(text)

    def _keep(self, text: str) -> None:
        for start in range(0, len(text), _LINE):
            part = text[start : start + _LINE]
            self._lines.append(part)
            self._size += len(part) + 1
        while self._size > self._limit and self._lines:
            self._size -= len(self._lines.popleft()) + 1
