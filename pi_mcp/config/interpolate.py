"""`${VAR}` and its relatives in the text of a configuration: what is replaced by what.

Comes in: a text as written and an environment. Goes out: the text with values in place of variables, and the
names that were used; or an error that names a variable. Pure functions; nothing that a value says is read
again, and no command is run.

    ${VAR}  ${env:VAR}         the value; a variable that is not set is an error, an empty one is empty
    ${VAR:-default}            the value, or where it is unset or empty the default, itself interpolated
    $${                        a literal ${
    in `headers` and `env` also:
    $VAR                       the value; the longest name counts
    $$   $!                    a literal $ and a literal !
    $ before anything else     stays
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_NESTING = 20
"""Defaults within defaults."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPEN = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(\}|:-)")


class InterpolationError(ValueError):
    """The text cannot be expanded. `variable` is the name that is not set, None where the text is malformed."""

    def __init__(self, reason: str, variable: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        """A clause without the text itself: "variable `TOKEN` is not set"."""
        self.variable = variable


@dataclass(frozen=True, slots=True)
class Expanded:
    """An expanded text (its repr is empty, since it may hold secrets) and the variables whose values are in it."""

    text: str
    used: frozenset[str]

    def __repr__(self) -> str:
        return f"Expanded(used={sorted(self.used)})"


def expand(text: str, environ: Mapping[str, str], *, dollar: bool = False) -> Expanded:
    """Replace the variables of a text. `dollar` is the longer grammar of `headers` and `env`.

    Raises InterpolationError for a variable that is not set, and for a `${` that is no reference.
    """
    used: set[str] = set()
    return Expanded(_expand(text, environ, dollar, used, 0), frozenset(used))


def literal(text: str, *, dollar: bool = False) -> str:
    """The way to write a text so that `expand` (and, in `headers` and `env`, the `!` rule) gives it back."""
    if not dollar:
        return text.replace("${", "$${")
    text = text.replace("$", "$$")
    return f"${text}" if text.startswith("!") else text


def has_variables(text: str, *, dollar: bool = False) -> bool:
    """Whether interpolation would look at a variable, or change the text at all."""
    if "${" in text:
        return True
    return dollar and re.search(r"\$[A-Za-z_$!]", text) is not None


def _expand(text: str, environ: Mapping[str, str], dollar: bool, used: set[str], depth: int) -> str:
    out: list[str] = []
    at = 0
    while True:
        sign = text.find("$", at)
        if sign < 0:
            out.append(text[at:])
            return "".join(out)
        out.append(text[at:sign])
        if text.startswith("$${", sign):
            out.append("${")
            at = sign + 3
        elif text.startswith("${", sign):
            value, at = _reference(text, sign, environ, dollar, used, depth)
            out.append(value)
        elif dollar and text[sign + 1 : sign + 2] in ("$", "!"):
            out.append(text[sign + 1])
            at = sign + 2
        elif dollar and (name := _NAME.match(text, sign + 1)):
            out.append(_value(name.group(), environ, used))
            at = name.end()
        else:
            out.append("$")
            at = sign + 1


def _reference(
    text: str, start: int, environ: Mapping[str, str], dollar: bool, used: set[str], depth: int
) -> tuple[str, int]:
    """The value of the `${…}` at `start`, and the offset behind its closing brace."""
    opened = _OPEN.match(text, start + 2)
    if opened is None:
        raise InterpolationError(
            "a `${` is not followed by NAME}, NAME:-default} or env:NAME}"
            if "}" in text[start:]
            else "a `${` is never closed"
        )
    name = opened.group(1)
    if opened.group(2) == "}":
        return _value(name, environ, used), opened.end()
    end = _closing(text, opened.end())
    value = environ.get(name)
    if value:
        used.add(name)
        return value, end + 1
    if depth >= MAX_NESTING:
        raise InterpolationError(f"defaults are nested more than {MAX_NESTING} deep")
    return _expand(text[opened.end() : end], environ, dollar, used, depth + 1), end + 1


def _closing(text: str, start: int) -> int:
    """The offset of the brace that closes a default; braces within it come in pairs."""
    open_braces = 1
    for brace in re.compile(r"[{}]").finditer(text, start):
        open_braces += 1 if brace.group() == "{" else -1
        if open_braces == 0:
            return brace.start()
    raise InterpolationError("a `${` is never closed")


def _value(name: str, environ: Mapping[str, str], used: set[str]) -> str:
    value = environ.get(name)
    if value is None:
        raise InterpolationError(f"variable `{name}` is not set", name)
    used.add(name)
    return value
