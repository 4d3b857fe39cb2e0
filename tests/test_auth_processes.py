"""Many processes that share one rotating login: one renewal for all, also when one of them is killed in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.auth_store_support import KEY, PLANTED, Authority, files_below, store_of
from tests.hostile.http_server import HttpServer
from tests.support import run

ROOT = Path(__file__).resolve().parent.parent


class Processes:
    """`tests/auth_processes.py`, running."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def round(self, state: Path, url: str, count: int, kill: tuple[str, float] | None = None) -> list[str | None]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"state": str(state), "url": url, "count": count, "kill": kill}) + "\n")
        self.process.stdin.flush()
        said: list[str | None] = json.loads(self.process.stdout.readline())
        return said


@contextlib.contextmanager
def processes() -> Iterator[Processes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.auth_processes"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Processes(process)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_b118_five_programs_with_one_expired_rotating_token_renew_it_once(private_home: Path) -> None:
    authority = Authority(delay=0.3)
    with HttpServer(authority.script()) as http:
        config = private_home / ".config/pi-mcp/mcp.json"
        config.parent.mkdir(parents=True)
        config.write_text(json.dumps({"mcpServers": {"s": {"url": http.url}}}))
        state = private_home / ".local/state/pi-mcp"
        run(store_of(state).save(authority.login("s", http, lifetime=-5.0)))
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "pi_mcp.cli", "call", "s", "echo"],
                cwd=private_home,
                env={**os.environ, **KEY, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(5)
        ]
        outputs = [one.communicate(timeout=60) for one in running]
        assert [one.returncode for one in running] == [0] * 5, outputs
        assert len(authority.requests) == 1
        shown = json.dumps(outputs) + files_below(private_home)
        assert PLANTED not in shown


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_fifty_processes_with_one_expired_rotating_token_send_one_renewal_and_all_succeed(tmp_path: Path) -> None:
    authority = Authority(delay=0.2)
    with HttpServer(authority.script()) as http, processes() as many:
        run(store_of(tmp_path).save(authority.login("s", http, lifetime=-5.0)))
        said = many.round(tmp_path, http.url, 50)
        assert Counter(said) == {"ok": 50}
        assert len(authority.requests) == 1
        calls = http.of("tools/call")
        assert len(calls) == 50
        assert {one.headers["authorization"] for one in calls} == {f"Bearer {next(iter(authority.accepts))}"}
        assert not [one for one in http.requests if "at1-" in one.headers.get("authorization", "")]
    assert PLANTED not in files_below(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_of_fifty_processes_one_is_killed_at_a_random_point_over_twenty_rounds(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    outcomes: list[Any] = []
    with processes() as many:
        for turn in range(20):
            authority = Authority(delay=0.1)
            with HttpServer(authority.script()) as http:
                state = tmp_path / str(turn)
                run(store_of(state).save(authority.login("s", http, lifetime=-5.0)))
                # Every other time the one that renews: one of fifty at random would seldom be that one.
                kill = ("holder", chance.uniform(0.0, 0.8)) if turn % 2 else ("any", chance.uniform(0.0, 2.0))
                started = time.monotonic()
                said = many.round(state, http.url, 50, kill)
                count = Counter(one for one in said if one is not None)
                outcome = (seed, turn, kill, dict(count), len(authority.requests), round(time.monotonic() - started, 1))
                outcomes.append(outcome)
                assert sum(count.values()) >= 49, outcome
                assert len(authority.requests) <= 2, outcome
                stored = run(store_of(state).load("s", http.url))
                assert stored is not None
                if authority.alive:
                    assert set(count) == {"ok"}, outcome
                    assert stored.tokens.refresh_token == authority.refresh_token, "the newest token is kept"
                else:
                    # The server had rotated, and the only process that knew the new token was killed.
                    assert set(count) == {"authentication_required"}, outcome
                    assert stored.tokens.access_token == ""
                    assert len(authority.requests) == 2, outcome
    print(*outcomes, sep="\n")
