"""What one credential may use: requests a minute, calls at a time, bytes of results a minute.

Comes in: a grant, and what it is about to do. Goes out: 0, or the seconds to wait. A minute begins with its first
request. Each gateway process counts for itself, and remembers a bounded number of credentials.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pi_mcp.server.gate import Denial

if TYPE_CHECKING:
    from pi_mcp.access import Grant

MINUTE = 60.0
CONCURRENT_WAIT = 1.0
"""Seconds to wait that are named where a call has to end first: nobody knows when it will."""
TOO_MANY = -32029
"""The JSON-RPC code beside HTTP 429; `data` has `limit` and `retryAfter` in seconds."""
Limit = Literal["requestsPerMinute", "concurrent", "resultBytes", "failures"]
"""The first three as `keys list --json` calls them; `failures` is of an address, and no key's."""
_SAID: Mapping[Limit, str] = {
    "requestsPerMinute": "Too many requests within a minute",
    "concurrent": "Too many calls at a time",
    "resultBytes": "Too many bytes of results within a minute",
    "failures": "Too many bad credentials from this address",
}
_REMEMBERED = 10_000


@dataclass(slots=True)
class _Usage:
    began: float
    requests: int = 0
    bytes: int = 0
    running: int = 0
    told: bool = False
    """Somebody asked `newly_passed` within this minute."""


class KeyLimits:
    """The usage of every credential that has limits. For one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._usage: OrderedDict[str, _Usage] = OrderedDict()

    def request(self, grant: Grant) -> float:
        """Count a request; or the seconds until there may be one."""
        limits = grant.limits
        if limits.requests_per_minute is None and limits.result_bytes is None:
            return 0.0
        usage = self._of(grant)
        if self.passed(grant) is not None:
            return max(usage.began + MINUTE - self._clock(), 0.001)
        usage.requests += 1
        return 0.0

    def passed(self, grant: Grant) -> Limit | None:
        """Which limit within a minute is used up; None where none is."""
        limits, usage = grant.limits, self._of(grant)
        if limits.requests_per_minute is not None and usage.requests >= limits.requests_per_minute:
            return "requestsPerMinute"
        if limits.result_bytes is not None and usage.bytes >= limits.result_bytes:
            return "resultBytes"
        return None

    def newly_passed(self, grant: Grant) -> bool:
        """True once within each minute, for what is to be said of a limit and not of every request over it."""
        usage = self._of(grant)
        told, usage.told = usage.told, True
        return not told

    def enter(self, grant: Grant) -> float:
        """Begin a call, to be ended by `leave`; or the seconds after which to try again."""
        if grant.limits.concurrent is None:
            return 0.0
        usage = self._of(grant)
        if usage.running >= grant.limits.concurrent:
            return CONCURRENT_WAIT
        usage.running += 1
        return 0.0

    def leave(self, grant: Grant) -> None:
        if grant.limits.concurrent is not None:
            usage = self._of(grant)
            usage.running = max(usage.running - 1, 0)

    def result(self, grant: Grant, size: int) -> None:
        """Count the bytes of a result. The one that passes the limit still goes out."""
        if grant.limits.result_bytes is not None:
            self._of(grant).bytes += size

    def _of(self, grant: Grant) -> _Usage:
        now = self._clock()
        owner = grant.owner if grant.key is None else f"key:{grant.key}"
        usage = self._usage.get(owner)
        if usage is None:
            usage = self._usage[owner] = _Usage(now)
            while len(self._usage) > _REMEMBERED:
                idle = next((name for name, one in self._usage.items() if not one.running), None)
                if idle is None:
                    break
                del self._usage[idle]
        elif now >= usage.began + MINUTE:
            usage.began, usage.requests, usage.bytes, usage.told = now, 0, 0, False
        self._usage.move_to_end(owner)
        return usage


def retry_after(seconds: float) -> int:
    """The value of a Retry-After header: whole seconds, at least 1."""
    return max(math.ceil(seconds), 1)


def too_many(limit: Limit, wait: float) -> Denial:
    """The error of a limit that is used up; over HTTP it is 429 with Retry-After."""
    seconds = retry_after(wait)
    return Denial(TOO_MANY, f"{_SAID[limit]}; try again in {seconds} s", {"limit": limit, "retryAfter": seconds})
