"""Values that must not be seen, and the commands that stand for them.

Comes in: plain text. Goes out: wrappers whose repr hides it. It runs nothing; `lookup.py` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from pi_mcp.text import clean_line

TIME_LIMIT = 10.0
"""Seconds that a secret command may take, where the server's `timeoutMs` is not shorter."""

_CONTROLS = re.compile("[\x00-\x1f\x7f]")


class Secret:
    """A value that no repr, log, copy to JSON or pickle shows; `reveal()` is the only way to it."""

    __slots__ = ("__value",)

    def __init__(self, value: str) -> None:
        self.__value = value

    def reveal(self) -> str:
        return self.__value

    def __repr__(self) -> str:
        return "***"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.__value == other.reveal()

    def __hash__(self) -> int:
        return hash((Secret, self.__value))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written anywhere")


class Hidden(Mapping[str, str]):
    """`headers` or `env` as written: a mapping whose repr shows the names alone."""

    __slots__ = ("_table",)

    def __init__(self, table: Mapping[str, str] | None = None) -> None:
        self._table = dict(table or {})

    def __getitem__(self, key: str) -> str:
        return self._table[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{key!r}: ***" for key in self._table) + "}"

    def __hash__(self) -> int:
        return hash(frozenset(self._table.items()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Hidden:
        return Hidden(self._table)


OAUTH_SECRETS = ("clientSecret", "privateKey", "assertion", "idpClientSecret")
"""Keys of an `oauth` object that are secrets; each may be a `!command`, run for a login and a renewal."""


@dataclass(frozen=True, slots=True)
class SecretCommand:
    """A `!command` that has not run yet: what goes to the shell as written, and where its output belongs."""

    table: Literal["headers", "env", "oauth"]
    key: str
    text: str = field(repr=False)
    time_limit: float = TIME_LIMIT
    """Seconds."""

    @property
    def field_name(self) -> str:
        return f"{self.table}.{clean_line(self.key, 80)}"


def header_fault(value: str) -> str | None:
    """Why a text cannot be the value of a header (RFC 9110 §5.5), as a clause; None when it can."""
    if "\r" in value or "\n" in value:
        return "has a line break inside"
    if _CONTROLS.search(value.replace("\t", "")):
        return "has a control character inside"
    return None
