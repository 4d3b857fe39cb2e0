"""A stdio MCP server for conversations: real tools with arguments, an image, a form, a slow call (standard library).

    chat_server.py [SEEN]

Each `tools/call` that arrives and each cancellation is one line of JSON in the file SEEN.
"""

import base64
import json
import os
import sys
import threading
import time
import zlib

SEEN = sys.argv[1] if len(sys.argv) > 1 else os.devnull
LOCK = threading.Lock()
WAITING: dict = {}


def tool(name, description, properties=None, required=(), **more):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {"name": name, "description": description, "inputSchema": schema, **more}


TOOLS = [
    tool(
        "add_numbers",
        "Add two whole numbers.",
        {
            "a": {"type": "integer", "description": "The first number."},
            "b": {"type": "integer", "minimum": 0},
            "style": {"enum": ["plain", "roman"], "default": "plain", "description": "How the sum is written."},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        ["a", "b"],
    ),
    tool("draw_picture", "Draw a small picture, an image."),
    tool("ask_person", "Ask the person for a shipping address with a form."),
    tool("wait_long", "Wait for a long time, slowly.", {"seconds": {"type": "number", "default": 60}}),
    tool("many_options", "Has many options.", {f"option_{n}": {"type": "string"} for n in range(1, 8)}),
    tool("always_fails", "A tool that reports an error."),
    tool("show_secret", "Show the environment variable that holds the secret."),
]
FORM = {
    "type": "object",
    "properties": {
        "street": {"type": "string", "title": "Street", "minLength": 2},
        "zip": {"type": "integer", "description": "Postal code"},
        "express": {"type": "boolean", "default": False},
        "size": {"type": "string", "enum": ["s", "m"], "enumNames": ["Small", "Medium"]},
        "mail": {"type": "string", "format": "email"},
    },
    "required": ["street", "zip", "size"],
}


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = (1).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def send(message) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def saw(entry) -> None:
    with LOCK, open(SEEN, "a") as file:  # noqa: PTH123 -- a path from the command line
        file.write(json.dumps(entry) + "\n")


def text(value, **more):
    return {"content": [{"type": "text", "text": value}], **more}


def call(identifier, name, arguments):
    if name == "add_numbers":
        return text(str(arguments["a"] + arguments["b"]))
    if name == "draw_picture":
        data = base64.b64encode(png()).decode()
        return {
            "content": [
                {"type": "text", "text": "A red dot."},
                {"type": "image", "data": data, "mimeType": "image/png"},
            ]
        }
    if name == "ask_person":
        event = threading.Event()
        form = f"form-{identifier}"
        WAITING[form] = (event, answer := {})
        params = {"message": "Where shall it go?", "requestedSchema": FORM}
        send({"id": form, "method": "elicitation/create", "params": params})
        event.wait(60)
        return text(f"form: {json.dumps(answer)}")
    if name == "wait_long":
        WAITING[identifier] = (event := threading.Event(), {})
        event.wait(float(arguments.get("seconds", 60)))
        return text("waited")
    if name == "many_options":
        return text(json.dumps(arguments))
    if name == "always_fails":
        return text("the disk is full", isError=True)
    if name == "show_secret":
        return text(f"secret={os.environ.get('CHAT_SECRET')}")
    return text("?")


def answer_call(identifier, params) -> None:
    saw({"call": params.get("name"), "arguments": params.get("arguments")})
    send({"id": identifier, "result": call(identifier, params["name"], params.get("arguments") or {})})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        method, params, identifier = message.get("method"), message.get("params") or {}, message.get("id")
        if method is None:
            event, answer = WAITING.pop(identifier, (threading.Event(), {}))
            answer.update(message.get("result") or {"error": message.get("error")})
            event.set()
        elif method == "initialize":
            version = params.get("protocolVersion", "2025-11-25")
            info = {
                "protocolVersion": version,
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "desk", "version": "1"},
            }
            send({"id": identifier, "result": info})
        elif method == "tools/list":
            send({"id": identifier, "result": {"tools": TOOLS}})
        elif method == "tools/call":
            threading.Thread(target=answer_call, args=(identifier, params), daemon=True).start()
        elif method == "ping":
            send({"id": identifier, "result": {}})
        elif method == "notifications/cancelled":
            saw({"cancelled": params.get("requestId"), "at": time.time()})
        elif identifier is not None:
            send({"id": identifier, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    main()
