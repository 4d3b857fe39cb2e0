"""All connections of one plugin, by server name.

Comes in: a configuration, again whenever it changes. Goes out: one `Connection` per server. It starts nothing by
itself, and knows nothing of catalogs and sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pi_mcp.connect.connection import Connection

if TYPE_CHECKING:
    from pi_mcp.config.definition import Configuration
    from pi_mcp.config.resolve import ResolvedServer
    from pi_mcp.connect.sender import Credentials


class Connections:
    """One per plugin, on one event loop. Does nothing until a connection is used."""

    def __init__(self, configuration: Configuration, *, roots_cwd: Path | None = None) -> None:
        self._configuration = configuration
        self._roots_cwd = roots_cwd
        self._connections: dict[str, Connection] = {}
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
            old = self._connections.pop(name)
            old.dismiss()
            self._old.add(old)
        return changed

    def get(self, name: str) -> Connection:
        """The connection of a server. Raises KeyError for a name that may not be connected."""
        definition = self._configuration.servers[name]
        if name not in self._connections:
            self._connections[name] = Connection(
                definition,
                self._configuration,
                roots_cwd=self._roots_cwd,
                credentials=lambda resolved: self.credentials(resolved) if self.credentials else None,
            )
        return self._connections[name]

    async def close(self, name: str | None = None) -> None:
        """End one connection, or all in parallel; about 5 s at most, idempotent.

        Cancelling the caller does not cancel the ending: a connection that is out of use has nobody else to end it.
        """
        ending = [one for one in (*self._connections.values(), *self._old) if name is None or one.name == name]
        tasks = {asyncio.create_task(self._end(connection)) for connection in ending}
        for task in tasks:
            self._endings.add(task)
            task.add_done_callback(self._endings.discard)
        if name is None:
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
