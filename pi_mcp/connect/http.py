"""Streamable HTTP: from a resolved server to the SDK's pair of message streams.

Comes in: a `ResolvedServer` with revealed secrets, and where to note faults. Goes out: the streams that a
`ClientSession` reads and writes. It contacts nobody before the first message, and it never puts the address
or a header into an error.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pi_mcp.connect.faults import Faults
from pi_mcp.connect.guard import PLACEHOLDER, StreamableGuard, client_for
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.messages import LARGEST_MESSAGE
from pi_mcp.connect.sender import Credentials, Sender, header_problem, owned_by_transport
from pi_mcp.errors import failure

if TYPE_CHECKING:
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


@asynccontextmanager
async def http_transport(
    resolved: ResolvedServer,
    faults: Faults,
    log: LogRing,
    *,
    on_session_id: Callable[[str], None] | None = None,
    environ: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> AsyncGenerator[tuple[Any, Any]]:
    """The SDK's (read, write) streams for one connection; to be left by the task that entered it.

    `environ` is the configuration's environment: proxies, SSL_CERT_FILE and SSL_CERT_DIR are taken from it.
    `on_session_id` hears the session id that the server issued. Leaving sends a DELETE for the session and
    takes at most about a second.
    """
    sender = sender_for(resolved, log, environ, credentials)
    from mcp.client.streamable_http import streamable_http_client

    guard = StreamableGuard(sender, faults, log, on_session_id=on_session_id)
    async with (
        client_for(guard) as client,
        # The guard measures events; the SDK's own limit only has to stay above.
        streamable_http_client(PLACEHOLDER, http_client=client, max_sse_event_size=LARGEST_MESSAGE * 2) as (
            read,
            write,
        ),
    ):
        yield read, write
