"""The pages for people: signing in by key and link, consent, status; and those who would abuse them."""

from __future__ import annotations

import asyncio
import html
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from pi_mcp.access import AuditRow, Consent, Scopes
from pi_mcp.server.pages import browser as cookies
from tests.auth_server import free_port
from tests.gateway_oauth_support import Browser, Form, TestGateway, gateway, serving
from tests.support import run
from tests.test_gateway_oauth_hostile import CALLBACK, Documented, asking, back, client_id, in_gateway

SECRET = "S3CR3T-planted"
MARKUP = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


def test_every_page_forbids_frames_scripts_and_foreign_forms(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        await browser.open("/signin")
        await browser.open(await gate.link())
        await browser.open("/signin/link/nothing")
        await browser.open("/oauth/authorize?x=y")
        await browser.sign_in(await gate.key())
        await browser.open(asking(client))
        await browser.open("/status")
        pages = [answer for answer in browser.answers if answer.headers.get("content-type", "").startswith("text/html")]
        assert len(pages) >= 7
        for answer in pages:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "base-uri 'none'" in policy
            assert "script-src" not in policy
            assert "unsafe" not in policy
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "<script" not in answer.text
            assert " style=" not in answer.text
            assert " on" + "click" not in answer.text
            # Nothing is loaded from anywhere.
            for part in (" src=", "<link ", "url(", "@import"):
                assert part not in answer.text
        consent = next(answer for answer in pages if 'name="decision"' in answer.text)
        # Chromium asks it of the redirect that answers the form, too.
        assert f"form-action 'self' {CALLBACK.rpartition('/')[0]};" in consent.headers["content-security-policy"]
        assert all(
            "form-action 'self';" in answer.headers["content-security-policy"]
            for answer in pages
            if answer is not consent
        )

    in_gateway(work, tmp_path)


def test_the_cookie_is_bound_to_host_https_and_http(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        await browser.sign_in(await gate.key())
        lines = [line.lower() for answer in browser.answers for line in answer.headers.get_list("set-cookie") if line]
        assert any(cookies.SESSION.lower() in line for line in lines)
        for line in lines:
            assert line.startswith("__host-")
            assert "path=/" in line
            assert "domain" not in line
            for flag in ("secure", "httponly", "samesite=lax"):
                assert flag in line

    in_gateway(work, tmp_path)


def test_signing_in_gives_a_new_cookie_and_ends_the_one_before(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        key = await gate.key()
        # A cookie that somebody planted is not taken over.
        planted = f"pimcp_s{'a' * 12}_{'b' * 52}"
        browser.cookies[cookies.SESSION] = planted
        await browser.sign_in(key)
        first = browser.cookies[cookies.SESSION]
        assert first != planted
        await browser.sign_in(key)
        second = browser.cookies[cookies.SESSION]
        assert second != first
        browser.cookies[cookies.SESSION] = first
        assert (await browser.open("/status")).url.path == "/signin"
        browser.cookies[cookies.SESSION] = second
        page = await browser.open("/status")
        assert page.url.path == "/status"
        answer = await browser.submit(page, action="/signout")
        assert "signed out" in answer.text
        browser.cookies[cookies.SESSION] = second
        assert (await browser.open("/status")).url.path == "/signin"

    in_gateway(work, tmp_path)


def test_a_form_from_elsewhere_does_nothing(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client, key = await client_id(gate), await gate.key()
        await browser.sign_in(key)
        page = await browser.open(asking(client))
        form = [*Form(page.text).values, ("decision", "allow")]
        without = [(name, value) for name, value in form if name != "proof"]
        request = dict(form)["request"]
        other = [(name, value.replace("tools%3Aread", "tools%3Awrite")) for name, value in form]
        assert request != dict(other)["request"]
        for fields, headers in (
            (without, {}),
            ([*without, ("proof", "x")], {}),
            ([*without, ("proof", "")], {}),
            (other, {}),
            (form, {"Origin": "https://evil.example"}),
            (form, {"Origin": "null"}),
            (form, {"Sec_Fetch_Site": "cross-site"}),
            (form, {"Sec_Fetch_Site": "same-site"}),
        ):
            answer = await browser.send("POST", "/oauth/authorize", fields, **headers)
            assert answer.status_code == 403, (fields[-1], headers)
            assert "location" not in answer.headers
        # The proof of one browser is none for another.
        async with Browser(gate) as victim:
            await victim.sign_in(key)
            assert (await victim.send("POST", "/oauth/authorize", form)).status_code == 403
            page = await victim.open("/status")
            out = dict(Form(page.text, "/signout").values)
            assert (await browser.send("POST", "/signout", list(out.items()))).status_code == 403
            # Signing somebody else in with one's own key (login CSRF) needs their form.
            fields = [
                ("key", key),
                ("next", ""),
                ("proof", dict(Form((await browser.open("/signin")).text).values)["proof"]),
            ]
            assert (await victim.send("POST", "/signin", fields)).status_code == 403
        assert await gate.store.consents() == []
        assert (await browser.send("POST", "/oauth/authorize", form)).status_code == 303

    in_gateway(work, tmp_path)


def test_a_link_signs_in_once_and_is_not_used_up_by_being_looked_at(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        link = await gate.link("ann", "tools:read admin")
        for _ in range(3):
            page = await browser.open(link)
            assert "ann" in page.text
        async with Browser(gate) as second:
            other = await second.open(link)
            answers = await asyncio.gather(browser.submit(page), second.submit(other))
        assert sorted(answer.url.path for answer in answers) == sorted(["/status", link])
        for path in (link, "/signin/link/x", link[:-1] + ("a" if link[-1] != "a" else "b")):
            answer = await browser.open(path)
            assert answer.status_code == 404
            assert "does not work" in answer.text
        late = await gate.link(life=-1)
        assert (await browser.open(late)).status_code == 404

    in_gateway(work, tmp_path)


def test_wrong_keys_are_counted_and_repeated_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        page = await browser.open("/signin")
        wrong = f"pimcp_k{'a' * 12}_{'s' * 52}"
        expired = await gate.key(expires=time.time() - 1)
        for text in (SECRET, wrong, expired, "", "ä\u202e", wrong + "x" * 100):
            answer = await browser.submit(page, key=text)
            assert answer.status_code == 401, text
            for said in (answer.text, str(answer.headers), caplog.text):
                assert SECRET not in said
                assert "s" * 52 not in said
            assert cookies.SESSION not in browser.cookies
            page = answer
        for _ in range(4):
            answer = await browser.submit(page, key=wrong)
        answer = await browser.submit(page, key=wrong)
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) <= 61
        assert (await browser.open("/signin/link/nothing")).status_code == 429
        # Who shares the address with somebody who guesses is not locked out.
        assert (await browser.open(await gate.link())).status_code == 200
        assert (await browser.submit(page, key=await gate.key())).url.path == "/status"

    in_gateway(work, tmp_path)


def test_what_a_client_calls_itself_is_text(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(
            gate, client_name=MARKUP, client_uri="https://c.example/<b>", redirect_uris=["https://c.example/cb?a='&b"]
        )
        url = asking(client, redirect_uri="https://c.example/cb?a='&b", scope=f"tools:read tool:a/{'%3Cb%3E'}")
        page = await browser.open(url)
        assert "<img" not in page.text
        page = await browser.submit(page, key=await gate.key("<i>ann</i>", "tools:read tools:write"))
        assert 'name="decision"' in page.text
        for part in ("<img", "<script", "<b>", "<i>ann"):
            assert part not in page.text
        assert "&lt;img" in page.text
        await gate.store.add_consent(
            Consent("g" * 13, "<i>ann</i>", client, MARKUP, Scopes.parse("tools:read"), "x", time.time())
        )
        page = await browser.open("/status")
        for part in ("<img", "<script", "<i>ann"):
            assert part not in page.text

    in_gateway(work, tmp_path)


def test_consent_shows_client_scopes_and_redirect_and_gives_what_was_left_ticked(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate, client_name="Good client")
        url = asking(client, scope="tools:read tools:write admin server:files:read openid")
        await browser.sign_in(await gate.key("ann", "tools:read server:files:* admin"))
        page = await browser.open(url)
        text = " ".join(Form(page.text).text.split())
        for said in ("Good client", "ann", CALLBACK, "tools:read", "server:files:read", "registered itself"):
            assert said in text
        ticked = [value for name, value in Form(page.text).values if name == "scope"]
        assert ticked == ["server:files:read", "server:files:*", "tools:read"] or "tools:read" in ticked
        assert "admin" not in ticked
        assert "may not give" in text
        answer = await browser.submit(
            page,
            change=lambda fields: [
                *((name, value) for name, value in fields if name != "scope"),
                ("decision", "allow"), ("scope", "server:files:read"), ("scope", "tools:write"), ("scope", "admin"),
            ],
        )  # fmt: skip
        assert back(answer.headers["location"])["code"]
        (consent,) = await gate.store.consents()
        assert list(consent.scopes) == ["server:files:read"]
        # Refused, and nothing ticked.
        for fields in ({"decision": "deny"}, {"decision": "allow", "scope": ""}, {}):
            page = await browser.open(url)
            answer = await browser.submit(page, **fields)
            assert answer.status_code == 303
            said = back(answer.headers["location"])
            assert (said["error"], said["state"], said["iss"]) == ("access_denied", "st", gate.issuer)
        assert len(await gate.store.consents()) == 1

    in_gateway(work, tmp_path)


def test_a_person_cannot_give_what_they_do_not_have(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        await browser.sign_in(await gate.key("ann", "prompts:read"))
        answer = await browser.open(asking(client))
        assert answer.status_code == 403
        assert 'name="decision"' not in answer.text

    in_gateway(work, tmp_path)


def test_a_request_that_turns_out_wrong_after_signing_in_is_a_page_with_the_way_back(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        site = Documented()
        async with serving(site.app, free_port()) as site.origin:
            page = await browser.open(asking(f"{site.origin}/good", code_challenge_method="plain"))
            answer = await browser.submit(page, key=await gate.key())
        # The answer of our form may lead to us alone, so it is no redirect.
        assert answer.status_code == 400
        assert "Back to the program" in answer.text
        (link,) = [html.unescape(part.split('"')[0]) for part in answer.text.split('<a href="')[1:]]
        assert link.startswith(CALLBACK)
        assert back(link)["error"] == "invalid_request"

    in_gateway(work, tmp_path)


async def filled(gate: TestGateway) -> None:
    for subject in ("ann", "bob"):
        await gate.store.add_consent(
            Consent(
                "g" + subject * 4, subject, "c", f"Program of {subject}", Scopes.parse("tools:read"), "x", time.time()
            )
        )
        await gate.store.record(
            AuditRow(
                "a" + subject * 4, time.time(), subject, "k", "key", "write", "refused", "files", f"tool_{subject}"
            )
        )


def test_the_status_page_shows_what_is_ones_own_and_all_to_admins(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        await filled(gate)
        await gate.key("bob", "tools:read", label="Key of bob")
        await browser.sign_in(await gate.key("ann", "server:files:read", label="Key of ann"))
        page = await browser.open("/status")
        for own in ("Key of ann", "Program of ann", "tool_ann", "files"):
            assert own in page.text
        for foreign in ("bob", "mail", "notes"):
            assert foreign not in page.text
        # Somebody else's grant cannot be ended, nor told from one that is not there.
        proof = cookies.proof(browser.cookies[cookies.SESSION], "end", "g" + "bob" * 4)
        answers = [
            await browser.send("POST", "/status/end", [("grant", id), ("proof", given)])
            for id, given in (
                ("g" + "bob" * 4, proof),
                ("nothing", cookies.proof(browser.cookies[cookies.SESSION], "end", "nothing")),
            )
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text == answers[1].text
        answer = await browser.submit(page, action="/status/end")
        assert "It has ended" in answer.text
        assert [consent.revoked is None for consent in await gate.store.consents()] == [False, True]
        await browser.sign_in(await gate.key("root", "admin"))
        page = await browser.open("/status")
        for anything in ("Key of ann", "Key of bob", "Program of bob", "tool_bob", "files", "mail"):
            assert anything in page.text

    in_gateway(work, tmp_path)


def test_the_status_page_says_why_a_server_failed_and_tells_the_machines_own_to_admins_alone(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        await browser.sign_in(await gate.key("ann", "server:mail:read"))
        page = await browser.open("/status")
        assert "the operator of the gateway has to look after it" in page.text
        assert "/opt/mail" not in page.text
        assert "MAIL_HOME" not in page.text
        await browser.sign_in(await gate.key("root", "admin"))
        page = await browser.open("/status")
        assert "`/opt/mail &lt;b&gt;` is not there. Set MAIL_HOME in its env." in page.text

    in_gateway(work, tmp_path)


def test_pages_and_endpoints_say_so_when_the_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from sqlalchemy.exc import OperationalError

    from pi_mcp.store.faults import store_failure

    async def fails(*args: Any, **named: Any) -> Any:
        error = OperationalError(f"SELECT {SECRET}", {"digest": SECRET}, sqlite3.OperationalError(SECRET))
        raise store_failure(error, tmp_path / "the-store.db")

    async def work(gate: TestGateway, browser: Browser) -> None:
        client, key = await client_id(gate), await gate.key()
        await browser.sign_in(key)
        for name in ("sign_in", "client", "signing_keys", "count_clients", "peek"):
            monkeypatch.setattr(gate.store, name, fails)
        for method, path, body in (
            ("GET", "/status", None), ("GET", asking(client), None), ("GET", await gate.link(), None),
            ("GET", "/oauth/jwks", None),
            ("POST", "/oauth/token", [("grant_type", "refresh_token"), ("client_id", client)]),
        ):  # fmt: skip
            answer = await browser.send(method, path, body)
            assert answer.status_code == 503, path
            assert SECRET not in answer.text

    in_gateway(work, tmp_path)
    assert SECRET not in caplog.text
    # The caller hears nothing of the machine, the operator everything.
    assert caplog.text.count("the-store.db") == 5


def test_the_templates_and_the_style_are_part_of_the_package() -> None:
    from pi_mcp.server.pages.render import environment

    for name in ("base", "signin", "link", "consent", "status", "message"):
        environment().get_template(f"{name}.html")
    assert "prefers-color-scheme: dark" in environment().globals["style"]


def test_behind_https_the_public_address_counts_whatever_the_host_says(tmp_path: Path) -> None:
    async def whole() -> None:
        async with gateway(tmp_path, public_url="https://mcp.example.com") as gate, Browser(gate) as browser:
            found = (await browser.send("GET", "/.well-known/openid-configuration", Host="evil.example")).json()
            assert found["issuer"] == "https://mcp.example.com"
            assert urlsplit(found["token_endpoint"]).netloc == "mcp.example.com"
            await browser.sign_in(await gate.key())
            answer = await browser.send("GET", asking(await client_id(gate)))
            form = [*Form(answer.text).values, ("decision", "allow")]
            # The local name of the machine is another origin to a browser.
            answer = await browser.send("POST", "/oauth/authorize", form, Origin=gate.local)
            assert answer.status_code == 403
            answer = await browser.send("POST", "/oauth/authorize", form)
            assert back(answer.headers["location"])["iss"] == "https://mcp.example.com"

    run(whole())
