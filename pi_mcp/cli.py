"""The `pi-mcp` command: looks at servers and tools, searches, calls, edits the configuration, starts the chat.

Comes in: the command line. Goes out: with --json one document on standard output, else text; an error is one line
on standard error; the exit codes of `errors.CODES`. It holds no logic of its own beyond arguments and printing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pi_mcp._version import __version__
from pi_mcp.errors import CODES, Diagnostic, PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.catalog.records import Tool
    from pi_mcp.config import Configuration
    from pi_mcp.hosts.script import ScriptHost
    from pi_mcp.plugin import Plugin, SearchAnswer, Session

Run = Callable[[argparse.Namespace], int]
_LOG = logging.getLogger("pi_mcp.cli")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line as a diagnostic: as JSON where --json was given."""

    def error(self, message: str) -> NoReturn:
        diagnostic = Diagnostic(
            "usage",
            "command",
            None,
            f"{clean_line(message, 300)}.",
            f"Usage: {' '.join(self.format_usage().split()[1:])}",
        )
        sys.exit(report(diagnostic, as_json="--json" in sys.argv))


class _Command(_Parser):
    """One command's parser: options may stand anywhere between its words."""

    _within = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # argparse gives all optional words to the first run of them; the intermixed reading calls back here.
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._within = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process exit code (DESIGN §10)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # argparse would take what follows `--` apart; a server's command line is kept as typed.
    command: list[str] | None = None
    if arguments[:1] == ["add"] and "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1 :]
    from pi_mcp.log import configure_logging

    configure_logging()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets a ? for what it cannot show; in the C locale Python would raise there, too.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
    parser = build_parser()
    options = parser.parse_args(arguments)
    if command is not None:
        options.command_line = command
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except PiMcpError as error:
        return report(error.diagnostic, as_json=getattr(options, "json", False))
    except (KeyboardInterrupt, asyncio.CancelledError):
        stopped = Diagnostic(
            "cancelled", "command", None, "Stopped.", "A call that was under way may have taken effect."
        )
        return report(stopped, as_json=getattr(options, "json", False))
    except BrokenPipeError:
        # The reader went away (`| head`): leave quietly, and keep the interpreter from flushing once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # a traceback is for the debug log
        _LOG.exception("a command failed with %s", type(error).__name__)
        return report(_fault(error), as_json=getattr(options, "json", False))


def _fault(error: Exception) -> Diagnostic:
    """What is said of an exception that nobody expected: never its own text."""
    if isinstance(error, OSError) and isinstance(error.filename, str | os.PathLike):
        return Diagnostic(
            "operation_failed",
            "command",
            None,
            f"A file or folder cannot be used ({clean_line(str(error.filename), 300)}).",
            "See that HOME names a folder of yours, and that the disk has room.",
        )
    return Diagnostic(
        "operation_failed",
        "command",
        None,
        "That failed inside pi-mcp; whether a call took effect is unknown.",
        "PI_MCP_LOG=debug writes more to the log file.",
    )


def report(diagnostic: Diagnostic, *, as_json: bool) -> int:
    """Print a failure where it belongs and return its exit code."""
    diagnostic = for_command_line(diagnostic)
    if as_json:
        show_json({"error": diagnostic.to_json()})
    else:
        print(diagnostic.line(), file=sys.stderr)
    return diagnostic.exit_code


def for_command_line(diagnostic: Diagnostic) -> Diagnostic:
    """The same with a next step that works outside a chat: this process and what it heard of a server end now."""
    hint = diagnostic.hint
    if hint is None:
        return diagnostic
    if diagnostic.code == "timeout" and "in the background" in hint:
        hint = f"`pi-mcp refresh {clean_line(diagnostic.server or '', 64)}` waits for it longer, and keeps its tools."
    return replace(diagnostic, hint=_own_words(hint))


def _own_words(text: str) -> str:
    text = text.replace("`/mcp get ", "`pi-mcp get --connect ")
    return re.sub("`/mcp (auth|logout|refresh|search|tools) ", r"`pi-mcp \1 ", text)


