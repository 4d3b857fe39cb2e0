"""What the terminal shows: lines, lists, tables, running text and a spinner, in the width that there is.

Comes in: cleaned text and values of pi-mcp. Goes out: characters on one stream; plain ones where that is no
terminal. It sets no background, no grey and no fixed foreground but the terminal's own palette; NO_COLOR is kept.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from pi_mcp.errors import Diagnostic
from pi_mcp.text import clean, clean_line, fitted, redact, width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from pi_mcp.plugin import CommandAnswer, Table

STYLES = {"ok": "green", "warning": "magenta", "error": "red", "dim": "", "strong": "bold", "name": "bold"}
"""Level → style. The palette's yellow, cyan and grey are unreadable on many light terminals, blue on dark ones."""
LEAST_LAST_COLUMN = 30
"""Columns that a table's last column needs; with less room its text form is shown."""


LONGEST_ESCAPE = 64
"""Characters of an escape sequence that is waited for."""
_BEGUN_ESCAPE = re.compile(r"\x1b(\[[0-?]*[ -/]*|\][^\x07]*)?")


class Screen:
    """One output stream. `interactive` says that a person sits at both ends, so a spinner makes sense."""

    def __init__(self, out: TextIO | None = None, *, interactive: bool = False) -> None:
        self.out = sys.stdout if out is None else out
        self.terminal = self.out.isatty()
        self.interactive = interactive and self.terminal
        self._console: Console | None = None
        self._status: Status | None = None
        self._lock = threading.Lock()

    @property
    def console(self) -> Console:
        if self._console is None:
            from rich.console import Console

            class Plain(Console):
                def on_broken_pipe(self) -> None:
                    raise  # noqa: PLE0704 -- called while it is handled: the command knows what its exit code is

            self._console = Plain(file=self.out, highlight=False, markup=False, emoji=False)
        return self._console

    @property
    def columns(self) -> int:
        return self.console.width if self.terminal else 80

    def line(self, text: str = "", level: str = "", *, indent: int = 0, whole: bool = False) -> None:
        """Some lines of cleaned text, wrapped between words; continuation lines keep the indentation.

        `whole` is for an address that has to work: the terminal wraps it, which puts no line break into what is
        copied, and what a variable gave for it (a host, a client's id) stays readable.
        """
        text = text if whole else redact(text)
        if not self.terminal:
            self.out.write("\n".join(" " * indent + part for part in text.split("\n")) + "\n")
            self.out.flush()
            return
        from rich.padding import Padding
        from rich.text import Text

        shown: Any = Text(text, style=STYLES.get(level, ""))
        shown = Padding(shown, (0, 0, 0, indent), expand=False) if indent else shown
        self.console.print(shown, soft_wrap=whole)

    def parts(self, *parts: tuple[str, str]) -> None:
        """One line of pieces, each with its level."""
        if not self.terminal:
            self.line("".join(text for text, _ in parts))
            return
        from rich.text import Text

        self.console.print(Text.assemble(*((redact(text), STYLES.get(level, "")) for text, level in parts)))

    def diagnostic(self, diagnostic: Diagnostic) -> None:
        self.line(diagnostic.line(), "error")

    def warning(self, text: str) -> None:
        self.line(text, "warning")

    def answer(self, answer: CommandAnswer) -> None:
        """A table where it fits, otherwise the same as text."""
        text = fitted(answer.text, self.columns) if self.terminal else answer.text
        if answer.diagnostic is not None:
            self.line(text, "error" if answer.text == answer.diagnostic.line() else "")
        elif answer.table is not None and self.terminal and self._fits(answer.table):
            self._table(answer.table)
            if answer.note:
                self.line(fitted(answer.note, self.columns))
        else:
            self.line(text)

    def _fits(self, table: Table) -> bool:
        filled = _filled(table)
        if not table.rows or not filled:
            return False
        used = sum(_natural(table, column) + 2 for column in filled[:-1])
        return used + min(_natural(table, filled[-1]), LEAST_LAST_COLUMN) <= self.columns

    def _table(self, table: Table) -> None:
        from rich.table import Table as RichTable
        from rich.text import Text

        filled = _filled(table)
        shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
        for column in filled:
            last = column == filled[-1]
            shown.add_column(
                Text(table.columns[column], style="bold"), no_wrap=not last, overflow="fold" if last else "ellipsis"
            )
        for number, row in enumerate(table.rows):
            level = table.styles[number] if number < len(table.styles) else ""
            cells = [Text(redact(row[column])) for column in filled]
            # The state is what the colour is about; a whole red row would be hard to read.
            cells[min(1, len(cells) - 1)].stylize(STYLES.get(level, ""))
            shown.add_row(*cells)
        self.console.print(shown)

    # Work that goes on

    def working(self, text: str) -> None:
        """Show or change the spinner; nothing where nobody watches."""
        if not self.interactive or self.console.is_dumb_terminal:
            return
        line = clean_line(redact(text), max(self.columns - 4, 10))
        with self._lock:
            if self._status is None:
                self._status = self.console.status(line, spinner="dots")
                self._status.start()
            else:
                self._status.update(line)

    def idle(self) -> None:
        """Take the spinner away."""
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def stream(self) -> Stream:
        return Stream(self)


class Stream:
    """Text that comes in pieces, wrapped between words on a terminal and unchanged elsewhere."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._limit = screen.columns if screen.terminal else 0
        self._column = 0
        self._word = ""
        self._gap = ""
        self._held = ""
        self.written = False

    def write(self, piece: str) -> None:
        self._screen.idle()
        piece, self._held = _whole(self._held + piece)
        text = clean(piece)
        if not self._limit:
            self._put(text)
            return
        for char in text:
            if char == "\n":
                self._flush()
                self._put("\n")
                self._column, self._gap = 0, ""
            elif char in " \t":
                self._flush()
                self._gap += " " if char == " " else "    "
            else:
                self._word += char
                if width(self._word) >= self._limit:
                    self._flush()
        self._screen.out.flush()

    def _flush(self) -> None:
        if not self._word:
            return
        size = width(self._word)
        if self._column and self._column + len(self._gap) + size > self._limit - 1:
            self._put("\n" + self._word)
            self._column = size
        else:
            self._put(self._gap + self._word)
            self._column += len(self._gap) + size
        self._word = self._gap = ""

    def _put(self, text: str) -> None:
        if text:
            self.written = True
            self._screen.out.write(text)

    def end(self) -> None:
        """Finish the line."""
        self._held = ""
        self._flush()
        if self.written:
            self._screen.out.write("\n")
        self._screen.out.flush()
        self.__init__(self._screen)  # type: ignore[misc]


def _whole(text: str) -> tuple[str, str]:
    """The text, and the escape sequence at its end that goes on in the next piece."""
    start = text.rfind("\x1b")
    if start < 0 or len(text) - start > LONGEST_ESCAPE or not _BEGUN_ESCAPE.fullmatch(text, start):
        return text, ""
    return text[:start], text[start:]


def print_answer(answer: CommandAnswer, out: TextIO | None = None) -> None:
    """A `/mcp` answer on standard output, for the command line."""
    Screen(out).answer(answer)


def listed(names: Iterable[str], limit: int = 8) -> str:
    """`a, b, c and 4 more`."""
    every = list(names)
    shown = ", ".join(clean_line(name, 64) for name in every[:limit])
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"


def _filled(table: Table) -> Sequence[int]:
    """The columns that any row has something in."""
    return [number for number in range(len(table.columns)) if any(row[number] for row in table.rows)]


def _natural(table: Table, column: int) -> int:
    return max(width(table.columns[column]), *(width(row[column]) for row in table.rows))
