"""Streamable HTTP: the ASGI application of the gateway, for both eras at once.

Comes in: HTTP requests. Goes out: JSON where an answer is all there is to say, else an event stream whose keep-alives
are comments and whose every event is a JSON-RPC message (B196). It knows sessions, bodies and headers, and nothing of
upstreams. No header of a client goes anywhere from here but to the layer that authenticates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from pi_mcp.access import Grant
from pi_mcp.jsontext import json_line
from pi_mcp.plugin import RpcError
from pi_mcp.server import rpc
from pi_mcp.server.clients import ClientSession, Exchange, displaced
from pi_mcp.server.doors import Doors
from pi_mcp.server.gate import Caller, Denial
from pi_mcp.server.gateway import Gateway
from pi_mcp.server.replies import (
    BODY_TIME,
    COMMENT,
    ASGIApp,
    Body,
    Receive,
    Rejected,
    Scope,
    Send,
    accepted,
    begin,
    cancel_when_gone,
    disconnected,
    event_of,
    only,
    part,
    reply,
    reply_error,
)
from pi_mcp.server.streams import HttpSession, Stream
from pi_mcp.text import clean_line

Statuses = Callable[[Grant, Denial], tuple[int, list[tuple[bytes, bytes]]] | None]
"""A caller and the gate's no → HTTP status and headers; None for the ordinary ones."""

PATHS = ("/mcp", "/mcp/oauth")
"""The endpoint, and its alias."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of one request's body."""
SESSION_TIMEOUT = 1800.0
"""Seconds without a request or an open stream after which a session ends."""
MAX_SESSIONS = 10_000
CUT_OFF = "The gateway is shutting down. Whether the call took effect is unknown."
SESSION_ENDED = "The session has ended. Whether the call took effect is unknown."
PING = 15.0
"""Seconds of silence after which a stream gets a comment, so that no proxy takes it for dead."""
STATUS = {
    rpc.PARSE_ERROR: 400,
    rpc.INVALID_REQUEST: 400,
    rpc.INVALID_PARAMS: 400,
    rpc.HEADER_MISMATCH: 400,
    -32021: 400,
    rpc.UNSUPPORTED_VERSION: 400,
    rpc.METHOD_NOT_FOUND: 404,
}
"""HTTP status of an error of 2026-07-28; 200 for any other code."""

_LOG = logging.getLogger("pi_mcp.server")


def app(
    gateway: Gateway,
    *,
    authenticate: Callable[[ASGIApp], ASGIApp] | None = None,
    statuses: Statuses | None = None,
    routes: Sequence[Any] = (),
    public_url: str | None = None,
    allowed_hosts: Iterable[str] = (),
    trusted_proxies: Sequence[str] = (),
    bound: str = "",
    stateless: bool = False,
    json_response: bool = False,
    max_body: int = MAX_BODY,
    session_timeout: float = SESSION_TIMEOUT,
    max_sessions: int = MAX_SESSIONS,
) -> Application:
    """The ASGI application: `/mcp` and its alias, `/healthz`, and further Starlette `routes`.

    `authenticate` wraps the endpoint: it answers 401, 403 or 429 itself, or puts a `Grant` into
    `scope["state"]["grant"]`. Without it every caller has every right. `routes` are behind the same Host and Origin
    checks and authenticate for themselves. `statuses`: which denials are told by the HTTP status, too, if nothing was
    sent before. `json_response`: never a stream in answer to a POST.
    """
    endpoint = Endpoint(
        gateway,
        statuses=statuses,
        stateless=stateless,
        json_response=json_response,
        max_body=max_body,
        session_timeout=session_timeout,
        max_sessions=max_sessions,
    )
    doors = Doors(public_url=public_url, allowed_hosts=allowed_hosts, bound=bound)
    return Application(endpoint, doors, authenticate(endpoint) if authenticate else endpoint, routes, trusted_proxies)


