"""Threads that make calls: each with a session of its own to the HTTP servers it asks, all with one plugin behind them.

Comes in: a server, a tool, arguments. Goes out: the result in wire form, or PiMcpError. Nobody is asked: what a level
of trust wants confirmed is refused, unless `includeTools` names the tool (DESIGN §9). A call is sent once; again, and
once, where the answer proves that it did not run.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.cli.direct import DirectServer, LongWay
from pi_mcp.config import policy
from pi_mcp.config.usable import entry_named, usable
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import concurrent.futures

    from pi_mcp.catalog.records import Tool
    from pi_mcp.config import Configuration, ServerDefinition
    from pi_mcp.plugin import Plugin

ENDED, STOPPED = 10.0, 3.0
"""Seconds that all threads together have to end their sessions, after the last call and after a stop."""
Before = Callable[[], None]


class Stopping(Exception):
    """The batch ends; what became of this call is not known."""


class Workers:
    """`count` threads between `with` and its end."""

    def __init__(self, configuration: Configuration, count: int) -> None:
        self.count = count
        self.done = 0
        self._configuration = configuration
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._threads = [
            threading.Thread(target=self._main, name=f"pi-mcp batch {n}", daemon=True) for n in range(count)
        ]
        self._local = threading.local()
        self._lock = threading.Lock()
        self._open: set[DirectServer] = set()
        self._by_plugin: set[str] = set()
        self._tools: dict[tuple[str, str], Tool] = {}
        self._behind: _PluginThread | None = None
        self._stopping = False

    def __enter__(self) -> Workers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self._stopping:
            self.stop(0.0)
        for _thread in self._threads:
            self._jobs.put(None)
        # One that is stopped has told its servers by then; one that waits for a connection ends with the process.
        end = time.monotonic() + (STOPPED if self._stopping else ENDED)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if self._behind is not None:
            self._behind.close()

    def hand_out(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def stop(self, grace: float) -> None:
        """Give out nothing more; end what is under way after `grace` seconds."""
        self._stopping = True
        while True:
            try:
                self._jobs.get_nowait()
            except queue.Empty:
                break
        for _thread in self._threads:
            self._jobs.put(None)
        end = time.monotonic() + grace
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._lock:
            left = list(self._open)
        for server in left:
            server.abort()
        if self._behind is not None:
            self._behind.cancel()

    def _main(self) -> None:
        self._local.servers = {}
        try:
            while (job := self._jobs.get()) is not None:
                job()
                self.done += 1
        finally:
            for server in list(self._local.servers.values()):
                self._forget(server)

    # one call

    def call(self, server: str, tool: str, arguments: Mapping[str, Any], *, before: Before) -> dict[str, Any]:
        """`before` runs when everything is ready, and nothing was sent yet. Raises PiMcpError, Stopping."""
        if self._stopping:
            raise Stopping
        definition = usable(entry_named(server, self._configuration.entries))
        try:
            if server not in self._by_plugin:
                try:
                    return self._directly(definition, tool, arguments, before)
                except LongWay as way:
                    if way.server:
                        self._by_plugin.add(server)
            return self._plugin().call(definition, tool, dict(arguments), before)
        except PiMcpError as error:
            if error.diagnostic.code == "cancelled":  # only `stop` does that
                raise Stopping from None
            raise

    def _directly(
        self, definition: ServerDefinition, name: str, arguments: Mapping[str, Any], before: Before
    ) -> dict[str, Any]:
        server = self._server(definition)
        try:
            tool = self._tool(server, name)
            confirmed(definition, tool.name)
            server.open()  # no call yet: a line that fails with it is tried anew by the next run
            before()
            return server.call(tool, arguments)
        except LongWay:
            self._forget(server)
            raise
        except PiMcpError as error:
            if error.diagnostic.code in ("connection_failed", "timeout", "cancelled"):
                self._forget(server)  # the next call begins with a new session
            raise

    def _server(self, definition: ServerDefinition) -> DirectServer:
        found: DirectServer | None = self._local.servers.get(definition.name)
        if found is None:
            found = DirectServer(self._configuration, definition)
            self._local.servers[definition.name] = found
            with self._lock:
                self._open.add(found)
        return found

    def _forget(self, server: DirectServer) -> None:
        self._local.servers.pop(server.definition.name, None)
        with self._lock:
            self._open.discard(server)
        server.close()

    def _tool(self, server: DirectServer, name: str) -> Tool:
        """Looked up once for all threads."""
        key = (server.definition.name, name)
        found = self._tools.get(key)
        if found is None:
            found = self._tools[key] = server.tool(name)
        return found

    def _plugin(self) -> _PluginThread:
        with self._lock:
            if self._behind is None:
                self._behind = _PluginThread(self._configuration)
            return self._behind


def confirmed(definition: ServerDefinition, tool: str) -> None:
    """Raise `refused` for a call that a person would have to confirm."""
    if policy.confirmation(definition) != "never":
        policy.unattended(definition, tool)


class _PluginThread:
    """A plugin on an event loop of its own, for what the short way cannot do."""

    def __init__(self, configuration: Configuration) -> None:
        import asyncio

        from pi_mcp.cli.common import start_log
        from pi_mcp.plugin import Plugin

        start_log()
        self._loop = asyncio.new_event_loop()
        self._plugin: Plugin = Plugin(configuration)
        self._session = self._plugin.session("batch", keep=False)
        self._tasks: set[concurrent.futures.Future[dict[str, Any]]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pi-mcp batch plugin", daemon=True)
        self._thread.start()

    def call(
        self, definition: ServerDefinition, tool: str, arguments: dict[str, Any], before: Before
    ) -> dict[str, Any]:
        return self._run(self._call(definition, tool, arguments, before))

    async def _call(
        self, definition: ServerDefinition, name: str, arguments: dict[str, Any], before: Before
    ) -> dict[str, Any]:
        import asyncio

        from pi_mcp.tools.names import native_name

        session = self._session
        native = next(
            (one.native for one in session.loaded if one.server == definition.name and name in (one.tool, one.native)),
            None,
        )
        if native is None:
            catalog = await self._plugin.catalogs.live(definition.name)
            listed = [t for t in catalog.tools if name in (t.name, native_name(t.server, t.name))]
            wanted = native_name(definition.name, listed[0].name if listed else name)
            answer = await session.load([wanted if listed else f"{definition.name}.{name}"])
            problem = next((hit.problem for hit in answer.hits if hit.problem), None)
            if problem is not None:
                raise failure(
                    "protocol_error", "call", definition.name, f"The tool cannot be used: {clean_line(problem)}."
                )
            native = wanted
        await asyncio.to_thread(before)
        return dict((await session.call(native, arguments)).raw)

    def _run(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        import asyncio
        import concurrent.futures

        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._tasks.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise failure("cancelled", "call", None, "Stopped.") from None
        finally:
            self._tasks.discard(future)

    def cancel(self) -> None:
        for future in list(self._tasks):
            future.cancel()

    def close(self) -> None:
        """End every server, within about five seconds."""
        import asyncio
        import contextlib

        with contextlib.suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._plugin.close(), self._loop).result(15.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._loop.close()
