"""The documents by which clients find out where to sign in (RFC 8414, RFC 9728).

Comes in: the gateway's addresses, and who issues its tokens. Goes out: JSON objects. No name of a server, tool or
person is in them: everybody may read them.
"""

from __future__ import annotations

from typing import Any

from pi_mcp.server.oauth import places as at
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.registration import AUTH_METHODS, GRANTS

SCOPES = ("tools:read", "tools:write", "resources:read", "prompts:read", "apps:render")
"""What is advertised. Those that name a server or a tool would tell which there are; `admin` is not for clients."""
DEFAULT_SCOPES = ("tools:read", "resources:read", "prompts:read")
"""What a client that names no scope asks for: it reads. More comes by step-up."""


def protected_resource(places: Places, path: str, issuers: tuple[str, ...]) -> dict[str, Any]:
    """The metadata of `/mcp` or its alias (RFC 9728 §2). `path` as it stands behind the well-known part."""
    resource = places.at(at.ALIAS) if path.rstrip("/") == at.ALIAS else places.resource
    return {
        "resource": resource,
        "authorization_servers": list(issuers),
        "scopes_supported": list(SCOPES),
        "bearer_methods_supported": ["header"],
        "resource_name": "pi-mcp",
    }


def openid_provider(places: Places) -> dict[str, Any]:
    """The same at OpenID Connect's location, with what its readers insist on. No identity token is ever issued."""
    return {
        **authorization_server(places),
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
    }


def authorization_server(places: Places) -> dict[str, Any]:
    """The embedded server's metadata (RFC 8414 §2)."""
    return {
        "issuer": places.issuer,
        "authorization_endpoint": places.at(at.AUTHORIZE),
        "token_endpoint": places.at(at.TOKEN),
        "registration_endpoint": places.at(at.REGISTER),
        "revocation_endpoint": places.at(at.REVOKE),
        "jwks_uri": places.at(at.JWKS),
        "scopes_supported": list(SCOPES),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": list(GRANTS),
        "token_endpoint_auth_methods_supported": list(AUTH_METHODS),
        "revocation_endpoint_auth_methods_supported": list(AUTH_METHODS),
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
        "protected_resources": [places.resource],
    }
