"""Speak the protocol over a transport's streams: negotiation, requests, server requests, notifications.

Comes in: the SDK's stream pair and a `Peer` that answers the server. Goes out: `ServerInfo` and raw result objects
as the server sent them. It starts no process, opens no socket, repeats nothing, and validates no result: the SDK's
models would lose what they do not know, so only its dispatcher is used, not its client session.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pi_mcp._version import __version__
from pi_mcp.connect.faults import Fault, Faults
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.paced import Asked, PacedReading, PacedWriting
from pi_mcp.text import clean_line, clean_metadata, redact

Era = Literal["modern", "legacy"]
Plan = Literal["auto", "modern", "legacy"]
OnProgress = Callable[[float, float | None, str | None], None]

PROBE_WAIT = 3.0
"""Seconds that `server/discover` is waited for before `initialize` is sent behind it (DESIGN §5)."""
MAX_INPUT_ROUNDS = 10
"""Rounds of one call that asks for input (2026-07-28)."""
_HEADER_MAPS = 256
"""Schemas whose `x-mcp-header` properties are remembered; a walk over each at every call would cost more."""
INSTRUCTIONS_LIMIT = 2048
"""Bytes of UTF-8 kept of a server's instructions."""

CONNECTION_CLOSED = -32000
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNSUPPORTED_VERSION = -32022

_META = "io.modelcontextprotocol/"
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.-]{0,30}")
_LOG = logging.getLogger("pi_mcp")

# Faults after which `initialize` would fare no better: asking again would only repeat a refused login or wait
# for a dead host twice. Any other status may be how an older server, its gateway or its crash answers an unknown
# method (B112): 400, 404, 405, 406, 500 are common, 403 and 502 come from gateways.
_FINAL_STATUS = frozenset({401, 402, 407, 429})
_FINAL_KINDS = frozenset({"refused", "dns", "tls", "unreachable", "proxy", "connect_timeout", "redirect"})


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the handshake told. Texts are cleaned; instructions hold at most 2 KiB of UTF-8."""

    protocol_version: str
    era: Era
    name: str = ""
    version: str = ""
    title: str | None = None
    instructions: str | None = None
    has_tools: bool | None = None
    """Whether tools are declared; None where the capabilities are empty, which says nothing (B110)."""
    list_changed: bool = False


class RequestFailed(Exception):
    """A request got an error. `closed`: the connection has ended. `fault`: what the transport knows."""

    def __init__(self, code: int, message: str, data: Any, fault: Fault | None, *, closed: bool) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.data = data
        self.fault = fault
        self.closed = closed


class NotUnderstood(Exception):
    """The handshake's answer cannot be used; `reason` is a sentence of ours."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Peer(Protocol):
    """The side that answers a server's own requests and hears its notifications."""

    def capabilities(self) -> dict[str, Any]:
        """The client capabilities to declare."""

    async def answer(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result for a server's request; None where the method is not offered."""

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification other than progress came. Must not raise or block."""


class _Noise(logging.Handler):
    """Sends what the SDK warns of to our debug log, without tracebacks: a terminal program has no stderr to fill.

    Below a warning they log whole messages. Where `pi_mcp.log` has a handler of its own, this one is silent.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logging.WARNING)
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if not any(getattr(handler, "_pi_mcp", False) for handler in self._logger.handlers):
            _pass_on(record)


def _pass_on(record: logging.LogRecord) -> None:
    with contextlib.suppress(Exception):
        _LOG.debug("%s: %s", record.name, redact(clean_line(record.getMessage(), 500)))


class _OnlyOthers(logging.Filter):
    """The SDK logs under the bare name `client`, too; the host may have a logger of that name."""

    def filter(self, record: logging.LogRecord) -> bool:
        if "/mcp/" not in record.pathname.replace("\\", "/"):
            return True
        if record.levelno >= logging.WARNING:
            _pass_on(record)
        return False


_quiet = False


def quiet_sdk() -> None:
    """Route the warnings of the SDK's loggers into `pi_mcp` at debug level; at most once per process."""
    global _quiet
    if _quiet:
        return
    _quiet = True
    if not _LOG.handlers:
        _LOG.addHandler(logging.NullHandler())
    for name in ("mcp", "httpx2", "httpcore2"):
        logger = logging.getLogger(name)
        logger.addHandler(_Noise(logger))
        logger.propagate = False
    logging.getLogger("client").addFilter(_OnlyOthers())


def _import_sdk() -> None:
    import mcp.shared.jsonrpc_dispatcher
    import mcp.shared.message  # noqa: F401


