"""The embedded authorization server against those who mean harm: codes, redirects, PKCE, tokens, clients, documents."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from pi_mcp.access import secrets as minted
from pi_mcp.server.oauth.documents import Documents
from tests.auth_server import free_port
from tests.gateway_oauth_support import VERIFIER, Browser, TestGateway, gateway, serving
from tests.hostile.certificate import certificate_in
from tests.support import run

CALLBACK = "http://127.0.0.1:7777/callback"
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
SECRET = "S3CR3T-planted"


async def client_id(gate: TestGateway, **metadata: Any) -> str:
    said = {"client_name": "A client", "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none", **metadata}
    answer = await gate.server.register(said, "test")
    assert answer.status == 201, answer.body
    return str(answer.body["client_id"])


def asking(client: str, **changed: str | None) -> str:
    """The path and query of an authorization request."""
    values: dict[str, str | None] = {
        "response_type": "code",
        "client_id": client,
        "redirect_uri": CALLBACK,
        "scope": "tools:read",
        "state": "st",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        **changed,
    }
    return f"/oauth/authorize?{urlencode({name: value for name, value in values.items() if value is not None})}"


def back(location: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(location).query))


async def code_for(gate: TestGateway, browser: Browser, client: str, **changed: str | None) -> str:
    location = await browser.agree(asking(client, **changed), await gate.key())
    return back(location)["code"]


async def exchange(browser: Browser, **fields: str) -> httpx2.Response:
    values = {
        "grant_type": "authorization_code", "redirect_uri": CALLBACK, "code_verifier": VERIFIER, **fields,
    }  # fmt: skip
    return await browser.send("POST", "/oauth/token", [(name, value) for name, value in values.items() if value])


def in_gateway(work: Any, tmp_path: Path, **options: Any) -> None:
    async def whole() -> None:
        async with gateway(tmp_path, **options) as gate, Browser(gate) as browser:
            await work(gate, browser)

    run(whole())


# Redirects


FOREIGN = [
        "https://evil.example/callback", "http://127.0.0.1:7777/other", "http://localhost:7777/callback",
        "http://127.0.0.1:7777/callback#x", "javascript:alert(1)", "//evil.example", "http://127.0.0.1:7777@evil/callback",
        "http://127.0.0.1:7777/callback\r\nX: y", "", 'https://c.example/"<script>',
    ]  # fmt: skip


def test_nobody_is_sent_to_an_address_that_the_client_did_not_register(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate, redirect_uris=[CALLBACK, "http://127.0.0.1:7777/second"])
        await browser.sign_in(await gate.key())
        for redirect in FOREIGN:
            answer = await browser.send("GET", asking(client, redirect_uri=redirect))
            assert answer.status_code == 400, redirect
            assert "location" not in answer.headers
            # Nor is it repeated, in whatever spelling.
            assert "evil" not in answer.text
            assert "alert(1)" not in answer.text

    in_gateway(work, tmp_path)


ELSEWHERE = [
    "https://evil.example/", "//evil.example", "/\\evil.example", "/oauth/authorize", "\r\nX: y",
    "javascript:alert(1)", "/oauth/authorize?x=y\r\nSet-Cookie: a=b", "/status/../../evil", "/oauth/token"]  # fmt: skip


def test_signing_in_leads_to_our_own_pages_alone(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        key = await gate.key()
        for wanted in ELSEWHERE:
            page = await browser.send("GET", f"/signin?{urlencode({'next': wanted})}")
            for fields in ({}, {"next": wanted}):
                answer = await browser.submit(page, key=key, **fields)
                assert answer.url.path == "/status", wanted
                page = await browser.send("GET", "/signin")

    in_gateway(work, tmp_path)


WRONG = [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_type": None}, "unsupported_response_type"),
        ({"response_type": "code id_token"}, "unsupported_response_type"),
        ({"code_challenge": None}, "invalid_request"),
        ({"code_challenge_method": None}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge_method": "s256"}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
        ({"code_challenge": "!" * 43}, "invalid_request"),
        ({"scope": "nonsense offline_access"}, "invalid_scope"),
        ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ({"request": "eyJ"}, "request_not_supported"),
        ({"request_uri": "http://169.254.169.254/"}, "request_not_supported"),
    ]  # fmt: skip


def test_a_wrong_request_is_told_to_the_client_with_state_and_issuer(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        for changed, error in WRONG:
            answer = await browser.send("GET", asking(client, **changed))
            assert answer.status_code == 302, changed
            assert answer.headers["location"].startswith(f"{CALLBACK}?")
            said = back(answer.headers["location"])
            assert said["error"] == error, changed
            # Without `iss` a client of several servers could be made to take one's answer for another's (RFC 9207).
            assert said["iss"] == gate.issuer
            assert said["state"] == "st"
            assert "code" not in said

    in_gateway(work, tmp_path)


def test_a_parameter_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        for name, second in (("scope", "admin"), ("code_challenge_method", "plain"), ("state", "x")):
            answer = await browser.send("GET", f"{asking(client)}&{name}={second}")
            assert back(answer.headers["location"])["error"] == "invalid_request"
        answer = await browser.send("GET", f"{asking(client)}&redirect_uri=https://evil.example/")
        assert answer.status_code == 302
        assert answer.headers["location"].startswith(CALLBACK)

    in_gateway(work, tmp_path)


# Codes and PKCE


def test_a_code_that_comes_back_ends_the_tokens_that_came_of_it(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        code = await code_for(gate, browser, client)
        first = (await exchange(browser, client_id=client, code=code)).json()
        assert (await browser.send("GET", "/mcp", Authorization=f"Bearer {first['access_token']}")).status_code == 200
        again = await exchange(browser, client_id=client, code=code)
        assert (again.status_code, again.json()["error"]) == (400, "invalid_grant")
        assert (await browser.send("GET", "/mcp", Authorization=f"Bearer {first['access_token']}")).status_code == 401
        renewed = await exchange(
            browser, grant_type="refresh_token", client_id=client, refresh_token=first["refresh_token"]
        )
        assert renewed.json()["error"] == "invalid_grant"

    in_gateway(work, tmp_path)


def test_of_many_who_send_one_code_or_refresh_token_at_once_one_gets_tokens_at_most(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        code = await code_for(gate, browser, client)
        answers = await asyncio.gather(*(exchange(browser, client_id=client, code=code) for _ in range(8)))
        assert sum(answer.status_code == 200 for answer in answers) == 1
        code = await code_for(gate, browser, client)
        refresh = (await exchange(browser, client_id=client, code=code)).json()["refresh_token"]
        answers = await asyncio.gather(
            *(exchange(browser, grant_type="refresh_token", client_id=client, refresh_token=refresh) for _ in range(8))
        )
        assert sum(answer.status_code == 200 for answer in answers) == 1
        (winner,) = [answer.json() for answer in answers if answer.status_code == 200]
        # The others were replays: the family has ended.
        answer = await browser.send("GET", "/mcp", Authorization=f"Bearer {winner['access_token']}")
        assert answer.status_code == 401

    in_gateway(work, tmp_path)


WRONG_EXCHANGES = [
        ({"code_verifier": "w" * 50}, "invalid_grant"),
        ({"code_verifier": ""}, "invalid_request"),
        ({"code_verifier": CHALLENGE}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:7778/callback"}, "invalid_grant"),
        ({"code": "pimcp_c" + "a" * 12 + "_" + "a" * 52}, "invalid_grant"),
        ({"code": "x"}, "invalid_grant"),
        ({"code": ""}, "invalid_request"),
        ({"client_id": ""}, "invalid_client"),
        ({"client_id": "other"}, "invalid_client"),
        ({"resource": "https://other.example/mcp"}, "invalid_target"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"grant_type": "client_credentials"}, "unsupported_grant_type"),
        ({"grant_type": ""}, "unsupported_grant_type"),
    ]  # fmt: skip


def test_a_code_is_worth_nothing_in_wrong_hands(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        code = await code_for(gate, browser, client)
        for changed, error in WRONG_EXCHANGES:
            answer = await exchange(browser, **{"client_id": client, "code": code, **changed})
            assert answer.status_code in (400, 401), changed
            assert answer.json()["error"] == error, changed
            assert answer.headers["cache-control"] == "no-store"
            assert code not in answer.text
        # None of it has used the code up: whoever has it all still gets the tokens.
        assert (await exchange(browser, client_id=client, code=code)).status_code == 200

    in_gateway(work, tmp_path)


def test_another_client_cannot_use_a_code_or_token_nor_end_them(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        owner, thief = await client_id(gate), await client_id(gate)
        code = await code_for(gate, browser, owner)
        assert (await exchange(browser, client_id=thief, code=code)).json()["error"] == "invalid_grant"
        tokens = (await exchange(browser, client_id=owner, code=code)).json()
        answer = await exchange(
            browser, grant_type="refresh_token", client_id=thief, refresh_token=tokens["refresh_token"]
        )
        assert answer.json()["error"] == "invalid_grant"
        for token in (tokens["refresh_token"], tokens["access_token"]):
            answer = await browser.send("POST", "/oauth/revoke", [("client_id", thief), ("token", token)])
            assert answer.status_code == 400
        assert (await browser.send("GET", "/mcp", Authorization=f"Bearer {tokens['access_token']}")).status_code == 200

    in_gateway(work, tmp_path)


def test_a_client_with_a_secret_has_to_show_it(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        made = (await gate.server.register({"redirect_uris": [CALLBACK], "client_name": "Confidential"}, "test")).body
        client, secret = made["client_id"], made["client_secret"]
        for fields in ({}, {"client_secret": SECRET}, {"client_secret": secret + "x"}):
            code = await code_for(gate, browser, client)
            answer = await exchange(browser, client_id=client, code=code, **fields)
            assert answer.status_code in (400, 401)
            assert answer.json()["error"] == "invalid_client"
            assert SECRET not in answer.text
        code = await code_for(gate, browser, client)
        for header in ("Basic !!!", "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode(), "Basic " + "A" * 5000):
            answer = await browser.send(
                "POST", "/oauth/token", [("grant_type", "authorization_code"), ("code", code)], Authorization=header
            )
            assert answer.status_code in (400, 401)
        good = base64.b64encode(f"{client}:{secret}".encode()).decode()
        fields = [("grant_type", "authorization_code"), ("code", code), ("redirect_uri", CALLBACK),
                  ("code_verifier", VERIFIER)]  # fmt: skip
        both = await browser.send(
            "POST", "/oauth/token", [*fields, ("client_secret", secret)], Authorization=f"Basic {good}"
        )
        assert both.json()["error"] == "invalid_request"
        answer = await browser.send("POST", "/oauth/token", fields, Authorization=f"Basic {good}")
        assert answer.status_code == 200
        assert secret not in answer.text

    in_gateway(work, tmp_path)


def test_a_code_and_an_unused_registration_expire(tmp_path: Path) -> None:
    now = [time.time()]

    async def work(gate: TestGateway, browser: Browser) -> None:
        client, unused = await client_id(gate), await client_id(gate)
        code = await code_for(gate, browser, client)
        now[0] += 61
        assert (await exchange(browser, client_id=client, code=code)).json()["error"] == "invalid_grant"
        now[0] += 24 * 3600
        assert await gate.server.client(unused) is None
        assert await gate.server.client(client) is not None

    in_gateway(work, tmp_path, clock=lambda: now[0])


def test_less_scope_can_be_asked_for_at_a_renewal_and_never_more(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        code = await code_for(gate, browser, client, scope="tools:read resources:read")
        refresh = (await exchange(browser, client_id=client, code=code)).json()["refresh_token"]

        async def renew(**fields: str) -> httpx2.Response:
            return await exchange(
                browser, grant_type="refresh_token", client_id=client, refresh_token=refresh, **fields
            )

        for scope in ("tools:write", "tools:read tools:write", "admin", "nonsense"):
            assert (await renew(scope=scope)).json()["error"] == "invalid_scope"
        less = (await renew(scope="server:files:read")).json()
        assert less["scope"] == "server:files:read"
        refresh = less["refresh_token"]
        assert (await renew()).json()["scope"] == "resources:read tools:read"

    in_gateway(work, tmp_path)


# Access tokens


def test_a_token_that_we_did_not_make_is_refused_whatever_it_says(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        code = await code_for(gate, browser, client)
        token = (await exchange(browser, client_id=client, code=code)).json()["access_token"]
        (key,) = await gate.store.signing_keys()
        own = ECKey.import_key(dict(key.jwk))
        claims = jwt.decode(token, own, ["ES256"]).claims
        assert claims["aud"] == gate.places.resource
        header = {"alg": "ES256", "kid": key.id, "typ": "at+jwt"}

        def none_of(claims: dict[str, Any]) -> str:
            texts = (json.dumps(one) for one in ({"alg": "none", "kid": key.id, "typ": "at+jwt"}, claims))
            return ".".join(base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in texts) + "."

        public = own.as_dict(private=False)
        other = ECKey.generate_key("P-256")
        forged = [
            none_of(claims),
            jwt.encode({**header, "alg": "HS256"}, claims, OctKey.import_key(json.dumps(public)), ["HS256"]),
            jwt.encode(header, claims, other, ["ES256"]),
            jwt.encode({**header, "kid": "unknown"}, claims, own, ["ES256"]),
            jwt.encode({**header, "jwk": other.as_dict(private=False)}, claims, other, ["ES256"]),
            jwt.encode({**header, "typ": "JWT"}, claims, own, ["ES256"]),
            # Signed by our own key, for another purpose: nobody could, and it would not count.
            jwt.encode(header, {**claims, "aud": "https://other.example/mcp"}, own, ["ES256"]),
            jwt.encode(header, {**claims, "iss": "https://other.example"}, own, ["ES256"]),
            jwt.encode(header, {**claims, "exp": 1}, own, ["ES256"]),
            jwt.encode(header, {**claims, "nbf": int(time.time()) + 600}, own, ["ES256"]),
            jwt.encode(header, {**claims, "jti": "a" * 13}, own, ["ES256"]),
            jwt.encode(header, {**claims, "scope": "tools:write"}, own, ["ES256"]),
            base64.urlsafe_b64encode(b'{"a":' + b"[" * 9000).decode() + ".e30.AAAA",
            token[:-4] + "AAAA", token + ".x", token.replace(".", "", 1), "x" * 20000, "a.b.c", "..",
        ]  # fmt: skip
        for one in forged:
            answer = await browser.send("GET", "/mcp", Authorization=f"Bearer {one}")
            assert answer.status_code == 401, one[:80]
            assert "resource_metadata=" in answer.headers["www-authenticate"]
        assert (await browser.send("GET", "/mcp", Authorization=f"Bearer {token}")).status_code == 200

    in_gateway(work, tmp_path)


def test_keys_are_replaced_while_tokens_of_the_old_one_live_on(tmp_path: Path) -> None:
    now = [time.time()]

    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        first = (await exchange(browser, client_id=client, code=await code_for(gate, browser, client))).json()
        now[0] += 31 * 24 * 3600
        key = await gate.key("bea")
        async with Browser(gate) as fresh:
            location = await fresh.agree(asking(client), key)
            second = (await exchange(fresh, client_id=client, code=back(location)["code"])).json()
        headers = [one["access_token"].partition(".")[0] for one in (first, second)]
        kids = [json.loads(base64.urlsafe_b64decode(header + "=="))["kid"] for header in headers]
        assert kids[0] != kids[1]
        published = (await browser.send("GET", "/oauth/jwks")).json()["keys"]
        assert {one["kid"] for one in published} == set(kids)
        assert all("d" not in one for one in published)
        assert (await browser.send("GET", "/mcp", Authorization=f"Bearer {second['access_token']}")).status_code == 200

    in_gateway(work, tmp_path, clock=lambda: now[0])


# Registration


def test_registrations_are_limited_for_an_address_and_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pi_mcp.server.oauth.server.REGISTRATIONS_PER_HOUR", 25)

    async def work(gate: TestGateway, browser: Browser) -> None:
        said = {"redirect_uris": [CALLBACK], "client_name": SECRET}
        async with httpx2.AsyncClient(trust_env=False) as http:
            answers = [await http.post(f"{gate.issuer}/oauth/register", json=said) for _ in range(22)]
        assert [answer.status_code for answer in answers] == [201] * 20 + [429] * 2
        assert int(answers[-1].headers["retry-after"]) <= 61
        for number in range(5):
            assert (await gate.server.register(said, f"address {number}")).status == 201
        assert (await gate.server.register(said, "one more")).status == 429

    in_gateway(work, tmp_path)


def test_one_address_alone_takes_no_registrations_from_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pi_mcp.server.oauth.server.PER_ADDRESS_HOUR", 10)

    async def work(gate: TestGateway, browser: Browser) -> None:
        said = {"redirect_uris": [CALLBACK]}
        answers = [await gate.server.register(said, "greedy") for _ in range(11)]
        assert [answer.status for answer in answers] == [201] * 10 + [429]
        assert int(dict(answers[-1].headers)["Retry-After"]) > 60
        assert (await gate.server.register(said, "another")).status == 201

    in_gateway(work, tmp_path)


def test_odd_registrations_are_answered_with_an_error_and_kept_nowhere(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        async with httpx2.AsyncClient(trust_env=False) as http:

            async def post(body: bytes, kind: str = "application/json") -> httpx2.Response:
                return await http.post(f"{gate.issuer}/oauth/register", content=body, headers={"Content-Type": kind})

            deep = b'{"redirect_uris":' + b"[" * 10000 + b"]" * 10000 + b"}"
            huge = b'{"x":"' + b"x" * 50000 + b'"}'
            for body in (b"", b"{", b"null", b"[]", b"\xff", b'{"redirect_uris":[NaN]}', deep):
                answer = await post(body)
                assert answer.status_code == 400, body[:20]
                assert answer.json()["error"] in ("invalid_client_metadata", "invalid_redirect_uri")
            assert (await post(huge)).status_code == 413
            assert (await post(b"{}", "text/plain")).status_code == 415
            for uri in ("javascript:alert(1)", "https://c.example/#f", "https://u:p@c.example/"):
                answer = await post(json.dumps({"redirect_uris": [uri]}).encode())
                assert answer.status_code == 400
                assert answer.json()["error"] == "invalid_redirect_uri"
                assert uri not in answer.text
        assert await gate.store.count_clients() == 0

    in_gateway(work, tmp_path)


# Client metadata documents


class Documented:
    """A site with metadata documents."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.origin = ""
        self.app = Starlette(routes=[Route("/{name}", self.document)])

    async def document(self, request: Request) -> Response:
        name = request.path_params["name"]
        self.asked.append(name)
        said: dict[str, Any] = {
            "client_id": f"{self.origin}/{name}",
            "client_name": "Documented",
            "redirect_uris": [CALLBACK],
        }
        if name == "moved":
            return RedirectResponse(f"{self.origin}/good")
        if name == "inside":
            return RedirectResponse("http://169.254.169.254/latest")
        if name == "huge":
            said["x"] = "x" * 20000
        if name == "other":
            said["client_id"] = f"{self.origin}/good"
        if name == "secret":
            said["client_secret"] = SECRET
        if name == "html":
            return Response("<p>no</p>", media_type="text/html")
        if name == "gone":
            return Response(SECRET, status_code=404)
        if name == "bad":
            said["redirect_uris"] = ["javascript:alert(1)"]
        return JSONResponse(said, headers={"Cache-Control": "max-age=5"})


