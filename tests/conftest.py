"""Every test runs with its own home, configuration, state and cache directories, and leaves nothing running."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.hostile.processes import alive, children_of

# The machines that run this are busy at times: how long an example takes is no property of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

KEYS = ("PI_MCP_CREDENTIAL_KEY", "PI_MCP_CREDENTIAL_KEY_FILE")


SLOW_LIMIT = 400
"""Seconds for a slow test that names none: the first of each host installs it, and a machine may be busy."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep a test away from the developer's own files."""
    home = tmp_path_factory.mktemp("home")
    for name in ("PI_MCP_CONFIG", "PI_CODING_AGENT_DIR", "XDG_RUNTIME_DIR", "PI_MCP_LOG", *KEYS):
        monkeypatch.delenv(name, raising=False)
    # Nor with the developer's keyring: a test that wants one brings it.
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / ".local/share"))
    return home


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Fail a test after which child processes, threads or sockets of its own are still there (Linux)."""
    if not sys.platform.startswith("linux"):
        yield
        return
    before = (set(children_of(os.getpid())), set(threading.enumerate()), _sockets())
    yield
    children = _settled(lambda: set(alive(children_of(os.getpid()))) - before[0], 5.0)
    for pid in children:
        os.kill(int(str(pid)), signal.SIGKILL)
    threads = _settled(lambda: {one for one in threading.enumerate() if not one.daemon} - before[1], 2.0)
    sockets = _settled(lambda: _sockets() - before[2], 2.0)
    assert not children, f"child processes are left: {children}"
    assert not threads, f"threads are left: {threads}"
    assert not sockets, f"sockets are left: {sockets}"


def _settled(left: Callable[[], set[object]], seconds: float) -> set[object]:
    """What is still left after a while; things may need a moment, or the garbage collector, to go."""
    end = time.monotonic() + seconds
    found = left()
    while found and time.monotonic() < end:
        gc.collect()
        time.sleep(0.02)
        found = left()
    return found


def _sockets() -> set[object]:
    found: set[object] = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(entry)  # noqa: PTH115 -- the target is no path
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
