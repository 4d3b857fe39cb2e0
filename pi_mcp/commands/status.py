"""`/mcp`: one row per configured server, and how much is loaded.

Comes in: the conversation. Goes out: a table. It contacts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pi_mcp.commands.answer import CommandAnswer, Table
from pi_mcp.commands.configured import files_looked_for, nothing_configured
from pi_mcp.commands.conversation import Command, Conversation
from pi_mcp.commands.server_status import ServerStatus
from pi_mcp.tools.loaded import approx_tokens

_STYLES = {"connected": "ok", "idle": "dim", "disabled": "dim", "connecting": "warning", "untrusted_project": "warning"}


async def run(conversation: Conversation, words: Sequence[str]) -> CommandAnswer:
    del words
    configuration = conversation.plugin.configuration
    if not configuration.entries:
        return CommandAnswer(nothing_configured(configuration))
    rows, styles, lines = [], [], []
    under: list[str] = []
    # What is said of a file is not said of each of its servers again.
    of_files = {report.diagnostic.message for report in configuration.files if report.diagnostic is not None}
    for status in conversation.statuses():
        problem = status.error.line().removeprefix(f"{status.name}: ") if status.error else ""
        if status.error is not None and status.error.message in of_files:
            problem = ""
        rows.append(
            (
                status.name,
                state_word(status),
                status.transport or "",
                size(status),
                str(status.loaded),
                moment(status.last_success),
                status.trust or "",
                problem,
            )
        )
        styles.append(_STYLES.get(status.state, "error"))
        parts = [
            state_word(status),
            status.transport or "",
            size(status),
            f"{status.loaded} loaded",
            status.trust or "",
        ]
        if status.last_success is not None:
            parts.append(f"last success {moment(status.last_success)}")
        lines.append(f"{status.name}: {', '.join(part for part in parts if part)}")
        if problem:
            lines.append(f"  {problem}")
        lines.extend(f"  Note: {note}" for note in status.notes)
        under.extend(f"{status.name}: {note}" for note in status.notes)
    loaded = conversation.loaded
    tokens = sum(approx_tokens(tool) for tool in loaded)
    count = "1 tool" if len(loaded) == 1 else f"{len(loaded)} tools"
    about = f", about {tokens:,} tokens of definitions" if loaded else ""
    rest = [f"{count} loaded of at most {conversation.max_tools}{about}."]
    told: set[str] = set()
    if any(report.status in ("invalid", "untrusted") for report in configuration.files):
        rest.append("Files:")
        rest.extend(files_looked_for(configuration))
        told = {report.diagnostic.line() for report in configuration.files if report.diagnostic is not None}
    if configuration.project is not None:
        # What waits for trust is shown with its command lines, as the question shows it (B176).
        rest.append("Waiting for trust (`/mcp trust` asks):")
        rest.extend(f"  {line}" for line in configuration.project.text.splitlines())
    rest.extend(line for line in (diagnostic.line() for diagnostic in configuration.diagnostics) if line not in told)
    columns = ("Server", "State", "Transport", "Tools", "Loaded", "Last success", "Trust", "Problem")
    table = Table(columns, tuple(rows), tuple(styles))
    return CommandAnswer("\n".join([*lines, *rest]), table, note="\n".join([*under, *rest]))


def state_word(status: ServerStatus) -> str:
    return status.state.replace("_", " ")


def size(status: ServerStatus) -> str:
    """`22 tools`, `22 tools, 20 after filters`, with the age of the copy; empty while unknown."""
    if status.tools is None:
        return ""
    text = "1 tool" if status.tools == 1 else f"{status.tools} tools"
    if status.filtered is not None and status.filtered != status.tools:
        text += f", {status.filtered} after filters"
    return text


def moment(when: float | None, now: float | None = None) -> str:
    """How long ago, in the largest unit that fits; empty for never."""
    if when is None:
        return ""
    return age(max(0.0, (time.time() if now is None else now) - when)) + " ago"


def age(seconds: float) -> str:
    for size_, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size_:
            return f"{int(seconds // size_)} {unit}"
    return f"{int(seconds)} s"


COMMAND = Command("status", "status", "All servers: state, tools, trust, problems (the same as /mcp alone)", run)
