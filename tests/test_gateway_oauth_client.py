"""A client that is not ours (Authlib's) signs in to the gateway's own authorization server, from the first 401 on."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from authlib.integrations.httpx_client import AsyncOAuth2Client, OAuthError

from tests.gateway_oauth_support import VERIFIER, Browser, TestGateway, gateway
from tests.support import run

CALLBACK = "http://127.0.0.1:7777/callback"


async def discovered(url: str) -> dict[str, Any]:
    """As a client finds it: 401, protected resource, authorization server."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        refused = await http.post(f"{url}/mcp")
        assert refused.status_code == 401
        where = refused.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
        resource = (await http.get(where)).json()
        (issuer,) = resource["authorization_servers"]
        found: dict[str, Any] = (await http.get(f"{issuer}/.well-known/oauth-authorization-server")).json()
        assert found["issuer"] == issuer
        return {**found, "resource": resource["resource"]}


async def registered(found: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    async with httpx2.AsyncClient(trust_env=False) as http:
        said = {"client_name": "A client", "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none"} | metadata
        answer = await http.post(found["registration_endpoint"], json=said)
        assert answer.status_code == 201, answer.text
        client: dict[str, Any] = answer.json()
        return client


def client_of(client: dict[str, Any], found: dict[str, Any], scope: str | None = None) -> AsyncOAuth2Client:
    return AsyncOAuth2Client(
        client["client_id"],
        client.get("client_secret"),
        token_endpoint_auth_method=client["token_endpoint_auth_method"],
        scope=scope,
        redirect_uri=client["redirect_uris"][0],
        code_challenge_method="S256",
        token_endpoint=found["token_endpoint"],
        revocation_endpoint_auth_method=client["token_endpoint_auth_method"],
        trust_env=False,
    )


async def tokens_of(
    oauth: AsyncOAuth2Client, found: dict[str, Any], browser: Browser, key: str | None
) -> dict[str, Any]:
    url, state = oauth.create_authorization_url(
        found["authorization_endpoint"], code_verifier=VERIFIER, resource=found["resource"]
    )
    back = await browser.agree(url, key)
    values = {name: value[0] for name, value in parse_qs(urlsplit(back).query).items()}
    assert values["state"] == state
    assert values["iss"] == found["issuer"]
    token: dict[str, Any] = await oauth.fetch_token(
        authorization_response=back, code_verifier=VERIFIER, resource=found["resource"]
    )
    return token


@pytest.mark.parametrize("method", ["none", "client_secret_basic", "client_secret_post"])
def test_authlibs_client_signs_in_renews_and_revokes(tmp_path: Path, method: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path) as gate, Browser(gate) as browser:
            found = await discovered(gate.issuer)
            client = await registered(found, token_endpoint_auth_method=method)
            assert ("client_secret" in client) == (method != "none")
            async with client_of(client, found, "tools:read tools:write") as oauth:
                first = await tokens_of(oauth, found, browser, await gate.key())
                assert first["token_type"] == "Bearer"
                assert first["scope"] == "tools:read tools:write"
                said = (await oauth.get(found["resource"])).json()
                assert said["subject"] == "ann"
                assert said["kind"] == "oauth"
                assert said["scopes"] == ["tools:read", "tools:write"]
                second = dict(await oauth.refresh_token(found["token_endpoint"]))
                assert second["refresh_token"] != first["refresh_token"]
                assert (await oauth.get(found["resource"])).status_code == 200
                answer = await oauth.revoke_token(
                    found["revocation_endpoint"], second["refresh_token"], "refresh_token"
                )
                assert answer.status_code == 200
                assert (await oauth.get(found["resource"])).status_code == 401
                with pytest.raises(OAuthError) as refused:
                    await oauth.refresh_token(found["token_endpoint"], second["refresh_token"])
                assert refused.value.error == "invalid_grant"

    run(work())


@contextlib.asynccontextmanager
async def signed_in(
    gate: TestGateway, browser: Browser
) -> AsyncIterator[tuple[AsyncOAuth2Client, dict[str, Any], dict[str, Any]]]:
    found = await discovered(gate.issuer)
    async with client_of(await registered(found), found, "tools:read") as oauth:
        yield oauth, found, await tokens_of(oauth, found, browser, await gate.key())


def test_a_refresh_token_that_comes_back_ends_the_whole_family(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway(tmp_path) as gate,
            Browser(gate) as browser,
            signed_in(gate, browser) as (oauth, found, first),
        ):
            stolen = first["refresh_token"]
            second = dict(await oauth.refresh_token(found["token_endpoint"]))
            with pytest.raises(OAuthError) as reused:
                await oauth.refresh_token(found["token_endpoint"], stolen)
            assert reused.value.error == "invalid_grant"
            # Neither the thief nor the owner goes on.
            for token in (first["access_token"], second["access_token"]):
                answer = await browser.send("GET", "/mcp", Authorization=f"Bearer {token}")
                assert answer.status_code == 401
            with pytest.raises(OAuthError):
                await oauth.refresh_token(found["token_endpoint"], second["refresh_token"])
            (consent,) = await gate.store.consents()
            assert consent.revoked is not None

    run(work())


def test_an_access_token_can_be_revoked_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway(tmp_path) as gate,
            Browser(gate) as browser,
            signed_in(gate, browser) as (oauth, found, first),
        ):
            await oauth.revoke_token(found["revocation_endpoint"], first["access_token"], "access_token")
            answer = await browser.send("GET", "/mcp", Authorization=f"Bearer {first['access_token']}")
            assert answer.status_code == 401
            assert (await oauth.refresh_token(found["token_endpoint"]))["access_token"]
            assert (await oauth.get(found["resource"])).status_code == 200

    run(work())


def test_revoking_the_key_that_was_signed_in_with_ends_the_grant(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            gateway(tmp_path) as gate,
            Browser(gate) as browser,
            signed_in(gate, browser) as (oauth, found, _),
        ):
            assert (await oauth.get(found["resource"])).status_code == 200
            (key,) = await gate.store.keys()
            await gate.store.revoke_key(key.id, 1.0)
            assert (await oauth.get(found["resource"])).status_code == 401
            with pytest.raises(OAuthError):
                await oauth.refresh_token(found["token_endpoint"])

    run(work())
