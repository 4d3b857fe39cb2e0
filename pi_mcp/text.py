"""Text from servers, made safe to show: control bytes, escape sequences, invisible characters, known secrets.

Comes in: any string from outside. Goes out: text that cannot steer a terminal or hide from a reader. It knows
no server and does no I/O.
"""

from __future__ import annotations

import json
import re
import threading
import weakref
from collections.abc import Iterable
from typing import ClassVar
from urllib.parse import quote, quote_plus

# CSI; OSC, DCS, SOS, PM and APC strings; other two-byte escapes. A string goes whole with its BEL or ST; one that is
# never ended goes up to the end of its line, so that a stray introducer does not swallow a result. The 8-bit
# introducers are quotation marks in mis-decoded text: they take a string with them only where one ends on the line.
# No class matches an introducer of its own kind, which keeps the search linear.
_ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"
    "|\x1b[\\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[\\]PX^_][^\x07\x1b\x9c\n]*"
    "|[\x90\x98\x9d-\x9f][^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\\\|\x9c)"
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Format characters that reorder, join or hide text, and the tag and variation blocks that can carry a message.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_SURROGATES = re.compile("[\ud800-\udfff]")
_SHORTEST = 4
"""Characters of the shortest value that counts as a secret."""


def clean(text: str) -> str:
    """Several lines of a server's text for a terminal or a model: only `\\n` and `\\t` stay below 0x20.

    `\\r\\n` becomes `\\n`. Escape sequences go whole, lone surrogates become U+FFFD.
    """
    text = text.replace("\r\n", "\n")
    return _SURROGATES.sub("\ufffd", _CONTROLS.sub("", _ESCAPES.sub("", text)))


def clean_line(text: str, limit: int = 200) -> str:
    """One line of metadata (a name, title, message) of at most `limit` characters, without anything invisible.

    Of a text that is many times longer only the beginning is looked at: a server may send megabytes of it.
    """
    line = " ".join(clean_metadata(text[: 16 * limit + 4096]).split())
    return line if len(line) <= limit else line[: max(limit - 1, 0)] + "…"


def clean_metadata(text: str) -> str:
    """A server's description or instructions: as `clean`, without bidirectional and invisible characters."""
    return _INVISIBLE.sub("", clean(text))


def visible(text: str) -> str:
    """What a person decides about: nothing goes, what could steer or hide is shown as an escape (`\\x1b`, `\\u200b`).

    Cleaning would take a command out of the question that hides between the two ends of an escape sequence.
    Line ends and tabs stay.
    """
    for pattern in (_CONTROLS, _INVISIBLE, _SURROGATES):
        text = pattern.sub(lambda found: ascii(found[0])[1:-1], text)
    return text


def width(text: str) -> int:
    """Terminal columns of a cleaned line: wide characters count two, combining marks none."""
    import unicodedata

    total = 0
    for char in text:
        if unicodedata.combining(char):
            continue
        total += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return total


def shortened(line: str, columns: int) -> str:
    """A cleaned line cut to so many terminal columns."""
    if width(line) <= columns:
        return line
    kept = ""
    for char in line:
        if width(kept + char) >= columns:
            break
        kept += char
    return kept + "…"


def fitted(text: str, columns: int) -> str:
    """The lines, each at most `columns` wide; a further line stands two columns deeper than the one that it continues.

    A word that fits into no line, such as a path, stays whole: the terminal breaks it where it has to, and it can be
    copied.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        row = ""
        for word in re.findall(r"\s*\S+", line):
            if row.strip() and width(row + word) > columns:
                lines.append(row)
                row = f"{indent}  {word.lstrip()}"
            else:
                row += word
        lines.append(row)
    return "\n".join(lines)


def close_words(word: str, words: Iterable[str]) -> str:
    """`Close: servers.` for a word that somebody may have misspelt; empty where nothing is close."""
    import difflib

    close = difflib.get_close_matches(word, list(words), 2, 0.6)
    return f"Close: {', '.join(close)}." if close else ""


def quoted(word: str) -> str:
    """One word as a shell and `/mcp` read it."""
    import shlex

    return shlex.quote(word)


class Redactor:
    """The secret values of one connection while it lives; replaces each of them by `***`.

    Values under 4 characters are not replaced: they would blank ordinary words and are no secrets. The beginning of a
    value before `…`, where a text was cut, goes as well.
    Every living redactor is consulted by `redact`, which the log uses.
    """

    _living: ClassVar[weakref.WeakSet[Redactor]] = weakref.WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()
    """For `_living`: catalogs are written, and logs too, in threads beside the one that opens connections."""

    def __init__(self) -> None:
        # Replaced and never changed, so that a thread that reads them needs no lock.
        self._values: frozenset[str] = frozenset()
        self._compiled: tuple[frozenset[str], re.Pattern[str]] | None = None
        with Redactor._lock:
            Redactor._living.add(self)

    def add(self, value: str) -> None:
        """Remember a resolved value, and the token within `Bearer token`, also as URLs and JSON spell them."""
        found: set[str] = set()
        for part in {value, value.strip(), *value.split()}:
            if len(part) >= _SHORTEST and part.lower() not in {"bearer", "basic", "token"}:
                escaped = (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1])
                quoted = (quote(part, safe="", errors="replace"), quote_plus(part, errors="replace"))
                found.update((part, *escaped, *quoted))
        with Redactor._lock:
            self._values |= found

    @property
    def values(self) -> frozenset[str]:
        """What is replaced. For whoever has to find or mark the values, never to show them."""
        return self._values

    def __call__(self, text: str) -> str:
        values, compiled = self._values, self._compiled
        if not values:
            return text
        if compiled is None or compiled[0] is not values:
            ordered = sorted(values, key=len, reverse=True)
            compiled = self._compiled = (values, re.compile("|".join(map(re.escape, ordered))))
        text = compiled[1].sub("***", text)
        if "…" not in text:
            return text
        *cut, rest = text.split("…")
        return "".join(f"{_without_beginning(part, values)}…" for part in cut) + rest

    def __repr__(self) -> str:
        return f"Redactor({len(self._values)} values)"


def _without_beginning(text: str, values: frozenset[str]) -> str:
    """`text` without the beginning of a value at its end."""
    place = len(text)
    for value in values:
        at = text.find(value[:_SHORTEST], max(0, len(text) - len(value)))
        while 0 <= at < place:
            if value.startswith(text[at:]):
                place = at
                break
            at = text.find(value[:_SHORTEST], at + 1)
    return text if place == len(text) else f"{text[:place]}***"


def redact(text: str) -> str:
    """`text` without any value that a living redactor knows."""
    with Redactor._lock:
        living = list(Redactor._living)
    for redactor in living:
        text = redactor(text)
    return text