def show_json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=True, indent=2)
    sys.stdout.write("\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; docs/reference.md is generated from it."""
    parser = _Parser(
        prog="pi-mcp",
        description="One search tool in place of a thousand MCP tools, for terminal coding agents.",
        epilog="Exit codes: 0 ok, 1 the tool reported an error, 2 usage or configuration, 3 server, 4 login, "
        "5 not found, 6 timeout, 7 refused, 130 stopped. More: docs/reference.md.",
    )
    parser.add_argument("--version", action="version", version=f"pi-mcp {__version__}")
    parser.set_defaults(run=lambda _: _help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Command)

    def add(
        name: str, summary: str, run: Run, *, config: bool = True, project: bool = True, as_json: bool = True
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(run=run)
        if as_json:
            command.add_argument("--json", action="store_true", help="print one JSON document")
        if config:
            add_configuration_arguments(command, project=project)
        return command

    from pi_mcp.hosts import terminal

    chat = add("chat", "talk to an agent, or search and call by hand, in this terminal", terminal.main, as_json=False)
    terminal.add_arguments(chat)

    add("servers", "all configured servers and what is known of them; contacts nothing", servers)

    command = add("tools", "all tools of all servers, or of one", tools)
    command.add_argument("server", nargs="?", metavar="SERVER")

    command = add("search", "the tools that fit a need, best first", search)
    command.add_argument("query", nargs="+", metavar="QUERY")
    command.add_argument("--server", metavar="NAME", help="search this server only")
    command.add_argument("--limit", type=int, default=5, metavar="N", help="how many, 1 to 50 (default 5)")

    command = add("call", "call one tool and print its result", call)
    command.add_argument("server", metavar="SERVER")
    command.add_argument("tool", metavar="TOOL", help="the tool's original or native name")
    command.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="a JSON object, key=value words, @FILE, or - for standard input",
    )

    command = add("refresh", "list tools again, past every cache", refresh)
    command.add_argument("server", nargs="?", metavar="SERVER")

    command = add("get", "one server in full; contacts nothing without --connect", get)
    command.add_argument("server", metavar="SERVER")
    command.add_argument(
        "--connect", action="store_true", help="connect first, and show what the server answers and writes"
    )

    command = add("auth", "sign in to an HTTP server", auth)
    command.add_argument("server", metavar="SERVER")
    command.add_argument(
        "--no-browser",
        action="store_true",
        help="show a code or take the pasted address; for another machine's browser",
    )

    command = add("logout", "forget a stored login and revoke it", logout)
    command.add_argument("server", nargs="?", metavar="SERVER", help="also one that is not configured any more")
    command.add_argument("--all", action="store_true", help="every stored login")

    command = add(
        "add",
        "write a server into the configuration: add NAME URL, or add NAME -- COMMAND ARGS…",
        add_server,
        project=False,
    )
    command.add_argument("name", metavar="NAME")
    command.add_argument("url", nargs="?", metavar="URL")
    command.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable (stdio)")
    command.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="a header (HTTP)")
    command.add_argument("--force", action="store_true", help="replace a server of that name")
    command.set_defaults(command_line=None)

    command = add(
        "import", "take servers over from other clients' files; shows them first", import_servers, project=False
    )
    command.add_argument("--yes", action="store_true", help="write what the preview shows")

    command = add("purge", "remove what pi-mcp keeps on this machine; never the configuration", purge, config=False)
    command.add_argument("--cache", action="store_true", help="catalogs")
    command.add_argument("--state", action="store_true", help="trust, sessions, chats, results and logs")
    command.add_argument("--credentials", action="store_true", help="stored logins")
    command.add_argument("--all", action="store_true", help="all three")
    return parser


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def add_configuration_arguments(parser: argparse.ArgumentParser, *, project: bool = True) -> None:
    if not project:
        parser.add_argument("--config", type=Path, metavar="FILE", help="write this file in place of the user's")
        return
    parser.add_argument("--config", type=Path, metavar="FILE", help="read this file in place of the user's files")
    parser.add_argument(
        "--trust-project", action="store_true", help="use the project's .mcp.json without asking, for this run"
    )