class Application:
    """What a server of ASGI is given. `endpoint` is the MCP endpoint alone."""

    def __init__(
        self,
        endpoint: Endpoint,
        doors: Doors,
        guarded: ASGIApp,
        routes: Sequence[Any],
        trusted_proxies: Sequence[str] = (),
    ) -> None:
        """`trusted_proxies`: addresses and networks whose X-Forwarded-For says who calls."""
        from starlette.applications import Starlette

        self.endpoint = endpoint
        self._doors = doors
        self._guarded = guarded
        self._others = Starlette(routes=list(routes), lifespan=self._lifespan)
        self._entrance: Any = self._enter
        if trusted_proxies:
            from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

            self._entrance = ProxyHeadersMiddleware(cast("Any", self._enter), trusted_hosts=list(trusted_proxies))

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        await self.endpoint.gateway.start()
        sweeper = asyncio.create_task(self.endpoint.sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)
            await self.endpoint.close()
            await self.endpoint.gateway.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._entrance(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._others(scope, receive, send)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].rstrip("/") or "/"
        if path == "/healthz":
            ready = not self.endpoint.gateway.draining
            await reply(send, 200 if ready else 503, b"ok\n" if ready else b"draining\n", b"text/plain")
            return
        headers = scope["headers"]
        if only(headers, b"content-length") is not None and only(headers, b"transfer-encoding") is not None:
            # Two lengths of one body: a proxy that took the other would take the rest for the next caller's request.
            close = [(b"connection", b"close")]
            await reply(send, 400, b"Content-Length and Transfer-Encoding exclude each other\n", b"text/plain", close)
            return
        body = Body(receive)
        receive, send = body.receive, body.answered_by(send)
        host, origin = only(headers, b"host"), only(headers, b"origin")
        if not self._doors.host(host):
            _LOG.warning("refused Host %s; --allowed-host or --public-url lets it in", clean_line(host or "", 200))
            await reply(send, 421, b"This host is not served here\n", b"text/plain")
            return
        if not self._doors.origin(origin):
            _LOG.warning("refused Origin %s", clean_line(origin or "", 200))
            await reply(send, 403, b"This origin is not admitted\n", b"text/plain")
            return
        if path in PATHS:
            await self._guarded(scope, receive, send)
        else:
            await self._others(scope, receive, send)


