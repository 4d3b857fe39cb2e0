"""Discovery asks real servers, four at a time, once each, and only when what is known is not good any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.catalog import DAY, Catalogs, CatalogStore, discovery
from pi_mcp.config import Configuration, configuration_of
from pi_mcp.connect import CallHandlers, Connections
from pi_mcp.errors import PiMcpError
from tests.support import run, shared_data

SECRET = "planted-secret-7731"
SERVER = Path(__file__).with_name("catalog_server.py")


def tool(name: str = "find", description: str = "Finds things.") -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


class Playground:
    """Some catalog servers in a folder, and a manager over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, dict[str, Any]] = {}
        self.environ: dict[str, str] = {"HOME": str(folder)}

    def server(self, name: str, how: Mapping[str, Any] | None = None, **entry: Any) -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.behave(name, **({"tools": [tool()]} if how is None else how))
        self.entries[name] = {"command": sys.executable, "args": [str(SERVER), str(folder)], **entry}

    def behave(self, name: str, **how: Any) -> None:
        new = self.folder / name / "new"
        new.write_text(json.dumps(how))
        new.replace(self.folder / name / "behaviour.json")

    def seen(self, name: str, what: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / name / "seen").read_text().splitlines()
            return sum(line.split()[2] == what for line in lines)
        return 0

    def lists(self, name: str) -> int:
        return self.seen(name, "tools/list")

    def most_at_once(self) -> int:
        """The largest number of servers that were between their start and the end of their first listing."""
        events = []
        for name in self.entries:
            with contextlib.suppress(FileNotFoundError):
                lines = [line.split() for line in (self.folder / name / "seen").read_text().splitlines()]
                events.append((next(float(line[0]) for line in lines if line[2] == "start"), 1))
                events += [(float(line[0]), -1) for line in lines if line[2] == "end"][:1]
        running = most = 0
        for _, step in sorted(events):
            running += step
            most = max(most, running)
        return most

    def configuration(self) -> Configuration:
        return configuration_of(self.entries, cwd=self.folder, environ=self.environ)

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Catalogs]:
        configuration = self.configuration()
        self.connections = Connections(configuration)
        catalogs = Catalogs(configuration, self.connections, CatalogStore(self.folder / "catalogs"))
        try:
            yield catalogs
        finally:
            await catalogs.close()
            await self.connections.close()
            leaked = asyncio.all_tasks() - {asyncio.current_task()}
            assert not {task for task in leaked if (task.get_name() or "").startswith("pi-mcp ")}

    async def call(self, name: str) -> None:
        """Call a tool, so that a server which has been told to sends its notifications first."""
        await self.connections.get(name).call_tool("find", {}, handlers=CallHandlers())


@pytest.fixture
def play(tmp_path: Path) -> Playground:
    return Playground(tmp_path)


def refuses(code: str) -> Any:
    return pytest.raises(PiMcpError, match=rf"\[{code}\]")


# -- memory, disk, server ---------------------------------------------------------------------------------------


def test_b163_a_search_with_a_warm_cache_starts_no_server(play: Playground) -> None:
    for number in range(3):
        play.server(f"s{number}", {"tools": [tool(), tool("put")]})

    async def main() -> None:
        async with play.manager() as catalogs:
            assert catalogs.known("s0") is None
            found = await catalogs.discover(play.entries)
            assert [len(catalog.tools) for catalog in found.catalogs.values()] == [2, 2, 2]
        async with play.manager() as catalogs:
            assert catalogs.known("s1") is not None
            warm = await catalogs.discover(play.entries)
            assert warm.catalogs == found.catalogs
            assert [play.connections.get(name).state for name in play.entries] == ["idle"] * 3

    run(main())
    assert [play.seen(name, "start") for name in play.entries] == [1, 1, 1]


