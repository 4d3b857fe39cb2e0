"""Plugin and Session: everything that a host agent needs.

Comes in: a configuration, and per conversation a `Host`. Goes out: the search tool, natively loaded tools, call
results and `/mcp` answers. A Plugin owns what is shared (connections, catalogs, index); a Session owns one
conversation (loaded tools, scope, confirmations). Neither does anything until awaited; both belong to the event
loop that first awaits them. They never print and never ask except through the host.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp import files
from pi_mcp.catalog import Catalogs, CatalogStore
from pi_mcp.catalog.records import Catalog, Tool
from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.config import Configuration, ServerDefinition, ServerEntry, load_config, policy
from pi_mcp.connect import CallHandlers, Connections
from pi_mcp.errors import Diagnostic, NotFound, PiMcpError, Refused, failure
from pi_mcp.host import HeadlessHost, Host
from pi_mcp.search import Index, search_tool
from pi_mcp.text import clean_line, clean_metadata
from pi_mcp.tools import calls, names, results, schema
from pi_mcp.tools.loaded import LoadedSet, NativeTool

if TYPE_CHECKING:
    from pi_mcp.search import Hit

SEARCH_TOOL = "mcp_search"
DEFAULT_MAX_TOOLS = 96
"""How many MCP tools a session declares at most: OpenAI-compatible endpoints refuse more than 128 in all."""
SEARCH_WAIT = 15.0
"""Seconds that one search waits for servers (DESIGN §5)."""
QUERY_CHARACTERS = 500
SESSION_DAYS = 90.0

__all__ = [
    "CallAnswer",
    "CommandAnswer",
    "Plugin",
    "SearchAnswer",
    "ServerStatus",
    "Session",
    "Table",
    "ToolDefinition",
]


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as it is declared to a model: JSON Schema (object at the top) in `input_schema`."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundTool:
    """One place of a ranking, loaded or not."""

    tool: Tool
    native: str
    score: float
    exact: bool
    reasons: tuple[Any, ...] = ()
    problem: str | None = None
    """Why it was not loaded, when it should have been."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """What `mcp_search` found. `text` is for the model; `details` for the host to keep (DESIGN §3)."""

    text: str
    loaded: tuple[NativeTool, ...] = ()
    already_loaded: tuple[NativeTool, ...] = ()
    not_searched: tuple[Diagnostic, ...] = ()
    hits: tuple[FoundTool, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    searched: tuple[str, ...] = ()
    """Names of the servers whose catalogs were searched."""


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """A tool's result for the model: wire-form text and image blocks, bounded and cleaned (DESIGN §7).

    `structured` is the server's structuredContent or None, `is_error` its own verdict, `text` the same content
    as plain text for a terminal, `raw` the whole result in wire form.
    """

    content: tuple[Mapping[str, Any], ...]
    structured: Any
    is_error: bool
    details: Mapping[str, Any]
    text: str = ""
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One row of `/mcp`. `filtered` is the number of tools left after filters and trust; None is unknown."""

    name: str
    transport: str | None
    state: str
    trust: str | None
    tools: int | None
    filtered: int | None
    cached: float | None
    last_success: float | None
    error: Diagnostic | None
    loaded: int = 0
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A row of `pi-mcp servers --json` (DESIGN §10)."""
        moment = None
        if self.last_success is not None:
            stamp = datetime.datetime.fromtimestamp(self.last_success, datetime.UTC)
            moment = stamp.isoformat(timespec="seconds").replace("+00:00", "Z")
        return {
            "name": self.name,
            "transport": self.transport,
            "state": self.state,
            "trust": self.trust,
            "tools": self.tools,
            "filtered": self.filtered,
            "cached": None if self.cached is None else round(self.cached),
            "lastSuccess": moment,
            "error": self.error.to_json() if self.error else None,
        }


class Plugin:
    """What all conversations of a process share. Give it a `Configuration`, or nothing to load the files."""

    def __init__(
        self,
        config: Configuration | None = None,
        *,
        state_dir: Path | None = None,
        cache_dir: Path | None = None,
        reload: Callable[[], Configuration] | None = None,
    ) -> None:
        """`reload` reads the configuration anew for `/mcp reload`; by default the files are read again."""
        self.configuration = load_config() if config is None else config
        self.state_dir = files.state_dir() if state_dir is None else state_dir
        self._reload = reload or (lambda: load_config(cwd=self.configuration.cwd))
        self.connections = Connections(self.configuration)
        store = CatalogStore(None if cache_dir is None else cache_dir / "catalogs")
        self.catalogs = Catalogs(self.configuration, self.connections, store)
        self.index = Index()
        self._indexed: dict[str, Catalog] = {}
        self._sessions: dict[str, Session] = {}

    # Sessions

    def session(
        self,
        id: str,  # the contract's name
        host: Host | None = None,
        *,
        servers: Collection[str] | None = None,
        tools: Collection[str] | None = None,
        keep: bool = True,
    ) -> Session:
        """A conversation. `servers` limits it to those; `tools` to patterns over native name, `server.tool` or
        original name. With `keep` its tool text and loaded set are kept on disk under its id, for `restore`.
        """
        session = Session(self, id, host or HeadlessHost(), servers=servers, tools=tools, keep=keep)
        self._sessions[id] = session
        return session

    @property
    def sessions(self) -> tuple[Session, ...]:
        return tuple(self._sessions.values())

    def forget_session(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    # Configuration

    def entry(self, name: str) -> ServerEntry:
        """The configured entry of that name; raises NotFound with the names that exist."""
        entry = self.configuration.entries.get(name)
        if entry is None:
            known = ", ".join(sorted(self.configuration.entries)[:20]) or "none is configured"
            raise failure(
                "not_found",
                "configure",
                None,
                f"No server is called {clean_line(name, 64)!r}.",
                f"Servers: {clean_line(known, 600)}.",
            )
        return entry

    def definition(self, name: str) -> ServerDefinition:
        """The definition of a usable server; raises NotFound, or the reason why it is not usable."""
        entry = self.entry(name)
        if entry.state == "ready" and entry.definition is not None:
            return entry.definition
        raise failure_of_entry(entry)

    async def reload(self) -> tuple[Diagnostic, ...]:
        """Read the configuration anew and apply it; unchanged servers stay connected.

        A file that cannot be parsed refuses the whole reload: the running configuration stays and
        ConfigurationError is raised. Returns the diagnostics of single entries.
        """
        fresh = await asyncio.to_thread(self._reload)
        for report in fresh.files:
            if report.status == "invalid" and report.diagnostic is not None:
                raise failure(
                    "configuration_invalid",
                    "configure",
                    None,
                    f"Nothing was reloaded. {report.diagnostic.message}",
                    report.diagnostic.hint,
                )
        await self.apply(fresh)
        problems = [entry.diagnostic for entry in fresh.entries.values() if entry.diagnostic is not None]
        return (*fresh.diagnostics, *problems)

    async def apply(self, configuration: Configuration) -> None:
        """Put a configuration in force: changed and removed servers are disconnected, others stay."""
        self.configuration = configuration
        changed = self.connections.update(configuration)
        await asyncio.gather(*(self.connections.close(name) for name in changed))
        self.catalogs.update(configuration)
        for name in [name for name in self._indexed if name not in configuration.servers or name in changed]:
            self.index.remove(name)
            del self._indexed[name]

    async def trust_project(self, host: Host) -> bool:
        """Ask once whether the project's file is trusted; on yes it is stored and applied."""
        from pi_mcp.config import ask_trust

        if self.configuration.project is None:
            return False
        if not await ask_trust(self.configuration, host):
            return False
        await self.apply(await asyncio.to_thread(self._reload))
        return True

    # Status and search index

    def status(self, name: str, *, session: Session | None = None) -> ServerStatus:
        """What is known of one entry now; contacts nothing."""
        entry = self.entry(name)
        definition = entry.definition
        if entry.state != "ready" or definition is None:
            return ServerStatus(
                name,
                definition.transport if definition else None,
                entry.state,
                definition.trust if definition else None,
                None,
                None,
                None,
                None,
                entry.diagnostic,
                notes=tuple(warning.message for warning in entry.warnings),
            )
        connection = self.connections.get(name)
        catalog = self.catalogs.known(name)
        admitted = [tool for tool in catalog.tools if self.admits(definition, tool.name)] if catalog else None
        loaded = 0 if session is None else sum(1 for tool in session.loaded if tool.server == name)
        notes = [warning.message for warning in entry.warnings]
        if catalog is not None:
            notes.extend(catalog.notes)
        return ServerStatus(
            name,
            definition.transport,
            connection.state,
            definition.trust,
            len(catalog.tools) if catalog else None,
            len(admitted) if admitted is not None else None,
            catalog.age(time.time()) if catalog else None,
            connection.last_success,
            connection.diagnostic or self.catalogs.failed(name),
            loaded,
            tuple(notes),
        )

    def admits(self, definition: ServerDefinition, tool_name: str) -> bool:
        """Filters and the registration rule of DESIGN §9 let this tool through."""
        return policy.admits(definition, tool_name, self.configuration) == "ok"

    def catalogued(self, servers: Iterable[str]) -> dict[str, Catalog]:
        """The catalogs that are known without contacting anything, with the search index brought up to them."""
        found = {}
        for name in servers:
            catalog = self.catalogs.known(name)
            if catalog is not None:
                self._put_in_index(catalog)
                found[name] = catalog
        return found

    def _put_in_index(self, catalog: Catalog) -> None:
        if self._indexed.get(catalog.server) is catalog:
            return
        definition = self.configuration.servers.get(catalog.server)
        if definition is None:
            return
        self.index.replace(
            catalog.server,
            [
                search_tool(
                    tool,
                    native=names.native_name(tool.server, tool.name),
                    server_title=catalog.title,
                    server_description=definition.description,
                    keywords=definition.keywords,
                )
                for tool in catalog.tools
            ],
        )
        self._indexed[catalog.server] = catalog

    async def close(self) -> None:
        """End every discovery, connection and process; bounded, and safe to call twice."""
        for session in list(self._sessions.values()):
            await session.close()
        await self.catalogs.close()
        await self.connections.close()

    async def __aenter__(self) -> Plugin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


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
        self._keep = keep
        self._loaded = LoadedSet()
        self._started = False
        self._text: str | None = None
        self._instructed: set[str] = set()
        self._confirmed: set[tuple[str, str]] = set()

    # What the model sees

    @property
    def search_tool(self) -> ToolDefinition:
        """The one tool that is always there. Its text is fixed for the session when it is first read."""
        if self._text is None:
            self._text = self._describe()
        return ToolDefinition(SEARCH_TOOL, self._text, SEARCH_SCHEMA, {"readOnlyHint": True})

    @property
    def loaded(self) -> tuple[NativeTool, ...]:
        """The natively declared tools, in the order of loading."""
        self._start()
        return self._loaded.tools

    @property
    def servers(self) -> dict[str, ServerDefinition]:
        """The usable servers within this session's scope, in configuration order."""
        every = self.plugin.configuration.servers
        if self._servers is None:
            return every
        return {name: definition for name, definition in every.items() if name in self._servers}

    @property
    def max_tools(self) -> int:
        return DEFAULT_MAX_TOOLS if self.host.max_tools is None else self.host.max_tools

    def permits(self, server: str, tool: str) -> bool:
        """Configuration, trust, this session's scope and the host's own lists let this tool be used."""
        definition = self.servers.get(server)
        if definition is None or not self.plugin.admits(definition, tool):
            return False
        native = names.native_name(server, tool)
        if self._tools is not None and not any(
            policy.matches(pattern, text) for pattern in self._tools for text in (native, f"{server}.{tool}", tool)
        ):
            return False
        return self.host.allows(native)

    # Search and loading

    async def search(self, query: str, *, server: str | None = None, limit: int = 5, load: bool = True) -> SearchAnswer:
        """Rank the tools of all servers in scope (or of one) and load up to `limit` of them.

        Raises ConfigurationError `usage` for a query that is empty or over 500 characters or a limit outside
        1–50, NotFound for an unknown server. A server that fails is in `not_searched`, never an exception.
        """
        query = query.strip()
        if not 0 < len(query) <= QUERY_CHARACTERS:
            raise failure(
                "usage",
                "search",
                None,
                f"The query must have 1 to {QUERY_CHARACTERS} characters.",
                "Say one need.",
            )
        if not 1 <= limit <= 50:
            raise failure("usage", "search", None, "The limit must be from 1 to 50.", "Leave it out for 5.")
        self._start()
        targets = self._targets(server)
        catalogs, not_searched = await self._catalogs(targets)
        if server is None:
            not_searched = (*not_searched, *self.unusable())
        found = self._rank(query, limit, catalogs)
        loaded, already, hits = self._load(found) if load else ([], self._already(found), found)
        if loaded:
            await self._changed()
        text = self._search_text(query, load, catalogs, loaded, already, hits, not_searched)
        return SearchAnswer(
            text,
            tuple(loaded),
            tuple(already),
            tuple(not_searched),
            tuple(hits),
            details([tool.to_record() for tool in loaded], not_searched),
            tuple(catalogs),
        )

    async def load(self, names_: Iterable[str]) -> SearchAnswer:
        """Load tools by native name, `server.tool`, or an original name that only one server has.

        Raises NotFound when none of the names is a tool; servers that a name points at are contacted if their
        catalogs are not known.
        """
        self._start()
        wanted = [name.strip() for name in names_ if name.strip()]
        if not wanted:
            raise failure("usage", "load", None, "No tool was named.", "Give native names or server.tool.")
        targets = [
            name for name in self.servers if any(item.startswith((f"{name}.", f"mcp__{name}__")) for item in wanted)
        ] or list(self.servers)
        catalogs, not_searched = await self._catalogs(targets)
        found: list[FoundTool] = []
        missing: list[str] = []
        for item in wanted:
            matches = [
                FoundTool(tool, names.native_name(tool.server, tool.name), 0.0, True)
                for catalog in catalogs.values()
                for tool in catalog.tools
                if item in (names.native_name(tool.server, tool.name), f"{tool.server}.{tool.name}", tool.name)
                and self.permits(tool.server, tool.name)
            ]
            precise = [match for match in matches if item != match.tool.name] or matches
            if len(precise) == 1:
                found.extend(precise)
            else:
                missing.append(item)
        if not found:
            choices = self.plugin.index.close_names(missing[0], 5, allowed=self.permits, servers=list(catalogs))
            close = ", ".join(f"{owner}.{tool}" for owner, tool in choices)
            raise failure(
                "not_found",
                "load",
                None,
                f"No single tool is called {clean_line(', '.join(missing), 200)!r}.",
                f"Close names: {clean_line(close, 400)}." if close else "Search for it with other words.",
            )
        loaded, already, hits = self._load(found)
        if loaded:
            await self._changed()
        text = self._search_text(", ".join(wanted), True, catalogs, loaded, already, hits, not_searched)
        if missing:
            text += f"\nNot found, or on several servers: {clean_line(', '.join(missing), 400)}"
        return SearchAnswer(
            text,
            tuple(loaded),
            tuple(already),
            tuple(not_searched),
            tuple(hits),
            details([tool.to_record() for tool in loaded], not_searched),
            tuple(catalogs),
        )

    async def unload(self, names_: Iterable[str]) -> tuple[NativeTool, ...]:
        """Take tools out of the loaded set, to free places; raises NotFound for a name that is not loaded."""
        self._start()
        gone: list[NativeTool] = []
        for name in names_:
            tool = self._loaded.by_native(name) or self._loaded_by_any_name(name)
            if tool is None:
                raise failure(
                    "not_found",
                    "load",
                    None,
                    f"{clean_line(name, 100)!r} is not loaded.",
                    "See /mcp tools loaded.",
                )
            self._loaded.remove(tool.native)
            gone.append(tool)
        if gone:
            await self._changed()
        return tuple(gone)

    # Calls

    async def call(
        self,
        native_name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        on_progress: Callable[[float, float | None, str | None], None] | None = None,
        typed: bool = False,
    ) -> CallAnswer:
        """Call a loaded tool. `typed` says that a person wrote this very call, so nobody is asked again.

        A tool's own error is an answer with `is_error`; everything else that goes wrong is a PiMcpError, whose
        message says when the outcome is unknown. Cancelling the awaiting task cancels the call.
        """
        self._start()
        tool = self._loaded.by_native(native_name) or self._loaded_by_any_name(native_name)
        if tool is None:
            raise failure(
                "not_found",
                "call",
                None,
                f"The tool {clean_line(native_name, 100)!r} is not loaded.",
                f"Find it with {SEARCH_TOOL}.",
            )
        definition = self.plugin.definition(tool.server)
        if not self.permits(tool.server, tool.tool):
            raise failure(
                "refused",
                "call",
                tool.server,
                f"{clean_line(tool.tool)} is excluded by filters, trust or the host.",
                "See includeTools, excludeTools and trust of this server.",
            )
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, Mapping):
            raise failure("usage", "call", tool.server, "The arguments must be a JSON object.")
        if not typed:
            await self._confirm(definition, tool, arguments)
        handlers = CallHandlers(
            on_progress=on_progress or self._show_progress(tool),
            elicit=self.host.elicit if self.host.interactive and definition.trust != "untrusted" else None,
        )
        wire = await calls.call_live(
            self.plugin.catalogs, self.plugin.connections.get(tool.server), tool, arguments, handlers
        )
        return await self._present(tool, wire)

    async def _present(self, tool: NativeTool, wire: dict[str, Any]) -> CallAnswer:
        presented = await asyncio.to_thread(
            results.present, wire, server=tool.server, directory=self.plugin.state_dir / "results"
        )
        content = list(presented.content)
        text = presented.text
        diagnostics: list[Diagnostic] = []
        is_error = wire.get("isError") is True
        output_schema = tool.definition.get("outputSchema")
        if isinstance(output_schema, dict) and not is_error:
            from pi_mcp.tools import output

            warning = await asyncio.to_thread(output.check, output_schema, wire)
            if warning:
                content.append({"type": "text", "text": f"Warning: {warning}"})
                text = f"{text}\nWarning: {warning}" if text else f"Warning: {warning}"
        if is_error:
            diagnostics.append(
                Diagnostic(
                    "tool_error",
                    "call",
                    tool.server,
                    f"{clean_line(tool.tool)} reported an error.",
                    "Its own text says why.",
                )
            )
        return CallAnswer(
            tuple(content),
            wire.get("structuredContent"),
            is_error,
            details([], diagnostics, presented.files),
            text,
            wire,
        )

    # /mcp

    async def command(self, line: str) -> CommandAnswer:
        """Run `/mcp …` (with or without the leading `/mcp`); never raises but for cancellation."""
        from pi_mcp import commands

        self._start()
        return await commands.run(self, line)

    def statuses(self) -> list[ServerStatus]:
        """One row per configured entry within this session's scope; contacts nothing."""
        return [
            self.plugin.status(name, session=self)
            for name in self.plugin.configuration.entries
            if self._servers is None or name in self._servers
        ]

    def complete(self, line: str) -> list[str]:
        """Completions for a `/mcp …` line, as whole words; no I/O beyond catalogs already known."""
        from pi_mcp import commands

        return commands.complete(self, line)

    # Life

    async def prepare(self, *, wait: float = SEARCH_WAIT) -> tuple[Diagnostic, ...]:
        """Load the `alwaysLoad` tools of servers whose catalogs are not known yet, within `wait` seconds."""
        self._start()
        unknown = [
            name
            for name, definition in self.servers.items()
            if definition.always_load and self.plugin.catalogs.known(name) is None
        ]
        if not unknown:
            return ()
        discovery = await self.plugin.catalogs.discover(unknown, wait=wait, on_progress=self.show_discovery)
        before = len(self._loaded.tools)
        self._load_always(discovery.catalogs)
        if len(self._loaded.tools) != before:
            await self._changed()
        return tuple(discovery.not_searched)

    async def restore(self, records: Iterable[Mapping[str, Any]] | None = None) -> tuple[Diagnostic, ...]:
        """Make the loaded set exactly that of `records`, or of what was kept under this session's id.

        Works while servers are down and caches are gone. A tool that configuration, trust or the host excludes
        now is left out, and the reason is returned.
        """
        kept = await asyncio.to_thread(self._read_kept) if self._keep else None
        if kept is not None and isinstance(kept.get("text"), str) and self._text is None:
            self._text = kept["text"]
        if records is None:
            records = kept.get("loaded", []) if kept is not None else []
            if kept is None:
                return ()
        self._started = True
        restored = LoadedSet()
        skipped = restored.restore(records)
        diagnostics: list[Diagnostic] = []
        for tool in restored.tools:
            if not self.permits(tool.server, tool.tool):
                restored.remove(tool.native)
                diagnostics.append(
                    Diagnostic(
                        "refused",
                        "load",
                        tool.server,
                        f"{clean_line(tool.tool)} is not restored: its server is gone or switched off, or the tool "
                        "is excluded.",
                        "See /mcp.",
                    )
                )
        if skipped:
            diagnostics.append(
                Diagnostic("operation_failed", "load", None, f"{skipped} damaged tool records were skipped.")
            )
        self._loaded = restored
        self.host.tools_changed()
        return tuple(diagnostics)

    async def close(self) -> None:
        """End this conversation; the plugin and its connections live on."""
        self.plugin.forget_session(self)

    # Inside

    def _start(self) -> None:
        """Load the `alwaysLoad` tools that the known catalogs have; once, without I/O but those catalogs."""
        if not self._started:
            self._started = True
            always = [name for name, definition in self.servers.items() if definition.always_load]
            self._load_always(self.plugin.catalogued(always))

    def _load_always(self, catalogs: Mapping[str, Catalog]) -> None:
        found: list[FoundTool] = []
        for name, catalog in catalogs.items():
            definition = self.servers.get(name)
            if definition is None:
                continue
            patterns = definition.always_load
            for tool in catalog.tools:
                chosen = patterns is True or (
                    not isinstance(patterns, bool) and any(policy.matches(p, tool.name) for p in patterns)
                )
                if chosen and self.permits(name, tool.name):
                    found.append(FoundTool(tool, names.native_name(name, tool.name), 0.0, True))
        self._load(found)

    def _targets(self, server: str | None) -> list[str]:
        if server is None:
            return list(self.servers)
        self.plugin.definition(server)
        if server not in self.servers:
            raise failure(
                "refused",
                "search",
                server,
                "This session is limited to other servers.",
                "Search without a server.",
            )
        return [server]

    def unusable(self) -> tuple[Diagnostic, ...]:
        """Entries that a search leaves out although a person may expect them: invalid, or waiting for trust."""
        return tuple(
            entry.diagnostic or failure_of_entry(entry).diagnostic
            for entry in self.plugin.configuration.entries.values()
            if entry.state in ("invalid", "untrusted_project")
            and (self._servers is None or entry.name in self._servers)
        )

    async def _catalogs(self, targets: Sequence[str]) -> tuple[dict[str, Catalog], tuple[Diagnostic, ...]]:
        known = self.plugin.catalogued(targets)
        unknown = [name for name in targets if name not in known]
        if not unknown:
            return known, ()
        discovery = await self.plugin.catalogs.discover(unknown, wait=SEARCH_WAIT, on_progress=self.show_discovery)
        merged = {**known, **discovery.catalogs}
        for catalog in discovery.catalogs.values():
            self.plugin._put_in_index(catalog)
        return {name: merged[name] for name in targets if name in merged}, tuple(discovery.not_searched)

    def _rank(self, query: str, limit: int, catalogs: Mapping[str, Catalog]) -> list[FoundTool]:
        if not catalogs:
            return []
        hits = self.plugin.index.search(query, limit, allowed=self.permits, servers=set(catalogs))
        found = []
        for hit in hits:
            tool = catalogs[hit.server].tool(hit.name)
            if tool is not None:
                found.append(self._found(tool, hit))
        return found

    @staticmethod
    def _found(tool: Tool, hit: Hit) -> FoundTool:
        native = names.native_name(tool.server, tool.name)
        return FoundTool(tool, native, hit.score, hit.exact, tuple(hit.reasons))

    def _already(self, found: Iterable[FoundTool]) -> list[NativeTool]:
        have = (self._loaded.by_native(item.native) for item in found)
        return [tool for tool in have if tool is not None]

    def _load(self, found: Iterable[FoundTool]) -> tuple[list[NativeTool], list[NativeTool], list[FoundTool]]:
        """Put tools into the loaded set: (new or replaced, already there, all with the problem of each)."""
        loaded: list[NativeTool] = []
        already: list[NativeTool] = []
        hits: list[FoundTool] = []
        for item in found:
            problem = None
            have = self._loaded.by_native(item.native)
            if have is not None and have.hash == item.tool.hash:
                already.append(have)
            elif have is None and len(self._loaded.tools) >= self.max_tools:
                problem = f"the session holds its most, {self.max_tools} tools; /mcp unload frees places"
            else:
                try:
                    form = schema.model_schema(item.tool.input_schema)
                except schema.Quarantined as quarantined:
                    problem = f"its input schema cannot be used: {quarantined.reason}"
                else:
                    native = NativeTool.from_tool(item.tool, item.native, form)
                    self._loaded.put(native)
                    loaded.append(native)
            hits.append(
                item
                if problem is None
                else FoundTool(item.tool, item.native, item.score, item.exact, item.reasons, problem)
            )
        return loaded, already, hits

    async def _changed(self) -> None:
        self.host.tools_changed()
        if self._keep:
            await asyncio.to_thread(self._write_kept)

    async def _confirm(self, definition: ServerDefinition, tool: NativeTool, arguments: Mapping[str, Any]) -> None:
        read_only = tool.definition.get("annotations", {})
        hint = isinstance(read_only, dict) and read_only.get("readOnlyHint") is True
        if not policy.needs_confirmation(definition, tool.tool, hint):
            return
        key = (tool.server, tool.tool)
        if definition.trust == "verified" and key in self._confirmed:
            return
        shown = clean_line(tool.tool)
        if not self.host.interactive:
            if policy.headless_allows(definition, tool.tool):
                return
            raise failure(
                "refused",
                "call",
                tool.server,
                f"A call of {shown} wants a person's confirmation ({definition.trust} server), and nobody can be "
                "asked.",
                "Name the tool in includeTools, or raise the server's trust.",
            )
        text = clean_metadata(json.dumps(arguments, ensure_ascii=False, indent=2, default=str))
        text = text if len(text) <= 2000 else text[:2000] + "…"
        question = f"Call {shown} of {tool.server} ({definition.trust} server)?"
        if not await self.host.confirm(question, text):
            raise failure("refused", "call", tool.server, f"The call of {shown} was declined.", None)
        self._confirmed.add(key)

    def _show_progress(self, tool: NativeTool) -> Callable[[float, float | None, str | None], None]:
        def show(done: float, total: float | None, message: str | None) -> None:
            self.host.progress(f"{tool.server}: {clean_line(message or tool.tool)}", done, total)

        return show

    def show_discovery(self, server: str, done: int, total: int) -> None:
        self.host.progress(f"Asking {server} for its tools", done, total)

    def _loaded_by_any_name(self, name: str) -> NativeTool | None:
        matches = [tool for tool in self._loaded.tools if name in (f"{tool.server}.{tool.tool}", tool.tool)]
        return matches[0] if len(matches) == 1 else None

    # Texts

    def _describe(self) -> str:
        known = self.plugin.catalogued(self.servers)
        lines = [SEARCH_TEXT]
        rows = []
        for name, definition in list(self.servers.items())[:100]:
            catalog = known.get(name)
            count = ""
            if catalog is not None:
                number = sum(1 for tool in catalog.tools if self.plugin.admits(definition, tool.name))
                count = f" ({number} tools)" if number != 1 else " (1 tool)"
            about = definition.description or (catalog.title if catalog else None)
            rows.append(f"- {name}{count}" + (f": {clean_line(about, 120)}" if about else ""))
        if rows:
            lines.append("Servers:")
            lines.extend(rows)
            if len(self.servers) > 100:
                lines.append(f"- and {len(self.servers) - 100} more")
        else:
            lines.append("No MCP server is configured.")
        return "\n".join(lines)

    def _search_text(
        self,
        query: str,
        load: bool,
        catalogs: Mapping[str, Catalog],
        loaded: Sequence[NativeTool],
        already: Sequence[NativeTool],
        hits: Sequence[FoundTool],
        not_searched: Sequence[Diagnostic],
    ) -> str:
        parts: list[str] = []
        if loaded:
            parts.append("Loaded; call them by these names from your next step on:")
            parts.extend(line_of(tool.native, tool.server, tool.definition) for tool in loaded)
        if already:
            parts.append("Already loaded:")
            parts.extend(line_of(tool.native, tool.server, tool.definition) for tool in already)
        if not load:
            others = [hit for hit in hits if self._loaded.by_native(hit.native) is None]
            if others:
                parts.append("Found, not loaded:")
                parts.extend(line_of(hit.native, hit.tool.server, hit.tool.wire) for hit in others)
        problems = [hit for hit in hits if hit.problem is not None]
        if problems:
            parts.append("Found but not loaded:")
            parts.extend(
                f"- {hit.native} ({hit.tool.server}): {clean_line(hit.problem or '', 200)}" for hit in problems
            )
        for server in dict.fromkeys(tool.server for tool in loaded):
            parts.extend(self._instructions(server, catalogs))
        if not hits:
            parts.extend(self._nothing(query, catalogs))
        if not_searched:
            parts.append("Servers not searched:")
            parts.extend(f"- {diagnostic.line()}" for diagnostic in not_searched)
        return "\n".join(parts)

    def _instructions(self, server: str, catalogs: Mapping[str, Catalog]) -> list[str]:
        catalog, definition = catalogs.get(server), self.servers.get(server)
        if server in self._instructed or catalog is None or definition is None:
            return []
        self._instructed.add(server)
        if not catalog.instructions or definition.trust == "untrusted":
            return []
        return [f"Instructions of {server}:", catalog.instructions]

    def _nothing(self, query: str, catalogs: Mapping[str, Catalog]) -> list[str]:
        if not self.plugin.configuration.entries:
            from pi_mcp.commands.configured import nothing_configured

            return [nothing_configured(self.plugin.configuration)]
        if not catalogs:
            return ["No server could be searched."]
        count = sum(len(catalog.tools) for catalog in catalogs.values())
        lines = [
            f"No tool of {len(catalogs)} servers ({count} tools) matches. Name the service and the object, one need "
            "per search, or try other words."
        ]
        close = self.plugin.index.close_names(query, 5, allowed=self.permits, servers=list(catalogs))
        if close:
            lines.append("Close names: " + ", ".join(clean_line(f"{server}.{tool}") for server, tool in close))
        return lines

    # Kept between runs

    @property
    def _kept_path(self) -> Path:
        digest = hashlib.sha256(self.id.encode("utf-8", "surrogatepass")).hexdigest()
        return self.plugin.state_dir / "sessions" / f"{digest}.json"

    def _write_kept(self) -> None:
        kept = {
            "version": 1,
            "text": self._text,
            "loaded": [tool.to_record() for tool in self._loaded.tools],
        }
        files.write_private(self._kept_path, json.dumps(kept).encode())
        files.remove_older(self._kept_path.parent, SESSION_DAYS * 86400)

    def _read_kept(self) -> dict[str, Any] | None:
        try:
            kept = json.loads(self._kept_path.read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return kept if isinstance(kept, dict) and kept.get("version") == 1 else None


SEARCH_TEXT = (
    "Find tools of the configured MCP servers and load them. Matching tools become callable natively, under the "
    "names in the answer, from your next step on. Search for one need at a time, naming the service and the object "
    '("github create issue", "postgres run query"); if nothing fits, search again in other words. Give `server` to '
    "search one server only, `limit` for more than five tools, `load: false` to look without loading."
)

SEARCH_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "description": "What the tool should do, or its name.",
            "minLength": 1,
            "maxLength": QUERY_CHARACTERS,
        },
        "server": {"type": "string", "description": "Only this server."},
        "limit": {
            "type": "integer",
            "description": "How many tools, 5 by default.",
            "minimum": 1,
            "maximum": 50,
        },
        "load": {"type": "boolean", "description": "false lists without loading."},
    },
    "required": ["query"],
    "additionalProperties": False,
}


