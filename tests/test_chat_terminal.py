"""`pi-mcp chat` in a real terminal (tmux), with a real server: what a person sees and presses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

from tests.chat_support import SERVER, Desk, Terminal, chat_environ, servers_alive, wait_until
from tests.model_servers import Call, ModelServer, Say

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
SUM = "mcp__desk__add_numbers"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def open_chat(desk: Desk, *arguments: str, columns: int = 80, environ: dict[str, str] | None = None) -> Terminal:
    kept = {
        key: value for key, value in chat_environ().items() if key in ("HOME", "PYTHONPATH") or key.startswith("XDG_")
    }
    return Terminal(desk.command(*arguments), cwd=desk.folder, columns=columns, environ={**kept, **(environ or {})})


@pytest.mark.parametrize("columns", [80, 40])
def test_a_query_loads_tools_and_call_asks_for_the_arguments_until_they_fit(desk: Desk, columns: int) -> None:
    with open_chat(desk, columns=columns) as terminal:
        terminal.wait("Servers: desk")
        terminal.wait("pi>")
        terminal.enter("add two numbers")
        terminal.wait(f"1 {SUM}")
        terminal.wait("Run one with /call NUMBER")
        terminal.enter("/call 1")
        terminal.wait("a (whole number, required)")
        terminal.enter("twenty")
        terminal.wait("A whole number is needed.")
        terminal.enter("20")
        terminal.wait("b (whole number, required)")
        terminal.enter("-1")
        terminal.wait("At least 0, please.")
        terminal.enter("22")
        terminal.wait("style (one of, optional)")
        terminal.enter("2")
        terminal.wait("tags (JSON list, optional)")
        terminal.press("Enter")
        screen = terminal.wait("42")
        assert all(len(line) <= columns for line in screen.splitlines())
        terminal.wait("pi>", count=3)
        terminal.press("C-d")
        assert terminal.exit_code() == 0
    assert desk.seen == [{"call": "add_numbers", "arguments": {"a": 20, "b": 22, "style": "roman"}}]


def test_escape_cancels_a_call_and_the_server_lives(desk: Desk) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.wait_long seconds=50")
        wait_until(lambda: bool(desk.seen))
        terminal.press("Up")
        time.sleep(0.3)
        assert "Stopped." not in terminal.screen()
        terminal.press("Escape")
        terminal.wait("Stopped.", limit=10)
        wait_until(lambda: "cancelled" in desk.seen[-1])
        terminal.press("C-u")
        terminal.enter("/call desk.add_numbers a=1 b=2")
        terminal.wait("(0.")
        terminal.wait("3")
        terminal.press("C-d")
        assert terminal.exit_code() == 0
    wait_until(lambda: not servers_alive(str(desk.folder)))


def test_ctrl_c_cancels_work_and_at_the_prompt_only_the_line(desk: Desk) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.type("half a line")
        terminal.press("C-c")
        terminal.wait("Ctrl-D leaves", count=2)
        terminal.type("another half")
        terminal.press("C-c")
        terminal.wait("Ctrl-D leaves", count=3)
        terminal.enter("/call desk.wait_long seconds=50")
        wait_until(lambda: bool(desk.seen))
        terminal.press("C-c")
        terminal.wait("Stopped.")
        terminal.enter("/quit")
        assert terminal.exit_code() == 0


def test_escape_leaves_a_dialog_and_nothing_is_sent(desk: Desk) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.add_numbers")
        terminal.wait("a (whole number, required)")
        terminal.press("Escape")
        terminal.wait("Not called.")
        terminal.press("C-d")
        assert terminal.exit_code() == 0
    assert desk.seen == []


def test_nothing_is_lost_of_what_is_typed_after_escape_at_the_prompt(desk: Desk) -> None:
    with open_chat(desk) as terminal:
        for number, word in enumerate(("/nonsense", "find"), 1):
            terminal.wait("pi>", count=number)
            terminal.press("Escape")
            time.sleep(0.4)
            terminal.type(word)
            terminal.wait(f"pi> {word}")
            terminal.press("C-c")


def test_a_servers_form_is_asked_field_by_field(desk: Desk) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.ask_person")
        terminal.wait("Where shall it go?")
        terminal.wait("street (text, required)")
        terminal.enter("Elm Street 1")
        terminal.wait("zip (whole number, required)")
        terminal.enter("12345")
        terminal.wait("size (one of, required)")
        terminal.enter("medium")
        terminal.wait("express [false]")
        terminal.enter("y")
        terminal.wait("mail (text, optional)")
        terminal.enter("nobody")
        terminal.wait("That is no email")
        terminal.press("Enter")
        terminal.wait("Send this answer?")
        terminal.enter("y")
        terminal.wait('form: {"action": "accept"')
        text = " ".join(terminal.screen().split())
        assert '"street": "Elm Street 1"' in text
        assert '"size": "m"' in text
        terminal.enter("/call desk.ask_person")
        terminal.wait("street (text, required)", count=2)
        terminal.press("Escape")
        terminal.wait("Declined.")
        terminal.wait('form: {"action": "decline"')


def test_many_optional_arguments_are_asked_for_only_on_request(desk: Desk) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.many_options")
        terminal.wait("Set some of these?")
        terminal.press("Enter")
        terminal.wait("{}")
        terminal.enter("/call desk.many_options")
        terminal.wait("Set some of these?", count=2)
        terminal.enter("y")
        terminal.wait("option_1 (text, optional)")
        terminal.enter("one")
        for number in range(2, 8):
            terminal.wait(f"option_{number} (text, optional)")
            terminal.press("Enter")
        terminal.wait('{"option_1": "one"}')


def test_an_image_is_saved_in_a_private_file_and_named(desk: Desk, private_home: Path) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.draw_picture")
        terminal.wait("Image saved:")
    (image,) = (private_home / ".local/state/pi-mcp/results").glob("image-*.png")
    assert image.read_bytes().startswith(b"\x89PNG")
    assert stat.S_IMODE(image.stat().st_mode) == 0o600


def test_no_color_is_kept(desk: Desk) -> None:
    for environ, coloured in (({"NO_COLOR": "1"}, False), ({}, True)):
        with open_chat(desk, environ=environ) as terminal:
            terminal.wait("pi>")
            terminal.enter("add two numbers")
            terminal.wait("/call NUMBER")
            terminal.enter("/nonsense")
            terminal.wait("no command")
            codes = re.findall(r"\x1b\[([\d;]*)m", terminal.screen(colours=True))
            numbers = {int(part) for code in codes for part in code.split(";") if part}
            assert bool(numbers & (set(range(30, 38)) | set(range(90, 98)))) is coloured
            assert not numbers & set(range(40, 48)), "a background was set"
            assert 2 not in numbers, "grey was used"


def test_tab_completes_commands_and_tools_and_the_history_is_private(desk: Desk, private_home: Path) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("add two numbers")
        terminal.wait("/call NUMBER")
        terminal.type("/ca")
        terminal.wait("run a tool")  # the menu
        terminal.press("Tab")
        terminal.type(" mcp__desk__add")
        terminal.wait(SUM, count=2)
        terminal.press("Tab")
        terminal.wait(f"/call {SUM}")
        terminal.press("C-u")
        terminal.type("/mcp ref")
        terminal.wait("/mcp ref refresh")
        terminal.press("Tab")
        terminal.wait("/mcp refresh")
        terminal.press("C-u", "C-d")
        terminal.exit_code()
    history = private_home / ".local/state/pi-mcp/chats/history.jsonl"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert json.loads(history.read_text().splitlines()[0]) == "add two numbers"
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.press("Up")
        terminal.wait("add two numbers")


def test_a_pasted_text_of_several_lines_is_one_prompt(desk: Desk) -> None:
    with (
        ModelServer([Say("Got it.")]) as server,
        open_chat(desk, "--model", "m", "--base-url", server.openai) as terminal,
    ):
        terminal.wait("pi>")
        terminal.paste("first line\nsecond line")
        terminal.wait("second line")
        terminal.press("Enter")
        terminal.wait("Got it.")
        assert server.requests[0].body["messages"][-1]["content"] == "first line\nsecond line"


def test_an_agents_turn_shows_each_call_with_its_time_and_escape_stops_it(desk: Desk) -> None:
    script = [
        Call(("mcp_search", {"query": "add two numbers", "limit": 1}), text="Let me look."),
        Call((SUM, {"a": 20, "b": 22})),
        Say("The sum is 42, and this is a sentence that is long enough to be wrapped between its words."),
        Say("word " * 400, delay=0.1),
        Say("Still here."),
    ]
    with (
        ModelServer(script) as server,
        open_chat(desk, "--model", "m", "--base-url", server.openai, columns=60) as terminal,
    ):
        terminal.wait("agent with openai:m")
        terminal.enter("What is 20 plus 22?")
        terminal.wait("wrapped between its words.")
        screen = terminal.screen()
        assert "Let me look." in screen
        assert re.search(r"mcp_search query=add two numbers limit=1\s+\(1 loaded, \d\.\ds\)", screen)
        assert re.search(rf"{SUM} a=20 b=22 \(\d\.\ds\)", screen)
        assert "wrap\nped" not in screen
        terminal.enter("Talk for long")
        terminal.wait("word word")
        terminal.press("Escape")
        terminal.wait("Stopped.")
        terminal.enter("Are you there?")
        terminal.wait("Still here.")
        terminal.press("C-d")
        assert terminal.exit_code() == 0


def test_an_untrusted_servers_call_is_confirmed_first(tmp_path: Path) -> None:
    desk = Desk(tmp_path, {"trust": "untrusted"})
    script = [
        Call(("mcp_search", {"query": "add_numbers", "limit": 1})),
        Call((SUM, {"a": 20, "b": 22})),
        Call((SUM, {"a": 1, "b": 1})),
        Say("Finished."),
    ]
    with ModelServer(script) as server, open_chat(desk, "--model", "m", "--base-url", server.openai) as terminal:
        terminal.wait("pi>")
        terminal.enter("add")
        terminal.wait("Call add_numbers of desk (untrusted server)?")
        terminal.wait('"b": 22')
        terminal.enter("n")
        terminal.wait("refused")
        terminal.wait("Call add_numbers of desk (untrusted server)?", count=2)
        terminal.enter("y")
        terminal.wait("Finished.")
    assert desk.seen == [{"call": "add_numbers", "arguments": {"a": 1, "b": 1}}]


def test_a_project_file_is_asked_about_once_and_starts_nothing_before(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (tmp_path / "project").mkdir()
    marker = tmp_path / "marker"
    planted = {"mcpServers": {"planted": {"command": "/bin/sh", "args": ["-c", f"touch {marker}"]}}}
    (tmp_path / "project" / ".mcp.json").write_text(json.dumps(planted))
    desk.folder = tmp_path / "project"
    command = [*desk.command()[:5], str(tmp_path / "mcp.json")]
    environ = {k: v for k, v in chat_environ().items() if k in ("HOME", "PYTHONPATH") or k.startswith("XDG_")}
    with Terminal(command, cwd=desk.folder, environ=environ) as terminal:
        terminal.wait("touch")
        terminal.wait("Yes or no?")
        terminal.enter("n")
        terminal.wait("pi>")
        terminal.enter("/mcp")
        terminal.wait("untrusted")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, 137)],
    ids=["TERM", "HUP", "KILL"],
)
def test_the_end_of_the_chat_leaves_no_server(desk: Desk, number: signal.Signals, code: int) -> None:
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.wait_long seconds=50")
        wait_until(lambda: bool(desk.seen))
        assert servers_alive(str(desk.folder))
        os.kill(chat_process(desk), number)
        assert terminal.exit_code() == code
    wait_until(lambda: not servers_alive(str(desk.folder)))


def chat_process(desk: Desk) -> int:
    """The process id of the chat itself: not its shell, not the server."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if words[1:3] == ["-m", "pi_mcp.cli"] and str(desk.config) in words:
                return int(entry.name)
    raise AssertionError("no chat is running")


