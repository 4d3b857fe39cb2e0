"""Secrets are planted wherever one can stand, everything fails that can fail, and then everything is searched.

The host runs as a process of its own, prints whatever an agent could show or keep, tracebacks and reprs included,
and logs at debug level. No planted value may be in its output or in any file that it wrote.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.hostile.http_server import HttpServer, Request, closed_port
from tests.hostile.script import entry

HOST = """
import asyncio, json, sys, traceback
from pathlib import Path
from pi_mcp.config import load_config, resolve
from pi_mcp.log import configure_logging
from pi_mcp.plugin import Plugin
from tests.plugin_support import AskingHost

def show(*what):
    for one in what:
        print(one, repr(one))

async def attempt(work):
    try:
        show(await work)
    except Exception as error:
        show(error, error.args)
        traceback.print_exc()
        print("CODE", error.diagnostic.code if hasattr(error, "diagnostic") else type(error).__name__)

async def main():
    configure_logging()
    plugin = Plugin(load_config())
    host = AskingHost()
    session = plugin.session("one", host)
    show(plugin.configuration, session.search_tool)
    for definition in plugin.configuration.servers.values():
        show(definition)
        try:
            show(resolve(definition, plugin.configuration))
        except Exception:
            traceback.print_exc()
    answer = await session.search("echo say it again", limit=50)
    show(answer, json.dumps(answer.details))
    print("CODES", json.dumps({one.server: one.code for one in answer.not_searched}))
    calls = {}
    for tool in session.loaded:
        try:
            show(await session.call(tool.native, {"x": 1}))
            calls[tool.server] = "ok"
        except Exception as error:
            traceback.print_exc()
            calls[tool.server] = error.diagnostic.code
    print("CALLS", json.dumps(calls))
    names = list(plugin.configuration.entries)
    lines = ["", "help", "reload", "refresh", "search echo", "tools", "tools loaded"]
    lines += ["reconnect fine", "reconnect h-fine"]
    lines += [f"{verb} {name}" for name in names for verb in ("get", "auth")]
    answers = [await session.command(line) for line in lines]
    answers += await asyncio.gather(*(session.command(f"tools {name}") for name in names))
    for command in answers:
        show(command, json.dumps(command.to_json()))
    show([status.to_json() for status in session.statuses()], session.statuses())
    show(host.asked, host.forms, host.told)
    await asyncio.gather(*(attempt(session.load([f"{name}.echo"])) for name in names))
    await plugin.close()

