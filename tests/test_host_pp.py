"""pp with our extension, as installed: the real program from PyPI against a scripted model and a planted server."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.tools.search_tool import SEARCH_TEXT
from tests.chat_support import Terminal
from tests.environments import venv
from tests.hostile.processes import alive, descendants_of, gone
from tests.model_servers import Call, ModelServer, Say, Step
from tests.shim_support import (
    ADD,
    DRAW,
    SECRET,
    WAIT,
    Stage,
    call_if_declared,
    engine_in,
    engine_of,
    install_shim,
    search_and_call,
    wait_for,
)

pytestmark = pytest.mark.slow

BUILT_IN = ["read", "bash", "edit", "write"]
MODEL = ["--model", "fake/fake"]


@pytest.fixture(scope="module")
def pp() -> Path:
    return venv("pp-coding-agent-0.2.2", "pp-coding-agent==0.2.2").with_name("pp")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


class Rpc:
    """pp in its RPC mode: commands, events, and what an extension asks its person."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.dialogs: list[dict[str, Any]] = []
        self.says: dict[str, Any] = {"value": "Yes"}
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._number = 0
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self.process.stdout:
                self._lines.put(line)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def until(self, found: Callable[[dict[str, Any]], bool], limit: float = 40.0) -> dict[str, Any]:
        """The next event for which `found` is true; dialogs are answered on the way."""
        end = time.monotonic() + limit
        while True:
            try:
                event = json.loads(self._lines.get(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"that did not come: {self.events[-5:]}") from None
            self.events.append(event)
            if event["type"] == "extension_ui_request" and event["method"] in ("confirm", "select", "input"):
                self.dialogs.append(event)
                self.send({"type": "extension_ui_response", "id": event["id"], **self.says})
            if found(event):
                return event

    def command(self, type: str, **more: Any) -> dict[str, Any]:
        self._number += 1
        self.send({"id": str(self._number), "type": type, **more})
        answer = self.until(lambda event: event["type"] == "response" and event.get("id") == str(self._number))
        assert answer["success"], answer
        return answer.get("data") or {}

    def turn(self, text: str) -> None:
        """A prompt, to the end of the agent's turn."""
        self.command("prompt", message=text)
        self.until(lambda event: event["type"] == "agent_end")

    def mcp(self, words: str) -> str:
        """`/mcp …`, and what it shows."""
        self._number += 1
        self.send({"id": str(self._number), "type": "prompt", "message": f"/mcp {words}"})
        shown = self.until(lambda event: event["type"] == "extension_ui_request" and event["method"] == "notify")
        return shown["message"]

    def results(self, tool: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["type"] == "tool_execution_end" and e["toolName"] == tool]

    def text(self, tool: str) -> str:
        return "".join(block.get("text", "") for block in self.results(tool)[-1]["result"]["content"])

    def leave(self) -> None:
        """Close its input, as a client that ends does; nothing may be left of it."""
        everyone = [self.process.pid, *descendants_of(self.process.pid)]
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(15) == 0
        assert gone(everyone, 8), alive(everyone)


@contextlib.contextmanager
def rpc(pp: Path, stage: Stage, *words: str, **environ: str) -> Iterator[Rpc]:
    with stage.start([pp, "--mode", "rpc", *MODEL, *words], **environ) as process:
        yield Rpc(process)


def names(model: ModelServer, request: int = -1) -> list[str]:
    """Our tools of one model request."""
    found = model.requests[request].tool_names
    assert found[: len(BUILT_IN)] == BUILT_IN
    return found[len(BUILT_IN) :]


# -- the loop -------------------------------------------------------------------------------------------------


def test_a_found_tool_is_called_in_the_same_turn_and_is_there_after_resume(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call()) as model:
        stage.pi_models(model)
        install_shim("pp", stage, record=True)
        done = stage.run([pp, "-p", *MODEL, "add 2 and 40"])
        assert (done.returncode, done.stdout, done.stderr) == (0, "the model is done\n", "")
        assert names(model, 0) == ["mcp_search"]
        # With the directory of servers where the engine was there within a second, which a busy machine may not give.
        text = model.requests[0].tool("mcp_search")["function"]["description"]
        assert text == SEARCH_TEXT or text.startswith(f"{SEARCH_TEXT}\nServers:\n- desk")
        assert ADD in names(model, 1)
        assert stage.calls == [("add_numbers", {"a": 2, "b": 40})]
        assert model.requests[2].results()[-1] == "42"
        schema = model.requests[1].tool(ADD)["function"]["parameters"]
        assert schema["properties"]["style"] == {
            "type": "string",
            "enum": ["plain", "roman"],
            "default": "plain",
            "description": "How the sum is written.",
        }
        first = [model.requests[index].tools for index in (1, 2)]
        # Resumed while the server cannot start and its catalog is gone: the same bytes.
        stage.extra = {"command": str(stage.folder / "nothing")}
        stage.configure()
        model.script = [call_if_declared(ADD, {"a": 1, "b": 1}), Say("went on")]
        again = stage.run([pp, "-p", "-c", *MODEL, "once more"])
        assert again.stdout == "went on\n"
        assert json.dumps(model.requests[3].tools) == json.dumps(first[0]) == json.dumps(first[1])
        assert "desk: [connection_failed]" in model.requests[4].results()[-1]
        assert SECRET not in "".join(request.raw.decode() for request in model.requests)
    stage.assert_protocol()


def test_the_person_sees_the_status_without_a_screen_and_the_model_is_not_asked(pp: Path, stage: Stage) -> None:
    with ModelServer([]) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        done = stage.run([pp, "-p", *MODEL, "/mcp"])
        assert done.stdout.startswith("desk: idle, stdio")
        assert stage.run([pp, "-p", *MODEL, "/mcp nonsense"]).stdout.startswith("[usage]")
        stream = stage.run([pp, "-p", "--mode", "json", *MODEL, "/mcp"])
        assert all(json.loads(line) for line in stream.stdout.splitlines())
        assert stream.stderr.startswith("desk: idle")
        assert model.requests == []


def test_images_reach_the_model(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call("draw a picture", DRAW, {})) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        stage.run([pp, "-p", *MODEL, "draw"])
        assert "A red dot." in model.requests[2].results()[-1]
        assert b"data:image/png;base64," in model.requests[2].raw


# -- branches, sessions, compaction -------------------------------------------------------------------------------


def test_sessions_branches_and_compaction_each_have_their_own_tools(pp: Path, stage: Stage) -> None:
    script: list[Step] = [
        *search_and_call("draw a picture", DRAW, {}),
        *search_and_call("add two numbers"),
        Say("a summary"),
        Say("after compaction"),
    ]
    with ModelServer(script) as model:
        stage.pi_models(model)
        install_shim("pp", stage, record=True)
        (stage.agent_dir / "settings.json").write_text('{"compaction": {"keepRecentTokens": 1}}')
        with rpc(pp, stage) as host:
            host.turn("draw")
            host.turn("add")
            both = names(model)
            assert both.index(DRAW) < both.index(ADD)
            host.command("compact")
            host.turn("go on")
            assert names(model) == both
            first = host.command("get_state")["sessionFile"]
            # A new session begins without what the old one had, a fork with what was loaded before that place.
            host.command("new_session")
            model.script = [Say("new")]
            host.turn("hello")
            assert names(model) == ["mcp_search"]
            host.command("switch_session", sessionPath=first)
            model.script = [Say("back")]
            host.turn("and again")
            assert names(model) == both
            messages = host.command("get_fork_messages")["messages"]
            place = next(message["entryId"] for message in messages if message["text"] == "add")
            host.command("fork", entryId=place)
            model.script = [Say("forked")]
            host.turn("another way")
            forked = names(model)
            assert DRAW in forked
            assert ADD not in forked
            assert not [event for event in host.events if event["type"] == "extension_error"]
            host.leave()
    stage.assert_protocol()


def test_what_the_person_loads_and_unloads_is_kept_in_the_session(pp: Path, stage: Stage) -> None:
    with ModelServer([]) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with rpc(pp, stage) as host:
            host.turn("hello")
            assert "Loaded" in host.mcp("load desk.add_numbers desk.wait_long")
            host.turn("hello")
            assert names(model) == ["mcp_search", ADD, WAIT]
            host.mcp("unload add_numbers")
            host.turn("hello")
            assert names(model) == ["mcp_search", WAIT]
            host.leave()
        stage.run([pp, "-p", "-c", *MODEL, "hello"])
        assert names(model) == ["mcp_search", WAIT]


# -- the host's rules -------------------------------------------------------------------------------------------


def test_pps_own_lists_hold_for_our_tools(pp: Path, stage: Stage) -> None:
    with ModelServer([]) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        model.script = search_and_call()
        stage.run([pp, "-p", *MODEL, "--exclude-tools", ADD, "add"])
        assert ADD not in names(model)
        assert "the host has a tool of this name already, or excludes it" in model.requests[-1].results()[0]
        model.script = search_and_call("numbers, pictures", DRAW, {})
        stage.run([pp, "-p", *MODEL, "--tools", f"read,mcp_search,{DRAW}", "draw"])
        assert sorted(model.requests[-1].tool_names) == sorted(["read", "mcp_search", DRAW])
        stage.run([pp, "-p", *MODEL, "--exclude-tools", "mcp_search", "hello"])
        assert names(model) == []
        stage.run([pp, "-p", *MODEL, "--tools", "read", "hello"])
        assert model.requests[-1].tool_names == ["read"]


OTHER = """
from pi_agent.types import AgentToolResult
from pi_ai.types import TextContent
from pi_coding_agent.core.extensions.types import ToolDefinition

async def execute(id, params, signal, on_update, ctx):
    return AgentToolResult(content=[TextContent(text="of the other extension")])

def pi_extension(pi):
    pi.register_tool(ToolDefinition(name="NAME", label="x", description="Not ours.", execute=execute))
"""


def test_a_tool_of_another_extension_is_never_shadowed(pp: Path, stage: Stage) -> None:
    with ModelServer([]) as model:
        stage.pi_models(model)
        folder = install_shim("pp", stage)
        other = folder.parent / "zz_other.py"
        other.write_text(OTHER.replace("NAME", ADD))
        model.script = search_and_call()
        stage.run([pp, "-p", *MODEL, "add"])
        assert model.requests[-1].results()[-1] == "of the other extension"
        assert stage.calls == []
        other.write_text(OTHER.replace("NAME", "mcp_search"))
        model.script = search_and_call()
        stage.run([pp, "-p", *MODEL, "add"])
        assert model.requests[-1].results()[-1] == "of the other extension"


def test_a_call_that_wants_consent_is_asked_about_in_pps_own_dialog(pp: Path, stage: Stage) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with ModelServer(search_and_call()) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with rpc(pp, stage) as host:
            host.says = {"value": "No"}
            host.turn("add")
            assert host.dialogs[0]["options"] == ["No", "Yes"]
            assert "add_numbers" in host.dialogs[0]["title"]
            assert "[refused]" in host.text(ADD)
            assert host.results(ADD)[-1]["isError"] is True
            assert stage.calls == []
            host.says = {"value": "Yes"}
            model.script = [Call((ADD, {"a": 1, "b": 2})), Say("ok")]
            host.turn("again")
            assert host.text(ADD) == "3"
            host.leave()


def test_a_servers_form_is_asked_with_pps_dialogs(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call("shipping address form", "mcp__desk__ask_person", {})) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with rpc(pp, stage) as host:
            host.says = {"value": "12345"}
            host.turn("ask")
            assert [dialog["method"] for dialog in host.dialogs][:3] == ["input", "input", "select"]
            assert "Where shall it go?" in host.dialogs[0]["title"]
            host.leave()


# -- when things end ----------------------------------------------------------------------------------------------


def test_escape_cancels_the_call_and_the_server_lives(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call("wait for a long time", WAIT, {"seconds": 60})) as model:
        stage.pi_models(model)
        install_shim("pp", stage, record=True)
        with rpc(pp, stage) as host:
            host.command("prompt", message="wait")
            wait_for(lambda: stage.calls)
            server = descendants_of(host.process.pid)
            began = time.monotonic()
            host.command("abort")
            assert time.monotonic() - began < 8
            assert "[cancelled]" in host.text(WAIT)
            (diagnostic,) = host.results(WAIT)[-1]["result"]["details"]["diagnostics"]
            assert set(diagnostic) == {"code", "operation", "message", "hint"}  # pp's events hold no null
            wait_for(lambda: stage.cancelled)
            assert alive(server) == server
            model.script = [call_if_declared(WAIT, {"seconds": 0}), Say("ok")]
            host.turn("again")
            assert host.text(WAIT) == "waited"
            host.leave()
    stage.assert_protocol()


def test_an_engine_killed_in_mid_call_is_told_once_and_the_next_search_starts_it_again(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call("wait for a long time", WAIT, {"seconds": 60})) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with rpc(pp, stage) as host:
            host.command("prompt", message="wait")
            wait_for(lambda: stage.calls)
            everyone = descendants_of(host.process.pid)
            os.kill(wait_for(lambda: engine_of(host.process.pid)), signal.SIGKILL)
            host.until(lambda event: event["type"] == "agent_end")
            assert host.text(WAIT).startswith("[connection_failed] The pi-mcp engine ended; whether a call")
            assert gone(everyone, 8), alive(everyone)
            before = names(model)
            model.script = search_and_call()
            host.turn("add")
            assert host.text(ADD) == "42"
            assert names(model)[: len(before)] == before
            host.leave()


def test_pp_killed_with_sigkill_leaves_no_process(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call("wait for a long time", WAIT, {"seconds": 60})) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with rpc(pp, stage) as host:
            host.command("prompt", message="wait")
            wait_for(lambda: stage.calls)
            everyone = descendants_of(host.process.pid)
            assert len(everyone) >= 3
            host.process.kill()
            host.process.wait(5)
            assert gone(everyone, 8), alive(everyone)


def test_a_missing_engine_and_a_broken_manifest_leave_pp_as_it_is(pp: Path, stage: Stage) -> None:
    with ModelServer([]) as model:
        stage.pi_models(model)
        folder = install_shim("pp", stage, command=["/nowhere/pi-mcp", "engine"])
        for _ in range(2):
            model.script = search_and_call()
            done = stage.run([pp, "-p", *MODEL, "add"])
            assert done.returncode == 0
            assert done.stderr == ""
            result = model.requests[-1].results()[-1]
            assert result.startswith("[connection_failed]")
            assert "pi-mcp install" in result
            shown = stage.run([pp, "-p", *MODEL, "/mcp"])
            assert shown.stdout.startswith("[connection_failed]")
            assert shown.stderr == ""
            (folder / "pi_mcp_shim.json").write_text("{")


# -- a real screen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [80, 40])
def test_on_a_screen_a_search_a_call_and_the_status_are_shown(pp: Path, stage: Stage, columns: int) -> None:
    script = [*search_and_call(), *search_and_call("draw a picture", DRAW, {}, "drawn")]
    with ModelServer(script) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with Terminal(
            [str(pp), *MODEL], cwd=stage.work, columns=columns, environ=stage.environ(TERM="xterm-256color")
        ) as terminal:
            terminal.wait("fake", limit=30)
            terminal.enter("add 2 and 40")
            screen = terminal.wait("the model is done", limit=30)
            assert "42" in screen
            assert "mcp_search" in screen
            terminal.enter("/mcp")
            screen = terminal.wait("desk: connected")
            assert re.search(r"\d tools? loaded", " ".join(screen.split()))
            _keep(f"pp-{columns}", screen)
            terminal.enter("/mcp tools")  # pp alone would put it in the place of the answer before
            screen = terminal.wait("always_fails: A tool that reports an error.")
            assert "desk: connected" in screen.rpartition("the model is done")[2]
            terminal.enter("draw")
            terminal.wait("drawn", limit=30)
            assert all(len(line) <= columns for line in terminal.screen().splitlines())
            terminal.press("C-d")
            assert terminal.exit_code() == 0


def test_a_question_that_is_withdrawn_leaves_the_screen_and_takes_no_prompt(pp: Path, stage: Stage) -> None:
    with ModelServer(search_and_call("shipping address form", "mcp__desk__ask_person", {})) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with Terminal(
            [str(pp), *MODEL], cwd=stage.work, columns=80, environ=stage.environ(TERM="xterm-256color")
        ) as terminal:
            terminal.wait("fake", limit=30)
            terminal.enter("ask")
            terminal.wait("Where shall it go?", limit=30)
            os.kill(wait_for(lambda: engine_in(stage.work)), signal.SIGKILL)
            terminal.wait("the model is done", limit=30)
            assert "Where shall it go?" not in terminal.screen()
            model.script = [Say("hello yourself")]
            terminal.enter("hello there")
            terminal.wait("hello yourself", limit=30)
            terminal.press("C-d")
            assert terminal.exit_code() == 0


def test_another_place_of_the_tree_has_the_tools_of_that_place(pp: Path, stage: Stage) -> None:
    script = [Say("hello yourself"), *search_and_call(), Say("after the tree")]
    with ModelServer(script) as model:
        stage.pi_models(model)
        install_shim("pp", stage)
        with Terminal(
            [str(pp), *MODEL], cwd=stage.work, columns=80, environ=stage.environ(TERM="xterm-256color")
        ) as terminal:
            terminal.wait("fake", limit=30)
            terminal.enter("hello there")
            terminal.wait("hello yourself", limit=30)
            terminal.enter("add 2 and 40")
            terminal.wait("the model is done", limit=30)
            assert ADD in names(model)
            terminal.enter("/tree")
            terminal.wait("hello yourself", count=2)
            terminal.press("Up", "Up", "Up", "Up", "Enter")
            terminal.wait("No summary")
            terminal.press("Enter")
            terminal.wait("Navigated")
            _keep("pp-tree", terminal.screen())
            terminal.enter("hello again")
            terminal.wait("after the tree", limit=30)
            assert names(model) == ["mcp_search"]
            terminal.press("C-d")
            assert terminal.exit_code() == 0


def _keep(name: str, screen: str) -> None:
    """For a look at it: PI_MCP_SCREENS names a folder."""
    if folder := os.environ.get("PI_MCP_SCREENS"):
        (Path(folder) / f"{name}.txt").write_text(screen)
