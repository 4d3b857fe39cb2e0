"""Tokens that are bound to a key (DPoP, RFC 9449): a proof of its possession with every request.

Comes in: the method and address of a request, and the token that goes with it. Goes out: a `DPoP` header that is good
for this one request. The private key leaves memory only for the store of logins; nonces are kept per origin and for
this process alone.

    token request ─► proof ─► 400 use_dpop_nonce ─► proof with the nonce ─► token with `cnf.jkt`
    MCP request ──► proof with `ath` ─► 401 use_dpop_nonce ─► proof with the nonce (never executed in between)
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import uuid
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pi_mcp.auth.addresses import origin_of
from pi_mcp.auth.challenges import of_scheme
from pi_mcp.errors import failure
from pi_mcp.text import quoted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from pi_mcp.auth.discovery import AuthorizationServer
    from pi_mcp.auth.records import Credential

ALGORITHM = "ES256"
"""What everybody knows who knows DPoP."""
_NONCE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,1024}")
_MOST_ORIGINS = 50


class KeyProofs:
    """The proofs of one key (see `tokens.Proofs`)."""

    token_type = "DPoP"  # noqa: S105 - a type, no token

    def __init__(self, pem: str) -> None:
        """`pem` is a P-256 key in PKCS #8, as `new_key` makes it. Raises ValueError for anything else."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            key = serialization.load_pem_private_key(pem.encode(), password=None)
        except Exception:
            raise ValueError("not a key") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
            raise ValueError("not a P-256 key")
        self.pem = pem
        self._key: ec.EllipticCurvePrivateKey = key
        self._nonces: dict[tuple[str, str, int], str] = {}

    def __repr__(self) -> str:
        return "KeyProofs(***)"

    @cached_property
    def jwk(self) -> dict[str, str]:
        """The public key (RFC 7517), its members in the order of RFC 7638."""
        numbers = self._key.public_key().public_numbers()
        x, y = (_base64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
        return {"crv": "P-256", "kty": "EC", "x": x, "y": y}

    @cached_property
    def thumbprint(self) -> str:
        """The key's thumbprint (RFC 7638): `dpop_jkt` of an authorization request, `cnf.jkt` of a token."""
        return _base64url(hashlib.sha256(json.dumps(self.jwk, separators=(",", ":")).encode()).digest())

    def headers(self, method: str, url: str, *, token: str | None = None) -> Mapping[str, str]:
        """The proof of the next request to this address; with the token's hash where it carries one (§4.2)."""
        import jwt

        claims: dict[str, Any] = {
            "jti": str(uuid.uuid4()),
            "htm": method.upper(),
            "htu": _target(url),
            "iat": int(time.time()),
        }
        if token is not None:
            claims["ath"] = _base64url(hashlib.sha256(token.encode("ascii", "replace")).digest())
        nonce = self._nonces.get(origin_of(url))
        if nonce is not None:
            claims["nonce"] = nonce
        header = {"typ": "dpop+jwt", "jwk": self.jwk}
        return {"DPoP": jwt.encode(claims, self._key, algorithm=ALGORITHM, headers=header)}

    def learned(self, url: str, nonce: str | None) -> bool:
        """An answer brought this nonce, to be used with that origin from now on (§8.2). True when it is new."""
        if nonce is None or not _NONCE.fullmatch(nonce):
            return False
        origin = origin_of(url)
        new = self._nonces.pop(origin, None) != nonce
        self._nonces[origin] = nonce
        while len(self._nonces) > _MOST_ORIGINS:
            del self._nonces[next(iter(self._nonces))]
        return new


def new_key() -> str:
    """A fresh private key as PEM, for one login."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


@lru_cache(maxsize=64)
def proofs_of(pem: str) -> KeyProofs:
    """The proofs of a stored key: the same object for the same key, so that its nonces are known. Raises ValueError."""
    return KeyProofs(pem)


def stored_proofs(credential: Credential) -> KeyProofs | None:
    """The proofs that a stored login needs; None for bearer tokens. Raises `authentication_required` for a lost key."""
    if credential.dpop_key is None:
        return None
    try:
        return proofs_of(credential.dpop_key)
    except ValueError:
        raise failure(
            "authentication_required",
            "authenticate",
            credential.server,
            "The key that the stored login is bound to cannot be used.",
            f"Run `/mcp auth {quoted(credential.server)}`.",
        ) from None


def proofs_for_login(
    server: str, metadata: AuthorizationServer, configured: object, *, required: bool
) -> KeyProofs | None:
    """A new key where the configuration (`dpop` of `oauth`) or else the resource asks for it; None for bearer tokens.

    Raises AuthenticationError (`oauth_failed`) where the authorization server says that it cannot.
    """
    if configured is False or not (configured or required):
        return None
    known = metadata.document.get("dpop_signing_alg_values_supported")
    if isinstance(known, list) and ALGORITHM not in known:
        raise failure(
            "oauth_failed",
            "authenticate",
            server,
            f"The authorization server binds tokens to keys, but to none of the kind that is used here ({ALGORITHM}).",
            'Set "dpop": false in `oauth` if the server takes bearer tokens, too.',
        )
    return KeyProofs(new_key())


def wants_nonce(status: int, challenges: tuple[str, ...]) -> bool:
    """Whether a resource server refused a request for want of its nonce alone (§9): it did not execute it."""
    challenge = of_scheme(challenges, "dpop")
    return status == 401 and challenge is not None and challenge.error == "use_dpop_nonce"


def _target(url: str) -> str:
    """`htu`: the address without query and fragment (§4.2)."""
    parts = urlsplit(url)
    return parts._replace(path=parts.path or "/", query="", fragment="").geturl()


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
