"""`/mcp trust`: accept the project's file; `/mcp trust SERVER LEVEL`: set one server's level.

Comes in: nothing, or a server and a level. Goes out: what is in force now. A level is bound to the server's
present definition (DESIGN §9) and kept in the state directory; no configuration file is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import get_args

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.config import TrustLevel, TrustStore, definition_digest
from pi_mcp.errors import failure
from pi_mcp.text import quoted

LEVELS: tuple[TrustLevel, ...] = get_args(TrustLevel)


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    plugin = conversation.plugin
    if not words:
        project = plugin.configuration.project
        if project is None:
            return CommandAnswer("No project file waits for trust.")
        if not conversation.host.interactive:
            raise failure(
                "refused",
                "trust",
                None,
                f"Nobody can be asked about {project.path}.",
                "Use --trust-project for one run.",
            )
        if not await plugin.trust_project(conversation.host):
            raise failure("refused", "trust", None, f"{project.path} stays untrusted.", None)
        return CommandAnswer(f"Trusted: {project.path}")
    if len(words) != 2 or words[1] not in LEVELS:
        raise failure(
            "usage", "trust", None, "Name a server and a level.", f"Usage: /mcp trust SERVER {'|'.join(LEVELS)}."
        )
    entry = conversation.entry(words[0])
    if entry.definition is None or entry.state == "untrusted_project":
        raise failure(
            "refused",
            "trust",
            entry.name,
            "Its file is not trusted, or its definition is invalid.",
            f"`/mcp get {quoted(entry.name)}` says why.",
        )
    if entry.source.path is None:
        raise failure("refused", "trust", entry.name, "This server was given by the program.", "Set its trust there.")
    level = next(level for level in LEVELS if level == words[1])
    store = TrustStore(plugin.state_dir)
    await asyncio.to_thread(store.set_level, entry.name, definition_digest(entry.definition), level)
    await plugin.reload()
    now = plugin.configuration.entries.get(entry.name)
    if now is None or now.definition is None or now.definition.trust != level:
        raise failure(
            "refused",
            "trust",
            entry.name,
            "Its level did not change: it was given by the program, or its entry has just changed.",
            f"`/mcp get {quoted(entry.name)}` says why.",
        )
    return CommandAnswer(f"{entry.name} is {level} now, until its definition changes.")


def complete(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    return server_names(conversation, words) if len(words) <= 1 else LEVELS if len(words) == 2 else ()


COMMAND = Command(
    "trust",
    "trust [SERVER trusted|verified|untrusted]",
    "Accept the project's file, or set a server's level",
    run,
    complete,
)
