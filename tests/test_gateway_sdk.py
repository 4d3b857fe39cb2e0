"""The official client of the Python SDK in front of the gateway: both eras, both transports, one older upstream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway_support import NO_TLS, command, gateway_of
from tests.hostile.script import entry, tool
from tests.plugin_support import greeting
from tests.support import run

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

URI = "file:///a"
SCRIPT: dict[str, Any] = {
    "initialize": greeting(capabilities={"tools": {"listChanged": True}, "resources": {"subscribe": True}}),
    "tools/list": [{"result": {"tools": [tool("ask"), tool("slow"), tool("change")]}}],
    "tools/call:ask": [
        [{"ask": ["elicitation/create", {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}]},
         {"answer": True}]
    ],
    "tools/call:slow": [[{"progress": 3}, {"echo": True}]],
    "tools/call:change": [
        [{"notify": ["notifications/tools/list_changed", {}]},
         {"notify": ["notifications/resources/updated", {"uri": URI}]}, {"echo": True}]
    ],
    "resources/list": [{"result": {"resources": [{"uri": URI, "name": "a"}]}}],
    "resources/read": [{"result": {"contents": [{"uri": URI, "text": "read"}]}}],
    "resources/subscribe": [{"result": {}}],
}  # fmt: skip


@contextlib.asynccontextmanager
async def reached(transport: str, server: dict[str, Any], folder: Path) -> AsyncIterator[Any]:
    """The SDK's transport to a gateway over that server."""
    if transport == "stdio":
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        file = folder / "gateway.json"
        file.write_text(json.dumps({"mcpServers": {"s": server}}))
        words = command(file, "--expose", "all")
        yield stdio_client(StdioServerParameters(command=sys.executable, args=words[1:], env=dict(os.environ)))
        return
    from mcp.client.streamable_http import streamable_http_client

    async with (
        gateway_of({"s": server}, folder, expose="all") as running,
        httpx2.AsyncClient(verify=NO_TLS, trust_env=False, timeout=20) as http,
    ):
        yield streamable_http_client(running.url, http_client=http)


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
def test_the_official_client_is_asked_and_told_what_an_older_upstream_asks_and_tells(
    mode: Any, version: str, transport: str, tmp_path: Path
) -> None:
    import mcp_types as wire
    from mcp import Client

    heard: list[str] = []
    done: list[float] = []

    async def elicit(context: Any, params: Any) -> Any:
        return wire.ElicitResult(action="accept", content={"a": "b"})

    async def hear(message: Any) -> None:
        heard.append(message.method)

    async def progress(so_far: float, total: float | None, message: str | None) -> None:
        done.append(so_far)

    async def work() -> None:
        server = entry(tmp_path, SCRIPT, shared=False)
        async with (
            reached(transport, server, tmp_path) as way,
            Client(way, mode=mode, elicitation_callback=elicit, message_handler=hear) as client,
        ):
            assert client.protocol_version == version
            assert [one.name for one in (await client.list_tools()).tools] == ["s__ask", "s__slow", "s__change"]
            asked = await asyncio.gather(*(client.call_tool("s__ask", {}) for _ in range(3)))
            for result in asked:
                assert json.loads(result.content[0].text) == {"action": "accept", "content": {"a": "b"}}
            await client.call_tool("s__slow", {}, progress_callback=progress)
            assert done == [1, 2, 3]
            read = await client.read_resource(URI)
            assert read.contents[0].text == "read"
            wanted = {"notifications/tools/list_changed", "notifications/resources/updated"}
            if mode == "legacy":
                subscription = wire.SubscribeRequest(params=wire.SubscribeRequestParams(uri=URI))
                await client.session.send_request(subscription, wire.EmptyResult)
                await client.call_tool("s__change", {})
                async with asyncio.timeout(10):
                    while not wanted <= set(heard):  # noqa: ASYNC110 -- no event
                        await asyncio.sleep(0.02)
                return
            async with client.listen(tools_list_changed=True, resource_subscriptions=[URI]) as news:
                await client.call_tool("s__change", {})
                told = set()
                async with asyncio.timeout(10):
                    async for event in news:
                        told.add(type(event).__name__)
                        if len(told) == 2:
                            break
                assert told == {"ToolsListChanged", "ResourceUpdated"}

    run(work(), 60)
