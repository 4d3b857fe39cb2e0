"""Schemas of which it is plain that a model may have them: most are, and `schema.py` need not be loaded for those.

Comes in: a tool's input schema. Goes out: True where no rule of `schema.py` could refuse it; False decides nothing.
"""

from __future__ import annotations

import re
from typing import Any

MOST = 60
"""Properties."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TYPES = frozenset({"string", "number", "integer", "boolean", "array"})
_TOP = frozenset({"$schema", "type", "properties", "required", "title", "description", "additionalProperties"})
_INNER = frozenset({"type", "title", "description", "default", "items", "format", "minimum", "maximum", "x-mcp-header"})


def plainly_usable(schema: Any) -> bool:
    if not isinstance(schema, dict) or not _TOP.issuperset(schema) or schema.get("type", "object") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or len(properties) > MOST or not isinstance(required, list):
        return False
    if not isinstance(schema.get("additionalProperties", False), bool):
        return False
    return all(isinstance(name, str) and name in properties for name in required) and all(
        _NAME.fullmatch(name) is not None and _is_plain(about) for name, about in properties.items()
    )


def _is_plain(about: Any) -> bool:
    if not isinstance(about, dict) or not _INNER.issuperset(about) or about.get("type") not in _TYPES:
        return False
    items = about.get("items", {})
    texts = about.get("description", ""), about.get("title", "")
    return (items == {} or _is_plain(items)) and all(isinstance(text, str) and len(text) < 1000 for text in texts)
