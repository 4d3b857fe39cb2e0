"""The real code-puppy with our plugin in it, as `pi-mcp install` puts it there; only the model is scripted."""

from __future__ import annotations

import ast
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.commands import COMMANDS
from tests.environments import venv
from tests.hostile.processes import descendants_of, gone
from tests.model_servers import Call, ModelServer, Request, Say
from tests.shim_support import ADD, DRAW, SECRET, WAIT, Stage, engine_of, install_shim, wait_for

SHIMS = Path(__file__).resolve().parent.parent / "pi_mcp" / "hosts" / "shims"
pytestmark = pytest.mark.timeout(400)  # starts of a host, on a busy machine
VERSION = "0.0.946"
QUIET = {"NO_VERSION_UPDATE": "1"}
ASK = "mcp__desk__ask_person"

Turn = Callable[[dict[str, Any]], Any]


class Persona:
    """A model that does what the person's last line says, one step after the other.

    code-puppy also asks it to name sessions and to judge answers: those requests have few tools or none.
    """

    def __init__(self, **lines: list[Any]) -> None:
        self.lines = lines

    def __bool__(self) -> bool:
        return True

    def pop(self, _: int) -> Turn:
        return self._reply

    def _reply(self, body: dict[str, Any]) -> Any:
        if not is_turn(body):
            return Say("numbers")
        asked, results = "", 0
        for message in body["messages"]:
            if message["role"] == "user" and (word := text_of(message).split(" ")[0]) in self.lines:
                asked, results = word, 0
            results += message["role"] == "tool"
        steps = self.lines.get(asked, [])
        return steps[results] if results < len(steps) else Say(f"done with {asked}")


def is_turn(body: dict[str, Any]) -> bool:
    return len(body.get("tools") or []) > 4


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content or [])


def turns(model: ModelServer) -> list[Request]:
    return [request for request in model.requests if is_turn(request.body)]


def ours(request: Request) -> list[str]:
    return [name for name in request.tool_names if name.startswith("mcp_")]


class Puppy:
    def __init__(self, folder: Path) -> None:
        self.program = venv(f"code-puppy-{VERSION}", f"code-puppy=={VERSION}").with_name("code-puppy")
        self.stage = Stage(folder)
        self.folder = self.stage.home / ".code_puppy"

    def configure(self, model: ModelServer) -> None:
        self.folder.mkdir(exist_ok=True)
        settings = "[puppy]\npuppy_name=t\nowner_name=o\nmodel=fake\nyolo_mode=true\nsession_namer_enabled=false\n"
        (self.folder / "puppy.cfg").write_text(settings)
        fake = {
            "type": "custom_openai",
            "name": "fake",
            "custom_endpoint": {"url": model.openai, "api_key": "x"},
            "context_length": 128000,
        }
        (self.folder / "extra_models.json").write_text(json.dumps({"fake": fake}))

    def agent(self, name: str, *tools: str) -> None:
        """An agent of the person's own, with a list of its tools."""
        (self.folder / "agents").mkdir(exist_ok=True)
        about = {"name": name, "description": name, "system_prompt": "Work.", "tools": list(tools)}
        (self.folder / "agents" / f"{name}-agent.json").write_text(json.dumps(about))


@pytest.fixture
def puppy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Puppy:
    # It keeps its files below the home only where no XDG folder is named; ours are there in any case.
    made = Puppy(tmp_path)
    environ = made.stage.environ

    def without_folders(**more: str) -> dict[str, str]:
        return {key: value for key, value in environ(**more).items() if not key.startswith("XDG_")}

    monkeypatch.setattr(made.stage, "environ", without_folders)
    return made


