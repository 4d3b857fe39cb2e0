"""`pi-mcp batch`: many calls from a file, several at a time, none of them twice.

Comes in: lines of JSON, `{"server", "tool", "arguments", "id"?}`. Goes out: one line of JSON for each on standard
output, in the order of the file:

    {"line": 3, "outcome": "ok", "id": "a", "server": "s", "tool": "t", "result": {…}}

`outcome` is `ok`, `tool_error` (with `result` and `error`), `error`, or `unknown`: it was under way when an earlier run
ended. A line is journaled before it is sent (`journal.py`), so that a run that was broken off goes on where it was.
HTTP servers are asked with the standard library alone, one session for each worker; others by way of the plugin.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pi_mcp.cli.common import (
    configuration_of_run,
    for_command_line,
    reader_left,
    show_missing,
    signals_as_interrupt,
)
from pi_mcp.cli.journal import Journal, JournalBroken
from pi_mcp.cli.workers import Stopping, Workers
from pi_mcp.errors import Diagnostic, PiMcpError, error_of, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import argparse

    from pi_mcp.cli.common import Add

MAX_LINE = 16 << 20
"""Bytes of one line."""
AHEAD = 4096
"""Lines that may be done before the oldest that is not: a slow call must not make the file be read to its end."""
GRACE = 2.0
"""Seconds that calls under way have when the batch is stopped."""


def register(add: Add) -> None:
    command = add("batch", "call many tools, one line of a file each", batch, as_json=False)
    command.add_argument("file", type=Path, metavar="FILE", help='lines of {"server", "tool", "arguments", "id"?}')
    command.add_argument("--concurrency", type=int, default=4, metavar="N", help="calls at a time, 1 to 64 (default 4)")
    command.add_argument(
        "--retry-unknown", action="store_true", help="send again what was under way when an earlier run ended"
    )
    command.add_argument("--journal", type=Path, metavar="FILE", help="in place of FILE.journal")


class OutputLost(Exception):
    """Nobody takes the results any more."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: its number from 1, and what it says, or why it says nothing."""

    number: int
    digest: str
    server: str = ""
    tool: str = ""
    arguments: dict[str, Any] | None = None
    id: Any = None
    problem: str | None = None

    def result(self, outcome: str, **more: Any) -> dict[str, Any]:
        named = {"server": self.server, "tool": self.tool} if self.arguments is not None else {}
        identity = {} if self.id is None else {"id": self.id}
        return {"line": self.number, "outcome": outcome, **identity, **named, **more}


def batch(options: argparse.Namespace) -> int:
    """Run the file; 0 when every call was well, 1 when one was not, 130 when it was stopped."""
    if not 1 <= options.concurrency <= 64:
        raise failure("usage", "call", None, "--concurrency is a number from 1 to 64.")
    configuration = configuration_of_run(options)
    path: Path = options.file.expanduser().absolute()
    hint = "It has to be a regular file."
    try:
        # It is read twice: before the first call, and for the calls.
        usable = path.is_file()
        if usable:
            path.open("rb").close()
        elif not path.exists():
            hint = "It is not there."
    except OSError:
        usable = False
    if not usable:
        raise failure("usage", "call", None, f"The file {clean_line(str(path), 300)} cannot be read.", hint)
    beside: Path = options.journal or path.with_name(path.name + ".journal")
    if beside.exists() and beside.samefile(path):
        raise failure("usage", "call", None, "--journal names the file of calls itself.", "Name a file of its own.")
    journal = Journal(beside)
    finished = False
    run = _Run(options, path, journal, Workers(configuration, options.concurrency))
    try:
        _same_file(path, journal)
        finished = run.whole()
    finally:
        # What is unknown can still be asked for with --retry-unknown.
        journal.close(remove=finished and not run.unknown)
    return 1 if run.bad else 0


