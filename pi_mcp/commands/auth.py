"""`/mcp auth SERVER`: sign in to an HTTP server with OAuth, always anew, and look whether it works.

Comes in: a server's name, and the host with its person. Goes out: an answer that says where and for what; never a
token, a code or an address with one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line, redact

if TYPE_CHECKING:
    from pi_mcp.auth.records import Credential

NO_BROWSER = "--no-browser"


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    names = [word for word in words if word != NO_BROWSER]
    if len(names) != 1 or names[0].startswith("--"):
        raise failure("usage", "authenticate", None, "Name one server.", f"Usage: /mcp auth SERVER [{NO_BROWSER}].")
    from pi_mcp.auth.login import login
    from pi_mcp.auth.scopes import WantedScopes
    from pi_mcp.config import resolve

    plugin = conversation.plugin
    definition = conversation.definition(names[0])
    credential = await login(
        resolve(definition, plugin.configuration),
        plugin.configuration,
        conversation.host,
        plugin.credentials,
        browser=NO_BROWSER not in words,
        wanted=WantedScopes(plugin.state_dir),
    )
    text = signed_in(credential)
    try:
        # What was connected before was somebody else, or nobody.
        catalog = await plugin.catalogs.reconnect(definition.name)
    except PiMcpError as error:
        return CommandAnswer(f"{text}\nIt does not work yet. {error.diagnostic.line()}", None, error.diagnostic)
    count = len(catalog.tools)
    return CommandAnswer(f"{text} It has {count} tool{'' if count == 1 else 's'}.")


def signed_in(credential: Credential) -> str:
    """One line about a new login, without its secrets."""
    tokens = credential.tokens
    parts = [f"Signed in to {credential.server} at {clean_line(credential.issuer, 200)}"]
    if tokens.scopes:
        parts.append(f"for {clean_line(' '.join(tokens.scopes), 300)}")
    if tokens.refresh_token is None and tokens.expires_at is not None:
        minutes = max(1, round((tokens.expires_at - time.time()) / 60))
        parts.append(f"for {minutes} min; it cannot be renewed without another login")
    return redact(", ".join(parts)) + "."


def complete(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    if len(words) > 1:
        return [NO_BROWSER] if len(words) == 2 else ()
    return [name for name, definition in conversation.servers.items() if definition.transport != "stdio"]


COMMAND = Command("auth", f"auth SERVER [{NO_BROWSER}]", "Sign in to an HTTP server", run, complete)
