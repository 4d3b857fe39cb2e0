"""Pi 0.85.1 and 1.6.0 from npm with our extension in them: headless, by RPC, and killed."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import pi_mcp
from tests import environments
from tests.chat_support import servers_alive
from tests.hostile.processes import descendants_of, gone
from tests.model_servers import Call, ModelServer, Request, Say, Step
from tests.shim_support import (
    ADD,
    DRAW,
    SECRET,
    WAIT,
    Stage,
    call_if_declared,
    engine_of,
    install_shim,
    search_and_call,
    wait_for,
)

pytestmark = pytest.mark.slow
VERSIONS = ("0.85.1", "1.6.0")
SOURCE = Path(pi_mcp.__file__).parent / "hosts" / "shims" / "pi" / "index.ts"
NEWEST = VERSIONS[-1]
GO = """
export default function (pi) {
	pi.registerCommand("go", { handler: async (to, ctx) => void (await ctx.navigateTree(to, { summarize: false })) });
}
"""
"""An extension that moves in the session's tree, as `/tree` does for a person."""


def pi(version: str) -> list[Path]:
    """The command line of one Pi; the tests run it with the Node that it needs."""
    package = environments.npm(f"@earendil-works/pi-coding-agent@{version}")
    bundle = package / "node_modules" / "@earendil-works" / "pi-coding-agent" / "dist" / "bundle" / "cli.js"
    return [environments.node22(), bundle]


@contextlib.contextmanager
def staged(folder: Path, script: Sequence[Step], **more: Any) -> Iterator[tuple[Stage, ModelServer]]:
    with ModelServer(script) as model:
        stage = Stage(folder / "stage", **more)
        stage.pi_models(model)
        yield stage, model


def answer(stage: Stage, version: str, *words: str) -> subprocess.CompletedProcess[str]:
    """`pi -p …` to its end."""
    done = stage.run([*pi(version), "-p", "--model", "fake/fake", *words], PI_SKIP_VERSION_CHECK="1")
    assert SECRET not in done.stdout + done.stderr
    return done


def ours(request: Request) -> list[str]:
    return [name for name in request.tool_names if name.startswith("mcp_")]


def entries(stage: Stage) -> list[dict[str, Any]]:
    """The entries of the session that was written last."""
    files = sorted((stage.agent_dir / "sessions").rglob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for line in files[-1].read_text().splitlines()]


