"""A host or a supervisor that is killed with SIGKILL leaves no server behind, whatever the server is like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.processes import alive, children_of, descendants_of, gone
from tests.hostile.script import entry, pids_of

HOST = """
import asyncio, json, sys
from pathlib import Path
from pi_mcp.config import configuration_of
from pi_mcp.plugin import Plugin

async def main():
    folder = Path(sys.argv[2])
    plugin = Plugin(configuration_of(json.loads(sys.argv[1])), state_dir=folder / "s", cache_dir=folder / "c")
    session = plugin.session("host")
    answer = await session.search("echo", limit=50)
    print(len(answer.loaded), flush=True)
    await session.call(answer.loaded[0].native, {})
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps([(await session.call(tool.native, {})).is_error for tool in session.loaded]), flush=True)

asyncio.run(main())
"""

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "deaf": {"ignore_eof": True, "ignore_term": True},
    "launcher": {"start": [{"spawn": "child"}], "ignore_eof": True},
    "daemon": {"start": [{"spawn": "daemon"}, {"spawn": "setsid"}], "ignore_eof": True, "ignore_term": True},
}


def servers_in(folder: Path) -> dict[str, dict[str, Any]]:
    servers = {name: entry(folder, script) for name, script in KINDS.items()}
    # As npx and uvx do: the command is a shell that waits for the server, its child.
    inner = entry(folder)
    words = " ".join(f"'{word}'" for word in [inner["command"], *inner["args"]])
    servers["wrapped"] = {"command": "sh", "args": ["-c", f"{words}; exit 0"], "record": inner["args"][-1]}
    return servers


def pids(servers: dict[str, dict[str, Any]]) -> list[int]:
    found = []
    for server in servers.values():
        script = server.get("record", server["args"][-1])
        found += pids_of({"args": [script]})
    return found


def configured(servers: dict[str, dict[str, Any]]) -> str:
    return json.dumps({name: {"command": one["command"], "args": one["args"]} for name, one in servers.items()})


@pytest.fixture
def host(tmp_path: Path) -> Any:
    servers = servers_in(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, configured(servers), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    everyone: list[int] = []
    try:
        assert process.stdout.readline() == "5\n"
        assert process.stdout.readline() == "ready\n"
        everyone = [*pids(servers), *descendants_of(process.pid)]
        assert len(set(pids(servers))) == 8
        yield process, servers, everyone
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        for pid in alive(everyone):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_host_leaves_no_server_process(host: Any) -> None:
    process, _, everyone = host
    process.kill()
    process.wait()
    assert gone(everyone, 8), alive(everyone)


def test_a_killed_supervisor_takes_its_server_along_and_the_next_call_starts_it_again(host: Any) -> None:
    process, servers, everyone = host
    supervisors = children_of(process.pid)
    assert len(supervisors) == 5
    for supervisor in supervisors:
        below = descendants_of(supervisor)
        os.kill(supervisor, signal.SIGKILL)
        assert gone([supervisor, *below], 8), alive(below)
    assert gone(everyone, 8), alive(everyone)
    process.stdin.write("call\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline()) == [False] * 5
    fresh = [*pids(servers), *descendants_of(process.pid)]
    assert len(alive(pids(servers))) == 8
    process.kill()
    process.wait()
    assert gone(fresh, 8), alive(fresh)
