"""The pydantic-ai toolset with real servers; only the model is scripted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from pi_mcp import Plugin, configuration_of
from pi_mcp.hosts.pydantic_ai import PiMcpToolset, StableTools, records_of, search_text_of
from tests.chat_support import SERVER, servers_alive, wait_until
from tests.support import run

SUM = "mcp__desk__add_numbers"
WAIT = "mcp__desk__wait_long"
Step = tuple[str, Any] | str


def configuration(folder: Path, **more: Any):
    entry = {"command": sys.executable, "args": [str(SERVER), str(folder / "seen")], **more}
    return configuration_of({"desk": entry})


class Script:
    """A model that goes through steps, and remembers what each request declared."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.declared: list[list[str]] = []
        self.descriptions: list[str | None] = []
        self.messages: list[list[ModelMessage]] = []

    @property
    def model(self) -> FunctionModel:
        return FunctionModel(self._answer)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.declared.append([tool.name for tool in info.function_tools])
        self.descriptions.append(info.function_tools[0].description)
        self.messages.append(messages)
        step = self.steps.pop(0)
        return ModelResponse(parts=[TextPart(step) if isinstance(step, str) else ToolCallPart(step[0], step[1])])


def search(query: str) -> Step:
    return ("mcp_search", {"query": query, "limit": 1})


def test_a_loaded_tool_is_in_the_next_request_of_the_same_run(tmp_path: Path) -> None:
    script = Script(search("add_numbers"), (SUM, {"a": 1, "b": 2}), "three")

    async def main() -> Any:
        async with Plugin(configuration(tmp_path)) as plugin:
            agent = Agent(script.model, toolsets=[PiMcpToolset(plugin)])
            return await agent.run("go")

    result = run(main())
    assert result.output == "three"
    assert script.declared == [["mcp_search"], ["mcp_search", SUM], ["mcp_search", SUM]]


def test_runs_with_different_histories_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        async with Plugin(configuration(tmp_path)) as plugin:
            toolset = PiMcpToolset(plugin)

            async def talk(script: Script, **more: Any) -> Any:
                return await Agent(script.model, toolsets=[toolset]).run("go", **more)

            one, two = Script(search("add_numbers"), "ok"), Script(search("wait_long"), "ok")
            first, second = await asyncio.gather(talk(one), talk(two))
            assert one.declared[-1] == ["mcp_search", SUM]
            assert two.declared[-1] == ["mcp_search", WAIT]

            branch = Script("ok")
            await talk(branch, message_history=first.all_messages())
            assert branch.declared == [["mcp_search", SUM]]
            other = Script(search("add_numbers"), "ok")
            await talk(other, message_history=second.all_messages())
            assert other.declared == [["mcp_search", WAIT], ["mcp_search", WAIT, SUM]]
            empty = Script("ok")
            await talk(empty)
            assert empty.declared == [["mcp_search"]]
            assert plugin.sessions == ()

    run(main())


def test_the_history_alone_restores_tools_and_text_while_the_server_is_gone(tmp_path: Path) -> None:
    first = Script(search("add_numbers"), "ok")

    async def before() -> bytes:
        async with Plugin(configuration(tmp_path)) as plugin:
            result = await Agent(first.model, toolsets=[PiMcpToolset(plugin)]).run("go")
            return ModelMessagesTypeAdapter.dump_json(result.all_messages())

    kept = ModelMessagesTypeAdapter.validate_json(run(before()))
    assert [record["native"] for record in records_of(kept)] == [SUM]
    assert search_text_of(kept) == first.descriptions[0]
    second = Script((SUM, {"a": 1, "b": 2}), "it failed")

    async def after() -> Any:
        gone = configuration_of({"desk": {"command": "/nowhere/server", "description": "another text"}})
        async with Plugin(gone, cache_dir=tmp_path / "empty") as plugin:
            return await Agent(second.model, toolsets=[PiMcpToolset(plugin)]).run("go", message_history=kept)

    result = run(after())
    assert second.declared == [["mcp_search", SUM]] * 2
    assert second.descriptions[0] == first.descriptions[0]
    assert result.output == "it failed"
    (failed,) = [part for part in result.all_messages()[-2].parts if part.part_kind == "tool-return"]
    assert failed.content.startswith("desk: [connection_failed]")
    assert failed.metadata["diagnostics"][0]["code"] == "connection_failed"


