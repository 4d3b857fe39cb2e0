"""Sessions over time: resume in a later process, branches, compaction."""

from __future__ import annotations

import json
from pathlib import Path

from tests.hostile.script import entry, record_of, tool
from tests.plugin_support import AskingHost, greeting, plugin_of, spoken
from tests.support import run


def test_a_resumed_session_has_its_text_and_tools_while_the_servers_are_down(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, description="Says things")
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            text = session.search_tool.description
            await session.search("echo other", limit=2)
            before = [found.to_model() for found in session.loaded]
        down = {"a": {"command": str(tmp_path / "nowhere"), "description": "Says things"}}
        async with plugin_of(down, tmp_path) as plugin:
            session = plugin.session("one")
            assert await session.restore() == ()
            assert [found.to_model() for found in session.loaded] == before
            assert session.search_tool.description == text
            assert plugin.session("another").loaded == ()

    run(main())


def test_the_text_is_kept_even_when_nothing_was_ever_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            text = plugin.session("one").search_tool.description
            await plugin.session("two").search("echo")
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            await session.restore()
            assert session.search_tool.description == text
            assert session.loaded == ()

    run(main())


def test_a_branch_has_exactly_its_own_tools(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            host = AskingHost()
            session = plugin.session("one", host)
            first = (await session.load(["a.echo"])).details["loaded"]
            second = (await session.load(["a.other"])).details["loaded"]
            changes = host.changes
            assert await session.restore(first) == ()
            assert [found.tool for found in session.loaded] == ["echo"]
            assert host.changes == changes + 1
            await session.restore([*second, *first])
            assert [found.tool for found in session.loaded] == ["other", "echo"]
            await session.restore([])
            assert session.loaded == ()

    run(main())


def test_records_that_are_damaged_or_forged_are_left_out_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path), "b": entry(tmp_path, trust="untrusted")}, tmp_path) as plugin:
            session = plugin.session("one")
            [record] = (await session.load(["a.echo"])).details["loaded"]
            forged = [
                {**record, "hash": "0" * 64},
                {**record, "native": "mcp__b__echo"},
                {**record, "definition": {"name": "other"}},
                {},
            ]
            diagnostics = await session.restore([record, *forged])
            assert [found.tool for found in session.loaded] == ["echo"]
            assert [one.message for one in diagnostics] == ["4 tool records were damaged and skipped."]

    run(main())


def test_a_tool_that_may_not_be_used_now_is_not_restored(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, spoken([tool("delete_all"), tool("echo")]))
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            records = (await session.load(["a.delete_all", "a.echo"])).details["loaded"]
        async with plugin_of({"a": {**server, "trust": "untrusted"}}, tmp_path) as plugin:
            session = plugin.session("one")
            [diagnostic] = await session.restore(records)
            assert diagnostic.code == "refused"
            assert [found.tool for found in session.loaded] == ["echo"]
            host = AskingHost()
            host.max_tools = 0
            small = plugin.session("two", host)
            assert "0 tools at most" in (await small.restore(records))[1].message
            assert small.loaded == ()

    run(main())


def test_a_restored_tool_is_compared_before_its_first_call(tmp_path: Path) -> None:
    async def main() -> None:
        script = {
            "tools/list": [
                [{"result": {"tools": [tool("echo")]}}],
                [{"result": {"tools": [tool("echo", description="Other.")]}}],
            ]
        }
        server = entry(tmp_path, script)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            records = (await plugin.session("one").load(["a.echo"])).details["loaded"]
        changed = entry(tmp_path, spoken([tool("echo", description="Other.")]))
        async with plugin_of({"a": changed}, tmp_path) as plugin:
            session = plugin.session("one")
            await session.restore(records)
            assert record_of(changed) == []
            answer = None
            try:
                answer = await session.call("mcp__a__echo", {})
            except Exception as error:
                assert "tool_changed" in str(error)  # noqa: PT017
            assert answer is None

    run(main())


def test_instructions_are_not_repeated_after_a_resume(tmp_path: Path) -> None:
    async def main() -> None:
        script = spoken([tool("echo"), tool("other")], initialize=greeting(instructions="Be brief."))
        server = entry(tmp_path, script)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            assert "Be brief." in (await plugin.session("one").search("a.echo", limit=1)).text
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            await session.restore()
            assert "Be brief." not in (await session.search("a.other", limit=1)).text

    run(main())


def test_what_is_kept_is_private_and_a_damaged_file_counts_as_absent(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            await plugin.session("one").load(["a.echo"])
            [path] = (tmp_path / "state/sessions").iterdir()
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            path.write_text("{")
            again = plugin.session("one")
            assert await again.restore() == ()
            assert again.loaded == ()
            path.write_text(json.dumps({"version": 99, "loaded": []}))
            assert await plugin.session("one").restore() == ()

    run(main())


def test_a_state_directory_that_cannot_be_written_loses_no_search(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
            (tmp_path / "state/sessions").write_text("a file in the way")
            session = plugin.session("one")
            assert len((await session.search("a.echo", limit=1)).loaded) == 1
            assert not (await session.call("mcp__a__echo", {})).is_error

    run(main())


def test_a_session_that_keeps_nothing_writes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            session = plugin.session("one", keep=False)
            await session.load(["a.echo"])
            await session.close()

    run(main())
    assert not (tmp_path / "state/sessions").exists()