@pytest.mark.slow
def test_a_conversation_searches_calls_shows_goes_back_and_goes_on(puppy: Puppy) -> None:
    stage = puppy.stage
    with ModelServer([]) as model:
        puppy.configure(model)
        install_shim("code-puppy", stage, record=True)
        model.script = Persona(  # type: ignore[assignment]
            find=[Call(("mcp_search", {"query": "add_numbers, draw_picture", "limit": 2}))],
            use=[Call((ADD, {"a": 2, "b": 40})), Call((DRAW, {})), Call(("mcp__desk__always_fails", {}))],
            delegate=[
                Call(("invoke_agent", {"agent_name": "code-puppy", "prompt": "inner work"})),
            ],
            inner=[Call(("mcp_search", {"query": "ask_person", "limit": 1}))],
        )
        lines = ["/mcp", "/mcp list", "hello", "find", "/pop 4", "again", "find", "/mcp load always_fails"]
        lines += ["use", "delegate", "after", "/mcp unload always_fails", "/exit", ""]
        first = stage.run([puppy.program, "-i"], typed="\n".join(lines), **QUIET)
        assert first.returncode == 0, first.stderr
        said = " ".join(first.stdout.split())
        assert "desk: idle" in said
        assert "code-puppy's own MCP servers: /mcp list" in said
        assert "No MCP servers registered" in said, "words that we do not know are code-puppy's"
        requests = iter(turns(model))

        assert ours(next(requests)) == ["mcp_search"]
        found = next(requests)
        assert ours(found) == ["mcp_search"]
        assert "- desk: numbers, pictures and forms" in found.tool("mcp_search")["function"]["description"]
        loaded = next(requests)
        assert set(ours(loaded)) == {"mcp_search", ADD, DRAW}
        assert loaded.tool("mcp_search") == found.tool("mcp_search")
        schema = loaded.tool(ADD)["function"]["parameters"]
        assert schema["properties"]["style"]["enum"] == ["plain", "roman"]
        assert schema["properties"]["b"] == {"type": "integer", "minimum": 0}
        assert ours(next(requests)) == ["mcp_search"], "what was popped is not loaded any more"
        assert ours(next(requests)) == ["mcp_search"]
        assert set(ours(next(requests))) == {"mcp_search", ADD, DRAW}
        use = next(requests)
        assert ours(use)[-1] == "mcp__desk__always_fails", "loaded by the person before this line"
        assert next(requests).results()[-1] == "42"
        assert "data:image/png;base64" in next(requests).raw.decode()
        assert "mcp__desk__always_fails reported an error:" in next(requests).results()[-1]

        assert ours(next(requests)) == ours(use)
        inner = next(requests)
        assert ours(inner) == ["mcp_search"], "a sub-agent begins with nothing loaded"
        assert ours(next(requests)) == ["mcp_search", ASK]
        assert ours(next(requests)) == ours(use), "and leaves nothing in the conversation that asked it"
        after = next(requests)
        assert ours(after) == ours(use)
        assert stage.calls[:2] == [("add_numbers", {"a": 2, "b": 40}), ("draw_picture", {})]
        assert SECRET not in first.stdout + first.stderr + after.raw.decode()
        stage.assert_protocol()

        # It goes on, and the engine dies in the middle of a call.
        seen = len(model.requests)
        model.script = Persona(  # type: ignore[assignment]
            more=[
                Call(("mcp_search", {"query": "wait_long", "limit": 1})),
                Call((WAIT, {"seconds": 60})),
                Call((ADD, {"a": 1, "b": 1})),
            ]
        )
        with stage.start([puppy.program, "-qr", "-p", "more"], **QUIET) as host:
            wait_for(lambda: stage.calls[-1][0] == "wait_long", 90)
            os.kill(wait_for(lambda: engine_of(host.pid)), signal.SIGKILL)
            out, err = host.communicate(timeout=90)
        assert host.returncode == 0, err
        again = [request for request in model.requests[seen:] if is_turn(request.body)]
        assert ours(again[0]) == ours(loaded), "as the person left it"
        for name in ("mcp_search", ADD):
            assert again[0].tool(name) == loaded.tool(name)
        assert "[connection_failed] The pi-mcp engine ended" in again[2].results()[-1]
        assert again[3].results()[-1] == "2", "the next use has started it again"
        assert ours(again[3]) == [*ours(loaded), WAIT]
        assert SECRET not in out + err + again[3].raw.decode()
        assert gone(descendants_of(os.getpid()), 10)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cancelled", "killed"])
def test_a_call_under_way_ends_with_its_run_and_with_its_host(puppy: Puppy, end: str) -> None:
    """Ctrl-C, by an agent whose own list of tools lets it wait only; and SIGKILL, which leaves nothing."""
    stage = puppy.stage
    with ModelServer([]) as model:
        puppy.configure(model)
        install_shim("code-puppy", stage)
        puppy.agent("narrow", "list_files", "read_file", "grep", "shell", "mcp_search", "mcp__desk__w*")
        puppy.agent("closed", "list_files", "read_file", "grep", "shell", "create_file")
        find = Call(("mcp_search", {"query": "wait_long, add_numbers", "limit": 2}))
        model.script = Persona(wait=[find, Call((WAIT, {"seconds": 60}))])  # type: ignore[assignment]
        agent = ["--agent", "narrow"] if end == "cancelled" else []
        with stage.start([puppy.program, *agent, "-p", "wait"], **QUIET) as host:
            wait_for(lambda: bool(stage.calls), 90)
            everyone = [host.pid, *descendants_of(host.pid)]
            assert len(everyone) >= 3
            if end == "cancelled":
                host.send_signal(signal.SIGINT)
                wait_for(lambda: stage.cancelled, 5)
                host.communicate(timeout=60)
            else:
                host.kill()
                host.wait(10)
            assert gone(everyone, 10)
        requests = turns(model)
        if end == "cancelled":
            assert ours(requests[1]) == ["mcp_search", WAIT], "its list names that one only"
            model.requests.clear()
            stage.run([puppy.program, "--agent", "closed", "-p", "hello"], **QUIET)
            assert [ours(request) for request in turns(model)] == [[]], "its list does not name mcp_search"
            printed = stage.run([puppy.program, "-p", "/mcp tools desk"], **QUIET)
            assert "add_numbers" in printed.stdout, "a command of -p is not lost at the end"
        else:
            assert set(ours(requests[1])) == {"mcp_search", WAIT, ADD}


def test_the_shim_knows_every_word_of_mcp() -> None:
    tree = ast.parse((SHIMS / "code_puppy.py").read_text())
    (words,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "WORDS"
    ]
    assert words == set(COMMANDS)


@pytest.mark.parametrize("name", ["code_puppy", "gptme"])
def test_a_shim_is_one_file_of_less_than_300_lines(name: str) -> None:
    assert len((SHIMS / f"{name}.py").read_text().splitlines()) < 300
