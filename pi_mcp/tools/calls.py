"""One call of a loaded tool: the live definition is compared first, then the call is sent once.

Comes in: a native tool and arguments. Goes out: the server's result in wire form. It never presents results,
never asks a person, and sends a call again only where the answer proves that it was not executed (DESIGN §7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pi_mcp.errors import NotExecuted, failure
from pi_mcp.text import clean_line
from pi_mcp.tools import difference
from pi_mcp.tools.loaded import NativeTool

if TYPE_CHECKING:
    from pi_mcp.catalog import Catalogs
    from pi_mcp.connect import CallHandlers, Connection


async def call_live(
    catalogs: Catalogs,
    connection: Connection,
    native: NativeTool,
    arguments: Mapping[str, Any],
    handlers: CallHandlers,
) -> dict[str, Any]:
    """Check the live definition and call `native`; the wire form of the CallToolResult.

    Raises ServerError `tool_changed` before anything is sent when the definition differs, and whatever the
    connection raises. `NotExecuted` is answered by one repetition, which compares the definition again.
    """
    repeated = False
    while True:
        catalog = await (catalogs.refresh(native.server) if repeated else catalogs.live(native.server))
        live = catalog.tool(native.tool)
        if live is None or live.hash != native.hash:
            changes = difference.describe(native.definition, live.wire if live else None)
            raise failure(
                "tool_changed",
                "call",
                native.server,
                f"The live definition of {clean_line(native.tool)} is not the loaded one; nothing was sent. "
                f"{clean_line(changes, 600)}",
                "Search for the tool again to load its current definition."
                if live
                else "Search again: the server offers it no longer.",
            )
        try:
            return await connection.call_tool(native.tool, dict(arguments), handlers=handlers, schema=live.input_schema)
        except NotExecuted:
            if repeated:
                raise
            repeated = True
