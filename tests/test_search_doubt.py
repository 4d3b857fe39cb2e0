"""An answer that only shares a verb or a filler with the query says so."""

from __future__ import annotations

import pytest

from pi_mcp.catalog.records import Tool
from pi_mcp.search import Index, search_tool
from pi_mcp.search.doubt import unanswered
from pi_mcp.tools.names import native_name

TOOLS = {
    "send_message": "Send a message to a person or a channel.",
    "create_issue": "Create an issue in the tracker, with title and labels.",
    "find_cells": "Find cells in a spreadsheet. Also finds formulas that mention a weather station.",
    "get_current_time": "The current time in a time zone.",
}


@pytest.fixture
def index() -> Index:
    made = Index()
    tools = [Tool("s", {"name": name, "description": text}) for name, text in TOOLS.items()]
    made.replace("s", [search_tool(tool, native=native_name("s", tool.name)) for tool in tools])
    return made


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("send a fax", ("fax",)),
        ("find the pigeon", ("pigeon",)),
        ("create an issue", ()),
        ("create an issue about pigeons", ()),
        ("what time is it in Tokyo", ()),
        ("send_message", ()),
        ("find the weather", ()),
        ("find the weather tomorrow", ("tomorrow",)),
        ("the of and", ()),
    ],
)
def test_words_of_the_subject_that_no_tool_answers_are_named(index: Index, query: str, words: tuple[str, ...]) -> None:
    assert unanswered(query, index.search(query, 5)) == words


def test_without_hits_there_is_nothing_to_doubt_but_the_words() -> None:
    assert unanswered("send a fax", []) == ("fax",)
