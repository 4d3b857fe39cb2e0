"""Scripted model endpoints on loopback: OpenAI chat completions, Anthropic messages and Gemini, SSE and plain JSON.

Comes in: a script, one reply per request. Goes out: a real HTTP server, and every request that it got. A reply is
`Say("text")`, `Call(("tool", {...}), …)`, `Fail(status)`, or a function from the request's body to one of these.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Say:
    text: str
    delay: float = 0.0
    """Seconds before each piece of a streamed answer."""


class Call:
    def __init__(self, *calls: tuple[str, dict[str, Any] | str], text: str = "") -> None:
        self.calls = calls
        self.text = text


@dataclass(frozen=True)
class Fail:
    status: int
    body: str = '{"error": {"message": "scripted"}}'


Reply = Say | Call | Fail
Step = Reply | Callable[[dict[str, Any]], Reply]


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)

    @property
    def tools(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for tool in self.body.get("tools") or []:
            found += tool.get("functionDeclarations") or [tool]
        return found

    @property
    def tool_names(self) -> list[str]:
        return [tool["function"]["name"] if "function" in tool else tool["name"] for tool in self.tools]

    def tool(self, name: str) -> dict[str, Any]:
        return self.tools[self.tool_names.index(name)]

    @property
    def system(self) -> str:
        """The system prompt at the head, as JSON text."""
        body = self.body
        if "system" in body:
            return json.dumps(body["system"])
        return json.dumps(list(itertools.takewhile(lambda m: m["role"] in ("system", "developer"), body["messages"])))

    def results(self) -> list[str]:
        """Text of all tool results in the messages, in order."""
        found = []
        for content in self.body.get("contents") or []:
            parts = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
            found.extend(json.dumps(part["response"]) for part in parts)
        for message in self.body.get("messages") or []:
            if message["role"] == "tool":
                found.append(_text(message["content"]))
            elif isinstance(message.get("content"), list):
                found.extend(
                    _text(block.get("content")) for block in message["content"] if block.get("type") == "tool_result"
                )
        return found


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(block.get("text", "") for block in content or [])


class ModelServer:
    """`with ModelServer([...]) as server:`; `server.openai`, `server.anthropic` and `server.gemini` are the base URLs.

    When the script is used up, further requests are answered by `Say("done")`.
    """

    def __init__(self, script: Sequence[Step]) -> None:
        self.script = list(script)
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def openai(self) -> str:
        return f"{self.origin}/v1"

    @property
    def anthropic(self) -> str:
        return self.origin

    gemini = anthropic

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5)

    def _next(self, request: Request) -> Reply:
        with self._lock:
            self.requests.append(request)
            step: Step = self.script.pop(0) if self.script else Say("done")
        return step(request.body) if callable(step) else step

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.path.split("?")[0], {k.lower(): v for k, v in self.headers.items()}, raw)
                reply = owner._next(request)
                if isinstance(reply, Fail):
                    self._send(reply.status, "application/json", reply.body.encode())
                    return
                if ":" in request.path:
                    maker, streamed = _gemini, request.path.endswith(":streamGenerateContent")
                else:
                    maker = _anthropic if request.path.endswith("/messages") else _openai
                    streamed = bool(request.body.get("stream"))
                whole, events = maker(reply, request.body.get("model", ""))
                if not streamed:
                    self._send(200, "application/json", json.dumps(whole).encode())
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                self.close_connection = True
                try:
                    for event in events:
                        time.sleep(reply.delay if isinstance(reply, Say) else 0)
                        self.wfile.write(event.encode())
                        self.wfile.flush()
                except OSError:
                    pass  # the client stopped reading

            def _send(self, status: int, kind: str, data: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


def _arguments(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _pieces(text: str) -> list[str]:
    return [text[i : i + 7] for i in range(0, len(text), 7)]


_counter = iter(range(1, 1_000_000))


def _openai(reply: Say | Call, model: str) -> tuple[dict[str, Any], Iterator[str]]:
    base = {"id": f"chat-{next(_counter)}", "created": 1, "model": model}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    calls = [
        {"id": f"call_{next(_counter)}", "type": "function", "function": {"name": name, "arguments": _arguments(args)}}
        for name, args in (reply.calls if isinstance(reply, Call) else ())
    ]
    reason = "tool_calls" if calls else "stop"
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if calls:
        message["tool_calls"] = calls
    whole = {
        **base,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }

    def events() -> Iterator[str]:
        def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**base, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"

        yield chunk({"role": "assistant", "content": ""})
        for piece in _pieces(reply.text):
            yield chunk({"content": piece})
        for index, call in enumerate(calls):
            function = call["function"]
            yield chunk({"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]})
            for piece in _pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
        yield chunk({}, reason)
        yield f"data: {json.dumps({**base, 'object': 'chat.completion.chunk', 'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"

    return whole, events()


def _anthropic(reply: Say | Call, model: str) -> tuple[dict[str, Any], Iterator[str]]:
    blocks: list[dict[str, Any]] = []
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for name, args in reply.calls if isinstance(reply, Call) else ():
        blocks.append(
            {
                "type": "tool_use",
                "id": f"toolu_{next(_counter)}",
                "name": name,
                "input": json.loads(_arguments(args)),
            }
        )
    reason = "tool_use" if isinstance(reply, Call) else "end_turn"
    usage = {"input_tokens": 1, "output_tokens": 1}
    whole = {
        "id": f"msg_{next(_counter)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": usage,
    }

    def events() -> Iterator[str]:
        def event(kind: str, **values: Any) -> str:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **values})}\n\n"

        yield event("message_start", message={**whole, "content": [], "stop_reason": None})
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                yield event("content_block_start", index=index, content_block={"type": "text", "text": ""})
                for piece in _pieces(block["text"]):
                    yield event("content_block_delta", index=index, delta={"type": "text_delta", "text": piece})
            else:
                yield event("content_block_start", index=index, content_block={**block, "input": {}})
                for piece in _pieces(json.dumps(block["input"])):
                    delta = {"type": "input_json_delta", "partial_json": piece}
                    yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        yield event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
        yield event("message_stop")

    return whole, events()


def _gemini(reply: Say | Call, model: str) -> tuple[dict[str, Any], Iterator[str]]:
    def answer(parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, **more}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}

    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    calls = [
        {"functionCall": {"name": name, "args": json.loads(_arguments(args))}}
        for name, args in (reply.calls if isinstance(reply, Call) else ())
    ]
    pieces: list[dict[str, Any]] = [{"text": piece} for piece in _pieces(reply.text)]

    def events() -> Iterator[str]:
        for part in [*pieces, *calls]:
            yield f"data: {json.dumps(answer([part]))}\n\n"
        yield f"data: {json.dumps(answer([], finishReason='STOP'))}\n\n"

    return answer([*([{"text": reply.text}] if reply.text else []), *calls], finishReason="STOP"), events()
