"""How a configured client proves itself: its secret, key or assertion, from the file, a variable or a command.

Comes in: a resolved server. Goes out: a `ClientProof` for one use. A `!command` runs when the proof is needed, within
the bounds of every secret command; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pi_mcp.auth.tokens import ClientProof
from pi_mcp.config.secret import TIME_LIMIT, SecretCommand

if TYPE_CHECKING:
    from pi_mcp.config.resolve import ResolvedServer


def oauth_of(resolved: ResolvedServer) -> Mapping[str, object]:
    """The keys of the `oauth` object; none where it is absent or true."""
    return resolved.oauth if isinstance(resolved.oauth, Mapping) else {}


async def proof_of(resolved: ResolvedServer, issuer: str) -> ClientProof:
    """The client's secret, key or assertion, as configured. Raises ConfigurationError (`secret_lookup_failed`)."""
    secret = await configured_secret(resolved, "clientSecret")
    key = await configured_secret(resolved, "privateKey")
    if key is not None and "\n" not in key:
        # One line of an .env file: the line breaks of the PEM are spelled out.
        key = key.replace("\\n", "\n")
    assertion = None
    if oauth_of(resolved).get("grant") not in ("jwt_bearer", "id_jag"):
        # With those it is the grant, and no proof of the client.
        from pi_mcp.auth.workload import assertion_of, check_audience

        assertion = await assertion_of(resolved)
        if assertion is not None:
            check_audience(assertion, resolved.definition.name, issuer)
    return ClientProof(secret, key, issuer, assertion)


async def configured_secret(resolved: ResolvedServer, key: str) -> str | None:
    """A secret of the `oauth` object: its text, or what its command gives now; None where it is not there."""
    value = oauth_of(resolved).get(key)
    if not isinstance(value, str):
        return None
    written = resolved.definition.oauth
    if isinstance(written, Mapping) and str(written.get(key)).startswith("!"):
        from pi_mcp.config.lookup import secret_value

        limit = min(TIME_LIMIT, resolved.definition.timeout)
        value = await secret_value(resolved, SecretCommand("oauth", key, value[1:], limit))
        resolved.redactor.add(value)
    return value
