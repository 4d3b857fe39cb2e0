"""The names under which the gateway shows tools and prompts."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.server.names import LIMIT, exposed_name, looks_cut, read_back

PARTS = st.text(min_size=1, max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{1,40}", fullmatch=True)


def test_a_plain_pair_keeps_its_spelling() -> None:
    assert exposed_name("github", "create_issue") == "github__create_issue"
    assert read_back("github__create_issue") == ("github", "create_issue")
    assert exposed_name("a", "x" * 45) == f"a__{'x' * 45}"


def test_what_is_too_long_or_odd_is_cut_and_told_apart_by_a_hash() -> None:
    for server, name in (
        ("a", "x" * 46),
        ("a b", "c"),
        ("a__b", "c"),
        ("_a", "c"),
        ("a_", "c"),
        ("a", "_c"),
        ("ä", "c"),
    ):
        exposed = exposed_name(server, name)
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,48}", exposed)
        assert looks_cut(exposed)
    assert exposed_name("a_b", "c.d") != exposed_name("a_b", "c d")


@given(PARTS, PARTS)
def test_every_pair_has_a_name_that_clients_take(server: str, name: str) -> None:
    exposed = exposed_name(server, name)
    assert re.fullmatch(rf"[A-Za-z0-9_-]{{1,{LIMIT}}}", exposed)
    if read_back(exposed) != (server, name):
        assert looks_cut(exposed)


@given(PARTS, PARTS, PARTS, PARTS)
def test_two_pairs_never_share_a_name(server: str, name: str, other: str, another: str) -> None:
    if (server, name) != (other, another):
        assert exposed_name(server, name) != exposed_name(other, another)
