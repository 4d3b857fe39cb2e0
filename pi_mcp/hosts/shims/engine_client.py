"""The Python side of `pi-mcp engine`, for a host's shim: conversations, what they declare, and what they ask for.

Comes in: a command line, a host's dialogs, and what the host's model and person ask for. Goes out: tools to declare,
answers, and `EngineError` with one clear message. It has the standard library alone (Python 3.10), knows no host,
never prints, and starts nothing when it is imported. docs/engine.md describes the protocol; `engine_process.py`,
`engine_records.py` and `engine_values.py` lie beside it wherever it is copied.

    engine = Engine.installed(Path(__file__).parent, host_version="1.2")  # reads pi_mcp_shim.json; starts nothing
    session = engine.session("conversation-7", MyPerson(), excluded=["read", "bash"])
    session.begin("new")                                 # at the host's session start: returns at once
    search_tool, tools = session.declare()               # before a model request; the first one waits at most 1 s
    answer = session.search({"query": "create an issue"})  # .text for the model, .details to keep, .tools to declare
    answer = session.call("mcp__github__create_issue", {"title": "x"})
    print(session.command("/mcp").text)
    engine.close()

Each of these has an async face with an `a` in front (`await session.asearch(…)`), for whatever loop the host runs.
Cancelling the awaiting task, or Ctrl-C in the waiting thread, cancels the work. Questions of the engine reach the
`Person` on the loop of the last async call, or in the thread that waits in a sync call.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import inspect
import json
import os
import queue
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from .engine_process import END_WAIT, LINE_LIMIT, TASKS, EngineError, Process, submit, trouble
from .engine_records import (
    IMAGES,
    SideFile,
    arguments_in,
    default_side_dir,
    keep_image,
    records_in,
    unique_records,
)
from .engine_values import SEARCH, SEARCH_TOOL, Answer, CallAnswer, Person, Tool, details_of, tool_of

__all__ = [
    "IMAGES",
    "LINE_LIMIT",
    "SEARCH",
    "SEARCH_TOOL",
    "Answer",
    "CallAnswer",
    "Engine",
    "EngineError",
    "Person",
    "Session",
    "SideFile",
    "Tool",
    "arguments_in",
    "default_side_dir",
    "keep_image",
    "records_in",
    "submit",
    "unless",
]

PROTOCOL = 1
FIRST_WAIT = 1.0
"""Seconds that the first model request of a session waits for the engine's directory of servers."""
REQUEST_LIMIT = 1800.0
"""Seconds that any request may take: calls end after ten minutes, and a person may have to answer before."""
START_LIMIT = 30.0
"""Seconds from the engine's start to its first answer."""
COMPLETE_LIMIT = 0.5

UI = ("confirm", "select", "input", "elicit", "open_url", "progress")
"""What a host may be able to show; a `Person` that has the method of that name has it."""

T = TypeVar("T")


