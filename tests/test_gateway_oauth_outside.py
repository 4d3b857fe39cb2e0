"""Tokens of an outside issuer: real sockets, signed and forged tokens, an issuer that is dead, slow, huge or lies."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from pi_mcp.server.oauth.bearer import BadToken, CannotTell
from pi_mcp.server.oauth.outside import Issuer, OutsideIssuer
from tests.auth_server import free_port
from tests.gateway_oauth_support import serving
from tests.gateway_serve_support import Served
from tests.support import run

AUDIENCE = "https://mcp.example.com/mcp"
SECRET = "S3CR3T-planted"
RSA = RSAKey.generate_key(2048, {"kid": "rsa", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "ec", "alg": "ES256"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
LATER = ECKey.generate_key("P-384", {"kid": "later"})


class Site:
    """An issuer that does what `mode` says."""

    def __init__(self) -> None:
        self.mode = "good"
        self.keys = [key.as_dict(private=False) for key in (RSA, EC, ED)]
        self.asked: list[str] = []
        self.origin = ""
        self.tokens: dict[str, Any] = {}
        self.credentials: list[str] = []
        self.release = asyncio.Event()
        self.app = Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", self.metadata),
                Route("/jwks", self.jwks),
                Route("/introspect", self.introspect, methods=["POST"]),
            ]
        )

    async def metadata(self, request: Request) -> Response:
        del request
        self.asked.append("metadata")
        issuer = "https://other.example" if self.mode == "liar" else self.origin
        return JSONResponse(
            {
                "issuer": issuer,
                "jwks_uri": f"{self.origin}/jwks",
                "introspection_endpoint": f"{self.origin}/introspect",
            }
        )

    async def jwks(self, request: Request) -> Response:
        del request
        self.asked.append("jwks")
        if self.mode == "slow":
            await self.release.wait()
        if self.mode == "huge":
            return Response(b"[" + b" " * 400_000, media_type="application/json")
        if self.mode == "broken":
            return Response(SECRET, status_code=500)
        if self.mode == "moved":
            return RedirectResponse("http://169.254.169.254/keys")
        odd = [{"kty": "oct", "kid": "rsa", "k": "c2VjcmV0"}, {"kty": "future", "kid": "x"}, 7, {"kty": "RSA"}, None]
        return JSONResponse({"keys": [*odd, *self.keys]})

    async def introspect(self, request: Request) -> Response:
        self.asked.append("introspect")
        self.credentials.append(request.headers.get("authorization", ""))
        if self.mode == "slow":
            await self.release.wait()
        if self.mode == "broken":
            return Response(SECRET, status_code=500)
        if self.mode == "odd":
            return JSONResponse({"active": "true"})
        form = dict(part.split("=", 1) for part in (await request.body()).decode().split("&"))
        return JSONResponse(self.tokens.get(form["token"], {"active": False}))


@asynccontextmanager
async def issuing(
    clock: Any = time.time, time_limit: float = 5.0, steady: Any = None, **more: Any
) -> AsyncIterator[tuple[Site, OutsideIssuer]]:
    site = Site()
    async with _served(site):
        issuer = Issuer(site.origin, (AUDIENCE,), **more)
        try:
            yield (
                site,
                OutsideIssuer(issuer, clock=clock, steady=steady or clock, time_limit=time_limit, environ={}),
            )
        finally:
            site.release.set()


@asynccontextmanager
async def _served(site: Site) -> AsyncIterator[None]:
    async with serving(site.app, free_port()) as site.origin:
        yield


def token_of(site: Site, key: Any = RSA, algorithm: str = "RS256", *, header: Any = None, **claims: Any) -> str:
    now = int(time.time())
    said = {
        "iss": site.origin, "aud": AUDIENCE, "sub": "ann", "client_id": "app", "iat": now, "exp": now + 600,
        "scope": "openid tools:read", **claims,
    }  # fmt: skip
    head = {"alg": algorithm, "kid": key.kid, "typ": "at+jwt", **(header or {})}
    head = {name: value for name, value in head.items() if value is not None}
    said = {name: value for name, value in said.items() if value is not None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # joserfc has a newer name for EdDSA
        return jwt.encode(head, said, key, registry=JWSRegistry(algorithms=[algorithm], strict_check_header=False))


async def refused(issuer: OutsideIssuer, token: str) -> bool:
    (error,) = await asyncio.gather(issuer.verify(token), return_exceptions=True)
    return isinstance(error, BadToken) and (len(token) < 20 or token not in str(error))


def test_tokens_by_each_published_key_are_callers_with_their_scopes() -> None:
    async def work() -> None:
        async with issuing() as (site, issuer):
            for key, algorithm in ((RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "Ed25519"), (ED, "EdDSA")):
                grant = await issuer.verify(token_of(site, key, algorithm))
                assert (grant.subject, grant.kind, grant.client) == ("ann", "oauth", "app")
                assert list(grant.scopes) == ["tools:read"]
                assert grant.expires is not None
            # The same caller by the same client keeps its name, another one has another.
            again = await issuer.verify(token_of(site))
            assert again.credential_id == grant.credential_id
            assert (await issuer.verify(token_of(site, client_id="b"))).credential_id != grant.credential_id
            for accepted in (
                token_of(site, aud=["https://x.example", AUDIENCE]),
                token_of(site, scope=None, scp=["tools:read", "profile"]),
                token_of(site, header={"typ": "JWT"}),
                token_of(site, header={"typ": None}),
                token_of(site, header={"kid": None}),
                token_of(site, header={"pi.atm": "issuer's own"}),
                token_of(site, exp=int(time.time()) - 5),
            ):
                assert (await issuer.verify(accepted)).scopes.has("tools:read")
            assert site.asked == ["metadata", "jwks"]

    run(work())


def test_a_token_that_is_not_for_us_not_now_or_not_signed_by_the_issuer_is_refused() -> None:
    async def work() -> None:
        async with issuing() as (site, issuer):
            now = int(time.time())
            public = json.dumps(RSA.as_dict(private=False))
            pem = RSA.as_pem(private=False)
            stranger = RSAKey.generate_key(2048, {"kid": "rsa"})
            none = ".".join(
                base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
                for part in ({"alg": "none"}, {"iss": site.origin, "aud": AUDIENCE, "sub": "ann", "exp": now + 60})
            )
            wrong = {
                "audience": token_of(site, aud="https://other.example"),
                "no audience": token_of(site, aud=None),
                "origin for audience": token_of(site, aud="https://mcp.example.com"),
                "issuer": token_of(site, iss="https://other.example"),
                "issuer with a slash": token_of(site, iss=site.origin + "/"),
                "no issuer": token_of(site, iss=None),
                "expired": token_of(site, exp=now - 60),
                "no expiry": token_of(site, exp=None),
                "expiry as text": token_of(site, exp=str(now + 60)),
                "expiry true": token_of(site, exp=True),
                "not yet": token_of(site, nbf=now + 120),
                "made later": token_of(site, iat=now + 120),
                "no subject": token_of(site, sub=None),
                "odd subject": token_of(site, sub="a\u202eb"),
                "bound": token_of(site, cnf={"jkt": "x"}),
                "none": none + ".",
                "HMAC with the public key": jwt.encode(
                    {"alg": "HS256", "kid": "rsa"},
                    {"iss": site.origin, "aud": AUDIENCE, "sub": "ann", "exp": now + 60},
                    OctKey.import_key(public),
                    ["HS256"],
                ),
                "stranger's key": token_of(site, stranger),
                "stranger's key in the header": token_of(
                    site, stranger, header={"jwk": stranger.as_dict(private=False), "kid": None}
                ),
                "another kind": token_of(site, header={"typ": "logout+jwt"}),
                "cut": token_of(site)[:-10],
                "empty payload": token_of(site).split(".")[0] + "..x",
                "not a JWT": "abc",
                "empty": "",
                "spaces": "a b",
                "long": "a" * 20000,
                "text beyond ASCII": "ä.b.c",
            }
            assert pem
            for what, token in wrong.items():
                assert await refused(issuer, token), what

    run(work())


def test_an_unknown_key_is_looked_for_once_and_not_for_each_token() -> None:
    now = [time.time()]

    async def work() -> None:
        async with issuing(clock=lambda: now[0]) as (site, issuer):
            await issuer.verify(token_of(site))
            now[0] += 20
            for _ in range(20):
                assert await refused(issuer, token_of(site, LATER, "ES384"))
            assert site.asked.count("jwks") == 2
            site.keys.append(LATER.as_dict(private=False))
            now[0] += 20
            assert (await issuer.verify(token_of(site, LATER, "ES384"))).subject == "ann"
            await asyncio.gather(*(issuer.verify(token_of(site, LATER, "ES384")) for _ in range(10)))
            assert site.asked.count("jwks") == 3

    run(work())


def test_a_key_that_the_issuer_took_back_counts_no_more() -> None:
    now = [time.time()]

    async def work() -> None:
        async with issuing(clock=lambda: now[0]) as (site, issuer):
            await issuer.verify(token_of(site))
            site.keys = [EC.as_dict(private=False)]
            now[0] += 601
            assert await refused(issuer, token_of(site, exp=int(now[0]) + 60))

    run(work())


@pytest.mark.parametrize("mode", ["slow", "huge", "broken", "moved", "liar", "dead"])
def test_an_issuer_that_fails_lets_nobody_in_and_is_not_asked_again_at_once(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(logging.getLogger("pi_mcp"), "propagate", True)

    async def work() -> None:
        async with issuing(clock=lambda: now[0], time_limit=0.5) as (site, issuer):
            site.mode = mode
            if mode == "dead":
                issuer = OutsideIssuer(
                    replace(issuer.issuer, jwks_url=f"http://127.0.0.1:{free_port()}/"),
                    clock=lambda: now[0],
                    environ={},
                )
            token = token_of(site)
            for _ in range(5):
                with pytest.raises(CannotTell) as told:
                    await issuer.verify(token)
                assert SECRET not in str(told.value)
                assert token not in str(told.value)
            assert len(site.asked) <= 4
            site.mode = "good"
            if mode != "dead":
                now[0] += 16
                assert (await issuer.verify(token)).subject == "ann"

    run(work())
    assert SECRET not in caplog.text


def test_known_keys_outlive_an_issuer_that_is_away_for_a_while() -> None:
    now = [time.time()]

    async def work() -> None:
        async with issuing(clock=lambda: now[0]) as (site, issuer):
            await issuer.verify(token_of(site))
            site.mode = "broken"
            now[0] += 3600
            assert (await issuer.verify(token_of(site, exp=int(now[0]) + 60))).subject == "ann"
            now[0] += 4 * 3600
            with pytest.raises(CannotTell):
                await issuer.verify(token_of(site, exp=int(now[0]) + 60))

    run(work())


def test_an_issuer_in_public_cannot_lead_into_the_own_network() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        del port
        return ["93.184.216.34"] if host == "issuer.example" else ["10.0.0.7"]

    async def work() -> None:
        for url in ("https://inside.example/jwks", "http://127.0.0.1/jwks", "https://169.254.169.254/jwks"):
            issuer = OutsideIssuer(
                Issuer("https://issuer.example", (AUDIENCE,), jwks_url=url), resolve=resolve, environ={}
            )
            site = Site()
            site.origin = "https://issuer.example"
            with pytest.raises(CannotTell):
                await issuer.verify(token_of(site))

    run(work())


def test_tokens_that_only_the_issuer_can_read_are_asked_about() -> None:
    now = [time.time()]

    async def work() -> None:
        async with issuing(clock=lambda: now[0], introspection_client="gate way", introspection_secret=SECRET) as (
            site,
            issuer,
        ):
            good = {
                "active": True, "sub": "ann", "aud": AUDIENCE, "client_id": "app", "iss": site.origin,
                "scope": "tools:read admin", "exp": int(now[0]) + 600,
            }  # fmt: skip
            site.tokens = {
                "good": good,
                "other": good | {"aud": "https://other.example"},
                "nobody": {name: value for name, value in good.items() if name != "aud"},
                "issuer": good | {"iss": "https://other.example"},
                "expired": good | {"exp": int(now[0]) - 60},
                "bound": good | {"cnf": {"jkt": "x"}},
            }
            # While its caller's address guesses, the issuer is not asked; what it said before counts.
            with pytest.raises(BadToken):
                await issuer.verify("good", ask=False)
            assert site.asked.count("introspect") == 0
            for _ in range(5):
                grant = await issuer.verify("good")
            assert await issuer.verify("good", ask=False) == grant
            assert grant.expires == now[0] + 60, "to be asked about again, however long it goes on"
            # `admin` is for people.
            assert (grant.subject, list(grant.scopes)) == ("ann", ["tools:read"])
            # Known for a while, so that not every request is two.
            assert site.asked.count("introspect") == 1
            expected = base64.b64encode(f"gate%20way:{SECRET}".encode()).decode()
            assert site.credentials == [f"Basic {expected}"]
            for name in ("other", "nobody", "issuer", "expired", "bound", "unknown"):
                assert await refused(issuer, name), name
            # A token that was revoked meanwhile.
            site.tokens["good"] = {"active": False}
            now[0] += 61
            assert await refused(issuer, "good")
            assert SECRET not in repr(issuer.issuer)

    run(work())


def test_a_clock_that_is_set_back_makes_nothing_known_for_longer() -> None:
    clock, steady = [time.time()], [0.0]

    async def work() -> None:
        both = {"clock": lambda: clock[0], "steady": lambda: steady[0]}
        async with issuing(**both) as (site, issuer):
            await issuer.verify(token_of(site))
            site.keys = [EC.as_dict(private=False)]
            clock[0] -= 3600
            steady[0] += 601
            assert await refused(issuer, token_of(site, iat=None))
        asking = {"introspection_client": "g", "introspection_secret": SECRET}
        async with issuing(**both, time_limit=0.5, **asking) as (site, issuer):
            good = {"active": True, "sub": "ann", "aud": AUDIENCE, "scope": "tools:read"}
            site.tokens = {"good": good}
            await issuer.verify("good")
            site.tokens = {}
            clock[0] -= 3600
            steady[0] += 61
            assert await refused(issuer, "good")
            site.mode = "slow"
            with pytest.raises(CannotTell):
                await issuer.verify("other")
            site.mode, site.tokens = "good", {"third": good}
            site.release.set()
            clock[0] -= 3600
            steady[0] += 16
            assert (await issuer.verify("third")).expires == clock[0] + 60

    run(work())


def test_an_issuer_that_moved_its_keys_is_found_again() -> None:
    now = [time.time()]

    async def work() -> None:
        async with issuing(clock=lambda: now[0]) as (site, issuer):
            await issuer.verify(token_of(site))
            before = site.asked.count("metadata")
            for mode in ("broken", "good"):
                site.mode = mode
                now[0] += 601
                await issuer.verify(token_of(site, exp=int(now[0]) + 60))
            assert site.asked.count("metadata") > before

    run(work())


@pytest.mark.parametrize("mode", ["slow", "broken", "odd"])
def test_an_introspection_that_fails_lets_nobody_in(mode: str) -> None:
    async def work() -> None:
        async with issuing(time_limit=0.5, introspection_client="g", introspection_secret=SECRET) as (site, issuer):
            site.mode = mode
            for _ in range(3):
                with pytest.raises(CannotTell) as told:
                    await issuer.verify("token")
                assert SECRET not in str(told.value)
            assert len(site.asked) <= 4

    run(work())


@pytest.mark.slow
def test_a_gateway_process_takes_the_tokens_of_an_outside_issuer(tmp_path: Path) -> None:
    async def work() -> None:
        async with issuing() as (site, _):
            gate = Served(tmp_path, "--oauth-issuer", site.origin, "--expose", "all")
            with gate:
                async with httpx2.AsyncClient(trust_env=False, base_url=gate.url, timeout=20) as http:
                    refused = await http.post("/mcp", json={})
                    where = refused.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
                    found = (await http.get(where)).json()
                    assert found["authorization_servers"] == [site.origin]
                    assert found["resource"] == f"{gate.url}/mcp"
                    # There is no authorization server here, and no consent.
                    for path in ("/oauth/token", "/oauth/authorize", "/.well-known/oauth-authorization-server"):
                        assert (await http.get(path)).status_code == 404

                    async def tools(token: str) -> httpx2.Response:
                        headers = {
                            "Authorization": f"Bearer {token}",
                            "Accept": "application/json, text/event-stream",
                            "MCP-Protocol-Version": "2026-07-28",
                            "Mcp-Method": "tools/list",
                        }
                        meta = {
                            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                            "io.modelcontextprotocol/clientCapabilities": {},
                        }
                        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
                        return await http.post("/mcp", json=message, headers=headers)

                    answer = await tools(token_of(site, aud=found["resource"]))
                    assert answer.status_code == 200, answer.text
                    assert "look" in answer.text
                    assert "change" not in answer.text
                    assert (await tools(token_of(site))).status_code == 401
                    site.mode = "broken"
                    unknown = token_of(site, LATER, "ES384", aud=found["resource"])
                    assert (await tools(unknown)).status_code == 401
            assert "Traceback" not in gate.output

    run(work(), 90)
