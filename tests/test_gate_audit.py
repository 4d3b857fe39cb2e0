"""The audit trail: a row before anything is sent, closed before the reply; bounded, masked, honest about failure."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pi_mcp.access import AuditFilter, AuditRow, Limits
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.server import audit_input
from pi_mcp.server.scoped_gate import AUDIT_META, AuditSettings
from pi_mcp.store import open_store
from tests.access_support import shared_gateway
from tests.auth_support import until
from tests.gateway_support import Client, Failed, ModernClient
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, methods_of, tool
from tests.plugin_support import spoken
from tests.support import run

SECRET = "planted-5ecret-value-77"
READ = {"annotations": {"readOnlyHint": True}}


def server(folder: Path, call: Any = None, **fields: Any) -> dict[str, Any]:
    turns = {} if call is None else {"tools/call": call}
    return entry(folder, spoken([tool("look", **READ), tool("turn")], **turns), **fields)


async def rows(shared: Any) -> list[AuditRow]:
    return list(await shared.store.audit(AuditFilter(oldest_first=True, limit=None)))


@pytest.mark.parametrize("rounds", [True, False], ids=["answers-input-required", "asks-itself"])
def test_a_call_that_waits_for_its_client_says_so_and_the_one_with_the_answers_has_a_row_of_its_own(
    tmp_path: Path, rounds: bool
) -> None:
    question = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "object"}}}
    wanted = {"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s1"}
    asks = [{"ask": [question["method"], question["params"]]}, {"answer": True}]

    async def work(entry: dict[str, Any]) -> None:
        async with (
            shared_gateway({"s": entry}, tmp_path, expose="all") as shared,
            ModernClient(
                shared.url, capabilities={"elicitation": {}}, **await shared.headers("bearer", "tools:write")
            ) as client,
        ):
            params: dict[str, Any] = {"name": "s__echo", "arguments": {}}
            result = await client.request("tools/call", params)
            assert result["resultType"] == "input_required"
            answers = {key: {"action": "accept", "content": {}} for key in result["inputRequests"]}
            again = {**params, "inputResponses": answers, "requestState": result["requestState"]}
            assert (await client.request("tools/call", again))["resultType"] == "complete"
            assert [row.outcome for row in await rows(shared)] == ["input_required", "ok"]

    if rounds:
        with HttpServer({"tools/call": [{"result": wanted}, {}]}, era="modern") as upstream:
            run(work({"url": upstream.url}))
    else:
        run(work(entry(tmp_path, {"tools/call": [asks]}, shared=False)))


def test_what_is_over_a_limit_has_a_row_and_a_flood_of_it_has_one(tmp_path: Path) -> None:
    async def work() -> None:
        slow = server(tmp_path, [[{"sleep": 1.0}, {"echo": True}]])
        async with shared_gateway({"s": slow}, tmp_path, expose="all") as shared:
            one = await shared.headers("bearer", "tools:write", limits=Limits(concurrent=1))
            async with Client(shared.url, **one) as client:
                calling = asyncio.ensure_future(client.call("s__turn", {"a": 1}))
                await until(lambda: "tools/call" in methods_of(slow))
                with pytest.raises(Failed):
                    await client.call("s__turn", {"a": 2})
                await calling
            found = await rows(shared)
            assert sorted((row.tool, row.action, row.outcome, row.input) for row in found) == [
                ("turn", "write", "limited", '{"a":2}'),
                ("turn", "write", "ok", '{"a":1}'),
            ]
            few = await shared.headers("bearer", "tools:write", limits=Limits(requests_per_minute=1), subject="eve")
            async with httpx2.AsyncClient(trust_env=False) as http:
                sent = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                statuses = [(await http.post(shared.url, headers=few, json=sent)).status_code for _ in range(5)]
            assert statuses[1:] == [429] * 4
            (row,) = [row for row in await rows(shared) if row.subject == "eve"]
            assert (row.action, row.outcome, row.tool, row.input) == ("request", "limited", None, None)

    run(work())


def test_a_row_is_open_while_its_call_is_under_way(tmp_path: Path) -> None:
    async def work() -> None:
        slow = server(tmp_path, [[{"sleep": 0.5}, {"echo": True}]])
        async with (
            shared_gateway({"s": slow}, tmp_path, expose="all") as shared,
            Client(shared.url, **await shared.headers("bearer", "tools:write")) as client,
        ):
            calling = asyncio.ensure_future(client.call("s__turn", {}))
            await until(lambda: "tools/call" in methods_of(slow))
            assert [(row.outcome, row.duration) for row in await rows(shared)] == [("unknown", None)]
            await calling
            (row,) = await rows(shared)
            assert row.outcome == "ok"
            assert row.duration is not None
            assert 0.4 < row.duration < 30

    run(work())


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        ([[{"result": {"content": [], "isError": True}}]], "tool_error"),
        ([[{"error": [-32050, SECRET]}]], "error"),
        ([[{"exit": 1}]], "error"),
        ([[{"echo": True}]], "ok"),
    ],
)
def test_a_row_says_how_the_call_ended(tmp_path: Path, call: Any, outcome: str) -> None:
    async def work() -> None:
        for made in (Client, ModernClient):
            async with (
                shared_gateway({"s": server(tmp_path, call)}, tmp_path, expose="all") as shared,
                made(shared.url, **await shared.headers("bearer", "tools:write")) as client,
            ):
                if outcome == "error":
                    with pytest.raises(Failed):
                        await client.call("s__turn", {})
                else:
                    await client.call("s__turn", {})
                found = await rows(shared)
                assert found[-1].outcome == outcome
                assert SECRET not in repr(found)

    run(work())


def test_a_cancelled_call_has_a_closed_row(tmp_path: Path) -> None:
    async def work() -> None:
        stuck = server(tmp_path, [[{"hang": True}]])
        async with (
            shared_gateway({"s": stuck}, tmp_path, expose="all") as shared,
            Client(shared.url, **await shared.headers("bearer", "tools:write")) as client,
        ):
            message = client.message("tools/call", {"name": "s__turn", "arguments": {}})
            calling = asyncio.ensure_future(client.send(message))
            await until(lambda: "tools/call" in methods_of(stuck))
            await client.notify("notifications/cancelled", {"requestId": message["id"]})
            with pytest.raises(Failed):
                await calling
            assert [row.outcome for row in await rows(shared)] == ["cancelled"]

    run(work())


class Slow:
    """A store that takes its time to open a row."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.opening = asyncio.Event()
        self.go_on = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def open_call(self, row: AuditRow) -> None:
        writing = asyncio.ensure_future(self._store.open_call(row))
        self.opening.set()
        await self.go_on.wait()
        await writing


