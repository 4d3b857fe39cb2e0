"""The gateway over standard input and output: one client, one JSON-RPC message a line.

Comes in: lines. Goes out: lines, in order, and nothing else on standard output. The client's first request decides
its era. The end of the input ends everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO

from pi_mcp.access import Grant
from pi_mcp.errors import failure
from pi_mcp.jsontext import json_line
from pi_mcp.plugin import RpcError
from pi_mcp.server import rpc
from pi_mcp.server.clients import ClientSession, Exchange
from pi_mcp.server.gate import Caller
from pi_mcp.server.gateway import Gateway

LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one message."""
LAST_WORDS = 1.0
"""Seconds that running requests may take to end when the input has."""
UNWRITTEN = 8 * 1024 * 1024
"""Bytes that may wait to be written before reading pauses."""


class StdioSession(ClientSession):
    """The one client."""

    def __init__(self, grant: Grant) -> None:
        super().__init__("stdio", grant.owner, id="stdio")
        self.grant = grant
        self.can_be_asked = True
        self.began = False
        """A request other than a probe has come: the era is decided."""


async def serve_stdio(gateway: Gateway, *, grant: Grant | None = None, stop: asyncio.Event | None = None) -> None:
    """Serve until the input ends, or `stop` is set. The gateway is started and closed here."""
    if stat.S_ISREG(os.fstat(1).st_mode):
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            "Standard output is a file, and a gateway over stdio talks to a client that started it with pipes.",
            "Put `| cat` before the redirection, or serve over HTTP with --http.",
        )
    with _own_output() as (incoming, outgoing):
        reader = asyncio.StreamReader(limit=LINE_LIMIT)
        loop = asyncio.get_running_loop()
        read_end = await _fed_by(incoming, reader)
        write_end, output = await loop.connect_write_pipe(lambda: _Output(loop=loop), outgoing)
        write_end.set_write_buffer_limits(UNWRITTEN)
        writer = asyncio.StreamWriter(write_end, output, None, loop)
        line = _Line(gateway, StdioSession(grant or Grant.everything("local")), writer)
        await gateway.start()
        try:
            await line.run(reader, stop or asyncio.Event(), output.gone)
        finally:
            await line.close()
            await gateway.close()
            if read_end is not None:
                read_end.close()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1.0):
                    await writer.drain()
            write_end.close()


async def _fed_by(incoming: BinaryIO, reader: asyncio.StreamReader) -> asyncio.BaseTransport | None:
    """Have the reader get what comes in. A file, or /dev/null, is no pipe to wait for: it is read at once."""
    mode = os.fstat(incoming.fileno()).st_mode
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not incoming.isatty()):
        reader.feed_data(await asyncio.to_thread(incoming.read, LINE_LIMIT))
        reader.feed_eof()
        return None
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), incoming)
    return transport


@contextlib.contextmanager
def _own_output():  # type: ignore[no-untyped-def]
    """The two pipes as files of our own; whatever else writes to standard output writes to standard error."""
    sys.stdout.flush()
    incoming = os.fdopen(os.dup(0), "rb", buffering=0)
    outgoing = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    try:
        yield incoming, outgoing
    finally:
        incoming.close()
        outgoing.close()


