"""A stdio MCP server whose behaviour a test changes while it runs (standard library only).

    catalog_server.py FOLDER

`FOLDER/behaviour.json` is read again before every answer; each start and each request is one line in
`FOLDER/seen`: time, process id, and `start`, `end` (of a listing) or the method.
"""

import json
import os
import pathlib
import sys
import time

FOLDER = pathlib.Path(sys.argv[1])


def behaviour() -> dict:
    return json.loads((FOLDER / "behaviour.json").read_text())


def saw(what: str) -> None:
    with (FOLDER / "seen").open("a") as file:
        file.write(f"{time.time()} {os.getpid()} {what}\n")


def send(message: dict) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def changed() -> None:
    send({"method": "notifications/tools/list_changed"})


def answer(method: str, params: dict, how: dict) -> dict:
    if method == "initialize":
        time.sleep(how.get("start_delay", 0))
        if "initialize_error" in how:
            return {"error": how["initialize_error"]}
        return {
            "result": {
                "protocolVersion": params.get("protocolVersion", "2025-11-25"),
                "capabilities": how.get("capabilities", {"tools": {}}),
                "serverInfo": {"name": "catalog", "version": "0", **how.get("info", {})},
                **({"instructions": how["instructions"]} if "instructions" in how else {}),
            }
        }
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        time.sleep(how.get("list_delay", 0))
        if "list_error" in how:
            return {"error": how["list_error"]}
        if how.get("endless"):
            page = int(params.get("cursor") or 0)
            return {"result": {"tools": [{"name": f"t{page}", "inputSchema": {"type": "object"}}],
                               "nextCursor": str(page + 1)}}  # fmt: skip
        result = {"tools": how.get("tools", [])}
        if "ttl" in how:
            result["ttlMs"] = how["ttl"] * 1000
        return {"result": result}
    if method == "tools/call":
        for _ in range(how.get("notify", 0)):
            changed()
        return {"result": {"content": [{"type": "text", "text": "called"}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def main() -> None:
    saw("start")
    if behaviour().get("exit"):
        sys.exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") is None:
            continue
        method = message["method"]
        saw(method)
        how = behaviour()
        if method == "tools/list" and how.get("notify_while_listing"):
            changed()
        reply = answer(method, message.get("params") or {}, how)
        if method == "tools/list":
            saw("end")
        send({"id": message["id"], **reply})


if __name__ == "__main__":
    main()
