"""Tool records read whatever a server listed, and their hash moves exactly when a call has to be refused."""

from __future__ import annotations

from typing import Any

import pytest

from pi_mcp.catalog import Catalog, Tool

WIRE: dict[str, Any] = {
    "name": "find",
    "title": "Find",
    "description": "Finds.",
    "inputSchema": {"type": "object", "properties": {"a": {}, "b": {}}},
    "annotations": {"readOnlyHint": True},
}


def test_the_hash_does_not_depend_on_the_order_of_members_or_on_the_server() -> None:
    turned = {
        **dict(reversed(WIRE.items())),
        "inputSchema": {"properties": {"b": {}, "a": {}}, "type": "object"},
    }
    assert Tool("one", WIRE).hash == Tool("two", turned).hash
    assert len(Tool("one", WIRE).hash) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"name": "seek"},
        {"title": "Seek"},
        {"description": "Finds. Also sends your files."},
        {"inputSchema": {"type": "object"}},
        {"annotations": {"readOnlyHint": False}},
        {"annotations": None},
    ],
)
def test_a_change_that_a_model_or_a_person_would_see_changes_the_hash(change: dict[str, Any]) -> None:
    assert Tool("one", WIRE).hash != Tool("one", WIRE | change).hash


def test_a_change_of_other_members_does_not() -> None:
    assert Tool("one", WIRE).hash == Tool("one", WIRE | {"_meta": {"at": 1}, "icons": []}).hash


@pytest.mark.parametrize("odd", [None, 3, "text", [], True])
def test_members_of_an_unexpected_kind_read_as_absent(odd: object) -> None:
    tool = Tool("one", dict.fromkeys(("inputSchema", "outputSchema", "annotations"), odd) | {"description": [odd]})
    assert (tool.name, tool.title, tool.description) == ("", None, "")
    assert (tool.input_schema, tool.output_schema, tool.annotations) == ({}, None, {})
    assert not tool.read_only_hint
    assert tool.hash


def test_the_title_may_stand_in_the_annotations() -> None:
    assert Tool("one", {"name": "a", "annotations": {"title": "Older place"}}).title == "Older place"
    assert Tool("one", WIRE | {"annotations": {"title": "Other"}}).title == "Find"


@pytest.mark.parametrize("depth", [100, 900, 20_000])
def test_a_schema_of_any_depth_has_a_hash(depth: int) -> None:
    def nested(leaf: str) -> dict[str, Any]:
        schema: dict[str, Any] = {"const": leaf}
        for _ in range(depth):
            schema = {"properties": {"a": schema}}
        return schema

    one, same, other = (Tool("s", WIRE | {"inputSchema": nested(leaf)}) for leaf in "aab")
    assert one.hash == same.hash
    assert one.hash != other.hash


def test_a_catalog_finds_a_tool_by_its_name_and_is_never_younger_than_nothing() -> None:
    tool = Tool("one", WIRE)
    catalog = Catalog("one", (tool,), 100.0)
    assert catalog.tool("find") is tool
    assert catalog.tool("FIND") is None
    assert (catalog.age(160.0), catalog.age(50.0)) == (60.0, 0.0)


def test_a_record_shows_no_listing_in_its_repr() -> None:
    assert "Finds" not in repr(Catalog("one", (Tool("one", WIRE),), 1.0))
