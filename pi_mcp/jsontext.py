"""JSON text of values that came from somebody else.

Comes in: a value that JSON can hold. Goes out: its text. Pure; what the value means is nobody's business here.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")


class _Written(str):
    """A piece of JSON text, among values that are still to be written."""

    __slots__ = ()


def compact_json(value: Any, *, sort_keys: bool = False, ensure_ascii: bool = False) -> str:
    """A value that JSON can hold as its text, without spaces, however deep it is nested.

    `json.dumps` fails at a depth that depends on how deep its caller stands, and what was read of a server here may be
    written there: one that nests its answer just so would fail whatever else is in the same text.
    """
    try:
        return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=ensure_ascii)
    except RecursionError:
        return _deep_json(value, sort_keys=sort_keys, ensure_ascii=ensure_ascii)


def json_line(value: Any) -> bytes:
    """`compact_json` as one line of UTF-8; halves of surrogate pairs, which are no text, become U+FFFD."""
    text = compact_json(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text).encode()


def _deep_json(value: Any, *, sort_keys: bool, ensure_ascii: bool) -> str:
    """The very text that `json.dumps` would give."""
    text: list[str] = []
    left: list[Any] = [value]
    while left:
        part = left.pop()
        if isinstance(part, _Written):
            text.append(part)
        elif isinstance(part, dict):
            pieces: list[Any] = []
            for key in sorted(part) if sort_keys else part:
                named = json.dumps(key, ensure_ascii=ensure_ascii)
                pieces += [_Written(f"{',' if pieces else ''}{named}:"), part[key]]
            left += reversed([_Written("{"), *pieces, _Written("}")])
        elif isinstance(part, list | tuple):
            pieces = []
            for item in part:
                pieces += [_Written("," if pieces else ""), item]
            left += reversed([_Written("["), *pieces, _Written("]")])
        else:
            text.append(json.dumps(part, ensure_ascii=ensure_ascii))
    return "".join(text)
