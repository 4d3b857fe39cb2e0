"""What the upstreams list, put together: tools, prompts, resources and templates.

Comes in: raw channels. Goes out: the servers' own objects, with the server of each, and which servers could not be
asked. What a server listed is kept with its channel until it changes, ends or grows old. Nothing is renamed here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.jsontext import compact_json
from pi_mcp.plugin import Forwarding, RpcError, Upstream
from pi_mcp.server import rpc

KINDS: Mapping[str, tuple[str, str, str, str]] = {
    "tools": ("tools/list", "tools", "tools", "name"),
    "prompts": ("prompts/list", "prompts", "prompts", "name"),
    "resources": ("resources/list", "resources", "resources", "uri"),
    "resourceTemplates": ("resources/templates/list", "resourceTemplates", "resources", "uriTemplate"),
}
"""Kind → method, member of the result, capability, and what tells its objects apart."""

T = TypeVar("T")
_LOG = logging.getLogger("pi_mcp.server")

AT_ONCE = 4
"""Servers that are started and asked at the same time."""
LISTS_WAIT = 20.0
"""Seconds that one list waits for all servers; those that are later are there in the next."""
TURN = 10.0
"""Seconds for which one server keeps its place among those; then it goes on beside them, and the next one begins."""
LIST_TIME = 300.0
"""Seconds that one server may take for one list, however many pages it has."""
MOST_ITEMS = 10_000
MOST_BYTES = 8 * 1024 * 1024
MOST_PAGES = 1000
FRESH = 5.0
"""Seconds for which a list is taken as it was where the server does not tell of changes, when a client lists."""
STALE = 300.0
"""The same where only a name is looked up."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One server's list, by name or address. `expires` is loop time after which it is read anew for a client."""

    items: Mapping[str, Mapping[str, Any]]
    read: float
    expires: float


def declares(upstream: Upstream, capability: str) -> bool:
    """Whether a connected server declares the capability; one that declares nothing at all may have tools."""
    capabilities = upstream.told.get("capabilities")
    if not isinstance(capabilities, dict) or not capabilities:
        return capability == "tools"
    return capability in capabilities


def kept_of(upstream: Upstream, kind: str) -> Kept | None:
    found = upstream.kept.get(kind)
    return found if isinstance(found, Kept) else None


async def listed(upstream: Upstream, kind: str, *, fresh: bool = False) -> Mapping[str, Mapping[str, Any]]:
    """The server's objects of one kind; connects where needed. `fresh`: a client lists, nobody just looks up.

    Raises PiMcpError, or RpcError where the server answers with an error.
    """
    await upstream.connect()
    capability = KINDS[kind][2]
    if not declares(upstream, capability):
        return {}
    kept = kept_of(upstream, kind)
    now = asyncio.get_running_loop().time()
    if kept is not None and now < (kept.expires if fresh else max(kept.expires, kept.read + STALE)):
        return kept.items
    age = upstream.age_of(capability)
    try:
        async with asyncio.timeout(LIST_TIME):
            items, ttl = await _pages(upstream, kind)
    except TimeoutError:
        raise failure(
            "timeout",
            "list",
            upstream.name,
            f"The server's list did not end within {LIST_TIME:g} s.",
            "List again later.",
        ) from None
    capabilities = upstream.told.get("capabilities")
    declared = capabilities.get(capability) if isinstance(capabilities, dict) else None
    tells = isinstance(declared, dict) and declared.get("listChanged") is True
    if upstream.age_of(capability) == age:  # else it is what there was before a change, or before a new start
        upstream.kept[kind] = Kept(items, now, now + (86400.0 if tells and not ttl else max(ttl, FRESH)))
    return items