class _Run:
    """The main thread's work: read, hand out, print in order."""

    def __init__(self, options: argparse.Namespace, path: Path, journal: Journal, workers: Workers) -> None:
        self._retry = options.retry_unknown
        self._path = path
        self._journal = journal
        self._workers = workers
        self._ready: queue.Queue[int] = queue.Queue()
        self._finished: set[int] = set()
        self._waiting: list[int] = []
        """Numbers that were read and are not printed yet, in order; `_next` is the first."""
        self._next = 0
        self._loose: dict[int, dict[str, Any]] = {}
        """Results of lines that were not sent: they are not in the journal, and another run looks at them anew."""
        self._under_way = 0
        self._broken = False
        self._shown = _Progress(path)
        self.bad = 0
        self.unknown = 0

    def whole(self) -> bool:
        """True when every line has its result. Raises KeyboardInterrupt when it was stopped, and PiMcpError when the
        journal cannot be written any more: without it nothing is sent."""
        with signals_as_interrupt(), self._workers:
            try:
                for line in lines_of(self._path):
                    self._take(line)
                    while self._under_way >= self._workers.count * 2 or len(self._waiting) - self._next >= AHEAD:
                        self._settle(self._ready.get())
                        self._check()
                    self._drain()
                    self._check()
                while self._under_way:
                    self._settle(self._ready.get())
                    self._check()
                self._print()
            except KeyboardInterrupt:
                self._stop()
                raise
            except OutputLost:
                self._workers.stop(GRACE)
                if reader_left():
                    show_missing([_UNREAD])
                    raise BrokenPipeError from None
                raise error_of(_UNREAD) from None
            except JournalBroken:
                self._stop()
                raise failure(
                    "operation_failed",
                    "call",
                    None,
                    f"The journal {clean_line(str(self._journal.path), 300)} cannot be written or read any more; "
                    "nothing more was sent.",
                    "See that the disk has room, then start the batch again: it goes on where it was.",
                ) from None
            finally:
                self._shown.finish()
        return True

    def _take(self, line: Line) -> None:
        number = line.number
        self._waiting.append(number)
        state = self._journal.state(number)
        if state == "done":
            self._finished.add(number)
        elif line.problem is not None:
            diagnostic = Diagnostic("usage", "call", None, line.problem, "The other lines are not affected.")
            self._put_by(line.number, line.result("error", error=diagnostic.to_json()))
        elif state == "sent" and not self._retry:
            self.unknown += 1
            self._put_by(line.number, line.result("unknown", error=_UNKNOWN.to_json()))
        else:
            self._under_way += 1
            self._workers.hand_out(lambda: self._work(line))
        self._print()

    def _put_by(self, number: int, result: dict[str, Any]) -> None:
        self._loose[number] = result
        self._finished.add(number)

    def _work(self, line: Line) -> None:
        """On a worker's thread. Tells the main thread in any case, which would wait for ever else."""
        known = False
        try:
            known = self._worked(line)
        except BaseException:
            self._broken = True
            raise
        finally:
            self._ready.put(line.number if known else -line.number)

    def _worked(self, line: Line) -> bool:
        """Whether there is a result now."""
        sent = False

        def before() -> None:
            nonlocal sent
            self._journal.sent(line.number, line.digest)
            sent = True

        try:
            result = self._outcome(line, before)
        except Stopping:
            return False  # it stays as it is in the journal
        except JournalBroken:
            self._broken = True
            return False
        try:
            if sent:
                self._journaled(line, result)
            else:
                self._loose[line.number] = result
        except JournalBroken:
            self._broken = True
            self._loose[line.number] = result  # it is known now, although the next run cannot know it
        return True

    def _journaled(self, line: Line, result: dict[str, Any]) -> None:
        try:
            self._journal.done(line.number, result)
        except (ValueError, RecursionError):
            message = "The call was answered, and the result holds what no JSON can hold."
            diagnostic = Diagnostic("protocol_error", "call", line.server, message, "Look at the server's version.")
            self._journal.done(line.number, line.result("error", error=diagnostic.to_json()))

    def _outcome(self, line: Line, before: Callable[[], None]) -> dict[str, Any]:
        try:
            wire = self._workers.call(line.server, line.tool, line.arguments or {}, before=before)
        except PiMcpError as error:
            return line.result("error", error=for_command_line(error.diagnostic).to_json())
        except (Stopping, JournalBroken):
            raise
        except Exception:  # ours: it ends this line and no other
            message = "That failed inside pi-mcp; whether the call took effect is unknown."
            return line.result("error", error=Diagnostic("operation_failed", "call", line.server, message).to_json())
        if wire.get("isError") is True:
            message = f"{clean_line(line.tool)} reported an error."
            diagnostic = Diagnostic("tool_error", "call", line.server, message, "Its own text says why.")
            return line.result("tool_error", result=wire, error=diagnostic.to_json())
        return line.result("ok", result=wire)

    # in order

    def _settle(self, number: int) -> None:
        self._under_way -= 1
        if number > 0:
            self._finished.add(number)
        self._print()

    def _drain(self) -> None:
        while True:
            try:
                self._settle(self._ready.get_nowait())
            except queue.Empty:
                return

    def _check(self) -> None:
        if self._broken:
            raise JournalBroken

    def _print(self) -> None:
        out = sys.stdout.buffer
        while self._next < len(self._waiting) and self._waiting[self._next] in self._finished:
            number = self._waiting[self._next]
            self._finished.discard(number)
            self._next += 1
            loose = self._loose.pop(number, None)
            data = self._journal.result(number) if loose is None else json.dumps(loose).encode() + b"\n"
            self.bad += b'"outcome": "ok"' not in data[:80]
            self._shown.make_way()
            _written(out, data)
        _written(out)
        if self._next > 1024:
            del self._waiting[: self._next]
            self._next = 0
        self._shown.show(self._workers.done)

    def _stop(self) -> None:
        """Hand out nothing more; what is under way has a moment to end, and is cancelled then."""
        self._workers.stop(GRACE)
        with contextlib.suppress(JournalBroken, OutputLost):
            self._drain()


