"""`/mcp help`: the subcommands, from their own descriptions.

Comes in: nothing. Goes out: a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.commands.conversation import Command, Conversation


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    del conversation, words
    from pi_mcp.commands import COMMANDS

    rows = tuple((f"/mcp {command.usage}", command.summary) for command in COMMANDS.values())
    # Two lines each: columns would be wider than most windows of the hosts that show the text.
    return CommandAnswer("\n".join(f"{usage}\n  {summary}" for usage, summary in rows), Table(("Command", ""), rows))


COMMAND = Command("help", "help", "This list", run)
