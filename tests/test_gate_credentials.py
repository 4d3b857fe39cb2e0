"""Who gets in: keys, cookies and tokens over real HTTP, and everything that is none."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.access import AuditFilter, Grant, Limits
from pi_mcp.access import secrets as minted
from pi_mcp.server import authenticate
from pi_mcp.server.authenticate import FORWARDED, Authentication, developer
from pi_mcp.server.credentials import supplied
from pi_mcp.server.oauth.bearer import BadToken, CannotTell
from pi_mcp.server.pages.browser import SESSION
from tests.access_support import PLACES, shared_gateway
from tests.auth_support import until
from tests.gateway_support import ACCEPT, Client, Failed, ModernClient, gateway_of
from tests.hostile.http_server import HttpServer
from tests.hostile.script import entry, methods_of, tool
from tests.plugin_support import spoken
from tests.support import run

PLANTED = "pk_live_ABCDEFGHIJ0123456789"
PING = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
    "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}  # fmt: skip


async def post(url: str, headers: dict[str, str] | list[tuple[str, str]], **more: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(trust_env=False, timeout=20, verify=False) as client:
        items = list(headers.items()) if isinstance(headers, dict) else headers
        return await client.post(url, headers=[*ACCEPT.items(), *items], json=PING, **more)


def some(folder: Path, **more: Any) -> dict[str, Any]:
    return {"s": entry(folder, spoken([tool("look", annotations={"readOnlyHint": True}), tool("turn")]), **more)}


def test_b203_without_a_right_credential_nobody_gets_in_also_in_dev_mode(tmp_path: Path) -> None:
    async def work() -> None:
        servers = some(tmp_path)
        for anonymous in (None, developer()):
            async with shared_gateway(servers, tmp_path, anonymous=anonymous) as shared:
                expired = await shared.key("tools:read", expires=time.time() - 1)
                revoked = await shared.key("tools:read")
                found = minted.recognise(revoked, "key")
                assert found is not None
                await shared.store.revoke_key(found[0], time.time())
                unknown = minted.mint("key").text
                good = await shared.key("tools:read")
                changed = good[:-1] + ("a" if good[-1] != "a" else "b")
                bodies = set()
                for bad in (PLANTED, unknown, expired, revoked, changed, "x", "a.b.c", minted.mint("session").text):
                    for header in ("authorization", "x-api-key"):
                        value = f"Bearer {bad}" if header == "authorization" else bad
                        answer = await post(shared.url, {header: value})
                        assert answer.status_code == 401, (bad, header)
                        assert 'error="invalid_token"' in answer.headers["www-authenticate"]
                        bodies.add(answer.text)
                for odd in ("Basic YTpi", "Bearer", "", "Token x", good, "Bearer " + "x" * 20_000):
                    assert (await post(shared.url, {"authorization": odd})).status_code in (401, 429), odd
                assert len(bodies) == 1, "what is wrong with a credential is nobody's business"
                nothing = await post(shared.url, {})
                assert nothing.status_code == (401 if anonymous is None else 200)
                if anonymous is None:
                    assert "error=" not in nothing.headers["www-authenticate"]
                    assert PLACES.resource_metadata() in nothing.headers["www-authenticate"]

    monkeypatched = authenticate.FAILURES
    authenticate.FAILURES = 1000
    try:
        run(work(), 60)
    finally:
        authenticate.FAILURES = monkeypatched


def test_b203_a_write_has_a_row_that_says_who_what_and_how_it_went(tmp_path: Path) -> None:
    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, expose="all") as shared:
            async with Client(shared.url, **await shared.headers("bearer", "tools:write", subject="bob")) as client:
                await client.call("s__turn", {"id": "i-1", "note": "hello", "password": PLANTED})
                session = client.session
            (row,) = await shared.store.audit(AuditFilter())
            assert (row.subject, row.credential_kind, row.server, row.tool) == ("bob", "key", "s", "turn")
            assert (row.action, row.outcome, row.session, row.affected) == ("write", "ok", session, ("i-1",))
            assert row.credential.startswith("k")
            assert row.duration is not None
            assert json.loads(row.input or "") == {"id": "i-1", "note": "hello", "password": "***"}

    run(work())


def test_b199_a_tool_that_is_not_granted_is_refused_before_its_upstream_hears_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        servers = some(tmp_path)
        async with shared_gateway(servers, tmp_path, expose="all") as shared:
            async with ModernClient(shared.url, **await shared.headers("x-api-key", "tool:s/look")) as client:
                with pytest.raises(Failed) as caught:
                    await client.call("s__turn", {})
                assert caught.value.code == -32003
                assert caught.value.status == 200
            assert methods_of(servers["s"]) == [], "not even started"
            (row,) = await shared.store.audit(AuditFilter())
            assert (row.outcome, row.action, row.scope) == ("refused", "tool", "tools:read tools:write")

    run(work())


def test_b202_a_key_without_rights_is_told_so_and_a_narrowing_that_is_wrong_gives_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        servers = some(tmp_path)
        async with shared_gateway(servers, tmp_path, expose="all") as shared:
            for scopes, header in (
                ("admin", None),
                ("server:nowhere:*", None),
                ("tools:read tools:write", "tools:everything"),
                ("tools:read", "tools:read tools:write"),
            ):
                async with Client(shared.url, **await shared.headers("bearer", scopes)) as client:
                    if header is not None:
                        client.headers["x-mcp-scopes"] = header
                    assert (await client.request("tools/list"))["tools"] == []
                    for name in ("s__look", "s__turn", "nowhere__x"):
                        with pytest.raises(Failed) as caught:
                            await client.call(name)
                        assert caught.value.code == -32003
            assert "tools/call" not in methods_of(servers["s"])

    run(work())


@pytest.mark.parametrize("configured", [True, False])
def test_b202_a_search_without_a_server_in_reach_says_so_and_tells_nothing_of_the_gateways_files(
    tmp_path: Path, configured: bool
) -> None:
    """It claims neither that nothing is configured, nor that something is."""

    async def work() -> None:
        async with (
            shared_gateway(some(tmp_path) if configured else {}, tmp_path) as shared,
            Client(shared.url, **await shared.headers("bearer", "server:nowhere:*")) as client,
        ):
            searching = (await client.request("tools/list"))["tools"][0]
            found = await client.call("mcp_search", {"query": "look"})
            for text in (searching["description"], found["content"][0]["text"]):
                assert text.endswith("No MCP server can be used in this session.")
                assert str(tmp_path) not in text
                assert "mcp.json" not in text

    run(work())


def test_b188_b194_no_log_and_no_row_holds_anything_of_a_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        servers = some(tmp_path)
        async with shared_gateway(servers, tmp_path, expose="all") as shared:
            good = await shared.key("tools:write")
            cookie = (await shared.headers("cookie", "tools:write"))["cookie"]
            secret = cookie.partition(f"{SESSION}=")[2]
            await post(shared.url, {"x-api-key": PLANTED})
            await post(shared.url, {"authorization": f"Bearer {PLANTED}", "cookie": f"sid={PLANTED}"})
            await post(shared.url, {"cookie": cookie})
            async with Client(shared.url, **{"x-api-key": good, "cookie": cookie}) as client:
                await client.call("s__turn", {"text": f"my key is {good}", "list": [secret]})
                with pytest.raises(Failed):
                    await client.call("s__look", {"text": good})
            rows = repr(await shared.store.audit(AuditFilter()))
            logged = "\n".join(record.getMessage() + repr(record.args) for record in caplog.records)
            for part in (PLANTED, PLANTED[:8], good.rpartition("_")[2][:12], secret.rpartition("_")[2][:12]):
                assert part not in rows
                assert part not in logged
            assert "refused a credential that does not have the form of a key" in logged

    with caplog.at_level(logging.DEBUG, logger="pi_mcp"):
        logging.getLogger("pi_mcp").addHandler(caplog.handler)
        try:
            run(work())
        finally:
            logging.getLogger("pi_mcp").removeHandler(caplog.handler)


def test_b193_b194_no_header_of_a_client_reaches_an_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        with HttpServer() as http:
            async with shared_gateway({"s": {"url": http.url}}, tmp_path, expose="all") as shared:
                key = await shared.key("tools:read tools:write")
                for made in (Client, ModernClient):
                    scopes = {"x-mcp-scopes": "tools:read tools:write"}
                    headers = {"x-api-key": key, "cookie": f"a={PLANTED}", "x-secret": PLANTED, **scopes}
                    async with made(shared.url, **headers) as client:
                        await client.every("tools/list", "tools")
                        await client.call("s__echo", {"text": "x"})
            seen = json.dumps([dict(request.headers) for request in http.requests]).lower()
            assert PLANTED.lower() not in seen
            assert key.rpartition("_")[2] not in seen
            for name in ("x-api-key", "cookie", "x-secret", "x-mcp-scopes"):
                assert name not in seen

    run(work())


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([], None),
        ([("authorization", "Bearer a")], "bearer"),
        ([("authorization", "bearer  a ")], "bearer"),
        ([("x-api-key", "a")], "key"),
        ([("authorization", "Bearer a"), ("x-api-key", "a")], "key"),
        ([("authorization", "Bearer a"), ("x-api-key", "b")], "bad"),
        ([("authorization", "Bearer a"), ("authorization", "Bearer a")], "bad"),
        ([("x-api-key", "a"), ("x-api-key", "b")], "bad"),
        ([("authorization", "Digest a"), ("x-api-key", "a")], "bad"),
        ([("x-api-key", "")], "bad"),
        ([("cookie", f"{SESSION}=a")], "cookie"),
        ([("cookie", f'x="; {SESSION}=a')], "cookie"),
        ([("cookie", f"{SESSION}=a; {SESSION}=b")], "bad"),
        ([("cookie", f"{SESSION}=a"), ("cookie", f"{SESSION}=a")], "bad"),
        ([("cookie", "other=1")], None),
        ([("cookie", f"{SESSION}=a"), ("x-api-key", "a")], "key"),
    ],
)
def test_one_credential_is_read_from_the_headers_or_none(headers: list[tuple[str, str]], kind: str | None) -> None:
    found = supplied([(name.encode(), value.encode()) for name, value in headers], SESSION)
    assert (None if found is None else found.kind) == kind


def test_a_cookie_counts_with_our_own_origin_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, anonymous=developer()) as shared:
            headers = await shared.headers("cookie", "tools:read")
            assert (await post(shared.url, headers)).status_code == 200
            for origin in (None, "http://127.0.0.1:8", "http://localhost:9", "null", "https://evil.test"):
                given = {"cookie": headers["cookie"], **({} if origin is None else {"origin": origin})}
                assert (await post(shared.url, given)).status_code in (401, 403), origin
            ended = await shared.headers("cookie", "tools:read", key="k-nobody")
            assert (await post(shared.url, ended)).status_code == 401

    run(work())


def test_bad_credentials_of_one_address_are_slowed_down_and_right_ones_get_in(tmp_path: Path) -> None:
    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path) as shared:
            good, token = await shared.key("tools:read"), await shared.headers("oauth", "tools:read")
            statuses = [(await post(shared.url, {"x-api-key": PLANTED})).status_code for _ in range(25)]
            assert statuses == [401] * authenticate.FAILURES + [429] * (25 - authenticate.FAILURES)
            late = await post(shared.url, {"authorization": "Bearer a.b.c"})
            assert late.status_code == 429
            assert 1 <= int(late.headers["retry-after"]) <= 60
            assert late.json()["error"]["data"]["limit"] == "failures"
            assert (await post(shared.url, {"x-api-key": minted.mint("key").text})).status_code == 429
            # Who shares an address with somebody who guesses is not locked out: a key cannot be guessed.
            assert (await post(shared.url, {"x-api-key": good})).status_code == 200
            assert (await post(shared.url, token)).status_code == 200
            # What a client claims of its address is not believed.
            claimed = {"x-api-key": PLANTED, "x-forwarded-for": "10.1.2.3", "forwarded": "for=10.1.2.3"}
            assert (await post(shared.url, claimed)).status_code == 429

    run(work())


def test_a_trusted_proxy_says_whose_failures_they_are(tmp_path: Path) -> None:
    async def work() -> None:
        options = {"trusted_proxies": ["127.0.0.1"]}
        async with shared_gateway(some(tmp_path), tmp_path, http=options) as shared:
            for _ in range(authenticate.FAILURES):
                await post(shared.url, {"x-api-key": PLANTED, "x-forwarded-for": "10.1.2.3"})
            again = {"x-api-key": PLANTED, "x-forwarded-for": "10.9.9.9, 10.1.2.3"}
            assert (await post(shared.url, again)).status_code == 429
            other = {"x-api-key": PLANTED, "x-forwarded-for": "10.4.4.4"}
            assert (await post(shared.url, other)).status_code == 401

    run(work())


def test_limits_of_a_key_are_429_with_the_time_to_wait(tmp_path: Path) -> None:
    async def work() -> None:
        servers = {"s": entry(tmp_path, spoken([tool("slow")], **{"tools/call": [[{"sleep": 0.5}, {"echo": True}]]}))}
        async with shared_gateway(servers, tmp_path, expose="all") as shared:
            few = await shared.headers("x-api-key", "tools:write", limits=Limits(requests_per_minute=3))
            statuses = [(await post(shared.url, few)).status_code for _ in range(5)]
            assert statuses == [200, 200, 200, 429, 429]
            late = await post(shared.url, few)
            assert 1 <= int(late.headers["retry-after"]) <= 60
            assert late.json()["error"]["data"]["limit"] == "requestsPerMinute"
            assert (await post(shared.url, await shared.headers("x-api-key", "tools:write"))).status_code == 200

            one = await shared.headers("bearer", "tools:write", limits=Limits(concurrent=1))
            for made in (Client, ModernClient):
                async with made(shared.url, **one) as client:
                    results = await asyncio.gather(
                        *(client.call("s__slow", {}) for _ in range(3)), return_exceptions=True
                    )
                    failed = [one for one in results if isinstance(one, Failed)]
                    assert len(failed) == 2
                    assert {(one.code, one.status) for one in failed} == {(-32029, 429)}
                    await client.call("s__slow", {})

            small = await shared.headers("bearer", "tools:write", limits=Limits(result_bytes=50))
            async with ModernClient(shared.url, **small) as client:
                await client.call("s__slow", {"text": "x" * 100})
                with pytest.raises(Failed) as caught:
                    await client.call("s__slow", {})
                assert (caught.value.status, caught.value.data["limit"]) == (429, "resultBytes")
                assert "bytes of results" in str(caught.value)

    run(work(), 60)


@pytest.mark.parametrize(("expose", "ask"), [("search", "mcp_search"), ("all", "tools/list")])
def test_every_result_counts_towards_the_bytes_of_a_key(tmp_path: Path, expose: str, ask: str) -> None:
    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, expose=expose) as shared:
            small = await shared.headers("bearer", "tools:read", limits=Limits(result_bytes=1))
            async with Client(shared.url, **small) as client:  # the handshake does not count
                if expose == "search":
                    await client.call(ask, {"query": "look"})
                else:
                    await client.request(ask)
                with pytest.raises(Failed) as caught:
                    await client.request("tools/list")
                assert caught.value.data["limit"] == "resultBytes"
                assert "bytes of results" in str(caught.value)

    run(work(), 60)


def test_a_client_of_oauth_is_told_by_403_what_it_lacks(tmp_path: Path) -> None:
    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, expose="all") as shared:
            headers = {**ACCEPT, **await shared.headers("oauth", "tools:read")}
            async with httpx2.AsyncClient(trust_env=False) as http:
                client = ModernClient(shared.url)
                for name, scope in (("s__turn", "tools:write"), ("nowhere__x", "tools:write")):
                    message = client.message("tools/call", {"name": name, "arguments": {}})
                    answer = await http.post(shared.url, headers={**client._sent(message), **headers}, json=message)
                    assert answer.status_code == 403
                    challenge = answer.headers["www-authenticate"]
                    assert 'error="insufficient_scope"' in challenge
                    assert f'scope="{scope}"' in challenge
                    assert f'resource_metadata="{PLACES.resource_metadata()}"' in challenge
                    assert answer.json()["error"]["code"] == -32003
                await client._http.aclose()
            async with Client(shared.url, **await shared.headers("oauth", "prompts:read")) as legacy:
                with pytest.raises(Failed) as caught:
                    await legacy.call("s__look")
                assert (caught.value.status, caught.value.data) == (403, {"scope": "tools:read tools:write"})

    run(work())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bearer", "cookie", "oauth"])
def test_a_credential_that_ends_takes_its_session_and_open_streams_along(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authenticate, "WATCH", 0.05)

    async def work() -> None:
        servers = {
            "s": entry(tmp_path, spoken([tool("wait")], **{"tools/call": [[{"hang": True}]]}), toolTimeoutMs=600_000)
        }
        async with shared_gateway(servers, tmp_path, expose="all") as shared:
            headers = await shared.headers(kind, "tools:write")
            async with Client(shared.url, **headers) as client:
                await client.listen()
                calling = asyncio.ensure_future(client.call("s__wait"))
                await until(lambda: "tools/call" in methods_of(servers["s"]))
                now = time.time()
                if kind == "bearer":
                    for key in await shared.store.keys():
                        await shared.store.revoke_key(key.id, now)
                elif kind == "cookie":
                    found = minted.recognise(headers["cookie"].partition(f"{SESSION}=")[2], "session")
                    assert found is not None
                    await shared.store.revoke_sign_in(found[0], now)
                else:
                    for consent in await shared.store.consents():
                        await shared.store.revoke_consent(consent.id, now)
                with pytest.raises((Failed, AssertionError, httpx2.HTTPError, json.JSONDecodeError, KeyError)):
                    await asyncio.wait_for(calling, 10)
                # Nobody who was locked out has the server go on with what was under way.
                await until(lambda: "notifications/cancelled" in methods_of(servers["s"]), 30)
                assert client._listener is not None
                await asyncio.wait({client._listener}, timeout=10)
                assert client._listener.done(), "the stream goes on"
                with pytest.raises((Failed, KeyError)):
                    await client.request("tools/list")
                client.session = None

    run(work(), 60)


def test_a_session_is_its_credentials_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            shared_gateway(some(tmp_path), tmp_path, expose="all") as shared,
            Client(shared.url, **await shared.headers("bearer", "tools:read")) as mine,
            httpx2.AsyncClient(trust_env=False) as http,
        ):
            other = await shared.headers("bearer", "tools:read")
            answer = await post(shared.url, {**other, "mcp-session-id": mine.session or ""})
            assert answer.status_code == 404
            message = {"jsonrpc": "2.0", "id": 5, "method": "tools/list"}
            sent = {**ACCEPT, **other, "mcp-session-id": mine.session or ""}
            assert (await http.post(shared.url, headers=sent, json=message)).status_code == 404
            assert (await http.delete(shared.url, headers=sent)).status_code == 404

    run(work())


def test_where_no_credential_is_needed_a_bad_one_still_fails(tmp_path: Path) -> None:
    """No store at all: everybody on this machine may call, and a key is no key of ours."""

    async def work() -> None:
        how = Authentication(anonymous=Grant.everything("local"))
        async with gateway_of(some(tmp_path), tmp_path, http={"authenticate": how}) as running:
            assert (await post(running.url, {})).status_code == 200
            for headers in ({"x-api-key": minted.mint("key").text}, {"authorization": "Bearer x"}):
                assert (await post(running.url, headers)).status_code == 401

    run(work())


@pytest.mark.parametrize("name", sorted(FORWARDED))
def test_where_no_credential_is_needed_none_is_spared_a_caller_behind_a_proxy(tmp_path: Path, name: bytes) -> None:
    """A proxy on this machine calls from this machine, and whoever calls through it is anywhere."""

    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, anonymous=developer()) as shared:
            came = {name.decode(): "for=127.0.0.1"}
            assert (await post(shared.url, came)).status_code == 401
            key = {"x-api-key": await shared.key("tools:read")}
            assert (await post(shared.url, {**came, **key})).status_code == 200
            assert (await post(shared.url, {})).status_code == 200

    run(work())


class Sometimes:
    """A verifier that knows one token, and cannot tell of another."""

    async def verify(self, token: str, *, ask: bool = True) -> Grant:
        del ask
        if token == "away":
            raise CannotTell("its issuer is away")
        if token != "good":
            raise BadToken("unknown")
        return Grant.everything("eve")


def test_an_issuer_that_does_not_answer_lets_nobody_in(tmp_path: Path) -> None:
    async def work() -> None:
        how = Authentication(verifier=Sometimes(), places=PLACES, anonymous=developer())
        async with gateway_of(some(tmp_path), tmp_path, http={"authenticate": how}) as running:
            for token, status in (("good", 200), ("away", 503), ("bad", 401), (minted.mint("key").text, 401)):
                answer = await post(running.url, {"authorization": f"Bearer {token}"})
                assert answer.status_code == status, token

    run(work())


class Asked:
    """An issuer that says for a moment what its tokens are worth."""

    def __init__(self) -> None:
        self.good, self.asked = True, 0

    async def verify(self, token: str, *, ask: bool = True) -> Grant:
        del token, ask
        self.asked += 1
        if not self.good:
            raise BadToken("revoked")
        return replace(Grant.everything("eve"), expires=time.time() + 0.1)


def test_what_goes_on_ends_when_an_issuer_takes_its_word_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An introspected token is believed for a moment; a stream may be open for days."""
    monkeypatch.setattr(authenticate, "WATCH", 0.05)

    async def work() -> None:
        issuer = Asked()
        how = Authentication(verifier=issuer, places=PLACES)
        async with (
            gateway_of(some(tmp_path), tmp_path, http={"authenticate": how}) as running,
            Client(running.url, authorization="Bearer x") as client,
        ):
            await client.listen()
            before = issuer.asked
            await until(lambda: issuer.asked > before + 2)
            assert client._listener is not None
            assert not client._listener.done()
            issuer.good = False
            await asyncio.wait({client._listener}, timeout=10)
            assert client._listener.done(), "the stream goes on"
            client.session = None

    run(work())


