"""The grants that need nobody: a program signs in as itself, or for a person whom its organisation vouches for.

Comes in: a resolved server and what is known of its authorization server. Goes out: tokens, from the one grant that the
configuration names. `/mcp auth` and every renewal come here: such a login is renewed by being made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pi_mcp.auth.client_credentials import client_login
from pi_mcp.auth.id_jag import exchange
from pi_mcp.auth.proof import configured_secret, oauth_of, proof_of
from pi_mcp.auth.records import Client
from pi_mcp.auth.tokens import ClientProof, Proofs
from pi_mcp.auth.workload import assertion_of, check_audience, workload_login
from pi_mcp.errors import failure

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.records import Tokens
    from pi_mcp.config.resolve import ResolvedServer

GRANTS = ("client_credentials", "jwt_bearer", "id_jag")
NOBODY = Client("", "configured", None)
"""The client of a grant that needs none (RFC 7523 §2.1)."""


def needs_nobody(resolved: ResolvedServer) -> bool:
    """Whether this server's login is by one of these grants."""
    return oauth_of(resolved).get("grant") in GRANTS


async def unattended_login(
    resolved: ResolvedServer,
    fetcher: Fetcher,
    *,
    issuer: str,
    endpoint: str,
    client: Client | None,
    resource: str,
    scopes: tuple[str, ...],
    dpop: Proofs | None = None,
) -> Tokens:
    """Tokens by the configured grant. `client` None: the configuration names none. Raises PiMcpError."""
    oauth = oauth_of(resolved)
    grant = oauth.get("grant")
    proof = await proof_of(resolved, issuer)
    if grant == "client_credentials":
        return await client_login(fetcher, endpoint, client, proof, resource=resource, scopes=scopes, dpop=dpop)
    assertion = await assertion_of(resolved)
    if assertion is None:
        raise failure(
            "configuration_invalid",
            "authenticate",
            fetcher.server,
            f"The grant `{grant}` needs a token to begin with.",
            "Give `assertion` or `assertionFile` in `oauth`.",
        )
    if grant == "id_jag":
        assertion = await _vouched(resolved, assertion, issuer, resource, scopes)
    else:
        check_audience(assertion, fetcher.server, issuer, endpoint)
    return await workload_login(
        fetcher, endpoint, client or NOBODY, proof, assertion, resource=resource, scopes=scopes, dpop=dpop
    )


async def _vouched(resolved: ResolvedServer, subject: str, issuer: str, resource: str, scopes: tuple[str, ...]) -> str:
    """The identity provider's grant for a person's token."""
    from pi_mcp.auth.fetch import Fetcher

    oauth = oauth_of(resolved)
    idp_issuer = str(oauth["idpIssuer"])
    secret = await configured_secret(resolved, "idpClientSecret")
    grant = await exchange(
        # Its own address decides what it may lead to: the identity provider of an organisation is often a private one.
        Fetcher(resolved.definition.name, idp_issuer, environ=resolved.environ),
        idp_issuer,
        Client(str(oauth["idpClientId"]), "configured", None, "client_secret_basic" if secret else "none"),
        ClientProof(secret),
        subject,
        audience=issuer,
        resource=resource,
        scopes=scopes,
    )
    resolved.redactor.add(grant)
    return grant
