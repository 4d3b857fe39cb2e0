"""What one turn of the event loop writes goes out in one write."""

from __future__ import annotations

import asyncio
from asyncio import selector_events
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pi_mcp.server.gathered import Gathered
from tests.gateway_support import gateway_of
from tests.hostile.script import entry
from tests.support import run


class Recorded(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.done: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("closed")

    def abort(self) -> None:
        self.done.append("aborted")

    def get_write_buffer_size(self) -> int:
        return 100


def test_writes_of_one_turn_are_one_write_and_nothing_waits_longer() -> None:
    async def work() -> None:
        inner = Recorded()
        gathered = Gathered(inner)
        for piece in (b"head", b"", b"body"):
            gathered.write(piece)
        assert inner.done == []
        assert gathered.get_write_buffer_size() == 108
        await asyncio.sleep(0)
        assert inner.done == [b"headbody"]
        gathered.write(b"next")
        await asyncio.sleep(0)
        assert inner.done == [b"headbody", b"next"]

    run(work())


def test_what_was_written_goes_out_before_the_end_and_nothing_after_an_abort_is_late() -> None:
    async def work() -> None:
        inner = Recorded()
        gathered = Gathered(inner)
        gathered.write(b"last")
        gathered.close()
        await asyncio.sleep(0)
        assert inner.done == [b"last", "closed"]
        gathered.abort()
        assert inner.done[-1] == "aborted"

    run(work())


def test_an_answer_of_the_gateway_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = selector_events._SelectorSocketTransport.write  # type: ignore[attr-defined]

    def recorded(self: Any, data: bytes) -> None:
        written.append(bytes(data))
        write(self, data)

    monkeypatch.setattr(selector_events._SelectorSocketTransport, "write", recorded)  # type: ignore[attr-defined]

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running:
            parts = urlsplit(running.url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(f"GET /healthz HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
                await asyncio.wait_for(reader.readuntil(b"ok\n"), 10)
            finally:
                writer.close()

    run(work())
    (answer,) = (one for one in written if one.startswith(b"HTTP/1.1 200 OK\r\n"))
    assert answer.endswith(b"\r\n\r\nok\n")
