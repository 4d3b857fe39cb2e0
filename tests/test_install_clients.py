"""`pi-mcp install` for clients of the gateway: one entry in a file that is the person's."""

from __future__ import annotations

import json
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli import main
from pi_mcp.config import load_config
from pi_mcp.config.gateway_entry import starts_gateway
from pi_mcp.hosts.install import TARGETS, Wishes, target_named
from pi_mcp.hosts.install.entries import EntryTarget
from pi_mcp.hosts.install.variables import OURS, named_variables
from tests.install_support import SECRET, Machine, lines_of, pi_mcp

CLIENTS = tuple(target.name for target in TARGETS if target.kind == "client")
URL = "http://127.0.0.1:18490/mcp"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def client(name: str) -> EntryTarget:
    target = target_named(name)
    assert isinstance(target, EntryTarget)
    return target


def servers(machine: Machine, name: str) -> dict[str, Any]:
    target = client(name)
    text = target.place(machine.around).read_text()
    value = tomllib.loads(text) if target.syntax == "toml" else json.loads(text)
    for key in target.keys:
        value = value[key]
    assert isinstance(value, dict)
    return value


def test_a_pi_mcp_that_cannot_serve_says_so_before_an_entry_is_written(machine: Machine) -> None:
    target = client("codex")
    bare = replace(machine.around, serves=False)
    assert any("[gateway]" in line for line in target.install(bare, Wishes()).warnings)
    assert not any("[gateway]" in line for line in target.install(bare, Wishes(url=URL)).warnings)
    assert not any("[gateway]" in line for line in target.install(machine.around, Wishes()).warnings)


# A file as a person has it: comments where the client has them, other servers with secrets, odd spacing.
HAVE = {
    "claude-code": f'{{"n": 7,  "oauth": "{SECRET}",\n  "mcpServers": {{\n    "x": {{"command": "y"}}\n  }}\n}}',
    "claude-desktop": f'{{\n\t"mcpServers": {{\n\t\t"x": {{"command": "y", "env": {{"T": "{SECRET}"}}}}\n\t}}\n}}\n',
    "codex": f'# mine\nmodel = "m"\n\n[mcp_servers.x]\ncommand = "y"\nenv = {{ T = "{SECRET}" }} # here\n',
    "gemini": f'{{\n  "theme": "dark", // nice\n  "key": "{SECRET}"\n}}\n',
    "opencode": f'{{\r\n  "mcp": {{\r\n    "x": {{"type": "local", "key": "{SECRET}"}}\r\n  }}\r\n}}\r\n',
    "cursor": f'{{"mcpServers": {{"x": {{"url": "http://h/?k={SECRET}"}}}}}}',
    "vscode": f'{{\n    "inputs": [],\n    "servers": {{\n        "x": {{"command": "{SECRET}"}}, // c\n    }},\n}}\n',
    "zed": f'// Zed\n{{\n  "a": "{SECRET}",\n  /* last */\n}}\n',
}


@pytest.mark.parametrize("name", CLIENTS)
def test_an_entry_is_added_to_a_file_and_taken_out_again_byte_for_byte(machine: Machine, name: str) -> None:
    path = machine.write(client(name).place(machine.around), HAVE[name])
    path.chmod(0o644)
    plan = machine.do("install", name)
    after = path.read_bytes().decode()
    assert any("/opt/pi-mcp/bin/pi-mcp" in line for line in lines_of(plan))
    for line in HAVE[name].splitlines():
        assert line.strip().rstrip(",}") in after, "every line of the person's is there"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert machine.plan("install", name).changes == ()
    assert client(name).installed(machine.around).state == "current"
    machine.do("uninstall", name)
    assert path.read_bytes().decode() == HAVE[name]
    assert client(name).installed(machine.around).state == "none"


