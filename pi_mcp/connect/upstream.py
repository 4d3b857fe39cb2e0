"""A raw message channel to one upstream server: what a gateway forwards, as it is, in both directions.

Comes in: requests and notifications of clients as JSON objects. Goes out: the server's results, errors and messages
as the server sent them, or a `PiMcpError` of ours. The owner task, the transports, the negotiation and the ways of
failing are those of `Connection`; nothing is repaired, validated, cut or cached here.

A server's message belongs to a client's request where the protocol says so: progress by its token, over HTTP by the
stream that it came in. Anything else is for the `Client` behind the channel to place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pi_mcp.connect.connection import HARD_CAP, CallHandlers, Connection, _Call, _Link
from pi_mcp.connect.faults import UNKNOWN_OUTCOME
from pi_mcp.connect.guard import STREAM
from pi_mcp.connect.session import Plan, ProtocolSession, RequestFailed, ServerInfo, _Envelope
from pi_mcp.errors import NotExecuted, Operation, PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pathlib import Path

    from pi_mcp.config.definition import Configuration, ServerDefinition
    from pi_mcp.config.resolve import ResolvedServer
    from pi_mcp.connect.sender import Credentials

META = "io.modelcontextprotocol/"
"""The prefix of the protocol's own members of `_meta`: the envelope of 2026-07-28."""
ENVELOPE = (META + "protocolVersion", META + "clientInfo", META + "clientCapabilities")
LOG_LEVEL = META + "logLevel"

LIST_CHANGES = {
    "tools": ("toolsListChanged", "notifications/tools/list_changed"),
    "prompts": ("promptsListChanged", "notifications/prompts/list_changed"),
    "resources": ("resourcesListChanged", "notifications/resources/list_changed"),
}
"""Capability → its member of a 2026 subscription, and its notification."""

_LISTEN_ATTEMPTS = 5
_TASKS = 256
"""Tasks of one connection whose progress is handed on."""
_LOG = logging.getLogger("pi_mcp")


class RpcError(Exception):
    """A JSON-RPC error that goes to a peer as it is: code, message and data."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return error


class Forwarding:
    """One client's request under way on an upstream.

    `notify(method, params)` hands on what the server sends beside the answer, in order and without waiting.
    `ask(method, params)` puts a server's own request to the client; raises RpcError. `capabilities` are the
    client's, for a server of 2026-07-28, which is told with each request. `hears_log`: a client of that era wants log
    messages beside the answer. `nobodys`: no client has sent it, so that no message of the server's belongs to it.
    """

    __slots__ = (
        "_asking", "_cap", "_limit", "_silence", "ask", "capabilities", "hears_log", "nobodys", "notify",
        "progress_token",
    )  # fmt: skip

    def __init__(
        self,
        *,
        notify: Callable[[str, dict[str, Any]], None],
        ask: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]],
        progress_token: int | str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        hears_log: bool = False,
        nobodys: bool = False,
    ) -> None:
        self.hears_log = hears_log
        self.nobodys = nobodys
        self.notify = notify
        self.ask = ask
        self.progress_token = progress_token
        self.capabilities = capabilities
        self._limit: asyncio.Timeout | None = None
        self._silence = 0.0
        self._cap = 0.0
        self._asking = 0

    def started(self, limit: asyncio.Timeout, silence: float, cap: float) -> None:
        self._limit, self._silence, self._cap = limit, silence, cap

    def heard(self) -> None:
        """The server gave a sign of life: its silence is counted from now on, and not while it waits for us."""
        if self._limit is None or self._limit.expired():
            return
        now = asyncio.get_running_loop().time()
        self._limit.reschedule(self._cap if self._asking else min(self._cap, now + self._silence))

    async def asked(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """As `ask`, while which the server's silence does not count."""
        self._asking += 1
        self.heard()
        try:
            return await self.ask(method, params)
        finally:
            self._asking -= 1
            self.heard()


