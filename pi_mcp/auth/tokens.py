"""The token endpoint: one grant goes out, tokens or a refusal come back.

Comes in: a grant as form fields, and how the client proves itself. Goes out: `Tokens`, `TokenRefused` where the
authorization server said no, or another `PiMcpError` where it is not known what it would have said. It sends each
request once, follows no redirect, and puts nothing of a reply into an error but the registered name of an OAuth error.
"""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard
from urllib.parse import parse_qsl, quote

from pi_mcp.auth.challenges import scopes_of
from pi_mcp.auth.records import Client, Tokens
from pi_mcp.errors import AuthenticationError, Diagnostic, PiMcpError, failure
from pi_mcp.text import quoted

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher, Reply

ERRORS: Mapping[str, str] = {
    "invalid_request": "it calls the request malformed",
    "invalid_client": "it does not accept this client",
    "invalid_grant": "it does not accept this grant any more",
    "unauthorized_client": "this client may not use this grant",
    "unsupported_grant_type": "it does not know this grant",
    "unsupported_response_type": "it does not know this kind of login",
    "invalid_scope": "it does not know or give the scopes that were asked for",
    "invalid_target": "it does not know the resource that was asked for",
    "access_denied": "access was denied",
    "login_required": "a login is needed",
    "consent_required": "a consent is needed",
    "interaction_required": "a person is needed",
    "account_selection_required": "an account has to be chosen",
    "server_error": "it reports a failure of its own",
    "temporarily_unavailable": "it is not available now",
    "authorization_pending": "the login is not finished yet",
    "slow_down": "it was asked too often",
    "expired_token": "the code has expired",
    "use_dpop_nonce": "it wants a nonce",
    "invalid_dpop_proof": "it does not accept the proof of possession",
    "invalid_redirect_uri": "it does not accept the redirect address",
    "invalid_client_metadata": "it does not accept what the client says about itself",
}
"""The registered error names that may appear in a message, and what they mean (RFC 6749, 7591, 8628, 8707, 9449)."""
# GitHub's own words for what RFC 6749 calls otherwise.
_OTHER_NAMES = {
    "bad_verification_code": "invalid_grant",
    "bad_refresh_token": "invalid_grant",
    "incorrect_client_credentials": "invalid_client",
    "redirect_uri_mismatch": "invalid_redirect_uri",
    "token_expired": "expired_token",
    "device_flow_disabled": "unauthorized_client",
}
_LONGEST_TOKEN = 64 * 1024


class TokenRefused(AuthenticationError):
    """The authorization server answered, and its answer was no.

    `error` is a key of `ERRORS`, or "unknown"; `status` the HTTP status. `invalid_grant` alone says that a refresh
    token or code is of no more use.
    """

    def __init__(self, diagnostic: Diagnostic, error: str, status: int) -> None:
        super().__init__(diagnostic)
        self.error = error
        self.status = status

    def with_hint(self, hint: str) -> TokenRefused:
        """The same refusal, for somebody who knows more about what was sent."""
        return TokenRefused(replace(self.diagnostic, hint=hint), self.error, self.status)


class Proofs(Protocol):
    """Headers that prove the possession of a key with each request (RFC 9449)."""

    token_type: str
    """The type that tokens must then have: `DPoP`."""

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        """The headers of the next request to this address."""

    def learned(self, url: str, nonce: str | None) -> bool:
        """A reply brought this nonce; True when it is new, so that a refused request may be sent again."""


@dataclass(frozen=True, slots=True)
class ClientProof:
    """How the client proves itself: what is not in `Client` since it is not stored. Both are secrets."""

    secret: str | None = field(default=None, repr=False)
    private_key: str | None = field(default=None, repr=False)
    """PEM, for `private_key_jwt`."""
    audience: str | None = None
    """For `private_key_jwt`: the issuer (RFC 7523bis), or else the endpoint."""
    assertion: str | None = field(default=None, repr=False)
    """For `private_key_jwt`: what a platform signed, in place of a key of one's own."""


async def request_tokens(
    fetcher: Fetcher,
    endpoint: str,
    client: Client,
    proof: ClientProof | None,
    grant: Mapping[str, str],
    *,
    resource: str | None,
    scopes: Collection[str] = (),
    dpop: Proofs | None = None,
) -> Tokens:
    """One token request. `grant` holds `grant_type` and its fields; `scopes` are those that were asked for.

    `resource` is sent as it is (report B115). Raises TokenRefused, ServerError (nothing is known of the grant then),
    or AuthenticationError (`oauth_failed`) for a reply that cannot be used.
    """
    reply = await send_to_endpoint(fetcher, endpoint, client, proof, grant, resource=resource, dpop=dpop)
    return tokens_of(reply, fetcher.server, asked=tuple(scopes), dpop=dpop)


