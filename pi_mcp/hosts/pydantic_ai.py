"""A pydantic-ai toolset: `mcp_search`, and each tool that it loads from the very next request of the same turn.

Comes in: a Plugin, a Session or a Configuration, and pydantic-ai's runs. Goes out: tool definitions, call results
and, in the metadata of each result, what is needed to restore the loaded tools. It never repeats a call and never
ends a run because a server failed: the model reads the diagnostic line in place of a result.

    from pydantic_ai import Agent
    from pi_mcp.hosts.pydantic_ai import PiMcpToolset

    agent = Agent("anthropic:claude-sonnet-5", toolsets=[PiMcpToolset()])
    async with agent:
        first = await agent.run("What time is it in Tokyo?")
        second = await agent.run("And in Lima?", message_history=first.all_messages())
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

try:
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelRequest,
        ModelResponse,
        ToolReturn,
        ToolReturnPart,
    )
    from pydantic_ai.models import ModelRequestParameters, StreamedResponse
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext, ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
except ImportError as error:
    raise ImportError(
        "pi_mcp.hosts.pydantic_ai needs the extra `chat`; from pi-mcp's folder: pip install '.[chat]'"
    ) from error

from pi_mcp.config import Configuration
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.host import Host
from pi_mcp.plugin import SEARCH_TOOL, CallAnswer, Plugin, Session, details, search_arguments
from pi_mcp.text import clean_line

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""What both OpenAI's and Anthropic's endpoints take as an image; anything else would fail the whole request."""
PREPARE_WAIT = 15.0
"""Seconds that the first request waits for the catalogs of servers with `alwaysLoad`."""

_LOG = logging.getLogger(__name__)

__all__ = ["PiMcpToolset", "StableTools", "records_of", "search_text_of"]


