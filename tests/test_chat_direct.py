"""`pi-mcp chat` without a model, through pipes: what it prints, what it keeps, how it ends."""

from __future__ import annotations

import io
import os
import re
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from pi_mcp.hosts.terminal.render import Screen
from tests.chat_support import Desk, chat_environ, servers_alive, wait_until

SUM = "mcp__desk__add_numbers"
SECRET = "planted-secret-0815"  # a value that must show up nowhere


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_piped_lines_are_run_one_by_one_and_print_plain_text(desk: Desk) -> None:
    done = desk.run(typed='add two numbers\n/call 1 a=20 b=22\n/call desk.add_numbers {"a": 1, "b": 1}\n')
    assert done.returncode == 0, done.stderr
    assert f"1  {SUM}" in done.stdout
    assert "\n42\n" in done.stdout
    assert done.stdout.endswith("\n2\n")
    assert "\x1b" not in done.stdout
    assert "pi>" not in done.stdout
    assert desk.seen[0] == {"call": "add_numbers", "arguments": {"a": 20, "b": 22}}
    wait_until(lambda: not servers_alive(str(desk.folder)))


@pytest.mark.parametrize("busy", [False, True])
def test_a_pipe_that_stays_silent_does_not_keep_the_chat_from_ending(desk: Desk, busy: bool) -> None:
    chat = subprocess.Popen(
        desk.command(), cwd=desk.folder, env=chat_environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert chat.stdin is not None
    assert chat.stdout is not None
    with chat:
        chat.stdin.write(b"/call desk.wait_long seconds=50\n" if busy else b"/call desk.add_numbers a=1 b=1\n")
        chat.stdin.flush()
        wait_until(lambda: bool(desk.seen))
        chat.send_signal(signal.SIGTERM)
        assert chat.wait(10) == 143
    wait_until(lambda: not servers_alive(str(desk.folder)))


def test_an_interrupt_ends_one_turn_with_130(desk: Desk) -> None:
    arguments = desk.command("-p", "/call desk.wait_long seconds=50")
    chat = subprocess.Popen(arguments, cwd=desk.folder, env=chat_environ(), stdin=subprocess.DEVNULL)
    with chat:
        wait_until(lambda: bool(desk.seen))
        chat.send_signal(signal.SIGINT)
        assert chat.wait(10) == 130
    wait_until(lambda: not servers_alive(str(desk.folder)))


def test_words_keep_their_backslashes_and_quotes_hold_them_together() -> None:
    from pi_mcp.hosts.terminal.app import _words

    text = r"""grep.find pattern=\d+ text="two words" name=it's"""
    assert _words(text)[:2] == ("grep.find", [r"pattern=\d+", 'text="two', 'words"', "name=it's"])
    text = r"""grep.find pattern=\d+ text="two words" """
    assert _words(text)[:2] == ("grep.find", [r"pattern=\d+", "text=two words"])


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from pi_mcp.errors import PiMcpError
    from pi_mcp.hosts import demo
    from pi_mcp.hosts.terminal import model

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PiMcpError, match=r"pip install '\.\[chat\]'"):
        model.require_chat_extra("openai")
    with pytest.raises(PiMcpError, match=r"pip install '\.\[demo\]'"):
        demo.demo_configuration()


def test_a_piped_call_that_lacks_arguments_names_them_and_goes_on(desk: Desk) -> None:
    done = desk.run(
        typed="/call desk.add_numbers a=1\n/call nothing\n/call 9\n/nonsense\n/mpc\n/call desk.add_numbers a=1 b=1\n"
    )
    assert "desk: [usage] add_numbers needs b. /call desk.add_numbers b=…" in done.stdout
    assert "[not_found]" in done.stdout
    assert "[usage] There is no command /nonsense. /help lists what there is." in done.stdout
    assert "[usage] There is no command /mpc. Close: /mcp." in done.stdout
    assert done.stdout.endswith("\n2\n")
    assert len(desk.seen) == 1


