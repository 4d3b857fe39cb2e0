"""What a batch has sent and what came of it, on disk before anything is sent: a crash loses no outcome.

Comes in: the number and the bytes of an input line, and later its result. Goes out: which lines are done, which were
under way when an earlier run ended, and the results again in any order. One JSON object a line:

    {"batch": 1}
    {"line": 7, "sent": DIGEST}            written and synced before the call goes out
    {"line": 7, "result": {…}}             the line that is printed

The file is private, is appended to only, and belongs to one process at a time. In memory a line takes sixteen bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from array import array
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.errors import failure
from pi_mcp.text import clean_line

VERSION = 1
_NOTHING, _SENT = 0, -1
_MOST = 1 << 26
"""Lines of a batch: a number above it was written by nobody here."""
_READ = 64 * 1024
_HEAD = b'{"batch": %d}\n' % VERSION


class JournalBroken(Exception):
    """The disk takes no more, or the file was changed under us: nothing may be sent without a journal."""


class Journal:
    """One batch's journal. `sent` and `done` may be called from several threads."""

    def __init__(self, path: Path) -> None:
        """Open or make it, and read what an earlier run left. Raises PiMcpError where it cannot be used."""
        self.path = path
        self._lock = threading.Lock()
        self._sync = threading.Lock()
        self._written = 0
        self._synced = 0
        self._broken = False
        self._places = array("q")
        self._digests = array("Q")
        try:
            self._fd = files.open_beside(path)
        except OSError:
            raise _unusable(path, "See that it is a file of yours, in a folder that you may write.") from None
        try:
            self._read()
        except OSError:
            os.close(self._fd)
            raise _unusable(path, "See that the disk has room.") from None
        except BaseException:
            os.close(self._fd)
            raise

    def _read(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise failure(
                "busy", "call", None, "Another process runs this batch.", "Wait for its end, or copy the file."
            ) from None
        size = os.fstat(self._fd).st_size
        self._size = at = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for number, line in enumerate(file):
                if number == 0 and not _HEAD.startswith(
                    line
                ):  # nor is it cut off or removed: it is something of theirs
                    raise _unusable(self.path, "It is no journal of this version: move it away, or name another file.")
                if not line.endswith(b"\n"):
                    break  # cut off by a crash: what it said did not happen
                try:
                    if number > 0:
                        self._note(line, at)
                except (ValueError, KeyError, TypeError, RecursionError):
                    # It may have said that a line was sent: without it that line would be sent again.
                    hint = f"Line {number + 1} of it is damaged: look at what was called, then move it away."
                    raise _unusable(self.path, hint) from None
                at += len(line)
        if at != size:
            os.ftruncate(self._fd, at)
        self._size = at
        if at == 0:
            try:
                self._append(_HEAD)
            except JournalBroken:
                raise OSError from None
            os.fsync(self._fd)
            files.sync_name(self.path)

    def _note(self, line: bytes, at: int) -> None:
        """Raises ValueError, KeyError or TypeError for a line that no run has written."""
        # A result may be megabytes: its number stands at the beginning, and that is all that is looked at.
        if line.startswith(b'{"line": ') and b'"result": ' in line[:60]:
            if not line.endswith(b"}}\n"):
                raise ValueError
            self._set(_number(line[9 : line.index(b",")]), at)
            return
        record = json.loads(line)
        number, digest = _number(record["line"]), str(record["sent"])
        self._remember(number, digest)
        self._set(number, _SENT)

    def _set(self, number: int, place: int) -> None:
        if len(self._places) <= number:
            self._places.extend(array("q", [_NOTHING]) * (number + 1 - len(self._places)))
        self._places[number] = place

    def _remember(self, number: int, digest: str) -> None:
        if len(self._digests) <= number:
            self._digests.extend(array("Q", [0]) * (number + 1 - len(self._digests)))
        self._digests[number] = int(digest[:16], 16)

    def state(self, number: int) -> str:
        """`new`, `sent` (its outcome is unknown) or `done`."""
        place = self._places[number] if number < len(self._places) else _NOTHING
        return "new" if place == _NOTHING else "sent" if place == _SENT else "done"

    @property
    def last(self) -> int:
        """The number of the last line that an earlier run has sent; 0 without one."""
        return max(0, len(self._digests) - 1)

    def is_same(self, number: int, digest: str) -> bool:
        """The line is the one that an earlier run has sent, or was not sent."""
        known = self._digests[number] if number < len(self._digests) else 0
        return known in (0, int(digest[:16], 16))

    def sent(self, number: int, digest: str) -> None:
        """The line is about to be sent; on disk before this returns. Raises JournalBroken: it must not be sent."""
        with self._lock:
            self._append(json.dumps({"line": number, "sent": digest}).encode() + b"\n")
            self._set(number, _SENT)
            mine = self._written
        with self._sync:
            # Threads that come together share one sync.
            if self._synced < mine:
                now = self._written
                try:
                    os.fsync(self._fd)
                except OSError:
                    self._broken = True
                    raise JournalBroken from None
                self._synced = now

    def done(self, number: int, result: dict[str, Any]) -> None:
        """Raises JournalBroken; ValueError or RecursionError for a result that no JSON can hold."""
        data = b'{"line": %d, "result": %b}\n' % (number, json.dumps(result, allow_nan=False).encode())
        with self._lock:
            place = self._size
            self._append(data)
            self._set(number, place)

    def result(self, number: int) -> bytes:
        """The line to print of one that is done, with its end. Raises JournalBroken where it is not there any more."""
        place, parts = self._places[number], [b""]
        # By place: the descriptor's own position belongs to the threads that append.
        while b"\n" not in parts[-1]:
            parts.append(os.pread(self._fd, _READ, place))
            if not parts[-1]:
                raise JournalBroken
            place += len(parts[-1])
        line = b"".join(parts).partition(b"\n")[0]
        if not line.startswith(b'{"line": %d, "result": ' % number):
            raise JournalBroken
        return line[line.index(b'"result": ') + 10 : -1] + b"\n"

    def _append(self, data: bytes) -> None:
        if self._broken:
            raise JournalBroken
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._broken = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)  # half a line would swallow the next one
            raise JournalBroken from None
        self._size += len(data)
        self._written += 1

    def close(self, *, remove: bool) -> None:
        """`remove` once nothing in it can be of use any more."""
        if remove:
            files.remove(self.path)
        os.close(self._fd)


def _number(value: Any) -> int:
    number = int(value)
    if not 0 < number <= _MOST:
        raise ValueError
    return number


def _unusable(path: Path, hint: str) -> Exception:
    return failure("operation_failed", "call", None, f"The journal {clean_line(str(path), 300)} cannot be used.", hint)
