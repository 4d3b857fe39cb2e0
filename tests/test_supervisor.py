"""No server process outlives its host, whoever is killed and however the server behaves (DESIGN §2)."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.connect import supervisor
from tests.hostile.processes import alive, children_of, gone
from tests.hostile.script import entry, pids_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

PROGRAM = str(Path(supervisor.__file__))

# What a server may be like: each of these must go, whoever is killed.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignores SIGTERM and end of file": {"ignore_term": True, "ignore_eof": True},
    "launcher with a child": {"start": [{"spawn": "child"}]},
    "child in a session of its own": {"start": [{"spawn": "setsid"}], "ignore_term": True},
    "daemon": {"start": [{"spawn": "daemon"}], "ignore_eof": True},
}


def supervised(*command: str) -> list[str]:
    return [sys.executable, "-I", "-S", PROGRAM, *command]


def finish(*command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(supervised(*command), capture_output=True, timeout=20, check=False, **options)


@contextlib.contextmanager
def running(server: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """The server of an entry under its supervisor, once it and what it spawns have been recorded."""
    process = subprocess.Popen(
        supervised(server["command"], *server["args"]), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def wait_for(condition: Any, seconds: float = 10.0) -> Any:
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return value


def started(server: dict[str, Any]) -> list[int]:
    """The pids of the server and of what it spawns at its start."""
    spawns = len(json.loads(Path(server["args"][-1]).read_text()).get("start", []))
    return wait_for(lambda: len(pids_of(server)) == 1 + spawns and pids_of(server))


def test_the_exit_status_of_the_server_is_kept() -> None:
    assert finish("true").returncode == 0
    assert finish("sh", "-c", "exit 7").returncode == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV])
def test_the_signal_that_ended_the_server_is_kept(number: signal.Signals) -> None:
    assert finish("sh", "-c", f"ulimit -c 0; kill -{int(number)} $$").returncode == -number


def test_a_command_that_cannot_be_executed_is_named_on_stderr(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    done = finish(str(bad))
    assert done.returncode == 127
    assert b"cannot execute" in done.stderr
    assert b"Traceback" not in done.stderr


def test_stdin_stdout_and_stderr_are_the_servers_own() -> None:
    done = finish("sh", "-c", "cat; echo to-stderr >&2", input=b"hello")
    assert (done.stdout, done.stderr) == (b"hello", b"to-stderr\n")


def test_the_servers_environment_is_the_one_that_the_host_chose(tmp_path: Path) -> None:
    done = finish("env", env={"A": "1", supervisor.HOST_VARIABLE: str(os.getpid())})
    assert done.stdout == b"A=1\n"


def test_the_server_gets_default_signal_handling_and_a_group_of_its_own() -> None:
    done = finish("sh", "-c", "grep SigIgn /proc/self/status; ps -o pid=,pgid= -p $$")
    ignored, pair = done.stdout.decode().splitlines()
    assert int(ignored.split()[1], 16) & 0x7FFFFFFF == 0  # 32 and 33 are the C library's own
    pid, group = pair.split()
    assert pid == group


def test_a_server_that_signals_its_whole_group_does_not_hit_its_supervisors(tmp_path: Path) -> None:
    done = finish("sh", "-c", "kill -9 0")
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("victim", ["host", "outer supervisor", "inner supervisor", "server"])
def test_after_kill_9_nothing_of_any_server_is_left(victim: str, tmp_path: Path) -> None:
    servers = [entry(tmp_path, script) for script in KINDS.values()]
    commands = [supervised(server["command"], *server["args"]) for server in servers]
    # The host holds the write ends of the pipes, as the engine does.
    host = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            "import json, subprocess, sys, time\n"
            "p = [subprocess.Popen(c, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)\n"
            "     for c in json.loads(sys.argv[1])]\n"
            "time.sleep(60)",
            json.dumps(commands),
        ]
    )
    try:
        pids = [pid for server in servers for pid in started(server)]
        outers = children_of(host.pid)
        inners = [inner for outer in outers for inner in children_of(outer)]
        assert len(alive(pids)) == 8
        assert len(outers) == len(inners) == len(KINDS)
        victims = {
            "host": [host.pid],
            "outer supervisor": outers,
            "inner supervisor": inners,
            "server": [pids_of(server)[0] for server in servers],
        }[victim]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if victim == "host":
            host.wait()
        assert gone([*pids, *outers, *inners], 8.0), alive([*pids, *outers, *inners])
    finally:
        host.kill()
        host.wait()
        for pid in (pid for server in servers for pid in pids_of(server)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_the_end_of_file_ends_a_good_server_and_what_it_left_behind(tmp_path: Path) -> None:
    server = entry(tmp_path, {"start": [{"spawn": "daemon"}]})
    with running(server) as process:
        pids = started(server)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(5) == 0
        assert alive(pids) == []


def test_sigterm_gives_the_server_its_time_and_then_ends_everything(tmp_path: Path) -> None:
    server = entry(tmp_path, {"start": [{"spawn": "setsid"}], "ignore_term": True, "ignore_eof": True})
    with running(server) as process:
        pids = started(server)
        before = time.monotonic()
        process.terminate()
        process.wait(8)
        assert 1.5 < time.monotonic() - before < 4.5
        assert alive(pids) == []


def test_sigterm_reaches_the_server_once_and_its_exit_status_counts() -> None:
    script = "n=0; trap 'n=$((n+1)); sleep 0.3; exit $((40+n))' TERM; echo ready; while :; do sleep 0.05; done"
    process = subprocess.Popen(supervised("sh", "-c", script), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as pipe:
        assert pipe.readline() == b"ready\n"
        process.terminate()
        assert process.wait(5) == 41


def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_the_server(tmp_path: Path) -> None:
    server = entry(tmp_path)
    found: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        found.append(subprocess.Popen(supervised(server["command"], *server["args"]), stdin=subprocess.PIPE, stdout=-1))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    process = found[0]
    try:
        pids = started(server)
        time.sleep(0.3)
        assert alive(pids) == pids
    finally:
        process.kill()
        process.communicate()
    assert gone(pids)


def test_a_host_that_is_dead_already_gets_no_server(tmp_path: Path) -> None:
    server = entry(tmp_path)
    done = finish(server["command"], *server["args"], env={supervisor.HOST_VARIABLE: "999999999"}, stdin=-1)
    assert done.returncode == 0
    assert pids_of(server) == []


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["host", "outer supervisor", "inner supervisor"])
def test_without_help_of_the_kernel_the_servers_own_group_still_goes(victim: str, tmp_path: Path) -> None:
    """The path for macOS: no parent-death signal, no subreaper. Run here with both switched off."""
    server = entry(tmp_path, {"start": [{"spawn": "child"}], "ignore_term": True, "ignore_eof": True})
    program = (
        "import importlib.util, sys\n"
        f"s = importlib.util.spec_from_file_location('supervisor', {PROGRAM!r})\n"
        "m = importlib.util.module_from_spec(s); s.loader.exec_module(m)\n"
        "m._LINUX = False; m._children = lambda: []; m.main(sys.argv[1:])\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program, server["command"], *server["args"]]
    host = subprocess.Popen(
        [
            sys.executable,
            "-S",
            "-c",
            "import json, subprocess, sys, time\n"
            "p = subprocess.Popen(json.loads(sys.argv[1]), stdin=-1, stdout=-1, start_new_session=True)\n"
            "time.sleep(60)",
            json.dumps(command),
        ]
    )
    try:
        pids = started(server)
        [outer] = children_of(host.pid)
        [inner] = children_of(outer)
        os.kill({"host": host.pid, "outer supervisor": outer, "inner supervisor": inner}[victim], signal.SIGKILL)
        if victim == "host":
            host.wait()
        assert gone([*pids, outer, inner], 10.0), alive([*pids, outer, inner])
    finally:
        host.kill()
        host.wait()
        for pid in pids_of(server):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_starting_a_server_under_the_supervisor_costs_little() -> None:
    def seconds(command: list[str]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    cost = min(seconds(supervised("true")) for _ in range(5)) - min(seconds(["true"]) for _ in range(5))
    assert cost < 0.1, f"{cost:.3f} s of processor time"
