"""The gateway: an MCP server over stdio and Streamable HTTP in front of the configured servers.

Comes in: MCP clients of both eras. Goes out: what the upstream servers answer, as they sent it, or one search tool in
the place of all of theirs. It knows `Plugin` and the types that it hands out, and no database.
"""
