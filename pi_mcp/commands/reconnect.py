"""`/mcp reconnect [SERVER]`: end the connection, start a new one, list anew.

Comes in: perhaps a server's name; without one, all. Goes out: one line per server; `busy` while it is discovered.
"""

from __future__ import annotations

from collections.abc import Sequence

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.commands.refresh import each


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    return await each(conversation, words, "reconnect", conversation.plugin.catalogs.reconnect)


COMMAND = Command("reconnect", "reconnect [SERVER]", "Replace the connection and list tools anew", run, server_names)
