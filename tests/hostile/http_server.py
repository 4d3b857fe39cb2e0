"""One hostile MCP server over HTTP: a script says, method by method, what goes wrong.

Comes in: a script, keyed by JSON-RPC method or HTTP verb. Goes out: a real socket that behaves so, and a record
of every request. Without a script it is a good server. Standard library only; it runs on a thread of the test,
or as a command: `python -m tests.hostile.http_server --port 8000 --script script.json`.

A script maps keys to a reaction, or to a list of them, used one after the other (the last one stays):

    "initialize", "tools/call" …    a POST of that method        "notifications/initialized" …  likewise
    "GET", "DELETE"                 that verb                    "RESUME"                       GET with Last-Event-ID
    "response"                      a POST that answers the server's own request
    "/other"                        any request to that path     "*"                            any POST

A reaction is an object; what is not named is as a good server does it:

    {"result": {…}} {"error": {…}} {"message": any}   the answer; {"as": "json" | "sse"} how it is wrapped
    {"status": 404, "headers": {…}, "body": "text"}   a plain HTTP answer; {"type": "text/html"}
    {"redirect": "/mcp/", "status": 307}
    {"events": [event, …]}                            an event stream (with a "status", if given), closed at its
                                                      end; an event is a raw string,
                                                      {"data": text or JSON, "id", "event", "retry"}, {"answer": true},
                                                      {"sleep": s}, {"repeat": n, "event": …, "every": s},
                                                      {"hang": true}, {"reset": true}
    {"raw": "bytes as latin-1"}                       written as is, then closed
    {"short": n}                                      the body lacks its last n bytes, then closed
    {"chunked": true} {"gzip": true}                  how the body goes out
    {"sleep": s} {"hang": true}                       before anything is written
    {"close": true} {"reset": true}                   the socket ends after the request was read
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import socket
import ssl
import struct
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Reaction = Mapping[str, Any]
Script = Mapping[str, Reaction | Sequence[Reaction] | Callable[["Request", "HttpServer"], Reaction]]

TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "description": "Say it again.", "inputSchema": {"type": "object"}},
    {"name": "other", "description": "Another one.", "inputSchema": {"type": "object"}},
]
CAPABILITIES = {"tools": {"listChanged": True}}


@dataclass
class Request:
    """One request as it came: lower-case header names, the body, and its JSON where it is JSON."""

    verb: str
    target: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def message(self) -> dict[str, Any]:
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def method(self) -> str | None:
        """The JSON-RPC method; "response" for an answer to the server."""
        if self.verb != "POST":
            return None
        return self.message.get("method") or ("response" if "id" in self.message else None)


class HttpServer:
    """A server on 127.0.0.1 with a port of its own, between `with` and its end."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        answers: str = "json",
        session: bool = False,
        session_ttl: float | None = None,
        lost: Reaction | None = None,
        era: str = "legacy",
        tools: list[dict[str, Any]] | None = None,
        tls: tuple[Path, Path] | None = None,
        port: int = 0,
        path: str = "/mcp",
    ) -> None:
        """`answers` is "json" or "sse". `session`: ids are issued and wanted; `session_ttl` in seconds since the
        last use; `lost` is the reaction to an unknown one (404). `era` is "legacy", "modern" or "both". `tls` is
        (certificate, key)."""
        self.script: dict[str, Any] = dict(script or {})
        self.answers = answers
        self.issues_sessions = session or session_ttl is not None
        self.session_ttl = session_ttl
        self.lost: Reaction = lost or {"status": 404, "body": "unknown session"}
        self.era = era
        self.tools = TOOLS if tools is None else tools
        self.tls = tls
        self.port = port
        self.path = path
        self.requests: list[Request] = []
        self.sessions: dict[str, float] = {}
        self.open = 0
        """Sockets that are open now."""
        self.connections = 0
        """Sockets that were ever accepted."""
        self._hits: dict[str, int] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    @property
    def url(self) -> str:
        return f"{self.origin}{self.path}"

    @property
    def origin(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def of(self, key: str) -> list[Request]:
        """The requests of a JSON-RPC method or an HTTP verb, in order."""
        return [one for one in list(self.requests) if key in (one.verb, one.method)]

    def forget_sessions(self) -> None:
        """As if the server had been restarted."""
        self.sessions.clear()

    # life

    def __enter__(self) -> Self:
        ready = threading.Event()
        failed: list[BaseException] = []

        def main() -> None:
            try:
                asyncio.run(self._serve(ready))
            except BaseException as error:
                failed.append(error)
            finally:
                ready.set()

        self._thread = threading.Thread(target=main, name="hostile-http", daemon=True)
        self._thread.start()
        ready.wait(10)
        if failed:
            raise failed[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End at once: every socket is reset, as when the process dies."""
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(10)

    def drop_connections(self) -> None:
        """Reset every open socket; the server lives on."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._reset_all)

    def _reset_all(self) -> None:
        for writer in list(self._writers):
            _reset(writer)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(lambda loop, context: None)
        self._stop = asyncio.Event()
        context = None
        if self.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)  # here: a task that is cancelled before it begins closes nothing
            task = asyncio.ensure_future(self._connection(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(
            accepted, "127.0.0.1", self.port, ssl=context, limit=1 << 20, reuse_address=True
        )
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        # Who was accepted in this very turn is in a task of asyncio's own, which forgets the socket when the server is
        # closed or the task is cancelled before it has begun.
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            self._reset_all()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)
        self._reset_all()
        await asyncio.sleep(0)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                # A client that goes away while it waits ends the reaction, as in any real server.
                work = asyncio.ensure_future(self._react(request, writer))
                gone = asyncio.ensure_future(_wait_for_end(reader))
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                if not work.done():
                    work.cancel()
                    await asyncio.gather(work, return_exceptions=True)
                    return
                if not await work:
                    return
        except ValueError:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    # reactions

    def _reaction(self, request: Request) -> Reaction:
        keys = [request.path if request.path != self.path else None]
        if request.verb == "GET" and "last-event-id" in request.headers:
            keys.append("RESUME")
        keys += [request.method, request.verb if request.verb != "POST" else None]
        if request.verb == "POST":
            keys.append("*")
        for key in keys:
            if key is None or key not in self.script:
                continue
            found = self.script[key]
            if callable(found):
                return found(request, self)
            if isinstance(found, Mapping):
                return found
            turn = self._hits.get(key, 0)
            self._hits[key] = turn + 1
            return found[min(turn, len(found) - 1)]
        return {}

    async def _react(self, request: Request, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the socket has ended."""
        reaction = {**self._session_reaction(request), **self._reaction(request)}
        if "sleep" in reaction:
            await asyncio.sleep(reaction["sleep"])
        if reaction.get("hang"):
            await asyncio.sleep(3600)
        if reaction.get("reset"):
            _reset(writer)
            return False
        if reaction.get("close"):
            writer.close()
            return False
        if "raw" in reaction:
            writer.write(_bytes(reaction["raw"]))
            await writer.drain()
            writer.close()
            return False
        headers = dict(reaction.get("headers", {}))
        if "redirect" in reaction:
            headers["Location"] = reaction["redirect"]
            return await _write(writer, reaction.get("status", 307), headers, b"", reaction)
        if "events" in reaction:
            return await self._write_events(request, writer, reaction, headers)
        if "status" in reaction or "body" in reaction:
            headers.setdefault("Content-Type", reaction.get("type", "text/plain"))
            body = reaction.get("body", b"")
            body = body if isinstance(body, str | bytes) else json.dumps(body)
            return await _write(writer, reaction.get("status", 200), headers, _bytes(body), reaction)
        answer = self._answer(request, reaction, headers)
        if answer is None:
            status = 405 if request.verb in ("GET", "DELETE") else 202
            return await _write(writer, status, headers, b"", reaction)
        if reaction.get("as", self.answers) == "sse":
            return await self._write_events(request, writer, {**reaction, "events": [{"data": answer}]}, headers)
        headers.setdefault("Content-Type", reaction.get("type", "application/json"))
        return await _write(writer, 200, headers, json.dumps(answer).encode(), reaction)

    def _session_reaction(self, request: Request) -> Reaction:
        if not self.issues_sessions or request.method in ("initialize", "server/discover", None):
            if request.verb == "DELETE":
                self.sessions.pop(request.headers.get("mcp-session-id", ""), None)
                return {"status": 200} if self.issues_sessions else {}
            return {}
        known = self.sessions.get(request.headers.get("mcp-session-id", ""))
        now = time.monotonic()
        if known is None or (self.session_ttl is not None and now - known > self.session_ttl):
            return self.lost
        self.sessions[request.headers["mcp-session-id"]] = now
        return {}

    def _answer(self, request: Request, reaction: Reaction, headers: dict[str, Any]) -> Any:
        message = request.message
        if "message" in reaction:
            return reaction["message"]
        if request.verb != "POST" or "id" not in message or "method" not in message:
            return None
        envelope: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if "error" in reaction:
            return {**envelope, "error": reaction["error"]}
        method, params = message["method"], message.get("params") or {}
        if method == "initialize" and self.issues_sessions:
            session = uuid.uuid4().hex
            self.sessions[session] = time.monotonic()
            headers["Mcp-Session-Id"] = session
        if "result" in reaction:
            return {**envelope, "result": reaction["result"]}
        result = self._good(method, params)
        if result is None:
            return {**envelope, "error": {"code": -32601, "message": "Method not found"}}
        return {**envelope, "result": result}

    def _good(self, method: str, params: Mapping[str, Any]) -> dict[str, Any] | None:
        info = {"name": "hostile", "version": "1"}
        modern: dict[str, Any] = {}
        if self.era != "legacy":
            modern = {"resultType": "complete"}
        if method == "server/discover" and self.era != "legacy":
            return {
                **modern,
                "supportedVersions": ["2026-07-28"],
                "capabilities": CAPABILITIES,
                "serverInfo": info,
                "ttlMs": 0,
                "cacheScope": "private",
            }
        if method == "initialize" and self.era != "modern":
            version = params.get("protocolVersion", "2025-11-25")
            return {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": info}
        if method == "ping":
            return {}
        if method == "tools/list":
            cached = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
            return {**modern, **cached, "tools": self.tools}
        if method == "tools/call":
            text = json.dumps({"name": params.get("name"), "arguments": params.get("arguments")})
            return {**modern, "content": [{"type": "text", "text": text}]}
        return None

    async def _write_events(
        self, request: Request, writer: asyncio.StreamWriter, reaction: Reaction, headers: Mapping[str, Any]
    ) -> bool:
        own: dict[str, Any] = dict(headers)
        head = _head(reaction.get("status", 200), {"Content-Type": "text/event-stream", "Connection": "close", **own})
        writer.write(head)
        await writer.drain()
        async for event in _each(reaction["events"]):
            if not await self._write_event(request, writer, event):
                return False
        writer.close()
        return False

    async def _write_event(self, request: Request, writer: asyncio.StreamWriter, event: Any) -> bool:
        if isinstance(event, str | bytes):
            writer.write(_bytes(event))
        elif "sleep" in event:
            await asyncio.sleep(event["sleep"])
        elif "repeat" in event:
            for _ in range(event["repeat"]):
                if not await self._write_event(request, writer, event["event"]):
                    return False
                await asyncio.sleep(event.get("every", 0))
        elif event.get("hang"):
            await asyncio.sleep(3600)
        elif event.get("reset"):
            _reset(writer)
            return False
        else:
            lines = []
            if "event" in event:
                lines.append(f"event: {event['event']}")
            if "id" in event:
                lines.append(f"id: {event['id']}")
            if "retry" in event:
                lines.append(f"retry: {event['retry']}")
            data = event.get("data")
            if event.get("answer"):
                data = self._answer(request, {}, {})
            if data is not None:
                text = data if isinstance(data, str) else json.dumps(data)
                lines += [f"data: {line}" for line in text.split("\n")]
            writer.write(("\n".join(lines) + "\n\n").encode())
        await writer.drain()
        return True


async def _each(events: Any) -> AsyncIterator[Any]:
    """The events of a list, or of a generator of the test's."""
    if isinstance(events, list | tuple):
        for event in events:
            yield event
        return
    async for event in events:
        yield event


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    first = await reader.read(1)
    if first == b"\x16":
        raise ValueError("a TLS greeting on a plain port")
    line = first + await reader.readline()
    if not line.strip():
        return None
    verb, target, _ = line.decode("latin-1").split(" ", 2)  # what is no HTTP gets a 400, see `_connection`
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("utf-8", "replace").partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(verb, target, headers, body)


async def _wait_for_end(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():  # noqa: ASYNC110 - a StreamReader has no event for its end that reads nothing
        await asyncio.sleep(0.02)


def _bytes(text: str | bytes) -> bytes:
    return text.encode("utf-8") if isinstance(text, str) else text


def _head(status: int, headers: Mapping[str, Any]) -> bytes:
    lines = [f"HTTP/1.1 {status} Reason"]
    for name, value in headers.items():
        lines += [f"{name}: {one}" for one in (value if isinstance(value, list) else [value])]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8")


async def _write(
    writer: asyncio.StreamWriter, status: int, headers: dict[str, Any], body: bytes, reaction: Reaction
) -> bool:
    if reaction.get("gzip"):
        body = gzip.compress(body)
        headers["Content-Encoding"] = "gzip"
    short = reaction.get("short", 0)
    if reaction.get("chunked"):
        headers["Transfer-Encoding"] = "chunked"
        half = len(body) // 2
        parts = [part for part in (body[:half], body[half:]) if part]
        coded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        writer.write(_head(status, headers) + coded[: len(coded) - short])
    else:
        headers["Content-Length"] = str(len(body))
        writer.write(_head(status, headers) + body[: len(body) - short])
    await writer.drain()
    if short:
        writer.close()
        return False
    return True


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a socket with RST: the other side sees a reset, not an end."""
    found = writer.get_extra_info("socket")
    if found is not None:
        with contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if writer.transport is not None:
        writer.transport.abort()


def closed_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--answers", choices=["json", "sse"], default="json")
    parser.add_argument("--era", choices=["legacy", "modern", "both"], default="legacy")
    parser.add_argument("--session", action="store_true")
    options = parser.parse_args()
    script = json.loads(options.script.read_text()) if options.script else {}
    with HttpServer(
        script, answers=options.answers, era=options.era, session=options.session, port=options.port
    ) as server:
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
