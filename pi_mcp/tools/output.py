"""A tool's result held against its `outputSchema`: a warning at most, since the side effect has happened.

Comes in: the schema and the result as the server sent them. Goes out: one line in our words, or nothing. It
fetches no reference, runs no pattern of a server's, spends a bounded time, and never changes a result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

from pi_mcp.text import clean_line

TIME_LIMIT = 0.25
"""Seconds that one check may take; it runs on the event loop."""

_MOST_LEVELS = 128
"""Keywords within one another: at the end of the stack the library's own parts panic, which is no `Exception`."""
_LARGE_ARRAY = 1000
"""Items up to which `uniqueItems` is checked: comparing each with each is quadratic."""

_bounds: ContextVar[_Bounds] = ContextVar("bounds")


class _OutOfTime(Exception):
    pass


class _TooDeep(Exception):
    pass


class _Bounds:
    """What one check may take."""

    def __init__(self) -> None:
        self.end = time.monotonic() + TIME_LIMIT
        self.level = 0


def is_ready() -> bool:
    """False before the first check, which imports jsonschema (0.1 s) and is no work for an event loop."""
    return _bounded.cache_info().currsize > 0


def check(output_schema: Any, result: Any) -> str | None:
    """One line that says where `structuredContent` differs from the schema; None when it matches.

    An error result is not checked, nor one without a schema. The line names the JSON path and the keyword,
    never a value (report B092).
    """
    if not isinstance(output_schema, Mapping) or not isinstance(result, Mapping):
        return None
    if result.get("isError") is True:
        return None
    structured = result.get("structuredContent")
    if structured is None:
        return "The tool has an output schema, and the result has no structured content."
    if plainly_fits(output_schema, result):
        return None
    token = _bounds.set(_Bounds())
    try:
        return _mismatch(output_schema, structured)
    except _OutOfTime:
        return "The structured content was too large to be checked against the tool's output schema."
    except Exception as error:
        # A schema that is none, a reference to another document, recursion beyond reason: all the server's.
        if type(error).__name__ in ("_WrappedReferencingError", "Unresolvable", "RefResolutionError"):
            return "The tool's output schema refers to something that is not in it, so it was not checked."
        return "The tool's output schema could not be used, so the structured content was not checked."
    finally:
        _bounds.reset(token)


def plainly_fits(output_schema: Any, result: Mapping[str, Any]) -> bool:
    """True where a few common keywords are all that the schema has, and the structured content fits them.

    Most do, and need no validator, whose import takes a tenth of a second. False decides nothing.
    """
    structured = result.get("structuredContent")
    return structured is not None and _fits(output_schema, structured, 8)


_PLAIN = frozenset(
    {"$schema", "title", "description", "default", "examples", "type", "properties", "required", "items", "enum"}
    | {"additionalProperties"}
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
}


def _fits(schema: Any, value: Any, depth: int) -> bool:
    if schema is True:
        return True
    if not isinstance(schema, dict) or depth == 0 or not _PLAIN.issuperset(schema):
        return False
    kind, about = schema.get("type"), schema.get("properties", {})
    if kind is not None:
        if not isinstance(kind, str) or not isinstance(value, _TYPES.get(kind, ())):
            return False
        if isinstance(value, bool) and kind != "boolean":
            return False
    if "enum" in schema and not (
        isinstance(value, str) and isinstance(schema["enum"], list) and value in schema["enum"]
    ):
        return False
    if isinstance(value, dict):
        required = schema.get("required", [])
        more = schema.get("additionalProperties", True)
        if not isinstance(about, dict) or not isinstance(required, list):
            return False
        if not all(isinstance(name, str) and name in value for name in required):
            return False
        return all(_fits(about.get(name, more), inner, depth - 1) for name, inner in value.items())
    if isinstance(value, list) and len(value) <= _LARGE_ARRAY:
        return all(_fits(schema.get("items", True), inner, depth - 1) for inner in value)
    return not isinstance(value, list)


def _mismatch(schema: Mapping[str, Any], structured: Any) -> str | None:
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing.jsonschema import EMPTY_REGISTRY

    dialect = schema.get("$schema")
    known = validator_for(schema, default=Draft202012Validator) if isinstance(dialect, str) else None
    # A registry without a retrieval function: what is not in the schema itself is not found.
    validator = _bounded(known or Draft202012Validator)(dict(schema), registry=EMPTY_REGISTRY)
    error = next(validator.iter_errors(structured), None)
    if error is None:
        return None
    path = clean_line(str(error.json_path), 120)
    keyword = clean_line(str(error.validator), 40)
    return f"The structured content does not match the tool's output schema at {path} ({keyword})."


@cache
def _bounded(dialect: Any) -> Any:
    """The dialect's validator, with its bounds in every keyword and without those that run a server's patterns."""
    from jsonschema.validators import extend

    keywords: dict[str, Any] = {name: _within_bounds(function) for name, function in dict(dialect.VALIDATORS).items()}
    for name in ("pattern", "patternProperties", "unevaluatedProperties", "format"):
        if name in keywords:
            keywords[name] = _skipped
    additional, unique = keywords.get("additionalProperties"), keywords.get("uniqueItems")
    if additional is not None:
        # It would match the names against the patterns of `patternProperties`.
        keywords["additionalProperties"] = _unless(additional, lambda _, schema: "patternProperties" in schema)
    if unique is not None:
        keywords["uniqueItems"] = _unless(
            unique, lambda instance, _: isinstance(instance, list) and len(instance) > _LARGE_ARRAY
        )
    return extend(dialect, keywords)


def _within_bounds(function: Callable[..., Any]) -> Callable[..., Iterator[Any]]:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        bounds = _bounds.get()
        if time.monotonic() > bounds.end:
            raise _OutOfTime
        if bounds.level == _MOST_LEVELS:
            raise _TooDeep
        bounds.level += 1
        try:
            yield from function(validator, value, instance, schema) or ()
        finally:
            bounds.level -= 1

    return keyword


def _unless(function: Callable[..., Any], skip: Callable[[Any, Any], bool]) -> Callable[..., Iterator[Any]]:
    def keyword(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not skip(instance, schema):
            yield from function(validator, value, instance, schema) or ()

    return keyword


def _skipped(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:  # noqa: ARG001
    return iter(())
