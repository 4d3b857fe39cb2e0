"""`/mcp logout SERVER | --all`: forget stored logins here, then tell their authorization servers, within bounds.

Comes in: a server's name, configured or not any more. Goes out: what was removed, and what became of the tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.auth.records import Credential
    from pi_mcp.auth.tokens import ClientProof

ALL = "--all"


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if len(words) != 1 or (words[0].startswith("--") and words[0] != ALL):
        raise failure(
            "usage", "authenticate", None, "Say which server.", f"Usage: /mcp logout SERVER, or /mcp logout {ALL}."
        )
    plugin = conversation.plugin
    stored = await plugin.credentials.stored()
    names = list(dict.fromkeys(entry.server for entry in stored))
    if words[0] != ALL:
        if words[0] not in names:
            entries = plugin.configuration.entries
            if words[0] not in entries and words[0] not in names:
                conversation.entry(words[0])  # raises, with the names that are close
            return CommandAnswer(f"No login of {clean_line(words[0], 80)} is stored.")
        names = [words[0]]
    if not names:
        return CommandAnswer("No login is stored.")
    problem: PiMcpError | None = None
    gone: list[Credential] = []
    lines: list[str] = []
    for name in names:
        try:
            removed = await plugin.credentials.delete(name)
        except PiMcpError as error:
            problem = problem or error
            lines.append(error.diagnostic.line())
            continue
        gone.extend(removed)
        if not removed:
            lines.append(f"{clean_line(name, 80)}: removed here; it could not be read, so nothing was revoked.")
    await asyncio.gather(*(_leave(conversation, name) for name in names))
    lines.extend(await asyncio.gather(*(_revoked(conversation, credential) for credential in gone)))
    return CommandAnswer("\n".join(lines), None, problem.diagnostic if problem else None)


async def _leave(conversation: Conversation, name: str) -> None:
    """A connection that lives is signed in."""
    if name in conversation.plugin.configuration.servers:
        await conversation.plugin.connections.close(name)


async def _revoked(conversation: Conversation, credential: Credential) -> str:
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.revoke import WORDS, revoke
    from pi_mcp.auth.scopes import WantedScopes

    plugin = conversation.plugin
    await asyncio.to_thread(WantedScopes(plugin.state_dir).forget, credential.server, credential.url)
    fetcher = Fetcher(credential.server, credential.url, environ=plugin.configuration.environ)
    outcome = await revoke(fetcher, credential, await _proof(conversation, credential))
    return f"{clean_line(credential.server, 80)}: removed here; {WORDS[outcome]}."


async def _proof(conversation: Conversation, credential: Credential) -> ClientProof | None:
    """The secret of a configured client, where the server is still configured."""
    definition = conversation.plugin.configuration.servers.get(credential.server)
    if definition is None or credential.client.kind != "configured":
        return None
    from pi_mcp.auth.proof import proof_of
    from pi_mcp.config import resolve

    try:
        return await proof_of(resolve(definition, conversation.plugin.configuration), credential.issuer)
    except PiMcpError:
        return None


def complete(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    if len(words) > 1:
        return ()
    return [*(name for name, entry in conversation.servers.items() if entry.transport != "stdio"), ALL]


COMMAND = Command("logout", f"logout SERVER | {ALL}", "Forget a stored login and revoke it", run, complete)
