"""Trust levels: what may be registered, what is asked about, what goes out with nobody to ask (DESIGN §9)."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.config import policy
from pi_mcp.config.definition import AccessRules, Configuration, ServerDefinition, Source, TrustLevel, WriteRule
from pi_mcp.errors import ConfigurationError

CONFIGURATION = Configuration(sensitive=policy.SENSITIVE_WORDS)


def server(
    trust: TrustLevel, include: tuple[str, ...] | None = None, exclude: tuple[str, ...] = ()
) -> ServerDefinition:
    return ServerDefinition(
        name="s",
        transport="stdio",
        source=Source(None, "code"),
        command="x",
        include_tools=include,
        exclude_tools=exclude,
        trust=trust,
    )


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("deleteRepo", "delete repo"),
        ("DBDrop", "db drop"),
        ("run-shell.command", "run shell command"),
        ("DELETE_ALL_ROWS", "delete all rows"),
        ("repos/delete", "repos delete"),
        ("getHTTPToken2", "get http token 2"),
        ("dropDB2Tables", "drop db 2 tables"),
        ("wipe2024", "wipe 2024"),
        ("a::b--c..d", "a b c d"),
        ("ｄｅｌｅｔｅ_repo", "delete repo"),
        ("del\u200bete", "delete"),
        ("删除delete", "删除 delete"),
        ("ÜberWipe", "über wipe"),
        ("___", ""),
        ("", ""),
    ],
)
def test_a_name_is_split_into_lower_case_parts(name: str, parts: str) -> None:
    assert policy.split_name(name) == parts.split()


@pytest.mark.parametrize("word", sorted(policy.SENSITIVE_WORDS))
def test_every_sensitive_word_counts_as_a_whole_part_in_any_spelling(word: str) -> None:
    for name in (word, f"repo_{word}", f"{word}-repo", f"{word}Repo", f"repo{word.title()}", word.upper(), f"{word}2"):
        assert policy.is_sensitive(name, CONFIGURATION), name
    for name in (f"{word}x", f"x{word}", f"repo_{word}ing"):
        assert not policy.is_sensitive(name, CONFIGURATION), name


@pytest.mark.parametrize(
    "name", ["deleted_items", "list_tokens", "dropdown", "payload", "shelling", "evaluate", "commander"]
)
def test_inflections_and_longer_words_are_not_sensitive(name: str) -> None:
    assert not policy.is_sensitive(name, CONFIGURATION)


def test_odd_capitals_are_no_way_around_the_list() -> None:
    assert policy.is_sensitive("PassWord", CONFIGURATION)
    assert policy.is_sensitive("get_PassWord", CONFIGURATION)
    assert policy.is_sensitive("dELETE", CONFIGURATION)


def test_sensitive_tools_adds_words_and_takes_them_away() -> None:
    words = policy.sensitive_words(["Publish", "!token", "force_push", "!neverThere"])
    configuration = Configuration(sensitive=words)
    assert policy.is_sensitive("publish_page", configuration)
    assert policy.is_sensitive("git.forcePush", configuration)
    assert not policy.is_sensitive("push_force", configuration)
    assert not policy.is_sensitive("get_token", configuration)
    assert policy.is_sensitive("get_secret", configuration)
    assert policy.sensitive_words() == policy.sensitive_words([]) == policy.SENSITIVE_WORDS


@pytest.mark.parametrize("overrides", ["token", {"a": 1}, 5, True, [1], [None], [""], ["!"], ["_"], [["x"]]])
def test_a_policy_that_cannot_be_read_is_an_error_and_denies_when_set(overrides: Any) -> None:
    with pytest.raises(ConfigurationError, match="sensitiveTools"):
        policy.sensitive_words(overrides)
    denying = Configuration(sensitive=policy.SENSITIVE_WORDS, deny_all=True)
    assert policy.is_sensitive("read", denying)
    assert policy.admits(server("trusted"), "read", denying) == "ok"
    assert policy.admits(server("verified"), "read", denying) == "sensitive"
    assert policy.admits(server("verified", ("read",)), "read", denying) == "ok"
    assert policy.admits(server("untrusted", ("read",)), "read", denying) == "sensitive"


ADMISSIONS: list[tuple[TrustLevel, tuple[str, ...] | None, tuple[str, ...], str, str]] = [
    # a trusted server: filters alone
    ("trusted", None, (), "delete_repo", "ok"),
    ("trusted", ("list_*",), (), "delete_repo", "filtered"),
    ("trusted", (), (), "list_repos", "filtered"),
    ("trusted", ("*",), ("delete_*",), "delete_repo", "filtered"),
    ("trusted", ("delete_repo",), ("delete_repo",), "delete_repo", "filtered"),
    # a verified one: a sensitive tool has to be named
    ("verified", None, (), "list_repos", "ok"),
    ("verified", None, (), "delete_repo", "sensitive"),
    ("verified", ("*",), (), "delete_repo", "sensitive"),
    ("verified", ("**",), (), "delete_repo", "sensitive"),
    ("verified", ("*_*",), (), "delete_repo", "sensitive"),
    ("verified", ("delete_repo",), (), "delete_repo", "ok"),
    ("verified", ("delete_*",), (), "delete_repo", "ok"),
    ("verified", ("*", "delete_repo"), (), "delete_repo", "ok"),
    ("verified", ("list_*",), (), "delete_repo", "filtered"),
    ("verified", ("delete_*",), ("*_repo",), "delete_repo", "filtered"),
    # an untrusted one: never
    ("untrusted", None, (), "list_repos", "ok"),
    ("untrusted", None, (), "delete_repo", "sensitive"),
    ("untrusted", ("delete_repo",), (), "delete_repo", "sensitive"),
    ("untrusted", ("list_*",), (), "delete_repo", "filtered"),
]


@pytest.mark.parametrize(("trust", "include", "exclude", "tool", "outcome"), ADMISSIONS)
def test_what_a_level_admits(
    trust: TrustLevel, include: tuple[str, ...] | None, exclude: tuple[str, ...], tool: str, outcome: str
) -> None:
    assert policy.admits(server(trust, include, exclude), tool, CONFIGURATION) == outcome


def test_a_level_that_is_not_known_is_treated_as_untrusted() -> None:
    odd: Any = "trustworthy"
    assert policy.admits(server(odd, ("delete_repo",)), "delete_repo", CONFIGURATION) == "sensitive"
    assert policy.confirmation(server(odd)) == "every"


def test_a_trusted_server_is_never_asked_about_a_verified_one_once_an_untrusted_one_every_time() -> None:
    assert [policy.confirmation(server(level)) for level in ("trusted", "verified", "untrusted")] == [
        "never",
        "once",
        "every",
    ]


def test_the_read_only_hint_of_a_server_that_is_not_trusted_is_only_a_claim() -> None:
    for hint in (True, False):
        assert not policy.needs_confirmation(server("trusted"), "list_repos", hint)
        assert policy.needs_confirmation(server("verified"), "list_repos", hint)
        assert policy.needs_confirmation(server("untrusted"), "list_repos", hint)


RULES = AccessRules(
    read_only=("get_*", "render"),
    write=(WriteRule("get_and_drop"), WriteRule("render", "deckId"), WriteRule("re*", "reset")),
)


@pytest.mark.parametrize(
    ("trust", "tool", "hint", "arguments", "does"),
    [
        ("trusted", "list", True, None, "read"),
        ("trusted", "list", False, None, "write"),
        ("trusted", "list", None, None, "write"),
        ("trusted", "list", "true", None, "write"),
        ("trusted", "list", 1, None, "write"),
        ("verified", "list", True, None, "write"),
        ("untrusted", "list", True, None, "write"),
        ("trusted", "get_it", False, None, "read"),
        ("untrusted", "get_it", False, None, "read"),
        ("trusted", "get_and_drop", True, None, "write"),
        ("trusted", "render", True, {}, "read"),
        ("trusted", "render", True, None, "read"),
        ("trusted", "render", False, {"sessionId": 1}, "read"),
        ("trusted", "render", True, {"deckId": 1}, "read write"),
        ("trusted", "render", True, {"deckId": None}, "read write"),
        ("trusted", "render", True, {"reset": False}, "read write"),
        ("trusted", "remove", False, {"reset": 1}, "write"),
        ("trusted", "reread", True, {"reset": 1}, "read write"),
    ],
)
def test_a_tool_writes_unless_a_word_that_counts_says_that_it_reads(
    trust: TrustLevel, tool: str, hint: Any, arguments: Any, does: str
) -> None:
    definition = dataclasses.replace(server(trust), access=RULES)
    assert policy.actions(definition, tool, hint, arguments) == frozenset(does.split())


def test_what_only_reads_by_the_persons_own_word_is_not_asked_about_for_a_verified_server() -> None:
    def asked(trust: TrustLevel, tool: str, arguments: dict[str, Any]) -> bool:
        return policy.needs_confirmation(dataclasses.replace(server(trust), access=RULES), tool, True, arguments)

    assert not asked("verified", "get_it", {})
    assert not asked("verified", "render", {})
    assert asked("verified", "render", {"deckId": 1})
    assert asked("verified", "get_and_drop", {})
    assert asked("verified", "list", {})
    assert asked("untrusted", "get_it", {})
    assert not asked("trusted", "get_and_drop", {})


def test_with_nobody_to_ask_only_a_tool_that_include_tools_names_is_called() -> None:
    for level in ("verified", "untrusted"):
        assert not policy.headless_allows(server(level), "list_repos")
        assert not policy.headless_allows(server(level, ("*",)), "list_repos")
        assert not policy.headless_allows(server(level, ("other",)), "list_repos")
        assert not policy.headless_allows(server(level, ("list_repos",), ("list_*",)), "list_repos")
        assert policy.headless_allows(server(level, ("list_repos",)), "list_repos")
        assert policy.headless_allows(server(level, ("list_*",)), "list_repos")


TEXT = st.text(alphabet="ab*", max_size=8)


@given(TEXT, st.text(alphabet="ab", max_size=8))
def test_a_star_is_any_run_of_characters_and_the_whole_name_has_to_match(pattern: str, name: str) -> None:
    expected = re.fullmatch(pattern.replace("*", ".*"), name, re.DOTALL) is not None
    assert policy.matches(pattern, name) == expected


def test_patterns_know_case_and_no_other_signs() -> None:
    assert not policy.matches("List", "list")
    assert not policy.matches("li.t", "list")
    assert not policy.matches("li?t", "list")
    assert policy.matches("[a]", "[a]")
    assert policy.matches("*", "")
    assert policy.matches("a*", "a\nb")


def test_a_pattern_of_many_stars_is_answered_at_once() -> None:
    started = time.perf_counter()
    assert not policy.matches("*a" * 200 + "b", "a" * 5000)
    assert time.perf_counter() - started < 10


def test_a_name_that_no_tool_has_is_told_and_a_pattern_is_not() -> None:
    tools = {"get_deck": {"properties": {"deckId": {}}}, "render": {"properties": {"deckId": {}}}, "free": {}}
    rules = AccessRules(
        read_only=("get_*", "rendr"),
        write=(WriteRule("render(deckId)"), WriteRule("render", "deckID"), WriteRule("get_*", "deckId"),
               WriteRule("free", "x"), WriteRule("later_*", "y")),
    )  # fmt: skip
    definition = dataclasses.replace(
        server("trusted"), access=rules, include_tools=("*", "render"), exclude_tools=("delete_*", "Render"),
        always_load=("free", "fre"),
    )  # fmt: skip
    assert policy.idle_rules(definition, tools) == [
        "`excludeTools` names Render, and the server has no such tool.",
        "`alwaysLoad` names fre, and the server has no such tool.",
        "`access.readOnly` names rendr, and the server has no such tool.",
        "`access.write` names render(deckId), and the server has no such tool.",
        "`access.write` waits for an argument deckID, which render does not have.",
    ]
    assert policy.idle_rules(dataclasses.replace(server("trusted"), always_load=True), tools) == []
