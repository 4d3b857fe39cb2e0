"""Telling an authorization server that a login is over (RFC 7009), in the little time that a logout has.

Comes in: a credential that is not stored any more. Goes out: what became of it. It raises nothing: the local logout
has happened already.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from pi_mcp.auth.tokens import ClientProof, send_to_endpoint
from pi_mcp.errors import PiMcpError

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.records import Credential

Outcome = Literal["revoked", "not offered", "failed"]

REVOKE_LIMIT = 5.0
"""Seconds for all tokens of a login together."""
WORDS: dict[Outcome, str] = {
    "revoked": "revoked at the authorization server",
    "not offered": "the authorization server offers no revocation: its tokens are good until they run out",
    "failed": "the authorization server did not confirm the revocation: its tokens may be good until they run out",
}


async def revoke(
    fetcher: Fetcher, credential: Credential, proof: ClientProof | None = None, *, limit: float = REVOKE_LIMIT
) -> Outcome:
    """Revoke refresh token and access token, each with one request. Bounded by `limit` seconds."""
    endpoint = credential.revocation_endpoint
    if endpoint is None:
        return "not offered"
    tokens = credential.tokens
    pairs = [("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token)]
    done = True
    try:
        async with asyncio.timeout(limit):
            for kind, token in pairs:
                if token:
                    reply = await send_to_endpoint(
                        fetcher,
                        endpoint,
                        credential.client,
                        proof,
                        {"token": token, "token_type_hint": kind},
                        resource=None,
                    )
                    done = done and reply.ok
    except (PiMcpError, TimeoutError):
        return "failed"
    return "revoked" if done else "failed"
