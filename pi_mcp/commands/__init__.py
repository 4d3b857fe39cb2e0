"""`/mcp` and its subcommands: finds the module for a line, runs it, completes it.

Comes in: a line as typed. Goes out: a CommandAnswer. It never raises for what a person typed or a server did.
A new subcommand is one module with a `COMMAND`, and its line in `COMMANDS`.
"""

from __future__ import annotations

import difflib
import logging
import shlex
from collections.abc import Sequence

from pi_mcp.commands import (
    auth,
    enable,
    get,
    load,
    logout,
    reconnect,
    refresh,
    reload,
    search,
    status,
    tools,
    trust,
)
from pi_mcp.commands import (
    help as help_,
)
from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.errors import Diagnostic, PiMcpError
from pi_mcp.text import clean_line

log = logging.getLogger("pi_mcp.commands")

COMMANDS: dict[str, Command] = {
    command.name: command
    for command in (
        status.COMMAND,
        get.COMMAND,
        tools.COMMAND,
        search.COMMAND,
        load.LOAD,
        load.UNLOAD,
        auth.COMMAND,
        logout.COMMAND,
        reconnect.COMMAND,
        refresh.COMMAND,
        enable.ENABLE,
        enable.DISABLE,
        reload.COMMAND,
        trust.COMMAND,
        help_.COMMAND,
    )
}

__all__ = ["COMMANDS", "Command", "CommandAnswer", "Conversation", "Table", "complete", "run"]


def words_of(line: str) -> list[str]:
    """The words of a line without the leading `/mcp`; an unclosed quote counts as an ordinary character."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = line.split()
    if words and words[0] in ("/mcp", "mcp"):
        words = words[1:]
    return words


async def run(conversation: Conversation, line: str) -> CommandAnswer:
    """Run one `/mcp` line. A failure is in the answer's `diagnostic`, its text is the diagnostic's line."""
    words = words_of(line)
    name, rest = (words[0], words[1:]) if words else ("status", [])
    command = COMMANDS.get(name)
    if command is None:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"Close: {close[0]}." if close else f"Subcommands: {', '.join(COMMANDS)}."
        return failed(Diagnostic("usage", "command", None, f"/mcp has no subcommand {clean_line(name, 40)!r}.", hint))
    try:
        return await command.run(conversation, rest)
    except PiMcpError as error:
        return failed(error.diagnostic)
    except Exception as error:
        # A fault of ours; its text may hold anything (DESIGN §10).
        log.debug("/mcp %s failed with %s", name, type(error).__name__)
        return failed(
            Diagnostic(
                "operation_failed",
                "command",
                None,
                f"/mcp {name} failed in an unknown way.",
                "PI_MCP_LOG=debug keeps a log of it.",
            )
        )


def failed(diagnostic: Diagnostic) -> CommandAnswer:
    return CommandAnswer(diagnostic.line(), None, diagnostic)


def complete(conversation: Conversation, line: str) -> list[str]:
    """Candidates for the last, perhaps empty, word of `line`; sorted as they should be offered."""
    unfinished = line[-1:].isspace() or not line
    words: Sequence[str] = line.split()
    if words and words[0] in ("/mcp", "mcp") and (len(words) > 1 or unfinished):
        words = words[1:]
    elif words and "/mcp".startswith(words[0]):
        return ["/mcp"]
    if unfinished:
        words = [*words, ""]
    if len(words) <= 1:
        prefix = words[0] if words else ""
        return [name for name in COMMANDS if name.startswith(prefix)]
    command = COMMANDS.get(words[0])
    if command is None:
        return []
    return [item for item in command.complete(conversation, words[1:]) if item.startswith(words[-1])]
