"""One call from a script, whole processes: `pi-mcp call` beside the SDK's client that makes the same call.

Both connect to the same server over HTTP, list what it offers as far as they do so for a call, call one tool and print
its text. Wall time and the peak of resident memory are medians of one run in which the sides take turns.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from calls import http_server
from measure import Options, Row, at_most, environment, milliseconds, python, turned
from setting import write_config
from startup import COMMAND

SDK = """
import asyncio, sys
from mcp import Client
async def main():
    async with Client(sys.argv[1]) as client:
        print((await client.call_tool("echo", {"text": "hello"})).content[0].text)
asyncio.run(main())
"""
WATCH = """
import os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
print("measured", time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, file=sys.stderr)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Runs its arguments from a small process: the peak that the kernel counts begins with the size of who starts it."""


def single(options: Options, home: Path) -> list[Row]:
    """A server of three tools, and one of a thousand, which the SDK lists before it hands a result out."""
    rows = []
    for count in (3, 1000):
        with http_server("--tools", str(count)) as url:
            env = environment(home, PI_MCP_CONFIG=str(write_config(home, {"s": {"url": url}})))
            sides = {
                "pi-mcp": python(COMMAND, "call", "s", "echo", "text=hello"),
                "sdk": python(SDK, url),
                "nothing": python("pass"),
            }
            found = _medians(sides, options.times(15, 1), env, home)
        rows += _rows(count, found)
    return rows


def _medians(
    sides: Mapping[str, Sequence[str]], rounds: int, env: Mapping[str, str], cwd: Path
) -> dict[str, tuple[float, float, float]]:
    """(wall seconds, processor seconds, peak KiB) of each side, after a warm-up."""
    taken: dict[str, list[tuple[float, float, float]]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in turned(list(sides), number):
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-c", WATCH, *sides[side]],
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
            )
            said = done.stderr.decode()
            if done.returncode != 0 or (side != "nothing" and done.stdout.strip() != b"hello"):
                raise RuntimeError(f"{side} ended with {done.returncode}: {said[-800:]}")
            wall, processor, peak = map(float, said.rsplit("measured", 1)[1].split())
            if number:
                taken[side].append((wall, processor, peak))
    middle = {side: [statistics.median(column) for column in zip(*rows, strict=True)] for side, rows in taken.items()}
    return {side: (found[0], found[1], found[2]) for side, found in middle.items()}


def _rows(count: int, found: Mapping[str, tuple[float, float, float]]) -> list[Row]:
    ours, sdk, nothing = found["pi-mcp"], found["sdk"], found["nothing"]
    what = f"`pi-mcp call`, HTTP server of {count} tools, whole process"
    wall, processor, peak = (ours[at] / sdk[at] for at in range(3))
    return [
        Row(
            f"{what}: wall time",
            milliseconds(ours[0]),
            f"the SDK's client: {milliseconds(sdk[0])} (an empty program: {milliseconds(nothing[0])})",
            f"{wall:.3f}×",
            "≤ 0.12×",
            at_most(wall, 0.12),
        ),
        Row(
            f"{what}: processor time",
            milliseconds(ours[1]),
            f"the SDK's client: {milliseconds(sdk[1])} (an empty program: {milliseconds(nothing[1])})",
            f"{processor:.3f}×",
        ),
        Row(
            f"{what}: peak memory",
            f"{ours[2] / 1024:.1f} MiB",
            f"the SDK's client: {sdk[2] / 1024:.1f} MiB (an empty program: {nothing[2] / 1024:.1f} MiB)",
            f"{peak:.3f}×",
            "≤ 0.25×",
            at_most(peak, 0.25),
        ),
    ]
