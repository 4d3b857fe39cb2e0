"""Tokens bound to a key (RFC 9449) over real sockets: the proofs, the nonces of both servers, and the key's life."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from pi_mcp.auth.dpop import KeyProofs, new_key, wants_nonce
from pi_mcp.errors import PiMcpError
from tests.auth_server import AuthServer, Grant, Seen
from tests.auth_support import KEY, BrowserHost, asked, entry, everything_in, signing_in
from tests.plugin_support import plugin_of
from tests.support import run


class BoundServer(AuthServer):
    """An authorization and MCP server that binds tokens to the key of their request, and judges every proof.

    `as_nonce` and `rs_nonce`: the nonces that they want; None for none. `faults` is what was wrong with proofs.
    """

    def __init__(self, *, as_nonce: str | None = None, rs_nonce: str | None = None, **options: Any) -> None:
        super().__init__(challenge='DPoP algs="ES256", resource_metadata="{prm}"', **options)
        self.as_nonce = as_nonce
        self.rs_nonce = rs_nonce
        self.binds = True
        self.faults: list[str] = []
        self.proofs: list[dict[str, Any]] = []
        self.executed: list[Any] = []
        self.keys: dict[str, str] = {}

    def judged(self, seen: Seen, url: str, token: str | None) -> dict[str, Any] | None:
        """The claims of a good proof, with the thumbprint of its key; None for any other."""
        try:
            proof = seen.headers["dpop"]
            header = jwt.get_unverified_header(proof)
            claims: dict[str, Any] = jwt.decode(proof, jwt.PyJWK(header["jwk"]).key, algorithms=["ES256"])
            assert header["typ"] == "dpop+jwt"
            assert set(header["jwk"]) == {"kty", "crv", "x", "y"}
            assert (claims["htm"], claims["htu"]) == (seen.method, url)
            assert abs(claims["iat"] - time.time()) < 30
            assert claims["jti"] not in {one["jti"] for one in self.proofs}, "the proof was used before"
            hashed = None if token is None else hashlib.sha256(token.encode()).digest()
            assert claims.get("ath") == (None if hashed is None else text_of(hashed))
        except (KeyError, AssertionError, jwt.PyJWTError) as error:
            self.faults.append(f"{seen.path}: {error!r}")
            return None
        members = {name: header["jwk"][name] for name in ("crv", "kty", "x", "y")}
        claims["jkt"] = text_of(hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest())
        self.proofs.append(claims)
        return claims

    def _token(self, seen: Seen) -> Response:
        if not self.binds:
            return super()._token(seen)
        claims = self.judged(seen, f"{self.origin}/token", None)
        if claims is None:
            return JSONResponse({"error": "invalid_dpop_proof"}, 400)
        if self.as_nonce is not None and claims.get("nonce") != self.as_nonce:
            return JSONResponse({"error": "use_dpop_nonce"}, 400, headers={"DPoP-Nonce": self.as_nonce})
        refresh = seen.form.get("refresh_token")
        if refresh is not None and self.keys.get(refresh) != claims["jkt"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        answer = super()._token(seen)
        value = json.loads(bytes(answer.body))
        if answer.status_code == 200:
            value["token_type"] = "DPoP"
            self.keys |= {value[name]: claims["jkt"] for name in ("access_token", "refresh_token") if name in value}
        return JSONResponse(value, answer.status_code)

    def _bearer(self, seen: Seen) -> Grant | None:
        scheme, _, token = seen.headers.get("authorization", "").partition(" ")
        grant = super()._bearer(replace(seen, headers={**seen.headers, "authorization": f"Bearer {token}"}))
        if not self.binds or grant is None:
            return grant if not self.binds else None
        claims = self.judged(seen, self.url.partition("?")[0], token)
        return grant if scheme == "DPoP" and claims is not None and claims["jkt"] == self.keys.get(token) else None

    async def _resource(self, seen: Seen) -> Response:
        if self.rs_nonce is not None and "authorization" in seen.headers:
            nonce = jwt.decode(seen.headers["dpop"], options={"verify_signature": False}).get("nonce")
            if nonce != self.rs_nonce:
                lines = {"WWW-Authenticate": 'DPoP error="use_dpop_nonce"', "DPoP-Nonce": self.rs_nonce}
                return PlainTextResponse("unauthorized", 401, headers=lines)
        answer = await super()._resource(seen)
        if seen.json is not None and answer.status_code == 200:
            self.executed.append(seen.json)
        return answer


def text_of(digest: bytes) -> str:
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def whoami(session: Any) -> str:
    await session.load(["s.whoami"])
    return str((await session.call("mcp__s__whoami", {})).text)


@pytest.mark.parametrize("nonces", [False, True])
def test_every_request_proves_the_key_anew_and_a_renewal_and_a_restart_keep_it(tmp_path: Path, nonces: bool) -> None:
    async def main() -> None:
        names = {"as_nonce": "n-as", "rs_nonce": "n-rs"} if nonces else {}
        with BoundServer(**names) as server:
            async with signing_in(server, tmp_path, dpop=True) as (plugin, host, session):
                answer = await session.command("auth s")
                assert answer.diagnostic is None, answer.text
                assert await whoami(session) == "user-1"
                server.expire()
                assert await whoami(session) == "user-1"
                stored = await plugin.credentials.load("s", server.url)
                assert stored is not None
                assert stored.dpop_key is not None
                assert asked(host.opened[0])["dpop_jkt"] == KeyProofs(stored.dpop_key).thumbprint
                assert stored.dpop_key.splitlines()[1] not in everything_in(tmp_path) + repr(stored) + answer.text
            entries = {"s": entry(server, dpop=True)}
            async with plugin_of(entries, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
                assert await whoami(plugin.session("two", BrowserHost())) == "user-1"
            assert server.faults == []
            assert len({claims["jkt"] for claims in server.proofs}) == 1
            assert [one.form["grant_type"] for one in server.tokens()].count("refresh_token") == (2 if nonces else 1)
            bare = [one for one in server.at("/mcp") if "dpop" not in one.headers]
            assert all("authorization" not in one.headers for one in bare)

    run(main())


def test_a_nonce_that_changes_costs_one_more_request_and_no_second_execution(tmp_path: Path) -> None:
    async def main() -> None:
        with BoundServer(rs_nonce="first", call_delay=0.05) as server:
            async with signing_in(server, tmp_path, dpop=True) as (_, _, session):
                assert (await session.command("auth s")).diagnostic is None
                await whoami(session)
                server.rs_nonce = "second"
                server.seen.clear()
                server.executed.clear()
                called = await asyncio.gather(*(session.call("mcp__s__whoami", {}) for _ in range(5)))
                assert {answer.text for answer in called} == {"user-1"}
                assert len([one for one in server.executed if one["method"] == "tools/call"]) == 5
                # Five went out without it, before the first answer told it.
                assert 6 <= len(server.calls("tools/call")) <= 10
                assert server.tokens() == []
                server.seen.clear()
                await session.call("mcp__s__whoami", {})
                assert len(server.calls("tools/call")) == 1

    run(main())


@pytest.mark.parametrize("headers", [{}, {"DPoP-Nonce": "n"}, {"DPoP-Nonce": 'bad"nonce'}])
def test_a_server_that_never_likes_the_nonce_is_asked_a_bounded_number_of_times(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async def main() -> None:
        with BoundServer() as server:
            async with signing_in(server, tmp_path, dpop=True) as (_, _, session):
                assert (await session.command("auth s")).diagnostic is None
                await whoami(session)
                server.seen.clear()
                lines = {"WWW-Authenticate": 'DPoP error="use_dpop_nonce"', **headers}
                server.override["/mcp"] = {"status": 401, "headers": lines, "text": "again"}
                with pytest.raises(PiMcpError) as error:
                    await session.call("mcp__s__whoami", {})
                assert error.value.diagnostic.code == "authentication_required"
                assert len(server.calls("tools/call")) <= 4
                assert len(server.tokens()) <= 1

    run(main())


def test_a_token_that_is_not_bound_is_not_taken(tmp_path: Path) -> None:
    async def main() -> None:
        with BoundServer() as server:
            async with signing_in(server, tmp_path, dpop=True) as (plugin, _, session):
                assert (await session.command("auth s")).diagnostic is None
                before = await plugin.credentials.load("s", server.url)
                server.binds = False
                answer = await session.command("auth s")
                assert answer.diagnostic is not None
                assert answer.diagnostic.code == "oauth_failed"
                assert "not bound to a key" in answer.text
                assert await plugin.credentials.load("s", server.url) == before
                assert not [secret for secret in server.secrets() if secret in answer.text]

    run(main())


def test_an_authorization_server_without_the_algorithm_is_refused_before_the_browser(tmp_path: Path) -> None:
    async def main() -> None:
        with BoundServer() as server:
            server.metadata_changes["dpop_signing_alg_values_supported"] = ["EdDSA"]
            async with signing_in(server, tmp_path, dpop=True) as (_, host, session):
                answer = await session.command("auth s")
                assert answer.diagnostic is not None
                assert answer.diagnostic.code == "oauth_failed"
                assert "ES256" in answer.text
                assert (host.opened, server.at("/register")) == ([], [])

    run(main())


def test_a_resource_that_requires_it_gets_it_without_being_configured(tmp_path: Path) -> None:
    async def main() -> None:
        with BoundServer() as server:
            server.prm_changes["dpop_bound_access_tokens_required"] = True
            async with signing_in(server, tmp_path) as (_, _, session):
                assert (await session.command("auth s")).diagnostic is None
                assert await whoami(session) == "user-1"
        with BoundServer() as server:
            server.binds = False
            server.prm_changes["dpop_bound_access_tokens_required"] = True
            async with signing_in(server, tmp_path / "off", dpop=False) as (_, host, session):
                assert (await session.command("auth s")).diagnostic is None
                assert "dpop_jkt" not in asked(host.opened[0])
                assert server.proofs == []

    run(main())


def test_a_right_that_is_missing_is_named_under_this_scheme_too(tmp_path: Path) -> None:
    async def main() -> None:
        with BoundServer(scopes_supported=["read", "write"], resource_scopes=["read"]) as server:
            async with signing_in(server, tmp_path, dpop=True) as (_, host, session):
                assert (await session.command("auth s")).diagnostic is None
                await session.load(["s.write"])
                lines = {"WWW-Authenticate": 'DPoP error="insufficient_scope", scope="write"'}
                server.override["/mcp"] = {"status": 403, "headers": lines, "text": "no"}
                with pytest.raises(PiMcpError) as error:
                    await session.call("mcp__s__write", {})
                assert error.value.diagnostic.code == "permission_denied"
                assert "write" in error.value.diagnostic.message
                server.override.clear()
                assert (await session.command("auth s")).diagnostic is None
                assert asked(host.opened[1])["scope"] == "read write"

    run(main())


def test_a_key_that_is_damaged_in_the_store_asks_for_a_login(tmp_path: Path) -> None:
    async def main() -> None:
        with BoundServer() as server:
            async with signing_in(server, tmp_path, dpop=True) as (plugin, _, session):
                assert (await session.command("auth s")).diagnostic is None
                stored = await plugin.credentials.load("s", server.url)
                assert stored is not None
                await plugin.credentials.save(replace(stored, dpop_key="planted-key"))
            entries = {"s": entry(server, dpop=True)}
            async with plugin_of(entries, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
                session = plugin.session("two", BrowserHost())
                answer = await session.command("reconnect s")
                assert answer.diagnostic is not None
                assert answer.diagnostic.code == "authentication_required"
                assert "planted-key" not in answer.text
                assert (await session.command("auth s")).diagnostic is None

    run(main())


def test_proofs_hold_what_the_specification_computes() -> None:
    proofs = KeyProofs(new_key())
    assert "PRIVATE" in proofs.pem
    assert repr(proofs) == "KeyProofs(***)"
    # The examples of RFC 9449 §4.1, §6.1 and §7.1.
    proofs.__dict__["jwk"] = {
        "crv": "P-256",
        "kty": "EC",
        "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs",
        "y": "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA",
    }
    assert proofs.thumbprint == "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"
    token = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
    proof = proofs.headers("get", "https://resource.example.org?a=b#c", token=token)["DPoP"]
    claims = jwt.decode(proof, options={"verify_signature": False})
    assert claims["ath"] == "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo"
    assert (claims["htm"], claims["htu"]) == ("GET", "https://resource.example.org/")


def test_nonces_belong_to_an_origin_and_are_not_kept_without_end() -> None:
    proofs = KeyProofs(new_key())
    assert not proofs.learned("https://a/x", None)
    assert not proofs.learned("https://a/x", "with space")
    assert not proofs.learned("https://a/x", "")
    assert proofs.learned("https://a/x", "one")
    assert not proofs.learned("https://a:443/y", "one")
    nonces = [
        jwt.decode(proofs.headers("GET", url)["DPoP"], options={"verify_signature": False}).get("nonce")
        for url in ("https://a/z", "https://a:8443/z", "http://a/z")
    ]
    assert nonces == ["one", None, None]
    for number in range(200):
        proofs.learned(f"https://h{number}/", "n")
    assert len(proofs._nonces) <= 50


@pytest.mark.parametrize("pem", ["", "planted", "-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----\n"])
def test_a_text_that_is_no_key_is_not_shown(pem: str) -> None:
    with pytest.raises(ValueError, match="not a key") as error:
        KeyProofs(pem)
    assert "planted" not in str(error.value)
    assert error.value.__cause__ is None


def test_only_a_401_for_a_nonce_is_one() -> None:
    assert wants_nonce(401, ('Bearer, DPoP algs="ES256", error="use_dpop_nonce"',))
    assert not wants_nonce(400, ('DPoP error="use_dpop_nonce"',))
    assert not wants_nonce(401, ('DPoP error="invalid_token"',))
    assert not wants_nonce(401, ('Bearer error="use_dpop_nonce"',))
    assert not wants_nonce(401, ())