class Client(Protocol):
    """Whoever stands behind a channel: one client, or nobody that a server's own request could be meant for."""

    modern: bool
    """Of 2026-07-28: it can be asked within its own requests alone."""

    def capabilities(self) -> dict[str, Any]:
        """What to declare to the server at the handshake."""

    def info(self) -> Mapping[str, Any] | None:
        """The client's name and version; None means pi-mcp's own."""

    async def asked(
        self, upstream: Upstream, request: Forwarding | None, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """The result for a server's own request, which came for `request` where that is known. Raises RpcError."""

    def notified(self, upstream: Upstream, request: Forwarding | None, method: str, params: dict[str, Any]) -> None:
        """A notification other than progress. Must not raise or block."""


class RawSession(ProtocolSession):
    """The conversation of an `Upstream`. `told` is what the server said of itself in the handshake, as it sent it."""

    def __init__(self, read: Any, write: Any, *, upstream: Upstream, link: _Link) -> None:
        super().__init__(read, write, faults=link.faults, log=upstream.log, peer=_Handshake(upstream))
        self._upstream = upstream
        self._forwarded: dict[int | str, Forwarding] = {}
        self._listeners: dict[str, asyncio.Task[None]] = {}
        self._listened = 0
        self._tasks: dict[int, int | str] = {}
        """Requests that were answered by a task: the client's token, under which progress goes on."""
        self.told: dict[str, Any] = {}

    async def __aexit__(self, *exc: object) -> None:
        for task in self._listeners.values():
            task.cancel()
        if self._listeners:
            await asyncio.wait(self._listeners.values(), timeout=2.0)
        await super().__aexit__(*exc)

    @property
    def in_flight(self) -> list[Forwarding]:
        """The clients' requests under way, oldest first."""
        return [request for request in self._forwarded.values() if not request.nobodys]

    async def handshake(self, plan: Plan) -> ServerInfo:
        info = await super().handshake(plan)
        await self._upstream.greeted(self, info)
        return info

    async def forward(
        self,
        method: str,
        params: Mapping[str, Any],
        request: Forwarding,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a client's request once; the server's result. Raises RequestFailed."""
        request_id = next(self._ids)
        sent = dict(params)
        meta = sent.get("_meta")
        if isinstance(meta, Mapping):
            kept = {key: value for key, value in meta.items() if key not in ENVELOPE}
            if "progressToken" in kept:
                # One that is none could come back as that of another client's request: True is 1 to Python.
                kept["progressToken"] = request_id
                if request.progress_token is None:
                    del kept["progressToken"]
            if not self._envelope.modern:
                kept.pop(LOG_LEVEL, None)
            if kept:
                sent["_meta"] = kept
            else:
                del sent["_meta"]
        envelope = self._envelope
        if envelope.modern and request.capabilities is not None:
            envelope = _Envelope(envelope.version, True, self._upstream.declared(request.capabilities))
        self._forwarded[request_id] = request
        try:
            result = await self._send(method, sent, envelope, headers=headers, request_id=request_id)
        finally:
            del self._forwarded[request_id]
        if request.progress_token is not None and ("task" in result or result.get("resultType") == "task"):
            self._tasks[request_id] = request.progress_token
            while len(self._tasks) > _TASKS:
                del self._tasks[next(iter(self._tasks))]
        return result

    def parameter_headers(
        self, schema: Mapping[str, Any] | None, arguments: Mapping[str, Any]
    ) -> dict[str, str] | None:
        """The headers of a call: what `x-mcp-header` in the tool's input schema names (2026-07-28 over HTTP)."""
        return self._parameter_headers(schema, arguments)

    # what the server sends by itself

    async def _on_request(self, context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        from mcp.shared.exceptions import MCPError

        del context
        if method == "ping":
            return {}
        plain, stream = _unmarked(params)
        try:
            return await self._upstream.asked(self, self._request_of(stream), method, plain)
        except RpcError as error:
            raise MCPError(code=error.code, message=error.message, data=error.data) from None
        except Exception:  # our own fault must not become an error text on the wire
            _LOG.debug("a server's request failed", exc_info=True)
            raise MCPError(code=-32603, message="Internal error") from None

    def _request_of(self, stream: Any) -> Forwarding | None:
        found = self._forwarded.get(stream) if isinstance(stream, int | str) else None
        return None if found is None or found.nobodys else found

    def _intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        plain, stream = _unmarked(params)
        if method == "notifications/progress":
            token = plain.get("progressToken")
            if isinstance(token, str) and token.isdigit():
                token = int(token)
            if not isinstance(token, int) or isinstance(token, bool):
                return True
            request = self._forwarded.get(token)
            if request is not None:
                request.heard()
                if request.progress_token is not None:
                    request.notify(method, {**plain, "progressToken": request.progress_token})
            elif token in self._tasks:
                self._upstream.notified(None, method, {**plain, "progressToken": self._tasks[token]})
        elif method not in ("notifications/cancelled", "notifications/subscriptions/acknowledged"):
            request = self._request_of(stream)
            if method == "notifications/message":
                self._log.add(f"{clean_line(str(plain.get('level', 'info')), 20)}: {str(plain.get('data', ''))[:4000]}")
                request = request or next((one for one in reversed(self.in_flight) if one.hears_log), None)
            self._upstream.notified(request, method, plain)
        return True

    # subscriptions of the modern era

    def listen(self) -> None:
        """Ask a 2026 server to report every kind of change that it declares."""
        capabilities = self.told.get("capabilities")
        wanted = {
            member: True
            for kind, (member, _) in LIST_CHANGES.items()
            if isinstance(capabilities, dict)
            and isinstance(declared := capabilities.get(kind), dict)
            and declared.get("listChanged") is True
        }
        if wanted:
            self._listen_for("lists", wanted)

    def subscribe(self, uris: list[str]) -> None:
        """Ask a 2026 server to report changes of these resources, in the place of those named before."""
        self._listen_for("resources", {"resourceSubscriptions": uris} if uris else {})

    def _listen_for(self, topic: str, wanted: dict[str, Any]) -> None:
        old = self._listeners.pop(topic, None)
        if old is not None:
            old.cancel()
        if wanted:
            self._listeners[topic] = asyncio.create_task(self._keep_listening(topic, wanted))

    async def _keep_listening(self, topic: str, wanted: dict[str, Any]) -> None:
        for attempt in range(1, _LISTEN_ATTEMPTS + 1):
            self._listened += 1
            with contextlib.suppress(RequestFailed):
                await self._send(
                    "subscriptions/listen",
                    {"notifications": wanted},
                    self._envelope,
                    request_id=f"listen-{topic}-{self._listened}",
                )
            if self.ended.is_set():
                return
            await asyncio.sleep(min(2.0**attempt, 30.0))
            # Whatever changed while nobody listened is unknown.
            for member, notification in LIST_CHANGES.values():
                if member in wanted:
                    self._upstream.notified(None, notification, {})

    async def _send(self, method: str, params: Mapping[str, Any], *args: Any, **more: Any) -> dict[str, Any]:
        result = await super()._send(method, params, *args, **more)
        if method in ("initialize", "server/discover"):
            self.told = result
        return result

    def _client_info(self) -> dict[str, Any]:
        info = self._upstream.client.info() if self._upstream.client is not None else None
        return dict(info) if info else super()._client_info()


def _unmarked(params: Mapping[str, Any] | None) -> tuple[dict[str, Any], Any]:
    """The params as the server sent them, and the request in whose stream they came."""
    plain = dict(params or {})
    meta = plain.get("_meta")
    if not isinstance(meta, dict) or STREAM not in meta:
        return plain, None
    rest = {key: value for key, value in meta.items() if key != STREAM}
    if rest:
        plain["_meta"] = rest
    else:
        del plain["_meta"]
    return plain, meta[STREAM]


class _Handshake:
    """The `Peer` of the base class: of its questions only the capabilities are asked here."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def capabilities(self) -> dict[str, Any]:
        return self._upstream.capabilities()

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        del method, params
        return None

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        del method, params


class Upstream(Connection):
    """One upstream for one client, or with `client` None for all of them: then the server is offered nothing."""

    tells_streams_apart = True

    def __init__(
        self,
        definition: ServerDefinition,
        configuration: Configuration,
        *,
        roots_cwd: Path | None = None,
        credentials: Callable[[ResolvedServer], Credentials | None] | None = None,
        client: Client | None = None,
        legacy_first: bool = False,
    ) -> None:
        """`legacy_first`: a client of the handshake era gets a server's handshake era where there is one."""
        super().__init__(definition, configuration, roots_cwd=roots_cwd, credentials=credentials)
        self.client = client
        self.legacy_first = legacy_first
        self.hearers: list[Callable[[Upstream, str, dict[str, Any]], None]] = []
        """Told of list changes and resource updates: for channels that several clients share."""
        self.log_level: str | None = None
        """What a client of the handshake era set; told to the server after each handshake."""
        self.subscriptions: dict[str, int] = {}
        """Resource → how many want to hear of its changes."""
        self.last_used = 0.0
        self.before_start: Callable[[Upstream], None] | None = None
        """Asked before the server is started or connected to; raises PiMcpError where it must not be."""
        self.kept: dict[str, Any] = {}
        """For whoever reads lists through it: what they read. A kind goes when it changes, and all with the connection.
        """
        self._told_changes: Counter[str] = Counter()

    @property
    def told(self) -> Mapping[str, Any]:
        """The last handshake's result, as the server sent it; empty before the first."""
        link = self._link
        return link.session.told if link is not None and isinstance(link.session, RawSession) else {}

    def age_of(self, kind: str) -> tuple[int, int]:
        """Which connection this is, and how often it told that the list of that capability had changed: what was read
        while this became another is old.
        """
        return self.generation, self._told_changes[kind]

    @property
    def era(self) -> str | None:
        return self.info.era if self.info is not None and self.live else None

    @property
    def live(self) -> bool:
        return self._link is not None and self._link.live

    @property
    def busy(self) -> bool:
        """Something is under way on it, or is waited for from it."""
        link = self._link
        listing = self._listing is not None and not self._listing.done()
        return listing or bool(link is not None and (link.calls or (link.session is None and not link.stop.is_set())))

    async def connect(self, *, era: str | None = None) -> ServerInfo:
        self.last_used = asyncio.get_running_loop().time()
        if self.before_start is not None and not self.live and not self.busy:
            self.before_start(self)
        return await super().connect(era="legacy" if self.legacy_first else era)

    def rest(self) -> None:
        """End the connection when what is under way has ended; whoever comes from now on starts another one."""
        if self._link is not None:
            self._link.retire()
        self._state = "idle"

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        request: Forwarding,
        *,
        schema: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Forward one request; the server's result as it sent it.

        Raises RpcError for an error of the server's, and PiMcpError for one of the way to it. It is sent again,
        once, where the failure proves that it did not run. `schema` is a called tool's input schema. Silence is
        limited by `timeoutMs`, during a tool call by `toolTimeoutMs`; progress restarts it. A task's result may take
        as long as any call. Cancelling this is told to the server, and waited for a second at most.
        """
        try:
            return await self._request(method, params, request, schema)
        except NotExecuted:
            return await self._request(method, params, request, schema)

    async def _request(
        self, method: str, params: Mapping[str, Any], request: Forwarding, schema: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        await self.connect()
        link, session = self._usable("call")
        if not isinstance(session, RawSession):
            raise TypeError("a raw channel has a raw session")
        loop = asyncio.get_running_loop()
        now = loop.time()
        call = _Call(CallHandlers(), now)
        silence = self._silence_of(method)
        # A list changes nothing: there is no outcome to be unsure of.
        operation: Operation = "list" if method.endswith("/list") else "call"
        unknown = "" if operation == "list" else f" {UNKNOWN_OUTCOME}"
        headers = None
        if schema is not None and isinstance(arguments := params.get("arguments"), Mapping):
            headers = session.parameter_headers(schema, arguments)
        link.calls.add(call)
        # Shielded: where the server takes nothing more, its cancellation takes longer than a client is to wait.
        sending = asyncio.create_task(session.forward(method, params, request, headers=headers))
        try:
            async with asyncio.timeout(silence) as limit:
                request.started(limit, silence, now + HARD_CAP)
                result = await asyncio.shield(sending)
        except RequestFailed as error:
            if error.fault is None and not error.closed:
                self._succeeded()
                raise RpcError(error.code, error.message, error.data) from None
            raise self._explained(error, link, operation) from None
        except TimeoutError as error:
            if not limit.expired():
                raise self._explained(error, link, operation) from None
            name = "`toolTimeoutMs`" if method == "tools/call" else "`timeoutMs`"
            late = failure(
                "timeout",
                operation,
                self.name,
                f"The server gave no sign of life for {silence:g} s ({name}).{unknown}"
                if loop.time() < now + HARD_CAP
                else f"The call was ended after {HARD_CAP:g} s, the limit for any call.{unknown}",
                "Raise the limit if it needs longer.",
            )
            self._doubt(link, late.diagnostic)
            raise late from None
        except PiMcpError:
            raise
        except Exception as error:
            raise self._explained(error, link, operation) from None
        finally:
            link.calls.discard(call)
            if link.retired:
                link.retire()
            self.last_used = loop.time()
            if not sending.done():
                await self._abandon(sending)
        self._succeeded()
        self._failures = 0
        return result

    def _silence_of(self, method: str) -> float:
        """Seconds for which the server may say nothing while it has a request."""
        if method == "tasks/result":
            return HARD_CAP  # it is answered when the task has come to its end
        return self.definition.tool_timeout if method == "tools/call" else self.definition.timeout

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a client's notification; dropped where there is no connection."""
        link = self._link
        if link is not None and link.live and link.session is not None:
            with contextlib.suppress(Exception):
                await link.session.notify(method, params)

    # subscriptions and logging, which outlive a connection

    async def subscribe(self, uri: str, request: Forwarding) -> dict[str, Any]:
        """Hear of a resource's changes, in the server's era. Raises as `request` does."""
        first = not self.subscriptions.get(uri)
        result: dict[str, Any] = {}
        info = await self.connect()
        if info.era == "legacy" and first:
            result = await self.request("resources/subscribe", {"uri": uri}, request)
        self.subscriptions[uri] = self.subscriptions.get(uri, 0) + 1
        self._resubscribe()
        return result

    async def unsubscribe(self, uri: str, request: Forwarding) -> dict[str, Any]:
        """The opposite of `subscribe`; the server hears of it when nobody is left."""
        left = self.subscriptions.get(uri, 0) - 1
        if left > 0:
            self.subscriptions[uri] = left
            return {}
        self.subscriptions.pop(uri, None)
        if self.era == "legacy":
            return await self.request("resources/unsubscribe", {"uri": uri}, request)
        self._resubscribe()
        return {}

    def _resubscribe(self) -> None:
        link = self._link
        if link is not None and link.live and isinstance(link.session, RawSession) and self.era == "modern":
            link.session.subscribe(list(self.subscriptions))

    async def greeted(self, session: RawSession, info: ServerInfo) -> None:
        """A handshake is over: what clients had asked for on the connection before this one is asked for anew."""
        self.kept.clear()
        if info.era == "modern":
            if self.subscriptions:
                session.subscribe(list(self.subscriptions))
            return
        wanted: list[tuple[str, dict[str, Any]]] = [("resources/subscribe", {"uri": uri}) for uri in self.subscriptions]
        if self.log_level is not None and "logging" in (session.told.get("capabilities") or {}):
            wanted.append(("logging/setLevel", {"level": self.log_level}))
        for method, params in wanted:
            with contextlib.suppress(RequestFailed, TimeoutError):
                async with asyncio.timeout(self.definition.timeout):
                    await session.request(method, params)

    # what the server sends by itself

    def capabilities(self) -> dict[str, Any]:
        return {} if self.client is None else self.declared(self.client.capabilities())

    def declared(self, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        """Of a client's capabilities those that this server is told of: none where it is not trusted, or shared."""
        if self.client is None or self.definition.trust == "untrusted":
            return {}
        return dict(capabilities)

    async def asked(
        self, session: RawSession, request: Forwarding | None, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """A server's own request. Raises RpcError."""
        if self.client is None or self.definition.trust == "untrusted":
            raise RpcError(-32601, "Method not found")
        if request is None:
            # Over stdio a server does not say which request its own belongs to: the only one that is under way. Of
            # several none, but the newest for a client that can be asked within requests alone: all are its own.
            under_way = session.in_flight
            if self.client.modern:
                under_way = [one for one in under_way if one.capabilities][-1:]
            request = under_way[0] if len(under_way) == 1 else None
        return await self.client.asked(self, request, method, params)

    def notified(self, request: Forwarding | None, method: str, params: dict[str, Any]) -> None:
        for kind, (_, notification) in LIST_CHANGES.items():
            if method == notification:
                self._told_changes[kind] += 1
                self.kept.pop(kind, None)
                if kind == "resources":
                    self.kept.pop("resourceTemplates", None)
        if method == "notifications/tools/list_changed":
            self._tools_changed()
        try:
            if self.client is not None:
                self.client.notified(self, request, method, params)
            for hearer in list(self.hearers):
                hearer(self, method, params)
        except Exception:
            _LOG.debug("a notification could not be handed on", exc_info=True)

    def _session_over(self, read: Any, write: Any, link: _Link) -> ProtocolSession:
        return RawSession(read, write, upstream=self, link=link)

    def _listen(self, session: ProtocolSession, info: ServerInfo) -> None:
        if info.era == "modern":
            session.listen()
