"""One MCP server over HTTP, asked and answered in turn, with the standard library alone.

    from pi_mcp.http_client import MCPClientError, MCPHTTPClient

    with MCPHTTPClient("https://mcp.example.com/mcp", headers={"Authorization": f"Bearer {token}"}) as client:
        client.initialize()
        result = client.call_tool("search", {"query": "invoices"})

Comes in: an address, headers, a tool's name and arguments. Goes out: result objects as the server sent them, or
`MCPClientError`. It is the second implementation of the protocol here, for scripts and single calls: no event loop, no
third-party package, no listening stream, nothing sent twice. `StatelessMCPClient` does without a session.
"""

from __future__ import annotations

from pi_mcp.http_client.client import MCPHTTPClient, StatelessMCPClient
from pi_mcp.http_client.fault import MCPClientError

__all__ = ["MCPClientError", "MCPHTTPClient", "StatelessMCPClient"]
