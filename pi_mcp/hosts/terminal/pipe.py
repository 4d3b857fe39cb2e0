"""Lines of a pipe or file on standard input, without ever keeping the process from ending.

Comes in: a file descriptor. Goes out: its lines, stripped, blank ones left out. It interprets nothing.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import threading
from collections.abc import AsyncIterator

CHUNK = 65536
LONGEST = 1 << 20
"""Characters of a line; what is longer is cut into several."""


async def piped_lines(descriptor: int) -> AsyncIterator[str]:
    """The lines of `descriptor` until its end; bytes that are no UTF-8 become U+FFFD."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        # A thread of its own, not the loop's pool: that one is waited for at the end, and a pipe may stay silent
        # for ever. `os.read`, because a thread that dies inside `sys.stdin` would hold its lock.
        data = b"-"
        while data:
            try:
                data = os.read(descriptor, CHUNK)
            except OSError:
                data = b""
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(chunks.put_nowait, data)

    threading.Thread(target=read, name="pi-mcp stdin", daemon=True).start()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while True:
        data = await chunks.get()
        rest += decoder.decode(data, final=not data)
        *lines, rest = rest.split("\n")
        if not data or len(rest) > LONGEST:
            lines.append(rest)
            rest = ""
        for line in lines:
            if line.strip():
                yield line.strip()
        if not data:
            return
