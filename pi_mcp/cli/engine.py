"""`pi-mcp engine`: what a host agent's shim starts."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pi_mcp.cli.common import start_log
from pi_mcp.errors import failure

if TYPE_CHECKING:
    from pi_mcp.cli.common import Add


def register(add: Add) -> None:
    add(
        "engine",
        "serve a host agent's shim on standard input and output (`pi-mcp install` sets it up)",
        engine,
        as_json=False,
        config=False,
    )


def engine(options: argparse.Namespace) -> int:
    del options
    if sys.stdin is None or sys.stdout is None or sys.stdin.isatty():
        raise failure(
            "usage",
            "command",
            None,
            "The engine speaks JSON-RPC with a host's shim, and this is a terminal.",
            "`pi-mcp install HOST` sets a host up; `pi-mcp chat` is for people.",
        )
    from pi_mcp.hosts.engine.process import run

    start_log()
    return run()
