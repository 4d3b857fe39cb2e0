"""The stored login of a server as a header, where it can be used as it is: for one call without an event loop.

Comes in: a resolved server. Goes out: the header, nothing where nobody has signed in, or None where more is to be done
than to read: a token near its end, one bound to a key, a store that does not answer. It renews nothing, asks nobody
and writes nothing: that is `bearer.py`'s, on the long way.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp import files

if TYPE_CHECKING:
    from pi_mcp.config.resolve import ResolvedServer

TIME_LIMIT = 10.0
"""Seconds that the store may take: a keyring whose prompter is away never answers."""


@dataclass(frozen=True, slots=True)
class AtHand:
    """What is known of a server's login without the store of logins."""

    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Empty where there is none to send; None where only `bearer.py` can tell."""
    credential_id: str | None = None
    """As `CredentialStore.credential_id`: for the name of the server's catalog."""


def login_at_hand(
    resolved: ResolvedServer, environ: Mapping[str, str], *, state_dir: Path | None = None, keyring: Any = None
) -> AtHand:
    """The login of this server. Blocks for `TIME_LIMIT` seconds at most; raises nothing of its own."""
    directory = (files.state_dir() if state_dir is None else state_dir) / "credentials"
    if resolved.url is None or not (directory / "index.json").exists():
        return AtHand({})
    from pi_mcp.auth.encrypted import FilePlace, chosen
    from pi_mcp.auth.index import Index, id_of
    from pi_mcp.auth.os_keyring import KeyringPlace

    definition = resolved.definition
    id = id_of(definition.name, resolved.url)
    by_file = chosen(environ)
    entry = Index(directory).find("file" if by_file else "keyring", id)
    if entry is None:
        return AtHand({})
    credential_id = f"{entry.issuer} {entry.login}"
    given = {name.lower() for name in (*resolved.headers, *definition.headers)}
    if definition.oauth is False or "authorization" in given:
        return AtHand({}, credential_id)
    place = FilePlace(directory, environ) if by_file else KeyringPlace(keyring)
    found: list[str | None] = []

    def read() -> None:
        try:
            found.append(place.read(id, definition.name))
        except Exception:  # the long way says what is wrong with it
            found.append(None)

    thread = threading.Thread(target=read, name="pi-mcp credentials", daemon=True)
    thread.start()
    thread.join(TIME_LIMIT)
    return AtHand(_header(resolved, found[0] if found else None), credential_id)


def _header(resolved: ResolvedServer, text: str | None) -> Mapping[str, str] | None:
    from pi_mcp.auth.records import from_json
    from pi_mcp.auth.renewal import due

    try:
        credential = from_json(json.loads(text or ""))
    except (ValueError, RecursionError):
        return None
    if credential is None or (credential.server, credential.url) != (resolved.definition.name, resolved.url):
        return None
    tokens = credential.tokens
    if not tokens.access_token or credential.dpop_key is not None or due(tokens, time.time()):
        return None
    for secret in (tokens.access_token, tokens.refresh_token, credential.client.secret):
        if secret:
            resolved.redactor.add(secret)
    return {"Authorization": f"{tokens.token_type} {tokens.access_token}"}
