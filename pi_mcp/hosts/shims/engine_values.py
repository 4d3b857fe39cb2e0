"""What a host's shim and the engine's client hand each other: tools, answers, and the person's dialogs.

Comes in: results of the engine. Goes out: values for the model and the host. It has the standard library alone (Python
3.10) and does nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SEARCH_TOOL = "mcp_search"
SEARCH_TEXT = (
    "Find tools of the configured MCP servers and load them. Matching tools become callable natively, under the "
    "names in the answer, from your next step on. Search for one need at a time, naming the service and the object "
    '("github create issue", "postgres run query"); if nothing fits, search again in other words. Give `server` to '
    "search one server only, `limit` for more than five tools, `load: false` to look without loading."
)
"""The description of `mcp_search` in a session whose engine did not answer in time: no directory of servers."""
SEARCH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "What the tool should do, or its name.",
            "minLength": 1,
            "maxLength": 500,
        },
        "server": {"type": "string", "description": "Only this server."},
        "limit": {"type": "integer", "description": "How many tools, 5 by default.", "minimum": 1, "maximum": 50},
        "load": {"type": "boolean", "description": "false lists without loading."},
    },
    "required": ["query"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Tool:
    """A tool to declare to the model: JSON Schema (object at the top) in `input_schema`."""

    name: str
    description: str
    input_schema: dict[str, Any] = field(repr=False, hash=False)
    annotations: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True)
class Answer:
    """What a search, a load or a `/mcp` command gave back.

    `details` is `{loaded: [record], diagnostics, files}`, for the host to keep with the tool result. `tools` is all
    that is loaded in the session now, in the order of loading.
    """

    text: str
    details: dict[str, Any] = field(repr=False)
    tools: tuple[Tool, ...] = field(repr=False)


@dataclass(frozen=True)
class CallAnswer:
    """A tool's result: blocks as they are on the wire, `{type: text, text}` and `{type: image, data, mimeType}`."""

    content: list[dict[str, Any]]
    structured: Any
    is_error: bool
    details: dict[str, Any]

    @property
    def text(self) -> str:
        """The text blocks, one after the other."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")

    @property
    def images(self) -> list[tuple[str, str]]:
        """(base64 data, MIME type) of the image blocks."""
        return [(one["data"], one["mimeType"]) for one in self.content if one.get("type") == "image"]


SEARCH = Tool(SEARCH_TOOL, SEARCH_TEXT, SEARCH_SCHEMA, {"readOnlyHint": True})
"""The search tool of a host that declares it before there is a session."""


class Person:
    """A host's dialogs: a shim derives from this and has those methods that its host can show.

    Each may be plain or async; a method that raises counts as dismissed. The questions, with their results:

    confirm(question: str, details: str) -> bool                select(question: str, choices: list[str]) -> str | None
    input(question: str, secret: bool) -> str | None            elicit(schema: dict, message: str) -> dict | None
    open_url(url: str) -> bool                                  progress(text, done, total) -> None
    """

    def notify(self, level: str, text: str) -> None:
        """A line of news; `level` is debug, info, warning or error."""

    def tools_changed(self, tools: tuple[Tool, ...]) -> None:
        """The session has other tools than before: declare these with the next model request."""

    @staticmethod
    def line(text: str, done: Any, total: Any) -> str:
        """Progress for a host that shows it as text: `text (3/7)`, `text (3)` where nobody knows of how many."""
        amounts = [f"{value:.15g}" for value in (done, total) if isinstance(value, (int, float))]
        return f"{text} ({'/'.join(amounts)})" if done is not None and amounts else text


def tool_of(value: Any) -> Tool | None:
    """A tool as the engine or a side file has it; None for what is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    schema, notes = value.get("inputSchema"), value.get("annotations")
    return Tool(
        value["name"],
        str(value.get("description", "")),
        schema if isinstance(schema, dict) else {"type": "object"},
        notes if isinstance(notes, dict) else {},
    )


def details_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The `details` of a result, in their shape whatever the engine sent."""
    details = result.get("details")
    return details if isinstance(details, dict) else {"loaded": [], "diagnostics": [], "files": []}
