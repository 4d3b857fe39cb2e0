"""A tool as the index sees it: the texts that are searched, and their weighted term counts.

Comes in: catalog records. Goes out: `SearchTool` values and, for each, one table of term weights. It ranks nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from pi_mcp.search.actions import of_tool
from pi_mcp.search.tuning import FieldWeights
from pi_mcp.search.words import name_terms, parts, prose_terms

if TYPE_CHECKING:
    from pi_mcp.catalog.records import Tool

FIELDS = ("name", "title", "description", "parameters", "server", "keywords")
"""What is searched, in the order in which a reason names the field of a match."""
NAME, TITLE, DESCRIPTION, PARAMETERS, SERVER, KEYWORDS = (1 << place for place in range(6))


@dataclass(frozen=True, slots=True)
class SearchTool:
    """The searchable texts of one tool. Texts are as the server sent them; nothing here is shown."""

    server: str
    name: str
    title: str | None = None
    description: str = ""
    parameters: tuple[str, ...] = ()
    """Names of the top-level input properties."""
    server_title: str | None = None
    server_description: str | None = None
    keywords: tuple[str, ...] = ()
    """Words that the person's configuration adds for this server (DESIGN §4)."""
    native: str = ""
    """The name under which the model calls it (DESIGN §7)."""


def search_tool(
    tool: Tool,
    *,
    native: str,
    server_title: str | None = None,
    server_description: str | None = None,
    keywords: Iterable[str] = (),
) -> SearchTool:
    """The searchable texts of a catalog record. Never raises for what a server may send."""
    properties = tool.input_schema.get("properties")
    names = tuple(islice(properties, _MOST)) if isinstance(properties, dict) else ()
    return SearchTool(
        server=tool.server,
        name=tool.name,
        title=tool.title,
        description=tool.description,
        parameters=tuple(name[:_LONG] for name in names if isinstance(name, str)),
        server_title=server_title,
        server_description=server_description,
        keywords=tuple(keywords),
        native=native,
    )


def from_listing(entry: Mapping[str, Any]) -> SearchTool:
    """A `SearchTool` of one dict of a labelled catalog; its keys are described at `rank`."""
    from pi_mcp.catalog.records import Tool

    server, name = str(entry["server"]), str(entry["name"])
    return search_tool(
        Tool(server, entry),
        native=f"mcp__{server}__{name}",
        server_title=_text(entry.get("serverTitle")),
        server_description=_text(entry.get("serverDescription")),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_SENTENCE_END = re.compile(r"[.!?。\n]")


_LONGEST = 4000
"""Characters of a description that are read after its first sentence's end was looked for."""
_LONG = 200
"""Characters of a name or title that are read: a server may send names of any length, and every part is a term."""
_MOST = 500
"""Parameters of one tool that are read."""


@dataclass(frozen=True, slots=True)
class Document:
    """Term weights of one tool, and what the second stage looks at."""

    counts: dict[str, float]
    """term → sum over the fields of occurrences times the field's weight; also pairs of neighbours (`issue create`)."""
    length: float
    """Sum of the weights of all terms, pairs left out."""
    marks: dict[str, int]
    """term → bits of `FIELDS`; a term that is missing here stands in the description alone."""
    name: tuple[str, ...]
    """Distinct terms of the name."""
    actions: int
    """What it does, as bits of `actions`."""


def document(tool: SearchTool, weights: FieldWeights) -> Document:
    """Count one tool's terms."""
    counts: dict[str, float] = {}
    marks: dict[str, int] = {}
    length = 0.0
    text = tool.description[:_LONGEST]
    cut = _SENTENCE_END.search(text, 20)
    at = cut.start() if cut else len(text)
    opening = prose_terms(text[:at])
    rest = prose_terms(text[at:])[: weights.length]
    name = name_terms(tool.name[:_LONG])
    title = prose_terms((tool.title or "")[:_LONG])
    for bit, terms, weight in (
        (DESCRIPTION, opening, weights.opening),
        (DESCRIPTION, rest, weights.description),
        (NAME, name, weights.name),
        (TITLE, title, weights.title),
        (PARAMETERS, _distinct(map(_parameter_terms, tool.parameters)), weights.parameters),
        (SERVER, _server_terms(tool.server, tool.server_title or ""), weights.server),
        (SERVER, prose_terms((tool.server_description or "")[:_LONGEST]), weights.server_description),
        (KEYWORDS, _distinct(map(prose_terms, tool.keywords)), weights.keywords),
    ):
        if not weight:
            continue
        length += weight * len(terms)
        for term in terms:
            counts[term] = counts.get(term, 0.0) + weight
        if bit != DESCRIPTION:
            for term in terms:
                marks[term] = marks.get(term, 0) | bit
    described = {*opening, *rest}
    for term in marks:
        if term in described:
            marks[term] |= DESCRIPTION
    if weights.pair:
        for terms in (name, title, opening):
            for one, two in pairwise(terms):
                if one != two:
                    pair = pair_of(one, two)
                    counts[pair] = counts.get(pair, 0.0) + weights.pair
    return Document(counts, length, marks, tuple(dict.fromkeys(name)), of_tool(parts(tool.name[:_LONG]), opening))


def pair_of(one: str, two: str) -> str:
    """Two terms as one, the same in either order: `create issue` asks for an `issue_create` too."""
    return f"{one} {two}" if one < two else f"{two} {one}"


@lru_cache(maxsize=8192)
def _parameter_terms(name: str) -> tuple[str, ...]:
    return tuple(name_terms(name))


@lru_cache(maxsize=512)
def _server_terms(name: str, title: str) -> tuple[str, ...]:
    return tuple(_distinct((name_terms(name[:_LONG]), prose_terms(title[:_LONG]))))


def _distinct(groups: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(term for group in groups for term in group))
