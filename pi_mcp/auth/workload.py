"""Workload identity: a program signs in with a token that its platform gave it, in place of a secret of its own.

Comes in: a token of another issuer (Kubernetes, a cloud, a CI service), from a variable, a command or a file that the
platform renews. Goes out: tokens for the server. It is read anew each time and kept nowhere; a refused one is neither
sent again nor followed by another grant.

    jwt_bearer           the token is the grant (RFC 7523 §2.1, SEP-1933)
    client_credentials   the token proves the client in place of its secret (RFC 7523 §2.2; `proof.py` puts it there)
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from pi_mcp.auth.addresses import origin_of, shown_url
from pi_mcp.auth.threads import off_loop
from pi_mcp.auth.tokens import ClientProof, Proofs, TokenRefused, request_tokens
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.records import Client, Tokens
    from pi_mcp.config.resolve import ResolvedServer

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
LARGEST = 64 * 1024
"""Bytes of an assertion."""
READ_LIMIT = 5.0
"""Seconds that reading its file may take: it may lie on a network."""


async def assertion_of(resolved: ResolvedServer) -> str | None:
    """The token that `assertion` or `assertionFile` of `oauth` stands for; None where neither is there.

    Raises `secret_lookup_failed` for a file or command that gives none.
    """
    from pi_mcp.auth.proof import configured_secret, oauth_of

    named = oauth_of(resolved).get("assertionFile")
    if isinstance(named, str):
        text = await _read(resolved.definition.name, resolved.definition.base_dir / named)
    else:
        found = await configured_secret(resolved, "assertion")
        if found is None:
            return None
        text = found.strip()
    if not text or any(char.isspace() or not char.isprintable() for char in text):
        raise _unusable(resolved.definition.name, "The assertion is empty or no token.")
    resolved.redactor.add(text)
    return text


async def _read(server: str, path: Path) -> str:
    def read(abandoned: threading.Event) -> bytes:
        del abandoned
        with path.open("rb") as file:
            return file.read(LARGEST + 1)

    try:
        data = await off_loop(read, READ_LIMIT)
        text = data.decode("ascii").strip()
    except (OSError, ValueError):
        # TimeoutError is an OSError, UnicodeDecodeError a ValueError; neither is quoted, it may hold the token.
        data, text = b"", ""
    if not text or len(data) > LARGEST:
        raise _unusable(server, f"The file {clean_line(str(path), 200)} (`assertionFile`) holds no readable token.")
    return text


def check_audience(assertion: str, server: str, *places: str) -> None:
    """Raise `oauth_failed` for an assertion that was made for addresses of others than these; nothing is sent then.

    RFC 7523 §3 has `aud` name the authorization server. A server that names a wrong one could otherwise collect
    assertions and use them at the right one. An audience that is no address says nothing.
    """
    import jwt

    try:
        named = jwt.decode(assertion, options={"verify_signature": False}).get("aud")
    except jwt.PyJWTError:
        return
    audiences = named if isinstance(named, list) else [named]
    addresses = [one for one in audiences if isinstance(one, str) and one.lower().startswith(("https://", "http://"))]
    if not addresses or len(addresses) < len(audiences):
        return
    try:
        if {origin_of(one) for one in addresses} & {origin_of(one) for one in places}:
            return
    except ValueError:  # an address that cannot be read is nobody's
        pass
    raise failure(
        "oauth_failed",
        "authenticate",
        server,
        f"The assertion is for {shown_url(addresses[0])}, and the server's authorization server is "
        f"{shown_url(places[0])}; it was not sent.",
        "Let the platform make one for that audience, if you know that authorization server.",
    )


def _unusable(server: str, message: str) -> PiMcpError:
    return failure(
        "secret_lookup_failed",
        "authenticate",
        server,
        message,
        "See what `assertion` or `assertionFile` in `oauth` names; the platform has to put a token there.",
    )


async def workload_login(
    fetcher: Fetcher,
    endpoint: str,
    client: Client,
    proof: ClientProof,
    assertion: str,
    *,
    resource: str | None,
    scopes: tuple[str, ...] = (),
    dpop: Proofs | None = None,
) -> Tokens:
    """Tokens for an assertion, in one request. Raises PiMcpError; TokenRefused says what is to be looked at."""
    grant = {"grant_type": JWT_BEARER, "assertion": assertion, **({"scope": " ".join(scopes)} if scopes else {})}
    try:
        return await request_tokens(
            fetcher, endpoint, client, proof, grant, resource=resource, scopes=scopes, dpop=dpop
        )
    except TokenRefused as refused:
        if refused.error != "invalid_grant":
            raise
        raise refused.with_hint(
            "The assertion may be over, for another audience, or of an issuer that is not trusted there; see what "
            "`assertion` or `assertionFile` in `oauth` gives."
        ) from None