SHAPES = {
    "plain": "exec {server}",
    "launcher": "{sleeper} & {server}; true",
    "deaf": "trap '' TERM INT HUP; {sleeper} & {server}; true",
    "daemon": "(setsid {sleeper} </dev/null >/dev/null 2>&1 &) ; {server}; true",
}


@pytest.mark.parametrize("victim", ["chat", "supervisor", "its helper"])
@pytest.mark.parametrize("shape", SHAPES)
def test_killing_the_chat_or_a_supervisor_leaves_no_process_of_the_server(
    tmp_path: Path, shape: str, victim: str
) -> None:
    marker = f"left-{os.urandom(4).hex()}"
    words = {
        "server": shlex.join([sys.executable, str(SERVER), str(tmp_path / "seen"), marker]),
        "sleeper": shlex.join([sys.executable, "-c", "import time; time.sleep(300)", marker]),
    }
    desk = Desk(tmp_path, {"command": "/bin/sh", "args": ["-c", SHAPES[shape].format(**words)]})
    with open_chat(desk) as terminal:
        terminal.wait("pi>")
        terminal.enter("/call desk.wait_long seconds=50")
        wait_until(lambda: bool(desk.seen))
        if victim != "chat":
            own = sorted(pid for pid, command in processes(marker) if "supervisor.py" in " ".join(command))
            os.kill(own[0 if victim == "supervisor" else -1], signal.SIGKILL)
            terminal.wait("[connection_failed]")
        else:
            os.kill(chat_process(desk), signal.SIGKILL)
            assert terminal.exit_code() == 137
        wait_until(lambda: not processes(marker))


def processes(marker: str) -> list[tuple[int, list[str]]]:
    """Process ids and command lines that hold `marker`; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if state != "Z" and any(marker in word for word in words):
                found.append((int(entry.name), words))
    return found
