"""Servers from other clients, and new ones: what would be written, and that no secret is shown."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.config import configuration_of, jsonc, load_config, resolve
from pi_mcp.config.definition import Configuration
from pi_mcp.config.importing import ImportPlan, add_entry, apply_import, find_importable, plan_import
from pi_mcp.config.masking import shown_entry
from pi_mcp.errors import ConfigurationError

SECRET = "ghp_PLANTED0123456789abcdef"


def put(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def plan(home: Path, cwd: Path, configuration: Configuration | None = None, **more: Any) -> ImportPlan:
    return plan_import(find_importable(home, cwd, {}, **more), configuration or Configuration())


def claude(tmp_path: Path, **servers: Any) -> ImportPlan:
    put(tmp_path / ".claude.json", {"mcpServers": servers})
    return plan(tmp_path, tmp_path / "work")


def resolved_of(entry: Mapping[str, Any], environ: dict[str, str]) -> Any:
    configuration = configuration_of({"s": entry}, environ=environ)
    definition = configuration.entries["s"].definition
    assert definition is not None, configuration.entries["s"].diagnostic
    return resolve(definition, configuration)


# --- where ----------------------------------------------------------------------------------------------------


def test_every_known_place_is_looked_at_in_order(tmp_path: Path) -> None:
    work = tmp_path / "work" / "sub"
    put(work.parent / ".git" / "HEAD", "")
    work.mkdir()
    entry = {"command": "x"}
    put(
        tmp_path / ".claude.json",
        {
            "numStartups": 5,
            "mcpServers": {"a": entry},
            "projects": {
                str(work): {"mcpServers": {}},
                str(work.parent): {"mcpServers": {"b": entry}, "history": [SECRET]},
                "/elsewhere": {"mcpServers": {"never": entry}},
            },
        },
    )
    put(work.parent / ".mcp.json", {"mcpServers": {"c": entry}})
    put(tmp_path / ".config/Claude/claude_desktop_config.json", {"mcpServers": {"d": entry}})
    put(tmp_path / ".cursor/mcp.json", {"mcpServers": {"e": entry}})
    found = find_importable(tmp_path, work, {}, platform="linux")
    assert [(source.client, list(source.servers)) for source in found] == [
        ("Claude Code, this folder", ["b"]),
        ("Claude Code", ["a"]),
        ("the project", ["c"]),
        ("Claude Desktop", ["d"]),
        ("Cursor", ["e"]),
    ]
    assert SECRET not in repr(found)
    assert list(plan_import(found, Configuration()).additions) == ["b", "a", "c", "d", "e"]


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("linux", ".config/Claude"),
        ("darwin", "Library/Application Support/Claude"),
        ("win32", "Roaming/Claude"),
    ],
)
def test_claude_desktop_is_found_where_each_system_keeps_it(tmp_path: Path, platform: str, place: str) -> None:
    path = put(tmp_path / place / "claude_desktop_config.json", {"mcpServers": {"a": {"command": "x"}}})
    environ = {"APPDATA": str(tmp_path / "Roaming")}
    assert [source.path for source in find_importable(tmp_path, tmp_path / "w", environ, platform=platform)] == [path]


def test_with_nothing_there_the_plan_says_so(tmp_path: Path) -> None:
    empty = plan(tmp_path, tmp_path)
    assert empty.rows == ()
    assert empty.text == "No other client's servers were found."
    target = tmp_path / "mcp.json"
    assert apply_import(empty, target) == ()
    assert not target.exists()


def test_a_source_that_cannot_be_read_is_named_with_its_place_and_hides_no_other(tmp_path: Path) -> None:
    put(tmp_path / ".claude.json", '{"mcpServers": {\n "a": "' + SECRET)
    put(tmp_path / ".cursor/mcp.json", '{"mcpServers": ["' + SECRET + '"]}')
    put(tmp_path / ".mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    (tmp_path / ".config/Claude/claude_desktop_config.json").mkdir(parents=True)
    result = plan(tmp_path, tmp_path, platform="linux")
    assert list(result.additions) == ["a"]
    assert len(result.diagnostics) == 3
    assert ".claude.json, line 2, column" in result.text
    assert "`mcpServers` is not an object" in result.text
    assert SECRET not in result.text


def test_b010_the_vs_code_key_is_named(tmp_path: Path) -> None:
    text = '{ // mine\n "servers":{"docs":{"type":"http","url":"https://example.test/mcp"}}}'
    put(tmp_path / ".cursor/mcp.json", text)
    result = plan(tmp_path, tmp_path)
    assert result.rows == ()
    assert "line 2, column 2: `servers` is VS Code's key; `mcpServers` is expected" in result.text


# --- what becomes of an entry ---------------------------------------------------------------------------------


def test_foreign_fields_are_left_out_and_the_rest_is_kept(tmp_path: Path) -> None:
    result = claude(
        tmp_path,
        a={"type": "stdio", "command": "npx", "args": ["-y", "pkg"], "env": {}, "timeout": 30, "alwaysAllow": ["x"]},
        b={"type": "http", "url": "https://h.test/mcp", "headers": None, "autoApprove": []},
        c={"type": "sse", "url": "https://h.test/sse"},
    )
    assert result.additions == {
        "a": {"type": "stdio", "command": "npx", "args": ["-y", "pkg"], "env": {}},
        "b": {"type": "http", "url": "https://h.test/mcp"},
        "c": {"type": "sse", "url": "https://h.test/sse"},
    }
    assert "Left out, without a meaning here: `timeout`, `alwaysAllow`." in result.text


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ("text", "an object is expected"),
        ({}, "`command` or `url` is missing"),
        ({"command": 5}, "`command`"),
        ({"url": "https://h.test/", "headersHelper": SECRET}, "`headersHelper`"),
        ({"command": "x", "envFile": SECRET}, "`envFile`"),
        ({"command": "x", "env": {"A": 5}}, "`env.A`"),
        ({"command": "x", "enable": False}, "`enable`"),
    ],
)
def test_b026_an_entry_that_cannot_be_used_is_shown_with_its_field_and_place(
    tmp_path: Path, entry: Any, named: str
) -> None:
    result = claude(tmp_path, bad=entry, good={"command": "x"})
    assert [row.action for row in result.rows] == ["invalid", "add"]
    assert named in result.text
    assert "line 1, column" in result.text
    assert SECRET not in result.text
    assert SECRET not in repr(result)


def test_a_server_that_is_off_stays_off(tmp_path: Path) -> None:
    entries = {"a": {"command": "x", "disabled": True}, "b": {"command": "x", "enabled": False}}
    result = claude(tmp_path, **entries)
    assert configuration_of(result.additions).servers == {}


def test_same_and_conflict_are_told_apart_and_neither_is_written(tmp_path: Path) -> None:
    mine = configuration_of({"a": {"command": "x", "args": ["1"]}, "b": {"command": "mine"}, "c": {"command": 5}})
    put(
        tmp_path / ".claude.json",
        {"mcpServers": {name: {"type": "stdio", "command": "x", "args": ["1"]} for name in "abcd"}},
    )
    put(tmp_path / ".cursor/mcp.json", {"mcpServers": {"d": {"command": "x", "args": ["1"]}, "a": {"command": "x"}}})
    put(tmp_path / ".config/Claude/claude_desktop_config.json", {"mcpServers": {"d": {"command": "other"}}})
    result = plan(tmp_path, tmp_path / "w", mine, platform="linux")
    assert [(row.name, row.client, row.action) for row in result.rows] == [
        ("a", "Claude Code", "same"),
        ("b", "Claude Code", "conflict"),
        ("c", "Claude Code", "conflict"),
        ("d", "Claude Code", "add"),
        ("d", "Claude Desktop", "conflict"),
        ("d", "Cursor", "not_shown"),
        ("a", "Cursor", "conflict"),
    ]
    assert list(result.additions) == ["d"]
    assert "1 more says the same again" in result.text


def test_a_project_s_entry_may_become_the_person_s_own(tmp_path: Path) -> None:
    put(tmp_path / "w/.mcp.json", {"mcpServers": {"a": {"command": "x"}}})
    configuration = load_config(cwd=tmp_path / "w")
    assert configuration.entries["a"].state == "untrusted_project"
    assert list(plan(tmp_path, tmp_path / "w", configuration).additions) == ["a"]


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "pi-mcp", "args": ["serve"]},
        {"command": "/home/u/.local/bin/pi-mcp", "args": ["serve", "--http"]},
        {"command": "uvx", "args": ["pi-mcp", "serve"]},
        {"command": "python3", "args": ["-m", "pi_mcp", "serve"]},
    ],
)
def test_pi_mcp_itself_is_not_imported(tmp_path: Path, entry: Any) -> None:
    assert [row.action for row in claude(tmp_path, me=entry).rows] == ["not_shown"]


def test_applying_writes_the_additions_once_and_overwrites_nothing(tmp_path: Path) -> None:
    result = claude(tmp_path, a={"command": "x", "env": {"TOKEN": SECRET}}, b={"command": "y"})
    target = put(tmp_path / "mcp.json", '{\n  // mine\n  "mcpServers": {"b": {"command": "mine"}},\n}\n')
    before = (tmp_path / ".claude.json").read_bytes()
    assert apply_import(result, target) == ("a",)
    text = target.read_text()
    assert "// mine" in text
    assert jsonc.parse(text).value["mcpServers"] == {
        "b": {"command": "mine"},
        "a": {"command": "x", "env": {"TOKEN": SECRET}},
    }
    assert apply_import(result, target) == ()
    assert target.read_text() == text
    assert (tmp_path / ".claude.json").read_bytes() == before


def test_b016_applying_to_a_file_that_does_not_parse_leaves_it(tmp_path: Path) -> None:
    result = claude(tmp_path, a={"command": "x", "env": {"TOKEN": SECRET}})
    target = put(tmp_path / "mcp.json", '{"mcpServers": ')
    with pytest.raises(ConfigurationError) as caught:
        apply_import(result, target)
    assert target.read_text() == '{"mcpServers": '
    assert SECRET not in str(caught.value)


# --- what a `$` and a `!` mean elsewhere ------------------------------------------------------------------------


def test_a_value_that_begins_with_an_exclamation_mark_elsewhere_never_becomes_a_command(tmp_path: Path) -> None:
    put(tmp_path / ".claude.json", {"mcpServers": {"a": {"command": "x", "env": {"P": "!touch MARK"}}}})
    put(tmp_path / ".cursor/mcp.json", {"mcpServers": {"b": {"url": "https://h.test/", "headers": {"P": "!x"}}}})
    result = plan(tmp_path, tmp_path / "w")
    for name, value in (("a", "!touch MARK"), ("b", "!x")):
        resolved = resolved_of(result.additions[name], {})
        assert resolved.commands == ()
        assert {**resolved.env, **resolved.headers}["P"].reveal() == value


def test_a_project_s_own_file_already_speaks_our_language(tmp_path: Path) -> None:
    entry = {"command": "x", "env": {"P": "!op read item", "Q": "$HOME", "R": "${A:-b}"}}
    put(tmp_path / "w/.mcp.json", {"mcpServers": {"a": entry}})
    result = plan(tmp_path, tmp_path / "w")
    assert result.additions["a"] == entry
    assert "!op read item" in result.text


def test_references_of_claude_code_stay_references_and_other_dollars_stay_dollars(tmp_path: Path) -> None:
    result = claude(
        tmp_path,
        a={
            "command": "${BIN}/x",
            "args": ["$HOME", "${A:-d$e}", "$${A}"[1:], "100$"],
            "env": {"P": "pa$word$$!", "Q": "Bearer ${TOK}", "R": "${NONE:-a$b}", "S": "${not a name}"},
        },
    )
    resolved = resolved_of(result.additions["a"], {"BIN": "/bin", "A": "1", "TOK": "t0ken"})
    assert resolved.command == "/bin/x"
    assert resolved.args == ("$HOME", "1", "1", "100$")
    assert {name: value.reveal() for name, value in resolved.env.items()} == {
        "P": "pa$word$$!",
        "Q": "Bearer t0ken",
        "R": "a$b",
        "S": "${not a name}",
    }


@given(st.text(alphabet="$!{}A:-e nv", max_size=12))
def test_claude_desktop_interpolates_nothing_and_neither_does_its_import(value: str) -> None:
    from pi_mcp.config.importing import Importable

    entry = {"command": "x", "args": [value], "env": {"P": value}}
    rows = plan_import((Importable(Path("/c.json"), "Claude Desktop", {"a": entry}, "plain"),), Configuration()).rows
    resolved = resolved_of(rows[0].entry, {"A": "WRONG", "e": "WRONG"})
    assert resolved.args == (value,)
    assert resolved.env["P"].reveal() == value
    assert resolved.commands == ()


def test_variables_of_cursor_are_put_in_our_words(tmp_path: Path) -> None:
    put(
        tmp_path / ".cursor/mcp.json",
        {
            "mcpServers": {
                "a": {
                    "command": "${userHome}/bin/x",
                    "args": ["${workspaceFolder}/src", "a${pathSeparator}b"],
                    "env": {"T": "${env:TOK}", "D": "$TOK"},
                },
                "b": {"command": "x", "args": ["${workspaceFolderBasename}"]},
                "c": {
                    "url": "https://h.test/mcp",
                    "auth": {"CLIENT_ID": "id", "CLIENT_SECRET": SECRET, "scopes": ["read"]},
                },
            }
        },
    )
    result = plan(tmp_path, tmp_path / "w")
    assert [row.action for row in result.rows] == ["add", "invalid", "add"]
    resolved = resolved_of(result.additions["a"], {"HOME": "/home/u", "TOK": "t0ken"})
    assert resolved.command == "/home/u/bin/x"
    assert resolved.args == ("./src", "a/b")
    assert {name: value.reveal() for name, value in resolved.env.items()} == {"T": "t0ken", "D": "$TOK"}
    assert "`${workspaceFolderBasename}` of Cursor has no counterpart" in result.text
    assert result.additions["c"] == {
        "url": "https://h.test/mcp",
        "oauth": {"clientId": "id", "clientSecret": SECRET, "scopes": ["read"]},
    }
    assert SECRET not in result.text


# --- what is shown ----------------------------------------------------------------------------------------------

HIDDEN: dict[str, dict[str, Any]] = {
    "variable": {"command": "x", "env": {"ANYTHING": SECRET}},
    "variable with a reference beside it": {"command": "x", "env": {"A": "${USER}:" + SECRET}},
    "default of a reference": {"command": "x", "env": {"A": "${TOKEN:-" + SECRET + "}"}},
    "header": {"url": "https://h.test/", "headers": {"Authorization": f"Bearer {SECRET}"}},
    "user information": {"url": f"https://user:{SECRET}@h.test/mcp"},
    "user name alone": {"url": f"https://{SECRET}@h.test/mcp"},
    "query": {"url": f"https://h.test/mcp?key={SECRET}&x=1"},
    "bare query": {"url": f"https://h.test/mcp?{SECRET}"},
    "fragment": {"url": f"https://h.test/mcp#{SECRET}"},
    "path": {"url": f"https://h.test/s/{SECRET}/mcp"},
    "option": {"command": "x", "args": ["--api-key", SECRET]},
    "option with equals": {"command": "x", "args": [f"--token={SECRET}"]},
    "assignment": {"command": "docker", "args": ["run", "-e", f"ANY={SECRET}", "image"]},
    "header option": {"command": "npx", "args": ["mcp-remote", "https://h.test", "--header", f"X-Any: {SECRET}"]},
    "header without blank": {"command": "npx", "args": ["mcp-remote", "--header", f"Authorization:Bearer {SECRET}"]},
    "address in an argument": {"command": "x", "args": [f"postgres://u:{SECRET}@h/db"]},
    "shell text": {"command": "sh", "args": ["-c", f"TOKEN={SECRET} exec server --password {SECRET}"]},
    "header in shell text": {"command": "sh", "args": ["-c", f'curl -H "Authorization: Bearer {SECRET}" h']},
    "bare argument": {"command": "x", "args": [SECRET]},
    "client secret": {"url": "https://h.test/", "oauth": {"clientId": "a", "clientSecret": SECRET}},
    "private key": {"url": "https://h.test/", "oauth": {"clientId": "a", "privateKey": SECRET}},
}


# Alone in a path or an argument, nothing tells a short word that is a secret from any other.
PLANTED = [
    (kind, secret)
    for kind in HIDDEN
    for secret in (SECRET, "hunter2-short", "sk-proj-aB3_x9", "eyJhbGciOi.J9eyJz.dWIi0i")
    if secret != "hunter2-short" or kind not in ("path", "bare argument")
]


@pytest.mark.parametrize(("kind", "secret"), PLANTED)
def test_no_preview_shows_a_secret(tmp_path: Path, kind: str, secret: str) -> None:
    entry = json.loads(json.dumps(HIDDEN[kind]).replace(SECRET, secret))
    result = claude(tmp_path, a=entry)
    assert [row.action for row in result.rows] == ["add"], result.text
    for shown in (result.text, repr(result), json.dumps(result.to_json())):
        assert secret not in shown
    assert "***" in result.text
    assert secret in json.dumps(dict(result.additions["a"]))


def test_what_a_person_decides_by_stays_readable() -> None:
    entry = {
        "type": "stdio",
        "command": "npx",
        "args": ["-y", "@modelcontextprotocol/server-filesystem@2026.1.14", "/home/u/project", "--port", "8080"],
        "env": {"TOKEN": "${GITHUB_TOKEN}", "H": "Bearer $TOK", "C": "!op read op://Private/item", "E": ""},
        "keywords": ["files"],
        "disabled": True,
    }
    assert json.loads(shown_entry(entry)) == entry
    address = {"url": "https://${HOST}/mcp/v1?key=${KEY}", "headers": {"X-Key": "${KEY}"}}
    assert json.loads(shown_entry(address)) == address


def test_what_is_shown_cannot_steer_a_terminal(tmp_path: Path) -> None:
    result = claude(tmp_path, **{"a\x1b[2J": {"command": "x\x1b]0;t\x07", "args": ["\u202ecod.exe\x9b31m"]}})
    assert not set(result.text) & {"\x1b", "\x07", "\x9b", "\u202e"}


def test_secrets_in_plain_text_are_warned_about_by_name(tmp_path: Path) -> None:
    result = claude(
        tmp_path,
        a={"command": "x", "env": {"API_KEY": SECRET, "MODE": "fast", "OTHER_TOKEN": "${T}"}},
        b={"url": "https://h.test/", "headers": {"Authorization": f"Bearer {SECRET}"}},
    )
    warnings = [warning for row in result.rows for warning in row.warnings]
    assert len(warnings) == 2
    assert "`env.API_KEY` holds its value in plain text; `${API_KEY}`" in warnings[0]
    assert "`headers.Authorization`" in warnings[1]
    assert SECRET not in result.text


# --- a new server -----------------------------------------------------------------------------------------------


def test_a_new_server_is_an_address_or_a_command() -> None:
    assert add_entry("docs", url="https://h.test/mcp", headers={"Authorization": "Bearer ${T}"}) == {
        "url": "https://h.test/mcp",
        "headers": {"Authorization": "Bearer ${T}"},
    }
    assert add_entry("git", command="uvx", args=("mcp-server-git", "--x"), env={"A": "1"}) == {
        "command": "uvx",
        "args": ["mcp-server-git", "--x"],
        "env": {"A": "1"},
    }


@pytest.mark.parametrize("name", ["", " ", "a" * 65, "a\nb", "a\x1b[2Jb", "\u202ea", " a", "a\u200bb"])
def test_a_name_has_to_be_plain(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name has 1 to 64 characters"):
        add_entry(name, command="x")


@pytest.mark.parametrize("name", ["a", "a" * 64, "Größe/1", "a b", "字"])
def test_a_name_may_be_in_any_script(name: str) -> None:
    assert add_entry(name, command="x") == {"command": "x"}


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"url": "https://h.test/", "command": "x"},
        {"url": "ftp://h.test/" + SECRET},
        {"url": f"{SECRET}"},
        {"url": "https://h.test/", "env": {"A": SECRET}},
        {"url": "https://h.test/", "args": [SECRET]},
        {"command": "x", "headers": {"A": SECRET}},
        {"command": ""},
        {"command": "x", "env": {"A=B": SECRET}},
        {"url": "https://h.test/", "headers": {"A B": SECRET}},
    ],
)
def test_a_new_server_that_cannot_be_is_refused_without_its_values(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        add_entry("s", **arguments)
    assert SECRET not in str(caught.value)
    assert caught.value.diagnostic.server == "s"


def test_rows_and_plans_are_values(tmp_path: Path) -> None:
    result = claude(tmp_path, a={"command": "x"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.rows[0].name = "b"  # type: ignore[misc]
