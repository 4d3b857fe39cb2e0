"""What a caller may see and do: the questions that the gateway asks, and the answer where there is no policy.

Comes in: a caller, and a server with a tool, resource or prompts. Goes out: yes or no, and for a call a ticket that
is handed back when it has ended. The protocol's code asks; only a `Gate` knows scopes, limits and the audit trail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pi_mcp.access import Grant
from pi_mcp.plugin import RpcError
from pi_mcp.server import rpc

Outcome = Literal["ok", "tool_error", "input_required", "error", "refused", "cancelled"]
"""How a call ended: a result, a result with `isError`, one that asks the client for input, a JSON-RPC error, a server's
trust level that wanted a person's word, or nobody waits any more."""


Reach = Literal["tools", "prompts", "resources", "everything"]
"""What of a server somebody may get at; `everything` is what no scope of its own speaks of: foreign methods."""
Asked = Literal["tool", "prompt", "resource", "search", "method"]

NOT_PERMITTED = "Not permitted"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent the request that is being answered."""

    session: str | None
    """The client session's id; None where there is none (2026-07-28, --stateless)."""
    grant: Grant
    request_id: int | str | None
    transport: Literal["stdio", "http"]


class Denial(RpcError):
    """A no of the gate's own, which HTTP tells by its status, too. A server's error of the same code is none."""


class Refused(Denial):
    """The caller may not do that; `data` may name the scope that is missing."""

    def __init__(self, message: str = NOT_PERMITTED, data: Any = None) -> None:
        super().__init__(rpc.FORBIDDEN, message, data)


class NotSent(RpcError):
    """A call that was kept back for another reason than the caller's rights."""


def unknown(asked: Asked, name: str) -> RpcError:
    """What nobody has, said to somebody from whom nothing is hidden."""
    if asked == "resource":
        return RpcError(rpc.RESOURCE_NOT_FOUND, "Resource not found", {"uri": name})
    if asked == "method":
        return RpcError(rpc.METHOD_NOT_FOUND, "Method not found", name)
    return RpcError(rpc.INVALID_PARAMS, f"Unknown {asked}")


class Ticket(Protocol):
    """One permitted call."""

    async def end(self, outcome: Outcome, result: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The call has ended; members for the reply's `_meta`, or None. Awaited once, before the reply is sent."""


async def attended(ticket: Ticket, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Do what was permitted, and tell the ticket how it ended: the result, with what the ticket has to say of it."""
    try:
        result = await work
    except asyncio.CancelledError:
        await ticket.end("cancelled", None)
        raise
    except (Refused, NotSent):
        await ticket.end("refused", None)
        raise
    except Exception:
        await ticket.end("error", None)
        raise
    more = await ticket.end(_outcome(result), result)
    if more:
        meta = result.get("_meta")
        result = {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), **more}}
    return result


def _outcome(result: Mapping[str, Any]) -> Outcome:
    if result.get("resultType") == "input_required":
        return "input_required"
    return "tool_error" if result.get("isError") is True else "ok"


class Gate(Protocol):
    """See the module's docstring. `tool` is the tool's object of `tools/list`, with its original name."""

    def reaches(self, caller: Caller, server: str, kind: Reach, tool: str | None = None) -> bool:
        """Whether anything of that kind of the server, or that tool, could be permitted.

        Asked before the server is contacted: nothing but its name is known.
        """

    async def refuse(
        self,
        caller: Caller,
        asked: Asked,
        name: str,
        *,
        server: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> RpcError:
        """The error to raise for what is not there, and in the same words for what the caller may not know of.

        `server`, whose `name` it is, and `arguments` are for the audit trail alone.
        """

    def permits_tool(self, caller: Caller, server: str, tool: Mapping[str, Any]) -> bool:
        """Whether lists and searches show the tool."""

    async def begin_call(
        self, caller: Caller, server: str, tool: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Ticket:
        """Permission for one call; nothing has been sent yet. Raises Refused, or another Denial for a limit."""

    def permits_resource(self, caller: Caller, server: str, uri: str) -> bool:
        """Whether the resource may be listed, read and subscribed to. A template's URI has its `{…}` in it."""

    def permits_prompts(self, caller: Caller, server: str) -> bool:
        """Whether the server's prompts may be listed and used."""

    def permits_search(self, caller: Caller) -> bool:
        """Whether `mcp_search` may be called."""

    def answered(self, caller: Caller, result: Mapping[str, Any]) -> None:
        """A request's result goes out: a call's, a search's, a list's, whatever it is."""


class _NoTicket:
    async def end(self, outcome: Outcome, result: Mapping[str, Any] | None) -> None:
        del outcome, result


class OpenGate:
    """Permits everything and records nothing."""

    _TICKET = _NoTicket()

    def reaches(self, caller: Caller, server: str, kind: Reach, tool: str | None = None) -> bool:
        del caller, server, kind, tool
        return True

    async def refuse(
        self,
        caller: Caller,
        asked: Asked,
        name: str,
        *,
        server: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> RpcError:
        del caller, server, arguments
        return unknown(asked, name)

    def permits_tool(self, caller: Caller, server: str, tool: Mapping[str, Any]) -> bool:
        del caller, server, tool
        return True

    async def begin_call(
        self, caller: Caller, server: str, tool: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Ticket:
        del caller, server, tool, arguments
        return self._TICKET

    def permits_resource(self, caller: Caller, server: str, uri: str) -> bool:
        del caller, server, uri
        return True

    def permits_prompts(self, caller: Caller, server: str) -> bool:
        del caller, server
        return True

    def permits_search(self, caller: Caller) -> bool:
        del caller
        return True

    def answered(self, caller: Caller, result: Mapping[str, Any]) -> None:
        del caller, result
