"""Catalogs on disk: what each server offered when it was last asked, kept between runs (DESIGN §5).

Comes in: a resolved server and the catalog of a listing. Goes out: that catalog again, for 24 hours or the
smaller time that the server stated. It never connects, never raises for what lies on the disk, never follows
a symbolic link, and writes no secret: the file's name is a keyed digest, and where a server repeats a value that
it was given (a token printed into a description), a keyed digest stands in the file for it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp import files
from pi_mcp.catalog.records import CLOCK_SLACK, DAY, Catalog, Tool
from pi_mcp.errors import PiMcpError
from pi_mcp.text import redact

if TYPE_CHECKING:
    from pi_mcp.config import ResolvedServer

VERSION = 1
"""Of the file's format. A file with another one counts as absent."""
UNUSED_DAYS = 30.0
FILE_LIMIT = 32 * 1024 * 1024
"""Bytes. A listing is cut at 8 MiB (DESIGN §5), which escapes can at most multiply; more is not ours."""
KEY_BYTES = 32
_KEY_NAME = "key"
_LOCK_NAME = "lock"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A file's catalog, and whether its time is over."""

    catalog: Catalog
    expired: bool


class CatalogStore:
    """The catalog files of one directory, one per server; safe for several processes at once (B161).

    `credential_id` gives the id of the stored OAuth credential of a server, None without one: another login
    may see other tools. It is asked on every access and must neither block nor contact anything.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        credential_id: Callable[[ResolvedServer], str | None] | None = None,
    ) -> None:
        self._given = directory
        self._credential_id = credential_id
        self._kept_key: bytes | None = None

    @property
    def directory(self) -> Path:
        """Where the files are: `catalogs` in the user's cache directory unless another one was given."""
        return self._given if self._given is not None else files.cache_dir() / "catalogs"

    def load(self, resolved: ResolvedServer, *, now: float | None = None) -> Catalog | None:
        """The kept catalog, or None: absent, damaged, of another version, or over its time.

        `now` is Unix time in seconds. A catalog that is found counts as used today.
        """
        outcome = self._read(resolved, now)
        return None if outcome is None or outcome.expired else outcome.catalog

    def load_expired(self, resolved: ResolvedServer, *, now: float | None = None) -> Catalog | None:
        """As `load`, also when its time is over: the protocol outcome and the names stay useful."""
        outcome = self._read(resolved, now)
        return None if outcome is None else outcome.catalog

    def save(self, resolved: ResolvedServer, catalog: Catalog) -> bool:
        """Replace the server's file; True when it was written.

        A partial catalog is not written, and the older file goes: it is no longer what the server says. The
        same holds for a listing that repeats the output of a `!command`, which nobody has when the file is
        read. False too when the directory cannot be used; the caller keeps what it has in memory.
        """
        path, key = self._path(resolved), self._key()
        if path is None or key is None:
            return False
        try:
            document = _document(catalog)
            texts = "\n".join(_strings(document))
            masked = resolved.redactor(texts) != texts
            if masked:
                document = _mapped(document, _Mask(key, resolved.redactor.values).hide) | {"masked": True}
                texts = "\n".join(_strings(document))
            if not catalog.complete or (resolved.commands and redact(texts) != texts):
                files.remove(path)
                return False
            # ASCII: a lone surrogate in a server's text survives as an escape and cannot break the encoding.
            data = json.dumps(document, ensure_ascii=True, separators=(",", ":")).encode()
            files.write_private(path, data)
        except (OSError, PiMcpError, TypeError, ValueError, RecursionError):
            return False
        return True

    def forget(self, resolved: ResolvedServer) -> bool:
        """Remove the server's file; True when there was one."""
        path = self._path(resolved)
        if path is None:
            return False
        try:
            return files.remove(path)
        except OSError:
            return False

    def sweep(self, *, now: float | None = None) -> int:
        """Remove what nobody used for 30 days; the number of files that went."""
        if not self.directory.is_dir() or self._key() is None:
            return 0
        # Both belong to the directory, not to one server: they live as long as any of their files.
        files.touch(self.directory / _KEY_NAME)
        files.touch(self.directory / _LOCK_NAME)
        try:
            return files.remove_older(self.directory, UNUSED_DAYS * DAY, now=now)
        except OSError:
            return 0

    def name_of(self, resolved: ResolvedServer) -> str | None:
        """The keyed digest that names the server's file; None when the directory cannot be used.

        Two resolved servers with one name may share a catalog.
        """
        from pi_mcp.config import fingerprint

        key = self._key()
        if key is None:
            return None
        credential = self._credential_id(resolved) if self._credential_id is not None else None
        return fingerprint(resolved, key, credential_id=credential)

    def _path(self, resolved: ResolvedServer) -> Path | None:
        name = self.name_of(resolved)
        return None if name is None else self.directory / f"{name}.json"

    def _read(self, resolved: ResolvedServer, now: float | None) -> _Outcome | None:
        path = self._path(resolved)
        if path is None:
            return None
        now = time.time() if now is None else now
        try:
            data = files.read_private(path, FILE_LIMIT)
        except OSError:
            return None
        catalog = None if data is None else _decode(data, resolved, self._key() or b"")
        if catalog is None or catalog.fetched_at > now + CLOCK_SLACK:
            return None
        files.touch(path)
        return _Outcome(catalog, expired=not catalog.fresh(now))

    def _key(self) -> bytes | None:
        """The directory's key, made when there is none; None when the directory cannot be used."""
        if self._kept_key is None:
            with contextlib.suppress(OSError, PiMcpError):
                self._kept_key = _read_key(self.directory) or _make_key(self.directory)
        return self._kept_key


