"""pi-mcp in pp (`pp-coding-agent`): `mcp_search`, the tools that it loads, and `/mcp`.

`pi-mcp install pp` copies this file as `__init__.py`, with the engine's client and `pi_mcp_shim.json` beside it, to
`extensions/pi_mcp_pp/` in pp's folder. pp calls `pi_extension(pi)` once; sessions come and go after it.

pp keeps the `details` of tool results in its session file, by branch: the records in them say what is loaded where.
What `/mcp load` and `/mcp unload` change is kept there as entries of type `pi-mcp`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pi_agent.types import AgentToolResult
from pi_ai.types import ImageContent, TextContent
from pi_coding_agent.core.config import VERSION
from pi_coding_agent.core.extensions.types import ToolDefinition, ToolResultEventResult

from .engine_client import SEARCH_TOOL, Answer, Engine, EngineError, Person, Session, Tool, records_in, unless

ENTRY = "pi-mcp"
"""The type of our own entries in pp's session file, and the key of our line in its footer."""


class PpPerson(Person):
    """pp's dialogs; what is not here pp cannot show."""

    def __init__(self, ui: Any, changed: Callable[[], None]) -> None:
        self.ui = ui
        self._changed = changed

    async def confirm(self, question: str, details: str) -> bool:
        # pp's own yes-or-no has Yes first: an Enter that was meant for the prompt would agree.
        whole = f"{question}\n{details}" if details else question
        return bool(await self.select(whole, ["No", "Yes"]) == "Yes")

    async def select(self, question: str, choices: list[str]) -> Any:
        return await self._dialog(self.ui.select(question, choices))

    async def input(self, question: str, secret: bool) -> Any:
        return await self._dialog(self.ui.input(f"{question} (what you type is visible)" if secret else question))

    async def _dialog(self, asked: Any) -> Any:
        """pp leaves the dialog of a withdrawn question on its screen, where it would take the next prompt."""
        mode, task, shown = getattr(self.ui, "_mode", None), asyncio.ensure_future(asked), None
        try:
            await asyncio.sleep(0)
            shown = getattr(mode, "_active_selector", None)
            return await task
        finally:
            task.cancel()
            if shown is not None and getattr(mode, "_active_selector", None) is shown:
                mode._hide_selector()  # type: ignore[union-attr]

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        self.ui.set_status(ENTRY, self.line(text, done, total))

    def notify(self, level: str, text: str) -> None:
        self.ui.notify(text, level if level in ("warning", "error") else "info")

    def tools_changed(self, tools: tuple[Tool, ...]) -> None:
        del tools
        self._changed()


