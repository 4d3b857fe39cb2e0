"""What many tests need: a bounded event loop run, and where the shared data lies."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], limit: float = 30.0) -> T:
    """Run `work` on a fresh event loop, for at most `limit` seconds."""
    return asyncio.run(asyncio.wait_for(work, limit))


def shared_data() -> Path:
    """The folder that PI_MCP_TEST_DATA names; the test is skipped where it is unset."""
    value = os.environ.get("PI_MCP_TEST_DATA")
    if not value:
        pytest.skip("PI_MCP_TEST_DATA is not set")
    path = Path(value)
    if not (path / "catalogs").is_dir():
        pytest.skip(f"PI_MCP_TEST_DATA={value} holds no catalogs")
    return path
