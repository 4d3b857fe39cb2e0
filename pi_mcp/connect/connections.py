"""All connections of one plugin, by server name.

Comes in: a configuration, again whenever it changes. Goes out: one `Connection` per server. It starts nothing by
itself, and knows nothing of catalogs and sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pi_mcp.connect.connection import Connection

if TYPE_CHECKING:
    from pi_mcp.config.definition import Configuration, ServerDefinition
    from pi_mcp.config.resolve import ResolvedServer
    from pi_mcp.connect.sender import Credentials
    from pi_mcp.connect.upstream import Client, Upstream


class Connections:
    """One per plugin, on one event loop. Does nothing until a connection is used."""

    def __init__(self, configuration: Configuration, *, roots_cwd: Path | None = None) -> None:
        self._configuration = configuration
        self._roots_cwd = roots_cwd
        self._connections: dict[str, Connection] = {}
        self._private: dict[tuple[str, str], Upstream] = {}
        """By server and client: the channels that one client has for itself."""
        self._raw = False
        self._raw_client: Client | None = None
        self._old: set[Connection] = set()
        """Of definitions that changed or went; each until it has ended."""
        self._endings: set[asyncio.Task[None]] = set()
        self.credentials: Callable[[ResolvedServer], Credentials | None] | None = None
        """Set by who owns the logins: the credentials of an HTTP server, asked for at each connection."""

    def update(self, configuration: Configuration) -> set[str]:
        """Take a new configuration; the names whose definition changed or went.

        Their old connections are out of use at once; the caller ends them with `close(name)`.
        """
        before, after = self._configuration.servers, configuration.servers
        changed = {name for name, definition in before.items() if after.get(name) != definition}
        if self._configuration.environ != configuration.environ:
            changed |= set(before)
        self._configuration = configuration
        for name in changed & set(self._connections):
            self._put_off(self._connections.pop(name))
        for key in [key for key in self._private if key[0] in changed]:
            self._put_off(self._private.pop(key))
        return changed

    def _put_off(self, connection: Connection) -> None:
        connection.dismiss()
        self._old.add(connection)

    def get(self, name: str) -> Connection:
        """The connection of a server. Raises KeyError for a name that may not be connected."""
        definition = self._configuration.servers[name]
        if name not in self._connections:
            if self._raw:
                self._connections[name] = self._upstream(definition, self._raw_client)
            else:
                self._connections[name] = Connection(
                    definition, self._configuration, roots_cwd=self._roots_cwd, credentials=self._logins
                )
        return self._connections[name]

    def _logins(self, resolved: ResolvedServer) -> Credentials | None:
        return self.credentials(resolved) if self.credentials else None

    # raw channels

    def forward(self, client: Client | None) -> None:
        """Let the connections that are made from now on be raw channels, too: one process serves both ways.

        `client` is the one client that they all belong to, or None where there are several.
        """
        self._raw, self._raw_client = True, client

    def upstream(
        self, name: str, client_key: str | None, client: Client | None = None, *, legacy_first: bool = False
    ) -> Upstream:
        """The raw channel of one client to a server, or with `client_key` None the one that all share.

        Raises KeyError for a name that may not be connected.
        """
        from pi_mcp.connect.upstream import Upstream

        if client_key is None:
            shared = self.get(name)
            if not isinstance(shared, Upstream):
                raise TypeError("forward() comes before the first connection")
            return shared
        key = (name, client_key)
        if key not in self._private:
            self._private[key] = self._upstream(self._configuration.servers[name], client, legacy_first)
        return self._private[key]

    def _upstream(self, definition: ServerDefinition, client: Client | None, legacy_first: bool = False) -> Upstream:
        from pi_mcp.connect.upstream import Upstream

        return Upstream(
            definition,
            self._configuration,
            roots_cwd=self._roots_cwd,
            credentials=self._logins,
            client=client,
            legacy_first=legacy_first,
        )

    @property
    def upstreams(self) -> list[Upstream]:
        """Every raw channel that there is, connected or not."""
        from pi_mcp.connect.upstream import Upstream

        shared = [one for one in self._connections.values() if isinstance(one, Upstream)]
        return [*shared, *self._private.values()]

    async def end_client(self, client_key: str) -> None:
        """End the channels of a client that has gone."""
        gone = [key for key in self._private if key[1] == client_key]
        ending = [self._private.pop(key) for key in gone]
        for connection in ending:
            self._put_off(connection)
        await self._end_all(ending)

    async def close(self, name: str | None = None) -> None:
        """End one connection, or all in parallel; about 5 s at most, idempotent.

        Cancelling the caller does not cancel the ending: a connection that is out of use has nobody else to end it.
        """
        every = (*self._connections.values(), *self._private.values(), *self._old)
        await self._end_all([one for one in every if name is None or one.name == name], every_one=name is None)

    async def _end_all(self, ending: Sequence[Connection], *, every_one: bool = False) -> None:
        tasks = {asyncio.create_task(self._end(connection)) for connection in ending}
        for task in tasks:
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)
        if every_one:
            tasks |= self._endings
        if tasks:
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.result()

    async def _end(self, connection: Connection) -> None:
        await connection.close()
        # It may have been opened again while it was in use, and have gone out of use since.
        if connection.at_rest:
            self._old.discard(connection)
