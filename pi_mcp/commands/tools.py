"""`/mcp tools [SERVER|loaded]`: what can be loaded, and what is.

Comes in: perhaps a server's name. Goes out: a table. A named server is asked for its tools if they are not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pi_mcp.catalog.records import Catalog, Tool
from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.commands.conversation import Command, Conversation, server_names
from pi_mcp.errors import Diagnostic, error_of, failure
from pi_mcp.text import clean_line
from pi_mcp.tools import names, schema
from pi_mcp.tools.loaded import approx_tokens


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    if len(words) > 1:
        raise failure("usage", "command", None, "Name one server.", "Usage: /mcp tools [SERVER|loaded].")
    loaded = {tool.native: tool for tool in conversation.loaded}
    if words and words[0] == "loaded" and "loaded" not in conversation.entries:
        rows = tuple(
            (tool.native, tool.server, f"about {approx_tokens(tool):,} tokens", clean_line(tool.description, 100))
            for tool in loaded.values()
        )
        lines = [f"{native} ({server}, {size}): {text}" for native, server, size, text in rows]
        return CommandAnswer(
            "\n".join(lines) or "Nothing is loaded.", Table(("Tool", "Server", "Size", "Description"), rows)
        )
    targets: Iterable[str] = list(conversation.servers)
    problems: list[Diagnostic] = []
    catalogs: Mapping[str, Catalog]
    if words:
        conversation.definition(words[0])
        targets = [words[0]]
        discovery = await conversation.plugin.catalogs.discover(targets)
        problems = [*discovery.not_searched, *discovery.warnings]
        catalogs = discovery.catalogs
        if not catalogs and problems:
            raise error_of(problems[0])
    else:
        catalogs = conversation.plugin.catalogued(targets)
    rows_: list[tuple[str, ...]] = []
    lines, hidden = [], 0
    for catalog in catalogs.values():
        for tool in catalog.tools:
            if not conversation.permits(tool.server, tool.name):
                hidden += 1
                continue
            native = names.native_name(tool.server, tool.name)
            mark = "loaded" if native in loaded else unfit(tool) if words else ""
            about = clean_line(tool.description, 100)
            rows_.append((native, tool.server, mark, about))
            lines.append(f"{native}{f' ({mark})' if mark else ''}: {about}")
    count = "1 tool" if len(rows_) == 1 else f"{len(rows_)} tools"
    lines.append(count + (f", {hidden} more are excluded by filters, trust or the host" if hidden else ""))
    lines.extend(problem.line() for problem in problems)
    lines.extend(f"{name}: not listed yet" for name in targets if name not in catalogs)
    return CommandAnswer("\n".join(lines), Table(("Tool", "Server", "", "Description"), tuple(rows_)))


def unfit(tool: Tool) -> str:
    """Why no provider would accept the tool's schema (DESIGN §7); empty where one does."""
    try:
        schema.model_schema(tool.wire.get("inputSchema"))
    except schema.Quarantined as quarantined:
        return clean_line(f"cannot be used: {quarantined.reason}")
    return ""


def complete(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    return [*server_names(conversation, words), "loaded"] if len(words) <= 1 else ()


COMMAND = Command(
    "tools", "tools [SERVER|loaded]", "Tools of one server, of all known ones, or the loaded", run, complete
)
