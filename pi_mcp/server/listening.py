"""The HTTP server under the gateway: a socket, uvicorn, and an end in order.

Comes in: the ASGI application and an address. Goes out: nothing until a signal. Then nothing new is taken, running
requests may end within a bound, and whatever is left is cut off. It knows nothing of the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pi_mcp.errors import failure
from pi_mcp.server.gathered import Gathered
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.server.http import Application

BACKLOG = 512
KEEP_ALIVE = 75
"""Seconds that an idle connection of a client stays open."""
HEAD_TIME = 30.0
"""Seconds in which a request's head has to come, on a new connection or after its first byte."""
WRITE_TIME = 60.0
"""Seconds for which a client may take nothing of what waits for it."""
LAST_BYTES = 2.0
"""Seconds for what is on its way to clients when the time to drain is over."""


async def serve_http(
    application: Application,
    listener: socket.socket,
    *,
    drain: float,
    on_signals: Callable[[Callable[[], None]], None],
    on_ready: Callable[[str], None],
) -> None:
    """Serve on a socket of `listening` until `on_signals` calls what it is given.

    `on_ready` gets the endpoint's address. The socket is closed in the end.
    """
    import uvicorn

    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):  # type: ignore[no-untyped-def]
            yield  # the command has its own

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                listener.listen(BACKLOG)
                on_ready(f"http://{shown}:{port}/mcp")

    config = uvicorn.Config(
        application,
        log_level="critical",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        http="h11",  # httptools, which would be taken where it is installed, bounds no head
        ws="none",
        # How often asyncio tries to accept at a time. Where the process can have no more files each try fails, is
        # reported and comes again after a second: with many the reports are all that it does, megabytes a second.
        backlog=1,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=_whole(drain),
        proxy_headers=False,
    )
    config.load()
    config.http_protocol_class = _impatient(config.http_protocol_class)
    server = Server(config)
    stopping: set[asyncio.Task[None]] = set()

    async def stop() -> None:
        endpoint = application.endpoint
        end = asyncio.get_running_loop().time() + drain
        try:
            endpoint.drain()
            await endpoint.finished(drain)
            await endpoint.cut()
        finally:
            # One time for all: a client that takes nothing of its answer begins no second one.
            config.timeout_graceful_shutdown = _whole(end - asyncio.get_running_loop().time())
            server.should_exit = True

    def signalled() -> None:
        if stopping:
            server.should_exit = server.force_exit = True  # asked twice
        else:
            stopping.add(asyncio.create_task(stop()))

    on_signals(signalled)

    try:
        await server.serve(sockets=[listener])
    finally:
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)
        listener.close()


def _whole(seconds: float) -> int:
    """What uvicorn is told to wait for its connections, of the seconds that are left."""
    return math.ceil(max(seconds, LAST_BYTES))


def _impatient(protocol: Any) -> Any:
    """uvicorn's protocol, which waits for ever for a request to begin, for its head to end, and for its answer to be
    taken, with bounds for that.

    Connections that say nothing, or a byte now and then, would be as many as a process can have files; answers that
    nobody takes would be all of its memory.
    """

    class Impatient(protocol):  # type: ignore[misc]
        late: asyncio.TimerHandle | None = None
        stuck: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(Gathered(transport))
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._patient()
            self._taken()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._look_again()

        def resume_writing(self) -> None:
            self._taken()
            super().resume_writing()

        def _look_again(self) -> None:
            waiting = self.transport.get_write_buffer_size()
            self.stuck = asyncio.get_running_loop().call_later(WRITE_TIME, self._is_stuck, waiting)

        def _is_stuck(self, before: int) -> None:
            if self.transport.get_write_buffer_size() >= before:
                self.transport.abort()
            else:
                self._look_again()

        def _taken(self) -> None:
            if self.stuck is not None:
                self.stuck.cancel()
                self.stuck = None

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._patient()
            elif self.late is None:
                self.late = asyncio.get_running_loop().call_later(HEAD_TIME, self._is_late)

        def _patient(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

        def _is_late(self) -> None:
            self.late = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Impatient


def listening(host: str, port: int) -> socket.socket:
    """The socket to serve on; port 0 is any free one. Whoever connects before that waits.

    Raises ConfigurationError where the address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle off for its connections: else each answer waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{clean_line(host, 100)}:{port} cannot be listened on.",
            "See whether another program has the port, and that the address is one of this machine.",
        ) from None
    return listener
