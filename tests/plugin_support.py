"""Plugins over real servers for a test, and a host whose person answers by script.

Comes in: `mcpServers` entries and answers. Goes out: a plugin that is closed at the end, and everything that the host
was asked and told.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from pi_mcp.config import Configuration, configuration_of, load_config
from pi_mcp.host import HeadlessHost
from pi_mcp.plugin import Plugin
from tests.hostile.processes import descendants_of, gone


class AskingHost(HeadlessHost):
    """A person who answers `confirm` and `elicit` by script; `asked` and `told` keep everything."""

    interactive = True

    def __init__(self, *, confirms: bool = True, values: dict[str, Any] | None = None) -> None:
        self.confirms = confirms
        self.values = values
        self.asked: list[tuple[str, str]] = []
        self.forms: list[tuple[Mapping[str, Any], str]] = []
        self.told: list[str] = []
        self.changes = 0
        self.excluded: set[str] = set()

    async def confirm(self, question: str, details: str) -> bool:
        self.asked.append((question, details))
        return self.confirms

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        self.forms.append((schema, message))
        return self.values

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        self.told.append(text)

    def tools_changed(self) -> None:
        self.changes += 1

    def allows(self, native_name: str) -> bool:
        return native_name not in self.excluded


@contextlib.asynccontextmanager
async def plugin_of(
    servers: Mapping[str, Mapping[str, Any]] | Configuration, folder: Path, **environ: str
) -> AsyncIterator[Plugin]:
    """A plugin with its own state and cache below `folder`; no process is left of it afterwards."""
    configuration = (
        servers
        if isinstance(servers, Configuration)
        else configuration_of(servers, cwd=folder, environ={**os.environ, **environ})
    )
    plugin = Plugin(configuration, state_dir=folder / "state", cache_dir=folder / "cache")
    try:
        yield plugin
    finally:
        pids = descendants_of(os.getpid())
        await plugin.close()
        assert gone(pids, 6.0), "processes are left"


def files_plugin(folder: Path, cwd: Path | None = None) -> Plugin:
    """A plugin over the configuration files of this test's home."""
    state = folder / "state"
    return Plugin(load_config(cwd=cwd or folder, state_dir=state), state_dir=state, cache_dir=folder / "cache")


def spoken(tools: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A script whose listing has these tools; `more` are further methods or result members of `initialize`."""
    return {"tools/list": [{"result": {"tools": tools}}], **more}


def greeting(**members: Any) -> list[dict[str, Any]]:
    """An `initialize` turn with further members of the result, such as `instructions`."""
    result = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "hostile", "version": "1"},
        **members,
    }
    return [{"result": result}]