asyncio.run(main())
print("FINISHED")
"""

# Each with something that JSON, URLs and shells spell in their own way.
LITERAL = 'lit-"9f8e7d6c"/é'
VARIABLE = "var-5b4a3c2d=+z"
COMMAND = "cmd-1029384756x"
IN_URL = "url-a1b2c3d4e5f6"
PASSWORD = "pass-0f1e2d3c4b"
ALL = (LITERAL, VARIABLE, COMMAND, IN_URL, PASSWORD)
QUOTED = " ".join(ALL)


def spellings(value: str) -> set[bytes]:
    forms = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], quote(value, safe="")}
    forms.add(base64.b64encode(f"me:{value}".encode()).decode())
    return {form.encode() for form in forms} | {value.encode("latin-1", "replace")}


def stdio_servers(folder: Path) -> dict[str, dict[str, Any]]:
    secret_file = folder / "secret.txt"
    secret_file.write_text(COMMAND + "\n")
    planted = {
        "env": {"API_TOKEN": LITERAL, "SECOND_KEY": "x-${PLANTED}", "THIRD": f"!cat '{secret_file}'"},
        "toolTimeoutMs": 1500,
        "timeoutMs": 3000,
    }
    leak = {"stderr": f"env is {QUOTED}\n"}
    quoted = {"error": [-32000, f"refused: {QUOTED}", {"why": QUOTED}]}
    kinds: dict[str, dict[str, Any]] = {
        "fine": {"start": [leak]},
        "exits": {"start": [leak, {"exit": 3}]},
        "garbage": {"start": [{"raw": f"{QUOTED}\nnot json\n"}, leak]},
        "initfails": {"initialize": [quoted], "server/discover": [quoted]},
        "initodd": {"initialize": [{"result": {"protocolVersion": QUOTED}}]},
        "listfails": {"tools/list": [quoted]},
        "listodd": {"tools/list": [{"result": {"tools": QUOTED}}]},
        "callfails": {"tools/call": [quoted]},
        "callargs": {"tools/call": [{"error": [-32602, f"bad parameters {QUOTED}"]}]},
        "calldies": {"tools/call": [leak, {"exit": 1}]},
        "callhangs": {"tools/call": [leak, {"hang": True}]},
        "callodd": {"tools/call": [{"result": QUOTED}]},
        "callraw": {"tools/call": [{"raw": f'{{"jsonrpc": "2.0", "id": $ID, "{QUOTED[:3]}": 1, {QUOTED}\n'}]},
        "logs": {
            "tools/call": [{"notify": ["notifications/message", {"level": "error", "data": QUOTED}]}, {"result": {}}]
        },
    }
    servers = {name: entry(folder, script, **planted) for name, script in kinds.items()}
    servers["nowhere"] = {"command": str(folder / "no such program"), "args": ["--token", LITERAL], **planted}
    servers["nodir"] = entry(folder, cwd=str(folder / "missing"), **planted)
    servers["unset"] = entry(folder, env={"API_TOKEN": LITERAL, "OTHER": "${NOT_SET_ANYWHERE}"})
    servers["cmdfails"] = entry(folder, env={"K": f"!cat '{secret_file}' >&2; cat '{secret_file}'; exit 4"})
    servers["cmdlines"] = {
        "url": "http://127.0.0.1:9/mcp",
        "headers": {"Authorization": f"!cat '{secret_file}' '{secret_file}'"},
    }
    servers["invalid"] = {"command": "x", "env": {"API_TOKEN": LITERAL}, "apiKey": LITERAL, "url": IN_URL}
    return servers


def echoed(request: Request, server: HttpServer) -> str:
    """What a careless server says: the request that it got."""
    del server
    return f"{request.target} {request.headers} {QUOTED}"


def refusing(status: int, **headers: str) -> Any:
    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        return {"status": status, "headers": headers, "body": echoed(request, server)}

    return react


def erring(request: Request, server: HttpServer) -> dict[str, Any]:
    return {"error": {"code": -32000, "message": echoed(request, server), "data": QUOTED}}


HTTP: dict[str, dict[str, Any]] = {
    "h-fine": {},
    "h-401": {"*": refusing(401, **{"WWW-Authenticate": f'Bearer realm="{IN_URL}"'})},
    "h-403": {"*": refusing(403)},
    "h-404": {"*": refusing(404)},
    "h-500": {"*": refusing(500)},
    "h-429": {"tools/call": refusing(429, **{"Retry-After": "7"})},
    "h-html": {"*": {"type": "text/html", "body": QUOTED.replace('"', ""), "status": 200}},
    "h-away": {"*": refusing(302, Location=f"http://127.0.0.1:9/?token={IN_URL}")},
    "h-error": {"tools/call": erring},
    "h-list": {"tools/list": erring},
    "h-init": {"initialize": erring},
    "h-reset": {"tools/call": {"reset": True}},
    "h-raw": {"tools/call": {"raw": f"HTTP/1.1 200 {IN_URL}\r\nX: {PASSWORD}\r\n\r\n{IN_URL}"}},
    "h-call401": {"tools/call": refusing(401)},
    "h-call502": {"tools/call": refusing(502)},
}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_planted_secret_is_in_any_output_log_cache_session_or_traceback(tmp_path: Path, private_home: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    servers = stdio_servers(work)
    with contextlib.ExitStack() as stack:
        for name, script in HTTP.items():
            http = stack.enter_context(HttpServer(script))
            secret_file = work / "secret.txt"
            url = f"http://127.0.0.1:{http.port}/mcp?token={IN_URL}"
            headers = {"X-Api-Key": "key-${PLANTED}", "X-Third": f"!cat '{secret_file}'"}
            if name in ("h-fine", "h-error", "h-500"):
                url = url.replace("http://", f"http://me:{PASSWORD}@")
            else:
                headers["Authorization"] = "Bearer " + PASSWORD
            servers[name] = {"url": url, "headers": headers, "toolTimeoutMs": 1500, "timeoutMs": 3000}
        servers["h-closed"] = {
            "url": f"http://127.0.0.1:{closed_port()}/mcp?token={IN_URL}",
            "headers": {"X-Api-Key": PASSWORD},
        }
        config = private_home / ".config/pi-mcp/mcp.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"mcpServers": servers}))
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-c", HOST],
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "PYTHONPATH": ".", "PLANTED": VARIABLE, "PI_MCP_LOG": "debug"},
            capture_output=True,
            timeout=100,
        )
    output = done.stdout.decode(errors="replace")
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    assert output.rstrip().endswith("FINISHED")

    # That each failure really happened.
    codes = json.loads(next(line[6:] for line in output.splitlines() if line.startswith("CODES ")))
    calls = json.loads(next(line[6:] for line in output.splitlines() if line.startswith("CALLS ")))
    assert {name for name in servers if name not in codes and name not in calls} <= {"garbage", "listodd", "initodd"}
    assert codes["exits"] == codes["nowhere"] == codes["h-closed"] == "connection_failed"
    assert codes["cmdfails"] == codes["cmdlines"] == "secret_lookup_failed"
    assert codes["unset"] == codes["invalid"] == "configuration_invalid"
    assert (codes["h-401"], codes["h-403"]) == ("authentication_required", "permission_denied")
    assert calls["fine"] == calls["h-fine"] == calls["logs"] == "ok"
    assert calls["callhangs"] == "timeout"
    assert {calls[name] for name in ("callfails", "calldies", "h-error", "h-reset", "h-call502")} <= {
        "operation_failed",
        "connection_failed",
        "protocol_error",
    }

    written = {path: path.read_bytes() for path in private_home.rglob("*") if path.is_file() and path != config}
    kinds = {
        path.relative_to(private_home / ".local/state/pi-mcp").parts[0] for path in written if "state" in str(path)
    }
    assert {"sessions", "logs"} <= kinds
    assert any("catalogs" in path.parts for path in written)
    places = {"standard output": done.stdout, "standard error": done.stderr} | {
        str(path): data for path, data in written.items()
    }
    for where, data in places.items():
        for value in ALL:
            for form in spellings(value):
                at = data.find(form)
                assert at < 0, f"{form!r} in {where}: …{data[max(0, at - 300) : at + 100]!r}"
