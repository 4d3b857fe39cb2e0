"""The model's form of an input schema: what every provider accepts, and never less than the server allows."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing.jsonschema import EMPTY_REGISTRY

from pi_mcp.tools.schema import MAX_BYTES, Quarantined, model_schema
from tests.support import shared_data

KEYS = {
    "$defs", "$ref", "additionalProperties", "anyOf", "default", "description", "enum", "format", "items",
    "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength", "minProperties", "minimum",
    "pattern", "properties", "required", "title", "type",
}  # fmt: skip


def schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A converted schema and every schema in it."""
    yield schema
    for key in ("properties", "$defs"):
        for sub in schema.get(key, {}).values():
            yield from schemas(sub)
    for sub in schema.get("anyOf", []):
        yield from schemas(sub)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key])


def assert_accepted_by_providers(schema: dict[str, Any]) -> None:
    """The rules of OpenAI, Anthropic and Gemini, as far as they are known."""
    Draft202012Validator.check_schema(schema)
    json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not schema.keys() & {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref"}
    for sub in schemas(schema):
        assert not sub.keys() - KEYS
        assert isinstance(sub.get("type", ""), str)
        if "anyOf" in sub:
            assert len(sub["anyOf"]) > 1
            assert not sub.keys() - {"anyOf", "description", "title", "default"}
        if sub.get("type") == "array":
            assert isinstance(sub["items"], dict)
        if "enum" in sub:
            assert sub["type"] in ("string", "number", "integer")
            assert sub["enum"]
            assert "" not in sub["enum"]
        if "$ref" in sub:
            assert sub["$ref"].removeprefix("#/$defs/") in schema["$defs"]
        properties = sub.get("properties", {})
        assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in properties)
        assert set(sub.get("required", [])) <= set(properties)
        assert sub.get("format", "date-time") == "date-time"


def form(schema: Any) -> dict[str, Any]:
    """The model's form, checked for what holds for every one."""
    before = copy.deepcopy(schema)
    found = model_schema(schema)
    assert schema == before
    assert_accepted_by_providers(found.schema)
    assert model_schema(found.schema).schema == found.schema
    return found.schema


def one(schema: Any) -> Any:
    """The model's form of a single parameter."""
    return form({"type": "object", "properties": {"p": schema}})["properties"]["p"]


# Any JSON

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["string", "object", "array", "#", "#/$defs/a", "#/properties/a", "http://evil.test/x", "a"])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "items",
                    "$ref",
                    "$defs",
                    "anyOf",
                    "oneOf",
                    "allOf",
                    "enum",
                    "const",
                    "not",
                    "required",
                    "additionalProperties",
                    "default",
                    "description",
                    "title",
                    "prefixItems",
                    "a",
                    "b c",
                    "patternProperties",
                    "minimum",
                    "exclusiveMinimum",
                    "minItems",
                    "maxItems",
                    "minLength",
                    "if",
                    "then",
                    "pattern",
                    "format",
                    "nullable",
                    "propertyNames",
                    "dependentRequired",
                    "uniqueItems",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=40,
)


@given(JSON)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_json_is_converted_or_quarantined(value: Any) -> None:
    try:
        model_schema(value)
    except Quarantined as quarantined:
        assert quarantined.reason  # noqa: PT017
        return
    form(value)


# Schemas with a value that they admit