class Rpc:
    """`pi --mode rpc`: commands go in, events and questions come out; `replies` answers the questions, in order."""

    def __init__(self, process: subprocess.Popen[str], replies: Sequence[dict[str, Any]] = ()) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.replies = list(replies)
        self._came: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._came.put(json.loads(line))
        self._came.put(None)

    def send(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def until(self, wanted: Callable[[dict[str, Any]], bool], limit: float = 30.0) -> dict[str, Any]:
        """The first event from here on that is wanted."""
        end = time.monotonic() + limit
        while True:
            event = self._came.get(timeout=max(0.01, end - time.monotonic()))
            assert event is not None, "Pi has ended"
            self.events.append(event)
            if event["type"] == "extension_ui_request" and event["method"] in ("confirm", "select", "input"):
                self.send(type="extension_ui_response", id=event["id"], **self.replies.pop(0))
            if wanted(event):
                return event

    def result(self, **command: Any) -> dict[str, Any]:
        self.send(id="r", **command)
        found = self.until(lambda event: event["type"] == "response" and event.get("id") == "r")
        assert found["success"], found
        return found

    def turn(self, text: str) -> None:
        """One prompt, until Pi is idle again."""
        self.send(type="prompt", message=text)
        self.until(lambda event: event["type"] == "agent_settled")

    def command(self, line: str) -> str:
        """A slash command; what it tells."""
        self.send(type="prompt", message=line)
        return str(self.until(lambda event: event.get("method") == "notify")["message"])

    def started(self, tool: str) -> None:
        self.until(lambda event: event["type"] == "tool_execution_start" and event["toolName"] == tool)


@contextlib.contextmanager
def rpc(stage: Stage, version: str, *words: str, replies: Sequence[dict[str, Any]] = ()) -> Iterator[Rpc]:
    command = [*pi(version), "--mode", "rpc", "--model", "fake/fake", *words]
    with stage.start(command, PI_SKIP_VERSION_CHECK="1") as process:
        yield Rpc(process, replies)
        below = descendants_of(process.pid)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.wait(20)
        assert gone(below, 10), "processes are left"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_found_tool_is_called_in_the_same_turn_and_is_there_after_resume(tmp_path: Path, version: str) -> None:
    with staged(tmp_path, search_and_call()) as (stage, model):
        install_shim("pi", stage, record=True)
        done = answer(stage, version, "add 2 and 40")
        assert done.stdout == "the model is done\n", done.stderr
        assert stage.messages("host")[0]["params"]["hostVersion"] == version
        assert stage.calls == [("add_numbers", {"a": 2, "b": 40})]
        first, second, third = model.requests
        assert ours(first) == ["mcp_search"]
        assert ours(second)[:2] == ["mcp_search", ADD]
        parameters = second.tool(ADD)["function"]["parameters"]
        assert parameters["properties"]["b"]["minimum"] == 0
        assert parameters["required"] == ["a", "b"]
        assert third.results()[-1] == "42"
        assert first.tools == second.tools[: len(first.tools)]
        assert second.tools == third.tools

        answer(stage, version, "-c", "go on")
        assert model.requests[-1].tools == third.tools, "resume changes what the model sees"
        assert model.requests[-1].system == third.system
        shown = answer(stage, version, "-c", "/mcp")
        assert f"{len(ours(third)) - 1} loaded" in shown.stdout
        stage.assert_protocol()
        wait_for(lambda: not servers_alive(str(stage.seen_file)))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_aborted_call_frees_pi_at_once_and_reaches_the_server(tmp_path: Path, version: str) -> None:
    script = [*search_and_call("wait long", WAIT, {"seconds": 60})[:2], Say("after")]
    with staged(tmp_path, script) as (stage, model):
        install_shim("pi", stage)
        with rpc(stage, version) as host:
            host.send(type="prompt", message="wait")
            host.started(WAIT)
            wait_for(lambda: stage.calls)
            began = time.monotonic()
            host.send(type="abort")
            host.until(lambda event: event["type"] == "agent_settled")
            assert time.monotonic() - began < 10
            wait_for(lambda: stage.cancelled)
            host.turn("what now")
            assert "[cancelled]" in model.requests[-1].results()[-1]
            assert WAIT in ours(model.requests[-1])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_engine_that_dies_in_a_call_is_an_error_and_the_next_search_starts_it_again(
    tmp_path: Path, version: str
) -> None:
    script: list[Step] = [
        *search_and_call("wait long", WAIT, {"seconds": 60})[:2],
        Say("that failed"),
        *search_and_call(),
    ]
    with staged(tmp_path, script) as (stage, model):
        install_shim("pi", stage)
        with rpc(stage, version) as host:
            host.send(type="prompt", message="wait")
            host.started(WAIT)
            wait_for(lambda: stage.calls)
            engine = engine_of(host.process.pid)
            assert engine is not None
            below = descendants_of(engine)
            os.kill(engine, signal.SIGKILL)
            ended = host.until(lambda event: event["type"] == "tool_execution_end")
            assert ended["isError"]
            assert "The pi-mcp engine has ended unexpectedly. Whether the call took effect is unknown" in str(ended)
            host.until(lambda event: event["type"] == "agent_settled")
            assert gone([engine, *below], 10)
            assert WAIT in ours(model.requests[-1]), "a tool whose engine is gone stays declared"
            host.turn("add")
            assert model.requests[-1].results()[-1] == "42"
            assert {WAIT, ADD} <= set(ours(model.requests[-1]))


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_outlives_a_pi_that_is_killed(tmp_path: Path, version: str) -> None:
    with staged(tmp_path, search_and_call("wait long", WAIT, {"seconds": 60})) as (stage, _):
        install_shim("pi", stage)
        command = [*pi(version), "-p", "--model", "fake/fake", "wait"]
        with stage.start(command, PI_SKIP_VERSION_CHECK="1") as process:
            assert process.stdin is not None
            process.stdin.close()
            wait_for(lambda: stage.calls)
            below = descendants_of(process.pid)
            assert len(below) >= 2
            process.kill()
            process.wait(10)
            assert gone(below, 10), "processes are left"


@pytest.mark.parametrize("version", VERSIONS)
def test_questions_pictures_and_errors_pass_through(tmp_path: Path, version: str) -> None:
    script: list[Step] = [
        Call(("mcp_search", {"query": "draw picture"})),
        call_if_declared(DRAW, {}),
        Say("drawn"),
        call_if_declared(DRAW, {}),
        Say("drawn again"),
        Call(("mcp_search", {"query": "always_fails"})),
        call_if_declared("mcp__desk__always_fails", {}),
        Say("not"),
    ]
    replies = [{"confirmed": False}, {"confirmed": True}, {"confirmed": True}]
    with staged(tmp_path, script, extra={"trust": "verified"}) as (stage, model):
        install_shim("pi", stage)
        with rpc(stage, version, replies=replies) as host:
            assert host.command("/mcp").startswith("desk: idle")  # so the engine is up
            host.turn("draw")
            assert "- desk: numbers, pictures and forms" in json.dumps(model.requests[0].tool("mcp_search"))
            assert "[refused]" in model.requests[-1].results()[-1]
            assert stage.calls == []
            host.turn("draw, I said")
            picture = json.dumps(model.requests[-1].body)
            assert "data:image/png;base64,iVBOR" in picture
            host.turn("fail")
            ended = [event for event in host.events if event["type"] == "tool_execution_end"][-1]
            assert ended["isError"]
            assert ended["result"]["details"]["diagnostics"][0]["code"] == "tool_error"
            asked = [event for event in host.events if event.get("method") == "confirm"]
            assert [event["title"] for event in asked][:2] == ["Call draw_picture of desk (verified server)?"] * 2
        assert host.replies == []


@pytest.mark.parametrize("version", VERSIONS)
def test_each_branch_has_its_own_tools_and_compaction_keeps_them(tmp_path: Path, version: str) -> None:
    script: list[Step] = [
        Call(("mcp_search", {"query": "add_numbers", "limit": 1})),
        Say("one " + "word " * 50),
        Call(("mcp_search", {"query": "draw_picture", "limit": 1})),
        Say("two " + "word " * 50),
    ]
    with staged(tmp_path, script) as (stage, model):
        install_shim("pi", stage)
        (stage.agent_dir / "extensions" / "go.js").write_text(GO)
        (stage.agent_dir / "settings.json").write_text('{"compaction": {"keepRecentTokens": 10}}')
        with rpc(stage, version) as host:

            def tools(text: str) -> list[str]:
                host.turn(text)
                return ours(model.requests[-1])

            host.turn("first")
            host.turn("second")
            told = [one for one in entries(stage) if one["type"] == "message" and one["message"]["role"] != "system"]
            answers = [one["id"] for one in told if one["message"].get("stopReason") == "stop"]
            second = [one["id"] for one in told if one["message"]["role"] == "user"][-1]
            host.send(type="prompt", message=f"/go {answers[0]}")
            assert tools("on the first branch") == ["mcp_search", ADD]
            host.send(type="prompt", message=f"/go {answers[1]}")
            assert tools("on the second") == ["mcp_search", ADD, DRAW]
            assert host.command(f"/mcp unload {ADD}")
            assert tools("without") == ["mcp_search", DRAW]
            host.result(type="compact")
            assert tools("after compaction") == ["mcp_search", DRAW]
            host.result(type="fork", entryId=second)
            assert tools("in a fork") == ["mcp_search", ADD]
            host.result(type="new_session")
            assert tools("anew") == ["mcp_search"]
            assert len(descendants_of(host.process.pid)) <= 3, "an engine of an earlier session is left"
            compacted = next(path for path in stage.agent_dir.rglob("*.jsonl") if '"compaction"' in path.read_text())
        answer(stage, version, "--session", str(compacted), "resumed after compaction")
        assert ours(model.requests[-1]) == ["mcp_search", DRAW]


@pytest.mark.parametrize("version", VERSIONS)
def test_pi_s_own_lists_decide_what_is_loaded(tmp_path: Path, version: str) -> None:
    with staged(tmp_path, []) as (stage, model):
        install_shim("pi", stage)

        def last(*words: str) -> Request:
            model.script[:] = search_and_call("add_numbers")
            answer(stage, version, *words, "add")
            return model.requests[-1]

        found = last("--tools", "read,mcp_search")
        assert ours(found) == ["mcp_search"]
        assert "excludes it" in found.results()[0]
        assert ours(last("--tools", f"read,mcp_search,{ADD}")) == ["mcp_search", ADD]
        assert ADD not in ours(last("--exclude-tools", ADD))
        assert ours(last("--exclude-tools", "mcp_search")) == []
        assert [call for call, _ in stage.calls] == ["add_numbers"]


def test_a_missing_engine_is_one_message_and_pi_goes_on(tmp_path: Path) -> None:
    with staged(tmp_path, search_and_call()) as (stage, model):
        install_shim("pi", stage, command=["/nowhere/pi-mcp", "engine"])
        done = answer(stage, NEWEST, "add")
        assert done.returncode == 0
        assert done.stderr.count("The pi-mcp engine cannot be started") == 1
        assert "[connection_failed] The pi-mcp engine cannot be started" in model.requests[1].results()[0]
        assert ours(model.requests[-1]) == ["mcp_search"]
        assert "cannot be started" in answer(stage, NEWEST, "/mcp").stderr


def test_a_slow_engine_holds_up_no_request_and_changes_no_text_later(tmp_path: Path) -> None:
    with staged(tmp_path, search_and_call()) as (stage, model):
        folder = install_shim("pi", stage)
        manifest = json.loads((folder / "pi_mcp_shim.json").read_text())
        slow = ["/bin/sh", "-c", 'sleep 2.5; exec "$@"', "sh", *manifest["command"]]
        (folder / "pi_mcp_shim.json").write_text(json.dumps({**manifest, "command": slow}))
        answer(stage, NEWEST, "add")
        assert ADD in ours(model.requests[-1])
        (folder / "pi_mcp_shim.json").write_text(json.dumps(manifest))
        answer(stage, NEWEST, "-c", "more")
        declared = {json.dumps(request.tool("mcp_search")) for request in model.requests}
        assert len(declared) == 1
        assert "desk" not in declared.pop()


@pytest.mark.parametrize(
    ("version", "compat"),
    [
        ("0.85.1", {"supportsToolReferences": True}),
        ("1.6.0", {"supportsMidConvoSystemMessages": True, "supportsMidConvoToolChanges": True}),
    ],
)
def test_a_provider_that_defers_tools_keeps_its_cached_prompt(
    tmp_path: Path, version: str, compat: dict[str, bool]
) -> None:
    # Declared in the messages, where the scripted model does not look.
    script = [Call(("mcp_search", {"query": "add_numbers"})), Call((ADD, {"a": 2, "b": 40}))]
    with staged(tmp_path, script) as (stage, model):
        install_shim("pi", stage)
        provider = {
            "baseUrl": model.anthropic,
            "api": "anthropic-messages",
            "apiKey": "x",
            "models": [{"id": "fake", "compat": compat}],
        }
        (stage.agent_dir / "models.json").write_text(json.dumps({"providers": {"fake": provider}}))
        answer(stage, version, "add")
        assert stage.calls
        first, second, third = (request.body for request in model.requests)
        prompt = [tool for tool in first["tools"] if not tool.get("defer_loading")]
        for body in (second, third):
            assert body["system"] == first["system"]
            assert [tool for tool in body["tools"] if not tool.get("defer_loading")] == prompt
        assert ADD in json.dumps(second["messages"])


def test_annotations_reach_pi_s_other_extensions_and_no_name_is_taken_twice(tmp_path: Path) -> None:
    other = """
export default function (pi) {
	pi.registerTool({ name: "NAME", label: "x", description: "not ours", parameters: { type: "object" },
		execute: async () => ({ content: [{ type: "text", text: "not ours" }], details: {} }) });
	pi.on("tool_result", (event) => {
		const hints = pi.getAllTools().find((tool) => tool.name === "mcp_search")?.annotations;
		if (event.toolName === "mcp_search")
			return { content: [...event.content, { type: "text", text: `HINTS ${JSON.stringify(hints)}` }] };
	});
}
"""
    with staged(tmp_path, search_and_call("add_numbers")) as (stage, model):
        install_shim("pi", stage)
        (stage.agent_dir / "extensions" / "other.js").write_text(other.replace("NAME", ADD))
        answer(stage, NEWEST, "add")
        assert model.requests[-1].tool(ADD)["function"]["description"] == "not ours"
        assert 'HINTS {"readOnlyHint":true}' in model.requests[1].results()[0]
        assert "not ours" in model.requests[-1].results()[-1]
        assert stage.calls == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_extension_fits_pi_s_own_types(tmp_path: Path, version: str) -> None:
    compiler = environments.npm("typescript@5.9.3") / "node_modules" / "typescript" / "bin" / "tsc"
    types = environments.npm("@types/node@22.20.7") / "node_modules" / "@types"
    own = pi(version)[1].parent.parent / "index.d.ts"
    options = {
        "strict": True,
        "noEmit": True,
        "noUnusedLocals": True,
        "noUnusedParameters": True,
        "allowImportingTsExtensions": True,
        "skipLibCheck": True,
        "module": "nodenext",
        "target": "es2023",
        "types": ["node"],
        "typeRoots": [str(types)],
        "paths": {"@earendil-works/pi-coding-agent": [str(own)]},
    }
    project = {"compilerOptions": options, "files": [str(SOURCE)]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(project))
    words = [str(environments.node22()), str(compiler), "-p", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
