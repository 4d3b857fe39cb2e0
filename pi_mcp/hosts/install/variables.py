"""Which environment variables the gateway needs, for clients that hand few of theirs to a server.

Comes in: the person's configuration. Goes out: names, never values. Codex hands over eleven variables and whatever the
entry lists; Gemini CLI keeps back those whose name looks like a secret's, unless the entry names them (both measured).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from pi_mcp.config import load_config
from pi_mcp.config.definition import ServerDefinition
from pi_mcp.config.interpolate import InterpolationError, expand
from pi_mcp.hosts.install.surroundings import Surroundings

OURS = (
    "PI_MCP_CONFIG",
    "PI_MCP_CREDENTIAL_KEY",
    "PI_MCP_CREDENTIAL_KEY_FILE",
    "PI_CODING_AGENT_DIR",
    "XDG_CONFIG_HOME",
    "XDG_STATE_HOME",
    "XDG_CACHE_HOME",
    # The credential store of the desktop.
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
"""What pi-mcp itself reads."""

_KEPT_BACK = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|AUTH|CREDENTIAL|CREDS|PRIVATE|CERT", re.IGNORECASE)
"""As in Gemini CLI 0.61.0."""


def named_variables(around: Surroundings) -> tuple[str, ...]:
    """The variables that the person's own servers name, in order of the alphabet; a project's file does not count."""
    configuration = load_config(cwd=around.home, environ=around.environ)
    names: set[str] = set()
    for entry in configuration.entries.values():
        if entry.definition is not None and entry.source.scope != "project":
            names.update(_of(entry.definition))
    return tuple(sorted(names))


def looks_kept_back(name: str) -> bool:
    """Does a client that keeps back what looks secret keep this one back?"""
    return _KEPT_BACK.search(name) is not None


def _of(definition: ServerDefinition) -> Iterable[str]:
    if isinstance(definition.inherit_env, tuple):
        yield from definition.inherit_env
    plain = [definition.command, *definition.args, definition.cwd, definition.url]
    tables = [*definition.env.values(), *definition.headers.values()]
    for text, dollar in (*((one, False) for one in plain), *((one, True) for one in tables)):
        # What follows a `!` is a shell's, which has variables of its own.
        if text and not (dollar and text.startswith("!")):
            try:
                yield from expand(str(text), _Any(), dollar=dollar).used
            except InterpolationError:
                continue


class _Any(Mapping[str, str]):
    """An environment in which everything is set."""

    def __getitem__(self, name: str) -> str:
        return name

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0
