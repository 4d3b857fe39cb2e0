"""What a `/mcp` command gives back: text, perhaps a table, perhaps a diagnostic.

Comes in: nothing. Goes out: frozen values that any host can print. All text in them is cleaned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pi_mcp.errors import Diagnostic


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under column titles; `styles` may name a level per row: ok, warning, error or dim."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    styles: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "rows": [list(row) for row in self.rows]}


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """`text` reads on its own, without the table; `diagnostic` is set when the command failed.

    `note` is what a host that shows the table shows under it: those lines of `text` that the table has no place for.
    """

    text: str
    table: Table | None = None
    diagnostic: Diagnostic | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "table": self.table.to_json() if self.table else None,
            "diagnostic": self.diagnostic.to_json() if self.diagnostic else None,
        }
