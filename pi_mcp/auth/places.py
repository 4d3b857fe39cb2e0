"""Where secrets may lie: the contract of a place, and why one cannot be used.

Comes in: nothing. Goes out: the protocol that the keyring and the encrypted file fulfil, and `Unavailable`. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Unavailable(Exception):
    """This place cannot be used now. `message` and `hint` are sentences of ours; nothing was erased."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Place(Protocol):
    """Keeps one text per id. Every method blocks and may raise `Unavailable`; the store bounds them in time."""

    name: str
    """`keyring` or `file`, as the index has it."""

    def probe(self) -> None:
        """Raise where nothing can be stored; may make the keyring ask to be unlocked."""

    def read(self, id: str, server: str) -> str | None:
        """The text last written as a whole; None where there is none, or not all of it."""

    def parts(self, text: str) -> int:
        """How many further entries `write` makes of it: they are noted before they are written."""

    def write(self, id: str, server: str, revision: str, text: str) -> None:
        """Put a text in the old one's place in one step, and read it back."""

    def clear(self, id: str, server: str, pieces: Iterable[tuple[str, int]]) -> None:
        """Remove the parts of these revisions. The text that is in force is not touched."""

    def remove(self, id: str, server: str, pieces: Iterable[tuple[str, int]]) -> None:
        """Remove the text and all parts of these revisions; what is missing already is no fault."""
