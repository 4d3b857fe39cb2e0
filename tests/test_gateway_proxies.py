"""The proxy configurations and the unit of docs/gateway.md, as they stand there, in front of a real gateway."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli import build_parser
from tests.auth_server import free_port
from tests.hostile.certificate import certificate_in
from tests.install_support import pi_mcp

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gateway.md"
NAME = "mcp.example.com"

UPSTREAM = """
import json, os, sys, time

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\\n")
    sys.stdout.flush()

for line in sys.stdin:
    asked = json.loads(line)
    method, params = asked.get("method"), asked.get("params") or {}
    if "id" not in asked:
        continue
    if method == "initialize":
        about = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        send({"id": asked["id"], "result": {**about, "serverInfo": {"name": "slow", "version": "1"}}})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("wait", "size")]
        send({"id": asked["id"], "result": {"tools": tools}})
    elif method == "tools/call" and params["name"] == "size":
        text = str(len(params["arguments"]["text"]))
        send({"id": asked["id"], "result": {"content": [{"type": "text", "text": text}]}})
    elif method == "tools/call":
        token = params["_meta"]["progressToken"]
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1}})
        while not os.path.exists(params["arguments"]["until"]):
            time.sleep(0.02)
        send({"id": asked["id"], "result": {"content": [{"type": "text", "text": "seen"}]}})
    else:
        send({"id": asked["id"], "error": {"code": -32601, "message": "no"}})
"""


def block(language: str) -> str:
    """The one code block of that language in the page."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


