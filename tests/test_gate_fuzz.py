"""Whatever a caller with a right key sends is never a fault of ours, and never calls what is not granted."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pi_mcp.access import AuditFilter
from tests.access_support import shared_gateway
from tests.gateway_support import ACCEPT, META, VERSION, Client, Failed
from tests.hostile.script import entry, record_of, tool
from tests.plugin_support import spoken
from tests.support import run

METHODS = (
    "initialize", "ping", "tools/list", "tools/call", "prompts/get", "prompts/list", "resources/read",
    "resources/subscribe", "completion/complete", "logging/setLevel", "server/discover", "tasks/get", "tasks/list",
    "tasks/cancel", "subscriptions/listen", "vendor/x", "", "\ud800", "notifications/cancelled",
)  # fmt: skip
WORDS: tuple[Any, ...] = (
    "mcp_search", "mcp_call", "s__turn", "s__look", "nobody__x", "ui://x", "file:///s", "", "\x00", "\ud800",
    "x" * 5000,
    None, True, -1, 1e308, 2**70, [], {}, [[]], {"name": "s__turn", "arguments": {}}, {"query": "turn"},
    {"type": "ref/prompt", "name": "s__p"}, {"type": "ref/resource", "uri": "ui://x"}, "p1", "p99999999",
)  # fmt: skip
MEMBERS = ("name", "arguments", "uri", "ref", "argument", "cursor", "taskId", "level", "notifications", "_meta", "id")
META_OF_ERA = {
    META + "protocolVersion": VERSION,
    META + "clientInfo": {"name": "t", "version": "1"},
    META + "clientCapabilities": {},
}


def message(chance: random.Random) -> Any:
    kind = chance.random()
    if kind < 0.05:
        return chance.choice(WORDS)
    params: Any = {chance.choice(MEMBERS): chance.choice(WORDS) for _ in range(chance.randrange(4))}
    if chance.random() < 0.5:
        params["name"] = chance.choice(WORDS)
    if chance.random() < 0.6:
        params["_meta"] = META_OF_ERA
    made = {"jsonrpc": "2.0", "id": chance.choice((1, "a", 2**60)), "method": chance.choice(METHODS), "params": params}
    if kind < 0.15:
        made.pop(chance.choice(list(made)))
    if kind > 0.95:
        made[chance.choice(list(made))] = chance.choice(WORDS)
    return made


@pytest.mark.slow
def test_nothing_that_is_sent_is_a_fault_of_ours(tmp_path: Path) -> None:
    async def work() -> None:
        chance = random.Random(9)
        server = entry(tmp_path, spoken([tool("look", annotations={"readOnlyHint": True}), tool("turn")]))
        async with shared_gateway({"s": server}, tmp_path, expose="all") as shared:
            key = await shared.headers("x-api-key", "tools:read")
            async with (
                Client(shared.url, **key) as session,
                httpx2.AsyncClient(trust_env=False, verify=False, timeout=5) as http,
            ):
                for number in range(300):
                    body = json.dumps(message(chance)).encode()
                    if number % 10 == 0:
                        cut = chance.randrange(len(body) + 1)
                        body = body[:cut] + bytes([chance.randrange(256)]) + body[cut:]
                    headers = {**ACCEPT, **key}
                    if chance.random() < 0.5:
                        headers["mcp-session-id"] = session.session or ""
                        headers["mcp-protocol-version"] = "2025-11-25"
                    elif chance.random() < 0.8:
                        headers["mcp-protocol-version"] = VERSION
                        headers["mcp-method"] = chance.choice(("tools/call", "tools/list", "x"))
                    try:
                        async with http.stream("POST", shared.url, headers=headers, content=body) as answer:
                            assert answer.status_code < 500, (answer.status_code, body)
                            if answer.headers.get("content-type", "").startswith("application/json"):
                                said = await answer.aread()
                                assert b"Traceback" not in said
                                assert b"Internal error" not in said, (body, said)
                    except httpx2.ReadTimeout:
                        assert b"listen" in body, body  # a stream of news goes on
        called = {line["params"]["name"] for line in record_of(server) if line.get("method") == "tools/call"}
        assert called <= {"look"}

    run(work(), 110)


def test_a_refused_name_of_any_length_is_bounded_in_the_trail(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, spoken([tool("look")]))
        async with shared_gateway({"s": server}, tmp_path, expose="all") as shared:
            async with Client(shared.url, **await shared.headers("bearer", "admin")) as client:
                for name in ("x" * 1_000_000, "\x1b[31mred", "a\u202eb"):
                    with pytest.raises(Failed) as caught:
                        await client.call(name, {"y": "z" * 1_000_000})
                    assert caught.value.code == -32003
            for row in await shared.store.audit(AuditFilter()):
                assert len(row.tool or "") <= 256
                assert "\x1b" not in (row.tool or "")
                assert len(row.input or "") <= 2048

    run(work(), 60)
