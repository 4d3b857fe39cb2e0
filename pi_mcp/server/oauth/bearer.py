"""What a bearer token is worth: the interface that authentication asks, whoever issued the token.

Comes in: the text of a token. Goes out: a `Grant`, or one of two failures. Neither failure carries any of the token.
"""

from __future__ import annotations

from typing import Protocol

from pi_mcp.access import Grant

LONGEST = 16 * 1024
"""Characters of a token; a longer one is refused unread."""


class BadToken(Exception):
    """The token is worth nothing: 401 with `error="invalid_token"`. `reason` is ours, for the log."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CannotTell(Exception):
    """Whoever could say what the token is worth does not answer: 503, and nobody is let in."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Verifier(Protocol):
    async def verify(self, token: str, *, ask: bool = True) -> Grant:
        """The caller whose token this is. Raises BadToken, CannotTell, or PiMcpError where the store fails.

        `ask` False: a token that somebody else would have to be asked about is a BadToken. `expires` of the grant is
        when to verify the token again.
        """
        ...
