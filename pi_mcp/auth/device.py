"""The device flow (RFC 8628): a code that a person types in on any device, and polling until that is done.

Comes in: an authorization server that offers it. Goes out: tokens. The person sees the user code and the address; the
device code appears nowhere. It polls as slowly as it is told to, and for ten minutes at most.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pi_mcp.auth.addresses import shown_url
from pi_mcp.auth.registration import DEVICE_GRANT
from pi_mcp.auth.tokens import (
    ClientProof,
    Proofs,
    TokenRefused,
    error_name,
    is_sendable,
    refusal_of,
    request_tokens,
    send_to_endpoint,
)
from pi_mcp.errors import ServerError, failure
from pi_mcp.text import clean_line, quoted

if TYPE_CHECKING:
    from pi_mcp.auth.discovery import AuthorizationServer
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.auth.records import Client, Tokens
    from pi_mcp.host import Host

DEVICE_LIMIT = 600.0
"""Seconds that a person has at most; the authorization server may give less."""
INTERVAL = 5.0
"""Seconds between two polls, where the server does not say."""
LONGEST_INTERVAL = 60.0
SLOWER = 5.0
"""Seconds that `slow_down` adds (RFC 8628 §3.5)."""
NETWORK_FAULTS = 5
"""Polls in a row that may fail on the network."""


async def device_login(
    fetcher: Fetcher,
    metadata: AuthorizationServer,
    client: Client,
    proof: ClientProof,
    host: Host,
    *,
    resource: str | None,
    scopes: tuple[str, ...],
    browser: bool = False,
    dpop: Proofs | None = None,
) -> Tokens:
    """Show address and code, wait for the person. Raises PiMcpError; TokenRefused where the flow is not for us."""
    server = fetcher.server
    endpoint = str(metadata.device_authorization_endpoint)
    fields = {"scope": " ".join(scopes)} if scopes else {}
    reply = await send_to_endpoint(fetcher, endpoint, client, proof, fields, resource=resource)
    if error_name(reply) is not None or not reply.ok:
        raise refusal_of(reply, server, error_name(reply))
    value = reply.json()
    value = value if isinstance(value, dict) else {}
    device_code, user_code = value.get("device_code"), value.get("user_code")
    address = value.get("verification_uri") or value.get("verification_url")  # Google's spelling
    shown = isinstance(user_code, str) and clean_line(user_code, 40).strip()
    if not is_sendable(device_code, " ") or not shown or not isinstance(address, str) or not address:
        raise failure(
            "oauth_failed",
            "authenticate",
            server,
            "The authorization server's answer holds no usable device code.",
            "Tell whoever runs it.",
        )
    await fetcher.check(str(address), "The address for the code")
    complete = value.get("verification_uri_complete")
    if not isinstance(complete, str):
        complete = None
    else:
        await fetcher.check(complete, "The address for the code")
    await host.notify(
        "info",
        f"To sign in to {clean_line(server)}, open this address on any device:\n{clean_line(str(address), 500)}\n"
        f"and enter the code {clean_line(str(user_code), 40)}",
    )
    opening = asyncio.create_task(_open(host, complete or str(address))) if browser else None
    try:
        async with asyncio.timeout(min(_number(value.get("expires_in"), DEVICE_LIMIT), DEVICE_LIMIT)):
            return await _poll(
                fetcher,
                metadata.token_endpoint,
                client,
                proof,
                str(device_code),
                _number(value.get("interval"), INTERVAL),
                resource=resource,
                scopes=scopes,
                dpop=dpop,
            )
    except TimeoutError:
        raise failure(
            "timeout",
            "authenticate",
            server,
            f"The code was not entered at {shown_url(str(address))} in time.",
            f"Run `/mcp auth {quoted(server)}` again for a new one.",
        ) from None
    finally:
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)


async def _open(host: Host, url: str) -> None:
    try:
        await host.open_url(url)
    except Exception:  # noqa: S110 - the person has the address anyway
        pass


async def _poll(
    fetcher: Fetcher,
    endpoint: str,
    client: Client,
    proof: ClientProof,
    device_code: str,
    interval: float,
    *,
    resource: str | None,
    scopes: tuple[str, ...],
    dpop: Proofs | None,
) -> Tokens:
    grant = {"grant_type": DEVICE_GRANT, "device_code": device_code}
    faults = 0
    while True:
        await asyncio.sleep(min(interval, LONGEST_INTERVAL))
        try:
            return await request_tokens(
                fetcher, endpoint, client, proof, grant, resource=resource, scopes=scopes, dpop=dpop
            )
        except TokenRefused as refused:
            faults = 0
            if refused.error == "slow_down":
                interval += SLOWER
            elif refused.error != "authorization_pending":
                raise
        except ServerError:
            # The person may be half way through: a lost poll is made up for by the next, more slowly (§3.5).
            faults += 1
            if faults >= NETWORK_FAULTS:
                raise
            interval = min(interval * 2, LONGEST_INTERVAL)


def _number(value: Any, default: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if 0 < number < 1e9 else default
