"""Which scopes a login asks for, and which a server has asked for in vain.

Comes in: the configuration, challenges and metadata. Goes out: scopes in their order. What a 403 asked for is kept in
the state directory, so that a login in another process can ask for it; it holds no secret.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.auth.challenges import scopes_of

TRIES = 3
"""Logins that ask for the same missing scope before it is given up."""
_LIMIT = 64 * 1024


def configured(value: object) -> tuple[str, ...] | None:
    """`oauth.scopes`, a string or a list; None where it is absent or empty."""
    if isinstance(value, str):
        return tuple(value.split()) or None
    if isinstance(value, list | tuple):
        return tuple(dict.fromkeys(part for item in value for part in str(item).split())) or None
    return None


def choose(
    wanted: tuple[str, ...] | None,
    challenge: tuple[str, ...] | None,
    resource: tuple[str, ...] | None,
    known: tuple[str, ...] | None,
) -> tuple[str, ...]:
    """Configured, else the challenge's, else the resource's, else none (reports B145, B146).

    `known` are the authorization server's. `offline_access` is what brings refresh tokens: it is asked for where, and
    only where, that server lists it; configured scopes are sent exactly.
    """
    if wanted is not None:
        return wanted
    scopes = challenge or tuple(scope for scope in resource or () if scope != "offline_access")
    if scopes and known is not None and "offline_access" in known:
        scopes = union(scopes, ("offline_access",))
    return tuple(scopes)


def union(*lists: Iterable[str]) -> tuple[str, ...]:
    """All scopes, each once, in the order of their first place."""
    return tuple(dict.fromkeys(scope for one in lists for scope in one))


class WantedScopes:
    """The scopes that servers named in a 403 `insufficient_scope`, until a login was tried for them three times."""

    def __init__(self, state_dir: Path | None = None) -> None:
        self._path = (files.state_dir() if state_dir is None else state_dir) / "auth" / "wanted-scopes.json"

    def note(self, server: str, url: str, scopes: Iterable[str]) -> None:
        """A call was refused for want of these scopes."""
        key, scopes = _key(server, url), scopes_of(" ".join(scopes))
        if not scopes or set(scopes) <= set(self._read().get(key, {}).get("scopes", ())):
            return
        with files.locked(self._path.with_suffix(".lock")):
            rows = self._read()
            row = rows.get(key, {"scopes": [], "tries": 0})
            # Something new was asked for: the count begins anew.
            rows[key] = {"scopes": list(union(row["scopes"], scopes))[:50], "tries": 0}
            self._write(rows)

    def of(self, server: str, url: str) -> tuple[str, ...]:
        """What a login should ask for beside the rest."""
        return tuple(self._read().get(_key(server, url), {}).get("scopes", ()))

    def tries(self, server: str, url: str) -> int:
        return int(self._read().get(_key(server, url), {}).get("tries", 0))

    def tried(self, server: str, url: str) -> None:
        """A login has asked for them."""
        key = _key(server, url)
        if key not in self._read():
            return
        with files.locked(self._path.with_suffix(".lock")):
            rows = self._read()
            if key in rows:
                rows[key]["tries"] += 1
                self._write(rows)

    def forget(self, server: str, url: str) -> None:
        key = _key(server, url)
        if key not in self._read():
            return
        with files.locked(self._path.with_suffix(".lock")):
            rows = self._read()
            rows.pop(key, None)
            self._write(rows)

    def _read(self) -> dict[str, Any]:
        data = files.read_private(self._path, _LIMIT)
        try:
            rows = json.loads(data or b"{}")
            return {
                str(key): {"scopes": list(scopes_of(" ".join(row["scopes"]))), "tries": int(row["tries"])}
                for key, row in rows.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            return {}

    def _write(self, rows: dict[str, Any]) -> None:
        kept = dict(list(rows.items())[-200:])
        files.write_private(self._path, json.dumps(kept).encode())


def _key(server: str, url: str) -> str:
    # A URL may hold a secret in its query.
    return hashlib.sha256(f"{server}\0{url}".encode()).hexdigest()
