"""What many tests need: a bounded event loop run, and where the shared data lies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], limit: float = 30.0, *, tidy: bool = True) -> T:
    """Run `work` on a fresh event loop, for at most `limit` seconds; when `tidy`, it must leave no task behind."""

    async def main() -> T:
        result = await asyncio.wait_for(work, limit)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks and tidy:
            # Those that are about to end may end.
            await asyncio.wait(tasks, timeout=1.0)
        left = [task for task in tasks if not task.done()]
        assert not left or not tidy, f"tasks are left: {left}"
        return result

    return asyncio.run(main())


def shared_data() -> Path:
    """The folder that PI_MCP_TEST_DATA names; the test is skipped where it is unset."""
    value = os.environ.get("PI_MCP_TEST_DATA")
    if not value:
        pytest.skip("PI_MCP_TEST_DATA is not set")
    path = Path(value)
    if not (path / "catalogs").is_dir():
        pytest.skip(f"PI_MCP_TEST_DATA={value} holds no catalogs")
    return path
