"""The gateway itself: a client's request finds its upstream, and what comes back goes to the client as it is.

Comes in: requests and notifications of client sessions, as JSON objects. Goes out: results, or errors of the upstream
with code and data, or errors of ours in our own words. It asks its `Gate` before anything is shown or sent, knows no
transport, and validates nothing that only client and upstream understand.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.jsontext import compact_json
from pi_mcp.plugin import Plugin, RpcError, Upstream
from pi_mcp.server import greeting, lists, rpc
from pi_mcp.server.clients import LEVELS, ClientSession, Exchange, displaced
from pi_mcp.server.disclosure import Disclosure
from pi_mcp.server.gate import Caller, Denial, Gate, OpenGate, Reach, attended
from pi_mcp.server.listings import UNAVAILABLE, Listings
from pi_mcp.server.names import exposed_name
from pi_mcp.server.resources import Resources
from pi_mcp.server.rounds import Rounds, asked_in_rounds
from pi_mcp.server.tools import Tools

if TYPE_CHECKING:
    from pi_mcp.config import ServerDefinition

Face = Literal["search", "all"]

PAGE = 100
"""Objects on one page of a list that is put together."""
IDLE_TIMEOUT = 1800.0
VISITOR_TIMEOUT = 1800.0
"""Seconds after which what is kept for a client without a session goes."""
MOST_VISITORS = 1000
MOST_PROCESSES = 64
"""Processes of one server for the clients of one credential, where each has its own."""

_KINDS: tuple[Reach, ...] = ("tools", "prompts", "resources")

_LOG = logging.getLogger("pi_mcp.server")
Handler = Callable[[Exchange], Awaitable[dict[str, Any]]]


class Gateway:
    """One per process, on one event loop. `start` before the first client, `close` at the end."""

    def __init__(
        self,
        plugin: Plugin,
        *,
        expose: Face = "search",
        prefix: bool = True,
        gate: Gate | None = None,
        page_size: int = PAGE,
        idle_timeout: float = IDLE_TIMEOUT,
        single: bool = False,
    ) -> None:
        """`prefix` False shows original names, with one upstream only. `idle_timeout` in seconds; 0 never closes.

        `single`: there will be one client (stdio), which all upstreams are for.
        """
        self.plugin = plugin
        self.expose = expose
        self.prefix = prefix
        self.gate: Gate = gate or OpenGate()
        self.page_size = page_size
        self.single = single
        self.disclosure = Disclosure()
        self.rounds = Rounds()
        self.listings = Listings(self)
        self.resources = Resources(self)
        self.tools = Tools(self)
        self.turns = asyncio.Semaphore(lists.AT_ONCE)
        self.draining = False
        self._idle_timeout = idle_timeout
        self._visitors: dict[str, ClientSession] = {}
        self._janitor: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._hearing: dict[tuple[ClientSession, Upstream], Callable[[Upstream, str, dict[str, Any]], None]] = {}
        if not single:
            plugin.forward(None)
        self._handlers: dict[str, Handler] = {
            "ping": self._ping,
            "server/discover": partial(greeting.discover, self),
            "tools/list": self.tools.list,
            "tools/call": self.tools.call,
            "prompts/list": self.listings.prompts,
            "prompts/get": self._prompts_get,
            "resources/list": self.listings.resources,
            "resources/templates/list": self.listings.templates,
            "resources/read": self.resources.read,
            "resources/subscribe": self.resources.subscribe,
            "resources/unsubscribe": self.resources.unsubscribe,
            "completion/complete": self._complete,
            "logging/setLevel": self._set_level,
            "subscriptions/listen": self._listen,
            "tasks/get": self._task,
            "tasks/result": self._task,
            "tasks/update": self._task,
            "tasks/cancel": self._task,
            "tasks/list": self._tasks_list,
        }

    # life

    def check(self) -> None:
        """Raises ConfigurationError where the face cannot be shown."""
        if self.direct and len(self.servers) != 1:
            raise failure(
                "configuration_invalid",
                "configure",
                None,
                f"--no-prefix shows original names, which needs exactly one usable server; there are "
                f"{len(self.servers)}.",
                "Leave --no-prefix out, or name a file with one server by --config.",
            )

    async def start(self) -> None:
        self.check()
        self._janitor = asyncio.create_task(self._tidy())

    async def close(self) -> None:
        """End what is parked, listens and waits. The plugin, and with it the upstreams, is its owner's to close."""
        await self.rounds.close()
        for session in list(self._visitors.values()):
            await self.end(session)
        tasks = {task for task in (self._janitor, *self._background) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)

    def end_listening(self) -> None:
        """End the subscriptions of the modern era, each with its own last message."""
        for session in self._visitors.values():
            for listener in list(session.listeners.values()):
                listener("", {})

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(min(30.0, max(0.2, (self._idle_timeout or 120.0) / 4)))
            now = asyncio.get_running_loop().time()
            for upstream in self.plugin.connections.upstreams:
                idle = now - upstream.last_used > self._idle_timeout > 0
                if idle and upstream.live and not upstream.busy and not upstream.subscriptions:
                    upstream.rest()
            for key, session in list(self._visitors.items()):
                quiet = now - session.last_seen > VISITOR_TIMEOUT
                if quiet and not session.busy:
                    del self._visitors[key]
                    self.later(self.end(session))

    def later(self, work: Any) -> None:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def follow(self, task: asyncio.Task[Any], then: Callable[[], None]) -> None:
        """Keep a task that goes on without anybody waiting, and say when it has come to something."""
        self._background.add(task)

        def done(task: asyncio.Task[Any]) -> None:
            self._background.discard(task)
            if not task.cancelled() and task.exception() is None:
                then()

        task.add_done_callback(done)

    # what is configured

    @property
    def servers(self) -> dict[str, ServerDefinition]:
        """The usable servers, in configuration order."""
        return self.plugin.configuration.servers

    @property
    def direct(self) -> bool:
        """One upstream under its own names: its lists are handed on page by page, as they are."""
        return self.expose == "all" and not self.prefix

    @property
    def per_caller(self) -> bool:
        """What is shown depends on who asks."""
        return not isinstance(self.gate, OpenGate)

    def view(self, caller: Caller, kind: Reach) -> str:
        """What tells one caller's lists from another's: the servers in reach, and its rights."""
        servers = [server for server in self.servers if self.gate.reaches(caller, server, kind)]
        return json.dumps([servers, str(caller.grant.scopes) if self.per_caller else ""])

    def knows(self, caller: Caller, server: str) -> bool:
        """Whether there is anything of the server for this caller."""
        return any(self.gate.reaches(caller, server, kind) for kind in _KINDS)

    def exposed(self, server: str, name: str) -> str:
        return exposed_name(server, name) if self.prefix else name

    # clients

    def session_opened(self, session: ClientSession) -> None:
        """A client session has begun: one of the handshake era, or the one of stdio."""
        session.on_change = self._changed
        if self.single:
            self.plugin.forward(session)

    def visitor(self, owner: str, capabilities: Mapping[str, Any], info: Any, *, modern: bool) -> ClientSession:
        """What is kept for clients without a session: one for each credential and set of capabilities.

        Raises RpcError for capabilities beyond all measure.
        """
        info = rpc.described(dict(capabilities), info if isinstance(info, dict) else None)
        told = compact_json([modern, capabilities, info], sort_keys=True, ensure_ascii=True)
        key = f"visitor:{owner}:{hashlib.sha256(told.encode()).hexdigest()[:24]}"
        session = self._visitors.get(key)
        if session is None:
            if len(self._visitors) >= MOST_VISITORS:
                oldest = displaced(self._visitors.values(), owner)
                del self._visitors[oldest.key]
                self.later(self.end(oldest))
            session = self._visitors[key] = ClientSession(key, owner, modern=modern)
            session.declared = dict(capabilities)
            session.client_info = info
            session.on_change = self._changed
        session.last_seen = asyncio.get_running_loop().time()
        return session

    async def end(self, session: ClientSession) -> None:
        """A client has gone: its requests, its subscriptions and its private upstreams end."""
        tasks = session.close()
        for task in tasks:
            task.cancel()
        for key in [key for key in self._hearing if key[0] is session]:
            hearer = self._hearing.pop(key)
            if hearer in key[1].hearers:
                key[1].hearers.remove(hearer)
        if tasks:
            # First: a subscription that is still on its way is none yet, and is not to be taken back as one.
            await asyncio.wait(tasks, timeout=2.0)
        for uri, server in session.subscribed.items():
            upstream = session.used.get(server)
            if upstream is not None and upstream.client is not session:
                self.later(upstream.unsubscribe(uri, lists.nobody()))
        session.subscribed.clear()
        for loading in session.loadings.values():
            await loading.close()
        session.loadings.clear()
        await self.plugin.connections.end_client(session.key)

    def upstream(self, session: ClientSession, server: str) -> Upstream:
        """The raw channel of this client to a server. Raises PiMcpError where that cannot be used, and RpcError."""
        found = session.used.get(server)
        if found is not None and not found.dismissed:
            return found
        if session.closed:
            raise RpcError(rpc.UNREACHABLE, "The client has gone")  # a channel of its own would have nobody to end it
        definition = self.plugin.definition(server)
        shared = self.single or (definition.transport == "stdio" and definition.shared)
        found = self.plugin.upstream(server, None if shared else session.key, session, legacy_first=not session.modern)
        if self.single:
            found.legacy_first = not session.modern
        if found.client is session and not found.live:
            found.log_level = session.log_level
        session.used[server] = found
        if not shared and definition.transport == "stdio":
            found.before_start = self._make_room
        if shared and not self.single:

            def hear(upstream: Upstream, method: str, params: dict[str, Any]) -> None:
                session.heard_change(upstream, method, params)

            self._hearing[session, found] = hear
            found.hearers.append(hear)
        return found

    def _make_room(self, upstream: Upstream) -> None:
        """One more process for a client of its own: where its credential has many, the one unused longest ends.

        A client that opens session after session, and never ends one, would else have any number of them.
        """
        owner = _owner(upstream)
        others = [
            one
            for one in self.plugin.connections.upstreams
            if one is not upstream and one.name == upstream.name and _owner(one) == owner and (one.live or one.busy)
        ]
        if len(others) < MOST_PROCESSES:
            return
        idle = [one for one in others if one.live and not one.busy and not one.subscriptions]
        if not idle:
            raise failure(
                "busy",
                "connect",
                upstream.name,
                f"{MOST_PROCESSES} processes of this server are at work for this credential.",
                "Try again when one of them has ended.",
            )
        min(idle, key=lambda one: one.last_used).rest()

    def _changed(self, session: ClientSession, upstream: Upstream, method: str) -> None:
        kind = method.split("/")[1]
        stale = ("resources ", "resourceTemplates ") if kind == "resources" else (f"{kind} ",)
        for view in [view for view in session.pages if view.startswith(stale)]:
            del session.pages[view]
        if kind != "tools" or self.expose == "all":
            session.changed(kind)
        del upstream

    # requests

    async def answer(self, exchange: Exchange, request_id: int | str) -> dict[str, Any]:
        """The message that answers a request. Never raises anything but cancellation."""

        async def handled() -> dict[str, Any]:
            try:
                result = await self.handle(exchange)
            except Denial as denial:
                exchange.denial = denial
                raise
            self.gate.answered(exchange.caller, result)
            return result

        return await self._message(handled(), exchange.method, request_id, exchange.caller)

    async def welcome(
        self, session: ClientSession, caller: Caller, request_id: int | str, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The message that answers `initialize`. Never raises anything but cancellation."""
        work = greeting.initialize(self, session, caller, params)
        return await self._message(work, "initialize", request_id, caller)

    async def _message(
        self, work: Awaitable[dict[str, Any]], method: str, request_id: int | str, caller: Caller
    ) -> dict[str, Any]:
        try:
            result = await work
        except RpcError as error:
            return rpc.error_message(request_id, error)
        except PiMcpError as error:
            return rpc.error_message(request_id, rpc.of_diagnostic(self.disclosure.told(caller, error.diagnostic)))
        except Exception:
            # What an exception says is for the debug log, and in no era for a client.
            _LOG.debug("%s failed", method, exc_info=True)
            return rpc.error_message(request_id, RpcError(rpc.INTERNAL_ERROR, "Internal error"))
        return rpc.result_message(request_id, result)

    async def handle(self, exchange: Exchange) -> dict[str, Any]:
        """The result of a request. Raises RpcError or PiMcpError."""
        if self.draining and not self.rounds.knows(exchange.params.get("requestState")):
            raise RpcError(rpc.UNREACHABLE, "The gateway is shutting down")
        method = exchange.method
        handler = self._handlers.get(method)
        if exchange.modern and method in ("ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            handler = None  # gone with 2026-07-28
        elif not exchange.modern and method in ("server/discover", "subscriptions/listen", "tasks/update"):
            handler = None
        if handler is None:
            return await self._unknown(exchange)
        result = await handler(exchange)
        if exchange.modern:
            result = rpc.fitted(method, result, modern=True, private=self.per_caller)
            meta = result.get("_meta")
            if not isinstance(meta, dict) or meta.get(rpc.SERVER_INFO) is None:
                result = {**result, "_meta": {**(meta or {}), rpc.SERVER_INFO: greeting.server_info()}}
            return result
        return rpc.fitted(method, result, modern=False)

    async def notification(self, session: ClientSession, caller: Caller, method: str, params: dict[str, Any]) -> None:
        """A client's notification; `notifications/cancelled` is the transport's.

        What a server makes of one that is none of the protocol's nobody knows: it is a foreign method's equal.
        """
        if method == "notifications/progress":
            await session.progressed(params)
        elif method == "notifications/initialized":
            return
        elif method == "notifications/roots/list_changed" or (self.direct and method.startswith("notifications/")):
            known = method == "notifications/roots/list_changed"
            for server, upstream in list(session.used.items()):
                permitted = self.knows(caller, server) if known else self.gate.reaches(caller, server, "everything")
                if upstream.client is session and permitted:
                    await upstream.notify(method, params)

    async def forward(
        self,
        exchange: Exchange,
        upstream: Upstream,
        method: str,
        params: dict[str, Any],
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Send a client's request to an upstream, whichever eras the two are of; the upstream's result as it is."""
        await upstream.connect()
        session = exchange.session
        if exchange.modern:
            if upstream.era != "legacy":
                return await upstream.request(method, params, exchange.forwarding(), schema=schema)
            await self._follow_level(exchange, upstream)
            state = params.get("requestState")

            def about(asked: Mapping[str, Any] = params) -> str:
                return _about(upstream, method, asked)

            if isinstance(state, str) and self.rounds.knows(state):
                return await self.rounds.resume(exchange, about, state, params.get("inputResponses"))
            if "inputResponses" in params or "requestState" in params:
                params = {key: params[key] for key in params if key not in ("inputResponses", "requestState")}
            if not exchange.capabilities:
                return await upstream.request(method, params, exchange.forwarding(), schema=schema)
            sent = params
            return await self.rounds.start(
                exchange, about, lambda request: upstream.request(method, sent, request, schema=schema)
            )
        if upstream.era != "modern":
            await self._follow_level(exchange, upstream)
            return await upstream.request(method, params, exchange.forwarding(), schema=schema)
        if session.log_level is not None and upstream.client is not None:
            meta = params.get("_meta")
            params = {**params, "_meta": {**(meta or {}), rpc.META + "logLevel": session.log_level}}
        return await asked_in_rounds(
            lambda sent, request: upstream.request(method, sent, request, schema=schema), params, exchange
        )

    async def _follow_level(self, exchange: Exchange, upstream: Upstream) -> None:
        """Tell a server of the handshake era how much a client wants to hear, where it was last told something else."""
        level = exchange.log_level
        if level is None or upstream.client is None or upstream.log_level == level:
            return
        upstream.log_level = level
        if lists.declares(upstream, "logging"):
            # One that does not take it sends what it likes; the client's request is about something else.
            with contextlib.suppress(RpcError):
                await upstream.request("logging/setLevel", {"level": level}, lists.nobody())

    # the gateway's own answers

    async def _ping(self, exchange: Exchange) -> dict[str, Any]:
        del exchange
        return {}

    async def _unknown(self, exchange: Exchange) -> dict[str, Any]:
        """A method that is none of the protocol's: one upstream alone may know it."""
        if self.direct and exchange.method not in self._handlers and exchange.method != "initialize":
            server = next(iter(self.servers))
            arguments = {name: value for name, value in exchange.params.items() if name != "_meta"}
            if not self.gate.reaches(exchange.caller, server, "everything"):
                raise await self.gate.refuse(
                    exchange.caller, "method", exchange.method, server=server, arguments=arguments
                )
            upstream = self.upstream(exchange.session, server)
            # Nobody knows what it does: it is recorded and limited as a call of a tool of that name.
            ticket = await self.gate.begin_call(exchange.caller, server, {"name": exchange.method}, arguments)
            return await attended(ticket, self.forward(exchange, upstream, exchange.method, exchange.params))
        raise RpcError(rpc.METHOD_NOT_FOUND, "Method not found", exchange.method)

    # prompts, completion, logging, tasks

    async def _prompts_get(self, exchange: Exchange) -> dict[str, Any]:
        name = exchange.params.get("name")
        if not isinstance(name, str):
            raise RpcError(rpc.INVALID_PARAMS, "Invalid request parameters")
        server, original = await self.listings.prompt_behind(exchange, name)
        upstream = self.upstream(exchange.session, server)
        result = await self.forward(exchange, upstream, "prompts/get", {**exchange.params, "name": original})
        self.resources.learn_result(exchange.session, server, result)
        return result

    async def _complete(self, exchange: Exchange) -> dict[str, Any]:
        reference = exchange.params.get("ref")
        kind = reference.get("type") if isinstance(reference, dict) else None
        if kind == "ref/prompt" and isinstance(reference, dict) and isinstance(reference.get("name"), str):
            server, original = await self.listings.prompt_behind(exchange, reference["name"])
            params = {**exchange.params, "ref": {**reference, "name": original}}
        elif kind == "ref/resource" and isinstance(reference, dict) and isinstance(reference.get("uri"), str):
            server = await self.resources.owner(exchange, reference["uri"])
            params = exchange.params
        else:
            raise RpcError(rpc.INVALID_PARAMS, "Invalid request parameters")
        return await self.forward(exchange, self.upstream(exchange.session, server), "completion/complete", params)

    async def _set_level(self, exchange: Exchange) -> dict[str, Any]:
        level = exchange.params.get("level")
        if level not in LEVELS:
            raise RpcError(rpc.INVALID_PARAMS, "Invalid request parameters")
        session = exchange.session
        session.log_level = level
        for upstream in list(session.used.values()):
            if upstream.client is session and upstream.era == "legacy":
                with contextlib.suppress(PiMcpError):  # a server that is down is told when it is back
                    await self._follow_level(exchange, upstream)
        return {}

    async def _task(self, exchange: Exchange) -> dict[str, Any]:
        server = exchange.session.tasks.get(str(exchange.params.get("taskId")))
        if server is None and self.direct and not self.per_caller:
            server = next(iter(self.servers))  # of another caller's task nobody may know
        if server is None or not self.gate.reaches(exchange.caller, server, "tools"):
            raise RpcError(rpc.INVALID_PARAMS, "Unknown task")
        upstream = self.upstream(exchange.session, server)
        result = await self.forward(exchange, upstream, exchange.method, exchange.params)
        self.resources.learn_result(exchange.session, server, result)
        return result

    async def _tasks_list(self, exchange: Exchange) -> dict[str, Any]:
        """The tasks of the upstreams that this client has used, without pages; one upstream alone has its own."""
        session = exchange.session
        if self.direct and not self.per_caller:
            upstream = self.upstream(session, next(iter(self.servers)))
            return await self.forward(exchange, upstream, "tasks/list", exchange.params)
        tasks: list[Any] = []
        missing: list[Diagnostic] = []
        for server, upstream in list(session.used.items()):
            reached = upstream.client is session and self.gate.reaches(exchange.caller, server, "tools")
            if reached and upstream.live and lists.declares(upstream, "tasks"):
                try:
                    result = await self.forward(exchange, upstream, "tasks/list", {})
                except PiMcpError as error:
                    missing.append(error.diagnostic)
                    continue
                except RpcError as error:
                    missing.append(lists.refused_to_list(server, error))
                    continue
                listed = result.get("tasks")
                for task in listed if isinstance(listed, list) else ():
                    if isinstance(task, dict):
                        session.own_task(task.get("taskId"), server)
                        tasks.append(task)
        found: dict[str, Any] = {"tasks": tasks}
        if missing:
            found["_meta"] = {UNAVAILABLE: [self.disclosure.told(exchange.caller, one).to_json() for one in missing]}
        return found

    # subscriptions of the modern era

    async def _listen(self, exchange: Exchange) -> dict[str, Any]:
        wanted = exchange.params.get("notifications")
        if not isinstance(wanted, dict) or exchange.caller.request_id is None:
            raise RpcError(rpc.INVALID_PARAMS, "Invalid request parameters")
        return await self.resources.listen(exchange, wanted, exchange.caller.request_id)


def _about(upstream: Upstream, method: str, params: Mapping[str, Any]) -> str:
    """What a request is: a client that comes again for an answer has to ask for the same, which it was permitted."""
    asked = {name: params[name] for name in ("name", "arguments", "uri", "ref", "argument") if name in params}
    about = compact_json([upstream.name, method, asked], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(about.encode()).hexdigest()


def _owner(upstream: Upstream) -> str | None:
    """The credential whose client has a channel for itself; None where all share it."""
    return upstream.client.owner if isinstance(upstream.client, ClientSession) else None
