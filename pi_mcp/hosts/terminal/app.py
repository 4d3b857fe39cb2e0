"""One run of `pi-mcp chat`: reads lines, runs them, shows what comes of them.

Comes in: options and what a person types (or a pipe delivers). Goes out: an exit code. It never speaks to a server
or a model itself: sessions and turns do; and it leaves no process and no terminal mode behind.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp import files
from pi_mcp._version import __version__
from pi_mcp.config import Configuration, load_config
from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.hosts.terminal import ChatOptions, form
from pi_mcp.hosts.terminal import model as models
from pi_mcp.hosts.terminal.chats import Chat, ChatStore, new_chat
from pi_mcp.hosts.terminal.dialogs import TerminalHost
from pi_mcp.hosts.terminal.keys import Keys, Stopped
from pi_mcp.hosts.terminal.pipe import piped_lines
from pi_mcp.hosts.terminal.render import Screen, listed
from pi_mcp.plugin import SEARCH_TOOL, CallAnswer, Plugin, SearchAnswer, Session
from pi_mcp.text import clean, clean_line, close_words
from pi_mcp.tools.arguments import misspelt, parse_arguments

if TYPE_CHECKING:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage

    from pi_mcp.tools.loaded import NativeTool

COMMANDS = {
    "/call": "run a tool: /call TOOL [JSON or key=value …]",
    "/tools": "the loaded tools, numbered",
    "/mcp": "servers: status, tools, reconnect, …",
    "/new": "a new conversation; servers stay connected",
    "/help": "what can be typed here",
    "/quit": "leave (Ctrl-D)",
}
CANCELLED = 130
LEAVE_LIMIT = 8.0
"""Seconds that closing may take altogether; the servers' supervisors end with this process in any case."""


_LOG = logging.getLogger(__name__)
_FAULT = Diagnostic(
    "operation_failed",
    "command",
    None,
    "That failed inside pi-mcp; whether a call took effect is unknown.",
    "PI_MCP_LOG=debug writes more to the log file.",
)


class Left(Exception):
    """The person wants to leave."""