def layouts(name: str) -> list[str]:
    """Files in which the structure alone does not say what blanks and commas stood where the entry comes to stand."""
    if client(name).syntax == "toml":
        bodies = ["", 'model = "m"', "# only a comment", "[mcp_servers]", "[mcp_servers.x]\na = 1", "mcp_servers = {}"]
        ends = ["", "\n", "\n\n", "\r\n", "\n# last\n", "\n\n[other]\nb = 2\n"]
        return [body + end for body in bodies for end in ends]
    (key, *_) = client(name).keys
    tails = ("", ",", ", ", "\n", ",\n", " ,", "/*c*/")
    inner = ["", " ", "\n", "\n  ", "\r\n", "// c\n"]
    inner += [f'{lead}"x": {{}}{tail}' for lead in ("", " ", "\n  ") for tail in tails]
    texts = [f"{{{body}}}" for body in inner]
    texts += [f'{{"{key}": {{{body}}}}}' for body in inner]
    texts += [f'{{\n\t"{key}": {{{body}}},\n}}' for body in inner]
    return [head + text + end for text in texts for head in ("", "\ufeff") for end in ("", "\n")] + ["", "\n", " \r\n"]


@pytest.mark.parametrize("name", ["cursor", "opencode", "codex"])
def test_what_was_there_comes_back_byte_for_byte_in_every_layout(machine: Machine, name: str) -> None:
    path = client(name).place(machine.around)
    tried = 0
    for text in layouts(name):
        machine.write(path, text)
        before = path.read_bytes()
        if machine.plan("install", name).problem is not None:  # a table that cannot be added to: nothing is written
            assert machine.plan("install", name).changes == ()
            continue
        machine.do("install", name)
        machine.do("install", name, Wishes(url=URL))
        machine.do("install", name)
        assert path.read_bytes() != before
        machine.do("uninstall", name)
        assert path.read_bytes() == before
        tried += 1
    assert tried > 20


def test_what_a_person_wrote_meanwhile_stays_when_the_entry_goes(machine: Machine) -> None:
    path = machine.write(client("cursor").place(machine.around), "{ }")
    machine.do("install", "cursor")
    path.write_text(path.read_text().replace('"mcpServers"', '"theme": "dark", "mcpServers"'))
    machine.do("uninstall", "cursor")
    assert json.loads(path.read_text()) == {"theme": "dark"}

    path.write_text('{"a": 1 ,}')
    machine.do("install", "cursor")
    path.write_text("// mine\n" + path.read_text())
    machine.do("uninstall", "cursor")
    assert path.read_text() == '// mine\n{"a": 1 ,}'


def test_a_damaged_note_of_what_was_put_in_does_no_harm(machine: Machine) -> None:
    path = machine.write(client("cursor").place(machine.around), '{"a": 1}')
    machine.do("install", "cursor")
    (note,) = (machine.around.state / "installed").glob("cursor-*.json")
    kept = json.loads(note.read_text())
    assert SECRET not in note.read_text()
    changes: list[dict[str, Any]] = [{"length": "x"}, {"blanks": "text"}, {"kept": [9, -1]}, {"sha256": None}]
    for seam in (None, [], *({**kept["seam"], **change} for change in changes)):
        note.write_text(json.dumps({**kept, "seam": seam}))
        machine.do("uninstall", "cursor")
        assert json.loads(path.read_text()) == {"a": 1}
        machine.do("install", "cursor")


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_without_a_file_gets_one_that_goes_with_the_entry(machine: Machine, name: str) -> None:
    plan = machine.do("install", name)
    path = client(name).place(machine.around)
    entry = servers(machine, name)["pi-mcp"]
    assert starts_gateway(entry)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert plan.undo == (f"pi-mcp uninstall {name}",)
    machine.do("uninstall", name)
    assert machine.files() == {}


@pytest.mark.parametrize("name", CLIENTS)
def test_an_address_is_written_in_the_place_of_a_command_and_back(machine: Machine, name: str) -> None:
    machine.write(client(name).place(machine.around), HAVE[name])
    plan = machine.do("install", name, Wishes(URL))
    if name == "claude-desktop":
        assert plan.problem is not None
        assert "Settings, Connectors" in str(plan.problem.hint)
        return
    entry = servers(machine, name)["pi-mcp"] if name in ("codex", "opencode", "cursor") else None
    assert entry is None or (entry["url"] == URL and "args" not in entry)
    assert machine.plan("install", name, Wishes(URL)).changes == ()
    assert client(name).installed(machine.around).state == "current"
    machine.do("install", name)
    assert URL not in client(name).place(machine.around).read_text()
    machine.do("install", name, Wishes(URL))
    machine.do("uninstall", name)
    assert client(name).place(machine.around).read_bytes().decode() == HAVE[name]


