"""The whole product in front of hostile servers, and what has to be true of it whatever they do.

Comes in: `mcpServers` entries. Goes out: a `Product`: plugin, session, and everything that any of its surfaces
showed. At its end nothing may be left (process, task, file descriptor), and the planted secret may be nowhere:
not in an answer, a diagnostic, a log record, a file under the state or cache folder, or a `repr`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.catalog import CatalogStore
from pi_mcp.config import Configuration, configuration_of
from pi_mcp.connect.session import load_sdk
from pi_mcp.errors import CODES, Diagnostic, PiMcpError
from pi_mcp.host import HeadlessHost
from pi_mcp.plugin import CallAnswer, Plugin, SearchAnswer, Session
from tests.hostile.processes import children_of, descendants_of, gone, nothing_beside, open_files

SECRET = "s3cr3t-planted-value"
"""Planted in environments, headers, error texts and bodies; nothing may show it."""
ENVIRON = {"PLANTED": SECRET, "PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}
HEADERS = {"Authorization": "Bearer ${PLANTED}"}
"""For an HTTP entry whose secret must not come back."""
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Person(HeadlessHost):
    """A host with a person who says yes; what was shown and asked is kept."""

    interactive = True

    def __init__(self, *, says: bool = True, form: dict[str, Any] | None = None) -> None:
        self.says, self.form = says, form
        self.asked: list[str] = []
        self.shown: list[str] = []

    async def notify(self, level: Any, text: str) -> None:
        self.shown.append(text)

    async def confirm(self, question: str, details: str) -> bool:
        self.asked.append(f"{question}\n{details}")
        return self.says

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        self.asked.append(message)
        return self.form

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        self.shown.append(text)


class Product:
    """A plugin with one session, and everything that it showed."""

    def __init__(self, plugin: Plugin, session: Session) -> None:
        self.plugin, self.session = plugin, session
        self.shown: list[str] = []
        self.results: list[str] = []
        """What servers answered on purpose: their content, which may hold anything."""

    async def search(self, query: str, **options: Any) -> SearchAnswer:
        answer = await self.session.search(query, **options)
        self.shown += [answer.text, repr(answer.not_searched), json.dumps(answer.details)]
        for diagnostic in answer.not_searched:
            self._check(diagnostic)
        return answer

    async def load(self, *names: str) -> SearchAnswer:
        answer = await self.session.load(names)
        self.shown += [answer.text, json.dumps(answer.details)]
        return answer

    async def call(self, tool: str = "echo", **arguments: Any) -> CallAnswer:
        """Call a loaded tool by its native, full or (where unique) original name."""
        try:
            answer = await self.session.call(tool, arguments)
        except PiMcpError as error:
            self.shown += [str(error), repr(error)]
            self._check(error.diagnostic)
            raise
        self.results.append(answer.text)
        self.shown.append(json.dumps(answer.details))
        return answer

    async def text(self, tool: str = "echo", **arguments: Any) -> str:
        return (await self.call(tool, **arguments)).text

    async def fails(self, tool: str = "echo", **arguments: Any) -> Diagnostic:
        """The diagnostic of a call that must fail, within the code's promises."""
        with pytest.raises(PiMcpError) as caught:
            await self.call(tool, **arguments)
        return caught.value.diagnostic

    async def mcp(self, line: str = "") -> str:
        answer = await self.session.command(f"/mcp {line}")
        self.shown.append(json.dumps(answer.to_json(), ensure_ascii=False))
        if answer.diagnostic is not None:
            self._check(answer.diagnostic)
        return answer.text

    def state(self, server: str) -> str:
        status = self.plugin.status(server, session=self.session)
        self.shown += [json.dumps(status.to_json()), repr(status)]
        return status.state

    @staticmethod
    def _check(diagnostic: Diagnostic) -> None:
        assert diagnostic.code in CODES
        assert diagnostic.message.strip(), diagnostic
        assert "\n" not in diagnostic.line(), diagnostic
        assert "Traceback" not in diagnostic.line()
        assert "Error(" not in diagnostic.line(), diagnostic

    def look_everywhere(self, folders: Iterable[Path], records: Iterable[str]) -> None:
        """Assert the promises about what was shown and kept."""
        for server in self.plugin.configuration.entries:
            self.state(server)
            connection = self.plugin.connections.get(server) if server in self.plugin.configuration.servers else None
            if connection is not None:
                self.shown += connection.log.lines()
                self.shown += [repr(connection.diagnostic), repr(connection.info), repr(connection.definition)]
        self.shown += [repr(self.plugin.configuration), *records]
        for text in self.shown:
            assert SECRET not in text, text[:2000]
            assert not CONTROL.search(text), ascii(text[:2000])
        for folder in folders:
            for path in folder.rglob("*"):
                assert SECRET not in path.name
                if path.is_file():
                    assert SECRET.encode() not in path.read_bytes(), path
                    assert path.stat().st_mode & 0o077 == 0, path


class Records(logging.Handler):
    """Every log record of the process, as text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # The product's own words and whatever a library might write with the address or headers in it.
        if record.name.startswith(("pi_mcp", "httpx", "httpcore", "asyncio")):
            self.texts.append(record.getMessage())


@contextlib.asynccontextmanager
async def product(
    folder: Path,
    servers: Mapping[str, Mapping[str, Any]] | Configuration,
    *,
    host: HeadlessHost | None = None,
    environ: Mapping[str, str] | None = None,
    valid: bool = True,
    reload: Callable[[], Configuration] | None = None,
) -> AsyncIterator[Product]:
    """A plugin over these entries, with private folders under `folder`; see the module's docstring."""
    if isinstance(servers, Configuration):
        configuration = servers
    else:
        configuration = configuration_of(servers, cwd=folder, environ={**ENVIRON, **(environ or {})})
        if valid:
            assert set(configuration.servers) == set(servers), [e.diagnostic for e in configuration.entries.values()]
    await load_sdk()
    await asyncio.to_thread(int)  # the executor's thread and the loop's own files exist from here on
    loop = asyncio.get_running_loop()
    lost: list[str] = []
    loop.set_exception_handler(lambda _, context: lost.append(str(context.get("message"))))
    handler, root = Records(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    files, tasks, others = open_files(), asyncio.all_tasks(), children_of(os.getpid())
    state, cache = folder / "state", folder / "cache"
    plugin = Plugin(configuration, state_dir=state, cache_dir=cache, reload=reload)
    made = Product(plugin, plugin.session("s", host or Person()))
    try:
        yield made
        made.look_everywhere((state, cache), handler.texts)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        pids = [pid for pid in children_of(os.getpid()) if pid not in others]
        pids += [below for pid in pids for below in descendants_of(pid)]
        started = loop.time()
        await plugin.close()
        took = loop.time() - started
        assert took < 8, f"closing took {took:.1f} s"
        assert await asyncio.to_thread(gone, pids, 3.0), "processes are left"
        await nothing_beside(files, tasks)
        assert not lost, lost


def store_of(folder: Path) -> CatalogStore:
    """The catalog store that `product` used in this folder."""
    return CatalogStore(folder / "cache" / "catalogs")
