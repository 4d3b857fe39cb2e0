"""Rows of a store for a person: a table with a heading, or one field a line where a table is too wide.

Comes in: titles, rows of cleaned text, the columns that there are. Goes out: text. What is empty is `-`, so that each
value stands under its own title.
"""

from __future__ import annotations

from collections.abc import Sequence

from pi_mcp.text import fitted, width

LEAST_LAST_COLUMN = 20
"""Columns that the last column needs; in more it is broken between words, with less there is no table."""
_GAP = 2


def listed(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: int | None) -> str:
    """`columns`: of the terminal; None where nobody says how wide a line may be."""
    filled = [[cell or "-" for cell in row] for row in rows]
    heading = [title.upper() for title in titles]
    widths = [max(map(width, column)) for column in zip(heading, *filled, strict=True)]
    before = sum(widths[:-1]) + _GAP * len(widths[:-1])
    if columns is None or before + min(widths[-1], LEAST_LAST_COLUMN) <= columns:
        return "\n".join(_line(row, widths, before, columns) for row in (heading, *filled))
    label = max(map(width, titles)) + _GAP
    return "\n\n".join(
        "\n".join(
            f"{_padded(title, label)}{_broken(cell, columns - label, label)}"
            for title, cell in zip(titles, row, strict=True)
        )
        for row in filled
    )


def _line(row: Sequence[str], widths: Sequence[int], before: int, columns: int | None) -> str:
    cells = "".join(_padded(cell, size + _GAP) for cell, size in zip(row[:-1], widths, strict=False))
    return cells + (row[-1] if columns is None else _broken(row[-1], columns - before, before))


def _padded(cell: str, size: int) -> str:
    return cell + " " * (size - width(cell))


def _broken(cell: str, columns: int, indent: int) -> str:
    """The cell in lines of so many columns, the further ones under the first."""
    first, *further = fitted(cell, max(columns, 1)).split("\n")
    return "\n".join((first, *(f"{' ' * indent}{line.strip()}" for line in further)))
