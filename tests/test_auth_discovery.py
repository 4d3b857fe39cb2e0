"""Challenges, metadata places and issuers: the rules as functions, then whole discoveries over sockets."""

from __future__ import annotations

from typing import Any

import pytest

from pi_mcp.auth.challenges import of_login, parse, scopes_of
from pi_mcp.auth.discovery import (
    canonical,
    discover,
    metadata_urls,
    resource_covers,
    resource_metadata_urls,
    same_issuer,
)
from pi_mcp.auth.fetch import Fetcher
from pi_mcp.errors import PiMcpError
from tests.auth_server import AuthServer
from tests.support import run


@pytest.mark.parametrize(
    ("lines", "scheme_names", "parameters"),
    [
        (["Bearer"], ["bearer"], {}),
        (['bearer realm="a", scope="x y"'], ["bearer"], {"realm": "a", "scope": "x y"}),
        (['Bearer realm="a, Basic b=c", error=e'], ["bearer"], {"realm": "a, Basic b=c", "error": "e"}),
        (['Bearer realm="a \\"b\\""'], ["bearer"], {"realm": 'a "b"'}),
        (["Negotiate abc==, Bearer scope=x"], ["negotiate", "bearer"], {"scope": "x"}),
        (["Basic realm=x, Bearer, DPoP algs=\"ES256\""], ["basic", "bearer", "dpop"], {}),
        (["Negotiate", "Bearer a=https://h/p?a=b"], ["negotiate", "bearer"], {"a": "https://h/p?a=b"}),
        (["Bearer scope = \"a\" ,, error=\"e\""], ["bearer"], {"scope": "a", "error": "e"}),
        ([",,, = ;, Bearer scope=a"], ["bearer"], {"scope": "a"}),
        ([""], [], None),
        (["Basic realm=\"Bearer scope=x\""], ["basic"], None),
    ],
)  # fmt: skip
def test_challenges_are_read_from_all_lines_and_lists(
    lines: list[str], scheme_names: list[str], parameters: dict[str, str] | None
) -> None:
    assert [one.scheme for one in parse(lines)] == scheme_names
    found = of_login(lines)
    assert (dict(found.parameters) if found else None) == parameters


def test_challenges_of_any_size_and_shape_are_read_in_no_time() -> None:
    for line in ("Bearer " + 'a="' * 50_000, "," * 100_000, "Bearer " + "a=b," * 50_000, '"\\' * 50_000, "a " * 50_000):
        parse([line])


def test_scopes_of_a_server_are_only_what_the_grammar_allows() -> None:
    assert scopes_of('a b a "c d\x1b[31m é repo:user') == ("a", "b", "repo:user")


def test_an_unpublished_resource_is_the_address_without_what_may_be_secret() -> None:
    assert canonical("https://h/mcp?key=planted#x") == "https://h/mcp"
    assert canonical("https://h") == "https://h"


def test_metadata_are_looked_for_with_the_path_first() -> None:
    assert resource_metadata_urls("https://h/a/mcp?t=1", "https://n/x") == [
        "https://n/x",
        "https://h/.well-known/oauth-protected-resource/a/mcp?t=1",
        "https://h/.well-known/oauth-protected-resource",
    ]
    assert resource_metadata_urls("https://h/", None) == ["https://h/.well-known/oauth-protected-resource"]
    assert metadata_urls("https://as/tenant") == [
        "https://as/.well-known/oauth-authorization-server/tenant",
        "https://as/.well-known/openid-configuration/tenant",
        "https://as/tenant/.well-known/openid-configuration",
    ]
    assert metadata_urls("https://as/") == [
        "https://as/.well-known/oauth-authorization-server",
        "https://as/.well-known/openid-configuration",
    ]


@pytest.mark.parametrize(
    ("expected", "received", "same"),
    [
        ("https://as", "https://as", True),
        ("https://as/", "https://as", True),
        ("https://as", "https://as/", True),
        ("https://as//", "https://as", False),
        ("https://as/t", "https://as/t/", False),
        ("https://as", "https://AS", False),
        ("https://as:443", "https://as", False),
        ("http://as", "https://as", False),
    ],
)
def test_issuers_are_compared_as_texts(expected: str, received: str, same: bool) -> None:
    assert same_issuer(expected, received) is same


@pytest.mark.parametrize(
    ("resource", "covers"),
    [
        ("https://h/a/mcp", True),
        ("https://h/a/mcp/", True),
        ("https://h/a", True),
        ("https://h", True),
        ("https://H:443/", True),
        ("https://h/a/mc", False),
        ("https://h/a/mcp/x", False),
        ("https://h/b", False),
        ("https://other/a/mcp", False),
        ("http://h/a/mcp", False),
        ("https://h:8443/a/mcp", False),
        ("not a url", False),
    ],
)
def test_a_resource_is_the_server_or_above_it(resource: str, covers: bool) -> None:
    assert resource_covers(resource, "https://h/a/mcp") is covers


