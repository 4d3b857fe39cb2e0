"""Which scopes a login asks for, and which a server has asked for in vain.

Comes in: the configuration, challenges and metadata. Goes out: scopes in their order. What a 403 asked for is kept in
the state directory, so that a login in another process can ask for it; it holds no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.auth.challenges import scopes_of

TRIES = 3
"""Logins that ask for the same missing scope before it is given up."""
_LIMIT = 1024 * 1024
_MOST_ROWS = 100
_NOTHING: dict[str, Any] = {"scopes": [], "tries": 0, "open": False}


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
        row = self._read().get(key, _NOTHING)
        if not scopes or (row["open"] and set(scopes) <= set(row["scopes"])):
            return
        with self._changed() as rows:
            row = rows.get(key, _NOTHING)
            # Something new was asked for: the count begins anew.
            tries = row["tries"] if set(scopes) <= set(row["scopes"]) else 0
            rows[key] = {"scopes": list(union(row["scopes"], scopes))[:50], "tries": tries, "open": True}

    def of(self, server: str, url: str) -> tuple[str, ...]:
        """What a login should ask for beside the rest."""
        return tuple(self._read().get(_key(server, url), _NOTHING)["scopes"])

    def in_vain(self, server: str, url: str) -> bool:
        """Enough logins have asked for it, and the server still refused the last call."""
        row = self._read().get(_key(server, url), _NOTHING)
        return bool(row["open"]) and row["tries"] >= TRIES

    def tried(self, server: str, url: str) -> None:
        """A login has asked for it. It is settled until the server refuses again."""
        key = _key(server, url)
        if key in self._read():
            with self._changed() as rows:
                if key in rows:
                    tries = rows[key]["tries"] + 1 if rows[key]["open"] else 0
                    rows[key] = {**rows[key], "tries": tries, "open": False}

    def forget(self, server: str, url: str) -> None:
        key = _key(server, url)
        if key in self._read():
            with self._changed() as rows:
                rows.pop(key, None)

    def _read(self) -> dict[str, Any]:
        data = files.read_private(self._path, _LIMIT)
        try:
            rows = json.loads(data or b"{}")
            return {
                str(key): {
                    "scopes": list(scopes_of(" ".join(row["scopes"]))),
                    "tries": int(row["tries"]),
                    "open": row["open"] is True,
                }
                for key, row in rows.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError):
            return {}

    @contextlib.contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        files.private_dir(self._path.parent)
        with files.locked(self._path.with_suffix(".lock")):
            rows = self._read()
            yield rows
            kept = dict(list(rows.items())[-_MOST_ROWS:])
            files.write_private(self._path, json.dumps(kept).encode())


def _key(server: str, url: str) -> str:
    # A URL may hold a secret in its query.
    return hashlib.sha256(f"{server}\0{url}".encode()).hexdigest()
