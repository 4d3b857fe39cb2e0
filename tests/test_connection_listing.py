"""Pages of a listing, as a function of what the server says (reports of the kind protocol)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.connect.listing import Listing, Pages
from tests.hostile.script import tool

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CURSOR = st.none() | st.sampled_from(["", "a", "b", "0"]) | st.integers(0, 3) | ANYTHING
TOOL = st.builds(tool, st.sampled_from(["a", "b", "c", "d", "", " ", "\u200b", "\ud800", "工具"])) | ANYTHING
PAGE = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.lists(TOOL, max_size=5) | ANYTHING,
        "nextCursor": CURSOR,
        "ttlMs": ANYTHING | st.integers(0, 10**6),
    },
)


def listed(*pages: dict[str, Any], **limits: int) -> tuple[Listing, list[Any]]:
    """The listing over these pages (the last one stays), and the cursors that were asked for."""
    state, asked = Pages(**limits), []
    while state.more:
        asked.append(state.cursor)
        state.add(pages[min(len(asked), len(pages)) - 1])
    return state.listing(), asked


def names(listing: Listing) -> list[str]:
    return [each["name"] for each in listing.tools]


@settings(max_examples=300)
@given(st.lists(PAGE, min_size=1, max_size=6))
def test_every_listing_ends_with_distinct_names_and_verbatim_tools(pages: list[dict[str, Any]]) -> None:
    listing, asked = listed(*pages, max_tools=8, max_pages=10)
    assert len(asked) <= 10
    assert len(asked) == len({repr(cursor) for cursor in asked})
    assert len(listing.tools) <= 8
    assert len(set(names(listing))) == len(listing.tools)
    sent = [each for page in pages if isinstance(page.get("tools"), list) for each in page["tools"]]
    assert all(any(each is other for other in sent) for each in listing.tools)
    assert listing.ttl is None or 0 <= listing.ttl <= 1e9
    assert all(note.endswith(".") for note in listing.notes)


@given(st.lists(st.lists(st.text(min_size=1, max_size=5).filter(str.isalnum), max_size=5), min_size=1, max_size=8))
def test_a_good_pager_loses_nothing_and_keeps_the_order(pages: list[list[str]]) -> None:
    sent = [{"tools": [tool(name) for name in page], "nextCursor": str(number)} for number, page in enumerate(pages)]
    del sent[-1]["nextCursor"]
    listing, asked = listed(*sent)
    assert names(listing) == list(dict.fromkeys(name for page in pages for name in page))
    assert len(asked) == len(pages)
    assert listing.complete


def test_b077_a_cursor_that_does_not_advance_ends_the_listing() -> None:
    listing, asked = listed({"tools": [tool(name) for name in "abcdefgh"], "nextCursor": "8"})
    assert names(listing) == list("abcdefgh")
    assert asked == [None, "8"]
    assert any("repeats a page cursor" in note for note in listing.notes)


def test_b079_an_empty_cursor_is_a_cursor() -> None:
    listing, asked = listed({"tools": [tool("a")], "nextCursor": ""}, {"tools": [tool("b")]})
    assert names(listing) == ["a", "b"]
    assert asked == [None, ""]
    assert (listing.complete, listing.notes) == (True, ())


def test_b080_a_repeated_page_gives_no_name_twice() -> None:
    again = {"tools": [tool("c")], "nextCursor": "x"}
    listing, _ = listed({"tools": [tool("a"), tool("b")], "nextCursor": "x"}, again, again)
    assert names(listing) == ["a", "b", "c"]


def test_b082_bounds_cut_a_runaway_listing_and_say_so() -> None:
    def runaway(**limits: int) -> tuple[Listing, int]:
        state, count = Pages(**limits), 0
        while state.more:
            count += 1
            state.add({"tools": [tool(f"t{count}", description="x" * 900)], "nextCursor": str(count)})
        return state.listing(), count

    for limits, words in (
        ({"max_tools": 50}, "cut at 50 tools"),
        ({"max_pages": 20}, "cut after 20 pages"),
        ({"max_bytes": 100_000}, "MiB"),
    ):
        listing, count = runaway(**limits)
        assert not listing.complete
        assert words in listing.notes[0]
        assert count < 200


def test_b085_unusable_names_are_counted_and_the_rest_stays() -> None:
    long, odd = "n" * 300, [tool(""), tool(" "), tool("a b"), tool("n" * 300), tool("工具"), tool("ok")]
    listing, _ = listed({"tools": [*odd, {"name": 7}, "text", None, {}]})
    assert names(listing) == ["a b", long, "工具", "ok"]
    assert listing.notes == ("2 entries that are no objects dropped.", "4 entries without a usable name dropped.")


def test_tools_without_a_schema_stay() -> None:
    listing, _ = listed({"tools": [{"name": "bare"}, {"name": "odd", "inputSchema": "x"}]})
    assert names(listing) == ["bare", "odd"]


def test_the_smallest_stated_ttl_counts_in_seconds() -> None:
    first = {"tools": [], "nextCursor": "1", "ttlMs": 60_000}
    assert listed(first, {"tools": [], "ttlMs": 1500})[0].ttl == 1.5
    assert listed({"tools": [], "ttlMs": -5})[0].ttl is None
    assert listed({"tools": [], "ttlMs": 0})[0].ttl is None
    assert listed({"tools": [], "ttlMs": True})[0].ttl is None


def test_a_page_without_tools_is_noted() -> None:
    listing, _ = listed({})
    assert (listing.tools, listing.notes) == ((), ("A page of the listing holds no `tools` array.",))
