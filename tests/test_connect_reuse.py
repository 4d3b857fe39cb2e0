"""Over HTTP the next request has the connection of the one before, also where answers are event streams."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.gateway_support import Client, gateway_of
from tests.hostile.connecting import text_of
from tests.hostile.script import tool
from tests.support import run


class Streaming:
    """An MCP server that answers every request by a stream in chunks, whose end comes a moment after the answer."""

    def __init__(self, *, ends: bool = True) -> None:
        self.ends = ends
        self.calls: dict[int, int] = {}
        """Number of the connection → calls on it."""

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.calls)
        self.calls[number] = 0
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
                body = await reader.readexactly(int(fields.get("content-length", "0")))
                message = json.loads(body) if body else {}
                if "id" not in message:
                    status = "202 Accepted" if body else "405 Method Not Allowed"
                    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
                    continue
                self.calls[number] += message["method"] == "tools/call"
                answer = {"jsonrpc": "2.0", "id": message["id"], **self._answer(message)}
                event = f"event: message\ndata: {json.dumps(answer)}\n\n".encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                    + f"{len(event):x}\r\n".encode() + event + b"\r\n"
                )  # fmt: skip
                await writer.drain()
                await asyncio.sleep(0.01 if self.ends else 3600)
                writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    def _answer(message: dict[str, Any]) -> dict[str, Any]:
        results: dict[str, dict[str, Any]] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "s", "version": "1"},
            },
            "tools/list": {"tools": [tool("echo")]},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }
        if message["method"] not in results:
            return {"error": {"code": -32601, "message": "Method not found"}}
        return {"result": results[message["method"]]}


def calls_by_connection(server: Streaming, folder: Path, count: int) -> list[int]:
    async def work() -> None:
        listening = await asyncio.start_server(server.connection, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        try:
            async with gateway_of({"s": {"url": url}}, folder, expose="all") as running, Client(running.url) as client:
                for _ in range(count):
                    assert text_of(await client.call("s__echo")) == "hello"
                    await asyncio.sleep(0.05)
        finally:
            listening.close()

    run(work(), tidy=False)
    return sorted(filter(None, server.calls.values()))


def test_calls_one_after_the_other_share_a_connection(tmp_path: Path) -> None:
    assert max(calls_by_connection(Streaming(), tmp_path, 10)) >= 8


def test_a_stream_that_goes_on_after_its_answer_delays_nothing(tmp_path: Path) -> None:
    assert calls_by_connection(Streaming(ends=False), tmp_path, 3) == [1, 1, 1]
