"""Completion at the prompt: the commands, `/mcp` by the session, `/call` by the loaded tools and their arguments.

Comes in: the line up to the cursor. Goes out: words in its place. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

if TYPE_CHECKING:
    from pi_mcp.plugin import Session


class LineCompleter(Completer):
    """Offers something only for lines that begin with `/`."""

    def __init__(self, session: Callable[[], Session], commands: Mapping[str, str]) -> None:
        self._session = session
        self._commands = commands

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        del complete_event
        line = document.text_before_cursor
        if not line.startswith("/") or "\n" in line:
            return
        word = "" if line[-1:].isspace() else line.split()[-1]
        for found in self.words(line):
            if found.startswith(word) and found != word:
                yield Completion(found, start_position=-len(word), display_meta=self._commands.get(found, ""))

    def words(self, line: str) -> list[str]:
        """Candidates for the last, perhaps empty, word of `line`."""
        parts = line.split()
        first = len(parts) == 1 and not line[-1:].isspace()
        if first:
            return list(self._commands)
        if parts[0] == "/mcp":
            return self._session().complete(line)
        if parts[0] == "/call":
            return self._call(parts, unfinished=line[-1:].isspace())
        return []

    def _call(self, parts: list[str], *, unfinished: bool) -> list[str]:
        tools = self._session().loaded
        if len(parts) + unfinished <= 2:
            return [tool.native for tool in tools]
        chosen = next(
            (tool for tool in tools if parts[1] in (tool.native, tool.tool, f"{tool.server}.{tool.tool}")), None
        )
        properties: Any = chosen.input_schema.get("properties") if chosen else None
        given = {part.split("=", 1)[0] for part in parts[2:] if "=" in part}
        return [f"{name}=" for name in properties if name not in given] if isinstance(properties, Mapping) else []
