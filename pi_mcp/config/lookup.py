"""Secret commands are run, and their output becomes the values of headers and variables.

Comes in: a resolved server whose `!command` values are still open. Goes out: the same with the values, each in a
`Secret`. A command runs at connection time only, in its own process group, which is gone when this room is
left; its stderr is discarded. No value and no part of a command appears in an error, a repr or a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pi_mcp.config.resolve import ResolvedServer
from pi_mcp.config.secret import Secret, SecretCommand, header_fault
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

MAX_OUTPUT = 64 * 1024
"""Bytes of stdout that a secret command may write."""
_LAST_WORDS = 0.25
"""Seconds that stdout may stay open after the shell has ended: a descendant in the background may hold it."""

# What runs the command ($1) on POSIX. Its own stdin is a pipe that only the engine holds open: when the engine is
# killed, however hard, the pipe ends and the whole group goes. The command itself reads /dev/null.
_WATCHED = """\
exec 3<&0 </dev/null
/bin/sh -c "$1" 3<&- &
command=$!
{ read -r _ <&3; kill -KILL 0; } >/dev/null &
watch=$!
exec 3<&-
wait "$command"
status=$?
kill "$watch"
wait "$watch"
exit "$status"
"""


async def resolve_secrets(resolved: ResolvedServer) -> ResolvedServer:
    """Run the commands of one server, all at once, and put their output in its headers and variables.

    For one connection: whoever waits for the same connection shares the call. Raises ConfigurationError
    (`secret_lookup_failed`) for the first that gives no usable value; the others are then ended. When the caller
    is cancelled every process group is killed before this returns.
    """
    if not resolved.commands:
        return resolved
    tasks = [asyncio.create_task(_value(resolved, command)) for command in resolved.commands]
    try:
        values = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            # A second cancel would interrupt the clean-up that the first one began.
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    tables = {"headers": dict(resolved.headers), "env": dict(resolved.env)}
    for command, value in zip(resolved.commands, values, strict=True):
        resolved.redactor.add(value)
        tables[command.table][command.key] = Secret(value)
    return replace(resolved, headers=tables["headers"], env=tables["env"], commands=())


async def secret_value(resolved: ResolvedServer, command: SecretCommand) -> str:
    """The output of one command of `oauth`, outside a connection. Raises as `resolve_secrets`."""
    return await _value(resolved, command)


async def _value(resolved: ResolvedServer, command: SecretCommand) -> str:
    server = resolved.definition.name

    def refuse(what: str, hint: str) -> PiMcpError:
        return failure(
            "secret_lookup_failed", "connect", server, f"The command for `{command.field_name}` {what}.", hint
        )

    directory = resolved.cwd or Path.cwd()
    if not directory.is_dir():
        raise refuse(
            f"could not start: its working directory {clean_line(str(directory), 500)} does not exist",
            "Correct `cwd`.",
        )
    try:
        status, output = await asyncio.wait_for(
            _run(command.text, directory, {**os.environ, **resolved.environ}), command.time_limit
        )
    except TimeoutError:
        raise refuse(
            f"took longer than {command.time_limit:g} s and was ended",
            "Run it in a terminal: it may be waiting for a login or an answer.",
        ) from None
    except OSError:
        raise refuse("could not be started", "See that a shell and its working directory are there.") from None
    if len(output) > MAX_OUTPUT:
        raise refuse("wrote more than 64 KiB", "It has to print the value and nothing else.")
    if status != 0:
        ended = f"ended with status {status}" if status > 0 else f"was ended by signal {-status}"
        raise refuse(ended, "Run it in a terminal; its error output is not shown here.")
    value = _text(output)
    if value is None:
        raise refuse("wrote something that is no text in UTF-8", "It has to print the value.")
    if not value:
        raise refuse("wrote nothing", "Run it in a terminal; the helper may need a login.")
    if command.table == "headers" and (fault := header_fault(value)):
        raise refuse(f"gave a value that {fault}", "A header's value is one line.")
    if "\0" in value:
        raise refuse("gave a value with a NUL character inside", "A variable cannot hold one.")
    return value


def _text(output: bytes) -> str | None:
    # Not raised from here: the decoder's exception holds the bytes, and would be the context of ours.
    try:
        return output.decode().strip()
    except UnicodeDecodeError:
        return None


async def _run(text: str, directory: Path, environ: Mapping[str, str]) -> tuple[int, bytes]:
    """Exit status and stdout, of which at most one byte over the limit is read."""
    if os.name == "nt":
        return await _run_windows(text, directory, environ)
    # The pipe is ours, not asyncio's: its wait() for a process also waits until every descendant has closed
    # the pipe, and one left in the background may never do that.
    reading, writing = os.pipe()
    watched, alive = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(alive, "wb", buffering=0):
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WATCHED, "sh", text),
                stdin=watched,
                stdout=writing,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=directory,
                env=dict(environ),
                start_new_session=True,
            )
        finally:
            os.close(writing)
            os.close(watched)
        try:
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader(limit=MAX_OUTPUT)
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
            output = bytearray()
            read = asyncio.ensure_future(_drain(reader, output))
            ended = asyncio.ensure_future(process.wait())
            try:
                await asyncio.wait({read, ended}, return_when=asyncio.FIRST_COMPLETED)
                if len(output) > MAX_OUTPUT:
                    return 0, bytes(output)
                status = await ended
                await asyncio.wait({read}, timeout=_LAST_WORDS)
                return status, bytes(output)
            finally:
                read.cancel()
                ended.cancel()
                await asyncio.gather(read, ended, return_exceptions=True)
                transport.close()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 2)


async def _drain(reader: asyncio.StreamReader, output: bytearray) -> None:
    """Append what comes to `output` until the end, or until it is over the limit."""
    while len(output) <= MAX_OUTPUT and (chunk := await reader.read(MAX_OUTPUT + 1 - len(output))):
        output += chunk


async def _run_windows(text: str, directory: Path, environ: Mapping[str, str]) -> tuple[int, bytes]:
    process = await asyncio.create_subprocess_shell(
        text,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=directory,
        env=dict(environ),
    )
    try:
        output, _ = await process.communicate()
        return process.returncode or 0, output
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
