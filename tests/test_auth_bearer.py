"""The bearer of traffic over real sockets: renewed once, never serialised, never lost, and never shown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.auth.bearer import OAuthBearer, credentials_for
from pi_mcp.auth.records import Client, Tokens
from pi_mcp.auth.renewal import due, renew
from pi_mcp.config import configuration_of
from pi_mcp.errors import AuthenticationError, PiMcpError
from pi_mcp.plugin import Plugin, Session
from tests.auth_store_support import (
    KEY,
    PLANTED,
    Authority,
    FailingKeyring,
    MemoryKeyring,
    credential,
    files_below,
    newer,
    resolved_of,
    store_of,
    tokens,
)
from tests.hostile.http_server import HttpServer
from tests.plugin_support import AskingHost
from tests.support import run


@contextlib.asynccontextmanager
async def product(
    folder: Path, servers: Mapping[str, Mapping[str, Any]], **environ: str
) -> AsyncIterator[tuple[Plugin, Session]]:
    """A plugin with encrypted logins below `folder`, and a session."""
    configuration = configuration_of(servers, cwd=folder, environ={**KEY, **environ})
    plugin = Plugin(configuration, state_dir=folder / "state", cache_dir=folder / "cache")
    try:
        yield plugin, plugin.session("one", AskingHost())
    finally:
        await plugin.close()


async def call(session: Session, server: str = "s") -> str:
    """Load `echo` of a server and call it; the text, or the code of what went wrong."""
    try:
        answer = await session.load([f"{server}.echo"])
        if answer.not_searched:
            return answer.not_searched[0].code
        return str((await session.call(f"mcp__{server}__echo", {"x": 1})).content[0]["text"])
    except PiMcpError as error:
        shown = json.dumps(error.diagnostic.to_json())
    assert PLANTED not in shown
    return str(json.loads(shown)["code"])


async def refused(work: Any, code: str = "authentication_required") -> PiMcpError:
    with pytest.raises(PiMcpError) as caught:
        await work
    assert caught.value.diagnostic.code == code
    assert PLANTED not in json.dumps(caught.value.diagnostic.to_json())
    return caught.value


def bearer(folder: Path, http: HttpServer, server: str = "s", keyring: Any = None, **entry: Any) -> OAuthBearer:
    return OAuthBearer(resolved_of(server, http.url, **entry), store_of(folder, keyring))


# -- which servers have one


@pytest.mark.parametrize(
    ("entry", "has"),
    [
        ({}, True),
        ({"oauth": True}, True),
        ({"oauth": {"clientId": "c"}}, True),
        ({"oauth": False}, False),
        ({"headers": {"Authorization": "Bearer x"}}, False),
        ({"headers": {"authorization": "!echo Bearer x"}}, False),
        ({"headers": {"X-Api-Key": "!echo x"}}, False),
        ({"headers": {"X-Api-Key": "!echo x"}, "oauth": True}, True),
        ({"headers": {"X-Tenant": "1"}}, True),
    ],
)
def test_oauth_has_no_say_where_another_credential_is_configured(
    tmp_path: Path, entry: dict[str, Any], has: bool
) -> None:
    found = credentials_for(resolved_of("s", "https://mcp.example/mcp", **entry), store_of(tmp_path))
    assert (found is not None) is has


def test_a_login_in_the_address_is_another_credential(tmp_path: Path) -> None:
    assert credentials_for(resolved_of("s", "https://me:pw@mcp.example/mcp"), store_of(tmp_path)) is None


# -- when a token is renewed


@pytest.mark.parametrize(
    ("lifetime", "left", "renewed"),
    [(3600.0, 31.0, False), (3600.0, 29.0, True), (3600.0, -5.0, True), (10.0, 6.0, False), (10.0, 4.0, True),
     (0.0, 0.0, True)],
)  # fmt: skip
def test_a_token_is_due_30_s_before_its_end_or_at_half_of_a_short_life(
    lifetime: float, left: float, renewed: bool
) -> None:
    found = Tokens("t", obtained_at=1000.0, expires_at=1000.0 + lifetime)
    assert due(found, 1000.0 + lifetime - left) is renewed
    assert not due(Tokens("t"), 1e12)


def test_a_token_that_ends_soon_is_renewed_before_it_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            await store_of(tmp_path).save(authority.login("s", http, lifetime=20.0))
            one = bearer(tmp_path, http)
            assert (await one.headers())["Authorization"] == f"Bearer {tokens(2).access_token}"
            assert (await one.headers())["Authorization"] == f"Bearer {tokens(2).access_token}"
            assert len(authority.requests) == 1
            sent = authority.requests[0]
            assert sent["grant_type"] == "refresh_token"
            assert sent["resource"] == http.url
            assert sent["client_id"] == "client-s"

    run(main())


def test_new_tokens_are_stored_before_they_are_used(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            await store_of(tmp_path).save(authority.login("s", http, lifetime=-5.0))
            header = await bearer(tmp_path, http).headers()
            stored = await store_of(tmp_path).load("s", http.url)
            assert stored is not None
            assert header["Authorization"] == f"Bearer {stored.tokens.access_token}"
            assert stored.tokens.refresh_token == authority.refresh_token
            assert stored.tokens.scopes == ("read", "write"), "what the reply leaves out stays"
            assert stored.tokens.expires_at is not None
            assert abs(stored.tokens.expires_at - time.time() - 3600) < 10

    run(main())


def test_a_reply_without_a_refresh_token_keeps_the_old_one(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(rotates=False)
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path)
            await store.save(authority.login("s", http, lifetime=-5.0))
            for number in (2, 3):
                one = bearer(tmp_path, http)
                if number == 3:
                    await one.headers()
                    assert await one.refused(401, ())
                assert (await one.headers())["Authorization"].startswith(f"Bearer at{number}-")
            stored = await store.load("s", http.url)
            assert stored is not None
            assert stored.tokens.refresh_token == f"rt1-{PLANTED}"
            assert len(authority.requests) == 2

    run(main())


def test_a_store_that_fails_after_the_renewal_loses_no_token(tmp_path: Path) -> None:
    class Breaking(MemoryKeyring):
        broken = False

        def set_password(self, service: str, username: str, password: str) -> None:
            if self.broken:
                raise OSError(5, PLANTED)
            super().set_password(service, username, password)

    async def main() -> None:
        authority = Authority()
        keyring = Breaking()
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path, keyring)
            await store.save(authority.login("s", http, lifetime=-5.0))
            one = OAuthBearer(resolved_of("s", http.url), store)
            keyring.broken = True
            await refused(one.headers(), "credential_store_unavailable")
            await refused(one.headers(), "credential_store_unavailable")
            keyring.broken = False
            assert (await one.headers())["Authorization"] == f"Bearer {tokens(2).access_token}"
            assert len(authority.requests) == 1
            stored = await store_of(tmp_path, keyring).load("s", http.url)
            assert stored is not None
            assert stored.tokens.refresh_token == authority.refresh_token

    run(main())


# -- failures of a renewal


FAILURES: list[Mapping[str, Any]] = [
    {"status": 503, "body": f"down {PLANTED}"},
    {"status": 500, "type": "application/json", "body": {"error": "server_error", "error_description": PLANTED}},
    {"status": 429},
    {"status": 401, "type": "application/json", "body": {"error": "invalid_client"}},
    {"status": 400, "type": "application/json", "body": {"error": "invalid_request"}},
    {"status": 200, "type": "text/html", "body": f"<html>{PLANTED}</html>"},
    {"redirect": "/elsewhere"},
    {"reset": True},
    {"close": True},
]


@pytest.mark.parametrize("failing", FAILURES, ids=lambda one: str(next(iter(one.items()))))
def test_a_failed_renewal_keeps_everything_and_the_next_one_succeeds(
    tmp_path: Path, failing: Mapping[str, Any]
) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path)
            saved = authority.login("s", http, lifetime=-5.0)
            await store.save(saved)
            authority.failing = failing
            one = bearer(tmp_path, http)
            with pytest.raises(PiMcpError) as caught:
                await one.headers()
            assert PLANTED not in json.dumps(caught.value.diagnostic.to_json())
            assert caught.value.diagnostic.server == "s"
            assert len(authority.requests) == 1, "sent once"
            assert await store_of(tmp_path).load("s", http.url) == saved
            authority.failing = None
            assert (await one.headers())["Authorization"] == f"Bearer {tokens(2).access_token}"

    run(main())


def test_a_token_that_is_still_good_is_used_while_the_authorization_server_is_down(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            await store_of(tmp_path).save(authority.login("s", http, lifetime=20.0))
            authority.failing = {"status": 503}
            one = bearer(tmp_path, http)
            assert (await one.headers())["Authorization"] == f"Bearer {tokens(1).access_token}"

    run(main())


def test_a_definite_refusal_of_the_newest_token_is_kept_and_asked_for_once(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path)
            saved = authority.login("s", http, lifetime=-5.0)
            await store.save(saved)
            authority.alive = False
            for _ in range(3):
                raised = await refused(bearer(tmp_path, http).headers())
                assert raised.diagnostic.hint == "Run `/mcp auth s`."
            assert len(authority.requests) == 1
            left = await store_of(tmp_path).load("s", http.url)
            assert left is not None
            assert (left.tokens.access_token, left.tokens.refresh_token) == ("", None)
            assert left.client == saved.client, "the registration serves the next login"
            entry = store.entry("s", http.url)
            assert entry is not None
            assert entry.refused

    run(main())


def test_b118_a_refusal_never_deletes_the_token_that_another_process_stored(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(delay=0.3)
        with HttpServer(authority.script()) as http:
            saved = authority.login("s", http, lifetime=-5.0)
            await store_of(tmp_path).save(saved)
            authority.alive = False
            one = bearer(tmp_path, http)
            waiting = asyncio.create_task(one.headers())
            await asyncio.sleep(0.15)
            # Another program without our lock, or a login on another machine with the same home directory.
            other = store_of(tmp_path)
            stronger = newer(saved, 7)
            async with contextlib.AsyncExitStack():
                other._locks.hold = contextlib.nullcontext  # type: ignore[assignment, method-assign]
                other._hold = lambda *_: contextlib.nullcontext(True)  # type: ignore[assignment, method-assign]
                await other.save(stronger)
            assert (await waiting)["Authorization"] == f"Bearer {stronger.tokens.access_token}"
            assert await store_of(tmp_path).load("s", http.url) == stronger

    run(main())


def test_without_a_refresh_token_the_old_one_is_sent_and_a_refusal_asks_for_a_login(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            await store_of(tmp_path).save(authority.login("s", http, lifetime=-5.0, refresh=False))
            one = bearer(tmp_path, http)
            assert (await one.headers())["Authorization"].startswith("Bearer at1-")
            await refused(one.refused(401, ()))
            assert authority.requests == []

    run(main())


def test_client_credentials_are_asked_for_again_without_a_refresh_token(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(rotates=False)
        with HttpServer(authority.script()) as http:
            saved = authority.login("s", http, lifetime=-5.0, refresh=False)
            client = Client("client-s", "configured", None, auth_method="client_secret_post")
            await store_of(tmp_path).save(replace(saved, client=client))
            entry = {"oauth": {"clientId": "client-s", "clientSecret": "x" * 20, "grant": "client_credentials"}}
            one = bearer(tmp_path, http, **entry)
            assert (await one.headers())["Authorization"] == f"Bearer {tokens(2).access_token}"
            assert authority.requests[0]["grant_type"] == "client_credentials"
            assert authority.requests[0]["scope"] == "read write"
            assert authority.requests[0]["client_secret"] == "x" * 20

    run(main())


# -- one renewal for all


def test_b119_parallel_calls_with_a_refused_token_share_one_renewal(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(delay=0.2)
        with HttpServer(authority.script()) as http:
            saved = authority.login("s", http)
            async with product(tmp_path, {"s": {"url": http.url}}) as (plugin, session):
                await plugin.credentials.save(saved)
                assert "echo" in await call(session)
                authority.accepts.clear()
                answers = await asyncio.gather(*(session.call("mcp__s__echo", {"n": n}) for n in range(3)))
                assert [not answer.is_error for answer in answers] == [True] * 3
                assert len(authority.requests) == 1
                authority.accepts.clear()
                assert "echo" in await call(session)
                assert len(authority.requests) == 2

    run(main())


def test_who_stops_waiting_does_not_end_the_renewal_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(delay=0.3)
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path)
            await store.save(authority.login("s", http, lifetime=-5.0))
            one = OAuthBearer(resolved_of("s", http.url), store)
            first, second = asyncio.create_task(one.headers()), asyncio.create_task(one.headers())
            await asyncio.sleep(0.15)
            first.cancel()
            assert (await second)["Authorization"] == f"Bearer {tokens(2).access_token}"
            await asyncio.gather(first, return_exceptions=True)
            assert first.cancelled()
            assert len(authority.requests) == 1

    run(main())


def test_closing_waits_for_a_renewal_so_that_its_tokens_are_kept(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(delay=0.4)
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path)
            await store.save(authority.login("s", http, lifetime=-5.0))
            waiting = asyncio.create_task(OAuthBearer(resolved_of("s", http.url), store).headers())
            await asyncio.sleep(0.2)
            waiting.cancel()
            await store.close()
            stored = await store_of(tmp_path).load("s", http.url)
            assert stored is not None
            assert stored.tokens.refresh_token == authority.refresh_token
            assert len(asyncio.all_tasks()) <= 3

    run(main())


def test_two_stores_of_one_machine_send_one_request(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(delay=0.3)
        with HttpServer(authority.script()) as http:
            await store_of(tmp_path).save(authority.login("s", http, lifetime=-5.0))
            given = await asyncio.gather(*(bearer(tmp_path, http).headers() for _ in range(10)))
            assert {one["Authorization"] for one in given} == {f"Bearer {tokens(2).access_token}"}
            assert len(authority.requests) == 1

    run(main())


def test_five_parallel_calls_of_half_a_second_take_under_0_7_s(tmp_path: Path) -> None:
    async def main() -> float:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            async with product(tmp_path, {"s": {"url": http.url}}) as (plugin, session):
                await plugin.credentials.save(authority.login("s", http))
                assert "echo" in await call(session)
                authority.call_delay = 0.5
                best = 9.0
                for _ in range(8):  # the machine may be busy; a lock would show in every round
                    started = time.monotonic()
                    await asyncio.gather(*(session.call("mcp__s__echo", {"n": n}) for n in range(5)))
                    best = min(best, time.monotonic() - started)
                    if best < 0.7:
                        break
                print(f"five parallel calls of 0.5 s: {best:.3f} s")
                return best

    assert 0.5 <= run(main()) < 0.7


# -- after a 401


def test_a_refusal_that_joins_a_renewal_of_an_older_token_has_one_of_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority(delay=0.2)
        with HttpServer(authority.script()) as http:
            store = store_of(tmp_path)
            old = authority.login("s", http)
            current = newer(old, 1)
            await store.save(old)
            resolved = resolved_of("s", http.url)
            one = OAuthBearer(resolved, store)
            await one.headers()
            first, second = await asyncio.gather(renew(store, resolved, old), renew(store, resolved, current))
            assert first.tokens.access_token == second.tokens.access_token == tokens(2).access_token
            assert len(authority.requests) == 1
            await asyncio.gather(renew(store, resolved, old), renew(store, resolved, second))
            assert len(authority.requests) == 2

    run(main())


def test_after_a_401_a_newer_token_of_another_process_is_used_without_a_request(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            saved = authority.login("s", http)
            async with product(tmp_path, {"s": {"url": http.url}}) as (plugin, session):
                await plugin.credentials.save(saved)
                assert "echo" in await call(session)
                stronger = newer(saved, 5)
                await store_of(tmp_path / "state").save(stronger, renewed=True)
                authority.accepts = {stronger.tokens.access_token}
                assert "echo" in await call(session)
                assert authority.requests == []

    run(main())


def test_a_server_that_refuses_every_token_costs_one_renewal_and_asks_for_a_login(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            async with product(tmp_path, {"s": {"url": http.url}}) as (plugin, session):
                await plugin.credentials.save(authority.login("s", http))
                assert "echo" in await call(session)
                for kind in ("tools/call", "initialize", "tools/list", "server/discover"):
                    http.script[kind] = {"status": 401, "body": PLANTED}
                for _ in range(4):
                    assert await call(session) == "authentication_required"
                assert len(authority.requests) == 1
                stored = await plugin.credentials.load("s", http.url)
                assert stored is not None
                assert stored.tokens.refresh_token == authority.refresh_token

    run(main())


def test_a_server_that_wants_a_login_names_the_command(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer(Authority().script()) as http:
            async with product(tmp_path, {"s": {"url": http.url}}) as (plugin, session):
                answer = await session.search("echo")
                (diagnostic,) = answer.not_searched
                assert diagnostic.code == "authentication_required"
                assert "/mcp auth s" in (diagnostic.hint or "")
                assert plugin.connections.get("s").state == "authentication_required"

    run(main())


def test_b149_a_renamed_or_moved_server_sends_no_token_and_names_the_stored_login(tmp_path: Path) -> None:
    async def main() -> None:
        authority, other = Authority(), Authority()
        with HttpServer(authority.script()) as http, HttpServer(other.script()) as elsewhere:
            servers = {"s": {"url": elsewhere.url}, "t": {"url": http.url}}
            async with product(tmp_path, servers) as (plugin, session):
                await plugin.credentials.save(authority.login("s", http))
                answer = await session.search("echo")
                said = {one.server: one for one in answer.not_searched}
                assert {one.code for one in said.values()} == {"authentication_required"}
                assert http.url in said["s"].message
                assert "name s" in said["t"].message
                assert "/mcp auth t" in (said["t"].hint or "")
                sent = [one for server in (http, elsewhere) for one in server.requests]
                assert sent
                assert not [one for one in sent if "authorization" in one.headers]
                shown = (await session.command("get t")).text
                assert "s" in shown
                assert http.url in shown

    run(main())


def test_b148_each_call_carries_the_token_of_its_own_server(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            servers = {name: {"url": http.url, "headers": {"X-Tenant": name}} for name in ("a", "b")}
            async with product(tmp_path, servers) as (plugin, session):
                for number, name in enumerate(servers, 1):
                    await plugin.credentials.save(authority.login(name, http, number=number))
                for name in servers:
                    assert "echo" in await call(session, name)
                seen = {(one.headers["x-tenant"], one.headers["authorization"]) for one in http.requests}
                assert seen == {
                    ("a", f"Bearer {tokens(1).access_token}"),
                    ("b", f"Bearer {tokens(2).access_token}"),
                }

    run(main())


def test_b151_a_login_that_the_keyring_lost_is_said_once_and_without_a_traceback(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            await store_of(tmp_path, MemoryKeyring()).save(authority.login("s", http))
            one = bearer(tmp_path, http, keyring=MemoryKeyring())
            assert await one.headers() == {}
            raised = await refused(one.refused(401, ()))
            assert "lost" in raised.diagnostic.message

    run(main())


def test_a_locked_keyring_stops_its_own_server_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http, HttpServer() as free:
            servers = {"s": {"url": http.url}, "free": {"url": free.url}}
            configuration = configuration_of(servers, cwd=tmp_path, environ={})
            await store_of(tmp_path / "state", MemoryKeyring()).save(authority.login("s", http))
            before = files_below(tmp_path)
            plugin = Plugin(configuration, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
            broken = FailingKeyring(lambda: OSError(PLANTED))
            plugin.__dict__["credentials"] = store_of(tmp_path / "state", broken)
            try:
                session = plugin.session("one", AskingHost(), keep=False)
                answer = await session.search("echo")
                assert [one.code for one in answer.not_searched] == ["credential_store_unavailable"]
                assert "echo" in await call(session, "free")
                assert json.loads((tmp_path / "state/credentials/index.json").read_text())["entries"]
                assert before.splitlines()[0] in files_below(tmp_path)
            finally:
                await plugin.close()

    run(main())


# -- what is shown


def test_get_says_what_is_stored_and_never_a_token(tmp_path: Path) -> None:
    async def main() -> None:
        authority = Authority()
        with HttpServer(authority.script()) as http:
            async with product(tmp_path, {"s": {"url": http.url}, "off": {"url": http.url, "oauth": False}}) as (
                plugin,
                session,
            ):
                assert "login" not in (await session.command("get s")).text
                await plugin.credentials.save(authority.login("s", http))
                shown = (await session.command("get s")).text
                assert http.origin in shown
                assert "scopes read write" in shown
                assert "ends in 59 min and is renewed by itself" in shown
                assert "encrypted file" in shown
                assert PLANTED not in shown
                assert "login at" not in (await session.command("get off")).text
                over = (await plugin.credentials.load("s", http.url) or credential()).with_tokens(
                    tokens(refresh=False, lifetime=-100.0)
                )
                await plugin.credentials.save(over)
                assert "ended 1 min ago" in (await session.command("get s")).text

    run(main())


def test_planted_tokens_are_nowhere_outside_the_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []

    authority = Authority()

    def leaking(request: Any, server: HttpServer) -> Mapping[str, Any]:
        if "status" in (answer := authority.guard(request, server)):
            return answer
        return {"error": {"code": -32000, "message": f"refused {request.headers}", "data": str(request.headers)}}

    async def main() -> None:
        with HttpServer({**authority.script(), "tools/call": leaking}) as http:
            async with product(tmp_path, {"s": {"url": http.url}}) as (plugin, session):
                await plugin.credentials.save(authority.login("s", http, lifetime=-5.0))
                found = await session.load(["s.echo"])
                shown.extend([repr(found), found.text, json.dumps(found.details)])
                with contextlib.suppress(PiMcpError):
                    answer = await session.call("mcp__s__echo", {})
                    shown.append(repr(answer))
                authority.alive = False
                authority.accepts.clear()
                try:
                    await session.call("mcp__s__echo", {})
                except AuthenticationError as error:
                    shown.append(repr(error) + str(error) + repr(error.__cause__) + repr(error.__context__))
                else:
                    shown.append("no error")
                for line in ("", "get s", "tools s", "reconnect s"):
                    command = await session.command(line)
                    shown.extend([command.text, repr(command)])
                shown.append(repr(vars(plugin)))
                shown.append(repr(plugin.connections.get("s").log.lines()))
                shown.append(repr([vars(one) for one in gc.get_objects() if isinstance(one, OAuthBearer)]))

    run(main())
    assert len(shown) > 10
    for text in (*shown, caplog.text, files_below(tmp_path)):
        at = text.find(PLANTED)
        assert at < 0, text[max(0, at - 200) : at + 50]


def test_a_bearer_shows_no_token(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer(Authority().script()) as http:
            store = store_of(tmp_path)
            await store.save(credential("s", http.url))
            one = OAuthBearer(resolved_of("s", http.url), store)
            await one.headers()
            assert PLANTED not in repr(one) + repr(store) + repr(store._kept)

    run(main())
