"""Which addresses a login may contact, judged by the address that the person configured.

Comes in: URLs, and the IP addresses that names stand for. Goes out: a kind of address, or the reason why it is not
contacted. It does no I/O; `fetch.py` asks it before every hop and again after the DNS (reports B184, B185).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

Reach = Literal["loopback", "private", "link-local", "public", "unusable"]

# IPv6 addresses whose last four bytes are an IPv4 address: NAT64 (RFC 6052), the old "compatible" form (RFC 4291
# §2.5.5.1), and that of RFC 2765.
_HOLD_IPV4 = tuple(ipaddress.ip_network(one) for one in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96"))
# Not of the public net, although some versions of Python call them global: NAT64 of one's own (RFC 8215), site-local
# addresses, and what IETF protocols use (Oracle's cloud has its metadata there).
_NOT_PUBLIC = tuple(ipaddress.ip_network(one) for one in ("64:ff9b:1::/48", "fec0::/10", "192.0.0.0/24"))
# Where clouds keep the credentials of their machines, outside the link-local range.
_CLOUD = {ipaddress.ip_address(one) for one in ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")}
_LOCAL_NAMES = ("localhost",)

# Which addresses a server of a kind may lead to. A link-local address is where clouds keep their credentials, so
# only a server that is itself there may name one.
_MAY_REACH: dict[Reach, frozenset[Reach]] = {
    "loopback": frozenset({"loopback", "private", "public"}),
    "private": frozenset({"private", "public"}),
    "link-local": frozenset({"link-local", "private", "public"}),
    "public": frozenset({"public"}),
    "unusable": frozenset({"public"}),
}


def reach_of(address: str) -> Reach:
    """The kind of an IP address in text form; an address inside another (mapped, NAT64, 6to4) counts as itself."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if inner is None and int(ip) > 1 and any(ip in one for one in _HOLD_IPV4):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is None and ip.teredo is not None:
            inner = ip.teredo[1]
        if inner is not None:
            return reach_of(str(inner))
    if ip.is_loopback:
        return "loopback"
    if ip.is_link_local:
        return "link-local"
    if ip.is_unspecified or ip.is_multicast or ip in _CLOUD:
        return "unusable"
    # `is_global` is False for the shared space of carriers and for documentation addresses, too.
    return "public" if ip.is_global and not any(ip in one for one in _NOT_PUBLIC) else "private"


def literal(host: str) -> str | None:
    """The IP address that a URL's host spells out, without brackets; None for a name."""
    try:
        return str(ipaddress.ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        return None


def loopback_host(host: str) -> bool:
    """Whether a URL's host is this machine, told without the DNS."""
    address = literal(host)
    if address is not None:
        return reach_of(address) == "loopback"
    name = host.lower().rstrip(".")
    return name in _LOCAL_NAMES or name.endswith(".localhost")


def widest(addresses: Iterable[str]) -> Reach:
    """The kind of a configured server by all addresses of its name: local only where each of them is."""
    kinds = {reach_of(address) for address in addresses}
    if len(kinds) == 1:
        return kinds.pop()
    return "private" if kinds and "public" not in kinds else "public"


def url_problem(url: str) -> str | None:
    """Why a URL is not used for a login, by its text alone, as a clause; None where it may be.

    https, or http on this machine; no user information and no fragment.
    """
    # An address is shown, opened and sent: no control byte, no character that is invisible or turns text around, and
    # no half of a surrogate pair. Letters of other scripts may stand in it.
    if " " in url or not url.isprintable():
        return "is no usable address"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "is no usable address"
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https") or not host:
        return "is no https address"
    if "@" in parts.netloc:
        return "holds a user name"
    if scheme == "http" and not loopback_host(host):
        return "is not https"
    return None


def reach_problem(server: Reach, addresses: Iterable[str]) -> str | None:
    """Why a server of this kind may not lead to these addresses, as a clause; None where it may."""
    for address in addresses:
        kind = reach_of(address)
        if kind not in _MAY_REACH[server]:
            article = "an" if kind == "unusable" else "a"
            of = "a server elsewhere" if server in ("public", "unusable") else f"a server on a {server} address"
            return f"is {article} {kind} address, which {of} may not lead to"
    return None


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port, with the scheme's own port where none is given. Raises ValueError."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


def shown_url(url: str) -> str:
    """A URL for a message: origin and path alone, cleaned and cut."""
    from pi_mcp.text import clean_line, redact

    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "an address"
    return redact(clean_line(f"{parts.scheme}://{netloc}{parts.path}", 160))
