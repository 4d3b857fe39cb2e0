"""Which client a login goes by: configured, a metadata document, one registered before, or a new registration.

Comes in: what discovery found, the `oauth` object and the stored client. Goes out: a `Client`. A registration is made
for an explicit login only, is bound to issuer and redirect address (reports B121, B122), and what an endpoint says to
it is never quoted (report B140).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.auth.records import Client
from pi_mcp.auth.tokens import ERRORS, error_name, is_sendable, seconds
from pi_mcp.errors import PiMcpError, failure

if TYPE_CHECKING:
    from pi_mcp.auth.discovery import AuthorizationServer
    from pi_mcp.auth.fetch import Fetcher

CLIENT_NAME = "pi-mcp"
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")


async def client_for(
    fetcher: Fetcher,
    metadata: AuthorizationServer,
    oauth: Mapping[str, Any],
    *,
    redirect_uri: str,
    stored: Client | None = None,
    scopes: tuple[str, ...] = (),
) -> Client:
    """The client for one login. `stored` is one that was registered at this very issuer, or None to register anew.

    Raises AuthenticationError (`oauth_failed`) before any browser is opened (report B142).
    """
    found = given_client(metadata, oauth, redirect_uri)
    if found is not None:
        return found
    if stored is not None and reusable(stored, redirect_uri):
        return stored
    if metadata.registration_endpoint is None:
        raise _needs_client(fetcher.server, redirect_uri, "The authorization server registers no clients by itself.")
    return await _register(fetcher, metadata, oauth, redirect_uri, scopes)


def given_client(metadata: AuthorizationServer, oauth: Mapping[str, Any], redirect_uri: str | None) -> Client | None:
    """The client that the configuration names: `clientId`, or `clientMetadataUrl` where the server reads it."""
    if oauth.get("clientId"):
        return Client(str(oauth["clientId"]), "configured", redirect_uri, auth_method(metadata, oauth))
    if oauth.get("clientMetadataUrl") and metadata.cimd:
        method = "private_key_jwt" if oauth.get("privateKey") or signs_by_platform(oauth) else "none"
        return Client(str(oauth["clientMetadataUrl"]), "metadata_document", redirect_uri, method)
    return None


def auth_method(metadata: AuthorizationServer, oauth: Mapping[str, Any]) -> str:
    """How a configured client proves itself at the token endpoint."""
    if oauth.get("tokenEndpointAuthMethod"):
        return str(oauth["tokenEndpointAuthMethod"])
    if oauth.get("privateKey") or signs_by_platform(oauth):
        return "private_key_jwt"
    return _with_secret(metadata) if oauth.get("clientSecret") else "none"


def signs_by_platform(oauth: Mapping[str, Any]) -> bool:
    """Whether the client proves itself with what its platform signed. With other grants that is the grant itself."""
    given = oauth.get("assertion") or oauth.get("assertionFile")
    return bool(given) and oauth.get("grant") not in ("jwt_bearer", "id_jag")


def reusable(stored: Client, redirect_uri: str) -> bool:
    """Whether a stored registration still fits: same redirect address, secret not expired."""
    expired = stored.secret_expires_at is not None and stored.secret_expires_at <= time.time() + 60
    return stored.kind == "registered" and stored.redirect_uri == redirect_uri and not expired


def _with_secret(metadata: AuthorizationServer) -> str:
    """RFC 6749 §2.3.1 has every server know Basic; some list the form alone."""
    known = metadata.auth_methods
    return "client_secret_post" if known and "client_secret_basic" not in known else "client_secret_basic"


async def _register(
    fetcher: Fetcher,
    metadata: AuthorizationServer,
    oauth: Mapping[str, Any],
    redirect_uri: str,
    scopes: tuple[str, ...],
) -> Client:
    known = metadata.auth_methods
    method = str(oauth.get("tokenEndpointAuthMethod") or "")
    if not method:
        method = "none" if known is None or "none" in known else _with_secret(metadata)
    grants = ["authorization_code", "refresh_token"]
    if metadata.device_authorization_endpoint is not None:
        grants.append(DEVICE_GRANT)
    request: dict[str, Any] = {
        "client_name": CLIENT_NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": grants,
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native",
    }
    if scopes:
        request["scope"] = " ".join(scopes)
    endpoint = str(metadata.registration_endpoint)
    reply = await fetcher.post_json(endpoint, request)
    if reply.status == 400 and DEVICE_GRANT in grants and error_name(reply) == "invalid_client_metadata":
        # Some know the device flow but give it to clients of their own alone.
        request["grant_types"] = [grant for grant in grants if grant != DEVICE_GRANT]
        reply = await fetcher.post_json(endpoint, request)
    if not reply.ok:
        error = error_name(reply)
        why = f"HTTP {reply.status}" + (f", {error}" if error in ERRORS else "")
        if reply.status >= 500 or reply.status == 429:
            raise failure(
                "oauth_failed",
                "authenticate",
                fetcher.server,
                f"The client could not be registered ({why}).",
                f"Try again later, or register a client beforehand with {redirect_uri} and give its `clientId`.",
            )
        raise _needs_client(fetcher.server, redirect_uri, f"This service refuses dynamic registration ({why}).")
    value = reply.json()
    client_id = value.get("client_id") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not is_sendable(client_id, " ") or not client_id.strip():
        raise _needs_client(fetcher.server, redirect_uri, "The registration gave no client id.")
    secret = value.get("client_secret")
    secret = secret if is_sendable(secret, " ") else None
    stated = value.get("token_endpoint_auth_method")
    if stated in _METHODS:
        method = str(stated)
    elif secret is not None and method == "none" and known is not None and "none" not in known:
        method = _with_secret(metadata)
    if secret is None and method in ("client_secret_basic", "client_secret_post"):
        method = "none"
    expires = seconds(value.get("client_secret_expires_at"))
    kept = ("registration_client_uri", "registration_access_token", "client_id_issued_at")
    return Client(
        client_id,
        "registered",
        redirect_uri,
        method,
        secret,
        expires or None,  # 0 means never (RFC 7591 §3.2.1)
        {key: value[key] for key in kept if isinstance(value.get(key), str | int)},
    )


def _needs_client(server: str, redirect_uri: str, message: str) -> PiMcpError:
    return failure(
        "oauth_failed",
        "authenticate",
        server,
        message,
        f"Register a client there with the redirect address {redirect_uri} and give its `clientId` (and "
        "`clientSecret`) in `oauth`, or put a token into `headers`.",
    )
