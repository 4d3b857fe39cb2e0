"""`mcp_search` as the model sees it: its name, its text with the servers' directory, its input.

Comes in: server definitions, what is known of their catalogs, and arguments as a model wrote them. Goes out: the
declaration, and checked arguments. It searches nothing and does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pi_mcp.catalog.records import Catalog
from pi_mcp.config import ServerDefinition
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

SEARCH_TOOL = "mcp_search"
QUERY_CHARACTERS = 500
LIMITS = (1, 50)
"""The smallest and the largest `limit`."""
DEFAULT_LIMIT = 5
LISTED = 100
"""Servers that the directory names; the others are counted."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as it is declared to a model: JSON Schema (object at the top) in `input_schema`."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any] = field(default_factory=dict)


SEARCH_TEXT = (
    "Find tools of the configured MCP servers and load them. Matching tools become callable natively, under the "
    "names in the answer, from your next step on. Search for one need at a time, naming the service and the object "
    '("github create issue", "postgres run query"); if nothing fits, search again in other words. Give `server` to '
    "search one server only, `limit` for more than five tools, `load: false` to look without loading."
)

SEARCH_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "What the tool should do, or its name.",
            "minLength": 1,
            "maxLength": QUERY_CHARACTERS,
        },
        "server": {"type": "string", "description": "Only this server."},
        "limit": {
            "type": "integer",
            "description": "How many tools, 5 by default.",
            "minimum": LIMITS[0],
            "maximum": LIMITS[1],
        },
        "load": {"type": "boolean", "description": "false lists without loading."},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def search_definition(text: str) -> ToolDefinition:
    """The declaration with this text, which stays the same for a whole session."""
    return ToolDefinition(SEARCH_TOOL, text, SEARCH_SCHEMA, {"readOnlyHint": True})


def search_description(
    servers: Mapping[str, ServerDefinition],
    catalogs: Mapping[str, Catalog],
    counts: Mapping[str, int],
    nothing: str = "No MCP server is configured.",
) -> str:
    """What the model reads: how to search, and a line per server, with the number of tools where it is known; or
    `nothing`, where there is no server."""
    lines = [SEARCH_TEXT]
    for name, definition in list(servers.items())[:LISTED]:
        count = counts.get(name)
        size = "" if count is None else " (1 tool)" if count == 1 else f" ({count} tools)"
        about = definition.description
        # A server that is not trusted does not get to say a word in every request.
        if not about and definition.trust != "untrusted" and name in catalogs:
            about = catalogs[name].title
        lines.append(f"- {name}{size}" + (f": {clean_line(about, 120)}" if about else ""))
    if len(lines) == 1:
        return f"{SEARCH_TEXT}\n{nothing}"
    lines.insert(1, "Servers:")
    if len(servers) > LISTED:
        lines.append(f"- and {len(servers) - LISTED} more")
    return "\n".join(lines)


def search_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `mcp_search` as a model wrote them, for `Session.search`; raises ConfigurationError `usage`.

    Null and an empty `server` count as absent; a whole number written as text or as a float is taken as the
    number it spells.
    """
    taken: dict[str, Any] = {}
    kinds: dict[str, type] = {"query": str, "server": str, "limit": int, "load": bool}
    for key, value in arguments.items():
        if key not in kinds:
            raise _usage(f"{SEARCH_TOOL} has no argument {clean_line(str(key), 60)!r}.")
        if value is None:
            continue
        if key == "limit" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if key == "limit" and isinstance(value, str) and value.strip().isdecimal() and len(value) < 6:
            value = int(value)
        if key == "load" and isinstance(value, str) and value.strip().lower() in ("true", "false"):
            value = value.strip().lower() == "true"
        if not isinstance(value, kinds[key]) or (key == "limit" and isinstance(value, bool)):
            raise _usage(f"The argument {key!r} must be of type {SEARCH_SCHEMA['properties'][key]['type']}.")
        taken[key] = value
    if "query" not in taken:
        raise _usage("The argument 'query' is missing.", "Say what the tool should do.")
    if not taken.get("server", "?").strip():
        del taken["server"]
    return taken


def check_search(query: str, limit: int) -> str:
    """The query without the blanks around it; raises ConfigurationError `usage` for what §6 does not admit."""
    query = query.strip()
    if not 0 < len(query) <= QUERY_CHARACTERS:
        raise _usage(f"The query must have 1 to {QUERY_CHARACTERS} characters.", "Say one need.")
    if not LIMITS[0] <= limit <= LIMITS[1]:
        raise _usage(f"The limit must be from {LIMITS[0]} to {LIMITS[1]}.", f"Leave it out for {DEFAULT_LIMIT}.")
    return query


def _usage(message: str, hint: str | None = None) -> PiMcpError:
    return failure("usage", "search", None, message, hint)
