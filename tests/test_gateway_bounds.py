"""What one client or server can make the gateway hold or choke on: every member of a message has an end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pi_mcp.connect.paced import MOST_ASKED
from pi_mcp.plugin import RpcError
from pi_mcp.server import lists, rpc
from pi_mcp.server.streams import BACKLOG_BYTES, KEPT_BYTES, HttpSession, Stream
from tests.auth_support import until
from tests.gateway_support import NO_TLS, Client, Failed, ModernClient, gateway_of
from tests.hostile.script import entry, methods_of, record_of, tool
from tests.plugin_support import greeting
from tests.support import run

SECRET = "pl4nted-value-of-a-server"


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_an_answer_nested_as_deep_as_can_be_read_is_an_answer(tmp_path: Path) -> None:
    """Reading and writing end at depths of their own: what lies between came out as a broken response."""
    depths = range(900, 1010)

    async def work() -> None:
        turns = [
            [{"raw": f'{{"jsonrpc":"2.0","id":$ID,"result":{{"content":[],"deep":{nested(depth)}}}}}\n'}]
            for depth in depths
        ]
        server = entry(tmp_path, {"tools/call": turns})
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            Client(running.url) as client,
            httpx2.AsyncClient(timeout=30.0, trust_env=False, verify=NO_TLS) as http,
        ):
            whole = 0
            for depth in depths:
                message = client.message("tools/call", {"name": "s__echo", "arguments": {}})
                reply = await http.post(running.url, headers=client._sent(message), json=message)
                assert reply.status_code == 200, depth
                assert f'"id":{message["id"]}' in reply.text
                whole += nested(depth) in reply.text
            assert whole

    run(work(), 120)


def test_a_list_that_cannot_be_taken_in_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(server: str) -> dict[str, dict[str, Any]]:
        if server == "bad":
            raise RecursionError(SECRET)
        return {"one": {"name": "one"}}

    async def work() -> None:
        items, missing, late = await lists.gathered(["bad", "good"], ask, asyncio.Semaphore(4))
        assert items == [("good", {"name": "one"})]
        assert [(one.server, one.code) for one in missing] == [("bad", "protocol_error")]
        assert not late
        assert SECRET not in "".join(one.line() for one in missing)

    run(work())
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


@pytest.mark.parametrize("wrong", [5, "tasks", {"taskId": "one"}, [1, None, "x"]])
def test_a_list_of_tasks_that_is_none_hides_no_other(tmp_path: Path, wrong: Any) -> None:
    async def work() -> None:
        told = greeting(capabilities={"tools": {}, "tasks": {"list": {}}})
        bad, good, refuses = (
            entry(tmp_path, {"initialize": told, "tasks/list": [turn]}, shared=False)
            for turn in (
                {"result": {"tasks": wrong}},
                {"result": {"tasks": [{"taskId": "one"}]}},
                {"error": [-32603, SECRET]},
            )
        )
        async with (
            gateway_of({"b": bad, "r": refuses, "g": good}, tmp_path, expose="all") as running,
            Client(running.url) as client,
        ):
            for name in ("b", "r", "g"):
                await client.call(f"{name}__echo")
            result = await client.request("tasks/list")
            assert result["tasks"] == [{"taskId": "one"}]
            [unavailable] = result["_meta"]["pi-mcp/unavailable"]
            assert unavailable["server"] == "r"
            assert SECRET not in str(result)

    run(work())


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[1]", "{", nested(5000)])
def test_arguments_as_text_are_json_or_refused(tmp_path: Path, text: str) -> None:
    """`mcp_call` takes them so from some models: what is no JSON reached the server as something else."""

    async def work() -> None:
        server = entry(tmp_path)
        async with gateway_of({"s": server}, tmp_path) as running, Client(running.url) as client:
            await client.call("mcp_search", {"query": "echo"})
            with pytest.raises(Failed) as caught:
                await client.call("mcp_call", {"name": "s__echo", "arguments": text})
            assert caught.value.code == rpc.INVALID_PARAMS
            assert "tools/call" not in methods_of(server)
            await client.call("mcp_call", {"name": "s__echo", "arguments": '{"a": 1.5}'})
            assert record_of(server)[-1]["params"]["arguments"] == {"a": 1.5}

    run(work())


def test_a_body_is_utf_8(tmp_path: Path) -> None:
    """A proxy that looks into bodies sees nothing in UTF-16 of what the gateway would do."""

    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path) as running,
            Client(running.url) as client,
            httpx2.AsyncClient(timeout=30.0, trust_env=False, verify=NO_TLS) as http,
        ):
            message = client.message("ping", {})
            text = json.dumps(message)
            for coding, status in (("utf-8", 200), ("utf-8-sig", 200), ("utf-16", 400), ("utf-16-le", 400)):
                reply = await http.post(running.url, headers=client._sent(message), content=text.encode(coding))
                assert reply.status_code == status, coding

    run(work())


def test_of_what_a_client_says_of_itself_a_bounded_part_is_kept(tmp_path: Path) -> None:
    """Sessions are thousands, and what each of them was told in megabytes stayed for as long as it."""
    long = {"name": "client" + "x" * 9000, "version": "1", "icons": [{"src": "data:" + "A" * 100_000}]}

    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path) as running:
            params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": long}
            client = Client(running.url)
            await client.request("initialize", params)
            [session] = running.application.endpoint._sessions.values()
            assert session.client_info == {"name": long["name"][:256], "version": "1"}
            declared = {"experimental": {"x": "y" * rpc.MOST_DECLARED}}
            for one in (Client(running.url), ModernClient(running.url)):
                one.capabilities = declared
                with pytest.raises(Failed) as caught:
                    await (one.request("server/discover") if one.modern else one.begin())
                assert caught.value.code == rpc.INVALID_PARAMS
                await one._http.aclose()
            assert running.application.endpoint.sessions == 1
            assert not running.gateway._visitors
            await client._http.aclose()

    run(work())


def test_a_client_that_reads_nothing_is_kept_a_bounded_part_of_the_news(tmp_path: Path) -> None:
    size, count = 1_000_000, 60
    note = {"notify": ["notifications/message", {"level": "info", "data": "x" * size}]}

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[*[note] * count, {"echo": True}]]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            [session] = running.application.endpoint._sessions.values()
            stream = session.open()  # as a connection does whose client takes nothing from it
            await client.call("s__echo")
            kept = sum(map(len, stream.messages))
            assert 0 < kept <= BACKLOG_BYTES
            session.shut(stream)
            assert sum(map(len, session._kept)) <= KEPT_BYTES

    run(work())


def test_a_stream_takes_one_long_message_and_no_question_behind_it() -> None:
    stream = Stream()
    stream.put({"method": "news", "params": {"text": "x" * BACKLOG_BYTES}})
    stream.put({"method": "more"})
    with pytest.raises(RpcError):
        stream.put({"id": 1, "method": "question"})
    assert len(stream.messages) == 1
    assert json.loads(stream.take())["method"] == "news"
    stream.put({"id": 1, "method": "question"})
    assert json.loads(stream.take()) == {"id": 1, "method": "question"}


def test_a_question_that_could_not_be_put_waits_for_nobody() -> None:
    async def work() -> None:
        session = HttpSession("id", "owner")
        stream = session.open()
        stream.put({"method": "news", "params": {"text": "x" * BACKLOG_BYTES}})
        with pytest.raises(RpcError):
            await session.ask("elicitation/create", {"message": "?"}, None)
        assert not session._questions

    run(work())


@pytest.mark.parametrize("token", [True, 1.0, None, {"a": 1}, [1]])
def test_a_token_that_is_none_belongs_to_no_request(tmp_path: Path, token: Any) -> None:
    """To Python, True is 1: progress under it was that of the first request of whoever else uses the server."""

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"progress": 2}, {"progress": 2, "of": True}, {"echo": True}]})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            await client.call("s__echo", _meta={"progressToken": token})
            assert not client.heard
            sent = [line["params"] for line in record_of(server) if line.get("method") == "tools/call"]
            assert "progressToken" not in sent[0].get("_meta", {})

    run(work())


def test_a_subscription_on_its_way_is_not_taken_back_from_somebody_else(tmp_path: Path) -> None:
    """A client goes while the server still thinks about its subscription; another one's to the same stays."""

    async def work() -> None:
        script = {
            "initialize": greeting(capabilities={"tools": {}, "resources": {"subscribe": True}}),
            "tools/list": [{"result": {"tools": [tool("turn")]}}],
            "tools/call": [[{"notify": ["notifications/resources/updated", {"uri": "file:///a"}]}, {"echo": True}]],
            "resources/list": [{"result": {"resources": [{"uri": "file:///a", "name": "a"}]}}],
            "resources/subscribe": [[{"hang": True}], [{"result": {}}]],
            "resources/unsubscribe": [{"result": {}}],
        }
        server = entry(tmp_path, script)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as stays:
            goes = Client(running.url)
            await goes.begin()
            going = asyncio.create_task(goes.request("resources/subscribe", {"uri": "file:///a"}))
            await until(lambda: "resources/subscribe" in methods_of(server))
            await stays.request("resources/subscribe", {"uri": "file:///a"})
            await goes._http.delete(goes.url, headers=goes._sent({}))
            await asyncio.gather(going, return_exceptions=True)
            await goes._http.aclose()
            await stays.listen()
            await stays.call("s__turn")
            await until(lambda: "notifications/resources/updated" in stays.methods())
            assert "resources/unsubscribe" not in methods_of(server)

    run(work())