class Away(Asked):
    """The same one, of whom nothing is to be heard any more."""

    async def verify(self, token: str, *, ask: bool = True) -> Grant:
        if not self.good:
            self.asked += 1
            raise CannotTell("its issuer is away")
        return await super().verify(token, ask=ask)


def test_what_goes_on_outlives_an_issuers_silence_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authenticate, "WATCH", 0.05)
    now = [0.0]
    monkeypatch.setattr(authenticate, "steady", lambda: now[0])

    async def work() -> None:
        issuer = Away()
        how = Authentication(verifier=issuer, places=PLACES)
        async with (
            gateway_of(some(tmp_path), tmp_path, http={"authenticate": how}) as running,
            Client(running.url, authorization="Bearer x") as client,
        ):
            await client.listen()
            listener = client._listener
            assert listener is not None

            async def asked_again() -> None:
                before = issuer.asked
                await until(lambda: issuer.asked > before + 2)

            for _ in range(3):  # a silence that ends is none
                issuer.good = False
                await asked_again()
                now[0] += authenticate.DOUBT - 1
                await asked_again()
                assert not listener.done()
                issuer.good = True
                await asked_again()
            issuer.good = False
            await asked_again()
            now[0] += authenticate.DOUBT
            await asyncio.wait({listener}, timeout=30)
            assert listener.done(), "the stream goes on"
            client.session = None

    run(work())


