"""How often something may happen, for each of many who do it.

Comes in: who. Goes out: how long they are to wait. It remembers a bounded number of them, and forgets those who have
been quiet longest.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

_REMEMBERED = 10_000


def counted_as(host: str | None) -> str:
    """Whose events are counted together, by the address that they came from: that, or the network of an IPv6 one."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return "?"
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class Throttle:
    """At most `most` events within `seconds`, for each name alone."""

    def __init__(self, most: int, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._seen: OrderedDict[str, list[float]] = OrderedDict()

    def wait(self, name: str) -> float:
        """Seconds until the next event of this name may happen; 0 where it may now."""
        now = self._clock()
        recent = [at for at in self._seen.get(name, ()) if now - at < self._seconds]
        return 0.0 if len(recent) < self._most else max(self._seconds - (now - recent[0]), 0.001)

    def count(self, name: str) -> None:
        """One more event of this name has happened."""
        now = self._clock()
        recent = [at for at in self._seen.pop(name, ()) if now - at < self._seconds]
        self._seen[name] = [*recent[-self._most + 1 :], now] if self._most > 1 else [now]
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
