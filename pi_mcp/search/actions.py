"""What a tool does and what a query wants done: read, create, change, remove, send, run or stop.

Comes in: terms. Goes out: sets of actions as bits. It knows verbs, and no tool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

READ, CREATE, CHANGE, REMOVE, SEND, RUN, STOP, MOVE = (1 << bit for bit in range(8))

_VERBS = {
    READ: "get list show view read fetch retrieve describe display find search query look lookup browse check inspect"
    " count see tell enumerate examine return what which who where how obtain summarize explain",
    CREATE: "create add new make generate insert build provision register write save store append post draft compose",
    CHANGE: "update edit modify set change patch rename configure adjust replace write put enable resize alter assign",
    REMOVE: "delete remove drop erase destroy purge clear uninstall revoke discard unset",
    SEND: "send post reply publish share notify forward broadcast submit email message upload push",
    RUN: "run execute start launch trigger invoke exec begin restart resume evaluate call deploy",
    STOP: "stop cancel pause abort end disable terminate kill close",
    MOVE: "move copy transfer import export convert migrate clone download",
}


def _table() -> dict[str, int]:
    table: dict[str, int] = {}
    for bit, words in _VERBS.items():
        for word in words.split():
            table[word] = table.get(word, 0) | bit
    return table


ACTIONS = _table()
_LATIN_WORD = re.compile(r"[a-z]+")
_QUESTIONS = frozenset(("what", "which", "who", "where", "how", "when", "why", "whose"))


def of_tool(name: Sequence[str], opening: Sequence[str]) -> int:
    """The actions that the parts of a name say; where they say none, those of the description's first word."""
    found = 0
    for part in name:
        found |= ACTIONS.get(part, 0)
    if not found and opening:
        found = ACTIONS.get(opening[0], 0)
    return found


def of_query(text: str) -> int:
    """The action of a query: a question reads; else the first verb, as written: `changes` and `lists` are things."""
    words = _LATIN_WORD.findall(text[:400].lower())
    if words and words[0] in _QUESTIONS:
        return READ
    for word in words:
        if word in ACTIONS:
            return ACTIONS[word]
    return 0