def _written(out: BinaryIO, data: bytes | None = None) -> None:
    try:
        out.flush() if data is None else out.write(data)
    except OSError:
        raise OutputLost from None


_UNKNOWN = Diagnostic(
    "operation_failed",
    "call",
    None,
    "It was under way when an earlier run ended. Whether it took effect is unknown.",
    "See at the server what became of it; --retry-unknown sends it again.",
)
_UNREAD = Diagnostic(
    "operation_failed",
    "call",
    None,
    "The results cannot be written any more; nothing more was sent.",
    "Start the batch again with an output that takes them: it goes on where it was.",
)


def lines_of(path: Path) -> Iterator[Line]:
    """The lines that are not blank. One that cannot be used has a `problem`."""
    with path.open("rb") as file:
        number = 0
        while data := file.readline(MAX_LINE + 1):
            number += 1
            whole = hashlib.sha256(data)
            if len(data) > MAX_LINE:
                while not data.endswith(b"\n") and (data := file.readline(MAX_LINE)):
                    whole.update(data)
                yield Line(number, whole.hexdigest()[:32], problem=f"The line is over {MAX_LINE >> 20} MiB.")
            elif data.strip():
                yield _line(number, whole.hexdigest()[:32], data)


def _line(number: int, digest: str, data: bytes) -> Line:
    def wrong(problem: str, id: Any = None) -> Line:
        return Line(number, digest, id=id, problem=problem)

    try:
        value = json.loads(data.decode("utf-8-sig"), parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return wrong("The line is no JSON.")
    if not isinstance(value, dict):
        return wrong("The line is no JSON object.")
    id = value.get("id")
    server, tool, arguments = value.get("server"), value.get("tool"), value.get("arguments", {})
    unknown = sorted(set(value) - {"server", "tool", "arguments", "id"})
    if not isinstance(server, str) or not isinstance(tool, str) or not server or not tool:
        return wrong("`server` and `tool` have to be texts.", id)
    if not isinstance(arguments, dict):
        return wrong("`arguments` has to be an object.", id)
    if unknown:
        return wrong(f"A member is not known: {clean_line(unknown[0], 60)}.", id)
    return Line(number, digest, server, tool, arguments, id)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is no number")
    return value


def _same_file(path: Path, journal: Journal) -> None:
    """The lines that an earlier run has sent have to be the same still; else nothing is sent at all."""
    if not journal.last:
        return
    other = 0
    for line in lines_of(path):
        if not journal.is_same(line.number, line.digest):
            other = line.number
            break
        if line.number >= journal.last:
            return
    where = f"line {other}" if other else "it is shorter"
    raise failure(
        "usage",
        "call",
        None,
        f"{clean_line(str(path), 300)} is not the file that its journal speaks of ({where}); nothing was sent.",
        f"Undo the change, or remove {clean_line(str(journal.path), 300)} to begin anew.",
    )


class _Progress:
    """One line on standard error that rewrites itself, where that is a terminal."""

    def __init__(self, path: Path) -> None:
        self._host: Any = None
        self._shown = 0.0
        self._name = path.name
        self._shares = sys.stdout.isatty()
        if sys.stderr.isatty():
            from pi_mcp.hosts.script import ScriptHost

            self._host = ScriptHost()

    def show(self, done: int) -> None:
        if self._host is not None and time.monotonic() - self._shown > 0.1:
            self._shown = time.monotonic()
            self._host.progress(f"{clean_line(self._name, 60)}: {done} {'call' if done == 1 else 'calls'} done")

    def make_way(self) -> None:
        """For a result, where that is printed on the same terminal."""
        if self._shares:
            self.finish()

    def finish(self) -> None:
        if self._host is not None:
            self._host.finish()
