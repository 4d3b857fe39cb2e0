"""The handshake of both eras: what the gateway says of itself.

Comes in: `initialize` and `server/discover`. Goes out: a version, and the capabilities that there are for this client:
with one upstream under its own names, what that declares. It starts no other one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp._version import __version__
from pi_mcp.errors import PiMcpError
from pi_mcp.plugin import SEARCH_TOOL, RpcError
from pi_mcp.server import rpc
from pi_mcp.server.loading import CALL_TOOL

if TYPE_CHECKING:
    from pi_mcp.server.clients import ClientSession, Exchange
    from pi_mcp.server.gate import Caller
    from pi_mcp.server.gateway import Gateway

INSTRUCTIONS = (
    f"Tools of several MCP servers are behind {SEARCH_TOOL}: describe what you need, and the tools that fit become "
    f"available under the names in the answer. If they do not appear among your tools, call them with {CALL_TOOL}."
)
_NEWS = ("listChanged", "subscribe")
"""What can be declared only to somebody who can be told of it."""

_LOG = logging.getLogger("pi_mcp.server")


def server_info() -> dict[str, Any]:
    return {"name": "pi-mcp", "version": __version__}


async def initialize(
    gateway: Gateway, session: ClientSession, caller: Caller, params: Mapping[str, Any]
) -> dict[str, Any]:
    """The result of `initialize`: a version that is not known is answered with the newest one (B197).

    Raises RpcError.
    """
    asked, declared, info = (params.get(name) for name in ("protocolVersion", "capabilities", "clientInfo"))
    if not isinstance(asked, str) or not isinstance(declared, dict) or not isinstance(info, dict):
        raise RpcError(rpc.INVALID_PARAMS, "protocolVersion, capabilities and clientInfo are wanted")
    info = rpc.described(declared, info)
    version = asked if asked in rpc.HANDSHAKE_VERSIONS else rpc.HANDSHAKE_VERSIONS[-1]
    if session.id is not None:  # else what is kept is for all clients of the credential
        session.declared = declared
        session.client_info = info
    capabilities, instructions = await _offer(gateway, session, caller, version)
    result: dict[str, Any] = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server_info()}
    if instructions:
        result["instructions"] = instructions
    return result


async def discover(gateway: Gateway, exchange: Exchange) -> dict[str, Any]:
    """The result of `server/discover`."""
    capabilities, instructions = await _offer(gateway, exchange.session, exchange.caller, rpc.MODERN_VERSIONS[-1])
    result: dict[str, Any] = {"supportedVersions": list(rpc.MODERN_VERSIONS), "capabilities": capabilities}
    if instructions:
        result["instructions"] = instructions
    return result


async def _offer(
    gateway: Gateway, session: ClientSession, caller: Caller, version: str
) -> tuple[dict[str, Any], str | None]:
    """The capabilities to declare, and the instructions."""
    found = await _of_the_one(gateway, session, caller) if gateway.direct else None
    if found is None:
        offered: dict[str, Any] = {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {"listChanged": True},
            "completions": {},
            "logging": {},
        }
        if version == rpc.HANDSHAKE_VERSIONS[-1]:
            offered["tasks"] = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        found = offered, INSTRUCTIONS if gateway.expose == "search" else None
    capabilities, instructions = found
    if session.id is None and not session.modern:
        capabilities = {
            name: {key: one for key, one in value.items() if key not in _NEWS} if isinstance(value, dict) else value
            for name, value in capabilities.items()
        }
    return capabilities, instructions


async def _of_the_one(
    gateway: Gateway, session: ClientSession, caller: Caller
) -> tuple[dict[str, Any], str | None] | None:
    """What the only upstream declares and says; None where it cannot be asked, or is not for this caller."""
    server = next(iter(gateway.servers))
    if not gateway.knows(caller, server):
        return None
    try:
        upstream = gateway.upstream(session, server)
        await upstream.connect()
    except PiMcpError as error:
        # The client learns why from what it asks for next, and a server that is back then works.
        gateway.disclosure.log(error.diagnostic)
        return None
    capabilities, instructions = upstream.told.get("capabilities"), upstream.told.get("instructions")
    trusted = upstream.definition.trust != "untrusted"
    return (
        dict(capabilities) if isinstance(capabilities, dict) else {},
        instructions if isinstance(instructions, str) and trusted else None,
    )
