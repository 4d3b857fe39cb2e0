"""The index over the tools of several servers.

Comes in: `SearchTool` values, one set per server, and queries. Goes out: hits. It does no I/O, loads nothing and
decides nothing about permission: what a caller may see is its `allowed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from pi_mcp.search.document import Document, SearchTool, document
from pi_mcp.search.ranking import Admit, Hit, Ranking
from pi_mcp.search.tuning import DEFAULT, Tuning

Allowed = Callable[[str, str], bool]


class Index:
    """A ranking that is built at the first search and again after a change.

    Replacing one server counts that server's terms alone, and only at the next search; the statistics over all
    servers are then made anew from the counts.
    """

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._tools: dict[str, tuple[SearchTool, ...]] = {}
        self._documents: dict[str, tuple[Document, ...]] = {}
        self._ranking: Ranking | None = None

    def __len__(self) -> int:
        """How many tools it holds."""
        return sum(map(len, self._tools.values()))

    def replace(self, server: str, tools: Iterable[SearchTool]) -> None:
        """Make `tools` all that `server` offers. Of two tools of one name the first counts."""
        distinct: dict[str, SearchTool] = {}
        for tool in tools:
            distinct.setdefault(tool.name, tool)
        fresh = tuple(distinct[name] for name in sorted(distinct))
        if self._tools.get(server) == fresh:
            return
        self._tools[server] = fresh
        self._documents.pop(server, None)
        self._ranking = None

    def remove(self, server: str) -> None:
        """Forget a server; an unknown name is no error."""
        if self._tools.pop(server, None) is not None:
            self._documents.pop(server, None)
            self._ranking = None

    def search(
        self,
        query: str,
        limit: int,
        *,
        allowed: Allowed | None = None,
        servers: Collection[str] | None = None,
    ) -> list[Hit]:
        """The at most `limit` best tools for `query`; tools whose name it writes come first (DESIGN §6).

        `allowed(server, name)` and `servers` restrict what may be found. Empty where no word matches. Ties go by
        server, then name; the same tools and query always give the same list, and a smaller limit its beginning.
        """
        ranking = self._ready()
        if ranking is None or limit <= 0:
            return []
        return ranking.search(query, limit, _admission(allowed, servers))

    def close_names(
        self,
        query: str,
        limit: int = 5,
        *,
        allowed: Allowed | None = None,
        servers: Collection[str] | None = None,
    ) -> list[tuple[str, str]]:
        """(server, tool) whose names look most like the query: what to offer where nothing matched."""
        ranking = self._ready()
        if ranking is None or limit <= 0:
            return []
        return ranking.names.close(query, limit, _admission(allowed, servers))

    def _ready(self) -> Ranking | None:
        if self._ranking is None and any(self._tools.values()):
            tools: list[SearchTool] = []
            documents: list[Document] = []
            for server in sorted(self._tools):
                if server not in self._documents:
                    self._documents[server] = tuple(document(tool, self._tuning.fields) for tool in self._tools[server])
                tools += self._tools[server]
                documents += self._documents[server]
            self._ranking = Ranking(tools, documents, self._tuning)
        return self._ranking


def _admission(allowed: Allowed | None, servers: Collection[str] | None) -> Admit | None:
    if allowed is None and servers is None:
        return None
    if allowed is None:
        return lambda tool: servers is None or tool.server in servers
    permits = allowed

    def admit(tool: SearchTool) -> bool:
        return (servers is None or tool.server in servers) and permits(tool.server, tool.name)

    return admit
