"""Whether a call may go out: asks the person where the trust level wants it, and remembers the yes (DESIGN §9).

Comes in: a definition, a loaded tool, the arguments, and the host. Goes out: nothing, or `refused`. A yes given once
holds for exactly that server definition and that tool definition; it is never kept on disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from pi_mcp.config import ServerDefinition, definition_digest, policy
from pi_mcp.errors import failure
from pi_mcp.host import Host
from pi_mcp.text import clean_line, visible
from pi_mcp.tools.loaded import NativeTool

SHOWN = 4000
"""Characters of the arguments that the question shows; the rest is counted."""


class Consent:
    """The confirmations of one session."""

    def __init__(self) -> None:
        self._given: set[tuple[str, str, str]] = set()
        self._turn = asyncio.Lock()

    async def ask(
        self, host: Host, definition: ServerDefinition, tool: NativeTool, arguments: Mapping[str, Any]
    ) -> None:
        """Return when the call may go out. Raises Refused otherwise; may take as long as the person does."""
        how_often = policy.confirmation(definition)
        hint = tool.annotations.get("readOnlyHint") is True
        if not policy.needs_confirmation(definition, tool.tool, hint, arguments):
            return
        if not host.interactive:
            policy.unattended(definition, tool.tool)
            return
        shown = clean_line(tool.tool)
        key = (definition_digest(definition), tool.tool, tool.hash)
        # One question at a time: two calls of one step must not ask twice, nor over each other.
        async with self._turn:
            if how_often == "once" and key in self._given:
                return
            question = f"Call {shown} of {clean_line(tool.server, 64)} ({definition.trust} server)?"
            if await host.confirm(question, _shown(arguments)) is not True:  # anything else is no yes
                raise failure(
                    "refused", "call", tool.server, f"The call of {shown} was declined; nothing was sent.", None
                )
            if how_often == "once":
                self._given.add(key)


def _shown(arguments: Mapping[str, Any]) -> str:
    # Made visible, not cleaned: what the person agrees to is all that would be sent.
    text = visible(json.dumps(arguments, ensure_ascii=False, indent=2, default=str))
    # What is cut is counted: the end of a long argument must not go unseen.
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}\n… and {len(text) - SHOWN} more characters, not shown"