def test_the_spellings_of_the_clients(machine: Machine) -> None:
    command, args = "/opt/pi-mcp/bin/pi-mcp", ["serve"]
    spelled: dict[str, Any] = {}
    for name in CLIENTS:
        machine.do("install", name)
        spelled[name] = (
            client(name).place(machine.around).relative_to(machine.home).as_posix(),
            servers(machine, name),
        )
    local = {"pi-mcp": {"command": command, "args": args}}
    typed = {"pi-mcp": {"type": "stdio", "command": command, "args": args}}
    assert spelled == {
        "claude-code": (".claude.json", typed),
        "claude-desktop": (".config/Claude/claude_desktop_config.json", local),
        "codex": (".codex/config.toml", {"pi-mcp": {**local["pi-mcp"], "env_vars": sorted(OURS)}}),
        "gemini": (".gemini/settings.json", local),
        "opencode": (
            ".config/opencode/opencode.json",
            {"pi-mcp": {"type": "local", "command": [command, *args], "enabled": True}},
        ),
        "cursor": (".cursor/mcp.json", local),
        "vscode": (".config/Code/User/mcp.json", typed),
        "zed": (".config/zed/settings.json", local),
    }


def test_clients_that_keep_variables_back_are_told_which_the_servers_need(machine: Machine, private_home: Path) -> None:
    table = {
        "a": {"url": "https://h/${PLAIN}", "headers": {"Authorization": "Bearer $A_TOKEN", "X": "!echo $NOT_OURS"}},
        "b": {"command": "x", "args": ["${env:ARG_KEY:-y}"], "env": {"E": "${E_SECRET}"}, "inheritEnv": ["MORE_AUTH"]},
        "broken": {"command": "x", "args": ["${"]},
    }
    path = private_home / ".config" / "pi-mcp" / "mcp.json"
    machine.write(path, json.dumps({"mcpServers": table}))
    # What a project's file names is nobody's business before it is trusted, and no part of the person's file then.
    machine.write(machine.home / ".mcp.json", json.dumps({"mcpServers": {"p": {"command": "${PROJECT_TOKEN}"}}}))
    names = ("ARG_KEY", "A_TOKEN", "E_SECRET", "MORE_AUTH", "PLAIN")
    assert named_variables(machine.around) == names
    machine.environ["PI_MCP_CREDENTIAL_KEY"] = SECRET
    for name in ("codex", "gemini", "cursor"):
        machine.do("install", name)
    assert servers(machine, "codex")["pi-mcp"]["env_vars"] == sorted({*OURS, *names})
    kept_back = sorted({*names, "PI_MCP_CREDENTIAL_KEY"} - {"PLAIN"})
    assert servers(machine, "gemini")["pi-mcp"]["env"] == {name: f"${name}" for name in kept_back}
    assert "env" not in servers(machine, "cursor")["pi-mcp"]
    # A server more: the entry is renewed, and goes as a whole, with our record and without.
    table["c"] = {"url": "https://h/", "headers": {"X-Key": "$C_KEY"}}
    machine.write(path, json.dumps({"mcpServers": table}))
    for name in ("codex", "gemini"):
        assert client(name).installed(machine.around).state == "outdated"
        machine.do("install", name)
        assert "C_KEY" in client(name).place(machine.around).read_text()
        if name == "codex":
            for record in (machine.state / "installed").iterdir():
                record.unlink()
        machine.do("uninstall", name)
        assert "pi-mcp" not in machine.files().get(str(client(name).place(machine.around)), "")
    assert SECRET not in str(machine.files())


