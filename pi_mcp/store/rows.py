"""What every part of the store does with a record: insert it, find it, end it.

Comes in: records and ids. Goes out: records. It knows no part's rules.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from pi_mcp.access.records import Consent, Key, SignIn
from pi_mcp.store.tables import metadata, record_of, row_of, table_of

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table

    from pi_mcp.store.database import Database

R = TypeVar("R")
K = TypeVar("K", SignIn, Consent)


class Rows:
    """A database, and records in it."""

    _database: Database

    async def _insert(self, record: Any) -> None:
        def work(connection: Connection) -> None:
            insert(connection, record)
            changed(connection)

        await self._database.write(work)

    async def _by_id(self, kind: type[R], id: str) -> R | None:
        return await self._database.read(lambda connection: by_id(connection, kind, id))

    async def _of_a_key(self, kind: type[K], id: str) -> K | None:
        """The record, while the key that it came from is valid."""

        def work(connection: Connection) -> K | None:
            found = by_id(connection, kind, id)
            return found if found is not None and key_holds(connection, found.key) else None

        return await self._database.read(work)

    async def _all(self, kind: type[R], **members: str | None) -> list[R]:
        """All records of a kind that have these values, oldest first; None asks for nothing."""
        table = table_of(kind)
        query = table.select().order_by(table.c.created, table.c.id)
        for name, value in members.items():
            if value is not None:
                query = query.where(table.c[name] == value)

        def work(connection: Connection) -> list[R]:
            return [record_of(kind, dict(row)) for row in connection.execute(query).mappings()]

        return await self._database.read(work)


def insert(connection: Connection, record: Any) -> None:
    connection.execute(table_of(type(record)).insert().values(**row_of(record)))


def by_id(connection: Connection, kind: type[R], id: str) -> R | None:
    table = table_of(kind)
    row = connection.execute(table.select().where(table.c.id == id)).mappings().first()
    return None if row is None else record_of(kind, dict(row))


def key_holds(connection: Connection, id: str | None) -> bool:
    """Is the key that something came from still valid? What came from none depends on none."""
    if id is None:
        return True
    key = by_id(connection, Key, id)
    return key is not None and key.valid(now())


def end(connection: Connection, table: Table, where: ColumnElement[bool], at: float) -> int:
    """Mark as revoked what fits and is not yet; how many."""
    return connection.execute(table.update().where(where, table.c.revoked.is_(None)).values(revoked=at)).rowcount


def end_consents(connection: Connection, at: float, **members: str) -> int:
    """End the consents that have these values, with their tokens and codes; how many had not ended."""
    consents, tokens, codes = (metadata().tables[name] for name in ("consents", "tokens", "codes"))
    which = consents.select().with_only_columns(consents.c.id).where(consents.c.revoked.is_(None))
    for name, value in members.items():
        which = which.where(consents.c[name] == value)
    ids = [row.id for row in connection.execute(which)]
    for id in ids:
        connection.execute(consents.update().where(consents.c.id == id).values(revoked=at))
        end(connection, tokens, tokens.c.consent == id, at)
        connection.execute(codes.delete().where(codes.c.consent == id, codes.c.used.is_(None)))
    return len(ids)


def changed(connection: Connection) -> None:
    """Let every process see that a credential is another one now."""
    connection.exec_driver_sql("UPDATE meta SET value = value + 1 WHERE name = 'revision'")


def now() -> float:
    return time.time()


def consent_holds(connection: Connection, id: str) -> bool:
    """Is a consent, and the key behind it, still valid?"""
    consent = by_id(connection, Consent, id)
    return consent is not None and consent.valid(now()) and key_holds(connection, consent.key)
