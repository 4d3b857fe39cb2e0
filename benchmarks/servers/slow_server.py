"""A server of the standard library alone: `slow_server.py SECONDS` takes that long for each `tools/list`."""

import json
import sys
import time

TOOLS = [
    {"name": f"tool_{number}", "description": f"Does the thing number {number}.", "inputSchema": {"type": "object"}}
    for number in range(20)
]


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return {
            "result": {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "slow", "version": "1"},
            }
        }
    if method == "tools/list":
        time.sleep(float(sys.argv[1]))
        return {"result": {"tools": TOOLS}}
    return {"error": {"code": -32601, "message": "Method not found"}}


for line in sys.stdin:
    message = json.loads(line)
    if message.get("id") is not None:
        done = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params") or {})}
        print(json.dumps(done), flush=True)
