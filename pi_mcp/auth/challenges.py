"""What `WWW-Authenticate` asks for: all header lines, comma lists, quoted strings (RFC 9110 §11.6.1).

Comes in: header lines of a 401 or 403. Goes out: challenges in their order. Nothing in them is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - a grammar, no secret
_SCHEME = re.compile(rf"({_TOKEN})(?:[ \t]+|$|(?=,))")
_PARAMETER = re.compile(rf'({_TOKEN})[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]*))')
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=[ \t]*(?:,|$))")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")
_LONGEST = 16 * 1024
_MOST_SCOPES = 50


@dataclass(frozen=True, slots=True)
class Challenge:
    """One challenge: scheme and parameter names in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def scopes(self) -> tuple[str, ...] | None:
        """The scopes that it names; None where it names none."""
        value = self.parameters.get("scope")
        return scopes_of(value) or None if value is not None else None

    @property
    def error(self) -> str | None:
        return self.parameters.get("error")

    @property
    def resource_metadata(self) -> str | None:
        return self.parameters.get("resource_metadata") or None


def parse(lines: Iterable[str]) -> list[Challenge]:
    """All challenges of all lines. What cannot be read is skipped."""
    found: list[Challenge] = []
    for line in lines:
        found.extend(_parse_line(line[:_LONGEST]))
    return found


def of_login(lines: Iterable[str]) -> Challenge | None:
    """The challenge that a login answers: Bearer, or DPoP where a server takes only tokens bound to a key."""
    lines = tuple(lines)
    return of_scheme(lines, "bearer") or of_scheme(lines, "dpop")


def of_scheme(lines: Iterable[str], scheme: str) -> Challenge | None:
    """The challenge of this scheme; of several, what the first of them says, completed by the others (B127)."""
    parameters: dict[str, str] = {}
    seen = False
    for challenge in parse(lines):
        if challenge.scheme == scheme:
            seen = True
            parameters = {**challenge.parameters, **parameters}
    return Challenge(scheme, parameters) if seen else None


def is_scope(value: str) -> bool:
    return _SCOPE.fullmatch(value) is not None


def scopes_of(value: str) -> tuple[str, ...]:
    """The scopes of a space-separated list, each once; what is no scope by RFC 6749 §3.3 is left out."""
    scopes = dict.fromkeys(scope for scope in value.split() if _SCOPE.fullmatch(scope))
    return tuple(scopes)[:_MOST_SCOPES]


def _parse_line(line: str) -> list[Challenge]:
    found: list[Challenge] = []
    scheme: str | None = None
    parameters: dict[str, str] = {}
    position = 0

    def end() -> None:
        if scheme is not None:
            found.append(Challenge(scheme, parameters))

    while position < len(line):
        if line[position] in ", \t":
            position += 1
            continue
        parameter = _PARAMETER.match(line, position)
        if parameter is not None and scheme is not None:
            quoted, plain = parameter.group(2), parameter.group(3)
            value = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
            parameters.setdefault(parameter.group(1).lower(), value)
            position = parameter.end()
            continue
        beginning = _SCHEME.match(line, position)
        if beginning is None:
            # Nothing that the grammar knows: go on behind the next comma.
            comma = line.find(",", position)
            if comma < 0:
                break
            position = comma + 1
            continue
        end()
        scheme, parameters = beginning.group(1).lower(), {}
        position = beginning.end()
        token = _TOKEN68.match(line, position)
        if token is not None and _PARAMETER.match(line, position) is None:
            position = token.end()
    end()
    return found
