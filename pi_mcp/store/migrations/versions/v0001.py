"""The first form of the store."""

from __future__ import annotations

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    import sqlalchemy as sa
    from alembic import op

    def text(*names: str, null: bool = False) -> list[sa.Column[str]]:
        return [sa.Column(name, sa.Text, nullable=null) for name in names]

    def time(*names: str, null: bool = True) -> list[sa.Column[float]]:
        return [sa.Column(name, sa.Float, nullable=null) for name in names]

    def number(*names: str, null: bool = True) -> list[sa.Column[int]]:
        return [sa.Column(name, sa.Integer, nullable=null) for name in names]

    def digest(name: str = "digest", *, null: bool = False) -> sa.Column[bytes]:
        return sa.Column(name, sa.BLOB, nullable=null)

    def key(name: str = "id") -> sa.Column[str]:
        return sa.Column(name, sa.Text, primary_key=True)

    op.create_table("meta", key("name"), *number("value", null=False))
    op.create_table(
        "keys",
        key(),
        digest(),
        *text("subject", "scopes"),
        *time("created", null=False),
        *text("label"),
        *time("expires", "last_used", "revoked"),
        *number("requests_per_minute", "concurrent", "result_bytes"),
    )
    op.create_table(
        "sign_ins",
        key(),
        digest(),
        *text("subject", "scopes"),
        *time("created", "expires", null=False),
        *text("key", null=True),
        *time("last_used", "revoked"),
    )
    op.create_index("sign_ins_key", "sign_ins", ["key"])
    op.create_table(
        "onces",
        *text("kind", "id"),
        digest(),
        *time("expires", null=False),
        *text("subject", "scopes", "payload"),
        *time("used"),
        sa.PrimaryKeyConstraint("kind", "id"),
    )
    op.create_index("onces_expires", "onces", ["expires"])
    op.create_table(
        "clients",
        key(),
        *text("kind", "metadata"),
        *time("created", null=False),
        digest("secret_digest", null=True),
        *time("expires", "last_used"),
    )
    op.create_index("clients_created", "clients", ["created"])
    op.create_table(
        "consents",
        key(),
        *text("subject", "client", "client_name", "scopes", "resource"),
        *time("created", null=False),
        *time("expires", "last_used", "revoked"),
        *text("key", null=True),
    )
    op.create_index("consents_client", "consents", ["client"])
    op.create_index("consents_key", "consents", ["key"])
    op.create_table(
        "codes",
        key(),
        digest(),
        *text("consent", "client", "redirect_uri", "scopes", "resource", "challenge"),
        *time("created", "expires", null=False),
        *time("used"),
    )
    op.create_index("codes_consent", "codes", ["consent"])
    op.create_table(
        "tokens",
        key(),
        digest(),
        *text("kind", "family", "consent", "client", "subject", "scopes", "resource"),
        *time("created", "expires", null=False),
        *time("used", "revoked"),
    )
    op.create_index("tokens_family", "tokens", ["family"])
    op.create_index("tokens_consent", "tokens", ["consent"])
    op.create_index("tokens_expires", "tokens", ["expires"])
    op.create_table(
        "signing_keys",
        key(),
        *text("algorithm", "jwk"),
        *time("created", null=False),
        *time("retired", "expires"),
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        *time("time", null=False),
        *text("subject", "credential", "credential_kind", "action", "outcome"),
        *text("server", "tool", "request", "session", "client", "input", null=True),
        *text("affected"),
        *text("scope", null=True),
        *time("duration"),
        *number("size", null=False),
        sqlite_autoincrement=True,
    )
    op.create_index("audit_time", "audit", ["time"])
    op.execute("INSERT INTO meta (name, value) VALUES ('revision', 0)")
