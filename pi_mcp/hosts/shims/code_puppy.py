"""pi-mcp in code-puppy: `mcp_search`, the tools that it loads, and `/mcp`. `pi-mcp install code-puppy` copies it.

Comes in: code-puppy's callbacks and its agents' runs. Goes out: a toolset for each run, whose results carry what is
needed to restore the loaded tools, and lines in the transcript. It starts nothing when it is imported. Only what
pydantic-ai 2.51 has too is used. docs/host-code-puppy.md says who gets the tools and what `/mcp` does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import code_puppy
from code_puppy import callbacks, config, messaging
from code_puppy.tools import common
from code_puppy.tools.subagent_context import get_conversation_root_id, is_subagent
from pydantic_ai.messages import BinaryContent, ModelMessage, ToolReturn
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from rich.text import Text

from .engine_client import IMAGES, SEARCH_TOOL, Engine, EngineError, Person, Session, Tool, arguments_in, records_in

WORDS = {"auth", "disable", "enable", "get", "help", "load", "logout", "reconnect", "refresh", "reload", "search",
         "status", "tools", "trust", "unload"}  # fmt: skip
"""The subcommands of `/mcp` that are ours; all others are code-puppy's."""
THEIRS = "code-puppy's own MCP servers: /mcp list, and its other words (start, stop, install, logs …)."
ENGINE = Engine.installed(Path(__file__).resolve().parent, host_version=getattr(code_puppy, "__version__", ""))
SESSIONS: dict[str, Session] = {}
SEEN: dict[str, list[ModelMessage]] = {}  # the messages of each session's last model request, of the latest sessions
COMMANDS: set[asyncio.Task[None]] = set()


class Puppy(Person):
    """code-puppy's own approval panel, list and prompt. They need a thread: its loop must not stand still."""

    shown = 0.0
    waiting = False
    """The loop's thread waits for the engine already, so that a dialog may keep it."""

    def _dialog(self, show: Callable[[], Any]) -> Any:
        from code_puppy.messaging.run_ui import suspended_run_ui
        from code_puppy.tools.command_runner import set_awaiting_user_input

        def run() -> Any:
            with suspended_run_ui():
                set_awaiting_user_input(True)
                try:
                    return show()
                except (KeyboardInterrupt, EOFError):
                    return None
                finally:
                    set_awaiting_user_input(False)

        if not self.waiting:
            return asyncio.to_thread(run)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(run).result()

    def confirm(self, question: str, details: str) -> Any:
        text = f"{question}\n\n{details}".strip()
        return self._dialog(lambda: common.get_user_approval("MCP", Text(text))[0])

    def select(self, question: str, choices: list[str]) -> Any:
        return self._dialog(lambda: common.arrow_select(" — ".join(question.splitlines()), choices))

    def input(self, question: str, secret: bool) -> Any:
        from rich.prompt import Prompt

        return self._dialog(lambda: Prompt.ask(Text(question), password=secret, default="", show_default=False))

    def notify(self, level: str, text: str) -> None:
        emit = {"warning": messaging.emit_warning, "error": messaging.emit_error}.get(level, messaging.emit_info)
        emit(Text(text))

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        if time.monotonic() - self.shown > 2.0:
            self.shown = time.monotonic()
            messaging.emit_info(Text(self.line(text, done, total), "dim"))


def interactive() -> bool:
    return common.get_approval_backend() is not None or (sys.stdin.isatty() and not config.get_headless_mode())


def records_of(messages: Iterable[ModelMessage]) -> list[dict[str, Any]]:
    """The records of all tools that the results in these messages loaded, in the order of loading."""
    parts = [part for message in messages for part in message.parts if part.part_kind == "tool-return"]
    return records_in({"loaded": [record for part in parts for record in records_in(part.metadata)]})


def declared_patterns(agent: Any) -> list[str] | None:
    """What the `tools` of a JSON agent say of MCP tools, such as `mcp__git__*`; None where they say nothing."""
    names = getattr(agent, "_config", {}).get("tools") or ()
    return [name for name in names if isinstance(name, str) and name.startswith("mcp__")] or None


def conversation(messages: Sequence[ModelMessage] | None = None) -> tuple[Session, bool]:
    """The session that a run, or `/mcp`, belongs to; and whether it is a sub-agent's, which ends with its run."""
    from code_puppy.agents.agent_manager import get_current_agent
    from code_puppy.tools import get_available_tool_names

    sub = is_subagent()
    id = get_conversation_root_id() or config.get_current_session_name()
    if sub:
        id = f"{id}/{uuid.uuid4().hex}"
    if id not in SESSIONS:
        agent = get_current_agent()
        history = messages if messages is not None else agent.get_message_history()
        session = ENGINE.session(
            id,
            Puppy(),
            interactive=interactive(),
            ui=["confirm"] if common.get_approval_backend() else None,  # an editor, whose line is standard input
            allowed=None if sub else declared_patterns(agent),
            excluded=[name for name in get_available_tool_names() if name != SEARCH_TOOL],
            keep=not sub,
        )
        # The side file knows more than a history that was compacted; a sub-agent has its history alone.
        records = records_of(history)
        kept = not sub and session.kept
        session.begin("branch" if sub else "resume" if history or kept else "new", None if kept else records)
        SESSIONS[id] = session
    return SESSIONS[id], sub


