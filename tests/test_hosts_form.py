"""A schema as questions, and what is typed as values."""

from __future__ import annotations

from typing import Any

import pytest

from pi_mcp.hosts.terminal.form import MISSING, Field, Invalid, fields_of, missing, read
from tests.chat_server import FORM


def field(schema: dict[str, Any], *, required: bool = True) -> Field:
    return fields_of({"properties": {"x": schema}, "required": ["x"] if required else []})[0]


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [
        ({"type": "string"}, " two words ", " two words "),
        ({"type": "string"}, '""', ""),
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "boolean"}, "y", True),
        ({"type": "boolean"}, "No", False),
        ({"type": "array", "items": {"type": "integer"}}, "[1, 2]", [1, 2]),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"enum": ["red", "blue"]}, "blue", "blue"),
        ({"enum": ["red", "blue"]}, "2", "blue"),
        ({"enum": [10, 20]}, "20", 20),
        ({"enum": ["s", "m"], "enumNames": ["Small", "Medium"]}, "medium", "m"),
        ({"oneOf": [{"const": 1, "title": "One"}, {"const": 2, "title": "Two"}]}, "Two", 2),
        ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, "a", "a"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}}, "a, 3", ["a", "c"]),
        ({"type": "string", "format": "date"}, "2026-03-01", "2026-03-01"),
        ({}, '{"free": 1}', {"free": 1}),
        ({}, "free text", "free text"),
    ],
)
def test_what_is_typed_becomes_a_value_of_the_schemas_type(schema: dict[str, Any], line: str, value: Any) -> None:
    assert read(field(schema), line) == value


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({"type": "integer"}, "seven"),
        ({"type": "integer"}, "1.5"),
        ({"type": "integer", "minimum": 3}, "2"),
        ({"type": "number", "maximum": 3}, "4"),
        ({"type": "number"}, "nan"),
        ({"type": "boolean"}, "perhaps"),
        ({"type": "object"}, "[1]"),
        ({"type": "object"}, "{broken"),
        ({"type": "string", "minLength": 3}, "ab"),
        ({"type": "string", "maxLength": 1}, "ab"),
        ({"type": "string", "format": "email"}, "nobody"),
        ({"type": "string", "format": "uri"}, "nowhere"),
        ({"type": "string", "format": "date"}, "1 March"),
        ({"type": "string", "format": "date-time"}, "2027-05-06"),
        ({"enum": ["red", "blue"]}, "green"),
        ({"enum": ["red", "blue"]}, "3"),
        ({"type": "string"}, ""),
        ({"type": "integer"}, ""),
    ],
)
def test_what_does_not_fit_is_refused_with_words_that_do_not_repeat_it(schema: dict[str, Any], line: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(field(schema), line)
    assert str(caught.value).endswith((".", "please."))
    if len(line) > 3:
        assert line not in str(caught.value)


def test_enter_takes_the_default_or_skips_what_is_optional() -> None:
    assert read(field({"type": "integer", "default": 4}), "") == 4
    assert read(field({"type": "integer"}, required=False), "") is MISSING


def test_required_fields_come_first_and_their_descriptions_are_cleaned() -> None:
    fields = fields_of(FORM)
    assert [item.name for item in fields] == ["street", "zip", "size", "express", "mail"]
    evil = field({"type": "string", "description": "a\x1b]0;title\x07b\u202ec"})
    assert evil.description == "abc"


def test_a_local_reference_is_followed_and_a_circle_ends() -> None:
    schema = {
        "properties": {"x": {"$ref": "#/$defs/color"}, "y": {"$ref": "#/$defs/loop"}},
        "$defs": {"color": {"enum": ["red"]}, "loop": {"$ref": "#/$defs/loop"}},
    }
    x, y = fields_of(schema)
    assert [choice.value for choice in x.choices] == ["red"]
    assert y.choices == ()


@pytest.mark.parametrize(
    "schema", [{}, {"properties": []}, {"properties": {"x": True}}, {"properties": {"x": {"enum": []}}}]
)
def test_odd_schemas_give_questions_and_no_crash(schema: dict[str, Any]) -> None:
    for item in fields_of(schema):
        assert read(item, "1") in (1, "1")


def test_missing_names_the_required_ones_only() -> None:
    assert missing(FORM, {"zip": 1}) == ["street", "size"]