def until(port: int, process: subprocess.Popen[Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, f"ended with {process.returncode}"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"nothing listens on {port}")


@dataclass
class Proxy:
    """A running proxy with TLS, and the gateway behind it."""

    port: int
    trust: ssl.SSLContext
    gateway: subprocess.Popen[bytes]
    key: str

    def connection(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self.port, context=self.trust, timeout=30)

    def post(
        self, connection: http.client.HTTPSConnection, message: dict[str, Any], session: str | None = None, **more: str
    ) -> http.client.HTTPResponse:
        headers = {
            "Host": f"{NAME}:{self.port}",
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **({"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"} if session else {}),
            **more,
        }
        connection.request("POST", "/mcp", json.dumps({"jsonrpc": "2.0", **message}), headers)
        return connection.getresponse()

    def session(self, connection: http.client.HTTPSConnection) -> str:
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        answer = self.post(connection, {"id": 1, "method": "initialize", "params": about})
        assert answer.status == 200, answer.read()
        answer.read()
        session = answer.headers["Mcp-Session-Id"]
        done = self.post(connection, {"method": "notifications/initialized"}, session)
        assert done.status == 202, done.read()
        done.read()
        return str(session)


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The messages of an answer, each as soon as it is there."""
    if answer.headers.get_content_type() == "application/json":
        yield json.loads(answer.read())
        return
    while line := answer.readline():
        if line.startswith(b"data:") and line[5:].strip():
            yield json.loads(line[5:])


def nginx(folder: Path, port: int, upstream: int, cert: Path, key: Path) -> list[str]:
    text = block("nginx")
    for old, new in {
        "server 127.0.0.1:8400;": f"server 127.0.0.1:{upstream};",
        "listen 443 ssl;": f"listen 127.0.0.1:{port} ssl;",
        "/etc/ssl/mcp.example.com.pem": str(cert),
        "/etc/ssl/mcp.example.com.key": str(key),
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "tmp").mkdir()
    places = " ".join(f"{kind}_temp_path tmp/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    frame = "worker_processes 1; daemon off; pid tmp/pid; error_log stderr warn; events { worker_connections 64; }"
    (folder / "nginx.conf").write_text(f"{frame}\nhttp {{ access_log off; {places}\n{text}\n}}\n")
    return ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, upstream: int, cert: Path, key: Path) -> list[str]:
    text = block("caddyfile")
    for old, new in {
        "mcp.example.com {": f"https://{NAME}:{port}, https://127.0.0.1:{port} {{\n    tls {cert} {key}",
        "127.0.0.1:8400": f"127.0.0.1:{upstream}",
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    top = "{\n    admin off\n    auto_https off\n    default_sni 127.0.0.1\n}\n"
    (folder / "Caddyfile").write_text(top + text)
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


@pytest.fixture(params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest, private_home: Path, tmp_path: Path) -> Iterator[Proxy]:
    if shutil.which(request.param) is None:
        if request.param == "nginx" and os.environ.get("PI_MCP_REQUIRE_ENVIRONMENTS"):
            pytest.fail("nginx is not installed")
        pytest.skip(f"{request.param} is not installed")
    cert, key = certificate_in(tmp_path)
    (tmp_path / "upstream.py").write_text(UPSTREAM)
    entry = {"command": sys.executable, "args": [str(tmp_path / "upstream.py")], "toolTimeoutMs": 60000}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"slow": entry}}))
    inner, outer = free_port(), free_port()
    words = ["serve", "--config", str(tmp_path / "mcp.json"), "--http", f"127.0.0.1:{inner}", "--expose", "all"]
    store = str(tmp_path / "gateway.sqlite")
    words += ["--public-url", f"https://{NAME}", "--store", store, "--trusted-proxy", "127.0.0.1"]
    made = pi_mcp("keys", "create", "t", "--store", store, "--subject", "anna", "--scope", "tools:write", "--json")
    assert made.returncode == 0, made.stderr
    secret = json.loads(made.stdout)["key"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, port in (
            ([sys.executable, "-m", "pi_mcp", *words], inner),
            ({"nginx": nginx, "caddy": caddy}[request.param](tmp_path, outer, inner, cert, key), outer),
        ):
            log = (tmp_path / f"{port}.log").open("wb")
            started.append(
                subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=tmp_path)
            )
            log.close()
            until(port, started[-1])
        yield Proxy(outer, ssl.create_default_context(cafile=str(cert)), started[0], secret)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=45)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.mark.slow
def test_progress_passes_the_proxy_while_the_call_still_runs(proxy: Proxy, tmp_path: Path) -> None:
    connection = proxy.connection()
    try:
        session = proxy.session(connection)
        mark = tmp_path / "mark"
        params = {"name": "slow__wait", "arguments": {"until": str(mark)}, "_meta": {"progressToken": "p"}}
        answer = proxy.post(connection, {"id": 2, "method": "tools/call", "params": params}, session)
        assert answer.status == 200
        seen = []
        # The tool ends only after its progress was seen out here: a proxy that kept it back would never hand it on.
        for message in events(answer):
            seen.append(message)
            mark.touch()
        assert [message.get("method") for message in seen] == ["notifications/progress", None]
        assert seen[-1]["result"]["content"] == [{"type": "text", "text": "seen"}]
    finally:
        connection.close()


@pytest.mark.slow
def test_a_large_request_passes_and_a_larger_one_is_refused(proxy: Proxy) -> None:
    connection = proxy.connection()
    try:
        session = proxy.session(connection)
        params = {"name": "slow__size", "arguments": {"text": "x" * 3_000_000}}
        answer = proxy.post(connection, {"id": 2, "method": "tools/call", "params": params}, session)
        assert answer.status == 200
        assert next(m for m in events(answer) if m.get("id") == 2)["result"]["content"][0]["text"] == "3000000"
        answer.read()
        params["arguments"] = {"text": "x" * 6_000_000}
        try:
            refused = proxy.post(connection, {"id": 3, "method": "tools/call", "params": params}, session)
            assert refused.status == 413
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            pass  # cut off while it was still sent
    finally:
        connection.close()


@pytest.mark.slow
def test_names_and_health_are_as_the_page_says(proxy: Proxy) -> None:
    connection = proxy.connection()
    try:
        connection.request("GET", "/healthz", headers={"Host": f"{NAME}:{proxy.port}"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"ok\n")
        for status, more in ((403, {"Origin": "https://evil.example"}), (401, {"Authorization": "Bearer pimcp_no"})):
            answer = proxy.post(connection, {"id": 1, "method": "ping"}, **more)
            assert answer.status == status
            answer.read()
        proxy.gateway.send_signal(signal.SIGTERM)
        assert proxy.gateway.wait(timeout=45) == 0
    finally:
        connection.close()


def test_the_unit_of_the_page_is_one_that_systemd_takes(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "pi-mcp.service"
    text = block("ini")
    started = re.search(r"^ExecStart=(.*)$", text.replace("\\\n", " "), re.MULTILINE)
    assert started is not None
    # What it starts is not there, and neither is its user: everything else is judged.
    unit.write_text(text.replace("/opt/pi-mcp/bin/pi-mcp serve", "/bin/true serve").replace("User=pi-mcp", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    about = [line for line in (done.stdout + done.stderr).splitlines() if "pi-mcp.service" in line]
    assert about == []
    options = build_parser().parse_args(shlex.split(started[1])[1:])
    assert (options.http, options.trusted_proxy) == ("127.0.0.1:8400", ["127.0.0.1"])


def test_the_commands_of_the_page_have_only_options_that_there_are() -> None:
    commands = next(action.choices for action in build_parser()._actions if isinstance(action.choices, dict))
    text = PAGE.read_text().replace("\\\n", " ")
    typed = re.findall(r"^(?:.*[/ ]|)pi-mcp (serve|keys|audit|install)( .*)$", text, re.MULTILINE)
    assert len(typed) > 8
    for command, rest in typed:
        said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", rest.split("#")[0]))
        assert said <= set(commands[command]._option_string_actions), (command, said)
    serve = set(commands["serve"]._option_string_actions)
    assert set(re.findall(r'"(--[a-z-]+)"', block("dockerfile"))) <= serve
    assert set(re.findall(r"`(--[a-z-]+)", text)) <= serve
