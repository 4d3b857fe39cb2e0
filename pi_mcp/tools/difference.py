"""What changed between the definition that a session loaded and the one that the server lists now.

Comes in: two JSON objects of `tools/list`. Goes out: a few cleaned lines for the person and the model. It
decides nothing: whether a call may go out is compared by hash (DESIGN §7).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pi_mcp.text import clean_line

MAX_LINES = 12
EXCERPT = 100
"""Characters shown of each side of a changed text."""


def describe(old: Mapping[str, Any], new: Mapping[str, Any] | None) -> str:
    """The differences, one line each and at most `MAX_LINES`; "No difference." where there is none."""
    if new is None:
        return "The server no longer offers this tool."
    try:
        lines = list(_changes(old, new))
    except RecursionError:  # a definition nested beyond reason
        lines = ["The definition changed."]
    if len(lines) > MAX_LINES:
        more = len(lines) - MAX_LINES + 1
        lines = [*lines[: MAX_LINES - 1], f"and {more} more differences"]
    return "\n".join(lines) or "No difference."


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key in ("name", "title", "description"):
        if not _same(old.get(key), new.get(key)):
            yield f"{key}: {_excerpts(old.get(key), new.get(key))}"
    before, after = _mapping(old.get("inputSchema")), _mapping(new.get("inputSchema"))
    if before is None or after is None:
        if not _same(old.get("inputSchema"), new.get("inputSchema")):
            yield "the input schema changed"
    else:
        lines = list(_parameters(before, after))
        # null in the place of nothing, for one: no parameter says so, and a call is stopped all the same.
        yield from lines or (["a detail of the input schema changed"] if not _same(before, after) else [])
    yield from _annotations(old.get("annotations"), new.get("annotations"))


def _parameters(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    before, after = _mapping(old.get("properties")) or {}, _mapping(new.get("properties")) or {}
    needed, needs = _names(old.get("required")), _names(new.get("required"))
    for name in after:
        if name not in before:
            state = "required" if name in needs else "optional"
            yield f"parameter {clean_line(name, 80)} added ({_type(after[name])}, {state})"
    for name in before:
        if name not in after:
            yield f"parameter {clean_line(name, 80)} removed"
    for name in before:
        if name in after:
            yield from _parameter(name, before[name], after[name], name in needed, name in needs)
    for name in sorted(needed ^ needs):
        if name not in before and name not in after:
            yield f"parameter {clean_line(name, 80)}, undescribed, is now {'required' if name in needs else 'optional'}"
    # An array's order carries no meaning in `required`, but the server changed the text: say so.
    rest = [key for key in {**old, **new} if key not in ("properties", "required")]
    changed = sorted(clean_line(key, 40) for key in rest if not _same(old.get(key), new.get(key)))
    if changed:
        yield f"other parts of the input schema changed: {clean_line(', '.join(changed))}"
    elif needed == needs and not _same(old.get("required"), new.get("required")):
        yield "the list of required parameters was rewritten"


def _parameter(name: str, old: Any, new: Any, needed: bool, needs: bool) -> Iterator[str]:
    label = f"parameter {clean_line(name, 80)}"
    if needed != needs:
        yield f"{label} is now {'required' if needs else 'optional'}"
    if _same(old, new):
        return
    before, after = _mapping(old), _mapping(new)
    if before is None or after is None:
        yield f"{label} changed"
        return
    if _type(before) != _type(after):
        yield f"{label} changed type: {_type(before)} → {_type(after)}"
    if not _same(before.get("description"), after.get("description")):
        yield f"{label}, description: {_excerpts(before.get('description'), after.get('description'))}"
    rest = [key for key in {**before, **after} if key not in ("type", "description")]
    changed = sorted(clean_line(key, 40) for key in rest if not _same(before.get(key), after.get(key)))
    if changed:
        yield f"{label} changed: {clean_line(', '.join(changed))}"


def _annotations(old: Any, new: Any) -> Iterator[str]:
    if _same(old, new):
        return
    before, after = _mapping(old) or {}, _mapping(new) or {}
    quiet = True
    for key in {**before, **after}:
        if not _same(before.get(key), after.get(key)):
            quiet = False
            yield f"annotation {clean_line(key, 40)}: {_value(before, key)} → {_value(after, key)}"
    if quiet:
        yield "the annotations changed"


def _value(mapping: Mapping[str, Any], key: str) -> str:
    if key not in mapping:
        return "absent"
    value = mapping[key]
    return clean_line(value if isinstance(value, str) else json.dumps(value), EXCERPT)


def _excerpts(old: Any, new: Any) -> str:
    """Both texts from shortly before the place where they part."""
    before, after = _text(old), _text(new)
    if before is None or after is None:
        return f"{_quoted(before, 0)} → {_quoted(after, 0)}"
    start = next(
        (at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    start = max(0, start - 20)
    return f"{_quoted(before, start)} → {_quoted(after, start)}"


def _quoted(text: str | None, start: int) -> str:
    if text is None:
        return "absent"
    lead = "…" if start else ""
    # Twice the excerpt: cleaning takes characters away.
    return f'"{lead}{clean_line(text[start : start + 2 * EXCERPT], EXCERPT)}"'


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _type(schema: Any) -> str:
    mapping = _mapping(schema) or {}
    kind = mapping.get("type")
    if isinstance(kind, str):
        return clean_line(kind, 40)
    if isinstance(kind, list) and kind:
        return clean_line(" or ".join(str(one) for one in kind[:7]), 80)
    for key in ("$ref", "anyOf", "oneOf", "allOf", "enum", "const"):
        if key in mapping:
            return key
    return "any"


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _names(value: Any) -> set[str]:
    return {name for name in value if isinstance(name, str)} if isinstance(value, list) else set()


def _same(old: Any, new: Any) -> bool:
    """Equal as JSON: `1` and `true` differ, the order of keys does not count."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)
