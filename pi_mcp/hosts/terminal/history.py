"""What was typed at the prompt, kept between runs in a private file.

Comes in: lines. Goes out: the newest ones first, as prompt-toolkit asks for them. Answers to dialogs never come
here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit.history import History

from pi_mcp import files
from pi_mcp.errors import PiMcpError

KEPT = 1000
"""Entries that stay when the file is shortened; that happens when it holds twice as many."""
LONGEST = 20_000
"""Characters of an entry that is kept; a longer paste is not."""


class PrivateHistory(History):
    """A JSON string per line, mode 0600. A file that cannot be read or written costs the history, nothing else."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def load_history_strings(self) -> Iterable[str]:
        try:
            data = files.read_private(self._path, 64 << 20)
        except OSError:
            data = None
        entries = [entry for line in (data or b"").splitlines() if (entry := _entry(line)) is not None]
        if len(entries) > 2 * KEPT:
            entries = entries[-KEPT:]
            # A full disk or a foreign directory is no reason to have no prompt.
            with contextlib.suppress(OSError, PiMcpError):
                files.write_private(self._path, b"".join(_line(entry) for entry in entries))
        return reversed(entries)

    def store_string(self, string: str) -> None:
        if len(string) > LONGEST:
            return
        with contextlib.suppress(OSError, PiMcpError):
            files.append_private(self._path, _line(string))


def _line(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(line: bytes) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
