"""Many processes with one login: forked from one that has everything imported, released at the same moment.

Comes in, line by line on stdin: `{"state", "url", "count", "kill"}`; `kill` is null, `["any", seconds]` for one of them
so long after the start, or `["holder", seconds]` for the one that holds the login's lock, so long after it got it. Goes
out, line by line: what each said, `null` for the one that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pi_mcp.config import configuration_of
from pi_mcp.connect.session import load_sdk
from pi_mcp.errors import PiMcpError
from pi_mcp.plugin import Plugin
from tests.auth_store_support import KEY


async def call(state: Path, url: str, number: int) -> str:
    configuration = configuration_of({"s": {"url": url, "timeoutMs": 60000}}, environ={**os.environ, **KEY}, cwd=state)
    plugin = Plugin(configuration, state_dir=state, cache_dir=state / f"cache-{number}")
    session = plugin.session(f"one-{number}", keep=False)
    try:
        answer = await session.load(["s.echo"])
        if answer.not_searched:
            return answer.not_searched[0].code
        done = await session.call("mcp__s__echo", {"number": number})
        return "ok" if f'"number": {number}' in str(done.content) else "odd"
    except PiMcpError as error:
        return error.diagnostic.code
    finally:
        await plugin.close()


def child(gate: int, out: int, state: Path, url: str, number: int) -> None:
    os.read(gate, 1)  # until the parent closes the other end
    try:
        said = asyncio.run(asyncio.wait_for(call(state, url, number), 90))
    except BaseException as error:
        said = f"raised {type(error).__name__}"
    os.write(out, f"{number} {said}\n".encode())
    os._exit(0)


def holder_of(state: Path, pids: set[int]) -> int | None:
    """The process that has the login's lock, as the kernel says."""
    inodes = {str(path.stat().st_ino) for path in (state / "credentials").glob("*.lock") if path.name != "index.lock"}
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if (
            "->" not in words
            and words[1] == "FLOCK"
            and words[5].rpartition(":")[2] in inodes
            and int(words[4]) in pids
        ):
            return int(words[4])
    return None


def round_of(state: Path, url: str, count: int, kill: tuple[str, float] | None) -> list[str | None]:
    gate, gate_end = os.pipe()
    out, out_end = os.pipe()
    pids: dict[int, int] = {}
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            os.close(gate_end)
            os.close(out)
            child(gate, out_end, state, url, number)
        pids[pid] = number
    os.close(out_end)
    os.close(gate)
    os.close(gate_end)
    victim: int | None = None
    if kill is not None:
        deadline = time.monotonic() + 30
        if kill[0] == "holder":
            while (victim := holder_of(state, set(pids))) is None and time.monotonic() < deadline:
                time.sleep(0.001)
        time.sleep(kill[1])
        victim = victim or random.choice(list(pids))
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    said: list[str | None] = [None] * count
    with os.fdopen(out, "r") as lines:
        for line in lines:
            number, _, what = line.strip().partition(" ")
            said[int(number)] = what
    for pid in pids:
        os.waitpid(pid, 0)
    return said


def main() -> None:
    asyncio.run(load_sdk())
    import pi_mcp.auth.bearer
    import pi_mcp.auth.tokens
    import pi_mcp.catalog
    import pi_mcp.connect.http  # noqa: F401 - imported here, so that fifty children need not

    print("ready", flush=True)
    for line in sys.stdin:
        task: dict[str, Any] = json.loads(line)
        said = round_of(Path(task["state"]), task["url"], task["count"], task["kill"])
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
