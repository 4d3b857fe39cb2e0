"""A query read: which words it asks with, how much each counts, what it wants done.

Comes in: text that a model or a person typed, and the weights of `Tuning`. Goes out: `Query` values. It knows no
catalog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from pi_mcp.search.actions import ACTIONS, of_query
from pi_mcp.search.document import pair_of
from pi_mcp.search.synonyms import PHRASES
from pi_mcp.search.tuning import Tuning
from pi_mcp.search.words import STOP_WORDS, parts, prose_terms

LONGEST = 4000
"""Characters of a query that are read; `mcp_search` admits 500."""

# Values of arguments, not words for a tool: placeholders, quotations, addresses, paths, identifiers, numbers.
# Every repetition is bounded, so that no text makes it slow.
_VALUE = re.compile(
    r"<[^<>\n]{1,80}>|\"[^\"\n]{1,200}\"|“[^”\n]{1,200}”|https?://\S{1,500}"
    r"|[\w.+-]{1,64}@[\w-]{1,63}\.[\w.-]{1,63}"
    r"|(?<![\w.-])(?:[\w-]{1,63}\.){1,4}(?:com|org|net|io|dev|ai|app|gov|edu)(?![\w-])(?:/\S{0,300})?"
    r"|(?<!\w)(?:~|\.{1,2})?/[\w.-]{1,100}(?:/[\w.-]{0,100}){0,30}"
    r"|\b[0-9a-f]{8}-[0-9a-f-]{20,40}\b|(?<![\w.])\d[\d.,:/-]{0,40}(?!\w)"
)
_HOST = re.compile(r"https?://|[\w-]+\.[a-z]")
_QUOTING = '<"“'
_CLAUSE = re.compile(r"\s*(?:[,;+\n]|[.?!](?:\s|$)|\b(?:and then|then|and|or)\b)\s*", re.IGNORECASE)
_LATIN_WORD = re.compile(r"[A-Za-z]+")
_FULL_STOPS = re.compile(r"[.,;?!]")

_SOFT = """
    about all also already available based best certain current currently detail different exist existing following
    general give given good help include including information kind know lot make many name new now only one other
    particular possible provide provided recent related right show similar simple single some specific specified
    tell thing time today tool try two use used useful user using various way well work
"""
SOFT_WORDS = frozenset(_SOFT.split())
"""Words that sentences hold for no reason of the tool's. Rare in a small catalog, they would outweigh its subject."""

_KINDS = {
    "md": "markdown file",
    "txt": "text file",
    "csv": "csv file",
    "json": "json file",
    "xls": "excel file",
    "xlsx": "excel file",
    "doc": "word document file",
    "docx": "word document file",
    "pptx": "powerpoint presentation file",
    "pdf": "pdf file",
    "png": "image file",
    "jpg": "image file",
    "jpeg": "image file",
    "gif": "image file",
    "svg": "svg image file",
    "wav": "audio file",
    "mp3": "audio file",
    "mp4": "video file",
    "py": "python code file",
    "js": "javascript code file",
    "html": "html file",
    "zip": "archive file",
}


@dataclass(frozen=True, slots=True)
class Query:
    """One query's terms with their weights, and what else may answer it."""

    terms: dict[str, float]
    """term → weight, in order."""
    pairs: tuple[str, ...]
    """Neighbouring terms, in alphabetical order within a pair, joined by a blank."""
    joined: dict[str, float]
    """Neighbouring terms written as one word → the smaller of their weights: host pool → hostpool."""
    acronyms: tuple[str, ...]
    """Initials of neighbouring words: virtual machine → vm, text to speech → tts."""
    phrases: tuple[tuple[str, tuple[str, ...]], ...]
    """Phrases of `PHRASES`, each with the terms that it may also be called."""
    actions: int
    """What it wants done, as bits of `actions`."""


def read_query(text: str, tuning: Tuning) -> Query:
    """Read `text`. A query of nothing but stop words has no terms."""
    text = text[:LONGEST]
    terms: dict[str, float] = {}
    sequence: list[str] = []

    def take(piece: str, weight: float) -> None:
        for term in prose_terms(piece):
            share = weight * tuning.soft if term in SOFT_WORDS else weight
            terms[term] = max(share, terms.get(term, 0.0))
            sequence.append(term)

    last = 0
    for value in _VALUE.finditer(text):
        take(text[last : value.start()], 1.0)
        take(value.group(), tuning.value)
        for kind in kinds(value.group()):
            terms[kind] = max(tuning.kind, terms.get(kind, 0.0))
        last = value.end()
    take(text[last:], 1.0)
    return Query(
        terms=terms,
        pairs=tuple(dict.fromkeys(pair_of(one, two) for one, two in pairwise(sequence) if one != two)),
        joined={
            one + two: min(terms[one], terms[two]) for one, two in pairwise(sequence) if one.isascii() and two.isascii()
        },
        acronyms=_acronyms(text),
        phrases=_phrases(text),
        actions=of_query(text),
    )


def kinds(value: str) -> list[str]:
    """What a tool would call such a value: url, email, file, and the kind of file by its ending."""
    if "@" in value and not value.startswith("http"):
        return ["email"]
    if _HOST.match(value):
        return ["url"]
    if "/" in value and value[0] in "~./":
        return _KINDS.get(value.rpartition(".")[2].lower(), "file").split()
    return []


def needs(text: str) -> list[str]:
    """The parts of a query of several needs: clauses that begin with a verb and name something. At most six."""
    text = _VALUE.sub(_without_stops, text[:LONGEST])
    found = []
    for piece in _CLAUSE.split(text):
        terms = [term for term in prose_terms(piece) if term not in SOFT_WORDS]
        if len(terms) >= 2 and terms[0] in ACTIONS:
            found.append(piece)
    return found[:6]


def _without_stops(value: re.Match[str]) -> str:
    text = value.group()
    return _FULL_STOPS.sub(" ", text) if text[0] in _QUOTING else text


def _acronyms(text: str) -> tuple[str, ...]:
    words = [word.lower() for word in _LATIN_WORD.findall(text)[:60]]
    content = [word for word in words if word not in STOP_WORDS]
    found = set()
    for sequence in (words, content) if len(content) < len(words) else (words,):
        for at, word in enumerate(sequence):
            if word in STOP_WORDS:
                continue
            initials = word[0]
            for other in sequence[at + 1 : at + 5]:
                initials += other[0]
                if other not in STOP_WORDS:
                    found.add(initials)
    # In a fixed order: sums of floating-point numbers depend on it.
    return tuple(sorted(found))


def _phrases(text: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    words = parts(text)[:80]
    found = []
    for size in (2, 3):
        for at in range(len(words) - size + 1):
            others = PHRASES.get(tuple(words[at : at + size]))
            if others:
                found.append((" ".join(words[at : at + size]), others))
    return tuple(found)
