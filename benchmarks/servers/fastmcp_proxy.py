"""FastMCP's `create_proxy` in front of one server, run by the Python of an environment that has FastMCP.

    fastmcp_proxy.py ENTRY [PORT]

ENTRY is the server's entry as JSON. Over stdio, or with PORT over Streamable HTTP on 127.0.0.1.
"""

from __future__ import annotations

import json
import sys

from fastmcp.server import create_proxy

proxy = create_proxy({"mcpServers": {"one": json.loads(sys.argv[1])}})
if len(sys.argv) > 2:
    proxy.run(transport="http", host="127.0.0.1", port=int(sys.argv[2]), show_banner=False, log_level="ERROR")
else:
    proxy.run(transport="stdio", show_banner=False, log_level="ERROR")