async def _pages(upstream: Upstream, kind: str) -> tuple[dict[str, Mapping[str, Any]], float]:
    if kind == "tools":
        listing = await upstream.list_tools()
        return {str(tool["name"]): tool for tool in listing.tools}, listing.ttl or 0.0
    method, member, _, name = KINDS[kind]
    found: dict[str, Mapping[str, Any]] = {}
    cursor: Any = None
    seen: set[str] = set()
    size = 0
    ttl = 0.0
    for _ in range(MOST_PAGES):
        try:
            result = await upstream.request(method, {} if cursor is None else {"cursor": cursor}, nobody())
        except RpcError as error:
            if error.code != rpc.METHOD_NOT_FOUND or cursor is not None:
                raise
            return {}, 0.0  # resources without templates are declared by the same capability
        items = result.get(member)
        stated = result.get("ttlMs")
        if isinstance(stated, int | float) and not isinstance(stated, bool) and stated > 0:
            ttl = min(float(stated) / 1000.0, 86400.0)
        for item in items if isinstance(items, list) else []:
            key = item.get(name) if isinstance(item, dict) else None
            if not isinstance(key, str) or key in found:
                continue
            size += len(compact_json(item))
            if len(found) >= MOST_ITEMS or size > MOST_BYTES:
                return found, ttl
            found[key] = item
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str) or cursor in seen:
            break
        seen.add(cursor)
    return found, ttl


def refused_to_list(server: str, error: RpcError) -> Diagnostic:
    said = failure("protocol_error", "list", server, f"The server refused to list (code {error.code}).")
    return said.diagnostic


def nobody() -> Forwarding:
    """For a request of the gateway's own: there is nobody to ask or to tell."""

    async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
        del method, params
        raise RpcError(rpc.INVALID_REQUEST, "Nobody can be asked")

    def notify(method: str, params: dict[str, Any]) -> None:
        del method, params

    return Forwarding(notify=notify, ask=ask, capabilities={}, nobodys=True)


async def _ended(work: asyncio.Future[Any]) -> None:
    work.cancel()
    await asyncio.wait({work}, timeout=1.0)
    if work.done() and not work.cancelled():
        work.exception()


async def in_turn(turns: asyncio.Semaphore, ask: Callable[[str], Awaitable[T]], server: str) -> T:
    """What asking the server comes to, when it is its turn."""
    async with turns:
        running = asyncio.ensure_future(ask(server))
        try:
            # A server that always has one more page, slowly, must not keep the others' lists from everybody.
            await asyncio.wait({running}, timeout=TURN)
        except asyncio.CancelledError:
            await _ended(running)
            raise
    try:
        return await running
    except asyncio.CancelledError:
        await _ended(running)
        raise


async def gathered(
    servers: Iterable[str], ask: Callable[[str], Awaitable[Mapping[str, Mapping[str, Any]]]], turns: asyncio.Semaphore
) -> tuple[list[tuple[str, Mapping[str, Any]]], list[Diagnostic], set[asyncio.Task[Any]]]:
    """Every server's objects in the servers' order, what failed, and the tasks that go on for those that are late."""
    tasks = {server: asyncio.create_task(in_turn(turns, ask, server)) for server in servers}
    if not tasks:
        return [], [], set()
    try:
        _, late = await asyncio.wait(tasks.values(), timeout=LISTS_WAIT)
    except asyncio.CancelledError:
        for task in tasks.values():
            task.cancel()
        await asyncio.wait(tasks.values(), timeout=1.0)
        raise
    items: list[tuple[str, Mapping[str, Any]]] = []
    missing: list[Diagnostic] = []
    for server, task in tasks.items():
        if task in late:
            slow = failure("timeout", "list", server, "The server is still starting.", "List again later.")
            missing.append(slow.diagnostic)
            continue
        try:
            items += [(server, item) for item in task.result().values()]
        except PiMcpError as error:
            missing.append(error.diagnostic)
        except RpcError as error:
            missing.append(refused_to_list(server, error))
        except Exception as error:
            # Whatever one server lists, the others' lists are there.
            _LOG.debug("a list could not be read", exc_info=error)
            unread = failure("protocol_error", "list", server, "The server's list cannot be read.")
            missing.append(unread.diagnostic)
    return items, missing, set(late)
