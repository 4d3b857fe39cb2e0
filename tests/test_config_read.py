"""Reading JSON with comments: what is accepted, what is refused and where, and where every member stands."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.config.jsonc import MAX_DEPTH, JsoncError, parse, skip_blank

PLANTED = "s3cr3t-planted-value"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)
blanks = st.lists(
    st.sampled_from([" ", "\t", "\n", "\r\n", "/* a */", "/***/", '/* // \n { " */', '// , ] } " \n', "//\r\n"]),
    max_size=3,
).map("".join)


def test_b001_comments_are_skipped_and_markers_in_strings_stay() -> None:
    text = """{"mcpServers":{
      // "off": {"command":"x"},
      /* block */ "on":{"command":"srv", "url": "https://h/mcp", "glob": "/* x */ // y"}
    }}"""
    assert parse(text).value == {
        "mcpServers": {"on": {"command": "srv", "url": "https://h/mcp", "glob": "/* x */ // y"}}
    }


def test_b002_trailing_commas_are_accepted_and_commas_in_strings_stay() -> None:
    text = '{"mcpServers":{"s":{"command":"srv","args":["a","b",],"d":",}",},},}'
    assert parse(text).value == {"mcpServers": {"s": {"command": "srv", "args": ["a", "b"], "d": ",}"}}}


def test_a_byte_order_mark_is_skipped_and_takes_no_column() -> None:
    document = parse('\ufeff{"a": 1}')
    assert document.value == {"a": 1}
    assert document.position(("a",)) == (1, 2)
    key, start, end = document.span(("a",))
    assert (document.text[key : key + 3], document.text[start:end]) == ('"a"', "1")


def test_b004_a_missing_comma_is_named_at_the_line_where_it_is_missing() -> None:
    text = f'{{\n "mcpServers": {{\n  "s": {{\n   "command": "x",\n   "description": "{PLANTED}"\n   "args": []\n}}}}}}'
    with pytest.raises(JsoncError) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (5, 18 + len(PLANTED) + 3)
    assert "comma is missing" in caught.value.hint
    assert PLANTED not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place", "hint"),
    [
        ("", (1, 1), "empty"),
        ("  // nothing\n", (2, 1), "empty"),
        ("{", (1, 1), "never closed"),
        ('{"a": [1, 2}', (1, 12), "does not fit"),
        ('{"a": 1}}', (1, 9), "too many"),
        ('{"a": 1} x', (1, 9), "more text"),
        ('{"a" 1}', (1, 5), "colon"),
        ('{"a": "x\n}', (1, 7), "double quote is missing"),
        ("{\"a\": 'x'}", (1, 7), "single"),
        ("{a: 1}", (1, 2), "key stands in double quotes"),
        ('{"a": x}', (1, 7), "double quotes"),
        ('{"a": \u201cx\u201d}', (1, 7), "typographic"),
        ('{"a": True}', (1, 7), "lower case"),
        ('{"a": None}', (1, 7), "null"),
        ('{"a": NaN}', (1, 7), "not a number"),
        ('{"a": 01}', (1, 7), "number"),
        ('{"a": ' + "9" * 5000 + "}", (1, 7), "digits"),
        ('{"a": "C:\\Users"}', (1, 10), "backslash"),
        ('{"a": "x\ty"}', (1, 9), "control character"),
        ('{"a": 1,, "b": 2}', (1, 9), "comma too many"),
        ("{,}", (1, 2), "comma too many"),
        ('{"a": 1,\n # note\n}', (2, 2), "//"),
        ('{"a": 1 /* open }', (1, 9), "never closed"),
        ('{"a":\u00a01}', (1, 6), "invisible"),
        ('{"a": }', (1, 7), "value is missing"),
        ('{"a": 1', (1, 1), "never closed"),
        ('{"a": [1,', (1, 7), "never closed"),
        ('{"a"', (1, 5), "colon"),
    ],
)
def test_what_is_refused_is_named_with_its_place(text: str, place: tuple[int, int], hint: str) -> None:
    with pytest.raises(JsoncError, match=r"line \d+, column \d+") as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == place
    assert hint in caught.value.hint


def test_nesting_is_bounded_without_a_crash_of_the_reader() -> None:
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 500 + "]" * 500):
        with pytest.raises(JsoncError, match="nested more than"):
            parse(text)
    fits = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse(fits).span((0,) * (MAX_DEPTH - 1))
    with pytest.raises(JsoncError):
        parse(f"[{fits}]")


def test_of_a_repeated_key_the_last_counts_and_is_where_it_stands() -> None:
    document = parse('{"a": {"x": 1},\n "b": 2,\n "a": {"y": 1}}')
    assert document.value == {"a": {"y": 1}, "b": 2}
    assert document.duplicates == (("a",),)
    assert document.position(("a",)) == (3, 2)
    with pytest.raises(KeyError):
        document.span(("a", "x"))


def test_a_hostile_file_takes_no_more_than_moments() -> None:
    started = time.monotonic()
    many = "{" + ",".join(f'"k{i}":[]' for i in range(20_000)) + ',"a":[]' * 20_000 + "}"
    assert len(parse(many).duplicates) == 100
    for text in ('"' + "\\n" * 200_000, "/*" * 200_000, "/" * 200_000, "{" * 200_000, '{"a":"' + "\\" * 200_001):
        with pytest.raises(JsoncError):
            parse(text)
    assert time.monotonic() - started < 10


def test_the_position_of_an_absent_member_is_that_of_its_parent() -> None:
    document = parse('{\n  "s": {\n    "args": ["a",\n  "b"]}}')
    assert document.position(("s", "args", 1)) == (4, 3)
    assert document.position(("s", "command")) == (2, 3)
    assert document.position(("t", "x", 4)) == (1, 1)
    assert parse("[1]").position(()) == (1, 1)


def test_lines_end_with_any_of_the_three_line_ends() -> None:
    for end in ("\n", "\r\n", "\r"):
        assert parse(f'{{{end} "a": 1,{end} "b": 2}}').position(("b",)) == (3, 2)


@settings(max_examples=200, deadline=None)
@given(json_values)
def test_plain_json_reads_as_the_standard_library_reads_it(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=2)):
        document = parse(text)
        assert document.value == json.loads(text)
        assert document.span(())[1:] == (0, len(text))


@settings(max_examples=200, deadline=None)
@given(st.data(), json_values)
def test_comments_blanks_and_trailing_commas_change_no_value(data: st.DataObject, value: Any) -> None:
    text = _decorated(data, value)
    document = parse(text)
    assert document.value == value
    for path, expected in _walk(value):
        key, start, end = document.span(path)
        assert parse(text[start:end]).value == expected
        if path and isinstance(path[-1], str):
            assert json.JSONDecoder().raw_decode(text, key)[0] == path[-1]
        else:
            assert key == start


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="{}[]\",:/*\\\n 1ae-.\ufeff'#"))
def test_any_text_is_read_or_refused_with_a_place_inside_it(text: str) -> None:
    refused: JsoncError | None = None
    try:
        assert parse(text).span(())[2] <= len(text)
    except JsoncError as error:
        refused = error
    if refused is not None:
        assert 1 <= refused.line <= text.count("\n") + text.count("\r") + 1
        assert 1 <= refused.column <= len(text) + 1


def test_blanks_and_comments_are_skipped_from_any_offset() -> None:
    assert skip_blank("a /* b */ // c\n d", 1) == 16
    assert skip_blank("abc", 1) == 1


def _decorated(data: st.DataObject, value: Any) -> str:
    """The value as JSON with blanks and comments in every place where they may stand."""

    def blank() -> str:
        return data.draw(blanks)

    def comma(count: int) -> str:
        return "," if count and data.draw(st.booleans()) else ""

    if isinstance(value, dict):
        members = [f"{blank()}{json.dumps(k)}{blank()}:{_decorated(data, v)}" for k, v in value.items()]
        return f"{blank()}{{{','.join(members)}{comma(len(members))}{blank()}}}{blank()}"
    if isinstance(value, list):
        elements = [_decorated(data, item) for item in value]
        return f"{blank()}[{','.join(elements)}{comma(len(elements))}{blank()}]{blank()}"
    return f"{blank()}{json.dumps(value)}{blank()}"


def _walk(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    found = [(path, value)]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += _walk(inner, (*path, key))
    return found
