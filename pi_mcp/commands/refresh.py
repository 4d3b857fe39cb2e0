"""`/mcp refresh [SERVER]`: list again, past memory and disk; loads nothing.

Comes in: perhaps a server's name; without one, all. Goes out: one line per server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pi_mcp.catalog.records import Catalog
from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.configured import nothing_configured
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.host import show_progress

AT_ONCE = 4


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    return await each(conversation, words, "refresh", conversation.plugin.catalogs.refresh)


async def each(
    conversation: Conversation,
    words: Sequence[str],
    verb: str,
    work: Callable[[str], Awaitable[Catalog]],
) -> CommandAnswer:
    """Do `work` for the named server or for all in scope, four at a time; one line each.

    With a single named server its failure is the answer's diagnostic; with several the first failure is.
    """
    if len(words) > 1:
        raise failure("usage", "command", None, "Name one server, or none for all.", f"Usage: /mcp {verb} [SERVER].")
    if words:
        conversation.definition(words[0])
    targets = list(words) or list(conversation.servers)
    if not targets:
        if not conversation.entries:
            return CommandAnswer(nothing_configured(conversation.plugin.configuration))
        return CommandAnswer("No server can be contacted: each is switched off or cannot be used. `/mcp` shows why.")
    gate = asyncio.Semaphore(AT_ONCE)
    done = 0

    async def one(name: str) -> tuple[str, Diagnostic | None]:
        nonlocal done
        async with gate:
            try:
                catalog = await work(name)
            except PiMcpError as error:
                return error.diagnostic.line(), error.diagnostic
            finally:
                done += 1
                show_progress(conversation.host, f"{verb} {name}", done, len(targets))
            count = "1 tool" if len(catalog.tools) == 1 else f"{len(catalog.tools)} tools"
            if not catalog.tools:
                count = "0 tools (server offers none)"
            notes = "".join(f" {note}" for note in catalog.notes)
            return f"{name}: {count}.{notes}", None

    outcomes = await asyncio.gather(*(one(name) for name in targets))
    first = next((diagnostic for _, diagnostic in outcomes if diagnostic is not None), None)
    return CommandAnswer("\n".join(line for line, _ in outcomes), None, first)


COMMAND = Command("refresh", "refresh [SERVER]", "List tools again, past every cache", run, server_names)
