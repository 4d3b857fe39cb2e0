"""What the commands print for a person: broken between words on a terminal, as it is everywhere else."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import logging
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli.common import for_command_line
from pi_mcp.errors import Diagnostic
from pi_mcp.text import fitted, shortened, width
from tests.hostile.http_server import HttpServer, Request
from tests.plugin_support import plugin_of

ROOT = Path(__file__).resolve().parent.parent


def on_a_terminal(columns: int, *words: str) -> str:
    """What `pi-mcp WORDS` shows on a terminal of that width, before the terminal breaks any line."""
    pty = pytest.importorskip("pty")
    fcntl = pytest.importorskip("fcntl")
    termios = pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pi_mcp", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        # The terminal's own width counts, not one that the tests' runner states.
        env={name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        | {"PYTHONPATH": str(ROOT), "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:
        pass  # the other end is closed: how Linux says that a terminal is at its end
    finally:
        os.close(ours)
        process.wait(30)
    return shown.decode().replace("\r\n", "\n")


def test_a_line_is_broken_between_words_and_goes_on_two_columns_deeper() -> None:
    assert fitted("  warning: one two three", 16) == "  warning: one\n    two three"
    assert fitted("name  what it does", 10) == "name  what\n  it does"


def test_what_fits_stays_as_it_is() -> None:
    text = "HOST  HERE\npi    -\n\n`pi-mcp install HOST`\n"
    assert fitted(text, 30) == text


def test_a_path_longer_than_the_line_stays_whole() -> None:
    path = "/home/me/.config/gptme/plugins/pi_mcp_gptme/__init__.py"
    assert fitted(f"  create  {path}", 40) == f"  create\n    {path}"


def test_wide_characters_count_two_columns() -> None:
    lines = fitted("時刻 時刻 時刻 時刻", 10).split("\n")
    assert max(width(line) for line in lines) <= 10


def test_a_line_is_cut_to_the_columns_that_it_takes() -> None:
    assert shortened("日本語", 6) == "日本語"
    assert shortened("日本語", 5) == "日本…"
    assert shortened("plain", 4) == "pla…"


def test_a_long_text_is_cut_on_a_terminal_alone(tmp_path: Path) -> None:
    content = [{"type": "text", "text": "a line\n" * 3000}]
    with HttpServer({"tools/call": {"result": {"content": content}}}) as server:
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"s": {"url": server.url}}}))
        words = ["call", "s", "echo", "--config", str(config)]
        assert "[Cut: 1,996 of 3,001 lines" in on_a_terminal(80, *words)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        piped = subprocess.run([sys.executable, "-m", "pi_mcp", *words], capture_output=True, env=environment)
        assert piped.stdout == b"a line\n" * 3000 + b"\n"


def test_progress_stays_within_its_line_and_no_result_is_printed_behind_it(tmp_path: Path) -> None:
    def slowly(request: Request, server: HttpServer) -> dict[str, Any]:
        params = {"progressToken": request.message["params"]["_meta"]["progressToken"], "progress": 1}
        said = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {**params, "message": "進捗" * 30}}
        return {"events": [{"data": said}, {"sleep": 0.2}, {"answer": True}]}

    with HttpServer({"tools/call": slowly}) as server:
        config, calls = tmp_path / "mcp.json", tmp_path / "calls.jsonl"
        config.write_text(json.dumps({"mcpServers": {"s": {"url": server.url}}}))
        calls.write_text('{"server": "s", "tool": "echo"}\n' * 4)
        one = on_a_terminal(40, "call", "s", "echo", "--config", str(config))
        many = on_a_terminal(40, "batch", str(calls), "--concurrency", "1", "--config", str(config))
    assert "進捗" in one
    assert all(width(part) < 40 for part in one.partition("{")[0].split("\r\x1b[K"))
    assert "calls done" in many
    for number in range(1, 5):
        before = many.partition(f'{{"line": {number}')[0]
        assert before.endswith(("\n", "\r\x1b[K"))


def test_a_tool_that_is_not_there_is_looked_for_with_a_command() -> None:
    missing = Diagnostic("not_found", "load", None, "No tool is called 'x.y'.", "Search for it with other words.")
    assert for_command_line(missing).hint == "`pi-mcp tools SERVER` lists what a server has."


@pytest.mark.parametrize(
    ("hint", "outside"),
    [
        ("`/mcp get 'a b'` says why.", "`pi-mcp get --connect 'a b'` says why."),
        ("Run `/mcp auth a`, or put it there.", "Run `pi-mcp auth a`, or put it there."),
        ("`/mcp enable a` allows it.", '`pi-mcp chat -p "/mcp enable a"` allows it.'),
        ("The next use starts a new one; `/mcp reconnect a` does it now.", "The next use starts a new one."),
        ("See https://mcp.example.com/mcp get well.", "See https://mcp.example.com/mcp get well."),
    ],
)
def test_where_no_chat_is_a_hint_names_a_command_that_can_be_typed(hint: str, outside: str) -> None:
    assert for_command_line(Diagnostic("operation_failed", "call", "a", "It failed.", hint)).hint == outside


@pytest.mark.parametrize(
    "words",
    [
        ["hosts"],
        ["servers"],
        ["call", "nowhere", "nothing"],
        ["chat", "-p", "/mcp help"],
        ["keys", "create", "--scope", "tools:read server:git:*", "--store", "store"],
        ["keys", "list"],
        ["grants", "list", "--store", "store"],
        ["serve", "--http", "256.0.0.1:1"],
    ],
)
def test_no_command_line_is_wider_than_a_narrow_terminal(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = on_a_terminal(40, *words)
    assert shown.strip()
    assert [line for line in shown.splitlines() if width(line) > 40 and " " in line.strip()] == []


def test_a_name_in_a_command_that_a_hint_gives_is_written_as_a_shell_and_mcp_read_it() -> None:
    bare = []
    for path in (ROOT / "pi_mcp").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            parts = node.values if isinstance(node, ast.JoinedStr) else []
            for before, value in itertools.pairwise(parts):
                words = before.value if isinstance(before, ast.Constant) else ""
                if not re.search(r"`(/mcp|pi-mcp) [a-z]+( --[a-z-]+)* $", str(words)):
                    continue
                name = ast.unparse(value.value) if isinstance(value, ast.FormattedValue) else ""
                if not name.startswith("quoted(") and "hosts" not in path.parts:
                    bare.append(f"{path.relative_to(ROOT)}:{node.lineno}: {name}")
    # The names of hosts, of codes and of the words of `/mcp` are ours.
    assert [one for one in bare if not one.endswith((": target.name", ": command.usage"))] == []


@pytest.mark.parametrize("columns", [40, 80, 100, 200])
def test_a_problem_stands_in_a_column_that_can_be_read_or_on_lines_of_its_own(tmp_path: Path, columns: int) -> None:
    config = tmp_path / "mcp.json"
    entry = {"url": "https://x.example/mcp", "headers": {"Authorization": "${NOT_SET_AT_ALL}"}}
    config.write_text(json.dumps({"mcpServers": {"tracker-of-us": entry, "clock": {"command": "x"}}}))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", on_a_terminal(columns, "chat", "--config", str(config), "-p", "/mcp"))
    lines = shown.splitlines()
    if lines[0].startswith("Server"):
        assert columns - lines[0].index("Problem") >= 30
    else:
        assert any(line.startswith("  [configuration_invalid]") for line in lines)
    assert all(width(line) <= columns or " " not in line.strip() for line in lines)
    assert ("Problem" in lines[0]) == (columns >= 100)


def test_a_terminal_that_does_not_know_its_width_gets_whole_lines() -> None:
    assert len(on_a_terminal(0, "call", "nowhere", "nothing").splitlines()) == 1


async def _help(folder: Path) -> list[str]:
    async with plugin_of({}, folder) as plugin:
        return (await plugin.session("one").command("/mcp help")).text.splitlines()


def test_help_stands_in_two_lines_each_so_that_a_host_without_tables_can_show_it(tmp_path: Path) -> None:
    lines = asyncio.run(_help(tmp_path))
    assert lines[0] == "/mcp status"
    assert all(line.startswith("/mcp ") for line in lines[::2])
    assert all(line.startswith("  ") and width(line) <= 80 for line in lines[1::2])


def test_the_table_of_hosts_keeps_one_line_each_on_a_narrow_terminal() -> None:
    rows = on_a_terminal(40, "hosts").split("\n\n")[0].splitlines()
    assert len(rows) == 14
    assert all(len(row.split()) == 4 for row in rows[1:])


def test_what_a_gateway_tells_its_operator_is_broken_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pi_mcp.cli import common
    from pi_mcp.cli.operator_lines import operator_lines

    monkeypatch.setattr(common, "terminal_columns", lambda stream: 40)
    log = logging.getLogger("pi_mcp.server")
    with operator_lines(log):
        log.warning("%s", "git: [connection_failed] The server process exited with status 1 before the handshake.")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "pi-mcp: git: [connection_failed] The"
    assert all(width(line) <= 40 for line in lines)


def test_a_gateway_in_a_terminal_says_what_it_is_for(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    pty = pytest.importorskip("pty")
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"s": {"command": "/nowhere/x"}}}')
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "pi_mcp", "serve", "--config", str(config)],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    os.close(theirs)
    try:
        assert process.stderr is not None
        line = process.stderr.readline().decode()
        assert line.startswith("pi-mcp: The gateway speaks MCP on standard input and output, and this is a terminal")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
        assert out == b""
        assert process.returncode in (0, 130)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
