"""Which redirect addresses a client may register, and which registered one an asked one is.

Comes in: texts. Goes out: the reason against an address, or yes and no. Addresses are compared letter by letter; the
one exception is the port of a loopback address (RFC 8252 §7.3, OAuth 2.1 §2.3.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

LONGEST = 1000
"""Characters of one address."""

# No scheme that a browser runs, opens by itself or hands to another program than the client's.
_FORBIDDEN = frozenset(
    {
        "javascript", "data", "vbscript", "file", "blob", "about", "filesystem", "view-source", "chrome",
        "chrome-extension", "moz-extension", "edge", "resource", "jar", "ftp", "ftps", "ws", "wss", "mailto", "tel",
        "sms", "intent", "android-app", "ms-settings", "search-ms", "shell",
    }
)  # fmt: skip
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
# Printable ASCII without what ends or escapes an attribute, a header or a URL.
_TEXT = re.compile(r"[!#-;=?-\[\]_a-z~]+")
_LOOPBACK = re.compile(r"http://(127\.0\.0\.1|\[::1\]|localhost)(?::([0-9]{1,5}))?([/?].*)?")


def problem_of(uri: object) -> str | None:
    """Why this is no redirect address of a client, as a clause; None where it is one.

    https anywhere, http on the client's own machine, or a scheme of the client's own (RFC 8252 §7.1).
    """
    if not isinstance(uri, str) or not uri or len(uri) > LONGEST:
        return "is empty or too long"
    if not _TEXT.fullmatch(uri):
        return "holds characters that no address has"
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is no address"
    if "#" in uri:
        return "has a fragment"
    if "@" in parts.netloc:
        return "holds a user name"
    if "*" in parts.netloc:
        return "has a wildcard"
    scheme = uri.partition(":")[0]
    if not _SCHEME.fullmatch(scheme):
        return "has no scheme"
    if scheme == "http":
        return None if _LOOPBACK.fullmatch(uri) else "is http and not on the client's own machine"
    if scheme == "https":
        return None if host else "has no host"
    if scheme in _FORBIDDEN:
        return "has a scheme that is not the client's own"
    rest = uri[len(scheme) + 1 :]
    return None if rest.strip("/") or rest.startswith("/") else "has nothing behind its scheme"


def registered(asked: object, addresses: Iterable[str]) -> bool:
    """Is the asked address one of those registered?"""
    if not isinstance(asked, str) or problem_of(asked) is not None:
        return False
    return any(_same(asked, one) for one in addresses)


def _same(asked: str, one: str) -> bool:
    if asked == one:
        return True
    left, right = _LOOPBACK.fullmatch(asked), _LOOPBACK.fullmatch(one)
    return left is not None and right is not None and left[1] == right[1] and (left[3] or "") == (right[3] or "")


def form_source(uri: str) -> str:
    """The address as a source of `form-action` (CSP): Chromium asks it of a form's redirects, too."""
    scheme, netloc = urlsplit(uri)[:2]
    # CSP has no spelling for the host [::1], nor for hosts that would need one of its own separators.
    spelled = scheme in ("http", "https") and re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?", netloc) is not None
    return f"{scheme}://{netloc}" if spelled else f"{scheme}:"


def on_own_machine(uri: str) -> bool:
    """Does the address lead to the machine that the browser runs on?"""
    return _LOOPBACK.fullmatch(uri) is not None


def where_to(uri: str) -> str:
    """In words, whose hands the answer ends in, for people."""
    if on_own_machine(uri):
        return "a program on the machine that this browser runs on"
    if uri.startswith("https:"):
        return f"the site {urlsplit(uri).hostname}"
    return f"the program that opens {uri.partition(':')[0]}: addresses on this machine"
