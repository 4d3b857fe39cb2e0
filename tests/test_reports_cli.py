"""The field reports as the `pi-mcp` command shows them: one document or one line, the exit code, nothing left."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.http_server import HttpServer, closed_port
from tests.hostile.processes import gone
from tests.hostile.product import SECRET
from tests.hostile.script import entry, methods_of, pids_of, tool

pytestmark = pytest.mark.slow  # dozens of processes of Python, each of which imports the SDK

ROOT = Path(__file__).resolve().parent.parent
EVIL = "oops\u001b[H\u001b]2;title\u0007\u001b]52;c;ZXZpbA==\u0007\u009b31m\u202e"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Command:
    """`pi-mcp` over some entries, each run a process of its own."""

    def __init__(self, folder: Path, servers: dict[str, Any]) -> None:
        self.folder, self.servers = folder, servers
        self.path = folder / "mcp.json"
        self.path.write_text(json.dumps({"mcpServers": servers}))

    def __call__(self, *words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "pi_mcp.cli", *words, "--config", str(self.path)],
            cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PLANTED": SECRET},
        )  # fmt: skip
        for shown in (done.stdout, done.stderr):
            assert SECRET not in shown
            assert "Traceback" not in shown
            assert not STEERING.search(shown), ascii(shown)
        for server in self.servers.values():
            if "args" in server and server["args"][-1].endswith(".json"):
                assert gone(pids_of(server), 3.0)
        return done.returncode, done.stdout, done.stderr

    def document(self, *words: str) -> tuple[int, Any]:
        code, out, _ = self(*words, "--json")
        return code, json.loads(out)


def server(folder: Path, script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return entry(folder, script, env={"TOKEN": "${PLANTED}"}, **fields)


def test_b043_a_call_whose_server_dies_is_told_once_and_not_repeated(tmp_path: Path) -> None:
    s = server(tmp_path, {"tools/call": [{"stderr": f"{SECRET}\n"}, {"kill": 9}]})
    command = Command(tmp_path, {"s": s})
    code, out, err = command("call", "s", "echo", "a=1")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "signal 9" in err
    assert "unknown" in err
    code, document = command.document("call", "s", "echo")
    assert (code, document["error"]["code"]) == (3, "connection_failed")
    assert methods_of(s).count("tools/call") == 2


def test_b214_a_search_names_what_it_could_not_search_and_succeeds(tmp_path: Path) -> None:
    servers = {
        "good": server(tmp_path),
        "bad": {"command": "no-such-command-4711"},
        "shut": {"url": f"http://127.0.0.1:{closed_port()}/mcp", "headers": {"X": "${PLANTED}"}},
        "unset": {"command": "x", "env": {"A": "${UNSET_4711}"}},
        "wrong": {"command": 5},
    }
    command = Command(tmp_path, servers)
    code, out, err = command("search", "echo")
    assert code == 0
    assert "echo" in out
    for name in ("bad", "shut", "unset", "wrong"):
        assert f"{name}: [" in out + err
    code, document = command.document("search", "echo")
    assert code == 0
    text = json.dumps(document)
    for name in ("bad", "shut", "unset", "wrong"):
        assert name in text
    assert command("search", "echo", "--server", "bad")[0] == 3
    assert command("search", "echo", "--server", "unset")[0] == 2
    assert command("search", "echo", "--server", "nothing")[0] == 5
    rows = {row["name"]: row for row in as_rows(command.document("servers")[1])}
    assert rows["wrong"]["state"] == rows["unset"]["state"] == "invalid"
    assert rows["good"]["tools"] == 2


def as_rows(document: Any) -> list[dict[str, Any]]:
    return list(document["servers"] if isinstance(document, dict) else document)


def test_b181_b182_nothing_on_the_terminal_comes_from_a_server_uncleaned(tmp_path: Path) -> None:
    listing = {"result": {"tools": [tool("flagged", title=EVIL, description=EVIL), tool("fail"), tool(f"x{EVIL}")]}}
    script = {
        "start": [{"stderr": f"{EVIL}\n"}],
        "tools/list": [listing],
        "tools/call:flagged": [{"result": {"isError": True, "content": [{"type": "text", "text": EVIL}]}}],
        "tools/call:fail": [{"error": [-32000, f"{EVIL} {SECRET}"]}],
    }
    command = Command(tmp_path, {"s": server(tmp_path, script)})
    for words in (["tools"], ["tools", "s"], ["search", "oops"], ["get", "s"], ["servers"], ["refresh"]):
        assert command(*words)[0] == 0, words
        command(*words, "--json")
    code, out, err = command("call", "s", "flagged")
    assert code == 1
    assert "oops" in out + err
    code, _, err = command("call", "s", "fail")
    assert code == 3
    assert "oops" in err
    command("call", "s", EVIL)
    command("get", EVIL)


@pytest.mark.parametrize(
    ("reaction", "code", "exit_code"),
    [
        ({"status": 401, "body": SECRET}, "authentication_required", 4),
        ({"status": 403, "body": SECRET}, "permission_denied", 4),
        ({"status": 429, "body": SECRET}, "operation_failed", 3),
        ({"status": 500, "body": SECRET}, "connection_failed", 3),
        ({"status": 200, "type": "text/html", "body": SECRET}, "protocol_error", 3),
        ({"hang": True}, "timeout", 6),
        ({"reset": True}, "connection_failed", 3),
        ({"error": {"code": -32602, "message": SECRET}}, "operation_failed", 3),
    ],
)
def test_every_failure_of_a_call_has_its_code(
    tmp_path: Path, reaction: dict[str, Any], code: str, exit_code: int
) -> None:
    with HttpServer({"tools/call": reaction}) as http:
        web = {"url": http.url, "headers": {"X-Key": "${PLANTED}"}, "toolTimeoutMs": 500}
        command = Command(tmp_path, {"web": web})
        found, document = command.document("call", "web", "echo")
        assert (found, document["error"]["code"]) == (exit_code, code)
        assert document["error"]["server"] == "web"
        assert len(http.of("tools/call")) == 1
