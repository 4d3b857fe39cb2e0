"""The real gptme with our plugin in it, as `pi-mcp install gptme` puts it there; only the model is scripted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.environments import venv
from tests.hostile.processes import descendants_of, gone
from tests.model_servers import Call, ModelServer, Request, Say, Step
from tests.shim_support import ADD, DRAW, SECRET, WAIT, Stage, call_if_declared, engine_of, install_shim, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # six starts of a host, on a busy machine
VERSION = "0.35.1"
QUIET = {"GPTME_TIKTOKEN_TIMEOUT": "0"}  # no download of a tokenizer
DONE = Call(("complete", {}))


class Turns:
    """A model's script; gptme also asks the model for a title, at a time of its own."""

    def __init__(self, *steps: Step) -> None:
        self.left = list(steps)

    def __bool__(self) -> bool:
        return True

    def pop(self, _: int) -> Callable[[dict[str, Any]], Any]:
        return self._reply

    def _reply(self, body: dict[str, Any]) -> Any:
        if _for_title(json.dumps(body)):
            return Say("Some Numbers")
        step = self.left.pop(0) if self.left else DONE
        return step(body) if callable(step) else step


def _for_title(body: str) -> bool:
    return "conversation titles" in body or "title for this conversation" in body


def turns(model: ModelServer) -> list[Request]:
    return [request for request in model.requests if not _for_title(request.raw.decode())]


class Gptme:
    def __init__(self, folder: Path) -> None:
        self.python = venv(f"gptme-{VERSION}", f"gptme=={VERSION}")
        self.stage = Stage(folder)
        self.config = self.stage.home / ".config" / "gptme" / "config.toml"
        self.logs = self.stage.home / ".local" / "share" / "gptme" / "logs"

    def configure(self, model: ModelServer) -> None:
        """The person's own configuration, with a comment that has to stay."""
        text = self.config.read_text() if self.config.exists() else '# mine\n[prompt]\nabout_user = "x"\n[env]\n'
        text = text.partition("[[providers]]")[0]
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text(
            f'{text}[[providers]]\nname = "fake"\nbase_url = "{model.openai}"\napi_key = "x"\ndefault_model = "fake"\n'
        )

    def words(self, *more: str, form: str = "tool", model: str = "fake/fake") -> list[str | Path]:
        return [self.python.with_name("gptme"), "-n", "--tool-format", form, "-m", model, *more]


@pytest.fixture(scope="module")
def python() -> Path:
    return venv(f"gptme-{VERSION}", f"gptme=={VERSION}")


@pytest.fixture
def gptme(tmp_path: Path) -> Gptme:
    return Gptme(tmp_path)


def text_of(request: Request) -> str:
    return json.dumps(request.body["messages"], ensure_ascii=False)


