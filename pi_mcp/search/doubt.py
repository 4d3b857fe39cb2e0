"""Whether a ranking's first places are about what was asked, or only share a verb or a filler with it.

Comes in: a query and its hits. Goes out: the words that none of them answers, when that is a reason to doubt. It
changes no order and drops nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pi_mcp.search.actions import ACTIONS
from pi_mcp.search.query import SOFT_WORDS, read_query
from pi_mcp.search.ranking import Reason
from pi_mcp.search.tuning import DEFAULT

_TELLING = frozenset({"name", "title", "keywords"})
"""Fields that say what a tool is about; a description mentions many things besides."""


class Place(Protocol):
    """What is looked at of a hit."""

    @property
    def exact(self) -> bool: ...
    @property
    def reasons(self) -> tuple[Reason, ...]: ...


def unanswered(query: str, hits: Iterable[Place]) -> tuple[str, ...]:
    """Words of the query's subject that no hit answers, where no hit has any of the subject in its name.

    Empty where nothing speaks against the hits: a tool asked for by name, a word of the subject in a tool's name,
    title or keywords, or all words answered. Verbs and words that sentences hold anyway are no subject.
    """
    terms = [
        term
        for term, weight in read_query(query, DEFAULT).terms.items()
        if weight >= 1.0 and term not in ACTIONS and term not in SOFT_WORDS and (term.isascii() or len(term) > 2)
    ]
    answered: set[str] = set()
    for hit in hits:
        if hit.exact:
            return ()
        for reason in hit.reasons:
            if reason.term in ACTIONS or reason.field == "factor":
                continue
            if _TELLING & set(reason.field.split("+")):
                return ()
            answered.update(reason.term.split())
    return tuple(term for term in terms if term not in answered)
