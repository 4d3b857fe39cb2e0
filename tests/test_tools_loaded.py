"""The loaded set keeps its order, grows at the end, and trusts no record that it has not checked."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.catalog.records import Tool
from pi_mcp.tools.loaded import DESCRIPTION_LIMIT, LoadedSet, NativeTool, approx_tokens
from pi_mcp.tools.schema import Quarantined


def tool(name: str, server: str = "srv", **more: Any) -> Tool:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    return Tool(server, {"name": name, "description": f"about {name}", "inputSchema": schema, **more})


def native(name: str, server: str = "srv", **more: Any) -> NativeTool:
    return NativeTool.from_tool(tool(name, server, **more))


def test_a_tool_is_declared_by_native_name_description_and_schema() -> None:
    assert native("read").to_model() == {
        "name": "mcp__srv__read",
        "description": "about read",
        "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
    }


def test_a_description_is_cleaned_bounded_and_followed_by_the_notes_of_the_schema() -> None:
    schema = {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    found = native("t", description="x\x1b[2J\u202ey", inputSchema=schema)
    assert found.description == "xy\nGive at least one of these: a; b."
    assert len(native("t", description="z" * 10_000).description) == DESCRIPTION_LIMIT
    assert native("t", description=None, title="The tool").description == "The tool (MCP server srv)"


def test_a_tool_that_no_provider_accepts_is_quarantined() -> None:
    with pytest.raises(Quarantined, match="no object"):
        native("t", inputSchema={"type": "string"})
    with pytest.raises(Quarantined, match="not an object"):
        native("t", inputSchema="nonsense")


def test_additions_go_to_the_end_and_replacements_stay_in_place() -> None:
    loaded = LoadedSet([native("a"), native("b")])
    assert loaded.add(native("c"))
    assert not loaded.add(native("a", description="new"))
    assert loaded.put(native("a", description="new")) == native("a")
    assert loaded.put(native("d")) is None
    assert loaded.replace(native("b", description="newer")).description == "about b"
    assert [one.description for one in loaded] == ["new", "newer", "about c", "about d"]
    with pytest.raises(KeyError):
        loaded.replace(native("absent"))


def test_tools_are_found_by_native_name_and_by_server_and_original_name() -> None:
    loaded = LoadedSet([native("a.b"), native("a.b", "other")])
    found = loaded.by_key("other", "a.b")
    assert found is not None
    assert found.server == "other"
    assert loaded.by_native(found.native) is found
    assert found.native in loaded
    assert loaded.by_key("other", "absent") is None
    assert loaded.remove(found.native) is found
    assert loaded.remove(found.native) is None
    assert len(loaded) == 1


def test_records_restore_exactly_the_set_that_was_kept() -> None:
    kept = LoadedSet([native("c"), native("a"), native("odd name", "my srv")])
    records = json.loads(json.dumps(kept.records()))
    restored = LoadedSet([native("z")])
    assert restored.restore(records) == 0
    assert restored.tools == kept.tools
    assert restored.restore([]) == 0
    assert len(restored) == 0


def damage(change: Any) -> Any:
    record = json.loads(json.dumps(native("a").to_record()))
    change(record)
    return record


@pytest.mark.parametrize(
    "record",
    [
        None,
        7,
        [],
        {},
        damage(lambda r: r.pop("definition")),
        damage(lambda r: r.update(native="mcp__other__a")),
        damage(lambda r: r.update(server="other")),
        damage(lambda r: r.update(tool="b")),
        damage(lambda r: r.update(hash="0" * 64)),
        damage(lambda r: r["definition"].update(description="injected")),
        damage(lambda r: r["definition"].update(name="b")),
        damage(lambda r: r.update(definition="text")),
        damage(lambda r: r.update(native=5)),
    ],
)
def test_a_damaged_record_is_skipped_and_counted(record: Any) -> None:
    good = native("good")
    loaded = LoadedSet()
    assert loaded.restore([record, good.to_record(), good.to_record()]) == 2
    assert loaded.tools == (good,)


def test_a_record_whose_schema_cannot_be_used_is_skipped() -> None:
    bad = tool("bad", inputSchema={"type": "array"})
    record = {"native": "mcp__srv__bad", "server": "srv", "tool": "bad", "hash": bad.hash, "definition": bad.wire}
    assert LoadedSet().restore([record]) == 1


def test_a_record_nested_beyond_reason_or_of_great_size_is_skipped() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"a": deep}
    record = native("a").to_record()
    record["definition"] = {**record["definition"], "inputSchema": deep}
    huge = tool("a", description="x" * 2_000_000)
    other = {**native("a").to_record(), "hash": huge.hash, "definition": huge.wire}
    assert LoadedSet().restore([record, other]) == 2
    while deep:
        deep = deep.pop("a")


@given(
    st.recursive(
        st.none() | st.text(max_size=5) | st.integers(),
        lambda s: (
            st.lists(s)
            | st.dictionaries(
                st.sampled_from(["native", "server", "tool", "hash", "definition", "name"]), s, max_size=6
            )
        ),
        max_leaves=15,
    )
)
@settings(deadline=None)
def test_any_json_in_place_of_records_restores_nothing(records: Any) -> None:
    loaded = LoadedSet([native("a")])
    loaded.restore(records)
    assert len(loaded) == 0


def test_tokens_are_about_a_quarter_of_the_declaration_s_bytes() -> None:
    found = native("a")
    size = len(json.dumps(found.to_model(), separators=(",", ":")))
    assert approx_tokens(found) == (size + 3) // 4


def test_a_loaded_tool_does_not_change_with_the_host_s_copy() -> None:
    found = native("a")
    before = copy.deepcopy(found.to_model())
    found.to_model()["input_schema"]["properties"] = {}
    assert found.to_model() == before


def test_importing_the_room_is_light() -> None:
    code = (
        "import sys, pi_mcp.tools.loaded, pi_mcp.tools.results, pi_mcp.tools.output, pi_mcp.tools.difference\n"
        "heavy = {'mcp', 'jsonschema', 'pydantic', 'numpy', 'anyio', 'httpx2', 'rich', 'referencing'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "[]"
