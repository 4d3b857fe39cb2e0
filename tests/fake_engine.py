"""An engine that does wrong on request (standard library only): for the tests of the shims' client.

    fake_engine.py FOLDER engine

`FOLDER/how.json` says what to do, read at each start and before each answer; `FOLDER/lines` gets each line that came,
`FOLDER/starts` a process id for each start. Members of how.json: exit (code, at the start), silent (methods that get
no answer), die (methods at which it kills itself), before (lines to write before an answer), answers (method → result
or {"error": …}), ignore_eof, delay (seconds before an answer).
"""

import json
import os
import pathlib
import signal
import sys
import time

# The tests import this file, too.
FOLDER = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
TOOL = {"name": "mcp__s__t", "description": "A tool.", "inputSchema": {"type": "object"}, "annotations": {}}
RECORD = {"native": "mcp__s__t", "server": "s", "tool": "t", "hash": "h", "definition": {"name": "t"}}
NOTHING = {"loaded": [], "diagnostics": [], "files": []}
SEARCH = {"name": "mcp_search", "description": "the directory", "inputSchema": {"type": "object"}, "annotations": {}}
ANSWERS = {
    "search": {"text": "found", "tools": [TOOL], "details": {**NOTHING, "loaded": [RECORD]}},
    "call": {"content": [{"type": "text", "text": "called"}], "isError": False, "details": NOTHING, "tools": [TOOL]},
    "command": {"text": "status", "tools": [], "details": NOTHING},
    "complete": {"items": ["one"]},
    "session": {"tools": [], "details": NOTHING},
    "ping": {},
    "shutdown": {},
}


def how():
    try:
        return json.loads((FOLDER / "how.json").read_text())
    except FileNotFoundError:
        return {}


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def answer(method, params, told):
    if method in told.get("answers", {}):
        return told["answers"][method]
    if method == "initialize":
        records = params["session"].get("records") or []
        tools = [{**TOOL, "name": record["native"]} for record in records]
        told = {**NOTHING, "loaded": records}
        return {"protocol": 1, "version": "0", "searchTool": SEARCH, "tools": tools, "details": told}
    return ANSWERS[method]


def main() -> None:
    with (FOLDER / "starts").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if "exit" in how():
        sys.exit(how()["exit"])
    for line in sys.stdin:
        with (FOLDER / "lines").open("a") as file:
            file.write(line)
        message = json.loads(line)
        method = message.get("method")
        if "id" not in message or method is None:
            continue
        told = how()
        time.sleep(told.get("delay", 0))
        if method in told.get("die", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        for before in told.get("before", {}).get(method, ()):
            write(before if isinstance(before, str) else json.dumps({"jsonrpc": "2.0", **before}))
        if method in told.get("silent", ()):
            continue
        result = answer(method, message["params"], told)
        key = "error" if "error" in result else "result"
        write(json.dumps({"jsonrpc": "2.0", "id": message["id"], key: result.get("error", result)}))
        if method == "shutdown" and not told.get("ignore_eof"):
            return
    while how().get("ignore_eof"):
        time.sleep(0.05)


if __name__ == "__main__":
    main()