def test_a_conversation_searches_calls_shows_and_goes_on(gptme: Gptme) -> None:
    stage = gptme.stage
    with ModelServer([]) as model:
        gptme.configure(model)
        install_shim("gptme", stage, record=True)
        assert gptme.config.read_text().startswith("# mine\n")
        model.script = Turns(  # type: ignore[assignment]
            Call(("mcp_search", {"query": "draw_picture, add_numbers, wait_long", "limit": 3})),
            call_if_declared(ADD, {"a": 2, "b": 40}),
            call_if_declared(DRAW, {}),
            DONE,
        )
        # Of this one gptme knows that it sees pictures and has a strict mode.
        known = {**QUIET, "LLM_PROXY_URL": model.openai, "LLM_PROXY_API_KEY": "x"}
        words = gptme.words("--name", "one", "/mcp", "-", "add 2 and 40", model="openai/gpt-4o")
        first = stage.run(words, **known)
        requests = turns(model)
        assert first.returncode == 0, first.stderr
        assert "desk" in first.stdout.partition("add 2 and 40")[0], "/mcp lists the servers"
        assert "- desk: numbers, pictures and forms" in requests[0].tool("mcp_search")["function"]["description"]
        assert requests[0].tool_names[-1] != ADD
        # On the very next request, at the end of the list, with the server's schema as it is.
        assert {ADD, DRAW, WAIT} <= set(requests[1].tool_names[-3:])
        assert requests[1].tool_names[: len(requests[0].tool_names)] == requests[0].tool_names
        schema = requests[1].tool(ADD)["function"]["parameters"]
        assert schema["properties"]["style"]["enum"] == ["plain", "roman"]
        assert schema["properties"]["tags"] == {"type": "array", "items": {"type": "string"}}
        assert schema["properties"]["b"]["minimum"] == 0
        assert "strict" not in requests[1].tool(ADD)["function"]
        assert any(tool["function"].get("strict") for tool in requests[1].tools), "gptme's own tools are as they were"
        assert stage.calls[0] == ("add_numbers", {"a": 2, "b": 40})
        assert requests[2].results()[-1] == "42"
        assert "data:image/png;base64" in text_of(requests[3]), "the picture reaches the model"
        (image,) = (gptme.logs / "one" / "attachments").glob("mcp-*.png")
        assert image.stat().st_mode & 0o077 == 0
        stage.assert_protocol()

        # It goes on: the tool is there before anything was searched. Then the engine dies in the middle of a call.
        seen = len(model.requests)
        model.script = Turns(  # type: ignore[assignment]
            call_if_declared(WAIT, {"seconds": 60}),
            call_if_declared(ADD, {"a": 1, "b": 1}),
            DONE,
        )
        with stage.start(gptme.words("--name", "one", "again", model="openai/gpt-4o"), **known) as host:
            wait_for(lambda: stage.calls[-1][0] == "wait_long", 60)
            os.kill(wait_for(lambda: engine_of(host.pid)), signal.SIGKILL)
            out, err = host.communicate(timeout=60)
        again = [request for request in turns(model) if request in model.requests[seen:]]
        assert host.returncode == 0, err
        assert again[0].tool_names[-3:] == requests[1].tool_names[-3:]
        for name in ("mcp_search", ADD):
            assert again[0].tool(name) == requests[1].tool(name)
        assert "[connection_failed] The pi-mcp engine ended" in again[1].results()[-1]
        assert again[2].results()[-1] == "2", "the next use has started it again"
        everything = first.stdout + first.stderr + out + err + text_of(again[2])
        assert SECRET not in everything
        assert gone(descendants_of(os.getpid()), 10)


@pytest.mark.parametrize("form", ["markdown", "xml"])
def test_without_native_tools_the_search_says_how_to_call(gptme: Gptme, form: str) -> None:
    """Then Ctrl-C ends a call and not the server (markdown), and SIGKILL leaves nothing behind (xml)."""
    stage = gptme.stage
    write = "```{0}\n{1}\n```" if form == "markdown" else "<tool-use>\n<{0}>\n{1}\n</{0}>\n</tool-use>"
    with ModelServer([]) as model:
        gptme.configure(model)
        install_shim("gptme", stage)
        model.script = Turns(  # type: ignore[assignment]
            Say(write.format("mcp_search", "add_numbers, wait_long")),
            Say(write.format(ADD, '{"a": 2, "b": 40}')),
            Say(write.format(WAIT, '{"seconds": 60}')),
        )
        with stage.start(gptme.words("go", form=form), **QUIET) as host:
            wait_for(lambda: len(stage.calls) == 2, 60)
            everyone = [host.pid, *descendants_of(host.pid)]
            if form == "markdown":
                host.send_signal(signal.SIGINT)
                wait_for(lambda: stage.cancelled, 5)
                out, err = host.communicate(timeout=60)
                assert "Interrupted" in out, err
            else:
                host.kill()
                host.wait(10)
            assert gone(everyone, 10)
        requests = turns(model)
        assert "mcp_search" in requests[0].system
        assert "- desk: numbers, pictures and forms" in requests[0].system
        told = text_of(requests[1])
        assert '\\"enum\\": [\\"plain\\", \\"roman\\"]' in told
        assert f"```{ADD}" in told if form == "markdown" else f"<{ADD}>" in told
        assert "42" in text_of(requests[2])
        assert stage.calls == [("add_numbers", {"a": 2, "b": 40}), ("wait_long", {"seconds": 60})]


