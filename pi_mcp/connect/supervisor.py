"""Run one stdio server so that nothing of it outlives the host: `python -I -S supervisor.py CMD…`.

Comes in: a command line, and the host's pipes as stdin, stdout and stderr. Goes out: the same command's exit
status, or its signal. It never reads or writes the pipes, and imports nothing but the standard library.

Two processes, the outer and the inner, watch over the server, so that either may be killed alone:

    host ── outer (subreaper) ── inner (subreaper) ── server ── whatever it starts

* Host dies: the outer has asked the kernel for a signal (parent-death signal), and ends the tree.
* Outer dies: the inner has asked for the same about the outer.
* Inner dies: the server gets SIGKILL from the kernel; its descendants, wherever they moved (new session, double
  fork), become children of the outer, which kills them.
* Server ends: what is left below the inner is ended with SIGTERM, then SIGKILL.

Both killed at the same time: the server goes, by the kernel's signal, but not what it started.

The parent-death signal fires when the parent's *thread* ends, so it is one that can be caught, and `getppid()`
tells whether the parent is really gone. Where the kernel offers neither (macOS), the parent is looked at once a
second, and only the server's process group can be ended: a descendant that left it survives there, and so does the
server when both supervisors are killed.
"""

# ruff: noqa: PTH123, PTH208, S606 -- pathlib would double the time that each server takes to start

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL when the host asks for the end."""
ORPHANED_GRACE = 1.0
"""The same when the parent is gone."""
LEFT_BEHIND_GRACE = 0.3
"""The same for descendants of a server that has ended by itself; its exit is reported after that."""

HOST_VARIABLE = "PI_MCP_HOST_PID"
"""The host's process id: it may be gone before this program's first line. Not passed on to the server."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PARENT_GONE = signal.SIGUSR1
_LINUX = sys.platform == "linux"

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if _LINUX:
        _libc.prctl(option, value, 0, 0, 0)


if _LINUX:
    import ctypes

    _libc = ctypes.CDLL(None)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Handlers do nothing: the signal's number arrives through the wake-up pipe."""


def _open_wakeup() -> int:
    """Let caught signals write their number to a pipe; the end to read from."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (*_ENDING, signal.SIGCHLD, _PARENT_GONE):
        signal.signal(number, _ignore)
    return reader


def _own_group(pid: int) -> None:
    """A group of its own: a launcher that signals its whole group does not hit its supervisors."""
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass


def _forget_coerced_locale() -> None:
    """Python sets LC_CTYPE in the C locale (PEP 538); the server gets the environment that the host chose."""
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        os.environ.pop("LC_CTYPE", None)


def _become_server(command: list[str], parent: int) -> None:
    """Turn this forked process into the server. Does not return."""
    signal.set_wakeup_fd(-1)
    for number in (*_ENDING, signal.SIGCHLD, _PARENT_GONE, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    if hasattr(signal, "SIGXFSZ"):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    _own_group(0)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"pi-mcp: cannot execute {command[0]}: {error.strerror}\n".encode(errors="replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def _children() -> list[int]:
    """The living and dead children of this process."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        pass
    found = []
    try:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        # The name in parentheses may hold anything, so count from its end: state, ppid.
                        if int(file.read().rpartition(b")")[2].split()[1]) == me:
                            found.append(int(name))
                except (OSError, ValueError, IndexError):
                    continue
    except OSError:
        pass
    return found


def _signal(target: int, number: int, *, group: bool = False) -> None:
    try:
        if group:
            os.killpg(target, number)
        else:
            os.kill(target, number)
    except OSError:
        pass


def _reap() -> tuple[dict[int, int], bool]:
    """Wait for every child that has ended: their wait statuses, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = status


def _in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except OSError:
        return False


def _end_tree(group: int | None, grace: float) -> dict[int, int]:
    """SIGTERM, up to `grace` seconds, then SIGKILL for all children, also those that come to us meanwhile.

    The server's process `group` is asked as one, and no member twice: a second SIGTERM means "at once" to some.
    """
    ended, left = _reap()
    if not left and not _LINUX and group is not None:
        _signal(group, signal.SIGKILL, group=True)
    start = time.monotonic()
    asked: set[int] = set()
    if group is not None and left:
        _signal(group, signal.SIGTERM, group=True)
        asked = {pid for pid in _children() if _in_group(pid, group)}
    while left and time.monotonic() < start + grace + 3.0:
        late = time.monotonic() >= start + grace
        if late and group is not None:
            _signal(group, signal.SIGKILL, group=True)
        for pid in _children():
            if late:
                _signal(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
        time.sleep(0.005)
        more, left = _reap()
        ended |= more
    return ended


def _watch(child: int, parent: int, wakeup: int, group: int | None, *, child_is_server: bool) -> int:
    """Stay until `child` has ended or must end, and nothing of it is left; its wait status.

    `group` is the server's process group, for the inner one; for the outer only where orphans do not come to it.
    """
    while True:
        if _LINUX:
            numbers = os.read(wakeup, 64)
        else:
            import select

            ready, _, _ = select.select([wakeup], [], [], 1.0)
            numbers = os.read(wakeup, 64) if ready else b""
        ended, _ = _reap()
        if child in ended:
            _end_tree(group, LEFT_BEHIND_GRACE if child_is_server else 0.0)
            return ended[child]
        orphaned = os.getppid() != parent
        if orphaned or any(number in _ENDING for number in numbers):
            grace = ORPHANED_GRACE if orphaned else GRACE
            if not child_is_server:
                # The inner one does the work within `grace`; this is for the case that it cannot.
                grace += 2.0
            ended = _end_tree(group, grace)
            return ended.get(child, 1 << 8)


def _leave(status: int) -> None:
    """End as the server did: with its exit status, or by its signal (without a core file of our own)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _prctl(_PR_SET_DUMPABLE, 0)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        time.sleep(1)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def main(command: list[str]) -> None:
    host = int(os.environ.pop(HOST_VARIABLE, "0")) or os.getppid()
    _forget_coerced_locale()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    wakeup = _open_wakeup()
    _prctl(_PR_SET_PDEATHSIG, _PARENT_GONE)
    if os.getppid() != host:
        os._exit(0)
    outer = os.getpid()
    group: int | None
    reader, writer = os.pipe()
    inner = os.fork()
    if inner == 0:
        os.close(wakeup)
        wakeup = _open_wakeup()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, _PARENT_GONE)
        if os.getppid() != outer:
            os._exit(0)
        me = os.getpid()
        server = os.fork()
        if server == 0:
            _become_server(command, me)
        _own_group(server)  # both sides do it, so that neither can be too early
        os.write(writer, str(server).encode())
        child, parent, group, child_is_server = server, outer, server, True
    else:
        os.close(writer)
        told = 0 if _LINUX else int(os.read(reader, 32) or 0)
        child, parent, group, child_is_server = inner, host, told or None, False
    # The pipes belong to the server alone, so that the end of file still means something on both sides.
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    _leave(_watch(child, parent, wakeup, group, child_is_server=child_is_server))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        os.write(2, b"usage: supervisor.py COMMAND [ARGUMENT ...]\n")
        os._exit(2)
    main(sys.argv[1:])