@pytest.mark.parametrize("ends", [True, False])
def test_what_goes_on_outlives_its_store_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """Of a key that expired or was revoked meanwhile nobody would hear."""
    monkeypatch.setattr(authenticate, "WATCH", 0.05)
    monkeypatch.setattr(authenticate, "DOUBT", 0.5 if ends else 1000.0)

    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, expose="all") as shared:
            headers = {"authorization": f"Bearer {await shared.key('tools:read', expires=time.time() + 600)}"}
            async with Client(shared.url, **headers) as client:
                await client.listen()
                listener = client._listener
                assert listener is not None
                store = tmp_path / "store.sqlite3"
                store.rename(tmp_path / "elsewhere")
                await asyncio.wait({listener}, timeout=30 if ends else 1)
                assert listener.done() is ends
                (tmp_path / "elsewhere").rename(store)
                assert await client.request("ping") == {}

    run(work(), 60)


def test_both_paths_are_one_endpoint(tmp_path: Path) -> None:
    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path, expose="all") as shared:
            async with Client(f"{shared.url}/oauth", **await shared.headers("bearer", "tools:read")) as client:
                assert [one["name"] for one in (await client.request("tools/list"))["tools"]] == ["s__look"]
            refused = await post(f"{shared.url}/oauth", {})
            assert refused.status_code == 401
            assert "/mcp/oauth" in refused.headers["www-authenticate"]

    run(work())


