"""What `docs/scripting.md` shows is run: the shell script as it stands, the workflow as far as it is ours."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.http_server import HttpServer

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "scripting.md").read_text(encoding="utf-8")
SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}, "labels": {"type": "array"}}}
TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "inputSchema": SCHEMA},
    {"name": "create_issue", "inputSchema": SCHEMA},
]


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with `pi-mcp` on the PATH."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    command = folder / "bin" / "pi-mcp"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pi_mcp.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ.get('PATH', '')}"
    return subprocess.run(
        ["sh", "-c", script],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables},
    )


def test_the_shell_script_of_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    with HttpServer(tools=TOOLS, session=True) as server:
        (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"tracker": {"url": server.url}}}))
        done = shell(block("sh", 1), tmp_path, PI_MCP_CONFIG=str(tmp_path / "mcp.json"))
    assert done.returncode == 0, done.stderr
    first, second, last = done.stdout.splitlines()
    assert json.loads(first)["arguments"] == {"title": "Nightly build failed", "labels": ["ci", "nightly"]}
    assert json.loads(second)["arguments"] == {"title": "From a pipe"}
    assert last == "exit code 5"
    assert "[not_found]" in (tmp_path / "problem.txt").read_text()


def test_the_workflows_command_sends_the_title_as_it_is_and_the_token_as_a_header(tmp_path: Path) -> None:
    script = "\n".join(line.strip() for line in block("yaml").partition("run: |\n")[2].splitlines())
    title = 'v1 "$(touch owned)" `touch owned` \u00fc'
    with HttpServer(tools=TOOLS) as server:
        script = script.replace("https://tracker.example.com/mcp", server.url)
        done = shell(script, tmp_path, TITLE=title, TRACKER_TOKEN="s3cr3t-planted-value")
        assert done.returncode == 0, done.stderr
        [call] = server.of("tools/call")
    assert call.message["params"]["arguments"] == {"title": title, "labels": ["release"]}
    assert call.headers["authorization"] == "Bearer s3cr3t-planted-value"
    assert "s3cr3t" not in done.stdout + done.stderr
    assert not (tmp_path / "owned").exists()


def test_the_python_of_the_page_runs() -> None:
    with HttpServer({"tools/call": {"status": 500}}, tools=TOOLS) as server:
        code = f"url, token = {server.url!r}, 'x'\n{block('python')}"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    assert done.stdout.startswith("status unknown"), done.stderr


def test_the_example_of_a_batch_is_a_line_and_its_result() -> None:
    asked, got = (json.loads(line) for line in block("json").splitlines())
    assert {key: got[key] for key in ("server", "tool", "id")} == {key: asked[key] for key in ("server", "tool", "id")}
    assert list(got) == ["line", "outcome", "id", "server", "tool", "result"]
