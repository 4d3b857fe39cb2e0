"""`/mcp auth SERVER`: sign in to an HTTP server. OAuth is not part of this version; the answer says what works.

Comes in: a server's name. Goes out: a diagnostic with the way that exists, a header from a variable or a command.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.errors import failure


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if len(words) != 1:
        raise failure("usage", "authenticate", None, "Name one server.", "Usage: /mcp auth SERVER.")
    definition = conversation.definition(words[0])
    if definition.transport == "stdio":
        raise failure(
            "refused",
            "authenticate",
            definition.name,
            "A stdio server signs in by itself.",
            "Give it what it needs in env, for example by a !command.",
        )
    raise failure(
        "oauth_failed",
        "authenticate",
        definition.name,
        "This version cannot sign in with OAuth.",
        'Set headers {"Authorization": "Bearer ${TOKEN}"}, or a !command that prints the header.',
    )


def complete(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    if len(words) > 1:
        return ()
    return [name for name, definition in conversation.servers.items() if definition.transport != "stdio"]


COMMAND = Command("auth", "auth SERVER", "Sign in to an HTTP server", run, complete)