class Engine:
    """The one engine process of this host process; started when the first session begins, and again when it is gone."""

    def __init__(self, command: Sequence[str], *, host: str, host_version: str = "", cwd: str | None = None) -> None:
        self.command = list(command)
        self.host = host
        self.host_version = host_version
        self.cwd = cwd or _cwd()
        self._process: Process | None = None
        self._starting: asyncio.Task[Process] | None = None
        self._sessions: dict[str, Session] = {}
        self._closed = False
        self._owner = os.getpid()
        atexit.register(self.close)

    @classmethod
    def installed(cls, folder: Path, *, host_version: str = "", cwd: str | None = None) -> Engine:
        """The engine that `pi-mcp install` wrote into `pi_mcp_shim.json` of the shim's folder.

        A missing or damaged file is told by the first search, not here: a shim must never break its host.
        """
        try:
            told = json.loads((folder / "pi_mcp_shim.json").read_text(encoding="utf-8"))
            command = [str(word) for word in told["command"]]
            host = str(told.get("host", "host"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            command, host = [], "host"
        return cls(command, host=host, host_version=host_version, cwd=cwd)

    def session(
        self,
        id: str,
        person: Person | None = None,
        *,
        interactive: bool = True,
        ui: Sequence[str] | None = None,
        allowed: Sequence[str] | None = None,
        excluded: Sequence[str] | None = None,
        max_tools: int | None = None,
        side_dir: Path | None = None,
        keep: bool = True,
        cwd: str | None = None,
    ) -> Session:
        """A conversation of the host, by the host's own id. Does nothing until it begins.

        `allowed` and `excluded` are native names, `*` for any run: the host's own lists, and the names of the host's
        own tools, which are never taken. `ui` is what `person` can show (default: the methods that it has). `keep`
        writes the text of the search tool and the loaded tools to a private file in `side_dir`, by default below the
        user's state folder, so that they are the same after resume.
        """
        who = person or Person()
        shown = [name for name in UI if callable(getattr(who, name, None))] if ui is None else list(ui)
        about: dict[str, Any] = {
            "protocol": PROTOCOL,
            "host": self.host,
            "hostVersion": self.host_version,
            "cwd": cwd or self.cwd,
            "interactive": interactive,
            "ui": shown,
        }
        for key, value in (("allowed", allowed), ("excluded", excluded), ("maxTools", max_tools)):
            if value is not None:
                about[key] = value if isinstance(value, int) else list(value)
        folder = (side_dir or default_side_dir(self.host)) if keep else None
        session = Session(self, id, who, about, None if folder is None else SideFile(folder, id))
        self._sessions[id] = session
        return session

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    def close(self) -> None:
        """End the engine and everything under it: within two seconds by itself, else it is killed."""
        self._closed = True
        atexit.unregister(self.close)
        if not self._ours:
            return
        with contextlib.suppress(Exception):
            submit(self._end()).result(END_WAIT + 2)

    async def aclose(self) -> None:
        self._closed = True
        atexit.unregister(self.close)
        if self._ours:
            await asyncio.wrap_future(submit(self._end()))

    @property
    def _ours(self) -> bool:
        """There may be a process, and it is not that of the process which this one was forked from."""
        return self._starting is not None and self._owner == os.getpid()

    async def _end(self) -> None:
        if self._starting is not None:
            await asyncio.wait([self._starting])
        process, self._process = self._process, None
        if process is not None:
            await process.end()

    def forget(self, session: Session) -> None:
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]

    # On the thread's loop

    async def running(self) -> Process:
        """The living engine process, started if need be. Raises EngineError."""
        if self._closed:
            raise trouble("The pi-mcp engine has been closed with its host.", None)
        if self._process is not None and self._process.alive and self._ours:
            return self._process
        if self._starting is None or self._starting.done() or not self._ours:
            self._owner = os.getpid()
            self._starting = asyncio.get_running_loop().create_task(self._start())
        # Whoever is cancelled leaves the others waiting, and no process without an owner.
        return await asyncio.shield(self._starting)

    async def _start(self) -> Process:
        """Start the engine and keep it. Raises EngineError."""
        again = f"Install pi-mcp, then run `pi-mcp install {self.host}`; the next search starts it."
        if not self.command:
            raise trouble("This shim of pi-mcp is damaged: pi_mcp_shim.json does not name the engine.", again)
        try:
            self._process = await Process.start(self.command, self.cwd, self._received)
            return self._process
        except OSError:
            raise trouble(f"The pi-mcp engine cannot be started ({self.command[0]} does not run).", again) from None

    def _received(self, message: dict[str, Any]) -> Coroutine[Any, Any, Any] | None:
        params = message.get("params")
        session = self._sessions.get(str(params.get("session"))) if isinstance(params, dict) else None
        return None if session is None else session._received(message)


class Session:
    """One conversation: the tools that it declares, and everything that can be asked of the engine in it."""

    def __init__(self, engine: Engine, id: str, person: Person, about: dict[str, Any], side: SideFile | None) -> None:
        self.engine = engine
        self.id = id
        self.person = person
        self._about = about
        self._side = side
        self._records: dict[str, dict[str, Any]] = {}
        self._tools: tuple[Tool, ...] = ()
        self._search: Tool | None = None
        self._fixed: str | None = None
        self._kept: dict[str, Any] = {}
        self._kind = "new"
        self._wanted: list[dict[str, Any]] | None = None
        self._begun = False
        self._known_to: Process | None = None
        self._entering = asyncio.Lock()
        self._beginning: concurrent.futures.Future[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[queue.SimpleQueue[Any]] = []
        self._turn = threading.Lock()
        self._progress: dict[int, Callable[[str, float | None, float | None], Any]] = {}

    # What the model gets

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The loaded tools, in the order of loading."""
        return self._tools

    @property
    def kept(self) -> bool:
        """This session, of an earlier process perhaps, has a side file that says what is loaded."""
        return self._side is not None and "records" in self._side.read()

    @property
    def records(self) -> list[dict[str, Any]]:
        """What is needed to load the same tools again."""
        return [self._records[tool.name] for tool in self._tools if tool.name in self._records]

    @property
    def search_tool(self) -> Tool:
        """`mcp_search`, as it is declared now. Its text is fixed by the first `declare()`."""
        if self._fixed is not None:
            return replace(SEARCH, description=self._fixed)
        return self._search or SEARCH

    def declare(self, wait: float = FIRST_WAIT) -> tuple[Tool, tuple[Tool, ...]]:
        """`mcp_search` and the loaded tools, for a model request; the first one waits for the engine.

        Without an answer within `wait` seconds the text is the one without a directory, for this whole session.
        """
        if self._beginning is not None:
            concurrent.futures.wait([self._beginning], timeout=wait)
        return self._declared()

    async def adeclare(self, wait: float = FIRST_WAIT) -> tuple[Tool, tuple[Tool, ...]]:
        self._loop = asyncio.get_running_loop()
        if self._beginning is not None:
            begun: concurrent.futures.Future[None] = concurrent.futures.Future()

            def tell(_: Any) -> None:
                if begun.set_running_or_notify_cancel():
                    begun.set_result(None)

            self._beginning.add_done_callback(tell)
            here = asyncio.wrap_future(begun)
            await asyncio.wait([here], timeout=wait)
            here.cancel()  # nothing of this loop is left with the thread
        return self._declared()

    def _declared(self) -> tuple[Tool, tuple[Tool, ...]]:
        self._beginning = None
        tool = self.search_tool
        if self._fixed is None:
            self._fixed = tool.description
            self._keep()
        return tool, self._tools

    # Life

    def begin(self, kind: str = "new", records: Iterable[Mapping[str, Any]] | None = None) -> None:
        """The conversation starts (`new`), goes on (`resume`), or is that of another place (`branch`, `compact`).

        `records` are those of the tool results on the branch, in order; None takes the side file's. Returns at once:
        the engine starts in the background. May be called again in the same session.
        """
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        self._begun = True
        self._known_to = None
        self._kept = self._side.read() if self._side is not None and kind != "new" else {}
        if self._fixed is None and isinstance(self._kept.get("text"), str):
            self._fixed = self._kept["text"]
        self._remember(kind, self._kept.get("records") if records is None else records)
        # Until the engine has checked them, and as long as there is none: the bytes that the model had.
        before = {tool.name: tool for tool in map(tool_of, self._kept.get("tools", ())) if tool is not None}
        self._tools = tuple(before[name] for name in self._records if name in before and self._is_ours(name))
        self._beginning = submit(self._begin())

    def _is_ours(self, name: str) -> bool:
        """A name as the engine gives them, which the host's own lists leave to us."""

        def among(patterns: Iterable[str]) -> bool:
            return any(re.fullmatch(re.escape(one).replace(r"\*", ".*"), name) for one in patterns)

        about = self._about
        return name.startswith("mcp__") and among(about.get("allowed", ["*"])) and not among(about.get("excluded", ()))

    async def _begin(self) -> None:
        async with self._entering:
            self._known_to = None  # of an earlier beginning, whose answer came in the meantime
        with contextlib.suppress(EngineError):  # the first search says it
            await self._entered()

    def end(self) -> None:
        """The host is done with this conversation, which may begin again; its side file stays."""
        self.engine.forget(self)
        if self._known_to is not None:
            submit(self._ended(self._known_to))
            self._known_to = None

    async def _ended(self, process: Process) -> None:
        process.tell("end", {"session": self.id})

    # Requests

    def search(self, arguments: Mapping[str, Any]) -> Answer:
        """`mcp_search` with the model's own arguments: query, and perhaps server, limit and load."""
        return self._sync(self._answer("search", arguments))

    async def asearch(self, arguments: Mapping[str, Any]) -> Answer:
        return await self._async(self._answer("search", arguments))

    def load(self, names: Sequence[str]) -> Answer:
        """Load tools by native name, `server.tool`, or a name that only one server has."""
        return self._sync(self._answer("load", {"names": list(names)}))

    async def aload(self, names: Sequence[str]) -> Answer:
        return await self._async(self._answer("load", {"names": list(names)}))

    def command(self, line: str) -> Answer:
        """`/mcp …`; a command that failed is an answer whose text says so."""
        return self._sync(self._answer("command", {"line": line}))

    async def acommand(self, line: str) -> Answer:
        return await self._async(self._answer("command", {"line": line}))

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        on_progress: Callable[[str, float | None, float | None], Any] | None = None,
    ) -> CallAnswer:
        """Call a loaded tool, once. `on_progress(text, done, total)` in place of the person's `progress`."""
        return self._sync(self._call(name, arguments, on_progress))

    async def acall(
        self,
        name: str,
        arguments: Mapping[str, Any],
        on_progress: Callable[[str, float | None, float | None], Any] | None = None,
    ) -> CallAnswer:
        return await self._async(self._call(name, arguments, on_progress))

    def complete(self, line: str) -> list[str]:
        """Candidates for the last word of a `/mcp` line; nothing while the engine is not up. At most half a second."""
        work = submit(self._complete(line))
        try:
            return work.result(COMPLETE_LIMIT)
        except (concurrent.futures.TimeoutError, EngineError):
            work.cancel()
            return []

    async def acomplete(self, line: str) -> list[str]:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(submit(self._complete(line))), COMPLETE_LIMIT)
        except (asyncio.TimeoutError, EngineError):  # noqa: UP041 -- another class in 3.10
            return []

    def restore(self, kind: str, records: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
        """Make the loaded tools exactly those of another place of the conversation; they are returned."""
        return self._sync(self._restore(kind, list(records)))

    async def arestore(self, kind: str, records: Iterable[Mapping[str, Any]]) -> tuple[Tool, ...]:
        return await self._async(self._restore(kind, list(records)))

    # The two faces

    async def _async(self, work: Coroutine[Any, Any, T]) -> T:
        self._loop = asyncio.get_running_loop()
        return await asyncio.wrap_future(submit(work))

    def _sync(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait in this thread, and answer in it what the engine asks meanwhile."""
        asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._turn:
            self._waiting.append(asked)
        future = submit(work)
        future.add_done_callback(lambda _: asked.put(None))
        try:
            while True:
                try:
                    # In short waits: a host may interrupt this thread with an exception, which waits for the next step.
                    question = asked.get(timeout=0.2)
                except queue.Empty:
                    continue
                if question is None:
                    return future.result()
                question()
        except BaseException:
            future.cancel()
            raise
        finally:
            with self._turn:
                self._waiting.remove(asked)
            with contextlib.suppress(queue.Empty):  # of another thread's request
                while (question := asked.get_nowait()) is not None:
                    question()

    # On the thread's loop

    async def _entered(self) -> Process:
        """A living engine that knows this session, as it was before if the engine had to be started again."""
        async with self._entering:
            process = await self.engine.running()
            if self._known_to is process:
                return process
            again = self._known_to is not None
            kind = "resume" if again or not self._begun else self._kind
            told = self.records if again else self._wanted
            about = {"id": self.id, "kind": kind, **({} if told is None else {"records": told})}
            try:
                result = await process.request("initialize", {**self._about, "session": about}, START_LIMIT)
            except EngineError as error:
                if error.code == "timeout" and process.silent >= START_LIMIT:
                    process.kill()  # it hangs: the next search starts another
                if error.code != "usage" or not about.pop("records", None):
                    raise
                # More than one line holds, or nothing that the engine reads: it has what it kept of this session.
                result = await process.request("initialize", {**self._about, "session": about}, START_LIMIT)
            search = tool_of(result.get("searchTool"))
            if search is not None:
                self._search = search
            self._known_to = process
            self._took(result)
            return process

    async def _request(self, method: str, params: Mapping[str, Any], progress: Any = None) -> dict[str, Any]:
        process = await self._entered()
        return await process.request(
            method, {**params, "session": self.id}, REQUEST_LIMIT, (self._progress, progress) if progress else None
        )

    async def _answer(self, method: str, params: Mapping[str, Any]) -> Answer:
        result = await self._request(method, {key: value for key, value in params.items() if key != "session"})
        self._took(result)
        return Answer(str(result.get("text", "")), details_of(result), self._tools)

    async def _call(self, name: str, arguments: Mapping[str, Any], progress: Any) -> CallAnswer:
        result = await self._request("call", {"name": name, "arguments": dict(arguments)}, progress)
        self._took(result)
        blocks = [block for block in result.get("content") or [] if isinstance(block, dict)]
        return CallAnswer(blocks, result.get("structuredContent"), result.get("isError") is True, details_of(result))

    async def _complete(self, line: str) -> list[str]:
        process = self._known_to
        if process is None or not process.alive:
            return []
        result = await process.request("complete", {"line": line, "session": self.id}, COMPLETE_LIMIT)
        return [str(item) for item in result.get("items") or []]

    async def _restore(self, kind: str, records: list[Mapping[str, Any]]) -> tuple[Tool, ...]:
        async with self._entering:
            process, self._known_to = self._known_to, None  # until it has answered, no engine knows this place
            self._remember(kind, records)
            self._tools = tuple(tool for tool in self._tools if tool.name in self._records)
            if process is not None and process.alive:
                told = {"session": self.id, "kind": kind, "records": self._wanted}
                result = await process.request("session", told, START_LIMIT)
                self._known_to = process
                self._took(result)
        await self._entered()
        return self._tools

    def _remember(self, kind: str, records: Iterable[Any] | None) -> None:
        """What the next `initialize` says of this session; without records it is what the engine has kept."""
        self._kind = kind
        self._wanted = None if records is None else unique_records(records)
        self._records = {record["native"]: record for record in self._wanted or ()}

    def _took(self, result: Mapping[str, Any]) -> None:
        """Take over the loaded tools of an answer or a notification, and keep their records."""
        details = result.get("details")
        loaded = details.get("loaded") if isinstance(details, dict) else None
        for record in loaded if isinstance(loaded, list) else ():
            if isinstance(record, dict) and isinstance(record.get("native"), str):
                self._records[record["native"]] = record
        if isinstance(result.get("tools"), list):
            tools = tuple(tool for tool in map(tool_of, result["tools"]) if tool is not None)
            changed, self._tools = tools != self._tools, tools
            self._keep()
            if changed:
                self._tell(lambda: self.person.tools_changed(tools))

    def _keep(self) -> None:
        if self._side is not None:
            tools = [
                {"name": one.name, "description": one.description, "inputSchema": one.input_schema}
                | ({"annotations": one.annotations} if one.annotations else {})
                for one in self._tools
            ]
            self._side.write({"text": self._fixed, "records": self.records, "tools": tools})

    # What the engine asks and tells

    def _received(self, message: dict[str, Any]) -> Coroutine[Any, Any, Any] | None:
        """Handle a notification; the work that answers a request of the engine."""
        method, params = message.get("method"), message["params"]
        if method == "progress":
            show = self._progress.get(params.get("id")) or getattr(self.person, "progress", None)
            if show is not None:
                text, done, total = str(params.get("text", "")), params.get("done"), params.get("total")
                self._tell(lambda: show(text, done, total))
        elif method == "notify":
            self._tell(lambda: self.person.notify(str(params.get("level")), str(params.get("text"))))
        elif method == "toolsChanged":
            self._took(params)
        elif "id" in message:
            return self._asked(str(method), params)
        return None

    async def _asked(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """One question to the person; dismissed where nobody can be reached."""
        person: Any = self.person
        questions: dict[str, tuple[str, Callable[[], Any], Any]] = {
            "confirm": ("ok", lambda: person.confirm(params["question"], params.get("details", "")), False),
            "select": ("choice", lambda: person.select(params["question"], list(params["choices"])), None),
            "input": ("text", lambda: person.input(params["question"], bool(params.get("secret"))), None),
            "elicit": ("content", lambda: person.elicit(params["schema"], params.get("message", "")), None),
            "openUrl": ("ok", lambda: person.open_url(params["url"]), False),
        }
        if method not in questions:
            raise trouble(f"This host cannot answer {method}.", None, code="usage")
        key, ask, dismissed = questions[method]
        value = await self._on_host(ask, dismissed)
        if key == "ok":
            value = value is True
        return {key: value}

    async def _on_host(self, ask: Callable[[], Any], otherwise: Any) -> Any:
        """The result of `ask()` where the host can show a dialog: a thread that waits for us, or its loop."""
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def settle(value: Any) -> None:
            if not answer.done():
                answer.set_result(value)

        def here() -> None:
            value = otherwise
            try:
                value = ask()
                if inspect.isawaitable(value):
                    _discard(value)
                    value = otherwise  # an async dialog needs the host's loop
            except Exception:
                value = otherwise
            finally:  # of an interrupt, too: the question may be another thread's
                settle(value)

        if self._put(here):
            return await asyncio.wrap_future(answer)
        loop = self._loop
        if loop is None or loop.is_closed() or not loop.is_running():
            return otherwise

        async def there() -> Any:
            value = ask()
            return await value if inspect.isawaitable(value) else value

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(there(), loop))
        except asyncio.CancelledError:
            raise
        except Exception:
            return otherwise

    def _put(self, question: Callable[[], None]) -> bool:
        """Give it to the thread that waits in a sync call; False where none does."""
        with self._turn:
            if self._waiting:
                self._waiting[-1].put(question)
            return bool(self._waiting)

    def _tell(self, tell: Callable[[], Any]) -> None:
        """Tell the host something that it need not answer."""

        def safely() -> None:
            with contextlib.suppress(Exception):
                value = tell()
                if inspect.isawaitable(value):
                    if self._waiting or self._loop is None:
                        _discard(value)
                    else:
                        task = asyncio.ensure_future(value)
                        TASKS.add(task)
                        task.add_done_callback(TASKS.discard)

        if self._put(safely):
            return
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(safely)


# Values


async def unless(stopped: Awaitable[Any] | None, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled once `stopped` is done. Raises EngineError `cancelled` then."""
    if stopped is None:
        return await work
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(stopped)
    try:
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        told = {"code": "cancelled", "operation": "call", "server": None, "message": "Stopped."}
        raise EngineError({**told, "hint": "The call may have taken effect."})
    finally:
        stop.cancel()
        task.cancel()


def _cwd() -> str:
    """The working directory; the root where that was removed under the host."""
    try:
        return str(Path.cwd())
    except OSError:
        return os.sep


def _discard(value: Any) -> None:
    close = getattr(value, "close", None)
    if close is not None:
        close()
