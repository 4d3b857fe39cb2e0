"""Discovery: which servers have to be asked for their tools, when, and how many at once (DESIGN §5, §7).

Comes in: names of servers. Goes out: their catalogs from memory, disk or the server, and a diagnostic for each
that could not be searched. It never loads a tool into a session, never calls one, and contacts no server that
is disabled, invalid or waits for trust.

    memory ── fresh ──────────────────────────────► answer
       │ missing, stale, over its time
    disk ──── fresh, and no change was reported ──► answer
       │
    one task per server ── gate of four ── connect ── list ──► memory, disk, everyone who waits
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from pi_mcp.catalog.records import DAY, NO_CATALOGS, Catalog, Tool
from pi_mcp.catalog.store import CatalogStore
from pi_mcp.errors import Diagnostic, Operation, PiMcpError, error_of, failure
from pi_mcp.text import clean_line, clean_metadata, quoted

if TYPE_CHECKING:
    from pi_mcp.config import Configuration, ResolvedServer, ServerDefinition
    from pi_mcp.connect import Connection, Connections, Listing

log = logging.getLogger("pi_mcp.catalog")

AT_ONCE = 4
"""Discoveries that run at the same time (DESIGN §5)."""
SEARCH_WAIT = 15.0
"""Seconds that one search waits for all its servers together (DESIGN §5)."""
RELIST_AFTER = 300.0
"""Seconds that a listing is good for calls where the server promises neither a notification nor a TTL (§7)."""
QUIET = 0.2
"""Seconds without a further `tools/list_changed` before a server that sent one is listed again."""
QUIET_AT_MOST = 1.0
"""Seconds that a server which keeps sending them can put its listing off."""
LISTING_AT_MOST = 120.0
"""Seconds for all pages together (B082): a place among the four is not held for ever."""
CLOSE_WAIT = 5.0
"""Seconds that `close` waits for discoveries that it cancelled."""
INSTRUCTIONS_BYTES = 2048

Progress = Callable[[str, int, int], None]
"""(server, done, total): this server has just answered or failed, so many of so many are done."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What a discovery brought: each server asked for is in exactly one of the first two."""

    catalogs: Mapping[str, Catalog] = field(default_factory=lambda: NO_CATALOGS)
    not_searched: tuple[Diagnostic, ...] = ()
    """One per server without a catalog: its failure, or `timeout` while it is still starting."""
    warnings: tuple[Diagnostic, ...] = ()
    """One per server of which only a part was searched, because a bound of §5 cut its listing."""


Kind = Literal["discover", "refresh", "reconnect"]


@dataclass(slots=True)
class _Server:
    """What is known of one server in this process."""

    definition: ServerDefinition
    key: str | None = None
    """The store's name for what the memory copy was listed from; another one means another server."""
    catalog: Catalog | None = None
    failure: Diagnostic | None = None
    task: asyncio.Task[Catalog] | None = None
    connection: Connection | None = None
    """The connection whose notifications are heard."""
    generation: int | None = None
    """The connection generation that was listed; None while the catalog is another process's or run's."""
    listed_at: float = 0.0
    """Monotonic time of the last listing in this process."""
    changes: int = 0
    """`tools/list_changed` notifications so far."""
    changes_listed: int = 0
    """How many of them the last listing has seen."""
    changed_at: float = 0.0
    """Monotonic time of the last one."""
    era_failed: bool = False
    """The kept protocol outcome did not work once and is not used again before the next success."""

    @property
    def stale(self) -> bool:
        return self.changes != self.changes_listed