class _Output(asyncio.streams.FlowControlMixin):
    """The pipe to the client; `gone` is set when nobody reads it any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.gone = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.gone.set()


class _Line:
    def __init__(self, gateway: Gateway, session: StdioSession, writer: asyncio.StreamWriter) -> None:
        self._gateway = gateway
        self._session = session
        self._writer = writer
        self._tasks: set[asyncio.Task[Any]] = set()
        session.outbox = self._send
        gateway.session_opened(session)

    def _send(self, message: dict[str, Any]) -> None:
        if self._writer.is_closing():
            return
        if "id" not in message and self._writer.transport.get_write_buffer_size() > LINE_LIMIT:
            return  # a client that reads nothing must not fill the memory with news
        self._writer.write(json_line(message) + b"\n")

    async def run(self, reader: asyncio.StreamReader, *ends: asyncio.Event) -> None:
        """Until the input ends, or one of the `ends` is set: whatever is waited for here, they are not passed over."""
        ending = {asyncio.create_task(end.wait()) for end in ends}

        async def done(work: asyncio.Task[Any]) -> bool:
            await asyncio.wait({work, *ending}, return_when=asyncio.FIRST_COMPLETED)
            return work.done()

        try:
            while True:
                reading = asyncio.create_task(reader.readline())
                if not await done(reading):
                    reading.cancel()
                    return
                try:
                    line = reading.result()
                except ValueError:  # longer than any message may be; its rest is read as lines that are none
                    self._send(rpc.error_message(None, RpcError(rpc.INVALID_REQUEST, "The message is too large")))
                    continue
                if not line:
                    return
                opening = self._heard(line) if line.strip() else None
                if opening is not None and not await done(opening):
                    return
                if self._writer.transport.get_write_buffer_size() > UNWRITTEN:
                    draining = asyncio.create_task(self._writer.drain())
                    if not await done(draining):
                        draining.cancel()
                        return
                    draining.result()
        except ConnectionError:
            return
        finally:
            for task in ending:
                task.cancel()

    def _heard(self, line: bytes) -> asyncio.Task[None] | None:
        """Take a message. A task is to be waited for: what the client sends behind it belongs to what it opens."""
        try:
            message = rpc.decoded(line)
        except RpcError as error:
            self._send(rpc.error_message(None, error))
            return None
        kind = rpc.kind_of(message)
        if kind == "request" and message["method"] == "initialize":
            return self._start(self._initialize(message["id"], message.get("params") or {}))
        if kind == "request":
            self._request(message)
        elif kind == "response":
            self._session.answered(message)
        elif kind == "notification":
            params = message.get("params") or {}
            if message["method"] == "notifications/cancelled":
                request_id = params.get("requestId")
                exchange = self._session.exchanges.get(request_id) if isinstance(request_id, int | str) else None
                if exchange is not None and exchange.task is not None:
                    exchange.task.cancel()
            else:
                caller = Caller(self._session.id, self._session.grant, None, "stdio")
                self._start(self._gateway.notification(self._session, caller, message["method"], params))
        else:
            self._send(rpc.error_message(None, RpcError(rpc.INVALID_REQUEST, "This is no JSON-RPC message")))
        return None

    async def _initialize(self, request_id: int | str, params: dict[str, Any]) -> None:
        session = self._session
        session.modern, session.began = False, True
        caller = Caller(session.id, session.grant, request_id, "stdio")
        self._send(await self._gateway.welcome(session, caller, request_id, params))

    def _request(self, message: dict[str, Any]) -> None:
        session, method, request_id = self._session, message["method"], message["id"]
        params = message.get("params") or {}
        try:
            capabilities = self._era(method, params)
        except RpcError as error:
            self._send(rpc.error_message(request_id, error))
            return
        caller = Caller(session.id, session.grant, request_id, "stdio")
        exchange = Exchange(session, caller, method, params, self._send, capabilities=capabilities)
        exchange.task = self._start(self._answer(exchange, request_id))
        session.exchanges[request_id] = exchange
        exchange.task.add_done_callback(lambda _: session.exchanges.pop(request_id, None))

    def _era(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The client's capabilities as this request has them; decides the era with the first one. Raises RpcError."""
        session = self._session
        meta = params.get("_meta")
        enveloped = isinstance(meta, dict) and rpc.META + "protocolVersion" in meta
        if not enveloped:
            if session.modern and session.began:
                raise RpcError(rpc.INVALID_PARAMS, "params._meta is missing the envelope of 2026-07-28")
            session.modern = False
            return session.declared
        if session.began and not session.modern:
            raise RpcError(rpc.INVALID_REQUEST, "This connection is in the handshake era")
        capabilities, info = rpc.envelope_of(params)
        session.modern = True
        session.declared = capabilities
        session.client_info = info
        if method != "server/discover":
            session.began = True
        return capabilities

    async def _answer(self, exchange: Exchange, request_id: int | str) -> None:
        self._send(await self._gateway.answer(exchange, request_id))
        for call in exchange.sent:
            call()

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        for listener in list(self._session.listeners.values()):
            listener("", {})
        if self._tasks:
            # What is nearly done may be said; a client that closed its end may read on.
            await asyncio.wait(set(self._tasks), timeout=LAST_WORDS)
        await self._gateway.end(self._session)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)
