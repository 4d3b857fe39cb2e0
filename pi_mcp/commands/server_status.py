"""What is known of one configured server now: the row of `/mcp` and of `pi-mcp servers`.

Comes in: an entry and the plugin's connections and catalogs. Goes out: a frozen row. It contacts nothing, runs no
secret command, and reads at most the kept catalog.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pi_mcp.catalog import Catalog, Catalogs
from pi_mcp.config import Configuration, ServerDefinition, ServerEntry, policy, resolve
from pi_mcp.connect import Connections
from pi_mcp.errors import Diagnostic, PiMcpError


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One row of `/mcp`. `filtered` is the number of tools left after filters and trust; None is unknown."""

    name: str
    transport: str | None
    state: str
    """One of those of DESIGN §10."""
    trust: str | None
    tools: int | None
    filtered: int | None
    cached: float | None
    """Age of the catalog in seconds."""
    last_success: float | None
    """Unix time in seconds."""
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


def slips(definition: ServerDefinition, catalog: Catalog) -> list[str]:
    """A sentence for each rule of the entry that covers nothing of what its server offers; of a listing that was cut
    nobody can say it."""
    if not catalog.complete:
        return []
    return policy.idle_rules(definition, {tool.name: tool.input_schema for tool in catalog.tools})


def status_of(
    entry: ServerEntry,
    configuration: Configuration,
    connections: Connections,
    catalogs: Catalogs,
    *,
    loaded: int = 0,
    permits: Callable[[str, str], bool] | None = None,
) -> ServerStatus:
    """The row of `entry`. `permits(server, tool)` narrows `filtered` to what one session may use."""
    definition, name = entry.definition, entry.name
    notes = [" ".join(filter(None, (warning.message, warning.hint))) for warning in entry.warnings]
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
            loaded,
            tuple(notes),
        )
    connection = connections.get(name)
    catalog = catalogs.known(name) or catalogs.held(name)
    filtered = None
    if catalog is not None:
        notes.extend(catalog.notes)
        notes.extend(slips(definition, catalog))
        filtered = sum(
            1
            for tool in catalog.tools
            if policy.admits(definition, tool.name, configuration) == "ok"
            and (permits is None or permits(name, tool.name))
        )
    error = connection.diagnostic or catalogs.failed(name)
    state: str = connection.state
    if state == "idle":
        # What keeps the server from being started can be said before anybody starts it.
        try:
            resolve(definition, configuration)
        except PiMcpError as problem:
            state, error = "invalid", problem.diagnostic
        else:
            state = "failed" if error is not None else "idle"
    return ServerStatus(
        name,
        definition.transport,
        state,
        definition.trust,
        len(catalog.tools) if catalog is not None else None,
        filtered,
        catalog.age(time.time()) if catalog is not None else None,
        connection.last_success,
        error,
        loaded,
        tuple(notes),
    )
