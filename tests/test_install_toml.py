"""TOML edits: one change, and every other byte of the person's file as it was."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from pi_mcp.errors import ConfigurationError
from pi_mcp.hosts.install import toml_edit

SECRET = "sk-PLANTED-0123456789abcdef"
ENTRY: dict[str, Any] = {"command": "/opt/pi mcp", "args": ["serve"]}
KEYS = ("mcp_servers", "pi-mcp")

FILES = {
    "empty": "",
    "plain": "model = 'x' # mine\n",
    "no line end": "model = 'x'",
    "other servers": f'[mcp_servers.a]\ncommand = "a" # c\nenv = {{ T = "{SECRET}" }}\n\n# it\n[other]\nk = 1\n',
    "between others": '[a]\nb=1\n[mcp_servers.x]\nc="a"\n[d]\n[mcp_servers.y]\nc="e"\n',
    "own header": '[mcp_servers]\n\n[mcp_servers.x]\nc="a"\n\n[zz]\n',
    "inline": 'mcp_servers = {x = {command = "y"}} # all\n[z]\n',
    "dotted": 'mcp_servers.x.command = "a"\n[z]\n',
    "windows": '# only\r\n[a]\r\nb=1\r\n',
    "last is a comment": "[a]\nb = 1\n# the end\n",
    "odd": "a = [\n  1, # one\n  2,\n]\nd = 1979-05-27T07:32:00Z\ns = '''\n[mcp_servers.no]\n'''\n",
}  # fmt: skip


@pytest.mark.parametrize("text", FILES.values(), ids=FILES.keys())
def test_a_table_that_is_added_leaves_every_line_and_goes_without_a_trace(text: str) -> None:
    after = toml_edit.with_table(text, "f", KEYS, ENTRY)
    value = tomllib.loads(after)
    assert value["mcp_servers"].pop("pi-mcp") == ENTRY
    before = tomllib.loads(text)
    assert value == before or value == {**before, "mcp_servers": {}}
    if "inline" not in text and "{x" not in text:
        assert after.startswith(text)
    assert toml_edit.with_table(after, "f", KEYS, ENTRY) == after
    back = toml_edit.without_table(after, "f", KEYS)
    assert back == text or back == text + "\n"
    assert toml_edit.without_table(back, "f", KEYS) == back


def test_a_change_of_a_member_keeps_comments_and_other_members() -> None:
    text = '[mcp_servers.pi-mcp]\n# mine\ncommand = "/old" # why\nargs = ["serve"]\nstartup_timeout_sec = 90\n\n[z]\n'
    after = toml_edit.with_table(text, "f", KEYS, ENTRY)
    assert after == text.replace('"/old"', '"/opt/pi mcp"')


def test_lines_after_the_table_stay_with_what_follows() -> None:
    text = '[mcp_servers.pi-mcp]\ncommand = "x"\n\n# about z\n[z]\nq = 1\n'
    assert toml_edit.without_table(text, "f", KEYS) == "\n# about z\n[z]\nq = 1\n"


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("", '[plugins]\npaths = ["/p"]\n'),
        ("a = 1\n", 'a = 1\n\n[plugins]\npaths = ["/p"]\n'),
        (
            "[plugins] # mine\nenabled = []\n\n# z\n[z]\n",
            '[plugins] # mine\npaths = ["/p"]\nenabled = []\n\n# z\n[z]\n',
        ),
        ("[plugins]\npaths = []\n", '[plugins]\npaths = ["/p"]\n'),
        ('[plugins]\npaths = ["/o"] # c\n', '[plugins]\npaths = ["/o", "/p"] # c\n'),
        (
            '[plugins]\npaths = [\n  "/o", # first\n]\n[z]\na=1',
            '[plugins]\npaths = [\n  "/o", # first\n  "/p",\n]\n[z]\na=1',
        ),
    ],
)
def test_an_element_joins_a_list_as_it_is_written(text: str, added: str) -> None:
    keys = ("plugins", "paths")
    after = toml_edit.with_element(text, "f", keys, "/p")
    assert after == added
    assert toml_edit.with_element(after, "f", keys, "/p") == after
    back = toml_edit.without_element(after, "f", keys, "/p")
    assert "/p" not in back
    assert tomllib.loads(back).get("plugins", {}).get("paths", []) == tomllib.loads(text).get("plugins", {}).get(
        "paths", []
    )
    if "paths = []" not in text:
        assert back == text


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f'a = 1\ntoken = "{SECRET}" x\n', "line 2, column"),
        (f'a = 1\n[x\ntoken = "{SECRET}"\n', "line 2, column"),
        (f'token = "{SECRET}"\na = 1\na = 2\n', "line 3, column"),
        (f'\ufefftoken = "{SECRET}"\n', "line 1, column"),
    ],
)
def test_a_file_that_does_not_parse_is_named_with_line_and_column_and_nothing_of_it(text: str, place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        toml_edit.with_table(text, "config.toml", KEYS, ENTRY)
    assert f"config.toml, {place}" in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", ["mcp_servers = 3\n", "[[mcp_servers]]\na = 1\n", "[mcp_servers]\npi-mcp = 'x'\n"])
def test_what_is_no_table_is_left_alone(text: str) -> None:
    with pytest.raises(ConfigurationError):
        toml_edit.with_table(text, "f", KEYS, ENTRY)


def test_what_is_no_list_is_left_alone() -> None:
    with pytest.raises(ConfigurationError):
        toml_edit.with_element("[plugins]\npaths = 'x'\n", "f", ("plugins", "paths"), "/p")
