#!/usr/bin/env python3
"""Measure pi-mcp beside the bare SDK and its peers, in one run, and print one table.

    python benchmarks/run.py [--quick] [--only NAME] [--output FILE]

The sides take turns within every figure, and what counts are medians and ratios: a slow machine is slow for all of
them. PI_MCP_TEST_DATA names the folder with saved catalogs and the replay server; without it some lines are skipped.
FastMCP is measured where --fastmcp (or PI_MCP_BENCH_FASTMCP) names a Python interpreter that has it. What dominates
each figure: docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import calls
import definitions
import discovery
import gateway
import hosts
import memory
import single_call
import startup
from measure import Options, Row, load, machine, table

FIGURES: dict[str, Callable[[Options, Path], list[Row]]] = {
    "plugin": startup.plugin,
    "search": startup.search,
    "calls": calls.p50,
    "parallel": calls.parallel,
    "single": single_call.single,
    "discovery": discovery.cold,
    "memory": memory.memory,
    "definitions": definitions.first_requests,
    "hosts": hosts.start,
    "gateway": gateway.gateway,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds: to see that it works, not how fast")
    parser.add_argument("--only", action="append", choices=list(FIGURES), metavar="NAME", help=", ".join(FIGURES))
    parser.add_argument("--output", type=Path, help="write the Markdown to this file, too")
    parser.add_argument(
        "--fastmcp", type=Path, default=os.environ.get("PI_MCP_BENCH_FASTMCP"), help="a Python that has FastMCP"
    )
    arguments = parser.parse_args()
    data = os.environ.get("PI_MCP_TEST_DATA")
    fastmcp = Path(arguments.fastmcp) if arguments.fastmcp and Path(arguments.fastmcp).exists() else None
    options = Options(arguments.quick, Path(data) if data else None, fastmcp)

    before = load()
    rows: list[Row] = []
    for name in arguments.only or list(FIGURES):
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="pi-mcp-benchmark-") as home:
            try:
                rows += FIGURES[name](options, Path(home))
            except Exception:
                # One figure that fails must not take the others along.
                traceback.print_exc()
                rows.append(Row(name, "failed", "see stderr", met=False))
    text = f"{table(rows)}\n\n{machine(fastmcp)}; load before {before}, after {load()}"
    if options.quick:
        text += "; a quick run, whose times say nothing"
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")
    return 1 if any(row.ours == "failed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
