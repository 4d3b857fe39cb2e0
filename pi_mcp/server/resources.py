"""Resources behind the gateway: their addresses are not renamed, so each is routed to the server that named it.

Comes in: addresses in requests, lists and results. Goes out: the server of an address. The first server to name one
has it; an address that nobody named goes to the servers whose templates fit, then to each that has resources.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.errors import PiMcpError
from pi_mcp.plugin import RpcError, Upstream
from pi_mcp.server import lists, rpc

if TYPE_CHECKING:
    from pi_mcp.server.clients import ClientSession, Exchange
    from pi_mcp.server.gateway import Gateway

BACKLOG = 256
"""News that one subscription may leave unread; then it ends, and its client subscribes anew."""
MOST_URIS = 1000
LIKELY_WAIT = 2.0
"""Seconds for which the other servers are waited for where one is known whose template fits."""
_EXPRESSION = re.compile(r"\{[^{}]{1,200}\}")
_LISTS = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}
_NOT_HERE = frozenset({rpc.RESOURCE_NOT_FOUND, rpc.INVALID_PARAMS, rpc.METHOD_NOT_FOUND, rpc.INTERNAL_ERROR, 0})
"""What servers answer for an address that is not theirs."""


class Resources:
    """Reading, subscribing, and who has what, for one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # who has what

    def learn_tool(self, session: ClientSession, server: str, wire: Mapping[str, Any]) -> None:
        """A tool with a user interface names the resource that holds it (MCP Apps)."""
        meta = wire.get("_meta")
        if isinstance(meta, dict):
            ui = meta.get("ui")
            if isinstance(ui, dict):
                session.own(ui.get("resourceUri"), server)
            session.own(meta.get("ui/resourceUri"), server)

    def learn_result(self, session: ClientSession, server: str, result: Mapping[str, Any]) -> None:
        """Results name resources, and tasks that are asked about later."""
        content = result.get("content")
        for block in content if isinstance(content, list) else ():
            if isinstance(block, dict):
                if block.get("type") == "resource_link":
                    session.own(block.get("uri"), server)
                inner = block.get("resource")
                if isinstance(inner, dict):
                    session.own(inner.get("uri"), server)
        task = result.get("task")
        if isinstance(task, dict):
            session.own_task(task.get("taskId"), server)
        if result.get("resultType") == "task":
            session.own_task(result.get("taskId"), server)
        meta = result.get("_meta")
        if isinstance(meta, dict):
            self.learn_tool(session, server, result)

    async def _candidates(self, exchange: Exchange, uri: str) -> list[str]:
        """The permitted servers that may have an address, the likeliest first. No other one is asked."""
        gateway, session = self._gateway, exchange.session
        permitted = [one for one in gateway.servers if gateway.gate.permits_resource(exchange.caller, one, uri)]
        if gateway.direct or not permitted:
            return permitted
        owner = session.owners.get(uri)
        if owner is not None and owner in permitted:
            return [owner]
        servers = [one for one in gateway.listings.in_reach(exchange, "resources") if one in permitted]
        return await self._asked_all(session, uri, servers)

    async def _asked_all(self, session: ClientSession, uri: str, servers: list[str]) -> list[str]:
        """Of these servers those that may have an address that nobody has named yet; the one alone that names it."""
        gateway = self._gateway

        async def ask(server: str) -> tuple[Upstream, Collection[str], Collection[str]]:
            upstream = gateway.upstream(session, server)
            return upstream, await named(upstream, "resources"), await named(upstream, "resourceTemplates")

        async def named(upstream: Upstream, kind: str) -> Collection[str]:
            try:
                return await lists.listed(upstream, kind)
            except RpcError:
                return ()  # one that has resources need not know templates, nor list what it has

        # Together, and no longer than it takes: one that does not start must not use up a client's patience.
        tasks = {one: asyncio.create_task(lists.in_turn(gateway.turns, ask, one)) for one in servers}
        now = asyncio.get_running_loop().time
        likely: list[str] = []
        others: list[str] = []
        late = set(tasks.values())
        deadline = now() + lists.LISTS_WAIT
        try:
            while late and now() < deadline:
                _, late = await asyncio.wait(late, timeout=deadline - now(), return_when=asyncio.FIRST_COMPLETED)
                done = {one: task for one, task in tasks.items() if task.done() and not task.cancelled()}
                answers = {one: task.result() for one, task in done.items() if task.exception() is None}
                for server, (_, found, _) in answers.items():
                    if uri in found:
                        session.own(uri, server)
                        return [server]
                likely = [
                    server
                    for server, (_, _, templates) in answers.items()
                    if any(_fits(template, uri) or template == uri for template in templates)
                ]
                others = [
                    server
                    for server, (upstream, _, _) in answers.items()
                    if server not in likely and lists.declares(upstream, "resources")
                ]
                if likely:
                    deadline = min(deadline, now() + LIKELY_WAIT)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
        return [*likely, *others]

    async def owner(self, exchange: Exchange, uri: str) -> str:
        """The server of an address or of a template. Raises RpcError where there is none, or none permitted."""
        for server in await self._candidates(exchange, uri):
            return server
        raise await self._gateway.gate.refuse(exchange.caller, "resource", uri)

    # requests

    async def read(self, exchange: Exchange) -> dict[str, Any]:
        uri = _uri(exchange.params)
        gateway, session = self._gateway, exchange.session
        permitted = await self._candidates(exchange, uri)
        if not permitted:
            raise await gateway.gate.refuse(exchange.caller, "resource", uri)
        refusal = RpcError(rpc.RESOURCE_NOT_FOUND, "Resource not found", {"uri": uri})
        for server in permitted:
            try:
                upstream = gateway.upstream(session, server)
                result = await gateway.forward(exchange, upstream, "resources/read", exchange.params)
            except RpcError as error:
                if len(permitted) == 1 or error.code not in _NOT_HERE:
                    raise
                refusal = error
                continue
            session.own(uri, server)
            return result
        raise refusal

    async def subscribe(self, exchange: Exchange) -> dict[str, Any]:
        uri = _uri(exchange.params)
        session = exchange.session
        if session.id is None:  # --stateless: there would be no way to tell it
            raise RpcError(rpc.METHOD_NOT_FOUND, "Method not found", exchange.method)
        server = await self.owner(exchange, uri)
        if session.subscribed.get(uri) == server:
            return {}
        if len(session.subscribed) >= MOST_URIS:
            raise RpcError(rpc.INVALID_PARAMS, "Too many subscriptions")
        upstream = self._gateway.upstream(session, server)
        before = session.subscribed.get(uri)
        session.subscribed[uri] = server  # the first news may be right behind the answer
        try:
            return await upstream.subscribe(uri, exchange.forwarding())
        except BaseException:
            if before is None:
                session.subscribed.pop(uri, None)
            else:
                session.subscribed[uri] = before
            raise

    async def unsubscribe(self, exchange: Exchange) -> dict[str, Any]:
        uri = _uri(exchange.params)
        session = exchange.session
        server = session.subscribed.pop(uri, None)
        if server is None:
            return {}
        return await self._gateway.upstream(session, server).unsubscribe(uri, exchange.forwarding())

    async def listen(self, exchange: Exchange, wanted: Mapping[str, Any], request_id: int | str) -> dict[str, Any]:
        """`subscriptions/listen`: an acknowledgement, then news until the client or the gateway ends it."""
        gateway, session = self._gateway, exchange.session
        honored: dict[str, Any] = {member: True for member in _LISTS.values() if wanted.get(member) is True}
        asked = wanted.get("resourceSubscriptions")
        uris = [uri for uri in asked if isinstance(uri, str)][:MOST_URIS] if isinstance(asked, list) else []
        stamp = {rpc.SUBSCRIPTION: request_id}
        news: deque[tuple[str, dict[str, Any]]] = deque()
        arrived = asyncio.Event()
        ended = False

        def hear(method: str, params: dict[str, Any]) -> None:
            nonlocal ended
            if method == "":
                ended = True
            elif method == "notifications/resources/updated":
                if params.get("uri") not in taken:
                    return
                news.append((method, params))
            elif _LISTS.get(method) in honored:
                news.append((method, params))
            if len(news) > BACKLOG:
                ended = True
            arrived.set()

        taken: dict[str, str] = {}
        token = object()
        session.listeners[token] = hear
        try:
            if gateway.direct:
                # A server that nobody is connected to could tell of no change.
                with contextlib.suppress(PiMcpError):
                    await gateway.upstream(session, next(iter(gateway.servers))).connect()
            for uri in uris:
                try:
                    server = await self.owner(exchange, uri)
                    upstream = gateway.upstream(session, server)
                    await upstream.subscribe(uri, exchange.forwarding())
                except (RpcError, PiMcpError):
                    continue
                taken[uri] = server
            if taken:
                honored["resourceSubscriptions"] = list(taken)
            exchange.notify("notifications/subscriptions/acknowledged", {"notifications": honored, "_meta": stamp})
            while not ended:
                await arrived.wait()
                arrived.clear()
                while news:
                    method, params = news.popleft()
                    meta = params.get("_meta")
                    meta = {**(meta if isinstance(meta, dict) else {}), **stamp}
                    exchange.notify(method, {**params, "_meta": meta})
            return {"_meta": stamp}
        finally:
            session.listeners.pop(token, None)
            for uri, server in taken.items():
                gateway.later(session.used[server].unsubscribe(uri, lists.nobody()))


def _uri(params: Mapping[str, Any]) -> str:
    uri = params.get("uri")
    if not isinstance(uri, str):
        raise RpcError(rpc.INVALID_PARAMS, "Invalid request parameters")
    return uri


def _fits(template: str, uri: str) -> bool:
    """Whether a URI template (RFC 6570) could have made an address: each expression is any text. In linear time."""
    first, *rest = _EXPRESSION.split(template)
    if not rest:
        return template == uri
    *middle, last = rest
    if len(uri) < len(first) + len(last) or not uri.startswith(first) or not uri.endswith(last):
        return False
    position, end = len(first), len(uri) - len(last)
    for piece in middle:
        position = uri.find(piece, position, end)
        if position < 0:
            return False
        position += len(piece)
    return True
