"""One call of a loaded tool: the live definition is compared first, then the call is sent once.

Comes in: a native tool, arguments, and the server definition under which the call was allowed. Goes out: the
server's result in wire form. It never presents results, never asks a person, and sends a call again only where the
answer proves that it was not executed (DESIGN §7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.errors import NotExecuted, PiMcpError, failure
from pi_mcp.text import clean_line
from pi_mcp.tools import difference
from pi_mcp.tools.loaded import NativeTool

if TYPE_CHECKING:
    from pi_mcp.catalog import Catalogs
    from pi_mcp.config import ServerDefinition
    from pi_mcp.connect import CallHandlers, Connections


async def call_live(
    catalogs: Catalogs,
    connections: Connections,
    definition: ServerDefinition,
    native: NativeTool,
    arguments: Mapping[str, Any],
    handlers: CallHandlers,
) -> dict[str, Any]:
    """Check the live definition and call `native`; the wire form of the CallToolResult.

    Raises ServerError `tool_changed` before anything is sent when the tool's definition differs from the loaded
    one, or the server's from `definition`, and whatever the connection raises. `NotExecuted` is answered by one
    repetition, which compares everything again.
    """
    repeated = False
    while True:
        catalog = await (catalogs.refresh(native.server) if repeated else catalogs.live(native.server))
        live = catalog.tool(native.tool)
        if live is None or live.hash != native.hash:
            raise changed(native, None if live is None else live.wire)
        try:
            # Looked up now: a reload may have put another connection in the old one's place.
            connection = connections.get(native.server)
        except KeyError:
            raise _reconfigured(native) from None
        if connection.definition != definition:
            raise _reconfigured(native)
        try:
            return await connection.call_tool(
                native.tool,
                dict(arguments),
                handlers=handlers,
                schema=live.input_schema,
                generation=catalogs.generation(native.server),
            )
        except NotExecuted:
            if repeated:
                raise
            repeated = True


def changed(native: NativeTool, live: Mapping[str, Any] | None) -> PiMcpError:
    """The refusal of a call of a tool whose definition is `live` now, or that is gone; it says what is different."""
    changes = difference.describe(native.definition, live)
    return failure(
        "tool_changed",
        "call",
        native.server,
        f"The live definition of {clean_line(native.tool)} is not the loaded one; nothing was sent. "
        f"{clean_line('; '.join(changes.splitlines()), 800).rstrip('.')}.",
        "Search again: the server offers it no longer."
        if live is None
        else "Search for the tool again to load its current definition.",
    )


def _reconfigured(native: NativeTool) -> PiMcpError:
    return failure(
        "tool_changed",
        "call",
        native.server,
        "The server's configuration changed while the call was prepared; nothing was sent.",
        "Call again.",
    )
