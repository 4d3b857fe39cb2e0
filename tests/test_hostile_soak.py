"""Two hundred hostile conversations in random order, one plugin after another in one process.

Each run draws servers of both transports from the whole vocabulary, then searches, calls, cancels, refreshes and
reconnects at random. Whatever happens, a failure is a diagnostic with a known code, everything ends in bounded time,
and afterwards no process, task or file descriptor is left. The seed is in the message of a failure:
PI_MCP_SOAK_SEED repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.errors import PiMcpError
from tests.hostile.http_server import HttpServer, closed_port
from tests.hostile.processes import children_of
from tests.hostile.product import HEADERS, SECRET, Person, Product, product
from tests.hostile.script import GONE, entry, tool
from tests.support import run

RUNS = 200
LONGEST = 25.0
"""Seconds that one run may take, closing included."""

LIMITS = {"startupTimeoutMs": 1200, "timeoutMs": 400, "toolTimeoutMs": 300}

TEXTS = ["plain", "\u001b[2J\u009b\u202e", "\ud800", "x" * 70_000, SECRET, "\r\n\u0000"]


def odd_json(dice: random.Random, depth: int = 3) -> Any:
    kind = dice.randrange(8 if depth else 5)
    if kind < 5:
        return [None, True, dice.randint(-9, 2**70), 1.5, dice.choice(TEXTS[:3])][kind]
    if kind < 7:
        keys = ["type", "properties", "$ref", "enum", "name", "tools", "content", "text", "items", "id", "method"]
        return {dice.choice(keys): odd_json(dice, depth - 1) for _ in range(dice.randint(0, 4))}
    return [odd_json(dice, depth - 1) for _ in range(dice.randint(0, 4))]


def tools_of(dice: random.Random) -> list[Any]:
    names: list[Any] = ["echo", "other", "a.b", "a b", "工具", "x" * 200, "", None, 7]
    found: list[Any] = [tool("echo"), tool("other")]
    for _ in range(dice.randint(0, 6)):
        schema = dice.choice([{"type": "object"}, odd_json(dice), {"type": "object", "properties": odd_json(dice)}])
        found.append({"name": dice.choice(names), "description": dice.choice(TEXTS[:4]), "inputSchema": schema})
    if dice.random() < 0.2:
        found.append(odd_json(dice))
    return found


def result_of(dice: random.Random) -> Any:
    blocks: list[Any] = [
        {"type": "text", "text": dice.choice(TEXTS[:4])},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
        {"type": "image", "data": "!", "mimeType": dice.choice(TEXTS[:2])},
        {"type": "resource_link", "uri": "file:///../../x", "name": "../x"},
        {"type": "resource", "resource": odd_json(dice)},
        odd_json(dice),
    ]
    return dice.choice(
        [
            {"content": [dice.choice(blocks) for _ in range(dice.randint(0, 5))]},
            {"structuredContent": odd_json(dice)},
            {"content": odd_json(dice), "isError": odd_json(dice)},
            odd_json(dice),
        ]
    )


def steps(dice: random.Random, good: dict[str, Any], health: float = 0.6) -> list[dict[str, Any]]:
    """One answer of a stdio server: noise, then, with the chance of `health`, a good answer."""
    noise: list[dict[str, Any]] = [
        {"stderr": f"words {SECRET}\n"},
        {"flood": dice.choice([10, 200_000]), "newlines": dice.random() < 0.5},
        {"raw": dice.choice(["\n", "noise\n", "{}\n", "[]\n", "null\n", '{"jsonrpc":"2.0"}\n', "\u00e9" * 9 + "\n"])},
        {"hex": dice.choice(["ff", "c30a", "000a", "0d0a"])},
        {"sleep": dice.choice([0.0, 0.05, 0.3])},
        {"notify": ["notifications/tools/list_changed", {}]},
        {"notify": ["notifications/message", odd_json(dice)]},
        {"notify": [dice.choice(["x", "notifications/progress", "notifications/cancelled"]), {"a": odd_json(dice)}]},
        {"write": {"jsonrpc": "2.0", "id": dice.choice([1, "1", 99, None]), "result": odd_json(dice)}},
        {"write": {"jsonrpc": "2.0", "id": dice.choice(["q", 3]), "method": "roots/list", "params": odd_json(dice)}},
        {"progress": dice.randint(0, 30), "of": dice.choice(["own", "other"])},
    ]
    ends: list[dict[str, Any]] = [
        {"exit": dice.choice([0, 1, 255])},
        {"kill": dice.choice([9, 15, 11])},
        {"close_stdout": True},
        {"close_stdin": True},
        {"stop_reading": True},
        {"hang": True},
        {"spawn": dice.choice(["child", "setsid", "daemon"])},
        {"error": [dice.choice([-32601, -32600, -32000, -32022, -32042, 0]), f"{dice.choice(TEXTS)} {SECRET}"]},
        {"raw": '{"jsonrpc":"2.0","id":$ID,"result":'},
        {"raw": '{"jsonrpc":"2.0","id":$ID,"result":null}\n'},
        {"result": odd_json(dice)},
        {"big": dice.choice([10, 300_000]), "id_last": dice.random() < 0.5},
    ]
    found = [dice.choice(noise) for _ in range(dice.choice([0, 0, 1, 3]))]
    return [*found, good if dice.random() < health else dice.choice(ends)]


def stdio_server(dice: random.Random, folder: Path) -> dict[str, Any]:
    version = dice.choice(["2025-11-25", "2025-11-25", "2024-11-05", "1999-01-01"])
    hello = {
        "protocolVersion": version,
        "capabilities": dice.choice([{"tools": {}}, {"tools": {"listChanged": True}}, {}, {"resources": {}}]),
        "serverInfo": dice.choice([{"name": "n", "version": "1"}, odd_json(dice)]),
        "instructions": dice.choice([None, *TEXTS[:4]]),
    }
    listing: dict[str, Any] = dice.choice(
        [
            {"result": {"tools": tools_of(dice)}},
            {"result": {"tools": tools_of(dice), "nextCursor": "x"}},
            {"page": [3, 20]},
        ]
    )
    call = dice.choice([{"echo": True}, {"result": result_of(dice)}, {"pid": True}])
    script: dict[str, Any] = {
        "server/discover": [dice.choice([[GONE], [GONE], steps(dice, GONE)])],
        "initialize": [steps(dice, {"result": hello}, 0.7)] if dice.random() < 0.3 else [{"result": hello}],
        "tools/list": [steps(dice, listing, 0.9), steps(dice, listing, 0.8)],
        "tools/call": [steps(dice, call) for _ in range(3)],
    }
    if dice.random() < 0.3:
        script["start"] = steps(dice, {"sleep": 0.0})
    for flag in ("ignore_eof", "ignore_term", "in_order"):
        if dice.random() < 0.2:
            script[flag] = True
    trust = dice.choice(["trusted", "verified", "untrusted"])
    return entry(folder, script, env={"TOKEN": "${PLANTED}"}, trust=trust, **LIMITS)


def reaction(dice: random.Random, good: dict[str, Any], health: float = 0.5) -> dict[str, Any]:
    bad: list[dict[str, Any]] = [
        {"status": dice.choice([400, 401, 403, 404, 405, 429, 500, 503]), "body": SECRET},
        {"status": 429, "headers": {"Retry-After": dice.choice(["0", "1", "3600", "x"])}},
        {"redirect": dice.choice(["/mcp/", "/signin", "http://elsewhere.invalid/", "", "::"]), "status": 307},
        {"status": 200, "type": "text/html", "body": f"<html>{SECRET}"},
        {"body": dice.choice(["", "null", "[]", "{", "[" * 5000]), "type": "application/json"},
        {"raw": dice.choice(["SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 999 X\r\n\r\n", "\r\n"])},
        {"hang": True},
        {"close": True},
        {"reset": True},
        {"short": 5},
        {"events": []},
        {"events": [": ping\n\n", {"data": ""}, {"data": "{"}, {"answer": True}]},
        {"events": [{"id": "1", "retry": 10, "data": ""}]},
        {"events": [{"data": {"type": "heartbeat"}}, {"hang": True}]},
        {"events": ["data: {", {"reset": True}]},
        {"message": odd_json(dice)},
        {"result": odd_json(dice), "as": dice.choice(["json", "sse"])},
        {"error": {"code": -32000, "message": f"{dice.choice(TEXTS[:3])} {SECRET}"}},
        {"sleep": 0.2, **good},
        {"gzip": True, **good},
        {"chunked": True, **good},
    ]
    return good if dice.random() < health else dice.choice(bad)


def http_server(dice: random.Random) -> HttpServer:
    script: dict[str, Any] = {
        "tools/list": [reaction(dice, {"result": {"tools": tools_of(dice)}}, 0.8) for _ in range(2)],
        "tools/call": [reaction(dice, dice.choice([{}, {"result": result_of(dice)}])) for _ in range(4)],
        "GET": reaction(dice, {"status": 405}),
        "DELETE": reaction(dice, {"status": 405}),
        "notifications/initialized": reaction(dice, {}),
    }
    for method in ("initialize", "server/discover"):
        if dice.random() < 0.2:
            script[method] = reaction(dice, {})
    return HttpServer(
        script,
        answers=dice.choice(["json", "sse"]),
        session_ttl=dice.choice([None, 0.2, 60.0]),
        lost=dice.choice([None, {"status": 400, "body": "no such session"}]),
        era=dice.choice(["legacy", "legacy", "modern", "both"]),
    )


async def one_deed(dice: random.Random, made: Product, names: list[str], http: list[HttpServer]) -> None:
    """Something that a model or a person does; what fails has to fail in our words."""
    session = made.session
    deed = dice.randrange(16)
    try:
        if deed < 2 or (deed < 10 and not session.loaded):
            server = dice.choice([None, *names])
            made.shown.append((await session.search("echo other", limit=dice.choice([1, 50]), server=server)).text)
        elif deed < 11 and session.loaded:
            native = dice.choice(session.loaded).native
            work = session.call(native, {"a": 1})
            if dice.random() < 0.1:
                work = asyncio.wait_for(work, dice.random() * 0.2)
            made.results.append((await work).text)
        elif deed < 13:
            verb = dice.choice(["", "refresh", "reconnect", "get", "tools"])
            await made.mcp(f"{verb} {dice.choice(names)}" if verb else "")
        elif deed < 15 and http:
            dice.choice(http).drop_connections()
        elif http:
            dice.choice(http).forget_sessions()
    except TimeoutError:
        pass  # the caller's own patience
    except PiMcpError as error:
        made.shown.append(str(error))
        made._check(error.diagnostic)


async def one_run(dice: random.Random, folder: Path) -> None:
    servers: dict[str, dict[str, Any]] = {}
    http: list[HttpServer] = []
    for number in range(dice.randint(1, 4)):
        kind = dice.random()
        if kind < 0.5:
            servers[f"s{number}"] = stdio_server(dice, folder)
        elif kind < 0.95:
            server = http_server(dice).__enter__()
            http.append(server)
            transport = {"type": "sse"} if dice.random() < 0.1 else {}
            servers[f"s{number}"] = {"url": server.url, "headers": HEADERS, **transport, **LIMITS}
        elif kind < 0.97:
            servers[f"s{number}"] = {"command": "no-such-command-4711"}
        else:
            servers[f"s{number}"] = {"url": f"http://127.0.0.1:{closed_port()}/", **LIMITS}
    try:
        async with product(folder, servers, host=Person(says=dice.random() < 0.8, form={"a": 1})) as made:
            # What a tool says goes through as it is meant to: only our own words may not hold the secret.
            made.session.search_tool  # noqa: B018 -- the text is fixed here
            await made.search("echo other", limit=50)
            for _ in range(dice.randint(1, 3)):
                deeds = [
                    asyncio.ensure_future(one_deed(dice, made, list(servers), http)) for _ in range(dice.randint(2, 8))
                ]
                if dice.random() < 0.3:
                    await asyncio.sleep(dice.random() * 0.3)
                    dice.choice(deeds).cancel()
                for outcome in await asyncio.gather(*deeds, return_exceptions=True):
                    if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                        raise outcome
    finally:
        for server in http:
            await asyncio.to_thread(server.stop)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_hundred_hostile_conversations_leave_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("PI_MCP_SOAK_SEED", random.randrange(2**32)))
    order = random.Random(seed)
    only = os.environ.get("PI_MCP_SOAK_RUN")
    children = set(children_of(os.getpid()))
    for number in range(RUNS):
        dice = random.Random(order.random())
        if only and int(only) != number:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        begun = time.monotonic()
        try:
            run(one_run(dice, folder), LONGEST + 20)
        except BaseException as error:
            error.add_note(f"PI_MCP_SOAK_SEED={seed} PI_MCP_SOAK_RUN={number}")
            raise
        took = time.monotonic() - begun
        assert took < LONGEST, f"{took:.1f} s: PI_MCP_SOAK_SEED={seed} PI_MCP_SOAK_RUN={number}"
        assert set(children_of(os.getpid())) <= children, f"PI_MCP_SOAK_SEED={seed} PI_MCP_SOAK_RUN={number}"
