"""A running gateway for a test, and clients of it that send and get raw messages.

Comes in: `mcpServers` entries. Goes out: a gateway over HTTP in this process or over stdio in one of its own, and
clients of either era that keep everything they were sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2

from pi_mcp.plugin import Plugin
from pi_mcp.server.gateway import Gateway
from pi_mcp.server.http import Application, app
from pi_mcp.server.listening import listening, serve_http
from tests.hostile.connecting import text_of
from tests.hostile.processes import descendants_of, gone
from tests.plugin_support import plugin_of

META = "io.modelcontextprotocol/"
VERSION = "2026-07-28"
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""One for all clients, without certificates: reading those takes longer than most of these tests."""
Answer = Callable[[str, dict[str, Any]], Awaitable[Any] | Any]


class Running:
    """A gateway in this process."""

    def __init__(self, plugin: Plugin, gateway: Gateway, application: Application) -> None:
        self.plugin, self.gateway, self.application = plugin, gateway, application
        self.url = ""
        self.stop: Callable[[], None] = lambda: None
        self.task: asyncio.Task[None] | None = None


@contextlib.asynccontextmanager
async def gateway_of(
    servers: Mapping[str, Mapping[str, Any]],
    folder: Path,
    *,
    http: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    drain: float = 5.0,
    **options: Any,
) -> AsyncIterator[Running]:
    """A gateway over HTTP on a free port; `http` are options of `app`, the others those of `Gateway`."""
    async with plugin_of(servers, folder, **(environ or {})) as plugin:
        gateway = Gateway(plugin, **options)
        running = Running(plugin, gateway, app(gateway, **(http or {})))
        ready = asyncio.Event()

        def take_stop(call: Callable[[], None]) -> None:
            running.stop = call

        def take_url(url: str) -> None:
            running.url = url
            ready.set()

        running.task = asyncio.create_task(
            serve_http(
                running.application, listening("127.0.0.1", 0), drain=drain, on_signals=take_stop, on_ready=take_url
            )
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({waiting, running.task}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        waiting.cancel()
        if running.task.done():
            await running.task
        try:
            yield running
        finally:
            if not running.gateway.draining:  # a second signal would cut off what is still running
                running.stop()
            await asyncio.wait({running.task}, timeout=drain + 10)
            assert running.task.done()
            running.task.result()


class Failed(Exception):
    """An error that the gateway answered."""

    def __init__(self, error: Mapping[str, Any], status: int = 200) -> None:
        super().__init__(json.dumps(error))
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")
        self.error, self.status = dict(error), status


class Client:
    """A client of the handshake era over HTTP. `heard` are all messages beside answers, in order."""

    modern = False

    def __init__(
        self, url: str, *, capabilities: Mapping[str, Any] | None = None, name: str = "test", **headers: str
    ) -> None:
        self.url = url
        self.name = name
        self.capabilities = dict(capabilities or {})
        self.headers = {**ACCEPT, **headers}
        self.heard: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.answer: Answer = lambda method, params: {}
        self.session: str | None = None
        self.initialized: dict[str, Any] = {}
        self._ids = itertools.count(1)
        self._http = httpx2.AsyncClient(timeout=30.0, trust_env=False, verify=NO_TLS)
        self._listener: asyncio.Task[None] | None = None
        self.listening = asyncio.Event()

    async def __aenter__(self) -> Client:
        await self.begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        with contextlib.suppress(httpx2.HTTPError):
            if self.session is not None:
                await self._http.delete(self.url, headers=self._sent({}))
        await self._http.aclose()

    async def begin(self, version: str = "2025-11-25") -> None:
        params = {
            "protocolVersion": version,
            "capabilities": self.capabilities,
            "clientInfo": {"name": self.name, "version": "1"},
        }
        self.initialized = await self.request("initialize", params)
        await self.notify("notifications/initialized")

    async def listen(self) -> None:
        """Open the session's own stream."""
        self._listener = asyncio.create_task(self._listening())
        await asyncio.wait_for(self.listening.wait(), 10)

    async def _listening(self) -> None:
        async with self._http.stream("GET", self.url, headers=self._sent({}), timeout=None) as response:
            assert response.status_code == 200, response.status_code
            self.listening.set()
            async for message in events(response):
                await self._took(message)

    def _sent(self, message: Mapping[str, Any]) -> dict[str, str]:
        del message
        headers = dict(self.headers)
        if self.session is not None:
            headers["mcp-session-id"] = self.session
            headers["mcp-protocol-version"] = str(self.initialized.get("protocolVersion", "2025-11-25"))
        return headers

    def message(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": next(self._ids), "method": method}
        if params is not None:
            message["params"] = dict(params)
        return message

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The result; raises Failed."""
        return await self.send(self.message(method, params))

    async def send(self, message: dict[str, Any]) -> dict[str, Any]:
        headers = self._sent(message)
        async with self._http.stream("POST", self.url, headers=headers, json=message) as response:
            if "mcp-session-id" in response.headers and not self.modern:
                self.session = response.headers["mcp-session-id"]
            kind = response.headers.get("content-type", "")
            if kind.startswith("text/event-stream"):
                async for one in events(response):
                    if "method" not in one and one.get("id") == message["id"]:
                        return _result(one, response.status_code)
                    await self._took(one)
                raise AssertionError("the stream ended without an answer")
            body = await response.aread()
            if not kind.startswith("application/json"):
                raise Failed({"code": 0, "message": body.decode()}, response.status_code)
            return _result(json.loads(body), response.status_code)

    async def _took(self, message: dict[str, Any]) -> None:
        assert message.get("jsonrpc") == "2.0"
        if "method" in message and "id" in message:
            self.asked.append(message)
            found = self.answer(message["method"], message.get("params") or {})
            found = await found if isinstance(found, Awaitable) else found
            if found is not None:
                body = found if "error" in found else {"result": found}
                await self._post({"jsonrpc": "2.0", "id": message["id"], **body})
        else:
            self.heard.append(message)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> int:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = dict(params)
        return await self._post(message)

    async def _post(self, message: dict[str, Any]) -> int:
        response = await self._http.post(self.url, headers=self._sent(message), json=message)
        return response.status_code

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return await self.request("tools/call", {"name": name, "arguments": dict(arguments or {}), **more})

    async def text(self, name: str, arguments: Mapping[str, Any] | None = None) -> str:
        return text_of(await self.call(name, arguments))

    async def every(self, method: str, member: str) -> list[dict[str, Any]]:
        """All pages of a list."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            result = await self.request(method, {} if cursor is None else {"cursor": cursor})
            found += result[member]
            cursor = result.get("nextCursor")
            if cursor is None:
                return found

    def methods(self) -> list[str]:
        return [one["method"] for one in self.heard]


class ModernClient(Client):
    """A client of 2026-07-28 over HTTP: no handshake, an envelope and headers with each request."""

    modern = True

    async def begin(self, version: str = VERSION) -> None:
        del version

    def message(self, method: str, params: Mapping[str, Any] | None) -> dict[str, Any]:
        params = dict(params or {})
        params["_meta"] = {
            **(params.get("_meta") or {}),
            META + "protocolVersion": VERSION,
            META + "clientInfo": {"name": "test", "version": "1"},
            META + "clientCapabilities": self.capabilities,
        }
        return super().message(method, params)

    def _sent(self, message: Mapping[str, Any]) -> dict[str, str]:
        headers = {**ACCEPT, **self.headers, "mcp-protocol-version": VERSION}
        if "method" in message:
            headers.setdefault("mcp-method", str(message["method"]))
            params = message.get("params") or {}
            name = params.get("name", params.get("uri"))
            if isinstance(name, str) and message["method"] in ("tools/call", "prompts/get", "resources/read"):
                headers.setdefault("mcp-name", name)
        return headers


class StdioClient(Client):
    """A client of the handshake era of a gateway that is a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, *, begins: bool = True, **more: Any) -> None:
        super().__init__("", **more)
        self.begins = begins
        self.process = process
        self.order: list[str] = []
        """What came, in order: methods, and `answer N`."""
        self._waiting: dict[Any, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def begin(self, version: str = "2025-11-25") -> None:
        if self.begins:
            await super().begin(version)

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        assert self.process.stdin is not None
        self.process.stdin.close()
        await asyncio.wait_for(self.process.wait(), 15)
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "method" in message:
                self.order.append(message["method"])
                await self._took(message)
            else:
                self.order.append(f"answer {message['id']}")
                waiting = self._waiting.pop(message["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
        for waiting in self._waiting.values():
            waiting.set_exception(EOFError())

    async def send(self, message: dict[str, Any]) -> dict[str, Any]:
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = answer
        await self._post(message)
        return _result(await asyncio.wait_for(answer, 30), 200)

    async def _post(self, message: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        await self.process.stdin.drain()
        return 0


@contextlib.asynccontextmanager
async def stdio_gateway(
    servers: Mapping[str, Mapping[str, Any]], folder: Path, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`pi-mcp serve` over stdio; whatever it started is gone afterwards."""
    file = folder / "gateway.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    process = await asyncio.create_subprocess_exec(
        *command(file, *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 26,
    )
    try:
        yield process
    finally:
        pids = [process.pid, *descendants_of(process.pid)]
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 20)
        assert await asyncio.to_thread(gone, pids, 10.0), "processes are left"
        process._transport.close()  # type: ignore[attr-defined]


def command(file: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "pi_mcp", "serve", "--config", str(file), *options]


@contextlib.asynccontextmanager
async def http_process(file: Path, *options: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, list[str]]]:
    """`pi-mcp serve --http` on a free port, as a process of its own: its address, and the lines that it has printed."""
    process = await asyncio.create_subprocess_exec(
        *command(file, "--http", "127.0.0.1:0", *options),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ),
    )
    lines: list[str] = []
    assert process.stderr is not None
    try:
        while not lines or not lines[-1].startswith("pi-mcp serves "):
            line = (await asyncio.wait_for(process.stderr.readline(), 30)).decode()
            assert line, lines
            lines.append(line.strip())
        yield process, lines[-1].split()[-1], lines
    finally:
        pids = [process.pid, *descendants_of(process.pid)]
        if process.returncode is None:
            process.terminate()
            await asyncio.wait_for(process.wait(), 30)
        assert await asyncio.to_thread(gone, pids, 10.0), "processes are left"
        process._transport.close()  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def http_gateway(
    servers: Mapping[str, Mapping[str, Any]], folder: Path, *options: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`http_process` for these servers: the process and its address."""
    file = folder / "gateway.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    async with http_process(file, *options) as (process, url, _):
        yield process, url


async def events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The messages of an event stream. Every event has to be one message (B196)."""
    kind, data = "message", ""
    async for line in response.aiter_lines():
        if line.startswith(":"):
            continue
        if line.startswith("event:"):
            kind = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and data:
            assert kind == "message"
            yield json.loads(data)
            kind, data = "message", ""


def _result(message: Mapping[str, Any], status: int) -> dict[str, Any]:
    if "error" in message:
        raise Failed(message["error"], status)
    return dict(message["result"])
