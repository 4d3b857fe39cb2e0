"""What a running gateway tells its operator keeps nobody waiting, also where nobody reads it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pi_mcp.cli import operator_lines
from tests.auth_server import free_port
from tests.gateway_support import command

LINE = 200
"""Bytes at least of a line about a Host header of that length."""


def narrow_pipe() -> tuple[int, int, int]:
    """A pipe's ends, and how many bytes it holds at most."""
    reading, writing = os.pipe()
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        return reading, writing, fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    return reading, writing, 65536


@contextlib.contextmanager
def unread(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str, int]]:
    """A gateway of whose standard error nobody reads more than its start: process, address, size of the pipe."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {}}))
    reading, writing, size = narrow_pipe()
    port = free_port()
    with subprocess.Popen(
        command(config, "--http", f"127.0.0.1:{port}"), stdin=subprocess.DEVNULL, stdout=writing, stderr=writing
    ) as process:
        os.close(writing)
        try:
            said = b""
            while b"pi-mcp serves" not in said:
                got = os.read(reading, 4096)
                assert got, said
                said += got
            yield process, f"http://127.0.0.1:{port}", size
        finally:
            os.close(reading)
            if process.poll() is None:
                process.kill()


def status(url: str, host: str | None = None) -> int:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=20) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_a_gateway_whose_lines_nobody_reads_serves_and_ends(tmp_path: Path) -> None:
    """The pipe of a supervisor that reads nothing is full after some requests of anybody's."""
    with unread(tmp_path) as (process, url, size):
        for _ in range(3 * size // LINE):
            assert status(f"{url}/mcp", "x" * LINE) == 421
        assert status(f"{url}/healthz") == 200
        process.terminate()
        assert process.wait(20) == 0


def test_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    blocked, go_on = threading.Event(), threading.Event()

    def write(text: str) -> None:
        blocked.set()
        assert go_on.wait(20)
        written.append(text)

    monkeypatch.setattr(operator_lines, "WAITING", 2)
    monkeypatch.setattr(operator_lines, "_write", write)
    lines = operator_lines._Lines()
    lines.say("first")
    assert blocked.wait(20)
    for number in range(5):
        lines.say(f"waiting {number}")
    go_on.set()
    end = time.monotonic() + 20
    while len(written) < 4 and time.monotonic() < end:
        time.sleep(0.01)
    lines.say("last")
    lines.close()
    assert written == [
        "first",
        "waiting 0",
        "waiting 1",
        "pi-mcp: 3 further lines were left out, since nobody read standard error",
        "last",
    ]
