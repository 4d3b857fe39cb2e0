"""Pi: an extension folder in its directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pi_mcp.config import jsonc
from pi_mcp.hosts.install.found import of_npm, older
from pi_mcp.hosts.install.plan import Found
from pi_mcp.hosts.install.shim_host import ShimHost
from pi_mcp.hosts.install.surroundings import Surroundings
from pi_mcp.text import clean_line

_PACKAGES = ("@earendil-works/pi-coding-agent", "@mariozechner/pi-coding-agent")
_TESTED = (0, 85, 1)
_BUILT_IN = (0, 99)
"""Since then Pi has MCP support of its own."""


class Pi(ShimHost):
    name = "pi"
    title = "Pi"
    places = MappingProxyType({"pi": ""})

    def folder(self, around: Surroundings) -> Path:
        return around.pi_directory / "extensions" / "pi-mcp"

    def detect(self, around: Surroundings) -> Found:
        return of_npm(around, "pi", _PACKAGES)

    def warnings(self, around: Surroundings) -> list[str]:
        found = self.detect(around)
        said: list[str] = []
        if not found.present:
            said.append(
                "Pi was not found on the PATH, or a script stands before it; the extension is for one that reads this "
                "folder."
            )
        elif older(found.version, _TESTED):
            said.append(f"Pi {clean_line(found.version or '', 40)} is older than 0.85.1, the oldest that was tried.")
        if not older(found.version, _BUILT_IN):
            said.append(
                "it takes the place of Pi's built-in MCP support (Pi 0.99 and later): `/mcp` becomes ours, and Pi says "
                "at its start that its own was not loaded."
            )
        left_out = _project_servers(around.cwd / ".pi" / "mcp.json")
        if left_out:
            said.append(
                f".pi/mcp.json of this folder is not read by pi-mcp; it has {', '.join(left_out)}. Copy what you need "
                "into .mcp.json, or with `pi-mcp add`."
            )
        for source in _rivals(around.pi_directory / "settings.json"):
            said.append(f"{source} is installed in Pi and brings a `/mcp`, too: `pi remove {source}` before.")
        if (around.pi_directory / "mcp-auth.json").exists():
            said.append(
                "logins of `pi mcp` stay with Pi (mcp-auth.json) and are not used: sign in once more with "
                "`/mcp auth SERVER`."
            )
        return said

    def next_steps(self, around: Surroundings) -> tuple[str, ...]:
        return (
            "Start `pi` anew, or `/reload` in a running one, and type `/mcp`.",
            f"Servers come from {around.pi_directory / 'mcp.json'}, your own mcp.json and the project's .mcp.json, not "
            "from .pi/mcp.json.",
            "The command `pi mcp` still edits Pi's file and signs in for Pi's own support alone: its tokens stay with "
            "Pi. Here `/mcp auth SERVER` signs in.",
        )

    def afterwards(self, around: Surroundings) -> tuple[str, ...]:
        return (*super().afterwards(around), "Pi's built-in MCP support is back then, with the logins of `pi mcp`.")


def _rivals(path: Path) -> list[str]:
    """Packages in Pi's settings that are MCP extensions as well, as Pi names them."""
    packages = _object(path).get("packages")
    sources = (
        [one.get("source") if isinstance(one, dict) else one for one in packages if one]
        if isinstance(packages, list)
        else []
    )
    return [clean_line(source, 100) for source in sources if isinstance(source, str) and "pi-mcp-adapter" in source]


def _object(path: Path) -> dict[str, Any]:
    """What one of Pi's files says; nothing where it cannot be read."""
    try:
        value = jsonc.parse(path.read_bytes().decode()).value
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _project_servers(path: Path) -> list[str]:
    """Names of the servers in a file of Pi's own."""
    servers = _object(path).get("mcpServers")
    return (
        [clean_line(json.dumps(name, ensure_ascii=False)[1:-1], 60) for name in servers if name][:20]
        if isinstance(servers, dict)
        else []
    )
