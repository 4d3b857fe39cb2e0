"""The SDK's write stream of the legacy transport, with what JSON cannot hold kept out of it.

Comes in: messages of ours. Goes out: the same into the SDK's stream, or an error for the one that cannot be written.
The SDK finds out in its own tasks, and ends the connection with every call on it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from pi_mcp.connect.faults import Fault, Faults
from pi_mcp.connect.streams import Around
from pi_mcp.jsontext import json_line

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

_HUGE = re.compile("[0-9]{4300}")
"""Digits that Python writes as no number, unless it is told to."""


class SendableStream(Around):
    """A `WriteStream` around the SDK's."""

    def __init__(self, stream: Any, faults: Faults) -> None:
        super().__init__(stream)
        self._faults = faults

    async def send(self, item: SessionMessage, /) -> None:
        """Raises MCPError for a message that cannot be written: of a request the fault is noted, and it did not run."""
        message: Any = item.message
        try:
            plain = _sendable(message)
        except Exception:  # arguments that a program passed and JSON cannot hold, or nested beyond measure
            from mcp.shared.exceptions import MCPError

            request_id = getattr(message, "id", None)
            if request_id is not None and hasattr(message, "method"):
                self._faults.note(request_id, Fault("unsendable", executed="no"))
            raise MCPError(code=-32603, message="The message cannot be written as JSON") from None
        if plain is not message:
            from dataclasses import replace

            item = replace(item, message=plain)
        await self._stream.send(item)


def _sendable(message: Any) -> Any:
    """The message itself, or a copy in which halves of surrogate pairs, which are no text, are U+FFFD."""
    if _is_written(message):
        return message
    plain = json.loads(json_line(message.model_dump(by_alias=True, exclude_unset=True)))
    clean = type(message).model_validate(plain, by_name=False)
    if not _is_written(clean):
        raise ValueError
    return clean


def _is_written(message: Any) -> bool:
    try:
        text: str = message.model_dump_json(by_alias=True, exclude_unset=True)
    except ValueError:
        return False
    return len(text) < 4300 or _HUGE.search(text) is None
