"""A query read: which words it asks with, and how much each counts.

Comes in: 1–500 characters that a model or a person typed (longer text is cut by the caller or costs time alone). Goes
out: `Query`. It knows no catalog.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from pi_mcp.search.actions import of_query
from pi_mcp.search.words import prose_terms

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
        last = value.end()
    _take(text[last:], 1.0, terms, sequence)
    pairs = []
    for one, two in pairwise(sequence):
        if one != two:
            pairs.append(f"{one} {two}" if one < two else f"{two} {one}")
    joined = {one + two: (one, two) for one, two in pairwise(sequence) if one.isascii() and two.isascii()}
    return Query(terms, tuple(dict.fromkeys(pairs)), joined, of_query(sequence, text))


def _take(text: str, weight: float, terms: dict[str, float], sequence: list[str]) -> None:
    for term in prose_terms(text):
        share = weight * SOFT_WEIGHT if term in SOFT_WORDS else weight
        terms[term] = max(share, terms.get(term, 0.0))
        sequence.append(term)
