"""Rows for a person: each value under its own title, at any width of the terminal."""

from __future__ import annotations

import pytest

from pi_mcp.cli.listing import listed
from pi_mcp.text import width

TITLES = ("id", "expires", "last used", "scopes")
ROWS = (
    ("kaaaaaaaaaaaa", "", "2026-12-01 08:00Z", "tools:read"),
    ("kbbbbbbbbbbbb", "2027-01-01 09:30Z", "", "prompts:read resources:read server:every:* tools:read"),
)


def test_a_table_has_a_heading_and_each_value_under_its_title() -> None:
    heading, first, second = listed(TITLES, ROWS, None).split("\n")
    assert heading.split("  ")[0] == "ID"
    at = heading.index("LAST USED")
    assert first[heading.index("EXPIRES") :].startswith("-  ")
    assert first[at:].startswith("2026-12-01 08:00Z  tools:read")
    assert second[at:].startswith("-  ")


@pytest.mark.parametrize("columns", [200, 110, 80, 60, 40])
def test_every_line_fits_and_no_date_is_broken(columns: int) -> None:
    text = listed(TITLES, ROWS, columns)
    assert all(width(line) <= columns for line in text.split("\n")), text
    for moment in ("2026-12-01 08:00Z", "2027-01-01 09:30Z"):
        assert moment in text
    for title in TITLES:
        assert title in text.lower()


def test_where_no_table_fits_each_value_has_its_title_beside_it() -> None:
    first, second = listed(TITLES, ROWS, 40).split("\n\n")
    assert first.split("\n") == [
        "id         kaaaaaaaaaaaa",
        "expires    -",
        "last used  2026-12-01 08:00Z",
        "scopes     tools:read",
    ]
    assert second.split("\n")[3:] == [
        "scopes     prompts:read resources:read",
        "           server:every:* tools:read",
    ]


def test_wide_characters_keep_the_columns_in_their_places() -> None:
    heading, row = listed(("client", "state"), [("日本", "valid")], None).split("\n")
    assert heading == "CLIENT  STATE"
    assert row == "日本    valid"
