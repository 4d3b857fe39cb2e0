"""A request's head and body in one write to the network.

Comes in: an HTTP transport of httpx2. Goes out: the same one, whose connections hold a POST's head back until the
body follows, which it does at once. Two small writes cost a system call more, and where a server's kernel delays
acknowledgements they can cost 40 ms. It changes no byte and no order. Where no TLS will be spoken, the connections are
those of `plain`. A connection whose TLS does not come about is closed, also where the library would forget it: when
whoever waits for it is cancelled.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pi_mcp.network.plain import PlainStream, connect

if TYPE_CHECKING:
    import httpx2

LARGEST = 64 * 1024
"""Bytes up to which a body is put behind the held head; a larger one would be copied for nothing."""


def join_writes(transport: httpx2.AsyncHTTPTransport, *, plain: bool = False) -> httpx2.AsyncHTTPTransport:
    """Let the connections that `transport` opens from now on write heads and bodies together.

    `plain`: none of them will speak TLS. The library offers no setting for either. Where its inside is another one,
    everything stays as it was.
    """
    import httpcore2

    pool: Any = getattr(transport, "_pool", None)
    inner: Any = getattr(pool, "_network_backend", None)
    if not isinstance(inner, httpcore2.AsyncNetworkBackend):
        return transport

    class Stream(httpcore2.AsyncNetworkStream):
        def __init__(self, stream: httpcore2.AsyncNetworkStream | PlainStream) -> None:
            self._stream = stream
            self._held = b""

        async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            if self._held:
                await self._flush(timeout)
            return await self._stream.read(max_bytes, timeout)

        async def write(self, buffer: bytes, timeout: float | None = None) -> None:
            if not self._held and buffer.startswith(b"POST ") and buffer.endswith(b"\r\n\r\n"):
                self._held = buffer
                return
            if len(buffer) > LARGEST:
                await self._flush(timeout)
            elif self._held:
                buffer, self._held = self._held + buffer, b""
            await self._stream.write(buffer, timeout)

        async def _flush(self, timeout: float | None) -> None:
            if self._held:
                buffer, self._held = self._held, b""
                await self._stream.write(buffer, timeout)

        async def aclose(self) -> None:
            await self._stream.aclose()

        async def start_tls(
            self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
        ) -> httpcore2.AsyncNetworkStream:
            if isinstance(self._stream, PlainStream):
                raise NotImplementedError  # nobody asks for it where there is to be none
            try:
                return Stream(await self._stream.start_tls(ssl_context, server_hostname, timeout))
            except BaseException:
                await self._stream.aclose()
                raise

        def get_extra_info(self, info: str) -> Any:
            return self._stream.get_extra_info(info)

    class Backend(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self, host: str, port: int, timeout: float | None = None, *args: Any, **more: Any
        ) -> httpcore2.AsyncNetworkStream:
            if plain and not any((*args, *more.values())):
                began = time.monotonic()
                try:
                    return Stream(await connect(host, port, timeout))
                except TimeoutError:
                    raise httpcore2.ConnectTimeout from None
                except OSError as error:
                    if error.errno is not None:
                        raise httpcore2.ConnectError from error
                    # Of several addresses that fail in different ways only a text is left. The library says how each
                    # did, when it has failed as well.
                    timeout = None if timeout is None else max(0.05, timeout - (time.monotonic() - began))
            return Stream(await inner.connect_tcp(host, port, timeout, *args, **more))

        async def connect_unix_socket(self, *args: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
            return Stream(await inner.connect_unix_socket(*args, **more))

        async def sleep(self, seconds: float) -> None:
            await inner.sleep(seconds)

    pool._network_backend = Backend()
    return transport
