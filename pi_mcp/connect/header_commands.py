"""Headers that come from commands, run again when the server refuses what they gave.

Comes in: a resolved server with its `!command` headers still open. Goes out: new header values after a 401. It runs
nothing before the first refusal, and keeps no value longer than the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pi_mcp.errors import PiMcpError

if TYPE_CHECKING:
    from pi_mcp.config.resolve import ResolvedServer


class HeaderCommands:
    """Credentials of an HTTP server (see `sender.Credentials`) whose headers are commands."""

    def __init__(self, unresolved: ResolvedServer, resolved: ResolvedServer) -> None:
        commands = tuple(command for command in unresolved.commands if command.table == "headers")
        self._unresolved = replace(unresolved, commands=commands)
        self._names = {command.key for command in commands}
        self._current = {name: value for name, value in resolved.headers.items() if name in self._names}
        self._lock = asyncio.Lock()

    async def headers(self) -> Mapping[str, str]:
        return {name: value.reveal() for name, value in self._current.items()}

    async def refused(self, status: int, challenges: tuple[str, ...]) -> bool:
        """Run the commands again; True when they gave something else, so that the request is sent once more.

        Requests refused at the same time share one run.
        """
        from pi_mcp.config import resolve_secrets

        del status, challenges
        before = self._current
        async with self._lock:
            if self._current is not before:
                return True
            try:
                resolved = await resolve_secrets(self._unresolved)
            except PiMcpError:
                return False
            renewed = {name: resolved.headers[name] for name in self._names}
            if renewed == before:
                return False
            self._current = renewed
            return True

    def still_refused(self, headers: Mapping[str, str]) -> None:
        """Nothing to be learned: another command's output may be accepted, so the next refusal runs it again."""
        del headers

    def denied(self, challenges: tuple[str, ...]) -> None:
        """The command's own account lacks a right; running it again would change nothing."""
        del challenges

    def proof(self, method: str, url: str, headers: Mapping[str, str]) -> Mapping[str, str]:
        """A header of a file is not bound to a key."""
        del method, url, headers
        return {}

    def answered(self, url: str, status: int, nonce: str | None, challenges: tuple[str, ...]) -> bool:
        del url, status, nonce, challenges
        return False
