"""Which credential a request brings, read from its headers: one, none, or something that is refused.

Comes in: raw headers. Goes out: `Supplied` values. Pure; whether a credential is any good is found out elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Literal

SCOPES_HEADER = b"x-mcp-scopes"
CREDENTIAL_HEADERS = frozenset({b"authorization", b"x-api-key", b"cookie", b"proxy-authorization"})
"""Headers that end at the gateway: nothing behind the authentication sees them."""
LONGEST = 16 * 1024
"""Characters of a credential."""

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Supplied:
    """One credential as it came. `kind`: how it came; `bad`: in a form that no credential has."""

    kind: Literal["bearer", "key", "cookie", "bad"]
    text: str = field(default="", repr=False)


def supplied(headers: Headers, cookie_name: str) -> Supplied | None:
    """The request's credential; None where it brings none.

    A key may come as bearer or as `x-api-key`; both are one credential if they are the same text, and bad if not. Two
    headers of one name are bad. A cookie counts where no header brings a credential.
    """
    authorization = [value for name, value in headers if name == b"authorization"]
    api_key = [value for name, value in headers if name == b"x-api-key"]
    if len(authorization) > 1 or len(api_key) > 1:
        return Supplied("bad")
    bearer = None
    if authorization:
        scheme, _, rest = authorization[0].decode("latin-1").strip().partition(" ")
        bearer = rest.strip()
        if scheme.lower() != "bearer" or not bearer or len(bearer) > LONGEST:
            return Supplied("bad")
    if api_key:
        text = api_key[0].decode("latin-1").strip()
        if not text or len(text) > LONGEST or (bearer is not None and bearer != text):
            return Supplied("bad")
        return Supplied("key", text)
    if bearer is not None:
        return Supplied("bearer", bearer)
    return _cookie(headers, cookie_name)


def _cookie(headers: Headers, name: str) -> Supplied | None:
    found: list[str] = []
    for key, value in headers:
        if key != b"cookie":
            continue
        # One at a time: a cookie of somebody else that cannot be read must not hide ours.
        for part in map(str.strip, value.decode("latin-1").split(";")):
            if not part.startswith(name):
                continue
            try:
                morsel = SimpleCookie(part).get(name)
            except CookieError:
                continue
            if morsel is not None:
                found.append(morsel.value)
    if not found:
        return None
    return Supplied("cookie", found[0]) if len(found) == 1 and len(found[0]) <= LONGEST else Supplied("bad")


def header(headers: Headers, name: bytes) -> str | None:
    """All values of a header, joined by commas; None without one."""
    values = [value.decode("latin-1") for key, value in headers if key == name]
    return ",".join(values) if values else None


def without_credentials(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name not in CREDENTIAL_HEADERS]
