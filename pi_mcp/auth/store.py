"""The store of logins: who signed in where, kept in the OS keyring or in encrypted files, and in memory while used.

Comes in: a credential after a login or a renewal. Goes out: that credential again, for the same server name and URL
and for nobody else. Opens nothing until awaited; what may hang runs on daemon threads with a time limit. It never
keeps a secret in plain text, and erases nothing that it was not told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pi_mcp import files
from pi_mcp.auth.encrypted import FilePlace, chosen
from pi_mcp.auth.index import Entries, Index, StoredEntry, id_of
from pi_mcp.auth.locks import WAIT, Locks
from pi_mcp.auth.os_keyring import KeyringPlace
from pi_mcp.auth.places import Place, Unavailable
from pi_mcp.auth.records import Credential, from_json, to_json
from pi_mcp.auth.threads import Patience
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.config.resolve import ResolvedServer

__all__ = ["CredentialStore", "StoredEntry"]

TIME_LIMIT = 10.0
"""Seconds for one reading, writing or removal, all its entries together."""
CLOSE_LIMIT = 5.0
"""Seconds that `close` leaves to a renewal under way: its new tokens would be lost."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A credential in memory, and the index's revision that it was read at."""

    revision: str
    credential: Credential | None


class CredentialStore:
    """One per plugin, on one event loop; safe for several processes at once.

    `PI_MCP_CREDENTIAL_KEY` or `PI_MCP_CREDENTIAL_KEY_FILE` in `environ` selects encrypted files; otherwise
    it is the keyring, for which `keyring` may be a backend object. Logins of one place are not seen in the other.
    """

    def __init__(
        self,
        *,
        state_dir: Path | None = None,
        environ: Mapping[str, str] | None = None,
        keyring: Any = None,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        self._state_dir = state_dir
        self._environ = os.environ if environ is None else environ
        self._keyring = keyring
        self._patience = Patience(time_limit)
        self._kept: dict[str, _Kept] = {}
        self._flights: dict[tuple[str, str], asyncio.Task[Any]] = {}
        self._built: tuple[Path, Index, Locks] | None = None
        self._places: dict[str, Place] = {}
        self.unsaved: dict[str, tuple[str | None, Credential]] = {}
        """By id: what a renewal gave and the store did not take, with the refresh token that it came from."""
        self.useless: dict[str, str | None] = {}
        """By id: a header that the server refused right after it had been renewed. No other would fare better."""

    # Whether and what, from the index alone

    def entry(self, server: str, url: str) -> StoredEntry | None:
        """What is known of a login without opening it. Looks at one file's date, contacts nothing."""
        return self._index.find(self.place, id_of(server, url))

    def credential_id(self, resolved: ResolvedServer) -> str | None:
        """Another value with every login, the same over renewals; None without a login. For the catalog's key."""
        if resolved.url is None:
            return None
        entry = self.entry(resolved.definition.name, resolved.url)
        return None if entry is None else f"{entry.issuer} {entry.login}"

    def elsewhere(self, server: str, url: str) -> StoredEntry | None:
        """A login that a renamed or moved server left behind: same name, or else same address (B149)."""
        from pi_mcp.config.masking import shown_url

        entries = sorted(self._index.entries().values(), key=lambda entry: -entry.saved_at)
        others = [one for one in entries if one.id != id_of(server, url) or one.place != self.place]
        shown = clean_line(shown_url(url), 300)
        return next((one for one in others if one.server == server), None) or next(
            (one for one in others if one.url_shown == shown), None
        )

    async def stored(self) -> list[StoredEntry]:
        """Every stored login of both places, those of servers that are not configured any more included."""
        return sorted(self._index.entries().values(), key=lambda entry: (entry.server, entry.saved_at))

    # The contents

    async def load(self, server: str, url: str, *, fresh: bool = False) -> Credential | None:
        """The login of this name and URL; None where nothing is stored, or what was stored is lost.

        From memory as long as no process has written a newer one; `fresh` reads in any case. Raises
        `credential_store_unavailable`.
        """
        id = id_of(server, url)
        entry = self._index.find(self.place, id)
        if entry is None:
            self._kept.pop(id, None)
            return None
        kept = self._kept.get(id)
        if not fresh and kept is not None and kept.revision == entry.revision:
            return kept.credential
        if fresh:
            return await self._read(entry, url)
        return await self.shared("load", id, lambda: self._read(entry, url))

    async def _read(self, entry: StoredEntry, url: str) -> Credential | None:
        text = await self._bounded(entry.server, lambda place, _: place.read(entry.id, entry.server))
        credential = None
        if text is not None:
            with contextlib.suppress(ValueError, RecursionError):
                credential = from_json(json.loads(text))
        if credential is not None and (credential.server, credential.url) != (entry.server, url):
            credential = None
        self._kept[entry.id] = _Kept(entry.revision, credential)
        return credential

    async def check(self, server: str | None = None) -> None:
        """Raise `credential_store_unavailable` where a login could not be stored: to be asked before one starts."""
        await self._bounded(server, lambda place, _: place.probe())
        with self._translated(server):
            await asyncio.to_thread(files.private_dir, self._directory)

    async def save(self, credential: Credential, *, renewed: bool = False) -> None:
        """Store a login in the old one's place, read back; the old one stays readable until then (B208).

        `renewed` says that it is the same login with new tokens. Raises `credential_store_unavailable`, or `busy`
        where another process holds the login's lock.
        """
        async with self.lock(credential.server, credential.url):
            id = id_of(credential.server, credential.url)
            entry = await self._bounded(
                credential.server, lambda place, late: self._write(place, id, credential, renewed, late)
            )
            self.unsaved.pop(id, None)
            self._kept[id] = _Kept(entry.revision, credential)

    def _write(
        self, place: Place, id: str, credential: Credential, renewed: bool, late: threading.Event
    ) -> StoredEntry:
        """On a thread: note what will be written, write it, remove what it replaces, note what is there now."""
        from pi_mcp.config.masking import shown_url

        text = json.dumps(to_json(credential), separators=(",", ":"))
        # The first touch may make the keyring ask its person. Whoever gives up on that wants nothing written later.
        place.probe()
        revision, count = secrets.token_hex(8), place.parts(text)
        tokens = credential.tokens
        old = self._index.find(place.name, id)
        entry = StoredEntry(
            server=credential.server,
            url_shown=clean_line(shown_url(credential.url), 300),
            issuer=clean_line(credential.issuer, 300),
            saved_at=time.time(),
            id=id,
            place=place.name,
            login=old.login if renewed and old is not None else secrets.token_hex(8),
            revision=revision,
            scopes=tuple(clean_line(scope, 100) for scope in tokens.scopes),
            expires_at=tokens.expires_at,
            renewable=tokens.refresh_token is not None,
            refused=not tokens.access_token,
            pieces=((revision, count),) if count else (),
        )
        before = old.pieces if old is not None else ()
        if count or old is None:
            # Noted first: what a crash leaves behind is found by the next write or removal.
            noted = replace(old or replace(entry, revision="none yet"), pieces=(*before, (revision, count)))
            self._update(late, lambda entries: entries.__setitem__((place.name, id), noted))
        self._in_time(late)
        try:
            place.write(id, credential.server, revision, text)
        except Unavailable:
            if old is None:  # nothing was there, so nothing may be said to be there
                with contextlib.suppress(Unavailable):
                    place.remove(id, credential.server, ((revision, count),))
                    self._index.update(lambda entries: _ignored(entries.pop((place.name, id), None)))
            raise
        place.clear(id, credential.server, before)
        self._index.update(lambda entries: entries.__setitem__((place.name, id), entry))
        return entry

    async def delete(self, server: str, url: str | None = None) -> list[Credential]:
        """Remove a server's logins, of one URL or all, every part of them (B206). What could be read is returned.

        Raises `credential_store_unavailable` after everything was removed that could be.
        """
        gone: list[Credential] = []
        problem: PiMcpError | None = None
        for entry in await self.stored():
            if entry.server != server or (url is not None and entry.id != id_of(server, url)):
                continue
            try:
                async with self._hold(entry.id, server):
                    credential = await self._bounded(server, lambda _, late, one=entry: self._remove(one, late))  # type: ignore[misc]
            except PiMcpError as error:
                problem = problem or error
                continue
            self._kept.pop(entry.id, None)
            self.unsaved.pop(entry.id, None)
            if credential is not None:
                gone.append(credential)
        if problem is not None:
            raise problem
        return gone

    def _remove(self, entry: StoredEntry, late: threading.Event) -> Credential | None:
        place = self._place_of(entry.place)
        credential = None
        try:
            credential = from_json(json.loads(place.read(entry.id, entry.server) or ""))
        except (ValueError, RecursionError):
            pass
        except Unavailable:
            if entry.place == "keyring":
                raise
            # A file without its key is of no use to anybody, and can be removed all the same.
        newest = self._index.find(entry.place, entry.id) or entry
        self._in_time(late)
        place.remove(entry.id, entry.server, newest.pieces)
        self._update(late, lambda entries: entries.pop((entry.place, entry.id), None))
        return credential

    # Order among processes and tasks

    def lock(self, server: str, url: str) -> AbstractAsyncContextManager[bool]:
        """Hold the login's lock across processes, for at most 60 s of waiting; raises `busy` then.

        `save` and `delete` within it are part of it.
        """
        return self._hold(id_of(server, url), server)

    def lock_unless(self, server: str, url: str, settled: Callable[[], bool]) -> AbstractAsyncContextManager[bool]:
        """As `lock`, giving False without it as soon as `settled` says that nothing is left to be done."""
        return self._hold(id_of(server, url), server, settled)

    @contextlib.asynccontextmanager
    async def _hold(self, id: str, server: str, settled: Callable[[], bool] | None = None) -> AsyncIterator[bool]:
        async with contextlib.AsyncExitStack() as stack:
            try:
                with self._translated(server):
                    held = await stack.enter_async_context(self._locks.hold(id, settled=settled))
            except TimeoutError:
                raise failure(
                    "busy",
                    "authenticate",
                    server,
                    f"Another process has been at work on this login for {WAIT:g} s.",
                    "Try again.",
                ) from None
            yield held

    async def shared(self, kind: str, id: str, work: Callable[[], Awaitable[T]]) -> T:
        """`work`, once at a time for a login: who asks while it runs gets its outcome.

        Who stops waiting does not end it; `close` does.
        """
        task: asyncio.Task[T] | None = self._flights.get((kind, id))
        if task is None or task.done():
            task = asyncio.ensure_future(_awaited(work))
            self._flights[(kind, id)] = task
            task.add_done_callback(lambda done: self._landed((kind, id), done))
        return await asyncio.shield(task)

    def _landed(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        if self._flights.get(key) is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # asked for: that nobody waits any more is no leak

    async def close(self) -> None:
        """Wait for renewals under way, about 5 s, then end them. Memory is forgotten; nothing stored changes."""
        tasks = set(self._flights.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_LIMIT)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        self._kept.clear()

    # Parts, built at their first use

    @property
    def state_dir(self) -> Path:
        """The directory of the state that the logins belong to."""
        return files.state_dir() if self._state_dir is None else self._state_dir

    @property
    def _directory(self) -> Path:
        return self.state_dir / "credentials"

    def _rooms(self) -> tuple[Path, Index, Locks]:
        if self._built is None:
            directory = self._directory
            self._built = (directory, Index(directory), Locks(directory))
        return self._built

    @property
    def _index(self) -> Index:
        return self._rooms()[1]

    @property
    def _locks(self) -> Locks:
        return self._rooms()[2]

    @property
    def place(self) -> str:
        """`keyring`, or `file` where a key was given from outside."""
        return "file" if chosen(self._environ) else "keyring"

    def _place_of(self, name: str) -> Place:
        if name not in self._places:
            self._places[name] = (
                FilePlace(self._directory, self._environ) if name == "file" else KeyringPlace(self._keyring)
            )
        return self._places[name]

    async def _bounded(self, server: str | None, work: Callable[[Place, threading.Event], T]) -> T:
        """`work` with the place in force, on a daemon thread, within the time limit, its failures in our words."""
        place = self._place_of(self.place)
        with self._translated(server):
            try:
                return await self._patience.run(lambda late: work(place, late))
            except TimeoutError:
                raise Unavailable(
                    f"The credential store did not answer within {self._patience.limit:g} s.",
                    "See whether it asks for a password, or set PI_MCP_CREDENTIAL_KEY (docs/signing-in.md).",
                ) from None

    @contextlib.contextmanager
    def _translated(self, server: str | None) -> Any:
        try:
            yield
        except Unavailable as error:
            raise failure("credential_store_unavailable", "authenticate", server, error.message, error.hint) from None
        except TimeoutError:
            raise
        except OSError:
            raise failure(
                "credential_store_unavailable",
                "authenticate",
                server,
                "The folder of the index of logins cannot be used.",
                f"Check owner, mode and free space of {self._directory}.",
            ) from None

    @staticmethod
    def _in_time(late: threading.Event) -> None:
        if late.is_set():
            raise TimeoutError

    def _update(self, late: threading.Event, change: Callable[[Entries], object]) -> None:
        self._in_time(late)
        self._index.update(lambda entries: _ignored(change(entries)))


def _ignored(value: object) -> None:
    del value


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
