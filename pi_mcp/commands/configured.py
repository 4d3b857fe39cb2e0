"""What is said when nothing is configured: the files looked for, what became of them, and an example.

Comes in: a configuration. Goes out: text. It reads nothing.
"""

from __future__ import annotations

from pi_mcp.config import EXAMPLE, Configuration
from pi_mcp.errors import Diagnostic

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


def broken(configuration: Configuration) -> Diagnostic | None:
    """Why there is not a single entry, where a file that cannot be read is the reason."""
    if configuration.entries:
        return None
    return next((report.diagnostic for report in configuration.files if report.status == "invalid"), None)


def left_out(configuration: Configuration) -> tuple[Diagnostic, ...]:
    """What is used of no file although a person may expect it, each once: broken files, entries that are invalid or
    wait for trust, and fields that are passed over."""
    found = [
        *configuration.diagnostics,
        *(report.diagnostic for report in configuration.files if report.diagnostic is not None),
    ]
    said = {diagnostic.message for diagnostic in found}
    for entry in configuration.entries.values():
        found.extend(entry.warnings)
        waits = entry.state in ("invalid", "untrusted_project")
        # What is said of a file is not said of each of its servers again.
        if waits and entry.diagnostic is not None and entry.diagnostic.message not in said:
            found.append(entry.diagnostic)
    return tuple(dict.fromkeys(found))


def nothing_configured(configuration: Configuration) -> str:
    """The whole message, ending in an example that works when pasted; of a broken file what there is to mend."""
    if broken(configuration):
        return "\n".join(["No MCP server can be used until a file is mended:", *files_looked_for(configuration)])
    return "\n".join(
        [
            "No MCP server is configured. Files looked for:",
            *files_looked_for(configuration),
            "Add one with `pi-mcp add NAME URL` or `pi-mcp add NAME -- COMMAND ARGS`, take over what another "
            "client has with `pi-mcp import`, or write:",
            EXAMPLE,
        ]
    )
