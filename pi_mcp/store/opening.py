"""A path becomes a store that can be used: a private file, of ours, in the newest form.

Comes in: where the file is or shall be. Goes out: an engine over it. A file that is no store, is damaged, or was
written by a newer pi-mcp is left as it is, and the failure says which.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pi_mcp import files
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.store.database import engine_for
from pi_mcp.store.faults import store_failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import sqlite3

    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from sqlalchemy import Connection, Engine

APPLICATION_ID = 0x70694D43
"""`piMC`, in the head of the file: SQLite's own way of saying whose it is."""

_LOG = logging.getLogger("pi_mcp.store")


def default_path() -> Path:
    """Where the gateway's store is when nobody says otherwise."""
    return files.state_dir() / "gateway" / "store.sqlite3"


def default_is_there() -> bool:
    """Whether anything has the name of that store, also what cannot be used as one.

    Raises PiMcpError where nobody can say. A gateway without a store asks nobody who they are: a link that leads
    nowhere, or a folder that cannot be read, is no reason for that.
    """
    path = default_path()
    try:
        os.lstat(path)  # `Path.exists` takes other failures for a no, and more of them in newer Pythons
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise store_failure(error, path) from None
    return True


def open_engine(path: Path, *, create: bool = True) -> Engine:
    """An engine over the store at `path`, made or migrated when needed. Blocks: call it off the event loop.

    Raises PiMcpError; not_found when the file is missing and must not be made.
    """
    path = path.absolute()
    if not create and not path.exists():
        raise failure(
            "not_found",
            "command",
            None,
            f"There is no store at {clean_line(str(path), 300)}.",
            "`pi-mcp keys create` makes one; --store names another place.",
        )
    _need_packages()
    try:
        files.database(path)
    except OSError as error:
        raise store_failure(error, path) from None
    engine = engine_for(path)
    try:
        # One process at a time: two that find a new file would both begin to fill it.
        with files.locked(path.with_name(path.name + ".lock"), timeout=30.0, make_folder=False):
            _prepare(engine, path)
    except BaseException as error:
        engine.dispose()
        if isinstance(error, PiMcpError) or not isinstance(error, Exception):
            raise
        if isinstance(error, TimeoutError):
            raise failure(
                "timeout",
                "command",
                None,
                f"Another process has been opening the store ({clean_line(str(path), 300)}) for 30 s.",
                "Try again; end that process if it hangs.",
            ) from None
        _LOG.warning("opening the store failed: %s", type(getattr(error, "orig", None) or error).__name__)
        raise store_failure(error, path) from None
    return engine


def _need_packages() -> None:
    try:
        import alembic  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            "Keys and the audit trail need packages that are not installed.",
            "Install pi-mcp with them, from its folder: pip install '.[gateway]'.",
        ) from None


def _prepare(engine: Engine, path: Path) -> None:
    with engine.connect() as connection:
        raw = cast("sqlite3.Connection", connection.connection.driver_connection)
        (mark,) = raw.execute("PRAGMA application_id").fetchone()
        (tables,) = raw.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if mark != APPLICATION_ID and tables:
            raise failure(
                "configuration_invalid",
                "configure",
                None,
                f"{clean_line(str(path), 300)} is a database of something else; it was not changed.",
                "Name another file with --store.",
            )
        # Before the tables: the pages of a store are in one form from the beginning.
        (mode,) = raw.execute("PRAGMA journal_mode=WAL").fetchone()
        if mode != "wal":
            raise failure(
                "operation_failed",
                "command",
                None,
                f"The file system of the store ({clean_line(str(path), 300)}) cannot share memory between processes.",
                "Put the store on a local disk.",
            )
        if mark == APPLICATION_ID and _is_newest(connection):
            return  # without a write: what only reads works on a full disk, too, and beside whoever writes
    with engine.connect().execution_options(immediate=True) as connection, connection.begin():
        _migrate(connection, path)
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")


def _steps() -> tuple[Config, ScriptDirectory]:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", "pi_mcp.store:migrations")
    config.set_main_option("path_separator", "os")
    return config, ScriptDirectory.from_config(config)


def _found(connection: Connection) -> str | None:
    """The form that the file has; None for one without tables."""
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def _is_newest(connection: Connection) -> bool:
    return _found(connection) == _steps()[1].get_current_head()


def _migrate(connection: Connection, path: Path) -> None:
    from alembic import command

    config, scripts = _steps()
    config.attributes["connection"] = connection
    found = _found(connection)
    if found == scripts.get_current_head():
        return
    if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"The store ({clean_line(str(path), 300)}) was written by a newer pi-mcp (form {clean_line(found, 40)}); "
            "it was not changed.",
            "Use that version, or another file with --store.",
        )
    command.upgrade(config, "head")
