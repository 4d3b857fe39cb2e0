"""What a command may use of the conversation it is given in: the shape of `Session` and `Plugin` seen from below.

Comes in: nothing. Goes out: protocols. Commands stand under `plugin.py` and must not import it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pi_mcp.auth.store import CredentialStore
from pi_mcp.catalog import Catalogs
from pi_mcp.catalog.records import Catalog
from pi_mcp.commands.answer import CommandAnswer
from pi_mcp.commands.server_status import ServerStatus
from pi_mcp.config import Configuration, ServerDefinition, ServerEntry
from pi_mcp.connect import Connections
from pi_mcp.errors import Diagnostic
from pi_mcp.host import Host
from pi_mcp.tools.answers import SearchAnswer
from pi_mcp.tools.loaded import NativeTool


class Shared(Protocol):
    """The plugin."""

    configuration: Configuration
    state_dir: Path

    @property
    def connections(self) -> Connections: ...
    @property
    def catalogs(self) -> Catalogs: ...
    @property
    def credentials(self) -> CredentialStore: ...

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
    def entries(self) -> dict[str, ServerEntry]: ...
    @property
    def servers(self) -> dict[str, ServerDefinition]: ...
    @property
    def max_tools(self) -> int: ...
    def entry(self, name: str) -> ServerEntry: ...
    def definition(self, name: str) -> ServerDefinition: ...
    def statuses(self) -> Sequence[ServerStatus]: ...
    def permits(self, server: str, tool: str) -> bool: ...
    async def search(
        self, query: str, *, server: str | None = None, limit: int = 5, load: bool = True
    ) -> SearchAnswer: ...
    async def load(self, names: Iterable[str], /) -> SearchAnswer: ...
    async def unload(self, names: Iterable[str], /) -> tuple[NativeTool, ...]: ...


Run = Callable[[Conversation, Sequence[str]], Awaitable[CommandAnswer]]
Complete = Callable[[Conversation, Sequence[str]], Iterable[str]]


def no_words(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    """The completion of a command that takes no words."""
    del conversation, words
    return ()


def server_names(conversation: Conversation, words: Sequence[str]) -> Iterable[str]:
    """Completion by configured server, for the first word after the command."""
    return sorted(conversation.entries) if len(words) <= 1 else ()


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand of `/mcp`. `complete` gets the words typed after its name, the last one unfinished."""

    name: str
    usage: str
    summary: str
    run: Run
    complete: Complete = no_words
    examples: Mapping[str, str] | None = None
