"""What the model calls a tool: decided by server and tool alone, and taken by every provider."""

from __future__ import annotations

import json
import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pi_mcp.tools.names import native_name
from tests.support import shared_data

WELL_FORMED = re.compile(r"mcp__[A-Za-z0-9_-]{1,59}")

NAMES = st.one_of(
    st.text(string.ascii_letters + string.digits + "_-.", max_size=80),
    st.text(max_size=40),
    st.text("_aA", max_size=6),
)
PLAIN = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9-]{0,20}", fullmatch=True)


@given(NAMES, NAMES)
@example("s", "\ud800")
@example("", "")
@example("s", "ok\n")
def test_any_pair_has_a_well_formed_name(server: str, tool: str) -> None:
    assert WELL_FORMED.fullmatch(native_name(server, tool))
    assert native_name(server, tool) == native_name(server, tool)


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
@example(("a", "b__c"), ("a__b", "c"))
@example(("a_", "b"), ("a", "_b"))
@example(("my srv", "x"), ("my_srv", "x"))
def test_two_pairs_never_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (native_name(*one) == native_name(*other)) == (one == other)


@given(PLAIN, PLAIN)
def test_a_plain_pair_is_spelled_out(server: str, tool: str) -> None:
    assert native_name(server, tool) == f"mcp__{server}__{tool}"


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("github", "create_issue", "mcp__github__create_issue"),
        ("my_srv", "read__all_", "mcp__my_srv__read__all_"),
        ("s", "t" * 56, "mcp__s__" + "t" * 56),
    ],
)
def test_what_can_be_read_back_is_unchanged(server: str, tool: str, name: str) -> None:
    assert native_name(server, tool) == name


@pytest.mark.parametrize(
    ("server", "tool", "head"),
    [
        ("s", "agenda.list", "mcp__s__agenda_list_"),
        ("s", "files/read", "mcp__s__files_read_"),
        ("s", "my tool", "mcp__s__my_tool_"),
        ("s", "工具", "mcp__s_____"),
        ("s", "", "mcp__s___"),
        ("s", "_hidden", "mcp__s___hidden_"),
        ("a__b", "c", "mcp__a__b__c_"),
        ("_a", "c", "mcp___a__c_"),
        ("a_", "c", "mcp__a___c_"),
        ("s", "t" * 57, "mcp__s__" + "t" * 47 + "_"),
        ("s", "x" * 300, "mcp__s__" + "x" * 47 + "_"),
    ],
)
def test_other_names_are_replaced_cut_and_given_a_hash(server: str, tool: str, head: str) -> None:
    name = native_name(server, tool)
    assert name.startswith(head)
    assert re.fullmatch(r"[0-9a-f]{8}", name[len(head) :])


def test_the_hash_is_the_same_for_ever() -> None:
    # A changed name would orphan the tools of every kept session.
    assert native_name("s", "agenda.list") == "mcp__s__agenda_list_ae4429fb"


def test_names_that_fall_together_after_replacement_stay_apart() -> None:
    pairs = [
        (server, tool) for server in ("my srv", "my_srv", "my.srv") for tool in ("a.b", "a_b", "a-b", "Run", "run")
    ]
    assert len({native_name(*pair) for pair in pairs}) == len(pairs)
    assert [native_name(*pair) for pair in pairs] == [native_name(*pair) for pair in reversed(pairs)][::-1]


def test_real_catalogs_have_distinct_and_well_formed_names() -> None:
    names: list[str] = []
    for path in sorted((shared_data() / "catalogs").glob("*.json")):
        if path.name != "index.json":
            tools = json.loads(path.read_text())["tools"]
            names += [native_name(path.stem, tool["name"]) for tool in tools]
    assert len(names) > 1000
    assert len(set(names)) == len(names)
    assert all(WELL_FORMED.fullmatch(name) for name in names)
