"""Which processes, files and tasks are left: what tests of process life ask again and again. Linux.

Comes in: process ids. Goes out: those that live. A zombie counts as gone, because PID 1 may reap late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def alive(pids: Iterable[int]) -> list[int]:
    """Those of `pids` that exist and are no zombies."""
    return [pid for pid in pids if state_of(pid) not in (None, "Z", "X")]


def state_of(pid: int) -> str | None:
    """The letter of `/proc/PID/stat`, or None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def gone(pids: Iterable[int], seconds: float = 5.0) -> bool:
    """Wait until none of them lives; False when some still do after `seconds`."""
    pids = list(pids)
    end = time.monotonic() + seconds
    while alive(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def children_of(pid: int) -> list[int]:
    """The living and dead children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def descendants_of(pid: int) -> list[int]:
    """Children, their children, and so on."""
    found = children_of(pid)
    for child in list(found):
        found.extend(descendants_of(child))
    return found


def open_files() -> int:
    """How many file descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def nothing_beside(files: int, tasks: set[asyncio.Task[Any]], seconds: float = 10.0) -> None:
    """Fail when, after `seconds`, there are more files than `files`, or tasks that are not among `tasks`.

    They may take a moment: the other end of a connection is often closed by a server in a thread of this process.
    """

    def left() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() - tasks if task is not asyncio.current_task()]

    end = time.monotonic() + seconds
    while time.monotonic() < end and (open_files() > files or left()):  # noqa: ASYNC110 -- no event
        await asyncio.sleep(0.02)
    assert not left(), left()
    assert open_files() <= files, "file descriptors are left"