def test_folders_that_variables_name_are_used(machine: Machine) -> None:
    place = machine.root / "place"
    machine.environ.update(
        {
            "CLAUDE_CONFIG_DIR": str(place / "claude"),
            "CODEX_HOME": str(place / "codex"),
            "GEMINI_CLI_HOME": str(place / "gemini"),
            "XDG_CONFIG_HOME": str(place / "xdg"),
        }
    )
    machine.write(place / "xdg" / "opencode" / "opencode.jsonc", "{}\n")
    (place / "xdg" / "VSCodium").mkdir()
    for name in ("claude-code", "codex", "gemini", "opencode", "vscode", "zed"):
        machine.do("install", name)
    written = sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file())
    assert written == [
        "claude/.claude.json",
        "codex/config.toml",
        "gemini/.gemini/settings.json",
        "xdg/VSCodium/User/mcp.json",
        "xdg/opencode/opencode.jsonc",
        "xdg/zed/settings.json",
    ]
    assert machine.files() == {}


def test_a_key_is_named_by_its_variable_in_the_clients_own_spelling(machine: Machine) -> None:
    spelled: dict[str, Any] = {}
    for name in CLIENTS:
        plan = machine.do("install", name, Wishes(URL, token_env="MY_KEY"))
        if name in ("claude-desktop", "zed"):
            assert plan.problem is not None
            assert plan.problem.code == "usage"
            continue
        entry = servers(machine, name)["pi-mcp"]
        spelled[name] = entry.get("bearer_token_env_var") or entry["headers"]["Authorization"]
        assert client(name).installed(machine.around).state == "current"
        machine.do("uninstall", name)
    assert spelled == {
        "claude-code": "Bearer ${MY_KEY}",
        "codex": "MY_KEY",
        "gemini": "Bearer $MY_KEY",
        "opencode": "Bearer {env:MY_KEY}",
        "cursor": "Bearer ${env:MY_KEY}",
        "vscode": "Bearer ${env:MY_KEY}",
    }
    assert machine.files() == {}


@pytest.mark.parametrize("name", CLIENTS)
def test_what_pi_mcp_wrote_does_not_say_that_the_client_is_here(machine: Machine, name: str) -> None:
    before = sorted(machine.root.rglob("*"))
    assert not client(name).detect(machine.around).present
    plan = machine.do("install", name)
    assert any("was not found on this machine" in line for line in plan.warnings)
    assert client(name).installed(machine.around).state == "current"
    assert not client(name).detect(machine.around).present
    machine.do("uninstall", name)
    assert not client(name).detect(machine.around).present
    left = [
        path for path in sorted(machine.root.rglob("*")) if path not in before and machine.state not in path.parents
    ]
    assert left in ([], [machine.state]), "the folders that were made for the file have gone with it"
    machine.write(client(name).place(machine.around), HAVE[name])
    assert client(name).detect(machine.around).present
    assert not any("not found" in line for line in machine.do("install", name).warnings)
    assert client(name).detect(machine.around).present


def test_a_folder_of_the_clients_own_stays_and_says_that_it_is_here(machine: Machine) -> None:
    folder = client("claude-desktop").place(machine.around).parent
    machine.write(folder / "Preferences", "x")
    machine.do("install", "claude-desktop")
    assert client("claude-desktop").detect(machine.around).present
    machine.do("uninstall", "claude-desktop")
    assert machine.files().keys() == {(folder / "Preferences").relative_to(machine.home).as_posix()}


def test_the_name_of_the_keys_variable_can_be_read_in_every_preview(machine: Machine) -> None:
    for name in CLIENTS:
        plan = machine.plan("install", name, Wishes(URL, token_env="MY_KEY"))
        if plan.problem is None:
            assert any("MY_KEY" in line for line in lines_of(plan)), (name, lines_of(plan))
            assert not any("***" in line for line in lines_of(plan)), (name, lines_of(plan))


