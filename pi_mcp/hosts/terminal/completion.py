"""Completion at the prompt: the commands, `/mcp` by the session, `/call` by the loaded tools and their arguments.

Comes in: the line up to the cursor. Goes out: words in its place. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    from pi_mcp.plugin import Session


def line_completer(session: Callable[[], Session], commands: Mapping[str, str]) -> Completer:
    """prompt-toolkit's completer for lines that begin with `/`; `commands` has what each is for."""
    from prompt_toolkit.completion import Completer, Completion

    class LineCompleter(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            del complete_event
            line = document.text_before_cursor
            word = last_word(line)
            for found in candidates(session(), commands, line):
                yield Completion(found, start_position=-len(word), display_meta=commands.get(found, ""))

    return LineCompleter()


def last_word(line: str) -> str:
    """The unfinished word at the end, which a candidate takes the place of."""
    return "" if not line or line[-1].isspace() else line.split()[-1]


def candidates(session: Session, commands: Mapping[str, str], line: str) -> list[str]:
    """What the last, perhaps empty, word of `line` may become."""
    if not line.startswith("/") or "\n" in line:
        return []
    parts = line.split()
    unfinished = line[-1].isspace()
    word = last_word(line)
    if len(parts) == 1 and not unfinished:
        words: Sequence[str] = list(commands)
    elif parts[0] == "/mcp":
        words = session.complete(line)
    elif parts[0] == "/call":
        words = _call(session, parts, unfinished)
    else:
        words = ()
    return [found for found in words if found.startswith(word) and found != word]


def _call(session: Session, parts: list[str], unfinished: bool) -> list[str]:
    tools = session.loaded
    if len(parts) + unfinished <= 2:
        return [tool.native for tool in tools]
    named = [tool for tool in tools if parts[1] in (tool.native, tool.tool, f"{tool.server}.{tool.tool}")]
    properties: Any = named[0].input_schema.get("properties") if named else None
    given = {part.split("=", 1)[0] for part in parts[2:] if "=" in part}
    return [f"{name}=" for name in properties if name not in given] if isinstance(properties, Mapping) else []
