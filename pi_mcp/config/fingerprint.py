"""What a server is, as one keyed hash: the name of its catalog file.

Comes in: a resolved server and a random key. Goes out: hex. Nothing in it can be turned back into a value, and
no secret command is run for it: such a command counts as its text (DESIGN §5).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pi_mcp.config.resolve import ResolvedServer
    from pi_mcp.config.secret import Secret


def fingerprint(resolved: ResolvedServer, key: bytes, *, credential_id: str | None = None) -> str:
    """HMAC-SHA-256, 64 hex digits, over name, transport, command, args, URL, env and headers.

    `cwd` counts for stdio only, `credential_id` where OAuth has stored a login. The same before and after
    `resolve_secrets`.
    """
    import hmac  # here: its OpenSSL is a tenth of the time that loading the configuration takes

    definition = resolved.definition
    stdio = definition.transport == "stdio"

    identity = {
        "name": definition.name,
        "transport": definition.transport,
        "command": resolved.command,
        "args": list(resolved.args),
        "url": resolved.url,
        "env": _table(resolved.env, definition.env),
        "headers": _table(resolved.headers, definition.headers),
        "cwd": str(resolved.cwd) if stdio else None,
        "credential": credential_id,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _table(values: Mapping[str, Secret], written: Mapping[str, str]) -> list[list[str | bool]]:
    """Names and values in order; a command is marked, so that it is no literal of the same text."""
    rows = [(name, False, value.reveal()) for name, value in values.items()]
    rows = [row for row in rows if not written.get(row[0], "").startswith("!")]
    rows += [(name, True, text) for name, text in written.items() if text.startswith("!")]
    return [list(row) for row in sorted(rows)]
