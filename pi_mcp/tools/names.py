"""The native name of a tool: what the model calls it.

Comes in: a server's name and a tool's original name, any text. Goes out: a name that every model provider
accepts. It never looks at other tools: the same pair has the same name in every session.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LIMIT = 64
"""Characters that providers allow in a tool's name."""

PREFIX = "mcp__"

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_HASH_DIGITS = 8


def native_name(server: str, tool: str) -> str:
    """`mcp__SERVER__TOOL` where that is well-formed and can be read back, else a cut form with a hash.

    The result matches `[A-Za-z0-9_-]{1,64}` (DESIGN §7; reports B083, B085, B166, B167).
    """
    name = f"{PREFIX}{server}__{tool}"
    if _reads_back(server, tool) and len(name) <= LIMIT:
        return name
    import hashlib

    # Eight digits tell apart what the replacement and the cut make alike.
    digest = hashlib.sha256(f"{server}\0{tool}".encode("utf-8", "surrogatepass")).hexdigest()
    head = _OTHER.sub("_", name)[: LIMIT - _HASH_DIGITS - 1]
    return f"{head}_{digest[:_HASH_DIGITS]}"


def pointed_server(name: str, servers: Iterable[str]) -> str | None:
    """The server of which `name` could be a tool's native name or `SERVER.TOOL`: the longest that fits, or None."""
    fitting = [server for server in servers if any(name.startswith(lead) for lead in _leads(server))]
    return max(fitting, key=len, default=None)


def without_server(name: str, server: str) -> str:
    """`name` without `SERVER.` or the native prefix in front of it."""
    lead = next((lead for lead in _leads(server) if name.startswith(lead)), "")
    return name[len(lead) :]


def _leads(server: str) -> tuple[str, str]:
    # A longer native name ends in a hash, before which as much is left.
    return f"{server}.", _OTHER.sub("_", f"{PREFIX}{server}__")[: LIMIT - _HASH_DIGITS - 1]


def _reads_back(server: str, tool: str) -> bool:
    """The first `__` after the prefix is the separator, so that no two pairs spell one name."""
    return (
        _PLAIN.fullmatch(server) is not None
        and _PLAIN.fullmatch(tool) is not None
        and "__" not in server
        and not server.startswith("_")
        and not server.endswith("_")
        and not tool.startswith("_")
    )
