"""The engine as a process: its file descriptors, signals and end.

Comes in: nothing but what the process has. Goes out: its exit code. After `run` has taken the protocol's pipes, file
descriptors 0 and 1 are harmless: a library that prints, or a child that inherits them, cannot break the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pi_mcp.hosts.engine.serve import Engine

FINISH_LIMIT = 0.5
"""Seconds that the last lines have to reach the host."""
PARENT_EVERY = 1.0
"""Seconds between two looks at whether the process that started us is still there."""
END_LIMIT = 5.0
"""Seconds that the engine has for its end, once its host is gone."""


def run() -> int:
    """Serve the host on standard input and output until it ends; returns the exit code."""
    fds = _take_pipes()
    code = asyncio.run(_serve(*fds))
    sys.stderr.flush()
    return code


def _take_pipes() -> tuple[int, int]:
    """The protocol's ends under new numbers, which no child inherits."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return reading, writing


async def _serve(reading: int, writing: int) -> int:
    from pi_mcp.hosts.engine.serve import Engine
    from pi_mcp.hosts.engine.wire import Reader, Writer

    writer = Writer(writing)
    engine = Engine(Reader(reading), writer)
    loop = asyncio.get_running_loop()
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        with contextlib.suppress(AttributeError, NotImplementedError):  # Windows has neither
            loop.add_signal_handler(getattr(signal, name), engine.stop)
    threading.Thread(target=_outlive_nobody, args=(engine, loop), name="engine's host", daemon=True).start()
    code = await engine.run()
    await writer.finish(FINISH_LIMIT)
    # Threads that wait for something outside (a keyring's prompt, a file system) must not keep the process.
    sys.stderr.flush()
    os._exit(code)


def _outlive_nobody(engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
    """End with the host, although a child of its own still holds the other end of our pipe.

    In a thread: an event loop that stands still would learn neither of that nor of the end of its input. The servers
    have supervisors, which end them when this process is gone.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(PARENT_EVERY)
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(engine.stop)
    time.sleep(END_LIMIT)
    os._exit(1)
