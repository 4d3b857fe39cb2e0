"""The texts that prove who somebody is: how one is made, recognised, and compared.

Comes in: a kind, or a text from a request. Goes out: `Minted`, or id and digest. A text is shown once and kept
nowhere; the store has its SHA-256, which suffices because 256 random bits cannot be guessed from it.

    pimcp_k4n2xq7zw3mta_p6…    kind `k` and 12 characters are the id, which may be shown; the rest is the secret
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["key", "link", "session", "code", "access", "refresh", "client", "other"]

LETTERS: dict[Kind, str] = {
    "key": "k",
    "link": "l",
    "session": "s",
    "code": "c",
    "access": "a",
    "refresh": "r",
    "client": "i",
    "other": "x",
}
PREFIX = "pimcp_"
"""All our secrets begin so: a scanner for leaked secrets can know them, and a request's bearer is ours or not."""

_FORM = re.compile(r"pimcp_([a-z][a-z2-7]{12})_([a-z2-7]{52})")


@dataclass(frozen=True, slots=True)
class Minted:
    """A new secret. `text` is for its owner alone; `id` may be shown and logged; `digest` is what is kept."""

    id: str
    text: str = field(repr=False)
    digest: bytes = field(repr=False)


def mint(kind: Kind) -> Minted:
    """A new secret of 256 random bits."""
    id = new_id(LETTERS[kind])
    text = f"{PREFIX}{id}_{_random(32)}"
    return Minted(id, text, digest(text))


def recognise(text: str, kind: Kind) -> tuple[str, bytes] | None:
    """Id and digest of a text that has the form of our secret of that kind; says nothing about its being valid."""
    if len(text) > 100 or not (match := _FORM.fullmatch(text)) or match[1][0] != LETTERS[kind]:
        return None
    return match[1], digest(text)


def is_ours(text: str) -> bool:
    """Does it claim to be one of our secrets? Then nobody else is asked about it."""
    return text.startswith(PREFIX)


def digest(text: str) -> bytes:
    """What is kept of a secret: SHA-256 of its UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def same(kept: bytes, given: bytes) -> bool:
    """Are two digests equal? Takes the same time wherever they differ."""
    return hmac.compare_digest(kept, given)


def new_id(letter: str) -> str:
    """A name for a record: a letter for its kind and 60 random bits, all of `[a-z2-7]`."""
    return letter + _random(8)[:12]


def _random(length: int) -> str:
    return base64.b32encode(secrets.token_bytes(length)).decode().rstrip("=").lower()
