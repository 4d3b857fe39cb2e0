"""What a login leaves behind, as values: the client, the grant, and where they belong.

Comes in: JSON of the store. Goes out: frozen records whose repr shows no secret. No I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

ClientKind = Literal["registered", "metadata_document", "configured"]
"""By dynamic registration (RFC 7591), by a client-ID metadata document, or by the person's configuration."""

VERSION = 1


@dataclass(frozen=True, slots=True)
class Client:
    """An OAuth client at one issuer. A configured client's secret is never stored: it comes from `oauth`."""

    client_id: str
    kind: ClientKind
    redirect_uri: str | None
    auth_method: str = "none"
    """`none`, `client_secret_basic`, `client_secret_post`, `private_key_jwt`."""
    secret: str | None = field(default=None, repr=False)
    secret_expires_at: float | None = None
    """Unix seconds; None: never."""
    registration: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the authorization server answered to the registration, for renewal and removal (RFC 7592)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One token reply. Times are Unix seconds."""

    access_token: str = field(repr=False)
    token_type: str = "Bearer"  # noqa: S105 - a type, no token
    refresh_token: str | None = field(default=None, repr=False)
    scopes: tuple[str, ...] = ()
    """Granted, or asked for where the reply does not say."""
    obtained_at: float = 0.0
    expires_at: float | None = None
    """None where the server does not say."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Everything that is stored for one configured server, bound to its name, URL and issuer."""

    server: str
    url: str = field(repr=False)
    """The server's URL as resolved when it was signed in to."""
    issuer: str
    resource: str
    """Exactly as the server's metadata publish it (RFC 8707; B115)."""
    client: Client
    tokens: Tokens
    token_endpoint: str
    revocation_endpoint: str | None = None
    authorization_endpoint: str | None = None
    dpop_key: str | None = field(default=None, repr=False)
    """PEM of the private key that the tokens are bound to (RFC 9449)."""
    version: int = VERSION

    def with_tokens(self, tokens: Tokens) -> Credential:
        return replace(self, tokens=tokens)


def to_json(credential: Credential) -> dict[str, Any]:
    """The record for the store. It holds secrets: only the store may see it."""
    client, tokens = credential.client, credential.tokens
    return {
        "version": credential.version,
        "server": credential.server,
        "url": credential.url,
        "issuer": credential.issuer,
        "resource": credential.resource,
        "token_endpoint": credential.token_endpoint,
        "revocation_endpoint": credential.revocation_endpoint,
        "authorization_endpoint": credential.authorization_endpoint,
        "dpop_key": credential.dpop_key,
        "client": {
            "client_id": client.client_id,
            "kind": client.kind,
            "redirect_uri": client.redirect_uri,
            "auth_method": client.auth_method,
            "secret": None if client.kind == "configured" else client.secret,
            "secret_expires_at": client.secret_expires_at,
            "registration": dict(client.registration),
        },
        "tokens": {
            "access_token": tokens.access_token,
            "token_type": tokens.token_type,
            "refresh_token": tokens.refresh_token,
            "scopes": list(tokens.scopes),
            "obtained_at": tokens.obtained_at,
            "expires_at": tokens.expires_at,
        },
    }


def from_json(value: Any) -> Credential | None:
    """The credential that `to_json` wrote; None for anything else, another version included."""
    try:
        if value["version"] != VERSION:
            return None
        client, tokens = value["client"], value["tokens"]
        return Credential(
            server=str(value["server"]),
            url=str(value["url"]),
            issuer=str(value["issuer"]),
            resource=str(value["resource"]),
            client=Client(
                client_id=str(client["client_id"]),
                kind=client["kind"],
                redirect_uri=client["redirect_uri"],
                auth_method=str(client["auth_method"]),
                secret=client["secret"],
                secret_expires_at=client["secret_expires_at"],
                registration=dict(client["registration"]),
            ),
            tokens=Tokens(
                access_token=str(tokens["access_token"]),
                token_type=str(tokens["token_type"]),
                refresh_token=tokens["refresh_token"],
                scopes=tuple(str(scope) for scope in tokens["scopes"]),
                obtained_at=float(tokens["obtained_at"]),
                expires_at=tokens["expires_at"],
            ),
            token_endpoint=str(value["token_endpoint"]),
            revocation_endpoint=value["revocation_endpoint"],
            authorization_endpoint=value["authorization_endpoint"],
            dpop_key=value["dpop_key"],
        )
    except (KeyError, TypeError, ValueError):
        return None