class Extension:
    """One pp process: its engine, and the session that pp shows now."""

    def __init__(self, pi: Any) -> None:
        self.pi = pi
        self.engine = Engine.installed(Path(__file__).parent, host_version=str(VERSION))
        self.session: Session | None = None
        self.registered: dict[str, Tool] = {}
        self.shown: set[str] = set()
        self.searchable = False

    # pp's events

    def session_start(self, event: Any, ctx: Any) -> None:
        """Begin in the background: pp goes on to its prompt at once."""
        if self.session is not None:
            self.session.end()
        allowed, excluded = _lists(self.pi)
        own = [name for name in self.pi.get_active_tools() if name not in self.registered]
        self.searchable = SEARCH_TOOL not in own
        if not self.searchable:
            ctx.ui.notify(f"pi-mcp: another extension has a tool {SEARCH_TOOL}; ours stays away.", "warning")
            return
        self.session = self.engine.session(
            ctx.session_manager.get_session_id(),
            PpPerson(ctx.ui, self.sync),
            interactive=ctx.has_ui,
            allowed=allowed,
            excluded=[*own, *excluded],
            cwd=ctx.cwd,
        )
        records = branch_records(ctx.session_manager.get_branch())
        fresh = event.reason == "new" or not ctx.session_manager.get_branch()
        self.session.begin("branch" if event.reason == "fork" else "new" if fresh else "resume", records)
        self.shown = set()
        self.sync()

    async def before_agent_start(self, event: Any, ctx: Any) -> None:
        """The first model request waits a second at most for the directory of servers."""
        del event, ctx
        if self.session is not None:
            await self.session.adeclare()
            self.sync()

    async def moved(self, event: Any, ctx: Any) -> None:
        """Another branch, or the same after compaction: exactly the tools that were loaded there."""
        if self.session is not None:
            kind = "compact" if event.type == "session_compact" else "branch"
            with contextlib.suppress(EngineError):  # the next search says what is wrong, and restores
                await self.session.arestore(kind, branch_records(ctx.session_manager.get_branch()))
            self.sync()

    async def session_shutdown(self, event: Any, ctx: Any) -> None:
        del ctx
        if self.session is not None:
            self.session.end()
            self.session = None
        if event.reason in ("quit", "reload"):
            await self.engine.aclose()

    def tool_result(self, event: Any, ctx: Any) -> Any:
        """pp lets a tool fail by an exception only, which would lose the details."""
        del ctx
        failed = event.tool_name in self.registered and isinstance(event.details, dict)
        return ToolResultEventResult(is_error=True) if failed and event.details.get("failed") is True else None

    # Tools

    def sync(self) -> None:
        """Register what is new or changed, and take from pp's active tools what is not loaded (any more)."""
        if self.session is None:
            return
        loaded = {tool.name: tool for tool in (self.session.search_tool, *self.session.tools)}
        host = set(self.pi.get_active_tools()) - set(self.registered)
        for name, tool in loaded.items():
            if self.registered.get(name) != tool and name not in host:  # a tool of the host's is never shadowed
                self.registered[name] = tool
                self.pi.register_tool(self.definition(tool))
        before = self.pi.get_active_tools()
        active = [name for name in before if name not in self.registered or name in loaded]
        # What somebody has switched off since stays off; what is loaded anew is switched on.
        active += [name for name in loaded if name not in active and name not in self.shown and name not in host]
        self.shown = set(loaded)
        if active != before:
            self.pi.set_active_tools(active)

    def definition(self, tool: Tool) -> Any:
        async def execute(id: str, params: Any, signal: Any, on_update: Any, ctx: Any) -> Any:
            del id
            arguments = params if isinstance(params, dict) else {}
            if tool.name == SEARCH_TOOL:
                return await self.result(ctx, signal, lambda session: self.search(session, arguments))
            return await self.result(ctx, signal, lambda session: self.call(session, tool.name, arguments, on_update))

        return ToolDefinition(
            name=tool.name,
            label=tool.name,
            description=tool.description,
            parameters=dict(tool.input_schema),
            execute=execute,
            # Two searches of one answer run one after the other, so that the order of loading is the model's.
            execution_mode="sequential" if tool.name == SEARCH_TOOL else None,
        )

    async def result(self, ctx: Any, signal: Any, work: Callable[[Session], Awaitable[Any]]) -> Any:
        """The result of `work`, which ends when the person presses Escape; a failure is a result, too."""
        if self.session is None:
            return AgentToolResult(content=[TextContent(text="This conversation has ended.")], details={"failed": True})
        try:
            return await unless(None if signal is None else signal.wait(), work(self.session))
        except EngineError as error:
            return AgentToolResult(content=[TextContent(text=str(error))], details={**error.details, "failed": True})
        finally:
            ctx.ui.set_status(ENTRY, None)

    async def search(self, session: Session, arguments: dict[str, Any]) -> Any:
        answer = await session.asearch(arguments)
        return AgentToolResult(content=[TextContent(text=self.told(answer))], details=answer.details)

    def told(self, answer: Answer) -> str:
        """The answer, once its tools are declared; it says which of them pp keeps away from the model."""
        self.sync()
        active = self.pi.get_active_tools()
        away = [record["native"] for record in records_in(answer.details) if record["native"] not in active]
        return f"{answer.text}\nThe host does not offer: {', '.join(away)}." if away else answer.text

    async def call(self, session: Session, name: str, arguments: dict[str, Any], on_update: Any) -> Any:
        def progress(text: str, done: float | None, total: float | None) -> None:
            if on_update is not None:
                on_update(AgentToolResult(content=[TextContent(text=Person.line(text, done, total))]))

        answer = await session.acall(name, arguments, progress)
        blocks: list[Any] = []
        for block in answer.content:
            if block.get("type") == "image":
                blocks.append(ImageContent(data=block["data"], mime_type=block["mimeType"]))
            else:
                blocks.append(TextContent(text=str(block.get("text", ""))))
        details = {**answer.details, "failed": True} if answer.is_error else answer.details
        return AgentToolResult(content=blocks or [TextContent(text="The tool returned nothing.")], details=details)

    # /mcp

    async def command(self, args: str, ctx: Any) -> None:
        if self.session is None:
            return
        before = {tool.name for tool in self.session.tools}
        try:
            answer = await self.session.acommand(f"/mcp {args}")
        except EngineError as error:
            _show(ctx, str(error), "error")
            return
        finally:
            ctx.ui.set_status(ENTRY, None)
        gone = sorted(before - {tool.name for tool in self.session.tools})
        if records_in(answer.details) or gone:
            self.pi.append_entry(ENTRY, {**answer.details, "unloaded": gone})
        text = self.told(answer)
        _show(ctx, text, "error" if answer.details.get("diagnostics") else "info")

    def complete(self, prefix: str) -> list[dict[str, str]]:
        """Candidates for what follows `/mcp `. pp 0.2.2 takes the function and does not ask it."""
        if self.session is None:
            return []
        head = prefix[: len(prefix) - len(prefix.split(" ")[-1])]
        return [{"value": head + item, "label": item} for item in self.session.complete(f"/mcp {prefix}")]