@st.composite
def pairs(draw: st.DrawFn, depth: int = 3) -> tuple[Any, Any]:
    """A schema, and a value that is valid against it."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "types", "any", "ref"]
    kind = draw(st.sampled_from(kinds + (["object", "array", "tuple", "anyOf", "oneOf", "allOf"] if depth else [])))
    note = draw(st.sampled_from([{}, {"description": "d"}, {"title": "T"}, {"x-vendor": 1, "$comment": "c"}]))
    if kind == "string":
        value = draw(st.text(max_size=5))
        extra = draw(st.sampled_from([{}, {"maxLength": 5}, {"pattern": ".*"}, {"format": "uri"}]))
        return {"type": "string", **extra, **note}, value
    if kind in ("integer", "number"):
        number = draw(st.integers(-5, 5))
        extra = draw(
            st.sampled_from(
                [{}, {"minimum": -5}, {"exclusiveMaximum": 6}, {"exclusiveMinimum": -5.5}, {"multipleOf": 1}]
            )
        )
        return {"type": kind, **extra, **note}, number
    if kind == "boolean":
        return {"type": "boolean", **note}, draw(st.booleans())
    if kind == "null":
        return {"type": "null"}, None
    if kind == "enum":
        values = draw(st.lists(st.sampled_from(["", "a", "b", 1, 2.5, True, None, [1], {"k": 1}]), min_size=1))
        return {"enum": values, **note}, draw(st.sampled_from(values))
    if kind == "const":
        value = draw(st.sampled_from(["", "a", 1, False, None, [], {}]))
        return {"const": value, **note}, value
    if kind == "types":
        return {"type": ["string", "null", "integer"], "minimum": 0, **note}, draw(st.sampled_from(["x", None, 3]))
    if kind == "any":
        return draw(st.sampled_from([True, {}])), draw(st.sampled_from([1, "x", None, [], {"a": 1}]))
    if kind == "ref":
        return {"$ref": "#/$defs/node", **note}, draw(
            st.sampled_from([{}, {"label": "x"}, {"next": {"next": {"label": "y"}}}])
        )
    if kind == "array":
        schema, value = draw(pairs(depth=depth - 1))
        return {"type": "array", "items": schema, **note}, [value] * draw(st.integers(0, 2))
    if kind == "tuple":
        members = draw(st.lists(pairs(depth=depth - 1), min_size=1, max_size=3))
        closed = draw(st.booleans())
        rest = {"items": False} if closed else {}
        values = [value for _, value in members]
        return {"type": "array", "prefixItems": [s for s, _ in members], **rest, **note}, (
            values if closed else [*values, "more"]
        )
    if kind in ("anyOf", "oneOf"):
        schema, value = draw(pairs(depth=depth - 1))
        other = {"type": "object", "required": ["never-there"]} if kind == "oneOf" else draw(pairs(depth=depth - 1))[0]
        branches = [schema, other] if draw(st.booleans()) else [other, schema]
        return {kind: branches, **note}, value
    if kind == "allOf":
        schema, value = draw(objects(depth=depth - 1))
        return {"allOf": [schema, {"type": "object"}], **note}, value
    return draw(objects(depth=depth))


@st.composite
def objects(draw: st.DrawFn, depth: int = 3) -> tuple[dict[str, Any], dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(["a", "b", "c.d", "e-f", "odd name", "$x", "type", "$ref"]), unique=True))
    members = {name: draw(pairs(depth=max(depth - 1, 0))) for name in names}
    present = [name for name in names if draw(st.booleans())]
    required = [name for name in present if draw(st.booleans())]
    extra: dict[str, Any] = draw(
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "object"}}])
    )
    schema = {"type": "object", "properties": {name: s for name, (s, _) in members.items()}, **extra}
    if required:
        schema["required"] = required
    return schema, {name: members[name][1] for name in present}


@given(objects())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_the_server_admits_can_still_be_expressed(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, value = pair
    node = {"type": "object", "properties": {"label": {"type": "string"}, "next": {"$ref": "#/$defs/node"}}}
    schema = {**schema, "$defs": {"node": node}}
    if not Draft202012Validator(schema).is_valid(value):
        return  # an `oneOf` whose other branch fits too
    try:
        converted = form(schema)
    except Quarantined as quarantined:
        assert "name of its required parameter" in quarantined.reason  # noqa: PT017
        return
    errors = list(Draft202012Validator(converted, registry=EMPTY_REGISTRY).iter_errors(value))
    assert not errors


# The rules one by one


@pytest.mark.parametrize("schema", [None, {}, True, {"type": "object"}, {"type": "object", "properties": None}])
def test_no_arguments_is_an_empty_object(schema: Any) -> None:
    assert form(schema) == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ([], "its input schema is not an object"),
        (False, "its input schema is not an object"),
        ({"type": "array"}, "its arguments are no object but array"),
        ({"anyOf": [{"type": "string"}]}, "its arguments are no object in any of the forms it offers"),
        ({"properties": {"a b": {}}, "required": ["a b"]}, 'the name of its required parameter "a b"'),
        ({"properties": {"a": False}, "required": ["a"]}, "its required parameter a admits no value"),
    ],
)
def test_what_cannot_be_used_is_quarantined_with_a_reason(schema: Any, reason: str) -> None:
    with pytest.raises(Quarantined) as caught:
        model_schema(schema)
    assert reason in caught.value.reason


def test_alternatives_of_required_parameters_at_the_top_become_a_note() -> None:
    schema = {
        "type": "object",
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": {}, "b": {}},
    }
    assert form(schema) == {"type": "object", "properties": {"a": {}, "b": {}}}
    assert model_schema(schema).notes == ("Give at least one of these: a; b.",)


def test_a_choice_of_whole_forms_at_the_top_is_merged() -> None:
    def branch(kind: str, name: str) -> dict[str, Any]:
        properties = {"kind": {"const": kind}, name: {"type": "string"}}
        return {"type": "object", "properties": properties, "required": ["kind", name]}

    found = model_schema({"oneOf": [branch("file", "path"), branch("web", "url")]})
    assert found.schema["properties"]["kind"] == {"type": "string", "enum": ["file", "web"]}
    assert set(found.schema["properties"]) == {"kind", "path", "url"}
    assert found.schema["required"] == ["kind"]
    assert found.notes == ("Give exactly one of these: path; url.",)


def test_all_of_and_conditions_at_the_top_are_merged() -> None:
    schema = {
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
        "if": {"required": ["b"]},
        "then": {"properties": {"c": {"type": "string"}}},
        "$defs": {"base": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
    }
    found = form(schema)
    assert list(found["properties"]) == ["a", "b", "c"]
    assert found["required"] == ["a", "b"]


def test_a_reference_is_inlined_and_recursion_ends() -> None:
    node = {"type": "object", "properties": {"limit": {"type": "integer"}, "next": {"$ref": "#/$defs/Q"}}}
    found = form({"type": "object", "$defs": {"Q": node}, "properties": {"q": {"$ref": "#/$defs/Q"}}})
    inner = found["properties"]["q"]["properties"]
    assert inner["limit"] == {"type": "integer"}
    assert inner["next"] == {"type": "object", "description": "Of the same form as Q."}
    assert "$defs" not in found


def test_large_definitions_stay_beside_their_references() -> None:
    big = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(100)}}
    found = form(
        {
            "type": "object",
            "definitions": {"Big": big},
            "properties": {name: {"$ref": "#/definitions/Big"} for name in ("a", "b", "c", "d")},
        }
    )
    assert found["properties"]["a"] == {"$ref": "#/$defs/Big"}
    assert len(found["$defs"]["Big"]["properties"]) == 100


@pytest.mark.parametrize(
    "reference",
    [
        "#/$defs/T",
        "#/definitions/old",
        "#anchor",
        "T",
        "#/components/schemas/T",
        "https://me.test/s#/$defs/T",
        "#/properties/other",
        "#/$defs/with~1slash",
        "#/$defs/with%20space",
        "https://other.test/t",
    ],
)
def test_every_way_to_refer_within_the_document_is_followed(reference: str) -> None:
    target = {"type": "string", "minLength": 3}
    schema = {
        "$id": "https://me.test/s",
        "type": "object",
        "properties": {"p": {"$ref": reference}, "other": target},
        "$defs": {
            "T": target,
            "anchored": {"$anchor": "anchor", **target},
            "other": {"$id": "https://other.test/t", **target},
            "with/slash": target,
            "with space": target,
        },
        "definitions": {"old": target},
    }
    assert form(schema)["properties"]["p"] == {"type": "string", "minLength": 3}


@pytest.mark.parametrize("reference", ["http://evil.test/x.json", "file:///etc/passwd", "#/nowhere", "other.json#/a"])
def test_a_reference_out_of_the_document_is_open_and_noted(reference: str) -> None:
    schema = {"type": "object", "properties": {"q": {"$ref": reference, "description": "the query"}}}
    found = model_schema(schema)
    assert found.schema["properties"]["q"] == {"description": "the query"}
    assert found.notes == ("A part of its parameters is defined elsewhere and not described here.",)
    assert "evil" not in json.dumps(found.schema)


def test_references_in_a_circle_end() -> None:
    defs = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}, "c": {"allOf": [{"$ref": "#/$defs/c"}]}}
    found = form({"type": "object", "$defs": defs, "properties": {n: {"$ref": f"#/$defs/{n}"} for n in "abc"}})
    assert set(found["properties"]) == {"a", "b", "c"}
    assert form({"$ref": "#", "properties": {"a": {"$ref": "#"}}})["properties"]["a"]["type"] == "object"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"enum": ["A", "B"], "type": "null"}, {"type": "string", "enum": ["A", "B"]}),
        ({"type": "array", "enum": ["x"]}, {"type": "array", "items": {"type": "string", "enum": ["x"]}}),
        ({"type": "string", "enum": ["a", None, "a"]}, {"type": "string", "enum": ["a"]}),
        ({"enum": ["a", 1]}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "integer", "enum": [1]}]}),
        ({"enum": [True, False]}, {"type": "boolean"}),
        ({"const": True}, {"type": "boolean", "description": "Only true."}),
        ({"enum": []}, {}),
        ({"enum": ["", "a"]}, {"type": "string", "description": 'One of: "", "a".'}),
        ({"const": 5}, {"type": "integer", "enum": [5]}),
        ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": "string", "nullable": True}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"type": ["string"]}, {"type": "string"}),
        ({"type": "int"}, {"type": "integer"}),
        ({"type": "any"}, {}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"properties": {"x": True}}, {"type": "object", "properties": {"x": {}}}),
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, {"type": "integer", "minimum": 4}),
        ({"type": "integer", "maximum": 2**53 - 1}, {"type": "integer"}),
        ({"type": "number", "exclusiveMaximum": 1}, {"type": "number", "description": "Less than 1."}),
        ({"type": "string", "format": "uri"}, {"type": "string", "description": "Format: uri."}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a+$"}),
        ({"type": "string", "pattern": "(?!a)b"}, {"type": "string", "description": "Pattern: (?!a)b"}),
        ({"type": "string", "pattern": "(["}, {"type": "string", "description": "Pattern: (["}),
        ({"oneOf": [{"type": "string"}]}, {"type": "string"}),
        ({"anyOf": [{"type": "string"}, False]}, {"type": "string"}),
        ({"anyOf": [{}, {"type": "null"}]}, {}),
        ({"type": "string", "$comment": "c", "x-y": 1, "deprecated": True}, {"type": "string"}),
        ({"type": "string", "title": "P"}, {"type": "string"}),
        ({"type": "string", "title": "Other"}, {"type": "string", "title": "Other"}),
        ({"type": "string", "default": float("nan")}, {"type": "string"}),
        ({"type": "string", "description": "a\x1b[31mb\u202ec"}, {"type": "string", "description": "abc"}),
    ],
)
def test_a_parameter_is_brought_to_common_ground(schema: Any, expected: Any) -> None:
    assert one(schema) == expected


def test_values_with_descriptions_become_one_list() -> None:
    found = one({"oneOf": [{"const": "a", "description": "first"}, {"const": "b", "title": "Second."}]})
    assert found == {"type": "string", "enum": ["a", "b"], "description": '"a": first. "b": Second.'}


def test_an_optional_parameter_with_a_refused_name_is_told_in_words() -> None:
    schema = {"properties": {"{{user}}": {"type": "integer"}, "ok": {}}, "additionalProperties": False}
    found = model_schema(schema)
    assert found.schema == {"type": "object", "properties": {"ok": {}}}
    assert found.notes == ('Also takes "{{user}}" (optional): {"type":"integer"}',)
    inner = one({"type": "object", "properties": {"$in": {"type": "array"}}, "required": ["$in"]})
    assert inner == {
        "type": "object",
        "description": 'Also takes "$in" (required): {"type":"array","items":{}}',
    }


def test_required_names_are_repaired() -> None:
    found = form({"properties": {"a": {"required": True}, "b": {}}, "required": ["b", "b", "c", 7, None]})
    assert found["required"] == ["b", "c", "a"]
    assert "c" in found["properties"]
    assert "required" not in form({"properties": {"a": {}}, "required": "a"})


def test_tuples_become_lists_with_their_positions_in_words() -> None:
    found = one({"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False})
    assert found["items"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert found["maxItems"] == 2
    assert "By position" in found["description"]


def test_surrogates_and_control_bytes_do_not_reach_a_request() -> None:
    found = form({"properties": {"a": {"enum": ["\ud800"], "description": "\ud800\x1b[2J"}}, "description": "\ud800"})
    json.dumps(found, ensure_ascii=False).encode()


def test_the_form_shares_nothing_with_the_server_s_definition() -> None:
    schema = {"properties": {"a": {"default": {"k": [1]}, "enum": [{"k": 1}]}}}
    model_schema(schema).schema["properties"]["a"]["default"]["k"].append(2)
    assert schema["properties"]["a"]["default"] == {"k": [1]}


def test_a_schema_that_is_too_large_is_opened_at_its_deep_levels() -> None:
    wide: dict[str, Any] = {"type": "object", "properties": {}}
    for outer in range(30):
        inner = {f"inner_{n}": {"type": "object", "properties": {"x" * 60: {"type": "string"}}} for n in range(60)}
        wide["properties"][f"outer_{outer}"] = {"type": "object", "properties": inner}
    found = model_schema(wide)
    assert len(json.dumps(found.schema)) < 2 * MAX_BYTES
    assert_accepted_by_providers(found.schema)
    assert found.notes == ("The deeper levels of its parameters are not described.",)
    with pytest.raises(Quarantined, match="larger than"):
        model_schema({"properties": {f"parameter_{n:050}": {"type": "string"} for n in range(3000)}})


def test_pathological_schemas_take_bounded_time() -> None:
    started = time.monotonic()
    deep: Any = {"type": "string"}
    for _ in range(400):
        deep = {"allOf": [{"type": "object", "properties": {"a": deep}}]}
    assert_accepted_by_providers(model_schema(deep).schema)
    doubling = {
        f"d{n}": {
            "anyOf": [
                {"$ref": f"#/$defs/d{n + 1}"},
                {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}}},
            ]
        }
        for n in range(60)
    }
    form(
        {
            "type": "object",
            "properties": {"p": {"$ref": "#/$defs/d0"}},
            "$defs": {**doubling, "d60": {"type": "string"}},
        }
    )
    exploding = {f"e{n}": {"allOf": [{"$ref": f"#/$defs/e{n + 1}"}] * 10} for n in range(30)}
    with pytest.raises(Quarantined):
        model_schema({"properties": {"p": {"allOf": [{"$ref": "#/$defs/e0"}]}}, "$defs": {**exploding, "e30": {}}})
    assert time.monotonic() - started < 10


def test_a_schema_nested_beyond_reason_is_converted_or_quarantined() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"type": "array", "items": deep, "default": [deep] if deep == {} else 1}
    model_schema({"type": "object", "properties": {"p": deep}})
    parts: Any = {}
    for _ in range(5000):
        parts = {"allOf": [parts]}
    model_schema({"type": "object", "properties": {"p": parts}})


MANY = 8000


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"p": {"anyOf": [{"type": "string", "const": str(n)} for n in range(MANY)]}}},
        {"properties": {"p": {"anyOf": [{"type": "string", "minLength": n + 1} for n in range(MANY)]}}},
        {"anyOf": [{"required": [f"p{n}" for n in range(3 * MANY)]}] * 2},
        {"properties": {"p": {"allOf": [{"enum": list(range(MANY))}, {"enum": list(range(MANY, 2 * MANY))}]}}},
        {
            "properties": {f"p{n}": {"$ref": "#none"} for n in range(MANY)},
            "$defs": {f"d{n}": {"$anchor": f"a{n}"} for n in range(MANY)},
        },
        {
            "properties": {f"p{n}": {"$ref": f"#/a{n}/x"} for n in range(MANY // 2)},
            **{f"a{n}": {"x": {"type": "string"}} for n in range(MANY // 2)},
        },
        {"properties": {"p": {"description": "x" * 10_000_000}}},
    ],
    ids=["constants", "branches", "required", "enums", "anchors", "names", "description"],
)
def test_a_schema_with_thousands_of_parts_does_not_take_quadratic_time(schema: dict[str, Any]) -> None:
    started = time.monotonic()
    with contextlib.suppress(Quarantined):
        model_schema({"type": "object", **schema})
    assert time.monotonic() - started < 4


def test_numbers_of_any_size_are_converted() -> None:
    huge = 10**400
    schema = form(
        {
            "type": "object",
            "properties": {
                "p": {"type": "integer", "minimum": -huge, "maximum": huge, "exclusiveMinimum": huge},
                "q": {"type": "number", "multipleOf": huge, "default": huge},
                "r": {"type": "string", "minLength": huge},
            },
        }
    )
    assert schema["properties"]["p"] == {"type": "integer"}


@pytest.mark.slow
def test_real_catalogs_pass_and_stay_the_same_when_converted_again() -> None:
    quarantined: list[str] = []
    count = 0
    for path in sorted((shared_data() / "catalogs").glob("*.json")):
        if path.name == "index.json":
            continue
        for tool in json.loads(path.read_text())["tools"]:
            count += 1
            try:
                form(tool["inputSchema"])
            except Quarantined as caught:
                quarantined.append(f"{path.stem} {tool['name']}: {caught.reason}")
    assert count > 1000
    assert quarantined == []
