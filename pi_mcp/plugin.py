"""Plugin: what all conversations of a process share, and the one module that a host imports from.

Comes in: a configuration, and per conversation a `Host`. Goes out: sessions. A Plugin owns connections, catalogs and
the index; a `Session` owns one conversation. Neither contacts a server until awaited; both belong to the event
loop that first awaits them. They never print and never ask except through the host.

Loading this module and building a Plugin loads the configuration's room and nothing above it: a host does both while
its person waits for the first prompt (docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp import files
from pi_mcp.config import Configuration, ServerDefinition, ServerEntry, load_config, policy
from pi_mcp.config.usable import entry_named, usable
from pi_mcp.errors import Diagnostic, failure

if TYPE_CHECKING:
    import asyncio

    from pi_mcp.auth.store import CredentialStore
    from pi_mcp.catalog import Catalogs
    from pi_mcp.catalog.records import Catalog, Tool
    from pi_mcp.commands.answer import CommandAnswer, Table
    from pi_mcp.commands.server_status import ServerStatus
    from pi_mcp.config import ResolvedServer
    from pi_mcp.connect import Connections
    from pi_mcp.connect.faults import UNKNOWN_OUTCOME
    from pi_mcp.connect.sender import Credentials
    from pi_mcp.connect.upstream import Client as UpstreamClient
    from pi_mcp.connect.upstream import Forwarding, RpcError, Upstream
    from pi_mcp.host import Host
    from pi_mcp.search import Hit, Index
    from pi_mcp.session import DEFAULT_MAX_TOOLS, Session
    from pi_mcp.tools.answers import CallAnswer, FoundTool, SearchAnswer, details
    from pi_mcp.tools.search_tool import SEARCH_TOOL, ToolDefinition, search_arguments

_HOMES = {
    "DEFAULT_MAX_TOOLS": "session",
    "SEARCH_TOOL": "tools.search_tool",
    "UNKNOWN_OUTCOME": "connect.faults",
    "CallAnswer": "tools.answers",
    "CommandAnswer": "commands.answer",
    "Forwarding": "connect.upstream",
    "FoundTool": "tools.answers",
    "RpcError": "connect.upstream",
    "SearchAnswer": "tools.answers",
    "ServerStatus": "commands.server_status",
    "Session": "session",
    "Table": "commands.answer",
    "ToolDefinition": "tools.search_tool",
    "Upstream": "connect.upstream",
    "details": "tools.answers",
    "search_arguments": "tools.search_tool",
}
"""What a host finds here beside Plugin, and the module that has it; loaded when it is first asked for."""

__all__ = [
    "DEFAULT_MAX_TOOLS",
    "SEARCH_TOOL",
    "UNKNOWN_OUTCOME",
    "CallAnswer",
    "CommandAnswer",
    "Forwarding",
    "FoundTool",
    "Plugin",
    "RpcError",
    "SearchAnswer",
    "ServerStatus",
    "Session",
    "Table",
    "ToolDefinition",
    "Upstream",
    "details",
    "search_arguments",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"pi_mcp.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
        """`reload` reads the configuration anew for `/mcp reload`. By default the files are read again, with
        `load_config`'s defaults but for the directory and a file named in place of the person's own; a configuration
        that came from no file stays as it is.
        """
        self.state_dir = files.state_dir() if state_dir is None else state_dir
        self.configuration = load_config(state_dir=self.state_dir) if config is None else config
        self._reload = reload or self._read_again
        self._cache_dir = cache_dir
        self._indexed: dict[str, Catalog] = {}
        self._sessions: dict[str, Session] = {}

    # Built at their first use: a host that only reads the configuration waits for none of their modules.

    @cached_property
    def credentials(self) -> CredentialStore:
        """The stored logins of HTTP servers. Opens nothing until one is needed."""
        from pi_mcp.auth.store import CredentialStore

        return CredentialStore(state_dir=self.state_dir, environ=self.configuration.environ)

    @cached_property
    def connections(self) -> Connections:
        """One connection per usable server, started on demand."""
        from pi_mcp.connect import Connections

        connections = Connections(self.configuration)
        connections.credentials = self._login_of
        return connections

    def _login_of(self, resolved: ResolvedServer) -> Credentials | None:
        from pi_mcp.auth.bearer import credentials_for

        return credentials_for(resolved, self.credentials)

    @cached_property
    def catalogs(self) -> Catalogs:
        """What the servers offer, from memory, disk or themselves."""
        from pi_mcp.catalog import Catalogs, CatalogStore

        store = CatalogStore(
            None if self._cache_dir is None else self._cache_dir / "catalogs",
            credential_id=lambda resolved: None if resolved.url is None else self.credentials.credential_id(resolved),
        )
        return Catalogs(self.configuration, self.connections, store)

    @cached_property
    def index(self) -> Index:
        """The ranking over the catalogs that were searched."""
        from pi_mcp.search import Index

        return Index()

    @cached_property
    def _reloading(self) -> asyncio.Lock:
        import asyncio

        return asyncio.Lock()

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
        from pi_mcp.host import HeadlessHost
        from pi_mcp.session import Session

        session = Session(self, id, host or HeadlessHost(), servers=servers, tools=tools, keep=keep)
        self._sessions[id] = session
        return session

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The conversations that are open."""
        return tuple(self._sessions.values())

    def forget_session(self, session: Session) -> None:
        """Called by `Session.close`."""
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    # Raw channels, for the gateway

    def forward(self, client: UpstreamClient | None = None) -> None:
        """Let the plugin's connections be raw channels, too; before the first of them is used.

        `client` is the one client that they all serve, or None where several share them.
        """
        self.connections.forward(client)

    def upstream(
        self,
        server: str,
        client_key: str | None,
        client: UpstreamClient | None = None,
        *,
        legacy_first: bool = False,
    ) -> Upstream:
        """The raw channel of one client to a usable server; with `client_key` None the one that all share.

        Everything above it (result limits, schema repair, quarantine, consent) is passed by. Raises as
        `definition` does. `legacy_first`: where the server has both eras, take that of the handshake.
        """
        self.definition(server)
        return self.connections.upstream(server, client_key, client, legacy_first=legacy_first)

    # Configuration

    def entry(self, name: str) -> ServerEntry:
        """The configured entry of that name; raises NotFound with the names that are close to it."""
        return entry_named(name, self.configuration.entries)

    def definition(self, name: str) -> ServerDefinition:
        """The definition of a usable server; raises NotFound, or the reason why it is not usable."""
        return usable(self.entry(name))

    async def reload(self) -> tuple[Diagnostic, ...]:
        """Read the configuration anew and apply it; unchanged servers stay connected.

        A file that cannot be parsed refuses the whole reload: the running configuration stays and
        ConfigurationError is raised. Returns the diagnostics of single entries.
        """
        import asyncio

        async with self._reloading:
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

    def _read_again(self) -> Configuration:
        if not self.configuration.files:
            return self.configuration
        named = next((report.path for report in self.configuration.files if report.scope == "override"), None)
        return load_config(cwd=self.configuration.cwd, config=named, state_dir=self.state_dir)

    async def apply(self, configuration: Configuration) -> None:
        """Put a configuration in force: changed and removed servers are disconnected, others stay.

        Tools of servers that are gone, off or filtered now leave `session.loaded`; they are back when those are.
        """
        import asyncio

        from pi_mcp.host import tell_tools_changed

        shown = {session: session.loaded for session in self.sessions}
        # All at once, before anything is awaited: nobody may meet the new definition with the old catalog.
        self.configuration = configuration
        changed = self.connections.update(configuration)
        self.catalogs.update(configuration)
        for name in [name for name in self._indexed if name not in configuration.servers or name in changed]:
            self.index.remove(name)
            del self._indexed[name]
        for session, before in shown.items():
            if session.loaded != before:
                tell_tools_changed(session.host)
        await asyncio.gather(*(self.connections.close(name) for name in changed))

    async def trust_project(self, host: Host) -> bool:
        """Ask once whether the project's file is trusted; on yes it is stored and applied."""
        from pi_mcp.config import TrustStore, ask_trust

        if self.configuration.project is None:
            return False
        if not await ask_trust(self.configuration, host, store=TrustStore(self.state_dir)):
            return False
        await self.reload()
        return True

    # What is known

    def status(self, name: str, *, session: Session | None = None) -> ServerStatus:
        """What is known of one entry now; contacts nothing."""
        from pi_mcp.commands.server_status import status_of

        loaded = 0 if session is None else sum(1 for tool in session.loaded if tool.server == name)
        return status_of(
            self.entry(name),
            self.configuration,
            self.connections,
            self.catalogs,
            loaded=loaded,
            permits=None if session is None else session.permits,
        )

    def admits(self, definition: ServerDefinition, tool_name: str) -> bool:
        """Filters and the registration rule of DESIGN §9 let this tool through."""
        return policy.admits(definition, tool_name, self.configuration) == "ok"

    def catalogued(self, servers: Iterable[str]) -> dict[str, Catalog]:
        """The catalogs that are known without contacting anything, from memory or disk."""
        known = ((name, self.catalogs.known(name)) for name in servers)
        return {name: catalog for name, catalog in known if catalog is not None}

    def tools_called(self, native: str) -> list[tuple[str, str]]:
        """Server and original name of the tools of that native name (`mcp__SERVER__TOOL`), as far as they are known."""
        from pi_mcp.tools.names import PREFIX, native_name

        if not native.startswith(PREFIX):
            return []
        catalogs = self.catalogued(self.configuration.servers)
        return [
            (server, tool.name)
            for server, catalog in catalogs.items()
            for tool in catalog.tools
            if native_name(server, tool.name) == native
        ]

    def rank(
        self,
        query: str,
        limit: int,
        catalogs: Mapping[str, Catalog],
        allowed: Callable[[str, str], bool],
    ) -> list[tuple[Tool, Hit]]:
        """The ranking of `mcp_search` over these catalogs, of what is allowed."""
        for catalog in catalogs.values():
            self._put_in_index(catalog)
        found = []
        for hit in self.index.search(query, limit, allowed=allowed, servers=set(catalogs)):
            tool = catalogs[hit.server].tool(hit.name)
            if tool is not None:
                found.append((tool, hit))
        return found

    def _put_in_index(self, catalog: Catalog) -> None:
        definition = self.configuration.servers.get(catalog.server)
        if definition is None or self._indexed.get(catalog.server) is catalog:
            return
        from pi_mcp.search import search_tool
        from pi_mcp.tools.names import native_name

        self.index.replace(
            catalog.server,
            [
                search_tool(
                    tool,
                    native=native_name(tool.server, tool.name),
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
        for session in self.sessions:
            await session.close()
        if "catalogs" in self.__dict__:
            await self.catalogs.close()
        if "connections" in self.__dict__:
            await self.connections.close()
        if "credentials" in self.__dict__:
            await self.credentials.close()

    async def __aenter__(self) -> Plugin:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
