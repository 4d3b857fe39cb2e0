"""Where a request goes: an address taken apart, put together again, and judged when a server points elsewhere.

Comes in: URLs. Goes out: `Address` values whose text shows neither a login nor a query. No I/O.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field, replace
from urllib.parse import quote, unquote, urljoin, urlsplit

from pi_mcp.http_client.fault import printable

REDIRECTS = 5
_PORTS = {"http": 80, "https": 443}
_AS_WRITTEN = "/%:@!$&'()*+,;=~-._"
"""Characters of a path that are not encoded anew."""


@dataclass(frozen=True, slots=True)
class Address:
    """One http or https address. Its repr holds no user information and no query."""

    scheme: str
    host: str
    """Lower case, ASCII, an IPv6 address without brackets."""
    port: int
    target: str = field(repr=False)
    """Path and query, as they go into the request line."""
    given_port: bool = False
    login: str | None = field(default=None, repr=False)
    """What user information in the address means as an `Authorization` header."""

    @property
    def netloc(self) -> str:
        """For the `Host` header: the port only where it is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def place(self) -> str:
        """Host and port, as a tunnel is asked for and as messages name them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """The address for messages, without login and query."""
        return printable(f"{self.scheme}://{self.netloc}{self.target.partition('?')[0]}", 120)

    @property
    def origin(self) -> tuple[str, str, int]:
        return (self.scheme, self.host, self.port)


def parse(url: str) -> Address:
    """Raises ValueError, without the address in its text, for what is no http or https address."""
    if re.search("[\x00-\x20\x7f\ud800-\udfff]", url):
        raise ValueError("a blank or a control character is in it")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ValueError("its host or port cannot be read") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError("it does not begin with http:// or https://")
    if not host or port == 0:
        raise ValueError("it names no host" if not host else "its port cannot be used")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            raise ValueError("its host name cannot be encoded") from None
    path = quote(parts.path or "/", safe=_AS_WRITTEN)
    query = "?" + quote(parts.query, safe=_AS_WRITTEN + "?[]{}|^`") if parts.query else ""
    login = None
    if "@" in parts.netloc:
        name, _, password = parts.netloc.rpartition("@")[0].partition(":")
        login = "Basic " + base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
    return Address(scheme, host, port or _PORTS[scheme], path + query, port is not None, login)


def redirected(sent: Address, status: int, location: str | None) -> Address | str | None:
    """Where a request goes on, why it does not (a sentence's part), or None for an answer that is no redirect.

    Followed are 307 and 308 within the origin, or from http to https on default ports: the body goes along, and
    credentials must not reach anybody else.
    """
    if status not in (301, 302, 303, 307, 308):
        return None
    try:
        target = parse(urljoin(f"{sent.scheme}://{sent.netloc}{sent.target}", location or ""))
    except ValueError:
        target = None
    if not location or target is None:
        return f"HTTP {status} from {sent.shown}, without a usable address"
    ways = f"HTTP {status} from {sent.shown} to {target.shown}"
    upgrade = (sent.scheme, target.scheme) == ("http", "https") and sent.host == target.host
    upgrade = upgrade and not sent.given_port and not target.given_port
    if (sent.scheme, target.scheme) == ("https", "http"):
        better = replace(target, scheme="https", port=target.port if target.given_port else _PORTS["https"])
        return f"{ways}: credentials would go out in clear; try {better.shown} as `url`"
    if sent.origin != target.origin and not upgrade:
        return f"{ways}: another origin"
    if status < 307:
        return f"{ways}: a sign-in page? Check `url` and the login"
    if target.login is not None and target.login != sent.login:
        return f"{ways}: the address brings a login of its own"
    return replace(target, login=sent.login)
