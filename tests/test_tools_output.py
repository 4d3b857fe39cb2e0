"""A result that does not match its `outputSchema` is a warning, in our words and in bounded time."""

from __future__ import annotations

import http.server
import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pi_mcp.tools import output
from pi_mcp.tools.output import check

SECRET = "PLANTED-77aa"


def result(structured: Any, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": "c"}], "structuredContent": structured, **more}


SCHEMA = {"type": "object", "properties": {"v": {"enum": ["a", "b"]}}, "required": ["v"]}


def test_a_matching_result_gives_no_warning() -> None:
    assert check(SCHEMA, result({"v": "a"})) is None


def test_a_mismatch_names_path_and_keyword_and_no_value() -> None:
    warning = check(SCHEMA, result({"v": SECRET}))
    assert warning == "The structured content does not match the tool's output schema at $.v (enum)."
    assert SECRET not in warning


def test_missing_structured_content_is_a_warning() -> None:
    assert check(SCHEMA, {"content": []}) == "The tool has an output schema, and the result has no structured content."


def test_an_error_result_is_not_checked() -> None:
    assert check(SCHEMA, result({"v": "c"}, isError=True)) is None
    assert check(SCHEMA, {"isError": True}) is None


@pytest.mark.parametrize("schema", [None, True, [], "x"])
def test_without_a_schema_nothing_is_checked(schema: Any) -> None:
    assert check(schema, result({"v": "c"})) is None


@pytest.mark.parametrize(
    "dialect",
    [
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-04/schema#",
        "https://json-schema.org/draft/2020-12/schema",
        "https://unknown.test/dialect",
        7,
    ],
)
def test_every_dialect_is_checked(dialect: Any) -> None:
    assert check({"$schema": dialect, **SCHEMA}, result({"v": "a"})) is None
    assert "$.v" in (check({"$schema": dialect, **SCHEMA}, result({"v": "c"})) or "")


def test_definitions_of_its_own_are_followed() -> None:
    schema = {"$ref": "#/$defs/x", "$defs": {"x": SCHEMA}}
    assert check(schema, result({"v": "a"})) is None
    assert "(enum)" in (check(schema, result({"v": "c"})) or "")


def test_a_reference_to_another_document_is_never_fetched() -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/x.json"
        warnings = [
            check({"$ref": url}, result({})),
            check({"properties": {"v": {"$ref": url}}}, result({"v": 1})),
            check({"$id": url, "$ref": "other.json"}, result({})),
            check({"$dynamicRef": url}, result({})),
        ]
        server.shutdown()
        thread.join(5)
    assert asked == []
    assert set(warnings) == {"The tool's output schema refers to something that is not in it, so it was not checked."}


@pytest.mark.parametrize(
    "schema",
    [{"type": "obj"}, {"type": 5}, {"properties": 5}, {"$ref": "#"}, {"required": 7}, {"minimum": "x"}, {"anyOf": {}}],
)
def test_a_schema_that_is_none_is_at_most_a_warning(schema: Any) -> None:
    warning = check(schema, result({"v": 1}))
    assert warning is None or "\n" not in warning


def test_a_schema_nested_beyond_reason_is_a_warning_wherever_the_stack_would_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "TIME_LIMIT", 60.0)

    def lower(frames: int, schema: Any, value: Any) -> str | None:
        return lower(frames - 1, schema, value) if frames else check(schema, {"structuredContent": {"a": value}})

    schema: Any = {"type": "string"}
    value: Any = "a"
    found: set[str | None] = set()
    for levels in range(420):
        whole = {"type": "object", "properties": {"a": schema}}
        if levels < 100:
            assert lower(0, whole, value) is None
        elif levels % 8 == 0:
            found |= {lower(frames, whole, value) for frames in range(8)}
        schema, value = {"type": "array", "items": schema}, [value]
    assert found == {None, "The tool's output schema could not be used, so the structured content was not checked."}


def test_patterns_that_explode_are_not_run() -> None:
    evil = "^(a+)+$"
    value = {"a" * 40 + "!": 1, "v": "a" * 40 + "!"}
    started = time.monotonic()
    for schema in (
        {"properties": {"v": {"pattern": evil}}},
        {"patternProperties": {evil: {}}, "additionalProperties": False},
        {"patternProperties": {evil: {}}, "unevaluatedProperties": False},
        {"propertyNames": {"pattern": evil}},
    ):
        check(schema, result(value))
    assert time.monotonic() - started < 10


def test_a_check_ends_within_its_time() -> None:
    defs: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(60)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**defs, "d60": {"type": "string"}}}
    started = time.monotonic()
    assert check(schema, result({})) == (
        "The structured content was too large to be checked against the tool's output schema."
    )
    check({"items": {"type": "object"}, "uniqueItems": True}, result([{"n": n} for n in range(100_000)]))
    assert time.monotonic() - started < 15


def test_names_from_the_server_are_cleaned_in_the_path() -> None:
    schema = {"additionalProperties": {"type": "integer"}}
    warning = check(schema, result({"a\x1b[31m\u202e\nb" + "x" * 500: "s"})) or ""
    assert "\x1b" not in warning
    assert "\u202e" not in warning
    assert "\n" not in warning
    assert len(warning) < 250


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "$ref", "$schema", "$id", "items", "enum", "anyOf", "v", "format"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(JSON, JSON)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_schema_and_any_result_give_one_line_or_nothing(schema: Any, structured: Any) -> None:
    for value in (structured, result(structured)):
        warning = check(schema, value)
        assert warning is None or "\n" not in warning