def test_a_client_may_be_known_by_its_metadata_document(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        site, port = Documented(), free_port()
        async with serving(site.app, port) as site.origin:
            client = f"{site.origin}/good"
            code = await code_for(gate, browser, client)
            page = next(answer for answer in browser.answers if 'name="decision"' in answer.text)
            assert "127.0.0.1" in page.text
            tokens = await exchange(browser, client_id=client, code=code)
            assert tokens.status_code == 200, tokens.text
            assert (
                await exchange(
                    browser,
                    grant_type="refresh_token",
                    client_id=client,
                    refresh_token=tokens.json()["refresh_token"],
                )
            ).status_code == 200
            # Fetched once for all of it: nothing is for a token, whoever asks for one.
            assert site.asked == ["good"]
            for fields in ({"grant_type": "refresh_token", "refresh_token": "x"}, {"code": "x"}):
                answer = await exchange(browser, client_id=f"{site.origin}/unasked", **fields)
                assert answer.json()["error"] == "invalid_grant"
            await browser.send("POST", "/oauth/revoke", [("client_id", f"{site.origin}/unasked"), ("token", "x")])
            assert site.asked == ["good"]
            for name in ("moved", "inside", "huge", "other", "secret", "html", "gone", "bad"):
                answer = await browser.send("GET", asking(f"{site.origin}/{name}"))
                assert answer.status_code == 400, name
                assert SECRET not in answer.text
                # What failed is left alone for a while.
                await browser.send("GET", asking(f"{site.origin}/{name}"))
                assert site.asked.count(name) == 1
            assert site.asked.count("good") == 1

    in_gateway(work, tmp_path)


def test_a_document_counts_by_the_certificate_of_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = certificate_in(tmp_path)

    async def work(gate: TestGateway, browser: Browser) -> None:
        site = Documented()
        tls = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
        async with serving(site.app, free_port(), **tls) as site.origin:
            await browser.sign_in(await gate.key())
            answer = await browser.open(asking(f"{site.origin}/good"))
            assert answer.status_code == 400
            assert site.asked == []
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            gate.server._documents = Documents(gate.store, reach="loopback")
            page = await browser.open(asking(f"{site.origin}/good"))
            assert "Vouched for by" in page.text
            assert site.asked == ["good"]

    in_gateway(work, tmp_path)


INNER = [
        "https://10.0.0.1/client", "https://169.254.169.254/latest/meta-data", "https://127.0.0.1/x",
        "https://[::1]/x", "https://[::ffff:10.0.0.1]/x", "https://inside.example/x", "https://[fd00::1]/x",
        "https://0x7f000001/x", "https://2130706433/x",
    ]  # fmt: skip


def test_a_document_at_an_inner_address_is_not_fetched(tmp_path: Path) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        del port
        return {"inside.example": ["10.1.2.3"]}.get(host, ["127.0.0.1"])

    async def whole() -> None:
        async with gateway(tmp_path) as gate, Browser(gate) as browser:
            gate.server._documents = Documents(gate.store, resolve=resolve)
            await browser.sign_in(await gate.key())
            for address in INNER:
                answer = await browser.send("GET", asking(address))
                assert answer.status_code == 400, address
            assert set(gate.server._documents._failed) == set(INNER)
            assert await gate.store.count_clients() == 0

    run(whole())


NO_DOCUMENTS = [
        "https://c.example", "https://c.example/", "https://u:p@c.example/x", "https://c.example/x#f",
        "https://c.example/../x", "https://c.example/a/%2e%2e/x", "http://c.example/x", "https:///x",
        "https://c.example/x y", "https://c.example:port/x", "https://c.example/" + "x" * 600, "ftp://c.example/x", "https://c.example/\\x",
    ]  # fmt: skip


def test_what_is_no_address_of_a_document_is_not_fetched(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        documents = Documents(gate.store)
        await browser.sign_in(await gate.key())
        for address in NO_DOCUMENTS:
            assert not documents.is_address(address), address
            assert (await browser.send("GET", asking(address))).status_code == 400

    in_gateway(work, tmp_path)


def test_nobody_who_is_not_signed_in_makes_us_fetch_a_document(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        for address in ("https://c.example/client", "HTTPS://c.example/client", "hTTps://C.example/client"):
            answer = await browser.open(asking(address))
            assert answer.url.path == "/signin"
            assert "c.example" in answer.text
        assert gate.server._documents._failed == {}

    in_gateway(work, tmp_path)


# Secrets


def bytes_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_no_secret_is_in_the_store_or_in_an_answer_that_is_not_its_own(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        made = (await gate.server.register({"redirect_uris": [CALLBACK]}, "test")).body
        client, secret = made["client_id"], made["client_secret"]
        key = await gate.key()
        location = await browser.agree(asking(client), key)
        code = back(location)["code"]
        tokens = (await exchange(browser, client_id=client, client_secret=secret, code=code)).json()
        planted = [key, secret, code, tokens["access_token"], tokens["refresh_token"], *browser.cookies.values()]
        await browser.open("/status")
        await gate.store.close()
        kept = bytes_in(tmp_path)
        for one in planted:
            assert one.encode() not in kept
            rest = one.rpartition("_")[2].encode()
            assert rest not in kept
        shown = "".join(answer.text for answer in browser.answers if "access_token" not in answer.text)
        for one in planted:
            assert one not in shown
        for text in (repr(made), repr(minted.mint("key"))):
            assert tokens["access_token"] not in text

    in_gateway(work, tmp_path)


def test_errors_of_the_query_never_become_pages_of_the_client(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        answer = await browser.send("GET", asking(client, state='"><script>x</script>', scope="nonsense"))
        assert parse_qs(urlsplit(answer.headers["location"]).query)["state"] == ['"><script>x</script>']
        assert "<script>" not in answer.headers["location"]

    in_gateway(work, tmp_path)


def test_whatever_name_of_ours_a_client_asks_for_the_audience_is_the_canonical_one(tmp_path: Path) -> None:
    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        for resource in (None, f"{gate.issuer}/mcp", f"{gate.issuer}/mcp/oauth", gate.issuer, f"{gate.issuer}/mcp/"):
            code = await code_for(gate, browser, client, resource=resource)
            tokens = (await exchange(browser, client_id=client, code=code, resource=resource or "")).json()
            payload = tokens["access_token"].split(".")[1]
            assert json.loads(base64.urlsafe_b64decode(payload + "=="))["aud"] == f"{gate.issuer}/mcp"
            answer = await browser.send("GET", "/mcp", Authorization=f"Bearer {tokens['access_token']}")
            assert answer.status_code == 200

    in_gateway(work, tmp_path)


def test_a_grant_ends_when_the_key_that_it_came_from_does(tmp_path: Path) -> None:
    now = [time.time()]

    async def work(gate: TestGateway, browser: Browser) -> None:
        client = await client_id(gate)
        location = await browser.agree(asking(client), await gate.key(expires=now[0] + 100))
        tokens = (await exchange(browser, client_id=client, code=back(location)["code"])).json()
        header = {"Authorization": f"Bearer {tokens['access_token']}"}
        assert (await browser.send("GET", "/mcp", **header)).status_code == 200
        grant = await gate.server.verify(tokens["access_token"])
        assert grant.expires == now[0] + 100

    in_gateway(work, tmp_path, clock=lambda: now[0])