class McpTools(AbstractToolset[Any]):
    """The tools of one run."""

    session: Session | None = None
    sub = False

    @property
    def id(self) -> str:
        return "pi-mcp"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Before each model request: `mcp_search`, and what is loaded, in the order of loading."""
        if COMMANDS:
            await asyncio.wait(COMMANDS, timeout=5)  # a `/mcp` line that was typed before
        if self.session is None:
            self.session, self.sub = conversation(ctx.messages)
            before, now = SEEN.pop(self.session.id, []), ctx.messages
            same = sum(1 for _ in itertools.takewhile(lambda n: before[n] is now[n], range(min(len(before), len(now)))))
            if same == len(now) - 1 < len(before):  # `/pop` took the end of the conversation away
                with contextlib.suppress(EngineError):
                    await self.session.arestore("branch", records_of(now))
        SEEN[self.session.id] = list(ctx.messages)
        if len(SEEN) > 20:  # an editor's code-puppy runs for weeks
            del SEEN[next(iter(SEEN))]
        search, loaded = await self.session.adeclare()
        return {tool.name: self._declared(tool) for tool in (search, *loaded)}

    def _declared(self, tool: Tool) -> ToolsetTool[Any]:
        definition = ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.input_schema,
            strict=False,  # a provider's strict mode would rewrite the server's schema
            sequential=tool.name == SEARCH_TOOL,
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=0, args_validator=ANY)

    async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
        """Once; a failure is the text of an ordinary result."""
        del ctx, tool
        if self.session is None or tool_args == UNREADABLE:
            return "[usage] The arguments were no JSON object; nothing was sent. Write them again."
        try:
            if name == SEARCH_TOOL:
                found = await self.session.asearch(tool_args)
                return ToolReturn(return_value=found.text, metadata=found.details)
            answer = await self.session.acall(name, tool_args)
        except EngineError as error:
            return ToolReturn(return_value=str(error), metadata=error.details)
        lead = f"{name} reported an error:" if answer.is_error else ""
        text = "\n".join(filter(None, [lead, answer.text]))
        images = [
            BinaryContent(data=base64.b64decode(data), media_type=kind) if kind in IMAGES else f"[image {kind}]"
            for data, kind in answer.images
        ]
        value: Any = [*([text] if text else []), *images] if images else text or "The tool returned nothing."
        return ToolReturn(return_value=value, metadata=answer.details)

    async def __aexit__(self, *args: Any) -> bool | None:
        if self.session is not None and self.sub:
            self.session.end()
            SESSIONS.pop(self.session.id, None)
            SEEN.pop(self.session.id, None)
        return None


class AnyArguments:
    """pydantic-ai's validator, without a schema: the server judges. Raising would make pydantic-ai repeat the call."""

    def validate_json(self, input: Any, **_: Any) -> dict[str, Any]:
        return self.validate_python(arguments_in(input))

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        return dict(input) if isinstance(input, dict) else UNREADABLE


ANY: Any = AnyArguments()
UNREADABLE: dict[str, Any] = {"\0": "no JSON object"}


def register_tools() -> list[dict[str, Any]]:
    def add(agent: Any) -> None:
        agent.toolset(per_run_step=False)(lambda _: McpTools())

    return [{"name": SEARCH_TOOL, "register_func": add}]


def register_agent_tools(agent_name: str | None = None) -> list[str]:
    """Every agent of code-puppy gets it; one with a list of its own (JSON) has to name it there."""
    from code_puppy.agents.json_agent import discover_json_agents

    return [] if agent_name in discover_json_agents() else [SEARCH_TOOL]


def run_command(line: str) -> bool:
    """`/mcp …`: ours where we know the word, and the bare one."""
    words = line.split()[1:]
    ours = not words or words[0] in WORDS or THEIR_COMMAND is None
    if not ours or not callbacks.is_callback_owner_enabled(Path(__file__).parent.name):
        return bool(THEIR_COMMAND.handler(line)) if THEIR_COMMAND is not None else False
    session, _ = conversation()
    person: Any = session.person

    def show(text: str) -> bool:
        text = "\n".join([text, *([THEIRS] if not words or words[0] == "help" else [])])
        # code-puppy ends too soon after a command of `-p` for its own queue of messages.
        print(text) if config.get_headless_mode() else messaging.emit_info(Text(text))
        return True

    async def later() -> None:
        try:
            show((await session.acommand(line)).text)
        except EngineError as error:
            show(str(error))

    if interactive():  # a login takes minutes, and the prompt has to live
        task = asyncio.get_running_loop().create_task(later())
        COMMANDS.add(task)
        task.add_done_callback(COMMANDS.discard)
        return True
    person.waiting = True
    try:
        return show(session.command(line).text)
    except EngineError as error:
        return show(str(error))
    finally:
        person.waiting = False


THEIR_COMMAND: Any = None


async def startup() -> None:
    """Take `/mcp` over once code-puppy has registered its own, and start the engine when the session is known."""
    global THEIR_COMMAND
    import code_puppy.command_line.command_handler  # noqa: F401 -- it registers code-puppy's commands
    from code_puppy.command_line import command_registry

    THEIR_COMMAND = command_registry.get_command("mcp")
    command_registry.register_command("mcp", "MCP servers and tools, on demand", usage="/mcp [word]")(run_command)
    asyncio.get_running_loop().call_soon(conversation)


def completer() -> Any:
    from termflow.tui.completion import Completer, Completion

    class McpCompleter(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            del complete_event
            line = document.text_before_cursor.lstrip()
            session = SESSIONS.get(get_conversation_root_id() or config.get_current_session_name())
            if line.startswith("/mcp ") and session is not None:
                last = line.rpartition(" ")[2]
                for word in session.complete(line):
                    yield Completion(word, start_position=-len(last), display_meta="pi-mcp")

    return McpCompleter()


callbacks.register_callback("register_tools", register_tools)
callbacks.register_callback("register_agent_tools", register_agent_tools)
callbacks.register_callback("register_completion_provider", completer)
callbacks.register_callback("startup", startup)
callbacks.register_callback("shutdown", ENGINE.aclose)
