"""What a running gateway tells its operator, on standard error, without ever waiting for whoever reads that.

Comes in: lines, and log records. Goes out: the same in order, written by a thread. A pipe that nobody empties, or a
terminal that was stopped, takes a bounded number of them; of what came meanwhile the number is said afterwards.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator

from pi_mcp.cli import common
from pi_mcp.text import fitted

WAITING = 1000
"""Lines that may wait to be written."""
LAST_LINES = 1.0
"""Seconds that the last of them may take at the end."""

Say = Callable[[str], None]


@contextlib.contextmanager
def operator_lines(log: logging.Logger) -> Iterator[Say]:
    """Within, warnings of `log` are lines on standard error, and what is given to the result is one, too."""
    lines = _Lines()
    handler = _Warnings(lines.say)
    log.addHandler(handler)
    try:
        yield lines.say
    finally:
        log.removeHandler(handler)
        lines.close()


class _Warnings(logging.Handler):
    """What an operator has to know, one line each, in our own words."""

    def __init__(self, say: Say) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("pi-mcp: %(message)s"))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(self.format(record))


class _Lines:
    def __init__(self) -> None:
        self._waiting: queue.Queue[str | None] = queue.Queue(WAITING)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write_all, name="pi-mcp lines", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Write what waits, as far as somebody reads it."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(LAST_LINES)

    def _write_all(self) -> None:
        while (text := self._waiting.get()) is not None:
            _write(text)
            if self._left_out and self._waiting.empty():
                count, self._left_out = self._left_out, 0
                _write(f"pi-mcp: {count} further lines were left out, since nobody read standard error")


def _write(text: str) -> None:
    """Past Python's own buffers: a thread that stands still in one of them would not let the interpreter end."""
    stream = sys.stderr
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # one of a test's
        common.show(text, error=True)
        return
    columns = common.terminal_columns(stream)
    line = text if columns is None else fitted(text, columns)
    data = f"{line}\n".encode(stream.encoding or "utf-8", "replace")
    try:
        while data:
            try:
                data = data[os.write(number, data) :]
            except BlockingIOError:  # whoever gave us the pipe wants it so
                _wait_for_room(number)
    except OSError:
        common.let_go(stream)


def _wait_for_room(number: int) -> None:
    import select

    select.select([], [number], [])