@pytest.mark.slow
def test_one_query_prints_what_was_found_and_one_call_its_result(desk: Desk) -> None:
    found = desk.run("-p", "add two numbers")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith(f"1  {SUM}\n")
    called = desk.run("-p", "/call desk.add_numbers a=1 b=2")
    assert (called.returncode, called.stdout, called.stderr) == (0, "3\n", "")
    failed = desk.run("-p", "/call desk.always_fails")
    assert failed.returncode == 1
    assert "the disk is full" in failed.stdout
    assert "reported an error" not in failed.stdout
    assert failed.stderr == "mcp__desk__always_fails reported an error.\n"
    unknown = desk.run("-p", "/call desk.nothing")
    assert (unknown.returncode, unknown.stdout) == (5, "")
    assert unknown.stderr.startswith("[not_found] ")


def test_resume_brings_back_the_loaded_tools_of_the_latest_chat_of_this_directory(
    desk: Desk, private_home: Path
) -> None:
    desk.run(typed="add two numbers\n")
    (kept,) = (private_home / ".local/state/pi-mcp/chats").glob("*.json")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    again = desk.run("--resume", typed="/tools\n/new\n/tools\n")
    assert f"1  {SUM}" in again.stdout
    assert again.stdout.rstrip().endswith("Nothing is loaded yet. Type a query.")
    by_id = desk.run("--resume", kept.stem, typed="/tools\n")
    assert f"1  {SUM}" in by_id.stdout
    unknown = desk.run("--resume", "nothing-like-it", typed="")
    assert unknown.returncode == 5
    assert kept.stem in unknown.stderr


def test_resume_without_an_earlier_chat_says_so(desk: Desk) -> None:
    done = desk.run("--resume")
    assert done.returncode == 5
    assert done.stderr == "[not_found] There is no earlier chat in this directory. Start one without --resume.\n"


def test_options_that_do_not_fit_are_refused(desk: Desk) -> None:
    assert desk.run("-p", "  ").returncode == 2
    assert desk.run("--base-url", "http://127.0.0.1:1").returncode == 2
    assert desk.run("--demo").returncode == 2
    assert desk.run("--model", "m", "--base-url", "ftp://x", "-p", "x").returncode == 2


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.config.unlink()
    done = desk.run("-p", "x")
    assert done.returncode == 2
    assert str(desk.config) in done.stderr


def test_nothing_configured_shows_an_example(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.config.write_text('{"mcpServers": {}}')
    done = desk.run("-p", "anything")
    assert "mcpServers" in done.stdout


def test_no_secret_of_a_server_that_fails_is_shown_or_kept(tmp_path: Path, private_home: Path) -> None:
    desk = Desk(tmp_path, {"command": "/nowhere/server", "env": {"CHAT_SECRET": "${PLANTED}"}})
    environ = {"PLANTED": SECRET, "PI_MCP_LOG": "debug"}
    done = desk.run(typed="add\n/call desk.add_numbers a=1 b=1\n/mcp\n/mcp get desk\n", environ=environ)
    assert "connection_failed" in done.stdout
    one = desk.run("-p", "add", environ=environ)
    assert one.returncode == 3
    assert SECRET not in done.stdout + done.stderr + one.stdout + one.stderr
    for path in private_home.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_the_demo_reaches_a_real_result_without_configuration_or_network(tmp_path: Path) -> None:
    pytest.importorskip("mcp_server_time")
    desk = Desk(tmp_path)
    command = [word for word in desk.command("--demo") if word not in ("--config", str(desk.config))]
    desk.command = lambda *arguments: [*command, *arguments]  # type: ignore[method-assign]
    blocked = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = desk.run(typed="what time is it in Tokyo\n/call 1 timezone=Asia/Tokyo\nshow the log\n", environ=blocked)
    assert done.stdout.startswith("1  mcp__time__get_current_time\n")
    assert '"timezone": "Asia/Tokyo"' in done.stdout
    assert "mcp__git__git_log" in done.stdout
    (repository,) = Path(os.environ["XDG_CACHE_HOME"]).rglob("demo/repository")
    log = desk.run("-p", f"/call git.git_log repo_path={repository}", environ=blocked)
    assert re.search(r"Add hello\.py", log.stdout), log.stdout + log.stderr
    assert "not_found" in desk.run("-p", "/call fetch.nothing", environ=blocked).stderr


def test_an_escape_sequence_in_two_pieces_is_taken_out_whole() -> None:
    out = io.StringIO()
    stream = Screen(out).stream()
    for piece in ("a \x1b", "[3", "1mred\x1b[0", "m b", "\x1b]0;tit", "le\x07 c\x1b[3"):
        stream.write(piece)
    stream.end()
    assert out.getvalue() == "a red b c\n"
