"""Every number of the ranking, in one place.

Comes in: nothing. Goes out: `Tuning` values. They were chosen by five-fold cross-validation over labelled queries,
grouped by server; `docs/search.md` has the effect of each. None of them knows a server, a tool or a query.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """What one occurrence of a term counts in each field, in units of the description's later sentences at 1."""

    name: float = 3.0
    title: float = 1.5
    opening: float = 3.0
    """The description's first sentence."""
    description: float = 1.0
    parameters: float = 0.25
    server: float = 3.0
    """The server's name and its own title."""
    server_description: float = 0.0
    keywords: float = 1.5
    pair: float = 1.0
    """Two neighbouring terms of the name, the title or the first sentence."""
    length: int = 250
    """Terms of the description after its first sentence that are read at all."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Weights of query terms and their expansions (1 is the word itself), and the factors of the second stage."""

    fields: FieldWeights = field(default_factory=FieldWeights)
    k1: float = 1.2
    b: float = 0.4
    # Terms that answer a query word.
    stem: float = 0.9
    """Another form of the word (render, rendering)."""
    prefix: float = 0.4
    """A longer word that begins with it, where the word itself is in no tool."""
    prefix_known: float = 0.2
    """The same, where the word itself is known."""
    prefixes: int = 8
    """At most so many longer words, the most frequent ones."""
    synonym: float = 0.7
    synonym_unknown: float = 0.7
    """A synonym of a word that is in no tool."""
    typo: float = 0.5
    """A word like it, times the likeness, where nothing else answers."""
    compound: float = 0.8
    """Two neighbouring query words that a tool writes as one."""
    acronym: float = 0.5
    """Initials of neighbouring query words that are a part of a tool's name."""
    phrase: float = 0.6
    pair: float = 0.1
    """Two neighbouring query words that are neighbours in a tool too."""
    # How much a query word counts.
    soft: float = 0.3
    """Words that sentences hold for no reason of the tool's."""
    value: float = 0.3
    """Words within placeholders, quotations, paths and addresses."""
    kind: float = 0.5
    """The noun for such a value: file, url, email."""
    # Factors of the second stage: each multiplies the sum.
    coverage: float = 0.5
    """1 + this, where the query says the whole name; the share of it by the terms' idf."""
    agree: float = 0.15
    """1 + this, where query and tool do the same (read, create, change, remove …)."""
    oppose: float = 0.15
    """1 - this, where they do not."""
    named: float = 0.3
    """1 + this, where the query names the server."""
    window: int = 100
    """How many candidates the second stage looks at. Fixed, so that a larger limit never reorders the first places."""


DEFAULT = Tuning()
