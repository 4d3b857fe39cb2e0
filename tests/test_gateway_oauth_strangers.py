"""The authorization server and the pages among strangers: whoever registers, sends slowly, or comes too late."""

from __future__ import annotations

import asyncio
import html
import time
from pathlib import Path

import pytest

from pi_mcp.access import Client, Once, Scopes
from pi_mcp.access import secrets as minted
from pi_mcp.server.oauth import wire
from pi_mcp.server.oauth.limits import counted_as
from tests.gateway_oauth_support import Browser, TestGateway
from tests.test_gateway_oauth_hostile import CALLBACK, asking, back, client_id, code_for, exchange, in_gateway


def test_nobody_is_sent_to_a_site_that_registered_itself_without_having_agreed(tmp_path: Path) -> None:
    """Else a link to the gateway would be one to any site, with the gateway's good name (RFC 9700 §4.11.2)."""

    async def work(gate: TestGateway, browser: Browser) -> None:
        site = "https://evil.example/x"
        client = await client_id(gate, redirect_uris=[site])
        for _ in range(2):
            answer = await browser.send("GET", asking(client, redirect_uri=site, scope="nonsense"))
            assert answer.status_code == 400
            assert "location" not in answer.headers
            assert "the site evil.example" in answer.text
            (link,) = [html.unescape(part.split('"')[0]) for part in answer.text.split('<a href="')[1:] if site in part]
            assert back(link)["error"] == "invalid_scope"
            await browser.sign_in(await gate.key())
        # Who was asked and says no goes back.
        page = await browser.open(asking(client, redirect_uri=site))
        answer = await browser.submit(page, decision="deny")
        assert answer.headers["location"].startswith(f"{site}?error=access_denied")

    in_gateway(work, tmp_path)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/oauth/token", "application/x-www-form-urlencoded"),
        ("/oauth/register", "application/json"),
        ("/signin", "application/x-www-form-urlencoded"),
    ],
)
def test_a_body_that_does_not_come_is_waited_for_in_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    monkeypatch.setattr(wire, "BODY_TIME", 0.3)

    async def work(gate: TestGateway, browser: Browser) -> None:
        del browser
        reader, writer = await asyncio.open_connection("127.0.0.1", int(gate.local.rpartition(":")[2]))
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: 9\r\n\r\nx".encode()
        )
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 408")
        writer.close()

    in_gateway(work, tmp_path)


def test_of_two_who_renew_at_once_the_whole_grant_ends(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        code = await code_for(gate, browser, client)
        await asyncio.gather(*(exchange(browser, client_id=client, code=code) for _ in range(4)))
        code = await code_for(gate, browser, client)
        refresh = (await exchange(browser, client_id=client, code=code)).json()["refresh_token"]
        await asyncio.gather(
            *(exchange(browser, grant_type="refresh_token", client_id=client, refresh_token=refresh) for _ in range(4))
        )
        # Nothing is listed as allowed that no token is left of.
        assert [consent.revoked is not None for consent in await gate.store.consents()] == [True, True]

    in_gateway(work, tmp_path)


def test_a_registration_lives_as_long_as_people_agree_to_it_and_documents_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pi_mcp.server.oauth.server.MOST_CLIENTS", 3)
    now = [time.time()]
    year, said = 366 * 24 * 3600, {"redirect_uris": [CALLBACK]}

    async def work(gate: TestGateway, browser: Browser) -> None:
        for number in range(3):
            document = Client(f"https://c.example/{number}", "document", said, now[0], expires=now[0] + year)
            await gate.store.put_client(document)
        used = await client_id(gate)
        for _ in range(2):
            await code_for(gate, browser, used)
            now[0] += 0.9 * year
        assert await gate.server.client(used) is not None
        assert (await gate.server.register(said, "a")).status == 201
        assert (await gate.server.register(said, "a")).status == 201
        assert (await gate.server.register(said, "a")).status == 429
        now[0] += year
        await gate.store.purge(now[0])
        gone = [used, *(f"https://c.example/{number}" for number in range(3))]
        assert [await gate.store.client(id) for id in gone] == [None] * 4

    in_gateway(work, tmp_path, clock=lambda: now[0])


def test_a_link_for_a_key_leads_no_further_than_the_key(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        async def link(key: str) -> str:
            made, scopes = minted.mint("link"), Scopes.parse("tools:read")
            of = minted.recognise(key, "key")
            assert of is not None
            await gate.store.keep(Once("link", made.id, made.digest, time.time() + 60, "ann", scopes, {"key": of[0]}))
            return f"/signin/link/{made.text}"

        ends = time.time() + 600
        short = await gate.key(expires=ends)
        answer = await browser.submit(await browser.open(await link(short)))
        assert answer.url.path == "/status"
        found = minted.recognise(browser.cookies["__Host-pi-mcp-session"], "session")
        assert found is not None
        sign_in = await gate.store.sign_in(found[0])
        # What goes on for long is looked after by this time.
        assert sign_in is not None
        assert sign_in.expires == ends

        gone = await gate.key()
        page = await browser.open(await link(gone))
        revoked = minted.recognise(gone, "key")
        assert revoked is not None
        await gate.store.revoke_key(revoked[0], time.time())
        answer = await browser.submit(page)
        assert answer.status_code == 404
        assert "does not work" in answer.text

    in_gateway(work, tmp_path)


def test_whoever_has_a_network_of_ipv6_is_one() -> None:
    assert counted_as("2001:db8::1") == counted_as("2001:db8:0:0:ffff::2") != counted_as("2001:db8:0:1::1")
    assert counted_as("::ffff:192.0.2.1") != counted_as("::ffff:192.0.2.2")
    assert counted_as("192.0.2.1") != counted_as("192.0.2.2")
    assert counted_as(None) == counted_as("unix") == "?"


def test_as_many_scopes_as_a_credential_may_have_can_be_agreed_to(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        scopes = " ".join(f"tool:s/t%C3%A4{number}" for number in range(200))
        client = await client_id(gate)
        location = await browser.agree(asking(client, scope=scopes), await gate.key(scopes=scopes))
        answer = await exchange(browser, client_id=client, code=back(location)["code"])
        assert len(answer.json()["scope"].split()) == 200

    in_gateway(work, tmp_path)


def test_a_client_of_oauth_2_1_names_no_redirect_address_for_its_code(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        for changed in ({}, {"redirect_uri": None}):
            code = await code_for(gate, browser, client, **changed)
            wrong = await exchange(browser, client_id=client, code=code, redirect_uri=f"{CALLBACK}/other")
            assert wrong.json()["error"] == "invalid_grant"
            assert (await exchange(browser, client_id=client, code=code, redirect_uri="")).status_code == 200

    in_gateway(work, tmp_path)
