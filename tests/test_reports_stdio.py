"""The field reports about stdio servers, through the whole product against real processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.connect.logring import LIMIT
from tests.hostile.processes import alive, children_of, gone, state_of
from tests.hostile.product import SECRET, product
from tests.hostile.script import GONE, entry, methods_of, pids_of, record_of
from tests.support import run

ENV = {"TOKEN": "${PLANTED}"}


def server(folder: Path, script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return entry(folder, script, env=ENV, **fields)


def defunct() -> list[int]:
    """Children of this process that nobody has waited for."""
    return [pid for pid in children_of(os.getpid()) if state_of(pid) == "Z"]


async def ended(pids: list[int]) -> bool:
    """All of them ended and were waited for, within three seconds."""
    if not await asyncio.to_thread(gone, pids, 3.0):
        return False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(3.0):
            while defunct():  # noqa: ASYNC110 -- no event tells of it
                await asyncio.sleep(0.02)
    return not defunct()


def test_b031_the_configured_start_time_counts_and_a_late_server_is_started_afresh(tmp_path: Path) -> None:
    async def main() -> None:
        slow = [{"sleep": 0.8}, {"result": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}}]
        patient = server(tmp_path, {"start": slow[:1]}, timeoutMs=5000)
        hasty = server(tmp_path, {"server/discover": [GONE], "initialize": [slow]}, startupTimeoutMs=400)
        async with product(tmp_path, {"patient": patient, "hasty": hasty}) as made:
            answer = await made.search("echo")
            assert {one.server for one in answer.loaded} == {"patient"}
            (diagnostic,) = answer.not_searched
            assert (diagnostic.server, diagnostic.code) == ("hasty", "timeout")
            assert "0.4 s" in diagnostic.message
            assert "startupTimeoutMs" in diagnostic.message
            # The failure is told before the process has ended, which takes its own time.
            assert await ended(pids_of(hasty))
            await made.search("echo", server="hasty")
            await made.mcp("reconnect hasty")
            assert len(pids_of(hasty)) == 3
            assert await ended(pids_of(hasty))

    run(main())


def test_b032_the_cause_on_stderr_is_told_at_once_and_shown_on_request(tmp_path: Path) -> None:
    async def main() -> None:
        words = f"\u001b[31mError: missing API_URL\u001b[0m (token {SECRET})\n"
        s = server(tmp_path, {"start": [{"stderr": words}, {"exit": 1}]})
        async with product(tmp_path, {"s": s}) as made:
            begun = time.monotonic()
            (diagnostic,) = (await made.search("echo")).not_searched
            assert time.monotonic() - begun < 10
            assert diagnostic.code == "connection_failed"
            assert "exited with status 1 before the handshake" in diagnostic.message
            assert "/mcp get s" in str(diagnostic.hint)
            assert "Error: missing API_URL (token ***)" in await made.mcp("get s")

    run(main())


@pytest.mark.slow
def test_b034_twenty_reconnects_leave_no_defunct_child(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"start": [{"sleep": 0.02}, {"exit": 3}]})
        async with product(tmp_path, {"s": s}) as made:
            for _ in range(20):
                assert "exited with status 3" in await made.mcp("reconnect s")
                assert await ended(pids_of(s))
            # Each attempt is one process for the probe and one without it.
            assert 20 <= len(pids_of(s)) <= 40

    run(main(), 60)


def test_b035_a_banner_is_skipped_counted_and_shown(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"start": [{"raw": "Server version: 1.2\n"}, {"raw": f"\n{{not json {SECRET}\n[]\n"}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            await made.text()
            got = await made.mcp("get s")
            assert "Server version: 1.2" in got
            assert "were no messages and were skipped" in got

    run(main())


def test_b037_messages_may_come_in_any_pieces(tmp_path: Path) -> None:
    async def main() -> None:
        first = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"h\u00e9llo \u5de5"}]}}'
        second = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"second"}}'
        middle = len(first) // 2
        glued = [{"pieces": [first[:middle], f"{first[middle:]}\r\n{second}\r\n"], "pause": 0.05}]
        start, end = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"', '"}]}}\n'
        cut = [{"raw": start}, {"hex": "c3"}, {"sleep": 0.05}, {"hex": "a9f09f"}, {"sleep": 0.05}, {"hex": "9880"}]
        s = server(tmp_path, {"tools/call": [glued, [*cut, {"raw": end}]]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            assert await made.text() == "h\u00e9llo \u5de5"
            assert await made.text() == "\u00e9\U0001f600"
            assert "second" in await made.mcp("get s")

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("newlines", [True, False])
def test_b040_a_megabyte_on_stderr_before_each_answer_blocks_nothing(tmp_path: Path, newlines: bool) -> None:
    async def main() -> None:
        flood = {"flood": 1_000_000, "newlines": newlines}
        script = {"tools/call": [flood, {"echo": True}], "tools/list": [flood, {"result": {"tools": []}}]}
        script["tools/list"] = [flood, {"result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}}]
        s = server(tmp_path, script)
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            for _ in range(3):
                await made.text()
            assert sum(map(len, made.plugin.connections.get("s").log.lines())) <= LIMIT + 16_384

    run(main())


@pytest.mark.slow
def test_b041_a_noisy_refusal_of_the_probe_costs_a_share_of_the_start(tmp_path: Path) -> None:
    async def main() -> None:
        noisy = server(tmp_path, {"server/discover": [{"flood": 6000}, GONE]})
        mute = server(tmp_path, {"server/discover": [{"flood": 6000}, {"hang": True}]}, startupTimeoutMs=8000)
        async with product(tmp_path, {"noisy": noisy, "mute": mute}) as made:
            begun = time.monotonic()
            answer = await made.search("echo")
            assert time.monotonic() - begun < 5.5
            assert not answer.not_searched
            assert len(pids_of(noisy)) == len(pids_of(mute)) == 1

    run(main())


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ({"kill": 9}, "was ended by signal 9"),
        ({"exit": 0}, "exited with status 0"),
        ({"exit": 7}, "exited with status 7"),
        ({"close_stdout": True}, "closed its output"),
    ],
)
def test_b043_a_server_that_dies_in_a_call_ends_it_and_nothing_is_repeated(
    tmp_path: Path, end: dict[str, Any], words: str
) -> None:
    async def main() -> None:
        s = server(tmp_path, {"tools/call:echo": [{"stderr": f"{SECRET}\n"}, end], "tools/call:other": [{"pid": True}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.load("s.echo", "s.other")
            before = await made.text("mcp__s__other")
            begun = time.monotonic()
            diagnostic = await made.fails("mcp__s__echo")
            assert time.monotonic() - begun < 5
            assert diagnostic.code == "connection_failed"
            assert words in diagnostic.message
            assert "unknown" in diagnostic.message
            assert made.state("s") == "failed"
            after = await made.text("mcp__s__other")
            assert after != before
            sent = [line["params"]["name"] for line in record_of(s) if line.get("method") == "tools/call"]
            assert sent == ["other", "echo", "other"]
            assert not alive([int(before)])

    run(main())


@pytest.mark.slow
def test_b044_what_ends_or_stays_mute_before_the_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {
            "false": {"command": "false"},
            "late": server(tmp_path, {"start": [{"sleep": 0.2}, {"exit": 1}]}),
            "mute": {"command": "sh", "args": ["-c", "cat >/dev/null"], "startupTimeoutMs": 700},
            "closed": {"command": "sh", "args": ["-c", "exec >&-; sleep 30"], "startupTimeoutMs": 20_000},
        }
        async with product(tmp_path, servers) as made:
            begun = time.monotonic()
            told = {one.server: one for one in (await made.search("echo")).not_searched}
            assert time.monotonic() - begun < 6
            for name in ("false", "late"):
                assert told[name].code == "connection_failed"
                assert "exited with status 1" in told[name].message
            assert (told["mute"].code, "0.7 s" in told["mute"].message) == ("timeout", True)
            assert told["closed"].code == "connection_failed"
            assert await ended(children_of(os.getpid()))

    run(main())


def test_b046_after_a_crash_calls_start_the_server_again(tmp_path: Path) -> None:
    async def main() -> None:
        turns = [[{"pid": True}]] * 5 + [[{"exit": 1}]] + [[{"pid": True}]]
        s = server(tmp_path, {"tools/call": turns})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            first = {await made.text() for _ in range(5)}
            diagnostic = await made.fails()
            assert "exited with status 1" in diagnostic.message
            begun = time.monotonic()
            # The turns begin anew with the new process: it serves four, and dies of the sixth again.
            again = {await made.text() for _ in range(4)}
            assert time.monotonic() - begun < 10
            assert len(first) == len(again) == 1
            assert first != again

    run(main())


def test_b046_a_crash_among_parallel_calls_is_told_to_each_and_started_over_once(tmp_path: Path) -> None:
    async def main() -> None:
        turns = [[{"sleep": 0.2}, {"pid": True}]] * 5 + [[{"sleep": 0.05}, {"exit": 1}]]
        s = server(tmp_path, {"tools/call": turns})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            await made.mcp("refresh s")
            results = await asyncio.gather(*(made.session.call("echo", {}) for _ in range(6)), return_exceptions=True)
            assert all("unknown" in str(one) for one in results), results
            again = await asyncio.gather(*(made.text() for _ in range(4)))
            assert len(set(again)) == 1
            assert len(pids_of(s)) == 2

    run(main())


def test_b205_b160_sessions_may_begin_in_any_order_and_anew(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path)
        async with product(tmp_path, {"s": s}) as made:
            others = [made.plugin.session(f"o{number}") for number in range(3)]
            found = await asyncio.gather(
                made.search("echo"), *(other.search("echo") for other in others), made.session.command("/mcp refresh s")
            )
            assert all(one.text for one in found)
            assert len(pids_of(s)) == 1
            assert methods_of(s).count("initialize") == 1
            for other in others:
                await other.close()
            replaced = made.plugin.session("s")
            await made.session.close()
            await replaced.search("echo")
            await replaced.call("echo", {})
            assert [one.id for one in made.plugin.sessions] == ["s"]

    run(main())


def test_b205_closing_while_everything_starts_leaves_no_child(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {f"s{number}": server(tmp_path, {"start": [{"sleep": 0.3}]}) for number in range(5)}
        async with product(tmp_path, servers) as made:
            task = asyncio.ensure_future(made.session.search("echo"))
            await asyncio.sleep(0.25)
            await made.plugin.close()
            answer = await task
            assert {one.code for one in answer.not_searched} <= {"cancelled", "connection_failed"}
            assert len(answer.not_searched) == 5

    run(main())


def test_b212_tools_that_filters_hide_and_a_listing_that_fails_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        hidden = server(tmp_path, includeTools=["nothing_like_it"])
        failing = server(tmp_path, {"tools/list": [{"error": [-32000, f"401 {SECRET}"]}]})
        async with product(tmp_path, {"hidden": hidden, "failing": failing}) as made:
            answer = await made.search("echo")
            assert not answer.hits
            assert [one.server for one in answer.not_searched] == ["failing"]
            shown = await made.mcp()
            assert "2 tools, 0 after filters" in shown
            assert "failing" in answer.text
            assert "(code -32000)" in shown

    run(main())


def test_b214_a_server_that_cannot_start_is_named_beside_what_was_found(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"good": server(tmp_path), "bad": {"command": "no-such-command-4711", "description": "Weather."}}
        async with product(tmp_path, servers) as made:
            answer = await made.search("echo weather")
            assert {one.server for one in answer.loaded} == {"good"}
            assert "bad: [connection_failed] The command was not found" in answer.text
            alone = await made.search("weather", server="bad")
            assert not alone.hits
            assert "bad: [connection_failed]" in alone.text
            assert "matches" not in alone.text

    run(main())


def test_b215_after_a_death_between_calls_the_next_one_reconnects(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"tools/call": [{"pid": True}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            pid = int(await made.text())
            os.kill(pid, 9)
            await asyncio.sleep(0.3)
            shown = await made.mcp()
            assert "s: failed" in shown
            assert "signal 9" in shown
            assert int(await made.text()) != pid
            assert made.state("s") == "connected"

    run(main())


def test_b164_without_deferred_loading_status_tells_number_and_size_of_the_loaded_tools(tmp_path: Path) -> None:
    async def main() -> None:
        async with product(tmp_path, {"s": server(tmp_path)}) as made:
            assert "0 tools loaded" in await made.mcp()
            await made.load("s.echo", "s.other")
            shown = await made.mcp()
            assert "2 tools loaded of at most 96, about" in shown
            assert "tokens" in shown
            assert "2 loaded" in shown

    run(main())
