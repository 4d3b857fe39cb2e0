"""What went wrong with the store, in our own words.

Comes in: an exception of SQLAlchemy or SQLite, and the file. Goes out: a PiMcpError. Statements and values of a row
are never part of it.
"""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

_BY_ERRNO = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_READONLY,
    errno.EPERM: sqlite3.SQLITE_READONLY,
    errno.EIO: sqlite3.SQLITE_IOERR,
}
"""What SQLite calls the failures that the files beside the database meet as well: its lock, its folder."""


def store_failure(error: BaseException, path: Path) -> PiMcpError:
    """The failure behind an exception, of SQLite or of the files around it: locked, full, damaged, not writable, or
    unknown."""
    if isinstance(error, PiMcpError):
        return error
    cause = getattr(error, "orig", None) or error
    code = getattr(cause, "sqlite_errorcode", None)
    primary = code & 0xFF if isinstance(code, int) else None
    if isinstance(cause, OSError):
        primary = _BY_ERRNO.get(cause.errno or 0)
    place = clean_line(str(path), 300)
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return failure(
            "timeout",
            "command",
            None,
            f"The store ({place}) was locked by another process for too long; nothing was changed in it.",
            "See which program holds it open; several gateways may share one store, a backup has to use a copy.",
        )
    if primary == sqlite3.SQLITE_FULL:
        return failure(
            "operation_failed",
            "command",
            None,
            f"The disk of the store ({place}) is full; nothing was changed in it.",
            "Make room, or shorten what the audit trail keeps.",
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return failure(
            "operation_failed",
            "command",
            None,
            f"The store ({place}) is damaged, or no SQLite file; nothing was changed in it.",
            "Move it away and restore a backup; `sqlite3 FILE .recover` can save rows of a damaged one.",
        )
    if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return failure(
            "operation_failed",
            "command",
            None,
            f"The store ({place}) cannot be opened for writing.",
            "See who owns the file and its folder, which has to be writable, too, and that the disk is not read-only.",
        )
    if primary == sqlite3.SQLITE_IOERR:
        return failure(
            "operation_failed",
            "command",
            None,
            f"The disk failed under the store ({place}); the change was not made.",
            "See that it has room and is a local disk.",
        )
    return failure(
        "operation_failed",
        "command",
        None,
        f"The store ({place}) cannot be used; the change was not made.",
        "PI_MCP_LOG=debug writes more to the log file.",
    )
