"""Which configured entry may be used now, and why one may not.

Comes in: an entry, or a name that is none. Goes out: its definition, or an error of ours that says what to do. It
looks at nothing but the configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pi_mcp.config.definition import ServerDefinition, ServerEntry
from pi_mcp.errors import PiMcpError, error_of, failure
from pi_mcp.text import clean_line, quoted


def no_server(name: str, known: Iterable[str]) -> PiMcpError:
    """NotFound for a server's name, with the names that look like it."""
    import difflib

    every = sorted(known)
    close = difflib.get_close_matches(name, every, 3, 0.5)
    if close:
        hint = f"Close: {', '.join(close)}."
    else:
        hint = f"Servers: {clean_line(', '.join(every[:20]) or 'none is configured', 600)}."
    return failure("not_found", "configure", None, f"No server is called {clean_line(name, 64)!r}.", hint)


def entry_named(name: str, entries: Mapping[str, ServerEntry]) -> ServerEntry:
    """The configured entry of that name; raises NotFound with the names that are close to it."""
    entry = entries.get(name)
    if entry is None:
        raise no_server(name, entries)
    return entry


def usable(entry: ServerEntry) -> ServerDefinition:
    """The definition of an entry that may be connected; raises why it may not."""
    if entry.state == "ready" and entry.definition is not None:
        return entry.definition
    if entry.diagnostic is not None:
        raise error_of(entry.diagnostic)
    if entry.state == "disabled":
        raise failure(
            "refused",
            "configure",
            entry.name,
            "The server is disabled.",
            f"`/mcp enable {quoted(entry.name)}` turns it on.",
        )
    raise failure(
        "refused", "configure", entry.name, "The server cannot be used.", f"`/mcp get {quoted(entry.name)}` says why."
    )
