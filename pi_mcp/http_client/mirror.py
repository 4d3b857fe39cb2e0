"""Headers that repeat what the body says, for gateways that do not read it (2026-07-28, SEP-2243).

Comes in: a method, its parameters, a tool's input schema. Goes out: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`. No I/O.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

_ANNOTATION = "x-mcp-header"
_NAMES = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SENTINEL = re.compile(r"=\?base64\?.*\?=")
# Where JSON Schema 2020-12 has schemas within schemas. Only `properties` says where a value stands in the arguments.
_ONE = frozenset(
    {"items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties"}
    | {"not", "if", "then", "else", "contentSchema"}
)
_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAP = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


def routing_headers(method: str, params: Mapping[str, Any]) -> dict[str, str]:
    """`Mcp-Method`, and `Mcp-Name` where the method has one."""
    headers = {"Mcp-Method": method}
    name = params.get(_NAMES.get(method, ""))
    if isinstance(name, str):
        headers["Mcp-Name"] = header_value(name)
    return headers


def parameter_headers(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """`Mcp-Param-*` for the arguments that the schema names; none where the schema's annotations are not valid."""
    named = annotated(schema)
    headers: dict[str, str] = {}
    for path, token in (named or {}).items():
        value: Any = arguments
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, str | int | float):
            try:
                text = str(value)
            except ValueError:  # more digits than Python writes
                continue
        else:
            continue
        headers[f"Mcp-Param-{token}"] = header_value(text)
    return headers


def annotated(schema: Any) -> dict[tuple[str, ...], str] | None:
    """Path of each property with an `x-mcp-header` → its token. None where one cannot be followed: such a tool
    must not be called, nor shown (SEP-2243)."""
    found: dict[tuple[str, ...], str] = {}
    for path, part in _schemas(schema):
        if _ANNOTATION not in part:
            continue
        token = part[_ANNOTATION]
        usable = path and isinstance(token, str) and _TOKEN.fullmatch(token)
        if not usable or part.get("type") not in ("string", "integer", "boolean"):
            return None
        if token.lower() in {one.lower() for one in found.values()}:
            return None
        found[path or ()] = token
    return found


def _schemas(root: Any) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, Any]]]:
    """Every schema within a schema, with its path where `properties` alone lead to it. `$ref` is not followed."""
    left: list[tuple[tuple[str, ...] | None, Any]] = [((), root)]
    while left:
        path, part = left.pop()
        if not isinstance(part, dict):
            continue
        yield path, part
        for key, value in part.items():
            if key == "properties" and isinstance(value, dict):
                left += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            elif key in _ONE:
                left.append((None, value))
            elif key in _LIST and isinstance(value, list):
                left += [(None, inner) for inner in value]
            elif key in _MAP and isinstance(value, dict):
                left += [(None, inner) for inner in value.values()]


def header_value(text: str) -> str:
    """The text as it is, or base64 in the protocol's sentinel where HTTP would not carry it unchanged."""
    plain = text.isascii() and text.isprintable() and text == text.strip() and not _SENTINEL.fullmatch(text)
    return text if plain else f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode()}?="
