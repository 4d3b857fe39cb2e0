"""Heads and bodies of requests leave in one write, and no connection is forgotten."""

from __future__ import annotations

import asyncio
import gc
import ssl
from pathlib import Path

import httpx2
import pytest

from pi_mcp.network.joined import LARGEST, join_writes
from tests.hostile.certificate import certificate_in
from tests.hostile.connecting import until
from tests.hostile.http_server import HttpServer
from tests.hostile.processes import open_files
from tests.support import run


async def _pieces(body: bytes) -> tuple[list[bytes], int]:
    """What a server reads of one POST, read by read, and the status that the client got."""
    pieces: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken = 0
        while True:
            piece = await reader.read(1 << 20)
            pieces.append(piece)
            taken += len(piece)
            head, found, _ = b"".join(pieces).partition(b"\r\n\r\n")
            if not piece or (found and taken == len(head) + 4 + len(body)):
                break
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx2.AsyncClient(transport=join_writes(httpx2.AsyncHTTPTransport())) as client:
        answer = await client.post(f"http://127.0.0.1:{port}/", content=body)
    return pieces, answer.status_code


def test_a_small_request_arrives_whole_at_once() -> None:
    pieces, status = run(_pieces(b'{"a": 1}'))
    assert status == 200
    assert len(pieces) == 1
    assert pieces[0].endswith(b'\r\n\r\n{"a": 1}')


def test_a_large_body_follows_its_head_and_loses_nothing() -> None:
    body = b"x" * (LARGEST * 3)
    pieces, status = run(_pieces(body))
    assert status == 200
    assert b"".join(pieces).partition(b"\r\n\r\n")[2] == body


def test_a_request_without_a_body_is_not_held_back() -> None:
    _, status = run(_pieces(b""))
    assert status == 200


def test_the_library_still_has_the_place_where_writes_are_joined() -> None:
    transport = httpx2.AsyncHTTPTransport()
    before = transport._pool._network_backend
    assert join_writes(transport)._pool._network_backend is not before


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("secure", [False, True])
def test_whoever_stops_waiting_leaves_no_connection_behind(host: str, secure: bool, tmp_path: Path) -> None:
    """Cancelled after each turn of the event loop in its turn, and without the garbage collector's help."""

    async def main() -> None:
        cut = answered = 0
        with HttpServer(tls=certificate_in(tmp_path) if secure else None) as server:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            port = server.url.rpartition(":")[2].partition("/")[0]
            url = f"{'https' if secure else 'http'}://{host}:{port}/"

            async def one(turns: int) -> None:
                nonlocal cut, answered
                transport = join_writes(httpx2.AsyncHTTPTransport(verify=context, trust_env=False), plain=not secure)
                async with httpx2.AsyncClient(transport=transport) as client:
                    task = asyncio.create_task(client.get(url))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    task.cancel()
                    try:
                        await task
                        answered += 1
                    except asyncio.CancelledError:
                        cut += 1

            await one(100_000)  # what a first request leaves open for good
            await until(lambda: not server.open)
            before = open_files()
            for turns in range(60):
                await one(turns)
            await until(lambda: not server.open and open_files() <= before, 20)
            assert cut
            assert answered

    gc.collect()
    gc.disable()
    try:
        run(main(), 60)
    finally:
        gc.enable()