class Catalogs:
    """All catalogs of one plugin. Everything but `__init__` belongs to one event loop."""

    def __init__(self, configuration: Configuration, connections: Connections, store: CatalogStore) -> None:
        self._configuration = configuration
        self._connections = connections
        self._store = store
        self._servers: dict[str, _Server] = {}
        self._gate = _Gate(AT_ONCE)
        self._tasks: set[asyncio.Task[Catalog]] = set()
        self._closed = False
        self._swept = False
        self.on_change: list[Callable[[str], None]] = []
        """Called with a server's name when another catalog of it came into memory, from wherever, or the one
        that was there went; `held` gives it."""

    # -- what is known without asking --------------------------------------------------------------------

    def held(self, name: str) -> Catalog | None:
        """The catalog in memory whatever its age, also when the server has reported a change since."""
        server = self._servers.get(name)
        return server.catalog if server is not None and self._definition(name) is not None else None

    def known(self, name: str) -> Catalog | None:
        """The catalog that a search may use as it is: memory, else disk. No connection, no secret command.

        None when it is absent, over its time, or the server has reported a change, and for a server that may
        not be connected or whose definition cannot be resolved.
        """
        server = self._server(name)
        if server is None or server.stale:
            return None
        if server.catalog is not None and server.catalog.fresh(time.time()):
            return server.catalog
        resolved = self._resolved(server)
        if resolved is None:
            return None
        return self._accept_from_disk(server, self._store.name_of(resolved), self._store.load(resolved))

    def failed(self, name: str) -> Diagnostic | None:
        """Why the last discovery in this process failed; None after a success or without one."""
        server = self._servers.get(name)
        return None if server is None else server.failure

    def generation(self, name: str) -> int | None:
        """The generation of the connection that the catalog in memory was listed from; None for one from disk."""
        server = self._servers.get(name)
        return None if server is None else server.generation

    def is_discovering(self, name: str) -> bool:
        """Whether a discovery of this server runs or waits for its turn."""
        server = self._servers.get(name)
        return server is not None and _running(server) is not None

    # -- asking ------------------------------------------------------------------------------------------

    async def discover(
        self, names: Iterable[str], *, wait: float = SEARCH_WAIT, on_progress: Progress | None = None
    ) -> Discovery:
        """Catalogs of `names`, contacting only the servers whose catalog is not known.

        Returns after `wait` seconds at the latest; what is not ready then is in `not_searched` and goes on in
        the background. Servers that may not be connected are left out. A cancelled caller stops nothing.
        """
        deadline = time.monotonic() + wait
        servers = [server for name in dict.fromkeys(names) if (server := self._server(name)) is not None]
        await self._read_disk(servers)
        catalogs: dict[str, Catalog] = {}
        problems: dict[str, Diagnostic] = {}
        waiting: dict[asyncio.Task[Catalog], str] = {}
        # Those that failed before come last: they would take the first places otherwise.
        for server in sorted(servers, key=lambda server: server.failure is not None):
            name = server.definition.name
            catalog = self.known(name)
            if catalog is not None:
                catalogs[name] = catalog
                continue
            try:
                waiting[_running(server) or self._start(server, "discover")] = name
            except PiMcpError as error:
                problems[name] = error.diagnostic
        total = len(servers)
        while waiting:
            done, _ = await asyncio.wait(
                waiting,
                timeout=max(0.0, deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not done:
                break
            for task in done:
                name = waiting.pop(task)
                outcome = _outcome(task, name)
                if isinstance(outcome, Catalog):
                    catalogs[name] = outcome
                else:
                    problems[name] = outcome
                _report(on_progress, name, len(catalogs) + len(problems), total)
        for name in waiting.values():
            problems[name] = self._late(name)
        order = [server.definition.name for server in servers]
        return Discovery(
            MappingProxyType({name: catalogs[name] for name in order if name in catalogs}),
            tuple(problems[name] for name in order if name in problems),
            tuple(_cut(catalogs[name]) for name in order if name in catalogs and not catalogs[name].complete),
        )

    async def refresh(self, name: str) -> Catalog:
        """List again, connecting if needed, past memory and disk; joins a discovery that runs already.

        Raises PiMcpError: what kept the server from answering, or why it may not be asked.
        """
        server = self._allowed(name, "list")
        return await _joined(_running(server) or self._start(server, "refresh"), name)

    async def reconnect(self, name: str) -> Catalog:
        """End the connection, start a new one and list, past every cache (B157).

        Raises `busy` while a discovery of this server runs, and PiMcpError as `refresh`.
        """
        server = self._allowed(name, "connect")
        if _running(server) is not None:
            raise failure(
                "busy",
                "connect",
                name,
                "A discovery of this server is running.",
                "Wait for it to finish, then repeat.",
            )
        return await _joined(self._start(server, "reconnect"), name)

    async def live(self, name: str) -> Catalog:
        """The catalog that a call's definition has to be compared with; asks the server only when due (§7).

        Does not queue behind other servers' discoveries: someone waits for this call. Raises as `refresh`.
        """
        server = self._allowed(name, "list")
        if server.catalog is not None and not self._due(server, server.catalog):
            return server.catalog
        catalog = await self._now(server)
        # A discovery that was joined may have begun before the change that made the listing due.
        server = self._allowed(name, "list")
        if server.stale or server.generation != self._connections.get(name).generation:
            catalog = await self._now(server)
        return catalog

    # -- the whole ---------------------------------------------------------------------------------------

    def update(self, configuration: Configuration) -> None:
        """Take a new configuration. What is known of servers that did not change stays."""
        self._configuration = configuration
        for name, server in list(self._servers.items()):
            definition = configuration.servers.get(name)
            if definition == server.definition:
                resolved = self._resolved(server)
                same = resolved is not None and server.key in (None, self._store.name_of(resolved))
                if same or server.catalog is None:
                    continue
            del self._servers[name]
            if server.task is not None:
                server.task.cancel()
            self._changed(name)

    async def close(self) -> None:
        """Cancel every discovery and wait for its end, 5 s at most. Nothing can be asked afterwards."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_WAIT)

    # -- one server --------------------------------------------------------------------------------------

    def _definition(self, name: str) -> ServerDefinition | None:
        entry = self._configuration.entries.get(name)
        return entry.definition if entry is not None and entry.state == "ready" else None

    def _server(self, name: str) -> _Server | None:
        definition = self._definition(name)
        if definition is None:
            return None
        server = self._servers.get(name)
        if server is None or server.definition != definition:
            server = self._servers[name] = _Server(definition)
        return server

    def _allowed(self, name: str, operation: Operation) -> _Server:
        server = self._server(name)
        if server is not None:
            return server
        entry = self._configuration.entries.get(name)
        if entry is None:
            raise failure(
                "not_found", operation, None, f"No server is called {clean_line(name)!r}.", "`/mcp` lists them."
            )
        if entry.diagnostic is not None:
            raise error_of(entry.diagnostic)
        if entry.state == "disabled":
            raise failure(
                "refused", operation, name, "This server is disabled.", f"`/mcp enable {quoted(name)}` allows it."
            )
        raise failure(
            "refused",
            operation,
            name,
            "This server cannot be used as it is configured.",
            f"`/mcp get {quoted(name)}` says why.",
        )

    def _resolve(self, server: _Server) -> ResolvedServer:
        from pi_mcp.config import resolve

        return resolve(server.definition, self._configuration)

    def _resolved(self, server: _Server) -> ResolvedServer | None:
        with contextlib.suppress(PiMcpError):
            return self._resolve(server)
        return None

    async def _read_disk(self, servers: Iterable[_Server]) -> None:
        """Bring what the disk has into memory, off the loop: thirty large files take a noticeable time."""
        now = time.time()
        missing = [
            (server, resolved)
            for server in servers
            if not server.stale
            and (server.catalog is None or not server.catalog.fresh(now))
            and (resolved := self._resolved(server)) is not None
        ]
        if not missing:
            return

        def read() -> list[tuple[str | None, Catalog | None]]:
            return [(self._store.name_of(resolved), self._store.load(resolved)) for _, resolved in missing]

        for (server, _), (key, catalog) in zip(missing, await asyncio.to_thread(read), strict=True):
            self._accept_from_disk(server, key, catalog)

    def _accept_from_disk(self, server: _Server, key: str | None, catalog: Catalog | None) -> Catalog | None:
        # What was listed meanwhile wins over any file (B158), and so does a later listing of this process.
        if catalog is None or server.stale or self._servers.get(server.definition.name) is not server:
            return None
        if server.catalog is not None and server.catalog.fetched_at >= catalog.fetched_at:
            return server.catalog if server.catalog.fresh(time.time()) else None
        server.key, server.catalog, server.generation = key, catalog, None
        self._changed(server.definition.name)
        return catalog

    def _due(self, server: _Server, catalog: Catalog) -> bool:
        """Whether a call has to list first: DESIGN §7, "A listing is due …"."""
        connection = self._connections.get(server.definition.name)
        if connection.state != "connected" or server.generation != connection.generation or server.stale:
            return True
        age = time.monotonic() - server.listed_at
        if catalog.stated_ttl is not None:
            return age >= catalog.stated_ttl
        return not catalog.list_changed and age >= RELIST_AFTER

    def _start(self, server: _Server, kind: Kind, *, urgent: bool = False) -> asyncio.Task[Catalog]:
        name = server.definition.name
        if self._closed:
            raise failure("cancelled", "list", name, "pi-mcp is shutting down.")
        turn = 0 if server.failure is None or kind != "discover" else 1
        task = asyncio.create_task(self._take_turn(server, kind, turn, urgent=urgent), name=f"pi-mcp {kind} {name}")
        server.task = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Its outcome is kept in `failure` even when nobody waits any more.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _now(self, server: _Server) -> Catalog:
        name = server.definition.name
        task = _running(server) or self._start(server, "refresh", urgent=True)
        self._gate.promote(name)
        return await _joined(task, name)

    async def _take_turn(self, server: _Server, kind: Kind, turn: int, *, urgent: bool) -> Catalog:
        name = server.definition.name
        await self._gate.enter(name, turn, urgent=urgent)
        try:
            catalog = await self._ask(server, kind)
        except PiMcpError as error:
            server.failure = error.diagnostic
            log.debug("discovery failed: %s", error.diagnostic.line())
            raise
        except Exception as error:
            # Unknown stays unknown: the text of a foreign exception may hold anything (DESIGN §10).
            server.failure = Diagnostic(
                "operation_failed",
                "list",
                name,
                "Listing its tools failed for an unknown reason.",
                f"`/mcp get {quoted(name)}` shows the server's own output.",
            )
            log.debug("discovery of %s failed with %s", name, type(error).__name__)
            raise error_of(server.failure) from None
        finally:
            self._gate.leave()
        server.failure = None
        return catalog

    async def _ask(self, server: _Server, kind: Kind) -> Catalog:
        resolved = self._resolve(server)
        key, kept = await asyncio.to_thread(self._kept, resolved)
        connection = self._connections.get(server.definition.name)
        self._hear(server, connection)
        if kind == "reconnect":
            await connection.reconnect()
        else:
            await self._connect(server, connection, resolved, kept)
        await self._quiet(server)
        generation, changes, began = connection.generation, server.changes, time.monotonic()
        try:
            async with asyncio.timeout(LISTING_AT_MOST):
                listing = await connection.list_tools()
        except TimeoutError:
            raise failure(
                "timeout",
                "list",
                server.definition.name,
                f"Its tools did not all arrive within {LISTING_AT_MOST:.0f} s.",
                "The other servers are not affected.",
            ) from None
        catalog = _catalog(server.definition.name, listing, connection)
        # The times are those of the question: what changed while it was answered may be missing from it.
        server.catalog, server.key, server.generation = catalog, key, generation
        server.changes_listed, server.listed_at, server.era_failed = changes, began, False
        log.debug("listed %s: %d tools, complete=%s", catalog.server, len(catalog.tools), catalog.complete)
        self._changed(server.definition.name)
        # Shielded, so that a file is whole and the newest even when the discovery is cancelled here.
        await asyncio.shield(asyncio.to_thread(self._store.save, resolved, catalog))
        return catalog

    def _kept(self, resolved: ResolvedServer) -> tuple[str | None, Catalog | None]:
        kept = self._store.name_of(resolved), self._store.load_expired(resolved)
        if not self._swept:
            # Once per process, and only where a server is started anyway: nobody waits for it.
            self._swept = True
            self._store.sweep()
        return kept

    async def _connect(
        self, server: _Server, connection: Connection, resolved: ResolvedServer, kept: Catalog | None
    ) -> None:
        """Connect with the protocol outcome of an earlier time, and forget it when it fails once (§5)."""
        newest = server.catalog or kept
        era = None if newest is None or server.era_failed else newest.era
        try:
            await connection.connect(era=era)
        except PiMcpError as error:
            if era is None:
                raise
            server.era_failed = True
            if kept is not None:
                forgotten = replace(kept, era=None)
                await asyncio.shield(asyncio.to_thread(self._store.save, resolved, forgotten))
            # A server that was set back to an older version answers the modern request with an error.
            if era != "modern" or error.diagnostic.code != "protocol_error":
                raise
            await connection.connect()

    async def _quiet(self, server: _Server) -> None:
        """Let a burst of change notifications end, so that a server which sends thirty is listed once."""
        latest = time.monotonic() + QUIET_AT_MOST
        while server.stale:
            rest = min(server.changed_at + QUIET, latest) - time.monotonic()
            if rest <= 0:
                return
            await asyncio.sleep(rest)

    def _hear(self, server: _Server, connection: Connection) -> None:
        if server.connection is connection:
            return
        server.connection = connection

        def changed() -> None:
            if server.connection is connection:
                server.changes += 1
                server.changed_at = time.monotonic()

        connection.on_tools_changed.append(changed)

    def _changed(self, name: str) -> None:
        for callback in list(self.on_change):
            callback(name)

    def _late(self, name: str) -> Diagnostic:
        queued = self._gate.is_queued(name)
        what = "waits for its turn to be asked" if queued else "is still starting"
        return Diagnostic(
            "timeout",
            "list",
            name,
            f"The server {what} and was not searched.",
            "It goes on in the background; search again in a moment.",
        )


class _Gate:
    """Turns for at most `places` at once: lower `turn` first, then in the order of asking."""

    def __init__(self, places: int) -> None:
        self._free = places
        """Below zero while urgent ones run over the number."""
        self._order = itertools.count()
        self._queue: list[tuple[int, int, str, asyncio.Future[None]]] = []

    async def enter(self, name: str, turn: int, *, urgent: bool = False) -> None:
        """Wait for a place, which `leave` gives back; an urgent one takes it at once."""
        if urgent:
            self._free -= 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (turn, next(self._order), name, place))
        self._hand_out()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        self._free += 1
        self._hand_out()

    def is_queued(self, name: str) -> bool:
        return any(waiter == name and not place.done() for _, _, waiter, place in self._queue)

    def promote(self, name: str) -> None:
        """Let `name` begin now, over the number: a call waits for it."""
        for _, _, waiter, place in self._queue:
            if waiter == name and not place.done():
                self._free -= 1
                place.set_result(None)

    def _hand_out(self) -> None:
        # Those that were promoted or cancelled are still in the queue and fall out here.
        while self._queue and (self._free > 0 or self._queue[0][3].done()):
            place = heapq.heappop(self._queue)[3]
            if not place.done():
                self._free -= 1
                place.set_result(None)


def _running(server: _Server) -> asyncio.Task[Catalog] | None:
    return server.task if server.task is not None and not server.task.done() else None


async def _joined(task: asyncio.Task[Catalog], name: str) -> Catalog:
    """Wait for a shared task: the waiter's cancellation is its own, the task's becomes a diagnostic."""
    await asyncio.wait([task])
    outcome = _outcome(task, name)
    if isinstance(outcome, Catalog):
        return outcome
    raise error_of(outcome)


def _outcome(task: asyncio.Task[Catalog], name: str) -> Catalog | Diagnostic:
    if task.cancelled():
        return Diagnostic("cancelled", "list", name, "The discovery was stopped.", "Search again.")
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, PiMcpError):
        return error.diagnostic
    raise error


def _catalog(name: str, listing: Listing, connection: Connection) -> Catalog:
    info = connection.info
    instructions = info.instructions if info is not None else None
    title = info.title if info is not None else None
    return Catalog(
        server=name,
        tools=tuple(Tool(name, wire) for wire in listing.tools),
        fetched_at=time.time(),
        ttl=DAY if listing.ttl is None else min(DAY, max(0.0, listing.ttl)),
        stated_ttl=listing.ttl,
        complete=listing.complete,
        notes=listing.notes,
        era=info.era if info is not None else None,
        instructions=_short(clean_metadata(instructions)) if instructions else None,
        title=clean_line(title) or None if title else None,
        list_changed=info.list_changed if info is not None else False,
    )


def _short(text: str) -> str | None:
    """The first 2 KiB of UTF-8, cut between characters; None for nothing."""
    return text.encode()[:INSTRUCTIONS_BYTES].decode(errors="ignore").strip() or None


def _cut(catalog: Catalog) -> Diagnostic:
    reason = " ".join(catalog.notes) or "Its listing did not end."
    return Diagnostic(
        "protocol_error",
        "list",
        catalog.server,
        f"Only the first {len(catalog.tools)} tools were searched. {reason}",
        "The listing is not kept; name the tool or narrow it with `includeTools`.",
    )


def _report(on_progress: Progress | None, name: str, done: int, total: int) -> None:
    if on_progress is None:
        return
    try:
        on_progress(name, done, total)
    except Exception as error:
        # A host's display must not lose the search that it displays.
        log.debug("a progress display failed with %s", type(error).__name__)
