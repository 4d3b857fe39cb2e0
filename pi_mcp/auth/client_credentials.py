"""Client credentials (RFC 6749 §4.4): tokens for a program that signs in as itself, without a person.

Comes in: a configured client with its secret or key. Goes out: tokens. It never registers a client and never asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pi_mcp.auth.tokens import ClientProof, Proofs, request_tokens
from pi_mcp.errors import failure

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.records import Client, Tokens


async def client_login(
    fetcher: Fetcher,
    endpoint: str,
    client: Client | None,
    proof: ClientProof,
    *,
    resource: str | None,
    scopes: tuple[str, ...] = (),
    dpop: Proofs | None = None,
) -> Tokens:
    """Tokens for the client itself. Raises PiMcpError."""
    if client is None or client.auth_method == "none":
        raise failure(
            "configuration_invalid",
            "authenticate",
            fetcher.server,
            "The grant `client_credentials` needs a client that can prove itself.",
            "Give `clientId` with `clientSecret` or `privateKey` in `oauth`.",
        )
    grant = {"grant_type": "client_credentials", **({"scope": " ".join(scopes)} if scopes else {})}
    return await request_tokens(fetcher, endpoint, client, proof, grant, resource=resource, scopes=scopes, dpop=dpop)
