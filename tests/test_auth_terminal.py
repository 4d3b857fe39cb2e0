"""Signing in at a real terminal: the address whole, a pasted callback, Escape, a browser that comes back."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.auth_server import AuthServer, free_port
from tests.auth_support import KEY, asked, free_again
from tests.chat_support import Terminal, chat_environ

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]


def terminal(folder: Path, server: AuthServer, port: int, *words: str) -> Terminal:
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"s": {"url": server.url, "oauth": {"callbackPort": port}}}}))
    command = [sys.executable, "-m", "pi_mcp.cli", *words, "--config", str(config)]
    environ = {**chat_environ(), "PI_MCP_CREDENTIAL_KEY": KEY, "DISPLAY": "", "BROWSER": "", "HOME": str(folder)}
    kept = (
        "PYTHONPATH",
        "PATH",
        "HOME",
        "PI_MCP_CREDENTIAL_KEY",
        "DISPLAY",
        "BROWSER",
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
    )
    return Terminal(command, cwd=folder, columns=80, environ={name: environ[name] for name in kept if name in environ})


def address(screen: Terminal) -> str:
    """The address as a person copies it: lines that the terminal wrapped are one, lines that we broke are not."""
    joined = screen._tmux("capture-pane", "-p", "-J", "-S", "-200")
    url = next(word for word in joined.split() if "/authorize?" in word)
    assert "resource=" in url
    return url


def callback_of(url: str) -> str:
    answer = httpx2.get(url, trust_env=False)
    assert answer.status_code == 302
    return str(answer.headers["location"])


def test_a_pasted_address_signs_in_and_a_second_login_is_left_with_escape(tmp_path: Path) -> None:
    port = free_port()
    with AuthServer() as server:
        with terminal(tmp_path, server, port, "auth", "s", "--no-browser") as screen:
            shown = screen.wait("You may also paste")
            code = callback_of(address(screen))
            screen.type(code)
            screen.press("Enter")
            shown = screen.wait("Signed in to s")
            assert "It has 2 tools" in shown
            assert asked("x?" + code.partition("?")[2])["code"] not in shown
            assert screen.exit_code() == 0
        (tmp_path / "ended").unlink()
        with terminal(tmp_path, server, port, "auth", "s") as screen:
            screen.wait("You may also paste")
            time.sleep(0.5)  # no person is faster, and a host that cannot ask is
            screen.press("Escape")
            shown = screen.wait("cancelled")
            assert screen.exit_code() == 130
            assert free_again(port)
        assert len(server.tokens("authorization_code")) == 1


def test_a_browser_that_comes_back_takes_the_question_away(tmp_path: Path) -> None:
    port = free_port()
    with AuthServer() as server, terminal(tmp_path, server, port, "auth", "s") as screen:
        shown = screen.wait("You may also paste")
        # Before the question, on a line of its own.
        assert shown.index("open the address yourself") < shown.index("You may also paste")
        httpx2.get(callback_of(address(screen)), trust_env=False)
        screen.wait("Signed in to s")
        assert screen.exit_code() == 0