def test_a_session_is_shared_by_all_runs_and_keeps_what_the_person_unloaded(tmp_path: Path) -> None:
    async def main() -> None:
        async with Plugin(configuration(tmp_path)) as plugin:
            session = plugin.session("one")
            script = Script(search("add_numbers"), search("wait_long"), "ok", "ok")
            agent = Agent(script.model, toolsets=[PiMcpToolset(session)])
            first = await agent.run("go")
            await session.unload([SUM])
            await agent.run("go", message_history=first.all_messages())
            assert script.declared[-1] == ["mcp_search", WAIT]
            again = Script("ok")
            await Agent(again.model, toolsets=[PiMcpToolset(plugin.session("two"))]).run(
                "go", message_history=first.all_messages()
            )
            assert again.declared == [["mcp_search", SUM, WAIT]]

    run(main())


def test_its_own_plugin_is_open_while_the_agent_is_entered_and_then_leaves_no_server(tmp_path: Path) -> None:
    async def main() -> None:
        script = Script(search("add_numbers"), (SUM, {"a": 1, "b": 1}), "ok", "ok", search("add_numbers"), "ok")
        agent = Agent(script.model, toolsets=[PiMcpToolset(configuration(tmp_path))])
        async with agent:
            await agent.run("go")
            assert len(servers_alive(str(tmp_path))) >= 1
            await agent.run("go")
        wait_until(lambda: not servers_alive(str(tmp_path)))
        await agent.run("go")
        wait_until(lambda: not servers_alive(str(tmp_path)))

    run(main())


@pytest.mark.parametrize(
    ("name", "arguments", "starts"),
    [
        ("mcp__desk__always_fails", {}, "mcp__desk__always_fails reported an error:\nthe disk is full"),
        (SUM, "{broken", "[usage] The arguments were no JSON object"),
        (SUM, "[1]", "[usage] The arguments were no JSON object"),
        ("mcp_search", {"query": "x", "server": "nobody"}, "[not_found] "),
        ("mcp_search", {"query": "x", "limit": "many"}, "[usage] "),
    ],
)
def test_a_failure_is_a_result_and_never_a_retry(tmp_path: Path, name: str, arguments: Any, starts: str) -> None:
    async def main() -> Any:
        async with Plugin(configuration(tmp_path)) as plugin:
            session = plugin.session("one")
            await session.load([SUM, "mcp__desk__always_fails"])
            script = Script((name, arguments), (name, arguments), (name, arguments), "ok")
            return await Agent(script.model, toolsets=[PiMcpToolset(session)]).run("go")

    parts = [part for message in run(main()).all_messages() for part in message.parts]
    results = [part.content for part in parts if part.part_kind == "tool-return"]
    assert len(results) == 3
    assert all(result.startswith(starts) for result in results), results
    assert not any(part.part_kind == "retry-prompt" for part in parts)


def test_an_image_is_binary_content(tmp_path: Path) -> None:
    async def main() -> Any:
        async with Plugin(configuration(tmp_path)) as plugin:
            script = Script(search("draw_picture"), ("mcp__desk__draw_picture", {}), "ok")
            return await Agent(script.model, toolsets=[PiMcpToolset(plugin)]).run("go")

    content = [
        part.content
        for message in run(main()).all_messages()
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    text, image = content[-1]
    assert text == "A red dot."
    assert isinstance(image, BinaryContent)
    assert (image.media_type, image.data[:4]) == ("image/png", b"\x89PNG")


def test_tools_that_are_always_loaded_are_in_the_first_request(tmp_path: Path) -> None:
    async def main() -> list[list[str]]:
        script = Script("ok")
        async with Plugin(configuration(tmp_path, alwaysLoad=["add_*"])) as plugin:
            await Agent(script.model, toolsets=[PiMcpToolset(plugin)]).run("go")
        return script.declared

    assert run(main()) == [["mcp_search", SUM]]


def test_cancelling_a_run_cancels_the_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with Plugin(configuration(tmp_path)) as plugin:
            script = Script(search("wait_long"), (WAIT, {"seconds": 50}), "ok")
            task = asyncio.ensure_future(Agent(script.model, toolsets=[PiMcpToolset(plugin)]).run("go"))
            seen = tmp_path / "seen"
            await asyncio.to_thread(wait_until, seen.exists)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: "cancelled" in seen.read_text())

    run(main())


def test_stable_tools_hides_the_librarys_own_announcements(tmp_path: Path) -> None:
    async def talk(wrap: Callable[[Any], Any]) -> list[str]:
        script = Script(search("add_numbers"), "ok")
        async with Plugin(configuration(tmp_path)) as plugin:
            await Agent(wrap(script.model), system_prompt="Fixed.", toolsets=[PiMcpToolset(plugin)]).run("go")
        return [part.part_kind for message in script.messages[-1] for part in message.parts]

    kinds = run(talk(StableTools))
    assert kinds.count("system-prompt") == 1
    assert "tool-availability-delta" not in kinds
