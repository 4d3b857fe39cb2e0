"""Recognises an entry that starts pi-mcp's own gateway, in whichever client's spelling.

Comes in: one raw entry of a configuration file. Goes out: whether it runs `pi-mcp serve`. Such an entry is meant for
other clients: reading it here would lead a search in circles, and each process would start the next. It reads no file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NAME = "pi-mcp"
"""What the entry is called in every client's file that `pi-mcp install` writes."""

_PROGRAM = re.compile(r"(?:.*[/\\])?(?:pi-mcp(?:\.exe)?|pi_mcp)(?:@.*)?")


def starts_gateway(entry: Any) -> bool:
    """Does the entry run `pi-mcp serve`, also through uvx, pipx or `python -m pi_mcp`?

    `command` may be a word, as in most files, or the list of all words, as opencode writes it.
    """
    if not isinstance(entry, Mapping):
        return False
    words: list[str] = []
    for key in ("command", "args"):
        value = entry.get(key)
        words.extend(map(str, value) if isinstance(value, list | tuple) else [value] if isinstance(value, str) else [])
    return "serve" in words and any(_PROGRAM.fullmatch(word) for word in words)
