"""A hostile MCP server over stdio: it does what its script says. `script.py` documents the vocabulary.

Comes in: the script's path as the only argument, and JSON-RPC lines. Goes out: whatever the script wants.
Standard library only, without site packages, so that it starts in a few milliseconds.
"""

# ruff: noqa: PTH109, PTH123, SIM115 -- no pathlib: it starts hundreds of times in a test run

import json
import os
import signal
import sys
import threading
import time

TOOLS = [
    {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}},
    {"name": "other", "description": "Another one.", "inputSchema": {"type": "object"}},
]
DEFAULTS = {
    "initialize": [
        {
            "result": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
        }
    ],
    "ping": [{"result": {}}],
    "tools/list": [{"result": {"tools": TOOLS}}],
    "tools/call": [{"echo": True}],
}


class Server:
    def __init__(self, script):
        self.script = script
        self.turns = {}
        self.lock = threading.Lock()
        self.reading = True
        self.answers = {}
        self.asked = 0

    def note(self, entry):
        if self.script.get("record"):
            with self.lock, open(self.script["record"], "a") as file:
                file.write(json.dumps(entry) + "\n")

    def write(self, data):
        if isinstance(data, str):
            data = data.encode("utf-8", "surrogatepass")
        with self.lock:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]

    def send(self, message):
        self.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")

    def steps(self, method, params):
        keys = [method, "*"]
        if method == "tools/call":
            keys.insert(0, f"tools/call:{params.get('name')}")
        for key in keys:
            if key in self.script and not (key == "*" and method in DEFAULTS):
                turns = self.script[key]
                if not turns or isinstance(turns[0], dict):
                    turns = [turns]
                with self.lock:
                    number = self.turns.get(key, 0)
                    self.turns[key] = number + 1
                return turns[min(number, len(turns) - 1)]
        return DEFAULTS.get(method, [{"error": [-32601, "Method not found"]}])

    def text(self, request_id, value):
        text = value if isinstance(value, str) else json.dumps(value)
        self.send({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})

    def run(self, steps, request_id=None, params=None):
        params = params or {}
        kept = None
        for step in steps:
            if "result" in step:
                self.send({"id": request_id, "result": step["result"]})
            elif "error" in step:
                error = dict(zip(("code", "message", "data"), step["error"], strict=False))
                self.send({"id": request_id, "error": error})
            elif "echo" in step:
                self.text(request_id, params)
            elif "big" in step:
                result = {"content": [{"type": "text", "text": "x" * step["big"]}]}
                if step.get("id_last"):
                    self.write(json.dumps({"result": result, "jsonrpc": "2.0", "id": request_id}) + "\n")
                else:
                    self.send({"id": request_id, "result": result})
            elif "page" in step:
                size, total = step["page"]
                start = int(params.get("cursor") or 0)
                result = {
                    "tools": [
                        {"name": f"t{number}", "inputSchema": {"type": "object"}}
                        for number in range(start, min(start + size, total))
                    ]
                }
                if start + size < total:
                    result["nextCursor"] = str(start + size)
                self.send({"id": request_id, "result": result})
            elif "raw" in step:
                self.write(self.filled(step["raw"], request_id))
            elif "pieces" in step:
                for piece in step["pieces"]:
                    self.write(self.filled(piece, request_id))
                    time.sleep(step.get("pause", 0.05))
            elif "hex" in step:
                self.write(bytes.fromhex(step["hex"]))
            elif "write" in step:
                self.write(json.dumps(step["write"]).replace('"$ID"', json.dumps(request_id)) + "\n")
            elif "progress" in step:
                self.progress(step, params)
            elif "notify" in step:
                self.send({"method": step["notify"][0], "params": step["notify"][1]})
            elif "ask" in step:
                kept = self.ask(*step["ask"])
            elif "answer" in step:
                self.text(request_id, kept)
            elif "sleep" in step:
                time.sleep(step["sleep"])
            elif "stderr" in step:
                os.write(2, step["stderr"].encode())
            elif "flood" in step:
                line = b"e" * 79 + b"\n" if step.get("newlines", True) else b"e" * 80
                left = step["flood"]
                while left > 0:
                    left -= os.write(2, line[:left])
            elif "exit" in step:
                os._exit(step["exit"])
            elif "kill" in step:
                os.kill(os.getpid(), step["kill"])
                time.sleep(5)
            elif "close_stdout" in step:
                os.close(1)
            elif "close_stdin" in step:
                os.close(0)
            elif "stop_reading" in step:
                self.reading = False
            elif "hang" in step:
                return
            elif "spawn" in step:
                self.note({"spawned": spawn(step["spawn"])})
            elif "pid" in step:
                self.text(request_id, str(os.getpid()))
            elif "environ" in step:
                self.text(
                    request_id,
                    {
                        "env": dict(os.environ),
                        "cwd": os.getcwd(),
                        "argv": sys.argv,
                        "sid": os.getsid(0),
                        "pgid": os.getpgid(0),
                        "sigpipe": "SigIgn:\t0000000000001000" in open("/proc/self/status").read(),
                    },
                )
            else:
                raise SystemExit(f"unknown step {step}")

    def filled(self, text, request_id):
        return text.replace("$ID", json.dumps(request_id)).replace("$PID", str(os.getpid()))

    def progress(self, step, params):
        token = step.get("of", "own")
        if token == "own":
            token = (params.get("_meta") or {}).get("progressToken")
        elif token == "other":
            token = 987654
        for number in range(step["progress"]):
            content = {"progressToken": token, "progress": number + 1, "message": f"step {number + 1}"}
            if "total" in step:
                content["total"] = step["total"]
            self.send({"method": "notifications/progress", "params": content})
            time.sleep(step.get("every", 0.0))

    def ask(self, method, params):
        with self.lock:
            self.asked += 1
            request_id = f"ask-{self.asked}"
            done = self.answers[request_id] = threading.Event()
        self.send({"id": request_id, "method": method, "params": params})
        done.wait(30)
        return self.answers.pop(request_id)

    def received(self, message):
        self.note(message)
        if "method" not in message:
            done = self.answers.get(message.get("id"))
            if done is not None:
                self.answers[message["id"]] = message.get("result", {"error": message.get("error")})
                self.note({"answer": self.answers[message["id"]]})
                done.set()
            return
        params = message.get("params") or {}
        if "id" not in message:
            if message["method"] in self.script:
                self.run(self.steps(message["method"], params), None, params)
            return
        steps = self.steps(message["method"], params)
        if self.script.get("in_order"):
            self.run(steps, message["id"], params)
        else:
            threading.Thread(target=self.run, args=(steps, message["id"], params), daemon=True).start()

    def serve(self):
        self.note({"pid": os.getpid()})
        if self.script.get("ignore_term"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.run(self.script.get("start", []))
        pending = b""
        while self.reading:
            try:
                data = os.read(0, 65536)
            except OSError:
                break
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                if line.strip():
                    self.received(json.loads(line))
        while self.script.get("ignore_eof") or not self.reading:
            time.sleep(1)


def spawn(kind):
    """Start a sleeper that ignores SIGTERM; its pid."""
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        if kind in ("setsid", "daemon"):
            os.setsid()
        if kind == "daemon" and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.write(writer, str(os.getpid()).encode())
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        os.closerange(3, 64)
        time.sleep(120)
        os._exit(0)
    os.close(writer)
    pid = int(os.read(reader, 32))
    os.close(reader)
    if kind == "daemon":
        os.waitpid(first, 0)
    return pid


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        Server(json.load(file)).serve()
    os._exit(0)
