"""Tools behind the gateway: the two faces of the list, the search, and a call on its way to its upstream.

Comes in: `tools/list` and `tools/call` of clients. Goes out: the upstreams' own definitions and results. Before a call
is sent the gate has said yes, its headers agree with its body, and nobody would have had to be asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pi_mcp.errors import Diagnostic, PiMcpError
from pi_mcp.plugin import SEARCH_TOOL, RpcError, Upstream
from pi_mcp.server import lists, rpc
from pi_mcp.server.gate import NotSent, Refused, attended
from pi_mcp.server.loading import ALWAYS_LOAD, CALL_TOOL, OWN_TOOLS, Loading, defers_tools
from pi_mcp.server.names import looks_cut, read_back

if TYPE_CHECKING:
    from pi_mcp.server.clients import Exchange
    from pi_mcp.server.gateway import Gateway

MOST_VIEWS = 8
"""Sets of rights with which one client session is served at a time."""


class Tools:
    """The tools of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._count = 0

    async def list(self, exchange: Exchange) -> dict[str, Any]:
        if self._gateway.expose == "all":
            return await self._gateway.listings.tools(exchange)
        loading = self._loading(exchange)
        session = exchange.session
        tools = loading.own_tools() if self._gateway.gate.permits_search(exchange.caller) else []
        for server, wire in loading.tools():
            if self._gateway.gate.permits_tool(exchange.caller, server, wire):
                shown = {**wire, "name": self._gateway.exposed(server, str(wire["name"]))}
                if defers_tools(session.client_info):
                    meta = wire.get("_meta")
                    shown["_meta"] = {**(meta if isinstance(meta, dict) else {}), **ALWAYS_LOAD}
                tools.append(shown)
                self._gateway.resources.learn_tool(session, server, wire)
        exchange.sent.append(loading.listed.set)
        return {"tools": tools}

    def _loading(self, exchange: Exchange) -> Loading:
        session, caller = exchange.session, exchange.caller
        view = self._gateway.view(caller, "tools")
        loading = session.loadings.get(view)
        if loading is None:
            if len(session.loadings) >= MOST_VIEWS:
                self._gateway.later(session.loadings.pop(next(iter(session.loadings))).close())
            self._count += 1
            loading = session.loadings[view] = Loading(
                self._gateway.plugin,
                f"gateway {session.key} {self._count}",
                self._gateway.exposed,
                keeps=session.id is not None,
                servers=json.loads(view)[0] if self._gateway.per_caller else None,
            )
        if self._gateway.per_caller:
            loading.permit(lambda server, wire: self._gateway.gate.permits_tool(caller, server, wire))
        return loading

    async def call(self, exchange: Exchange) -> dict[str, Any]:
        name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
        if not isinstance(name, str) or not (arguments is None or isinstance(arguments, dict)):
            raise RpcError(rpc.INVALID_PARAMS, "Invalid request parameters")
        if self._gateway.expose == "search" and name in OWN_TOOLS:
            if not self._gateway.gate.permits_search(exchange.caller):
                raise await self._gateway.gate.refuse(exchange.caller, "search", name, arguments=arguments)
            if name == SEARCH_TOOL:
                return await self._search(exchange, arguments or {})
            name, arguments = _inner_call(arguments or {})
            name = self._own_name(exchange, name)
        params = {key: value for key, value in exchange.params.items() if key not in ("name", "arguments")}
        return await self._call(exchange, name, arguments, params)

    async def _search(self, exchange: Exchange, arguments: Mapping[str, Any]) -> dict[str, Any]:
        loading = self._loading(exchange)
        session = exchange.session

        def told(diagnostic: Diagnostic) -> Diagnostic:
            return self._gateway.disclosure.told(exchange.caller, diagnostic)

        try:
            answer, result = await loading.search(arguments, told)
        except PiMcpError as error:
            return {"content": [{"type": "text", "text": told(error.diagnostic).line()}], "isError": True}
        if answer.loaded and session.id is not None:

            def announce() -> None:
                if session.outbox is None and not session.modern and exchange.streams:
                    exchange.notify("notifications/tools/list_changed")
                else:
                    session.changed("tools")

            await loading.hold(announce)
        return result

    async def _call(
        self, exchange: Exchange, name: str, arguments: dict[str, Any] | None, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Call the upstream's tool of that exposed name; `params` are the others of the request."""
        server, tool_name = await self._tool_named(exchange, name, arguments)
        upstream = self._gateway.upstream(exchange.session, server)
        known = self._known_wire(upstream, server, tool_name)
        if known is not None and not self._gateway.gate.permits_tool(exchange.caller, server, known):
            # The server is not even started for it; the ticket's own refusal is the one that is recorded.
            await self._gateway.gate.begin_call(exchange.caller, server, known, arguments or {})
        wire = await self._wire(upstream, tool_name)
        self._check_headers(exchange, server, wire, arguments or {})
        ticket = await self._gateway.gate.begin_call(exchange.caller, server, wire, arguments or {})
        sent: dict[str, Any] = {**params, "name": tool_name}
        if arguments is not None:
            sent["arguments"] = arguments

        async def work() -> dict[str, Any]:
            self._consent(exchange, server, wire, arguments or {})
            await self._as_loaded(exchange, server, wire)
            try:
                return await self._gateway.forward(exchange, upstream, "tools/call", sent, schema=_schema(wire))
            except RpcError as error:
                if error.code != rpc.HEADER_MISMATCH or upstream.era != "modern":
                    raise
                # The tool wants other headers than its definition did: it has changed, and did not run.
                upstream.kept.pop("tools", None)
                schema = _schema(await self._wire(upstream, tool_name))
                return await self._gateway.forward(exchange, upstream, "tools/call", sent, schema=schema)

        result = await attended(ticket, work())
        self._gateway.resources.learn_result(exchange.session, server, result)
        self._announce(exchange, server, upstream)
        return result

    def _announce(self, exchange: Exchange, server: str, upstream: Upstream) -> None:
        """With the face `search` prompts and resources are those of the servers that a client has used: there may be
        more now, and a client that listed when it came would not look again."""
        session = exchange.session
        if self._gateway.expose == "all" or (session.id is None and not session.modern) or server in session.announced:
            return
        if session.outbox is None and session.streaming() is None and not session.listeners:
            return  # nobody hears it now; perhaps after the next call
        session.announced.add(server)
        kinds: tuple[Literal["prompts", "resources"], ...] = ("prompts", "resources")
        for kind in kinds:
            if lists.declares(upstream, kind) and self._gateway.gate.reaches(exchange.caller, server, kind):
                session.changed(kind)

    def _own_name(self, exchange: Exchange, name: str) -> str:
        """The gateway's name of a tool that is called as the command line and hosts call it, `mcp__SERVER__TOOL`.

        As it is where that could be another tool's name here, or is none that the caller may use: then the caller
        hears what everybody hears of a name that is not there.
        """
        read = read_back(name)
        if read is not None and read[0] in self._gateway.servers:
            return name
        catalogs = self._gateway.plugin.catalogued(self._gateway.servers)
        found = []
        for server, tool in self._gateway.plugin.tools_called(name):
            known = catalogs[server].tool(tool)
            granted = known is not None and self._gateway.gate.permits_tool(exchange.caller, server, known.wire)
            if granted and self._admitted(server, tool):
                found.append((server, tool))
        return self._gateway.exposed(*found[0]) if len(found) == 1 else name

    async def _tool_named(self, exchange: Exchange, name: str, arguments: Mapping[str, Any] | None) -> tuple[str, str]:
        """Server and original name behind an exposed one. Raises RpcError for what is not there, or not permitted."""
        found: tuple[str, str] | None
        if not self._gateway.prefix and len(self._gateway.servers) == 1:
            found = next(iter(self._gateway.servers)), name
        else:
            found = read_back(name)
            if found is None or found[0] not in self._gateway.servers or looks_cut(name):
                found = await self._gateway.listings.tool_behind(exchange, name) or found
        server, tool = found if found is not None and found[0] in self._gateway.servers else (None, name)
        if (
            server is None
            or not self._admitted(server, tool)
            or not self._gateway.gate.reaches(exchange.caller, server, "tools", tool)
        ):
            raise await self._gateway.gate.refuse(exchange.caller, "tool", tool, server=server, arguments=arguments)
        return server, tool

    def _admitted(self, server: str, tool: str) -> bool:
        """What the configuration's filters and the trust level exclude does not exist for clients."""
        definition = self._gateway.servers.get(server)
        return definition is not None and self._gateway.plugin.admits(definition, tool)

    def _known_wire(self, upstream: Upstream, server: str, tool: str) -> Mapping[str, Any] | None:
        """The tool's definition as far as it is known without asking the server."""
        kept = lists.kept_of(upstream, "tools")
        if kept is not None:
            return kept.items.get(tool)
        if not self._gateway.per_caller:
            return None  # nobody would look at it
        catalog = self._gateway.plugin.catalogs.known(server)
        found = None if catalog is None else catalog.tool(tool)
        return None if found is None else found.wire

    async def _wire(self, upstream: Upstream, tool: str) -> Mapping[str, Any]:
        """The tool's definition; a bare one where the server does not list it. One listing a connection, not a call."""
        kept = lists.kept_of(upstream, "tools")
        if kept is not None and upstream.live and tool in kept.items:
            return kept.items[tool]
        try:
            items = await lists.listed(upstream, "tools")
            if tool not in items and kept is not None and lists.kept_of(upstream, "tools") is kept:
                age = asyncio.get_running_loop().time() - kept.read
                if age > lists.FRESH:
                    upstream.kept.pop("tools", None)
                    items = await lists.listed(upstream, "tools")
        except (PiMcpError, RpcError):
            if not upstream.live:
                raise
            items = {}
        return items.get(tool) or {"name": tool}

    def _check_headers(
        self, exchange: Exchange, server: str, wire: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> None:
        """2026-07-28 over HTTP: what `x-mcp-header` names has to be in the headers as in the body.

        A tool that the caller may not see tells nothing, not even that.
        """
        headers, schema = exchange.headers, _schema(wire)
        if headers is None or not exchange.modern or schema is None:
            return
        if not arguments and not any(name.startswith("mcp-param-") for name in headers):
            return
        if not self._gateway.gate.permits_tool(exchange.caller, server, wire):
            return
        from mcp.shared.inbound import validate_mcp_param_headers

        rejection = validate_mcp_param_headers(schema, arguments, headers)
        if rejection is not None:
            raise RpcError(rejection.code, rejection.message, rejection.data)

    async def _as_loaded(self, exchange: Exchange, server: str, wire: Mapping[str, Any]) -> None:
        """What a search has loaded is called as it was found, or not at all (DESIGN §7): the client goes on showing the
        old definition until it searches again, and nobody would see that it is another tool now.

        With the face `all` the client has the live definition, or has been told to list again.
        """
        loading = exchange.session.loadings.get(self._gateway.view(exchange.caller, "tools"))
        if self._gateway.expose == "all" or loading is None or len(wire) < 2:  # a bare one is not listed; see `_wire`
            return
        if loading.session.outdated(server, wire) is None or loading.found_anew(server, wire):
            return
        with contextlib.suppress(PiMcpError):
            # The next search is to find the tool as it is, not as the cache has it.
            catalog = await self._gateway.plugin.catalogs.refresh(server)
            now = catalog.tool(str(wire["name"]))
            if now is not None:
                loading.compare(server, wire, now.wire)
        problem = None if loading.found_anew(server, wire) else loading.session.outdated(server, wire)
        if problem is not None:
            error = rpc.of_diagnostic(self._gateway.disclosure.told(exchange.caller, problem.diagnostic))
            hint = problem.diagnostic.hint
            raise NotSent(error.code, f"{error.message} {hint}" if hint else error.message, error.data)

    def _consent(self, exchange: Exchange, server: str, wire: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """A call that a person would be asked about is refused: nobody can be asked (DESIGN §9)."""
        from pi_mcp.config import policy

        definition, tool = self._gateway.servers[server], str(wire.get("name"))
        annotations = wire.get("annotations")
        hint = isinstance(annotations, dict) and annotations.get("readOnlyHint") is True
        if not policy.needs_confirmation(definition, tool, hint, arguments) or policy.headless_allows(definition, tool):
            return
        why = Diagnostic("refused", "call", server, "Nobody can be asked.", "Name the tool in includeTools.")
        raise Refused(
            f"A call of this tool wants a person's confirmation ({definition.trust} server), and nobody can be asked.",
            self._gateway.disclosure.told(exchange.caller, why).to_json(),
        )


def _schema(wire: Mapping[str, Any]) -> dict[str, Any] | None:
    """A tool's input schema, if it is one."""
    schema = wire.get("inputSchema")
    return schema if isinstance(schema, dict) else None


def _inner_call(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Name and arguments of an `mcp_call`; some models write the inner arguments as text."""
    name, inner = arguments.get("name"), arguments.get("arguments")
    if isinstance(inner, str):
        try:
            inner = rpc.decoded(inner)  # as a body: what is no JSON is no argument either
        except RpcError:
            inner = ()
    if not isinstance(name, str) or not (inner is None or isinstance(inner, dict)):
        raise RpcError(rpc.INVALID_PARAMS, f"{CALL_TOOL} wants `name`, and `arguments` as an object")
    return name, {} if inner is None else inner