def search_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `mcp_search` as a model wrote them, for `Session.search`; raises ConfigurationError `usage`.

    Null counts as absent; a whole number written as text or as a float is taken as the number it spells.
    """
    taken: dict[str, Any] = {}
    kinds: dict[str, type] = {"query": str, "server": str, "limit": int, "load": bool}
    for key, value in arguments.items():
        if key not in kinds:
            raise failure("usage", "search", None, f"{SEARCH_TOOL} has no argument {clean_line(str(key), 60)!r}.")
        if value is None:
            continue
        if key == "limit" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if key == "limit" and isinstance(value, str) and value.strip().isdecimal() and len(value) < 6:
            value = int(value)
        if key == "load" and isinstance(value, str) and value.lower() in ("true", "false"):
            value = value.lower() == "true"
        if not isinstance(value, kinds[key]) or (key == "limit" and isinstance(value, bool)):
            raise failure(
                "usage",
                "search",
                None,
                f"The argument {key!r} must be of type {SEARCH_SCHEMA['properties'][key]['type']}.",
            )
        taken[key] = value
    if "query" not in taken:
        raise failure("usage", "search", None, "The argument 'query' is missing.", "Say what the tool should do.")
    if taken.get("server") == "":
        del taken["server"]
    return taken


def details(
    records: Sequence[Mapping[str, Any]],
    diagnostics: Sequence[Diagnostic],
    paths: Sequence[Path] = (),
) -> dict[str, Any]:
    """The JSON object that hosts keep with a tool result (DESIGN §3)."""
    return {
        "loaded": [dict(record) for record in records],
        "diagnostics": [diagnostic.to_json() for diagnostic in diagnostics],
        "files": [str(path) for path in paths],
    }


def line_of(native: str, server: str, definition: Mapping[str, Any]) -> str:
    """`- native (server): first sentence`, cleaned."""
    description = definition.get("description")
    text = description if isinstance(description, str) else ""
    first = clean_line(text.strip().split("\n", 1)[0], 160)
    return f"- {native} ({clean_line(server, 64)})" + (f": {first}" if first else "")


def failure_of_entry(entry: ServerEntry) -> PiMcpError:
    """Why an entry cannot be used now."""
    from pi_mcp.errors import error_of

    if entry.diagnostic is not None:
        return error_of(entry.diagnostic)
    if entry.state == "disabled":
        return Refused(
            Diagnostic(
                "refused",
                "configure",
                entry.name,
                "The server is disabled.",
                f"/mcp enable {entry.name} turns it on.",
            )
        )
    if entry.state == "untrusted_project":
        return Refused(
            Diagnostic(
                "refused",
                "trust",
                entry.name,
                "The project's file is not trusted yet.",
                "Read it, then /mcp trust.",
            )
        )
    return NotFound(Diagnostic("not_found", "configure", entry.name, "The server cannot be used."))
