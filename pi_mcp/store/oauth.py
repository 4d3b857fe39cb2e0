"""What the embedded authorization server remembers: clients, consents, codes, tokens and signing keys.

Comes in: records and questions of `access.store.OAuth`. Goes out: records. Using a code or a refresh token up and
keeping what it was exchanged for is one transaction, so that of two who try one wins and the other is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pi_mcp.access.records import Client, Code, Consent, SigningKey, Token
from pi_mcp.store import rows
from pi_mcp.store.rows import Rows
from pi_mcp.store.tables import record_of, table_of

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

    from pi_mcp.access.store import Rotation


ENDED_KEPT = 365 * 24 * 3600.0
"""Seconds that people see what they allowed after it has ended."""


class OAuthTables(Rows):
    """The part of the store that is about OAuth."""

    async def put_client(self, client: Client) -> None:
        table = table_of(Client)

        def work(connection: Connection) -> None:
            connection.execute(table.delete().where(table.c.id == client.id))
            rows.insert(connection, client)

        await self._database.write(work)

    async def client(self, id: str) -> Client | None:
        return await self._by_id(Client, id)

    async def count_clients(self, *, since: float = 0.0) -> int:
        from sqlalchemy import func, select

        table = table_of(Client)
        registered = (table.c.kind == "registered") & (table.c.created >= since)
        query = select(func.count()).select_from(table).where(registered)
        return await self._database.read(lambda connection: int(connection.execute(query).scalar_one()))

    async def add_consent(self, consent: Consent) -> None:
        await self._insert(consent)

    async def consent(self, id: str) -> Consent | None:
        return await self._of_a_key(Consent, id)

    async def consents(self, *, subject: str | None = None) -> Sequence[Consent]:
        return await self._all(Consent, subject=subject)

    async def revoke_consent(self, id: str, at: float) -> bool:
        def work(connection: Connection) -> bool:
            if not rows.end_consents(connection, at, id=id):
                return False
            rows.changed(connection)
            return True

        return await self._database.write(work)

    async def add_code(self, code: Code) -> None:
        await self._database.write(lambda connection: rows.insert(connection, code))

    async def code(self, id: str) -> Code | None:
        return await self._by_id(Code, id)

    async def redeem_code(self, id: str, at: float, tokens: Sequence[Token]) -> Rotation:
        table, token_table = table_of(Code), table_of(Token)

        def work(connection: Connection) -> Rotation:
            code = rows.by_id(connection, Code, id)
            if code is None:
                return "unknown"
            if code.used is not None:
                rows.end(connection, token_table, token_table.c.consent == code.consent, at)
                rows.changed(connection)
                return "reused"
            if code.expires <= at or not rows.consent_holds(connection, code.consent):
                return "unknown"
            return _spent(connection, table, id, at, tokens)

        return await self._database.write(work)

    async def token(self, id: str) -> Token | None:
        def work(connection: Connection) -> Token | None:
            found = rows.by_id(connection, Token, id)
            return found if found is not None and rows.consent_holds(connection, found.consent) else None

        return await self._database.read(work)

    async def rotate(self, id: str, at: float, tokens: Sequence[Token]) -> Rotation:
        table = table_of(Token)

        def work(connection: Connection) -> Rotation:
            old = rows.by_id(connection, Token, id)
            if old is None or old.kind != "refresh":
                return "unknown"
            if old.used is not None:
                rows.end(connection, table, table.c.family == old.family, at)
                rows.changed(connection)
                return "reused"
            if not old.valid(at) or not rows.consent_holds(connection, old.consent):
                return "unknown"
            return _spent(connection, table, id, at, tokens)

        return await self._database.write(work)

    async def revoke_token(self, id: str, at: float) -> bool:
        table = table_of(Token)

        def work(connection: Connection) -> bool:
            ended = rows.end(connection, table, table.c.id == id, at) > 0
            if ended:
                rows.changed(connection)
            return ended

        return await self._database.write(work)

    async def signing_keys(self) -> Sequence[SigningKey]:
        table = table_of(SigningKey)
        query = table.select().order_by(table.c.created.desc(), table.c.id)

        def work(connection: Connection) -> list[SigningKey]:
            alive = (table.c.expires.is_(None)) | (table.c.expires > rows.now())
            found = connection.execute(query.where(alive)).mappings()
            return [record_of(SigningKey, dict(row)) for row in found]

        return await self._database.read(work)

    async def add_signing_key(
        self, key: SigningKey, *, replaces: str | None = None, until: float | None = None
    ) -> bool:
        table = table_of(SigningKey)

        def work(connection: Connection) -> bool:
            signing = connection.execute(
                table.select().where(table.c.retired.is_(None)).order_by(table.c.created.desc())
            ).first()
            if (None if signing is None else signing.id) != replaces:
                return False
            if replaces is not None:
                old = table.update().where(table.c.id == replaces)
                connection.execute(old.values(retired=key.created, expires=until))
            rows.insert(connection, key)
            return True

        return await self._database.write(work)

    async def _purge_oauth(self, now: float) -> int:
        """Remove what expired; a used refresh token stays until its own time, to know it when it comes back."""
        over = {table_of(kind): now for kind in (Code, Token, SigningKey, Client)}
        over[table_of(Consent)] = now - ENDED_KEPT

        def work(connection: Connection) -> int:
            return sum(
                connection.execute(table.delete().where(table.c.expires < until)).rowcount
                for table, until in over.items()
            )

        return await self._database.write(work)


def _spent(connection: Connection, table: Table, id: str, at: float, tokens: Sequence[Token]) -> Rotation:
    """Take a code or a refresh token out of use, for these tokens."""
    connection.execute(table.update().where(table.c.id == id).values(used=at))
    for token in tokens:
        rows.insert(connection, token)
    return "rotated"
