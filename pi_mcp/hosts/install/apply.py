"""Carries a plan out: under one lock, each file whole or not at all, and nothing over what was not shown.

Comes in: a `Plan`. Goes out: changed files. A file that is no longer as it was when the plan was made stops everything
before the first write. `steady` tells whether a plan was made between two runs, and not in the middle of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pi_mcp import files
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.hosts.install.plan import Change, Plan
from pi_mcp.hosts.install.surroundings import Surroundings
from pi_mcp.text import clean_line

MAX_FILE = 64 * 1024 * 1024
"""Bytes of a client's file; Claude Code's holds histories."""
UNREADABLE = ("cannot be read", "See its owner and permissions.")
_WRITABLE = (
    "See that it is in a folder of yours that is not read-only, and that the disk has room; then repeat this: what was "
    "written until now stays and is finished."
)


def read(path: Path) -> bytes | None:
    """The bytes of a regular file, None when there is nothing.

    Raises ConfigurationError for anything else there, and for a file that cannot be read.
    """
    try:
        if not path.exists() and not path.is_symlink():
            return None
        if path.is_symlink() or not path.is_file():
            raise unusable(path, "is no regular file of its own", "Move it away.")
        if path.stat().st_size > MAX_FILE:
            raise unusable(path, "is larger than 64 MiB", "Is it the right one?")
        return path.read_bytes()
    except OSError:
        raise unusable(path, *UNREADABLE) from None


def written(around: Surroundings) -> int | None:
    """When a run last ended writing, in ns since the epoch; None before the first."""
    try:
        return _lock(around).stat().st_mtime_ns
    except OSError:
        return None


def steady(since: int | None, around: Surroundings) -> bool:
    """Whether no run has written from `since`, a value of `written`, to now; one that is writing is waited for.

    False is for a plan that may have seen some files before another run's writing and some after it. Writes nothing.
    Raises PiMcpError where another run does not end.
    """
    lock = _lock(around)
    try:
        if lock.exists():
            with _turn(lock, make_folder=False):
                pass
    except OSError:
        return True  # where nothing can be locked, `apply` has something to say
    return written(around) == since


def apply(plans: Sequence[Plan], around: Surroundings) -> None:
    """Do what the plans say. Raises PiMcpError; what was written until then stays, and a second run finishes it."""
    try:
        with _turn(_lock(around)):
            for plan in plans:
                _verify(plan)
            try:
                for plan in plans:
                    for change in plan.changes:
                        _write(change)
                    for folder in plan.folders:
                        files.remove_empty(folder)
            finally:
                files.touch(_lock(around))
    except PiMcpError:
        raise
    except OSError:
        raise unusable(around.state, "cannot be written", _WRITABLE) from None


def _lock(around: Surroundings) -> Path:
    return around.state / "locks" / "install.lock"


@contextlib.contextmanager
def _turn(lock: Path, *, make_folder: bool = True) -> Iterator[None]:
    """Hold the lock that each run writes under. Raises PiMcpError for one that does not end, OSError."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(files.locked(lock, make_folder=make_folder))
        except TimeoutError:
            raise failure(
                "busy", "command", None, "Another `pi-mcp install` is running.", "Repeat this in a moment."
            ) from None
        yield


def _verify(plan: Plan) -> None:
    """A file is as it was when the plan was made, or already as the plan wants it: another run was quicker."""
    before: dict[Path, bytes | None] = {}
    for change in plan.changes:
        before.setdefault(change.path, change.before)
    after = {change.path: change.after for change in plan.changes}
    for path, expected in before.items():
        if read(path) not in (expected, after[path]):
            raise failure(
                "busy",
                "command",
                None,
                f"{clean_line(str(path), 1000)} changed in the meantime; nothing was written.",
                "Repeat this, and look at the preview again.",
            )


def _write(change: Change) -> None:
    path = change.path
    try:
        if change.after is not None:
            files.write_config(path, change.after)
            return
        files.remove(path)
        if path.suffix == ".py":
            # What the host's Python made of our file goes with it.
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                files.remove(compiled)
            files.remove_empty(path.parent / "__pycache__")
    except OSError:
        raise unusable(path, "cannot be written", _WRITABLE) from None


def unusable(path: Path, what: str, hint: str) -> PiMcpError:
    """What to say of a file or folder of a host's that is in the way."""
    return failure("configuration_invalid", "command", None, f"{clean_line(str(path), 1000)} {what}.", hint)
