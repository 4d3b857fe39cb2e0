"""The raw channel to an upstream: negotiation, forwarding, errors, subscriptions, and whose message is whose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.errors import PiMcpError
from pi_mcp.plugin import Forwarding, Plugin, RpcError, Upstream
from tests.auth_support import until
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, methods_of, record_of
from tests.plugin_support import greeting, plugin_of
from tests.support import run


class Person:
    """A client behind a channel that keeps what it hears."""

    modern = False

    def __init__(self, capabilities: Mapping[str, Any] | None = None) -> None:
        self.offered = dict(capabilities or {})
        self.heard: list[tuple[Forwarding | None, str, dict[str, Any]]] = []
        self.questions: list[tuple[Forwarding | None, str, dict[str, Any]]] = []

    def capabilities(self) -> dict[str, Any]:
        return self.offered

    def info(self) -> Mapping[str, Any] | None:
        return {"name": "person", "version": "7"}

    async def asked(
        self, upstream: Upstream, request: Forwarding | None, method: str, params: dict[str, Any]
    ) -> dict[str, Any]:
        self.questions.append((request, method, params))
        return {"answer": len(self.questions)}

    def notified(self, upstream: Upstream, request: Forwarding | None, method: str, params: dict[str, Any]) -> None:
        self.heard.append((request, method, params))


class Request:
    """One request, and what it was told."""

    def __init__(self, **more: Any) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

        async def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
            return {}

        self.forwarding = Forwarding(notify=lambda method, params: self.told.append((method, params)), ask=ask, **more)


def channel(plugin: Plugin, person: Person | None = None, **more: Any) -> Upstream:
    plugin.forward(None)
    return plugin.upstream("s", None if person is None else "client", person, **more)


async def call(upstream: Upstream, request: Request | None = None, **params: Any) -> dict[str, Any]:
    return await upstream.request(
        "tools/call", {"name": "echo", "arguments": {}, **params}, (request or Request()).forwarding
    )


def test_each_client_has_a_channel_of_its_own_and_the_shared_one_is_the_plugins_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with plugin_of({"s": entry(tmp_path)}, tmp_path) as plugin:
            plugin.forward(None)
            person = Person()
            own, again = (plugin.upstream("s", "a", person) for _ in range(2))
            other, shared = plugin.upstream("s", "b", Person()), plugin.upstream("s", None)
            assert own is again
            assert len({own, other, shared}) == 3
            assert plugin.connections.get("s") is shared
            await call(own)
            await plugin.connections.end_client("a")
            assert not own.live
            assert plugin.upstream("s", "a", person) is not own

    run(work())


def test_the_clients_capabilities_and_name_are_declared_but_not_to_an_untrusted_server(tmp_path: Path) -> None:
    async def work() -> None:
        for trust, declared in (("trusted", {"sampling": {"x": 1.0}}), ("untrusted", {})):
            server = entry(tmp_path, trust=trust)
            async with plugin_of({"s": server}, tmp_path) as plugin:
                await channel(plugin, Person({"sampling": {"x": 1.0}})).connect()
            [opened] = [line["params"] for line in record_of(server) if line.get("method") == "initialize"]
            assert opened["capabilities"] == declared
            assert opened["clientInfo"] == {"name": "person", "version": "7"}

    run(work())


@pytest.mark.parametrize(("legacy_first", "method"), [(True, "initialize"), (False, "server/discover")])
def test_a_server_of_both_eras_is_met_in_the_clients(tmp_path: Path, legacy_first: bool, method: str) -> None:
    async def work() -> None:
        with HttpServer(era="both") as server:
            async with plugin_of({"s": {"url": server.url}}, tmp_path) as plugin:
                upstream = channel(plugin, Person(), legacy_first=legacy_first)
                await call(upstream)
                assert upstream.era == ("legacy" if legacy_first else "modern")
            assert server.requests[0].method == method

    run(work())


def test_a_server_of_the_newer_era_alone_is_reached_by_a_client_of_the_older(tmp_path: Path) -> None:
    async def work() -> None:
        with HttpServer(era="modern") as server:
            async with plugin_of({"s": {"url": server.url}}, tmp_path) as plugin:
                upstream = channel(plugin, Person(), legacy_first=True)
                await call(upstream)
                assert upstream.era == "modern"

    run(work())


def test_the_envelope_is_that_of_the_hop_and_other_members_of_meta_pass(tmp_path: Path) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        "io.modelcontextprotocol/logLevel": "debug",
        "own/key": {"deep": [1.0, None]},
    }

    async def work() -> None:
        for era in ("legacy", "modern"):
            with HttpServer(era=era) as server:
                async with plugin_of({"s": {"url": server.url}}, tmp_path) as plugin:
                    request = Request(capabilities={"elicitation": {}})
                    await call(channel(plugin, Person()), request, _meta=meta)
                [sent] = [one.message["params"]["_meta"] for one in server.of("tools/call")]
            assert sent.pop("own/key") == {"deep": [1.0, None]}
            if era == "legacy":
                assert sent == {}
            else:
                assert sent == {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientInfo": {"name": "person", "version": "7"},
                    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
                    "io.modelcontextprotocol/logLevel": "debug",
                }

    run(work())


def test_over_http_a_servers_message_belongs_to_the_request_in_whose_stream_it_came(tmp_path: Path) -> None:
    def stream(request: Any, server: HttpServer) -> dict[str, Any]:
        name = request.message["params"]["name"]
        ask = {"jsonrpc": "2.0", "id": f"q-{name}", "method": "sampling/createMessage", "params": {"for": name}}
        log = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": name}}
        return {"events": [{"data": log}, {"data": ask}, {"sleep": 0.2}, {"answer": True}]}

    async def work() -> None:
        with HttpServer({"tools/call": stream}) as server:
            async with plugin_of({"s": {"url": server.url}}, tmp_path) as plugin:
                person = Person({"sampling": {}})
                upstream = channel(plugin, person)
                requests = {name: Request() for name in ("one", "two", "three")}
                await asyncio.gather(*(call(upstream, request, name=name) for name, request in requests.items()))
                for name, request in requests.items():
                    assert (request.forwarding, "sampling/createMessage", {"for": name}) in person.questions
                    logged = {"level": "info", "data": name}
                    assert (request.forwarding, "notifications/message", logged) in person.heard
                answers = {one.message["id"] for one in server.of("response")}
                assert answers == {"q-one", "q-two", "q-three"}

    run(work())


def test_progress_is_for_the_request_whose_token_it_names(tmp_path: Path) -> None:
    async def work() -> None:
        script = {"tools/call": [{"progress": 2}, {"progress": 1, "of": "other"}, {"echo": True}]}
        async with plugin_of({"s": entry(tmp_path, script)}, tmp_path) as plugin:
            upstream = channel(plugin)
            with_token, without = Request(progress_token="mine"), Request()
            await asyncio.gather(call(upstream, with_token, _meta={"progressToken": "mine"}), call(upstream, without))
            assert [params["progressToken"] for _, params in with_token.told] == ["mine", "mine"]
            assert without.told == []

    run(work())


def test_errors_of_the_server_are_raw_and_those_of_the_way_are_ours(tmp_path: Path) -> None:
    async def work() -> None:
        script = {"tools/call": [[{"error": [-32000, "Connection closed", {"x": 1.0}]}], [{"exit": 1}]]}
        async with plugin_of({"s": entry(tmp_path, script)}, tmp_path) as plugin:
            upstream = channel(plugin)
            with pytest.raises(RpcError) as raw:
                await call(upstream)
            assert raw.value.to_json() == {"code": -32000, "message": "Connection closed", "data": {"x": 1.0}}
            with pytest.raises(PiMcpError) as ours:
                await call(upstream)
            assert ours.value.diagnostic.code == "connection_failed"

    run(work())


def test_what_a_client_asked_for_is_asked_for_again_after_a_new_start(tmp_path: Path) -> None:
    async def work() -> None:
        offers = greeting(capabilities={"resources": {"subscribe": True}, "logging": {}, "tools": {}})
        script = {
            "initialize": offers,
            "tools/call": [[{"exit": 1}], [{"echo": True}]],
            "resources/subscribe": [{"result": {}}],
            "logging/setLevel": [{"result": {}}],
        }
        server = entry(tmp_path, script)
        async with plugin_of({"s": server}, tmp_path) as plugin:
            upstream = channel(plugin, Person())
            upstream.log_level = "warning"
            await upstream.subscribe("x://1", Request().forwarding)
            await upstream.subscribe("x://1", Request().forwarding)
            with pytest.raises(PiMcpError):
                await call(upstream)
            await upstream.connect()
            seen = methods_of(server)
            assert seen.count("resources/subscribe") == 2
            assert seen.count("logging/setLevel") == 2

    run(work())


def test_a_newer_server_is_listened_to_for_the_changes_that_it_declares(tmp_path: Path) -> None:
    async def work() -> None:
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": {"k": 1.0}}}
        events = [{"sleep": 0.5}, {"data": changed}, {"hang": True}]
        script: dict[str, Any] = {"subscriptions/listen": {"events": events}}
        with HttpServer(script, era="modern") as server:
            async with plugin_of({"s": {"url": server.url}}, tmp_path) as plugin:
                person = Person()
                upstream = channel(plugin, person)
                await upstream.connect()
                upstream.kept["tools"] = "old"
                await until(lambda: person.heard != [])
                assert person.heard == [(None, "notifications/tools/list_changed", {"_meta": {"k": 1.0}})]
                assert "tools" not in upstream.kept
                await upstream.subscribe("x://1", Request().forwarding)
                await until(lambda: len(server.of("subscriptions/listen")) >= 2)
            wanted = [json.dumps(one.message["params"]["notifications"]) for one in server.of("subscriptions/listen")]
            assert wanted == ['{"toolsListChanged": true}', '{"resourceSubscriptions": ["x://1"]}']

    run(work())


def test_a_changed_configuration_takes_every_channel_of_that_server_out_of_use(tmp_path: Path) -> None:
    from pi_mcp.config import configuration_of

    async def work() -> None:
        async with plugin_of({"s": entry(tmp_path)}, tmp_path) as plugin:
            own, shared = channel(plugin, Person()), channel(plugin)
            await asyncio.gather(call(own), call(shared))
            await plugin.apply(configuration_of({"s": entry(tmp_path)}, cwd=tmp_path))
            assert own.dismissed
            assert shared.dismissed
            assert not own.live
            assert not shared.live

    run(work())