def test_the_preview_of_a_toml_file_is_its_lines(machine: Machine) -> None:
    path = machine.write(client("codex").place(machine.around), 'model = "x"\n')
    plan = machine.do("install", "codex", Wishes(URL, token_env="MY_KEY"))
    lines = [line.removeprefix("+ ") for line in lines_of(plan)]
    assert lines == ["[mcp_servers.pi-mcp]", f'url = "{URL}"', 'bearer_token_env_var = "MY_KEY"']
    assert path.read_text().endswith("\n".join(lines) + "\n")
    changed = machine.do("install", "codex", Wishes(URL, token_env="OTHER"))
    assert lines_of(changed)[1:] == ['- bearer_token_env_var = "MY_KEY"', '+ bearer_token_env_var = "OTHER"']
    assert lines_of(machine.do("uninstall", "codex"))[0] == "- [mcp_servers.pi-mcp]"


@pytest.mark.parametrize("wishes", [Wishes(token_env="K"), Wishes(URL, token_env=SECRET), Wishes(URL, token_env="")])
def test_a_key_itself_is_never_taken(machine: Machine, wishes: Wishes) -> None:
    plan = machine.plan("install", "cursor", wishes)
    assert plan.problem is not None
    assert plan.problem.code == "usage"
    assert plan.changes == ()


# What is there already


@pytest.mark.parametrize("name", CLIENTS)
def test_an_older_pi_mcp_is_renewed_and_what_the_person_added_stays(machine: Machine, name: str) -> None:
    machine.do("install", name)
    path = client(name).place(machine.around)
    text = path.read_text()
    if name == "codex":
        path.write_text(text + "startup_timeout_sec = 90 # mine\n")
    else:
        path.write_text(text.replace('"pi-mcp": {', '"pi-mcp": {\n      "note": 1,'))
    assert machine.plan("install", name).changes == ()
    machine.command = ("/new/bin/pi-mcp",)
    assert client(name).installed(machine.around).state == "outdated"
    machine.do("install", name)
    entry = servers(machine, name)["pi-mcp"]
    assert "/new/bin/pi-mcp" in (entry["command"], entry["command"][0])
    assert entry.get("note") == 1 or "# mine" in path.read_text()
    before = path.read_text()
    plan = machine.do("uninstall", name)
    assert path.read_text() == before, "an entry with something of the person's is not removed"
    assert "Remove it yourself" in plan.text(set())


@pytest.mark.parametrize("name", CLIENTS)
def test_an_entry_of_our_name_that_we_did_not_write_stays(machine: Machine, name: str) -> None:
    keys = client(name).keys
    if name == "codex":
        text = f'[mcp_servers.pi-mcp]\ncommand = "other"\nenv = {{ T = "{SECRET}" }}\n'
    else:
        text = json.dumps({keys[0]: {"pi-mcp": {"command": "other", "env": {"T": SECRET}}}}, indent=2)
    path = machine.write(client(name).place(machine.around), text)
    plan = machine.do("install", name)
    assert plan.problem is not None
    assert f"{path}, line " in plan.problem.message
    assert machine.do("uninstall", name).changes == ()
    assert path.read_text() == text
    assert client(name).installed(machine.around).state == "changed"


@pytest.mark.parametrize("name", CLIENTS)
def test_without_our_records_an_untouched_entry_is_still_known(machine: Machine, name: str) -> None:
    path = machine.write(client(name).place(machine.around), HAVE[name])
    machine.do("install", name)
    for record in (machine.state / "installed").iterdir():
        record.unlink()  # as `pi-mcp purge --state` does
    assert machine.plan("install", name).changes == ()
    machine.command = ("/new/python", "-P", "-m", "pi_mcp")
    machine.do("install", name)
    assert "/new/python" in path.read_text()
    for record in (machine.state / "installed").iterdir():
        record.write_text("{damaged")
    machine.do("uninstall", name)
    assert "pi-mcp" not in path.read_text()
    assert SECRET in path.read_text()


def test_a_second_entry_that_starts_the_gateway_is_pointed_out(machine: Machine) -> None:
    path = client("cursor").place(machine.around)
    machine.write(path, json.dumps({"mcpServers": {"mine": {"command": "uvx", "args": ["pi-mcp", "serve"]}}}))
    assert "`mine` in the same file starts the gateway, too" in machine.plan("install", "cursor").text(set())


