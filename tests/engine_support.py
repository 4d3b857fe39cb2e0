"""`pi-mcp engine` as a process, driven line by line; every line of both sides is held against the schema.

Comes in: requests as a shim would send them, or raw bytes. Goes out: the engine's lines. Every wait has a bound.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.hostile.processes import alive, descendants_of, gone
from tests.shim_support import ROOT, ProtocolCheck

LIMIT = 20.0
COMMAND = [sys.executable, "-m", "pi_mcp.cli", "engine"]


class EngineProcess:
    """A started engine. `asks` answers its questions: a function from method and params to a result."""

    def __init__(
        self, folder: Path, *, checked: bool = True, environ: dict[str, str] | None = None, command: Any = None
    ) -> None:
        self.process = subprocess.Popen(
            command or COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})},
        )
        self.folder = folder
        self.asks: Callable[[str, dict[str, Any]], dict[str, Any] | None] = lambda method, params: None
        self.told: list[dict[str, Any]] = []
        """Notifications and questions of the engine, in order."""
        self._check = ProtocolCheck() if checked else None
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._answers: dict[Any, dict[str, Any]] = {}
        self._number = 0
        self._reading = threading.Event()
        self._reading.set()
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self._thread = threading.Thread(target=self._pump, daemon=True)
        self._thread.start()
        self.errors = b""
        self._errors = threading.Thread(target=self._drain, daemon=True)
        self._errors.start()

    def _pump(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            while True:
                self._reading.wait()
                line = self.process.stdout.readline()
                self._lines.put(line)
                if not line:
                    return

    def _drain(self) -> None:
        assert self.process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            while data := self.process.stderr.read1(65536):
                self.errors += data

    def stop_reading(self) -> None:
        """Leave what the engine writes in its pipe (but for one line that is being read)."""
        self._reading.clear()

    def read_on(self) -> None:
        self._reading.set()

    # Sending

    def raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: dict[str, Any]) -> None:
        message = {"jsonrpc": "2.0", **message}
        if self._check is not None:
            self._check("host", message)
        self.raw(json.dumps(message).encode() + b"\n")

    def begin(self, method: str, **params: Any) -> int:
        """Send a request; its id."""
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        return self._number

    # Receiving

    def line(self, limit: float = LIMIT) -> dict[str, Any] | None:
        """The next line, None at the end of the output."""
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            raise AssertionError(f"no line within {limit} s; told: {self.told}; stderr: {self.errors!r}") from None
        if not line:
            return None
        message = json.loads(line)
        if self._check is not None:
            self._check("engine", message)
        if "method" in message:
            self.told.append(message)
            if "id" in message:
                result = self.asks(message["method"], message["params"])
                if result is not None:
                    self.send({"id": message["id"], "result": result})
        else:
            self._answers[message.get("id")] = message
        return message

    def answer(self, number: Any, limit: float = LIMIT) -> dict[str, Any]:
        """The whole answer to a request of that id."""
        end = time.monotonic() + limit
        while number not in self._answers:
            assert self.line(max(0.0, end - time.monotonic())) is not None, "the engine has ended"
        return self._answers.pop(number)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A request and its result."""
        answer = self.answer(self.begin(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    def fail(self, method: str, **params: Any) -> dict[str, Any]:
        """A request and its error."""
        answer = self.answer(self.begin(method, **params))
        assert "error" in answer, answer
        return answer["error"]

    def news(self, method: str, limit: float = LIMIT) -> dict[str, Any]:
        """The params of the next message of the engine with that method, waiting for it."""
        end = time.monotonic() + limit
        while not any(message["method"] == method for message in self.told):
            assert self.line(max(0.0, end - time.monotonic())) is not None, "the engine has ended"
        found = next(message for message in self.told if message["method"] == method)
        self.told.remove(found)
        return found

    def initialize(self, session: str = "s1", *, kind: str = "new", records: Any = None, **more: Any) -> dict[str, Any]:
        """`initialize` of an ordinary host with a person; `more` are further members of the params."""
        about: dict[str, Any] = {
            "protocol": 1,
            "host": "test",
            "hostVersion": "1",
            "cwd": str(self.folder),
            "interactive": True,
            "ui": ["confirm", "select", "input", "progress"],
            "session": {"id": session, "kind": kind, **({} if records is None else {"records": records})},
        }
        return self.ask("initialize", **{**about, **more})

    # The end

    def close(self) -> None:
        """The host closes its side."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def exit_code(self, limit: float = 8.0) -> int:
        return self.process.wait(limit)


@contextlib.contextmanager
def engine(folder: Path, **more: Any) -> Iterator[EngineProcess]:
    """A running engine; at the end it has to go by itself within five seconds, with all that it started."""
    running = EngineProcess(folder, **more)
    everyone: list[int] = []
    try:
        yield running
        everyone = [running.process.pid, *descendants_of(running.process.pid)]
        running.read_on()
        running.close()
        running.exit_code(7)
        assert gone(everyone, 5), alive(everyone)
    finally:
        everyone = [running.process.pid, *everyone, *descendants_of(running.process.pid)]
        running.process.kill()
        running.process.wait(10)
        for pid in alive(everyone):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        running.read_on()
        running._thread.join(5)
        running._errors.join(5)
        for pipe in (running.process.stdin, running.process.stdout, running.process.stderr):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
