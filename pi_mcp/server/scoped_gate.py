"""The gate of a shared gateway: scopes decide, limits hold, and the audit trail has a row before anything is sent.

Comes in: callers with their grants, servers, tools. Goes out: yes or no, tickets, refusals. A refusal says what the
caller lacks by its own grant and by the kind of thing it asked for, never whether that thing exists: a server that is
not there and one that is not granted are refused in the same words.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pi_mcp.access import AuditRow, Store
from pi_mcp.access.scopes import is_ui
from pi_mcp.config import policy
from pi_mcp.errors import PiMcpError
from pi_mcp.jsontext import compact_json
from pi_mcp.plugin import RpcError
from pi_mcp.server import audit_input, rpc
from pi_mcp.server.gate import NOT_PERMITTED, Asked, Caller, Outcome, Reach, Refused, unknown
from pi_mcp.server.limits import KeyLimits, too_many
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.access import Grant
    from pi_mcp.config import Configuration

AUDIT_META = "pi-mcp/audit"
"""The member of a result's `_meta` that is `failed` where the call was made and its row could not be closed."""
_NEEDED: Mapping[Asked, tuple[str, ...]] = {
    "tool": ("tools:read", "tools:write"),
    "search": ("tools:read",),
    "prompt": ("prompts:read",),
    "method": ("tools:read", "tools:write"),
}

