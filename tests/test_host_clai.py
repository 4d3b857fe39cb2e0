"""The real `clai --agent module:agent` with our toolset in it, and what pydantic-ai does with tools that arrive."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pi_mcp import Plugin, configuration_of
from tests.chat_support import SERVER
from tests.environments import venv
from tests.hostile.processes import alive, descendants_of, gone
from tests.model_servers import Call, ModelServer, Say
from tests.shim_support import ADD, DRAW, ROOT, SECRET, WAIT, Stage, call_if_declared, wait_for
from tests.support import run

pytestmark = pytest.mark.timeout(400)  # starts of a host, on a busy machine
VERSION = "2.62.0"
# What pi-mcp itself needs beside clai; `pip install pi-mcp` would bring it.
NEEDS = ("rank-bm25==0.2.2", "keyring==25.7.0", "platformdirs>=4", "tomlkit>=0.13", "jsonschema>=4.20", "numpy>=1.24")
AGENT = """
import os
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pi_mcp.hosts.pydantic_ai import PiMcpToolset

model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key="x"))
agent = Agent(model, system_prompt="Fixed.", toolsets=[PiMcpToolset()])
"""
FIND = Call(("mcp_search", {"query": "add_numbers, draw_picture, wait_long", "limit": 3}))


class Clai:
    def __init__(self, folder: Path) -> None:
        self.program = venv(f"clai-{VERSION}-and-ours", f"clai=={VERSION}", "prompt-toolkit>=3.0.43", *NEEDS)
        self.stage = Stage(folder)
        (self.stage.work / "my_agent.py").write_text(AGENT)

    @property
    def words(self) -> list[str | Path]:
        return [self.program.with_name("clai"), "--agent", "my_agent:agent", "--no-stream"]

    def environ(self, model: ModelServer) -> dict[str, str]:
        return {"MODEL_URL": model.openai, "PYTHONPATH": f"{ROOT}:{self.stage.work}", "PYDANTIC_AI_NO_BANNER": "1"}


@pytest.fixture
def clai(tmp_path: Path) -> Clai:
    return Clai(tmp_path)


@pytest.mark.slow
def test_clai_searches_calls_and_goes_on_in_its_next_line(clai: Clai) -> None:
    stage = clai.stage
    steps: list[Any] = [FIND, call_if_declared(ADD, {"a": 2, "b": 40}), call_if_declared(DRAW, {}), Say("first done")]
    steps += [call_if_declared(ADD, {"a": 1, "b": 1}), Say("second done")]
    with ModelServer(steps) as model:
        done = stage.run(clai.words, typed="add two numbers\nonce more\n/exit\n", **clai.environ(model))
    assert done.returncode == 0, done.stderr
    assert "first done" in done.stdout
    assert "second done" in done.stdout
    names = [request.tool_names for request in model.requests]
    assert names[0] == ["mcp_search"]
    assert set(names[1]) == {"mcp_search", ADD, DRAW, WAIT}
    assert names[1:] == [names[1]] * 5, "the second line's run has them from its first request on"
    assert "- desk: numbers, pictures and forms" in model.requests[0].tool("mcp_search")["function"]["description"]
    assert len({json.dumps(request.tool("mcp_search")) for request in model.requests}) == 1
    assert model.requests[2].results()[-1] == "42"
    assert "data:image/png;base64" in model.requests[3].raw.decode()
    assert model.requests[5].results()[-1] == "2"
    assert len({request.system for request in model.requests if request.system != "[]"}) == 1
    assert SECRET not in done.stdout + done.stderr + model.requests[-1].raw.decode()
    assert gone(descendants_of(os.getpid()), 10)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancelled", "killed", "server"])
def test_a_call_under_way_ends_with_its_run_its_host_and_its_server(clai: Clai, end: str) -> None:
    stage = clai.stage
    steps = [FIND, call_if_declared(WAIT, {"seconds": 60}), Say("it failed")]
    with ModelServer(steps) as model, stage.start([*clai.words, "wait"], **clai.environ(model)) as host:
        wait_for(lambda: bool(stage.calls), 90)
        everyone = [host.pid, *descendants_of(host.pid)]
        if end == "server":
            for pid in alive(descendants_of(host.pid)):
                if str(stage.seen_file) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
            out, _ = host.communicate(timeout=60)
            assert "it failed" in out
            assert "desk: [" in model.requests[2].results()[-1]
            assert "unknown" in model.requests[2].results()[-1], "whether the call took effect"
        elif end == "cancelled":
            host.send_signal(signal.SIGINT)  # clai ends with its run
            out, err = host.communicate(timeout=20)
            assert "Traceback" not in out + err
            assert len(model.requests) == 2
        else:
            host.kill()
            host.wait(10)
        assert gone(everyone, 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "arrives"),
    [
        # The entry in `tools` is deferred, and a block in the conversation reveals it: the cached head stays.
        ("claude-opus-5", '"type":"tool_addition"'),
        ("claude-sonnet-5", '"type":"tool_reference"'),
        # No such channel: the tool stands at the end of `tools`.
        ("gpt-4o", None),
    ],
)
def test_pydantic_ai_defers_natively_what_arrives_where_the_provider_can(
    tmp_path: Path, name: str, arrives: str | None
) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    from pi_mcp.hosts.pydantic_ai import PiMcpToolset

    steps: list[Any] = [FIND, call_if_declared(ADD, {"a": 2, "b": 40}), Say("done"), Say("again done")]
    configuration = configuration_of({"desk": {"command": sys.executable, "args": [str(SERVER), str(tmp_path / "s")]}})

    async def talk(model: ModelServer) -> None:
        served: Any = (
            AnthropicModel(name, provider=AnthropicProvider(api_key="x", base_url=model.anthropic))
            if arrives is not None
            else OpenAIChatModel(name, provider=OpenAIProvider(api_key="x", base_url=model.openai))
        )
        async with Plugin(configuration, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache") as plugin:
            agent = Agent(served, system_prompt="Fixed.", toolsets=[PiMcpToolset(plugin)])
            first = await agent.run("go")
            assert first.output == "done"
            again = await agent.run("again", message_history=first.all_messages())
            assert again.output == "again done"
        await served.client.close()

    with ModelServer(steps) as model:
        run(talk(model))
    requests = model.requests
    assert requests[2].results()[-1] == "42"
    assert len({json.dumps(request.tools[0]) for request in requests}) == 1
    assert len({request.system for request in requests}) == 1
    for request in requests[1:]:
        assert [tool.get("defer_loading") for tool in request.tools[1:]] == [True if arrives else None] * 3
        if arrives:
            assert arrives in request.raw.decode().replace('": "', '":"')
    assert all("search_tools" not in request.tool_names for request in requests), "ours stays the only search"
