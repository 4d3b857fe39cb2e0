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
LIKE_ENOUGH = 0.4
"""Share of pairs of letters (Dice) from which a name is offered as close."""


class NameTable:
    """Names of all tools by every accepted way of writing them. Numbers are places in `tools`."""

    def __init__(self, tools: Sequence[SearchTool]) -> None:
        self._tools = tools
        self._qualified: dict[str, list[int]] = {}
        self._spelled: dict[str, list[int]] = {}
        self._sizes: list[int] | None = None
        self._grams: dict[str, list[int]] = {}
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
        if self._sizes is None:
            self._sizes = []
            for number, tool in enumerate(self._tools):
                mine = set(grams("".join(parts(tool.name))))
                self._sizes.append(len(mine))
                for gram in mine:
                    self._grams.setdefault(gram, []).append(number)
        words = parts(normalise(query[:500]))[:40]
        best: dict[int, float] = {}
        for word in dict.fromkeys([*words, "".join(words)]):
            asked = set(grams(word))
            shared: dict[int, int] = {}
            for gram in asked:
                for number in self._grams.get(gram, ()):
                    shared[number] = shared.get(number, 0) + 1
            for number, common in shared.items():
                likeness = 2 * common / (len(asked) + self._sizes[number])
                if likeness > best.get(number, 0.0):
                    best[number] = likeness
        found = [(-likeness, number) for number, likeness in best.items() if likeness >= LIKE_ENOUGH]
        found.sort()
        close: list[tuple[str, str]] = []
        for _, number in found:
            if len(close) == limit:
                break
            tool = self._tools[number]
            if admit is None or admit(tool):
                close.append((tool.server, tool.name))
        return close