def exit_codes() -> dict[int, str]:
    """Exit code → the diagnostic codes behind it, for help and docs."""
    table: dict[int, list[str]] = {0: ["ok"]}
    for name, code in CODES.items():
        table.setdefault(code.exit_code, []).append(name)
    return {number: "/".join(names) for number, names in sorted(table.items())}


# Running against a plugin


def configuration_of_run(options: argparse.Namespace) -> Configuration:
    """The configuration that the options name; a file named by --config that cannot be read is an error."""
    from pi_mcp.config import load_config

    configuration = load_config(config=options.config, trust_project=options.trust_project)
    for file in configuration.files:
        if file.scope == "override" and file.status in ("missing", "invalid"):
            hint = "Check --config and PI_MCP_CONFIG."
            if file.diagnostic is not None:
                raise failure("configuration_invalid", "configure", None, file.diagnostic.message, file.diagnostic.hint)
            raise failure("configuration_invalid", "configure", None, f"{file.path} is not there.", hint)
    return configuration


def with_session(
    options: argparse.Namespace, work: Callable[[Plugin, Session], Awaitable[int]], person: ScriptHost | None = None
) -> int:
    """Run `work` with a plugin and a session that keeps nothing; everything is ended before the return.

    `person` is the host where somebody can be told things.
    """
    from pi_mcp.config import load_config
    from pi_mcp.hosts.script import ScriptHost
    from pi_mcp.plugin import Plugin

    configuration = configuration_of_run(options)

    async def run() -> int:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        if task is not None:
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, task.cancel)
        host = person or ScriptHost(quiet=options.json)
        plugin = Plugin(
            configuration,
            reload=lambda: load_config(config=options.config, trust_project=options.trust_project),
        )
        try:
            return await work(plugin, plugin.session("command line", host, keep=False))
        finally:
            host.finish()
            await plugin.close()

    return asyncio.run(run())


def end_progress(session: Session) -> None:
    """Take the progress line away before anything is printed beside it."""
    from pi_mcp.hosts.script import ScriptHost

    if isinstance(session.host, ScriptHost):
        session.host.finish()