def test_a_call_that_is_cancelled_while_its_row_is_opened_is_not_under_way_for_ever(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = server(tmp_path)
        opened = await open_store(tmp_path / "store.sqlite3")
        slow: Any = Slow(opened)
        try:
            async with (
                shared_gateway({"s": upstream}, tmp_path, expose="all", store=slow) as shared,
                Client(shared.url, **await shared.headers("bearer", "tools:write")) as client,
            ):
                message = client.message("tools/call", {"name": "s__turn", "arguments": {}})
                calling = asyncio.ensure_future(client.send(message))
                await asyncio.wait_for(slow.opening.wait(), 30)
                await client.notify("notifications/cancelled", {"requestId": message["id"]})
                with pytest.raises(Failed):
                    await calling
                async with asyncio.timeout(30):
                    while [row.outcome for row in await rows(shared)] != ["cancelled"]:  # noqa: ASYNC110 - a store has no event
                        await asyncio.sleep(0.01)
                assert "tools/call" not in methods_of(upstream)
        finally:
            await opened.close()

    run(work())


def test_reads_are_kept_where_a_setting_says_so_and_arguments_where_none_says_no(tmp_path: Path) -> None:
    async def work() -> None:
        for settings, expected in (
            (AuditSettings(), [("write", '{"a":1}')]),
            (AuditSettings(reads=True), [("read", '{"a":1}'), ("write", '{"a":1}')]),
            (AuditSettings(arguments=False, reads=True), [("read", None), ("write", None)]),
        ):
            folder = tmp_path / f"{settings.reads}-{settings.arguments}"
            folder.mkdir()
            async with (
                shared_gateway({"s": server(folder)}, folder, expose="all", audit=settings) as shared,
                Client(shared.url, **await shared.headers("bearer", "tools:read tools:write")) as client,
            ):
                await client.call("s__look", {"a": 1})
                await client.call("s__turn", {"a": 1})
                assert [(row.action, row.input) for row in await rows(shared)] == expected

    run(work())


def test_a_tool_that_writes_for_one_argument_only_has_a_row_for_those_calls(tmp_path: Path) -> None:
    async def work() -> None:
        rules = {"write": [{"tool": "look", "when": {"argument": "deckId"}}]}
        upstream = server(tmp_path, access=rules)
        async with shared_gateway({"s": upstream}, tmp_path, expose="all") as shared:
            async with Client(shared.url, **await shared.headers("bearer", "tools:read")) as client:
                await client.call("s__look", {"sessionId": 1})
                with pytest.raises(Failed) as caught:
                    await client.call("s__look", {"deckId": "d1"})
                assert caught.value.data == {"scope": "tools:write"}
            async with Client(shared.url, **await shared.headers("bearer", "tools:read tools:write")) as client:
                await client.call("s__look", {"deckId": "d1"})
            found = await rows(shared)
            assert [(row.action, row.outcome, row.affected) for row in found] == [
                ("write", "refused", ()),
                ("write", "ok", ("d1",)),
            ]
            assert methods_of(upstream).count("tools/call") == 2

    run(work())


def test_a_call_of_a_server_that_is_not_trusted_is_refused_and_recorded(tmp_path: Path) -> None:
    """Trust levels hold for each upstream alone: nobody can be asked in the gateway."""

    async def work() -> None:
        servers = {
            "high": server(tmp_path),
            "middle": server(tmp_path, trust="verified", access={"readOnly": ["look"]}),
            "low": server(tmp_path, trust="untrusted", access={"readOnly": ["look"]}),
            "named": server(tmp_path, trust="untrusted", includeTools=["turn"]),
        }
        async with (
            shared_gateway(servers, tmp_path, expose="all") as shared,
            Client(shared.url, **await shared.headers("bearer", "tools:read tools:write")) as client,
        ):
            done = {}
            for name in ("high__turn", "middle__look", "middle__turn", "low__look", "low__turn", "named__turn"):
                try:
                    await client.call(name, {})
                    done[name] = 0
                except Failed as failed:
                    done[name] = failed.code
            assert done == {
                "high__turn": 0,
                "middle__look": 0,
                "middle__turn": -32003,
                "low__look": -32003,
                "low__turn": -32003,
                "named__turn": 0,
            }
            written = {(row.server, row.tool, row.outcome) for row in await rows(shared)}
            assert ("middle", "turn", "refused") in written
            assert ("low", "turn", "refused") in written
            assert methods_of(servers["low"]).count("tools/call") == 0

    run(work())


class Failing:
    """A store that fails where it is told to."""

    def __init__(self, store: Any, *methods: str) -> None:
        self._store = store
        self.methods = set(methods)

    def __getattr__(self, name: str) -> Any:
        if name in self.methods:

            async def fail(*_: Any, **__: Any) -> None:
                raise failure("operation_failed", "command", None, f"The disk is full. {SECRET}")

            return fail
        return getattr(self._store, name)


def test_what_cannot_be_recorded_is_not_sent_and_what_was_sent_is_not_undone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        upstream = server(tmp_path)
        opened = await open_store(tmp_path / "store.sqlite3")
        failing: Any = Failing(opened)
        try:
            async with shared_gateway({"s": upstream}, tmp_path, expose="all", store=failing) as shared:
                headers = await shared.headers("bearer", "tools:read tools:write")
                few = await shared.headers("bearer", "tools:read")
                async with Client(shared.url, **headers) as client, Client(shared.url, **few) as reader:
                    failing.methods = {"open_call", "record"}
                    with pytest.raises(Failed) as caught:
                        await client.call("s__turn", {})
                    assert caught.value.data == {AUDIT_META: "failed"}
                    assert SECRET not in str(caught.value)
                    assert "tools/call" not in methods_of(upstream)
                    await client.call("s__look", {})  # reads have no row
                    with pytest.raises(Failed) as caught:
                        await reader.call("s__turn", {})
                    assert caught.value.data == {"scope": "tools:write", AUDIT_META: "failed"}

                    failing.methods = {"close_call"}
                    result = await client.call("s__turn", {})
                    assert result["_meta"][AUDIT_META] == "failed"
                    assert methods_of(upstream).count("tools/call") == 2
                    failing.methods = set()
                    assert [row.outcome for row in await rows(shared)] == ["unknown"]
                    assert AUDIT_META not in (await client.call("s__turn", {})).get("_meta", {})

                    failing.methods = {"key"}
                    with pytest.raises(Failed) as caught:
                        await client.request("ping")
                    assert caught.value.status == 503
                    assert SECRET not in str(caught.value)
                    failing.methods = set()
        finally:
            await opened.close()

    run(work())
    # The caller is told that the operator has to look after it, and the operator what there is to look after.
    told = [record.getMessage() for record in caplog.records if record.name == "pi_mcp.server"]
    reasons = ("was not sent", "a refused call has no", "could not be closed", "a credential could not be checked")
    for reason in reasons:
        assert any(reason in line and "The disk is full." in line for line in told), reason


# what a row says of the arguments


@pytest.mark.parametrize(
    "arguments",
    [
        {"password": SECRET},
        {"auth": {"apiKey": SECRET}},
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"note": f"the password: {SECRET} is new"},
        {"note": f'{{"client_secret": "{SECRET}"}}'},
        {"note": f"curl -H 'Authorization: Bearer {SECRET}' x"},
        {"url": f"https://me:{SECRET}@host/x"},
        {"url": f"https://host/x?token={SECRET}"},
        {"env": [f"API_KEY={SECRET}"]},
        {f"token={SECRET}": 1},
        {"text": "-----BEGIN RSA PRIVATE KEY----- " + SECRET},
        {"deep": {"a": {"b": {"c": {"d": {"e": {"secret": SECRET}}}}}}},
        {"cut": "x " * 70 + f"token={SECRET}"},
        {"list": [1, 2, {"cookie": SECRET}]},
        {"Pass Word": SECRET},
        {"api  key": SECRET},
        {"command": f"curl -u bob:{SECRET} https://x"},
        {"command": f"curl --user 'bob:{SECRET}' https://x"},
        {"env": [{"name": "API_KEY", "value": SECRET}]},
        {"key": "client-secret", "value": SECRET},
        {"headers": [["Authorization", SECRET]]},
        {"args": ["login", "--password", SECRET]},
        {"passphrase": SECRET},
        {"pass": SECRET},
        {"userPass": SECRET},
        {"\uff30\uff41\uff53\uff53\uff57\uff4f\uff52\uff44": SECRET},
        {"body": json.dumps(json.dumps(json.dumps({"password": SECRET})))},
        {"body": f"<password>{SECRET}</password>"},
        {"note": f"the token is {SECRET}"},
        {"code": f"os.environ['SECRET'] = '{SECRET}'"},
        {"sql": f"ALTER USER ann IDENTIFIED BY '{SECRET}'"},
        {"sql": f"CREATE USER ann WITH PASSWORD '{SECRET} {SECRET}'"},
    ],
)
def test_what_looks_like_a_secret_is_in_no_summary(arguments: dict[str, Any]) -> None:
    shown = audit_input.summary(arguments)
    assert SECRET not in shown
    assert SECRET[:12] not in shown
    assert not any(SECRET in one for one in audit_input.affected(arguments, {"structuredContent": arguments}))


