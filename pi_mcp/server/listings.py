"""The gateway's lists: of one upstream page by page as they are, of several put together under the gateway's names.

Comes in: list requests, and exposed names that are called. Goes out: pages of a bounded size, and the server and
original name behind a name. What the caller may not see is on no page, and changes no count.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.errors import Diagnostic
from pi_mcp.plugin import RpcError, Upstream
from pi_mcp.server import lists, rpc
from pi_mcp.server.gate import Reach
from pi_mcp.server.names import looks_cut, read_back

if TYPE_CHECKING:
    from pi_mcp.server.clients import Exchange
    from pi_mcp.server.gateway import Gateway

Item = Mapping[str, Any]

UNAVAILABLE = "pi-mcp/unavailable"
"""The member of a list's `_meta` that names the servers which could not be asked, with the reason: a server that is
down is never one without tools (B214)."""
MOST_VIEWS = 32
"""Lists that one client reads page by page at a time."""
_REACH: Mapping[str, Reach] = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "resources",
}
_CURSOR = re.compile(r"p([0-9]{1,7})")
_LOG = logging.getLogger("pi_mcp.server")


class Listings:
    """The lists of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # requests

    async def tools(self, exchange: Exchange) -> dict[str, Any]:
        def shown(server: str, item: Item) -> dict[str, Any] | None:
            gateway = self._gateway
            name = str(item.get("name"))
            definition = gateway.servers.get(server)
            if definition is None or not gateway.plugin.admits(definition, name):
                return None
            if not gateway.gate.permits_tool(exchange.caller, server, item):
                return None
            gateway.resources.learn_tool(exchange.session, server, item)
            return {**item, "name": gateway.exposed(server, name)}

        return await self._page(exchange, "tools", shown)

    async def prompts(self, exchange: Exchange) -> dict[str, Any]:
        def shown(server: str, item: Item) -> dict[str, Any] | None:
            if not self._gateway.gate.permits_prompts(exchange.caller, server):
                return None
            return {**item, "name": self._gateway.exposed(server, str(item.get("name")))}

        return await self._page(exchange, "prompts", shown)

    async def resources(self, exchange: Exchange) -> dict[str, Any]:
        return await self._page(exchange, "resources", self._resource(exchange, "uri"))

    async def templates(self, exchange: Exchange) -> dict[str, Any]:
        return await self._page(exchange, "resourceTemplates", self._resource(exchange, "uriTemplate"))

    def _resource(self, exchange: Exchange, member: str) -> Callable[[str, Item], dict[str, Any] | None]:
        def shown(server: str, item: Item) -> dict[str, Any] | None:
            address = str(item.get(member))
            if not self._gateway.gate.permits_resource(exchange.caller, server, address):
                return None
            if member == "uri":
                exchange.session.own(address, server)
            return dict(item)

        return shown

    # pages

    async def _page(
        self, exchange: Exchange, kind: str, shown: Callable[[str, Item], dict[str, Any] | None]
    ) -> dict[str, Any]:
        gateway, session = self._gateway, exchange.session
        cursor = exchange.params.get("cursor")
        if gateway.direct and not gateway.per_caller:
            # Of a server's own pages a caller who sees a part of them would see how much is missing.
            return await self._direct(exchange, kind, shown)
        start = 0
        meta: dict[str, Any] = {}
        if cursor is not None:
            found = _CURSOR.fullmatch(cursor) if isinstance(cursor, str) else None
            if found is None:
                raise RpcError(rpc.INVALID_PARAMS, "Invalid cursor")
            start = int(found[1])
        view = f"{kind} {gateway.view(exchange.caller, _REACH[kind])}"
        items = session.pages.get(view)
        if cursor is None or items is None:
            read, missing = await self._everything(exchange, kind)
            items = []
            taken: set[str] = set()
            for server, item in read:
                one = shown(server, item)
                key = None if one is None else str(one.get(lists.KINDS[kind][3]))
                if key is None or key in taken:
                    continue  # of two servers with one resource, the first in the configuration has it
                taken.add(key)
                items.append((server, item))  # as it is: a client may leave the other pages where they are
            while len(session.pages) >= MOST_VIEWS:
                del session.pages[next(iter(session.pages))]
            session.pages[view] = items
            if missing:
                meta[UNAVAILABLE] = [gateway.disclosure.told(exchange.caller, one).to_json() for one in missing]
        chosen = (shown(server, item) for server, item in items[start : start + gateway.page_size])
        page = [one for one in chosen if one is not None]
        result: dict[str, Any] = {lists.KINDS[kind][1]: page}
        if start + gateway.page_size < len(items):
            result["nextCursor"] = f"p{start + gateway.page_size}"
        else:
            session.pages.pop(view, None)
        if meta:
            result["_meta"] = meta
        return result

    async def _direct(
        self, exchange: Exchange, kind: str, shown: Callable[[str, Item], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """The upstream's own page, less what may not be seen."""
        gateway = self._gateway
        server = next(iter(gateway.servers))
        upstream = gateway.upstream(exchange.session, server)
        method, member, _, _ = lists.KINDS[kind]
        result = await gateway.forward(exchange, upstream, method, exchange.params)
        items = result.get(member)
        if not isinstance(items, list):
            return result
        kept = [item for item in items if not isinstance(item, dict) or shown(server, item) is not None]
        return result if len(kept) == len(items) else {**result, member: kept}

    async def _everything(self, exchange: Exchange, kind: str) -> tuple[list[tuple[str, Item]], list[Diagnostic]]:
        gateway, session = self._gateway, exchange.session
        servers = self.in_reach(exchange, kind)

        async def ask(server: str) -> Mapping[str, Item]:
            return await lists.listed(gateway.upstream(session, server), kind, fresh=True)

        items, missing, late = await lists.gathered(servers, ask, gateway.turns)
        for task in late:
            # What comes in later is there in the next list.
            gateway.follow(task, lambda: session.changed("tools" if kind == "tools" else kind))
        for diagnostic in missing:
            gateway.disclosure.log(diagnostic)
        return items, missing

    def in_reach(self, exchange: Exchange, kind: str) -> list[str]:
        """The servers that are asked: all permitted, or with the face `search` those that this client has used."""
        gateway, session = self._gateway, exchange.session
        servers = [one for one in gateway.servers if gateway.gate.reaches(exchange.caller, one, _REACH[kind])]
        if gateway.expose == "all" or kind == "tools":
            return servers
        loaded = {server for loading in session.loadings.values() for server, _ in loading.tools()}
        return [server for server in servers if server in session.used or server in loaded]

    # names

    async def tool_behind(self, exchange: Exchange, name: str) -> tuple[str, str] | None:
        """Server and tool of an exposed name that cannot be read back: a cut one, or one without a prefix."""
        gateway = self._gateway
        for server in gateway.servers:
            catalog = gateway.plugin.catalogs.known(server)
            for tool in catalog.tools if catalog is not None else ():
                if gateway.exposed(server, tool.name) == name:
                    return server, tool.name
        if gateway.expose == "search":
            return None
        return await self._behind(exchange, "tools", name)

    async def prompt_behind(self, exchange: Exchange, name: str) -> tuple[str, str]:
        """Server and prompt of an exposed name. Raises RpcError for one that nobody has, or that is not permitted."""
        gateway = self._gateway
        found: tuple[str, str] | None
        if not gateway.prefix and len(gateway.servers) == 1:
            found = next(iter(gateway.servers)), name
        else:
            found = read_back(name)
            unclear = found is None or found[0] not in gateway.servers or looks_cut(name)
            if unclear and any(gateway.gate.permits_prompts(exchange.caller, one) for one in gateway.servers):
                found = await self._behind(exchange, "prompts", name) or found
        server, prompt = found if found is not None and found[0] in gateway.servers else (None, name)
        if server is None or not gateway.gate.permits_prompts(exchange.caller, server):
            arguments = exchange.params.get("arguments")
            arguments = arguments if isinstance(arguments, dict) else None
            raise await gateway.gate.refuse(exchange.caller, "prompt", prompt, server=server, arguments=arguments)
        return server, prompt

    async def _behind(self, exchange: Exchange, kind: str, name: str) -> tuple[str, str] | None:
        gateway, session = self._gateway, exchange.session

        def among(upstream: Upstream, server: str) -> str | None:
            kept = lists.kept_of(upstream, kind)
            for original in kept.items if kept is not None else ():
                if gateway.exposed(server, original) == name:
                    return original
            return None

        for server, upstream in session.used.items():
            original = among(upstream, server)
            if original is not None:
                return server, original
        items, _ = await self._everything(exchange, kind)
        for server, item in items:
            original = str(item.get("name"))
            if gateway.exposed(server, original) == name:
                return server, original
        return None
