"""Real clients list what `pi-mcp install` wrote, and a built wheel brings its shims into an environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pi_mcp.hosts.install import Wishes, apply, surroundings, target_named
from pi_mcp.hosts.install.surroundings import own_command
from tests.chat_support import wait_until
from tests.environments import node22, npm, venv
from tests.install_support import pi_mcp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent
CLIENTS: dict[str, tuple[Callable[[], Path], str]] = {
    "claude-code": (lambda: npm("@anthropic-ai/claude-code@2.1.332", scripts=True), "claude"),
    "gemini": (lambda: npm("@google/gemini-cli@0.61.0"), "gemini"),
    "opencode": (lambda: npm("opencode-ai@1.18.33", scripts=True), "opencode"),
    "codex": (lambda: npm("@openai/codex@0.171.0"), "codex"),
}


def program_of(name: str) -> str:
    return str(CLIENTS[name][0]() / "node_modules" / ".bin" / CLIENTS[name][1])


def environment(**more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{node22().parent}{os.pathsep}{os.environ['PATH']}",
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_API_KEY": "x",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        **more,
    }


def listed(name: str, folder: Path) -> str:
    """What the client's own `mcp list` says, in the test's home."""
    done = subprocess.run(
        [program_of(name), "mcp", "list"],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout + done.stderr)


@pytest.mark.parametrize("name", CLIENTS)
def test_the_client_itself_lists_the_entry_and_forgets_it_with_the_uninstall(name: str, tmp_path: Path) -> None:
    CLIENTS[name][0]()
    assert pi_mcp("install", name, "--yes", cwd=tmp_path).returncode == 0
    said = listed(name, tmp_path)
    assert "pi-mcp" in said, said
    assert own_command()[0] in said, said
    # The gateway answers, in every client whose list tries that.
    assert name == "codex" or re.search(r"connected", said, re.IGNORECASE), said
    # What the client wrote into its file in the meantime is its own.
    assert pi_mcp("install", name, cwd=tmp_path).stdout.count("There is nothing to do.") == 1
    assert pi_mcp("install", name, "--yes", "--url", "http://127.0.0.1:9/mcp", cwd=tmp_path).returncode == 0
    said = listed(name, tmp_path)
    assert "http://127.0.0.1:9/mcp" in said
    assert own_command()[0] not in said
    assert pi_mcp("uninstall", name, "--yes", cwd=tmp_path).returncode == 0
    if name in ("claude-code", "codex"):  # the others take ten seconds each time
        assert "pi-mcp" not in listed(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "words"), [("codex", ["exec", "--skip-git-repo-check", "hi"]), ("gemini", ["mcp", "list"])]
)
def test_a_client_that_keeps_variables_back_hands_over_what_the_servers_need(
    name: str, words: list[str], private_home: Path, tmp_path: Path
) -> None:
    config = private_home / ".config" / "pi-mcp" / "mcp.json"
    config.parent.mkdir(parents=True)
    entry = {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer $NEEDED_TOKEN"}}
    config.write_text(json.dumps({"mcpServers": {"s": entry}}))
    gateway = tmp_path / "gateway"
    seen = tmp_path / "seen"
    gateway.write_text(f"#!/bin/sh\nenv > {seen}.part && mv {seen}.part {seen}\nexec {' '.join(own_command())} serve\n")
    gateway.chmod(0o755)
    around = replace(surroundings(), command=(str(gateway),))
    apply([target_named(name).install(around, Wishes())], around)
    if name == "codex":  # a provider that nobody listens for: servers are started before it is asked
        path = private_home / ".codex" / "config.toml"
        dead = '[model_providers.f]\nname = "f"\nbase_url = "http://127.0.0.1:9/v1"\n'
        path.write_text(f'model_provider = "f"\nmodel = "x"\n{dead}\n{path.read_text()}')
    process = subprocess.Popen(
        [program_of(name), *words],
        cwd=tmp_path,
        env=environment(NEEDED_TOKEN="t", OTHER_TOKEN="o", DBUS_SESSION_BUS_ADDRESS="unix:path=/x"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until(seen.exists, 60)
        lines = seen.read_text().splitlines()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "NEEDED_TOKEN=t" in lines
    assert "DBUS_SESSION_BUS_ADDRESS=unix:path=/x" in lines
    assert "OTHER_TOKEN=o" not in lines, "the client keeps nothing back any more: the entry can be shorter"


@pytest.mark.parametrize("name", ["claude-code", "gemini", "opencode"])
def test_the_client_sends_the_key_that_the_entry_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            sent.append(self.headers.get("Authorization") or "")
            self.send_error(404)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("GATEWAY_KEY", "k-123")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/mcp"
            words = ["install", name, "--yes", "--url", url, "--token-env", "GATEWAY_KEY"]
            assert pi_mcp(*words, cwd=tmp_path).returncode == 0
            listed(name, tmp_path)
        finally:
            server.shutdown()
            thread.join()
    assert "Bearer k-123" in sent


def test_claude_code_reads_the_projects_file(tmp_path: Path) -> None:
    CLIENTS["claude-code"][0]()
    assert pi_mcp("install", "claude-code", "--project", "--yes", cwd=tmp_path).returncode == 0
    assert "pi-mcp" in listed("claude-code", tmp_path)


def test_gptme_finds_the_plugin_and_its_search_tool(private_home: Path, tmp_path: Path) -> None:
    python = venv("gptme-0.35.1", "gptme==0.35.1")
    path = private_home / ".config" / "gptme" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('# mine\n[prompt]\nabout_user = "x"\n\n[plugins]\nenabled = ["other"]\n')
    before = path.read_text()
    found = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    assert pi_mcp("install", "gptme", "--yes", cwd=tmp_path, **found).returncode == 0
    rows = json.loads(pi_mcp("hosts", "--json", **found).stdout)["hosts"]
    row = next(row for row in rows if row["host"] == "gptme")
    assert (row["version"], row["installed"]) == ("0.35.1", "current")
    code = (
        "from gptme.config import get_config\n"
        "from gptme.plugins import get_plugin_tool_modules\n"
        "from gptme.tools import get_available_tools\n"
        "paths, enabled = get_config().get_plugin_config()\n"
        "print(get_plugin_tool_modules(paths, enabled), [tool.name for tool in get_available_tools()])\n"
    )
    done = subprocess.run(
        [str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert "'pi_mcp_gptme.tools'" in done.stdout, done.stderr
    assert "'mcp_search'" in done.stdout
    assert pi_mcp("uninstall", "gptme", "--yes", cwd=tmp_path, **found).returncode == 0
    assert path.read_text() == before


def test_a_built_wheel_has_every_shim_and_installs_them_from_its_own_environment(
    private_home: Path, tmp_path: Path
) -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environ["PIP_NO_CACHE_DIR"] = "1"
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]

    def run(words: list[str], limit: float = 300) -> str:
        done = subprocess.run(
            words, env=environ, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    run([*pip, "wheel", "--no-deps", str(ROOT), "-w", str(tmp_path)])
    (wheel,) = tmp_path.glob("*.whl")
    shims = ROOT / "pi_mcp" / "hosts" / "shims"
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in shims.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert ours <= set(archive.namelist())
    assert "pi_mcp/hosts/shims/pi/package.json" in ours
    run([sys.executable, "-m", "venv", str(tmp_path / "own env")])
    program = tmp_path / "own env" / "bin" / "pi-mcp"
    requirements = ["tomlkit", "platformdirs"]  # the others are for what an install does not do
    run([str(program.with_name("python")), "-m", "pip", "install", "-q", str(wheel), "--no-deps"])
    run([str(program.with_name("python")), "-m", "pip", "install", "-q", *requirements])
    for target in ("pi", "pp", "code-puppy", "gptme", "codex"):
        words = [str(program), "install", target, "--yes", "--json"]
        assert json.loads(run(words))["hosts"][0]["written"] is True
    for record in private_home.rglob("pi_mcp_shim.json"):
        assert json.loads(record.read_text())["command"] == [str(program), "engine"]
    assert len(list(private_home.rglob("pi_mcp_shim.json"))) == 4
    assert str(program) in (private_home / ".codex" / "config.toml").read_text()
    run([str(program), "uninstall", "pi", "pp", "code-puppy", "gptme", "codex", "--yes"])
    folders = (".pi", ".code_puppy", ".config/gptme", ".codex")
    assert [path for folder in folders for path in (private_home / folder).rglob("*") if path.is_file()] == []
    assert target_named("pi").kind == "host"