@pytest.mark.parametrize(
    "arguments",
    [
        {"text": "x" * 10_000_000},
        {"list": list(range(1_000_000))},
        {str(number): "y" * 1000 for number in range(10_000)},
        {"a" * 1_000_000: 1},
        {"n": 10**300},
        {"odd": "\ud800\x1b[31m\u202e"},
        {"nested": json.loads("[" * 500 + "]" * 500)},
        # With a pattern that looks back and forth each of them took more than a second.
        {str(number): "token" * 200 for number in range(20)},
    ],
)
def test_a_summary_is_bounded_whatever_the_arguments(arguments: dict[str, Any]) -> None:
    shown = audit_input.summary(arguments)
    assert len(shown) <= audit_input.SUMMARY_LIMIT
    assert "\x1b" not in shown
    shown.encode("utf-8", "surrogatepass")
    assert len(audit_input.affected(arguments, None)) <= audit_input.IDS


def test_a_summary_looks_at_no_more_than_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call waits for it: a body of 4 MiB has a million members."""
    looked: list[str] = []

    def text(value: str, limit: int) -> str:
        looked.append(value)
        return value[:limit]

    monkeypatch.setattr(audit_input, "_text", text)
    wide: Any = "x"
    for _ in range(4):
        wide = {f"k{number}": wide for number in range(20)}
    assert audit_input.summary(wide).startswith('{"k0":{"k0":{"k0":{"k0":"x","k1":"x"')
    assert len(looked) < audit_input.SUMMARY_LIMIT


def test_a_summary_says_what_the_call_was_about() -> None:
    arguments = {"title": "Fix the door", "labels": ["bug", "door"], "count": 3, "open": True, "due": None}
    for more in ({}, {"words": ["session", "plan", "x"]}, {"name": "Session plan", "value": "x"}, {"passport": "yes"}):
        assert json.loads(audit_input.summary({**arguments, **more})) == {**arguments, **more}


def test_ids_are_taken_from_arguments_and_results_in_order_and_once() -> None:
    arguments = {"deckId": "d1", "card_ids": ["c1", "c2"], "text": "id", "session_id": "s", "count": 5, "id": 7}
    result = {"structuredContent": {"cards": [{"id": "c2"}, {"id": "c3"}], "uri": "file:///x"}}
    assert audit_input.affected(arguments, result) == ("d1", "c1", "c2", "7", "c3", "file:///x")
    assert audit_input.affected({"ids": list(range(1000))}, None) == tuple(map(str, range(audit_input.IDS)))
    assert audit_input.affected({}, {"structuredContent": [1, "x"]}) == ()


def test_the_failing_store_of_these_tests_fails_as_ours_does() -> None:
    with pytest.raises(PiMcpError):
        run(Failing(None, "record").record())


def test_a_refused_call_says_of_which_server_and_with_what(tmp_path: Path) -> None:
    """The caller hears nothing of it: for them a server that is not granted is as one that is not there."""

    async def work() -> None:
        upstream = server(tmp_path)
        async with (
            shared_gateway({"s": upstream}, tmp_path, expose="all") as shared,
            Client(shared.url, **await shared.headers("bearer", "server:other:*")) as client,
        ):
            told = set()
            for method, name in (("tools/call", "s__turn"), ("tools/call", "t__turn"), ("prompts/get", "s__p")):
                with pytest.raises(Failed) as caught:
                    await client.request(method, {"name": name, "arguments": {"to": "x", "token": SECRET}})
                told.add((caught.value.code, caught.value.message))
            assert told == {(-32003, "Not permitted")}
            shown = '{"to":"x","token":"***"}'
            assert [(row.server, row.tool, row.action, row.input) for row in await rows(shared)] == [
                ("s", "turn", "tool", shown),
                (None, "t__turn", "tool", shown),
                ("s", "p", "prompt", shown),
            ]
            assert methods_of(upstream) == []

    run(work())


def test_a_foreign_method_that_is_handed_on_has_a_row_like_a_call(tmp_path: Path) -> None:
    """--no-prefix: nobody knows what such a method does, so that it is a write."""

    async def work() -> None:
        upstream = entry(tmp_path, spoken([tool("turn")], **{"vendor/do": [[{"result": {"done": 1}}]]}))
        async with shared_gateway({"s": upstream}, tmp_path, expose="all", prefix=False) as shared:
            async with Client(shared.url, **await shared.headers("bearer", "server:s:*")) as client:
                assert await client.request("vendor/do", {"itemId": "7", "_meta": {"x": 1}}) == {"done": 1}
            async with Client(shared.url, **await shared.headers("bearer", "server:s:read")) as client:
                with pytest.raises(Failed):
                    await client.request("vendor/do", {"itemId": "8"})
            assert [(row.server, row.tool, row.action, row.outcome, row.input) for row in await rows(shared)] == [
                ("s", "vendor/do", "write", "ok", '{"itemId":"7"}'),
                ("s", "vendor/do", "method", "refused", '{"itemId":"8"}'),
            ]
            assert methods_of(upstream).count("vendor/do") == 1

    run(work())
