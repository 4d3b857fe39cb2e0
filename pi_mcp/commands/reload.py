"""`/mcp reload`: read the configuration again; unchanged servers stay connected.

Comes in: nothing. Goes out: which servers came, went and changed. A file that cannot be parsed changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    del words
    before = conversation.plugin.configuration.servers
    diagnostics = await conversation.plugin.reload()
    after = conversation.plugin.configuration.servers
    count = "1 server" if len(after) == 1 else f"{len(after)} servers"
    lines = [f"Reloaded: {count}{', nothing changed' if before == after else ''}."]
    lines.extend(f"+ {name}" for name in sorted(after.keys() - before.keys()))
    lines.extend(f"- {name}" for name in sorted(before.keys() - after.keys()))
    lines.extend(f"~ {name}" for name in sorted(before.keys() & after.keys()) if before[name] != after[name])
    lines.extend(dict.fromkeys(diagnostic.line() for diagnostic in diagnostics))
    return CommandAnswer("\n".join(lines))


COMMAND = Command("reload", "reload", "Read the configuration files again; unchanged servers stay connected", run)
