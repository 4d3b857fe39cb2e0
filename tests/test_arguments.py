"""Arguments as a person types them become what the schema asks for, or one sentence that says what is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.errors import ConfigurationError
from pi_mcp.tools.arguments import kinds, misspelt, parse_arguments, typed

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
DEFINITIONS: dict[str, Any] = {
    "Size": {"type": "string", "enum": ["1", "2"]},
    "a/b": {"type": "string"},
    "Round": {"$ref": "#/$defs/Round"},
    "Wide": {"anyOf": [{"$ref": "#/$defs/Wide"}] * 100},
}
KINDS = ["string", "boolean", "integer", "number", "array", "object", "null"]


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_any_json_object_is_taken_as_it_is(value: dict[str, Any]) -> None:
    assert parse_arguments([json.dumps(value)], {}) == value
    assert parse_arguments(["-"], {}, standard_input=lambda limit: json.dumps(value).encode()) == value


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_string_is_never_changed(text: str) -> None:
    if not text.startswith("@"):
        assert parse_arguments([f"key={text}"], of(key={"type": "string"})) == {"key": text}
    assert parse_arguments([f"key=@@{text}"], of(key={"type": "string"})) == {"key": f"@{text}"}


@given(JSON)
def test_a_value_without_a_declared_type_is_json_where_it_parses(value: Any) -> None:
    assert typed(json.dumps(value), {}, "key") == value


@given(st.text(), st.lists(st.sampled_from(KINDS), max_size=3))
def test_whatever_is_typed_fits_the_schema_and_is_json_or_is_refused(text: str, admitted: list[str]) -> None:
    try:
        value = typed(text, {"type": admitted} if admitted else {}, "key")
    except ConfigurationError as error:
        assert error.diagnostic.message.startswith("The value of 'key' must be")  # noqa: PT017
        return
    json.dumps(value, allow_nan=False)
    if admitted:
        found = {
            str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
            type(None): "null",
        }[type(value)]  # fmt: skip
        assert found in admitted or (found == "integer" and "number" in admitted) or (
            found == "number" and "integer" in admitted and float(value).is_integer()
        )  # fmt: skip


@given(st.text(min_size=1), st.text())
def test_a_word_that_is_no_assignment_never_becomes_an_argument(key: str, value: str) -> None:
    try:
        arguments = parse_arguments([f"{key}={value}"], {})
    except ConfigurationError:
        return
    assert len(arguments) in (0, 1) or key.lstrip().startswith("{")


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "integer"}, 5),
        ("+5", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("1e3", {"type": "integer"}, 1000),
        ("0.5", {"type": "number"}, 0.5),
        ("yes", {"type": "boolean"}, True),
        ("off", {"type": "boolean"}, False),
        ("null", {"type": ["integer", "null"]}, None),
        ("", {"type": ["string", "null"]}, ""),
        ("null", {"type": ["string", "null"]}, None),
        ("hello, world", {"type": ["string", "array"]}, "hello, world"),
        ('["a"]', {"type": ["string", "array"]}, ["a"]),
        ("yes", {"anyOf": [{"type": "string"}, {"type": "boolean"}]}, "yes"),
        ("true", {"anyOf": [{"type": "string"}, {"type": "boolean"}]}, True),
        ("1,2,3", {"type": "array", "items": {"type": "integer"}}, [1, 2, 3]),
        ("1,b", {"type": "array"}, ["1", "b"]),
        ("", {"type": "array"}, []),
        ('[1, "b"]', {"type": "array"}, [1, "b"]),
        ('{"a": 1}', {"type": "object"}, {"a": 1}),
        ("red", {"enum": ["red", "green"]}, "red"),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("x", {"const": "x"}, "x"),
        ("007", {"type": "string"}, "007"),
        ("007", {}, "007"),
        ("NaN", {}, "NaN"),
        ("1e999", {}, "1e999"),
        ("1e999", {"type": ["string", "integer"]}, "1e999"),
        ("[" * 100_000, {}, "[" * 100_000),
        ('"quoted"', {"type": ["string", "null"]}, '"quoted"'),
        ("1.0", {"type": ["string", "integer"]}, 1),
        ("1", {"type": ["boolean", "integer"]}, 1),
        ("yes", {"type": ["boolean", "integer"]}, True),
        ("null", {"type": ["array", "null"]}, None),
        ("1,2", {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}, [1, 2]),
        ("1", {"anyOf": [{"enum": [1, 2]}, {"type": "null"}]}, 1),
        ("1", {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, "1"),
        ("null", {"anyOf": [{"$ref": "#/$defs/Size"}, {"type": "null"}]}, None),
        ("1", {"allOf": [{"title": "Size"}, {"$ref": "#/$defs/Size"}]}, "1"),
        ("1,2", {"type": "array", "items": {"$ref": "#/$defs/Size"}}, ["1", "2"]),
        ("5", {"$ref": "#/$defs/a~1b"}, "5"),
        ("5", {"$ref": "#/$defs/Nobody"}, 5),
        ("5", {"$ref": "https://elsewhere.example/schema"}, 5),
        ("5", {"$ref": "#/$defs/Round"}, 5),
        ("5", {"$ref": "#/$defs/Wide"}, 5),
    ],
)
def test_values_are_typed_by_the_schema(text: str, schema: dict[str, Any], value: Any) -> None:
    found = parse_arguments([f"key={text}"], {**of(key=schema), "$defs": DEFINITIONS})["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/Arguments"},
        {"type": "object", "allOf": [of(other={}), {"$ref": "#/$defs/Arguments"}]},
        {"type": "object", "oneOf": [of(other={}), of(key={"type": "string"})]},
        {"type": "object", "additionalProperties": {"type": "string"}},
    ],
)
def test_an_argument_is_typed_wherever_the_schema_lists_it(schema: dict[str, Any]) -> None:
    definitions = {"Arguments": of(key={"type": "string"})}
    assert parse_arguments(["key=1"], {**schema, "$defs": definitions}) == {"key": "1"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("five", "integer"), ("5.5", "integer"), ("1_000", "integer"), ("٣", "integer"), ("9" * 5000, "integer"),
        ("nan", "number"), ("inf", "number"), ("1e999", "number"), ("maybe", "boolean"), ("{", "object"), ("[]",
        "object"), ("[1", "array"), ("x", "null"), ("[NaN]", "array"), ("{" * 100_000, "object"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_without_being_shown(text: str, kind: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        typed(text, {"type": kind}, "size")
    assert caught.value.diagnostic.message == f"The value of 'size' must be of type {kind}."


@pytest.mark.parametrize(
    ("text", "kind"),
    [("one", "object"), ('{"a": 1}, {"b": 2}', "object"), ("1,x", "integer"), ("yes,maybe", "boolean")],
)
def test_an_item_of_another_type_is_told_as_an_item(text: str, kind: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        typed(text, {"type": "array", "items": {"type": kind}}, "sizes")
    assert caught.value.diagnostic.message == f"Each item of 'sizes' must be of type {kind}."


def test_one_object_is_a_list_of_one_whatever_commas_it_has() -> None:
    schema = {"type": "array", "items": {"type": "object"}}
    assert typed('{"a": [1, 2], "b": "x,y"}', schema, "rows") == [{"a": [1, 2], "b": "x,y"}]
    assert typed('[{"a": 1}, {"b": 2}]', schema, "rows") == [{"a": 1}, {"b": 2}]
    assert typed("a,b", {"type": "array", "items": {"type": "string"}}, "rows") == ["a", "b"]


def test_values_and_whole_objects_come_from_files(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text("# Title\n")
    assert parse_arguments([f"body=@{path}"], of(body={"type": "string"})) == {"body": "# Title\n"}
    path.write_text('{"a": [1]}')
    assert parse_arguments([f"@{path}"], {}) == {"a": [1]}
    path.write_text('\ufeff{"a": [1]}', "utf-8")
    assert parse_arguments([f"@{path}"], {}) == {"a": [1]}


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["word"], "neither a JSON object nor key=value"),
        (["=x"], "neither a JSON object nor key=value"),
        (["a=2", '{"b": 3}'], "stand alone"),
        (['{"b": 3}', "a=2"], "stand alone"),
        (['{"b": "x=y"}', '{"c": 1}'], "stand alone"),
        (["a=2", "-"], "stand alone"),
        (["@file.json", "a=2"], "stand alone"),
        (['{"a":', '"b}'], "cannot be read as JSON"),
        (["a=1", "a=2"], "given twice"),
        (['{"a": }'], "cannot be read as JSON (line 1, column 7)"),
        (["[1]"], "neither a JSON object nor key=value"),
        (['{"a": NaN}'], "cannot be read as JSON"),
        (["@/nowhere/at/all"], "cannot be read"),
        (["a=@/nowhere/at/all"], "cannot be read"),
        (["a=@\0"], "cannot be read"),
        (["a=\udcff"], "is not UTF-8"),
        (["-"], "Standard input is not available"),
    ],
)
def test_what_cannot_be_understood_is_said(words: list[str], what: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_arguments(words, {})
    assert what in caught.value.diagnostic.message
    assert caught.value.diagnostic.code == "usage"


def test_an_input_that_is_no_object_or_too_large_is_refused() -> None:
    for data in (b"[1]", b"7", b"\xff", b"{" * 1000, b"x" * ((16 << 20) + 1)):
        with pytest.raises(ConfigurationError):
            parse_arguments(["-"], {}, standard_input=lambda limit, data=data: data[:limit])  # type: ignore[misc]


def test_no_words_are_no_arguments() -> None:
    assert parse_arguments([], {}) == {}
    assert kinds({}) == ()
    assert not math.isnan(typed("1", {"type": "number"}, "n"))


def test_json_that_a_shell_has_cut_into_words_is_put_together() -> None:
    assert parse_arguments(['{"a":', "{}", "}"], {}) == {"a": {}}


@pytest.mark.parametrize(
    ("schema", "key", "said"),
    [
        ({"properties": {"city": {}}}, "citty", "no 'citty'; it is sent all the same. Close: city."),
        ({"properties": {"city": {}}, "additionalProperties": False}, "City", "Close: city."),
        ({"properties": {"ci\x1b[1mty": {}}}, "ci\x1b[1mtty", "no 'citty'; it is sent all the same. Close: city."),
        ({"properties": {"city": {}}}, "city", None),
        ({"properties": {"city": {}}}, "temperature", None),
        ({"properties": {"city": {}}, "additionalProperties": True}, "citty", None),
        ({"properties": {"city": {}}, "additionalProperties": {"type": "string"}}, "citty", None),
        ({"properties": {"city": {}}, "patternProperties": {"^c": {}}}, "citty", None),
        ({"properties": {"city": {}}, "anyOf": [{"properties": {"citty": {"type": "string"}}}]}, "citty", None),
        ({"properties": {}}, "citty", None),
        ({"properties": 3}, "citty", None),
        ({}, "citty", None),
    ],
)
def test_an_argument_close_to_one_of_the_schemas_is_pointed_out(
    schema: dict[str, Any], key: str, said: str | None
) -> None:
    note = misspelt({key: "x"}, schema)
    assert note is None if said is None else said in str(note)
    assert "\x1b" not in str(note)