# Files that cannot be edited


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f'{{\n  "a": "{SECRET}"\n  "b": 1\n}}\n', "line 2, column"),
        (f'{{"a": "{SECRET}"', "line 1, column 1"),
        (f'["{SECRET}"]', "line 1, column 1"),
        (f'{{"a": 1,\n "mcpServers": "{SECRET}"}}', "line 2, column 2"),
        (f'{{"mcpServers": {{}},\n "mcpServers": {{"x": "{SECRET}"}}}}', "line 2, column 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_left_alone_and_named_with_line_and_column(
    machine: Machine, text: str, place: str
) -> None:
    path = machine.write(client("cursor").place(machine.around), text)
    for verb in ("install", "uninstall"):
        plan = machine.do(verb, "cursor")
        assert plan.problem is not None
        assert plan.problem.code == "configuration_invalid"
        assert f"{path}, {place}" in plan.problem.message
    assert path.read_text() == text
    assert machine.files() == {".cursor/mcp.json": text}


def test_a_file_that_is_no_text_is_left_alone(machine: Machine) -> None:
    path = machine.write(client("cursor").place(machine.around), "{}")
    path.write_bytes(b'{\n "a": "\xff"}')
    plan = machine.do("install", "cursor")
    assert plan.problem is not None
    assert "line 2, column 8" in plan.problem.message


@pytest.mark.parametrize("text", ["", "\n", "\ufeff{}\n", "// nothing yet\n{}"])
def test_a_file_with_nothing_in_it_is_filled(machine: Machine, text: str) -> None:
    path = machine.write(client("zed").place(machine.around), text)
    assert machine.do("install", "zed").problem is None
    assert path.read_text().startswith(text.strip("{}\n"))
    assert '"pi-mcp"' in path.read_text()


def test_a_link_to_a_file_among_dotfiles_stays_a_link(machine: Machine) -> None:
    real = machine.write(machine.root / "dotfiles" / "cursor.json", HAVE["cursor"])
    path = client("cursor").place(machine.around)
    path.parent.mkdir(parents=True)
    path.symlink_to("../../dotfiles/cursor.json")
    plan = machine.do("install", "cursor")
    assert path.is_symlink()
    assert '"pi-mcp"' in real.read_text()
    assert f"{path} is a link to {real}; the link stays." in plan.text(set())
    machine.do("uninstall", "cursor")
    assert path.is_symlink()
    assert real.read_text() == HAVE["cursor"]


def test_a_link_to_nowhere_and_a_folder_in_the_files_place_are_named(machine: Machine) -> None:
    path = client("cursor").place(machine.around)
    path.parent.mkdir(parents=True)
    path.symlink_to("nowhere.json")
    plan = machine.do("install", "cursor")
    assert plan.problem is not None
    assert "leads nowhere" in str(plan.problem.hint)
    path.unlink()
    path.mkdir()
    assert machine.do("install", "cursor").problem is not None


# Projects, and our own reading of them


def test_a_projects_file_gets_the_entry_and_pi_mcp_itself_reads_past_it(machine: Machine) -> None:
    path = machine.cwd / ".mcp.json"
    plan = machine.do("install", "claude-code", Wishes(project=True))
    assert plan.undo == ("pi-mcp uninstall claude-code --project",)
    assert "names a program on this machine" in plan.text(set())
    assert "pi-mcp" in json.loads(path.read_text())["mcpServers"]
    configuration = load_config(cwd=machine.cwd)
    assert configuration.entries == {}
    assert configuration.project is None, "there is nothing to trust in it"
    other = {"command": "true"}
    path.write_text(json.dumps({"mcpServers": {**json.loads(path.read_text())["mcpServers"], "other": other}}))
    assert list(load_config(cwd=machine.cwd, trust_project=True).entries) == ["other"]
    machine.do("uninstall", "claude-code", Wishes(project=True))
    assert json.loads(path.read_text()) == {"mcpServers": {"other": other}}