def test_a_catalog_that_was_listed_while_the_clock_was_ahead_is_not_good_until_then(
    play: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.server("a")

    async def main() -> None:
        async with play.manager() as catalogs:
            with monkeypatch.context() as ahead:
                then = time.time() + 365 * DAY
                ahead.setattr(discovery.time, "time", lambda: then)
                await catalogs.discover(["a"])
                assert catalogs.known("a") is not None
            assert catalogs.known("a") is None
            await catalogs.discover(["a"])
            assert catalogs.known("a") is not None

    run(main())
    assert play.lists("a") == 2


def test_a_discovery_contacts_only_the_servers_that_were_named(play: Playground) -> None:
    play.server("a")
    play.server("b")

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await catalogs.discover(["b", "b"])
            assert list(found.catalogs) == ["b"]

    run(main())
    assert play.seen("a", "start") == 0


def test_a_catalog_says_what_the_server_said_of_itself(play: Playground) -> None:
    play.server(
        "a",
        {
            "tools": [tool()],
            "capabilities": {"tools": {"listChanged": True}},
            "instructions": "Be \x1b[31mkind\u202e. " + "é" * 3000,
            "info": {"title": "The \x07Server"},
            "ttl": 60,
        },
    )

    async def main() -> None:
        async with play.manager() as catalogs:
            catalog = (await catalogs.discover(["a"])).catalogs["a"]
            assert (catalog.title, catalog.era, catalog.list_changed) == ("The Server", "legacy", True)
            assert (catalog.ttl, catalog.stated_ttl) == (60.0, 60.0)
            assert catalog.instructions is not None
            assert catalog.instructions.startswith("Be kind. é")
            assert 2046 <= len(catalog.instructions.encode()) <= 2048

    run(main())


def test_b158_the_fresh_listing_wins_over_the_disk_copy(play: Playground) -> None:
    declared = {"tools": {"listChanged": True}}
    tools = [tool(f"t{number}") for number in range(29)]
    play.server("a", {"tools": tools, "capabilities": declared})

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
        async with play.manager() as catalogs:
            assert len(catalogs.known("a").tools) == 29
            play.behave("a", tools=[*tools, tool("t29")], capabilities=declared, notify=1)
            await play.call("a")
            assert len((await catalogs.live("a")).tools) == 30
            assert len(catalogs.known("a").tools) == 30
        async with play.manager() as catalogs:
            assert len(catalogs.known("a").tools) == 30

    run(main())


@pytest.mark.parametrize("operation", ["refresh", "reconnect"])
def test_b157_refresh_and_reconnect_replace_memory_and_disk(play: Playground, operation: str) -> None:
    play.server("a", {"tools": [tool(description="old")]})

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
            play.behave("a", tools=[tool(description="new")])
            catalog = await getattr(catalogs, operation)("a")
            assert catalog.tools[0].description == "new"
            assert catalogs.known("a") is catalog
        async with play.manager() as catalogs:
            assert catalogs.known("a").tools[0].description == "new"

    run(main())
    assert play.seen("a", "start") == (1 if operation == "refresh" else 2)


def test_a_catalog_over_its_time_is_asked_for_again(play: Playground) -> None:
    play.server("a", {"tools": [tool()], "ttl": 0.3})

    async def main() -> None:
        async with play.manager() as catalogs:
            assert list((await catalogs.discover(["a"])).catalogs) == ["a"]
            assert catalogs.known("a") is not None
            await asyncio.sleep(0.35)
            assert catalogs.known("a") is None
            assert catalogs.held("a") is not None
            assert list((await catalogs.discover(["a"])).catalogs) == ["a"]

    run(main())
    assert play.lists("a") == 2


def test_index_owners_hear_of_every_catalog_that_comes_or_goes(play: Playground) -> None:
    play.server("a")

    async def main() -> None:
        heard: list[str] = []
        async with play.manager() as catalogs:
            catalogs.on_change.append(heard.append)
            await catalogs.discover(["a"])
            assert heard == ["a"]
            await catalogs.refresh("a")
            assert heard == ["a", "a"]
        async with play.manager() as catalogs:
            catalogs.on_change.append(heard.append)
            assert catalogs.known("a") is catalogs.known("a")
            assert heard == ["a"] * 3
            del play.entries["a"]
            catalogs.update(play.configuration())
            assert heard == ["a"] * 4
            assert catalogs.held("a") is None

    run(main())


# -- several at once --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_at_most_four_servers_are_asked_at_once(play: Playground) -> None:
    for number in range(9):
        play.server(f"s{number}", {"tools": [tool()], "list_delay": 0.4})

    async def main() -> None:
        progress: list[tuple[str, int, int]] = []
        async with play.manager() as catalogs:
            found = await catalogs.discover(play.entries, on_progress=lambda *step: progress.append(step))
            assert list(found.catalogs) == list(play.entries), "in the order of asking, not of answering"
            assert found.not_searched == ()
        assert [step[1:] for step in progress] == [(number, 9) for number in range(1, 10)]
        assert {step[0] for step in progress} == set(play.entries)

    run(main())
    assert play.most_at_once() == 4


def test_those_who_wait_for_one_server_share_one_listing(play: Playground) -> None:
    play.server("a", {"tools": [tool()], "list_delay": 0.3})

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await asyncio.gather(
                catalogs.discover(["a"]), catalogs.discover(["a"]), catalogs.refresh("a"), catalogs.live("a")
            )
            assert found[0].catalogs["a"] is found[1].catalogs["a"] is found[2] is found[3]

    run(main())
    assert (play.seen("a", "start"), play.lists("a")) == (1, 1)


def test_a_waiter_that_is_cancelled_stops_nobody_else(play: Playground) -> None:
    play.server("a", {"tools": [tool()], "list_delay": 0.4})

    async def main() -> None:
        async with play.manager() as catalogs:
            waiters = [asyncio.create_task(work) for work in (catalogs.discover(["a"]), catalogs.refresh("a"))]
            other = asyncio.create_task(catalogs.discover(["a"]))
            await asyncio.sleep(0.2)
            for waiter in waiters:
                waiter.cancel()
            for waiter in waiters:
                with pytest.raises(asyncio.CancelledError):
                    await waiter
            assert catalogs.is_discovering("a")
            assert list((await other).catalogs) == ["a"]

    run(main())
    assert play.lists("a") == 1


def test_a_late_server_is_named_and_goes_on_in_the_background(play: Playground) -> None:
    play.server("slow", {"tools": [tool()], "start_delay": 2.0})
    play.server("quick")

    async def main() -> None:
        async with play.manager() as catalogs:
            first = await catalogs.discover(play.entries, wait=1.0)
            assert list(first.catalogs) == ["quick"]
            assert [(late.code, late.server) for late in first.not_searched] == [("timeout", "slow")]
            assert "still starting" in first.not_searched[0].line()
            assert catalogs.is_discovering("slow")
            assert catalogs.failed("slow") is None
            second = await catalogs.discover(play.entries)
            assert list(second.catalogs) == ["slow", "quick"]

    run(main())
    assert play.seen("slow", "start") == 1


@pytest.mark.slow
def test_a_server_that_failed_waits_behind_the_others(play: Playground) -> None:
    for number in range(6):
        play.server(f"bad{number}", {"exit": True})
    for number in range(4):
        play.server(f"good{number}", {"tools": [tool()], "list_delay": 0.3})

    async def main() -> None:
        order: list[str] = []
        async with play.manager() as catalogs:
            await catalogs.discover([name for name in play.entries if name.startswith("bad")])
            await catalogs.discover(play.entries, on_progress=lambda name, *_: order.append(name[:-1]))
        assert order == ["good"] * 4 + ["bad"] * 6

    run(main())


@pytest.mark.slow
def test_a_call_does_not_queue_behind_discoveries(play: Playground) -> None:
    for number in range(5):
        play.server(f"slow{number}", {"tools": [tool()], "start_delay": 5})
    play.server("a")

    async def main() -> None:
        async with play.manager() as catalogs:
            search = asyncio.create_task(catalogs.discover(play.entries, wait=0.3))
            found = await search
            assert "waits for its turn" in found.not_searched[-1].message
            began = time.monotonic()
            assert (await catalogs.live("a")).tools
            assert time.monotonic() - began < 4

    run(main())


@pytest.mark.parametrize("seed", range(5))
def test_places_are_given_back_whatever_happens_to_who_waits(seed: int) -> None:
    chance = random.Random(seed)

    async def main() -> None:
        gate = discovery._Gate(4)
        inside: list[str] = []

        async def visitor(name: str, urgent: bool) -> None:
            await gate.enter(name, chance.randrange(2), urgent=urgent)
            inside.append(name)
            try:
                await asyncio.sleep(chance.random() / 200)
            finally:
                inside.remove(name)
                gate.leave()

        visitors = [
            asyncio.create_task(visitor(f"{'urgent' if urgent else 'calm'}{number}", urgent))
            for number in range(80)
            for urgent in [chance.random() < 0.1]
        ]
        for _ in range(40):
            await asyncio.sleep(0.001)
            chance.choice(visitors).cancel()
            gate.promote(f"calm{chance.randrange(80)}")
        await asyncio.wait(visitors)
        assert inside == []
        assert gate._free == 4

    run(main())


@pytest.mark.slow
def test_twelve_servers_of_a_second_each_are_there_after_three(tmp_path: Path) -> None:
    data = shared_data()
    names = [path for path in sorted((data / "catalogs").glob("*.json")) if path.name != "index.json"][:12]
    play = Playground(tmp_path)
    for path in names:
        play.entries[path.stem] = {
            "command": sys.executable,
            "args": [str(data / "tools" / "replay_server.py"), str(path), "--delay-list", "1"],
        }

    async def main() -> float:
        async with play.manager() as catalogs:
            began = time.monotonic()
            found = await catalogs.discover(play.entries)
            taken = time.monotonic() - began
            assert (len(found.catalogs), found.not_searched) == (12, ())
            return taken

    taken = run(main())
    assert 3.0 <= taken < 8.0


@pytest.mark.slow
def test_every_real_catalog_survives_discovery_and_the_disk(tmp_path: Path) -> None:
    data = shared_data()
    play = Playground(tmp_path)
    for path in sorted((data / "catalogs").glob("*.json")):
        if path.name != "index.json":
            args = [str(data / "tools" / "replay_server.py"), str(path), "--page", "50"]
            play.entries[path.stem] = {"command": sys.executable, "args": args}

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await catalogs.discover(play.entries, wait=60)
            assert found.not_searched == ()
        for name, catalog in found.catalogs.items():
            wire = json.loads((data / "catalogs" / f"{name}.json").read_text())["tools"]
            assert [tool.wire for tool in catalog.tools] == wire
        async with play.manager() as catalogs:
            assert {name: catalogs.known(name) for name in play.entries} == dict(found.catalogs)

    run(main(), 100)


# -- failures ---------------------------------------------------------------------------------------------------


def test_b214_a_server_that_cannot_start_is_named_beside_the_healthy_one(play: Playground) -> None:
    play.server("good")
    play.entries["bad"] = {"command": f"/nowhere/{SECRET}-no", "env": {"API_TOKEN": SECRET}}

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await catalogs.discover(play.entries)
            assert list(found.catalogs) == ["good"]
            assert [(one.code, one.server) for one in found.not_searched] == [("connection_failed", "bad")]
            assert catalogs.failed("bad") == found.not_searched[0]
            assert catalogs.failed("good") is None
            with refuses("connection_failed"):
                await catalogs.refresh("bad")

    run(main())


def test_b212_a_listing_that_fails_after_the_handshake_is_no_empty_catalog(play: Playground) -> None:
    play.server("a", {"list_error": {"code": -32603, "message": f"token {SECRET} refused"}})

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await catalogs.discover(["a"])
            assert found.catalogs == {}
            assert [one.server for one in found.not_searched] == ["a"]
            assert SECRET not in repr(found)
            assert catalogs.known("a") is None
            play.behave("a", tools=[tool()])
            assert list((await catalogs.discover(["a"])).catalogs) == ["a"]
            assert catalogs.failed("a") is None

    run(main())


def test_b031_after_a_start_that_took_too_long_the_next_search_starts_a_fresh_process(play: Playground) -> None:
    play.server("a", {"tools": [tool()], "start_delay": 1.5}, startupTimeoutMs=600)

    async def main() -> None:
        async with play.manager() as catalogs:
            first = await catalogs.discover(["a"])
            assert [one.code for one in first.not_searched] == ["timeout"]
            play.behave("a", tools=[tool()])
            second = await catalogs.discover(["a"])
            assert list(second.catalogs) == ["a"]

    run(main())


def test_b031_the_configured_start_time_is_honoured(play: Playground) -> None:
    play.server("a", {"tools": [tool()], "start_delay": 1.0}, timeoutMs=500, startupTimeoutMs=5000)

    async def main() -> None:
        async with play.manager() as catalogs:
            assert list((await catalogs.discover(["a"])).catalogs) == ["a"]

    run(main())
    assert play.seen("a", "start") == 1


def test_a_missing_variable_is_reported_and_nothing_is_started(play: Playground) -> None:
    play.server("a", env={"API_TOKEN": "${NOT_THERE}"})

    async def main() -> None:
        async with play.manager() as catalogs:
            assert catalogs.known("a") is None
            found = await catalogs.discover(["a"])
            assert [(one.code, one.server) for one in found.not_searched] == [("configuration_invalid", "a")]
            assert "NOT_THERE" in found.not_searched[0].message

    run(main())
    assert play.seen("a", "start") == 0


def test_b217_disabled_invalid_and_unknown_servers_never_appear(play: Playground) -> None:
    play.server("a")
    play.server("off")

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a", "off"])
            play.entries["off"]["disabled"] = True
            play.entries["invalid"] = {"command": 3}
            catalogs.update(play.configuration())
            assert catalogs.known("off") is None
            assert catalogs.held("off") is None
            found = await catalogs.discover(["a", "off", "invalid", "nobody"])
            assert (list(found.catalogs), found.not_searched) == (["a"], ())
            for work in (catalogs.refresh, catalogs.reconnect, catalogs.live):
                for name, code in (
                    ("off", "refused"),
                    ("invalid", "configuration_invalid"),
                    ("nobody", "not_found"),
                ):
                    with refuses(code):
                        await work(name)
        async with play.manager() as catalogs:
            assert catalogs.known("off") is None

    run(main())
    assert play.seen("off", "start") == 1


@pytest.mark.slow
def test_b082_a_listing_without_end_is_cut_reported_and_not_kept(
    play: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.server("endless", {"endless": True})
    play.server("good")

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await catalogs.discover(play.entries)
            assert set(found.catalogs) == {"endless", "good"}
            assert not found.catalogs["endless"].complete
            assert [(one.code, one.server) for one in found.warnings] == [("protocol_error", "endless")]
        async with play.manager() as catalogs:
            assert catalogs.known("endless") is None
            assert catalogs.known("good") is not None

    run(main(), 60)


def test_b107_b109_a_server_without_tools_has_an_empty_catalog(play: Playground) -> None:
    play.server("a", {"capabilities": {"resources": {}}, "list_error": {"code": -32601, "message": "no"}})

    async def main() -> None:
        async with play.manager() as catalogs:
            found = await catalogs.discover(["a"])
            assert found.not_searched == ()
            assert found.catalogs["a"].tools == ()
            again = await catalogs.refresh("a")
            assert (again.tools, again.complete) == ((), True)
            assert "offers no tools" in again.notes[0]

    run(main())
    assert play.lists("a") == 0


def test_a_display_that_fails_does_not_lose_the_search(play: Playground) -> None:
    play.server("a")

    def broken(*_: object) -> None:
        raise RuntimeError("no terminal")

    async def main() -> None:
        async with play.manager() as catalogs:
            assert list((await catalogs.discover(["a"], on_progress=broken)).catalogs) == ["a"]

    run(main())


# -- reconnect, calls, changes ----------------------------------------------------------------------------------


def test_reconnect_is_busy_while_a_discovery_runs_and_refresh_joins_it(play: Playground) -> None:
    play.server("a", {"tools": [tool()], "list_delay": 0.5})

    async def main() -> None:
        async with play.manager() as catalogs:
            search = asyncio.create_task(catalogs.discover(["a"]))
            await asyncio.sleep(0.1)
            with refuses("busy"):
                await catalogs.reconnect("a")
            joined = await catalogs.refresh("a")
            assert (await search).catalogs["a"] is joined
            await catalogs.reconnect("a")

    run(main())
    assert play.lists("a") == 2


def test_the_first_call_of_a_connection_lists_and_the_next_ones_do_not(play: Playground) -> None:
    play.server("a")

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
            await catalogs.live("a")
        assert play.lists("a") == 1, "the discovery was this connection's listing"
        async with play.manager() as catalogs:
            assert catalogs.known("a") is not None
            first = await catalogs.live("a")
            assert await catalogs.live("a") is first
            assert play.lists("a") == 2
            await play.connections.get("a").reconnect()
            await catalogs.live("a")
            assert play.lists("a") == 3
            await play.connections.get("a").close()
            await catalogs.live("a")
            assert play.lists("a") == 4

    run(main())


@pytest.mark.parametrize(
    ("how", "later", "listings"),
    [
        ({}, 290, 1),
        ({}, 301, 2),
        ({"capabilities": {"tools": {"listChanged": True}}}, 3000, 1),
        ({"ttl": 600}, 590, 1),
        ({"ttl": 600}, 601, 2),
        ({"ttl": 60, "capabilities": {"tools": {"listChanged": True}}}, 61, 2),
    ],
)
def test_a_listing_is_due_after_the_stated_time_or_five_minutes_without_any_promise(
    play: Playground, monkeypatch: pytest.MonkeyPatch, how: dict[str, Any], later: float, listings: int
) -> None:
    play.server("a", {"tools": [tool()], **how})

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.live("a")
            catalogs._servers["a"].listed_at -= later
            await catalogs.live("a")

    run(main())
    assert play.lists("a") == listings


def test_a_burst_of_change_notifications_is_one_listing(play: Playground) -> None:
    declared = {"tools": {"listChanged": True}}
    play.server("a", {"tools": [tool()], "capabilities": declared, "notify": 30})

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.live("a")
            loaded = catalogs.known("a")
            await play.call("a")
            assert catalogs.known("a") is None
            assert catalogs.held("a") is loaded, "nothing changes by itself"
            await catalogs.live("a")
            assert catalogs.known("a") is not None
            await catalogs.live("a")

    run(main())
    assert play.lists("a") == 2


def test_a_change_during_a_listing_makes_the_next_one_due(play: Playground) -> None:
    declared = {"tools": {"listChanged": True}}
    play.server("a", {"tools": [tool()], "capabilities": declared, "notify_while_listing": True, "list_delay": 0.1})

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.refresh("a")
            assert catalogs.known("a") is None
            play.behave("a", tools=[tool("new")], capabilities=declared)
            assert (await catalogs.live("a")).tools[0].name == "new"
            assert catalogs.known("a") is not None

    run(main())


def test_a_stale_catalog_is_not_taken_from_disk_again(play: Playground) -> None:
    declared = {"tools": {"listChanged": True}}
    play.server("a", {"tools": [tool("old")], "capabilities": declared, "notify": 1})

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
            await play.call("a")
            play.behave("a", tools=[tool("new")], capabilities=declared)
            found = await catalogs.discover(["a"])
            assert found.catalogs["a"].tools[0].name == "new"

    run(main())


def test_a_call_to_a_server_that_is_gone_says_why(play: Playground) -> None:
    play.server("a")

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
        play.behave("a", exit=True)
        async with play.manager() as catalogs:
            assert catalogs.known("a") is not None
            with refuses("connection_failed"):
                await catalogs.live("a")
            assert catalogs.known("a") is not None, "a cached search needs no connection"
            assert catalogs.failed("a") is not None

    run(main())


def test_the_protocol_outcome_is_kept_and_forgotten_when_it_fails_once(
    play: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.server("a")
    eras: list[str | None] = []

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
        store = play.folder / "catalogs"
        (file,) = store.glob("*.json")
        kept = json.loads(file.read_text())
        file.write_text(json.dumps(kept | {"fetchedAt": time.time() - 2 * DAY}))
        play.behave("a", exit=True)
        for _ in range(2):
            async with play.manager() as catalogs:
                connection = play.connections.get("a")
                connect = type(connection).connect

                async def watched(self: Any, *, era: str | None = None, _connect: Any = connect) -> Any:
                    eras.append(era)
                    return await _connect(self, era=era)

                with monkeypatch.context() as patch:
                    patch.setattr(type(connection), "connect", watched)
                    assert (await catalogs.discover(["a"])).catalogs == {}
        assert json.loads(file.read_text())["era"] is None

    run(main())
    assert eras[0] == "legacy"
    assert "legacy" not in eras[1:]


def test_a_server_set_back_to_an_older_protocol_is_found_in_the_same_search(play: Playground) -> None:
    play.server("a")

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(["a"])
        (file,) = (play.folder / "catalogs").glob("*.json")
        kept = json.loads(file.read_text())
        file.write_text(json.dumps(kept | {"era": "modern", "fetchedAt": time.time() - 2 * DAY}))
        async with play.manager() as catalogs:
            found = await catalogs.discover(["a"])
            assert found.not_searched == ()
            assert found.catalogs["a"].era == "legacy"

    run(main())


def test_files_that_nobody_used_for_a_month_go_when_a_server_is_asked(play: Playground) -> None:
    play.server("a")
    play.server("gone")

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(play.entries)
        del play.entries["gone"]
        for path in (play.folder / "catalogs").iterdir():
            os.utime(path, (time.time() - 40 * DAY,) * 2)
        async with play.manager() as catalogs:
            assert catalogs.known("a") is not None
            await catalogs.live("a")
        assert len(list((play.folder / "catalogs").glob("*.json"))) == 1

    run(main())


# -- configuration changes and the end --------------------------------------------------------------------------


def test_an_update_keeps_what_did_not_change_and_drops_what_did(play: Playground) -> None:
    play.server("same")
    play.server("other")
    play.server("variable", env={"VALUE": "${VALUE}"})
    play.environ["VALUE"] = "one"

    async def main() -> None:
        async with play.manager() as catalogs:
            await catalogs.discover(play.entries)
            kept = catalogs.held("same")
            play.entries["other"]["args"] = [*play.entries["other"]["args"], "--more"]
            play.environ["VALUE"] = "two"
            configuration = play.configuration()
            play.connections.update(configuration)
            catalogs.update(configuration)
            assert catalogs.held("same") is kept
            assert catalogs.held("other") is None
            assert catalogs.known("other") is None
            assert catalogs.known("variable") is None

    run(main())


@pytest.mark.slow
def test_closing_ends_a_discovery_and_says_so_to_who_waits(play: Playground) -> None:
    for number in range(6):
        play.server(f"s{number}", {"tools": [tool()], "start_delay": 20})

    async def main() -> None:
        async with play.manager() as catalogs:
            search = asyncio.create_task(catalogs.discover(play.entries))
            refresh = asyncio.create_task(catalogs.refresh("s0"))
            await asyncio.sleep(0.3)
            began = time.monotonic()
            await catalogs.close()
            assert time.monotonic() - began < 10
            assert {one.code for one in (await search).not_searched} == {"cancelled"}
            with refuses("cancelled"):
                await refresh
            with refuses("cancelled"):
                await catalogs.refresh("s1")
            assert {one.code for one in (await catalogs.discover(["s2"])).not_searched} == {"cancelled"}
            await catalogs.close()

    run(main())


def test_b160_a_second_manager_after_the_first_was_closed_works(play: Playground) -> None:
    play.server("a")

    async def main() -> None:
        for _ in range(3):
            async with play.manager() as catalogs:
                assert list((await catalogs.discover(["a"])).catalogs) == ["a"]
                await catalogs.live("a")

    run(main())
    assert play.seen("a", "start") == 3


def test_a_cache_that_cannot_be_written_costs_nothing_but_the_cache(play: Playground) -> None:
    play.server("a")
    (play.folder / "catalogs").write_bytes(b"")

    async def main() -> None:
        async with play.manager() as catalogs:
            assert list((await catalogs.discover(["a"])).catalogs) == ["a"]
            assert catalogs.known("a") is not None

    run(main())


def test_the_bounds_are_those_of_the_design() -> None:
    assert (discovery.AT_ONCE, discovery.SEARCH_WAIT, discovery.RELIST_AFTER) == (4, 15.0, 300.0)
