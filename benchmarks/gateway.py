"""What a call through the gateway costs beside the direct call, and beside other proxies on the same upstream.

The client is one and the same for all sides, and as thin as can be: blocking pipes and one kept connection, so that
what differs is what stands between it and the server. FastMCP's `create_proxy` is measured where `--fastmcp` names
its Python, npm's `mcp-proxy` (which has no stdio face, and no HTTP upstream) where PI_MCP_BENCH_MCP_PROXY names its
`mcp-proxy.mjs`; both stand in front of the same server program.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from calls import BATCH, HELLO, http_server
from measure import Options, Row, environment, milliseconds, turned
from setting import SERVERS, write_config

STDIO = {"command": sys.executable, "args": [str(SERVERS / "sdk_server.py")]}
SERVE = [sys.executable, "-m", "pi_mcp", "serve", "--no-prefix", "--expose", "all"]
HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}
CLIENTS = 64
LONGEST = 45.0
"""Seconds after which a comparison has to do with the calls that it has, 200 of each side at least."""
START = 60.0
"""Seconds within which a side has to answer its first request."""


class Client(Protocol):
    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]: ...

    def notify(self, method: str) -> None: ...


class Pipes:
    """A client over the pipes of a process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._ids = itertools.count(1)

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number and "method" not in message:
                return message
        raise RuntimeError("the process has ended")

    def notify(self, method: str) -> None:
        self._write({"jsonrpc": "2.0", "method": method})

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


