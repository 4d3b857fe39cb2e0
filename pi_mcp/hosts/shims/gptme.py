"""pi-mcp in gptme: `mcp_search`, the tools that it loads, and `/mcp`; `pi-mcp install gptme` copies this file.

Comes in: gptme's hooks, commands and tool calls, each of a conversation (a log folder). Goes out: its tools, messages.
It starts nothing when imported, touches no other tool, keeps what is loaded in the log folder (docs/host-gptme.md).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import gptme
from gptme import commands, tools
from gptme.config import get_config
from gptme.hooks.elicitation import ElicitationRequest, elicit
from gptme.logmanager import LogManager
from gptme.message import Message, is_output_json
from gptme.tools.base import Parameter, ToolSpec, get_tool_format
from gptme.util import console
from gptme.util.ask_execute import execute_with_confirmation
from gptme.util.interrupt import clear_interruptible, set_interruptible

from .engine_client import SEARCH, SEARCH_TOOL, Engine, EngineError, Person, Session, Tool, arguments_in, keep_image

LIMIT = getattr(tools.base, "MAX_TOOL_DESCRIPTION_LENGTH", 1024)  # gptme cuts a description and warns at each request
ENGINE = Engine.installed(Path(__file__).resolve().parent, host_version=getattr(gptme, "__version__", ""))
SESSIONS: dict[Path, Session] = {}


class Schema(list):  # type: ignore[type-arg]
    """gptme's parameters of a tool, which carry its JSON Schema as the server wrote it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        properties, required = schema.get("properties"), schema.get("required") or ()
        # None is "required" beside a whole schema: gptme would take it for one that fits a provider's strict mode.
        flat = not keep_schemas()
        for name, about in (properties if isinstance(properties, dict) else {}).items():
            about = about if isinstance(about, dict) else {}
            kind = about.get("type")
            kind = next(
                (one for one in (kind if isinstance(kind, list) else [kind]) if one not in (None, "null")), "string"
            )
            self.append(Parameter(name, kind, str(about.get("description") or ""), required=flat and name in required))
        self.json_schema = schema


def keep_schemas() -> bool:
    """See to it that `Schema` reaches the model whole; False where gptme builds schemas in another way."""
    known = getattr(sys.modules.get("gptme.llm.utils"), "parameters2dict", None)
    original = getattr(known, "original", known)
    if original is None:
        return False

    def whole(parameters: Any, *rest: Any, **more: Any) -> Any:
        schema = getattr(parameters, "json_schema", None)
        # Without properties gptme's own form is right, in a provider's strict mode too.
        return schema if schema and schema.get("properties") else original(parameters, *rest, **more)

    whole.original = original  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):  # each provider's module holds it, once that is imported
        if name.startswith("gptme.") and getattr(module, "__dict__", {}).get("parameters2dict") is original:
            module.parameters2dict = whole  # type: ignore[attr-defined]
    return True


class Asked(Person):
    """gptme's own questions (`gptme.hooks.elicitation`): its terminal, server and editor all have them."""

    shown = 0.0

    def notify(self, level: str, text: str) -> None:  # noqa: ARG002
        say(text)

    def confirm(self, question: str, details: str) -> bool:  # gptme's own has Yes first, and Enter may be typed ahead
        return bool(self.select(f"{details}\n{question}" if details else question, ["No", "Yes"]) == "Yes")

    def select(self, question: str, choices: list[str]) -> Any:
        if len(choices) <= 30:  # more do not fit gptme's list
            return ask("choice", question, options=choices)
        say("\n".join(choices))
        return ask("text", f"{question}\nOne of these, written out")

    def input(self, question: str, secret: bool) -> Any:
        return ask("secret" if secret else "text", question)

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        if time.monotonic() - self.shown > 1.0:
            self.shown = time.monotonic()
            say(self.line(text, done, total), style="dim")


def ask(kind: Any, prompt: str, **more: Any) -> Any:
    return elicit(ElicitationRequest(type=kind, prompt=prompt, **more)).value  # None when dismissed


def say(text: str, style: str | None = None) -> None:
    if not is_output_json():
        console.print(text, style=style, markup=False, highlight=False)


def folder() -> Path | None:
    """The log folder of the conversation that this thread works for."""
    manager = LogManager.get_current_log()
    return manager.logdir if manager is not None else getattr(get_config().chat, "_logdir", None)


