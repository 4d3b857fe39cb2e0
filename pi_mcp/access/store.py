"""Store: the one interface between the gateway and what it remembers.

Comes in: records. Goes out: records. `server/` is handed an object that does this; `store/` has one over SQLite.
Every method may be called from any task of the loop that opened the store, blocks no loop, and has made its change
durable when it returns. All raise PiMcpError (`operation_failed`, `timeout`) when the store cannot be used, and then
nothing of the change was made. Several processes may use one store at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from pi_mcp.access.records import (
    AuditFilter,
    AuditRow,
    Client,
    Code,
    Consent,
    Key,
    Once,
    OnceKind,
    Outcome,
    SignIn,
    SigningKey,
    Token,
)

Rotation = Literal["rotated", "reused", "unknown"]


class Keys(Protocol):
    """API keys and the browsers that signed in."""

    async def add_key(self, key: Key) -> None: ...
    async def key(self, id: str) -> Key | None: ...
    async def keys(self, *, subject: str | None = None) -> Sequence[Key]:
        """All, oldest first; revoked and expired ones too."""
        ...

    async def revoke_key(self, id: str, at: float) -> bool:
        """End a key, and the sign-ins and OAuth grants that came from it. False: there is none, or it had ended."""
        ...

    async def add_sign_in(self, sign_in: SignIn) -> None: ...
    async def sign_in(self, id: str) -> SignIn | None:
        """The sign-in; None too when the key that it came from is not valid any more."""
        ...

    async def revoke_sign_in(self, id: str, at: float) -> bool: ...

    def used(self, kind: Literal["key", "session", "oauth"], id: str, at: float) -> None:
        """Note a credential's last use. Returns at once; written together with others, within a minute."""
        ...


class Onces(Protocol):
    """What is good for one use."""

    async def keep(self, once: Once) -> bool:
        """Keep it; False when one of that kind and id is there already, used or not, and has not expired."""
        ...

    async def peek(self, kind: OnceKind, id: str, now: float) -> Once | None:
        """Look at one that is unused and not expired, and leave it."""
        ...

    async def take(self, kind: OnceKind, id: str, digest: bytes, now: float) -> Once | None:
        """Use one up: of all who try, in any process, exactly one gets it. The digest has to be the kept one."""
        ...


class OAuth(Protocol):
    """What the embedded authorization server remembers."""

    async def put_client(self, client: Client) -> None:
        """Add a client, or replace the one of that id."""
        ...

    async def client(self, id: str) -> Client | None: ...
    async def count_clients(self, *, since: float = 0.0) -> int:
        """Clients registered since then: for the limits of registration."""
        ...

    async def add_consent(self, consent: Consent) -> None: ...
    async def consent(self, id: str) -> Consent | None:
        """The consent; None too when the key that it came from is not valid any more."""
        ...

    async def consents(self, *, subject: str | None = None) -> Sequence[Consent]:
        """All, oldest first; ended ones too."""
        ...

    async def revoke_consent(self, id: str, at: float) -> bool:
        """End a consent and all its tokens and codes. False: there is none, or it had ended."""
        ...

    async def add_code(self, code: Code) -> None: ...
    async def code(self, id: str) -> Code | None: ...
    async def redeem_code(self, id: str, at: float, tokens: Sequence[Token]) -> Rotation:
        """Use a code up and keep its tokens, in one step.

        `reused`: it had been used; its consent's tokens are all revoked then, and none is kept. `unknown`: there is
        no valid code of that id.
        """
        ...

    async def token(self, id: str) -> Token | None:
        """The token, whatever its state; None too when its consent, or the key behind that, is not valid any more."""
        ...

    async def rotate(self, id: str, at: float, tokens: Sequence[Token]) -> Rotation:
        """Use the refresh token `id` up and keep what replaces it, in one step.

        `reused`: it had been used before; its whole family is revoked then, and nothing is kept. `unknown`: it is
        not there, revoked, or expired.
        """
        ...

    async def revoke_token(self, id: str, at: float) -> bool:
        """End one access token."""
        ...

    async def signing_keys(self) -> Sequence[SigningKey]:
        """Newest first, without expired ones."""
        ...

    async def add_signing_key(
        self, key: SigningKey, *, replaces: str | None = None, until: float | None = None
    ) -> bool:
        """Keep a key, and retire the one that it replaces, which verifies until `until` (seconds since 1970).

        False, and nothing kept, when `replaces` is not the newest signing key (None: when there is one): another
        process was quicker.
        """
        ...


class Audit(Protocol):
    """The audit trail."""

    async def open_call(self, row: AuditRow) -> None:
        """Keep a row before its call goes out."""
        ...

    async def close_call(
        self, id: str, outcome: Outcome, duration: float, *, affected: Sequence[str] = (), scope: str | None = None
    ) -> None:
        """Say how a call went. Raises PiMcpError when its row is not there or is closed already."""
        ...

    async def record(self, row: AuditRow) -> None:
        """Keep a row that is closed from the start: a refused call."""
        ...

    async def audit(self, which: AuditFilter) -> Sequence[AuditRow]:
        """The rows that fit. Raises PiMcpError, too, where the row that the page before ended with is gone."""
        ...

    async def count_audit(self, which: AuditFilter) -> int:
        """How many rows fit, whatever the limit."""
        ...

    async def prune_audit(self, *, before: float | None = None, max_bytes: int | None = None) -> int:
        """Remove rows older than `before`, then the oldest until at most `max_bytes` are taken; how many.

        Rows of calls that are under way are not taken for their size.
        """
        ...


class Store(Keys, Onces, OAuth, Audit, Protocol):
    """All of it."""

    async def revision(self) -> int:
        """A number that is another one after any credential changed or ended, in whatever process. Cheap."""
        ...

    async def purge(self, now: float) -> int:
        """Remove what expired: codes, tokens, links, sign-ins, unused clients; how many records."""
        ...

    async def close(self) -> None:
        """Write what is waiting and let go of the files. Safe to call twice."""
        ...
