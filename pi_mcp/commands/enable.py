"""`/mcp enable SERVER` and `/mcp disable SERVER`, kept for the next start.

Comes in: a server's name. Goes out: the new state. A user's file is edited in place; a project's file never is:
its switch is kept with the trust record (DESIGN §9).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.config import TrustStore, edit
from pi_mcp.errors import failure
from pi_mcp.text import clean_line, quoted


async def enable(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    return await _switch(conversation, words, disabled=False)


async def disable(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    return await _switch(conversation, words, disabled=True)


async def _switch(conversation: Conversation, words: Sequence[str], *, disabled: bool) -> CommandAnswer:
    verb = "disable" if disabled else "enable"
    if len(words) != 1:
        raise failure("usage", "command", None, "Name one server.", f"Usage: /mcp {verb} SERVER.")
    entry = conversation.entry(words[0])
    if entry.state == "invalid" and entry.diagnostic is not None:
        raise failure("configuration_invalid", "configure", entry.name, entry.diagnostic.message, entry.diagnostic.hint)
    if entry.state == "untrusted_project" and entry.diagnostic is not None:
        raise failure("refused", "trust", entry.name, entry.diagnostic.message, entry.diagnostic.hint)
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
    now = conversation.plugin.configuration.entries.get(entry.name)
    if now is None or (now.state == "disabled") != disabled:
        raise failure(
            "operation_failed",
            "configure",
            entry.name,
            f"It was {verb}d in {clean_line(str(path), 500)}, but what is in force says otherwise.",
            f"`/mcp get {quoted(entry.name)}` says why.",
        )
    return CommandAnswer(f"{entry.name} is {verb}d.")


def _named(conversation: Conversation, words: Sequence[str], *, disabled: bool) -> Iterable[str]:
    entries = conversation.entries if len(words) <= 1 else {}
    return sorted(name for name, entry in entries.items() if (entry.state == "disabled") == disabled)


def _off(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    return _named(conversation, words, disabled=True)


def _on(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    return _named(conversation, words, disabled=False)


ENABLE = Command("enable", "enable SERVER", "Let a disabled server be used again", enable, _off)
DISABLE = Command("disable", "disable SERVER", "Disconnect a server and keep it off", disable, _on)
