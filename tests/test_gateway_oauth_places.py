"""Addresses and metadata of the gateway's OAuth, and what clients may say of themselves: rules without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from authlib.oauth2.rfc8414 import AuthorizationServerMetadata
from authlib.oidc.discovery import OpenIDProviderMetadata

from pi_mcp.cli import main
from pi_mcp.errors import PiMcpError
from pi_mcp.server.oauth import metadata, redirects
from pi_mcp.server.oauth.limits import Throttle
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.registration import BadMetadata, accepted


@pytest.mark.parametrize(
    ("public", "resource"),
    [
        ("https://mcp.example.com", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com/", "https://mcp.example.com/mcp"),
        ("https://MCP.Example.com:443/mcp", "https://mcp.example.com/mcp"),
        ("https://mcp.example.com:8443/mcp/", "https://mcp.example.com:8443/mcp"),
        ("http://127.0.0.1:8321", "http://127.0.0.1:8321/mcp"),
        ("http://[::1]:80", "http://[::1]/mcp"),
    ],
)
def test_the_canonical_resource_has_no_slash_added(public: str, resource: str) -> None:
    places = Places.of(public)
    assert places.resource == resource
    assert not places.issuer.endswith("/")
    assert places.resource_metadata() == f"{places.issuer}/.well-known/oauth-protected-resource/mcp"


@pytest.mark.parametrize(
    "public",
    [
        "http://mcp.example.com", "http://10.0.0.1", "https://", "mcp.example.com", "ftp://mcp.example.com",
        "https://mcp.example.com/other", "https://u:S3CR3T@mcp.example.com", "https://mcp.example.com?x=S3CR3T",
        "https://mcp.example.com:99999", "https://mcp.example.com/mcp#x", "https://exämple.com", "https://[::1",
    ],
)  # fmt: skip
def test_an_address_that_is_no_origin_is_refused_and_repeats_no_secret(public: str) -> None:
    with pytest.raises(PiMcpError) as refused:
        Places.of(public)
    assert refused.value.diagnostic.code == "usage"
    assert "u:S3CR3T" not in refused.value.diagnostic.line()


def test_metadata_say_what_is_there_and_nothing_of_servers() -> None:
    places = Places.of("https://mcp.example.com")
    said = metadata.authorization_server(places)
    assert said["issuer"] == "https://mcp.example.com"
    assert said["code_challenge_methods_supported"] == ["S256"]
    assert said["authorization_response_iss_parameter_supported"] is True
    assert said["client_id_metadata_document_supported"] is True
    assert "admin" not in said["scopes_supported"]
    # Libraries that read the one or the other location are content with it.
    AuthorizationServerMetadata(said).validate()
    openid = metadata.openid_provider(places)
    assert openid.items() >= said.items()
    OpenIDProviderMetadata(openid).validate()
    for path, resource in (("", "/mcp"), ("/mcp", "/mcp"), ("/mcp/oauth", "/mcp/oauth")):
        document = metadata.protected_resource(places, path, (places.issuer,))
        assert document["resource"] == places.issuer + resource
        assert document["authorization_servers"] == [places.issuer]


@pytest.mark.parametrize(
    "uri",
    [
        "https://client.example/cb", "https://client.example/cb?x=1", "http://127.0.0.1:3000/callback",
        "http://localhost/cb", "http://[::1]:5/cb", "cursor://anysphere.cursor-mcp/oauth/callback",
        "com.example.app:/oauth",
    ],
)  # fmt: skip
def test_redirect_addresses_that_clients_have_are_taken(uri: str) -> None:
    assert redirects.problem_of(uri) is None


@pytest.mark.parametrize(
    "uri",
    [
        "", "javascript:alert(1)", "JAVASCRIPT:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd",
        "https://client.example/cb#fragment", "https://u:p@client.example/cb", "https://*.example/cb",
        "http://client.example/cb", "http://127.0.0.1.evil.example/cb", "http://localhost@evil.example/cb",
        "http://localhost.evil.example/", "//evil.example", "/cb", "https:///cb", "https://client.example/c b",
        "https://client.example/\r\nSet-Cookie: x", "https://client.example/\\evil", "https://client.example/ü",
        'https://client.example/"onload', "https://client.example/<x>", "blob:https://x", "about:blank", "x" * 1001,
        "https://client.example:99999999/cb", "app:", None, 7, ["https://client.example/cb"],
    ],
)  # fmt: skip
def test_redirect_addresses_that_could_do_harm_are_not(uri: object) -> None:
    assert redirects.problem_of(uri) is not None
    assert not redirects.registered(uri, [uri] if isinstance(uri, str) else [])


@pytest.mark.parametrize(
    ("registered", "asked", "same"),
    [
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1:4000/cb", True),
        ("http://127.0.0.1/cb", "http://127.0.0.1:4000/cb", True),
        ("http://[::1]:3000/cb", "http://[::1]:4000/cb", True),
        ("http://localhost:3000/cb", "http://localhost:4000/cb", True),
        ("http://127.0.0.1:3000/cb", "http://localhost:3000/cb", False),
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1:3000/cb/", False),
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1:3000/cb?x=1", False),
        ("http://127.0.0.1:3000/cb", "http://127.0.0.1:3000/CB", False),
        ("https://c.example/cb", "https://c.example/cb", True),
        ("https://c.example/cb", "https://c.example:444/cb", False),
        ("https://c.example/cb", "https://C.example/cb", False),
        ("https://c.example/cb", "https://c.example/cb/../x", False),
        ("https://c.example/cb", "https://c.example/cb#x", False),
        ("https://c.example/cb", "https://c.example/cb?x", False),
        ("app.example:/cb", "app.example:/cb", True),
        ("app.example:/cb", "app.example:/cb2", False),
    ],
)  # fmt: skip
def test_redirects_are_compared_letter_by_letter_but_for_a_loopback_port(
    registered: str, asked: str, same: bool
) -> None:
    assert redirects.registered(asked, [registered]) is same


def test_a_forms_answer_may_go_to_the_clients_origin_and_no_further() -> None:
    assert redirects.form_source("http://127.0.0.1:3000/cb?x=;script-src%20*") == "http://127.0.0.1:3000"
    assert redirects.form_source("https://c.example/cb;x") == "https://c.example"
    assert redirects.form_source("cursor://x/cb") == "cursor:"
    # No CSP can name this host.
    assert redirects.form_source("http://[::1]:3000/cb") == "http:"
    assert redirects.form_source("https://c.example;default-src/cb") == "https:"


GOOD: dict[str, Any] = {"redirect_uris": ["https://c.example/cb"]}


@pytest.mark.parametrize(
    "said",
    [
        None, [], "x", {}, {"redirect_uris": []}, {"redirect_uris": "https://c.example/cb"}, {"redirect_uris": [{}]},
        {"redirect_uris": [f"https://c.example/{n}" for n in range(11)]}, GOOD | {"client_name": {"a": 1}},
        GOOD | {"grant_types": ["implicit"]}, GOOD | {"grant_types": "authorization_code"},
        GOOD | {"response_types": ["token"]}, GOOD | {"token_endpoint_auth_method": "private_key_jwt"},
        GOOD | {"token_endpoint_auth_method": ["none"]}, GOOD | {"scope": ["tools:read"]}, GOOD | {"scope": "x" * 5000},
        GOOD | {"redirect_uris": ["https://c.example/cb", "javascript:alert(1)"]},
    ],
)  # fmt: skip
def test_metadata_that_no_client_is_made_of_are_refused(said: object) -> None:
    with pytest.raises(BadMetadata) as refused:
        accepted(said)
    assert refused.value.error in ("invalid_client_metadata", "invalid_redirect_uri")


def test_what_is_kept_of_a_client_is_bounded_clean_and_known() -> None:
    kept = accepted(
        GOOD
        | {
            "client_name": "A\u202egood\x1b[31m client" + "!" * 500,
            "client_uri": "javascript:alert(1)",
            "logo_uri": "http://169.254.169.254/",
            "jwks": {"keys": []},
            "scope": "openid tools:read server:a%62c:read nonsense",
            "grant_types": ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"],
            "software_statement": "x",
            "junk": "y" * 1000,
        }
    )
    assert set(kept) == {
        "redirect_uris", "client_name", "token_endpoint_auth_method", "grant_types", "response_types", "scope"
    }  # fmt: skip
    assert kept["client_name"].startswith("Agood client!")
    assert len(kept["client_name"]) == 80
    assert kept["grant_types"] == ["authorization_code", "refresh_token"]
    assert kept["scope"] == "server:abc:read tools:read"


def test_a_throttle_lets_so_many_through_in_each_span_and_remembers_a_bounded_number() -> None:
    now = [0.0]
    throttle = Throttle(2, 10.0, clock=lambda: now[0])
    for _ in range(2):
        assert throttle.wait("a") == 0
        throttle.count("a")
    assert throttle.wait("a") == 10
    assert throttle.wait("b") == 0
    now[0] = 9.5
    assert throttle.wait("a") == pytest.approx(0.5)
    now[0] = 10.0
    assert throttle.wait("a") == 0
    for number in range(10_050):
        throttle.count(str(number))
    assert len(throttle._seen) == 10_000


@pytest.mark.parametrize(
    "words",
    [
        ["--oauth", "embedded", "--oauth-issuer", "https://issuer.example"],
        ["--oauth-audience", "x"],
        ["--oauth-jwks", "https://issuer.example/jwks"],
        ["--oauth-introspection", "client"],
        ["--oauth-issuer", "http://issuer.example"],
        ["--oauth-issuer", "https://issuer.example?x=S3CR3T"],
        ["--oauth-issuer", "https://u:S3CR3T@issuer.example"],
        ["--oauth-issuer", "https://issuer.example", "--oauth-jwks", "https://u:S3CR3T@issuer.example"],
        ["--oauth-issuer", "https://issuer.example", "--oauth-introspection", "client"],
        ["--oauth", "embedded", "--public-url", "http://mcp.example.com"],
        ["--oauth", "embedded", "--public-url", "https://mcp.example.com/other"],
        ["--oauth", "other"],
        ["--oauth", "embedded", "--http", "127.0.0.1:0"],
    ],
    ids=" ".join,
)
def test_options_of_serve_that_cannot_be_meant_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PI_MCP_INTROSPECTION_SECRET", raising=False)
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {}}')
    # As in a shell: argparse ends the process, everything else returns.
    with pytest.raises(SystemExit) as ended:
        sys.exit(main(["serve", "--http", "127.0.0.1:8400", "--config", str(config), *words]))
    assert ended.value.code == 2
    assert "S3CR3T" not in capsys.readouterr().err


def test_oauth_is_for_http(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--oauth", "embedded"]) == 2
    assert "--http" in capsys.readouterr().err
