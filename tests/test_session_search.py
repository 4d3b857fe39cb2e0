"""`session.search` and `session.load`: what is found, loaded, refused and said."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import configuration_of
from pi_mcp.errors import ConfigurationError, NotFound, PiMcpError, Refused
from pi_mcp.plugin import SEARCH_TOOL, Plugin, search_arguments
from pi_mcp.tools.search_tool import LISTED
from tests.hostile.script import entry, methods_of, record_of, tool
from tests.plugin_support import AskingHost, greeting, plugin_of, spoken
from tests.support import run

WEATHER = tool("get_forecast", description="The weather forecast of a city.\nSecond line.")
ISSUE = tool("create_issue", description="Create an issue in the tracker.")


def test_a_search_starts_the_servers_loads_the_best_tools_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"sky": entry(tmp_path, spoken([WEATHER])), "tracker": entry(tmp_path, spoken([ISSUE]))}
        async with plugin_of(servers, tmp_path) as plugin:
            host = AskingHost()
            session = plugin.session("one", host)
            assert session.loaded == ()
            answer = await session.search("weather forecast for a city", limit=1)
            assert [found.native for found in answer.loaded] == ["mcp__sky__get_forecast"]
            assert "- mcp__sky__get_forecast (sky): The weather forecast of a city." in answer.text
            assert "Second line" not in answer.text
            assert host.changes == 1
            assert answer.searched == ("sky", "tracker")
            record = answer.details["loaded"][0]
            assert record.keys() == {"native", "server", "tool", "hash", "definition"}
            json.dumps(answer.details)
            again = await session.search("weather forecast for a city", limit=1)
            assert again.loaded == ()
            assert [found.native for found in again.already_loaded] == ["mcp__sky__get_forecast"]
            assert again.text.startswith("Already loaded:")
            assert host.changes == 1
            await session.search("create issue", limit=1)
            assert [found.native for found in session.loaded] == [
                "mcp__sky__get_forecast",
                "mcp__tracker__create_issue",
            ]

    run(main())


def test_nothing_is_contacted_before_the_first_search(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            assert session.search_tool.name == SEARCH_TOOL
            assert session.loaded == ()
            session.complete("/mcp load ")
            assert (await session.command("/mcp")).diagnostic is None
            assert record_of(server) == []

    run(main())


def test_a_search_of_one_server_contacts_only_that_one(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path), "b": entry(tmp_path)}
        async with plugin_of(servers, tmp_path) as plugin:
            answer = await plugin.session("one").search("echo", server="a")
            assert [found.server for found in answer.loaded] == ["a"]
            assert record_of(servers["b"]) == []

    run(main())


def test_a_server_that_fails_is_named_with_its_code_and_hides_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {
            "good": entry(tmp_path),
            "gone": {"command": str(tmp_path / "nowhere")},
            "unset": entry(tmp_path, env={"X": "${NO_SUCH_VARIABLE}"}),
            "wrong": {"command": 7},
        }
        async with plugin_of(servers, tmp_path) as plugin:
            answer = await plugin.session("one").search("echo")
            assert [found.server for found in answer.loaded] == ["good"]
            codes = {diagnostic.server: diagnostic.code for diagnostic in answer.not_searched}
            assert codes == {
                "gone": "connection_failed",
                "unset": "configuration_invalid",
                "wrong": "configuration_invalid",
            }
            lines = answer.text.splitlines()
            assert lines.index("Loaded; call them by these names from your next step on:") == 0
            assert lines.index("Servers not searched:") > 1
            assert any("NO_SUCH_VARIABLE" in line and "`env.X`" in line for line in lines)

    run(main())


def test_without_a_match_close_names_are_given_last(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"sky": entry(tmp_path, spoken([WEATHER])), "gone": {"command": str(tmp_path / "nowhere")}}
        async with plugin_of(servers, tmp_path) as plugin:
            answer = await plugin.session("one").search("getforcast")
            if answer.hits:  # joined words may be taken apart; then it is no miss
                return
            lines = answer.text.splitlines()
            assert lines[0].startswith("No tool of 1 server (1 tools) matches.")
            assert lines[1] == "Servers not searched:"
            assert lines[-1] == "Close names: sky.get_forecast"
            assert answer.close == ("sky.get_forecast",)

    run(main())


def test_with_nothing_configured_the_files_and_an_example_are_shown(tmp_path: Path, private_home: Path) -> None:
    async def main() -> None:
        async with Plugin() as plugin:
            session = plugin.session("one")
            for text in ((await session.search("weather")).text, (await session.command("/mcp")).text):
                assert str(private_home / ".config/pi-mcp/mcp.json") in text
                assert '"mcpServers"' in text
            assert "No MCP server is configured." in session.search_tool.description

    run(main())


def test_a_file_that_cannot_be_read_is_told_in_the_answer(tmp_path: Path, private_home: Path) -> None:
    async def main() -> None:
        path = private_home / ".config/pi-mcp/mcp.json"
        path.parent.mkdir(parents=True)
        path.write_text('{"mcpServers": {')
        pi = private_home / ".pi/agent/mcp.json"
        pi.parent.mkdir(parents=True)
        pi.write_text(json.dumps({"mcpServers": {"a": entry(tmp_path)}}))
        async with Plugin() as plugin:
            answer = await plugin.session("one").search("echo")
            assert [found.server for found in answer.loaded] == ["a"]
            assert [diagnostic.code for diagnostic in answer.not_searched] == ["configuration_invalid"]
            assert str(path) in answer.text

    run(main())


def test_a_listing_that_was_cut_is_told_each_time(tmp_path: Path) -> None:
    pages = [
        {"result": {"tools": [tool("echo", description="Say it again.")], "nextCursor": "1"}},
        {"error": [-32000, "no more today"]},
    ]

    async def main() -> None:
        server = entry(tmp_path, {"tools/list": [[turn] for turn in pages]})
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            for _ in range(2):
                answer = await session.search("echo")
                assert [diagnostic.server for diagnostic in answer.warnings] == ["a"]
                assert "Servers searched in part:" in answer.text
                assert answer.details["diagnostics"][-1]["server"] == "a"

    run(main())


def test_what_the_host_excludes_is_not_loaded_and_the_answer_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        tools = [tool("read_file", description="Read a file."), tool("read_lines", description="Read lines of a file.")]
        async with plugin_of({"a": entry(tmp_path, spoken(tools))}, tmp_path) as plugin:
            host = AskingHost()
            host.excluded = {"mcp__a__read_file"}
            session = plugin.session("one", host)
            answer = await session.search("read file", limit=1)
            assert [found.native for found in answer.loaded] == ["mcp__a__read_lines"]
            assert "- mcp__a__read_file (a): the host has a tool of this name already, or excludes it" in answer.text
            with pytest.raises(Refused):
                await session.load(["a.read_file"])

    run(main())


def test_a_full_session_lists_and_says_how_to_free_places(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            host = AskingHost()
            host.max_tools = 1
            session = plugin.session("one", host)
            await session.search("a.echo", limit=1)
            answer = await session.search("a.other", limit=1)
            assert answer.loaded == ()
            assert "the session holds as many tools as it may, 1; /mcp unload frees places" in answer.text
            assert (await session.command("/mcp unload echo")).diagnostic is None
            assert [found.tool for found in (await session.search("a.other", limit=1)).loaded] == ["other"]

    run(main())


def test_a_changed_definition_takes_the_old_ones_place(tmp_path: Path) -> None:
    async def main() -> None:
        old = [tool("echo", description="Say it."), tool("other", description="Other.")]
        new = [tool("echo", description="Say it loudly."), tool("other", description="Other.")]
        script = {"tools/list": [[{"result": {"tools": old}}], [{"result": {"tools": new}}]]}
        async with plugin_of({"a": entry(tmp_path, script)}, tmp_path) as plugin:
            session = plugin.session("one")
            await session.search("a.echo a.other", limit=2)
            before = [found.native for found in session.loaded]
            await plugin.catalogs.refresh("a")
            answer = await session.search("a.echo", limit=1)
            assert [found.native for found in answer.replaced] == ["mcp__a__echo"]
            assert "its definition changed" in answer.text
            assert [found.native for found in session.loaded] == before
            assert session.loaded[0].description == "Say it loudly."

    run(main())


def test_load_false_lists_and_loads_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            host = AskingHost()
            session = plugin.session("one", host)
            answer = await session.search("echo", load=False)
            assert answer.loaded == ()
            assert session.loaded == ()
            assert host.changes == 0
            assert answer.text.startswith("Found, not loaded:\n- mcp__a__echo (a): Say it again.")

    run(main())


def test_a_tool_that_no_provider_takes_is_named_with_the_reason_and_the_rest_stay(tmp_path: Path) -> None:
    async def main() -> None:
        bad = tool("echo_bad", description="Say it badly.")
        bad["inputSchema"] = "no schema"
        async with plugin_of({"a": entry(tmp_path, spoken([bad, tool("echo")]))}, tmp_path) as plugin:
            session = plugin.session("one")
            answer = await session.search("echo")
            if [found.tool for found in answer.loaded] == ["echo"]:
                assert "mcp__a__echo_bad (a): its input schema cannot be used" in answer.text
            rows = (await session.command("/mcp tools a")).text
            assert "mcp__a__echo" in rows

    run(main())


def test_instructions_come_once_per_session_and_not_from_an_untrusted_server(tmp_path: Path) -> None:
    async def main() -> None:
        script = spoken([tool("echo"), tool("other")], initialize=greeting(instructions="Speak \x1b[31mclearly."))
        servers = {"a": entry(tmp_path, script), "b": entry(tmp_path, script, trust="untrusted")}
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            first = await session.search("a.echo", limit=1)
            assert "Instructions of a:\nSpeak clearly." in first.text
            assert "Speak" not in (await session.search("a.other", limit=1)).text
            assert "Speak" not in (await session.search("b.echo", limit=1)).text
            assert "Speak" in (await plugin.session("two").search("a.other", limit=1)).text

    run(main())


def test_the_search_tools_text_stays_the_same_for_the_session(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path, description="Says things"), "b": entry(tmp_path)}
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            text = session.search_tool.description
            assert "- a: Says things" in text
            await session.search("echo")
            assert session.search_tool.description == text
            assert "- a (2 tools): Says things" in plugin.session("two").search_tool.description

    run(main())


def test_the_directory_counts_what_it_does_not_list(tmp_path: Path) -> None:
    servers = {f"s{number:03}": {"command": "x"} for number in range(LISTED + 7)}
    plugin = Plugin(configuration_of(servers), state_dir=tmp_path, cache_dir=tmp_path)
    assert plugin.session("one").search_tool.description.endswith("- and 7 more")


def test_always_loaded_tools_are_there_from_the_first_turn_when_the_catalog_is_known(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path, alwaysLoad=["ec*"]), "b": entry(tmp_path)}
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            assert session.loaded == ()
            assert await session.prepare() == ()
            assert [found.native for found in session.loaded] == ["mcp__a__echo"]
            assert record_of(servers["b"]) == []
        async with plugin_of(servers, tmp_path) as plugin:
            starts = len(record_of(servers["a"]))
            assert [found.native for found in plugin.session("two").loaded] == ["mcp__a__echo"]
            assert len(record_of(servers["a"])) == starts

    run(main())


def test_two_sessions_of_one_plugin_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path), "b": entry(tmp_path)}
        async with plugin_of(servers, tmp_path) as plugin:
            one = plugin.session("one")
            two = plugin.session("two", servers=["b"])
            three = plugin.session("three", tools=["a.ech*"])
            await asyncio.gather(one.search("echo other", limit=9), two.search("echo", limit=9), three.search("echo"))
            assert {found.server for found in one.loaded} == {"a", "b"}
            assert {found.server for found in two.loaded} == {"b"}
            assert [found.native for found in three.loaded] == ["mcp__a__echo"]
            assert "- a" not in two.search_tool.description
            for line in ("/mcp get a", "/mcp tools a", "/mcp refresh a", "/mcp trust a verified", "/mcp disable a"):
                answer = await two.command(line)
                assert answer.diagnostic is not None, line
                assert answer.diagnostic.code == "not_found"
            with pytest.raises(NotFound):
                await two.search("echo", server="a")
            with pytest.raises(PiMcpError):
                await two.load(["mcp__a__echo"])
            with pytest.raises(PiMcpError):
                await two.call("mcp__a__echo", {})
            assert "a:" not in (await two.command("/mcp")).text
            assert methods_of(servers["a"]).count("tools/list") == 1

    run(main())


def test_an_unknown_server_is_answered_with_close_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"github": entry(tmp_path), "off": entry(tmp_path, disabled=True)}, tmp_path) as plugin:
            session = plugin.session("one")
            with pytest.raises(NotFound) as caught:
                await session.search("issue", server="gitub")
            assert "Close: github." in str(caught.value)
            assert caught.value.diagnostic.operation == "search"
            with pytest.raises(Refused) as refused:
                await session.search("issue", server="off")
            assert "/mcp enable off" in str(refused.value)

    run(main())


@pytest.mark.parametrize("query", ["", "   ", "x" * 501])
def test_a_query_outside_its_bounds_is_refused_before_anything_starts(tmp_path: Path, query: str) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            with pytest.raises(ConfigurationError):
                await session.search(query)
            for limit in (0, 51):
                with pytest.raises(ConfigurationError):
                    await session.search("echo", limit=limit)
            assert record_of(server) == []

    run(main())


def test_arguments_as_models_write_them_are_understood() -> None:
    given = {"query": "q", "server": "", "limit": "7", "load": "false"}
    assert search_arguments(given) == {"query": "q", "limit": 7, "load": False}
    assert search_arguments({"query": "q", "limit": 3.0, "server": None}) == {"query": "q", "limit": 3}
    wrong: list[dict[str, Any]] = [
        {},
        {"query": 3},
        {"query": "q", "limit": True},
        {"query": "q", "limit": 2.5},
        {"query": "q", "tool": "x"},
        {"query": None},
    ]
    for arguments in wrong:
        with pytest.raises(ConfigurationError):
            search_arguments(arguments)


def test_loading_by_name_takes_every_way_of_writing_it(tmp_path: Path) -> None:
    async def main() -> None:
        odd = "wéird.tool"
        servers = {
            "a": entry(tmp_path, spoken([tool("echo"), tool("only_a"), tool(odd)])),
            "b": entry(tmp_path, spoken([tool("echo")])),
        }
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            answer = await session.load(["mcp__b__echo"])
            assert [found.key for found in answer.loaded] == [("b", "echo")]
            assert record_of(servers["a"]) == []
            assert [found.key for found in (await session.load(["only_a", "a.only_a"])).loaded] == [("a", "only_a")]
            native = (await session.load([f"a.{odd}"])).loaded[0].native
            await session.unload([native])
            assert [found.tool for found in (await session.load([native, "b.echo"])).loaded] == [odd]
            with pytest.raises(NotFound) as caught:
                await session.load(["echo"])
            assert "a.echo, b.echo" in str(caught.value)
            with pytest.raises(NotFound) as caught:
                await session.load(["a.onlya"])
            assert "a.only_a" in str(caught.value)
            half = await session.load(["a.echo", "nothing_like_it"])
            assert [found.key for found in half.loaded] == [("a", "echo")]
            assert "nothing_like_it" in half.text

    run(main())


def test_loading_from_a_server_that_fails_says_why_it_failed(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"gone": {"command": str(tmp_path / "nowhere")}}, tmp_path) as plugin:
            with pytest.raises(PiMcpError) as caught:
                await plugin.session("one").load(["gone.echo"])
            assert caught.value.diagnostic.code == "connection_failed"

    run(main())


def test_unloading_a_name_that_is_not_loaded_unloads_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            session = plugin.session("one")
            await session.load(["a.echo"])
            with pytest.raises(NotFound):
                await session.unload(["a.echo", "a.nothing"])
            assert len(session.loaded) == 1

    run(main())


def test_a_cancelled_search_leaves_the_discovery_to_others(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/list": [{"sleep": 0.6}, {"result": {"tools": [tool("echo")]}}]})
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = plugin.session("one")
            impatient = asyncio.create_task(session.search("echo"))
            patient = asyncio.create_task(plugin.session("two").search("echo"))
            await asyncio.sleep(0.3)
            impatient.cancel()
            with pytest.raises(asyncio.CancelledError):
                await impatient
            assert not patient.done(), "the one that was cancelled did not wait for the server"
            assert len((await patient).loaded) == 1
            assert session.loaded == ()
            assert methods_of(server).count("tools/list") == 1

    run(main())


def test_a_broken_progress_display_loses_no_search(tmp_path: Path) -> None:
    class Broken(AskingHost):
        def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
            raise RuntimeError("no terminal")

    async def main() -> None:
        script = {"tools/call": [{"progress": 2, "every": 0.01, "of": "own"}, {"echo": True}]}
        async with plugin_of({"a": entry(tmp_path, script)}, tmp_path) as plugin:
            session = plugin.session("one", Broken())
            assert len((await session.search("a.echo", limit=1)).loaded) == 1
            assert not (await session.call("mcp__a__echo", {})).is_error

    run(main())


WARM = """
import asyncio, json, sys
from pathlib import Path
from pi_mcp.config import configuration_of
from pi_mcp.plugin import Plugin
from tests.hostile.processes import descendants_of
import os

