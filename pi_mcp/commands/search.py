"""`/mcp search QUERY`: the ranking of `mcp_search` with its reasons, loading nothing.

Comes in: words. Goes out: a table of places with score and reasons. It may start servers, as the tool does.
"""

from __future__ import annotations

from collections.abc import Sequence

from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.errors import failure
from pi_mcp.text import clean_line

PLACES = 10


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if not words:
        raise failure("usage", "command", None, "Say what to search for.", "Usage: /mcp search QUERY.")
    answer = await conversation.search(" ".join(words), limit=PLACES, load=False)
    if not answer.hits:
        return CommandAnswer(answer.text)
    rows, lines = [], []
    for place, hit in enumerate(answer.hits, 1):
        why = "exact name" if hit.exact else ""
        terms = ", ".join(
            f"{clean_line(str(reason.matched), 40)} in {reason.field} {reason.weight:.2f}" for reason in hit.reasons
        )
        why = "; ".join(part for part in (why, terms) if part)
        rows.append((str(place), hit.native, f"{hit.score:.2f}", why))
        lines.append(f"{place}. {hit.native} {hit.score:.2f} ({why})")
        if hit.problem is not None:
            lines.append(f"   {clean_line(hit.problem)}")
    lines.extend(diagnostic.line() for diagnostic in (*answer.not_searched, *answer.warnings))
    return CommandAnswer("\n".join(lines), Table(("", "Tool", "Score", "Why"), tuple(rows)))


COMMAND = Command("search", "search QUERY", "The ranking for a query, with the reasons; loads nothing", run)