_LOG = logging.getLogger("pi_mcp.server")


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What the trail holds. Writes and refusals are always in it."""

    arguments: bool = True
    """Keep a summary of the arguments, with what looks like a secret masked."""
    reads: bool = False
    """Keep rows of calls that only read, too."""


class ScopedGate:
    """`Gate` over a store. `configuration` gives the one in force."""

    def __init__(
        self,
        configuration: Callable[[], Configuration],
        store: Store,
        *,
        audit: AuditSettings | None = None,
        limits: KeyLimits | None = None,
    ) -> None:
        self._configuration = configuration
        self._store = store
        self._audit = audit or AuditSettings()
        self.limits = limits or KeyLimits()

    # what is shown

    def reaches(self, caller: Caller, server: str, kind: Reach, tool: str | None = None) -> bool:
        scopes = caller.grant.scopes
        if tool is not None:
            return scopes.tool(server, tool, "read") or scopes.tool(server, tool, "write")
        if kind == "tools":
            return scopes.any_tool_of(server)
        if kind == "prompts":
            return scopes.prompts(server)
        if kind == "resources":
            return scopes.has("resources:read", server) or scopes.has("apps:render", server)
        return scopes.every_tool_of(server)

    def permits_tool(self, caller: Caller, server: str, tool: Mapping[str, Any]) -> bool:
        return _may(caller.grant, server, str(tool.get("name")), self._actions(server, tool, None))

    def permits_resource(self, caller: Caller, server: str, uri: str) -> bool:
        return caller.grant.scopes.resource(server, uri)

    def permits_prompts(self, caller: Caller, server: str) -> bool:
        return caller.grant.scopes.prompts(server)

    def permits_search(self, caller: Caller) -> bool:
        return caller.grant.scopes.any_tool()

    # what is done

    def answered(self, caller: Caller, result: Mapping[str, Any]) -> None:
        if caller.grant.limits.result_bytes is not None:
            size = len(compact_json(result).encode("utf-8", "replace"))
            self.limits.result(caller.grant, size)

    async def begin_call(
        self, caller: Caller, server: str, tool: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> _Ticket:
        actions = self._actions(server, tool, arguments)
        action: policy.Action = "write" if "write" in actions else "read"
        name = str(tool.get("name"))
        if not _may(caller.grant, server, name, actions):
            raise await self.refuse(caller, "tool", name, server=server, arguments=arguments, action=action)
        wait = self.limits.enter(caller.grant)
        if wait:
            problem = too_many("concurrent", wait)
            await self._record(self._row(caller, action, server, name, arguments, outcome="limited"), problem.data)
            raise problem
        row = None
        try:
            if action == "write" or self._audit.reads:
                row = self._row(caller, action, server, name, arguments)
                await self._open(row)
        except BaseException as error:
            self.limits.leave(caller.grant)
            if row is not None and isinstance(error, asyncio.CancelledError):
                # It may have been written all the same, and is not to look like a call that is still under way.
                closing = asyncio.ensure_future(self._store.close_call(row.id, "cancelled", 0.0))
                closing.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        return _Ticket(self, caller.grant, row, arguments)

    async def refuse(
        self,
        caller: Caller,
        asked: Asked,
        name: str,
        *,
        server: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        action: str | None = None,
    ) -> RpcError:
        """The error for what the caller may not have, and for what there is not; the trail has a row of it."""
        needed = _NEEDED.get(asked) or _scopes_of(name)
        lacking = " ".join(token for token in needed if not caller.grant.scopes.has(token))
        if not lacking:
            # Everything of that kind is granted, so that there is nothing to hide: it is not there.
            return unknown(asked, name)
        data: dict[str, Any] = {"scope": lacking}
        row = self._row(caller, action or asked, server, name, arguments or {}, outcome="refused", scope=lacking)
        await self._record(row, data)
        return Refused(NOT_PERMITTED, data)

    # within

    async def _record(self, row: AuditRow, data: dict[str, Any]) -> None:
        """Keep the row of a call that is not made; where that fails the answer's `data` says so."""
        try:
            await self._store.record(row)
        except PiMcpError as error:
            _LOG.error("a refused call has no audit row: %s", error.diagnostic.line())
            data[AUDIT_META] = "failed"

    def _actions(
        self, server: str, tool: Mapping[str, Any], arguments: Mapping[str, Any] | None
    ) -> frozenset[policy.Action]:
        definition = self._configuration().servers.get(server)
        if definition is None:
            return frozenset({"write"})
        annotations = tool.get("annotations")
        hint = annotations.get("readOnlyHint") if isinstance(annotations, Mapping) else None
        return policy.actions(definition, str(tool.get("name")), hint, arguments)

    def _row(
        self,
        caller: Caller,
        action: str,
        server: str | None,
        name: str,
        arguments: Mapping[str, Any],
        **more: Any,
    ) -> AuditRow:
        return AuditRow.by(
            caller.grant,
            action,
            time.time(),
            server=None if server is None else clean_line(server, 128),
            tool=clean_line(name, 256),
            request=None if caller.request_id is None else clean_line(str(caller.request_id), 128),
            session=caller.session,
            input=audit_input.summary(arguments) if self._audit.arguments else None,
            **more,
        )

    async def _open(self, row: AuditRow) -> None:
        try:
            await self._store.open_call(row)
        except PiMcpError as error:
            _LOG.error("a call was not sent, since its audit row could not be opened: %s", error.diagnostic.line())
            raise RpcError(
                rpc.UNREACHABLE,
                "The audit trail cannot be written, so that nothing was sent. The operator has to look after it.",
                {AUDIT_META: "failed"},
            ) from None

    async def close(
        self,
        row: AuditRow,
        outcome: Outcome,
        seconds: float,
        arguments: Mapping[str, Any],
        result: Mapping[str, Any] | None,
    ) -> bool:
        """Close a call's row; False when that failed. Goes on when the caller is cancelled meanwhile."""
        ids = audit_input.affected(arguments, result) if self._audit.arguments and outcome != "error" else ()
        work = asyncio.ensure_future(self._store.close_call(row.id, outcome, seconds, affected=ids))
        try:
            await asyncio.shield(work)
        except PiMcpError as error:
            _LOG.error("the audit row %s could not be closed: %s", row.id, error.diagnostic.line())
            return False
        except asyncio.CancelledError:
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise
        return True


class _Ticket:
    """One permitted call."""

    __slots__ = ("_arguments", "_began", "_ended", "_gate", "_grant", "_row")

    def __init__(self, gate: ScopedGate, grant: Grant, row: AuditRow | None, arguments: Mapping[str, Any]) -> None:
        self._gate = gate
        self._grant = grant
        self._row = row
        self._arguments = arguments
        self._began = time.monotonic()
        self._ended = False

    async def end(self, outcome: Outcome, result: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if self._ended:
            return None
        self._ended = True
        self._gate.limits.leave(self._grant)
        seconds = time.monotonic() - self._began
        if self._row is None or await self._gate.close(self._row, outcome, seconds, self._arguments, result):
            return None
        return {AUDIT_META: "failed"}


def _may(grant: Grant, server: str, tool: str, actions: frozenset[policy.Action]) -> bool:
    return all(grant.scopes.tool(server, tool, action) for action in actions)


def _scopes_of(uri: str) -> tuple[str, ...]:
    return ("apps:render",) if is_ui(uri) else ("resources:read",)
