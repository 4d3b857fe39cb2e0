"""A server on the SDK's low-level `Server`, over stdio or, with `--http`, over Streamable HTTP on a free port.

It offers `echo` (its text back), `checked` (the same with an output schema) and `pause` (answers after `seconds`).
With --http the address is the first line on standard output. `--tools N` adds more tools, up to N in all.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [
    types.Tool(name="echo", description="Say it again.", input_schema=TEXT),
    types.Tool(name="checked", description="Say it again, as structured content.", input_schema=TEXT,
               output_schema=TEXT),
    types.Tool(name="pause", description="Answer later.",
               input_schema={"type": "object", "properties": {"seconds": {"type": "number"}}}),
]  # fmt: skip
if "--tools" in sys.argv:
    properties = {f"field_{n}": {"type": "string", "description": "What is to be put into it."} for n in range(5)}
    TOOLS += [
        types.Tool(
            name=f"tool_{number}",
            description="Does one of the many things that a large server can do. " * 4,
            input_schema={"type": "object", "properties": properties},
        )
        for number in range(int(sys.argv[sys.argv.index("--tools") + 1]) - len(TOOLS))
    ]
SCHEMAS = {tool.name: tool.input_schema for tool in TOOLS}


async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments = params.arguments or {}
    if params.name == "pause":
        await asyncio.sleep(float(arguments["seconds"]))
    text = str(arguments.get("text", "done"))
    structured = {"text": text} if params.name == "checked" else None
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=structured)


def build() -> Server[Any]:
    return Server(
        "benchmark",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        # Without it every call over HTTP lists the tools first, on both sides alike.
        get_tool_input_schema=SCHEMAS.get,
    )


async def over_stdio() -> None:
    from mcp.server.stdio import stdio_server

    server = build()
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def over_http() -> None:
    import uvicorn

    # With its protocol named, asyncio switches Nagle's algorithm off; else every answer waits 40 ms for an ACK.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(build().streamable_http_app(), log_level="error")).run(sockets=[listening])


if __name__ == "__main__":
    if "--http" in sys.argv:
        over_http()
    else:
        asyncio.run(over_stdio())
