"""Handles a host's messages: one Plugin per working directory, one Session per conversation, one task per request.

Comes in: `Incoming` messages of `wire`. Goes out: one answer per request, notifications, and the engine's questions.
Nothing here waits for a server before `initialize` is answered, and nothing heavy is imported until then.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pi_mcp._version import __version__
from pi_mcp.config import load_config, policy
from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.hosts.engine import PROTOCOL
from pi_mcp.hosts.engine.person import REQUEST, EngineHost, Introduction, wrong
from pi_mcp.hosts.engine.wire import (
    FAILED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    End,
    Id,
    Malformed,
    Notification,
    Reader,
    Request,
    Response,
    Writer,
)
from pi_mcp.plugin import Plugin, Session, ToolDefinition, details, search_arguments
from pi_mcp.text import clean_line
from pi_mcp.tools.loaded import NativeTool

MALFORMED_LIMIT = 10
"""So many lines in a row that are no JSON-RPC end the engine."""
REQUESTS_LIMIT = 1000
"""Requests of one host that may be under way; reading no more would leave its cancellations unread."""
CLOSE_LIMIT = 4.0
"""Seconds that closing every server may take."""
KINDS = ("new", "resume", "branch", "compact")
USAGE_EXIT = 2

_LOG = logging.getLogger("pi_mcp.hosts.engine")
SESSION: contextvars.ContextVar[str | None] = contextvars.ContextVar("SESSION", default=None)
"""The conversation whose request is being worked at."""


@dataclass
class _Conversation:
    """A session with what its host has been told of it."""

    session: Session
    host: EngineHost
    told: dict[str, str] = field(default_factory=dict)
    """Native name → hash of the records that went out in the answer to a search, load or command."""
    shown: tuple[Any, ...] = ()
    """The loaded tools when the host last heard of them."""


class Engine:
    """One run: from the first line to the last process."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer
        self._plugins: dict[str, Plugin] = {}
        self._conversations: dict[str, _Conversation] = {}
        self._requests: dict[Id, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._questions: dict[str, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._trust_asked: set[str] = set()
        self._trusting: dict[str, asyncio.Lock] = {}
        self._opening = asyncio.Lock()
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Serve until the host closes its side, is gone, or asks for the end; the exit code."""
        read = asyncio.ensure_future(self._read())
        ends: list[asyncio.Future[Any]] = [
            read,
            asyncio.ensure_future(self._writer.closed.wait()),
            asyncio.ensure_future(self._stop.wait()),
        ]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            return read.result() if read.done() else 0
        finally:
            for task in ends:
                task.cancel()
            await self._close()

    def stop(self) -> None:
        """End as if the host had asked for it (SIGTERM, a host that is gone)."""
        self._stop.set()

    async def _close(self) -> None:
        for task in [*self._requests.values(), *self._background]:
            task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_LIMIT):
                await asyncio.gather(*self._requests.values(), *self._background, return_exceptions=True)
                await asyncio.gather(*(plugin.close() for plugin in self._plugins.values()), return_exceptions=True)

    # Lines

    async def _read(self) -> int:
        malformed = 0
        while True:
            await self._writer.room()
            message = await self._reader.next()
            match message:
                case End():
                    return 0
                case Malformed():
                    malformed += 1
                    self._refuse(message.id, message.code, message.message)
                    if message.last or malformed == MALFORMED_LIMIT:
                        return USAGE_EXIT
                case Request(id=number, method="shutdown"):
                    self._writer.send({"id": number, "result": {}})
                    return 0
                case Request():
                    malformed = 0
                    self._begin(message)
                case Notification():
                    malformed = 0
                    if message.method == "cancel":
                        self._cancel(message.params.get("id"))
                    elif message.method == "end":
                        self._end(message.params.get("session"))
                case Response():
                    malformed = 0
                    question = self._questions.get(message.id) if isinstance(message.id, str) else None
                    if question is not None and not question.done():
                        question.set_result(message.result)

    def _refuse(self, number: Id | None, code: int, message: str, data: Mapping[str, Any] | None = None) -> None:
        error = {"code": code, "message": message, **({} if data is None else {"data": dict(data)})}
        self._writer.send({"id": number, "error": error})

    def _fail(self, number: Id, diagnostic: Diagnostic, code: int = FAILED) -> None:
        self._refuse(number, code, diagnostic.line(), diagnostic.to_json())

    # Requests

    def _begin(self, request: Request) -> None:
        handle = self._methods.get(request.method)
        if handle is None:
            self._refuse(request.id, METHOD_NOT_FOUND, f"No method is called {clean_line(request.method, 60)!r}.")
        elif request.id in self._requests:
            # Whose answer would be whose? The request that has the id keeps it.
            self._refuse(None, INVALID_REQUEST, "A request with this id is under way.")
        elif len(self._requests) >= REQUESTS_LIMIT:
            many = f"{REQUESTS_LIMIT} requests are under way."
            self._fail(request.id, Diagnostic("busy", "command", None, many, "Wait for an answer, then repeat."))
        else:
            task = asyncio.ensure_future(self._answer(request, handle))
            self._requests[request.id] = task
            task.add_done_callback(lambda _: self._requests.pop(request.id, None))

    async def _answer(
        self, request: Request, handle: Callable[[Engine, Mapping[str, Any]], Awaitable[dict[str, Any]]]
    ) -> None:
        REQUEST.set(request.id)
        of = request.params.get("session")
        of = of.get("id") if isinstance(of, dict) else of
        SESSION.set(of if isinstance(of, str) else None)
        try:
            self._writer.send({"id": request.id, "result": await handle(self, request.params)})
        except asyncio.CancelledError:
            diagnostic = Diagnostic(
                "cancelled", "call", None, "Stopped.", "A call that was under way may have taken effect."
            )
            self._fail(request.id, diagnostic)
        except PiMcpError as error:
            wrong_params = error.diagnostic.code == "usage" and error.diagnostic.operation == "command"
            self._fail(request.id, error.diagnostic, INVALID_PARAMS if wrong_params else FAILED)
        except Exception as error:  # its text may hold anything
            _LOG.exception("%s failed with %s", request.method, type(error).__name__)
            fault = failure(
                "operation_failed",
                "command",
                None,
                "That failed inside pi-mcp; whether a call took effect is unknown.",
                "PI_MCP_LOG=debug writes more to the log file.",
            )
            self._fail(request.id, fault.diagnostic)
        # A search that was stopped may have loaded before.
        SESSION.set(None)
        if isinstance(of, str):
            self._changed(of)

    def _cancel(self, number: Any) -> None:
        """Stop a request; its answer goes out when the work has let go, which sessions do within a second."""
        task = self._requests.get(number) if isinstance(number, int | str) else None
        if task is not None:
            task.cancel()

    def _end(self, id: Any) -> None:
        """The host is done with a conversation, which `initialize` brings back; its servers stay connected."""
        conversation = self._conversations.pop(id, None) if isinstance(id, str) else None
        if conversation is not None:
            self._later(conversation.session.close())

    def _later(self, work: Coroutine[Any, Any, Any]) -> None:
        # Not in the context of the request that it follows: what it changes is news to the host.
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Questions to the host

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        number = f"e{next(self._numbers)}"
        question: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[number] = question
        self._writer.send({"id": number, "method": method, "params": params})
        try:
            return await question
        except asyncio.CancelledError:
            self._tell("cancel", {"id": number})
            raise
        finally:
            self._questions.pop(number, None)

    def _tell(self, method: str, params: dict[str, Any]) -> None:
        self._writer.send({"method": method, "params": params}, news=method == "progress")

    # Methods

    async def initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        spoken = params.get("protocol")
        if spoken != PROTOCOL or isinstance(spoken, bool):
            name = params.get("host")
            shim = clean_line(name, 40) if isinstance(name, str) and name else "HOST"
            raise failure(
                "configuration_invalid",
                "configure",
                None,
                f"This shim speaks another protocol than this pi-mcp {__version__} (version {PROTOCOL}).",
                f"Run `pi-mcp install {shim}` again.",
            )
        about = Introduction.read(params)
        _LOG.info("initialized by %s %s", about.host, about.version)
        told = params.get("session")
        if not isinstance(told, dict):
            raise wrong("session", "an object with id, kind and records")
        id, kind, records = _id(told.get("id")), _kind(told.get("kind", "new")), _records(told)
        async with self._opening:
            plugin = self._plugin(about.cwd)
            old = self._conversations.pop(id, None)
            if old is not None:
                await old.session.close()
            host = EngineHost(id, about, self._ask, self._tell, lambda: self._changed(id))
            # Two hosts may give the same id to different conversations.
            session = plugin.session(f"{about.host}:{id}", host)
            conversation = self._conversations[id] = _Conversation(session, host)
            diagnostics = () if kind == "new" else await _restore(session, records)
            shown = self._loaded(conversation)
        self._later(_prepare(session))
        return {
            "protocol": PROTOCOL,
            "version": __version__,
            "searchTool": _wire(session.search_tool),
            "tools": shown,
            "details": details([tool.to_record() for tool in session.loaded], diagnostics),
        }

    def _plugin(self, cwd: str) -> Plugin:
        if cwd not in self._plugins:
            self._plugins[cwd] = Plugin(load_config(cwd=Path(cwd)), reload=lambda: load_config(cwd=Path(cwd)))
        return self._plugins[cwd]

    async def search(self, params: Mapping[str, Any]) -> dict[str, Any]:
        conversation = self._conversation(params)
        wanted = search_arguments({key: value for key, value in params.items() if key != "session"})
        if wanted.get("server") not in conversation.session.servers:
            await self._ask_trust(conversation)
        answer = await conversation.session.search(**wanted)
        return self._found(conversation, answer.text, answer.details)

    async def _ask_trust(self, conversation: _Conversation) -> None:
        """The question about a directory's project file, before the first search that would look into it.

        Not at the start of the session: a dialog that comes up by itself takes what the person types meanwhile for
        its answer.
        """
        plugin, cwd = conversation.session.plugin, conversation.host.about.cwd
        if plugin.configuration.project is None or not conversation.host.interactive:
            return
        # Who searches the same directory waits for the person's answer; nobody else does.
        async with self._trusting.setdefault(cwd, asyncio.Lock()):
            if plugin.configuration.project is None or cwd in self._trust_asked:
                return
            self._trust_asked.add(cwd)
            with contextlib.suppress(PiMcpError):
                await plugin.trust_project(conversation.host)

    async def load(self, params: Mapping[str, Any]) -> dict[str, Any]:
        conversation = self._conversation(params)
        names = params.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise wrong("names", "a list of tool names")
        answer = await conversation.session.load(names)
        return self._found(conversation, answer.text, answer.details)

    async def call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        conversation = self._conversation(params)
        arguments = params.get("arguments", {})
        if not isinstance(arguments, dict):
            raise wrong("arguments", "a JSON object")
        name, request = _text(params, "name"), REQUEST.get()

        def progress(done: float, total: float | None, message: str | None) -> None:
            # It comes from the connection's own task, which knows nothing of this request.
            conversation.host.report(request, message or name, done, total)

        answer = await conversation.session.call(name, arguments, on_progress=progress)
        result: dict[str, Any] = {
            "content": [dict(block) for block in answer.content],
            "isError": answer.is_error,
            "details": dict(answer.details),
            "tools": self._loaded(conversation),
        }
        if answer.structured is not None:
            result["structuredContent"] = answer.structured
        return result

    async def command(self, params: Mapping[str, Any]) -> dict[str, Any]:
        conversation = self._conversation(params)
        answer = await conversation.session.command(_text(params, "line"))
        diagnostics = () if answer.diagnostic is None else (answer.diagnostic,)
        return self._found(conversation, answer.text, details([], diagnostics))

    async def complete(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"items": self._conversation(params).session.complete(_text(params, "line"))}

    async def session(self, params: Mapping[str, Any]) -> dict[str, Any]:
        conversation = self._conversation(params)
        session = conversation.session
        records = [] if _kind(params.get("kind")) == "new" else _records(params)
        diagnostics = await _restore(session, records)
        conversation.told.clear()
        shown = self._loaded(conversation)
        return {"tools": shown, "details": details([tool.to_record() for tool in session.loaded], diagnostics)}

    async def ping(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Says that the event loop turns."""
        del params
        return {}

    _methods: Mapping[str, Callable[[Engine, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
        "initialize": initialize,
        "search": search,
        "load": load,
        "call": call,
        "command": command,
        "complete": complete,
        "session": session,
        "ping": ping,
    }

    # What a conversation has

    def _conversation(self, params: Mapping[str, Any]) -> _Conversation:
        id = _id(params.get("session"))
        conversation = self._conversations.get(id)
        if conversation is None:
            raise failure(
                "not_found",
                "configure",
                None,
                f"No session is called {clean_line(id, 60)!r}.",
                "Send initialize first.",
            )
        return conversation

    def _found(self, conversation: _Conversation, text: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """A search's answer. Its records are all that no earlier answer of this branch had: a host that keeps only
        tool results must find those of `alwaysLoad` and `/mcp load` in them, too."""
        records = []
        for tool in conversation.session.loaded:
            if conversation.told.get(tool.native) != tool.hash:
                conversation.told[tool.native] = tool.hash
                records.append(tool.to_record())
        return {"text": text, "details": {**told, "loaded": records}, "tools": self._loaded(conversation)}

    def _loaded(self, conversation: _Conversation) -> list[dict[str, Any]]:
        """All loaded tools as the host declares them; it knows of them now."""
        conversation.shown = conversation.session.loaded
        return [
            {
                "name": tool.native,
                "description": tool.description,
                "inputSchema": dict(tool.input_schema),
                "annotations": dict(tool.annotations),
            }
            for tool in conversation.shown
        ]

    def _changed(self, id: str) -> None:
        """Tell the host of tools that came or went outside of its own requests."""
        conversation = self._conversations.get(id)
        # What a request of this conversation changes is in the answer to it.
        if conversation is None or SESSION.get() == id or conversation.shown == conversation.session.loaded:
            return
        tools = self._loaded(conversation)
        records = [tool.to_record() for tool in conversation.session.loaded]
        self._tell("toolsChanged", {"session": id, "tools": tools, "details": details(records, ())})


async def _prepare(session: Session) -> None:
    """Load `alwaysLoad` tools of servers whose catalogs are not known yet; the host hears of them when they are."""
    with contextlib.suppress(PiMcpError):
        await session.prepare()


async def _restore(session: Session, records: list[dict[str, Any]] | None) -> tuple[Diagnostic, ...]:
    """Make the loaded set that of another place of the conversation: `alwaysLoad`, then what was loaded there.

    Without records what was kept under the session's id is taken, exactly.
    """
    if records is None:
        return await session.restore()
    named = {record.get("native") for record in records}
    always = [tool.to_record() for tool in session.loaded if tool.native not in named and _is_always(session, tool)]
    return await session.restore([*always, *records])


def _is_always(session: Session, tool: NativeTool) -> bool:
    definition = session.servers.get(tool.server)
    return definition is not None and policy.always_loads(definition, tool.tool)


def _id(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 1024:
        raise wrong("session", "an id of 1 to 1024 characters")
    return value


def _kind(value: Any) -> str:
    if value not in KINDS:
        raise wrong("kind", f"one of {', '.join(KINDS)}")
    return str(value)


def _records(params: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    value = params.get("records")
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong("records", "a list of records")
    # A damaged record costs its tool, not the session.
    return [record for record in value if isinstance(record, dict)]


def _text(params: Mapping[str, Any], member: str) -> str:
    value = params.get(member)
    if not isinstance(value, str):
        raise wrong(member, "a string")
    return value


def _wire(tool: ToolDefinition) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
        "annotations": dict(tool.annotations),
    }
