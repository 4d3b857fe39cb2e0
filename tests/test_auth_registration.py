"""Which client a login goes by, what a registration says, and what happens when a server forgot it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.auth.discovery import AuthorizationServer
from pi_mcp.auth.fetch import Fetcher
from pi_mcp.auth.records import Client
from pi_mcp.auth.registration import auth_method, client_for, given_client, reusable
from pi_mcp.errors import PiMcpError
from tests.auth_server import AuthServer
from tests.auth_support import BrowserHost, asked, redirected, signing_in, until
from tests.support import run

BASIC, POST = "client_secret_basic", "client_secret_post"
REDIRECT = "http://127.0.0.1:19847/callback"


def metadata(**members: Any) -> AuthorizationServer:
    return AuthorizationServer("https://as", "https://as/authorize", "https://as/token", **members)


@pytest.mark.parametrize(
    ("oauth", "methods", "expected"),
    [
        ({}, None, "none"),
        ({"clientSecret": "x"}, None, "client_secret_basic"),
        ({"clientSecret": "x"}, ("client_secret_post",), "client_secret_post"),
        ({"clientSecret": "x"}, ("client_secret_post", "client_secret_basic"), "client_secret_basic"),
        ({"clientSecret": "x"}, ("none",), "client_secret_post"),
        ({"privateKey": "x"}, None, "private_key_jwt"),
        ({"clientSecret": "x", "tokenEndpointAuthMethod": "client_secret_post"}, None, "client_secret_post"),
        ({"clientSecret": "x", "tokenEndpointAuthMethod": "none"}, None, "none"),
    ],
)
def test_a_configured_client_proves_itself_as_the_server_knows(
    oauth: dict[str, Any], methods: tuple[str, ...] | None, expected: str
) -> None:
    assert auth_method(metadata(auth_methods=methods), oauth) == expected


def test_a_metadata_document_is_used_where_the_server_reads_it() -> None:
    oauth = {"clientMetadataUrl": "https://me.example.test/client.json"}
    found = given_client(metadata(cimd=True), oauth, REDIRECT)
    assert found == Client("https://me.example.test/client.json", "metadata_document", REDIRECT, "none")
    assert given_client(metadata(), oauth, REDIRECT) is None
    # A client that was registered beforehand is more definite.
    both = given_client(metadata(cimd=True), {**oauth, "clientId": "app"}, REDIRECT)
    assert both is not None
    assert both.client_id == "app"


def test_a_registration_is_reused_only_for_the_same_redirect_and_while_its_secret_lives() -> None:
    client = Client("c", "registered", REDIRECT)
    assert reusable(client, REDIRECT)
    assert not reusable(client, REDIRECT + "2")
    assert not reusable(Client("c", "registered", REDIRECT, secret_expires_at=time.time() + 5), REDIRECT)
    assert reusable(Client("c", "registered", REDIRECT, secret_expires_at=time.time() + 500), REDIRECT)
    assert not reusable(Client("c", "configured", REDIRECT), REDIRECT)


@pytest.mark.parametrize(
    ("methods", "reply", "method", "secret"),
    [
        (None, {}, "none", None),
        (["none"], {}, "none", None),
        (["client_secret_post"], {"client_secret": "sec-1"}, "client_secret_post", "sec-1"),
        (["client_secret_basic"], {"client_secret": "sec-1", "client_secret_expires_at": 0}, BASIC, "sec-1"),
        (None, {"client_secret": "sec-1", "token_endpoint_auth_method": "client_secret_post"}, POST, "sec-1"),
        (["client_secret_basic"], {"token_endpoint_auth_method": "x"}, "none", None),
    ],
)
def test_a_registration_asks_for_no_secret_where_it_may_and_takes_what_it_gets(
    methods: list[str] | None, reply: dict[str, Any], method: str, secret: str | None
) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/register"] = {"status": 201, "json": {"client_id": "c1", **reply}}
            known = AuthorizationServer(
                server.issuer,
                server.origin + "/authorize",
                server.origin + "/token",
                server.origin + "/register",
                auth_methods=tuple(methods) if methods else None,
            )
            fetcher = Fetcher("s", server.url, environ={})
            client = await client_for(fetcher, known, {}, redirect_uri=REDIRECT, scopes=("a", "b"))
            assert (client.client_id, client.kind, client.redirect_uri) == ("c1", "registered", REDIRECT)
            assert (client.auth_method, client.secret, client.secret_expires_at) == (method, secret, None)
            sent = server.at("/register")[0].json
            assert sent["redirect_uris"] == [REDIRECT]
            assert sent["application_type"] == "native"
            assert sent["grant_types"] == ["authorization_code", "refresh_token"]
            assert sent["scope"] == "a b"
            assert sent["token_endpoint_auth_method"] == ("none" if not methods or "none" in methods else methods[0])

    run(main())


def test_the_device_grant_is_left_out_where_the_server_does_not_give_it() -> None:
    async def main() -> None:
        with AuthServer() as server:

            def react(seen: Any) -> dict[str, Any]:
                if len(seen.json["grant_types"]) == 3:
                    return {"status": 400, "json": {"error": "invalid_client_metadata"}}
                return {"status": 201, "json": {"client_id": "c2"}}

            server.override["/register"] = react
            known = AuthorizationServer(
                server.issuer,
                server.origin + "/authorize",
                server.origin + "/token",
                server.origin + "/register",
                server.origin + "/device",
            )
            fetcher = Fetcher("s", server.url, environ={})
            assert (await client_for(fetcher, known, {}, redirect_uri=REDIRECT)).client_id == "c2"
            assert len(server.at("/register")) == 2

    run(main())


def test_a_client_that_the_token_endpoint_forgot_is_registered_again_once(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path) as (_, host, session):
                assert (await session.command("auth s")).diagnostic is None
                forgotten = "client-1"

                def react(seen: Any) -> dict[str, Any] | None:
                    if seen.form.get("client_id") == forgotten:
                        return {"status": 401, "json": {"error": "invalid_client"}}
                    return None

                server.override["/token"] = react
                assert (await session.command("auth s")).diagnostic is None
                assert [asked(url)["client_id"] for url in host.urls] == ["client-1", "client-1", "client-2"]
                # A client that is new and refused is not registered without end.
                server.override["/token"] = {"status": 401, "json": {"error": "invalid_client"}}
                diagnostic = (await session.command("auth s")).diagnostic
                assert diagnostic is not None
                assert diagnostic.code == "oauth_failed"
                assert len(server.at("/register")) == 3

    run(main())


def test_a_login_that_came_to_nothing_makes_the_next_one_register_anew(tmp_path: Path) -> None:
    """The authorization server may have said to the browser alone that it does not know the client any more."""

    async def main() -> None:
        import asyncio

        with AuthServer() as server:
            async with signing_in(server, tmp_path) as (_, host, session):
                assert (await session.command("auth s")).diagnostic is None

                async def lost(url: str) -> None:
                    server.clients.clear()
                    with pytest.raises(AssertionError, match="unknown client"):
                        await redirected(url)

                agree, host.browse = host.browse, lost
                task = asyncio.create_task(session.command("auth s"))
                await until(lambda: len(host.urls) == 2)
                await host.settle()
                task.cancel()
                await asyncio.wait({task}, timeout=2)
                host.browse = agree
                assert (await session.command("auth s")).diagnostic is None
                assert len(server.at("/register")) == 2

    run(main())


def test_an_expired_secret_is_replaced_by_a_new_registration(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(confidential=True) as server:
            real = server._register

            def react(seen: Any) -> dict[str, Any]:
                import json

                client = json.loads(bytes(real(seen).body))
                return {"status": 201, "json": {**client, "client_secret_expires_at": int(time.time()) + 1}}

            server.override["/register"] = react
            async with signing_in(server, tmp_path) as (_, host, session):
                for _ in range(2):
                    answer = await session.command("auth s")
                    assert answer.diagnostic is None, answer.text
                assert [asked(url)["client_id"] for url in host.urls] == ["client-1", "client-2"]
                assert all(one.headers["authorization"].startswith("Basic ") for one in server.tokens())

    run(main())


def test_only_an_explicit_login_registers(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path, BrowserHost()) as (plugin, host, session):
                await session.search("anything")
                await session.command("refresh")
                await session.command("reconnect s")
                await session.command("tools s")
                await session.command("get s")
                with pytest.raises(PiMcpError):
                    await plugin.catalogs.live("s")
                assert {one.path for one in server.seen} == {"/mcp"}
                assert host.opened == []

    run(main())


def test_a_metadata_document_signs_in_and_nothing_is_registered(tmp_path: Path) -> None:
    async def main() -> None:
        document = "https://me.example.test/client.json"
        with AuthServer() as server:
            server.metadata_changes["client_id_metadata_document_supported"] = True
            async with signing_in(server, tmp_path, clientMetadataUrl=document) as (plugin, host, session):
                answer = await session.command("auth s")
                assert answer.diagnostic is None, answer.text
                assert asked(host.urls[0])["client_id"] == document
                assert [one.form["client_id"] for one in server.tokens()] == [document]
                assert server.at("/register") == []
                stored = await plugin.credentials.load("s", server.url)
                assert stored is not None
                assert stored.client.kind == "metadata_document"
            # Where the server does not read such documents, a client is registered.
            server.metadata_changes.clear()
            async with signing_in(server, tmp_path / "b", clientMetadataUrl=document) as (_, host, session):
                assert (await session.command("auth s")).diagnostic is None
                assert asked(host.urls[0])["client_id"] == "client-1"

    run(main())