class Endpoint:
    """The MCP endpoint as an ASGI application."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        statuses: Statuses | None,
        stateless: bool,
        json_response: bool,
        max_body: int,
        session_timeout: float,
        max_sessions: int,
    ) -> None:
        self.gateway = gateway
        self._statuses = statuses
        self._stateless = stateless
        self._json = json_response
        self._max_body = max_body
        self._session_timeout = session_timeout
        self._max_sessions = max_sessions
        self._sessions: dict[str, HttpSession] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._cut = False

    @property
    def running(self) -> int:
        """Requests under way."""
        return len(self._running)

    @property
    def sessions(self) -> int:
        return len(self._sessions)

    # life

    async def sweep(self) -> None:
        """End sessions that nobody uses any more."""
        while True:
            await asyncio.sleep(min(30.0, self._session_timeout / 4))
            now = asyncio.get_running_loop().time()
            for id, session in list(self._sessions.items()):
                if now - session.last_seen > self._session_timeout and not session.busy:
                    del self._sessions[id]
                    self.gateway.later(self.gateway.end(session))

    async def finished(self, limit: float) -> None:
        """Wait until no request is under way and no call waits for its client, `limit` seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while self._running or not self.gateway.rounds.none.is_set():
                    await self.gateway.rounds.none.wait()
                    if self._running:
                        await asyncio.wait(set(self._running))

    async def cut(self) -> None:
        """End the requests that are still under way. Their clients are told, and their audit rows closed."""
        self._cut = True
        await self.gateway.rounds.close()
        for task in self._running:
            task.cancel()
        await self.finished(2.0)

    def drain(self) -> None:
        """Take nothing new; requests under way may end, streams of news end now."""
        self.gateway.draining = True
        for session in self._sessions.values():
            if session.stream is not None:
                session.shut(session.stream, lost=False)
        self.gateway.end_listening()

    async def close(self) -> None:
        self.drain()
        sessions, self._sessions = list(self._sessions.values()), {}
        await asyncio.gather(*(self.gateway.end(session) for session in sessions))
        await self.cut()

    # requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        state = scope.get("state")
        grant = state.get("grant") if isinstance(state, dict) else None
        if not isinstance(grant, Grant):
            grant = Grant.everything("local")
        method = scope["method"]
        try:
            # A running call may wait for its client's answer, which is let in to the end.
            waited_for = headers.get("mcp-session-id") in self._sessions or not self.gateway.rounds.none.is_set()
            if self.gateway.draining and not (method == "POST" and waited_for):
                await reply(send, 503, b"Shutting down\n", b"text/plain", [(b"retry-after", b"5")])
            elif method == "POST":
                await self._post(scope, receive, send, headers, grant)
            elif method == "GET":
                await self._get(receive, send, headers, grant)
            elif method == "DELETE":
                await self._delete(send, headers, grant)
            else:
                await reply(send, 405, b"", None, [(b"allow", b"GET, POST, DELETE")])
        except Rejected as rejected:
            await reply_error(send, rejected.status, rejected.error, rejected.request_id)

    async def _post(self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str], grant: Grant) -> None:
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Rejected(415, rpc.INVALID_REQUEST, "Content-Type has to be application/json")
        takes_json, takes_stream = accepted(headers.get("accept"))
        if not (takes_json or takes_stream):
            raise Rejected(406, rpc.INVALID_REQUEST, "Accept has to name application/json and text/event-stream")
        body = await self._body(receive, headers)
        try:
            message = rpc.decoded(body)
        except RpcError as error:
            raise Rejected(400, error.code, error.message) from None
        kind = rpc.kind_of(message)
        if not kind:
            raise Rejected(400, rpc.INVALID_REQUEST, "The body has to be one JSON-RPC message")
        version = headers.get("mcp-protocol-version")
        params = message.get("params") or {}
        if self.gateway.draining and kind == "request" and not self.gateway.rounds.knows(params.get("requestState")):
            raise Rejected(503, rpc.UNREACHABLE, "The gateway is shutting down", message["id"])
        meta = params.get("_meta")
        enveloped = isinstance(meta, dict) and rpc.META + "protocolVersion" in meta
        modern = version is not None and version not in rpc.HANDSHAKE_VERSIONS
        if not modern and enveloped and "mcp-session-id" not in headers and message.get("method") != "initialize":
            modern = True
        stream = takes_stream and not self._json
        if modern:
            await self._modern(scope, receive, send, headers, grant, message, kind, stream=stream)
            return
        session = self._session_for(message, kind, headers, grant)
        if kind != "request":
            await reply(send, 202, b"", None)
            if kind == "response":
                session.answered(message)
            elif message["method"] == "notifications/cancelled":
                self._cancel(session, params)
            else:
                caller = Caller(session.id, grant, None, "http")
                await self.gateway.notification(session, caller, message["method"], params)
            return
        await self._legacy(receive, send, session, message, grant, stream=stream)

    def _session_for(
        self, message: Mapping[str, Any], kind: str, headers: Mapping[str, str], grant: Grant
    ) -> ClientSession:
        """The session that a message of the handshake era belongs to. Raises Rejected."""
        if self._stateless:
            return self.gateway.visitor(grant.owner, {}, None, modern=False)
        id = headers.get("mcp-session-id")
        if kind == "request" and message["method"] == "initialize" and (id is None or id not in self._sessions):
            if len(self._sessions) >= self._max_sessions:
                self._make_room(grant.owner)
            session = HttpSession(secrets.token_hex(16), grant.owner)
            self.gateway.session_opened(session)
            session.last_seen = asyncio.get_running_loop().time()
            return session
        return self._known(headers, grant)

    def _make_room(self, owner: str) -> None:
        """End a session of a credential that has more of them than this one. Raises Rejected where none has."""
        goes = displaced(self._sessions.values(), owner)
        if goes.owner == owner:
            raise Rejected(503, rpc.INTERNAL_ERROR, "Too many sessions")
        del self._sessions[str(goes.id)]
        self.gateway.later(self.gateway.end(goes))

    def _known(self, headers: Mapping[str, str], grant: Grant) -> HttpSession:
        id = headers.get("mcp-session-id")
        if id is None:
            raise Rejected(400, rpc.INVALID_REQUEST, "Mcp-Session-Id is missing")
        session = self._sessions.get(id)
        # To another credential it is as if the session were not there.
        if session is None or session.owner != grant.owner:
            raise Rejected(404, rpc.INVALID_REQUEST, "Session not found")
        session.last_seen = asyncio.get_running_loop().time()
        return session

    async def _legacy(
        self,
        receive: Receive,
        send: Send,
        session: ClientSession,
        message: dict[str, Any],
        grant: Grant,
        *,
        stream: bool,
    ) -> None:
        request_id, params = message["id"], message.get("params") or {}
        extra: list[tuple[bytes, bytes]] = []
        if session.id is not None:
            extra.append((b"mcp-session-id", session.id.encode()))
        out = Stream()
        caller = Caller(session.id, grant, request_id, "http")
        exchange = Exchange(
            session, caller, message["method"], params, out.put, capabilities=session.capabilities(), streams=stream
        )
        if request_id in session.exchanges and session.id is not None:
            raise Rejected(400, rpc.INVALID_REQUEST, "This request id is in use", request_id)
        if message["method"] == "initialize":
            work = self._initialize(session, caller, request_id, params, extra)
        else:
            work = self.gateway.answer(exchange, request_id)
        task = self._start(work, out)
        exchange.task = task
        if session.id is not None:
            session.exchanges[request_id] = exchange
            task.add_done_callback(lambda _: session.exchanges.pop(request_id, None))
        else:
            session.visited_by(task)

        def lost(_: asyncio.Task[None]) -> None:
            exchange.streams = False  # the call goes on; what is to be asked or told goes the session's own way

        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lost)
        try:
            await self._respond(send, task, out, extra, exchange, stream=stream)
        except asyncio.CancelledError:
            task.cancel()  # its credential has ended, or the gateway does: a client that only went away cancels nothing
            raise
        finally:
            gone.cancel()
        session.last_seen = asyncio.get_running_loop().time()
        for call in exchange.sent:
            call()

    async def _initialize(
        self,
        session: ClientSession,
        caller: Caller,
        request_id: int | str,
        params: dict[str, Any],
        headers: list[tuple[bytes, bytes]],
    ) -> dict[str, Any]:
        """The answer; `headers` name the session, which is none where the answer is an error."""
        answer = await self.gateway.welcome(session, caller, request_id, params)
        if isinstance(session, HttpSession):
            if "result" in answer:
                self._sessions[str(session.id)] = session
            elif str(session.id) not in self._sessions:
                headers.clear()
                self.gateway.later(self.gateway.end(session))
        return answer

    async def _modern(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: dict[str, str],
        grant: Grant,
        message: dict[str, Any],
        kind: str,
        *,
        stream: bool,
    ) -> None:
        from mcp.shared.inbound import (
            InboundLadderRejection,
            classify_inbound_request,
            find_duplicated_routing_header,
            unsupported_protocol_version_rejection,
        )

        if kind == "notification":
            # A request is cancelled by closing its stream; nothing else that a client could notify is defined.
            unsupported = unsupported_protocol_version_rejection(headers.get("mcp-protocol-version", ""))
            if unsupported is not None:
                raise Rejected(400, unsupported.code, unsupported.message, None, unsupported.data)
            await reply(send, 202, b"", None)
            return
        if kind != "request":
            raise Rejected(400, rpc.INVALID_REQUEST, "The body has to be one JSON-RPC request or notification")
        request_id = message["id"]
        raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        twice = find_duplicated_routing_header(raw)
        if twice is not None:
            raise Rejected(400, rpc.HEADER_MISMATCH, f"{twice} header appears more than once", request_id)
        route = classify_inbound_request(message, headers=headers)
        if isinstance(route, InboundLadderRejection):
            raise Rejected(STATUS.get(route.code, 400), route.code, route.message, request_id, route.data)
        listens = message["method"] == "subscriptions/listen"
        if listens and not accepted(headers.get("accept"))[1]:
            raise Rejected(406, rpc.INVALID_REQUEST, "Accept has to name text/event-stream", request_id)
        capabilities = route.client_capabilities if isinstance(route.client_capabilities, dict) else {}
        try:
            session = self.gateway.visitor(grant.owner, capabilities, route.client_info, modern=True)
        except RpcError as error:
            raise Rejected(400, error.code, error.message, request_id) from None
        out = Stream()
        caller = Caller(None, grant, request_id, "http")
        exchange = Exchange(
            session,
            caller,
            message["method"],
            message["params"],
            out.put,
            capabilities=capabilities,
            headers=headers,
            streams=stream or listens,
        )
        task = self._start(self.gateway.answer(exchange, request_id), out)
        session.visited_by(task)
        watcher = asyncio.create_task(cancel_when_gone(receive, task))
        try:
            await self._respond(send, task, out, [], exchange, stream=stream or listens)
        finally:
            watcher.cancel()
            if not task.done():
                task.cancel()
        session.last_seen = asyncio.get_running_loop().time()
        for call in exchange.sent:
            call()

    def _start(self, work: Any, out: Stream) -> asyncio.Task[dict[str, Any]]:
        task: asyncio.Task[dict[str, Any]] = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: out.news.set())
        return task

    @staticmethod
    def _cancel(session: ClientSession, params: Mapping[str, Any]) -> None:
        request_id = params.get("requestId")
        exchange = session.exchanges.get(request_id) if isinstance(request_id, int | str) else None
        if exchange is not None and exchange.task is not None and exchange.method != "initialize":
            exchange.task.cancel()

    async def _respond(
        self,
        send: Send,
        task: asyncio.Task[dict[str, Any]],
        out: Stream,
        extra: list[tuple[bytes, bytes]],
        exchange: Exchange,
        *,
        stream: bool,
    ) -> None:
        """The answer as JSON where nothing came before it, else as an event stream."""
        begun = False
        while True:
            if not task.done() and not (stream and out.messages):
                try:
                    async with asyncio.timeout(PING if stream else None):
                        await out.news.wait()
                except TimeoutError:
                    begun = await begin(send, extra, begun=begun)
                    await part(send, COMMENT)
                    continue
                out.news.clear()
            if stream:
                while out.messages:
                    begun = await begin(send, extra, begun=begun)
                    await part(send, event_of(out.take()))
            if task.done():
                break
        if task.cancelled():
            error = RpcError(rpc.REQUEST_CANCELLED, "Request cancelled")
            if self._cut or exchange.session.closed:
                error = RpcError(rpc.UNREACHABLE, CUT_OFF if self._cut else SESSION_ENDED)
            answer = rpc.error_message(exchange.caller.request_id, error)
        else:
            answer = task.result()
        if begun:
            await part(send, event_of(json_line(answer)), more=False)
            return
        status = STATUS.get(answer["error"]["code"], 200) if exchange.modern and "error" in answer else 200
        if self._statuses is not None and exchange.denial is not None:
            told = self._statuses(exchange.caller.grant, exchange.denial)
            if told is not None:
                status, extra = told[0], [*extra, *told[1]]
        await reply(send, status, json_line(answer), b"application/json", extra)

    # a session's own stream, and its end

    async def _get(self, receive: Receive, send: Send, headers: Mapping[str, str], grant: Grant) -> None:
        version = headers.get("mcp-protocol-version")
        if self._stateless or (version is not None and version not in rpc.HANDSHAKE_VERSIONS):
            await reply(send, 405, b"", None, [(b"allow", b"POST")])
            return
        if not accepted(headers.get("accept"))[1]:
            raise Rejected(406, rpc.INVALID_REQUEST, "Accept has to name text/event-stream")
        session = self._known(headers, grant)
        if session.stream is not None:
            raise Rejected(409, rpc.INVALID_REQUEST, "The session has a stream already")
        stream = session.open()
        gone = asyncio.create_task(disconnected(receive))
        gone.add_done_callback(lambda _: session.shut(stream))
        try:
            await begin(send, [(b"mcp-session-id", (session.id or "").encode())], begun=False)
            while not stream.ended:
                try:
                    async with asyncio.timeout(PING):
                        await stream.news.wait()
                except TimeoutError:
                    await part(send, COMMENT)
                stream.news.clear()
                while stream.messages and not gone.done():
                    await part(send, event_of(stream.take()))
            await part(send, b"", more=False)
        finally:
            gone.cancel()
            session.shut(stream)
            session.last_seen = asyncio.get_running_loop().time()

    async def _delete(self, send: Send, headers: Mapping[str, str], grant: Grant) -> None:
        if self._stateless:
            await reply(send, 405, b"", None, [(b"allow", b"POST")])
            return
        session = self._known(headers, grant)
        self._sessions.pop(session.id or "", None)
        await self.gateway.end(session)
        await reply(send, 200, b"", None)

    async def _body(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """The whole body. Raises Rejected beyond its bounds of size and time."""
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > 12 or int(length) > self._max_body):
            raise Rejected(413, rpc.INVALID_REQUEST, "The body is too large")
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_TIME):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Rejected(400, rpc.INVALID_REQUEST, "The body is not whole")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > self._max_body:
                        raise Rejected(413, rpc.INVALID_REQUEST, "The body is too large")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts)
        except TimeoutError:
            raise Rejected(408, rpc.INVALID_REQUEST, "The body did not come in time") from None
