"""`pi-mcp call`: one call of one tool, for a person and for scripts.

Comes in: a server's name or address, a tool's name, arguments. Goes out: the result as text or as one JSON document.
An HTTP server is asked with the standard library alone (`direct.py`); one over stdio, and one whose login has to be
renewed, by way of the plugin. Both present the same result alike.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp.cli import later
from pi_mcp.cli.common import (
    configuration_of_run,
    end_progress,
    show,
    show_json,
    show_missing,
    signals_as_interrupt,
    start_log,
    with_session,
)
from pi_mcp.errors import Diagnostic, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from pi_mcp.catalog.records import Tool
    from pi_mcp.cli.common import Add
    from pi_mcp.cli.direct import Show
    from pi_mcp.config import Configuration, ServerDefinition, ServerEntry
    from pi_mcp.plugin import CallAnswer, Plugin, Session


def register(add: Add) -> None:
    command = add("call", "call one tool and print its result", call)
    command.add_argument("server", metavar="SERVER", help="a configured server, or an address with --stateless")
    command.add_argument(
        "tool",
        nargs="?",
        metavar="TOOL",
        help="the tool's original or native name; a native name or SERVER.TOOL may stand for both words",
    )
    command.add_argument(
        "arguments",
        nargs="*",
        metavar="ARGUMENT",
        help="a JSON object, key=value words, @FILE, or - for standard input",
    )
    command.add_argument(
        "--save", type=Path, metavar="DIR", help="write images, sound and blobs of the result to files in DIR"
    )
    command.add_argument(
        "--stateless", action="store_true", help="SERVER is a URL: ask it without configuration, cache and session"
    )
    command.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="with --stateless: send this header; ${VARIABLE} in it is replaced",
    )


def call(options: argparse.Namespace) -> int:
    from pi_mcp.config.usable import entry_named, usable

    if options.header and not options.stateless:
        raise failure("usage", "call", None, "--header goes with --stateless.", "Put headers into the configuration.")
    if options.save is not None:
        from pi_mcp.tools.saving import usable_directory

        options.save = usable_directory(options.save)
    configuration = _stateless(options) if options.stateless else configuration_of_run(options)
    if not options.stateless:
        _read_name(options, configuration.entries)
    entry = entry_named(options.server, configuration.entries)
    if options.tool is None:
        shown = clean_line(options.server, 200)
        hint = "`pi-mcp tools SERVER` lists what a server has; the words are SERVER TOOL [ARGUMENT …]."
        raise failure("usage", "call", None, f"No tool is named: {shown!r} is the server.", hint)
    definition = usable(entry)
    with _without_tls(definition.url):
        from pi_mcp.cli.direct import LongWay
    typed: list[dict[str, Any]] = []
    try:
        return _directly(options, configuration, definition, typed)
    except LongWay:
        # Arguments that were read are kept: standard input can be read once.
        later.real_dataclasses()
        later.collect_again()
        start_log()
        return _by_plugin(options, typed[0] if typed else None)


def _read_name(options: argparse.Namespace, entries: Mapping[str, ServerEntry]) -> None:
    """Where the first word is no server, it may be a tool's whole name: then the next one is an argument."""
    if options.server in entries:
        return
    from pi_mcp.tools.names import pointed_server

    server = pointed_server(options.server, entries)
    if server is not None:
        options.arguments = [*([] if options.tool is None else [options.tool]), *options.arguments]
        whole, options.server = options.server, server
        options.tool = whole.removeprefix(f"{server}.")
    elif "://" in options.server:
        hint = "With --stateless an address is called: pi-mcp call --stateless URL TOOL [ARGUMENT …]."
        raise failure("not_found", "call", None, "An address is no configured server.", hint)