async def load_sdk() -> None:
    """Import the SDK in a worker thread: 0.8 s that the event loop does not wait for. At most once."""
    quiet_sdk()
    # A module being imported is in sys.modules already, so the flag is its last public name.
    module = sys.modules.get("mcp.shared.jsonrpc_dispatcher")
    if module is not None and hasattr(module, "JSONRPCDispatcher"):
        return
    await asyncio.to_thread(_import_sdk)


class _Started:
    """The part of anyio's TaskStatus that the dispatcher uses."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def started(self, value: object = None) -> None:
        del value
        self.event.set()


@dataclass(slots=True)
class _Envelope:
    """What each request carries: nothing yet, the version header, or the 2026 envelope."""

    version: str | None = None
    modern: bool = False
    capabilities: dict[str, Any] = field(default_factory=dict)


class ProtocolSession:
    """One negotiated conversation. Use as an async context manager, in one task."""

    def __init__(self, read: Any, write: Any, *, faults: Faults, log: LogRing, peer: Peer) -> None:
        self._asked = Asked()
        self._read = PacedReading(read, self._asked)
        self._write = PacedWriting(write, self._asked)
        self._faults = faults
        self._log = log
        self._peer = peer
        self._ids = itertools.count(1)
        self._envelope = _Envelope()
        self._header_maps: dict[int, tuple[Mapping[str, Any], Any]] = {}
        """By the identity of an input schema, kept here so that it is not reused: its `x-mcp-header` properties."""
        self._dispatcher: Any = None
        self._pump: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """Set when the transport's read stream has ended: no answer will come any more."""

    async def __aenter__(self) -> ProtocolSession:
        from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher

        self._dispatcher = JSONRPCDispatcher(self._read, self._write, on_stream_exception=self._on_stream_exception)
        started = _Started()
        self._pump = asyncio.create_task(
            self._dispatcher.run(self._counted, self._on_notify, self._intercept, task_status=started)
        )
        self._pump.add_done_callback(self._pump_done)
        waiter = asyncio.create_task(started.event.wait())
        try:
            await asyncio.wait({waiter, self._pump}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiter.cancel()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for task in (self._listener, self._pump):
            if task is not None:
                task.cancel()
                await asyncio.wait({task}, timeout=2.0)

    def _pump_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # The exception is looked at here and nowhere else; the transport has noted what it means.
            _LOG.debug("dispatcher ended: %s", type(error).__name__)
        self.ended.set()

    # negotiation

    async def handshake(self, plan: Plan) -> ServerInfo:
        """Negotiate. Raises RequestFailed, or NotUnderstood; the caller bounds the time.

        `auto` sends `server/discover` first. When no answer came within PROBE_WAIT, `initialize` is sent behind
        it, and what the server makes of that one counts; the late answer to the probe is used only where
        `initialize` is refused. `modern` waits for the probe as long as the caller does.
        """
        if plan == "legacy":
            return await self._initialize()
        probe = asyncio.create_task(self._discover())
        try:
            await asyncio.wait({probe}, timeout=None if plan == "modern" else PROBE_WAIT)
            if probe.done():
                info = self._probed(probe)
                return info if info is not None else await self._initialize()
            try:
                return await self._initialize()
            except RequestFailed as error:
                if error.closed or not (probe.done() or error.code == UNSUPPORTED_VERSION):
                    raise
                await asyncio.wait({probe})
                info = self._probed(probe)
                if info is None:
                    raise
                return info
        finally:
            probe.cancel()
            await asyncio.gather(probe, return_exceptions=True)

    def _probed(self, probe: asyncio.Task[ServerInfo | None]) -> ServerInfo | None:
        try:
            return probe.result()
        except RequestFailed as error:
            fault = error.fault
            if error.closed or (fault and (fault.kind in _FINAL_KINDS or fault.status in _FINAL_STATUS)):
                raise
            return None

    async def _discover(self) -> ServerInfo | None:
        """The modern handshake; None where the server answers it without speaking a version of ours."""
        from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

        envelope = _Envelope(LATEST_MODERN_VERSION, True, self._peer.capabilities())
        try:
            result = await self._send("server/discover", {}, envelope, cancellable=False)
        except RequestFailed as error:
            # It speaks the modern protocol, since it names what it would take: ask once more in that (SEP-2575).
            named = error.data.get("supported") if isinstance(error.data, dict) else None
            known = [v for v in MODERN_PROTOCOL_VERSIONS if isinstance(named, list) and v in named]
            if error.code != UNSUPPORTED_VERSION or not known:
                raise
            envelope = _Envelope(known[-1], True, envelope.capabilities)
            result = await self._send("server/discover", {}, envelope, cancellable=False)
        supported = result.get("supportedVersions")
        mutual = [v for v in MODERN_PROTOCOL_VERSIONS if isinstance(supported, list) and v in supported]
        if not mutual:
            return None
        self._envelope = _Envelope(mutual[-1], True, envelope.capabilities)
        meta = result.get("_meta")
        identity = meta.get(_META + "serverInfo") if isinstance(meta, dict) else None
        return _info(result, identity or result.get("serverInfo"), mutual[-1], "modern")

    async def _initialize(self) -> ServerInfo:
        from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

        params = {
            "protocolVersion": LATEST_HANDSHAKE_VERSION,
            "capabilities": self._peer.capabilities(),
            "clientInfo": self._client_info(),
        }
        result = await self._send("initialize", params, _Envelope(), cancellable=False)
        version = result.get("protocolVersion")
        if version not in HANDSHAKE_PROTOCOL_VERSIONS:
            said = f" ({redact(version)})" if isinstance(version, str) and _VERSION.fullmatch(version) else ""
            raise NotUnderstood(f"The server answered the handshake with an unknown protocol version{said}.")
        self._envelope = _Envelope(version)
        await self.notify("notifications/initialized")
        return _info(result, result.get("serverInfo"), version, "legacy")

    # requests

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send one request once and wait for its result object. Raises RequestFailed.

        Cancelling the waiting task sends `notifications/cancelled`. There is no time limit here.
        """
        return await self._send(method, params, self._envelope, on_progress=on_progress, headers=headers)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        schema: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
        answer: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any] | None]],
    ) -> dict[str, Any]:
        """`tools/call`, with the rounds of an `input_required` result; the final result object.

        `schema` is the tool's input schema: on 2026 HTTP its `x-mcp-header` properties are repeated as headers.
        """
        params: dict[str, Any] = {"name": name, "arguments": dict(arguments)}
        headers = self._parameter_headers(schema, arguments)
        delay = 0.05
        for _ in range(MAX_INPUT_ROUNDS + 1):
            result = await self.request("tools/call", params, on_progress=on_progress, headers=headers)
            if result.get("resultType") != "input_required" or not self._envelope.modern:
                return result
            params = {"name": name, "arguments": dict(arguments)}
            asked = result.get("inputRequests")
            if isinstance(asked, dict) and asked:
                params["inputResponses"] = await self._input_responses(asked, answer)
            else:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 0.25)
            if isinstance(result.get("requestState"), str):
                params["requestState"] = result["requestState"]
        raise NotUnderstood(f"The server asked for input more than {MAX_INPUT_ROUNDS} times during one call.")

    async def _input_responses(
        self,
        asked: Mapping[str, Any],
        answer: Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any] | None]],
    ) -> dict[str, Any]:
        responses: dict[str, Any] = {}
        for key, request in asked.items():
            method = request.get("method") if isinstance(request, dict) else None
            params = request.get("params") if isinstance(request, dict) else None
            found = None
            if isinstance(method, str):
                found = await answer(method, params if isinstance(params, dict) else {})
            if found is None:
                raise NotUnderstood("The server asked during the call for something that is not offered to it.")
            responses[key] = found
        return responses

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification; dropped when the connection has ended."""
        version = self._envelope.version
        options = {"headers": {"mcp-protocol-version": version}} if version else {}
        await self._dispatcher.notify(method, params, options)

    def _parameter_headers(
        self, schema: Mapping[str, Any] | None, arguments: Mapping[str, Any]
    ) -> dict[str, str] | None:
        if not self._envelope.modern or not schema:
            return None
        from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map

        try:
            if id(schema) not in self._header_maps:
                if len(self._header_maps) >= _HEADER_MAPS:
                    self._header_maps.clear()
                found = None if find_invalid_x_mcp_header(schema) is not None else x_mcp_header_map(schema)
                self._header_maps[id(schema)] = schema, found
            named = self._header_maps[id(schema)][1]
            return mcp_param_headers(named, arguments) if named else None
        except (TypeError, ValueError, RecursionError):
            return None

    def can_call(self, tool: Mapping[str, Any]) -> bool:
        """Whether a listed tool's `x-mcp-header` annotations can be followed, where they have to be (2026-07-28)."""
        schema = tool.get("inputSchema")
        if not self._envelope.modern or not isinstance(schema, dict):
            return True
        from mcp.shared.inbound import find_invalid_x_mcp_header

        try:
            return find_invalid_x_mcp_header(schema) is None
        except (TypeError, ValueError, AttributeError, RecursionError):
            # No schema that anybody could use, and no reason to believe that it names a header.
            return True

    async def _send(
        self,
        method: str,
        params: Mapping[str, Any],
        envelope: _Envelope,
        *,
        on_progress: OnProgress | None = None,
        headers: Mapping[str, str] | None = None,
        cancellable: bool = True,
        request_id: int | str | None = None,
    ) -> dict[str, Any]:
        from mcp.shared.exceptions import MCPError

        request_id = next(self._ids) if request_id is None else request_id
        sent = dict(params)
        options: dict[str, Any] = {"request_id": request_id, "cancel_on_abandon": cancellable}
        if envelope.version is not None:
            options["headers"] = {"mcp-protocol-version": envelope.version}
        if envelope.modern:
            from mcp.shared.inbound import NAME_BEARING_METHODS, encode_header_value

            sent["_meta"] = {
                **(sent.get("_meta") or {}),
                _META + "protocolVersion": envelope.version,
                _META + "clientInfo": self._client_info(),
                _META + "clientCapabilities": envelope.capabilities,
            }
            options["headers"]["mcp-method"] = method
            key = NAME_BEARING_METHODS.get(method)
            if key is not None and isinstance(params.get(key), str):
                options["headers"]["mcp-name"] = encode_header_value(params[key])
            options["headers"].update(headers or {})
        if on_progress is not None:

            async def progressed(progress: float, total: float | None, message: str | None) -> None:
                on_progress(progress, total, message)

            options["on_progress"] = progressed
        try:
            result: dict[str, Any] = await self._dispatcher.send_raw_request(method, sent, options)
        except MCPError as error:
            fault = self._faults.take(request_id)
            closed = False
            if fault is None and error.code == CONNECTION_CLOSED and error.message == "Connection closed":
                # A server can send the same words; the end of the read stream is what tells.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await self.ended.wait()
                closed = self.ended.is_set()
            raise RequestFailed(error.code, error.message, error.data, fault, closed=closed) from None
        except (OSError, RuntimeError, TimeoutError):
            # The transport's own failure, or a dispatcher that ended before it ran.
            raise RequestFailed(CONNECTION_CLOSED, "", None, self._faults.take(request_id), closed=True) from None
        return result

    def _client_info(self) -> dict[str, Any]:
        return {"name": "pi-mcp", "version": __version__}

    # what the server sends by itself

    async def _counted(self, context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        with self._asked.one():
            return await self._on_request(context, method, params)

    async def _on_request(self, context: Any, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        from mcp.shared.exceptions import MCPError

        del context
        if method == "ping":
            return {}
        try:
            result = await self._peer.answer(method, params or {})
        except Exception:  # an answer of ours must not become an error text on the wire
            raise MCPError(code=-32603, message="Internal error") from None
        if result is None:
            raise MCPError(code=METHOD_NOT_FOUND, message="Method not found")
        return result

    async def _on_notify(self, context: Any, method: str, params: Mapping[str, Any] | None) -> None:
        """Everything is heard in receive order by `_intercept`."""

    def _intercept(self, method: str, params: Mapping[str, Any] | None) -> bool:
        if method == "notifications/message":
            level = clean_line(str((params or {}).get("level", "info")), 20)
            self._log.add(f"{level}: {str((params or {}).get('data', ''))[:4000]}")
        elif method not in ("notifications/progress", "notifications/cancelled"):
            self._peer.notified(method, params or {})
        return True

    async def _on_stream_exception(self, error: Exception) -> None:
        self._log.noise += 1
        _LOG.debug("stream: %s", type(error).__name__)

    # change notifications of the modern era

    def listen(self) -> None:
        """Ask a 2026 server to report changed tools. Losing the subscription costs freshness only."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        for attempt in range(1, 6):
            with contextlib.suppress(RequestFailed):
                await self._send(
                    "subscriptions/listen",
                    {"notifications": {"toolsListChanged": True}},
                    self._envelope,
                    request_id=f"listen-{attempt}",
                )
            if self.ended.is_set():
                return
            await asyncio.sleep(min(2.0**attempt, 30.0))
            # Whatever changed while nobody listened is unknown, so the catalog counts as stale.
            self._peer.notified("notifications/tools/list_changed", {})


def _info(result: Mapping[str, Any], identity: Any, version: str, era: Era) -> ServerInfo:
    capabilities = result.get("capabilities")
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    tools = capabilities.get("tools")
    identity = identity if isinstance(identity, dict) else {}
    instructions = result.get("instructions")
    text = clean_metadata(instructions).strip() if isinstance(instructions, str) else ""
    return ServerInfo(
        protocol_version=version,
        era=era,
        name=_text(identity.get("name")),
        version=_text(identity.get("version"), 60),
        title=_text(identity.get("title")) or None,
        instructions=text.encode()[:INSTRUCTIONS_LIMIT].decode("utf-8", "ignore") or None,
        has_tools="tools" in capabilities if capabilities else None,
        list_changed=isinstance(tools, dict) and tools.get("listChanged") is True,
    )


def _text(value: Any, limit: int = 100) -> str:
    return clean_line(value, limit) if isinstance(value, str) else ""
