"""A server's question to the person, made fit to be shown.

Comes in: the form (a flat JSON Schema object) and the message that a server sent during a call. Goes out: the same
with cleaned words and the server's name, to `Host.elicit`. Values that go back to the server are never touched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from pi_mcp.host import Host
from pi_mcp.text import clean_line, clean_metadata

MESSAGE = 2000
_WORDS = ("title", "description")


def elicit_of(host: Host, server: str) -> Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any] | None]]:
    """The handler for one server's questions; it names the server, so that nobody speaks in another's name."""

    async def elicit(schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        text = clean_metadata(message).strip()
        text = text if len(text) <= MESSAGE else text[:MESSAGE] + "…"
        return await host.elicit(cleaned(schema), f"{clean_line(server, 64)}: {text}")

    return elicit


def cleaned(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The form with cleaned titles, descriptions and names of choices; everything else as sent."""
    form = {key: value for key, value in schema.items() if key not in _WORDS} | _words(schema)
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        form["properties"] = {
            name: {**about, **_words(about)} if isinstance(about, Mapping) else about
            for name, about in properties.items()
        }
    return form


def _words(schema: Mapping[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = {key: clean_line(schema[key], 1000) for key in _WORDS if isinstance(schema.get(key), str)}
    if isinstance(schema.get("enumNames"), list):
        words["enumNames"] = [clean_line(str(name)) for name in schema["enumNames"]]
    for key in ("oneOf", "anyOf"):
        if isinstance(schema.get(key), list):
            words[key] = [
                {**choice, **_words(choice)} if isinstance(choice, Mapping) else choice for choice in schema[key]
            ]
    items = schema.get("items")
    if isinstance(items, Mapping):
        words["items"] = {**items, **_words(items)}
    return words
