"""Scopes: tokens, what they allow, and that nothing ever allows more than was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.access.grant import Grant
from pi_mcp.access.scopes import (
    MAX_TOKENS,
    MEANINGS,
    NOTHING,
    PLAIN,
    MalformedScope,
    Scopes,
    canonical,
    meaning,
    server_scope,
    tool_scope,
)

ACTIONS = ("read", "write")
SERVERS = ("git", "a b", "ä/ö", "x:y", "%41")
TOOLS = ("log", "get/issue", "a.b", "*", "ü")
TOKENS = [
    *sorted(PLAIN),
    *(server_scope(server, what) for server in SERVERS for what in ("read", "write", "*")),
    *(tool_scope(server, tool) for server in SERVERS for tool in TOOLS),
]
RIGHTS = [
    *(("tool", server, tool, action) for server in SERVERS for tool in TOOLS for action in ACTIONS),
    *(("resource", server, "file:///x") for server in SERVERS),
    *(("resource", server, "ui://x") for server in SERVERS),
    *(("prompts", server) for server in SERVERS),
    ("has", "admin"),
]


def rights(scopes: Scopes) -> set[tuple[str, ...]]:
    """Everything in our small world that a set allows."""
    return {right for right in RIGHTS if getattr(scopes, right[0])(*right[1:])}


def scopes(*tokens: str) -> Scopes:
    return Scopes.of(tokens)


some_scopes = st.lists(st.sampled_from(TOKENS), max_size=6).map(lambda tokens: Scopes.of(tokens))


def test_a_read_scope_allows_reading_tools_of_every_server_and_nothing_else() -> None:
    held = scopes("tools:read")
    assert held.tool("git", "log", "read")
    assert not held.tool("git", "log", "write")
    assert not held.resource("git", "file:///x")
    assert not held.prompts("git")
    assert not held.has("admin")


def test_a_write_scope_does_not_show_tools_that_read() -> None:
    assert scopes("tools:write").tool("git", "commit", "write")
    assert not scopes("tools:write").tool("git", "log", "read")


def test_a_server_scope_ends_at_its_server() -> None:
    held = scopes("server:git:read")
    assert held.tool("git", "log", "read")
    assert not held.tool("git2", "log", "read")
    assert not held.tool("git", "commit", "write")
    assert not held.resource("git", "file:///x")


def test_a_star_is_everything_of_its_server_but_no_administration() -> None:
    held = scopes("server:git:*")
    assert held.tool("git", "log", "read")
    assert held.tool("git", "commit", "write")
    assert held.resource("git", "file:///x")
    assert held.resource("git", "ui://x")
    assert held.prompts("git")
    assert not held.has("admin")
    assert not held.has("admin", "git")
    assert not held.resource("other", "file:///x")


def test_a_tool_scope_is_that_tool_in_both_its_forms() -> None:
    held = scopes("tool:git/log")
    assert held.tool("git", "log", "read")
    assert held.tool("git", "log", "write")
    assert not held.tool("git", "log2", "read")
    assert held.any_tool()
    assert held.any_tool_of("git")
    assert not held.any_tool_of("gi")


@pytest.mark.parametrize(
    ("held", "every"),
    [
        ("tools:read tools:write", True),
        ("server:git:read server:git:write", True),
        ("tools:read server:git:write", True),
        ("server:git:*", True),
        ("tools:read server:git:read", False),
        ("server:git:read server:gi:write", False),
        ("tool:git/log resources:read admin", False),
    ],
)
def test_every_tool_of_a_server_is_what_reads_and_what_writes(held: str, every: bool) -> None:
    assert scopes(*held.split()).every_tool_of("git") is every


def test_user_interfaces_need_their_own_scope() -> None:
    assert not scopes("resources:read").resource("git", "ui://widget")
    assert not scopes("resources:read").resource("git", "UI://widget")
    assert scopes("apps:render").resource("git", "ui://widget")
    for written in (
        "UI://w",
        " ui://w",
        "\x01ui://w",
        "u\ti://w",
        "ui:\n/\r/w",
        "\x00\ufeffu\x00i://w",
        "\u2003ui://w",
    ):
        assert not scopes("resources:read").resource("git", written), written
    for other in ("ui:w", "gui://w", "x ui://w", "u\u0131://w"):
        assert scopes("resources:read").resource("git", other), other
    assert not scopes("apps:render").resource("git", "file:///x")


def test_only_tool_scopes_open_the_search() -> None:
    for token in ("tools:read", "tools:write", "server:x:read", "server:x:*", "tool:x/y"):
        assert scopes(token).any_tool(), token
    assert not scopes("resources:read", "prompts:read", "apps:render", "admin").any_tool()


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("tool:a/%61", "tool:a/a"),
        ("tool:a/b%2fc", "tool:a/b%2Fc"),
        ("server:%7Eme:read", "server:~me:read"),
        ("server:my%20server:*", "server:my%20server:*"),
    ],
)
def test_one_right_has_one_spelling(written: str, kept: str) -> None:
    assert canonical(written) == kept


@pytest.mark.parametrize(
    "token",
    [
        "", "tools", "tools:", "tools:*", "tools:Read", "TOOLS:READ", "tools:read ", "*", "all", "resources:write",
        "server:a", "server:a:", "server::read", "server:a:delete", "server:a b:read", "server:a/b:read",
        "server:*:read", "server:ä:read", "server:a:b:read", "server:a%2:read", "server:a%zz:read", "server:%ff:read",
        "server:%ed%a0%80:read", "tool:a", "tool:a/", "tool:/b", "tool:a/b/c", "tool:a/*", "tool:a/b c", "tool:%/b",
        "tool:a/b\x00", "tools:read\n", "tool:a/" + "x" * 2000, "admin:x", "code:execute",
    ],
)  # fmt: skip
def test_what_is_no_scope_is_refused(token: str) -> None:
    with pytest.raises(MalformedScope):
        canonical(token)


def test_the_list_of_scopes_is_bounded() -> None:
    with pytest.raises(MalformedScope):
        Scopes.of(tool_scope("a", str(number)) for number in range(MAX_TOKENS + 1))


@pytest.mark.parametrize(
    ("header", "left"),
    [
        ("tools:read", {"tools:read"}),
        ("tools:read,server:git:*", {"tools:read", "server:git:*"}),
        (" tools:read ,  server:git:write ", {"tools:read", "server:git:write"}),
        ("server:git:read", {"server:git:read"}),
        ("server:other:read", {"server:other:read"}),
        ("tool:git/log", {"tool:git/log"}),
        ("", set()),
        (" , ", set()),
        ("tools:write", set()),
        ("tools:read tools:write", set()),
        ("tools:read nonsense", set()),
        ("tools:read;server:git:*", set()),
        ("tools:read *", set()),
        ("server:other:write", set()),
        ("tool:other/log", set()),
        ("admin", set()),
        ("server:none:*", set()),
    ],
)
def test_a_header_narrows_and_one_wrong_token_empties_all(header: str, left: set[str]) -> None:
    assert set(scopes("tools:read", "server:git:*").narrowed(header)) == left


def test_no_header_leaves_the_grant_as_it_is() -> None:
    grant = Grant("ann", "k1", "key", scopes("tools:read"))
    assert grant.narrowed(None) is grant
    assert grant.narrowed("").scopes == NOTHING
    assert grant.narrowed("tools:read").owner == grant.owner


@given(some_scopes, some_scopes)
def test_nothing_ever_widens(held: Scopes, asked: Scopes) -> None:
    narrowed = held.narrowed(str(asked))
    assert rights(narrowed) <= rights(held)
    assert rights(narrowed) <= rights(asked)
    assert narrowed in (asked, NOTHING)
    assert rights(held.common(asked)) <= rights(held) & rights(asked)


@given(some_scopes, st.sampled_from(TOKENS))
def test_a_token_that_is_held_allows_nothing_new(held: Scopes, token: str) -> None:
    if held.holds(token):
        assert rights(scopes(token)) <= rights(held)


@given(some_scopes, some_scopes)
def test_more_tokens_never_allow_less(one: Scopes, other: Scopes) -> None:
    assert rights(Scopes(one.tokens | other.tokens)) >= rights(one) | rights(other)


@given(st.text(max_size=60))
def test_any_text_is_a_scope_or_refused(text: str) -> None:
    try:
        found = Scopes.parse(text)
    except MalformedScope:
        return
    assert Scopes.parse(str(found)) == found
    assert all(meaning(token) for token in found)


@given(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_every_name_can_be_granted_and_is_granted_alone(server: str, tool: str) -> None:
    token = tool_scope(server, tool)
    if any("\ud800" <= char <= "\udfff" for char in server + tool):
        with pytest.raises(MalformedScope):
            canonical(token)
        return
    if len(token) > 1024:
        return
    assert canonical(token) == token
    assert scopes(token).tool(server, tool, "read")
    assert not scopes(token).tool(server, tool + "x", "read")
    assert not scopes(token).tool(server + "x", tool, "read")


def test_every_form_has_a_meaning_for_people() -> None:
    assert set(MEANINGS) >= PLAIN
    assert meaning("server:my%20server:*").startswith("Everything of the server my server")
    assert "\x1b" not in meaning("tool:a/%1b%5B31m")
