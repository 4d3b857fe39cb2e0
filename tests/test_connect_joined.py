"""Heads and bodies of requests leave in one write."""

from __future__ import annotations

import asyncio

import httpx2

from pi_mcp.connect.joined import LARGEST, join_writes
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
