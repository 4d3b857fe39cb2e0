"""Questions, log messages and tasks of an upstream over stdio, whose messages name no request of the client's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.auth_support import until
from tests.gateway_support import META, Client, Failed, ModernClient, StdioClient, gateway_of, stdio_gateway
from tests.hostile.connecting import text_of
from tests.hostile.script import entry, methods_of, record_of, tool
from tests.plugin_support import greeting, spoken
from tests.support import run

ELICITATION = ["elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}}]
ASKS = [{"ask": ELICITATION}, {"answer": True}]
ACCEPTED = {"action": "accept", "content": {}}
LOGS = greeting(capabilities={"tools": {}, "logging": {}})


async def in_rounds(client: ModernClient, name: str) -> dict[str, Any]:
    """The result of a call whose every question is answered."""
    params: dict[str, Any] = {"name": name, "arguments": {}}
    result = await client.request("tools/call", params)
    for _ in range(5):
        if result["resultType"] != "input_required":
            break
        answers = dict.fromkeys(result["inputRequests"], ACCEPTED)
        again = {**params, "inputResponses": answers, "requestState": result["requestState"]}
        result = await client.request("tools/call", again)
    return result


def test_calls_of_a_newer_client_that_ask_at_the_same_time_are_all_answered(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [ASKS]}, shared=False)
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            ModernClient(running.url, capabilities={"elicitation": {}}) as client,
        ):
            results = await asyncio.gather(*(in_rounds(client, "s__echo") for _ in range(3)))
            assert [json.loads(text_of(result)) for result in results] == [ACCEPTED] * 3

    run(work())


def test_a_question_whose_call_has_ended_meanwhile_is_not_left_open(tmp_path: Path) -> None:
    question = {"jsonrpc": "2.0", "id": 77, "method": ELICITATION[0], "params": ELICITATION[1]}

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[{"write": question}, {"sleep": 0.2}, {"echo": True}]]}, shared=False)
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            ModernClient(running.url, capabilities={"elicitation": {}}) as client,
        ):
            params: dict[str, Any] = {"name": "s__echo", "arguments": {}}
            result = await client.request("tools/call", params)
            assert result["resultType"] == "input_required"
            again = {**params, "inputResponses": {}, "requestState": result["requestState"]}
            while result["resultType"] == "input_required":
                again["requestState"] = result["requestState"]
                result = await client.request("tools/call", again)
            await until(lambda: any(line.get("id") == 77 and "error" in line for line in record_of(server)))

    run(work())


def test_what_a_server_asks_while_the_gateway_lists_is_for_the_client(tmp_path: Path) -> None:
    asks = [{"ask": ["roots/list", {}]}, {"result": {"prompts": []}}]

    async def work() -> None:
        server = entry(
            tmp_path,
            {"initialize": greeting(capabilities={"tools": {}, "prompts": {}}), "prompts/list": [asks]},
            shared=False,
        )
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            Client(running.url, capabilities={"roots": {}}) as client,
        ):
            client.answer = lambda method, params: {"roots": [{"uri": "file:///r"}]}
            await client.request("prompts/list")
            answers = [line["answer"] for line in record_of(server) if "answer" in line]
            assert answers == [{"roots": [{"uri": "file:///r"}]}]

    run(work())


def test_a_newer_client_hears_of_an_older_servers_log_what_it_asked_for_and_no_more(tmp_path: Path) -> None:
    says = [{"notify": ["notifications/message", {"level": level, "data": level}]} for level in ("info", "error")]

    async def work() -> None:
        script = {"initialize": LOGS, "logging/setLevel": [{"result": {}}], "tools/call": [[*says, {"echo": True}]]}
        server = entry(tmp_path, script, shared=False)
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            ModernClient(running.url) as client,
        ):
            await client.call("s__echo")
            assert client.heard == []
            await client.call("s__echo", _meta={META + "logLevel": "warning"})
            assert [one["params"]["data"] for one in client.heard] == ["error"]
            told = [line["params"] for line in record_of(server) if line.get("method") == "logging/setLevel"]
            assert told == [{"level": "warning"}]
            # What is no level asks for nothing, and the call is made.
            await client.call("s__echo", _meta={META + "logLevel": "loud"})
            assert len(client.heard) == 1

    run(work())


@pytest.mark.slow
def test_the_level_is_told_to_a_server_that_a_search_had_started(tmp_path: Path) -> None:
    async def work() -> None:
        script = {"initialize": LOGS, "logging/setLevel": [{"error": [-32000, "no"]}], "tools/call": [{"echo": True}]}
        server = entry(tmp_path, spoken([tool("weather", description="The weather.")], **script))
        async with stdio_gateway({"s": server}, tmp_path) as process, StdioClient(process) as client:
            await client.call("mcp_search", {"query": "weather"})
            await client.request("logging/setLevel", {"level": "debug"})
            # That it is refused is no fault of the call.
            await client.text("s__weather")
            assert methods_of(server)[-2:] == ["logging/setLevel", "tools/call"]

    run(work())


def test_a_task_tells_its_progress_to_its_end_and_its_result_is_waited_for(tmp_path: Path) -> None:
    task = {"taskId": "t1", "status": "working", "createdAt": "2026-12-01T00:00:00Z", "ttl": 60000}

    async def work() -> None:
        called = [{"result": {"task": task}}, {"progress": 2, "of": "own"}]
        script = {
            "initialize": greeting(capabilities={"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}}),
            "tools/call": [called],
            "tasks/result": [[{"sleep": 1.0}, {"result": {"content": []}}]],
        }
        server = entry(tmp_path, script, shared=False, timeoutMs=500, startupTimeoutMs=20000)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            await client.listen()
            made = await client.call("s__echo", task={"ttl": 60000}, _meta={"progressToken": "mine"})
            assert made["task"] == task
            await until(lambda: client.methods() == ["notifications/progress"] * 2)
            assert {one["params"]["progressToken"] for one in client.heard} == {"mine"}
            # It is answered when the task has ended: `timeoutMs` is no limit for that.
            assert await client.request("tasks/result", {"taskId": "t1"}) == {"content": []}

    run(work())


@pytest.mark.slow
def test_a_client_that_cancels_does_not_wait_for_a_server_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For so long the SDK tries to tell a server that a request is cancelled.
    monkeypatch.setattr("mcp.shared.jsonrpc_dispatcher._ABANDON_WRITE_TIMEOUT", 60.0)

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[{"stop_reading": True}, {"hang": True}]]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            first = asyncio.create_task(client.call("s__echo"))
            await until(lambda: "tools/call" in methods_of(server))
            message = client.message("tools/call", {"name": "s__echo", "arguments": {"more": "x" * 2_000_000}})
            second = asyncio.create_task(client.send(message))
            await until(lambda: len(running.application.endpoint._running) == 2)
            await client.notify("notifications/cancelled", {"requestId": message["id"]})
            with pytest.raises(Failed):
                await asyncio.wait_for(second, 15)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    run(work())


def test_a_client_may_come_again_for_a_call_that_waits_for_it_while_the_gateway_ends(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [ASKS]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all", drain=10.0) as running:
            async with ModernClient(running.url, capabilities={"elicitation": {}}) as client:
                params: dict[str, Any] = {"name": "s__echo", "arguments": {}}
                result = await client.request("tools/call", params)
                running.stop()
                await until(lambda: running.gateway.draining)
                for state in ({}, {"requestState": "another"}):
                    with pytest.raises(Failed) as caught:
                        await client.request("tools/call", {**params, **state})
                    assert caught.value.status == 503
                answers = dict.fromkeys(result["inputRequests"], ACCEPTED)
                again = {**params, "inputResponses": answers, "requestState": result["requestState"]}
                result = await client.request("tools/call", again)
                assert json.loads(text_of(result)) == ACCEPTED
            assert running.task is not None
            await asyncio.wait_for(asyncio.shield(running.task), 8)

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Client, ModernClient])
def test_a_server_may_not_ask_without_end(kind: type[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("clients", "rounds"):
        monkeypatch.setattr(f"pi_mcp.server.{module}.MOST_QUESTIONS", 2)
    asks = [
        {"write": {"jsonrpc": "2.0", "id": 70 + number, "method": ELICITATION[0], "params": ELICITATION[1]}}
        for number in range(3)
    ]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[*asks, {"hang": True}]]}, shared=False)
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            kind(running.url, capabilities={"elicitation": {}}) as client,
        ):
            client.answer = lambda method, params: None
            calling = asyncio.create_task(client.call("s__echo"))
            await until(lambda: any(line.get("id") == 72 and "error" in line for line in record_of(server)))
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)

    run(work())


def test_a_client_that_lost_the_calls_connection_is_asked_on_its_sessions_stream(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[{"sleep": 0.7}, *ASKS]]}, shared=False)
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            Client(running.url, capabilities={"elicitation": {}}) as client,
        ):
            client.answer = lambda method, params: ACCEPTED
            await client.listen()
            calling = asyncio.create_task(client.call("s__echo"))
            await until(lambda: "tools/call" in methods_of(server))
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await until(lambda: any(line.get("answer") == ACCEPTED for line in record_of(server)))

    run(work())
