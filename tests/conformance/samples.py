"""Arguments that fit a tool's schema, for the scenarios that name none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sample(schema: Mapping[str, Any]) -> Any:
    """A value that fits a simple schema."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    kinds = schema.get("type", "string")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties", {})
        return {name: sample(about) for name, about in properties.items() if name in schema.get("required", ())}
    return {"string": "text", "integer": 3, "number": 3, "boolean": True, "array": [], "null": None}.get(kind, "text")