def session_of(logdir: Path | None, fork_of: Session | None = None) -> Session | None:
    """The session of a conversation, begun at its first use; None outside of one."""
    if logdir is not None and logdir not in SESSIONS:
        log = logdir / "conversation.jsonl"
        session = ENGINE.session(
            logdir.name,
            Asked(),
            interactive=bool(getattr(get_config().chat, "interactive", True)),
            excluded=[tool.name for tool in tools.get_available_tools() if not hasattr(tool, "pi_mcp")],
            side_dir=logdir / "pi-mcp",
        )
        kind = "branch" if fork_of is not None else "resume" if log.exists() and log.stat().st_size else "new"
        session.begin(kind, None if fork_of is None else fork_of.records)
        SESSIONS[logdir] = session
    return None if logdir is None else SESSIONS[logdir]


def declare(session: Session | None) -> None:
    """Make gptme's tools say what the session has loaded: ours only, each at its place, new ones at the end."""
    if session is None or not tools.has_tool(SEARCH_TOOL):
        return  # gptme's own allow list leaves it out
    search, loaded = session.declare()
    wanted = {SEARCH_TOOL: search_spec(search)} | {tool.name: spec_of(tool) for tool in loaded}
    have = {tool.name: tool.pi_mcp for tool in tools.get_tools() if hasattr(tool, "pi_mcp")}
    if gone := [name for name in have if name not in wanted]:
        tools.unload_dynamic_tool_specs(gone)
        tools.remove_from_tools_cache(gone)
    if any(wanted[name].pi_mcp != was for name, was in have.items() if name in wanted):
        tools.set_tools([wanted.get(tool.name, tool) for tool in tools.get_tools()])
    if new := [spec for name, spec in wanted.items() if name not in have]:
        known = {tool.name for tool in tools.get_available_tools()}
        tools.extend_tools_cache([spec for spec in new if spec.name not in known])
        tools.load_dynamic_tool_specs(new)


def at_start(logdir: Path) -> None:
    """session.start, of a new conversation and of one that goes on: the engine starts, and nobody waits for it."""
    session_of(logdir)


def before_step(manager: Any) -> None:
    """step.pre: before each request, in whatever thread gptme works for this conversation."""
    keep_schemas()
    manager.pi_mcp = session_of(manager.logdir, getattr(manager, "pi_mcp", None))  # another folder: /fork
    declare(manager.pi_mcp)


def after_compaction(manager: Any) -> Message | None:
    """cache.invalidated: a summary may have dropped how to call tools that are not declared natively."""
    session = session_of(manager.logdir)
    told = usage(session.tools) if session is not None and get_tool_format() != "tool" else ""
    return Message("system", f"These MCP tools are loaded. {told}", hide=True) if told else None


def at_end(manager: Any) -> None:
    """session.end: the side file stays; the engine ends with gptme."""
    if session := SESSIONS.pop(manager.logdir, None):
        session.end()


def spec_of(tool: Tool, **more: Any) -> Any:
    """A tool of ours as gptme has tools; its `pi_mcp` changes with what the model is told of it."""
    spec = ToolSpec(
        name=tool.name,
        desc=cut(tool.description or tool.name),
        parameters=Schema(tool.input_schema),
        # The first is the name that the model sees; XML tags reach gptme in lower case.
        block_types=list(dict.fromkeys([tool.name, tool.name.lower()])),
        **(more or {"execute": partial(run_tool, tool), "is_mcp": True}),
    )
    object.__setattr__(spec, "pi_mcp", (tool.description, tool.input_schema))
    return spec


def search_spec(tool: Tool) -> Any:
    example = '{"query": "github create issue"}'
    hooks = {"session.start": at_start, "step.pre": before_step, "cache.invalidated": after_compaction}
    hooks["session.end"] = at_end
    return spec_of(
        tool,
        instructions_format={
            "markdown": f"Write what you need, or JSON, in a code block:\n\n```{SEARCH_TOOL}\n{example}\n```",
            "xml": f"Write what you need, or JSON, in a tag {SEARCH_TOOL}: {example}",
        },
        execute=run_search,
        init=at_init,
        read_only=True,
        hooks={kind: (kind, hook, 0) for kind, hook in hooks.items()},
    )


def cut(text: str) -> str:
    """A description that gptme takes whole; of the directory of servers, whole lines."""
    if len(text) <= LIMIT:
        return text
    head, note = text[: LIMIT - 20], "\n- … (all: /mcp)"
    return head.rpartition("\n")[0] + note if "\n- " in head else f"{head}…"


