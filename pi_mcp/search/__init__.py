"""Search: the tools of all servers in, the best of them for a query out, with the reasons for each place.

    index = Index()
    index.replace("tracker", [search_tool(tool, native="mcp__tracker__create_issue") for tool in catalog.tools])
    hits = index.search("file a bug", 5)

Nothing here connects, loads or permits. Importing it is light; rank-bm25 comes in with the first search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pi_mcp.search.document import FIELDS, SearchTool, from_listing, search_tool
from pi_mcp.search.index import Index
from pi_mcp.search.ranking import Hit, Reason

__all__ = ["FIELDS", "Hit", "Index", "Reason", "SearchTool", "rank", "search_tool"]


def rank(catalog: Iterable[Mapping[str, Any]], queries: Iterable[str], limit: int) -> list[list[tuple[str, str]]]:
    """The ranking of `Index.search` over tool dicts: for each query (server, tool name), best first.

    The keys of a dict are those of a wire tool, and `server`, `serverTitle`, `serverDescription`. This is what
    labelled query sets are measured with.
    """
    tools: dict[str, list[SearchTool]] = {}
    for entry in catalog:
        tool = from_listing(entry)
        tools.setdefault(tool.server, []).append(tool)
    index = Index()
    for server, offered in tools.items():
        index.replace(server, offered)
    return [[(hit.server, hit.name) for hit in index.search(query, limit)] for query in queries]
