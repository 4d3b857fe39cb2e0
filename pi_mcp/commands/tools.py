"""`/mcp tools [SERVER|loaded]`: what can be loaded, and what is.

Comes in: perhaps a server's name. Goes out: a table. A named server is asked for its tools if they are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.errors import failure
from pi_mcp.text import clean_line
from pi_mcp.tools import names
from pi_mcp.tools.loaded import approx_tokens


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if len(words) > 1:
        raise failure("usage", "command", None, "Name one server.", "Usage: /mcp tools [SERVER|loaded].")
    loaded = {tool.native: tool for tool in conversation.loaded}
    if words and words[0] == "loaded" and "loaded" not in conversation.plugin.configuration.entries:
        rows = tuple(
            (tool.native, tool.server, f"about {approx_tokens(tool):,} tokens", clean_line(tool.description, 100))
            for tool in loaded.values()
        )
        lines = [f"{native} ({server}, {size}): {text}" for native, server, size, text in rows]
        return CommandAnswer(
            "\n".join(lines) or "Nothing is loaded.", Table(("Tool", "Server", "Size", "Description"), rows)
        )
    targets: Iterable[str] = list(conversation.servers)
    problems: list[str] = []
    if words:
        conversation.plugin.definition(words[0])
        targets = [words[0]]
        discovery = await conversation.plugin.catalogs.discover(targets)
        problems = [diagnostic.line() for diagnostic in discovery.not_searched]
    catalogs = conversation.plugin.catalogued(targets)
    problems += [f"{name}: not listed yet" for name in targets if name not in catalogs and not words]
    rows_, lines, hidden = [], [], 0
    for catalog in catalogs.values():
        for tool in catalog.tools:
            if not conversation.permits(tool.server, tool.name):
                hidden += 1
                continue
            native = names.native_name(tool.server, tool.name)
            mark = "loaded" if native in loaded else ""
            about = clean_line(tool.description, 100)
            rows_.append((native, tool.server, mark, about))
            lines.append(f"{native}{' (loaded)' if mark else ''}: {about}")
    lines.append(f"{len(rows_)} tools" + (f", {hidden} more are excluded by filters or trust" if hidden else ""))
    lines.extend(problems)
    return CommandAnswer("\n".join(lines), Table(("Tool", "Server", "", "Description"), tuple(rows_)))


def complete(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    return [*server_names(conversation, words), "loaded"] if len(words) <= 1 else ()


COMMAND = Command(
    "tools", "tools [SERVER|loaded]", "Tools of one server, of all known ones, or the loaded", run, complete
)
