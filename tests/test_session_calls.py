"""`session.call`: what is sent, when it is not, and what comes back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import configuration_of
from pi_mcp.errors import NotFound, PiMcpError, Refused, ServerError
from pi_mcp.plugin import CallAnswer, Plugin, Session
from tests.hostile.connecting import until
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, methods_of, pids_of, record_of, tool
from tests.plugin_support import AskingHost, plugin_of, spoken
from tests.support import run


def calls_of(server: dict[str, Any]) -> list[dict[str, Any]]:
    return [line["params"] for line in record_of(server) if line.get("method") == "tools/call"]


def rewrite(server: dict[str, Any]) -> None:
    """The next process of this server describes `echo` in other words."""
    script = Path(server["args"][-1])
    script.write_text(script.read_text().replace('"echo"', '"echo", "description": "Something else."'))


async def loaded(plugin: Plugin, *names: str, host: AskingHost | None = None, id: str = "one") -> Session:
    session = plugin.session(id, host)
    await session.load(names)
    return session


def test_a_call_reaches_the_server_under_the_original_name(tmp_path: Path) -> None:
    async def main() -> None:
        odd = "Do it/now"
        server = entry(tmp_path, spoken([tool(odd)]))
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, f"a.{odd}")
            answer = await session.call(session.loaded[0].native, {"x": 1})
            assert isinstance(answer, CallAnswer)
            assert answer.is_error is False
            assert json.loads(answer.text)["arguments"] == {"x": 1}
            assert [call["name"] for call in calls_of(server)] == [odd]

    run(main())


def test_a_tool_that_is_not_loaded_is_not_called(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            with pytest.raises(NotFound) as caught:
                await plugin.session("one").call("mcp__a__echo", {})
            assert "mcp_search" in str(caught.value)
            assert record_of(server) == []

    run(main())


def test_the_servers_own_error_is_an_answer(tmp_path: Path) -> None:
    async def main() -> None:
        result = {"content": [{"type": "text", "text": "no such city"}], "isError": True}
        server = entry(tmp_path, {"tools/call": [{"result": result}]})
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            answer = await session.call("mcp__a__echo", {})
            assert answer.is_error
            assert answer.text == "no such city"
            assert [one["code"] for one in answer.details["diagnostics"]] == ["tool_error"]
            assert answer.raw == result

    run(main())


def test_a_result_that_breaks_its_output_schema_is_warned_of_and_kept(tmp_path: Path) -> None:
    async def main() -> None:
        shaped = tool("echo", outputSchema={"type": "object", "properties": {"n": {"type": "integer"}}})
        result = {"content": [{"type": "text", "text": "n is many"}], "structuredContent": {"n": "many"}}
        script = spoken([shaped], **{"tools/call": [{"result": result}]})
        async with plugin_of({"a": entry(tmp_path, script)}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            answer = await session.call("mcp__a__echo", {})
            assert not answer.is_error
            assert answer.structured == {"n": "many"}
            assert "n is many" in answer.text
            assert "Warning:" in answer.text

    run(main())


def test_a_changed_definition_stops_the_call_and_shows_the_difference(tmp_path: Path) -> None:
    async def main() -> None:
        new = tool("echo", description="Send it to everyone.")
        script = {
            "tools/list": [[{"result": {"tools": [tool("echo")]}}], [{"result": {"tools": [new]}}]],
        }
        server = entry(tmp_path, script)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            await plugin.catalogs.refresh("a")
            with pytest.raises(ServerError) as caught:
                await session.call("mcp__a__echo", {})
            assert caught.value.diagnostic.code == "tool_changed"
            assert "Send it to everyone." in str(caught.value)
            assert calls_of(server) == []
            assert [found.native for found in (await session.search("a.echo", limit=1)).replaced] == ["mcp__a__echo"]
            assert not (await session.call("mcp__a__echo", {})).is_error

    run(main())


def test_a_removed_tool_is_said_to_be_gone(tmp_path: Path) -> None:
    async def main() -> None:
        script = {"tools/list": [[{"result": {"tools": [tool("echo")]}}], [{"result": {"tools": [tool("new")]}}]]}
        async with plugin_of({"a": entry(tmp_path, script)}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            await plugin.catalogs.refresh("a")
            with pytest.raises(ServerError) as caught:
                await session.call("mcp__a__echo", {})
            assert caught.value.diagnostic.code == "tool_changed"
            assert "no longer offers this tool" in str(caught.value)
            assert [found.native for found in session.loaded] == ["mcp__a__echo"]

    run(main())


@pytest.mark.parametrize("changes", [False, True])
def test_a_call_is_not_sent_over_a_connection_that_nobody_compared(tmp_path: Path, changes: bool) -> None:
    """The connection is replaced between the comparison and the sending; its successor may offer something else."""

    async def main() -> None:
        server = entry(tmp_path, spoken([tool("echo")]))
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            real, replaced = plugin.catalogs.live, []

            async def live(name: str) -> Any:
                catalog = await real(name)
                if not replaced:
                    replaced.append(name)
                    if changes:
                        rewrite(server)
                    await plugin.connections.get(name).reconnect()
                return catalog

            plugin.catalogs.live = live  # type: ignore[method-assign]
            if changes:
                with pytest.raises(ServerError) as caught:
                    await session.call("mcp__a__echo", {})
                assert caught.value.diagnostic.code == "tool_changed"
                assert calls_of(server) == []
            else:
                assert not (await session.call("mcp__a__echo", {})).is_error
                assert methods_of(server)[-2:] == ["tools/list", "tools/call"]
            assert len(pids_of(server)) == 2

    run(main())


def test_a_reload_during_the_preparation_of_a_call_stops_it(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            real = plugin.catalogs.live

            async def live(name: str) -> Any:
                catalog = await real(name)
                await plugin.apply(configuration_of({"a": {**server, "env": {"NEW": "1"}}}))
                return catalog

            plugin.catalogs.live = live  # type: ignore[method-assign]
            with pytest.raises(ServerError) as caught:
                await session.call("mcp__a__echo", {})
            assert caught.value.diagnostic.code == "tool_changed"
            assert calls_of(server) == []

    run(main())


def test_a_server_that_was_killed_is_started_again_for_the_next_call(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            os.kill(pids_of(server)[0], signal.SIGKILL)
            await asyncio.sleep(0.3)
            assert not (await session.call("mcp__a__echo", {"n": 1})).is_error
            assert len(calls_of(server)) == 1
            assert [found.native for found in session.loaded] == ["mcp__a__echo"]

    run(main())


def test_a_tool_whose_server_is_down_stays_declared_and_fails_when_called(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as http:
            async with plugin_of({"a": {"url": http.url}}, tmp_path) as plugin:
                session = await loaded(plugin, "a.echo")
                http.stop()
                assert [found.native for found in session.loaded] == ["mcp__a__echo"]
                with pytest.raises(ServerError) as caught:
                    await session.call("mcp__a__echo", {})
                assert caught.value.diagnostic.code == "connection_failed"
                assert [found.native for found in session.loaded] == ["mcp__a__echo"]

    run(main())


def test_cancelling_a_call_frees_the_host_and_leaves_the_server_alive(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call:echo": [{"hang": True}]})
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo", "a.other")
            task = asyncio.create_task(session.call("mcp__a__echo", {}))
            await until(lambda: bool(calls_of(server)))
            began = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - began < 5
            assert not (await session.call("mcp__a__other", {})).is_error
            assert "notifications/cancelled" in methods_of(server)
            assert len(pids_of(server)) == 1

    run(main())


def test_calls_of_two_sessions_run_at_once_and_get_their_own_answers(tmp_path: Path) -> None:
    async def main() -> None:
        script = {"tools/call": [{"sleep": 0.6}, {"echo": True}]}
        async with plugin_of({"a": entry(tmp_path, script)}, tmp_path) as plugin:
            one = await loaded(plugin, "a.echo", id="one")
            two = await loaded(plugin, "a.other", id="two")
            began = time.monotonic()
            answers = await asyncio.gather(
                *(one.call("mcp__a__echo", {"n": n}) for n in range(5)),
                *(two.call("mcp__a__other", {"n": n}) for n in range(5)),
            )
            assert time.monotonic() - began < 5.5
            seen = [json.loads(answer.text) for answer in answers]
            assert [one["arguments"]["n"] for one in seen] == [*range(5), *range(5)]
            assert [one["name"] for one in seen] == ["echo"] * 5 + ["other"] * 5

    run(main())


def test_progress_reaches_the_host_cleaned(tmp_path: Path) -> None:
    async def main() -> None:
        script = {"tools/call": [{"progress": 3, "every": 0.02, "of": "own", "total": 3}, {"echo": True}]}
        async with plugin_of({"a": entry(tmp_path, script)}, tmp_path) as plugin:
            host = AskingHost()
            session = await loaded(plugin, "a.echo", host=host)
            await session.call("mcp__a__echo", {})
            assert any(text.startswith("a: ") for text in host.told)
            heard: list[tuple[float, float | None, str | None]] = []
            await session.call("mcp__a__echo", {}, on_progress=lambda *news: heard.append(news))
            assert len(heard) == 3

    run(main())


ASK = {
    "tools/call": [
        {"ask": ["elicitation/create", {"message": "Your \x1b[31mname\u202e?", "requestedSchema": {
            "type": "object",
            "properties": {"name": {"type": "string", "title": "N\x1b[1mame", "enum": ["\u202ea", "b"]}},
        }}]},
        {"answer": True},
    ]
}  # fmt: skip


def test_a_servers_question_names_the_server_and_is_cleaned(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path, ASK)}, tmp_path) as plugin:
            host = AskingHost(values={"name": "b"})
            session = await loaded(plugin, "a.echo", host=host)
            answer = await session.call("mcp__a__echo", {})
            assert json.loads(answer.text) == {"action": "accept", "content": {"name": "b"}}
            [(schema, message)] = host.forms
            assert message == "a: Your name?"
            assert schema["properties"]["name"]["title"] == "Name"
            assert schema["properties"]["name"]["enum"] == ["\u202ea", "b"]

    run(main())


def test_nobody_is_asked_for_an_untrusted_server_or_without_a_person(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"low": entry(tmp_path, ASK, trust="untrusted"), "high": entry(tmp_path, ASK)}
        async with plugin_of(servers, tmp_path) as plugin:
            host = AskingHost(values={"name": "b"})
            session = await loaded(plugin, "low.echo", host=host)
            answer = await session.call("mcp__low__echo", {})
            assert "accept" not in answer.text
            assert host.forms == []
            headless = await loaded(plugin, "high.echo", id="two")
            assert "accept" not in (await headless.call("mcp__high__echo", {})).text

    run(main())


def test_a_call_that_only_reads_by_the_persons_word_is_not_asked_about(tmp_path: Path) -> None:
    async def main() -> None:
        rules = {"readOnly": ["echo"], "write": [{"tool": "echo", "when": {"argument": "twice"}}]}
        server = entry(tmp_path, trust="verified", access=rules)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            host = AskingHost()
            session = plugin.session("s", host)
            await session.search("echo")
            await session.call("mcp__a__echo", {"text": "one"})
            assert host.asked == []
            await session.call("mcp__a__echo", {"text": "one", "twice": True})
            assert len(host.asked) == 1

    run(main())


def test_a_verified_server_is_asked_about_once_per_tool_and_session(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, trust="verified")
        async with plugin_of({"a": server}, tmp_path) as plugin:
            host = AskingHost()
            session = await loaded(plugin, "a.echo", "a.other", host=host)
            await asyncio.gather(*(session.call("mcp__a__echo", {"city": "Lima"}) for _ in range(3)))
            assert len(host.asked) == 1
            question, shown = host.asked[0]
            assert question == "Call echo of a (verified server)?"
            assert "Lima" in shown
            await session.call("mcp__a__other", {})
            assert len(host.asked) == 2
            other = AskingHost(confirms=False)
            second = await loaded(plugin, "a.echo", host=other, id="two")
            before = len(calls_of(server))
            with pytest.raises(Refused) as caught:
                await second.call("mcp__a__echo", {})
            assert "declined" in str(caught.value)
            assert len(calls_of(server)) == before
            assert not (await second.call("mcp__a__echo", {}, typed=True)).is_error

    run(main())


def test_an_untrusted_server_is_asked_about_every_time_whatever_it_claims(tmp_path: Path) -> None:
    async def main() -> None:
        claimed = tool("echo", annotations={"readOnlyHint": True})
        async with plugin_of({"a": entry(tmp_path, spoken([claimed]), trust="untrusted")}, tmp_path) as plugin:
            host = AskingHost()
            session = await loaded(plugin, "a.echo", host=host)
            for _ in range(3):
                await session.call("mcp__a__echo", {})
            assert len(host.asked) == 3

    run(main())


def test_headless_a_call_that_would_be_asked_about_is_refused_unless_include_tools_names_it(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {
            "bare": entry(tmp_path, trust="untrusted"),
            "star": entry(tmp_path, trust="verified", includeTools=["*"]),
            "named": entry(tmp_path, trust="untrusted", includeTools=["ec*"]),
        }
        async with plugin_of(servers, tmp_path) as plugin:
            session = await loaded(plugin, "bare.echo", "star.echo", "named.echo")
            for name in ("bare", "star"):
                with pytest.raises(Refused) as caught:
                    await session.call(f"mcp__{name}__echo", {})
                assert caught.value.diagnostic.code == "refused"
                assert calls_of(servers[name]) == []
            assert not (await session.call("mcp__named__echo", {})).is_error

    run(main())


def test_long_arguments_are_counted_where_the_question_cuts_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path, trust="untrusted")}, tmp_path) as plugin:
            host = AskingHost()
            session = await loaded(plugin, "a.echo", host=host)
            await session.call("mcp__a__echo", {"text": "x" * 9000})
            assert "more characters, not shown" in host.asked[0][1]

    run(main())


def test_the_question_shows_what_arguments_would_hide_from_a_terminal(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path, trust="untrusted")}, tmp_path) as plugin:
            host = AskingHost()
            session = await loaded(plugin, "a.echo", host=host)
            await session.call("mcp__a__echo", {"command": "ls \x9d; evil \x9c\u200b\u202e"})
            assert r"ls \x9d; evil \x9c\u200b\u202e" in host.asked[0][1]

    run(main())


def test_what_changes_while_the_person_thinks_is_not_called(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, trust="verified")
        async with plugin_of({"a": server}, tmp_path) as plugin:

            class Slow(AskingHost):
                async def confirm(self, question: str, details: str) -> bool:
                    await plugin.apply(configuration_of({"a": {**server, "disabled": True}}))
                    return True

            session = await loaded(plugin, "a.echo", host=Slow())
            with pytest.raises(PiMcpError):
                await session.call("mcp__a__echo", {})
            assert calls_of(server) == []

    run(main())


def test_sensitive_tools_are_registered_as_the_trust_level_says(tmp_path: Path) -> None:
    async def main() -> None:
        tools = [tool("delete_repo"), tool("getToken"), tool("tokens_list"), tool("read_repo")]
        servers = {
            "trusted": entry(tmp_path, spoken(tools)),
            "verified": entry(tmp_path, spoken(tools), trust="verified", includeTools=["delete_repo", "*_*"]),
            "untrusted": entry(tmp_path, spoken(tools), trust="untrusted", includeTools=["delete_repo", "*"]),
        }
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            answer = await session.search("repo token tokens delete read", limit=50)
            have = {name: {tool.tool for tool in answer.loaded if tool.server == name} for name in servers}
            assert have["trusted"] == {"delete_repo", "getToken", "tokens_list", "read_repo"}
            assert have["verified"] == {"delete_repo", "tokens_list", "read_repo"}
            assert have["untrusted"] == {"tokens_list", "read_repo"}
            with pytest.raises(Refused):
                await session.load(["untrusted.delete_repo"])
            assert "delete_repo" not in (await session.search("untrusted.delete_repo", server="untrusted")).text
            rows = {status.name: (status.tools, status.filtered) for status in session.statuses()}
            assert rows == {"trusted": (4, 4), "verified": (4, 3), "untrusted": (4, 2)}

    run(main())


def test_a_server_that_is_switched_off_exposes_nothing_until_it_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path), "b": entry(tmp_path)}
        async with plugin_of(servers, tmp_path) as plugin:
            host = AskingHost()
            session = await loaded(plugin, "a.echo", "b.echo", host=host)
            changes = host.changes
            off = configuration_of({**servers, "a": {**servers["a"], "disabled": True}}, cwd=tmp_path)
            on = plugin.configuration
            await plugin.apply(off)
            assert [found.server for found in session.loaded] == ["b"]
            assert host.changes == changes + 1
            assert plugin.connections.get("b").state in ("connected", "idle")
            await plugin.apply(on)
            assert [found.server for found in session.loaded] == ["a", "b"]

    run(main())


def test_a_reload_leaves_the_call_of_an_unchanged_server_alone(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path, {"tools/call": [{"sleep": 0.5}, {"echo": True}]}), "b": entry(tmp_path)}
        environ = dict(os.environ)
        plugin = Plugin(
            configuration_of(servers, cwd=tmp_path, environ=environ),
            state_dir=tmp_path / "state",
            cache_dir=tmp_path / "cache",
            reload=lambda: configuration_of({"a": servers["a"]}, cwd=tmp_path, environ=environ),
        )
        async with plugin:
            session = await loaded(plugin, "a.echo", "b.echo")
            running = asyncio.create_task(session.call("mcp__a__echo", {"n": 1}))
            await until(lambda: bool(calls_of(servers["a"])))
            answer = await session.command("/mcp reload")
            assert answer.text.splitlines() == ["Reloaded: 1 server.", "- b"]
            assert not (await running).is_error
            assert len(pids_of(servers["a"])) == 1
            assert plugin.connections.get("a").state == "connected"

    run(main())


def test_after_close_nothing_starts_again(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with plugin_of({"a": server}, tmp_path) as plugin:
            session = await loaded(plugin, "a.echo")
            await plugin.close()
            await plugin.close()
            with pytest.raises(PiMcpError):
                await session.call("mcp__a__echo", {})
            assert len(pids_of(server)) == 1

    run(main())