def branch_records(entries: list[Any]) -> list[dict[str, Any]]:
    """The records of all tools that are loaded at the end of these entries of pp's session file, in order."""
    found: dict[str, dict[str, Any]] = {}
    for entry in entries:
        message = getattr(entry, "message", None)
        if getattr(message, "role", None) == "toolResult" and getattr(message, "tool_name", None) == SEARCH_TOOL:
            told = getattr(message, "details", None)
        elif getattr(entry, "custom_type", None) == ENTRY:
            told = getattr(entry, "data", None)
        else:
            continue
        for record in records_in(told):
            found[record["native"]] = record
        for name in told.get("unloaded") or () if isinstance(told, dict) else ():
            found.pop(name, None)
    return list(found.values())


def _lists(pi: Any) -> tuple[list[str] | None, list[str]]:
    """pp's `--tools` and `--exclude-tools`, which its API does not tell; without them `told` says what is kept away."""
    of = getattr(getattr(getattr(pi, "_actions", None), "get_active_tools", None), "__self__", None)
    session = getattr(of, "_session", None)
    allowed = getattr(session, "_allowed_tool_names", None)
    return None if allowed is None else sorted(allowed), sorted(getattr(session, "_excluded_tool_names", None) or ())


def _show(ctx: Any, text: str, level: str) -> None:
    """Text for the person; `pp -p` has no screen, so there it goes to standard output (with `--mode json`: stderr)."""
    if ctx.has_ui:
        mode = getattr(ctx.ui, "_mode", None)
        if getattr(mode, "last_status_text", None) is not None:
            mode.last_status_text = None  # type: ignore[union-attr] # pp would replace the answer before this one
        ctx.ui.notify(text, level)
    elif "json" in sys.argv:
        print(text, file=sys.stderr)
    else:
        from pi_coding_agent.core.output_guard import write_raw_stdout

        write_raw_stdout(f"{text}\n")


def pi_extension(pi: Any) -> None:
    """What pp calls when it has loaded this file. Starts nothing."""
    extension = Extension(pi)
    pi.on("session_start", extension.session_start)
    pi.on("before_agent_start", extension.before_agent_start)
    pi.on("session_tree", extension.moved)
    pi.on("session_compact", extension.moved)
    pi.on("session_shutdown", extension.session_shutdown)
    pi.on("tool_result", extension.tool_result)
    pi.register_command(
        "mcp",
        handler=extension.command,
        description="MCP servers: status, tools, auth, reconnect, …",
        get_argument_completions=extension.complete,
    )