async def found(server: AuthServer, challenges: list[str] | None = None, **more: Any) -> Any:
    return await discover(Fetcher("s", server.url, environ={}), server.url, challenges or [], **more)


def test_a_resource_that_is_another_server_ends_the_login() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.prm_changes["resource"] = "https://bank.example.test/mcp"
            with pytest.raises(PiMcpError, match="for another resource") as error:
                await found(server)
            assert error.value.diagnostic.code == "oauth_failed"

    run(main())


def test_metadata_that_the_challenge_names_elsewhere_are_read_and_when_missing_the_well_known_ones() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/meta"] = {"json": {**server.resource_metadata(), "scopes_supported": ["named"]}}
            line = f'Bearer resource_metadata="{server.origin}/meta", scope="c d"'
            one = await found(server, [line])
            assert (one.scopes, one.challenge_scopes, one.published) == (("named",), ("c", "d"), True)
            one = await found(server, [f'Bearer resource_metadata="{server.origin}/gone"'])
            assert (one.scopes, one.issuer, one.resource) == (None, server.issuer, server.url)

    run(main())


@pytest.mark.parametrize(
    "place",
    [
        "/.well-known/oauth-authorization-server/t",
        "/.well-known/openid-configuration/t",
        "/t/.well-known/openid-configuration",
    ],
)
def test_an_issuer_with_a_path_is_found_in_each_of_the_three_places(place: str) -> None:
    async def main() -> None:
        with AuthServer() as server:
            issuer = server.origin + "/t"
            server.prm_changes["authorization_servers"] = [issuer]
            server.override[place] = {"json": {**server.metadata(), "issuer": issuer}}
            assert (await found(server)).issuer == issuer

    run(main())


def test_without_resource_metadata_the_rules_of_2025_03_26_hold() -> None:
    async def main() -> None:
        with AuthServer(expose_prm=False) as server:
            one = await found(server)
            assert (one.published, one.issuer, one.resource) == (False, server.origin, server.url)
            assert one.metadata.token_endpoint == f"{server.origin}/token"
            assert not one.metadata.guessed
            # The issuer is checked there, too.
            server.metadata_changes["issuer"] = "https://elsewhere.example.test"
            with pytest.raises(PiMcpError, match="another issuer"):
                await found(server)
            server.override["/.well-known/oauth-authorization-server"] = {"status": 404}
            one = await found(server)
            assert one.metadata.guessed
            assert one.metadata.authorization_endpoint == f"{server.origin}/authorize"
            assert one.metadata.pkce

    run(main())


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_passing_failure_is_no_missing_document(status: int) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/.well-known/oauth-protected-resource/mcp"] = {"status": status, "text": "planted-1"}
            with pytest.raises(PiMcpError) as error:
                await found(server)
            assert error.value.diagnostic.code == "connection_failed"
            assert "planted" not in str(error.value)
            server.override.clear()
            server.override["/.well-known/oauth-authorization-server"] = {"status": status}
            with pytest.raises(PiMcpError) as error:
                await found(server)
            assert error.value.diagnostic.code == "connection_failed"

    run(main())


@pytest.mark.parametrize("body", ["<html>", "[]", "null", '{"issuer": 5}', "[" * 5000, '{"a": NaN}', "\udc80"])
def test_a_page_in_the_place_of_metadata_counts_as_none(body: str) -> None:
    async def main() -> None:
        with AuthServer() as server:
            text = body.encode("utf-8", "surrogatepass").decode("latin-1")
            server.override["/.well-known/oauth-protected-resource/mcp"] = {"text": text, "type": "text/html"}
            server.override["/.well-known/oauth-protected-resource"] = {"text": text, "type": "application/json"}
            assert not (await found(server)).published

    run(main())


def test_the_second_authorization_server_is_used_when_the_first_does_not_answer() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.prm_changes["authorization_servers"] = ["http://127.0.0.1:1", server.issuer]
            assert (await found(server)).issuer == server.issuer
            server.prm_changes["authorization_servers"] = ["http://127.0.0.1:1"]
            with pytest.raises(PiMcpError) as error:
                await found(server)
            assert error.value.diagnostic.code == "connection_failed"

    run(main())


def test_trust_issuer_true_trusts_nobody() -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.metadata_changes["issuer"] = "https://elsewhere.example.test"
            with pytest.raises(PiMcpError, match="another issuer"):
                await found(server, trust_issuer=True)
            assert (await found(server, trust_issuer="https://elsewhere.example.test")).issuer.startswith(
                "https://else"
            )

    run(main())


def test_discovery_sends_no_credential_and_registers_nobody() -> None:
    async def main() -> None:
        with AuthServer() as server:
            await found(server)
            assert {one.method for one in server.seen} == {"GET"}
            assert not any("authorization" in one.headers or "cookie" in one.headers for one in server.seen)

    run(main())