async def main():
    folder = Path(sys.argv[2])
    plugin = Plugin(configuration_of(json.loads(sys.argv[1]), cwd=folder), state_dir=folder / "state",
                    cache_dir=folder / "cache")
    session = plugin.session("warm")
    text = session.search_tool.description
    answer = await session.search("echo")
    children = descendants_of(os.getpid())
    await plugin.close()
    heavy = sorted({name.partition(".")[0] for name in sys.modules} & {
        "mcp", "mcp_types", "httpx2", "anyio", "pydantic", "jsonschema", "keyring", "rich", "prompt_toolkit"})
    print(json.dumps({"loaded": [tool.native for tool in answer.loaded], "heavy": heavy, "children": children,
                      "text": text}))

asyncio.run(main())
"""


def test_with_a_warm_cache_a_search_starts_no_server_and_imports_no_sdk(tmp_path: Path) -> None:
    servers = {"a": entry(tmp_path), "b": entry(tmp_path)}

    async def main() -> None:
        async with plugin_of(servers, tmp_path) as plugin:
            await plugin.session("cold").search("echo")

    run(main())
    starts = [len(record_of(server)) for server in servers.values()]
    done = subprocess.run(
        [sys.executable, "-c", WARM, json.dumps(servers), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["heavy"] == []
    assert seen["children"] == []
    assert sorted(seen["loaded"]) == ["mcp__a__echo", "mcp__b__echo"]
    assert "- a (2 tools)" in seen["text"]
    assert [len(record_of(server)) for server in servers.values()] == starts


def test_an_answer_that_shares_only_a_verb_with_the_query_says_what_nothing_answers(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {
            "tracker": entry(tmp_path, spoken([ISSUE])),
            "broken": {"command": str(tmp_path / "absent")},
        }
        async with plugin_of(servers, tmp_path) as plugin:
            answer = await plugin.session("one").search("create a pigeon", load=False)
            assert [hit.native for hit in answer.hits] == ["mcp__tracker__create_issue"]
            assert "none of them says anything of pigeon" in answer.text
            assert "broken: [connection_failed]" in answer.text
            sure = await plugin.session("two").search("create an issue", load=False)
            assert "may not fit" not in sure.text

    run(main())


def test_a_session_that_was_closed_searches_loads_and_calls_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, spoken([ISSUE]))
        async with plugin_of({"tracker": server}, tmp_path) as plugin:
            session = plugin.session("one")
            await session.load(["tracker.create_issue"])
            await session.close()
            for work in (
                session.search("issue"),
                session.load(["tracker.create_issue"]),
                session.unload(["mcp__tracker__create_issue"]),
                session.call("mcp__tracker__create_issue", {}),
            ):
                with pytest.raises(Refused):
                    await work
            assert (await session.command("/mcp tools")).diagnostic is not None
            assert "tools/call" not in methods_of(server)
            assert not (await plugin.session("one").search("issue")).not_searched

    run(main())
