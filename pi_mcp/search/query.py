"""A query read: which words it asks with, and how much each counts.

Comes in: 1–500 characters that a model or a person typed (longer text is cut by the caller or costs time alone). Goes
out: `Query`. It knows no catalog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from pi_mcp.search.actions import ACTIONS, of_query
from pi_mcp.search.synonyms import PHRASES
from pi_mcp.search.words import STOP_WORDS, parts, prose_terms

# Values of arguments, not words for a tool: placeholders, quotations, addresses, paths, identifiers, numbers.
_VALUE = re.compile(
    r"<[^<>\n]{1,80}>|\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|https?://\S+|\S+@\S+\.\w+"
    r"|(?<![\w])(?:~|\.{1,2})?/[\w.\-]+(?:/[\w.\-]*)*|\b[0-9a-f]{8}-[0-9a-f-]{20,}\b|(?<![\w.])\d[\d.,:/-]*(?![\w])"
)
VALUE_WEIGHT = 0.3
SOFT_WEIGHT = 0.3
SOFT_WORDS = frozenset(
    """
    about all also already available based best certain current currently detail different exist existing following
    general give given good help include including information kind know lot make many name new now only one other
    particular possible provide provided recent related right show similar simple single some specific specified
    tell thing time today tool try two use used useful user using various way well work
    """.split()
)
"""Words that many sentences hold for no reason of the tool's; rare in a small catalog, they would outweigh its subject."""


@dataclass(frozen=True, slots=True)
class Query:
    """The terms of one query in order, each with its weight, and the pairs of neighbouring terms."""

    terms: dict[str, float]
    pairs: tuple[str, ...]
    phrases: tuple[tuple[str, tuple[str, ...]], ...]
    """Short phrases of `PHRASES` in it, and what they may also be called."""
    acronyms: dict[str, float]
    """Initials of neighbouring words: virtual machine → vm, text to speech → tts."""
    joined: dict[str, tuple[str, str]]
    """Two neighbouring terms written as one word → the two."""
    actions: int


def read_query(text: str) -> Query:
    """Read `text`; a query of nothing but stop words has no terms."""
    terms: dict[str, float] = {}
    sequence: list[str] = []
    last = 0
    for value in _VALUE.finditer(text):
        _take(text[last : value.start()], 1.0, terms, sequence)
        _take(value.group(), VALUE_WEIGHT, terms, sequence)
        for kind in _kinds(value.group()):
            terms[kind] = max(KIND_WEIGHT, terms.get(kind, 0.0))
        last = value.end()
    _take(text[last:], 1.0, terms, sequence)
    pairs = []
    for one, two in pairwise(sequence):
        if one != two:
            pairs.append(f"{one} {two}" if one < two else f"{two} {one}")
    joined = {one + two: (one, two) for one, two in pairwise(sequence) if one.isascii() and two.isascii()}
    return Query(terms, tuple(dict.fromkeys(pairs)), _phrases(text), _acronyms(text), joined, of_query(sequence, text))


KIND_WEIGHT = 0.5
_EXTENSIONS = {
    "md": "markdown file", "txt": "text file", "csv": "csv file", "json": "json file", "xlsx": "excel file", "xls": "excel file",
    "docx": "word document file", "doc": "word document file", "pptx": "powerpoint presentation file", "pdf": "pdf file",
    "png": "image file", "jpg": "image file", "jpeg": "image file", "svg": "svg image file", "gif": "image file",
    "wav": "audio file", "mp3": "audio file", "mp4": "video file", "py": "python code file", "js": "javascript code file",
    "html": "html file", "zip": "archive file",
}


def _kinds(value: str) -> list[str]:
    """What kind of thing a literal value is: the noun that a tool would use for it."""
    if value.startswith("http"):
        return ["url"]
    if "@" in value:
        return ["email"]
    if "/" in value and value[0] in "~./":
        return _EXTENSIONS.get(value.rpartition(".")[2].lower(), "file").split()
    return []


def _phrases(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    words = parts(text)[:80]
    found = []
    for size in (2, 3):
        for at in range(len(words) - size + 1):
            others = PHRASES.get(tuple(words[at : at + size]))
            if others:
                found.append((" ".join(words[at : at + size]), others))
    return tuple(found)


_LATIN_WORD = re.compile(r"[A-Za-z]+")


def _acronyms(text: str) -> dict[str, float]:
    words = [word.lower() for word in _LATIN_WORD.findall(text)[:60]]
    found: dict[str, float] = {}
    for sequence in (words, [word for word in words if word not in STOP_WORDS]):
        for size in (2, 3, 4, 5):
            for at in range(len(sequence) - size + 1):
                group = sequence[at : at + size]
                if group[0] not in STOP_WORDS and group[-1] not in STOP_WORDS:
                    found["".join(word[0] for word in group)] = float(size)
    return found


def _take(text: str, weight: float, terms: dict[str, float], sequence: list[str]) -> None:
    for term in prose_terms(text):
        share = weight * SOFT_WEIGHT if term in SOFT_WORDS else weight
        terms[term] = max(share, terms.get(term, 0.0))
        sequence.append(term)


_CLAUSE = re.compile(r"\s*(?:[,;+\n]|[.?!](?:\s|$)|\b(?:and then|then|and|or)\b)\s*", re.IGNORECASE)


def clauses(text: str) -> list[str]:
    """The parts of a query that may be needs of their own."""
    found = []
    text = _VALUE.sub(lambda value: re.sub("[.,;?!]", " ", value.group()) if value.group()[0] in '<"“' else value.group(), text)
    for piece in _CLAUSE.split(text):
        terms = [term for term in prose_terms(piece) if term not in SOFT_WORDS]
        if len(terms) >= MIN_CLAUSE and (not VERB or terms[0] in ACTIONS):
            found.append(piece)
    return found[:6]


MIN_CLAUSE = 2
VERB = True
