"""The face `search`: one search tool in the place of all tools, and those that it has found.

Comes in: a client's search. Goes out: the loaded set of that client, as the upstreams defined the tools, and the
answer's text under the gateway's names. Each client session has its own; clients without a session get names and
schemas, and `mcp_call`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pi_mcp.errors import Diagnostic
from pi_mcp.host import HeadlessHost
from pi_mcp.jsontext import compact_json
from pi_mcp.plugin import SEARCH_TOOL, FoundTool, Plugin, SearchAnswer, Session, search_arguments

CALL_TOOL = "mcp_call"
OWN_TOOLS = (SEARCH_TOOL, CALL_TOOL)
ALWAYS_LOAD = {"anthropic/alwaysLoad": True}
"""Claude Code defers other tools to a search of its own."""


RELIST_WAIT = 1.5
"""Seconds that an answer is held for the client to list again (measured: it comes within 20 ms, or never)."""
IGNORED = 2
"""Searches after which a client that never lists again is not waited for any more."""

CALL_DEFINITION: Mapping[str, Any] = {
    "name": CALL_TOOL,
    "description": (
        f"Call a tool that {SEARCH_TOOL} has found, by the name in its answer. Only needed where the tool is not "
        "among your tools by itself."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": f"The name as {SEARCH_TOOL} gave it."},
            "arguments": {"type": "object", "description": "The tool's arguments, after its input schema."},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    "_meta": ALWAYS_LOAD,
}


def defers_tools(client_info: Mapping[str, Any] | None) -> bool:
    """Whether a client keeps tools back for a search of its own, and so what ours has found.

    Measured with Claude Code 2.1.332 in its default setting: a tool that was found is declared on the next turn of the
    model when it has `ALWAYS_LOAD`, and not before its own search without.
    """
    name = None if client_info is None else client_info.get("name")
    return isinstance(name, str) and name.startswith("claude")


class Loading:
    """What one client has loaded. `exposed(server, tool)` is the name that it knows a tool by."""

    def __init__(
        self,
        plugin: Plugin,
        id: str,
        exposed: Callable[[str, str], str],
        *,
        keeps: bool,
        servers: Collection[str] | None = None,
    ) -> None:
        """`keeps`: the client has a session in which tools stay loaded. `servers`: the only ones there are for it."""
        self._plugin = plugin
        self._exposed = exposed
        self._keeps = keeps
        self.session: Session = plugin.session(id, HeadlessHost(), keep=False, servers=servers)
        self.session.when_full = f"call it with {CALL_TOOL}"
        self._compared: dict[tuple[str, str], tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        """Loaded tools that had changed: the definition on the client's connection, and what a search finds."""
        self.listed = asyncio.Event()
        """The client was sent its list of tools."""
        self.ignored = 0
        """Searches in a row after which the client did not list again."""

    def permit(self, permits: Callable[[str, Mapping[str, Any]], bool]) -> None:
        """Whose rights count from now on. What is not permitted is not there: it is in no list, answer or count."""

        def only(server: str, name: str) -> bool:
            catalog = self._plugin.catalogs.known(server)
            tool = None if catalog is None else catalog.tool(name)
            if tool is not None:
                return permits(server, tool.wire)
            # Its server has a new list, or none: what was loaded stays what it was.
            return any(permits(server, one.definition) for one in self.session.kept_tools(server, name))

        self.session.only = only

    def compare(self, server: str, wire: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        """`wire`, a loaded tool's, is no longer what was loaded, and `found` is what a search finds from now on."""
        self._compared[server, str(wire["name"])] = (wire, found)

    def found_anew(self, server: str, wire: Mapping[str, Any]) -> bool:
        """Whether a loaded tool is what a search found when it was listed beside this very definition.

        Some servers list other words on each connection, or each time; what the client was shown is one of them.
        """
        beside, found = self._compared.get((server, str(wire["name"])), (None, None))
        return found is not None and beside == wire and self.session.outdated(server, found) is None

    def own_tools(self) -> list[dict[str, Any]]:
        search = self.session.search_tool
        return [
            {
                "name": search.name,
                "description": search.description,
                "inputSchema": dict(search.input_schema),
                "annotations": dict(search.annotations),
                "_meta": ALWAYS_LOAD,
            },
            dict(CALL_DEFINITION),
        ]

    def tools(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The loaded tools: the server of each and its own definition, in the order of loading."""
        return [(tool.server, tool.definition) for tool in self.session.loaded]

    async def search(
        self, arguments: Mapping[str, Any], told: Callable[[Diagnostic], Diagnostic]
    ) -> tuple[SearchAnswer, dict[str, Any]]:
        """The session's answer, and the same as a call's result, with failures as the client is `told` of them.

        Raises PiMcpError for unusable arguments.
        """
        given = search_arguments(arguments)
        if not self._keeps:
            given["load"] = False
        answer = await self.session.search(**given)
        text = self._renamed(answer, told)
        called = [hit for hit in answer.hits if not self._keeps or hit.problem == self.session.full]
        if called:
            text = "\n".join([text, f"Call them with {CALL_TOOL}. Their input schemas:", *map(self._schema, called)])
        return answer, {"content": [{"type": "text", "text": text}], "isError": False}

    def _schema(self, hit: FoundTool) -> str:
        schema = compact_json(hit.tool.wire.get("inputSchema"))
        return f"{self._exposed(hit.tool.server, hit.tool.name)}: {schema}"

    def _renamed(self, answer: SearchAnswer, told: Callable[[Diagnostic], Diagnostic]) -> str:
        """The text with the names that this client knows, the longest first: one may begin with another."""
        text = answer.text
        for diagnostic in (*answer.not_searched, *answer.warnings):
            text = text.replace(diagnostic.line(), told(diagnostic).line())
        names = {hit.native: self._exposed(hit.tool.server, hit.tool.name) for hit in answer.hits}
        names |= {
            tool.native: self._exposed(tool.server, tool.tool) for tool in (*answer.loaded, *answer.already_loaded)
        }
        for native in sorted(names, key=len, reverse=True):
            text = text.replace(native, names[native])
        return text

    async def hold(self, announce: Callable[[], None]) -> None:
        """Tell the client that its tools changed, and wait until it has been sent the new list, or not for long.

        Clients show a new tool on the next turn only in that order. One that never lists again is only told.
        """
        self.listed.clear()
        announce()
        if self.ignored >= IGNORED:
            return
        try:
            async with asyncio.timeout(RELIST_WAIT):
                await self.listed.wait()
            self.ignored = 0
        except TimeoutError:
            self.ignored += 1

    async def close(self) -> None:
        await self.session.close()
