"""A JSON Schema object as questions, one per property, and what a person types as values of the right type.

Comes in: a tool's input schema or a server's elicitation form, and lines of text. Goes out: fields, and values
that fit them. It asks nobody and prints nothing.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pi_mcp.errors import PiMcpError
from pi_mcp.text import clean_line
from pi_mcp.tools.arguments import kinds, typed

MISSING: Any = object()
"""A field without a default."""
REF_DEPTH = 8


@dataclass(frozen=True)
class Choice:
    """One of the values that a field admits, and what the person reads for it."""

    value: Any
    label: str


@dataclass(frozen=True)
class Field:
    """One question. `kind` is the word for the type that the person reads."""

    name: str
    kind: str
    required: bool
    title: str = ""
    description: str = ""
    default: Any = MISSING
    choices: tuple[Choice, ...] = ()
    several: bool = False
    """True when any number of `choices` may be picked."""
    schema: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def heading(self) -> str:
        """`name (kind, required)`, cleaned."""
        need = "required" if self.required else "optional"
        return f"{clean_line(self.name, 60)} ({self.kind}, {need})"


class Invalid(Exception):
    """What was typed does not fit; the message is for the person, and never holds what was typed."""


def fields_of(schema: Mapping[str, Any]) -> tuple[Field, ...]:
    """The properties as fields: the required ones first, each group in the schema's order."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return ()
    required = schema.get("required")
    needed = set(required) if isinstance(required, Sequence) and not isinstance(required, str) else set()
    fields = [_field(str(name), about, name in needed, schema) for name, about in properties.items()]
    return tuple(sorted(fields, key=lambda item: not item.required))


def read(item: Field, line: str) -> Any:
    """The value that `line` spells, MISSING for an empty line where that is allowed; raises Invalid."""
    text = line.strip()
    if not text:
        if item.default is not MISSING:
            return item.default
        if item.required and item.kind != "text":
            raise Invalid("A value is needed.")
        if item.required:
            raise Invalid('A value is needed; "" is the empty text.')
        return MISSING
    if item.several:
        return [_chosen(item, part.strip()) for part in text.split(",") if part.strip()]
    if item.choices:
        return _chosen(item, text)
    if text == '""' and item.kind == "text":
        value: Any = ""
    else:
        try:
            value = typed(line if item.kind == "text" else text, item.schema, item.name)
        except PiMcpError:
            raise Invalid(_advice(item)) from None
    check(item, value)
    return value


def check(item: Field, value: Any) -> None:
    """The limits that a person can be told at once; the server judges the rest. Raises Invalid."""
    schema = item.schema
    if isinstance(value, str):
        least, most = _integer(schema.get("minLength")), _integer(schema.get("maxLength"))
        if least is not None and len(value) < least:
            raise Invalid(f"At least {least} characters, please.")
        if most is not None and len(value) > most:
            raise Invalid(f"At most {most} characters, please.")
        form = schema.get("format")
        if isinstance(form, str) and form in _FORMATS and not _FORMATS[form](value):
            raise Invalid(f"That is no {form}{_EXAMPLES.get(form, '')}.")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        least_number, most_number = _number(schema.get("minimum")), _number(schema.get("maximum"))
        if least_number is not None and value < least_number:
            raise Invalid(f"At least {schema['minimum']}, please.")
        if most_number is not None and value > most_number:
            raise Invalid(f"At most {schema['maximum']}, please.")


def show(value: Any) -> str:
    """A value on one line, as it may be typed again."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return clean_line(text, 80)


def missing(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """Names of required properties that `arguments` lacks."""
    return [item.name for item in fields_of(schema) if item.required and item.name not in arguments]


def _field(name: str, about: Any, required: bool, root: Mapping[str, Any]) -> Field:
    schema = _resolved(about if isinstance(about, Mapping) else {}, root)
    title, description = schema.get("title"), schema.get("description")
    choices, several = _choices(schema)
    return Field(
        name,
        _kind(schema, choices, several),
        required,
        clean_line(title, 80) if isinstance(title, str) else "",
        clean_line(description, 300) if isinstance(description, str) else "",
        schema.get("default", MISSING),
        choices,
        several,
        schema,
    )


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with a local reference at its top followed."""
    for _ in range(REF_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = root
        for part in reference[2:].split("/"):
            target = target.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema


def _choices(schema: Mapping[str, Any]) -> tuple[tuple[Choice, ...], bool]:
    """Plain enums, titled ones (`oneOf` of `const`, `enumNames`), and arrays of either (multi-select)."""
    items = schema.get("items")
    if schema.get("type") == "array" and isinstance(items, Mapping):
        inner, _ = _choices(items)
        return inner, bool(inner)
    values = schema.get("enum")
    if isinstance(values, list) and values:
        names = schema.get("enumNames")
        labels = names if isinstance(names, list) and len(names) == len(values) else values
        return tuple(Choice(v, show(label)) for v, label in zip(values, labels, strict=True)), False
    for key in ("oneOf", "anyOf"):
        options = schema.get(key)
        if not isinstance(options, list) or not options:
            continue
        if all(isinstance(option, Mapping) and "const" in option for option in options):
            return tuple(
                Choice(option["const"], show(option.get("title", option["const"]))) for option in options
            ), False
        # `X | null`, as Pydantic writes what is optional
        rest = [option for option in options if isinstance(option, Mapping) and option.get("type") != "null"]
        if len(rest) == 1:
            return _choices(rest[0])
    return (), False


def _kind(schema: Mapping[str, Any], choices: Sequence[Choice], several: bool) -> str:
    if several:
        return "any of"
    if choices:
        return "one of"
    words = [_WORDS.get(kind, kind) for kind in kinds(schema) if kind != "null"]
    form = schema.get("format")
    if words == ["text"] and isinstance(form, str) and form in _FORMATS:
        return "text"
    return " or ".join(dict.fromkeys(words)) or "any value"


_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "yes/no",
    "array": "JSON list",
    "object": "JSON object",
}


def _chosen(item: Field, text: str) -> Any:
    """A choice by its number in the list, its value or its label."""
    for choice in item.choices:
        if text == show(choice.value) or text == choice.label:
            return choice.value
    if text.isdecimal() and len(text) < 6 and 1 <= int(text) <= len(item.choices):
        return item.choices[int(text) - 1].value
    folded = [choice for choice in item.choices if choice.label.casefold() == text.casefold()]
    if len(folded) == 1:
        return folded[0].value
    raise Invalid(f"One of the values, or a number from 1 to {len(item.choices)}, please.")


def _advice(item: Field) -> str:
    wanted = kinds(item.schema)
    if "object" in wanted:
        return 'A JSON object is needed, such as {"key": "value"}.'
    if "array" in wanted:
        return 'A JSON list is needed, such as ["one", "two"].'
    if "boolean" in wanted:
        return "yes or no, please."
    if "integer" in wanted:
        return "A whole number is needed."
    if "number" in wanted:
        return "A number is needed."
    return f"This must be: {item.kind}."


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) else None


def _is_date(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return len(text) == 10


def _is_moment(text: str) -> bool:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text.upper() and moment.tzinfo is not None


_FORMATS = {
    "email": lambda text: re.fullmatch(r"[^@\s]+@[^@\s]+", text) is not None,
    "uri": lambda text: re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:\S+", text) is not None,
    "date": _is_date,
    "date-time": _is_moment,
}
_EXAMPLES = {
    "email": ", such as name@example.org",
    "uri": ", such as https://example.org/",
    "date": ", such as 2026-03-01",
    "date-time": ", such as 2026-03-01T09:30:00Z",
}
