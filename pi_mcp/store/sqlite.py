"""The store of the gateway in one SQLite file: keys, sign-ins, things good for one use, and the audit trail.

Comes in: records and questions of `access.Store`. Goes out: records. Every change is one transaction, durable when
the method returns. What the embedded authorization server remembers is in `store/oauth.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pi_mcp.access.records import AuditFilter, AuditRow, Key, Once, OnceKind, Outcome, SignIn
from pi_mcp.access.secrets import same
from pi_mcp.errors import failure
from pi_mcp.store import rows
from pi_mcp.store.database import Database
from pi_mcp.store.oauth import OAuthTables
from pi_mcp.store.opening import default_path, open_engine
from pi_mcp.store.tables import record_of, row_of, table_of
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

PRUNE_CHUNK = 2000
"""Rows that one transaction removes: the calls that wait for the disk meanwhile shall not notice."""
KEPT_KEYS = 1000
"""Keys that are remembered until anything about credentials changes."""
ABANDONED_SECONDS = 3600.0
"""A row that has been open for so long is of a process that is gone: no call may take longer than 600 s."""

_REVISION = "SELECT value FROM meta WHERE name = 'revision'"
_FITS = ("subject", "credential", "server", "tool", "action", "outcome", "session", "request")


class SqliteStore(OAuthTables):
    """`access.Store` over one file. Made by `open_store`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, Key] = {}
        self._keys_of = -1

    @property
    def path(self) -> Path:
        return self._database.path

    # Keys and sign-ins

    async def add_key(self, key: Key) -> None:
        await self._insert(key)

    async def key(self, id: str) -> Key | None:
        # Each request asks: a look at the revision costs a fiftieth of a millisecond, a visit to the reader far more.
        revision = await self.revision()
        if revision != self._keys_of:
            self._keys, self._keys_of = {}, revision
        found = self._keys.get(id)
        if found is None:
            found = await self._by_id(Key, id)
            if found is not None and self._keys_of == revision and len(self._keys) < KEPT_KEYS:
                self._keys[id] = found
        return found

    async def keys(self, *, subject: str | None = None) -> Sequence[Key]:
        return await self._all(Key, subject=subject)

    async def revoke_key(self, id: str, at: float) -> bool:
        keys, sign_ins = table_of(Key), table_of(SignIn)

        def work(connection: Connection) -> bool:
            if not rows.end(connection, keys, keys.c.id == id, at):
                return False
            rows.end(connection, sign_ins, sign_ins.c.key == id, at)
            rows.end_consents(connection, at, key=id)
            rows.changed(connection)
            return True

        return await self._database.write(work)

    async def add_sign_in(self, sign_in: SignIn) -> None:
        await self._insert(sign_in)

    async def sign_in(self, id: str) -> SignIn | None:
        return await self._of_a_key(SignIn, id)

    async def revoke_sign_in(self, id: str, at: float) -> bool:
        table = table_of(SignIn)

        def work(connection: Connection) -> bool:
            ended = rows.end(connection, table, table.c.id == id, at) > 0
            if ended:
                rows.changed(connection)
            return ended

        return await self._database.write(work)

    def used(self, kind: Literal["key", "session", "oauth"], id: str, at: float) -> None:
        from pi_mcp.access.records import Consent

        kinds: dict[str, type[Any]] = {"key": Key, "session": SignIn, "oauth": Consent}
        table = table_of(kinds[kind])

        def work(connection: Connection) -> None:
            connection.execute(table.update().where(table.c.id == id).values(last_used=at))

        self._database.later((kind, id), work)

    # Good for one use

    async def keep(self, once: Once) -> bool:
        table = table_of(Once)

        def work(connection: Connection) -> bool:
            where = (table.c.kind == once.kind) & (table.c.id == once.id)
            connection.execute(table.delete().where(where & (table.c.expires <= rows.now())))
            if connection.execute(table.select().where(where)).first() is not None:
                return False
            connection.execute(table.insert().values(**row_of(once)))
            return True

        return await self._database.write(work)

    async def peek(self, kind: OnceKind, id: str, now: float) -> Once | None:
        table = table_of(Once)
        query = table.select().where(table.c.kind == kind, table.c.id == id, table.c.used.is_(None))

        def work(connection: Connection) -> Once | None:
            row = connection.execute(query.where(table.c.expires > now)).mappings().first()
            return None if row is None else record_of(Once, dict(row))

        return await self._database.read(work)

    async def take(self, kind: OnceKind, id: str, digest: bytes, now: float) -> Once | None:
        table = table_of(Once)
        where = (table.c.kind == kind) & (table.c.id == id) & table.c.used.is_(None) & (table.c.expires > now)

        def work(connection: Connection) -> Once | None:
            row = connection.execute(table.select().where(where)).mappings().first()
            if row is None or not same(row["digest"], digest):
                return None
            connection.execute(table.update().where(where).values(used=now))
            return record_of(Once, dict(row))

        return await self._database.write(work)

    # The audit trail

    async def open_call(self, row: AuditRow) -> None:
        await self.record(row)

    async def record(self, row: AuditRow) -> None:
        values = row_of(row)
        values["size"] = 200 + sum(len(value.encode()) for value in values.values() if isinstance(value, str))

        statement = _audit_statements()[0]
        await self._database.write(lambda connection: connection.execute(statement, values), single=True)

    async def close_call(
        self, id: str, outcome: Outcome, duration: float, *, affected: Sequence[str] = (), scope: str | None = None
    ) -> None:
        import json

        named = json.dumps(list(affected))
        statement = _audit_statements()[1]
        values = {"_id": id, "_outcome": outcome, "_duration": duration, "_affected": named, "_scope": scope,
                  "_grown": len(named.encode())}  # fmt: skip

        def work(connection: Connection) -> None:
            if connection.execute(statement, values).rowcount != 1:
                raise failure(
                    "operation_failed", "command", None, "The audit row of a call is gone or was closed already."
                )

        await self._database.write(work, single=True)

    async def audit(self, which: AuditFilter) -> Sequence[AuditRow]:
        from sqlalchemy import select

        table = table_of(AuditRow)
        order = table.c.seq if which.oldest_first else table.c.seq.desc()
        query = _filtered(table.select(), which).order_by(order).limit(which.limit)

        def work(connection: Connection) -> list[AuditRow]:
            page = query
            if which.after is not None:
                place = connection.execute(select(table.c.seq).where(table.c.id == which.after)).scalar()
                if place is None:
                    raise failure(
                        "operation_failed",
                        "command",
                        None,
                        "Old rows of the audit trail were removed while it was read, so that what was read is not all.",
                        "Begin again; a gateway removes what is beyond --audit-days and --audit-megabytes.",
                    )
                page = query.where(table.c.seq > place if which.oldest_first else table.c.seq < place)
            return [record_of(AuditRow, dict(row)) for row in connection.execute(page).mappings()]

        return await self._database.read(work)

    async def count_audit(self, which: AuditFilter) -> int:
        from sqlalchemy import func, select

        query = _filtered(select(func.count()).select_from(table_of(AuditRow)), which)
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def prune_audit(self, *, before: float | None = None, max_bytes: int | None = None) -> int:
        from sqlalchemy import func, select

        table = table_of(AuditRow)
        removed = 0
        while before is not None:
            old = select(table.c.seq).where(table.c.time < before).limit(PRUNE_CHUNK)
            count = await self._delete_rows(old)
            removed += count
            if count < PRUNE_CHUNK:
                break
        total = select(func.coalesce(func.sum(table.c.size), 0))
        while max_bytes is not None:
            taken = await self._database.read(lambda connection: int(connection.execute(total).scalar_one()))
            excess = taken - max_bytes
            if excess <= 0:
                break
            closed = (table.c.outcome != "unknown") | (table.c.time < rows.now() - ABANDONED_SECONDS)
            running = (
                select(table.c.seq, func.sum(table.c.size).over(order_by=table.c.seq).label("so_far"), table.c.size)
                .where(closed)
                .order_by(table.c.seq)
                .limit(PRUNE_CHUNK)
                .subquery()
            )
            count = await self._delete_rows(select(running.c.seq).where(running.c.so_far - running.c.size < excess))
            removed += count
            if not count:
                break
        return removed

    async def _delete_rows(self, which: Select[Any]) -> int:
        table = table_of(AuditRow)
        statement = table.delete().where(table.c.seq.in_(which))
        return await self._database.write(lambda connection: connection.execute(statement).rowcount)

    # All of it

    async def revision(self) -> int:
        glance = self._database.glance(_REVISION)
        if glance is None:
            glance = await self._database.read(lambda connection: connection.exec_driver_sql(_REVISION).scalar_one())
        return int(glance)

    async def purge(self, now: float) -> int:
        onces, sign_ins = table_of(Once), table_of(SignIn)

        def work(connection: Connection) -> int:
            return sum(
                connection.execute(table.delete().where(table.c.expires < now)).rowcount for table in (onces, sign_ins)
            )

        return await self._database.write(work) + await self._purge_oauth(now)

    async def close(self) -> None:
        await self._database.close()


