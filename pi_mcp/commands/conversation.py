"""What a command may use of the conversation it is given in: the shape of `Session` and `Plugin` seen from below.

Comes in: nothing. Goes out: protocols. Commands stand under `plugin.py` and must not import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pi_mcp.catalog import Catalogs
from pi_mcp.catalog.records import Catalog, Tool
from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.config import Configuration, ServerDefinition, ServerEntry
from pi_mcp.connect import Connections
from pi_mcp.errors import Diagnostic
from pi_mcp.host import Host
from pi_mcp.tools.loaded import NativeTool


class Status(Protocol):
    """One server's row; see `pi_mcp.plugin.ServerStatus`."""

    @property
    def name(self) -> str: ...
    @property
    def transport(self) -> str | None: ...
    @property
    def state(self) -> str: ...
    @property
    def trust(self) -> str | None: ...
    @property
    def tools(self) -> int | None: ...
    @property
    def filtered(self) -> int | None: ...
    @property
    def cached(self) -> float | None: ...
    @property
    def last_success(self) -> float | None: ...
    @property
    def error(self) -> Diagnostic | None: ...
    @property
    def loaded(self) -> int: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


class Found(Protocol):
    """One place of a ranking; see `pi_mcp.plugin.FoundTool`."""

    @property
    def tool(self) -> Tool: ...
    @property
    def native(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def exact(self) -> bool: ...
    @property
    def reasons(self) -> tuple[Any, ...]: ...
    @property
    def problem(self) -> str | None: ...


class Answer(Protocol):
    """A search's or a load's outcome; see `pi_mcp.plugin.SearchAnswer`."""

    @property
    def text(self) -> str: ...
    @property
    def hits(self) -> tuple[Found, ...]: ...
    @property
    def not_searched(self) -> tuple[Diagnostic, ...]: ...


class Shared(Protocol):
    """The plugin."""

    configuration: Configuration
    connections: Connections
    catalogs: Catalogs
    state_dir: Path

    def entry(self, name: str) -> ServerEntry: ...
    def definition(self, name: str) -> ServerDefinition: ...
    def admits(self, definition: ServerDefinition, tool_name: str) -> bool: ...
    def catalogued(self, servers: Iterable[str]) -> dict[str, Catalog]: ...
    async def reload(self) -> tuple[Diagnostic, ...]: ...
    async def trust_project(self, host: Host) -> bool: ...


class Conversation(Protocol):
    """The session."""

    host: Host

    @property
    def plugin(self) -> Shared: ...
    @property
    def loaded(self) -> tuple[NativeTool, ...]: ...
    @property
    def servers(self) -> dict[str, ServerDefinition]: ...
    @property
    def max_tools(self) -> int: ...
    def statuses(self) -> Sequence[Status]: ...
    def permits(self, server: str, tool: str) -> bool: ...
    async def search(self, query: str, *, server: str | None = None, limit: int = 5, load: bool = True) -> Answer: ...
    async def load(self, names: Iterable[str], /) -> Answer: ...
    async def unload(self, names: Iterable[str], /) -> tuple[NativeTool, ...]: ...


Run = Callable[[Conversation, Sequence[str]], Awaitable[CommandAnswer]]
Complete = Callable[[Conversation, Sequence[str]], Iterable[str]]


def no_words(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    """The completion of a command that takes no words."""
    del conversation, words
    return ()


def server_names(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    """Completion by configured server, for the first word after the command."""
    return sorted(conversation.plugin.configuration.entries) if len(words) <= 1 else ()


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand of `/mcp`. `complete` gets the words typed after its name, the last one unfinished."""

    name: str
    usage: str
    summary: str
    run: Run
    complete: Complete = no_words
    examples: Mapping[str, str] | None = None