@pytest.mark.parametrize("method", ["ping", "roots/list", "elicitation/create"])
def test_a_server_that_asks_without_end_and_takes_no_answer_keeps_nobody_waiting(tmp_path: Path, method: str) -> None:
    """Each question was a task for as long as its answer was not taken: a gigabyte, and seconds for anybody's turn."""
    ask = json.dumps({"jsonrpc": "2.0", "id": "q", "method": method, "params": {"message": "?", "requestedSchema": {}}})
    questions = [json.dumps({**json.loads(ask), "id": f"q{number}"}) for number in range(20_000)]

    async def work() -> None:
        script = {"tools/call": [[{"stop_reading": True}, {"raw": "\n".join(questions) + "\n"}]]}
        floods = entry(tmp_path, script, shared=False, toolTimeoutMs=5000)
        calm = entry(tmp_path)
        async with (
            gateway_of({"floods": floods, "calm": calm}, tmp_path, expose="all") as running,
            Client(running.url) as client,
            Client(running.url) as other,
        ):
            await other.call("calm__echo")
            before = len(asyncio.all_tasks())
            calling = asyncio.create_task(client.call("floods__echo"))
            most = 0
            while not calling.done():
                await other.call("calm__echo")
                most = max(most, len(asyncio.all_tasks()))
            with pytest.raises(Failed):
                await calling
            assert most - before < 2 * MOST_ASKED

    run(work(), 90)


def test_a_server_whose_answers_are_taken_may_ask_as_much_as_it_likes(tmp_path: Path) -> None:
    count = 5 * MOST_ASKED
    questions = "\n".join(json.dumps({"jsonrpc": "2.0", "id": f"q{n}", "method": "ping"}) for n in range(count))

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[{"raw": questions + "\n"}, {"echo": True}]]})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            await client.call("s__echo")
            await until(lambda: sum(str(line.get("id", "")).startswith("q") for line in record_of(server)) == count, 60)

    run(work(), 90)
