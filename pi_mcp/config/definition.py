"""The values that configuration becomes: server definitions, and what was found where.

Comes in: nothing. Goes out: frozen values. Strings are as written in the file, before interpolation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pi_mcp.config.secret import Hidden
from pi_mcp.errors import Diagnostic

Transport = Literal["stdio", "http", "sse"]
TrustLevel = Literal["trusted", "verified", "untrusted"]
Scope = Literal["user", "pi", "project", "override", "code"]
"""Which file a definition came from: the user's, the Pi directory's, the project's, the one named by
`--config` or `PI_MCP_CONFIG`, or none (built by a program)."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a definition stands: file, 1-based line and column of its key."""

    path: Path | None
    scope: Scope
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class WriteRule:
    """Tools of this pattern change something: always, or only in calls that give this argument."""

    tool: str
    argument: str | None = None


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The person's word on what tools do, in the place of what the server says (`access`)."""

    read_only: tuple[str, ...] = ()
    write: tuple[WriteRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerDefinition:
    """One entry of `mcpServers`, validated. Times are seconds; tool patterns are original names with `*`."""

    name: str
    transport: Transport
    source: Source = field(compare=False)
    """Not compared: a server whose entry moved down by a line is the same server, and stays connected."""
    # stdio
    command: str | None = None
    args: tuple[str, ...] = field(default=(), repr=False)
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=Hidden)
    inherit_env: bool | tuple[str, ...] = False
    # HTTP
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=Hidden)
    oauth: bool | Mapping[str, Any] | None = field(default=None, repr=False)
    """None: a 401 shows `authentication_required`; False: never; True or an object: OAuth (DESIGN §8)."""
    # both
    description: str | None = None
    keywords: tuple[str, ...] = ()
    disabled: bool = False
    include_tools: tuple[str, ...] | None = None
    exclude_tools: tuple[str, ...] = ()
    always_load: bool | tuple[str, ...] = False
    startup_timeout: float = 60.0
    timeout: float = 15.0
    tool_timeout: float = 30.0
    protocol: Literal["auto", "legacy"] = "auto"
    shared: bool = True
    """In the gateway, stdio: one process for all clients. An HTTP server has a session for each of them in any case."""
    trust: TrustLevel = "trusted"
    """The effective level: default of the file, `trust` in it, and a raise by `/mcp trust`."""
    access: AccessRules = field(default_factory=AccessRules)
    base_dir: Path = field(default_factory=Path.cwd)
    """The host's working directory: relative `cwd` resolves here, and it is the root offered to the server."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """`headers`/`env` keys whose value is a `!command`."""
        table = self.env if self.transport == "stdio" else self.headers
        return tuple(key for key, value in table.items() if value.startswith("!"))


EntryState = Literal["ready", "disabled", "invalid", "untrusted_project"]


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One name of the configuration, usable or not; `/mcp` shows every one of them.

    `definition` is None for `invalid`; for `untrusted_project` it holds the uninterpolated text, to be shown
    only. `diagnostic` says why an entry is invalid or waits for trust. `warnings` are about foreign fields.
    """

    name: str
    state: EntryState
    source: Source
    definition: ServerDefinition | None = None
    diagnostic: Diagnostic | None = None
    warnings: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True)
class FileReport:
    """One place that was looked at: read, missing, or skipped, with the reason."""

    path: Path
    scope: Scope
    status: Literal["read", "missing", "invalid", "untrusted"]
    diagnostic: Diagnostic | None = None
    servers: int = 0


@dataclass(frozen=True, slots=True)
class ProjectQuestion:
    """An untrusted project file: what the trust question has to show (DESIGN §9)."""

    path: Path
    sha256: str
    text: str
    """The command lines and URLs of its servers as written, and the user servers that it would replace,
    cleaned, one per line."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that was read. Entries keep the order of the files, lower files first."""

    entries: Mapping[str, ServerEntry] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[FileReport, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    sensitive: frozenset[str] = frozenset()
    """Sensitive words in force, lower case; when the policy could not be read, see `deny_all`."""
    deny_all: bool = False
    """True when the policy could not be read: every tool of a server that is not trusted counts as sensitive."""
    project: ProjectQuestion | None = None
    cwd: Path = field(default_factory=Path.cwd)
    environ: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    """The environment to interpolate from: a copy taken when the configuration was loaded."""

    @property
    def servers(self) -> dict[str, ServerDefinition]:
        """The definitions that may be connected, by name."""
        return {
            name: entry.definition
            for name, entry in self.entries.items()
            if entry.state == "ready" and entry.definition is not None
        }
