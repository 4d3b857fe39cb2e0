"""The host of a single command: nobody is asked; progress goes to standard error, and only to a terminal.

Comes in: a session's news. Goes out: one line that rewrites itself. It never writes to standard output.
"""

from __future__ import annotations

import os
import sys

from pi_mcp.host import HeadlessHost, Level
from pi_mcp.hosts.browser import open_browser
from pi_mcp.text import clean, clean_line, shortened


class ScriptHost(HeadlessHost):
    """`quiet` drops progress, too."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._shows = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._dirty = False

    async def notify(self, level: Level, text: str) -> None:
        if level in ("warning", "error"):
            self.finish()
            print(text, file=sys.stderr)

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        if not self._shows:
            return
        count = f" {done:g}/{total:g}" if done is not None and total is not None else ""
        columns = max(20, _columns() - 1)
        sys.stderr.write("\r\x1b[K" + shortened(clean_line(text + count, columns), columns))
        sys.stderr.flush()
        self._dirty = True

    def finish(self) -> None:
        """Take the progress line away."""
        if self._dirty:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._dirty = False


class LoginHost(ScriptHost):
    """For a login whose answer goes to standard output as JSON: its person reads standard error, and has a browser."""

    interactive = True

    async def notify(self, level: Level, text: str) -> None:
        del level
        self.finish()
        print(clean(text), file=sys.stderr, flush=True)

    async def open_url(self, url: str) -> bool:
        return await open_browser(url)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 80
