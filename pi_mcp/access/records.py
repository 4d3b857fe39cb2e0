"""What the gateway's store keeps, as values. No record holds a secret that it could be used with: digests only.

Comes in: nothing. Goes out: frozen records. All times are seconds since 1970 (UTC), as `time.time()` gives them.
The one exception to the rule of digests is `SigningKey`, whose private half has to be kept to sign with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pi_mcp.access.grant import Grant, Limits
from pi_mcp.access.scopes import Scopes
from pi_mcp.access.secrets import new_id


@dataclass(frozen=True, slots=True)
class Key:
    """An API key."""

    id: str
    digest: bytes = field(repr=False)
    subject: str
    scopes: Scopes
    created: float
    label: str = ""
    expires: float | None = None
    last_used: float | None = None
    revoked: float | None = None
    limits: Limits = field(default_factory=Limits)

    def valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class SignIn:
    """A browser that signed in: what its cookie stands for. Ends with the key that it was signed in with."""

    id: str
    digest: bytes = field(repr=False)
    subject: str
    scopes: Scopes
    created: float
    expires: float
    key: str | None = None
    """Id of the API key that it was signed in with; None for a one-time link."""
    last_used: float | None = None
    revoked: float | None = None

    def valid(self, now: float) -> bool:
        return self.revoked is None and now < self.expires


OnceKind = Literal["link"]
"""A link to sign in with."""


@dataclass(frozen=True, slots=True)
class Once:
    """Something that is good for one use until it expires.

    `id` is unique within `kind`. `payload` is small JSON.
    """

    kind: OnceKind
    id: str
    digest: bytes = field(repr=False)
    expires: float
    subject: str = ""
    scopes: Scopes = field(default_factory=Scopes)
    payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    """An OAuth client of the embedded authorization server."""

    id: str
    """As the client sends it: generated at registration, or the https address of its metadata document."""
    kind: Literal["registered", "document"]
    metadata: Mapping[str, Any]
    """RFC 7591 metadata as accepted: client_name, redirect_uris, grant_types, token_endpoint_auth_method, jwks …"""
    created: float
    secret_digest: bytes | None = field(default=None, repr=False)
    expires: float | None = None
    """When a registration that is not used, or the copy of a document, is forgotten."""
    last_used: float | None = None


@dataclass(frozen=True, slots=True)
class Consent:
    """A person's yes to an OAuth client: what `pi-mcp grants` lists. Its tokens end with it."""

    id: str
    subject: str
    client: str
    client_name: str
    scopes: Scopes
    resource: str
    """The audience that it was given for (RFC 8707)."""
    created: float
    expires: float | None = None
    last_used: float | None = None
    revoked: float | None = None
    key: str | None = None
    """Id of the API key that the person was signed in with: the grant ends with it."""

    def valid(self, now: float) -> bool:
        return self.revoked is None and (self.expires is None or now < self.expires)


@dataclass(frozen=True, slots=True)
class Code:
    """An authorization code."""

    id: str
    digest: bytes = field(repr=False)
    consent: str
    client: str
    redirect_uri: str
    scopes: Scopes
    resource: str
    challenge: str
    """PKCE S256 code challenge."""
    created: float
    expires: float
    used: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """An access or refresh token of the embedded server.

    `family` is the same for all tokens that came from one code: a refresh token that is used twice ends them all.
    """

    id: str
    digest: bytes = field(repr=False)
    kind: Literal["access", "refresh"]
    family: str
    consent: str
    client: str
    subject: str
    scopes: Scopes
    resource: str
    created: float
    expires: float
    used: float | None = None
    """When a refresh token was exchanged for the next one."""
    revoked: float | None = None

    def valid(self, now: float) -> bool:
        return self.revoked is None and self.used is None and now < self.expires


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key of the embedded server. Signs while `retired` is None; verifies until `expires`."""

    id: str
    algorithm: str
    jwk: Mapping[str, Any] = field(repr=False)
    """With the private half."""
    created: float
    retired: float | None = None
    expires: float | None = None


Outcome = Literal["unknown", "ok", "tool_error", "input_required", "error", "refused", "limited", "cancelled"]
"""`unknown`: under way, or the gateway ended before it knew. `tool_error`: the tool itself reported one.
`input_required`: it waits for the client's answers, and the call that brings them has a row of its own. `limited`: a
limit of the credential was used up."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One call, refused or made."""

    id: str
    time: float
    subject: str
    credential: str
    """Id of the key, session or grant."""
    credential_kind: str
    action: str
    """`read` or `write` for a tool or a foreign method; what was asked for (`tool`, `resource`, `prompt`, `search`,
    `method`, or `request` over a limit) where that is not known, since it was refused before."""
    outcome: Outcome = "unknown"
    server: str | None = None
    tool: str | None = None
    request: str | None = None
    """The JSON-RPC id."""
    session: str | None = None
    client: str | None = None
    input: str | None = None
    """Bounded JSON with secret-looking values masked; None when the setting keeps no arguments."""
    affected: tuple[str, ...] = ()
    """Ids of what was changed, where the arguments or the result name them."""
    scope: str | None = None
    """What a refused call would have needed."""
    duration: float | None = None
    """Seconds; None while the call is under way."""

    @classmethod
    def by(cls, grant: Grant, action: str, time: float, **more: Any) -> AuditRow:
        """A new row of what this caller asked for."""
        return cls(
            new_id("e"), time, grant.subject, grant.credential_id, grant.kind, action, client=grant.client, **more
        )


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows: every member that is given has to fit. Newest first, unless `oldest_first`."""

    since: float | None = None
    until: float | None = None
    subject: str | None = None
    credential: str | None = None
    server: str | None = None
    tool: str | None = None
    action: str | None = None
    outcome: str | None = None
    session: str | None = None
    request: str | None = None
    limit: int | None = 100
    oldest_first: bool = False
    after: str | None = None
    """Id of the row that the page before ended with."""
