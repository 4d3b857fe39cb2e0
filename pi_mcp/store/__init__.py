"""The gateway's keys, grants and audit rows in SQLite: `access.Store` over one file.

Comes in: a path. Goes out: `SqliteStore`. The only room that knows a database; nothing of SQLAlchemy or alembic is
loaded until a store is opened.
"""

from pi_mcp.store.opening import default_is_there, default_path
from pi_mcp.store.sqlite import SqliteStore, open_store

__all__ = ["SqliteStore", "default_is_there", "default_path", "open_store"]
