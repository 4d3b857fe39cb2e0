"""`/mcp load TOOL…` and `/mcp unload TOOL…`.

Comes in: tool names. Goes out: what changed. `load` may contact the servers that the names point at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.errors import failure
from pi_mcp.tools import names


async def load(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if not words:
        raise failure("usage", "command", None, "Name a tool.", "Usage: /mcp load TOOL…")
    answer = await conversation.load(words)
    return CommandAnswer(answer.text)


async def unload(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if not words:
        raise failure("usage", "command", None, "Name a loaded tool.", "Usage: /mcp unload TOOL…, or --all.")
    wanted = [tool.native for tool in conversation.loaded] if list(words) == ["--all"] else list(words)
    gone = await conversation.unload(wanted)
    return CommandAnswer(
        "\n".join(["Unloaded:", *(f"- {tool.native}" for tool in gone)]) if gone else "Nothing is loaded."
    )


def loadable(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    have = {tool.native for tool in conversation.loaded}
    prefix = words[-1] if words else ""
    for server in conversation.servers:
        catalog = conversation.plugin.catalogs.held(server)  # memory alone: completion does no I/O
        for tool in catalog.tools if catalog is not None else ():
            native = names.native_name(tool.server, tool.name)
            if native.startswith(prefix) and native not in have and conversation.permits(tool.server, tool.name):
                yield native


def unloadable(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    return [tool.native for tool in conversation.loaded if tool.native not in words[:-1]] + ["--all"]


LOAD = Command("load", "load TOOL…", "Load tools by name: native, server.tool or original", load, loadable)
UNLOAD = Command("unload", "unload TOOL…|--all", "Take loaded tools out of the conversation", unload, unloadable)
