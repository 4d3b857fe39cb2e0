"""What one client of the gateway can take from another: places, calls, connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pi_mcp.server import gateway as core
from pi_mcp.server import listening, lists, rounds
from tests.access_support import shared_gateway
from tests.auth_support import until
from tests.gateway_support import Client, Failed, ModernClient, gateway_of
from tests.hostile.script import entry, methods_of, tool
from tests.plugin_support import greeting, spoken
from tests.support import run

ASKS = [
    {"ask": ["elicitation/create", {"message": "sure?", "requestedSchema": {"type": "object"}}]},
    {"answer": True},
]


def test_many_sessions_of_one_credential_take_no_place_from_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with shared_gateway({"s": entry(tmp_path)}, tmp_path, http={"max_sessions": 3}) as shared:
            many, few = await shared.headers("bearer", "tools:read"), await shared.headers("bearer", "tools:read")
            async with contextlib.AsyncExitStack() as stack:
                greedy = [await stack.enter_async_context(Client(shared.url, **many)) for _ in range(3)]
                await greedy[0].request("ping")  # the second is now the one that has been quiet longest
                one_more = Client(shared.url, **many)
                with pytest.raises(Failed) as caught:
                    await one_more.begin()
                await one_more._http.aclose()
                assert caught.value.status == 503
                other = await stack.enter_async_context(Client(shared.url, **few))
                assert shared.running.application.endpoint.sessions == 3
                with pytest.raises(Failed) as caught:
                    await greedy[1].request("ping")
                assert caught.value.status == 404
                for client in (greedy[0], greedy[2], other):
                    assert await client.request("ping") == {}

    run(work())


def test_many_clients_of_one_credential_end_no_call_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "MOST_VISITORS", 3)

    async def work() -> None:
        slow = entry(tmp_path, {"tools/call": [[{"sleep": 1.0}, {"echo": True}]]}, shared=False)
        async with shared_gateway({"s": slow}, tmp_path, expose="all") as shared:
            victim = await shared.headers("bearer", "tools:read tools:write")
            greedy = await shared.headers("bearer", "tools:read")
            async with ModernClient(shared.url, **victim) as client, ModernClient(shared.url, **greedy) as many:
                call = asyncio.create_task(client.call("s__echo", {}))
                await until(lambda: "tools/call" in methods_of(slow))
                for number in range(8):
                    many.capabilities = {"experimental": {str(number): {}}}
                    await many.request("server/discover")
                assert len(shared.running.gateway._visitors) == 3
                assert "content" in await call

    run(work())


def test_a_client_that_has_to_go_is_told_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MOST_VISITORS", 1)

    async def work() -> None:
        script = {
            "initialize": greeting(capabilities={"tools": {}, "resources": {"subscribe": True}}),
            "tools/call": [[{"hang": True}]],
            "resources/list": [{"result": {"resources": [{"uri": "file:///a", "name": "a"}]}}],
            "resources/subscribe": [{"result": {}}],
        }
        server = entry(tmp_path, script, shared=False)
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            ModernClient(running.url) as client,
            ModernClient(running.url, capabilities={"experimental": {}}) as other,
        ):
            wanted = {"notifications": {"resourceSubscriptions": ["file:///a"]}}
            listening = asyncio.create_task(client.request("subscriptions/listen", wanted))
            calling = asyncio.create_task(client.call("s__echo"))
            await until(lambda: {"tools/call", "resources/subscribe"} <= set(methods_of(server)) and bool(client.heard))
            await other.request("server/discover")
            for waiting in (calling, listening):
                with pytest.raises(Failed) as caught:
                    await asyncio.wait_for(waiting, 10)
                assert caught.value.code == -32000
            await until(lambda: not running.plugin.connections.upstreams)

    run(work())


@pytest.mark.parametrize(
    "other",
    [{"name": "s__look", "arguments": {}}, {"name": "s__turn", "arguments": {"to": 2}}, {"name": "s__turn"}],
)
def test_a_call_that_waits_goes_on_under_its_own_name_and_arguments_alone(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """What was permitted was that call: a request with fewer rights must not finish it as another one."""

    async def work() -> None:
        script = {**spoken([tool("look", annotations={"readOnlyHint": True}), tool("turn")]), "tools/call": [ASKS]}
        server = entry(tmp_path, script, shared=False)
        async with shared_gateway({"s": server}, tmp_path, expose="all") as shared:
            headers = await shared.headers("bearer", "tools:read tools:write")
            async with ModernClient(shared.url, capabilities={"elicitation": {}}, **headers) as client:
                call = {"name": "s__turn", "arguments": {"to": 1}}
                result = await client.request("tools/call", call)
                [key] = result["inputRequests"]
                again = {"inputResponses": {key: {"action": "accept"}}, "requestState": result["requestState"]}
                with pytest.raises(Failed) as caught:
                    await client.request("tools/call", {**other, **again})
                assert caught.value.code == -32602
                assert (await client.request("tools/call", {**call, **again}))["resultType"] == "complete"

    run(work())


@pytest.mark.parametrize("body", [{"result": None, "error": {}}, {"result": None, "error": {"code": "x"}}])
def test_an_answer_that_is_neither_a_result_nor_an_error_ends_the_question_alone(
    tmp_path: Path, body: dict[str, Any]
) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [ASKS, [{"echo": True}]]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            url = running.url
            async with Client(url, capabilities={"elicitation": {}}) as client:
                call = asyncio.create_task(client.call("s__echo", {}))
                client.answer = lambda method, params: None
                await until(lambda: client.asked)
                answered = {"jsonrpc": "2.0", "id": client.asked[0]["id"], **body}
                assert await client._post(answered) == 202
                await asyncio.wait_for(asyncio.gather(call, return_exceptions=True), 10)
                assert "content" in await client.call("s__echo", {})

    run(work())


@pytest.mark.parametrize("said", [b"", b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_connection_whose_request_does_not_come_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(listening, "HEAD_TIME", 0.3)

    async def work() -> None:
        slow = entry(tmp_path, {"tools/call": [[{"sleep": 1.0}, {"echo": True}]]})
        async with gateway_of({"s": slow}, tmp_path, expose="all") as running, Client(running.url) as client:
            parts = urlsplit(running.url)
            call = asyncio.create_task(client.call("s__echo", {}))  # a request that has come may take its time
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                for byte in said:
                    writer.write(bytes((byte,)))
                assert await asyncio.wait_for(reader.read(), 10) == b""
            finally:
                writer.close()
            assert "content" in await call

    run(work())


def test_a_body_with_two_lengths_is_no_request_and_nothing_behind_it_is_one(tmp_path: Path) -> None:
    """A proxy that believes the other length would hand the rest on as the request of whoever comes next."""

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running:
            parts = urlsplit(running.url)
            head = f"POST /mcp HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            lengths = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(f"{head}{lengths}GET /healthz HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
                said = await asyncio.wait_for(reader.read(), 10)
            finally:
                writer.close()
            assert said.startswith(b"HTTP/1.1 400 ")
            assert said.count(b"HTTP/1.1 ") == 1

    run(work())


@pytest.mark.parametrize("refusal", ["Host: evil.example", "Origin: https://evil.example"])
def test_a_refusal_waits_for_a_small_body_that_is_still_on_its_way(refusal: str, tmp_path: Path) -> None:
    """Otherwise a proxy that still sends finds the connection closed, and its client hears of that alone."""

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running:
            parts = urlsplit(running.url)
            host = "" if refusal.startswith("Host") else f"Host: {parts.netloc}\r\n"
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                writer.write(f"POST /mcp HTTP/1.1\r\n{host}{refusal}\r\nContent-Length: 9\r\n\r\n".encode())
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.2)
                writer.write(b"x" * 9)
                assert (await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)).startswith(b"HTTP/1.1 4")
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                writer.write(f"GET /healthz HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
                assert b"HTTP/1.1 200" in await asyncio.wait_for(reader.readuntil(b"200"), 10)
                writer.write(f"POST /mcp HTTP/1.1\r\n{host}{refusal}\r\nContent-Length: 9\r\n\r\nx".encode())
                assert b"HTTP/1.1 4" in await asyncio.wait_for(reader.readuntil(b"HTTP/1.1 4"), 10)
            finally:
                writer.close()

    run(work())


def test_after_a_refusal_a_long_body_is_still_taken_so_that_who_sends_it_can_read_the_answer(tmp_path: Path) -> None:
    size = 20_000_000

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running:
            parts = urlsplit(running.url)
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            try:
                head = f"POST /mcp HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
                writer.write(f"{head}Content-Length: {size}\r\n\r\n".encode() + b"x" * 100_000)
                answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
                assert answer.startswith(b"HTTP/1.1 413 ")
                assert b"\r\nconnection: close\r\n" in answer.lower()
                for _ in range((size - 100_000) // 100_000):
                    writer.write(b"x" * 100_000)
                    await asyncio.wait_for(writer.drain(), 10)
                body = await asyncio.wait_for(reader.read(), 10)
                assert f"content-length: {len(body)}\r\n".encode() in answer.lower()
            finally:
                writer.close()

    run(work())


@pytest.mark.slow
def test_servers_whose_lists_do_not_end_keep_no_other_list_from_anybody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "TURN", 0.2)
    monkeypatch.setattr(lists, "LISTS_WAIT", 3.0)
    monkeypatch.setattr(lists, "LIST_TIME", 5.0)

    async def work() -> None:
        told = {"resources": {}}
        handshake = [{"result": {"protocolVersion": "2025-11-25", "capabilities": told, "serverInfo": {"name": "n"}}}]
        endless = {"initialize": handshake, "resources/list": [{"hang": True}]}
        good = {"initialize": handshake, "resources/list": [{"result": {"resources": [{"uri": "x:1", "name": "x"}]}}]}
        servers = {f"bad{number}": entry(tmp_path, endless, timeoutMs=60_000) for number in range(5)}
        servers["good"] = entry(tmp_path, good)
        async with gateway_of(servers, tmp_path, expose="all") as running, Client(running.url) as client:
            result = await client.request("resources/list")
            assert [one["uri"] for one in result["resources"]] == ["x:1"]
            late = result["_meta"]["pi-mcp/unavailable"]
            assert {one["server"] for one in late} == {f"bad{number}" for number in range(5)}
            await until(lambda: not running.gateway._background)  # nothing of it goes on for ever

    run(work())


def test_sessions_that_are_left_behind_do_not_fill_the_machine_with_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MOST_PROCESSES", 2)

    async def work() -> None:
        server = entry(
            tmp_path, {"tools/call:echo": [[{"pid": True}]], "tools/call:other": [{"hang": True}]}, shared=False
        )
        async with shared_gateway({"s": server}, tmp_path, expose="all") as shared:
            headers = await shared.headers("bearer", "tools:read tools:write")
            other = await shared.headers("bearer", "tools:read tools:write")
            async with contextlib.AsyncExitStack() as stack:

                async def begun(headers: dict[str, str]) -> Client:
                    return await stack.enter_async_context(Client(shared.url, **headers))

                async def live(count: int) -> None:
                    await until(lambda: sum(one.live for one in shared.running.plugin.connections.upstreams) == count)

                first = await begun(headers)
                before = await first.text("s__echo")
                for _ in range(4):
                    await (await begun(headers)).text("s__echo")
                await live(2)
                await (await begun(other)).text("s__echo")  # of another credential
                await live(3)
                assert await first.text("s__echo") != before  # ended, and begun again where it is used
                for _ in range(2):
                    client = await begun(headers)
                    hanging = asyncio.create_task(client.call("s__other"))
                    stack.callback(hanging.cancel)
                await until(lambda: methods_of(server).count("tools/call") >= 9)
                await live(3)
                with pytest.raises(Failed) as caught:
                    await (await begun(headers)).text("s__echo")
                assert caught.value.code == -32000

    run(work(), 60)


@pytest.mark.slow
def test_an_answer_that_nobody_takes_is_not_kept_and_one_that_is_taken_slowly_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "WRITE_TIME", 0.5)
    size = 12_000_000

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"big": size}]})
        async with gateway_of({"s": server}, tmp_path, expose="all", http={"stateless": True}) as running:
            parts = urlsplit(running.url)
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "s__echo", "arguments": {}}}
            body = json.dumps(call)
            head = f"POST /mcp HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\nContent-Type: application/json"
            request = f"{head}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
            for slowly in (True, False):
                # The bound is what keeps this client from taking more than it asks for.
                reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=65536)
                writer.write(request)
                taken = 0
                try:
                    if not slowly:
                        await until(lambda: methods_of(server).count("tools/call") == 2)
                        await asyncio.sleep(3)  # what is tested is that somebody does nothing
                    while part := await asyncio.wait_for(reader.read(2_000_000), 10):
                        taken += len(part)
                        await asyncio.sleep(0.02 if slowly else 0)
                except ConnectionError:
                    pass
                finally:
                    writer.close()
                assert (taken > size) == slowly

    run(work(), 60)


@pytest.mark.slow
def test_calls_of_one_credential_that_wait_for_input_leave_places_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "MOST_OF_ONE", 2)

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [ASKS]}, shared=False)
        async with contextlib.AsyncExitStack() as stack:
            shared = await stack.enter_async_context(shared_gateway({"s": server}, tmp_path, expose="all"))
            many, other = [await shared.headers("bearer", "tools:read tools:write") for _ in range(2)]

            async def asked(headers: dict[str, str], number: int) -> Any:
                # Another client each time: of two calls in one process nobody knows which one asks.
                told = {"elicitation": {}, "experimental": {str(number): {}}}
                client = ModernClient(shared.url, capabilities=told, **headers)
                return (await (await stack.enter_async_context(client)).call("s__echo"))["resultType"]

            for number in range(2):
                assert await asked(many, number) == "input_required"
            with pytest.raises(Failed):
                await asked(many, 2)
            assert await asked(other, 0) == "input_required"

    run(work())


def test_a_foreign_notification_reaches_a_server_from_those_alone_who_may_use_foreign_methods(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, shared=False)
        async with shared_gateway({"s": server}, tmp_path, expose="all", prefix=False) as shared:
            for scopes, name in (("server:s:read", "less"), ("server:s:*", "enough")):
                async with Client(shared.url, **await shared.headers("bearer", scopes)) as client:
                    await client.request("tools/list")
                    assert await client.notify(f"notifications/vendor/{name}", {"wipe": True}) == 202
                    assert await client.notify("notifications/roots/list_changed") == 202
                    await client.request("tools/list")
                    await until(lambda: "notifications/roots/list_changed" in methods_of(server))
            await until(lambda: "notifications/vendor/enough" in methods_of(server))
            assert "notifications/vendor/less" not in methods_of(server)

    run(work())
