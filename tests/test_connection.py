"""One connection shared by many: attempts, waiters, negotiation, questions of the server, notifications."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import configuration_of
from pi_mcp.connect import CallHandlers, Connections
from pi_mcp.connect import connection as connection_module
from pi_mcp.errors import NotExecuted
from tests.hostile.connecting import connected, refused, text_of, until
from tests.hostile.processes import alive, children_of
from tests.hostile.script import GONE, entry, methods_of, pids_of, record_of, tool
from tests.support import run, shared_data

MODERN = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {"listChanged": True}},
    "resultType": "complete",
    "ttlMs": 1000,
    "cacheScope": "private",
    "instructions": "Be\x1b[31m kind.\u202e",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "new", "version": "2", "title": "New"}},
}
FORM = {"type": "object", "properties": {"copies": {"type": "integer"}}}
ASK = {"ask": ["elicitation/create", {"message": "How many?", "requestedSchema": FORM}]}


def modern(folder: Path, script: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return entry(
        folder, {"server/discover": [[{"result": MODERN}]], "initialize": [[GONE]], **(script or {})}, **fields
    )


def initialized(capabilities: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "result": {
            "protocolVersion": "2025-06-18",
            "capabilities": dict(capabilities),
            "serverInfo": {"name": "x", "version": "1"},
            **more,
        }
    }


# one attempt for all


def test_all_who_wait_share_one_attempt_and_one_listing(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"start": [{"sleep": 0.2}], "tools/list": [[{"sleep": 0.2}, {"page": [5, 5]}]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            infos = await asyncio.gather(*(one.connect() for _ in range(10)))
            assert len(set(map(id, infos))) == 1
            listings = await asyncio.gather(*(one.list_tools() for _ in range(10)))
            assert {len(listing.tools) for listing in listings} == {5}
        assert len(pids_of(server)) == 1
        assert methods_of(server).count("tools/list") == 1

    run(main())


def test_a_waiter_that_is_cancelled_does_not_stop_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"start": [{"sleep": 0.3}], "tools/list": [[{"sleep": 0.3}, {"page": [2, 2]}]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            first, second = (asyncio.create_task(one.list_tools()) for _ in range(2))
            await asyncio.sleep(0.1)
            first.cancel()
            await asyncio.sleep(0.3)
            third = asyncio.create_task(one.list_tools())
            await asyncio.sleep(0)
            third.cancel()
            assert len((await second).tools) == 2
            assert first.cancelled()
            assert third.cancelled()
        assert len(pids_of(server)) == 1

    run(main())


def test_a_failed_attempt_reaches_each_waiter_and_nobody_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected({"s": {"command": "false"}}) as connections:
            one = connections.get("s")
            lonely = asyncio.create_task(one.connect())
            await asyncio.sleep(0)
            lonely.cancel()
            errors = await asyncio.gather(*(one.connect() for _ in range(3)), return_exceptions=True)
            assert len({id(error) for error in errors}) == 3
            assert {str(error) for error in errors} == {one.diagnostic and one.diagnostic.line()}

    run(main())


def test_b055_b056_a_refused_port_harms_neither_the_neighbour_nor_later_awaits(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

    async def main() -> None:
        servers = {"good": entry(tmp_path), "bad": {"url": f"http://127.0.0.1:{port}/mcp"}}
        async with connected(servers) as connections:
            good, bad = connections.get("good"), connections.get("bad")
            info, error = await asyncio.gather(good.connect(), refused(bad.connect()))
            assert info.name == "hostile"
            assert error.diagnostic.code == "connection_failed"
            assert "refused" in error.diagnostic.message
            await asyncio.sleep(0.1)
            await refused(bad.list_tools())
            await good.call_tool("echo", {})

    run(main())


def test_after_a_failure_the_next_attempt_waits_a_little_and_longer_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"start": [{"exit": 1}]}, protocol="legacy")
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            before = time.monotonic()
            for _ in range(3):
                await refused(one.connect())
            assert 0.55 < time.monotonic() - before < 10
            # Who asks for it has no patience for that.
            monkeypatch.setattr(connection_module, "FIRST_BACKOFF", 10.0)
            monkeypatch.setattr(connection_module, "LAST_BACKOFF", 10.0)
            before = time.monotonic()
            await refused(one.reconnect())
            assert time.monotonic() - before < 8

    run(main())


def test_close_ends_a_connection_that_is_still_starting(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"initialize": [[{"hang": True}]]}, protocol="legacy")
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            waiter = asyncio.create_task(one.connect())
            await until(lambda: "initialize" in methods_of(server))
            assert one.state == "connecting"
            await connections.close("s")
            error = await refused(waiter)
            assert error.diagnostic.code == "connection_failed"
            assert one.state == "idle"
            assert alive(pids_of(server)) == []

    run(main())


def test_close_ends_calls_in_flight_with_an_error_of_ours(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call": [[{"hang": True}]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            call = asyncio.create_task(one.call_tool("x", {}))
            await until(lambda: "tools/call" in methods_of(server))
            await connections.close()
            error = await refused(call)
            assert error.diagnostic.code == "connection_failed"
            assert "unknown" in error.diagnostic.message

    run(main())


def test_reconnect_starts_a_new_process_and_counts_a_generation(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            await one.reconnect()
            assert one.generation == 2
            first, second = pids_of(server)
            assert alive([first, second]) == [second]

    run(main())


def test_update_retires_changed_definitions_and_keeps_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        kept, changed, gone = entry(tmp_path), entry(tmp_path), entry(tmp_path)
        before = {"kept": kept, "changed": changed, "gone": gone}
        async with connected(before) as connections:
            for name in before:
                await connections.get(name).connect()
            same = connections.get("kept")
            after = {"kept": kept, "changed": {**changed, "timeoutMs": 5000}, "off": {**gone, "disabled": True}}
            assert connections.update(configuration_of(after)) == {"changed", "gone"}
            assert connections.get("kept") is same
            assert connections.get("changed").state == "idle"
            with pytest.raises(KeyError):
                connections.get("gone")
            with pytest.raises(KeyError):
                connections.get("off")
            await asyncio.gather(connections.close("changed"), connections.close("gone"))
            assert alive(pids_of(changed) + pids_of(gone)) == []
            assert alive(pids_of(kept)) == pids_of(kept)

    run(main())


def test_making_connections_imports_no_sdk_and_starts_nothing() -> None:
    code = (
        "import sys, pi_mcp.connect as c\n"
        "from pi_mcp.config import configuration_of\n"
        "c.Connections(configuration_of({'s': {'command': 'true'}})).get('s')\n"
        "print([m for m in ('mcp', 'anyio', 'pydantic', 'httpx2') if m in sys.modules])\n"
    )

    async def main() -> str:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode()

    assert run(main()).strip() == "[]"


@pytest.mark.parametrize("server", [{"command": "/nowhere/server"}, {"command": "true", "cwd": "/nowhere"}])
def test_a_program_that_is_not_there_is_known_before_anything_is_loaded_and_no_attempt_waits(server: Any) -> None:
    code = (
        "import asyncio, sys, pi_mcp.connect.connection as c\n"
        "from pi_mcp.config import configuration_of\n"
        "from pi_mcp.errors import PiMcpError\n"
        "c.FIRST_BACKOFF = c.LAST_BACKOFF = 3600.0\n"
        "async def main():\n"
        f"    every = configuration_of({{'s': {server!r}}})\n"
        "    one = c.Connection(every.servers['s'], every)\n"
        "    for _ in range(2):\n"
        "        try:\n"
        "            await one.connect()\n"
        "        except PiMcpError as error:\n"
        "            print(error, one.state)\n"
        "    print([m for m in ('mcp', 'anyio', 'pydantic', 'httpx2') if m in sys.modules])\n"
        "asyncio.run(main())\n"
    )

    async def main() -> str:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        return (await process.communicate())[0].decode()

    first, second, loaded = run(main()).splitlines()
    assert first == second
    assert first.startswith("s: [connection_failed] The ")
    assert "/nowhere" in first
    assert first.endswith(" failed")
    assert loaded == "[]"


def test_the_import_of_the_sdk_does_not_stop_the_loop(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, time\n"
        "from pi_mcp.connect.session import load_sdk\n"
        "async def main():\n"
        "    work = [asyncio.create_task(load_sdk()) for _ in range(5)]\n"
        "    longest = 0.0\n"
        "    while not all(w.done() for w in work):\n"
        "        before = time.monotonic(); await asyncio.sleep(0.005)\n"
        "        longest = max(longest, time.monotonic() - before)\n"
        "    await asyncio.gather(*work)\n"
        "    print(longest)\n"
        "asyncio.run(main())\n"
    )

    async def main() -> float:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
        return float((await process.communicate())[0])

    assert run(main()) < 0.5


# negotiation


@pytest.mark.parametrize("code", [-32601, -32600, -32602, -32603, 0])
def test_b112_a_server_that_refuses_the_probe_gets_a_plain_initialize(tmp_path: Path, code: int) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"server/discover": [[{"error": [code, "what?"]}]]})
        async with connected({"s": server}) as connections:
            assert (await connections.get("s").connect()).era == "legacy"
        assert len(pids_of(server)) == 1

    run(main())


@pytest.mark.parametrize("step", [{"exit": 1}, {"close_stdout": True}, {"kill": 6}])
def test_b112_a_process_that_ends_on_the_probe_is_started_once_more_without_it(
    tmp_path: Path, step: dict[str, Any]
) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"server/discover": [[step]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            info = await one.connect()
            assert (info.era, one.generation) == ("legacy", 1)
            assert len(children_of(os.getpid())) == 1
        assert len(pids_of(server)) == 2
        assert methods_of(server).count("server/discover") == 1

    run(main())


def test_a_server_that_ignores_the_probe_costs_three_seconds_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pi_mcp.connect.session.PROBE_WAIT", 0.3)

    async def main() -> None:
        server = entry(tmp_path, {"server/discover": [[{"hang": True}]]})
        async with connected({"s": server}) as connections:
            before = time.monotonic()
            assert (await connections.get("s").connect()).era == "legacy"
            assert time.monotonic() - before < 10

    run(main())


def test_a_modern_server_that_starts_slowly_is_recognised_by_its_late_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pi_mcp.connect.session.PROBE_WAIT", 0.1)

    async def main() -> None:
        server = modern(tmp_path, {"start": [{"sleep": 0.5}], "in_order": True})
        async with connected({"s": server}) as connections:
            assert (await connections.get("s").connect()).era == "modern"
        assert methods_of(server)[:2] == ["server/discover", "initialize"]

    run(main())


def test_legacy_is_said_or_remembered_and_then_no_probe_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        said, known = entry(tmp_path, protocol="legacy"), entry(tmp_path)
        async with connected({"said": said, "known": known}) as connections:
            await connections.get("said").connect()
            await connections.get("known").connect(era="legacy")
        for server in (said, known):
            assert "server/discover" not in methods_of(server)

    run(main())


def test_a_remembered_outcome_that_fails_is_forgotten_in_the_same_attempt(tmp_path: Path) -> None:
    async def main() -> None:
        new, old = modern(tmp_path), entry(tmp_path)
        async with connected({"new": new, "old": old}) as connections:
            assert (await connections.get("new").connect(era="legacy")).era == "modern"
            assert (await connections.get("old").connect(era="modern")).era == "legacy"

    run(main())


def test_a_modern_server_gets_the_envelope_and_no_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        server = modern(tmp_path)
        async with connected({"s": server}) as connections:
            info = await connections.get("s").connect()
            assert (info.era, info.protocol_version, info.title) == ("modern", "2026-07-28", "New")
            assert info.instructions == "Be kind."
            listing = await connections.get("s").list_tools()
            await connections.get("s").call_tool("echo", {"a": 1})
            assert listing.ttl is None
        call = next(line for line in record_of(server) if line.get("method") == "tools/call")
        meta = call["params"]["_meta"]
        assert meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"
        assert meta["io.modelcontextprotocol/clientInfo"]["name"] == "pi-mcp"
        assert "elicitation" in meta["io.modelcontextprotocol/clientCapabilities"]
        assert "notifications/initialized" not in methods_of(server)

    run(main())


def test_an_unknown_version_is_a_protocol_error_that_names_it(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"initialize": [[initialized({}, protocolVersion="1999-01-01")]]})
        async with connected({"s": server}) as connections:
            error = await refused(connections.get("s").connect())
            assert error.diagnostic.code == "protocol_error"
            assert "1999-01-01" in error.diagnostic.message

    run(main())


@pytest.mark.parametrize("code", [-32020, -32022])
def test_an_answer_that_proves_that_nothing_ran_says_so(tmp_path: Path, code: int) -> None:
    async def main() -> None:
        server = modern(tmp_path, {"tools/call": [[{"error": [code, "no"]}]]})
        async with connected({"s": server}) as connections:
            assert isinstance(await refused(connections.get("s").call_tool("x", {})), NotExecuted)
        assert methods_of(server).count("tools/call") == 1

    run(main())


# listing


def test_b107_b109_without_the_capability_nothing_is_asked_and_the_catalog_is_empty(tmp_path: Path) -> None:
    async def main() -> None:
        without = entry(tmp_path, {"initialize": [[initialized({"resources": {}})]]})
        refusing = entry(tmp_path, {"tools/list": [[GONE]]})
        async with connected({"without": without, "refusing": refusing}) as connections:
            for name in ("without", "refusing"):
                one = connections.get(name)
                listing = await one.list_tools()
                assert (listing.tools, listing.complete, one.state) == ((), True, "connected")
                assert "offers no tools" in listing.notes[0]
        assert "tools/list" not in methods_of(without)

    run(main())


def test_b110_empty_capabilities_are_tried_once_and_noted(tmp_path: Path) -> None:
    async def main() -> None:
        answering = entry(
            tmp_path, {"initialize": [[initialized({})]], "tools/list": [[{"result": {"tools": [tool("a")]}}]]}
        )
        refusing = entry(tmp_path, {"initialize": [[initialized({})]], "tools/list": [[GONE]]})
        async with connected({"answering": answering, "refusing": refusing}) as connections:
            listing = await connections.get("answering").list_tools()
            assert [each["name"] for each in listing.tools] == ["a"]
            assert "declares no capabilities" in listing.notes[0]
            assert (await connections.get("refusing").list_tools()).tools == ()

    run(main())


def test_b077_a_cursor_that_does_not_advance_costs_two_requests(tmp_path: Path) -> None:
    async def main() -> None:
        page = {"tools": [tool(name) for name in "abcdefgh"], "nextCursor": "8"}
        server = entry(tmp_path, {"tools/list": [[{"result": page}]]})
        async with connected({"s": server}) as connections:
            listing = await connections.get("s").list_tools()
            assert [each["name"] for each in listing.tools] == list("abcdefgh")
            assert any("repeats" in note for note in listing.notes)
        assert methods_of(server).count("tools/list") == 2

    run(main())


def test_b082_runaway_pages_are_bounded(tmp_path: Path) -> None:

    async def main() -> None:
        server = entry(tmp_path, {"tools/list": [[{"page": [1, 1_000_000]}]], "in_order": True})
        async with connected({"s": server}) as connections:
            listing = await connections.get("s").list_tools()
            assert len(listing.tools) == 1000
            assert not listing.complete
            assert "cut after 1000 pages" in listing.notes[0]

    run(main())


def test_a_later_page_that_fails_leaves_what_came_and_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        first = {"result": {"tools": [tool("a")], "nextCursor": "2"}}
        broken = entry(tmp_path, {"tools/list": [[first], [{"error": [-32603, "boom"]}]]})
        slow = entry(tmp_path, {"tools/list": [[first], [{"hang": True}]]}, timeoutMs=200)
        async with connected({"broken": broken, "slow": slow}) as connections:
            for name in ("broken", "slow"):
                listing = await connections.get(name).list_tools()
                assert (len(listing.tools), listing.complete) == (1, False)

    run(main())


def test_a_listing_that_does_not_come_is_a_timeout_that_names_the_limit(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/list": [[{"hang": True}]]}, timeoutMs=200)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            error = await refused(one.list_tools())
            assert (error.diagnostic.code, error.diagnostic.operation) == ("timeout", "list")
            assert "0.2 s" in error.diagnostic.message
            assert one.state == "connected"

    run(main())


def test_the_server_is_heard_when_its_tools_change_and_when_it_logs(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(
            tmp_path,
            {
                "tools/call": [
                    [
                        {"notify": ["notifications/tools/list_changed", {}]},
                        {"notify": ["notifications/message", {"level": "warning", "data": "l\x1b[2Jow disk"}]},
                        {"notify": ["notifications/unheard-of", {}]},
                        {"echo": True},
                    ]
                ]
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            heard: list[str] = []
            one.on_tools_changed.append(lambda: heard.append("changed"))
            await one.call_tool("x", {})
            assert heard == ["changed"]
            assert "warning: low disk" in one.log.lines()

    run(main())


def test_a_modern_server_reports_changes_on_a_subscription(tmp_path: Path) -> None:
    async def main() -> None:
        listening = [[{"sleep": 0.1}, {"notify": ["notifications/tools/list_changed", {}]}, {"hang": True}]]
        server = modern(tmp_path, {"subscriptions/listen": listening})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            heard: list[int] = []
            one.on_tools_changed.append(lambda: heard.append(1))
            await one.connect()
            await until(lambda: heard)
            await one.call_tool("echo", {})

    run(main())


# questions of the server


async def copies(schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
    assert (schema, message) == (FORM, "How many?")
    await asyncio.sleep(0.3)
    return {"copies": 2}


def test_an_elicitation_reaches_the_call_in_flight_and_its_time_is_not_silence(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call": [[ASK, {"answer": True}]]}, toolTimeoutMs=150)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            result = await one.call_tool("x", {}, handlers=CallHandlers(elicit=copies))
            assert json.loads(text_of(result)) == {"action": "accept", "content": {"copies": 2}}
            result = await one.call_tool("x", {}, handlers=CallHandlers())
            assert json.loads(text_of(result)) == {"action": "decline"}

    run(main())


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_host_whose_dialog_fails_has_declined(tmp_path: Path, era: str) -> None:
    async def broken(schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        raise RuntimeError("no terminal")

    need = {
        "resultType": "input_required",
        "inputRequests": {"a": {"method": "elicitation/create", "params": ASK["ask"][1]}},
    }

    async def main() -> None:
        old = entry(tmp_path, {"tools/call": [[ASK, {"answer": True}]]})
        new = modern(tmp_path, {"tools/call": [[{"result": need}], [{"echo": True}]]})
        async with connected({"s": old if era == "legacy" else new}) as connections:
            result = await connections.get("s").call_tool("x", {}, handlers=CallHandlers(elicit=broken))
            assert '"action": "decline"' in text_of(result)
            assert "terminal" not in text_of(result)

    run(main())


def test_a_restart_uses_what_the_last_handshake_came_to(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            await one.close()
            await one.connect()
            assert methods_of(server).count("server/discover") == 1
            await one.reconnect()
            assert methods_of(server).count("server/discover") == 2

    run(main())


def test_two_calls_with_different_people_get_no_question(tmp_path: Path) -> None:
    async def other(schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        raise AssertionError("nobody may be asked")

    async def main() -> None:
        server = entry(tmp_path, {"tools/call:ask": [[{"sleep": 0.2}, ASK, {"sleep": 0.5}, {"answer": True}]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            pair = [one.call_tool("ask", {}, handlers=CallHandlers(elicit=each)) for each in (copies, other)]
            for result in await asyncio.gather(*pair):
                assert json.loads(text_of(result)) == {"action": "decline"}

    run(main())


def test_a_question_that_may_be_of_several_calls_outlives_those_that_end(tmp_path: Path) -> None:
    async def main() -> None:
        answers = {"tools/call:quick": [[{"sleep": 0.1}, {"echo": True}]]}
        script = {"tools/call:ask": [[ASK, {"answer": True}]], **answers}
        server = entry(tmp_path, script)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            # Whichever of them the question is taken for: all others end before it is answered.
            names = [*["quick"] * 5, "ask"]
            results = await asyncio.gather(
                *(one.call_tool(each, {}, handlers=CallHandlers(elicit=copies)) for each in names)
            )
            assert json.loads(text_of(results[-1])) == {"action": "accept", "content": {"copies": 2}}

    run(main())


def test_a_cancelled_call_takes_its_open_question_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def away(schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
            asked.set()
            try:
                await asyncio.sleep(30)
            finally:
                ended.set()
            return None

        server = entry(tmp_path, {"tools/call:ask": [[ASK, {"answer": True}]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            call = asyncio.create_task(one.call_tool("ask", {}, handlers=CallHandlers(elicit=away)))
            await asked.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(1):
                await ended.wait()
            await one.call_tool("echo", {})

    run(main())


@pytest.mark.parametrize(
    ("trust", "capabilities"),
    [("trusted", {"elicitation", "roots"}), ("verified", {"elicitation"}), ("untrusted", set())],
)
def test_what_is_declared_and_answered_depends_on_trust(tmp_path: Path, trust: str, capabilities: set[str]) -> None:
    async def main() -> None:
        asks = [
            [ASK, {"answer": True}],
            [{"ask": ["roots/list", {}]}, {"answer": True}],
            [{"ask": ["sampling/createMessage", {}]}, {"answer": True}],
            [{"ask": ["ping", {}]}, {"answer": True}],
        ]
        server = entry(tmp_path, {"tools/call": asks}, trust=trust)
        async with connected({"s": server}, cwd=tmp_path) as connections:
            one = connections.get("s")
            answers = [
                json.loads(text_of(await one.call_tool("x", {}, handlers=CallHandlers(elicit=copies)))) for _ in asks
            ]
        elicited, roots, sampled, ponged = answers
        declared = next(line for line in record_of(server) if line.get("method") == "initialize")
        assert set(declared["params"]["capabilities"]) == capabilities
        assert (elicited.get("action") == "accept") is ("elicitation" in capabilities)
        if "roots" in capabilities:
            assert roots["roots"] == [{"uri": tmp_path.as_uri(), "name": tmp_path.name}]
        else:
            assert roots["error"]["code"] == -32601
        assert sampled["error"]["code"] == -32601
        assert ponged == {}

    run(main())


@pytest.mark.slow
def test_rounds_of_input_are_answered_and_bounded(tmp_path: Path) -> None:
    need = {
        "resultType": "input_required",
        "requestState": "opaque é",
        "inputRequests": {
            "a": {"method": "elicitation/create", "params": {"message": "How many?", "requestedSchema": FORM}},
            "r": {"method": "roots/list"},
        },
    }

    again = {"resultType": "input_required", "requestState": "s"}

    async def main() -> None:
        server = modern(
            tmp_path,
            {
                "tools/call:two": [[{"result": need}], [{"echo": True}]],
                "tools/call:wait": [
                    [{"result": again}],
                    [{"echo": True}],
                ],
                "tools/call:endless": [[{"result": again}]],
                "tools/call:sampling": [
                    [
                        {
                            "result": {
                                "resultType": "input_required",
                                "inputRequests": {"s": {"method": "sampling/createMessage", "params": {}}},
                            }
                        }
                    ]
                ],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            handlers = CallHandlers(elicit=copies)
            final = json.loads(text_of(await one.call_tool("two", {"k": 1}, handlers=handlers)))
            assert final["requestState"] == "opaque é"
            assert final["arguments"] == {"k": 1}
            assert final["inputResponses"]["a"] == {"action": "accept", "content": {"copies": 2}}
            assert "roots" in final["inputResponses"]["r"]
            assert text_of(await one.call_tool("wait", {}))
            error = await refused(one.call_tool("endless", {}))
            assert "more than 10 times" in error.diagnostic.message
            assert (await refused(one.call_tool("sampling", {}))).diagnostic.code == "protocol_error"
            assert one.state == "connected"
        sent = [line["params"]["name"] for line in record_of(server) if line.get("method") == "tools/call"]
        assert sent.count("endless") == 11

    run(main())


# real servers


@pytest.mark.slow
def test_all_saved_catalogs_at_once(tmp_path: Path) -> None:
    data = shared_data()
    catalogs = sorted(path for path in (data / "catalogs").glob("*.json") if path.name != "index.json")
    server = str(data / "tools" / "replay_server.py")

    async def main() -> int:
        entries = {
            f"s{number}": {"command": sys.executable, "args": ["-S", server, str(path), "--page", "50"]}
            for number, path in enumerate(catalogs)
        }
        async with connected(entries) as connections:
            listings = await asyncio.gather(*(connections.get(name).list_tools() for name in entries))
            assert all(listing.complete for listing in listings)
            await asyncio.gather(
                *(
                    connections.get(name).call_tool(listing.tools[0]["name"], {"x": 1})
                    for name, listing in zip(entries, listings, strict=True)
                )
            )
            return sum(len(listing.tools) for listing in listings)

    expected = sum(len(json.loads(path.read_text())["tools"]) for path in catalogs)
    assert run(main(), 60) == expected


@pytest.mark.slow
def test_a_real_server_of_the_sdk(tmp_path: Path) -> None:
    pytest.importorskip("mcp_server_time")
    entries: dict[str, Any] = {"time": {"command": sys.executable, "args": ["-m", "mcp_server_time"]}}

    async def main() -> None:
        async with connected(entries) as connections:
            one = connections.get("time")
            assert {each["name"] for each in (await one.list_tools()).tools} >= {"get_current_time"}
            result = await one.call_tool("get_current_time", {"timezone": "Europe/Berlin"})
            assert "Europe/Berlin" in text_of(result)
            wrong = await one.call_tool("get_current_time", {"timezone": "Nowhere"})
            assert wrong["isError"] is True

    run(main())


def test_connections_of_a_program_without_servers_close_at_once() -> None:
    run(Connections(configuration_of({})).close())


def test_the_folders_in_a_server_s_arguments_are_roots_beside_the_working_directory(tmp_path: Path) -> None:
    from pi_mcp.connect.connection import _roots

    notes = tmp_path / "notes"
    notes.mkdir()
    (tmp_path / "file").touch()
    args = ("-y", str(notes), str(tmp_path / "file"), str(tmp_path / "absent"), "relative", str(tmp_path))
    assert [root["uri"] for root in _roots(tmp_path, args)] == [tmp_path.as_uri(), notes.as_uri()]


@pytest.mark.slow
def test_an_ending_whose_waiter_is_cancelled_ends_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"s": entry(tmp_path, {"ignore_eof": True, "ignore_term": True})}
        async with connected(servers) as connections:
            first = configuration_of(servers, cwd=tmp_path)
            for description in ("one", "two", "three"):
                await connections.get("s").connect()
                connections.update(configuration_of({"s": {**servers["s"], "description": description}}, cwd=tmp_path))
                waiting = asyncio.create_task(connections.close("s"))
                await asyncio.sleep(0.01)
                waiting.cancel()
                await asyncio.wait({waiting})
            connections.update(first)

    run(main(), 60)


def test_a_connection_opened_while_another_is_closed_is_not_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with connected({"s": entry(tmp_path)}) as connections:
            connection = connections.get("s")
            for pause in (0.0, 0.005, 0.02, 0.05, 0.1):
                await connection.connect()
                closing = [asyncio.create_task(connection.close()) for _ in range(2)]
                await asyncio.sleep(pause)
                opening = [asyncio.create_task(connection.reconnect()) for _ in range(2)]
                await asyncio.wait({*closing, *opening})

    run(main(), 60)


def test_a_connection_whose_entry_changed_starts_nothing_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        servers = {"s": entry(tmp_path)}
        async with connected(servers) as connections:
            old = connections.get("s")
            await old.connect()
            connections.update(configuration_of({"s": {**servers["s"], "description": "new"}}, cwd=tmp_path))
            await connections.close("s")
            error = await refused(old.call_tool("echo", {}))
            assert isinstance(error, NotExecuted)
            assert (await connections.get("s").call_tool("echo", {}))["content"]

    run(main())
