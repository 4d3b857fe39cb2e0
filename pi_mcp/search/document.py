"""A tool as the index sees it: the texts that are searched, and their weighted term counts.

Comes in: catalog records. Goes out: `SearchTool` values and, for each, one table of term weights. It ranks nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pi_mcp.search.actions import of_tool
from pi_mcp.search.words import name_terms, parts, prose_terms

if TYPE_CHECKING:
    from pi_mcp.catalog.records import Tool

FIELDS = ("name", "title", "description", "parameters", "server", "keywords")
"""What is searched, in the order in which a reason names the field of a match."""


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
    names = tuple(name for name in properties if isinstance(name, str)) if isinstance(properties, dict) else ()
    return SearchTool(
        server=tool.server,
        name=tool.name,
        title=tool.title,
        description=tool.description,
        parameters=names,
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


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """What one occurrence of a term counts in each field; description is the unit."""

    name: float = 3.0
    title: float = 1.5
    opening: float = 1.0
    description: float = 1.0
    parameters: float = 0.5
    server: float = 1.5
    server_description: float = 0.0
    keywords: float = 1.5
    pair: float = 1.0
    length: int = 250


_OPENING = re.compile(r"[.!?。\n]")


@dataclass(frozen=True, slots=True)
class Document:
    """Term weights of one tool, and what the second stage looks at."""

    counts: dict[str, float]
    """term → sum over the fields of occurrences times the field's weight."""
    length: float
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
    text = tool.description[:20_000]
    cut = _OPENING.search(text, 20)
    at = cut.start() if cut else len(text)
    first = prose_terms(text[:at])
    rest = prose_terms(text[at:])[: weights.length]
    for terms, weight in ((first, weights.opening), (rest, weights.description)):
        if weight:
            length += weight * len(terms)
            for term in terms:
                counts[term] = counts.get(term, 0.0) + weight
    name = name_terms(tool.name)
    server = list(dict.fromkeys(name_terms(tool.server) + prose_terms(tool.server_title or "")))
    title = prose_terms(tool.title or "")
    for bit, terms, weight in (
        (1, name, weights.name),
        (2, title, weights.title),
        (
            8,
            list(dict.fromkeys(term for each in tool.parameters for term in name_terms(each))),
            weights.parameters,
        ),
        (16, server, weights.server),
        (32, [term for word in tool.keywords for term in prose_terms(word)], weights.keywords),
        (
            16,
            prose_terms(tool.server_description or "") if weights.server_description else [],
            weights.server_description,
        ),
    ):
        if weight:
            length += weight * len(terms)
            for term in terms:
                marks[term] = marks.get(term, 4 if term in counts else 0) | bit
                counts[term] = counts.get(term, 0.0) + weight
    if weights.pair:
        for terms in (name, title, first):
            for one, two in pairwise(terms):
                if one != two:
                    pair = f"{one} {two}" if one < two else f"{two} {one}"
                    counts[pair] = counts.get(pair, 0.0) + weights.pair
    return Document(counts, length, marks, tuple(dict.fromkeys(name)), of_tool(parts(tool.name), first))
