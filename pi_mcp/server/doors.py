"""Which Host and Origin headers are let in: a page in a browser must not reach a gateway by a name of its own.

Comes in: what the gateway is called from outside, and headers. Goes out: yes or no. Pure. (DNS rebinding; B191)
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Doors:
    """Loopback names with any port are always let in; others where they were named."""

    def __init__(self, *, public_url: str | None = None, allowed_hosts: Iterable[str] = (), bound: str = "") -> None:
        """`allowed_hosts` are names, with a port where only that one is meant; `bound` is the address listened on."""
        named = {_split(host) for host in (*allowed_hosts, bound) if host}
        if public_url:
            parts = urlsplit(public_url)
            named.add(((parts.hostname or "").lower(), None))
        self._named = named

    def host(self, value: str | None) -> bool:
        """Whether a Host header is let in; there has to be one."""
        if not value:
            return False
        name, port = _split(value)
        return name in LOOPBACK or (name, None) in self._named or (name, port) in self._named

    def origin(self, value: str | None) -> bool:
        """Whether an Origin header is let in; programs other than browsers send none."""
        if value is None:
            return True
        try:
            parts = urlsplit(value)
            host = parts.netloc
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and "@" not in host and self.host(host)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    return host.strip("[]").lower() in LOOPBACK


def _split(value: str) -> tuple[str, str | None]:
    """Name in lower case without brackets, and port; what is no host at all stays a name that nothing equals."""
    text = value.strip().lower()
    if text.startswith("["):
        name, _, rest = text[1:].partition("]")
        if rest and not (rest.startswith(":") and rest[1:].isdecimal()):
            return value, None
        return name, rest[1:] or None
    name, colon, port = text.rpartition(":")
    if not colon:
        return text.rstrip("."), None
    if ":" in name:
        return text, None  # an address of IPv6 without brackets
    if not port.isdecimal():
        return value, None
    return name.rstrip("."), port
