"""Real clients of the gateway, driven headless: a scripted model finds a tool with `mcp_search` and uses it.

The clients' own code lists, calls and declares tools; only the model is ours. Each client has the entry that
`pi-mcp install` wrote, and the server behind the gateway is one that people run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.environments import node22, npm
from tests.install_support import pi_mcp
from tests.model_servers import Call, ModelServer, Reply, Request, Say

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

pytest.importorskip("mcp_server_time")

QUESTION = "What time is it in Zurich?"
FOUND = "time__get_current_time"
"""The tool under the gateway's name; clients put a prefix of their own before it."""
WANTED = {"timezone": "Europe/Zurich"}


@dataclass
class Client:
    """A program that is one client of the gateway, and how it is told of the model and asked headless."""

    package: str
    program: str
    words: list[str]
    environ: Callable[[ModelServer], dict[str, str]]
    files: Callable[[ModelServer, Path, Path], dict[Path, dict[str, Any]]]
    """(model, home, project) → JSON files that are there before `pi-mcp install`."""
    in_the_same_turn: bool
    """A tool that was found is declared to the model in the turn that found it."""
    scripts: bool = False

    def ask(self, model: ModelServer, folder: Path) -> subprocess.CompletedProcess[str]:
        program = npm(self.package, scripts=self.scripts) / "node_modules" / ".bin" / self.program
        hidden = ("ANTHROPIC_", "CLAUDE", "GEMINI_", "GOOGLE_", "OPENCODE", "OPENAI_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        return subprocess.run(
            [str(program), *self.words],
            cwd=folder,
            env={
                **kept,
                "PWD": str(folder),  # where opencode takes the project from
                "PATH": f"{node22().parent}{os.pathsep}{os.environ['PATH']}",
                **self.environ(model),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )


def opencode_files(model: ModelServer, home: Path, project: Path) -> dict[Path, dict[str, Any]]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": model.openai, "apiKey": "x"},
        "models": {"fake": {"tool_call": True, "limit": {"context": 128000, "output": 4096}}},
    }
    settings = {
        "autoupdate": False,
        "model": "fake/fake",
        "small_model": "fake/fake",
        "permission": {"*": "allow"},
        "provider": {"fake": provider},
    }
    return {project / "opencode.json": settings}


def gemini_files(model: ModelServer, home: Path, project: Path) -> dict[Path, dict[str, Any]]:
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    return {home / ".gemini" / "settings.json": settings}


CLIENTS = {
    "opencode": Client(
        "opencode-ai@1.18.33",
        "opencode",
        ["run", QUESTION],
        lambda model: {"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        opencode_files,
        in_the_same_turn=True,
        scripts=True,
    ),
    "claude-code": Client(
        "@anthropic-ai/claude-code@2.1.332",
        "claude",
        ["-p", QUESTION, "--allowedTools", "mcp__pi-mcp__*"],
        lambda model: {
            "ANTHROPIC_BASE_URL": model.anthropic,
            "ANTHROPIC_API_KEY": "x",
            "ENABLE_TOOL_SEARCH": "false",
            # Otherwise the model may be asked before its servers have answered.
            "MCP_CONNECTION_NONBLOCKING": "false",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        },
        lambda model, home, project: {},
        in_the_same_turn=True,
        scripts=True,
    ),
    "gemini": Client(
        "@google/gemini-cli@0.61.0",
        "gemini",
        ["-m", "gemini-2.5-flash", "--approval-mode", "yolo", "-p", QUESTION],
        lambda model: {
            "GEMINI_API_KEY": "x",
            "GOOGLE_GEMINI_BASE_URL": model.gemini,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        gemini_files,
        in_the_same_turn=False,
    ),
}


class Model:
    """Searches, uses the tool that it then has (or `mcp_call`, where it has none), and repeats what it was told."""

    def __init__(self) -> None:
        self.server = ModelServer([self._answer] * 40)

    def _answer(self, body: dict[str, Any]) -> Reply:
        request = Request("", {}, json.dumps(body).encode())
        search = named(request, "mcp_search")
        if search is None:
            return Say("A title")
        results = request.results()
        if not results:
            return Call((search, {"query": "current time in a timezone"}))
        if len(results) == 1:
            found = named(request, FOUND)
            if found is not None:
                return Call((found, WANTED))
            return Call((str(named(request, "mcp_call")), {"name": FOUND, "arguments": WANTED}))
        return Say(f"It said {results[-1]}")

    @property
    def requests(self) -> list[Request]:
        """Those of the conversation: some clients ask for a title beside it."""
        return [one for one in self.server.requests if one.raw and named(one, "mcp_search") is not None]


def named(request: Request, name: str) -> str | None:
    """The client's own name for one of the gateway's tools, where it declares that tool to the model."""
    return next((one for one in request.tool_names if one.endswith(name)), None)


def conversation(name: str, home: Path, project: Path) -> tuple[list[Request], str]:
    """The client's requests to its model, and what it printed."""
    client, model = CLIENTS[name], Model()
    with model.server as server:
        for path, value in client.files(server, home, project).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(value))
        installed = pi_mcp("install", name, "--yes", cwd=project)
        assert installed.returncode == 0, installed.stderr
        done = client.ask(server, project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(model.requests) == 3, (done.stdout + done.stderr, [one.tool_names for one in server.requests])
    return model.requests, done.stdout


@pytest.mark.parametrize("name", CLIENTS)
def test_a_tool_that_mcp_search_found_is_used(name: str, private_home: Path, tmp_path: Path) -> None:
    config = private_home / ".config" / "pi-mcp" / "mcp.json"
    config.parent.mkdir(parents=True, exist_ok=True)
    entry = {"command": sys.executable, "args": ["-m", "mcp_server_time", "--local-timezone", "UTC"]}
    config.write_text(json.dumps({"mcpServers": {"time": entry}}))
    for _ in range(3):
        requests, printed = conversation(name, private_home, tmp_path)
        if (named(requests[1], FOUND) is not None) == CLIENTS[name].in_the_same_turn:
            break
        # The gateway waits 1.5 s for a client to list again, which one on a busy machine may miss.
    first, second, third = requests
    assert named(first, "mcp_call") is not None
    assert named(first, FOUND) is None
    assert FOUND in second.results()[0]
    assert (named(second, FOUND) is not None) == CLIENTS[name].in_the_same_turn
    assert WANTED["timezone"] in third.results()[1], third.results()
    assert WANTED["timezone"] in printed
