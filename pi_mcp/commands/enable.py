"""`/mcp enable SERVER` and `/mcp disable SERVER`, kept for the next start.

Comes in: a server's name. Goes out: the new state. A user's file is edited in place; a project's file never is:
its switch is kept with the trust record (DESIGN §9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.config import TrustStore, edit
from pi_mcp.errors import failure


async def enable(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    return await _switch(conversation, words, disabled=False)


async def disable(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    return await _switch(conversation, words, disabled=True)


async def _switch(conversation: Conversation, words: Sequence[str], *, disabled: bool) -> CommandAnswer:
    verb = "disable" if disabled else "enable"
    if len(words) != 1:
        raise failure("usage", "command", None, "Name one server.", f"Usage: /mcp {verb} SERVER.")
    entry = conversation.plugin.entry(words[0])
    if entry.state == "invalid" and entry.diagnostic is not None:
        raise failure("configuration_invalid", "configure", entry.name, entry.diagnostic.message, entry.diagnostic.hint)
    if (entry.state == "disabled") == disabled:
        return CommandAnswer(f"{entry.name} is {verb}d already.")
    path = entry.source.path
    if path is None:
        raise failure("refused", "configure", entry.name, "This server was given by the program.", "Change it there.")
    if entry.source.scope == "project":
        store = TrustStore(conversation.plugin.state_dir)
        await asyncio.to_thread(store.switch, path, entry.name, disabled)
    else:
        await asyncio.to_thread(edit.set_disabled, path, entry.name, disabled)
    await conversation.plugin.reload()
    return CommandAnswer(f"{entry.name} is {verb}d.")


ENABLE = Command("enable", "enable SERVER", "Let a disabled server be used again", enable, server_names)
DISABLE = Command("disable", "disable SERVER", "Disconnect a server and keep it off", disable, server_names)
