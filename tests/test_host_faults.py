"""Hosts whose callbacks fail or answer nonsense: the call, the connection and the other hosts outlive them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.errors import PiMcpError
from tests.hostile.http_server import HttpServer
from tests.plugin_support import AskingHost, plugin_of
from tests.support import run

QUESTION = {
    "jsonrpc": "2.0",
    "id": 77,
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}},
}


class Faulty(AskingHost):
    """`answer` is what its dialogs give; its displays raise."""

    interactive = True

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    async def confirm(self, question: str, details: str) -> bool:
        return self.answer  # type: ignore[no-any-return]

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        return self.answer  # type: ignore[no-any-return]

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        raise RuntimeError

    def tools_changed(self) -> None:
        raise RuntimeError


def test_displays_that_raise_lose_neither_a_load_nor_a_listing(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with plugin_of({"h": {"url": server.url}}, tmp_path) as plugin:
                session = plugin.session("one", Faulty(None))
                assert (await session.load(["h.echo"])).loaded
                assert (await session.command("refresh")).diagnostic is None

    run(main())


@pytest.mark.parametrize("answer", [[object()], {"a": object()}, {"a": float("nan")}, "yes", 5])
def test_a_form_that_is_no_json_object_is_declined_and_the_connection_lives_on(answer: Any, tmp_path: Path) -> None:
    async def main() -> None:
        script = {"tools/call": {"events": [{"data": QUESTION}, {"sleep": 0.2}, {"answer": True}]}}
        with HttpServer(script) as server:
            async with plugin_of({"h": {"url": server.url, "trust": "trusted"}}, tmp_path) as plugin:
                session = plugin.session("one", Faulty(answer))
                await session.load(["h.echo"])
                for _ in range(2):
                    assert not (await session.call("mcp__h__echo", {})).is_error
            assert len(server.of("initialize")) == 1
            assert [one.message["result"] for one in server.of("response")] == [{"action": "decline"}] * 2

    run(main())


@pytest.mark.parametrize("answer", ["no", [0], 1, {"action": "decline"}, None])
def test_only_true_is_a_yes(answer: Any, tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as server:
            async with plugin_of({"h": {"url": server.url, "trust": "verified"}}, tmp_path) as plugin:
                session = plugin.session("one", Faulty(answer))
                await session.load(["h.echo"])
                with pytest.raises(PiMcpError) as error:
                    await session.call("mcp__h__echo", {})
                assert error.value.diagnostic.code == "refused"
            assert server.of("tools/call") == []

    run(main())