def test_our_own_gateway_in_a_file_of_ours_is_left_out_with_a_word(private_home: Path) -> None:
    path = private_home / ".config" / "pi-mcp" / "mcp.json"
    path.parent.mkdir(parents=True)
    entry = {"command": "/opt/pi-mcp", "args": ["serve"], "env": {"T": SECRET}}
    path.write_text(json.dumps({"mcpServers": {"me": entry, "x": {"command": "true"}}}))
    configuration = load_config(cwd=private_home)
    assert {name: one.state for name, one in configuration.entries.items()} == {"me": "invalid", "x": "ready"}
    said = configuration.entries["me"].diagnostic
    assert said is not None
    assert said.line().startswith(f"me: [configuration_invalid] {path}, line 1, column 17: this entry starts pi-mcp")
    assert SECRET not in said.line()


@pytest.mark.parametrize("words", [["serve"], ["serve", "--config", "/other.json"]])
def test_a_file_of_ours_with_our_own_gateway_alone_says_why_there_is_no_server(
    words: list[str], private_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = private_home / ".config" / "pi-mcp" / "mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"mcpServers": {"a": {"command": "pi-mcp", "args": words}}}))
    for command in (["servers"], ["tools"], ["search", "x"], ["call", "a", "x"], ["get", "a"]):
        code = main(command)
        shown = "".join(capsys.readouterr())
        assert "starts pi-mcp itself" in shown, command
        assert "No MCP server is configured" not in shown, command
        assert code == (0 if command[0] in ("servers", "get") else 2)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"command": "pi-mcp", "args": ["serve"]}, True),
        ({"command": "/a b/pi-mcp", "args": ["serve", "--expose", "all"]}, True),
        ({"command": ["/a/pi-mcp", "serve"]}, True),
        ({"command": "python3", "args": ["-m", "pi_mcp", "serve"]}, True),
        ({"command": "uvx", "args": ["pi-mcp@latest", "serve"]}, True),
        ({"command": "C:\\x\\pi-mcp.exe", "args": ["serve"]}, True),
        ({"command": "pi-mcp", "args": ["engine"]}, False),
        ({"command": "serve", "args": ["my-pi-mcp"]}, False),
        ({"url": "http://127.0.0.1/serve"}, False),
        ({"command": 3, "args": "serve"}, False),
        ("pi-mcp serve", False),
        (None, False),
    ],
)
def test_an_entry_that_starts_our_gateway_is_known_in_every_spelling(entry: Any, expected: bool) -> None:
    assert starts_gateway(entry) is expected


def test_a_projects_link_is_not_followed(machine: Machine) -> None:
    target = machine.write(machine.root / "victim.json", "{}\n")
    (machine.cwd / ".mcp.json").symlink_to(target)
    assert machine.do("install", "claude-code", Wishes(project=True)).problem is not None
    assert target.read_text() == "{}\n"


def test_clients_without_a_project_file_say_so(machine: Machine) -> None:
    plan = machine.do("install", "zed", Wishes(project=True))
    assert plan.problem is not None
    assert plan.problem.code == "usage"


# The command


@pytest.mark.parametrize("url", ["127.0.0.1:1", "file:///etc/passwd", "http://a b/", ""])
def test_an_address_that_is_none_is_a_usage_error(machine: Machine, url: str) -> None:
    plan = machine.plan("install", "cursor", Wishes(url))
    assert plan.problem is not None
    assert plan.problem.code == "usage"


def test_a_secret_in_the_address_is_written_and_never_shown(private_home: Path) -> None:
    url = f"http://user:{SECRET}@127.0.0.1:1/mcp?key={SECRET}"
    done = pi_mcp("install", "cursor", "--url", url, "--yes")
    assert done.returncode == 0
    assert SECRET not in done.stdout + done.stderr
    path = private_home / ".cursor" / "mcp.json"
    assert json.loads(path.read_text())["mcpServers"]["pi-mcp"]["url"] == url
    assert not [one for one in (private_home / ".local").rglob("*") if one.is_file() and SECRET in one.read_text()]
    for words in (("install", "cursor", "--yes"), ("hosts",), ("uninstall", "cursor", "--yes", "--json")):
        done = pi_mcp(*words)
        assert done.returncode == 0
        assert SECRET not in done.stdout + done.stderr
    assert not path.exists()
