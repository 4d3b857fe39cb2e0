"""The operating system's keyring as a place for secrets, in entries that even Windows accepts.

Comes in: a text. Goes out: one head entry that says which revision is in force, how many parts it has and what
they hash to, and the parts. The head is replaced last, so that after a crash the old text or the new one is
read, never a mixture. It uses no backend that keeps nothing or keeps plain text.

    service `pi-mcp ID`             pi-mcp 1 REVISION PARTS SHA256 [the text itself, where it fits]
    service `pi-mcp ID REVISION 1`  first part …

Each entry has a service of its own: Windows keeps one user for each service and moves the others around, which
two processes may do at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from pi_mcp.auth.places import Unavailable

LIMIT = 1280
"""UTF-16 code units of one entry: Windows takes blobs of 2560 bytes (CRED_MAX_CREDENTIAL_BLOB_SIZE)."""
ATTEMPTS = 3
"""Readings, in case another process replaces the text between its head and its parts."""
AGAIN = 0.05
"""Seconds before what another process has just changed is looked for once more."""
_MARK = "pi-mcp 1 "
HINT = "Start or unlock it, or set PI_MCP_CREDENTIAL_KEY for an encrypted file (docs/signing-in.md)."


class KeyringPlace:
    """Through the `keyring` package; `backend` stands in for the one that it would choose."""

    name = "keyring"

    def __init__(self, backend: Any = None) -> None:
        self._given = backend

    def probe(self) -> None:
        self._get("pi-mcp probe", "pi-mcp")

    def read(self, id: str, server: str) -> str | None:
        for _ in range(ATTEMPTS):
            head = self._get(_service(id), server)
            if head is None:
                return None
            fields = head.removeprefix(_MARK).split(" ", 3)
            if not head.startswith(_MARK) or len(fields) != 4 or not fields[1].isdigit():
                return None
            revision, count, digest, text = fields
            parts = [self._get(_service(id, revision, n), server) for n in range(1, int(count) + 1)]
            if None not in parts:
                whole = text + "".join(part for part in parts if part is not None)
                if _digest(whole) == digest:
                    return whole
        return None

    def parts(self, text: str) -> int:
        """0 where the text fits into the head. It is ASCII, as `json.dumps` makes it."""
        room = LIMIT - len(_head("0" * 16, 99, "", ""))
        return 0 if len(text) <= room else -(-len(text) // LIMIT)

    def write(self, id: str, server: str, revision: str, text: str) -> None:
        count = self.parts(text)
        for n in range(1, count + 1):
            self._put(_service(id, revision, n), server, text[(n - 1) * LIMIT : n * LIMIT])
        self._put(_service(id), server, _head(revision, count, text, "" if count else text))

    def clear(self, id: str, server: str, pieces: Iterable[tuple[str, int]]) -> None:
        for revision, count in pieces:
            for n in range(1, count + 1):
                self._delete(_service(id, revision, n), server)

    def remove(self, id: str, server: str, pieces: Iterable[tuple[str, int]]) -> None:
        known = dict(pieces)
        head = self._get(_service(id), server)
        if head is not None:
            fields = head.removeprefix(_MARK).split(" ", 3)
            if head.startswith(_MARK) and len(fields) == 4 and fields[1].isdigit():
                known[fields[0]] = max(int(fields[1]), known.get(fields[0], 0))
            self._delete(_service(id), server)
        self.clear(id, server, known.items())

    # one entry

    def _get(self, service: str, user: str) -> str | None:
        found = self._asked(self._backend(), service, user)
        return found if isinstance(found, str) else None

    def _asked(self, backend: Any, service: str, user: str) -> Any:
        """What the backend has."""
        return self._tried(lambda: backend.get_password(service, user))

    def _tried(self, work: Callable[[], Any]) -> Any:
        """An entry that another process takes away between its being found and its being read is looked for anew: it
        may have been replaced."""
        for attempt in range(ATTEMPTS):
            try:
                return work()
            except Exception as error:
                if not _gone(error) or attempt == ATTEMPTS - 1:
                    raise _explained(error) from None
                time.sleep(AGAIN)
        return None

    def _put(self, service: str, user: str, value: str) -> None:
        backend = self._backend()
        self._tried(lambda: backend.set_password(service, user, value))
        kept = self._asked(backend, service, user)
        if kept != value:  # B152: a write that reports success says nothing
            raise Unavailable("The credential store did not keep what was written to it.", HINT)

    def _delete(self, service: str, user: str) -> None:
        backend = self._backend()
        if self._asked(backend, service, user) is None:
            return
        try:
            backend.delete_password(service, user)
        except Exception as error:
            if not _gone(error):
                raise _explained(error) from None
        if self._asked(backend, service, user) is not None:
            raise Unavailable("The credential store did not remove an entry.", HINT)

    def _backend(self) -> Any:
        backend = self._given
        if backend is None:
            try:
                import keyring

                backend = keyring.get_keyring()
            except Exception as error:
                raise _explained(error) from None
        kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(backend).__mro__}
        if kinds & {"keyring.backends.fail.Keyring", "keyring.backends.null.Keyring"}:
            raise Unavailable("There is no credential store on this machine.", HINT)
        if any(kind.rpartition(".")[2] == "PlaintextKeyring" for kind in kinds):
            raise Unavailable("The only credential store here keeps plain text, and is not used.", HINT)
        return backend


def _service(id: str, revision: str | None = None, part: int = 0) -> str:
    return f"pi-mcp {id}" if revision is None else f"pi-mcp {id} {revision} {part}"


def _head(revision: str, count: int, text: str, inline: str) -> str:
    return f"{_MARK}{revision} {count} {_digest(text)} {inline}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _gone(error: Exception) -> bool:
    """Is it that the entry is there no more? So say the Secret Service's library and, of a deletion, `keyring`."""
    return any(kind.__name__ in ("ItemNotFoundException", "PasswordDeleteError") for kind in type(error).__mro__)


def _explained(error: Exception) -> Unavailable:
    """By the kind of the failure; its text may quote what was to be stored."""
    with contextlib.suppress(Exception):
        from keyring.errors import InitError, KeyringLocked, NoKeyringError

        if isinstance(error, KeyringLocked):
            return Unavailable("The credential store is locked.", HINT)
        if isinstance(error, InitError):
            return Unavailable("The credential store is not set up, or its question was dismissed.", HINT)
        if isinstance(error, NoKeyringError):
            return Unavailable("There is no credential store on this machine.", HINT)
    return Unavailable("The credential store failed.", HINT)
