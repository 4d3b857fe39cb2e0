"""The field reports about configuration and trust, from the file on disk to the process that is or is not started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import Configuration, load_config
from tests.hostile.http_server import HttpServer
from tests.hostile.product import ENVIRON, SECRET, Person, Product, product
from tests.hostile.script import entry, methods_of, record_of, tool
from tests.support import run

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = {"tools/call:echo": [{"environ": True}]}


@contextlib.asynccontextmanager
async def configured(
    folder: Path, text: str | Mapping[str, Any], *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> AsyncIterator[Product]:
    """The product over this `mcp.json`."""
    path = folder / "mcp.json"
    if not isinstance(text, str):
        text = json.dumps({"mcpServers": text}, indent=1)
    path.write_text(text)

    def load() -> Configuration:
        return load_config(cwd=cwd or folder, config=path, environ={**ENVIRON, **(environ or {})})

    async with product(folder, load(), reload=load) as made:
        yield made


def cli(*words: str, config: Path, cwd: Path) -> tuple[int, Any, str]:
    """Exit code, the JSON document on standard output, and both outputs."""
    done = subprocess.run(
        [sys.executable, "-m", "pi_mcp.cli", *words, "--json", "--config", str(config)],
        cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PLANTED": SECRET},
    )  # fmt: skip
    assert SECRET not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout), done.stdout + done.stderr


def marking(mark: Path, **fields: Any) -> dict[str, Any]:
    """An entry whose process leaves a mark."""
    return {"command": "/bin/sh", "args": ["-c", f"touch {mark}"], **fields}


def test_b001_b002_b010_comments_and_trailing_commas_are_read_and_kept(tmp_path: Path) -> None:
    async def main() -> None:
        on = entry(tmp_path, ENVIRONMENT)
        arguments = json.dumps([*on["args"], "https://h/mcp /* no */ // no", ",}"])[:-1]
        text = '\ufeff{"mcpServers":{\n  // "off": {"command":"x"},\n  /* block */ "on":{"command":'
        text += f'{json.dumps(on["command"])},"args":{arguments},],}},\n}},}}\n'
        on_disk = entry(tmp_path)  # a second script, so that the record of the first is its own
        async with configured(tmp_path, text) as made:
            assert list(made.plugin.configuration.entries) == ["on"]
            assert not made.plugin.configuration.diagnostics
            await made.search("echo")
            argv = json.loads(await made.text())["argv"]
            assert argv[-2:] == ["https://h/mcp /* no */ // no", ",}"]
            await made.mcp("disable on")
            written = (tmp_path / "mcp.json").read_text()
            assert '// "off": {"command":"x"},' in written
            assert "/* block */" in written
            assert made.state("on") == "disabled"
        assert not record_of(on_disk)

    run(main())


def test_b004_a_broken_file_is_named_with_its_place_and_never_shown(tmp_path: Path) -> None:
    env = f'"env": {{"K": "{SECRET}"}}'
    text = '{\n "mcpServers": {\n  "s": {\n   "command": "srv",\n   ' + env + '\n   "args": []\n  }\n }\n}'

    async def main() -> None:
        async with configured(tmp_path, text) as made:
            shown = await made.mcp()
            assert str(tmp_path / "mcp.json") in shown
            assert "line 5" in shown
            assert "comma" in shown

    run(main())
    code, found, both = cli("search", "x", config=tmp_path / "mcp.json", cwd=tmp_path)
    assert code == 2
    assert found["error"]["code"] == "configuration_invalid"
    assert "line 5" in both


@pytest.mark.parametrize(("extra", "expected"), [({"DATA_DIR": "/srv/d"}, "/srv/d:/d"), ({}, "/home/u/.d:/d")])
def test_b005_defaults_nest_without_a_stray_brace(tmp_path: Path, extra: dict[str, str], expected: str) -> None:
    async def main() -> None:
        s = entry(tmp_path, ENVIRONMENT)
        s["args"] += ["-v", "${DATA_DIR:-${HOME}/.d}:/d"]
        async with configured(tmp_path, {"s": s}, environ={"HOME": "/home/u", **extra}) as made:
            await made.search("echo")
            assert json.loads(await made.text())["argv"][-1] == expected

    run(main())


def test_b007_env_adds_to_the_documented_environment(tmp_path: Path) -> None:
    async def main() -> None:
        environ = {"LANG": "C.UTF-8", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*", "UNRELATED": "1"}
        s = entry(tmp_path, ENVIRONMENT, env={"ONE": "1", "TOKEN": "$PLANTED"})
        every = entry(tmp_path, ENVIRONMENT, inheritEnv=["UNRELATED"])
        async with configured(tmp_path, {"s": s, "every": every}, environ=environ) as made:
            await made.load("s.echo", "every.echo")
            child = json.loads((await made.session.call("mcp__s__echo", {})).text)["env"]
            assert child["ONE"] == "1"
            assert child["TOKEN"] == SECRET
            assert child["PATH"] == ENVIRON["PATH"]
            assert child["HOME"] == ENVIRON["HOME"]
            assert child["HTTPS_PROXY"] == environ["HTTPS_PROXY"]
            assert "UNRELATED" not in child
            assert "PLANTED" not in child
            other = json.loads((await made.session.call("mcp__every__echo", {})).text)["env"]
            assert other["UNRELATED"] == "1"

    run(main())


def test_b008_a_missing_variable_starts_and_sends_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        mark = tmp_path / "MARK"
        with HttpServer() as http:
            servers = {
                "local": marking(mark, env={"DATA": "${PROJECT_DIR_UNSET}/.d", "K": f"!touch {mark}; echo x"}),
                "remote": {"url": f"{http.url}?k=${{UNSET_KEY}}", "headers": {"X": "${PLANTED}"}},
                "good": entry(tmp_path),
            }
            async with configured(tmp_path, servers) as made:
                answer = await made.search("echo")
                lines = {one.server: one.line() for one in answer.not_searched}
                for server, field, variable in (
                    ("local", "env.DATA", "PROJECT_DIR_UNSET"),
                    ("remote", "url", "UNSET_KEY"),
                ):
                    assert "[configuration_invalid]" in lines[server]
                    assert field in lines[server]
                    assert variable in lines[server]
                    assert "$" in lines[server]
                assert {one.server for one in answer.loaded} == {"good"}
            assert not mark.exists()
            assert not http.requests

    run(main())


def test_b010_the_servers_key_is_told_and_never_an_empty_list(tmp_path: Path) -> None:
    text = '{ // mine\n "servers":{"docs":{"type":"http","url":"https://example.test/mcp"}}}'

    async def main() -> None:
        async with configured(tmp_path, text) as made:
            for shown in (await made.mcp(), (await made.search("x")).text):
                assert "`servers`" in shown
                assert "mcpServers" in shown
            await made.mcp("disable docs")
        assert (tmp_path / "mcp.json").read_text() == text

    run(main())


def test_b011_every_spelling_of_the_transport_connects_and_an_unknown_one_stands_alone(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as http:
            kinds = ["streamableHttp", "streamable-http", "streamable_http", "STREAMABLE", "http"]
            servers = {f"s{number}": {"type": kind, "url": http.url} for number, kind in enumerate(kinds)}
            async with configured(tmp_path, {**servers, "odd": {"type": "websocket", "url": http.url}}) as made:
                answer = await made.search("echo")
                assert {one.server for one in answer.loaded} == set(servers)
                (diagnostic,) = answer.not_searched
                assert diagnostic.server == "odd"
                for allowed in ("stdio", "http", "sse"):
                    assert allowed in diagnostic.message

    run(main())


def test_b013_b025_b026_what_is_unclear_never_starts(tmp_path: Path) -> None:
    async def main() -> None:
        mark = tmp_path / "MARK"
        wrong = {
            "nested": (marking(mark, transport={"type": "http", "url": "http://h/mcp"}), "`transport`"),
            "enable": (marking(mark, enable=False), "`enable`"),
            "text": (marking(mark, disabled="true"), "`disabled`"),
            "number": (marking(mark, enabled=0), "`enabled`"),
            "both": (marking(mark, disabled=True, enabled=True), "`enabled`"),
            "either": (marking(mark, enable=False, enabled=True), "`enable`"),
        }
        off = {"off": marking(mark, enabled=False), "away": marking(mark, disabled=True)}
        servers = {**{name: fields for name, (fields, _) in wrong.items()}, **off}
        async with configured(tmp_path, servers) as made:
            answer = await made.search("anything")
            told = {one.server: one for one in answer.not_searched}
            for name, (_, field) in wrong.items():
                assert told[name].code == "configuration_invalid"
                assert field in told[name].message
                assert (await made.session.command(f"/mcp reconnect {name}")).diagnostic is not None
                assert made.state(name) == "invalid"
            for name in off:
                assert made.state(name) == "disabled"
                assert name not in told
            await made.mcp("refresh")
        assert not mark.exists()

    run(main())


@pytest.mark.parametrize("command", ["disable s", "enable s", "refresh", "reload", "trust s verified"])
def test_b016_a_file_that_cannot_be_read_is_never_written(tmp_path: Path, command: str) -> None:
    text = '{"mcpServers": {"s": {"command": "x" "args": []}}, "mine": 1'

    async def main() -> None:
        async with configured(tmp_path, text) as made:
            await made.mcp(command)
        assert (tmp_path / "mcp.json").read_text() == text

    run(main())


def test_b016_a_save_keeps_unknown_keys_and_goes_through_a_new_file(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "mcp.json"
        text = '{"theirs": {"a": [1,2]}, "mcpServers": {"s": {"command": "x"}} /* end */}'
        async with configured(tmp_path, text) as made:
            before = path.stat().st_ino
            assert "disabled" in await made.mcp("disable s")
            assert path.stat().st_ino != before
            written = path.read_text()
            assert '"theirs": {"a": [1,2]}' in written
            assert "/* end */" in written
            assert [name for name in os.listdir(tmp_path) if name.startswith("mcp.json")] == ["mcp.json"]  # noqa: PTH208

    run(main())


def test_b017_one_bad_entry_hides_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {
            "a": entry(tmp_path),
            "b": {"command": 5},
            "c": "str",
            "d": None,
            "e": {"command": "y", "args": "not-a-list"},
            "": {"command": "y"},
            "f": {},
            "g": [],
        }
        async with configured(tmp_path, servers) as made:
            shown = await made.mcp()
            for name in "bcdefg":
                assert f"{name}: invalid" in shown
            assert "`command`" in await made.mcp("get b")
            assert "`args`" in await made.mcp("get e")
            answer = await made.search("echo")
            assert {one.server for one in answer.loaded} == {"a"}
            assert {one.code for one in answer.not_searched} == {"configuration_invalid"}

    run(main())
    code, rows, _ = cli("servers", config=tmp_path / "mcp.json", cwd=tmp_path)
    assert code == 0
    states = {row["name"]: row["state"] for row in (rows["servers"] if isinstance(rows, dict) else rows)}
    assert [states[name] for name in "bcdefg"] == ["invalid"] * 6


def test_b019_relative_paths_start_at_the_working_directory_and_then_at_cwd(tmp_path: Path) -> None:
    async def main() -> None:
        s = entry(tmp_path, ENVIRONMENT)
        scripts = tmp_path / "sub" / "scripts"
        scripts.mkdir(parents=True)
        start = scripts / "s.sh"
        start.write_text(f'#!/bin/sh\nexec {s["command"]} "$@"\n')
        start.chmod(0o755)
        good = {**s, "command": "./scripts/s.sh", "cwd": "sub"}
        servers = {"good": good, "bad": {"command": "./scripts/none.sh", "cwd": "sub"}}
        async with configured(tmp_path, servers) as made:
            answer = await made.search("echo")
            (diagnostic,) = answer.not_searched
            assert str(scripts / "none.sh") in diagnostic.message
            assert json.loads(await made.text())["cwd"] == str(tmp_path / "sub")

    run(main())


def test_b020_a_tilde_opens_and_a_missing_directory_is_told_from_a_missing_command(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "work").mkdir()
        servers = {
            "home": entry(tmp_path, ENVIRONMENT, cwd="~/work"),
            "nowhere": entry(tmp_path, cwd="/no/such/dir"),
            "nothing": {"command": "no-such-command-4711", "cwd": "~/work"},
            "line": {"command": "npx -y something"},
            "folder": {"command": str(tmp_path)},
        }
        async with configured(tmp_path, servers, environ={"HOME": str(tmp_path)}) as made:
            answer = await made.search("echo")
            told = {one.server: one.line() for one in answer.not_searched}
            assert "`args`" in told["line"]
            assert "is a directory" in told["folder"]
            assert "working directory" in told["nowhere"]
            assert "/no/such/dir" in told["nowhere"]
            assert "command" in told["nothing"]
            assert "no-such-command-4711" in told["nothing"]
            assert json.loads(await made.text())["cwd"] == str(tmp_path / "work")

    run(main())


def test_b022_fields_of_other_adapters_are_named_with_what_to_write(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as http:
            servers = {
                "theirs": {"url": http.url, "auth": "bearer", "bearerTokenEnv": "TOK", "lifecycle": "lazy"},
                "lazy": {"url": http.url, "lifecycle": "lazy"},
            }
            async with configured(tmp_path, servers) as made:
                answer = await made.search("echo")
                (diagnostic,) = answer.not_searched
                line = diagnostic.line()
                assert (diagnostic.server, diagnostic.code) == ("theirs", "configuration_invalid")
                for part in ("`auth`", "`bearerTokenEnv`", '"Authorization": "Bearer ${TOK}"'):
                    assert part in line
                assert {one.server for one in answer.loaded} == {"lazy"}
                assert "`lifecycle`" in await made.mcp("get lazy")

    run(main())


def test_b023_harmless_foreign_fields_warn_and_grant_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        script = {"tools/list": [{"result": {"tools": [tool("x"), tool("y")]}}]}
        theirs = {"disabled": False, "alwaysAllow": ["x"], "autoApprove": ["x"], "timeout": 30}
        s = entry(tmp_path, script, trust="untrusted", **theirs)
        async with configured(tmp_path, {"s": s}) as made:
            await made.load("s.x")
            person = made.session.host
            assert isinstance(person, Person)
            person.says = False
            assert (await made.fails("mcp__s__x")).code == "refused"
            assert person.asked
            shown = await made.mcp("get s")
            for field in ("alwaysAllow", "autoApprove", "timeout"):
                assert f"`{field}`" in shown
            assert "request 15 s" in shown

    run(main())


def test_b217_a_disabled_server_is_absent_even_with_a_warm_cache(tmp_path: Path) -> None:
    async def main() -> None:
        off, on = entry(tmp_path), entry(tmp_path)
        async with configured(tmp_path, {"off": off, "on": on}) as made:
            await made.search("echo", limit=9)
            assert {one.server for one in made.session.loaded} == {"on", "off"}
        started = len(record_of(off))
        async with configured(tmp_path, {"off": {**off, "disabled": True}, "on": on}) as made:
            answer = await made.search("echo", limit=9)
            assert {one.tool.server for one in answer.hits} == {"on"}
            assert "off" not in made.session.search_tool.description
            assert "off: disabled" in await made.mcp()
            assert (await made.session.command("/mcp reconnect off")).diagnostic is not None
            await made.mcp("refresh")
        assert len(record_of(off)) == started

    run(main())


def test_b176_b178_an_untrusted_project_is_shown_and_does_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        mark, work = tmp_path / "MARK", tmp_path / "work"
        work.mkdir()
        with HttpServer() as http:
            servers = {
                "lint": marking(mark, env={"K": f"!touch {mark}"}),
                "far": {"url": f"{http.url}?${{PLANTED}}", "headers": {"X": "${PLANTED}", "Y": f"!touch {mark}"}},
            }
            (work / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))

            def load() -> Configuration:
                return load_config(cwd=work, environ={**ENVIRON, "HOME": str(tmp_path / "home")})

            async with product(tmp_path, load(), reload=load) as made:
                shown = await made.mcp()
                assert "lint: untrusted project" in shown
                assert f"touch {mark}" in shown
                assert "touch" in await made.mcp("get lint")
                answer = await made.search("lint")
                assert {one.server for one in answer.not_searched} == {"lint", "far"}
                assert "trust" in answer.text
                for line in ("refresh", "reconnect lint", "tools lint", "tools", "load lint.x", "reload"):
                    await made.mcp(line)
                await asyncio.sleep(0.1)
            assert not mark.exists()
            assert not http.requests

    run(main())


def test_b163_before_a_search_only_the_search_tool_and_a_directory_are_visible(tmp_path: Path) -> None:
    async def main() -> None:
        names = [f"tool_{number}" for number in range(50)]
        script = {"tools/list": [{"result": {"tools": [tool(name) for name in names]}}]}
        servers = {f"srv{number}": entry(tmp_path, script, description="Notes.") for number in range(10)}
        async with configured(tmp_path, servers) as made:
            assert made.session.loaded == ()
            text = made.session.search_tool.description
            assert "srv9" in text
            assert "tool_1" not in text
            assert len(text) < 2000
            await made.search("tool 7", limit=5)
            assert len(made.session.loaded) == 5
            assert made.session.search_tool.description == text
        counts = [methods_of(one).count("tools/list") for one in servers.values()]
        assert counts == [1] * 10
        async with configured(tmp_path, servers) as made:
            assert made.session.loaded == ()
            await made.search("tool 7", limit=5)
            assert len(made.session.loaded) == 5
            assert {made.state(name) for name in servers} == {"idle"}
        assert [methods_of(one).count("tools/list") for one in servers.values()] == counts

    run(main())
