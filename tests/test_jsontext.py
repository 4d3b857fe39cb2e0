"""JSON text is the same however deep the value is, and wherever its writer stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pi_mcp.jsontext import _deep_json, compact_json, json_line

ODD = {"é\ud800": [1, 2.5, None, True, [], {}, [[]], 'a"b'], "A": {"b": -0.0, "a": {"c": "\n"}}}


@pytest.mark.parametrize("sort_keys", [True, False])
@pytest.mark.parametrize("ensure_ascii", [True, False])
def test_a_deep_value_is_written_as_a_flat_one_is(*, sort_keys: bool, ensure_ascii: bool) -> None:
    # Where the interpreter's stack ends depends on the caller; the text must not.
    plain = json.dumps(ODD, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=ensure_ascii)
    assert _deep_json(ODD, sort_keys=sort_keys, ensure_ascii=ensure_ascii) == plain
    assert compact_json(ODD, sort_keys=sort_keys, ensure_ascii=ensure_ascii) == plain


def test_what_no_stack_could_hold_has_its_text() -> None:
    value: Any = 1
    for number in range(100_000):
        value = [value] if number % 2 else {"a": value}
    assert compact_json(value) == '[{"a":' * 50_000 + "1" + "}]" * 50_000


def test_a_line_is_utf_8_whatever_halves_of_characters_are_in_it() -> None:
    assert json_line({"a": "ü\n"}) == '{"a":"ü\\n"}'.encode()
    assert json_line(["x\ud83d", {"\udc00": 1}]) == '["x\ufffd",{"\ufffd":1}]'.encode()
