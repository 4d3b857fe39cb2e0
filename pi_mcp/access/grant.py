"""Grant: on whose behalf a request comes, by which credential, and what it may do.

Comes in: what a credential was found to be. Goes out: one frozen value that accompanies a request. It holds no
secret and can be logged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from pi_mcp.access.scopes import Scopes

GrantKind = Literal["local", "dev", "key", "session", "oauth"]
"""`local`: no credentials are asked for (stdio, or loopback without a store); `dev`: --dev-no-auth; `session`: the
cookie of the sign-in page; `oauth`: an access token, of the embedded server or an outside issuer."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one credential may use; None is no limit.

    `requests_per_minute` counts requests over HTTP, `concurrent` calls under way, `result_bytes` the bytes of
    results within a minute. Over the limit is 429.
    """

    requests_per_minute: int | None = None
    concurrent: int | None = None
    result_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """One caller. `subject` is a person or program by name; `credential_id` names key, session or OAuth grant.

    `owner` is what a gateway session is bound to: another credential cannot use it, and a narrower request can.
    """

    subject: str
    credential_id: str
    kind: GrantKind
    scopes: Scopes
    limits: Limits = field(default_factory=Limits)
    key: str | None = None
    """Id of the API key that it comes from, if any: what all that came from one key uses is counted together."""
    client: str | None = None
    """The OAuth client's id."""
    expires: float | None = None
    """Seconds since 1970 after which the credential is worth nothing."""

    @classmethod
    def everything(cls, subject: str, kind: GrantKind = "local") -> Grant:
        """Every right, for those who are not asked who they are."""
        return cls(subject, kind, kind, Scopes.everything())

    @property
    def owner(self) -> str:
        return f"{self.kind}:{self.credential_id}"

    def narrowed(self, header: str | None) -> Grant:
        """The same caller with the scopes that an `x-mcp-scopes` header leaves; None is no header."""
        return self if header is None else replace(self, scopes=self.scopes.narrowed(header))
