"""Commands about servers and tools: servers, tools, search, refresh, get."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pi_mcp.cli.common import (
    end_progress,
    for_command_line,
    report,
    show,
    show_answer,
    show_json,
    show_missing,
    with_session,
)
from pi_mcp.errors import Diagnostic, PiMcpError
from pi_mcp.text import clean_line, quoted

if TYPE_CHECKING:
    import argparse

    from pi_mcp.catalog.records import Tool
    from pi_mcp.cli.common import Add
    from pi_mcp.plugin import Plugin, SearchAnswer, Session


def register(add: Add) -> None:
    add("servers", "all configured servers and what is known of them; contacts nothing", servers)

    command = add("tools", "all tools of all servers, or of one", tools)
    command.add_argument("server", nargs="?", metavar="SERVER")

    command = add("search", "the tools that fit a need, best first", search)
    command.add_argument("query", nargs="+", metavar="QUERY")
    command.add_argument("--server", metavar="NAME", help="search this server only")
    command.add_argument("--limit", type=int, default=5, metavar="N", help="how many, 1 to 50 (default 5)")

    command = add("refresh", "list tools again, past every cache", refresh)
    command.add_argument("server", nargs="?", metavar="SERVER")

    command = add("get", "one server in full; contacts nothing without --connect", get)
    command.add_argument("server", metavar="SERVER")
    command.add_argument(
        "--connect", action="store_true", help="connect first, and show what the server answers and writes"
    )


def servers(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        from pi_mcp.commands.configured import broken

        problem = broken(plugin.configuration)
        if options.json:
            if problem is not None:
                return report(problem, as_json=True)
            show_json({"servers": [status.to_json() for status in session.statuses()]})
            return 0
        code = show_answer(await session.command("status"))
        return code if problem is None else problem.exit_code

    return with_session(options, work)


def get(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        entry = plugin.entry(options.server)
        code = 0
        if options.connect and entry.state == "ready":
            try:
                await plugin.catalogs.refresh(entry.name)
            except PiMcpError as error:
                code = error.diagnostic.exit_code  # the failure itself is a line of what is shown
        if not options.json:
            return show_answer(await session.command(f"get {quoted(options.server)}")) or code
        from pi_mcp.commands.get import described

        row = next(status for status in session.statuses() if status.name == entry.name).to_json()
        row["source"] = {
            "path": str(entry.source.path) if entry.source.path else None,
            "line": entry.source.line,
            "column": entry.source.column,
        }
        row["definition"] = described(entry.definition) if entry.definition else None
        row["warnings"] = [warning.to_json() for warning in entry.warnings]
        if options.connect and entry.state == "ready":
            row["log"] = plugin.connections.get(entry.name).log.lines()
        show_json({"server": row})
        return code

    return with_session(options, work)


def refresh(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        if options.server is not None:
            plugin.definition(options.server)
        elif not plugin.configuration.servers:
            return report(nothing_to_search(plugin), as_json=options.json)
        answer = await session.command("refresh" + (f" {quoted(options.server)}" if options.server else ""))
        end_progress(session)
        if not options.json:
            return show_answer(answer)
        rows = [row.to_json() for row in session.statuses() if options.server in (None, row.name)]
        if options.server is not None and answer.diagnostic is not None:
            return report(answer.diagnostic, as_json=True)
        show_json({"servers": rows})
        return answer.diagnostic.exit_code if answer.diagnostic else 0

    return with_session(options, work)


def tools(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        if options.server is not None:
            plugin.definition(options.server)
        targets = [options.server] if options.server is not None else list(session.servers)
        discovery = await plugin.catalogs.discover(targets, on_progress=session.show_discovery)
        end_progress(session)
        catalogs = discovery.catalogs
        listed = [
            tool for catalog in catalogs.values() for tool in catalog.tools if session.permits(tool.server, tool.name)
        ]
        missing = [*discovery.not_searched, *(session.unusable() if options.server is None else ())]
        if not catalogs:
            missing = missing or [nothing_to_search(plugin)]
        if options.json:
            show_json(
                {
                    "tools": [tool_row(tool) for tool in listed],
                    "notSearched": [for_command_line(one).to_json() for one in missing],
                }
            )
        else:
            for tool in listed:
                show(f"{tool_row(tool)['nativeName']}  {clean_line(tool.description, 100)}".rstrip())
            show_missing([*discovery.warnings, *missing])
        return 0 if catalogs or not missing else missing[0].exit_code

    return with_session(options, work)


def search(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        answer = await session.search(" ".join(options.query), server=options.server, limit=options.limit, load=False)
        end_progress(session)
        missing = list(answer.not_searched)
        if not answer.searched and not missing:
            missing = [nothing_to_search(plugin)]
        if options.json:
            show_json(
                {
                    "tools": [tool_row(hit.tool, hit.score) for hit in answer.hits],
                    "notSearched": [for_command_line(one).to_json() for one in missing],
                }
            )
        else:
            show_search(answer)
            show_missing([*answer.warnings, *missing])
        return 0 if answer.searched else missing[0].exit_code

    return with_session(options, work)


def show_search(answer: SearchAnswer) -> None:
    if not answer.hits and answer.searched:
        show("No tool matches; try other words, one need at a time.")
        if answer.close:
            show(f"Close names: {clean_line(', '.join(answer.close), 400)}")
    for hit in answer.hits:
        show(f"{hit.native}  {clean_line(hit.tool.description, 100)}".rstrip())


def tool_row(tool: Tool, score: float | None = None) -> dict[str, Any]:
    """One tool as `search --json` and `tools --json` print it; `inputSchema` is the server's own."""
    from pi_mcp.tools.names import native_name
    from pi_mcp.tools.schema import Quarantined, model_schema

    quarantined = None
    try:
        model_schema(tool.wire.get("inputSchema"))
    except Quarantined as error:
        quarantined = error.reason
    row: dict[str, Any] = {
        "server": tool.server,
        "name": tool.name,
        "nativeName": native_name(tool.server, tool.name),
        "description": tool.description,
        "inputSchema": tool.wire.get("inputSchema"),
        "quarantined": quarantined,
    }
    if score is not None:
        row["score"] = round(score, 4)
    return row


def nothing_to_search(plugin: Plugin) -> Diagnostic:
    """Why there was no server to search at all."""
    looked = ", ".join(str(report.path) for report in plugin.configuration.files)
    what = "No MCP server is configured." if not plugin.configuration.entries else "No server can be searched."
    return Diagnostic(
        "configuration_invalid",
        "configure",
        None,
        f"{what} Files looked for: {clean_line(looked, 600)}.",
        "Add one with `pi-mcp add NAME URL`, or try `pi-mcp chat --demo`.",
    )
