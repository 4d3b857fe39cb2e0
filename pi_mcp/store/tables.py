"""The tables of the store, as SQLAlchemy describes them, and how a record becomes a row and a row a record.

Comes in: records of `access/`. Goes out: dictionaries of plain values, and back. It executes nothing. What is here is
the newest form; `migrations/` says how older files come to it, and a test holds the two together.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pi_mcp.access.grant import Limits
from pi_mcp.access.records import AuditRow, Client, Code, Consent, Key, Once, SignIn, SigningKey, Token
from pi_mcp.access.scopes import Scopes

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

R = TypeVar("R")

NAMES: Mapping[type[Any], str] = {
    Key: "keys",
    SignIn: "sign_ins",
    Once: "onces",
    Client: "clients",
    Consent: "consents",
    Code: "codes",
    Token: "tokens",
    SigningKey: "signing_keys",
    AuditRow: "audit",
}
_JSON = {"payload", "metadata", "jwk", "affected"}
_LIMITS = tuple(field.name for field in dataclasses.fields(Limits))


@cache
def metadata() -> MetaData:
    """The description of all tables."""
    from sqlalchemy import (
        BLOB,
        Column,
        Float,
        Index,
        Integer,
        MetaData,
        PrimaryKeyConstraint,
        Table,
        Text,
    )

    all_tables = MetaData()

    def text(name: str, *, null: bool = False) -> Column[Any]:
        return Column(name, Text, nullable=null)

    def time(name: str, *, null: bool = True) -> Column[Any]:
        return Column(name, Float, nullable=null)

    def key() -> Column[Any]:
        return Column("id", Text, primary_key=True)

    def digest(name: str = "digest", *, null: bool = False) -> Column[Any]:
        return Column(name, BLOB, nullable=null)

    def table(name: str, *columns: Any, **more: Any) -> None:
        Table(name, all_tables, *columns, **more)

    table("meta", Column("name", Text, primary_key=True), Column("value", Integer, nullable=False))
    table(
        "keys",
        key(),
        digest(),
        text("subject"),
        text("scopes"),
        time("created", null=False),
        text("label"),
        time("expires"),
        time("last_used"),
        time("revoked"),
        *(Column(name, Integer) for name in _LIMITS),
    )
    table(
        "sign_ins",
        key(),
        digest(),
        text("subject"),
        text("scopes"),
        time("created", null=False),
        time("expires", null=False),
        text("key", null=True),
        time("last_used"),
        time("revoked"),
        Index("sign_ins_key", "key"),
    )
    table(
        "onces",
        text("kind"),
        text("id"),
        digest(),
        time("expires", null=False),
        text("subject"),
        text("scopes"),
        text("payload"),
        time("used"),
        PrimaryKeyConstraint("kind", "id"),
        Index("onces_expires", "expires"),
    )
    table(
        "clients",
        key(),
        text("kind"),
        text("metadata"),
        time("created", null=False),
        digest("secret_digest", null=True),
        time("expires"),
        time("last_used"),
        Index("clients_created", "created"),
    )
    table(
        "consents",
        key(),
        text("subject"),
        text("client"),
        text("client_name"),
        text("scopes"),
        text("resource"),
        time("created", null=False),
        time("expires"),
        time("last_used"),
        time("revoked"),
        text("key", null=True),
        Index("consents_client", "client"),
        Index("consents_key", "key"),
    )
    table(
        "codes",
        key(),
        digest(),
        text("consent"),
        text("client"),
        text("redirect_uri"),
        text("scopes"),
        text("resource"),
        text("challenge"),
        time("created", null=False),
        time("expires", null=False),
        time("used"),
        Index("codes_consent", "consent"),
    )
    table(
        "tokens",
        key(),
        digest(),
        text("kind"),
        text("family"),
        text("consent"),
        text("client"),
        text("subject"),
        text("scopes"),
        text("resource"),
        time("created", null=False),
        time("expires", null=False),
        time("used"),
        time("revoked"),
        Index("tokens_family", "family"),
        Index("tokens_consent", "consent"),
        Index("tokens_expires", "expires"),
    )
    table(
        "signing_keys",
        key(),
        text("algorithm"),
        text("jwk"),
        time("created", null=False),
        time("retired"),
        time("expires"),
    )
    table(
        "audit",
        Column("seq", Integer, primary_key=True),
        Column("id", Text, nullable=False, unique=True),
        time("time", null=False),
        text("subject"),
        text("credential"),
        text("credential_kind"),
        text("action"),
        text("outcome"),
        *(text(name, null=True) for name in ("server", "tool", "request", "session", "client", "input")),
        text("affected"),
        text("scope", null=True),
        time("duration"),
        Column("size", Integer, nullable=False),
        Index("audit_time", "time"),
        # A row's place in the trail is never given to another one, not even after the newest were removed.
        sqlite_autoincrement=True,
    )
    return all_tables


def table_of(kind: type[Any]) -> Table:
    """The table that keeps records of that class."""
    return metadata().tables[NAMES[kind]]


def row_of(record: Any) -> dict[str, Any]:
    """The columns of a record."""
    row: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Scopes):
            row[field.name] = str(value)
        elif isinstance(value, Limits):
            row.update({name: getattr(value, name) for name in _LIMITS})
        elif field.name in _JSON:
            row[field.name] = json.dumps(list(value) if isinstance(value, tuple) else dict(value))
        else:
            row[field.name] = value
    return row


def record_of(kind: type[R], row: Mapping[str, Any]) -> R:
    """The record that a row was made from. A scope that this version does not know allows nothing."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name == "limits":
            values["limits"] = Limits(**{name: row[name] for name in _LIMITS})
            continue
        value = row[field.name]
        if field.name == "scopes":
            value = Scopes(frozenset(value.split()))
        elif field.name == "affected":
            value = tuple(json.loads(value))
        elif field.name in _JSON:
            value = json.loads(value)
        values[field.name] = value
    return kind(**values)
