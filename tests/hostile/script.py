"""Scripts for the hostile stdio server: the vocabulary, and how a test turns one into a configuration entry.

Comes in: a script, a plain JSON object. Goes out: an `mcpServers` entry that runs `stdio_server.py` with it. A script
maps JSON-RPC methods to what happens when a request of that method comes; without one the server is a good one
of the handshake era with the tools `echo` and `other`.

    {"tools/list": TURNS, "tools/call": TURNS, "tools/call:NAME": TURNS (before "tools/call"), "initialize": …,
     "server/discover": …, "*": TURNS for every other method, "start": STEPS before the first line is read,
     "ignore_eof": true, "ignore_term": true, "record": PATH, "in_order": true}

TURNS is a list of STEPS: the first request of the method gets the first, the second the second; the last one
stays. A list of steps alone is one turn. STEPS is a list of objects with one key each, done one after the other:

    {"result": {…}}           answer with this result            {"error": [code, message, data?]}   … this error
    {"echo": true}            answer with the parameters as JSON text
    {"big": n}                answer with a text of n bytes; {"big": n, "id_last": true} names the id at the end
    {"page": [size, total]}   answer as a pager of `total` tools t0, t1 …, with a numeric cursor
    {"raw": "text"}           write exactly this; `$ID` becomes the request's id as JSON, `$PID` the process id
    {"pieces": ["te", "xt"], "pause": s}   write the pieces apart from each other; `$ID` as above
    {"hex": "ff0a"}           write these bytes
    {"write": {…}}            write this JSON object as one line; `"$ID"` as above
    {"progress": n, "every": s, "of": "own" | "other" | token, "total": m}   n progress notifications
    {"notify": [method, params]}   a notification
    {"ask": [method, params]}      a request of the server's own; its answer is kept, and recorded as {"answer": …}
    {"answer": true}          answer with the kept answer as JSON text
    {"sleep": s}              {"stderr": "text"}       {"flood": n, "newlines": bool}   n bytes to stderr
    {"exit": code}            {"kill": signal number, of this process itself}
    {"close_stdout": true}    {"close_stdin": true}    {"stop_reading": true}: stdin is not read any more
    {"hang": true}            never answer
    {"spawn": kind}           start a process that sleeps and ignores SIGTERM: "child", "setsid" (a session of its
                              own), "daemon" (double fork and setsid); its pid is recorded as {"spawned": pid}
    {"pid": true}             answer with the process id as text
    {"environ": true}         answer with {"env", "cwd", "argv", "sid", "pgid", "sigpipe"} as JSON text

"record" names a file that gets one JSON line for each message received, for {"pid": …} at the start, each answer and
each spawned process: what really reached the server. Each request runs in its own thread, so answers may
overtake one another; "in_order" makes it one after the other.

The HTTP server beside this one uses the same idea (method to turns, the last one stays) with reactions of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("stdio_server.py")

GONE: dict[str, Any] = {"error": [-32601, "Method not found"]}


def entry(folder: Path, script: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An `mcpServers` entry for a server with this script; its record lies at `record_of(entry)`."""
    number = len(list(folder.glob("script-*.json")))
    path = folder / f"script-{number}.json"
    record = folder / f"record-{number}.jsonl"
    path.write_text(json.dumps({"record": str(record), **(script or {})}))
    return {"command": sys.executable, "args": ["-S", str(SERVER), str(path)], **fields}


def record_of(server: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Everything that the server of this entry recorded so far."""
    path = Path(json.loads(Path(server["args"][-1]).read_text())["record"])
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def methods_of(server: Mapping[str, Any]) -> list[str]:
    """The methods that reached the server, in order."""
    return [line["method"] for line in record_of(server) if "method" in line]


def pids_of(server: Mapping[str, Any]) -> list[int]:
    """The process ids of every start of this server and of everything that it spawned."""
    return [line[key] for line in record_of(server) for key in ("pid", "spawned") if key in line]


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A minimal tool."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}