def servers(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        del plugin
        if options.json:
            show_json({"servers": [status.to_json() for status in session.statuses()]})
            return 0
        return show_answer(await session.command("status"))

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
            return show_answer(await session.command(f"get {_quoted(options.server)}")) or code
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
        answer = await session.command("refresh" + (f" {_quoted(options.server)}" if options.server else ""))
        end_progress(session)
        if not options.json:
            return show_answer(answer)
        rows = [row.to_json() for row in session.statuses() if options.server in (None, row.name)]
        if options.server is not None and answer.diagnostic is not None:
            return report(answer.diagnostic, as_json=True)
        show_json({"servers": rows})
        return answer.diagnostic.exit_code if answer.diagnostic else 0

    return with_session(options, work)


def auth(options: argparse.Namespace) -> int:
    """Sign in. A person is asked on a terminal; without one only a grant that needs nobody works."""
    from pi_mcp.hosts.script import LoginHost

    line = f"auth {_quoted(options.server)}" + (" --no-browser" if options.no_browser else "")
    person = sys.stdin.isatty() and (sys.stderr if options.json else sys.stdout).isatty()

    async def work(plugin: Plugin, session: Session) -> int:
        del plugin
        return show_command(await session.command(line), options)

    async def on_terminal(plugin: Plugin, session: Session) -> int:
        from pi_mcp.hosts.terminal.dialogs import TerminalHost
        from pi_mcp.hosts.terminal.keys import Keys, Stopped
        from pi_mcp.hosts.terminal.render import Screen

        del plugin
        screen, keys = Screen(interactive=True), Keys(interactive=True)
        session.host = TerminalHost(screen, keys)
        try:
            answer = await keys.run(session.command(line))
        except Stopped:
            raise failure("cancelled", "authenticate", options.server, "The login was stopped.") from None
        finally:
            screen.idle()
            await keys.close()
        return show_command(answer, options)

    if person and not options.json:
        return with_session(options, on_terminal)
    return with_session(options, work, LoginHost(quiet=True) if person else None)


def logout(options: argparse.Namespace) -> int:
    if (options.server is None) != options.all:
        raise failure("usage", "authenticate", None, "Name one server, or give --all.")

    async def work(plugin: Plugin, session: Session) -> int:
        del plugin
        line = "logout --all" if options.all else f"logout {_quoted(options.server)}"
        return show_command(await session.command(line), options)

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
                print(f"{tool_row(tool)['nativeName']}  {clean_line(tool.description, 100)}".rstrip())
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


def call(options: argparse.Namespace) -> int:
    async def work(plugin: Plugin, session: Session) -> int:
        from pi_mcp.tools.arguments import parse_arguments
        from pi_mcp.tools.names import native_name

        plugin.definition(options.server)
        # The live listing first: a person who names a tool means the tool as it is now.
        catalog = await plugin.catalogs.live(options.server)
        tool = catalog.tool(options.tool) or next(
            (tool for tool in catalog.tools if native_name(tool.server, tool.name) == options.tool), None
        )
        if tool is None:
            await session.load([f"{options.server}.{options.tool}"])  # raises with close names
            raise failure("not_found", "call", options.server, f"No tool is called {clean_line(options.tool)!r}.")
        arguments = parse_arguments(
            options.arguments, tool.input_schema, standard_input=lambda limit: sys.stdin.buffer.read(limit)
        )
        answer = await session.load([native_name(tool.server, tool.name)])
        problem = next((hit.problem for hit in answer.hits if hit.problem), None)
        if problem is not None:
            raise failure("protocol_error", "call", options.server, f"The tool cannot be used: {clean_line(problem)}.")
        result = await session.call(native_name(tool.server, tool.name), arguments, typed=True)
        end_progress(session)
        if options.json:
            show_json(result.raw)
        else:
            print(result.text)
        if result.is_error and not options.json:
            show_missing(Diagnostic(**row) for row in result.details["diagnostics"])
        return 1 if result.is_error else 0

    return with_session(options, work)


# Configuration and disk


def add_server(options: argparse.Namespace) -> int:
    from pi_mcp import files
    from pi_mcp.config import edit, importing

    target = options.config or Path(os.environ.get("PI_MCP_CONFIG") or files.config_dir() / "mcp.json")
    command = options.command_line
    entry = importing.add_entry(
        options.name,
        url=options.url,
        command=command[0] if command else None,
        args=tuple(command[1:]) if command else (),
        env=_pairs(options.env, "=", "--env"),
        headers=_pairs(options.header, ":", "--header"),
    )
    written = edit.add_servers(target, {options.name: entry}) if not options.force else None
    if options.force:
        edit.set_server(target, options.name, entry)
    elif not written:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{target} has a server called {clean_line(options.name, 64)!r} already.",
            "Use --force to replace it, or another name.",
        )
    if options.json:
        show_json({"path": str(target), "name": options.name})
    else:
        print(f"Added {options.name} to {target}. Try: pi-mcp tools {options.name}")
    return 0


