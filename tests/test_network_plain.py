"""TCP without TLS for the HTTP library: nothing lost, nothing unbounded, and the library's own exceptions."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import httpcore2
import httpx2
import pytest

from pi_mcp.connect.sender import fault_of
from pi_mcp.network.joined import join_writes
from pi_mcp.network.plain import UNREAD, PlainStream, connect
from tests.hostile.http_server import closed_port
from tests.support import run

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[int]:
    """The port of a server that does this on each connection."""
    done: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        done.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await serve(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in done:
            task.cancel()
        await asyncio.gather(*done, return_exceptions=True)
        await asyncio.sleep(0)  # what was closed is let go of in the next turn
        await server.wait_closed()


async def all_of(stream: PlainStream) -> bytes:
    parts = []
    while part := await stream.read(65536, 30):
        parts.append(part)
    return b"".join(parts)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def test_bytes_arrive_in_order_and_no_more_than_asked_for_at_once() -> None:
    async def main() -> None:
        sent = bytes(range(256)) * 40_000

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(sent)
            await writer.drain()

        async with served(serve) as port:
            stream = await connect("127.0.0.1", port, 30)
            first = await stream.read(7, 30)
            assert len(first) <= 7
            assert first + await all_of(stream) == sent
            assert await stream.read(10, 30) == b""
            await stream.aclose()

    run(main())


def test_what_nobody_reads_stays_with_the_server() -> None:
    async def main() -> None:
        taken = 0

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal taken
            writer.transport.set_write_buffer_limits(0)
            for _ in range(400):
                writer.write(b"x" * 65536)
                await writer.drain()
                taken += 1

        async with served(serve) as port:
            stream = await connect("127.0.0.1", port, 30)
            while taken == 0 or not stream._paused:  # noqa: ASYNC110 - the server is in the same loop
                await asyncio.sleep(0.01)
            before = -1
            while before != taken:  # until the server can write no more
                before = taken
                await asyncio.sleep(0.3)
            assert taken < 400
            assert UNREAD < stream._size <= UNREAD + 256 * 1024
            assert len(await all_of(stream)) == 400 * 65536
            await stream.aclose()

    run(main())


def test_what_came_before_the_connection_broke_can_be_read() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"first")
            await reader.readexactly(1)
            reset(writer)

        async with served(serve) as port:
            stream = await connect("127.0.0.1", port, 30)
            while not stream._unread:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await stream.write(b"x", 30)
            while not stream._lost:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert await stream.read(100, 30) == b"first"
            with pytest.raises(httpcore2.ReadError):
                await stream.read(100, 30)
            with pytest.raises(httpcore2.WriteError):
                await stream.write(b"more", 30)
            await stream.aclose()

    run(main())


def test_silence_ends_a_read_and_not_the_connection() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(4))

        async with served(serve) as port:
            stream = await connect("127.0.0.1", port, 30)
            with pytest.raises(httpcore2.ReadTimeout):
                await stream.read(100, 0.05)
            await stream.write(b"here", 30)
            assert await stream.read(100, 30) == b"here"
            await stream.aclose()

    run(main())


def test_a_server_that_takes_nothing_ends_a_write() -> None:
    async def main() -> None:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await over.wait()

        async with served(serve) as port:
            stream = await connect("127.0.0.1", port, 30)
            with pytest.raises(httpcore2.WriteTimeout):
                await stream.write(b"x" * 50_000_000, 0.3)
            await stream.aclose()
            over.set()

    run(main())


def test_closing_ends_whoever_reads() -> None:
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()

        async with served(serve) as port:
            stream = await connect("127.0.0.1", port, 30)
            reading = asyncio.create_task(stream.read(100, 30))
            await asyncio.sleep(0)
            await stream.aclose()
            with pytest.raises(httpcore2.ReadError):
                await reading

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_refused_connection_says_so(host: str) -> None:
    async def main() -> None:
        async with httpx2.AsyncClient(transport=join_writes(httpx2.AsyncHTTPTransport(), plain=True)) as client:
            with pytest.raises(httpx2.ConnectError) as raised:
                await client.post(f"http://{host}:{closed_port()}/")
        assert fault_of(raised.value, sent=False, address="there").kind == "refused"

    run(main())


@pytest.mark.parametrize("noise", [b"", b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"])
def test_an_idle_connection_that_its_server_ended_is_not_used_again(noise: bytes) -> None:
    async def main() -> None:
        connections = 0
        quiet = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await writer.drain()
            if connections == 1:
                await quiet.wait()
                writer.write(noise)

        async with (
            served(serve) as port,
            httpx2.AsyncClient(transport=join_writes(httpx2.AsyncHTTPTransport(), plain=True)) as client,
        ):
            assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
            quiet.set()
            await asyncio.sleep(0.1)
            assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
            assert connections == 2

    run(main())


def test_an_idle_connection_is_used_again() -> None:
    async def main() -> None:
        connections = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

        async with (
            served(serve) as port,
            httpx2.AsyncClient(transport=join_writes(httpx2.AsyncHTTPTransport(), plain=True)) as client,
        ):
            for _ in range(5):
                assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
            assert connections == 1
            pool = client._transport._pool  # type: ignore[attr-defined]
            stream = pool._connections[0]._connection._network_stream._stream
            assert isinstance(stream, PlainStream), "the library still has the place for a stream of ours"
            assert stream.get_extra_info("server_addr")[1] == port

    run(main())
