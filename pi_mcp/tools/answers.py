"""What a search, a load or a call gives back, and the words that the model reads.

Comes in: what was found, loaded, refused or not searched. Goes out: frozen answers, and the text of a search in the
order of DESIGN §6. All text from servers in it is cleaned. It decides nothing and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp.errors import Diagnostic
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.catalog.records import Tool
    from pi_mcp.tools.loaded import NativeTool
    from pi_mcp.tools.results import Presented


@dataclass(frozen=True, slots=True)
class FoundTool:
    """One place of a ranking, loaded or not."""

    tool: Tool
    native: str
    score: float = 0.0
    exact: bool = False
    reasons: tuple[Any, ...] = ()
    """`pi_mcp.search.Reason` values: which word matched where, and its weight."""
    problem: str | None = None
    """Why it was not loaded, when it should have been."""

    def not_loaded(self, problem: str) -> FoundTool:
        return replace(self, problem=problem)


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """What `mcp_search` found. `text` is for the model; `details` for the host to keep (DESIGN §3)."""

    text: str
    loaded: tuple[NativeTool, ...] = ()
    """New in the session, or with a new definition in the old one's place."""
    already_loaded: tuple[NativeTool, ...] = ()
    not_searched: tuple[Diagnostic, ...] = ()
    hits: tuple[FoundTool, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    searched: tuple[str, ...] = ()
    """Names of the servers whose catalogs were searched."""
    replaced: tuple[NativeTool, ...] = ()
    """Those of `loaded` whose definition had changed."""
    warnings: tuple[Diagnostic, ...] = ()
    """Servers of which only a part was searched."""
    close: tuple[str, ...] = ()
    """`server.tool` names that look like the query, where nothing matched."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """A tool's result for the model: wire-form text and image blocks, bounded and cleaned (DESIGN §7).

    `structured` is the server's structuredContent or None, `is_error` its own verdict, `text` the same content
    as plain text for a terminal, `raw` the whole result in wire form.
    """

    content: tuple[Mapping[str, Any], ...]
    structured: Any
    is_error: bool
    details: Mapping[str, Any]
    text: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


def call_answer(
    server: str, tool: str, wire: Mapping[str, Any], presented: Presented, warning: str | None
) -> CallAnswer:
    """The answer to a call: what was presented of `wire`, and a line where its output schema does not fit."""
    content = list(presented.content)
    text = presented.text
    diagnostics: list[Diagnostic] = []
    is_error = wire.get("isError") is True
    if warning:
        content.append({"type": "text", "text": f"Warning: {warning}"})
        text = f"{text}\nWarning: {warning}" if text else f"Warning: {warning}"
        diagnostics.append(Diagnostic("protocol_error", "call", server, warning, "The result is whole."))
    if is_error:
        message = f"{clean_line(tool)} reported an error."
        diagnostics.append(Diagnostic("tool_error", "call", server, message, "Its own text says why."))
    return CallAnswer(
        tuple(content),
        wire.get("structuredContent"),
        is_error,
        details([], diagnostics, presented.files),
        text,
        wire,
    )


@dataclass(frozen=True, slots=True)
class Loading:
    """What became of the tools that were to be loaded, each in exactly one of the first two or with a problem."""

    loaded: tuple[NativeTool, ...] = ()
    already: tuple[NativeTool, ...] = ()
    replaced: tuple[NativeTool, ...] = ()
    hits: tuple[FoundTool, ...] = ()
    """All of them in their order, with the problem of each."""
    listed: tuple[FoundTool, ...] = ()
    """With `load: false`: those that are not loaded."""


def search_text(
    loading: Loading,
    *,
    nothing: Sequence[str] = (),
    instructions: Mapping[str, str] | None = None,
    not_searched: Sequence[Diagnostic] = (),
    warnings: Sequence[Diagnostic] = (),
    close: Sequence[str] = (),
) -> str:
    """The answer in the order of DESIGN §6. `nothing` says why there is no hit; `instructions` by server."""
    parts: list[str] = []
    renewed = {tool.native for tool in loading.replaced}
    if loading.loaded:
        parts.append("Loaded; call them by these names from your next step on:")
        for tool in loading.loaded:
            changed = " [its definition changed; this is the current one]" if tool.native in renewed else ""
            parts.append(line_of(tool.native, tool.server, tool.definition) + changed)
    if loading.already:
        parts.append("Already loaded:")
        parts.extend(line_of(tool.native, tool.server, tool.definition) for tool in loading.already)
    if loading.listed:
        parts.append("Found, not loaded:")
        parts.extend(line_of(hit.native, hit.tool.server, hit.tool.wire) for hit in loading.listed)
    problems = [hit for hit in loading.hits if hit.problem is not None]
    if problems:
        parts.append("Found but not loaded:")
        parts.extend(
            f"- {hit.native} ({clean_line(hit.tool.server, 64)}): {clean_line(hit.problem or '', 200)}"
            for hit in problems
        )
    for server, text in (instructions or {}).items():
        parts.extend([f"Instructions of {server}:", text])
    parts.extend(nothing)
    if not_searched:
        parts.append("Servers not searched:")
        parts.extend(f"- {diagnostic.line()}" for diagnostic in not_searched)
    if warnings:
        parts.append("Servers searched in part:")
        parts.extend(f"- {diagnostic.line()}" for diagnostic in warnings)
    if close:
        parts.append("Close names: " + ", ".join(clean_line(name) for name in close))
    return "\n".join(parts)


def details(
    records: Sequence[Mapping[str, Any]],
    diagnostics: Sequence[Diagnostic],
    paths: Sequence[Path] = (),
) -> dict[str, Any]:
    """The JSON object that hosts keep with a tool result (DESIGN §3)."""
    return {
        "loaded": [dict(record) for record in records],
        "diagnostics": [diagnostic.to_json() for diagnostic in diagnostics],
        "files": [str(path) for path in paths],
    }


def line_of(native: str, server: str, definition: Mapping[str, Any]) -> str:
    """`- native (server): first sentence`, cleaned."""
    description = definition.get("description")
    text = description if isinstance(description, str) else ""
    first = clean_line(text.strip().split("\n", 1)[0], 160)
    return f"- {native} ({clean_line(server, 64)})" + (f": {first}" if first else "")
