"""The `pi-mcp` command: one module for each group of commands, and `main`.

Comes in: the command line. Goes out: with --json one document on standard output, else text; an error is one line
on standard error; the exit codes of `errors.CODES`. It holds no logic of its own beyond arguments and printing.
"""

# ruff: noqa: E402 -- what comes before the imports is about the time that they take

from __future__ import annotations

import os
import signal


def _leave(*_: object) -> None:
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C while this is still being loaded: nothing was begun, and nobody wants to see where the loading stood.
    try:
        signal.signal(signal.SIGINT, _leave)
    except ValueError:  # in a thread: who loads this there has its own ways
        pass

import sys

from pi_mcp.cli import later

if sys.argv[1:2] == ["call"]:
    later.put_off_collections()
    # Before anything that imports `dataclasses`: scripts wait for this command and pay for what it loads.
    later.put_off(*later.UNUSED)
    later.lighten_dataclasses()

import argparse
import errno
import importlib
import io
from collections.abc import Sequence
from pathlib import Path

from pi_mcp._version import __version__
from pi_mcp.cli.common import (
    READER_LEFT,
    Command,
    Parser,
    Run,
    add_configuration_arguments,
    let_go,
    reader_left,
    report,
    start_log,
)
from pi_mcp.errors import CODES, Diagnostic, PiMcpError
from pi_mcp.text import clean_line, close_words

GROUPS = ("chat", "tools", "call", "batch", "logins", "setup", "engine", "install", "serve", "access")
"""The modules of this package that register commands, in the order of --help."""

ALONE = frozenset({"call", "batch", "engine"})
"""Commands, each the group of its name, whose parser is built without the others': scripts and hosts wait for them."""


if signal.getsignal(signal.SIGINT) is _leave:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the process exit code (DESIGN §10)."""
    try:
        return _main(argv)
    except KeyboardInterrupt:  # before the command began, or after its end
        return CODES["cancelled"].exit_code


def _main(argv: Sequence[str] | None) -> int:
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    # argparse would take what follows `--` apart; a server's command line is kept as typed.
    command: list[str] | None = None
    if arguments[:1] == ["add"] and "--" in arguments:
        cut = arguments.index("--")
        arguments, command = arguments[:cut], arguments[cut + 1 :]
    alone = arguments[0] if arguments and arguments[0] in ALONE else None
    if alone is None or os.environ.get("PI_MCP_LOG"):
        start_log()
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 gets a ? for what it cannot show; in the C locale Python would raise there, too.
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
    try:
        return _run(GROUPS if alone is None else (alone,), arguments, command)
    finally:
        try:
            sys.stdout.flush()
        except (OSError, ValueError):
            let_go(sys.stdout)


def _run(groups: Sequence[str], arguments: list[str], command: list[str] | None) -> int:
    """Parse and run; the exit code. Only what argparse ends by itself, after --help and such, is raised."""
    as_json = False
    try:
        try:
            options = _parsed(build_parser(groups), arguments)
        except SystemExit:
            sys.stdout.flush()
            raise
        if command is not None:
            options.command_line = command
        as_json = getattr(options, "json", False)
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except PiMcpError as error:
        return report(error.diagnostic, as_json=as_json)
    except KeyboardInterrupt:
        return _stopped(arguments, as_json)
    except Exception as error:  # a traceback is for the debug log
        if isinstance(error, BrokenPipeError) and reader_left():
            let_go(sys.stdout)
            return READER_LEFT
        import logging

        start_log()  # else what has no handler is printed
        logging.getLogger("pi_mcp.cli").exception("a command failed with %s", type(error).__name__)
        return report(_fault(error), as_json=as_json)
    except BaseException as error:
        if type(error).__name__ != "CancelledError":  # asyncio's, which is loaded where it can come from
            raise
        return _stopped(arguments, as_json)


def _parsed(parser: Parser, arguments: list[str]) -> argparse.Namespace:
    """As argparse reads it, but for what it knows no command or option for: that is answered in one line."""
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction)).choices
    first = arguments[0] if arguments else ""
    if first.startswith("-") and first.partition("=")[0] not in parser._option_string_actions:
        named = next((word for word in arguments if word in commands), "COMMAND")
        given = clean_line(first.partition("=")[0], 60)
        parser.refuse(f"{given} goes after the command", f"Write: pi-mcp {named} {given} …")
    if first and not first.startswith("-") and first not in commands:
        parser.refuse(
            f"there is no command {clean_line(first, 60)!r}", close_words(first, commands) or "See pi-mcp --help."
        )
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = commands[first]
        given = clean_line(unknown[0].partition("=")[0], 60)
        if unknown[0].startswith("-"):
            close = close_words(given, [name for name in command._option_string_actions if name.startswith("--")])
            command.refuse(f"there is no option {given}", close or f"See {command.prog} --help.")
        command.refuse(f"{given!r} is a word too many", f"See {command.prog} --help.")
    return options


def _open_streams() -> None:
    """A standard stream that the caller has closed is /dev/null: else the next socket would get its number, and with
    it whatever anybody prints."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            try:
                os.fstat(number)
            except OSError:
                os.dup2(opened, number)
            if opened != number:
                os.close(opened)
            stream = Path(os.devnull).open("r+" if number else "r", encoding="utf-8")  # noqa: SIM115 -- to the end
            setattr(sys, name, stream)


_CALLS = {
    "call": "A call that was under way may have taken effect.",
    "chat": "A call that was under way may have taken effect.",
    "batch": "Calls that were under way may have taken effect. The same command goes on where this one was.",
}
"""What there is to know after a command that calls tools was stopped."""


def _stopped(arguments: Sequence[str], as_json: bool) -> int:
    hint = _CALLS.get(arguments[0]) if arguments else None
    return report(Diagnostic("cancelled", "command", None, "Stopped.", hint), as_json=as_json)


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
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return Diagnostic(
            "operation_failed",
            "command",
            None,
            "The output cannot be written. A call that was made may have taken effect all the same.",
            "See that the disk has room.",
        )
    return Diagnostic(
        "operation_failed",
        "command",
        None,
        "That failed inside pi-mcp; whether a call took effect is unknown.",
        "PI_MCP_LOG=debug writes more to the log file.",
    )


def build_parser(groups: Sequence[str] = GROUPS) -> Parser:
    """The command line of these groups; docs/reference.md is generated from all of them."""
    parser = Parser(
        prog="pi-mcp",
        description="One search tool in place of a thousand MCP tools, for terminal coding agents.",
        epilog="Exit codes: 0 ok, 1 the tool reported an error, 2 usage or configuration, 3 server, 4 login, "
        "5 not found, 6 timeout, 7 refused, 130 stopped, 141 nobody reads the output. More: docs/scripting.md.",
    )
    parser.add_argument("--version", action="version", version=f"pi-mcp {__version__}")
    parser.set_defaults(run=lambda _: _help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Command)

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

    for group in groups:
        importlib.import_module(f"pi_mcp.cli.{group}").register(add)
    return parser


def _help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return 0


def exit_codes() -> dict[int, str]:
    """Exit code → the diagnostic codes behind it, for help and docs."""
    table: dict[int, list[str]] = {0: ["ok"]}
    for name, code in CODES.items():
        table.setdefault(code.exit_code, []).append(name)
    table[READER_LEFT] = ["no code: nobody reads the output"]
    return {number: "/".join(names) for number, names in sorted(table.items())}
