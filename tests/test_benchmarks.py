"""The benchmarks' one command runs and prints its table; no speed is asked for: that depends on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_benchmarks(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PI_MCP_BENCH_FASTMCP"}
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), *arguments]
    return subprocess.run(command, env={**kept, **variables}, capture_output=True, text=True, timeout=110)


def cells(printed: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line[:1] == "|"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["plugin", "search", "calls", "parallel", "discovery", "memory", "definitions", "hosts", "gateway"]
)
def test_each_figure_can_be_measured_alone_and_is_one_table(name: str) -> None:
    done = run_benchmarks("--quick", "--only", name)
    assert done.returncode == 0, done.stderr
    head, ruler, *rows = cells(done.stdout)
    assert head == ["figure", "pi-mcp", "beside it", "ratio", "aim", "met"]
    assert set(ruler) == {"---"}
    assert rows
    assert all(len(row) == len(head) for row in rows)
    assert "failed" not in done.stdout


def test_an_unknown_figure_is_refused_with_the_names_that_exist() -> None:
    done = run_benchmarks("--only", "nonsense")
    assert done.returncode == 2
    assert "discovery" in done.stderr


@pytest.mark.slow
def test_the_table_ends_with_date_machine_and_versions() -> None:
    done = run_benchmarks("--quick", "--only", "plugin")
    last = done.stdout.strip().splitlines()[-1]
    assert "Python" in last
    assert "mcp" in last
    assert "load" in last


@pytest.mark.slow
def test_building_a_plugin_imports_no_heavy_module() -> None:
    done = run_benchmarks("--quick", "--only", "plugin")
    row = next(row for row in cells(done.stdout) if row[0] == "heavy modules it imports")
    assert row[1] == "none"