class Application:
    """A chat: one plugin, one session at a time, and an agent when there is a model."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        one_turn = options.prompt is not None
        self._screen = Screen(interactive=not one_turn and sys.stdin.isatty())
        self._keys = Keys(interactive=self._screen.interactive)
        self._host = TerminalHost(self._screen, self._keys)
        self._store = ChatStore(files.state_dir() / "chats")
        self._listed: list[str] = []
        self._messages: list[ModelMessage] = []
        self._endpoint: models.Endpoint | None = None
        self._agent: Agent[Any, str] | None = None
        self._warming: asyncio.Task[None] | None = None
        self._signal: int | None = None
        self._code = 0
        """What the last `/call` or `/mcp` came to, as an exit code."""
        self._plugin: Plugin
        self._session: Session
        self._chat: Chat

    async def run(self) -> int:
        """Everything, from the first screen to the last process; the exit code."""
        main = asyncio.current_task()
        loop = asyncio.get_running_loop()

        def end(number: int) -> None:
            self._signal = number
            if main is not None:
                main.cancel()

        def interrupt() -> None:
            if not self._keys.stop() and main is not None:
                end(signal.SIGINT)

        handled = {signal.SIGTERM: lambda: end(signal.SIGTERM), signal.SIGHUP: lambda: end(signal.SIGHUP)}
        for number, handler in {**handled, signal.SIGINT: interrupt}.items():
            loop.add_signal_handler(number, handler)
        try:
            return await self._run()
        except asyncio.CancelledError:
            if self._signal is None:
                raise
            return CANCELLED if self._signal == signal.SIGINT else 128 + self._signal
        finally:
            self._screen.idle()
            for number in (*handled, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        configuration = await self._prepare()
        reload = (lambda: configuration) if self._options.demo else self._load
        self._plugin = Plugin(configuration, reload=reload)
        try:
            return await self._converse()
        finally:
            self._screen.idle()
            if self._warming is not None:
                self._warming.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_LIMIT):
                    await self._keys.close()
                    await self._plugin.close()

    def _load(self) -> Configuration:
        return load_config(config=self._options.config, trust_project=self._options.trust_project)

    async def _prepare(self) -> Configuration:
        """Check the options, find the chat to resume, load the configuration; nothing is contacted."""
        options, cwd = self._options, Path.cwd()
        if options.resume is None:
            self._chat = new_chat(cwd)
        else:
            self._chat = await asyncio.to_thread(self._store.load, options.resume, cwd)
        model = options.model or self._chat.model
        base_url = options.base_url
        if base_url is None and options.model in (None, self._chat.model):
            base_url = self._chat.base_url
        if model is not None:
            self._endpoint = models.endpoint_of(model, base_url, os.environ)
            models.require_chat_extra(self._endpoint.provider)
            self._chat.model, self._chat.base_url = self._endpoint.spec, base_url
            if self._chat.messages:
                self._messages = await asyncio.to_thread(models.messages_from_json, self._chat.messages)
        if options.demo or self._chat.demo:
            from pi_mcp.hosts.demo import demo_configuration

            self._chat.demo = True
            return await asyncio.to_thread(demo_configuration)
        configuration = await asyncio.to_thread(self._load)
        if options.config is not None:
            for report in configuration.files:
                if report.scope == "override" and report.status in ("missing", "invalid"):
                    raise failure(
                        "configuration_invalid",
                        "configure",
                        None,
                        report.diagnostic.message if report.diagnostic else f"{report.path} is not there.",
                        report.diagnostic.hint if report.diagnostic else "Check --config.",
                    )
        return configuration

    async def _converse(self) -> int:
        self._begin(self._chat)
        if self._screen.interactive:
            await self._welcome()
            if self._plugin.configuration.project is not None and await self._plugin.trust_project(self._host):
                self._screen.line(f"Servers: {listed(self._plugin.configuration.servers)}")
        if self._options.resume is not None:
            for diagnostic in await self._session.restore(self._chat.loaded):
                self._note(diagnostic.line())
            if self._screen.interactive:
                self._resumed()
        if self._options.prompt is not None:
            return await self._one_turn(self._options.prompt)
        async for line in self._lines():
            try:
                await self._line(line)
            except Left:
                break
            except Stopped:
                self._screen.idle()
                self._screen.warning("Stopped.")
            except PiMcpError as error:
                self._screen.idle()
                self._screen.diagnostic(error.diagnostic)
            except Exception as error:  # a fault of ours must not cost the conversation
                self._screen.idle()
                _LOG.exception("a line failed with %s", type(error).__name__)
                self._screen.diagnostic(_FAULT)
        return 0

    def _begin(self, chat: Chat) -> None:
        self._chat = chat
        self._session = self._plugin.session(chat.id, self._host)
        self._listed = []
        if self._endpoint is not None:
            self._warming = asyncio.ensure_future(self._make_agent())
            # Its failure is met by the first turn; without one nobody needs to hear of it.
            self._warming.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _make_agent(self) -> None:
        """Import the model libraries (a second or two) while the person reads and types."""
        endpoint, session, text = self._endpoint, self._session, self._chat.search_text
        if endpoint is None:
            return

        def make() -> Agent[Any, str]:
            from pi_mcp.hosts.pydantic_ai import PiMcpToolset

            return models.build_agent(endpoint, PiMcpToolset(session, search_text=text))

        self._agent = await asyncio.to_thread(make)

    # Lines

    async def _lines(self) -> AsyncIterator[str]:
        """What is typed, line by line, until Ctrl-D or the end of the pipe."""
        if not self._screen.interactive:
            async for line in piped_lines(sys.stdin.fileno()):
                yield line
            return
        from prompt_toolkit import PromptSession
        from prompt_toolkit.patch_stdout import patch_stdout

        from pi_mcp.hosts.terminal.completion import line_completer
        from pi_mcp.hosts.terminal.dialogs import CHORD_WAIT, ESCAPE_WAIT, color_depth
        from pi_mcp.hosts.terminal.history import private_history

        prompt: PromptSession[str] = PromptSession(
            history=private_history(files.state_dir() / "chats" / "history.jsonl"),
            completer=line_completer(lambda: self._session, COMMANDS),
            complete_while_typing=True,
            color_depth=color_depth(),
            reserve_space_for_menu=6,
        )
        prompt.app.ttimeoutlen, prompt.app.timeoutlen = ESCAPE_WAIT, CHORD_WAIT
        warned = False
        while True:
            try:
                with patch_stdout(raw=True):
                    line = await prompt.prompt_async("pi> ", handle_sigint=False)
            except EOFError:
                return
            except KeyboardInterrupt:
                # As in a shell, Ctrl-C throws the line away; a second one in a row, with no line to throw away, leaves.
                if warned and not prompt.default_buffer.text:
                    return
                warned = True
                self._screen.line("Ctrl-D leaves; Escape stops running work.")
                continue
            warned = False
            if line.strip():
                yield line.strip()

    async def _line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word in ("/quit", "/exit"):
            raise Left
        if word == "/help":
            self._help()
        elif word == "/new":
            await self._new()
        elif word == "/tools":
            self._show_loaded()
        elif word == "/call":
            await self._call(rest)
        elif word == "/mcp":
            await self._command(line)
        elif _is_command(word):
            hint = close_words(word, COMMANDS) or "/help lists what there is."
            raise failure("usage", "command", None, f"There is no command {clean_line(word, 40)}.", hint)
        elif self._endpoint is not None:
            await self._turn(line)
        else:
            await self._search(line)

    async def _command(self, line: str) -> None:
        try:
            answer = await self._keys.run(self._session.command(line))
        finally:
            self._screen.idle()
        self._code = answer.diagnostic.exit_code if answer.diagnostic else 0
        self._screen.answer(answer)
        await self._save()

    async def _new(self) -> None:
        await self._session.close()
        chat = new_chat(Path.cwd())
        chat.model, chat.base_url, chat.demo = self._chat.model, self._chat.base_url, self._chat.demo
        self._messages, self._agent = [], None
        self._begin(chat)
        self._screen.line("A new conversation. Nothing is loaded; servers stay connected.")

    # Direct mode

    async def _search(self, query: str) -> SearchAnswer:
        self._screen.working("Searching · Esc stops")
        try:
            answer = await self._keys.run(self._session.search(" ".join(query.split())))
        finally:
            self._screen.idle()
        self._found(answer)
        await self._save(query)
        return answer

    def _found(self, answer: SearchAnswer) -> None:
        usable = {tool.native: tool for tool in self._session.loaded}
        self._listed = [hit.native for hit in answer.hits if hit.native in usable]
        if self._listed:
            for number, native in enumerate(self._listed, 1):
                self._tool(number, usable[native])
        for hit in answer.hits:
            if hit.problem is not None:
                self._screen.warning(f"Not loaded: {hit.native}: {clean_line(hit.problem, 200)}")
        if not answer.hits:
            self._screen.line(answer.text)
        else:
            for diagnostic in answer.not_searched:
                self._screen.warning(f"Not searched: {diagnostic.line()}")
        if self._listed:
            self._screen.line("Run one with /call NUMBER; it asks for the arguments.")

    def _tool(self, number: int, tool: NativeTool) -> None:
        self._screen.parts((f"{number}  ", "strong"), (tool.native, "name"))
        text = tool.definition.get("description")
        about = clean_line(text.strip().split("\n", 1)[0], 200) if isinstance(text, str) else ""
        if about:
            self._screen.line(about, indent=3)
        fields = form.fields_of(tool.input_schema)
        if fields:
            named = [clean_line(item.name, 40) + ("" if item.required else "?") for item in fields]
            self._screen.line(f"Arguments: {listed(named, 10)}", indent=3)

    def _show_loaded(self) -> None:
        tools = self._session.loaded
        self._listed = [tool.native for tool in tools]
        for number, tool in enumerate(tools, 1):
            self._tool(number, tool)
        if not tools:
            self._screen.line("Nothing is loaded yet. " + ("Ask for something." if self._endpoint else "Type a query."))

    # Calls

    async def _call(self, rest: str) -> None:
        name, words, text = _words(rest)
        if not name:
            raise failure("usage", "call", None, "Which tool?", "/call NUMBER or /call TOOL; /tools lists them.")
        tool = await self._named(name)
        schema = tool.input_schema
        given = parse_arguments([text] if text.lstrip().startswith("{") else words, schema)
        note = misspelt(given, schema)
        if note:
            self._screen.warning(note)
        if self._host.interactive:
            arguments = await self._host.ask_arguments(schema, given, optional=not given and not text)
            if arguments is None:
                self._screen.warning("Not called.")
                return
        else:
            arguments = given
            lacking = form.missing(schema, given)
            if lacking:
                raise failure(
                    "usage",
                    "call",
                    tool.server,
                    f"{clean_line(tool.tool, 100)} needs {listed(lacking)}.",
                    f"/call {clean_line(name, 64)} {' '.join(f'{clean_line(key, 40)}=…' for key in lacking[:5])}",
                )
        self._screen.working(f"{tool.native} · Esc stops")
        began = time.monotonic()
        try:
            answer = await self._keys.run(self._session.call(tool.native, arguments, typed=True))
        finally:
            self._screen.idle()
        self._result(tool.native, answer, time.monotonic() - began)

    async def _named(self, name: str) -> NativeTool:
        """The loaded tool of that number or name; one that is not loaded yet is loaded if the name is exact."""
        if name.isdecimal() and len(name) < 6:
            if not 1 <= int(name) <= len(self._listed):
                raise failure(
                    "not_found", "call", None, f"There is no tool number {name} in the last list.", "/tools lists them."
                )
            name = self._listed[int(name) - 1]
        tool = self._loaded(name)
        if tool is None:
            self._screen.working(f"Looking for {clean_line(name, 60)} · Esc stops")
            try:
                await self._keys.run(self._session.load([name]))
            finally:
                self._screen.idle()
            tool = self._loaded(name)
        if tool is None:
            raise failure("not_found", "call", None, f"{clean_line(name, 100)!r} cannot be loaded.", "See /mcp tools.")
        return tool

    def _loaded(self, name: str) -> NativeTool | None:
        tools = self._session.loaded
        for tool in tools:
            if name in (tool.native, f"{tool.server}.{tool.tool}"):
                return tool
        same = [tool for tool in tools if tool.tool == name]
        return same[0] if len(same) == 1 else None

    def _result(self, native: str, answer: CallAnswer, seconds: float) -> None:
        self._code = 1 if answer.is_error else 0
        if self._options.prompt is not None:  # standard output has the answer and nothing else
            if answer.is_error:
                self._note(f"{native} reported an error.")
        elif answer.is_error:
            self._screen.line(f"{native} reported an error ({_seconds(seconds)}):", "error")
        else:
            self._screen.line(f"{native} ({_seconds(seconds)})", "strong")
        self._screen.line(answer.text.rstrip() or "(the tool returned nothing)")
        for block in answer.content:
            if block.get("type") == "image":
                self._image(block.get("data"), block.get("mimeType"))

    def _image(self, data: Any, kind: Any) -> None:
        """Save one image of a result and name the file."""
        try:
            raw = data if isinstance(data, bytes) else base64.b64decode(str(data), validate=True)
        except (binascii.Error, ValueError):
            self._screen.warning("An image whose data cannot be decoded.")
            return
        suffix = _SUFFIXES.get(str(kind), ".bin")
        path = files.create_private(self._plugin.state_dir / "results", "image-", suffix, raw)
        self._screen.line(f"Image saved: {path} ({clean_line(str(kind), 40)}, {len(raw):,} bytes)")

    # Agent mode

    async def _turn(self, prompt: str) -> str:
        """One turn of the agent, shown as it goes; its final text."""
        if self._warming is not None:
            self._screen.working("Loading the model libraries")
            await self._keys.run(_wait(self._warming))
        if self._agent is None:
            raise failure("operation_failed", "command", None, "The agent could not be made.", models.INSTALL)
        turn = models.Turn(self._agent, prompt, self._messages)
        self._screen.working("Thinking · Esc stops")
        try:
            await self._keys.run(self._show(turn))
        finally:
            self._screen.idle()
            self._messages = turn.messages
            await self._save(prompt)
        return turn.output

    async def _show(self, turn: models.Turn) -> None:
        quiet = self._options.prompt is not None
        stream = self._screen.stream()
        names: dict[str, str] = {}
        async with contextlib.aclosing(turn.events()) as events:
            async for event in events:
                if quiet:
                    continue
                if isinstance(event, models.Text):
                    stream.write(event.text)
                elif isinstance(event, models.ReplyEnded):
                    stream.end()
                    self._screen.working("Thinking · Esc stops")
                elif isinstance(event, models.CallStarted):
                    names[event.call_id] = _brief(event.tool, event.arguments)
                    self._screen.working(f"{names[event.call_id]} · Esc stops")
                else:
                    self._ended(event, names.get(event.call_id, event.tool))
                    self._screen.working("Thinking · Esc stops")

    def _ended(self, event: models.CallEnded, brief: str) -> None:
        """One line for a tool call of the model, and where its images are."""
        diagnostics = event.details.get("diagnostics")
        loaded = event.details.get("loaded")
        outcome = _seconds(event.seconds)
        failed = event.failed
        if failed:
            outcome = f"not run, {outcome}"
        elif event.tool == SEARCH_TOOL and isinstance(loaded, list):
            outcome = f"{len(loaded)} loaded, {outcome}"
        elif isinstance(diagnostics, list) and diagnostics:
            failed = True
            outcome = f"{clean_line(str(diagnostics[0].get('code')), 40)}, {outcome}"
        self._screen.line(f"• {brief} ({outcome})", "error" if failed else "dim")
        for item in event.content:
            data = getattr(item, "data", None)
            if isinstance(data, bytes):
                self._image(data, getattr(item, "media_type", None))

    # One turn (`-p`)

    async def _one_turn(self, prompt: str) -> int:
        try:
            if _is_command(prompt):
                await self._line(prompt.strip())
                return self._code
            if self._endpoint is not None:
                answer = await self._turn(prompt)
                self._screen.line(clean(answer))
                return 0
            found = await self._search(prompt)
        except Stopped:
            return CANCELLED
        except Left:
            return 0
        if not found.searched and found.not_searched:
            return found.not_searched[0].exit_code
        return 0

    # Keeping

    async def _save(self, prompt: str = "") -> None:
        chat = self._chat
        chat.title = chat.title or prompt
        chat.loaded = [tool.to_record() for tool in self._session.loaded]
        if not chat.loaded and not self._messages and not chat.messages:
            return
        if self._endpoint is not None:
            chat.messages = await asyncio.to_thread(models.messages_to_json, self._messages)
        if chat.search_text is None:
            chat.search_text = self._session.search_tool.description
        try:
            await asyncio.to_thread(self._store.save, chat)
        except (OSError, PiMcpError):
            self._note("The chat could not be written; it cannot be resumed.")

    # Screens

    def _note(self, text: str) -> None:
        """News beside the answer: on standard error where standard output is for the answer alone."""
        if self._options.prompt is not None:
            print(text, file=sys.stderr)
        else:
            self._screen.warning(text)

    async def _welcome(self) -> None:
        show, entries = self._screen, self._plugin.configuration.entries
        mode = f"agent with {self._endpoint.spec}" if self._endpoint else "search and call by hand"
        show.parts((f"pi-mcp {__version__}", "strong"), (f" · {mode}", ""))
        if not entries:
            show.answer(await self._session.command("/mcp"))
            show.line("Or look around first: pi-mcp chat --demo")
            return
        usable = self._plugin.configuration.servers
        show.line(f"Servers: {listed(usable) or 'none is usable'}" + _others(len(entries) - len(usable)))
        for diagnostic in self._plugin.configuration.diagnostics:
            show.warning(diagnostic.line())
        if self._endpoint is None:
            from pi_mcp.hosts.demo import FIRST_QUERY

            show.line("Type what you need, in words: the tools that fit are loaded. Then /call runs one.")
            query = FIRST_QUERY if self._chat.demo else self._first_query()
            if query:
                show.parts(("  Try:   ", ""), (query, "strong"))
                show.parts(("  Then:  ", ""), ("/call 1", "strong"))
            if self._chat.demo and "git" in usable:
                show.line(f"The git server's repository: {usable['git'].args[-1]}")
        else:
            show.line("Ask for something; the model finds and calls tools itself.")
        show.line("/help shows more. Escape stops running work, Ctrl-D leaves.")
        show.line()

    def _first_query(self) -> str:
        """Words that find something here: those of a tool that the cache knows; "" where it knows none."""
        for name in self._plugin.configuration.servers:
            catalog = self._plugin.catalogs.known(name)
            for tool in catalog.tools if catalog is not None else ():
                words = _WORDS.findall(tool.name)
                if len(words) > 1 and self._session.permits(name, tool.name):
                    return clean_line(" ".join(words).lower(), 60)
        return ""

    def _resumed(self) -> None:
        count = len(self._session.loaded)
        tools = "1 tool" if count == 1 else f"{count} tools"
        title = f": {clean_line(self._chat.title, 60)}" if self._chat.title else ""
        said = f"{len(self._messages)} messages, " if self._endpoint else ""
        self._screen.line(f"Resumed {self._chat.id}{title} ({said}{tools} loaded)")

    def _help(self) -> None:
        show = self._screen
        plain = "ask the model" if self._endpoint else "search tools and load what fits"
        rows = [("any other text", plain), *COMMANDS.items()]
        for name, about in rows:
            show.parts((name, "name"))
            show.line(about, indent=4)
        show.line("Examples:")
        for example in ("/call 1", "/call time.get_current_time timezone=Asia/Tokyo", "/mcp tools time"):
            show.line(example, indent=4)
        show.line("Tab completes. Escape or Ctrl-C stops running work. /mcp help lists its subcommands.")


_WORDS = re.compile(r"[A-Z]?[a-z]+")
_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


def _is_command(line: str) -> bool:
    """Does the line mean a command of the chat, even one that there is not? `/etc/hosts is odd` does not."""
    word = line.strip().partition(" ")[0]
    return word.startswith("/") and word[1:].isalpha()


async def _wait(task: asyncio.Task[None]) -> None:
    # The import goes on when the person stops waiting for it.
    await asyncio.shield(task)


def _words(rest: str) -> tuple[str, list[str], str]:
    """`/call` without itself: the tool, the argument words, and the same as it was typed."""
    name, _, text = rest.partition(" ")
    text = text.strip()
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = lexer.escape = ""  # `pattern=\\d+` means the backslash
    try:
        words = list(lexer)
    except ValueError:  # an unclosed quote is an ordinary character
        words = text.split()
    return name, words, text


def _brief(tool: str, arguments: Any) -> str:
    """`tool key=value …` of a model's call, short."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = {}
    if not isinstance(arguments, Mapping) or not arguments:
        return clean_line(tool, 70)
    words = [f"{clean_line(str(key), 30)}={form.show(value)}" for key, value in arguments.items()]
    return clean_line(f"{tool} {' '.join(words)}", 120)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s"


def _others(count: int) -> str:
    return "" if not count else f" · {count} more not usable, see /mcp"


__all__ = ["COMMANDS", "Application"]
