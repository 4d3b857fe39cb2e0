"""Streamable HTTP: from a resolved server to the SDK's pair of message streams.

Comes in: a `ResolvedServer` with revealed secrets, and where to note faults. Goes out: the streams that a
`ClientSession` reads and writes. It contacts nobody before the first message, and it never puts the address
or a header into an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pi_mcp.connect.faults import Fault, Faults
from pi_mcp.connect.guard import StreamableGuard, error_of_fault
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.sender import Credentials, Sender, header_problem, owned_by_transport
from pi_mcp.connect.streams import Inbox, MessageStream, wire_form
from pi_mcp.errors import failure

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

    from pi_mcp.config.resolve import ResolvedServer


def sender_for(
    resolved: ResolvedServer, log: LogRing, environ: Mapping[str, str] | None, credentials: Credentials | None
) -> Sender:
    """What sends to this server. Raises `configuration_invalid` before anything is sent."""
    import httpx2

    definition = resolved.definition
    server = definition.name
    headers: dict[str, str] = {}
    for name, secret in resolved.headers.items():
        value = secret.reveal()
        problem = header_problem(name, value)
        if problem:
            raise failure(
                "configuration_invalid", "connect", server, problem, "Correct `headers` and what it refers to."
            )
        if owned_by_transport(name):
            log.add(f"pi-mcp: header {name} is set by the transport; the configured value is not sent")
            continue
        headers[name] = value
    # Without handlers of the host, Python would print the SDK's and the HTTP library's warnings to the terminal.
    for logger in ("mcp", "client", "httpx2", "httpcore2"):
        found = logging.getLogger(logger)
        if not found.handlers:
            found.addHandler(logging.NullHandler())
    try:
        url = httpx2.URL(resolved.url or "")
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError
        return Sender(
            resolved.url or "",
            headers,
            environ=(resolved.environ or os.environ) if environ is None else environ,
            redactor=resolved.redactor,
            connect_timeout=max(0.05, definition.startup_timeout * 0.9),
            credentials=credentials,
        )
    except (httpx2.InvalidURL, ValueError):
        raise failure(
            "configuration_invalid",
            "connect",
            server,
            "`url` is not a usable http or https address.",
            "Correct `url` and the variables in it.",
        ) from None


class Outbox(MessageStream):
    """The SDK's `WriteStream`: messages straight to the guard, a request without waiting for anything."""

    def __init__(self, guard: StreamableGuard, inbox: Inbox, faults: Faults) -> None:
        super().__init__()
        self._guard = guard
        self._inbox = inbox
        self._faults = faults
        self._turn = asyncio.Lock()
        """Held while a notification is taken: what is written after it comes after it."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send one message. Raises anyio.ClosedResourceError once this is closed."""
        await self._turn.acquire()
        telling: asyncio.Task[None] | None = None
        try:
            if self._closed:
                import anyio

                raise anyio.ClosedResourceError
            message: Any = item.message
            request_id, method = getattr(message, "id", None), getattr(message, "method", None)
            headers = getattr(item.metadata, "headers", None)
            try:
                body = wire_form(message)
            except Exception:  # arguments that a program passed and JSON cannot hold
                if request_id is not None and method is not None:
                    self._faults.note(request_id, Fault("unsendable", executed="no"))
                    await self._inbox.put(error_of_fault(request_id, Fault("unsendable")))
                elif request_id is not None:
                    # The server waits for an answer: the dispatcher writes an error in the place of this one.
                    from mcp.shared.exceptions import MCPError

                    raise MCPError(code=-32603, message="Internal error") from None
                return
            if request_id is not None and method is not None:
                self._guard.request(request_id, method, body, headers)
            elif method != "notifications/cancelled" or not self._guard.closes((message.params or {}).get("requestId")):
                telling = self._guard.tell(method, None if method is None else message.params, body, headers)
        finally:
            if telling is None:
                self._turn.release()
            else:
                telling.add_done_callback(lambda _: self._turn.release())


@asynccontextmanager
async def http_transport(
    resolved: ResolvedServer,
    faults: Faults,
    log: LogRing,
    *,
    on_session_id: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
    mark: bool = False,
) -> AsyncGenerator[tuple[Inbox, Outbox]]:
    """The SDK's (read, write) streams for one connection; to be left by the task that entered it.

    `environ` is the configuration's environment: proxies, SSL_CERT_FILE and SSL_CERT_DIR are taken from it.
    `on_session_id` hears the session id that the server issued; `mark`: see `StreamableGuard`.
    Leaving sends a DELETE for the session and takes at most about a second.
    """
    inbox = Inbox(faults)
    guard = StreamableGuard(
        sender_for(resolved, log, environ, credentials),
        faults,
        log,
        inbox.put,
        on_session_id=on_session_id,
        mark=mark,
    )
    outbox = Outbox(guard, inbox, faults)
    try:
        yield inbox, outbox
    finally:
        inbox.end()
        await outbox.aclose()
        try:
            await guard.end_session()
        finally:
            await guard.aclose()
