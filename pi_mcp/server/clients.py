"""The gateway's clients: one session of each, and one request of it under way.

Comes in: what a transport heard of a client. Goes out: messages for it, in order. A session keeps what must never
reach another: its capabilities, its loaded tools, its open questions, who owns which resource. It does no I/O itself:
a transport gives it a place to put messages.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.plugin import Forwarding, RpcError, Upstream
from pi_mcp.server import rpc

if TYPE_CHECKING:
    from pi_mcp.server.gate import Caller, Denial
    from pi_mcp.server.loading import Loading

Send = Callable[[dict[str, Any]], None]

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of log messages, the least severe first."""

ANSWER_LIMIT = 600.0
"""Seconds that a client may take for a server's question: as long as any call may last."""
MOST_QUESTIONS = 256
"""Questions that may wait for one client, or within one call that does: a server may not ask without end."""
_OWNERS = 8192
"""Resource addresses whose server is remembered for one session."""


class Exchange:
    """One request of a client, from its coming to its answer.

    `send` puts a message on the request's own stream, beside the answer; without waiting, in order. `headers` are
    those of HTTP, with lower-case names.
    """

    __slots__ = (
        "caller", "capabilities", "denial", "headers", "method", "modern", "params", "send", "sent", "session",
        "streams", "task",
    )  # fmt: skip

    def __init__(
        self,
        session: ClientSession,
        caller: Caller,
        method: str,
        params: dict[str, Any],
        send: Send,
        *,
        capabilities: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        streams: bool = True,
    ) -> None:
        """`streams` False: there is room for the answer alone, and `send` goes nowhere."""
        self.session = session
        self.caller = caller
        self.method = method
        self.params = params
        self.send = send
        self.capabilities = capabilities
        self.headers = headers
        self.streams = streams
        self.modern = session.modern
        self.sent: list[Callable[[], None]] = []
        """To be called when the answer has been handed to the transport."""
        self.task: asyncio.Task[Any] | None = None
        self.denial: Denial | None = None
        """The gate's no that its answer is."""

    @property
    def progress_token(self) -> int | str | None:
        meta = self.params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        return token if isinstance(token, int | str) and not isinstance(token, bool) else None

    @property
    def log_level(self) -> str | None:
        """What the client wants to hear while this is under way: 2026-07-28 says it with each request."""
        if not self.modern:
            return self.session.log_level
        meta = self.params.get("_meta")
        level = meta.get(rpc.META + "logLevel") if isinstance(meta, dict) else None
        return level if level in LEVELS else None

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        if not self.streams:
            return
        if self.modern and method == "notifications/message" and not self._wants((params or {}).get("level")):
            return
        self.send(rpc.notification(method, params))

    def _wants(self, level: object) -> bool:
        """Whether a message of that level is to be sent to a client of 2026-07-28."""
        wanted = self.log_level
        return wanted is not None and (level not in LEVELS or LEVELS.index(str(level)) >= LEVELS.index(wanted))

    def forwarding(
        self,
        notify: Callable[[str, dict[str, Any]], None] | None = None,
        ask: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]] | None = None,
    ) -> Forwarding:
        """This request towards an upstream, whose messages and questions go to the client on this request's stream
        where no other way is named.
        """
        return Forwarding(
            notify=notify or self.notify,
            ask=ask or self._ask,
            progress_token=self.progress_token,
            capabilities=self.capabilities,
            hears_log=self.modern and self.log_level is not None,
        )

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return await self.session.ask(method, params, self.send if self.streams else None)


