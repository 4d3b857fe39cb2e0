"""What an audit row says of a call: a bounded summary of its arguments, and the ids that it names.

Comes in: a call's arguments and result, any JSON of any size. Goes out: short text. What looks like a secret is `***`,
by the name of its member or by its form; it rather hides too much. Pure, and bounded in time by what it keeps.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pi_mcp.config import masking
from pi_mcp.config.resolve import looks_secret
from pi_mcp.text import clean_line, redact

SUMMARY_LIMIT = 2048
"""Characters of a summary."""
TEXT_LIMIT = 160
"""Characters of one string in it."""
ITEMS = 20
"""Members of one object or list."""
DEPTH = 5
IDS = 20
ID_LIMIT = 128

_LOOKAHEAD = 512
"""Characters beyond the kept ones that are looked at: a secret must not show because its end was cut off."""
_ID = re.compile(r"(?:.*[a-z0-9])?(?:Id|Ids|ID|IDs)|(?:.*[_-])?(?:id|ids|uuid|uri|key|slug|number)", re.DOTALL)
_NAMED = re.compile(
    # Possessive and without what may stand before the word: texts are of everybody, and each call waits for this.
    r"((?:passw|passphrase|secret|token|api[_-]?key|private[_-]?key|authorization|cookie|credential)[\w-]*+"
    r"[\\\"'\]]*+\s*+(?:=>|[:=>]|\bis\b)\s*+)(?:(?:bearer|basic|token)\s+)?"
    r"(?:\\*\"[^\"]*\"?|\\*'[^']*'?|[^\s,;&<]+)",
    re.IGNORECASE,
)
"""`password: …` and the like in the middle of a text, be it JSON within JSON, XML, or a program's."""
_SQL = re.compile(r"((?:identified\s+by|password)\s+)(?:'[^']*'?|\"[^\"]*\"?)", re.IGNORECASE)
_USER = re.compile(r"((?:^|[\s\"'])(?:-u|-U|--user|--proxy-user)[ =]?[\"']?[^\s:\"']+:)[^\s\"']+")
"""`-u name:password` of a command line."""
_SEPARATORS = re.compile(r"[^A-Za-z0-9]+")
_CASES = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHORT = frozenset(
    {"pass", "passphrase", "passcode", "pin", "otp", "totp", "mfa", "cvv", "cvc", "ssn", "cred", "creds", "bearer"}
)
"""Words of a member's name that are secrets in a call, although they are none in a configuration."""
_NAMES = frozenset({"name", "key", "field", "header", "option", "parameter", "param", "variable", "var"})
_VALUES = frozenset({"value", "val", "default"})
"""`{"name": "API_KEY", "value": …}`: members whose value is the name of another one's."""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY.*")
_NO_ID = frozenset({"session_id", "sessionId", "request_id", "requestId", "trace_id", "traceId"})


def summary(arguments: Mapping[str, Any]) -> str:
    """The arguments as JSON of at most `SUMMARY_LIMIT` characters; `…` and a count stand for what was left out."""
    text = json.dumps(_Summary().shown(arguments, DEPTH), ensure_ascii=False, separators=(",", ":"))
    return text if len(text) <= SUMMARY_LIMIT else f"{text[: SUMMARY_LIMIT - 1]}…"


def affected(arguments: Mapping[str, Any], result: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Ids that the arguments and the structured result name, at their top and one level below, in order."""
    found: dict[str, None] = {}
    structured = (result or {}).get("structuredContent")
    for source in (arguments, structured):
        for name, value in _members(source, 2):
            if len(found) >= IDS:
                return tuple(found)
            if _ID.fullmatch(name[:200]) and name not in _NO_ID and not _secret(name):
                for one in value[:IDS] if isinstance(value, list) else [value]:
                    if isinstance(one, str | int) and not isinstance(one, bool) and len(found) < IDS and one != "":
                        found[_text(str(one)[: ID_LIMIT + _LOOKAHEAD], ID_LIMIT)] = None
    return tuple(found)


def _members(value: object, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in itertools.islice(value.items(), 2 * ITEMS):
            if isinstance(name, str):
                yield name, item
            if depth > 1:
                yield from _members(item, depth - 1)
    elif isinstance(value, list):
        for item in value[:ITEMS]:
            yield from _members(item, depth)


class _Summary:
    """One summary in the making. `room`: characters that are left; without any nothing more is looked at."""

    def __init__(self) -> None:
        self.room = SUMMARY_LIMIT

    def shown(self, value: object, depth: int) -> Any:
        self.room -= 2
        if isinstance(value, str):
            return self._said(value, TEXT_LIMIT)
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, int):
            return value if abs(value) < 10**18 else "…"
        if isinstance(value, Mapping):
            return f"… {len(value)} members" if depth == 0 else self._members(value, depth)
        if isinstance(value, list | tuple):
            return f"… {len(value)} items" if depth == 0 else self._items(value, depth)
        return "…"

    def _members(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        members = [(str(name), item) for name, item in itertools.islice(value.items(), ITEMS)]
        told = any(name.lower() in _NAMES and _names_secret(item) for name, item in members)
        shown: dict[str, Any] = {}
        for count, (name, item) in enumerate(members):
            if self.room <= 0:
                return {**shown, "…": len(value) - count}
            hides = _secret(name) or (told and name.lower() in _VALUES)
            shown[self._said(name, 64)] = _hidden(item) if hides else self.shown(item, depth - 1)
        return {**shown, "…": len(value) - ITEMS} if len(value) > ITEMS else shown

    def _items(self, value: Sequence[Any], depth: int) -> list[Any]:
        shown: list[Any] = []
        before: object = None
        for item in value[:ITEMS]:
            if self.room <= 0:
                break
            # What follows `--password`, or `Authorization` in a pair, is one.
            hides = (len(value) == 2 or str(before).startswith("-")) and _names_secret(before)
            shown.append(_hidden(item) if hides else self.shown(item, depth - 1))
            before = item if isinstance(item, str) else None
        return shown if len(shown) == len(value) else [*shown, f"… {len(value) - len(shown)} more"]

    def _said(self, text: str, limit: int) -> str:
        shown = _text(text, limit)
        self.room -= len(shown)
        return shown


def _hidden(item: object) -> str | None:
    return None if item is None else masking.MASK


def _names_secret(value: object) -> bool:
    """Whether a value is the name of a secret: one word, such as a header's or a variable's."""
    return isinstance(value, str) and len(value) <= 64 and not any(map(str.isspace, value)) and _secret(value)


def _secret(name: str) -> bool:
    """Whether a member's name says that its value is a secret, however its words are set apart."""
    name = unicodedata.normalize("NFKC", name[:200])
    words = _SEPARATORS.sub("_", _CASES.sub("_", name)).lower().strip("_").split("_")
    spelled = (name, "_".join(words), "".join(words))
    return any(looks_secret(one) for one in spelled) or not _SHORT.isdisjoint(words)


def _text(text: str, limit: int) -> str:
    """Cleaned and masked first, cut afterwards."""
    window = text[: limit + _LOOKAHEAD]
    shown = redact(clean_line(window, len(window) + 1))
    for secret in (_NAMED, _SQL):
        shown = secret.sub(lambda found: found[1] + masking.MASK, shown)
    shown = _PRIVATE_KEY.sub(masking.MASK, shown)
    shown = masking.shown_text(_USER.sub(lambda found: found[1] + masking.MASK, shown))
    if len(shown) > limit:
        shown = shown[:limit]
    elif len(window) == len(text):
        return shown
    return f"{shown}… {len(text)} characters"
