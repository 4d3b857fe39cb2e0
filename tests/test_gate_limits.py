"""What one credential may use, told by a clock of the test's own; and the gate's answers without any server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from pi_mcp.access import Grant, Limits, Scopes
from pi_mcp.config import configuration_of
from pi_mcp.server import limits as limits_module
from pi_mcp.server.gate import Caller, OpenGate, unknown
from pi_mcp.server.limits import KeyLimits, retry_after, too_many
from pi_mcp.server.scoped_gate import ScopedGate
from tests.support import run


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def grant(id: str = "k1", **limits: int) -> Grant:
    return Grant("ann", id, "key", Scopes.everything(), limits=Limits(**limits))


def test_a_minute_has_as_many_requests_as_the_key_may_make() -> None:
    clock = Clock()
    usage, mine = KeyLimits(clock), grant(requests_per_minute=2)
    assert [usage.request(mine) for _ in range(4)] == [0.0, 0.0, 60.0, 60.0]
    clock.now += 59
    assert usage.request(mine) == 1.0
    assert usage.request(grant("k2", requests_per_minute=1)) == 0.0, "each key for itself"
    clock.now += 1
    assert usage.request(mine) == 0.0


def test_a_limit_that_is_passed_is_news_once_within_each_minute() -> None:
    clock = Clock()
    usage, mine = KeyLimits(clock), grant(requests_per_minute=1)
    usage.request(mine)
    assert [usage.newly_passed(mine) for _ in range(3)] == [True, False, False]
    assert usage.newly_passed(grant("k2", requests_per_minute=1)), "each key for itself"
    clock.now += 60
    usage.request(mine)
    assert [usage.newly_passed(mine) for _ in range(2)] == [True, False]


def test_what_came_from_one_key_is_counted_together() -> None:
    usage, mine = KeyLimits(Clock()), replace(grant(requests_per_minute=2), key="k1")
    signed_in = replace(mine, credential_id="s1", kind="session")
    assert usage.request(mine) == 0.0
    assert usage.request(signed_in) == 0.0
    assert usage.request(replace(signed_in, credential_id="g1", kind="oauth")) > 0
    assert usage.request(mine) > 0


def test_results_count_when_they_are_there() -> None:
    clock = Clock()
    usage, mine = KeyLimits(clock), grant(result_bytes=100)
    assert usage.request(mine) == 0.0
    usage.result(mine, 99)
    assert usage.request(mine) == 0.0
    usage.result(mine, 1)
    assert usage.request(mine) == 60.0
    clock.now += 61
    assert usage.request(mine) == 0.0


def test_calls_at_a_time_are_given_back() -> None:
    usage, mine = KeyLimits(Clock()), grant(concurrent=1)
    assert usage.enter(mine) == 0.0
    assert usage.enter(mine) > 0
    usage.leave(mine)
    assert usage.enter(mine) == 0.0
    usage.leave(mine)
    usage.leave(mine)
    assert usage.enter(mine) == 0.0
    assert usage.enter(mine) > 0


def test_without_limits_nothing_is_counted_and_many_keys_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "_REMEMBERED", 10)
    usage = KeyLimits(Clock())
    for _ in range(1000):
        assert usage.request(grant()) == 0.0
    assert not usage._usage
    running = grant("running", concurrent=1)
    usage.enter(running)
    for number in range(100):
        usage.request(grant(str(number), requests_per_minute=1))
    assert len(usage._usage) == 10
    assert usage.enter(running) > 0, "what is under way is not forgotten"


def test_the_time_to_wait_is_whole_seconds() -> None:
    assert [retry_after(wait) for wait in (0.0, 0.001, 1.0, 1.2, 59.5)] == [1, 1, 1, 2, 60]
    assert too_many("concurrent", 0.2).to_json()["data"] == {"limit": "concurrent", "retryAfter": 1}


class Rows:
    """The part of a store that a refusal needs."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    async def record(self, row: Any) -> None:
        self.rows.append(row)


def gate(**servers: Mapping[str, Any]) -> tuple[ScopedGate, Rows]:
    rows: Any = Rows()
    configuration = configuration_of({name: {"command": "x", **entry} for name, entry in servers.items()})
    return ScopedGate(lambda: configuration, rows), rows


def caller(*scopes: str) -> Caller:
    return Caller(None, Grant("ann", "k1", "key", Scopes.of(scopes)), 1, "http")


@pytest.mark.parametrize(
    ("scopes", "asked", "name", "data"),
    [
        (("tools:read",), "tool", "x", {"scope": "tools:write"}),
        (("server:a:*",), "tool", "x", {"scope": "tools:read tools:write"}),
        (("tools:read",), "resource", "file:///x", {"scope": "resources:read"}),
        (("resources:read",), "resource", "ui://x", {"scope": "apps:render"}),
        (("tools:read",), "prompt", "x", {"scope": "prompts:read"}),
        (("admin",), "search", "mcp_search", {"scope": "tools:read"}),
        (("tools:write",), "method", "vendor/x", {"scope": "tools:read"}),
    ],
)
def test_a_refusal_speaks_of_the_caller_alone(
    scopes: tuple[str, ...], asked: Any, name: str, data: dict[str, str]
) -> None:
    async def work() -> None:
        made, rows = gate(a={})
        error = await made.refuse(caller(*scopes), asked, name)
        assert (error.code, error.message, error.data) == (-32003, "Not permitted", data)
        (row,) = rows.rows
        assert (row.outcome, row.scope, row.server) == ("refused", data["scope"], None)

    run(work())


@pytest.mark.parametrize(
    ("asked", "code"), [("tool", -32602), ("prompt", -32602), ("resource", -32002), ("method", -32601)]
)
def test_who_may_do_everything_is_told_that_it_is_not_there(asked: Any, code: int) -> None:
    async def work() -> None:
        made, rows = gate(a={})
        all_scopes = caller(*Scopes.everything())
        error = await made.refuse(all_scopes, asked, "x")
        assert error.to_json() == unknown(asked, "x").to_json()
        assert error.to_json() == (await OpenGate().refuse(all_scopes, asked, "x")).to_json()
        assert error.code == code
        assert rows.rows == []

    run(work())


def test_a_tool_of_a_server_that_is_gone_or_off_is_a_write_of_nobody() -> None:
    made, _ = gate(a={}, off={"disabled": True}, low={"trust": "untrusted"})
    look = {"name": "look", "annotations": {"readOnlyHint": True}}
    for server, permitted in (("a", True), ("off", False), ("gone", False), ("low", False)):
        assert made.permits_tool(caller("tools:read"), server, look) == permitted, server
    for odd in ({"name": "look", "annotations": None}, {"name": "look", "annotations": {"readOnlyHint": "yes"}}, {}):
        assert not made.permits_tool(caller("tools:read"), "a", odd)
        assert made.permits_tool(caller("tools:write"), "a", odd)
