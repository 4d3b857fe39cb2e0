"""The gateway when things go wrong: upstreams that die, hang or lie, clients that go, and what nobody may see."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.auth_support import until
from tests.gateway_support import Client, Failed, ModernClient, gateway_of, http_gateway
from tests.hostile.connecting import text_of
from tests.hostile.http_server import HttpServer, closed_port
from tests.hostile.processes import descendants_of, gone
from tests.hostile.script import entry, methods_of, pids_of, record_of
from tests.support import run

SECRET = "s3cr3t-planted-value"


def test_an_upstream_killed_in_mid_call_gives_each_waiting_caller_an_error_within_a_second(tmp_path: Path) -> None:
    async def work() -> None:
        script = {"tools/call:echo": [[{"hang": True}], [{"echo": True}]], "tools/call:other": [{"pid": True}]}
        dies = entry(tmp_path, {**script, "tools/call:echo": [{"hang": True}]})
        lives = entry(tmp_path, {"tools/call": [{"sleep": 1.5}, {"echo": True}]})
        async with (
            gateway_of({"dies": dies, "lives": lives}, tmp_path, expose="all") as running,
            Client(running.url) as first,
            Client(running.url) as second,
            ModernClient(running.url) as third,
        ):
            await first.request("tools/list")
            waiting = [asyncio.create_task(client.call("dies__echo")) for client in (first, second, third)]
            other = asyncio.create_task(second.call("lives__echo", {"a": 1}))
            await until(lambda: methods_of(dies).count("tools/call") == 3 and "tools/call" in methods_of(lives))
            loop = asyncio.get_running_loop()
            before = loop.time()
            os.kill(pids_of(dies)[0], signal.SIGKILL)
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert loop.time() - before < 5.0  # well under one where nothing else runs
            for answer in answers:
                assert isinstance(answer, Failed)
                assert answer.data["code"] == "connection_failed"
                assert "unknown" in answer.message
            assert json.loads(text_of(await other))["arguments"] == {"a": 1}
            # The next call starts it again, and nothing was sent twice.
            assert int(await first.text("dies__other")) == pids_of(dies)[-1] != pids_of(dies)[0]
            assert methods_of(dies).count("tools/call") == 4

    run(work())


def test_kill_minus_nine_of_the_gateway_leaves_no_process(tmp_path: Path) -> None:
    async def work() -> None:
        servers = {
            "shared": entry(tmp_path, {"tools/call": [{"hang": True}], "ignore_eof": True}),
            "own": entry(tmp_path, {"tools/call": [{"spawn": "setsid"}, {"hang": True}]}, shared=False),
        }
        async with http_gateway(servers, tmp_path, "--expose", "all") as (process, url):
            client = Client(url)
            await client.begin()
            calls = [asyncio.create_task(client.call(f"{name}__echo")) for name in servers]
            await until(lambda: all("tools/call" in methods_of(one) for one in servers.values()), 20)
            await until(lambda: len(pids_of(servers["own"])) == 2)
            pids = [process.pid, *descendants_of(process.pid), *pids_of(servers["own"])]
            process.kill()
            assert await asyncio.to_thread(gone, pids, 10.0)
            await asyncio.gather(*calls, return_exceptions=True)
            await client._http.aclose()

    run(work(), 60)


def test_a_client_that_goes_takes_its_own_upstreams_along_and_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        servers = {"own": entry(tmp_path, {"tools/call": [{"pid": True}]}, shared=False),
                   "shared": entry(tmp_path, {"tools/call": [{"pid": True}]})}  # fmt: skip
        async with (
            gateway_of(servers, tmp_path, expose="all") as running,
            Client(running.url) as stays,
        ):
            kept = int(await stays.text("own__echo"))
            async with Client(running.url) as goes:
                mine, shared = int(await goes.text("own__echo")), int(await goes.text("shared__echo"))
                assert mine != kept
            assert await asyncio.to_thread(gone, [mine], 8.0)
            assert int(await stays.text("own__echo")) == kept
            assert int(await stays.text("shared__echo")) == shared

    run(work())


def test_a_silent_upstream_ends_in_an_error_and_progress_keeps_it_alive(tmp_path: Path) -> None:
    async def work() -> None:
        script = {
            "tools/call:echo": [{"hang": True}],
            "tools/call:other": [{"progress": 6, "every": 0.2}, {"echo": True}],
        }
        server = entry(tmp_path, script, toolTimeoutMs=600)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            with pytest.raises(Failed) as caught:
                await client.call("s__echo")
            assert (caught.value.code, caught.value.data["code"]) == (-32001, "timeout")
            await until(lambda: "notifications/cancelled" in methods_of(server))
            await client.call("s__other", _meta={"progressToken": "x"})
            assert len(client.heard) == 6

    run(work())


def test_while_the_client_is_asked_the_upstreams_silence_does_not_count(tmp_path: Path) -> None:
    asks = [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {}}]}, {"answer": True}]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [asks]}, shared=False, toolTimeoutMs=400)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:

            async def slowly(method: str, params: dict[str, Any]) -> dict[str, Any]:
                await asyncio.sleep(1.0)
                return {"action": "decline"}

            async with Client(running.url, capabilities={"elicitation": {}}) as client:
                client.answer = slowly
                assert json.loads(await client.text("s__echo")) == {"action": "decline"}

    run(work())


def test_a_question_is_withdrawn_when_its_call_is_cancelled(tmp_path: Path) -> None:
    asks = [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {}}]}, {"answer": True}]

    async def work() -> None:
        server = entry(
            tmp_path,
            {"tools/call": [asks], "notifications/cancelled": [{"notify": ["notifications/cancelled",
                                                                          {"requestId": "ask-1"}]}]},
            shared=False,
        )  # fmt: skip
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            Client(running.url, capabilities={"elicitation": {}}) as client,
        ):
            client.answer = lambda method, params: None
            await client.listen()
            message = client.message("tools/call", {"name": "s__echo", "arguments": {}})
            calling = asyncio.create_task(client.send(message))
            await until(lambda: client.asked)
            await client.notify("notifications/cancelled", {"requestId": message["id"]})
            with pytest.raises(Failed):
                await calling
            await until(lambda: "notifications/cancelled" in methods_of(server))

    run(work())


def test_a_session_that_an_upstream_has_lost_is_begun_anew_for_a_call_that_did_not_run(tmp_path: Path) -> None:
    async def work() -> None:
        with HttpServer(session=True) as server:
            async with (
                gateway_of({"s": {"url": server.url}}, tmp_path, expose="all") as running,
                Client(running.url) as client,
            ):
                await client.call("s__echo")
                server.forget_sessions()
                await client.call("s__echo", {"a": 2})
                assert len(server.of("initialize")) == 2

    run(work())


@pytest.mark.parametrize("kind", [Client, ModernClient])
def test_no_error_of_ours_says_what_an_upstream_or_its_configuration_said(
    tmp_path: Path, kind: type[Client], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every way to fail, with a planted secret in headers, bodies, environment and stderr."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []

    async def work() -> None:
        bad: dict[str, Any] = {
            "refused": {"url": f"http://127.0.0.1:{closed_port()}/{SECRET}", "headers": {"X-Key": SECRET}},
            "missing": {"command": "no-such-program-here", "env": {"KEY": SECRET}},
            "dies": entry(tmp_path, {"start": [{"stderr": SECRET}, {"exit": 1}]}, env={"KEY": SECRET}),
            "lies": entry(tmp_path, {"tools/call": [{"raw": f'{{"jsonrpc":"2.0","id":$ID,"result":"{SECRET}"}}\n'}]}),
            "quits": entry(tmp_path, {"tools/call": [{"stderr": SECRET}, {"exit": 2}]}),
        }
        with (
            HttpServer({"tools/call": {"status": 500, "body": SECRET}}) as broken,
            HttpServer({"initialize": {"status": 401, "body": SECRET}}) as locked,
        ):
            bad["broken"] = {"url": broken.url, "headers": {"Authorization": f"Bearer {SECRET}"}}
            bad["locked"] = {"url": locked.url, "headers": {"Authorization": f"Bearer {SECRET}"}}
            async with gateway_of(bad, tmp_path, expose="all") as running, kind(running.url) as client:
                said.append(json.dumps(await client.request("tools/list")))
                for name in bad:
                    with pytest.raises(Failed) as caught:
                        await client.call(f"{name}__echo", {"x": 1})
                    assert caught.value.data["server"] == name
                    said.append(json.dumps(caught.value.error))

    run(work())
    captured = capfd.readouterr()
    for text in (*said, caplog.text, captured.out, captured.err):
        assert SECRET not in text


def test_a_hostile_result_changes_nothing_for_other_requests(tmp_path: Path) -> None:
    async def work() -> None:
        noise = [
            {"raw": '{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}\n'},
            {"raw": "no json at all\n"},
            {"notify": ["notifications/progress", {"progressToken": "other", "progress": 1}]},
            {"notify": ["notifications/progress", {"progressToken": [1], "progress": 1}]},
            {"notify": ["notifications/cancelled", {"requestId": {}}]},
            {"notify": ["notifications/resources/updated", {"uri": 7}]},
            {"notify": ["notifications/vendor/own", {"x": 1}]},
            {"echo": True},
        ]
        server = entry(tmp_path, {"tools/call": [noise]})
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            Client(running.url) as first,
            Client(running.url) as second,
        ):
            answers = await asyncio.gather(
                *(client.text("s__echo", {"n": n}) for n, client in enumerate([first, second] * 10))
            )
            assert [json.loads(answer)["arguments"]["n"] for answer in answers] == list(range(20))
            assert first.heard == second.heard == []

    run(work())


def test_many_clients_at_once_each_get_their_own_answers(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"in_order": True})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:

            async def one(number: int) -> None:
                async with (Client if number % 2 else ModernClient)(running.url) as client:
                    for turn in range(5):
                        said = json.loads(await client.text("s__echo", {"who": number, "turn": turn}))
                        assert said["arguments"] == {"who": number, "turn": turn}

            await asyncio.gather(*(one(number) for number in range(24)))
            assert len([line for line in record_of(server) if "pid" in line]) == 1

    run(work(), 60)