def import_servers(options: argparse.Namespace) -> int:
    from pi_mcp import files
    from pi_mcp.config import importing, load_config

    target = options.config or Path(os.environ.get("PI_MCP_CONFIG") or files.config_dir() / "mcp.json")
    found = importing.find_importable(Path.home(), Path.cwd(), os.environ)
    # What is there already is judged by the file that would be written, whatever else is configured.
    plan = importing.plan_import(found, load_config(config=target, cwd=Path.cwd()))
    names = importing.apply_import(plan, target) if options.yes and plan.additions else ()
    if options.json:
        show_json({**plan.to_json(), "path": str(target), "written": list(names)})
        return 0
    print(plan.text)
    if names:
        print(f"Written to {target}: {', '.join(names)}")
    elif plan.additions:
        print(f"Nothing is written yet. `pi-mcp import --yes` writes what is marked `add` to {target}.")
    elif plan.rows:
        print(f"There is nothing to add to {target}.")
    return 0


def purge(options: argparse.Namespace) -> int:
    from pi_mcp import files

    chosen = {
        "cache": options.cache or options.all,
        "state": options.state or options.all,
        "credentials": options.credentials or options.all,
    }
    if not any(chosen.values()):
        raise failure(
            "usage", "command", None, "Say what to remove.", "One or more of --cache, --state, --credentials, --all."
        )
    removed: dict[str, Any] = {}
    if chosen["cache"]:
        removed["cache"] = {"path": str(files.cache_dir()), "files": files.remove_tree(files.cache_dir())}
    if chosen["credentials"]:
        removed["credentials"] = {"path": None, "files": asyncio.run(purge_logins())}
    if chosen["state"]:
        # The index of logins stays with them: without it nobody would find what the keyring holds.
        folder = files.state_dir()
        kept = set() if chosen["credentials"] else {folder / "credentials"}
        children = [path for path in folder.iterdir() if path not in kept] if folder.is_dir() else []
        count = sum(files.remove_tree(path) for path in children)
        removed["state"] = {"path": str(folder), "files": count + (0 if kept else files.remove_tree(folder))}
    if options.json:
        show_json({"removed": removed})
    else:
        for what, row in removed.items():
            place = f" from {row['path']}" if row["path"] else ""
            thing = "login" if what == "credentials" else "file"
            number = f"{row['files']} {thing}" + ("" if row["files"] == 1 else "s")
            print(f"{what}: {number} removed{place}")
    return 0


async def purge_logins() -> int:
    """Remove every stored login, those of forgotten servers included; how many. They are not revoked by it."""
    from pi_mcp.auth.store import CredentialStore

    store = CredentialStore()
    stored = await store.stored()
    for server in {entry.server for entry in stored}:
        await store.delete(server)
    return len(stored)


# Printing


def show_answer(answer: Any) -> int:
    """A CommandAnswer on standard output, or its failure on standard error; the exit code."""
    from pi_mcp.hosts.terminal.render import print_answer

    if answer.diagnostic is not None and answer.text == answer.diagnostic.line():
        return report(answer.diagnostic, as_json=False)
    print_answer(replace(answer, text=_own_words(answer.text)))
    return answer.diagnostic.exit_code if answer.diagnostic is not None else 0


def show_command(answer: Any, options: argparse.Namespace) -> int:
    """A CommandAnswer, as JSON where that was asked for."""
    if not options.json:
        return show_answer(answer)
    if answer.diagnostic:
        return report(answer.diagnostic, as_json=True)
    show_json({"text": answer.text})
    return 0


def show_search(answer: SearchAnswer) -> None:
    if not answer.hits and answer.searched:
        print("No tool matches; try other words, one need at a time.")
        if answer.close:
            print(f"Close names: {clean_line(', '.join(answer.close), 400)}")
    for hit in answer.hits:
        print(f"{hit.native}  {clean_line(hit.tool.description, 100)}".rstrip())


def show_missing(missing: Iterable[Diagnostic]) -> None:
    for diagnostic in missing:
        print(for_command_line(diagnostic).line(), file=sys.stderr)


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


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _pairs(words: Sequence[str], separator: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, found, value = word.partition(separator)
        if not found or not name.strip():
            raise failure(
                "usage", "configure", None, f"{option} takes {'NAME: VALUE' if separator == ':' else 'NAME=VALUE'}."
            )
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs


if __name__ == "__main__":
    sys.exit(main())