class PiMcpToolset(AbstractToolset[Any]):
    """MCP tools on demand, for `Agent(toolsets=[PiMcpToolset(…)])`.

    `source` decides whose loaded tools they are:

    * a `Session`: one conversation. Every run of the agent shares it. When nothing is loaded in it yet, the first
      run takes over what the message history says was loaded.
    * a `Plugin`: each run gets a session of its own, restored from its message history, so that one agent can
      serve many conversations and branches at once. The plugin stays open; whoever made it closes it.
    * a `Configuration`, or nothing for the files of DESIGN §4: as with a plugin, and the plugin is this toolset's
      own: opened when the agent (or a run of it) is entered, closed with every server process when it is left.

    `host` is whom to ask for confirmations and forms; without one nobody is asked and what needs asking is refused.
    `search_text` fixes the description of `mcp_search`; by default the history's is kept, else it is made once.
    """

    def __init__(
        self,
        source: Plugin | Session | Configuration | None = None,
        *,
        id: str = "pi-mcp",  # pydantic-ai's name for it
        host: Host | None = None,
        search_text: str | None = None,
    ) -> None:
        if host is not None and isinstance(source, Session):
            raise ValueError("a session has its own host: give it to plugin.session()")
        self._id = id
        self._host = host
        self._fixed_text = search_text
        self._search_text: str | None = search_text
        self._made_text: str | None = None
        self._session = source if isinstance(source, Session) else None
        self._plugin = source if isinstance(source, Plugin) else None
        self._configuration = source if isinstance(source, Configuration) else None
        self._owns_plugin = self._session is None and self._plugin is None
        self._root = self
        self._entered = 0
        self._prepared = False
        self._preparing = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._id

    @property
    def session(self) -> Session | None:
        """The session of this conversation or run; None on a toolset that serves many."""
        return self._session

    # Life

    async def for_run(self, ctx: RunContext[Any]) -> PiMcpToolset:
        """The toolset of one run: itself around a session, otherwise a new one with a session of its own."""
        if self._session is not None:
            return self
        if self._plugin is None:
            self._plugin = Plugin(self._configuration)
        child = PiMcpToolset(self._plugin, id=self._id, host=self._host, search_text=self._fixed_text)
        child._root = self
        child._session = child._conversation(self._plugin, str(ctx.run_id or uuid.uuid4()))
        return child

    async def __aenter__(self) -> PiMcpToolset:
        self._root._entered += 1
        return self

    async def __aexit__(self, *args: Any) -> bool | None:
        root = self._root
        root._entered -= 1
        if self is not root and self._session is not None:
            await self._session.close()
        if root._entered == 0 and root._owns_plugin and root._plugin is not None:
            plugin, root._plugin = root._plugin, None
            await plugin.close()
        return None

    # Tools

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """`mcp_search` and the loaded tools, in the order of loading. pydantic-ai asks before every request."""
        session = await self._ready(ctx)
        search = session.search_tool
        text = self._search_text or search.description
        tools = {SEARCH_TOOL: self._declare(SEARCH_TOOL, text, search.input_schema, ordered=True)}
        for tool in session.loaded:
            tools[tool.native] = self._declare(tool.native, tool.description, tool.input_schema)
        return tools

    def _declare(
        self, name: str, description: str, schema: Mapping[str, Any], *, ordered: bool = False
    ) -> ToolsetTool[Any]:
        # strict=False: a provider's strict mode would rewrite the server's schema, and with it what is optional.
        # Two searches of one answer run one after the other, so that the order of loading is the model's.
        definition = ToolDefinition(
            name=name,
            description=description,
            parameters_json_schema=dict(schema),
            strict=False,
            sequential=ordered,
        )
        return ToolsetTool(toolset=self, tool_def=definition, max_retries=0, args_validator=_ANY_ARGUMENTS)

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Search, or call a loaded tool: once. Whatever fails is the text of an ordinary tool return."""
        del tool
        session = await self._ready(ctx)
        try:
            if isinstance(tool_args, _Unreadable):
                raise failure(
                    "usage", "call", None, "The arguments were no JSON object; nothing was sent.", "Write them again."
                )
            if name == SEARCH_TOOL:
                answer = await session.search(**search_arguments(tool_args))
                text = self._search_text or session.search_tool.description
                return ToolReturn(return_value=answer.text, metadata={**answer.details, "searchText": text})
            return _tool_return(name, await session.call(name, tool_args))
        except PiMcpError as error:
            return ToolReturn(return_value=error.diagnostic.line(), metadata=details([], [error.diagnostic]))
        except Exception as error:  # a fault of ours must not end the host's run, and its text may hold anything
            _LOG.exception("%s failed with %s", name, type(error).__name__)
            fault = failure(
                "operation_failed",
                "search" if name == SEARCH_TOOL else "call",
                None,
                f"{clean_line(name, 100)} failed inside pi-mcp; whether the call took effect is unknown.",
                "Check before calling it again.",
            )
            return ToolReturn(return_value=str(fault), metadata=details([], [fault.diagnostic]))

    def _conversation(self, plugin: Plugin, id: str) -> Session:
        session = plugin.session(f"{self._id}:{id}", self._host, keep=False)
        session.when_full = "a new conversation begins without any"  # nobody can give a command here
        return session

    async def _ready(self, ctx: RunContext[Any]) -> Session:
        """The session, with what the history had loaded; once per run or conversation."""
        if self._session is None:
            # Reached only where a wrapper passes for_run over: then this toolset serves one conversation.
            if self._plugin is None:
                self._plugin = Plugin(self._configuration)
            self._session = self._conversation(self._plugin, str(uuid.uuid4()))
        session = self._session
        async with self._preparing:
            if not self._prepared:
                self._prepared = True
                await self._prepare(session, ctx.messages)
        return session

    async def _prepare(self, session: Session, messages: Sequence[ModelMessage]) -> None:
        records = records_of(messages)
        have = {tool.native: tool.to_record() for tool in session.loaded}
        if records and not (self is self._root and have):
            await session.restore([*have.values(), *(record for record in records if record["native"] not in have)])
        await session.prepare(wait=PREPARE_WAIT)
        # The text says how many tools are known, which changes; the model shall see one text per conversation.
        if self._search_text is None:
            self._search_text = search_text_of(messages) or self._root._made_text
        if self._search_text is None:
            self._search_text = self._root._made_text = session.search_tool.description


class StableTools(WrapperModel):
    """A model whose requests declare tools that arrive in the middle of a turn like all others: at the list's end.

    Newer pydantic-ai tells a model about such tools in its own ways: a system message that names them, or a
    preface to the system prompt, which ends what the provider has cached. The search result names them already.

        Agent(StableTools("anthropic:claude-sonnet-5"), toolsets=[PiMcpToolset()])
    """

    def prepare_messages(
        self, messages: list[ModelMessage], model_request_parameters: ModelRequestParameters | None = None
    ) -> list[ModelMessage]:
        kept = [_without_announcements(message) for message in messages]
        if model_request_parameters is not None:
            model_request_parameters = _declared(model_request_parameters)
        return self.wrapped.prepare_messages(kept, model_request_parameters)

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        return self.wrapped.prepare_request(model_settings, _declared(model_request_parameters))

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        return await self.wrapped.request(messages, model_settings, _declared(model_request_parameters))

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse, None]:
        parameters = _declared(model_request_parameters)
        async with self.wrapped.request_stream(messages, model_settings, parameters, run_context) as response:
            yield response


def _without_announcements(message: ModelMessage) -> ModelMessage:
    if not isinstance(message, ModelRequest):
        return message
    parts = [part for part in message.parts if getattr(part, "part_kind", "") != "tool-availability-delta"]
    return message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _declared(parameters: ModelRequestParameters) -> ModelRequestParameters:
    """The parameters without the mark on tools that arrived late; older pydantic-ai has no such mark."""
    if not getattr(parameters, "introduced_tool_names", None):
        return parameters
    return replace(parameters, introduced_tool_names=set())


def records_of(messages: Iterable[ModelMessage]) -> list[dict[str, Any]]:
    """The records of all tools that `mcp_search` loaded in these messages, in the order of loading.

    A tool that was loaded again keeps its place and has its newest definition. They are for `Session.restore`.
    """
    records: dict[str, dict[str, Any]] = {}
    for metadata in _search_metadata(messages):
        loaded = metadata.get("loaded")
        for record in loaded if isinstance(loaded, list) else ():
            if isinstance(record, dict) and isinstance(record.get("native"), str):
                records[record["native"]] = record
    return list(records.values())


def search_text_of(messages: Iterable[ModelMessage]) -> str | None:
    """The description that `mcp_search` had in this conversation, None where it was never called."""
    for metadata in _search_metadata(messages):
        text = metadata.get("searchText")
        if isinstance(text, str) and text:
            return text
    return None


def _search_metadata(messages: Iterable[ModelMessage]) -> Iterable[dict[str, Any]]:
    for message in messages:
        if isinstance(message, ModelRequest):
            for part in message.parts:
                if (
                    isinstance(part, ToolReturnPart)
                    and part.tool_name == SEARCH_TOOL
                    and isinstance(part.metadata, dict)
                ):
                    yield part.metadata


def _tool_return(name: str, answer: CallAnswer) -> ToolReturn[Any]:
    """A call's result: its text, with images between where the provider can take them."""
    items: list[str | BinaryContent] = []
    for block in answer.content:
        item = _item(block)
        if isinstance(item, str) and items and isinstance(items[-1], str):
            items[-1] = f"{items[-1]}\n{item}"
        else:
            items.append(item)
    if answer.is_error:
        lead = f"{name} reported an error:"
        if items and isinstance(items[0], str):
            items[0] = f"{lead}\n{items[0]}"
        else:
            items.insert(0, lead)
    value: Any = items[0] if len(items) == 1 else items or "The tool returned nothing."
    return ToolReturn(return_value=value, metadata=dict(answer.details))


def _item(block: Mapping[str, Any]) -> str | BinaryContent:
    if block.get("type") != "image":
        text = block.get("text")
        return text if isinstance(text, str) else ""
    kind = str(block.get("mimeType"))
    try:
        data = base64.b64decode(str(block.get("data", "")), validate=True)
    except (binascii.Error, ValueError):
        return "[image: its data cannot be decoded]"
    if kind not in IMAGE_TYPES:
        return f"[image {clean_line(kind, 60)}, {len(data)} bytes: not of a type that models take]"
    return BinaryContent(data=data, media_type=kind)


class _Unreadable(dict[str, Any]):
    """Arguments that are no JSON object. Raising instead would make pydantic-ai count retries and end the run."""


class _AnyArguments:
    """pydantic-ai's validator seam, without a schema: the server itself judges the arguments."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        try:
            value = json.loads(input)
        except (ValueError, RecursionError):
            return _Unreadable()
        return self.validate_python(value)

    def validate_python(self, input: Any, **_: Any) -> dict[str, Any]:
        return dict(input) if isinstance(input, Mapping) else _Unreadable()


_ANY_ARGUMENTS = _AnyArguments()