@cache
def _audit_statements() -> tuple[Any, Any]:
    """Opening and closing a row, built once: every call waits for both."""
    from sqlalchemy import bindparam, func

    table = table_of(AuditRow)
    closing = (
        table.update()
        .where(table.c.id == bindparam("_id"), table.c.outcome == "unknown")
        .values(
            outcome=bindparam("_outcome"),
            duration=bindparam("_duration"),
            affected=bindparam("_affected"),
            scope=func.coalesce(bindparam("_scope"), table.c.scope),
            size=table.c.size + bindparam("_grown"),
        )
    )
    return table.insert(), closing


def _filtered(query: Select[Any], which: AuditFilter) -> Select[Any]:
    table = table_of(AuditRow)
    for name in _FITS:
        value = getattr(which, name)
        if value is not None:
            query = query.where(table.c[name] == value)
    if which.since is not None:
        query = query.where(table.c.time >= which.since)
    if which.until is not None:
        query = query.where(table.c.time < which.until)
    return query


async def open_store(path: Path | None = None, *, create: bool = True) -> SqliteStore:
    """Open the store at `path` (default: `default_path()`), migrating it when needed; close it afterwards.

    Raises PiMcpError: `not_found` without `create`, `configuration_invalid` for a file that is not ours to use or a
    named folder that is not there, `operation_failed` for a damaged one, `timeout` for one that is locked.
    """
    import asyncio

    def opened() -> Database:
        place = (default_path() if path is None else path.expanduser()).absolute()
        if create and place != default_path().absolute() and not place.parent.is_dir():
            # A folder of ours is made; one that somebody named is mistyped, or a disk that is not there.
            raise failure(
                "configuration_invalid",
                "configure",
                None,
                f"There is no folder {clean_line(str(place.parent), 300)} for the store.",
                "Make it, or check --store.",
            )
        return Database(place, open_engine(place, create=create))

    return SqliteStore(await asyncio.to_thread(opened))