def _read_key(directory: Path) -> bytes | None:
    key = files.read_private(directory / _KEY_NAME, KEY_BYTES)
    return key if key is not None and len(key) == KEY_BYTES else None


def _make_key(directory: Path) -> bytes:
    """Write a new key, or take the one that another process wrote while this one waited for the lock."""
    with files.locked(directory / _LOCK_NAME, timeout=2.0):
        key = _read_key(directory)
        if key is None:
            key = os.urandom(KEY_BYTES)
            files.write_private(directory / _KEY_NAME, key)
        return key


class _Mask:
    """Stands keyed digests for secret values, and the values for the digests again."""

    _MARK = re.compile("\x01pi-mcp:([0-9a-f]{32})\x02")

    def __init__(self, key: bytes, values: Collection[str]) -> None:
        import hmac

        self._marks = {
            value: hmac.new(key, b"mask\0" + value.encode(errors="surrogatepass"), "sha256").hexdigest()[:32]
            for value in values
        }
        self._values = {mark: value for value, mark in self._marks.items()}
        longest_first = sorted(values, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) if values else "(?!)")

    def hide(self, text: str) -> str:
        if self._MARK.search(text):
            raise ValueError("a text that looks masked already")
        return self._pattern.sub(lambda found: f"\x01pi-mcp:{self._marks[found[0]]}\x02", text)

    def show(self, text: str) -> str:
        """Raises KeyError for the digest of a value that is not there any more."""
        return self._MARK.sub(lambda found: self._values[found[1]], text)


def _strings(value: Any) -> Iterator[str]:
    """Every text within a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(part, change) for key, part in value.items()}
    if isinstance(value, list):
        return [_mapped(part, change) for part in value]
    return value


def _document(catalog: Catalog) -> dict[str, Any]:
    return {
        "version": VERSION,
        "server": catalog.server,
        "fetchedAt": catalog.fetched_at,
        "ttl": catalog.ttl,
        "statedTtl": catalog.stated_ttl,
        "era": catalog.era,
        "title": catalog.title,
        "instructions": catalog.instructions,
        "listChanged": catalog.list_changed,
        "notes": list(catalog.notes),
        "tools": [dict(tool.wire) for tool in catalog.tools],
    }


def _decode(data: bytes, resolved: ResolvedServer, key: bytes) -> Catalog | None:
    """The catalog of a file's bytes, None when anything about them is not as `save` writes it."""
    server = resolved.definition.name
    try:
        document = json.loads(data)
        if isinstance(document, dict) and document.get("masked") is True:
            document = _mapped(document, _Mask(key, resolved.redactor.values).show)
    except (ValueError, RecursionError, KeyError):
        return None
    if not isinstance(document, dict) or document.get("version") != VERSION or document.get("server") != server:
        return None
    fetched_at, ttl = _seconds(document.get("fetchedAt")), _seconds(document.get("ttl"))
    stated = document.get("statedTtl")
    stated_ttl = _seconds(stated)
    tools, notes = document.get("tools"), document.get("notes")
    texts = [document.get(key) for key in ("era", "title", "instructions")]
    if (
        fetched_at is None
        or ttl is None
        or (stated is not None and stated_ttl is None)
        or not isinstance(tools, list)
        or not isinstance(notes, list)
        or not all(isinstance(note, str) for note in notes)
        or not all(text is None or isinstance(text, str) for text in texts)
        or texts[0] not in (None, "modern", "legacy")
        or not isinstance(document.get("listChanged"), bool)
    ):
        return None
    seen: set[str] = set()
    for wire in tools:
        name = wire.get("name") if isinstance(wire, dict) else None
        if not isinstance(name, str) or name in seen:
            return None
        seen.add(name)
    return Catalog(
        server=server,
        tools=tuple(Tool(server, wire) for wire in tools),
        fetched_at=fetched_at,
        ttl=min(ttl, DAY),
        stated_ttl=stated_ttl,
        notes=tuple(notes),
        era=texts[0],
        instructions=texts[2],
        title=texts[1],
        list_changed=document["listChanged"],
    )


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
