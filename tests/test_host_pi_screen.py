"""Pi 1.6.0 in a real terminal with our extension in it: what a person sees and presses."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.chat_support import Terminal
from tests.model_servers import Call, Say
from tests.shim_support import ADD, call_if_declared, install_shim, search_and_call, wait_for
from tests.test_host_pi import NEWEST, entries, pi, staged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
ASKS = """
import json, sys
def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
tool = {"name": "mcp_search", "description": "x", "inputSchema": {"type": "object"}, "annotations": {}}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "initialize":
        send(id=message["id"], result={"protocol": 1, "version": "0", "searchTool": tool, "tools": [], "details": {}})
    elif message.get("method") == "command":
        command = message["id"]
        params = {"session": message["params"]["session"], "question": "Paste the address:", "secret": True}
        send(id="e1", method="input", params=params)
    elif message.get("id") == "e1":
        text = message["result"]["text"]
        send(id=command, result={"text": f"took {len(text or '')} characters", "details": {}, "tools": []})
"""
"""An engine whose every command asks for a secret."""


def test_a_person_completes_a_command_confirms_a_call_and_stops_one(tmp_path: Path) -> None:
    script = [
        Call(("mcp_search", {"query": "add_numbers"})),
        call_if_declared(ADD, {"a": 2, "b": 40}),
        Say("That is 42."),
    ]
    sleeper = {"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]}
    with staged(tmp_path, script, extra={"trust": "verified"}, servers={"sleeper": sleeper}) as (stage, _):
        install_shim("pi", stage)
        environ = stage.environ(PI_SKIP_VERSION_CHECK="1")
        words = [str(word) for word in pi(NEWEST)]
        with Terminal([*words, "--model", "fake/fake"], cwd=stage.work, environ=environ) as terminal:
            terminal.wait("0.0%/128k", limit=60)
            terminal.enter("/mcp status")
            terminal.wait("desk: idle")
            terminal.type("/mcp stat")
            terminal.wait("→ status")
            terminal.type("us")
            wait_for(lambda: "→ status" not in terminal.screen())  # nothing to take: Enter sends the line
            terminal.press("Enter")
            wait_for(lambda: "/mcp status" not in terminal.screen())
            terminal.type("/mcp re")
            terminal.wait("→ reconnect")
            terminal.type("f")
            terminal.wait("→ refresh")
            terminal.press("Tab")
            terminal.type(" sl")
            terminal.wait("→ sleeper")
            terminal.press("Tab", "Enter")
            terminal.wait("Escape stops")
            terminal.press("Escape")
            terminal.wait("Stopped.")
            assert "Escape stops" not in terminal.screen()
            terminal.enter("add 2 and 40")
            shown = terminal.wait("Call add_numbers of desk (verified server)?")
            assert '"b": 40' in shown
            assert stage.calls == []
            terminal.wait("→ No")  # an Enter that was meant for the prompt agrees to nothing
            terminal.press("Down", "Enter")
            terminal.wait("That is 42.")
            assert stage.calls == [("add_numbers", {"a": 2, "b": 40})]
            terminal._tmux("resize-window", "-x", "40", "-y", "40")
            terminal.enter("/mcp tools")
            narrow = terminal.wait("mcp__desk__add_numbers (loaded): Add two whole numbers.")
            assert all(len(line) <= 40 for line in narrow.splitlines())
            terminal.enter("/quit")
            assert terminal.exit_code() == 0
        assert [one["customType"] for one in entries(stage) if one["type"] == "custom"] == ["pi-mcp"]


def test_a_question_that_is_longer_than_the_screen_shows_its_choices(tmp_path: Path) -> None:
    script = search_and_call(arguments={"a": 2, "b": 40, "tags": [f"tag {number}" for number in range(100)]})
    with staged(tmp_path, script, extra={"trust": "verified"}) as (stage, _):
        install_shim("pi", stage)
        environ = stage.environ(PI_SKIP_VERSION_CHECK="1")
        words = [str(word) for word in pi(NEWEST)]
        with Terminal([*words, "--model", "fake/fake"], cwd=stage.work, lines=24, environ=environ) as terminal:
            terminal.wait("0.0%/128k", limit=60)
            terminal.enter("add 2 and 40")
            terminal.wait("more characters, see above → No Yes", limit=30)
            terminal.press("PageUp")
            terminal.wait('"tag 99"')  # the whole of it stands in the transcript
            terminal.press("Enter")
            terminal.wait("the model is done")
            assert stage.calls == []
            terminal.enter("/quit")
            assert terminal.exit_code() == 0


def test_a_secret_is_not_shown_while_it_is_typed_or_pasted(tmp_path: Path) -> None:
    with staged(tmp_path, []) as (stage, _):
        engine = tmp_path / "asks.py"
        engine.write_text(ASKS)
        install_shim("pi", stage, command=[sys.executable, str(engine)])
        environ = stage.environ(PI_SKIP_VERSION_CHECK="1")
        words = [str(word) for word in pi(NEWEST)]
        with Terminal([*words, "--model", "fake/fake"], cwd=stage.work, environ=environ) as terminal:
            terminal.wait("0.0%/128k", limit=60)
            terminal.enter("/mcp auth desk")
            terminal.wait("Paste the address:")
            terminal.paste("http://127.0.0.1/callback?code=s3cr3t")
            terminal.type("xy")
            terminal.press("BSpace")
            terminal.wait("*" * 38 + "_")
            terminal.press("Enter")
            assert "s3cr3t" not in terminal.wait("took 38 characters")
            terminal.enter("/mcp auth desk")
            terminal.wait("Paste the address:")
            terminal.press("Escape")
            terminal.wait("took 0 characters")
            terminal.enter("/quit")
            assert terminal.exit_code() == 0