INSIDE = """
import json, sys
from pathlib import Path
from gptme import tools

def tell(value):
    print("=" + json.dumps(value))

from gptme.config import get_config, setup_config_from_cli

logs = Path(sys.argv[1])
allowed = sys.argv[2] or None
setup_config_from_cli(Path.cwd(), logs / "inside", model="fake/fake", tool_format="tool", tool_allowlist=allowed)
tools.init_tools(get_config().chat.tools)
tell([tool.name for tool in tools.get_tools()])
from pi_mcp_gptme import tools as shim
tell({"sessions": len(shim.SESSIONS), "alive": shim.ENGINE.alive})
from gptme.llm import llm_openai, utils
schema = {"type": "object", "properties": {"a": {"type": ["null", "array"], "items": {"enum": [1]}}}, "required": ["a"]}
shim.keep_schemas()  # as before each request
patched = utils.parameters2dict
tell([
    llm_openai.parameters2dict is patched, patched(shim.Schema(schema)) == schema,
    [one.required for one in shim.Schema(schema)], patched(shim.Schema({"type": "object"}))["additionalProperties"],
    patched(tools.get_tool("shell").parameters)["required"] if tools.has_tool("shell") else None,
])
if tools.has_tool("mcp_search"):
    # After compaction the format without native tools says again how to call; a fork has what it was forked with.
    from types import SimpleNamespace
    from gptme.tools.base import set_tool_format
    add = "mcp__desk__add_numbers"
    (logdir, session), = shim.SESSIONS.items()
    session.load([add])
    manager = SimpleNamespace(logdir=logdir)
    shim.before_step(manager)
    set_tool_format("tool")
    native = shim.after_compaction(manager)
    set_tool_format("markdown")
    again = shim.after_compaction(manager)
    manager.logdir = logs / "forked"
    manager.logdir.mkdir()
    shim.before_step(manager)
    fork = shim.SESSIONS[manager.logdir]
    fork.command("/mcp")  # the engine has answered
    shim.before_step(manager)
    tell([tools.has_tool(add), native, f"```{add}" in again.content, again.hide, [tool.name for tool in fork.tools]])
    set_tool_format("tool")
# A gptme that builds schemas in another way has no such function: its own flat parameters are right as they are.
del utils.parameters2dict
tell([shim.keep_schemas(), [[one.name, one.type, one.required] for one in shim.Schema(schema)]])
# A gptme whose own function is another one: it is asked for everything that is not ours.
utils.parameters2dict = lambda parameters: {"new": len(parameters)}
tell([shim.keep_schemas(), utils.parameters2dict([1, 2]), utils.parameters2dict(shim.Schema(schema)) == schema])
# A gptme whose commands are made in another way still starts.
del shim.commands.command
tell([shim.at_init() is shim.TOOL])
long = "x" * 900 + "\\n- one: " + "y" * 90 + "\\n- two: " + "z" * 90
tell([len(shim.cut("q" * 5000)) <= shim.LIMIT, shim.cut(long).splitlines()[1:]])
# What a first Enter, typed ahead perhaps, answers to a question of consent.
from types import SimpleNamespace
shim.elicit = lambda request: SimpleNamespace(value=(request.options or ["yes"])[0])
tell([shim.Asked().confirm("Call it?", "{}")])
"""


def inside(gptme: Gptme, allowed: str) -> list[Any]:
    done = gptme.stage.run([gptme.python, "-c", INSIDE, gptme.logs, allowed], **QUIET)
    assert done.returncode == 0, done.stderr
    return [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("=")]


def test_its_workarounds_ask_gptme_what_it_can_do(gptme: Gptme) -> None:
    with ModelServer([]) as model:
        gptme.configure(model)
        install_shim("gptme", gptme.stage)
        told = inside(gptme, "")
    assert "mcp_search" in told[0]
    assert told[1]["sessions"] == 1
    assert told[2] == [True, True, [False], False, ["command"]]
    assert told[3] == [True, None, True, True, [ADD]]
    assert told[4] == [False, [["a", "array", True]]]
    assert told[5] == [True, {"new": 2}, True]
    assert told[6] == [True]
    assert told[7] == [True, ["- one: " + "y" * 90, "- … (all: /mcp)"]]
    assert told[8] == [False]


def test_an_allow_list_without_it_leaves_it_out_and_starts_nothing(gptme: Gptme) -> None:
    with ModelServer([]) as model:
        gptme.configure(model)
        install_shim("gptme", gptme.stage)
        told = inside(gptme, "shell,read")
    assert "mcp_search" not in told[0]
    assert told[1] == {"sessions": 0, "alive": False}


def test_uninstalling_leaves_the_configuration_as_it_was(gptme: Gptme) -> None:
    with ModelServer([]) as model:
        gptme.configure(model)
        before = gptme.config.read_text()
        folder = install_shim("gptme", gptme.stage)
        assert re.search(r"pi_mcp_gptme", gptme.config.read_text())
        from tests.shim_support import PI_MCP

        done: subprocess.CompletedProcess[str] = gptme.stage.run([PI_MCP, "uninstall", "gptme", "--yes"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert gptme.config.read_text() == before
        assert not folder.exists()
