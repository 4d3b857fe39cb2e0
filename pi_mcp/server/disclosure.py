"""What callers from elsewhere hear of a failure: server, code, and a sentence that tells nothing of this machine.

Comes in: a caller, and a diagnostic in the operator's words. Goes out: the diagnostic in the caller's. What the
operator could do about it, with paths, addresses and names of variables, is logged once.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from pi_mcp.errors import Diagnostic, outside_chat
from pi_mcp.plugin import UNKNOWN_OUTCOME

if TYPE_CHECKING:
    from pi_mcp.server.gate import Caller

_LOG = logging.getLogger("pi_mcp.server")

_OWN = frozenset({"not_found", "refused", "cancelled", "tool_changed", "tool_error"})
"""What is about the caller's own request is said as it is."""
_PLACE = re.compile(r"(?:^|[\s(\"'])(?:[/~]|[A-Za-z]:\\)")
"""The beginning of a path."""
_SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "connection_failed": "The server cannot be reached at the moment.",
        "protocol_error": "The server's answer cannot be used: it does not follow the protocol, or is too large.",
        "authentication_required": "The gateway is not signed in to the server.",
        "oauth_failed": "The gateway is not signed in to the server.",
        "permission_denied": "The gateway's account at the server lacks a right.",
        "busy": "The server is busy; try again in a moment.",
        "timeout": "The server did not answer in time.",
        "operation_failed": "The server reported a failure.",
    }
)
_OTHERWISE = "The server cannot be used at the moment; the operator of the gateway has to look after it."
_MOST = 1000
"""Servers whose last failure is remembered."""


def sentence(diagnostic: Diagnostic) -> str:
    """What is wrong with a server, without a word of this machine."""
    return _SENTENCES.get(diagnostic.code, _OTHERWISE)


class Disclosure:
    """What one gateway tells whom. Whoever started it, or is not asked who it is, hears everything."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str | None, str], str] = {}

    def told(self, caller: Caller, diagnostic: Diagnostic) -> Diagnostic:
        """The diagnostic for this caller."""
        if caller.grant.kind in ("local", "dev"):
            return _of_no_chat(diagnostic)
        if diagnostic.code == "usage":
            return diagnostic
        if diagnostic.code in _OWN and not _PLACE.search(diagnostic.message):
            return replace(diagnostic, hint=None)
        self.log(diagnostic)
        message = sentence(diagnostic)
        if UNKNOWN_OUTCOME in diagnostic.message:
            message = f"{message} {UNKNOWN_OUTCOME}"
        return replace(diagnostic, message=message, hint=None)

    def log(self, diagnostic: Diagnostic) -> None:
        """A line for the operator, once as long as it stays the same: a caller may ask again and again."""
        about, line = (diagnostic.server, diagnostic.operation), _of_no_chat(diagnostic).line()
        if self._logged.get(about) == line:
            return
        if len(self._logged) >= _MOST:
            self._logged.clear()
        self._logged[about] = line
        _LOG.warning("%s", line)


def _of_no_chat(diagnostic: Diagnostic) -> Diagnostic:
    """Neither a client of the gateway nor its operator can type `/mcp`; a client's own is another."""
    return diagnostic if diagnostic.hint is None else replace(diagnostic, hint=outside_chat(diagnostic.hint))
