"""What every command shares: the parsers, failures, running against a plugin, printing.

Comes in: a command's options. Goes out: text or one JSON document on standard output, and exit codes. It knows no
command.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO

from pi_mcp.errors import Diagnostic, failure, outside_chat
from pi_mcp.text import clean_line, fitted, quoted

if TYPE_CHECKING:
    import signal

    from pi_mcp.config import Configuration
    from pi_mcp.hosts.script import ScriptHost
    from pi_mcp.plugin import Plugin, Session

Run = Callable[[argparse.Namespace], int]


class Add(Protocol):
    """Adds one command to the parser: every module of commands has a `register(add)`.

    The options common to commands are switched off by `as_json`, `config` and `project`.
    """

    def __call__(
        self, name: str, summary: str, run: Run, *, config: bool = True, project: bool = True, as_json: bool = True
    ) -> argparse.ArgumentParser: ...


class _Layout(argparse.HelpFormatter):
    """As wide as the terminal. argparse asks `shutil` for that, which loads every archive format of the library."""

    def __init__(self, prog: str, **options: Any) -> None:
        columns = os.environ.get("COLUMNS", "")
        try:
            wide = int(columns) if columns.isdecimal() and int(columns) else os.get_terminal_size().columns
        except (OSError, ValueError):
            wide = 80
        super().__init__(prog, **{"width": max(wide, 20) - 2, **options})


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as a diagnostic: as JSON where --json was given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Layout, **options})

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        if options.get("nargs") == "*":
            options.setdefault("default", [])  # else argparse says that one is required
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        self.refuse(clean_line(message, 300), f"Usage: {' '.join(self.format_usage().split()[1:])}")

    def refuse(self, message: str, hint: str) -> NoReturn:
        """End with a wrong command line; `message` has no full stop yet."""
        diagnostic = Diagnostic("usage", "command", None, f"{message}.", hint)
        sys.exit(report(diagnostic, as_json="--json" in sys.argv))


class Command(Parser):
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


def start_log() -> None:
    """Set the loggers up. A command that loads no library of others' does without, unless PI_MCP_LOG asks for it."""
    from pi_mcp.log import configure_logging

    configure_logging()


def report(diagnostic: Diagnostic, *, as_json: bool) -> int:
    """Print a failure where it belongs and return its exit code."""
    diagnostic = for_command_line(diagnostic)
    if as_json:
        try:
            show_json({"error": diagnostic.to_json()})
            sys.stdout.flush()
            return diagnostic.exit_code
        except OSError:  # then it is told where there may be somebody
            let_go(sys.stdout)
    show(diagnostic.line(), error=True)
    return diagnostic.exit_code


READER_LEFT = 141
"""The exit code when the reader of standard output went away (`| head`): what a shell says of other programs then."""


def reader_left() -> bool:
    """Whether nobody can read standard output any more."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # the end is told without being asked for
        return bool(poll.poll(0))
    except (OSError, ValueError):
        return False


def let_go(stream: TextIO) -> None:
    """A stream that takes nothing any more gets nothing more: what is left for it would fail again at the process's
    end, with words and an exit code of the interpreter's."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def for_command_line(diagnostic: Diagnostic) -> Diagnostic:
    """The same with a next step that works outside a chat: this process and what it heard of a server end now."""
    hint = diagnostic.hint
    if hint is None:
        return diagnostic
    if diagnostic.code == "timeout" and "in the background" in hint:
        server = clean_line(diagnostic.server or "", 64)
        hint = f"`pi-mcp refresh {quoted(server)}` waits for it longer, and keeps its tools."
    if diagnostic.code == "not_found" and hint.startswith("Search for it"):
        hint = "`pi-mcp tools SERVER` lists what a server has."
    return replace(diagnostic, hint=outside_chat(hint))


def show_json(value: Any) -> None:
    json.dump(value, sys.stdout, ensure_ascii=True, indent=2)
    sys.stdout.write("\n")


def add_configuration_arguments(parser: argparse.ArgumentParser, *, project: bool = True) -> None:
    if not project:
        parser.add_argument("--config", type=Path, metavar="FILE", help="write this file in place of the user's")
        return
    parser.add_argument("--config", type=Path, metavar="FILE", help="read this file in place of the user's files")
    parser.add_argument(
        "--trust-project", action="store_true", help="use the project's .mcp.json without asking, for this run"
    )


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
    import asyncio

    from pi_mcp.config import load_config
    from pi_mcp.hosts.script import ScriptHost
    from pi_mcp.plugin import Plugin

    configuration = configuration_of_run(options)

    async def run() -> int:
        task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        if task is not None:
            for number in ending_signals():
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


def ending_signals() -> list[signal.Signals]:
    """The signals that end a command as Ctrl-C does: those that nobody had it ignore, as `nohup` does with SIGHUP."""
    import signal

    ends = (signal.SIGTERM, signal.SIGHUP)
    return [number for number in ends if signal.getsignal(number) is not signal.SIG_IGN]


class signals_as_interrupt:
    """SIGTERM and SIGHUP stop the work within it as Ctrl-C does."""

    def __enter__(self) -> None:
        import signal

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        self._before = [(number, signal.signal(number, stop)) for number in ending_signals()]

    def __exit__(self, *_: object) -> None:
        import signal

        for number, handler in self._before:
            signal.signal(number, handler)


def end_progress(session: Session) -> None:
    """Take the progress line away before anything is printed beside it."""
    from pi_mcp.hosts.script import ScriptHost

    if isinstance(session.host, ScriptHost):
        session.host.finish()


# Printing


def show(text: str, *, error: bool = False) -> None:
    """Lines for a person, on standard output or error: on a terminal broken between words, elsewhere as they are."""
    out = sys.stderr if error else sys.stdout
    columns = terminal_columns(out)
    text = text if columns is None else fitted(text, columns)
    try:
        print(text, file=out)
    except OSError:
        if not error:
            raise
        let_go(out)  # the exit code says it all the same


def terminal_columns(stream: TextIO) -> int | None:
    """How wide the terminal is; None where the stream is none, or it does not know its width."""
    if stream.isatty():
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(stream.fileno()).columns or None
    return None


def show_answer(answer: Any) -> int:
    """A CommandAnswer on standard output, or its failure on standard error; the exit code."""
    from pi_mcp.hosts.terminal.render import print_answer

    if answer.diagnostic is not None and answer.text == answer.diagnostic.line():
        return report(answer.diagnostic, as_json=False)
    print_answer(replace(answer, text=outside_chat(answer.text)))
    return answer.diagnostic.exit_code if answer.diagnostic is not None else 0


def show_command(answer: Any, options: argparse.Namespace) -> int:
    """A CommandAnswer, as JSON where that was asked for."""
    if not options.json:
        return show_answer(answer)
    if answer.diagnostic:
        return report(answer.diagnostic, as_json=True)
    show_json({"text": answer.text})
    return 0


def show_missing(missing: Iterable[Diagnostic]) -> None:
    for diagnostic in missing:
        show(for_command_line(diagnostic).line(), error=True)
