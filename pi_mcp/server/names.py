"""The names under which the gateway shows its upstreams' tools and prompts.

Comes in: a server's name and an original name, any text. Goes out: a name of at most 48 characters, since clients put
a prefix of their own before it. It never looks at other names: a pair is always called the same.
"""

from __future__ import annotations

import hashlib
import re

LIMIT = 48
SEPARATOR = "__"

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")
_HASH_DIGITS = 8
_CUT = re.compile(r"_[0-9a-f]{8}$")


def exposed_name(server: str, name: str) -> str:
    """`SERVER__NAME` where that is well-formed and can be read back, else a cut form with a hash (DESIGN §7).

    The result matches `[A-Za-z0-9_-]{1,48}`.
    """
    whole = f"{server}{SEPARATOR}{name}"
    if len(whole) <= LIMIT and _reads_back(server, name):
        return whole
    digest = hashlib.sha256(f"{server}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()
    head = _OTHER.sub("_", whole)[: LIMIT - _HASH_DIGITS - 1]
    return f"{head}_{digest[:_HASH_DIGITS]}"


def read_back(exposed: str) -> tuple[str, str] | None:
    """Server and original name of a name that was not cut; None for any other text.

    A name that ends as a cut one does may be either: `looks_cut` says so.
    """
    server, separator, name = exposed.partition(SEPARATOR)
    if separator and len(exposed) <= LIMIT and _reads_back(server, name):
        return server, name
    return None


def looks_cut(exposed: str) -> bool:
    """Whether a name ends as those do that were cut."""
    return _CUT.search(exposed) is not None


def _reads_back(server: str, name: str) -> bool:
    """The first `__` is the separator, so that no two pairs spell one name."""
    return (
        _PLAIN.fullmatch(server) is not None
        and _PLAIN.fullmatch(name) is not None
        and SEPARATOR not in server
        and not server.startswith("_")
        and not server.endswith("_")
        and not name.startswith("_")
    )
