"""The gateway in front of real upstreams: what goes through it unchanged, in both eras, and what it answers itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.auth_support import until
from tests.gateway_support import Client, Failed, ModernClient, gateway_of
from tests.hostile.connecting import text_of
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, methods_of, record_of, tool
from tests.plugin_support import greeting, spoken
from tests.support import run

ODD_TOOL: dict[str, Any] = {
    "name": "odd",
    "title": "Odd",
    "description": "With everything that a model would drop.",
    "inputSchema": {
        "type": "object",
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {"a": {"$ref": "#/$defs/A"}, "b": True, "n": {"type": "number", "default": 1.0}},
        "$defs": {"A": {"type": ["string", "null"], "x-mine": {"deep": [1, 2.0, None]}}},
        "additionalProperties": {"anyOf": [{}, False]},
    },
    "outputSchema": {"type": "object", "properties": {"x": {"const": 1e300}}, "x-out": []},
    "annotations": {"readOnlyHint": "yes", "unheard": {"of": 1}},
    "icons": [{"src": "data:image/png;base64,AA==", "sizes": ["any"], "theme": "odd"}],
    "_meta": {"ui": {"resourceUri": "ui://odd/main.html", "csp": {"connectDomains": ["https://x.test"]}}, "v": None},
    "vendor": {"x": [None, {"y": ""}]},
}
ODD_RESULT: dict[str, Any] = {
    "content": [
        {"type": "text", "text": "a\u0000b ✓ \ud83d\ude00", "annotations": {"audience": ["user"], "priority": 0.5}},
        {"type": "hologram", "data": {"frames": [1.0, 2]}, "mimeType": "x/y"},
        {"type": "resource_link", "uri": "odd://link", "name": "l", "size": 3},
        {"type": "resource", "resource": {"uri": "ui://odd/main.html", "text": "<p>", "_meta": {"ui": {"csp": {}}}}},
    ],
    "structuredContent": {"x": 1e300, "list": [], "none": None, "whole": 1.0},
    "isError": False,
    "_meta": {"odd/key": {"deep": None}},
    "unheardOf": [1],
}


def test_b094_tools_and_results_pass_as_the_upstream_sent_them(tmp_path: Path) -> None:
    """B094: structuredContent beside a re-exported outputSchema; unknown content, members and annotations."""

    async def work() -> None:
        server = entry(tmp_path, spoken([ODD_TOOL], **{"tools/call": [{"result": ODD_RESULT}]}))
        async with gateway_of({"odd": server}, tmp_path, expose="all", prefix=False) as running:
            for kind in (Client, ModernClient):
                async with kind(running.url) as client:
                    listed = (await client.request("tools/list"))["tools"]
                    assert json.dumps(listed) == json.dumps([ODD_TOOL])
                    result = await client.call("odd", {"a": 1.0, "b": None})
                    for own in ("resultType", "ttlMs", "cacheScope"):
                        result.pop(own, None)
                    result["_meta"].pop("io.modelcontextprotocol/serverInfo", None)
                    assert json.dumps(result) == json.dumps(ODD_RESULT)
            calls = [line["params"] for line in record_of(server) if line.get("method") == "tools/call"]
            assert [json.dumps(call) for call in calls] == ['{"name": "odd", "arguments": {"a": 1.0, "b": null}}'] * 2

    run(work())


def test_several_upstreams_are_shown_under_names_that_say_whose_they_are(tmp_path: Path) -> None:
    async def work() -> None:
        long = "t" * 80
        one = entry(tmp_path, spoken([tool("read"), tool(long)]))
        two = entry(tmp_path, spoken([tool("read"), tool("Zwei Worte"), tool("__odd")]))
        async with gateway_of({"one": one, "two": two}, tmp_path, expose="all") as running:
            async with Client(running.url) as client:
                names = [item["name"] for item in await client.every("tools/list", "tools")]
                assert names[0] == "one__read"
                assert "two__read" in names
                assert all(len(name) <= 48 for name in names)
                assert len(set(names)) == 5
                for name in names:
                    said = json.loads(await client.text(name, {"n": name}))
                    assert said["arguments"] == {"n": name}
            called = [line["params"]["name"] for line in record_of(two) if line.get("method") == "tools/call"]
            assert called == ["read", "Zwei Worte", "__odd"]
            # A client without that list calls a cut name as well.
            async with Client(running.url) as client:
                assert json.loads(await client.text(names[1]))["name"] == long

    run(work())


@pytest.mark.parametrize("kind", [Client, ModernClient])
def test_an_upstreams_error_keeps_its_code_message_and_data(tmp_path: Path, kind: type[Client]) -> None:
    async def work() -> None:
        data = {"odd": [1.0, None], "url": "x"}
        server = entry(tmp_path, {"tools/call": [{"error": [-32042, "Own words", data]}]})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, kind(running.url) as client:
            with pytest.raises(Failed) as caught:
                await client.call("s__echo")
            assert caught.value.error == {"code": -32042, "message": "Own words", "data": data}

    run(work())


@pytest.mark.parametrize("kind", [Client, ModernClient])
def test_an_exception_in_the_gateway_says_nothing_to_a_client(
    tmp_path: Path, kind: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with gateway_of({"s": entry(tmp_path)}, tmp_path, expose="all") as running:

            async def broken(exchange: Any) -> dict[str, Any]:
                raise ValueError("s3cr3t-planted-value")

            monkeypatch.setitem(running.gateway._handlers, "tools/list", broken)
            async with kind(running.url) as client:
                with pytest.raises(Failed) as caught:
                    await client.request("tools/list")
                assert caught.value.error == {"code": -32603, "message": "Internal error"}

    run(work())


def test_progress_comes_before_the_answer_under_the_clients_own_token(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"progress": 3, "total": 3}, {"echo": True}]})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            for kind in (Client, ModernClient):
                async with kind(running.url) as client:
                    await client.call("s__echo", _meta={"progressToken": "mine"})
                    assert [one["params"] for one in client.heard] == [
                        {"progressToken": "mine", "progress": n, "message": f"step {n}", "total": 3} for n in (1, 2, 3)
                    ]

    run(work())


def test_a_cancelled_call_is_cancelled_at_the_upstream_in_both_eras(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [[{"hang": True}]]})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            async with Client(running.url) as client:
                message = client.message("tools/call", {"name": "s__echo", "arguments": {}})
                calling = asyncio.create_task(client.send(message))
                await until(lambda: "tools/call" in methods_of(server))
                assert await client.notify("notifications/cancelled", {"requestId": message["id"]}) == 202
                with pytest.raises(Failed) as caught:
                    await asyncio.wait_for(calling, 5)
                assert caught.value.code == -32800
                await until(lambda: methods_of(server).count("notifications/cancelled") == 1)
            async with ModernClient(running.url) as client:
                calling = asyncio.create_task(client.call("s__echo"))
                await until(lambda: methods_of(server).count("tools/call") == 2)
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                await until(lambda: methods_of(server).count("notifications/cancelled") == 2)

    run(work())


def test_a_shared_upstream_is_one_process_and_is_offered_nothing(tmp_path: Path) -> None:
    asks = [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {"type": "object"}}]}, {"answer": True}]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call:echo": [asks], "tools/call:other": [{"pid": True}]})
        capabilities = {"elicitation": {}, "sampling": {}, "roots": {}}
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            async with (
                Client(running.url, capabilities=capabilities) as first,
                Client(running.url, capabilities=capabilities) as second,
            ):
                assert await first.text("s__other") == await second.text("s__other")
                said = json.loads(await first.text("s__echo"))
                assert said["error"]["code"] == -32601
                assert first.asked == second.asked == []
            opened = [line["params"] for line in record_of(server) if line.get("method") == "initialize"]
            assert [one["capabilities"] for one in opened] == [{}]
            assert len([line for line in record_of(server) if "pid" in line]) == 1

    run(work())


def test_an_upstream_that_is_not_shared_asks_the_client_that_called(tmp_path: Path) -> None:
    asked = {"message": "Which?", "requestedSchema": {"type": "object", "x": 1.0}, "_meta": {"progressToken": "t"}}
    asks = [{"ask": ["elicitation/create", asked]}, {"answer": True}]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call:echo": [asks], "tools/call:other": [{"pid": True}]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            clients = [Client(running.url, capabilities={"elicitation": {"form": {}}}) for _ in range(2)]
            async with clients[0] as first, clients[1] as second:
                first.answer = lambda method, params: {"action": "accept", "content": {"who": 1}}
                second.answer = lambda method, params: {"error": {"code": -1, "message": "no", "data": [2]}}
                answers = await asyncio.gather(first.text("s__echo"), second.text("s__echo"))
                assert json.loads(answers[0]) == {"action": "accept", "content": {"who": 1}}
                assert json.loads(answers[1]) == {"error": {"code": -1, "message": "no", "data": [2]}}
                assert [len(first.asked), len(second.asked)] == [1, 1]
                params = first.asked[0]["params"]
                params["_meta"]["progressToken"] = "t"
                assert params == asked
                assert await first.text("s__other") != await second.text("s__other")
            opened = [line["params"] for line in record_of(server) if line.get("method") == "initialize"]
            assert [one["capabilities"] for one in opened] == [{"elicitation": {"form": {}}}] * 2
            assert opened[0]["clientInfo"]["name"] == "test"

    run(work())


def test_a_question_of_an_older_upstream_is_a_round_for_a_newer_client(tmp_path: Path) -> None:
    asks = [
        {"ask": ["elicitation/create", {"message": "one", "requestedSchema": {"type": "object"}}]},
        {"ask": ["elicitation/create", {"message": "two", "requestedSchema": {"type": "object"}}]},
        {"answer": True},
    ]

    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [asks]}, shared=False)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running:
            async with ModernClient(running.url, capabilities={"elicitation": {}}) as client:
                call: dict[str, Any] = {"name": "s__echo", "arguments": {}}
                for number in ("one", "two"):
                    result = await client.request("tools/call", call)
                    assert result["resultType"] == "input_required"
                    [(key, question)] = result["inputRequests"].items()
                    assert question["method"] == "elicitation/create"
                    assert question["params"]["message"] == number
                    answer = {"action": "accept", "content": {"n": number}}
                    call = {**call, "inputResponses": {key: answer}, "requestState": result["requestState"]}
                result = await client.request("tools/call", call)
                assert result["resultType"] == "complete"
                assert json.loads(text_of(result)) == {"action": "accept", "content": {"n": "two"}}
                # A state is good for one round, and for its own client.
                with pytest.raises(Failed) as caught:
                    await client.request("tools/call", call)
                assert caught.value.code == -32602
            assert methods_of(server).count("tools/call") == 1

    run(work())


def test_a_round_of_a_newer_upstream_is_a_question_for_an_older_client(tmp_path: Path) -> None:
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    first = {"resultType": "input_required", "inputRequests": {"k": question}, "requestState": "S"}

    async def work() -> None:
        with HttpServer({"tools/call": [{"result": first}, {}]}, era="modern") as server:
            async with gateway_of({"s": {"url": server.url}}, tmp_path, expose="all") as running:
                async with Client(running.url, capabilities={"elicitation": {}}) as client:
                    client.answer = lambda method, params: {"action": "accept", "content": {"a": 1.0}}
                    await client.call("s__echo", {"x": 1})
                    assert client.asked[0]["params"] == question["params"]
                again = server.of("tools/call")[1].message["params"]
                assert again["inputResponses"] == {"k": {"action": "accept", "content": {"a": 1.0}}}
                assert again["requestState"] == "S"
                assert again["_meta"]["io.modelcontextprotocol/clientCapabilities"] == {"elicitation": {}}

    run(work())


def test_no_header_of_a_client_reaches_an_upstream(tmp_path: Path) -> None:
    """B193, B194."""

    async def work() -> None:
        secret = {"authorization": "Bearer GW-s3cr3t", "x-secret": "GW-s3cr3t", "x-api-key": "GW-s3cr3t",
                  "cookie": "a=GW-s3cr3t"}  # fmt: skip
        with HttpServer(era="both") as server:
            upstream = {"url": server.url, "headers": {"X-Own": "mine"}}
            async with gateway_of({"s": upstream}, tmp_path, expose="all") as running:
                for kind in (Client, ModernClient):
                    async with kind(running.url, **secret) as client:
                        await client.call("s__echo")
            assert len(server.of("tools/call")) == 2
            for request in server.requests:
                assert "GW-s3cr3t" not in json.dumps([request.headers, request.body.decode()])
                assert request.headers["x-own"] == "mine"

    run(work())


def test_each_client_session_has_an_upstream_session_over_http(tmp_path: Path) -> None:
    async def work() -> None:
        with HttpServer(session=True) as server:
            async with gateway_of({"s": {"url": server.url}}, tmp_path, expose="all") as running:
                async with Client(running.url) as first, Client(running.url) as second:
                    await asyncio.gather(*(client.call("s__echo") for client in (first, second, first)))
                    used = {request.headers["mcp-session-id"] for request in server.of("tools/call")}
                    assert len(used) == 2
                await until(lambda: len(server.of("DELETE")) == 2)
                assert {request.headers["mcp-session-id"] for request in server.of("DELETE")} == used

    run(work())


def test_a_header_that_a_tool_wants_is_mirrored_and_checked(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}

    async def work() -> None:
        with HttpServer(era="modern", tools=[tool("go", inputSchema=schema)]) as server:
            async with gateway_of({"s": {"url": server.url}}, tmp_path, expose="all") as running:
                async with Client(running.url) as client:
                    for _ in range(3):
                        await client.call("s__go", {"region": "eu"})
                assert [one.headers["mcp-param-region"] for one in server.of("tools/call")] == ["eu"] * 3
                # One listing for the connection, and none for each call.
                assert len(server.of("tools/list")) == 1
                async with ModernClient(running.url) as modern:
                    with pytest.raises(Failed) as caught:
                        await modern.call("s__go", {"region": "eu"})
                    assert (caught.value.code, caught.value.status) == (-32020, 400)
                async with ModernClient(running.url, **{"mcp-param-region": "eu"}) as modern:
                    await modern.call("s__go", {"region": "eu"})

    run(work())


def test_resources_and_prompts_find_their_server(tmp_path: Path) -> None:
    def script(name: str) -> dict[str, Any]:
        resource = {"uri": f"x://{name}", "name": name, "_meta": {"own": 1.0}}
        return {
            "initialize": greeting(capabilities={"resources": {"subscribe": True}, "prompts": {}, "completions": {}}),
            "resources/list": [{"result": {"resources": [resource, {"uri": "x://both", "name": name}]}}],
            "resources/templates/list": [{"result": {"resourceTemplates": [{"uriTemplate": f"{name}://{{id}}"}]}}],
            "resources/read": [{"result": {"contents": [{"uri": "?", "text": name}]}}],
            "resources/subscribe": [
                {"result": {}},
                {"notify": ["notifications/resources/updated", {"uri": f"x://{name}"}]},
            ],
            "prompts/list": [{"result": {"prompts": [{"name": "p", "title": name}]}}],
            "prompts/get": [{"result": {"messages": [], "description": name}}],
            "completion/complete": [{"result": {"completion": {"values": [name]}}}],
        }

    async def work() -> None:
        servers = {name: entry(tmp_path, script(name)) for name in ("a", "b")}
        async with gateway_of(servers, tmp_path, expose="all") as running, Client(running.url) as client:
            listed = await client.every("resources/list", "resources")
            assert [one["uri"] for one in listed] == ["x://a", "x://both", "x://b"]
            assert listed[0]["_meta"] == {"own": 1.0}
            for uri, owner in (("x://b", "b"), ("x://both", "a"), ("b://7", "b"), ("a://7", "a")):
                read = await client.request("resources/read", {"uri": uri})
                assert read["contents"][0]["text"] == owner, uri
            prompts = await client.every("prompts/list", "prompts")
            assert [(one["name"], one["title"]) for one in prompts] == [("a__p", "a"), ("b__p", "b")]
            assert (await client.request("prompts/get", {"name": "b__p"}))["description"] == "b"
            for ref in ({"type": "ref/prompt", "name": "b__p"}, {"type": "ref/resource", "uri": "b://{id}"}):
                argument = {"name": "x", "value": ""}
                found = await client.request("completion/complete", {"ref": ref, "argument": argument})
                assert found["completion"]["values"] == ["b"]
            await client.listen()
            await client.request("resources/subscribe", {"uri": "x://b"})
            await until(lambda: client.heard)
            assert client.heard[0]["params"] == {"uri": "x://b"}

    run(work())


def test_a_changed_list_is_told_to_every_client_in_its_own_way(tmp_path: Path) -> None:
    async def work() -> None:
        changes = [{"echo": True}, {"notify": ["notifications/tools/list_changed", {}]}]
        server = entry(tmp_path, {"tools/call": [changes]})
        async with (
            gateway_of({"s": server}, tmp_path, expose="all") as running,
            Client(running.url) as old,
            ModernClient(running.url) as new,
        ):
            await old.listen()
            listening = asyncio.create_task(
                new.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            )
            await until(lambda: new.heard)
            assert new.heard[0]["method"] == "notifications/subscriptions/acknowledged"
            assert new.heard[0]["params"]["notifications"] == {"toolsListChanged": True}
            await old.request("tools/list")
            await new.request("tools/list")
            await old.call("s__echo")
            await until(lambda: "notifications/tools/list_changed" in old.methods())
            await until(lambda: "notifications/tools/list_changed" in new.methods())
            stamp = new.heard[0]["params"]["_meta"]
            assert new.heard[1]["params"]["_meta"] == stamp
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            before = methods_of(server).count("tools/list")
            await old.request("tools/list")
            assert methods_of(server).count("tools/list") == before + 1

    run(work())


def test_log_messages_go_to_the_client_that_has_the_upstream_for_itself_and_to_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        says = [{"notify": ["notifications/message", {"level": "info", "data": {"x": 1.0}}]}, {"echo": True}]
        offers = greeting(capabilities={"tools": {}, "logging": {}})
        script = {"initialize": offers, "tools/call": [says], "logging/setLevel": [{"result": {}}]}
        own, shared = entry(tmp_path, script, shared=False), entry(tmp_path, script)
        async with (
            gateway_of({"own": own, "shared": shared}, tmp_path, expose="all") as running,
            Client(running.url) as first,
            Client(running.url) as second,
        ):
            await first.request("logging/setLevel", {"level": "debug"})
            await first.call("own__echo")
            await first.call("shared__echo")
            await until(lambda: first.heard)
            assert [one["params"] for one in first.heard] == [{"level": "info", "data": {"x": 1.0}}]
            assert second.heard == []
            assert "logging/setLevel" in methods_of(own)
            assert "logging/setLevel" not in methods_of(shared)
            with pytest.raises(Failed):
                await first.request("logging/setLevel", {"level": "loud"})

    run(work())


@pytest.mark.parametrize(("asked", "given"), [("2030-01-01", "2025-11-25"), ("2024-11-05", "2024-11-05")])
def test_b197_an_unknown_version_is_answered_with_one_that_is_known(tmp_path: Path, asked: str, given: str) -> None:
    async def work() -> None:
        async with (
            gateway_of({"s": entry(tmp_path)}, tmp_path, expose="all") as running,
            Client(running.url) as client,
        ):
            await client.begin(asked)
            assert client.initialized["protocolVersion"] == given

    run(work())


def test_a_tool_that_the_configuration_excludes_is_neither_listed_nor_called(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, excludeTools=["other"])
        for prefix, name in ((True, "s__other"), (False, "other")):
            async with (
                gateway_of({"s": server}, tmp_path, expose="all", prefix=prefix) as running,
                Client(running.url) as client,
            ):
                listed = await client.every("tools/list", "tools")
                assert [one["name"] for one in listed] == [name.replace("other", "echo")]
                with pytest.raises(Failed) as caught:
                    await client.call(name)
                assert caught.value.code == -32602
        assert "tools/call" not in methods_of(server)

    run(work())


def test_a_call_that_a_person_would_be_asked_about_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        servers = {
            "asks": entry(tmp_path, trust="untrusted"),
            "named": entry(tmp_path, trust="untrusted", includeTools=["echo"]),
        }
        async with gateway_of(servers, tmp_path, expose="all") as running, Client(running.url) as client:
            with pytest.raises(Failed) as caught:
                await client.call("asks__echo")
            assert caught.value.code == -32003
            await client.call("named__echo")
        assert "tools/call" not in methods_of(servers["asks"])

    run(work())


def test_pages_are_bounded_and_a_wrong_cursor_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/list": [{"page": [40, 90]}]})
        async with (
            gateway_of({"s": server}, tmp_path, expose="all", page_size=25) as running,
            Client(running.url) as client,
        ):
            first = await client.request("tools/list")
            assert len(first["tools"]) == 25
            assert len(await client.every("tools/list", "tools")) == 90
            for cursor in ("x", "p-1", 7, "p99999999"):
                with pytest.raises(Failed) as caught:
                    await client.request("tools/list", {"cursor": cursor})
                assert caught.value.code == -32602

    run(work())


def test_a_server_that_is_down_is_named_and_the_others_are_listed(tmp_path: Path) -> None:
    async def work() -> None:
        servers = {"down": entry(tmp_path, {"start": [{"exit": 3}]}), "up": entry(tmp_path)}
        async with gateway_of(servers, tmp_path, expose="all") as running, Client(running.url) as client:
            result = await client.request("tools/list")
            assert [one["name"] for one in result["tools"]] == ["up__echo", "up__other"]
            [missing] = result["_meta"]["pi-mcp/unavailable"]
            assert (missing["server"], missing["code"]) == ("down", "connection_failed")
            with pytest.raises(Failed) as caught:
                await client.call("down__echo")
            assert caught.value.data["code"] == "connection_failed"

    run(work())


def test_an_idle_upstream_is_closed_and_starts_again_when_it_is_used(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"tools/call": [{"pid": True}]})
        async with (
            gateway_of({"s": server}, tmp_path, expose="all", idle_timeout=0.3) as running,
            Client(running.url) as client,
        ):
            first = await client.text("s__echo")
            await until(lambda: not any(one.live for one in running.plugin.connections.upstreams))
            assert await client.text("s__echo") != first

    run(work())


def test_a_task_is_asked_about_at_the_server_that_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        def script(name: str) -> dict[str, Any]:
            task = {"taskId": f"task-{name}", "status": "working", "ttl": 1.0}
            return {
                "initialize": greeting(capabilities={"tools": {}, "tasks": {"list": {}}}),
                "tools/call": [{"result": {"task": task, "_meta": {"x": None}}}],
                "tasks/get": [{"result": {**task, "status": name}}],
                "tasks/result": [{"result": {"content": [], "of": name}}],
                "tasks/list": [{"result": {"tasks": [task]}}],
            }

        servers = {name: entry(tmp_path, script(name), shared=False) for name in ("a", "b")}
        capabilities = {"tasks": {"cancel": {}}}
        async with (
            gateway_of(servers, tmp_path, expose="all") as running,
            Client(running.url, capabilities=capabilities) as client,
        ):
            assert "tasks" in client.initialized["capabilities"]
            for name in ("a", "b"):
                made = await client.call(f"{name}__echo", task={"ttl": 1.0})
                assert made["task"]["taskId"] == f"task-{name}"
            for name in ("b", "a"):
                found = {"taskId": f"task-{name}"}
                assert (await client.request("tasks/get", found))["status"] == name
                assert (await client.request("tasks/result", found))["of"] == name
            listed = (await client.request("tasks/list"))["tasks"]
            assert [task["taskId"] for task in listed] == ["task-a", "task-b"]
            with pytest.raises(Failed) as caught:
                await client.request("tasks/get", {"taskId": "task-x"})
            assert caught.value.code == -32602
            async with Client(running.url) as other:  # another client's tasks are none of its
                with pytest.raises(Failed):
                    await other.request("tasks/get", {"taskId": "task-a"})
        call = next(line["params"] for line in record_of(servers["a"]) if line.get("method") == "tools/call")
        assert call["task"] == {"ttl": 1.0}

    run(work())


def test_a_client_of_the_older_protocol_hears_of_a_resource_of_a_newer_server(tmp_path: Path) -> None:
    def listen(request: Any, server: HttpServer) -> dict[str, Any]:
        wanted = request.message["params"]["notifications"]
        if "resourceSubscriptions" not in wanted:
            return {"events": [{"hang": True}]}
        update = {"uri": wanted["resourceSubscriptions"][0], "own": 1.0}
        news = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": update}
        return {"events": [{"sleep": 0.1}, {"data": news}, {"hang": True}]}

    async def work() -> None:
        offers = {
            "resultType": "complete",
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"resources": {"subscribe": True}},
        }
        resources = {"resultType": "complete", "resources": [{"uri": "x://1", "name": "x"}]}
        script = {
            "server/discover": {"result": offers},
            "resources/list": {"result": resources},
            "resources/templates/list": {"result": {"resultType": "complete", "resourceTemplates": []}},
            "subscriptions/listen": listen,
        }
        with HttpServer(script, era="modern") as server:
            async with (
                gateway_of({"s": {"url": server.url}}, tmp_path, expose="all") as running,
                Client(running.url) as client,
            ):
                await client.listen()
                assert await client.request("resources/subscribe", {"uri": "x://1"}) == {}
                await until(lambda: client.heard)
                assert client.heard[0]["params"] == {"uri": "x://1", "own": 1.0}
                assert await client.request("resources/unsubscribe", {"uri": "x://1"}) == {}

    run(work())


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_what_is_no_number_in_json_goes_no_further(tmp_path: Path, number: str) -> None:
    async def work() -> None:
        server = entry(tmp_path)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            message = client.message("tools/call", {"name": "s__echo", "arguments": {"n": "?"}})
            body = json.dumps(message).replace('"?"', number)
            answer = await client._http.post(running.url, headers=client._sent(message), content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32700)
        assert "tools/call" not in methods_of(server)

    run(work())
