"""What a host agent offers to a session: the `Host` protocol, and the host that has nobody to ask.

Comes in: questions and news from a session. Goes out: the person's answers. It never touches servers or files.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

_log = logging.getLogger("pi_mcp.host")

Level = Literal["debug", "info", "warning", "error"]


@runtime_checkable
class Host(Protocol):
    """One conversation's way to its person and its model. All text it gets is already cleaned.

    A host may be called from the session's event loop only. Dialog methods may take as long as the person
    does; the session bounds them where a limit applies.
    """

    interactive: bool
    """True when a person can answer questions now."""

    max_tools: int | None
    """How many MCP tools may be declared to the model; None means the default of 96."""

    async def notify(self, level: Level, text: str) -> None:
        """Show a line to the person."""

    async def confirm(self, question: str, details: str) -> bool:
        """Yes or no. Dismissed, timed out or headless is False."""

    async def select(self, question: str, choices: Sequence[str]) -> str | None:
        """One of `choices`, or None when dismissed."""

    async def input(self, question: str, *, secret: bool = False) -> str | None:
        """A line of text, or None when dismissed. `secret` hides what is typed."""

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        """Values for a server's form (MCP elicitation: a flat JSON Schema object), or None when declined."""

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show that work goes on; `done` of `total` where the amounts are known."""

    async def open_url(self, url: str) -> bool:
        """Open a browser; False when that did not work. The URL is shown to the person in any case."""

    def tools_changed(self) -> None:
        """`session.loaded` changed: declare the tools anew with the next model request."""

    def allows(self, native_name: str) -> bool:
        """The host's own allow and deny lists; what it excludes is never loaded."""


class HeadlessHost:
    """Nobody to ask: confirmations are False, forms are declined, news is dropped."""

    interactive = False
    max_tools: int | None = None

    async def notify(self, level: Level, text: str) -> None:
        del level, text

    async def confirm(self, question: str, details: str) -> bool:
        del question, details
        return False

    async def select(self, question: str, choices: Sequence[str]) -> str | None:
        del question, choices
        return None

    async def input(self, question: str, *, secret: bool = False) -> str | None:
        del question, secret
        return None

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        del schema, message
        return None

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        del text, done, total

    async def open_url(self, url: str) -> bool:
        del url
        return False

    def tools_changed(self) -> None:
        return None

    def allows(self, native_name: str) -> bool:
        del native_name
        return True


def show_progress(host: Host, text: str, done: float | None = None, total: float | None = None) -> None:
    """`host.progress`; a display that fails must not lose the work that it displays."""
    try:
        host.progress(text, done, total)
    except Exception as error:
        _log.debug("a progress display failed with %s", type(error).__name__)


def tell_tools_changed(host: Host) -> None:
    """`host.tools_changed`; one host that fails must keep nothing from the others, nor lose what was loaded."""
    try:
        host.tools_changed()
    except Exception as error:
        _log.warning("a host that was told of changed tools failed with %s", type(error).__name__)
