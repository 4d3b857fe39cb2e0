"""Two gateways on one store at full load, killed without a warning: no reply that was sent lacks its row."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pi_mcp.access import AuditFilter, AuditRow, Key, Scopes
from pi_mcp.access import secrets as minted
from pi_mcp.store import open_store
from tests.auth_support import until
from tests.gateway_support import META, VERSION, http_process
from tests.hostile.script import entry, tool
from tests.plugin_support import spoken
from tests.support import run

ROUNDS = 3
SECONDS = float(os.environ.get("PI_MCP_KILL_SECONDS", "5"))
"""Of load before each kill; a minute and more on request."""
CLIENTS = 8
"""Connections to each gateway."""


def request(key: str, id: int, name: str) -> bytes:
    """A whole HTTP request of 2026-07-28."""
    params = {
        "name": name,
        "arguments": {"id": f"call-{id}"},
        "_meta": {
            META + "protocolVersion": VERSION,
            META + "clientInfo": {"name": "t", "version": "1"},
            META + "clientCapabilities": {},
        },
    }
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}).encode()
    head = (
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {VERSION}\r\nMcp-Method: tools/call\r\n"
        f"Mcp-Name: {name}\r\nX-API-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def load(port: int, key: str, ids: Any, answered: dict[int, str], refused: list[Any]) -> None:
    """Calls one after the other until the gateway is gone; every whole answer is noted."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                id = next(ids)
                name = "s__turn" if id % 3 else "s__look"
                writer.write(request(key, id, name))
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                answer = json.loads(await reader.readexactly(length))
                if "result" in answer:
                    answered[id] = name
                else:
                    refused.append(answer)
        finally:
            writer.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_kill_9_at_full_load_no_reply_lacks_its_row(tmp_path: Path) -> None:
    store, file = tmp_path / "gw.db", tmp_path / "mcp.json"
    options = ("--store", str(store), "--expose", "all", "--json-response")
    server = entry(
        tmp_path,
        {**spoken([tool("look", annotations={"readOnlyHint": True}), tool("turn")]), "record": os.devnull},
    )
    file.write_text(json.dumps({"mcpServers": {"s": server}}))
    answered: dict[int, str] = {}
    refused: list[Any] = []
    ids = itertools.count(1)

    async def rows() -> dict[int, AuditRow]:
        opened = await open_store(store)
        try:
            found = await opened.audit(AuditFilter(limit=None))
            return {int(row.affected[0].partition("-")[2]): row for row in found if row.affected}
        finally:
            await opened.close()

    async def main() -> None:
        made = minted.mint("key")
        opened = await open_store(store)
        await opened.add_key(Key(made.id, made.digest, "ann", Scopes.parse("tools:read tools:write"), time.time()))
        await opened.close()
        for round in range(ROUNDS):
            before = len(answered)
            async with (
                http_process(file, *options) as (one, url_one, _),
                http_process(file, *options) as (two, url_two, _),
            ):
                work = [
                    asyncio.create_task(load(urlsplit(url).port, made.text, ids, answered, refused))
                    for url in (url_one, url_two)
                    for _ in range(CLIENTS)
                ]
                enough = before + 4 * CLIENTS  # upstreams have to start first
                await until(lambda enough=enough: len(answered) >= enough, 100)
                await asyncio.sleep(SECONDS)
                for process in (one, two):
                    process.send_signal(signal.SIGKILL)
                await asyncio.gather(*work)
            assert len(answered) > before + 4 * CLIENTS, (round, len(answered) - before, refused[:2])
            kept = await rows()
            writes = [id for id, name in answered.items() if name == "s__turn"]
            assert not [id for id in writes if id not in kept], "answered, and no row"
            assert {kept[id].outcome for id in writes} == {"ok"}
            opened = await open_store(store)
            unknown = await opened.count_audit(AuditFilter(outcome="unknown"))
            total = await opened.count_audit(AuditFilter())
            await opened.close()
            assert unknown <= 2 * CLIENTS * (round + 1), "no more than were under way"
            assert total >= len(writes)
            print(f"round {round}: {len(answered) - before} answers, {total} rows, {unknown} unknown")
        assert refused == []

    run(main(), ROUNDS * (SECONDS + 120))
