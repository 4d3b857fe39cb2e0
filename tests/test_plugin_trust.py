"""A project's `.mcp.json` through the whole plugin: data until it is trusted, asked again when it changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import load_config
from pi_mcp.errors import PiMcpError
from pi_mcp.plugin import Plugin
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, record_of, tool
from tests.plugin_support import AskingHost, files_plugin, spoken
from tests.support import run


def project(folder: Path, servers: dict[str, Any]) -> Path:
    path = folder / "project" / ".mcp.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def user(home: Path, servers: dict[str, Any]) -> Path:
    path = home / ".config/pi-mcp/mcp.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def test_an_untrusted_project_is_only_data(tmp_path: Path, private_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", "planted-secret-value")
    trace = tmp_path / "trace"
    with HttpServer() as http:
        server = entry(tmp_path, env={"A": "${PLANTED}", "B": f"!touch {trace}; echo x"}, alwaysLoad=True)
        servers = {"mine": server, "web": {"url": http.url, "headers": {"X": f"!touch {trace}; echo x"}}}
        path = project(tmp_path, servers)

        async def main() -> None:
            async with files_plugin(tmp_path, path.parent) as plugin:
                session = plugin.session("one")
                answer = await session.search("echo")
                assert answer.loaded == ()
                assert {one.server: one.code for one in answer.not_searched} == {"mine": "refused", "web": "refused"}
                assert "/mcp trust" in answer.text
                for line in ("/mcp", "/mcp get mine", "/mcp refresh", "/mcp reconnect", "/mcp tools", "/mcp reload"):
                    assert "planted-secret-value" not in (await session.command(line)).text
                for line in ("/mcp refresh mine", "/mcp tools web", "/mcp enable mine", "/mcp trust mine trusted"):
                    assert (await session.command(line)).diagnostic is not None
                refused = await session.command("/mcp trust")
                assert refused.diagnostic is not None
                assert refused.diagnostic.code == "refused"
                assert {status.state for status in session.statuses()} == {"untrusted_project"}
                assert await session.prepare() == ()

        run(main())
        assert record_of(server) == []
        assert http.connections == 0
        assert not trace.exists()


def test_trust_is_asked_once_and_again_when_the_file_changes(tmp_path: Path, private_home: Path) -> None:
    server = entry(tmp_path)
    user(private_home, {"mine": {"command": "my-own-program"}})
    path = project(tmp_path, {"mine": server, "run": {"command": "rm", "args": ["-rf", "some where"]}})

    async def main() -> None:
        async with files_plugin(tmp_path, path.parent) as plugin:
            host = AskingHost(confirms=False)
            session = plugin.session("one", host)
            assert (await session.command("/mcp trust")).diagnostic is not None
            [(question, shown)] = host.asked
            assert str(path) in question
            assert "rm -rf 'some where'" in shown
            assert "replaces your own server mine (my-own-program)" in shown
            assert session.statuses()[0].trust == "trusted"
            host.confirms = True
            assert (await session.command("/mcp trust")).text == f"Trusted: {path}"
            assert {status.name: status.trust for status in session.statuses()} == {
                "mine": "verified",
                "run": "verified",
            }
            assert [found.server for found in (await session.search("echo", server="mine")).loaded] == ["mine"]
        async with files_plugin(tmp_path, path.parent) as plugin:
            assert plugin.configuration.project is None
            assert set(plugin.configuration.servers) == {"mine", "run"}
            path.write_text(path.read_text() + "\n")
            host = AskingHost()
            session = plugin.session("one", host)
            await session.command("/mcp reload")
            assert plugin.configuration.project is not None
            assert plugin.configuration.servers["mine"].command == "my-own-program"
            assert await plugin.trust_project(host)
            assert len(host.asked) == 1

    run(main())


def test_switches_and_levels_of_a_projects_server_are_kept_and_its_file_is_never_written(
    tmp_path: Path, private_home: Path
) -> None:
    server = entry(tmp_path, spoken([tool("echo"), tool("delete_it")]))
    path = project(tmp_path, {"mine": server})
    before = path.read_bytes()

    async def main() -> None:
        async with files_plugin(tmp_path, path.parent) as plugin:
            session = plugin.session("one", AskingHost())
            await session.command("/mcp trust")
            assert (await session.command("/mcp disable mine")).text == "mine is disabled."
            assert (await session.command("/mcp disable mine")).text == "mine is disabled already."
        async with files_plugin(tmp_path, path.parent) as plugin:
            session = plugin.session("one", AskingHost())
            assert [status.state for status in session.statuses()] == ["disabled"]
            assert session.complete("/mcp enable ") == ["mine"]
            assert session.complete("/mcp disable ") == []
            assert (await session.command("/mcp enable mine")).diagnostic is None
            # A verified server's sensitive tool needs includeTools; a trusted one's does not.
            assert [found.tool for found in (await session.search("delete it echo", limit=9)).loaded] == ["echo"]
            assert (await session.command("/mcp trust mine trusted")).diagnostic is None
        async with files_plugin(tmp_path, path.parent) as plugin:
            session = plugin.session("two", AskingHost())
            assert [status.trust for status in session.statuses()] == ["trusted"]
            found = (await session.search("delete it echo", limit=9)).loaded
            assert {tool.tool for tool in found} == {"echo", "delete_it"}
            assert (await session.command("/mcp trust mine untrusted")).diagnostic is None
            assert [tool.tool for tool in session.loaded] == ["echo"]

    run(main())
    assert path.read_bytes() == before


def test_headless_the_project_is_trusted_for_one_run_only(tmp_path: Path, private_home: Path) -> None:
    path = project(tmp_path, {"mine": entry(tmp_path)})

    async def main() -> None:
        given = load_config(cwd=path.parent, trust_project=True)
        async with Plugin(given, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache") as plugin:
            assert len((await plugin.session("one").search("echo")).loaded) == 1
        async with files_plugin(tmp_path, path.parent) as plugin:
            assert (await plugin.session("one").search("echo")).loaded == ()

    run(main())


def test_a_users_server_is_switched_in_its_file_and_comments_stay(tmp_path: Path, private_home: Path) -> None:
    path = user(private_home, {})
    path.write_text(
        '{\n  // mine\n  "mcpServers": {"a": ' + json.dumps(entry(tmp_path)) + ', "b": {"command": "x"}}\n}\n'
    )

    async def main() -> None:
        async with files_plugin(tmp_path) as plugin:
            session = plugin.session("one")
            await session.load(["a.echo"])
            connection = plugin.connections.get("a")
            assert (await session.command("/mcp disable a")).diagnostic is None
            assert session.loaded == ()
            assert connection.state == "idle"
            with pytest.raises(PiMcpError):
                await session.call("mcp__a__echo", {})
        async with files_plugin(tmp_path) as plugin:
            assert [status.state for status in plugin.session("one").statuses()] == ["disabled", "idle"]
            assert (await plugin.session("one").command("/mcp enable a")).diagnostic is None
            assert plugin.entry("a").state == "ready"

    run(main())
    assert "// mine" in path.read_text()


def test_a_reload_of_a_broken_file_changes_nothing(tmp_path: Path, private_home: Path) -> None:
    path = user(private_home, {"a": entry(tmp_path)})

    async def main() -> None:
        async with files_plugin(tmp_path) as plugin:
            session = plugin.session("one")
            await session.load(["a.echo"])
            good = path.read_text()
            path.write_text(good[:-3])
            answer = await session.command("/mcp reload")
            assert answer.diagnostic is not None
            assert answer.diagnostic.message.startswith("Nothing was reloaded.")
            assert plugin.connections.get("a").state == "connected"
            assert not (await session.call("mcp__a__echo", {})).is_error
            path.write_text(good.replace('"command"', '"description": "new", "command"'))
            assert (await session.command("/mcp reload")).text.splitlines() == ["Reloaded: 1 server.", "~ a"]

    run(main())
