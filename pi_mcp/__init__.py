"""pi-mcp: one search tool in place of a thousand MCP tools, for terminal coding agents.

    from pi_mcp import Plugin, load_config

    plugin = Plugin(load_config())
    session = plugin.session("conversation-1", host)
    answer = await session.search("create an issue in the tracker")

Importing this package loads nothing heavy; names are found when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pi_mcp._version import __version__

if TYPE_CHECKING:
    from pi_mcp.config import Configuration, ServerDefinition, configuration_of, load_config
    from pi_mcp.errors import Diagnostic, PiMcpError
    from pi_mcp.host import HeadlessHost, Host
    from pi_mcp.plugin import CallAnswer, CommandAnswer, Plugin, SearchAnswer, Session, ToolDefinition
    from pi_mcp.tools.loaded import NativeTool

_HOMES = {
    "CallAnswer": "pi_mcp.plugin",
    "CommandAnswer": "pi_mcp.plugin",
    "Configuration": "pi_mcp.config",
    "Diagnostic": "pi_mcp.errors",
    "HeadlessHost": "pi_mcp.host",
    "Host": "pi_mcp.host",
    "NativeTool": "pi_mcp.tools.loaded",
    "PiMcpError": "pi_mcp.errors",
    "Plugin": "pi_mcp.plugin",
    "SearchAnswer": "pi_mcp.plugin",
    "ServerDefinition": "pi_mcp.config",
    "Session": "pi_mcp.plugin",
    "ToolDefinition": "pi_mcp.plugin",
    "configuration_of": "pi_mcp.config",
    "load_config": "pi_mcp.config",
}

__all__ = [
    "CallAnswer",
    "CommandAnswer",
    "Configuration",
    "Diagnostic",
    "HeadlessHost",
    "Host",
    "NativeTool",
    "PiMcpError",
    "Plugin",
    "SearchAnswer",
    "ServerDefinition",
    "Session",
    "ToolDefinition",
    "__version__",
    "configuration_of",
    "load_config",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
