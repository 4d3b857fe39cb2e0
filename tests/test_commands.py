"""`/mcp` and its subcommands: what they say, complete and never show."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from pi_mcp import files
from pi_mcp.commands import COMMANDS
from pi_mcp.config import configuration_of
from pi_mcp.errors import Diagnostic
from pi_mcp.plugin import Plugin
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, methods_of, pids_of, record_of, tool
from tests.plugin_support import plugin_of, spoken
from tests.support import run


@pytest.mark.parametrize(
    ("hint", "left"),
    [
        ("`/mcp get 'a b'` shows what it wrote to stderr.", None),
        (
            "`/mcp get a` shows what it wrote to stderr; raise the limit if it needs longer.",
            "Raise the limit if it needs longer.",
        ),
        ("`/mcp get a` shows more.", None),
        ("Run `/mcp auth a`.", "Run `/mcp auth a`."),
        (None, None),
    ],
)
def test_a_hint_in_get_does_not_send_anybody_to_get(hint: str | None, left: str | None) -> None:
    from pi_mcp.commands.get import _without_pointer_here

    assert _without_pointer_here(Diagnostic("connection_failed", "connect", "a", "It ended.", hint)).hint == left


def test_the_status_shows_every_kind_of_entry(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer({"*": {"status": 401}}) as closed:
            servers = {
                "on": entry(tmp_path, spoken([tool("echo"), tool("other")]), excludeTools=["other"]),
                "idle": entry(tmp_path),
                "off": entry(tmp_path, disabled=True),
                "wrong": {"command": "x", "url": "http://localhost/"},
                "unset": entry(tmp_path, env={"A": "${NOT_SET_AT_ALL}"}),
                "gone": {"command": str(tmp_path / "nowhere")},
                "login": {"url": closed.url},
                "silent": entry(tmp_path, spoken([])),
                "foreign": entry(tmp_path, timeout=30),
            }
            async with plugin_of(servers, tmp_path) as plugin:
                session = plugin.session("one")
                assert "0 tools loaded of at most 96.\n" in (await session.command("/mcp")).text + "\n"
                for name in ("on", "gone", "login", "silent"):
                    await session.search("echo", server=name)
                rows = {status.name: status for status in session.statuses()}
                assert {name: row.state for name, row in rows.items()} == {
                    "on": "connected",
                    "idle": "idle",
                    "off": "disabled",
                    "wrong": "invalid",
                    "unset": "invalid",
                    "gone": "failed",
                    "login": "authentication_required",
                    "silent": "connected",
                    "foreign": "idle",
                }
                assert (rows["on"].tools, rows["on"].filtered, rows["on"].loaded) == (2, 1, 1)
                assert (rows["silent"].tools, rows["idle"].tools) == (0, None)
                codes = {name: row.error.code for name, row in rows.items() if row.error}
                assert codes == {
                    "wrong": "configuration_invalid",
                    "unset": "configuration_invalid",
                    "gone": "connection_failed",
                    "login": "authentication_required",
                }
                answer = await session.command("/mcp")
                assert answer.table is not None
                assert [row[0] for row in answer.table.rows] == list(servers)
                assert all(len(row) == len(answer.table.columns) for row in answer.table.rows)
                assert "on: connected, stdio, 2 tools, 1 after filters, 1 loaded, trusted, last success" in answer.text
                assert "1 tool loaded of at most 96, about" in answer.text
                assert "`timeout`" in answer.text
                for row in rows.values():
                    assert list(row.to_json()) == [
                        "name", "transport", "state", "trust", "tools", "filtered", "cached", "lastSuccess", "error",
                    ]  # fmt: skip
                assert record_of(servers["idle"]) == []

    run(main())


def test_get_shows_what_the_server_said_and_no_secret(tmp_path: Path) -> None:
    async def main() -> None:
        noisy = {"start": [{"stderr": "starting with topsecret-0815 \x1b[31mnow\n"}, {"raw": "hello\n"}]}
        servers = {
            "a": entry(
                tmp_path,
                noisy,
                env={"API_TOKEN": "topsecret-0815", "PLAIN": "also-hidden-value", "REF": "${HOME}"},
                description="Says things",
            ),
            "web": {
                "url": "https://me:topsecret-0815@example.com/p?key=topsecret-0815&x=${HOME}",
                "headers": {"X-Api-Key": "topsecret-0815", "X-Ref": "Bearer ${HOME}"},
            },
            "cli": {"command": "prog", "args": ["--api-key", "topsecret-0815", "--token=topsecret-0815"]},
        }
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            await session.search("echo", server="a")
            await asyncio.sleep(0.05)
            text = (await session.command("/mcp get a")).text
            assert "starting with *** now" in text
            assert "\x1b" not in text
            assert "env REF=${HOME}" in text
            assert "1 line on its output was no message" in text
            for name in servers:
                text = (await session.command(f"/mcp get {name}")).text
                assert "topsecret" not in text
                assert "also-hidden-value" not in text
            assert "header X-Ref=Bearer ${HOME}" in (await session.command("/mcp get web")).text
            assert "--api-key" in (await session.command("/mcp get cli")).text

    run(main())


def test_tools_search_load_and_unload(tmp_path: Path) -> None:
    async def main() -> None:
        bad = {"name": "bad", "inputSchema": {"type": "object", "properties": {"x": {"$ref": "http://x/y"}}}}
        servers = {"a": entry(tmp_path, spoken([tool("echo"), tool("secret_one"), bad]), trust="untrusted")}
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            assert "a: not listed yet" in (await session.command("/mcp tools")).text
            text = (await session.command("/mcp tools a")).text
            assert "mcp__a__echo" in text
            assert "mcp__a__secret_one" not in text
            assert "1 more are excluded" in text
            found = await session.command("/mcp search echo")
            assert found.table is not None
            assert found.table.rows[0][1] == "mcp__a__echo"
            assert "exact name" in found.text
            assert session.loaded == ()
            assert "Loaded" in (await session.command("/mcp load echo")).text
            assert "mcp__a__echo (a, about" in (await session.command("/mcp tools loaded")).text
            assert (await session.command("/mcp unload --all")).text == "Unloaded:\n- mcp__a__echo"
            assert (await session.command("/mcp unload --all")).text == "Nothing is loaded."

    run(main())


def test_reconnect_replaces_the_process_and_refresh_lists_again(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"a": entry(tmp_path), "gone": {"command": str(tmp_path / "nowhere")}}
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")
            assert (await session.command("/mcp refresh a")).text == "a: 2 tools."
            assert (await session.command("/mcp reconnect a")).text == "a: 2 tools."
            assert len(pids_of(servers["a"])) == 2
            assert (await session.command("/mcp refresh a")).diagnostic is None
            assert methods_of(servers["a"]).count("tools/list") == 3
            assert session.loaded == ()
            everything = await session.command("/mcp refresh")
            assert everything.text.splitlines()[0] == "a: 2 tools."
            assert everything.diagnostic is not None
            assert everything.diagnostic.server == "gone"

    run(main())


def test_reconnect_is_busy_while_a_discovery_runs(tmp_path: Path) -> None:
    async def main() -> None:
        slow = entry(tmp_path, {"tools/list": [{"sleep": 0.8}, {"result": {"tools": []}}]})
        async with plugin_of({"a": slow}, tmp_path) as plugin:
            session = plugin.session("one")
            running = asyncio.create_task(session.command("/mcp refresh a"))
            await asyncio.sleep(0.3)
            answer = await session.command("/mcp reconnect a")
            assert answer.diagnostic is not None
            assert answer.diagnostic.code == "busy"
            assert (await running).text == "a: 0 tools (server offers none)."

    run(main())


@pytest.mark.parametrize(
    "line",
    ["/mcp nothing", "/mcp get", "/mcp get a b", "/mcp load", "/mcp unload x", "/mcp search", "/mcp trust a", "/mcp "
     "trust a king", "/mcp auth a", "/mcp auth", "/mcp get 'a", "/mcp enable", "/mcp tools nobody", "/mcp \x1b[31m"],
)  # fmt: skip
def test_a_wrong_line_is_answered_with_one_diagnostic_and_never_raises(tmp_path: Path, line: str) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:
            answer = await plugin.session("one").command(line)
            assert answer.diagnostic is not None
            assert answer.text == answer.diagnostic.line()
            assert "\n" not in answer.text
            assert "\x1b" not in answer.text

    run(main())


def test_a_fault_of_our_own_is_an_answer_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with plugin_of({"a": entry(tmp_path)}, tmp_path) as plugin:

            def broken(*_: object, **__: object) -> None:
                raise RuntimeError("topsecret-0815")

            monkeypatch.setattr(plugin.catalogs, "known", broken)
            answer = await plugin.session("one", keep=False).command("/mcp")
            assert answer.diagnostic is not None
            assert answer.diagnostic.code == "operation_failed"
            assert "topsecret" not in answer.text

    run(main())


def test_help_lists_every_subcommand(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({}, tmp_path) as plugin:
            text = (await plugin.session("one").command("help")).text
            assert all(f"/mcp {name}" in text for name in COMMANDS)

    run(main())


def test_completion_knows_subcommands_servers_and_tools_without_any_io(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        servers = {"alpha": entry(tmp_path), "beta": entry(tmp_path, disabled=True)}
        async with plugin_of(servers, tmp_path) as plugin:
            await plugin.session("zero").search("echo")
        async with plugin_of(servers, tmp_path) as plugin:
            session = plugin.session("one")

            def no_io(*_: object, **__: object) -> None:
                raise AssertionError("completion reads files")

            monkeypatch.setattr(files, "read_private", no_io)
            monkeypatch.setattr(Path, "open", no_io)
            monkeypatch.setattr(Path, "read_bytes", no_io)
            assert session.complete("/mcp load ") == []
            monkeypatch.undo()
            assert len((await session.search("alpha.echo", limit=1)).loaded) == 1
            monkeypatch.setattr(files, "read_private", no_io)
            assert session.complete("/mcp re") == ["reconnect", "refresh", "reload"]
            assert session.complete("/m") == ["/mcp"]
            assert session.complete("/mcp ") == list(COMMANDS)
            assert session.complete("/mcp get b") == ["beta"]
            assert session.complete("/mcp tools ") == ["alpha", "beta", "loaded"]
            assert session.complete("/mcp enable ") == ["beta"]
            assert session.complete("/mcp load mcp__alpha__o") == ["mcp__alpha__other"]
            assert session.complete("/mcp load mcp__alpha__e") == []
            assert session.complete("/mcp unload ") == ["mcp__alpha__echo", "--all"]
            assert session.complete("/mcp trust alpha u") == ["untrusted"]
            assert session.complete("/mcp nothing x") == []
            monkeypatch.undo()

    run(main())


def test_a_reload_without_files_keeps_what_the_program_gave(tmp_path: Path) -> None:
    async def main() -> None:
        given = configuration_of({"a": {"command": "x"}}, environ=dict(os.environ))
        async with Plugin(given, state_dir=tmp_path, cache_dir=tmp_path) as plugin:
            answer = await plugin.session("one").command("/mcp reload")
            assert answer.text == "Reloaded: 1 server, nothing changed."
            for line in ("/mcp disable a", "/mcp trust a untrusted"):
                refused = await plugin.session("one").command(line)
                assert refused.diagnostic is not None
                assert "given by the program" in refused.text

    run(main())


def test_the_status_and_get_name_a_slip_in_a_filter_once_the_server_was_listed(tmp_path: Path) -> None:
    async def main() -> None:
        told = "Note: `access.write` names echo(text), and the server has no such tool."
        s = entry(tmp_path, spoken([tool("echo")]), access={"write": ["echo(text)"]}, excludeTools=["later_*"])
        async with plugin_of({"s": s}, tmp_path) as plugin:
            session = plugin.session("one")
            assert "no such tool" not in (await session.command("/mcp")).text
            await session.search("echo")
            for line in ("/mcp", "/mcp get s"):
                text = (await session.command(line)).text
                assert told in " ".join(text.split())
                assert text.count("no such tool") == 1

    run(main())