class ClientSession:
    """One client. `key` names its private upstreams; `owner` the credential that it belongs to."""

    def __init__(self, key: str, owner: str, *, id: str | None = None, modern: bool = False) -> None:
        self.key = key
        self.owner = owner
        self.id = id
        self.modern = modern
        self.declared: dict[str, Any] = {}
        self.client_info: dict[str, Any] | None = None
        self.can_be_asked = False
        """There is a way for the client to answer a question: a session of the handshake era."""
        self.outbox: Send | None = None
        """Where messages go that belong to no request; None while there is no such stream."""
        self.exchanges: dict[int | str, Exchange] = {}
        """Its requests under way, by id; of sessions only, since ids of other clients say nothing."""
        self.log_level: str | None = None
        self.used: dict[str, Upstream] = {}
        """The upstreams that it has used, by server."""
        self.announced: set[str] = set()
        """Servers of which it was told that their prompts and resources are in its lists now."""
        self.listeners: dict[object, Callable[[str, dict[str, Any]], None]] = {}
        """Open subscriptions of the modern era."""
        self.subscribed: dict[str, str] = {}
        """Resource → server, as subscribed in the handshake era."""
        self.pages: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        """What a list that is being read page by page consists of."""
        self.owners: OrderedDict[str, str] = OrderedDict()
        """Resource → the server that named it first."""
        self.tasks: OrderedDict[str, str] = OrderedDict()
        """Task → server."""
        self.loadings: dict[str, Loading] = {}
        """What it has loaded, for each set of servers and rights that it came with."""
        self.on_change: Callable[[ClientSession, Upstream, str], None] | None = None
        self.last_seen = 0.0
        self.visits: set[asyncio.Task[Any]] = set()
        """Requests under way of clients without a session, whose ids say nothing."""
        self.closed = False
        self._ids = itertools.count(1)
        self._questions: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tokens: dict[int, tuple[Upstream, int | str]] = {}

    @property
    def busy(self) -> bool:
        """Something of it is under way, or it listens."""
        return bool(self.visits or self.exchanges or self.listeners) or self.outbox is not None

    def visited_by(self, task: asyncio.Task[Any]) -> None:
        """Know of a request of a client without a session while it is under way."""
        self.visits.add(task)
        task.add_done_callback(self.visits.discard)

    # as the client behind a raw channel

    def capabilities(self) -> dict[str, Any]:
        return self.declared if self.can_be_asked or self.modern else _without_back_channel(self.declared)

    def info(self) -> Mapping[str, Any] | None:
        return self.client_info

    async def asked(
        self, upstream: Upstream, request: Forwarding | None, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        """Put an upstream's own request to the client. Raises RpcError."""
        if request is not None:
            return await request.asked(method, self._with_token(upstream, params))
        return await self.ask(method, self._with_token(upstream, params), None)

    def _with_token(self, upstream: Upstream, params: dict[str, Any]) -> dict[str, Any]:
        """The client's progress comes back under a token of ours: several upstreams may choose the same."""
        meta = params.get("_meta")
        if not isinstance(meta, dict) or not rpc.is_id(meta.get("progressToken")):
            return params
        token = next(self._ids)
        self._tokens[token] = upstream, meta["progressToken"]
        while len(self._tokens) > 64:
            self._tokens.pop(next(iter(self._tokens)))
        return {**params, "_meta": {**meta, "progressToken": token}}

    def notified(self, upstream: Upstream, request: Forwarding | None, method: str, params: dict[str, Any]) -> None:
        """A notification of an upstream that this client has for itself."""
        if self.heard_change(upstream, method, params):
            return
        if request is not None:
            request.notify(method, params)
        elif not (self.modern and method == "notifications/message"):  # which it wants with a request, or not
            self.tell(method, params)

    def heard_change(self, upstream: Upstream, method: str, params: dict[str, Any]) -> bool:
        """List changes and resource updates: they concern whoever uses the upstream, and no single request."""
        if method == "notifications/resources/updated":
            uri = params.get("uri")
            if isinstance(uri, str):
                if self.subscribed.get(uri) == upstream.name:
                    self.tell(method, params)
                for listener in list(self.listeners.values()):
                    listener(method, params)
            return True
        if method.endswith("/list_changed"):
            if self.on_change is not None:
                self.on_change(self, upstream, method)
            return True
        return False

    # towards the client

    def tell(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """A notification that belongs to no request: on the session's own stream, else on that of a request."""
        if self.outbox is not None:
            self.outbox(rpc.notification(method, params))
        elif (exchange := self.streaming()) is not None and not self.modern:
            exchange.notify(method, params)

    def streaming(self) -> Exchange | None:
        """A request under way on whose stream something can be sent; the newest."""
        return next((one for one in reversed(self.exchanges.values()) if one.streams), None)

    def changed(self, kind: str) -> None:
        """The list of `tools`, `prompts` or `resources` has changed."""
        method = f"notifications/{kind}/list_changed"
        if not self.modern:
            self.tell(method)
        for listener in list(self.listeners.values()):
            listener(method, {})

    async def ask(self, method: str, params: dict[str, Any], send: Send | None) -> dict[str, Any]:
        """Put a request to the client and wait for its result. Raises RpcError."""
        if send is None:
            if self.outbox is not None:
                send = self.outbox
            elif (exchange := self.streaming()) is not None:
                send = exchange.send
        if send is None or self.modern or not self.can_be_asked or self.closed:
            raise RpcError(rpc.INVALID_REQUEST, "The client cannot be asked now")
        if len(self._questions) >= MOST_QUESTIONS:
            raise RpcError(rpc.INVALID_REQUEST, "Too many questions wait for an answer")
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "method": method}
        if params:
            message["params"] = params
        try:
            send(message)
            async with asyncio.timeout(ANSWER_LIMIT):
                return await answer
        except TimeoutError:
            send(rpc.notification("notifications/cancelled", {"requestId": number}))
            raise RpcError(rpc.TIMED_OUT, "The client did not answer in time") from None
        except asyncio.CancelledError:
            send(rpc.notification("notifications/cancelled", {"requestId": number}))
            raise
        finally:
            self._questions.pop(number, None)

    def answered(self, message: Mapping[str, Any]) -> None:
        """A client's response to a question; one that nobody waits for is dropped."""
        number = message.get("id")
        if isinstance(number, str) and number.isdecimal() and len(number) < 16:
            number = int(number)
        answer = self._questions.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        result, error = message.get("result"), message.get("error")
        if not isinstance(error, dict):
            answer.set_result(dict(result) if isinstance(result, dict) else {})
            return
        code, text = error.get("code"), error.get("message")
        answer.set_exception(
            RpcError(
                code if isinstance(code, int) and not isinstance(code, bool) else rpc.INTERNAL_ERROR,
                text if isinstance(text, str) else "",
                error.get("data"),
            )
        )

    async def progressed(self, params: Mapping[str, Any]) -> None:
        """The client's progress with a question, for the upstream that asked."""
        token = params.get("progressToken")
        found = self._tokens.get(token) if isinstance(token, int) and not isinstance(token, bool) else None
        if found is not None:
            upstream, original = found
            await upstream.notify("notifications/progress", {**params, "progressToken": original})

    # what is remembered

    def own(self, uri: object, server: str) -> None:
        """Remember who named a resource; the first one stays."""
        if isinstance(uri, str) and len(uri) <= 2048 and uri not in self.owners:
            self.owners[uri] = server
            while len(self.owners) > _OWNERS:
                self.owners.popitem(last=False)

    def own_task(self, task_id: object, server: str) -> None:
        if isinstance(task_id, str) and len(task_id) <= 512:
            self.tasks[task_id] = server
            while len(self.tasks) > _OWNERS:
                self.tasks.popitem(last=False)

    def close(self) -> list[asyncio.Task[Any]]:
        """Nothing more is sent; the tasks of its requests, which the caller cancels and waits for."""
        self.closed = True
        self.outbox = None
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(RpcError(rpc.UNREACHABLE, "The client has gone"))
                answer.exception()
        return [*self.visits, *(one.task for one in self.exchanges.values() if one.task is not None)]


def displaced(sessions: Iterable[ClientSession], owner: str) -> ClientSession:
    """Which of the sessions has to go for a new one of `owner`, where there are no more than all of these.

    It is one of whoever has most, of `owner` itself where nobody has more: many sessions of one credential are no
    trouble for another. The one that has been quiet longest goes.
    """
    all = list(sessions)
    counts = Counter(one.owner for one in all)
    (heaviest, most), *_ = counts.most_common(1)
    if counts[owner] >= most:
        heaviest = owner
    return min((one for one in all if one.owner == heaviest), key=lambda one: (one.busy, one.last_seen))


def _without_back_channel(declared: Mapping[str, Any]) -> dict[str, Any]:
    """What a client that cannot be asked may still declare."""
    return {name: value for name, value in declared.items() if name not in ("roots", "sampling", "elicitation")}
