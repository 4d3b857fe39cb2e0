"""What is said when nothing is configured: the files looked for, what became of them, and an example.

Comes in: a configuration. Goes out: text. It reads nothing.
"""

from __future__ import annotations

from pi_mcp.config import EXAMPLE, Configuration

_STATUS = {
    "read": "read",
    "missing": "not there",
    "invalid": "cannot be used",
    "untrusted": "waits for trust",
}


def files_looked_for(configuration: Configuration) -> list[str]:
    """One line per place: the path, what became of it, and why."""
    lines = []
    for report in configuration.files:
        what = _STATUS[report.status]
        if report.status == "read":
            what = f"read, {report.servers} servers" if report.servers != 1 else "read, 1 server"
        lines.append(f"  {report.path} ({what})")
        if report.diagnostic is not None:
            lines.append(f"    {report.diagnostic.line()}")
    return lines


def nothing_configured(configuration: Configuration) -> str:
    """The whole message, ending in an example that works when pasted."""
    return "\n".join(
        [
            "No MCP server is configured. Files looked for:",
            *files_looked_for(configuration),
            "Add one with `pi-mcp add NAME URL` or `pi-mcp add NAME -- COMMAND ARGS`, take over what another "
            "client has with `pi-mcp import`, or write:",
            EXAMPLE,
        ]
    )
