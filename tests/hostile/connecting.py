"""Connections to hostile servers for a test, with the promise that nothing of them is left afterwards.

Comes in: `mcpServers` entries. Goes out: `Connections`, closed at the end; then no task, no process and no file
descriptor of theirs may remain.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import configuration_of
from pi_mcp.connect import Connections
from pi_mcp.connect.session import load_sdk
from pi_mcp.errors import PiMcpError
from tests.hostile.processes import descendants_of, gone, nothing_beside, open_files

SECRET = "s3cr3t-planted-value"
"""Planted in scripts and environments; no error may show it."""


async def refused(work: Awaitable[Any]) -> PiMcpError:
    """The error of ours that `work` raises; it holds nothing that may not be shown."""
    with pytest.raises(PiMcpError) as caught:
        await work
    shown = json.dumps(caught.value.diagnostic.to_json())
    assert SECRET not in shown
    assert "Traceback" not in shown
    return caught.value


def text_of(result: Mapping[str, Any]) -> str:
    """The first text block of a call's result."""
    return str(result["content"][0]["text"])


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def connected(
    servers: Mapping[str, Mapping[str, Any]], *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> AsyncIterator[Connections]:
    """`Connections` over these entries; every entry has to be valid."""
    configuration = configuration_of(servers, environ=environ, cwd=cwd)
    assert set(configuration.servers) == set(servers), [e.diagnostic for e in configuration.entries.values()]
    await load_sdk()
    await asyncio.to_thread(int)  # the default executor's thread and the loop's own files exist from here on
    files, tasks = open_files(), asyncio.all_tasks()
    others = set(descendants_of(os.getpid()))
    connections = Connections(configuration)
    try:
        yield connections
    finally:
        pids = [pid for pid in descendants_of(os.getpid()) if pid not in others]
        await connections.close()
        assert await asyncio.to_thread(gone, pids, 3.0), "processes are left"
        await nothing_beside(files, tasks)