class Http:
    """A client of one session over one connection that is kept."""

    def __init__(self, url: str) -> None:
        where = urllib.parse.urlsplit(url)
        self._path = where.path
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self._ids = itertools.count(1)
        self._used = time.monotonic()

    def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._ids)
        kind, body = self._post({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        if kind.startswith("application/json"):
            answer: dict[str, Any] = json.loads(body)
            return answer
        for line in body.splitlines():
            if line.startswith(b"data:") and line[5:].strip():
                message: dict[str, Any] = json.loads(line[5:])
                if message.get("id") == number and "method" not in message:
                    return message
        raise RuntimeError(f"no answer in {kind}: {body[:200]!r}")

    def notify(self, method: str) -> None:
        self._post({"jsonrpc": "2.0", "method": method})

    def _post(self, message: Mapping[str, Any]) -> tuple[str, bytes]:
        if time.monotonic() - self._used > 2.0:
            self._connection.close()  # servers drop one that is idle for some seconds
        self._connection.request("POST", self._path, json.dumps(message).encode(), self._headers)
        response = self._connection.getresponse()
        body = response.read()
        self._used = time.monotonic()
        if response.status >= 400:
            raise RuntimeError(f"HTTP {response.status}: {body[:200]!r}")
        if session := response.headers.get("mcp-session-id"):
            self._headers["Mcp-Session-Id"] = session
            self._headers["Mcp-Protocol-Version"] = HANDSHAKE["protocolVersion"]  # type: ignore[assignment]
        return response.headers.get("content-type", ""), body

    def close(self) -> None:
        self._connection.close()


def begun(client: Client) -> Callable[[], None]:
    """Do the handshake; the function that makes one call and checks its answer."""
    client.request("initialize", HANDSHAKE)
    client.notify("notifications/initialized")
    client.request("tools/list", {})

    def call() -> None:
        answer = client.request("tools/call", {"name": "echo", "arguments": HELLO})
        if answer.get("result", {}).get("content", [{}])[0].get("text") != HELLO["text"]:
            raise RuntimeError(f"not the answer: {json.dumps(answer)[:300]}")

    call()
    return call


def gateway(options: Options, home: Path) -> list[Row]:
    """All figures of the gateway; every group has its sides side by side."""
    with contextlib.ExitStack() as stack:
        processes = {
            "direct": [STDIO["command"], *STDIO["args"]],
            "pi-mcp": _serve(home, STDIO),
            **_fastmcp(options, STDIO),
        }
        sides = {name: begun(Pipes(stack.enter_context(_process(words, home)))) for name, words in processes.items()}
        rows = _compared("stdio in front of stdio", _timed(options, sides), aim=2.0)  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        upstream = {"url": stack.enter_context(http_server())}
        fronts = {"direct": upstream["url"], **_fronts(stack, options, home, upstream)}
        sides = {name: begun(_ready(url)) for name, (url, _) in _addresses(fronts).items()}
        rows += _compared("HTTP in front of HTTP", _timed(options, sides), aim=4.0)
    with contextlib.ExitStack() as stack:
        standing = _addresses(_fronts(stack, options, home, STDIO))
        sides = {name: begun(_ready(url)) for name, (url, _) in standing.items()}
        rows += _compared("HTTP in front of stdio", _timed(options, sides))
        rows += _load(options, standing)
    return rows


# the sides


def _serve(home: Path, entry: Mapping[str, Any], *more: str) -> list[str]:
    return [*SERVE, "--config", str(write_config(home, {"one": entry}, f"{'url' in entry}.json")), *more]


def _fastmcp(options: Options, entry: Mapping[str, Any], *more: str) -> dict[str, list[str]]:
    if options.fastmcp is None:
        return {}
    return {"FastMCP": [str(options.fastmcp), str(SERVERS / "fastmcp_proxy.py"), json.dumps(entry), *more]}


def _fronts(
    stack: contextlib.ExitStack, options: Options, home: Path, entry: Mapping[str, Any]
) -> dict[str, tuple[str, int]]:
    """The proxies over HTTP in front of one server: address and process."""
    standing: dict[str, tuple[str, int]] = {}

    def start(name: str, words: list[str], port: int) -> None:
        process = stack.enter_context(_process(words, home))
        standing[name] = f"http://127.0.0.1:{port}/mcp", process.pid

    port = _free_port()
    start("pi-mcp", _serve(home, entry, "--http", f"127.0.0.1:{port}"), port)
    port = _free_port()
    for name, words in _fastmcp(options, entry, str(port)).items():
        start(name, words, port)
    program = os.environ.get("PI_MCP_BENCH_MCP_PROXY")
    if program and "command" in entry:
        port = _free_port()
        listen = ["--host", "127.0.0.1", "--port", str(port), "--server", "stream"]
        start("npm mcp-proxy", ["node", program, *listen, "--", entry["command"], *entry["args"]], port)
    return standing


def _addresses(fronts: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    return {name: (found, 0) if isinstance(found, str) else found for name, found in fronts.items()}


@contextlib.contextmanager
def _process(words: list[str], home: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        words,
        cwd=home,
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if "--http" not in words and "--port" not in words else subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(url: str) -> Http:
    """A client of an address that is answered, after waiting for that."""
    end = time.monotonic() + START
    where = urllib.parse.urlsplit(url)
    while True:
        try:
            socket.create_connection((where.hostname or "", where.port or 0), 5).close()
            return Http(url)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


# the figures


def _timed(options: Options, sides: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Seconds of each call; the sides take turns. The slowest one does not make it last for ever."""
    began_all = time.monotonic()
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(options.times(1000, 40) // BATCH + 1):
        if time.monotonic() - began_all > LONGEST and number > 10:
            break
        for side in turned(list(sides), number):
            for _ in range(BATCH):
                began = time.perf_counter()
                sides[side]()
                if number:
                    taken[side].append(time.perf_counter() - began)
    return taken


def _compared(what: str, taken: Mapping[str, list[float]], aim: float | None = None) -> list[Row]:
    """p50 and p95, ours beside each other side; `aim` is what may be added to the direct p50, in ms."""
    rows = []
    count = len(taken["pi-mcp"])
    for name, percentile in (("p50", 50), ("p95", 95)):
        of = {side: statistics.quantiles(values, n=100)[percentile - 1] for side, values in taken.items()}
        own = of.pop("pi-mcp")
        for side, value in of.items():
            added = (own - value) * 1000
            held = aim is not None and side == "direct" and percentile == 50
            rows.append(
                Row(
                    f"{name} of {count} calls, {what}",
                    milliseconds(own),
                    f"{side}: {milliseconds(value)}",
                    f"{own / value:.2f}× ({added:+.2f} ms)",
                    f"< +{aim:g} ms" if held else "–",
                    added < aim if held and aim is not None else None,
                )
            )
    return rows


def _load(options: Options, standing: Mapping[str, tuple[str, int]]) -> list[Row]:
    """Sixty-four clients, each with a session of its own, call without a pause for a minute; what the process weighs
    after the first tenth of it, and at the end."""
    seconds = float(options.times(60, 1))
    made = {side: _driven(url, pid, seconds) for side, (url, pid) in standing.items()}
    own = made.pop("pi-mcp")
    return [
        Row(
            f"{CLIENTS} clients at once for {seconds:g} s, HTTP in front of stdio",
            f"{own.calls / seconds:.0f}/s, {own.errors} errors",
            "; ".join(f"{side}: {one.calls / seconds:.0f}/s, {one.errors} errors" for side, one in made.items()) or "–",
            ", ".join(f"{own.calls / max(one.calls, 1):.2f}×" for one in made.values()) or "–",
            "no error",
            own.errors == 0,
        ),
        Row(
            "resident memory of the process meanwhile",
            f"{own.shown()}",
            "; ".join(f"{side}: {one.shown()}" for side, one in made.items()) or "–",
            "–",
            "flat (< 2 MiB)",
            own.after - own.before < 2.0,
        ),
    ]


@dataclass
class Driven:
    """What came of the load on one side; `before` and `after` in MiB, with `between` calls in the meantime."""

    calls: int = 0
    errors: int = 0
    between: int = 0
    before: float = 0.0
    after: float = 0.0

    def shown(self) -> str:
        return f"{self.before:.1f} → {self.after:.1f} MiB over {self.between} calls"


def _driven(url: str, pid: int, seconds: float) -> Driven:
    made = Driven()
    counted = threading.Lock()
    together = threading.Barrier(CLIENTS + 1)

    def one() -> None:
        client = Http(url)
        failed = 0
        try:
            call = begun(client)
        except (OSError, RuntimeError, http.client.HTTPException):
            made.errors += 1
            together.abort()
            return
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(120)
        end = time.monotonic() + seconds
        while time.monotonic() < end and failed < 20:
            try:
                call()
            except (OSError, RuntimeError, http.client.HTTPException):
                failed += 1
            else:
                with counted:
                    made.calls += 1
        client.close()
        with counted:
            made.errors += failed

    threads = [threading.Thread(target=one) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        together.wait(120)
    time.sleep(seconds / 10)
    made.before, made.between = _resident(pid), made.calls
    for thread in threads:
        thread.join()
    made.after, made.between = _resident(pid), made.calls - made.between
    return made


def _resident(pid: int) -> float:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0
