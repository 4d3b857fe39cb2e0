"""Answers put together at random from pieces of HTTP, event streams and JSON-RPC: the connection outlives them all."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.hostile.http_server import HttpServer, Request
from tests.support import run
from tests.test_connect_http import wire

PIECES = [
    b"data: ", b"\n\n", b"\r\n", b"\r", b"id: 7\n", b"retry: 1\n", b"event: message\n",
    b'{"jsonrpc":"2.0",', b'"id":1,',
    b'"id":9,', b'"result":{}}', b'"error":null}', b"\xff\xfe\x00", b"null", b"[", b"]", b"{}", b":", b"\x1b]0;x\x07",
    b'{"method":"ping","id":3}', b'{"method":"notifications/progress","params":{}}', b'"\\ud800"',
]  # fmt: skip
STATUSES = [200, 200, 200, 202, 204, 206, 301, 307, 400, 401, 404, 429, 500, 599, 999]
KINDS = [b"application/json", b"text/event-stream", b"text/html", b"", b"a/b;;", b"\xff"]
HEADERS = [
    b"", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Location: //\r\n", b"Retry-After: x\r\n",
    b"Content-Encoding: gzip\r\n", b"Set-Cookie: a=b; Domain=.com\r\n", b"Mcp-Session-Id: \xe4\r\n",
]  # fmt: skip
MESSAGES: list[Any] = [
    None, 1, [], {}, {"id": 1}, {"id": [], "result": {}}, {"id": None, "error": {}}, {"id": {"a": 1}, "error": {}},
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_answer_hangs_a_call_or_ends_the_connection(seed: int) -> None:
    dice = random.Random(seed)

    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        body = b"".join(dice.choice(PIECES) for _ in range(dice.randint(0, 12)))
        head = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\n%s\r\n" % (
            dice.choice(STATUSES),
            dice.choice(KINDS),
            dice.choice(HEADERS),
        )
        return dice.choice(
            [{"raw": head + body}, {"raw": body}, {"events": [body]}, {"message": dice.choice(MESSAGES)}, {}]
        )

    async def main() -> None:
        keys = ("tools/call", "GET", "DELETE", "notifications/initialized")
        with HttpServer(dict.fromkeys(keys, react), session=True) as server:
            for _ in range(5):
                async with wire(server.url) as link:
                    calls = [link.start("tools/call", {"name": "echo"}) for _ in range(40)]
                    _, pending = await asyncio.wait(calls, timeout=25)
                    assert not pending
                    del server.script["tools/call"]
                    assert "echo" in await link.text()
                    server.script["tools/call"] = react

    run(main(), 60)
