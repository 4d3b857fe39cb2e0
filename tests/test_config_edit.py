"""Edits of configuration files: one change, and everything else as the person wrote it."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pi_mcp.config import edit, jsonc
from pi_mcp.errors import ConfigurationError, NotFound, PiMcpError

SECRET = "ghp_PLANTED_0123456789"

# --- examples ---------------------------------------------------------------------------------------------


def edited(tmp_path: Path, text: str, *steps: Any) -> str:
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode())
    for function, *arguments in steps:
        function(path, *arguments)
    return path.read_bytes().decode()


def test_a_new_server_follows_the_others_in_their_style(tmp_path: Path) -> None:
    text = """{
    // my servers
    "mcpServers": {
        "a": {"command": "x"}, // the first
        // "off": {"command": "y"}
    },
    "theme": "dark"
}
"""
    assert (
        edited(tmp_path, text, (edit.set_server, "b", {"command": "uvx", "args": ["s", "--now"]}))
        == """{
    // my servers
    "mcpServers": {
        "a": {"command": "x"}, // the first
        // "off": {"command": "y"}
        "b": {
            "command": "uvx",
            "args": ["s", "--now"]
        },
    },
    "theme": "dark"
}
"""
    )


def test_a_file_without_trailing_commas_stays_readable_for_strict_readers(tmp_path: Path) -> None:
    text = json.dumps({"mcpServers": {"a": {"command": "x"}, "b": {"url": "http://h/"}}, "k": [1, {}]}, indent=2)
    added = edited(tmp_path, text, (edit.set_server, "c", {"command": "z", "env": {"A": "1", "B": "2"}}))
    assert json.loads(added)["mcpServers"]["c"] == {"command": "z", "env": {"A": "1", "B": "2"}}
    assert edited(tmp_path, added, (edit.remove_server, "c")) == text
    assert json.loads(edited(tmp_path, text, (edit.remove_server, "b"))) == {
        "mcpServers": {"a": {"command": "x"}},
        "k": [1, {}],
    }
    assert json.loads(edited(tmp_path, text, (edit.remove_server, "a"), (edit.remove_server, "b"))) == {
        "mcpServers": {},
        "k": [1, {}],
    }


def test_a_removed_server_takes_its_line_and_leaves_the_comments(tmp_path: Path) -> None:
    text = """{
  "mcpServers": {
    // first
    "a": {
      "command": "x" // pinned
    },
    // second
    "b": {"command": "y"} // note
  }
}
"""
    assert (
        edited(tmp_path, text, (edit.remove_server, "a"))
        == """{
  "mcpServers": {
    // first
    // pinned
    // second
    "b": {"command": "y"} // note
  }
}
"""
    )
    assert (
        edited(tmp_path, text, (edit.remove_server, "b"))
        == """{
  "mcpServers": {
    // first
    "a": {
      "command": "x" // pinned
    }
    // second
    // note
  }
}
"""
    )


def test_switching_off_and_on_changes_one_member_and_nothing_else(tmp_path: Path) -> None:
    text = '{"mcpServers": {\r\n\t"a": { // mine\r\n\t\t"command": "x"\r\n\t}\r\n}}\r\n'
    off = edited(tmp_path, text, (edit.set_disabled, "a", True))
    assert off == text.replace('"x"\r\n', '"x",\r\n\t\t"disabled": true\r\n')
    assert edited(tmp_path, off, (edit.set_disabled, "a", False)) == off.replace("true", "false")


def test_b025_a_server_with_enabled_is_switched_by_that_field(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "enabled": false}, "b": {"command": "y", "disabled": true}}}'
    on = edited(tmp_path, text, (edit.set_disabled, "a", False), (edit.set_disabled, "b", False))
    assert on == text.replace('"enabled": false', '"enabled": true').replace('"disabled": true', '"disabled": false')
    both = '{"mcpServers": {"a": {"command": "x", "enabled": true, "disabled": "true"}}}'
    assert json.loads(edited(tmp_path, both, (edit.set_disabled, "a", True)))["mcpServers"]["a"] == {
        "command": "x",
        "enabled": False,
        "disabled": True,
    }


def test_an_edit_that_changes_nothing_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    before = path.stat().st_ino, path.stat().st_mtime_ns
    edit.set_disabled(path, "a", False)
    edit.set_server(path, "a", {"command": "x"})
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_a_changed_entry_keeps_the_comments_within_it(tmp_path: Path) -> None:
    text = """{"mcpServers": {
  "a": {
    // why this one
    "command": "npx",
    "args": [
      "-y", // no question
      "server@1" /* pinned */
    ],
    "env": {"A": "1"} // variables
  }
}}
"""
    assert (
        edited(tmp_path, text, (edit.set_server, "a", {"command": "uvx", "args": ["server"], "cwd": "sub"}))
        == """{"mcpServers": {
  "a": {
    // why this one
    "command": "uvx",
    // no question
    /* pinned */
    "args": ["server"],
    // variables
    "cwd": "sub"
  }
}}
"""
    )


def test_a_missing_file_is_made_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mcp.json"
    edit.set_server(path, "a", {"command": "x"})
    assert path.read_text() == '{\n  "mcpServers": {\n    "a": {\n      "command": "x"\n    }\n  }\n}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_byte_order_mark_line_ends_and_the_mode_stay(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes('\ufeff{\r\n\t"other": 1\r\n}'.encode())
    path.chmod(0o640)
    edit.set_server(path, "a", {"url": "https://h/"})
    assert (
        path.read_bytes()
        == (
            '\ufeff{\r\n\t"other": 1,\r\n\t"mcpServers": {\r\n\t\t"a": {\r\n\t\t\t"url": "https://h/"\r\n\t\t}\r\n\t}\r\n}'
        ).encode()
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_only_absent_names_are_added_together(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"a": {"command": "mine"}}}')
    assert edit.add_servers(path, {"a": {"command": "theirs"}, "b": {"command": "y"}}) == ("b",)
    assert json.loads(path.read_text())["mcpServers"] == {"a": {"command": "mine"}, "b": {"command": "y"}}


# --- refusals ---------------------------------------------------------------------------------------------

UNUSABLE = {
    "missing comma": ('{"mcpServers": {\n "a": {"command": "%s"}\n "b": {}}}', "line 2, column"),
    "unclosed": ('{"mcpServers": {"a": {"command": "%s"}', "line 1, column"),
    "empty": ("", "line 1, column 1"),
    "a list": ('["%s"]', "line 1, column 1"),
    "servers not an object": ('{\n  "mcpServers": ["%s"]}', "line 2, column 3"),
    "servers null": ('{"mcpServers": null, "x": "%s"}', "line 1, column 2"),
    "a server twice": ('{"mcpServers": {"a": {"command": "%s"},\n"a": {}}}', "line 2, column 1"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_b016_a_file_that_cannot_be_used_is_never_written_to(tmp_path: Path, kind: str) -> None:
    template, place = UNUSABLE[kind]
    path = tmp_path / "mcp.json"
    data = template.replace("%s", SECRET).encode()
    path.write_bytes(data)
    for step in (
        lambda: edit.set_server(path, "new", {"command": "x"}),
        lambda: edit.add_servers(path, {"new": {"command": "x"}}),
        lambda: edit.remove_server(path, "a"),
        lambda: edit.set_disabled(path, "a", True),
    ):
        with pytest.raises(ConfigurationError) as caught:
            step()
        message = str(caught.value)
        assert place in message
        assert str(path) in message
        assert SECRET not in message
        assert path.read_bytes() == data
    assert [entry.name for entry in tmp_path.iterdir()] == ["mcp.json"]


def test_text_that_is_not_utf_8_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_bytes(b'{"mcpServers": {}, \n "x": "\xff"}')
    with pytest.raises(ConfigurationError, match="line 2, column 8: This is not UTF-8"):
        edit.set_server(path, "a", {"command": "x"})


def test_a_symbolic_link_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_text("{}")
    path = tmp_path / "mcp.json"
    path.symlink_to(target)
    with pytest.raises(ConfigurationError, match="symbolic link"):
        edit.set_server(path, "a", {"command": "x"})
    assert target.read_text() == "{}"


def test_a_name_that_is_absent_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"bad": "text"}}')
    for step in (
        lambda: edit.remove_server(path, "a"),
        lambda: edit.set_disabled(path, "a", True),
        lambda: edit.set_disabled(path, "bad", True),
    ):
        with pytest.raises(NotFound):
            step()


def test_a_folder_in_place_of_the_file_is_reported_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="could not be read or written"):
        edit.set_server(tmp_path, "a", {"command": "x"})


def test_an_entry_that_is_no_json_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    for entry in ({"timeoutMs": float("nan")}, {"env": {"A": object()}}):
        with pytest.raises(PiMcpError):
            edit.set_server(path, "a", entry)
    assert path.read_text() == "{}"


def test_edits_of_several_processes_all_arrive(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{\n  // servers\n  "mcpServers": {}\n}\n')
    script = (
        "import sys; from pathlib import Path; from pi_mcp.config import edit\n"
        "for i in range(8): edit.set_server(Path(sys.argv[1]), f'{sys.argv[2]}{i}', {'command': 'x'})"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", script, str(path), letter], env=os.environ | {"PYTHONPATH": "."})
        for letter in "abc"
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    assert set(jsonc.parse(path.read_text()).value["mcpServers"]) == {f"{c}{i}" for c in "abc" for i in range(8)}
    assert "// servers" in path.read_text()


# --- every file ---------------------------------------------------------------------------------------------

KEYS = st.sampled_from(["command", "args", "env", "url", "disabled", "x//y", "/*", 'q"q', "\\", "é\u2028", "}"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.sampled_from(["", "// no comment", "/* nor this */", "a,}", 'a"b\\', "\n", "\ud800", "字"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
SERVERS = st.dictionaries(st.sampled_from("abcd"), st.dictionaries(KEYS, VALUES, max_size=4), max_size=3)
COMMENTS = st.sampled_from(['// "x": {}, ', "//", "/**/", '/* " */', "/* a\n b */", "/*,*/", "// é}  ", "//[ /*"])


@st.composite
def documents(draw: st.DrawFn) -> tuple[str, Any]:
    """A JSONC text that parses to the value beside it, laid out in some odd way."""
    eol = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    crowded = draw(st.sampled_from([0, 1, 4]))

    def blank() -> str:
        text = draw(st.sampled_from(["", "", " ", eol, eol + "  ", eol + "\t\t"]))
        if crowded and draw(st.integers(0, 9)) < crowded:
            comment = draw(COMMENTS).replace("\n", eol)
            text += comment + (eol if comment.startswith("//") else "")
            text += draw(st.sampled_from(["", " ", eol + "    "]))
        return text

    def written(value: Any) -> str:
        if isinstance(value, dict):
            parts = [f"{blank()}{json.dumps(k)}{blank()}:{blank()}{written(v)}{blank()}" for k, v in value.items()]
            brackets = "{}"
        elif isinstance(value, list):
            parts = [f"{blank()}{written(element)}{blank()}" for element in value]
            brackets = "[]"
        else:
            return json.dumps(value)
        trailing = "," + blank() if parts and draw(st.booleans()) else ""
        return brackets[0] + (",".join(parts) or blank()) + trailing + brackets[1]

    value: dict[str, Any] = {"theme": draw(VALUES)} if draw(st.booleans()) else {}
    if draw(st.integers(0, 4)):
        value["mcpServers"] = draw(SERVERS)
    if draw(st.booleans()):
        value["last"] = draw(VALUES)
    bom = draw(st.sampled_from(["", "\ufeff"]))
    return bom + blank() + written(value) + blank(), value


def comments(text: str) -> list[str]:
    pattern = re.compile(r'"(?:[^"\\]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', re.DOTALL)
    return sorted(match.group(1) for match in pattern.finditer(text) if match.group(1))


def check(path: Path, before: str, intended: Any) -> None:
    after = path.read_bytes().decode()
    assert json.dumps(jsonc.parse(after).value, sort_keys=True) == json.dumps(intended, sort_keys=True)
    assert comments(after) == comments(before)
    assert after.startswith("\ufeff") == before.startswith("\ufeff")


RELAXED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@RELAXED
@given(documents(), st.sampled_from("abcd"), st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_the_file_a_set_server_is_the_only_change(
    tmp_path: Path, document: tuple[str, Any], name: str, entry: dict[str, Any]
) -> None:
    text, value = document
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode())
    edit.set_server(path, name, entry)
    check(path, text, {**value, "mcpServers": {**value.get("mcpServers", {}), name: entry}})


@RELAXED
@given(documents(), st.data())
def test_whatever_the_file_a_removed_server_is_the_only_change(
    tmp_path: Path, document: tuple[str, Any], data: st.DataObject
) -> None:
    text, value = document
    servers = value.get("mcpServers", {})
    assume(servers)
    name = data.draw(st.sampled_from(sorted(servers)))
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode())
    edit.remove_server(path, name)
    check(path, text, {**value, "mcpServers": {k: v for k, v in servers.items() if k != name}})


@RELAXED
@given(documents(), st.data(), st.booleans())
def test_whatever_the_file_a_switched_server_is_the_only_change(
    tmp_path: Path, document: tuple[str, Any], data: st.DataObject, disabled: bool
) -> None:
    text, value = document
    servers = value.get("mcpServers", {})
    assume(servers)
    name = data.draw(st.sampled_from(sorted(servers)))
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode())
    edit.set_disabled(path, name, disabled)
    entry = dict(servers[name])
    if disabled or "disabled" in entry:
        entry["disabled"] = disabled
    check(path, text, {**value, "mcpServers": {**servers, name: entry}})


@RELAXED
@given(documents(), st.dictionaries(KEYS, VALUES, max_size=4))
def test_whatever_the_file_setting_and_removing_keeps_a_strict_file_strict(
    tmp_path: Path, document: tuple[str, Any], entry: dict[str, Any]
) -> None:
    text, value = document
    try:
        json.loads(text)
    except ValueError:
        text = json.dumps(value, indent=2)
    path = tmp_path / "mcp.json"
    path.write_bytes(text.encode())
    edit.set_server(path, "e", entry)
    json.loads(path.read_bytes())
    edit.remove_server(path, "e")
    json.loads(path.read_bytes())
