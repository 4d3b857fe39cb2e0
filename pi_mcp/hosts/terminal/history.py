"""What was typed at the prompt, kept between runs in a private file.

Comes in: lines. Goes out: the newest ones first, as prompt-toolkit asks for them. Answers to dialogs never come
here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pi_mcp import files
from pi_mcp.errors import PiMcpError

if TYPE_CHECKING:
    from prompt_toolkit.history import History

KEPT = 1000
"""Entries that stay when the file is shortened; that happens when it holds twice as many."""
LONGEST = 20_000
"""Characters of an entry that is kept; a longer paste is not."""


def private_history(path: Path) -> History:
    """prompt-toolkit's history on a file of a JSON string per line, mode 0600.

    A file that cannot be read or written costs the history, nothing else.
    """
    from prompt_toolkit.history import History

    class PrivateHistory(History):
        def load_history_strings(self) -> Iterable[str]:
            return reversed(_entries(path))

        def store_string(self, string: str) -> None:
            if len(string) <= LONGEST:
                with contextlib.suppress(OSError, PiMcpError):
                    files.append_private(path, _line(string))

    return PrivateHistory()


def _entries(path: Path) -> list[str]:
    """The kept entries, the oldest first; a file that has grown too long is shortened."""
    try:
        data = files.read_private(path, 64 << 20)
    except OSError:
        data = None
    entries = [entry for line in (data or b"").splitlines() if (entry := _entry(line)) is not None]
    if len(entries) > 2 * KEPT:
        entries = entries[-KEPT:]
        # A full disk or a foreign directory is no reason to have no prompt.
        with contextlib.suppress(OSError, PiMcpError):
            files.write_private(path, b"".join(_line(entry) for entry in entries))
    return entries


def _line(entry: str) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _entry(line: bytes) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, str) else None