async def send_to_endpoint(
    fetcher: Fetcher,
    endpoint: str,
    client: Client,
    proof: ClientProof | None,
    fields: Mapping[str, str],
    *,
    resource: str | None,
    dpop: Proofs | None = None,
) -> Reply:
    """A form to a token, device or revocation endpoint, with the client's proof. Raises PiMcpError."""
    form = {**fields, **({"resource": resource} if resource is not None else {})}
    own, headers = client_fields(client, proof or ClientProof(), endpoint, fetcher.server)
    form.update(own)
    reply = await fetcher.post_form(endpoint, form, {**headers, **(dpop.headers("POST", endpoint) if dpop else {})})
    if (
        dpop is not None
        and dpop.learned(endpoint, reply.header("dpop-nonce"))
        and error_name(reply) == "use_dpop_nonce"
    ):
        # The server has not looked at the grant: it wants its nonce first (RFC 9449 §8).
        reply = await fetcher.post_form(endpoint, form, {**headers, **dpop.headers("POST", endpoint)})
        dpop.learned(endpoint, reply.header("dpop-nonce"))
    return reply


def client_fields(
    client: Client, proof: ClientProof, endpoint: str, server: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Form fields and headers by which the client names and proves itself (RFC 6749 §2.3, RFC 7523)."""
    method = client.auth_method
    secret = proof.secret or client.secret
    if method in ("client_secret_basic", "client_secret_post") and not secret:
        raise failure(
            "oauth_failed",
            "authenticate",
            server,
            "The client's secret is not known.",
            'Give `clientSecret` in `oauth`, or "tokenEndpointAuthMethod": "none".',
        )
    if method == "client_secret_basic":
        pair = f"{quote(client.client_id, safe='')}:{quote(str(secret), safe='')}"
        return {}, {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}
    if method == "client_secret_post":
        return {"client_id": client.client_id, "client_secret": str(secret)}, {}
    if method == "private_key_jwt":
        return {
            "client_id": client.client_id,
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": proof.assertion
            or signed_assertion(client.client_id, proof.private_key, proof.audience or endpoint, server),
        }, {}
    return ({"client_id": client.client_id} if client.client_id else {}), {}


def signed_assertion(client_id: str, private_key: str | None, audience: str, server: str) -> str:
    """A client assertion (RFC 7523 §3), good for five minutes. Raises AuthenticationError for an unusable key."""
    unusable = failure(
        "oauth_failed",
        "authenticate",
        server,
        "The client's private key cannot be used.",
        "Give `privateKey` in `oauth`: an RSA, EC or Ed25519 key in PEM, without a password.",
    )
    if not private_key:
        raise unusable
    import jwt
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    try:
        key = serialization.load_pem_private_key(private_key.encode(), password=None)
    except Exception:
        raise unusable from None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = {256: "ES256", 384: "ES384", 521: "ES512"}.get(key.curve.key_size)
    elif isinstance(key, rsa.RSAPrivateKey):
        algorithm = "RS256"
    else:
        algorithm = "EdDSA" if isinstance(key, ed25519.Ed25519PrivateKey) else None
    if algorithm is None:
        raise unusable
    now = int(time.time())
    claims = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "iat": now,
        "nbf": now,
        "exp": now + 300,
        "jti": str(uuid.uuid4()),
    }
    try:
        return jwt.encode(claims, key, algorithm=algorithm)  # type: ignore[arg-type]
    except Exception:
        raise unusable from None


# Replies


def error_name(reply: Reply) -> str | None:
    """The OAuth error that a reply names, whatever its status; None for none, "unknown" for an unregistered one."""
    values = _values(reply)
    name = values.get("error") if values is not None else None
    if isinstance(name, dict):  # Slack, Google and others wrap it
        name = name.get("code") or name.get("status")
    if not name:
        return None
    name = _OTHER_NAMES.get(str(name), str(name))
    return name if name in ERRORS else "unknown"


def tokens_of(
    reply: Reply,
    server: str,
    *,
    asked: tuple[str, ...] = (),
    dpop: Proofs | None = None,
    now: float | None = None,
) -> Tokens:
    """The tokens of a reply: JSON or a form, missing or odd members as they come (report B133)."""
    error = error_name(reply)
    if error is not None or not reply.ok:
        raise refusal_of(reply, server, error)
    values = _values(reply)
    token = values.get("access_token") if values else None
    if values is None or not is_sendable(token):
        raise unusable_reply(server)
    kind = values.get("token_type")
    kind = kind.strip() if isinstance(kind, str) and kind.strip() else "Bearer"
    bound = dpop is not None and kind.lower() == dpop.token_type.lower()
    if not bound and kind.lower() != "bearer":
        # Slack and others give the account's kind here. Any other scheme of RFC 6749 would be a way to sign requests.
        if kind.lower() in ("mac", "dpop", "pop", "n_a"):
            raise failure(
                "oauth_failed",
                "authenticate",
                server,
                "The authorization server gives tokens of a type that cannot be used here.",
                'For tokens bound to a key set "dpop": true in `oauth`.' if kind.lower() == "dpop" else None,
            )
        kind = "Bearer"
    refresh = values.get("refresh_token")
    moment = time.time() if now is None else now
    lifetime = seconds(values.get("expires_in"))
    return Tokens(
        access_token=token,
        token_type=dpop.token_type if bound and dpop is not None else "Bearer",
        # What cannot go out in a form is of no use, and would break the renewal that needs it.
        refresh_token=refresh if is_sendable(refresh, " ") else None,
        scopes=_granted(values.get("scope")) or asked,
        obtained_at=moment,
        expires_at=None if lifetime is None else moment + lifetime,
    )


def refusal_of(reply: Reply, server: str, error: str | None) -> PiMcpError:
    """What a reply without tokens means: a refusal, or that nothing is known of the grant."""
    if 300 <= reply.status < 400:
        return failure(
            "oauth_failed",
            "authenticate",
            server,
            f"The token endpoint redirects elsewhere (HTTP {reply.status}); a token request is never sent on.",
            "Tell whoever runs the authorization server.",
        )
    passing = error in ("server_error", "temporarily_unavailable")
    if reply.status >= 500 or reply.status in (408, 425, 429) or passing:
        return failure(
            "connection_failed",
            "authenticate",
            server,
            f"The authorization server did not answer the token request (HTTP {reply.status}).",
            "Try again later; the stored login is unharmed.",
        )
    name = error or ("invalid_client" if reply.status == 401 else "unknown")
    why = f": {ERRORS[name]} ({name})" if name in ERRORS else f" (HTTP {reply.status})"
    return TokenRefused(
        Diagnostic(
            "oauth_failed",
            "authenticate",
            server,
            f"The authorization server gave no token{why}.",
            _HINTS.get(name, f"Run `/mcp auth {quoted(server)}` again."),
        ),
        name,
        reply.status,
    )


_HINTS = {
    "invalid_client": "Check `clientId`, `clientSecret` and `tokenEndpointAuthMethod` in `oauth`.",
    "unauthorized_client": "Allow this grant for the client at the authorization server, or choose another `grant`.",
    "unsupported_grant_type": "Choose another `grant` in `oauth`.",
    "invalid_scope": "Set `scopes` in `oauth` to what the service knows.",
    "invalid_target": "Tell whoever runs the server: its metadata name a resource that its login does not know.",
}


def unusable_reply(server: str) -> PiMcpError:
    return failure(
        "oauth_failed",
        "authenticate",
        server,
        "The authorization server's answer holds no usable token.",
        "Tell whoever runs it.",
    )


def _values(reply: Reply) -> dict[str, Any] | None:
    if reply.media_type == "application/x-www-form-urlencoded":
        return _form(reply.body)
    value = reply.json()
    if isinstance(value, dict):
        return value
    # Some send a form and call it text.
    found = _form(reply.body) if reply.media_type in ("text/plain", "") else None
    return found if found and ("access_token" in found or "error" in found) else None


def _form(body: bytes) -> dict[str, Any] | None:
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except (UnicodeDecodeError, ValueError):
        return None


def is_sendable(token: object, also: str = "") -> TypeGuard[str]:
    """Whether a reply's token can stand in a header; with a space, too, it is a value of RFC 6749 appendix A."""
    return (
        isinstance(token, str)
        and 0 < len(token) <= _LONGEST_TOKEN
        and all(0x21 <= ord(char) < 0x7F or char in also for char in token)
    )


def seconds(value: object) -> float | None:
    """`expires_in`, or another time of a reply, as a number or a text; None for what is neither, or nothing."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < 1e10 else None


def _granted(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        value = " ".join(str(item) for item in value)
    # GitHub separates with commas.
    return scopes_of(value.replace(",", " ")) if isinstance(value, str) else ()
