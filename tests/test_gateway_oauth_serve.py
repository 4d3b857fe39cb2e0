"""A real `pi-mcp serve --oauth embedded`: our own `pi-mcp auth` and the official suite sign in to it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.auth_server import free_port
from tests.auth_support import KEY
from tests.chat_support import Terminal
from tests.environments import node22, npm
from tests.gateway_oauth_support import ALL, Browser
from tests.gateway_serve_support import Served
from tests.support import run
from tests.test_auth_terminal import address

pytestmark = pytest.mark.slow


async def agreed(gate: Served, url: str, key: str, **fields: str) -> str:
    async with Browser(gate.url) as browser:
        return await browser.agree(url, key, **fields)


def sign_in(gate: Served, folder: Path, config: Path, key: str, **fields: str) -> str:
    """`pi-mcp auth` on a terminal, with a browser elsewhere; what the terminal showed."""
    (folder / "ended").unlink(missing_ok=True)
    kept = ("PYTHONPATH", "PATH", "HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
    environ = {name: gate.environ[name] for name in kept if name in gate.environ}
    words = [*gate.command, "auth", "gate", "--no-browser", "--config", str(config)]
    with Terminal(words, cwd=folder, environ={**environ, "PI_MCP_CREDENTIAL_KEY": KEY}) as screen:
        screen.wait("You may also paste", limit=40)
        location = run(agreed(gate, address(screen), key, **fields))
        screen.type(location)
        screen.press("Enter")
        shown = screen.wait("Signed in to gate", limit=40)
        assert screen.exit_code() == 0
        return shown


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_our_own_auth_signs_in_calls_a_tool_and_steps_up(tmp_path: Path) -> None:
    with Served(tmp_path, "--oauth", "embedded", "--expose", "all") as gate:
        key = gate.key(ALL)
        config = tmp_path / "client.json"
        entry = {"url": f"{gate.url}/mcp", "oauth": {"callbackPort": free_port()}}
        config.write_text(json.dumps({"mcpServers": {"gate": entry}}))

        def call(tool: str) -> subprocess.CompletedProcess[str]:
            return gate.run("call", "gate", tool, "--json", "--config", str(config), PI_MCP_CREDENTIAL_KEY=KEY)

        sign_in(gate, tmp_path, config, key, scope="tools:read")
        names = gate.run("tools", "gate", "--json", "--config", str(config), PI_MCP_CREDENTIAL_KEY=KEY)
        assert names.returncode == 0, names.stdout
        (look,) = {name for name in re.findall(r'"name": "([^"]*)"', names.stdout) if name.endswith("look")}
        done = call(look)
        assert done.returncode == 0, done.stdout
        assert "called" in done.stdout
        # A scope that was not granted: the refusal names it, nothing reached the server, and a new login brings it.
        seen = gate.seen.read_text().count("tools/call")
        assert call(look.replace("look", "change")).returncode != 0
        assert gate.seen.read_text().count("tools/call") == seen
        sign_in(gate, tmp_path, config, key)
        done = call(look.replace("look", "change"))
        assert done.returncode == 0, done.stdout
        # Our own logout revokes it at the gateway; the grant of the first login is ended by hand.
        done = gate.run("logout", "gate", "--config", str(config), PI_MCP_CREDENTIAL_KEY=KEY)
        assert done.returncode == 0, done.stderr
        listed = gate.run("grants", "list", "--all", "--json").stdout
        grants = json.loads(listed)["grants"]
        assert len(grants) == 2
        live = [one["id"] for one in grants if one["state"] == "valid"]
        assert len(live) == 1, listed
        assert gate.run("grants", "revoke", *live).returncode == 0
        after = call(look)
        assert after.returncode == 4, after.stdout
        for text in (gate.output, done.stdout, after.stdout, json.dumps(grants)):
            assert key not in text


def suite() -> list[str]:
    package = npm("@modelcontextprotocol/conformance@0.2.0-alpha.12")
    return [str(node22()), str(package / "node_modules/@modelcontextprotocol/conformance/dist/index.js")]


def test_the_suites_authorization_server_scenarios_pass(tmp_path: Path) -> None:
    command = suite()
    with Served(tmp_path, "--oauth", "embedded") as gate:
        key, port = gate.key("tools:read"), free_port()
        client = httpx2.post(
            f"{gate.url}/oauth/register",
            json={
                "redirect_uris": [f"http://127.0.0.1:{port}/callback"],
                "client_name": "Conformance",
                "token_endpoint_auth_method": "none",
            },
            trust_env=False,
        ).json()
        words = [
            *command, "authorization", "--url", gate.url, "--client-id", client["client_id"], "--resource",
            f"{gate.url}/mcp", "--port", str(port), "-o", str(tmp_path / "results"),
        ]  # fmt: skip
        process = subprocess.Popen(
            words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said: list[str] = []
        # Whatever it waits for: it ends.
        limit = threading.Timer(90, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line)
                if line.startswith(f"{gate.url}/oauth/authorize?"):
                    location = run(agreed(gate, line.strip(), key))
                    assert urlsplit(location).port == port
                    httpx2.get(location, trust_env=False)
            code = process.wait(30)
        finally:
            limit.cancel()
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        text = "".join(said)
        assert code == 0, text
        checks = [
            check
            for path in (tmp_path / "results").rglob("checks.json")
            for check in json.loads(path.read_text(encoding="utf-8"))
        ]
        assert verdicts(checks) == {
            "authorization-server-metadata": "SUCCESS",
            "authorization-server-metadata-cimd": "SUCCESS",
            "authorization-code-grant": "SUCCESS",
        }, text


def verdicts(checks: list[dict[str, Any]]) -> dict[str, str]:
    return {str(check["id"]): str(check["status"]) for check in checks}
