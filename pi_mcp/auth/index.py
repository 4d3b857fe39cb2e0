"""The index of what is stored: which server's login lies where, for which issuer and until when. No secrets.

Comes in: changes by the store. Goes out: entries, also of servers that no configuration knows any more (B209). It
says what there is without asking a keyring, so that a server that needs no login never waits for one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pi_mcp import files

VERSION = 1
FILE_LIMIT = 4 * 1024 * 1024
LOCK_WAIT = 5.0
"""Seconds; the index is locked for as long as it takes to write a small file."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """What is known about one stored login without opening it. Times are Unix seconds."""

    server: str
    url_shown: str
    """The server's address without user information, query values and what looks like a token."""
    issuer: str
    saved_at: float
    id: str
    """Of the pair of name and URL, see `id_of`."""
    place: str
    """`keyring` or `file`."""
    login: str
    """Random, new with every login and kept by a renewal: another login may see other tools."""
    revision: str
    """Random, new with every write: who holds an older one in memory reads again."""
    scopes: tuple[str, ...] = ()
    expires_at: float | None = None
    renewable: bool = False
    """A refresh token is there."""
    refused: bool = False
    """The authorization server refused the newest refresh token: only the client is kept."""
    pieces: tuple[tuple[str, int], ...] = ()
    """Revisions of which the keyring may hold parts, and how many."""


def id_of(server: str, url: str) -> str:
    """The name under which a login is kept: bound to the server's configured name and its URL (B148, B149)."""
    import hashlib

    return hashlib.sha256(f"{server}\0{url}".encode(errors="surrogatepass")).hexdigest()[:32]


Entries = dict[tuple[str, str], StoredEntry]
"""By place and id."""


class Index:
    """`index.json` in one directory, shared by processes. All methods block for no longer than the disk."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "index.json"
        self._lock = directory / "index.lock"
        self._seen: tuple[tuple[int, int, int] | None, Entries] = (None, {})

    def entries(self) -> Entries:
        """Everything stored, as last written by any process. A missing or damaged file is an empty index."""
        return dict(self._current())

    def find(self, place: str, id: str) -> StoredEntry | None:
        return self._current().get((place, id))

    def update(self, change: Callable[[Entries], None]) -> None:
        """Apply `change` to the newest entries and write them. Raises OSError, TimeoutError, ConfigurationError."""
        with files.locked(self._lock, timeout=LOCK_WAIT):
            self._seen = (None, {})
            entries = self.entries()
            if _decode(data := self._read()) is None and data:
                files.rotate(self._path, 0)  # a newer version's, or damaged: kept aside, not overwritten
            change(entries)
            document = {"version": VERSION, "entries": [asdict(entry) for entry in entries.values()]}
            files.write_private(self._path, json.dumps(document, indent=1).encode())
            self._seen = (None, {})

    def _current(self) -> Entries:
        mark = self._mark()
        if mark is None:
            return {}
        if self._seen[0] != mark:
            self._seen = (mark, _decode(self._read()) or {})
        return self._seen[1]

    def _mark(self) -> tuple[int, int, int] | None:
        """Changes with every write: each is a new file that is renamed into place."""
        try:
            info = os.lstat(self._path)
        except OSError:
            return None
        return (info.st_ino, info.st_mtime_ns, info.st_size)

    def _read(self) -> bytes | None:
        with contextlib.suppress(OSError):
            return files.read_private(self._path, FILE_LIMIT)
        return None


def _decode(data: bytes | None) -> Entries | None:
    """The entries of a file of this version, None for anything else."""
    try:
        document = json.loads(data or b"")
        if document["version"] != VERSION:
            return None
        found = [_entry(one) for one in document["entries"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return {(entry.place, entry.id): entry for entry in found}


def _entry(one: Mapping[str, Any]) -> StoredEntry:
    expires_at = one["expires_at"]
    return StoredEntry(
        server=str(one["server"]),
        url_shown=str(one["url_shown"]),
        issuer=str(one["issuer"]),
        saved_at=float(one["saved_at"]),
        id=str(one["id"]),
        place=str(one["place"]),
        login=str(one["login"]),
        revision=str(one["revision"]),
        scopes=tuple(str(scope) for scope in one["scopes"]),
        expires_at=None if expires_at is None else float(expires_at),
        renewable=bool(one["renewable"]),
        refused=bool(one["refused"]),
        pieces=tuple((str(revision), int(count)) for revision, count in one["pieces"]),
    )
