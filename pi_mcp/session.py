"""Session: one conversation of a host with its model.

Comes in: the plugin, whose connections and catalogs it uses, and a `Host`. Goes out: the search tool, natively loaded
tools, call results and `/mcp` answers. It owns what is loaded, what it may use, and what its person has confirmed;
it never prints and never asks except through the host.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pi_mcp.catalog.records import Catalog, Tool
from pi_mcp.config import ServerDefinition, ServerEntry, policy
from pi_mcp.config.usable import no_server, usable
from pi_mcp.connect import CallHandlers
from pi_mcp.errors import Diagnostic, Operation, PiMcpError, error_of, failure
from pi_mcp.host import Host, show_progress, tell_tools_changed
from pi_mcp.text import clean_line
from pi_mcp.tools import calls, names, results, schema
from pi_mcp.tools.answers import CallAnswer, FoundTool, Loading, SearchAnswer, call_answer, details, search_text
from pi_mcp.tools.consent import Consent
from pi_mcp.tools.elicitation import elicit_of
from pi_mcp.tools.kept import KeptSession
from pi_mcp.tools.loaded import LoadedSet, NativeTool
from pi_mcp.tools.search_tool import (
    SEARCH_TOOL,
    ToolDefinition,
    check_search,
    search_definition,
    search_description,
)

if TYPE_CHECKING:
    from pi_mcp.commands.answer import CommandAnswer
    from pi_mcp.commands.server_status import ServerStatus
    from pi_mcp.plugin import Plugin
    from pi_mcp.search import Hit

log = logging.getLogger("pi_mcp.plugin")

DEFAULT_MAX_TOOLS = 96
"""How many MCP tools a session declares at most: OpenAI-compatible endpoints refuse more than 128 in all."""
SEARCH_WAIT = 15.0
"""Seconds that one search waits for servers (DESIGN §5)."""
NONE_OPEN = "No MCP server can be used in this session."
"""Some may be there: switched off, invalid, or not for whoever asks."""

Progress = Callable[[float, float | None, str | None], None]


class Session:
    """One conversation: what is loaded in it, what it may use, and what its person has confirmed."""

    def __init__(
        self,
        plugin: Plugin,
        id: str,
        host: Host,
        *,
        servers: Collection[str] | None,
        tools: Collection[str] | None,
        keep: bool,
    ) -> None:
        self.plugin = plugin
        self.id = id
        self.host = host
        self._servers = None if servers is None else frozenset(servers)
        self._tools = None if tools is None else tuple(tools)
        self._kept = KeptSession(plugin.state_dir, id) if keep else None
        self.only: Callable[[str, str], bool] | None = None
        """Set by a host that has rules of its own: a tool (server, original name) that it denies is not there at all,
        where one that `host.allows` denies is found and named as excluded."""
        self.when_full = "/mcp unload frees places"
        """What to do where no more tools can be loaded; set by a host that has no commands."""
        self._loaded = LoadedSet()
        self._started = False
        self._closed = False
        self._always_seen: set[str] = set()
        self._text: str | None = None
        self._instructed: set[str] = set()
        self._consent = Consent()
        self._kept_before = False
        self._forms: dict[str, Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any] | None]]] = {}

    # What the model sees

    @property
    def search_tool(self) -> ToolDefinition:
        """The one tool that is always there. Its text is fixed for the session when it is first read.

        Reads kept catalogs, contacts nothing. After `restore` it is the text of the earlier process.
        """
        if self._text is None:
            servers = self.servers
            catalogs = self.plugin.catalogued(servers)
            counts = {
                name: sum(1 for tool in catalog.tools if self.permits(name, tool.name))
                for name, catalog in catalogs.items()
            }
            nothing = "No MCP server is configured." if self._unconfigured else NONE_OPEN
            self._text = search_description(servers, catalogs, counts, nothing)
        return search_definition(self._text)

    @property
    def loaded(self) -> tuple[NativeTool, ...]:
        """The natively declared tools, in the order of loading.

        A tool whose server is down stays; one whose server was switched off, or that is filtered now, is left
        out until that is taken back.
        """
        self._start()
        return tuple(tool for tool in self._loaded.tools if self.permits(tool.server, tool.tool))

    def kept_tools(self, server: str, tool: str) -> tuple[NativeTool, ...]:
        """The loaded tools of that server and original name, permitted now or not."""
        return tuple(one for one in self._loaded.tools if (one.server, one.tool) == (server, tool))

    def outdated(self, server: str, wire: Mapping[str, Any]) -> PiMcpError | None:
        """Why a loaded tool must not be called where `wire` is its live definition; None for what may be called, and
        for a tool that is not loaded. For a host that calls over a raw channel of its own (DESIGN §7).
        """
        for tool in self.kept_tools(server, str(wire.get("name"))):
            if tool.definition != wire and tool.hash != Tool(server, wire).hash:
                return calls.changed(tool, wire)
        return None

    # Scope

    def entry(self, name: str) -> ServerEntry:
        """The configured entry within this session's scope; raises NotFound with close names."""
        if not self.in_scope(name):
            raise no_server(name, self.entries)
        return self.plugin.entry(name)

    def definition(self, name: str) -> ServerDefinition:
        """The definition of a usable server in scope; raises NotFound, or the reason why it is not usable."""
        return usable(self.entry(name))

    def in_scope(self, name: str) -> bool:
        return self._servers is None or name in self._servers

    @property
    def entries(self) -> dict[str, ServerEntry]:
        """All configured entries within scope, usable or not, in configuration order."""
        every = self.plugin.configuration.entries
        return {name: entry for name, entry in every.items() if self.in_scope(name)}

    @property
    def servers(self) -> dict[str, ServerDefinition]:
        """The usable servers within scope, in configuration order."""
        every = self.plugin.configuration.servers
        return {name: definition for name, definition in every.items() if self.in_scope(name)}

    @property
    def max_tools(self) -> int:
        return DEFAULT_MAX_TOOLS if self.host.max_tools is None else self.host.max_tools

    @property
    def full(self) -> str:
        """Why a tool is not loaded where `max_tools` are."""
        return f"the session holds as many tools as it may, {self.max_tools}; {self.when_full}"

    def permits(self, server: str, tool: str) -> bool:
        """Configuration, trust, this session's scope and the host's own lists let this tool be used."""
        return self._within(server, tool) and self.host.allows(names.native_name(server, tool))

    def _within(self, server: str, tool: str) -> bool:
        """As `permits`, before the host is asked."""
        entry = self.plugin.configuration.entries.get(server)
        if entry is None or entry.state != "ready" or entry.definition is None or not self.in_scope(server):
            return False
        if not self.plugin.admits(entry.definition, tool) or (self.only is not None and not self.only(server, tool)):
            return False
        if self._tools is None:
            return True
        forms = (names.native_name(server, tool), f"{server}.{tool}", tool)
        return any(policy.matches(pattern, form) for pattern in self._tools for form in forms)

    # Search and loading

    async def search(self, query: str, *, server: str | None = None, limit: int = 5, load: bool = True) -> SearchAnswer:
        """Rank the tools of all servers in scope (or of one) and load up to `limit` of them.

        Raises ConfigurationError `usage` for a query that is empty or over 500 characters or a limit outside
        1–50, NotFound for an unknown server. A server that fails is in `not_searched`, never an exception.
        """
        query = check_search(query, limit)
        self._begin()
        targets = list(self.servers) if server is None else [self._searchable(server)]
        discovery = await self.plugin.catalogs.discover(targets, wait=SEARCH_WAIT, on_progress=self.show_discovery)
        catalogs = discovery.catalogs
        not_searched = (*discovery.not_searched, *(self.unusable() if server is None else ()))
        found, excluded = self._rank(query, limit, catalogs)
        loading = self._load(found) if load else self._listed(found)
        loading = replace(loading, hits=(*loading.hits, *excluded))
        nothing: list[str] = []
        close: list[str] = []
        if not loading.hits:
            nothing = self._nothing(catalogs)
            close = self._close_names(query, catalogs)
        elif words := self._unanswered(query, found):
            nothing = [
                f"These may not fit: none of them says anything of {clean_line(', '.join(words), 200)}. Name the "
                "service and the object, or try other words."
            ]
            close = self._close_names(query, catalogs)
        instructions = self._instructions(loading.loaded, catalogs)
        await self._changed(loading.loaded)
        return SearchAnswer(
            search_text(
                loading,
                nothing=nothing,
                instructions=instructions,
                not_searched=not_searched,
                warnings=discovery.warnings,
                close=close,
            ),
            loading.loaded,
            loading.already,
            not_searched,
            loading.hits,
            details([tool.to_record() for tool in loading.loaded], (*not_searched, *discovery.warnings)),
            tuple(catalogs),
            loading.replaced,
            discovery.warnings,
            tuple(close),
        )

    async def load(self, names_: Iterable[str]) -> SearchAnswer:
        """Load tools by native name, `server.tool`, or an original name that only one server has.

        Raises NotFound when none of the names is a tool, with close names, or the failure of the server that a
        name points at. Servers are contacted only where the names are not found in what is known.
        """
        self._begin()
        wanted = list(dict.fromkeys(name.strip() for name in names_ if name.strip()))
        if not wanted:
            raise failure("usage", "load", None, "No tool was named.", "Give native names or server.tool.")
        targets = self._servers_of(wanted)
        catalogs: Mapping[str, Catalog] = self.plugin.catalogued(targets)
        not_searched: tuple[Diagnostic, ...] = ()
        warnings: tuple[Diagnostic, ...] = ()
        if not all(self._qualified(name, catalogs) for name in wanted):
            discovery = await self.plugin.catalogs.discover(targets, wait=SEARCH_WAIT, on_progress=self.show_discovery)
            catalogs, not_searched, warnings = discovery.catalogs, discovery.not_searched, discovery.warnings
        found: dict[str, FoundTool] = {}
        problems: list[Diagnostic] = []
        for name in wanted:
            match = self._named(name, catalogs, not_searched)
            if isinstance(match, Diagnostic):
                problems.append(match)
            else:
                found[match.native] = match
        if not found:
            raise error_of(problems[0])
        loading = self._load(found.values())
        instructions = self._instructions(loading.loaded, catalogs)
        await self._changed(loading.loaded)
        missing = (*problems, *not_searched)
        text = search_text(loading, instructions=instructions, not_searched=not_searched, warnings=warnings)
        return SearchAnswer(
            "\n".join([text, *(problem.line() for problem in problems)]),
            loading.loaded,
            loading.already,
            not_searched,
            loading.hits,
            details([tool.to_record() for tool in loading.loaded], (*missing, *warnings)),
            tuple(catalogs),
            loading.replaced,
            warnings,
        )

    async def unload(self, names_: Iterable[str]) -> tuple[NativeTool, ...]:
        """Take tools out of the loaded set, to free places; raises NotFound for a name that is not loaded."""
        self._begin()
        gone = [self._loaded_tool(name, "load") for name in names_]
        for tool in gone:
            self._loaded.remove(tool.native)
        await self._changed(gone)
        return tuple(gone)

    # Calls

    async def call(
        self,
        native_name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: Progress | None = None,
        typed: bool = False,
    ) -> CallAnswer:
        """Call a loaded tool. `typed` says that a person wrote this very call, so nobody is asked again.

        A tool's own error is an answer with `is_error`; everything else that goes wrong is a PiMcpError, whose
        message says when the outcome is unknown. Cancelling the awaiting task cancels the call.
        """
        self._begin()
        tool = self._loaded_tool(native_name, "call")
        definition = self._callable(tool)
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, Mapping):
            raise failure("usage", "call", tool.server, "The arguments must be a JSON object.")
        if not typed:
            await self._consent.ask(self.host, definition, tool, arguments)
            # The person may have taken a minute: what was confirmed must still be what is called.
            if self._callable(tool) != definition or self._loaded.by_native(tool.native) != tool:
                raise failure(
                    "tool_changed",
                    "call",
                    tool.server,
                    f"{clean_line(tool.tool)} changed while its call was being confirmed; nothing was sent.",
                    "Call again.",
                )
        handlers = CallHandlers(on_progress=self._progress(tool, on_progress), elicit=self._elicit(definition))
        wire = await calls.call_live(
            self.plugin.catalogs, self.plugin.connections, definition, tool, arguments, handlers
        )
        return await self._present(tool, wire)

    def _callable(self, tool: NativeTool) -> ServerDefinition:
        """The definition under which `tool` may be called now; raises why it may not."""
        try:
            definition = self.definition(tool.server)
        except PiMcpError as error:
            raise error_of(replace(error.diagnostic, operation="call")) from None
        if not self.permits(tool.server, tool.tool):
            raise failure(
                "refused",
                "call",
                tool.server,
                f"{clean_line(tool.tool)} is excluded by filters, trust, this session or the host.",
                "See includeTools, excludeTools and trust of this server.",
            )
        return definition

    def _progress(self, tool: NativeTool, on_progress: Progress | None) -> Progress:
        def show(done: float, total: float | None, message: str | None) -> None:
            text = None if message is None else clean_line(message)
            try:
                if on_progress is not None:
                    on_progress(done, total, text)
                else:
                    self.host.progress(f"{tool.server}: {text or clean_line(tool.tool)}", done, total)
            except Exception as error:
                # A display must not lose the call that it displays.
                log.debug("a progress display failed with %s", type(error).__name__)

        return show

    def _elicit(
        self, definition: ServerDefinition
    ) -> Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any] | None]] | None:
        if not self.host.interactive or definition.trust == "untrusted":
            return None
        # One object per server: to a stdio server, calls with different handlers are calls nobody can tell apart.
        if definition.name not in self._forms:
            self._forms[definition.name] = elicit_of(self.host, definition.name)
        return self._forms[definition.name]

    async def _present(self, tool: NativeTool, wire: dict[str, Any]) -> CallAnswer:
        # A thread costs a sixth of a millisecond, half of a whole call of a fast server.
        small = results.is_small(wire)
        directory = self.plugin.state_dir / "results"
        if small:
            presented = results.present(wire, server=tool.server, directory=directory)
        else:
            presented = await asyncio.to_thread(results.present, wire, server=tool.server, directory=directory)
        if presented.files:
            # Where new files come is where old ones have to go: seven days (DESIGN §7).
            await asyncio.to_thread(results.sweep, directory)
        warning = None
        output_schema = tool.definition.get("outputSchema")
        if isinstance(output_schema, dict) and wire.get("isError") is not True:
            from pi_mcp.tools import output

            if small and (output.plainly_fits(output_schema, wire) or output.is_ready()):
                warning = output.check(output_schema, wire)
            else:
                warning = await asyncio.to_thread(output.check, output_schema, wire)
        return call_answer(tool.server, tool.tool, wire, presented, warning)

    # /mcp

    async def command(self, line: str) -> CommandAnswer:
        """Run `/mcp …` (with or without the leading `/mcp`); never raises but for cancellation."""
        from pi_mcp import commands

        try:
            self._begin()
        except PiMcpError as error:
            return commands.failed(error.diagnostic)
        answer = await commands.run(self, line)
        await self._keep()
        return answer

    def statuses(self) -> list[ServerStatus]:
        """One row per configured entry within this session's scope; contacts nothing."""
        return [self.plugin.status(name, session=self) for name in self.entries]

    def complete(self, line: str) -> list[str]:
        """Completions for a `/mcp …` line, as whole words; no I/O: tools of catalogs in memory."""
        from pi_mcp import commands

        return commands.complete(self, line)

    # Life

    async def prepare(self, *, wait: float = SEARCH_WAIT) -> tuple[Diagnostic, ...]:
        """Load the `alwaysLoad` tools of servers whose catalogs were not known at the start, within `wait` s."""
        self._begin()
        awaited = [
            name
            for name, definition in self.servers.items()
            if definition.always_load and name not in self._always_seen
        ]
        if not awaited:
            await self._keep()
            return ()
        discovery = await self.plugin.catalogs.discover(awaited, wait=wait, on_progress=self.show_discovery)
        await self._changed(self._load_always(discovery.catalogs))
        return discovery.not_searched

    async def restore(self, records: Iterable[Mapping[str, Any]] | None = None) -> tuple[Diagnostic, ...]:
        """Make the loaded set exactly that of `records`, or of what was kept under this session's id.

        Works while servers are down and caches are gone. A tool that configuration, trust or the host excludes
        now is left out, and the reason is returned. Without records and without a kept file nothing changes.
        """
        kept = await self._kept.read() if self._kept is not None else None
        if kept is not None:
            self._text = self._text or kept.text
            self._instructed |= kept.instructed
        if records is None:
            if kept is None:
                return ()
            records = kept.loaded
        self._started = True
        # What was not loaded in that branch was known and unloaded there, or never wanted.
        always = [name for name, definition in self.servers.items() if definition.always_load]
        self._always_seen |= set(self.plugin.catalogued(always))
        restored = LoadedSet(self._loaded)
        skipped = restored.restore(records)
        diagnostics: list[Diagnostic] = []
        for tool in restored.tools:
            reason = None
            if not self.permits(tool.server, tool.tool):
                reason = "its server is gone or switched off, or the tool is excluded"
            elif len(restored) > self.max_tools and restored.tools.index(tool) >= self.max_tools:
                reason = f"the host takes {self.max_tools} tools at most"
            if reason is not None:
                restored.remove(tool.native)
                diagnostics.append(
                    Diagnostic(
                        "refused",
                        "load",
                        tool.server,
                        f"{clean_line(tool.tool)} is not restored: {reason}.",
                        "See /mcp.",
                    )
                )
        if skipped:
            what = "1 tool record was" if skipped == 1 else f"{skipped} tool records were"
            diagnostics.append(Diagnostic("operation_failed", "load", None, f"{what} damaged and skipped."))
        self._loaded = restored
        tell_tools_changed(self.host)
        await self._keep()
        return tuple(diagnostics)

    async def close(self) -> None:
        """End this conversation; the plugin and its connections live on. It searches and calls nothing any more."""
        self._closed = True
        await self._keep()
        self.plugin.forget_session(self)

    # Inside

    def _begin(self) -> None:
        if self._closed:
            raise failure("refused", "command", None, "This conversation has ended.", "Start another session.")
        self._start()

    def _start(self) -> None:
        """Load the `alwaysLoad` tools that the known catalogs have; once, without I/O but those catalogs."""
        if not self._started:
            self._started = True
            always = [name for name, definition in self.servers.items() if definition.always_load]
            self._load_always(self.plugin.catalogued(always))

    def _load_always(self, catalogs: Mapping[str, Catalog]) -> tuple[NativeTool, ...]:
        found: list[FoundTool] = []
        for name, catalog in catalogs.items():
            definition = self.servers.get(name)
            if definition is None or name in self._always_seen:
                continue
            self._always_seen.add(name)
            for tool in catalog.tools:
                if policy.always_loads(definition, tool.name) and self.permits(name, tool.name):
                    found.append(FoundTool(tool, names.native_name(name, tool.name)))
        return self._load(found).loaded

    def _searchable(self, name: str) -> str:
        try:
            self.definition(name)
        except PiMcpError as error:
            raise error_of(replace(error.diagnostic, operation="search")) from None
        return name

    def unusable(self) -> tuple[Diagnostic, ...]:
        """What a search leaves out although a person may expect it: broken files, entries that are invalid or wait
        for trust."""
        broken = [
            report.diagnostic
            for report in self.plugin.configuration.files
            if report.status == "invalid" and report.diagnostic is not None and self._servers is None
        ]
        waiting = [
            entry.diagnostic
            for entry in self.entries.values()
            if entry.state in ("invalid", "untrusted_project") and entry.diagnostic is not None
        ]
        return (*broken, *waiting)

    def _rank(self, query: str, limit: int, catalogs: Mapping[str, Catalog]) -> tuple[list[FoundTool], list[FoundTool]]:
        """The best `limit` tools, and those that would be among them if the host took them."""
        ranked = [_found(*place) for place in self.plugin.rank(query, limit, catalogs, self._within)]
        excluded = [hit for hit in ranked if not self.host.allows(hit.native)]
        if excluded:
            ranked = [_found(*place) for place in self.plugin.rank(query, limit, catalogs, self.permits)]
        problem = "the host has a tool of this name already, or excludes it"
        return ranked, [hit.not_loaded(problem) for hit in excluded]

    def _listed(self, found: Sequence[FoundTool]) -> Loading:
        have = [self._loaded.by_native(item.native) for item in found]
        return Loading(
            already=tuple(tool for tool in have if tool is not None),
            hits=tuple(found),
            listed=tuple(item for item, tool in zip(found, have, strict=True) if tool is None),
        )

    def _load(self, found: Iterable[FoundTool]) -> Loading:
        """Put tools into the loaded set, in their order; one with a new definition takes its old one's place."""
        loaded: list[NativeTool] = []
        already: list[NativeTool] = []
        replaced: list[NativeTool] = []
        hits: list[FoundTool] = []
        for item in found:
            have = self._loaded.by_native(item.native)
            if have is not None and have.hash == item.tool.hash:
                already.append(have)
                hits.append(item)
                continue
            if have is None and len(self._loaded) >= self.max_tools:
                hits.append(item.not_loaded(self.full))
                continue
            try:
                form = schema.model_schema(item.tool.wire.get("inputSchema"))
            except schema.Quarantined as quarantined:
                hits.append(item.not_loaded(f"its input schema cannot be used: {quarantined.reason}"))
                continue
            native = NativeTool.from_tool(item.tool, item.native, form)
            if self._loaded.put(native) is not None:
                replaced.append(native)
            loaded.append(native)
            hits.append(item)
        return Loading(tuple(loaded), tuple(already), tuple(replaced), tuple(hits))

    def _instructions(self, loaded: Iterable[NativeTool], catalogs: Mapping[str, Catalog]) -> dict[str, str]:
        """Instructions of the servers of `loaded` that this conversation has not had yet (DESIGN §5, §9)."""
        fresh: dict[str, str] = {}
        for server in dict.fromkeys(tool.server for tool in loaded):
            catalog, definition = catalogs.get(server), self.servers.get(server)
            if server in self._instructed or catalog is None or definition is None:
                continue
            if catalog.instructions and definition.trust != "untrusted":
                self._instructed.add(server)
                fresh[server] = catalog.instructions
        return fresh

    @property
    def _unconfigured(self) -> bool:
        """There is nothing, and this session may know: where the files are is no business of a scoped one, which may
        be somebody's from elsewhere."""
        return not self.plugin.configuration.entries and self._servers is None

    def _nothing(self, catalogs: Mapping[str, Catalog]) -> list[str]:
        """Why there is no hit."""
        if self._unconfigured:
            from pi_mcp.commands.configured import nothing_configured

            return [nothing_configured(self.plugin.configuration)]
        if not catalogs:
            off = [name for name, entry in self.entries.items() if entry.state == "disabled"]
            also = f" Switched off: {clean_line(', '.join(off), 300)}." if off else ""
            if not self.servers and not also:
                return [NONE_OPEN]
            return [f"No server could be searched.{also}"]
        count = sum(self._within(name, tool.name) for name, catalog in catalogs.items() for tool in catalog.tools)
        servers = "1 server" if len(catalogs) == 1 else f"{len(catalogs)} servers"
        return [
            f"No tool of {servers} ({count} tools) matches. Name the service and the object, one need per search, "
            "or try other words."
        ]

    @staticmethod
    def _unanswered(query: str, found: Sequence[FoundTool]) -> tuple[str, ...]:
        from pi_mcp.search.doubt import unanswered

        return unanswered(query, found)

    def _close_names(self, query: str, catalogs: Mapping[str, Catalog]) -> list[str]:
        for catalog in catalogs.values():
            self.plugin._put_in_index(catalog)
        server = names.pointed_server(query, catalogs)
        if server is not None:  # every tool of that server has its name
            query = names.without_server(query, server) or query
        close = self.plugin.index.close_names(query, 5, allowed=self.permits, servers=set(catalogs))
        return [f"{server}.{tool}" for server, tool in close]

    def _servers_of(self, wanted: Iterable[str]) -> list[str]:
        """The servers that the names point at; all of them where one points at none."""
        every = list(self.servers)
        pointed: set[str] = set()
        for name in wanted:
            mine = [server for server in every if name.startswith((f"{server}.", f"mcp__{server}__"))]
            if not mine:
                return every
            pointed.update(mine)
        return [server for server in every if server in pointed]

    def _qualified(self, name: str, catalogs: Mapping[str, Catalog]) -> bool:
        """Is this a native name or `server.tool` of these catalogs? An original name may be on other servers too."""
        return any(name in _names_of(tool)[:2] for catalog in catalogs.values() for tool in catalog.tools)

    def _named(
        self, name: str, catalogs: Mapping[str, Catalog], not_searched: Sequence[Diagnostic]
    ) -> FoundTool | Diagnostic:
        """The one tool of that name, or why there is none."""
        matches = [
            (tool, name in _names_of(tool)[:2])
            for catalog in catalogs.values()
            for tool in catalog.tools
            if name in _names_of(tool)
        ]
        if any(precise for _, precise in matches):
            matches = [match for match in matches if match[1]]
        permitted = [tool for tool, _ in matches if self.permits(tool.server, tool.name)]
        shown = clean_line(name, 100)
        if len(permitted) == 1:
            return FoundTool(permitted[0], names.native_name(permitted[0].server, permitted[0].name), 0.0, True)
        if permitted:
            owners = ", ".join(f"{tool.server}.{tool.name}" for tool in permitted)
            return Diagnostic(
                "not_found", "load", None, f"Several servers have a tool {shown!r}.", f"Name one: {clean_line(owners)}."
            )
        if matches:
            return Diagnostic(
                "refused",
                "load",
                matches[0][0].server,
                f"{shown} is excluded by filters, trust, this session or the host.",
                "See includeTools, excludeTools and trust of this server.",
            )
        for diagnostic in not_searched:
            if diagnostic.server and name.startswith((f"{diagnostic.server}.", f"mcp__{diagnostic.server}__")):
                return diagnostic
        close = self._close_names(name, catalogs)
        hint = f"Close names: {clean_line(', '.join(close), 400)}." if close else "Search for it with other words."
        return Diagnostic("not_found", "load", None, f"No tool is called {shown!r}.", hint)

    def _loaded_tool(self, name: str, operation: Operation) -> NativeTool:
        """The loaded tool of that native name, `server.tool`, or original name that only one has."""
        tool = self._loaded.by_native(name)
        if tool is None:
            matches = [tool for tool in self._loaded.tools if name in (f"{tool.server}.{tool.tool}", tool.tool)]
            tool = matches[0] if len(matches) == 1 else None
        if tool is None:
            hint = f"Find it with {SEARCH_TOOL}." if operation == "call" else "See /mcp tools loaded."
            raise failure("not_found", operation, None, f"The tool {clean_line(name, 100)!r} is not loaded.", hint)
        return tool

    async def _changed(self, tools: Collection[NativeTool]) -> None:
        if tools:
            tell_tools_changed(self.host)
        await self._keep()

    async def _keep(self) -> None:
        """Write what a later process needs, where there is anything and it is not written yet."""
        if self._kept is not None and (self._text is not None or len(self._loaded) or self._kept_before):
            self._kept_before = True
            await self._kept.write(self._text, self._loaded.records(), self._instructed)

    def show_discovery(self, server: str, done: int, total: int) -> None:
        show_progress(self.host, f"Asked {server} for its tools", done, total)


def _found(tool: Tool, hit: Hit) -> FoundTool:
    return FoundTool(tool, names.native_name(tool.server, tool.name), hit.score, hit.exact, tuple(hit.reasons))


def _names_of(tool: Tool) -> tuple[str, str, str]:
    """Every way to name a tool: native, with its server, and original."""
    return names.native_name(tool.server, tool.name), f"{tool.server}.{tool.name}", tool.name