def test_headers_of_credentials_end_at_the_door(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def work() -> None:
        async with shared_gateway(some(tmp_path), tmp_path) as shared:
            key = await shared.key("tools:read")
            layer = shared.authentication(inner)
            headers = [(b"x-api-key", key.encode()), (b"cookie", b"a=b"), (b"accept", b"x")]
            scope = {"type": "http", "path": "/mcp", "headers": headers, "client": ("127.0.0.1", 1)}

            async def nothing(message: Any = None) -> Any:
                del message

            await layer(scope, nothing, nothing)
            assert seen[0]["headers"] == [(b"accept", b"x")]
            assert seen[0]["state"]["grant"].subject == "ann"

    run(work())


_values = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"Bearer ", b"bearer x", b"Basic eA==", b"tools:read", b",", b'a="; b=c', b"\xff\xfe", b"%00"]),
    st.builds(lambda text: f"Bearer {text}".encode(), st.text(max_size=20)),
    st.just(f"{SESSION}=x".encode()),
)
_names = st.sampled_from([b"authorization", b"x-api-key", b"cookie", b"origin", b"x-mcp-scopes", b"x-forwarded-for"])


@given(st.lists(st.tuples(_names, _values), max_size=6), st.sampled_from([None, ("::1", 1), ("nowhere", 2), ("", 0)]))
def test_no_header_is_a_fault_of_ours(headers: list[tuple[bytes, bytes]], client: Any) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        del receive
        assert isinstance(scope["state"]["grant"], Grant)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    layer = Authentication(places=PLACES, verifier=Sometimes(), anonymous=developer())(inner)
    run(layer({"type": "http", "path": "/mcp", "headers": headers, "client": client}, receive, send), tidy=False)
    assert sent[0]["status"] in (200, 401)
    brought = any(name in (b"authorization", b"x-api-key") for name, _ in headers)
    assert sent[0]["status"] == 401 or not brought
    assert all(b"\n" not in value and b"\r" not in value for _, value in sent[0]["headers"])