def at_init() -> Any:
    """gptme loads `mcp_search`: at its start, and in each thread that has tools of its own."""
    try:
        keep_schemas()
        commands.command("mcp", completer=complete)(run_command)
        if (session := session_of(folder())) is None:
            return TOOL
        # Without native tools gptme writes its system prompt now; else the first request is time enough.
        now = get_config().chat.tool_format != "tool"
        return search_spec(session.declare()[0] if now else session.search_tool)
    except Exception as error:  # gptme would not start
        say(f"pi-mcp does not fit this gptme ({type(error).__name__}); it stays off.")
        return TOOL


def run_search(code: str | None, args: list[str] | None, kwargs: dict[str, Any] | None) -> Message:
    arguments = kwargs if kwargs is not None else arguments_in(code) or {"query": " ".join([*(args or []), code or ""])}
    if (session := session_of(folder())) is None:
        return Message("system", "There is no conversation.")
    try:
        answer = session.search(arguments)
    except EngineError as error:
        return Message("system", str(error))
    declare(session)
    fresh = {record.get("native") for record in answer.details.get("loaded", [])}
    told = usage(tool for tool in answer.tools if tool.name in fresh) if get_tool_format() != "tool" else ""
    return Message("system", f"{answer.text}\n\n{told}".strip())


def usage(loaded: Iterable[Tool]) -> str:
    """How to call tools that the system prompt does not have, in the format of this conversation."""
    form = "<tool-use>\n<{0}>\n{1}\n</{0}>\n</tool-use>" if get_tool_format() == "xml" else "```{0}\n{1}\n```"
    told = ""
    for tool in loaded:
        example = json.dumps(dict.fromkeys(tool.input_schema.get("required") or (), "…"), ensure_ascii=False)
        told += f"\n\n{tool.name}: {cut(tool.description)}\nArguments, as JSON Schema: "
        told += f"{json.dumps(tool.input_schema, ensure_ascii=False)}\n{form.format(tool.name, example)}"
    return f"Call a tool with its arguments as JSON, as shown:{told}" if told else ""


def run_tool(tool: Tool, code: str | None, _: Any, kwargs: dict[str, Any] | None) -> Any:
    """One call, with the confirmation that gptme has for its own MCP tools; what it shows can be edited."""
    value = kwargs if kwargs is not None else arguments_in(code or "{}")
    return execute_with_confirmation(
        code if value is None else json.dumps(value, indent=2, ensure_ascii=False),
        None,
        None,
        execute_fn=lambda content, _: called(tool, content),
        get_path_fn=lambda *_: None,
    )


def called(tool: Tool, content: str) -> Message:
    logdir, arguments = folder(), arguments_in(content)
    session = session_of(logdir)
    if logdir is None or session is None or arguments is None:
        return Message("system", f"[usage] The arguments are no JSON object; nothing was sent.\n{usage([tool])}")
    try:
        answer = session.call(tool.name, arguments)
    except EngineError as error:
        return Message("system", str(error))
    kept = [(kind, keep_image(logdir / "attachments", data, kind)) for data, kind in answer.images]
    notes = [f"[image {kind}]" if path else f"[image {kind}: gptme cannot show it]" for kind, path in kept]
    lead = f"{tool.name} reported an error:" if answer.is_error else ""
    text = "\n".join(filter(None, [lead, answer.text, *notes])) or "The tool returned nothing."
    return Message("system", text, files=[path for _, path in kept if path])


def run_command(ctx: Any) -> None:
    """MCP servers and tools, on demand"""
    set_interruptible()  # a login waits for minutes; Ctrl-C ends it
    try:
        if session := session_of(ctx.manager.logdir):
            text = session.command(f"/mcp {ctx.full_args}".strip()).text
            (say if sys.stdout.isatty() else print)(text)  # plainly where gptme's JSON mode captures it
            declare(session)
    except (KeyboardInterrupt, EngineError) as error:
        print(str(error) or "Cancelled.")
    finally:
        clear_interruptible()


def complete(partial: str, previous: list[str]) -> list[tuple[str, str]]:
    session = SESSIONS.get(folder() or Path()) or next(reversed(SESSIONS.values()), None)
    words = session.complete(" ".join(["/mcp", *previous, partial])) if session is not None else []
    return [(word.strip(), "") for word in words]


TOOL = search_spec(SEARCH)  # gptme finds it here
