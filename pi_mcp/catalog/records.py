"""A server's catalog as values: tools as the server listed them, and what is known about the listing.

Comes in: JSON of a `tools/list`. Goes out: frozen records with a stable hash. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pi_mcp.jsontext import compact_json

DAY = 86400.0
CLOCK_SLACK = 300.0
"""Seconds that a catalog may come from the future: clocks are set back a little, never by hours."""


@dataclass(frozen=True)
class Tool:
    """One tool of one server. `wire` is the JSON object of `tools/list`, verbatim."""

    server: str
    wire: Mapping[str, Any] = field(repr=False)

    @property
    def name(self) -> str:
        """The original name, as the server knows it."""
        name = self.wire.get("name")
        return name if isinstance(name, str) else ""

    @property
    def title(self) -> str | None:
        title = self.wire.get("title") or self.annotations.get("title")
        return title if isinstance(title, str) and title else None

    @property
    def description(self) -> str:
        text = self.wire.get("description")
        return text if isinstance(text, str) else ""

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The server's own schema; an empty object when it is missing or no object."""
        schema = self.wire.get("inputSchema")
        return schema if isinstance(schema, dict) else {}

    @property
    def output_schema(self) -> Mapping[str, Any] | None:
        schema = self.wire.get("outputSchema")
        return schema if isinstance(schema, dict) else None

    @property
    def annotations(self) -> Mapping[str, Any]:
        value = self.wire.get("annotations")
        return value if isinstance(value, dict) else {}

    @property
    def read_only_hint(self) -> bool:
        """What the server says; whether it counts is a matter of trust (DESIGN §9)."""
        return self.annotations.get("readOnlyHint") is True

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) over name, description, schema and annotations: what a call compares (DESIGN §7)."""
        import hashlib  # here: who only reads a kept definition needs none of it, and it loads OpenSSL

        parts = [self.wire.get(key) for key in ("name", "title", "description", "inputSchema", "annotations")]
        text = compact_json(parts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Catalog:
    """What one server offered at one time. Names in `tools` are distinct and in the server's order."""

    server: str
    tools: tuple[Tool, ...]
    fetched_at: float
    """Unix time in seconds."""
    ttl: float = DAY
    """Seconds that the disk copy is good for: 24 h or a smaller TTL that the server states."""
    stated_ttl: float | None = None
    """The server's own TTL in seconds, None when it states none."""
    complete: bool = True
    """False when a bound of §5 cut the listing; such a catalog is not kept on disk."""
    notes: tuple[str, ...] = ()
    """What was odd about the listing, one sentence each, ours and cleaned."""
    era: str | None = None
    """`modern` or `legacy`: the outcome of the protocol negotiation."""
    instructions: str | None = None
    """The server's instructions, cleaned, at most 2 KiB."""
    title: str | None = None
    """The server's own display name, cleaned."""
    list_changed: bool = False
    """The server declares `tools.listChanged`."""

    def tool(self, name: str) -> Tool | None:
        for tool in self.tools:
            if tool.name == name:
                return tool
        return None

    def age(self, now: float) -> float:
        return max(0.0, now - self.fetched_at)

    def fresh(self, now: float) -> bool:
        """Whether it is within its time. Not one from the future: it would be for as long as the clock was ahead."""
        return self.fetched_at <= now + CLOCK_SLACK and self.age(now) < self.ttl


NO_CATALOGS: Mapping[str, Catalog] = MappingProxyType({})
