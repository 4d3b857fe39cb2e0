"""What an upstream lists while it changes: nobody is shown for long what there was before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.auth_support import until
from tests.gateway_support import Client, gateway_of
from tests.hostile.script import GONE, entry, methods_of, tool
from tests.plugin_support import greeting
from tests.support import run

CHANGING = greeting(capabilities={"tools": {"listChanged": True}, "prompts": {"listChanged": True}})


def changes_while_it_lists(folder: Path, kind: str, old: Any, new: Any) -> dict[str, Any]:
    """A server whose first list is told to have changed before it is sent."""
    method = f"{kind}/list"
    told = {"notify": [f"notifications/{kind}/list_changed", {}]}
    turns = [[told, {"sleep": 1.0}, {"result": {kind: [old]}}], [{"result": {kind: [new]}}]]
    return entry(folder, {"initialize": CHANGING, method: turns})


@pytest.mark.parametrize("kind", ["tools", "prompts"])
def test_a_list_that_changed_while_it_was_read_is_not_what_is_shown_from_then_on(kind: str, tmp_path: Path) -> None:
    method = f"{kind}/list"

    async def work() -> None:
        server = changes_while_it_lists(tmp_path, kind, tool("old"), tool("new"))
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            await client.listen()
            first = asyncio.create_task(client.request(method))
            # A client lists again when it hears of the change, and gets what there is since.
            await until(lambda: f"notifications/{kind}/list_changed" in client.methods())
            assert not first.done()
            second = await client.request(method)
            assert [one["name"] for one in second[kind]] == ["s__new"]
            await first
            third = await client.request(method)
            assert [one["name"] for one in third[kind]] == ["s__new"]
            # What was asked for at the same time was asked once, and what nobody told to have changed is kept.
            assert methods_of(server).count(method) == 2

    run(work())


def test_a_change_that_nobody_asks_about_meanwhile_is_not_passed_over(tmp_path: Path) -> None:
    async def work() -> None:
        server = changes_while_it_lists(tmp_path, "tools", tool("old"), tool("new"))
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            assert [one["name"] for one in (await client.request("tools/list"))["tools"]] == ["s__old"]
            assert [one["name"] for one in (await client.request("tools/list"))["tools"]] == ["s__new"]

    run(work())


def test_an_address_is_read_while_another_server_does_not_start(tmp_path: Path) -> None:
    uri = "file:///here"

    async def work() -> None:
        has = {
            "initialize": greeting(capabilities={"resources": {}}),
            "resources/list": [{"result": {"resources": [{"uri": uri, "name": "here"}]}}],
            "resources/read": [{"result": {"contents": [{"uri": uri, "text": "read"}]}}],
        }
        servers = {"first": entry(tmp_path, {"start": [{"sleep": 50}]}), "second": entry(tmp_path, has)}
        async with gateway_of(servers, tmp_path, expose="all") as running, Client(running.url) as client:
            read = await asyncio.wait_for(client.request("resources/read", {"uri": uri}), 15)
            assert read["contents"][0]["text"] == "read"

    run(work())


def test_a_server_with_resources_that_knows_no_templates_is_not_called_unavailable(tmp_path: Path) -> None:
    async def work() -> None:
        server = entry(tmp_path, {"initialize": greeting(capabilities={"resources": {}}), "*": [GONE]})
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            assert await client.request("resources/templates/list") == {"resourceTemplates": []}
            assert "resources/templates/list" in methods_of(server)

    run(work())


@pytest.mark.parametrize("turn", [[{"exit": 3}], [{"hang": True}]])
def test_of_a_list_that_fails_nobody_is_told_that_a_call_may_have_run(turn: list[Any], tmp_path: Path) -> None:
    async def work() -> None:
        offers = greeting(capabilities={"tools": {}, "prompts": {}})
        server = entry(tmp_path, {"initialize": offers, "prompts/list": [turn]}, timeoutMs=1000, startupTimeoutMs=20000)
        async with gateway_of({"s": server}, tmp_path, expose="all") as running, Client(running.url) as client:
            listed = await client.request("prompts/list")
            (missing,) = listed["_meta"]["pi-mcp/unavailable"]
            assert (missing["operation"], missing["server"]) == ("list", "s")
            assert "unknown" not in missing["message"]

    run(work())
