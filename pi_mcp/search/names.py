"""Queries that write a tool's name, and names that look like a query.

Comes in: the tools of the index and a query. Goes out: tools, by their place in the index. The rule is DESIGN §6: a
token written as `server.tool`, as a native name, or as a name of two or more parts in snake, kebab or camel case
names that tool; so does a query that as a whole spells a name. A one-word name in a longer query does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from pi_mcp.search.document import SearchTool
from pi_mcp.search.words import grams, normalise, parts

# What may stand around a name in a sentence or a list.
_TOKENS = re.compile(r"[\s,;|`\"'“”‘’«»()\[\]{}<>]+")
_EDGE = ".,:;!?/"


class NameTable:
    """Names of all tools by every accepted way of writing them. Numbers are places in `tools`."""

    def __init__(self, tools: Sequence[SearchTool]) -> None:
        self._tools = tools
        self._qualified: dict[str, list[int]] = {}
        self._spelled: dict[str, list[int]] = {}
        self._joined: list[str] | None = None
        for number, tool in enumerate(tools):
            for whole in (f"{tool.server}.{tool.name}", tool.native):
                if whole:
                    self._qualified.setdefault(whole.casefold(), []).append(number)
            self._spelled.setdefault("".join(parts(tool.name)), []).append(number)
        self._spelled.pop("", None)

    def written(self, query: str, scores: Mapping[int, float]) -> list[int]:
        """Tools whose name the query writes, in the order of writing.

        Where one token names tools of several servers, each token gets its first tool before any gets its second;
        within a token a verbatim spelling goes first, then the better `scores`, then server and name.
        """
        groups: list[list[int]] = []

        def add(numbers: Sequence[int], token: str) -> None:
            groups.append(
                sorted(
                    set(numbers),
                    key=lambda number: (self._tools[number].name != token, -scores.get(number, 0.0), number),
                )
            )

        whole = query.strip()
        spelled = self._spelled.get("".join(parts(whole)))
        if spelled:
            add(spelled, whole)
        for token in _TOKENS.split(query):
            stripped = token.strip(_EDGE)
            for form in (token, stripped):
                numbers = self._qualified.get(form.casefold()) if form else None
                if numbers:
                    add(numbers, form.rpartition(".")[2])
                    break
            else:
                pieces = parts(stripped)
                if len(pieces) > 1:
                    numbers = self._spelled.get("".join(pieces))
                    if numbers:
                        add(numbers, stripped)
        ordered: dict[int, None] = {}
        for place in range(max(map(len, groups), default=0)):
            for group in groups:
                if place < len(group):
                    ordered.setdefault(group[place])
        return list(ordered)

    def close(self, query: str, limit: int, admit: Callable[[SearchTool], bool] | None) -> list[tuple[str, str]]:
        """(server, tool) whose names share the most pairs of characters with the query or one of its words."""
        if self._joined is None:
            self._joined = ["".join(parts(tool.name)) for tool in self._tools]
        words = parts(normalise(query)[:500])
        asked = [set(grams(word)) for word in {*words, "".join(words)} if len(word) > 1]
        found = []
        for number, joined in enumerate(self._joined):
            mine = set(grams(joined))
            best = max((2 * len(mine & each) / (len(mine) + len(each)) for each in asked), default=0.0)
            if best >= 0.3:
                found.append((-best, number))
        found.sort()
        close: list[tuple[str, str]] = []
        for _, number in found:
            if len(close) == limit:
                break
            tool = self._tools[number]
            if admit is None or admit(tool):
                close.append((tool.server, tool.name))
        return close