def _stateless(options: argparse.Namespace) -> Configuration:
    """The configuration of an address that a person typed."""
    from pi_mcp.config import configuration_of

    if "://" not in options.server:
        said = f"--stateless takes an address, and {clean_line(options.server, 60)!r} is none."
        hint = "pi-mcp call --stateless URL TOOL [ARGUMENT …]; a configured server is called without --stateless."
        raise failure("usage", "call", None, said, hint)
    headers: dict[str, str] = {}
    for word in options.header:
        name, found, value = word.partition(":")
        if not found or not name.strip():
            raise failure("usage", "call", None, "--header takes 'NAME: VALUE'.")
        headers[name.strip()] = value.strip()
    entry: dict[str, Any] = {"type": "http", "url": options.server, "oauth": False}
    if headers:
        entry["headers"] = headers
    # What is said of it begins with where it is; a name and a password in front of that are nobody's business.
    place = re.split(r"[/?#\\]", options.server.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    options.server = clean_line(place, 100).strip() or "server"
    return configuration_of({options.server: entry})


@contextlib.contextmanager
def _without_tls(url: str | None) -> Iterator[None]:
    """Load the client for an http address without `ssl`: that is a fifth of the memory of such a call.

    `http.client` does without where it cannot be imported. Whoever imports either later gets it whole.
    """
    if not (url or "").lower().startswith("http://") or {"ssl", "http.client"} & set(sys.modules):
        yield
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["ssl"]
        sys.modules.pop("http.client", None)


def _directly(
    options: argparse.Namespace, configuration: Configuration, definition: ServerDefinition, typed: list[dict[str, Any]]
) -> int:
    """Without the SDK. Raises LongWay before anything was executed; `typed` gets the arguments once they are read."""
    from pi_mcp.cli.direct import DirectServer

    with signals_as_interrupt():
        server = DirectServer(configuration, definition, stateless=options.stateless)
        try:
            tool = server.tool(options.tool)
            typed.append(_arguments(options, tool.input_schema))
            show, finish = _progress(options, tool)
            later.collect_again()  # it may take long, and report on its way
            try:
                wire = server.call(tool, typed[0], show)
            finally:
                finish()
            return _finish(tool, wire, options)
        finally:
            try:
                sys.stdout.flush()  # the result need not wait for the session's end
            finally:
                server.close()


def _arguments(options: argparse.Namespace, schema: Mapping[str, Any]) -> dict[str, Any]:
    from pi_mcp.tools.arguments import misspelt, parse_arguments

    given = parse_arguments(options.arguments, schema, standard_input=lambda limit: sys.stdin.buffer.read(limit))
    note = misspelt(given, schema)
    if note and not options.json:
        show(note, error=True)
    return given


def _progress(options: argparse.Namespace, tool: Tool) -> tuple[Show | None, Any]:
    """What shows the call's progress on a terminal, and what takes it away."""
    if options.json or not sys.stderr.isatty():
        return None, lambda: None
    from pi_mcp.hosts.script import ScriptHost

    host = ScriptHost()

    def show(done: float, total: float | None, message: str | None) -> None:
        host.progress(f"{tool.server}: {clean_line(message or tool.name)}", done, total)

    return show, host.finish


def _finish(tool: Tool, wire: dict[str, Any], options: argparse.Namespace, answer: CallAnswer | None = None) -> int:
    """Print a result; the exit code. `answer` is its presentation for a terminal, where that was made already."""
    shown, unsaved = wire, None
    if options.save is not None:
        from pi_mcp.tools.saving import save_binaries

        wire, shown, unsaved = save_binaries(wire, options.save)
    is_error = wire.get("isError") is True
    code = 1 if is_error else 0 if unsaved is None else unsaved.exit_code
    if options.json:
        show_json(wire if unsaved is None else {"error": unsaved.to_json(), "result": wire})
        return code
    if answer is None or options.save is not None or not sys.stdout.isatty():
        answer = _presented(tool, wire, shown)
    print(answer.text)
    if is_error:
        show_missing(Diagnostic(**row) for row in answer.details["diagnostics"])
    if unsaved is not None:
        show_missing([unsaved])
    return code


def _presented(tool: Tool, wire: dict[str, Any], shown: dict[str, Any]) -> CallAnswer:
    from pi_mcp import files
    from pi_mcp.tools import results
    from pi_mcp.tools.answers import call_answer

    directory = files.state_dir() / "results"
    limits = results.DEFAULT if sys.stdout.isatty() else results.WHOLE
    presented = results.present(shown, server=tool.server, directory=directory, limits=limits)
    if presented.files:
        results.sweep(directory)
    warning = None
    if tool.output_schema is not None:
        from pi_mcp.tools import output

        warning = output.check(tool.output_schema, wire)
    return call_answer(tool.server, tool.name, wire, presented, warning)


def _by_plugin(options: argparse.Namespace, arguments: dict[str, Any] | None) -> int:
    """By way of the plugin and the SDK."""

    async def work(plugin: Plugin, session: Session) -> int:
        from pi_mcp.tools.names import native_name, without_server

        plugin.definition(options.server)
        # The live listing first: a person who names a tool means the tool as it is now.
        catalog = await plugin.catalogs.live(options.server)
        tool = catalog.tool(options.tool) or next(
            (tool for tool in catalog.tools if native_name(tool.server, tool.name) == options.tool), None
        )
        if tool is None:
            asked = without_server(options.tool, options.server)
            await session.load([f"{options.server}.{asked}"])  # raises with close names
            raise failure("not_found", "call", options.server, f"No tool is called {clean_line(options.tool)!r}.")
        given = _arguments(options, tool.input_schema) if arguments is None else arguments
        answer = await session.load([native_name(tool.server, tool.name)])
        problem = next((hit.problem for hit in answer.hits if hit.problem), None)
        if problem is not None:
            raise failure("protocol_error", "call", options.server, f"The tool cannot be used: {clean_line(problem)}.")
        result = await session.call(native_name(tool.server, tool.name), given, typed=True)
        end_progress(session)
        return _finish(tool, dict(result.raw), options, result)

    return with_session(options, work)
