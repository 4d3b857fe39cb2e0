"""How text becomes terms, in every script, and that no text whatever does harm."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.search import Index, SearchTool
from pi_mcp.search.synonyms import EXPANSIONS, PHRASES, synonyms
from pi_mcp.search.words import name_terms, normalise, parts, prose_terms, singular, stem

ANY_TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=200)
"""Lone surrogates, controls and unassigned characters included."""


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("list_open_issues", ["list", "open", "issue"]),
        ("npmDeps", ["npm", "dep", "npmdep"]),
        ("getURLs", ["get", "url", "geturl"]),
        ("HTTPServer2", ["http", "server2", "httpserver2"]),
        ("API-post-page", ["api", "post", "page"]),
        ("exec_in_pod", ["exec", "pod"]),
        ("k8s.s3", ["k8s", "s3"]),
        ("___", []),
    ],
)
def test_names_are_split_at_separators_and_humps(name: str, terms: list[str]) -> None:
    assert name_terms(name) == terms


def test_prose_splits_only_words_that_begin_in_lower_case() -> None:
    assert prose_terms("GitHub and PostgreSQL") == ["github", "postgresql"]
    assert prose_terms("findSymbol") == ["find", "symbol", "findsymbol"]
    assert prose_terms("It's the user’s list, don't") == ["user", "list", "don"]


def test_parts_keep_every_part_of_a_name() -> None:
    assert parts("execInPod") == ["exec", "in", "pod"]
    assert parts("FIND_SYMBOL") == parts("find-symbol") == parts("findSymbol") == ["find", "symbol"]


@pytest.mark.parametrize(
    ("word", "folded"),
    [
        ("queries", "query"), ("boxes", "box"), ("classes", "class"), ("issues", "issue"), ("ids", "id"), ("vms", "vm"),
        ("status", "status"), ("kubernetes", "kubernetes"), ("dns", "dns"), ("news", "news"), ("analysis", "analysis"),
        ("s", "s"), ("bus", "bus"),
    ],
)  # fmt: skip
def test_english_plurals_are_folded_and_nothing_else(word: str, folded: str) -> None:
    assert singular(word) == folded


def test_forms_of_a_word_have_one_stem() -> None:
    assert stem("rendering") == stem("rendered") == stem("render")
    assert stem("planning") == stem("planner")
    assert stem("get") == "get"


def test_scripts_without_spaces_become_pairs_of_characters() -> None:
    assert prose_terms("查询天气") == ["查询", "询天", "天气"]
    assert prose_terms("用 Python 查") == ["用", "python", "查"]
    assert prose_terms("data数据库v2") == ["data", "数据", "据库", "v2"]
    assert prose_terms("날씨를") == ["날씨", "씨를"]
    assert prose_terms("サーバー") == ["サー", "ーバ", "バー"]


def test_accents_of_latin_letters_are_folded_and_those_of_other_scripts_kept() -> None:
    assert normalise("Café Łódź Ærø") == "Cafe Lodz AEro"
    assert normalise("cafe\u0301") == "cafe"
    assert normalise("й") == "й"
    assert normalise("が") == "が"
    assert normalise("ё") == "е"
    assert prose_terms("ｆｕｌｌ ﬁle ①") == ["full", "file", "1"]
    assert prose_terms("Straße") == ["strasse"]


@given(ANY_TEXT)
def test_every_string_becomes_terms(text: str) -> None:
    for terms in (prose_terms(text), name_terms(text), parts(text)):
        assert all(terms)
        assert terms == [term.strip() for term in terms]


@given(st.lists(st.tuples(ANY_TEXT, ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=4), ANY_TEXT)
@settings(max_examples=150, deadline=None)
def test_no_catalog_and_no_query_makes_the_search_fail(tools: list[tuple[str, str, str, str]], query: str) -> None:
    index = Index()
    for server, name, title, description in tools:
        made = SearchTool(server, name, title, description, (title,), server, description, (query,), f"mcp__{name}")
        index.replace(server, [made])
    for text in (query, *(each for tool in tools for each in tool)):
        hits = index.search(text, 3)
        assert len(hits) <= 3
        assert hits == index.search(text, 10)[: len(hits)]
        for hit in hits:
            assert hit.score >= 0
            assert sum(reason.weight for reason in hit.reasons) == pytest.approx(hit.score)
        assert len(index.close_names(text, 3)) <= 3


@given(st.sampled_from(["read_file", "sendMail", "list-pods", "查询", "x", "Ünïcode_näme"]), ANY_TEXT)
@settings(deadline=None)
def test_a_tool_is_found_by_its_own_name_whatever_the_others_are(name: str, other: str) -> None:
    index = Index()
    index.replace("a", [SearchTool("a", other, description=name)])
    index.replace("b", [SearchTool("b", name)])
    first = index.search(name, 1)[0]
    assert first.exact
    assert first.name == name or parts(first.name) == parts(name) or "".join(parts(other)) == "".join(parts(name))


@pytest.mark.parametrize(
    "text",
    ["a" * 100_000, "a@" * 50_000, "/" * 100_000, "<" * 100_000, '"' * 100_001, "aA" * 50_000, "查" * 50_000,
     "9." * 50_000, "a b " * 25_000, "a-" * 50_000, "ab, " * 25_000, "\u0301" * 100_000, "http://" * 15_000],
)  # fmt: skip
def test_no_text_makes_the_search_slow(text: str) -> None:
    index = Index()
    index.replace("a", [SearchTool("a", "read_file", description=text), SearchTool("a", text[:500])])
    start = time.perf_counter()
    index.search(text, 5)
    index.close_names(text)
    assert time.perf_counter() - start < 10


def test_the_synonyms_are_terms_and_never_the_word_itself() -> None:
    for word, others in [*EXPANSIONS.items(), *((" ".join(key), value) for key, value in PHRASES.items())]:
        assert others, word
        assert word not in others
        for other in others:
            assert prose_terms(other) == [other]
    assert "directory" in synonyms("folder")
    assert synonyms("deleting") == synonyms("delete")
    assert synonyms("nonsense") == ()
