"""Enterprise-managed authorization: the organisation's identity provider decides, and nobody is asked (SEP-990).

Comes in: a person's identity token of the organisation's login, and the server that is to be used. Goes out: a grant
for that server's authorization server (ID-JAG), which `workload.py` turns into tokens. The identity token goes to its
own issuer alone, and neither of them is kept.

    identity token ─► identity provider: token exchange (RFC 8693) ─► ID-JAG ─► authorization server: RFC 7523 ─► tokens
                        audience: the authorization server's issuer; resource: the server
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from pi_mcp.auth.addresses import shown_url
from pi_mcp.auth.discovery import metadata_of
from pi_mcp.auth.records import Client
from pi_mcp.auth.tokens import (
    ERRORS,
    ClientProof,
    TokenRefused,
    error_name,
    is_sendable,
    refusal_of,
    send_to_endpoint,
)
from pi_mcp.errors import Diagnostic, failure

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"  # noqa: S105 - a name
_TYPE = "urn:ietf:params:oauth:token-type:"
ID_JAG = _TYPE + "id-jag"


async def exchange(
    idp: Fetcher,
    idp_issuer: str,
    client: Client,
    proof: ClientProof,
    subject: str,
    *,
    audience: str,
    resource: str,
    scopes: tuple[str, ...] = (),
) -> str:
    """The identity provider's grant for one authorization server and one resource (an ID-JAG). Raises PiMcpError."""
    metadata = await metadata_of(idp, idp_issuer)
    known = metadata.auth_methods
    if client.auth_method == "client_secret_basic" and known and "client_secret_basic" not in known:
        client = Client(client.client_id, client.kind, None, "client_secret_post")
    form = {
        "grant_type": TOKEN_EXCHANGE,
        "requested_token_type": ID_JAG,
        "audience": audience,
        "subject_token": subject,
        "subject_token_type": _TYPE + subject_type(subject),
        **({"scope": " ".join(scopes)} if scopes else {}),
    }
    reply = await send_to_endpoint(idp, metadata.token_endpoint, client, proof, form, resource=resource)
    error = error_name(reply)
    if error is not None or not reply.ok:
        refused = refusal_of(reply, idp.server, error)
        if not isinstance(refused, TokenRefused):
            raise refused
        why = f": {ERRORS[refused.error]} ({refused.error})" if refused.error in ERRORS else ""
        raise TokenRefused(
            Diagnostic(
                "oauth_failed",
                "authenticate",
                idp.server,
                f"The identity provider {shown_url(idp_issuer)} does not let this server be used{why}.",
                _HINTS.get(refused.error, "Ask whoever administers it to allow this client and this server."),
            ),
            refused.error,
            refused.status,
        )
    value = reply.json()
    value = value if isinstance(value, dict) else {}
    token = value.get("access_token")
    if not is_sendable(token) or value.get("issued_token_type", ID_JAG) != ID_JAG:
        raise failure(
            "oauth_failed",
            "authenticate",
            idp.server,
            f"The identity provider {shown_url(idp_issuer)} gave no grant for an authorization server (ID-JAG).",
            "Ask whoever administers it whether it knows enterprise-managed authorization.",
        )
    return str(token)


_HINTS = {
    "invalid_grant": "The identity token may be over, or for another client; see what `assertion` or `assertionFile` "
    "in `oauth` gives.",
    "invalid_client": "Check `idpClientId` and `idpClientSecret` in `oauth`.",
    "unsupported_grant_type": "Ask whoever administers it whether it knows enterprise-managed authorization.",
}


def subject_type(token: str) -> str:
    """What kind of token the identity provider gave, by its form: `id_token`, `saml2` or `refresh_token`."""
    if token.count(".") == 2 and token.startswith("ey"):
        return "id_token"
    try:
        start = base64.urlsafe_b64decode(token[:64].translate(_URLSAFE))
    except (binascii.Error, ValueError):
        return "refresh_token"
    return "saml2" if start.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<") else "refresh_token"


_URLSAFE = str.maketrans("+/", "-_")
