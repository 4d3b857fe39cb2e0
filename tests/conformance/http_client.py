"""The client that the official conformance suite drives for `MCPHTTPClient`: list the tools, call them.

Comes in: a server's URL as the last argument; `MCP_CONFORMANCE_SCENARIO` and `MCP_CONFORMANCE_CONTEXT` in the
environment. Goes out: exit status 0 when the server was listed and its tools called. `on_request` answers what a server
asks on the way, as a program could; there is no login here, and what the suite wants of one is none of this client's
(`tests/test_conformance_http_client.py` names it).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from pi_mcp.http_client import MCPClientError, MCPHTTPClient
from tests.conformance.samples import sample


def asked(context: Mapping[str, Any], tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The calls that the suite names, or one of each tool."""
    named = context.get("toolCalls")
    if isinstance(named, list) and named:
        return [(str(one["name"]), dict(one.get("arguments") or {})) for one in named]
    return [(tool["name"], sample({"type": "object", **tool.get("inputSchema", {})})) for tool in tools]


def answer(method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Forms are left as they were when they were shown."""
    if method == "elicitation/create":
        fields: Mapping[str, Any] = (params.get("requestedSchema") or {}).get("properties", {})
        return {"action": "accept", "content": {name: sample(about) for name, about in fields.items()}}
    if method == "sampling/createMessage":
        said = {"type": "text", "text": "Hello."}
        return {"role": "assistant", "content": said, "model": "none", "stopReason": "endTurn"}
    return {"roots": []} if method == "roots/list" else None


def main() -> int:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    offered: dict[str, Any] = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}
    with MCPHTTPClient(sys.argv[-1], timeout=20.0, capabilities=offered, on_request=answer) as client:
        client.initialize()
        tools = client.list_tools()
        schemas = {tool["name"]: tool.get("inputSchema") for tool in tools}
        if scenario == "json-schema-2020-12-preservation":
            # Give a tool's schema back as it came.
            client.call_tool("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})
            return 0
        for name, arguments in asked(context, tools):
            try:
                client.call_tool(name, arguments, schema=schemas.get(name))
            except MCPClientError as error:
                print(f"{name}: {error}", file=sys.stderr)
                if error.kind not in ("tool_error", "error", "input_required"):
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
