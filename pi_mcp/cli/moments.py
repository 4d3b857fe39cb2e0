"""Times as people write and read them: `30d`, `2026-12-01`, `2026-12-01T08:00:00Z`.

Comes in: text of an option, or seconds since 1970. Goes out: the other of the two. Pure but for the clock it is given.
"""

from __future__ import annotations

import datetime
import re

from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

_SPAN = re.compile(r"(\d{1,6})\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def seconds(text: str, option: str) -> float:
    """A span such as `90s`, `15m`, `12h`, `30d`, `2w`. Raises PiMcpError `usage`."""
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise _unreadable(text, option, "Write a span such as 15m, 12h or 30d.")
    return float(match[1]) * _SECONDS[match[2]]


def ahead(text: str, option: str, now: float) -> float:
    """A moment to come: a span from now on, or a date. Raises PiMcpError `usage`, for one that has passed, too."""
    moment = now + seconds(text, option) if _SPAN.fullmatch(text.strip().lower()) else _date(text, option)
    if moment <= now:
        raise failure("usage", "command", None, f"{option} {clean_line(text, 40)} is not in the future.")
    return moment


def back(text: str, option: str, now: float) -> float:
    """A moment of the past: a span before now, or a date. Raises PiMcpError `usage`."""
    return now - seconds(text, option) if _SPAN.fullmatch(text.strip().lower()) else _date(text, option)


def written(moment: float | None) -> str | None:
    """RFC 3339 in UTC, with milliseconds; None for None."""
    if moment is None:
        return None
    stamp = datetime.datetime.fromtimestamp(moment, datetime.UTC)
    return stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(moment: float | None) -> str:
    """To the minute, in UTC, for a table."""
    if moment is None:
        return ""
    return f"{datetime.datetime.fromtimestamp(moment, datetime.UTC):%Y-%m-%d %H:%M}Z"


def _date(text: str, option: str) -> float:
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
        # A date without a zone is meant in UTC, as everything is printed.
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError):
        raise _unreadable(text, option, "Write a span such as 30d, or a date such as 2026-12-31T08:00:00Z.") from None


def _unreadable(text: str, option: str, hint: str) -> PiMcpError:
    return failure("usage", "command", None, f"{option} {clean_line(text, 40)!r} is no time.", hint)
