"""How everything here is measured: rounds in which the sides take turns, medians, ratios, one row per figure.

Comes in: what to run, and how often. Goes out: seconds, bytes and `Row`s. It decides nothing about what is measured
and has no aims of its own.
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `met` is None where there is no aim, or nothing was measured."""

    figure: str
    ours: str
    beside: str
    """What it is held against, and that one's figure."""
    ratio: str = "–"
    aim: str = "–"
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """`quick` runs everything once or twice: enough to see that it works, not to say anything about speed."""

    quick: bool
    data: Path | None
    """The folder that PI_MCP_TEST_DATA names: saved catalogs and the replay server; None when unset."""
    fastmcp: Path | None
    """A Python interpreter of an environment with FastMCP."""

    def times(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def environment(home: Path, **more: str) -> dict[str, str]:
    """Variables for a measured process: bytecode is written, and the person's own files are out of sight.

    PYTHONDONTWRITEBYTECODE would have a source checkout compiled at every start.
    """
    hidden = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "PI_MCP_CONFIG", "PI_MCP_LOG")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {
        **kept,
        "HOME": str(home),
        "PI_CODING_AGENT_DIR": str(home / "pi"),
        "PYTHONPATH": str(ROOT),
        **{f"XDG_{kind}_HOME": str(home / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE", "DATA")},
        **more,
    }


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def process_seconds(
    sides: Mapping[str, Sequence[str]], rounds: int, env: Mapping[str, str], cwd: Path
) -> dict[str, float]:
    """Median wall time in seconds of whole processes, one of each side in every round, after a warm-up of each.

    Raises RuntimeError when one of them fails: the time of a failure is none.
    """
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(rounds + 1):
        for side in turned(list(sides), number):
            began = time.perf_counter()
            done = subprocess.run(
                sides[side], env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
            )
            seconds = time.perf_counter() - began
            if done.returncode != 0:
                raise RuntimeError(f"{side} ended with {done.returncode}: {_end_of(done.stderr)}")
            if number:
                taken[side].append(seconds)
    return {side: statistics.median(values) for side, values in taken.items()}


def turned(sides: list[str], number: int) -> list[str]:
    """The sides, another one first in every round: being first is no advantage in the end."""
    at = number % len(sides)
    return sides[at:] + sides[:at]


def output_of(command: Sequence[str], env: Mapping[str, str], cwd: Path, *, timeout: float = 300) -> str:
    """Standard output of one process; RuntimeError with the end of its stderr when it fails."""
    done = subprocess.run(
        command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {_end_of(done.stderr)}")
    return done.stdout.decode()


def at_most(value: float, aim: float) -> bool:
    """Held against the aim as it is shown, with two decimals."""
    return round(value, 2) <= aim


def milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    verdict: Callable[[bool | None], str] = lambda met: {True: "yes", False: "**no**", None: ""}[met]  # noqa: E731
    lines = ["| figure | pi-mcp | beside it | ratio | aim | met |", "| --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {row.figure} | {row.ours} | {row.beside} | {row.ratio} | {row.aim} | {verdict(row.met)} |" for row in rows
    ]
    return "\n".join(lines)


def machine(fastmcp: Path | None) -> str:
    """Date, processor, memory, Python and what was compared, as one line."""
    parts = [datetime.date.today().isoformat(), _processor(), f"{_gibibytes()} GiB", platform.system()]
    parts.append(f"Python {platform.python_version()}")
    parts.append(f"mcp {metadata.version('mcp')}")
    if fastmcp is not None:
        code = "import importlib.metadata as m; print(m.version('fastmcp'), m.version('mcp'))"
        own, sdk = output_of([str(fastmcp), "-c", code], dict(os.environ), ROOT).split()
        parts.append(f"FastMCP {own} (mcp {sdk})")
    return ", ".join(parts)


def load() -> str:
    """The load average of the last minute: a machine that does other things gives other figures."""
    return f"{os.getloadavg()[0]:.1f}"


def _end_of(stderr: bytes) -> str:
    return stderr.decode(errors="replace")[-800:]


def _processor() -> str:
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return f"{os.cpu_count()} × {name}"


def _gibibytes() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
