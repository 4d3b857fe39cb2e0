"""Token requests and replies: how a client proves itself, what a reply may look like, what a refusal means."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from pi_mcp.auth.fetch import Fetcher, Reply
from pi_mcp.auth.records import Client
from pi_mcp.auth.tokens import ClientProof, TokenRefused, client_fields, error_name, request_tokens, tokens_of
from pi_mcp.errors import AuthenticationError, PiMcpError, ServerError
from tests.auth_server import AuthServer
from tests.support import run

SECRET = "planted-3e2d1c"


def reply(value: Any, status: int = 200, kind: str = "application/json") -> Reply:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Reply(status, "https://as/token", (("content-type", kind),), body)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(3600, 3600), ("3600", 3600), (3600.5, 3600.5), (None, None), ("soon", None), (-5, None), (True, None),
     (0, 0), (1e300, None), (10**400, None), (float("nan"), None), ("9" * 5000, None)],
)  # fmt: skip
def test_the_life_of_a_token_is_read_in_every_spelling(value: Any, seconds: float | None) -> None:
    tokens = tokens_of(reply({"access_token": "t", "expires_in": value}), "s", now=1000.0)
    assert tokens.expires_at == (None if seconds is None else 1000.0 + seconds)
    assert tokens.obtained_at == 1000.0


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b"access_token=t&refresh_token=r&scope=a%2Cb&expires_in=5", "application/x-www-form-urlencoded;charset=utf-8"),
        (b"access_token=t&refresh_token=r&scope=a+b", "text/plain"),
        ({"access_token": "t", "refresh_token": "r", "scope": "a b", "token_type": "bearer"}, "application/json"),
        ({"access_token": "t", "refresh_token": "r", "scope": ["a", "b"], "token_type": "BEARER"}, "text/html"),
        ({"access_token": "t", "refresh_token": "r", "scope": "a,b", "token_type": "user"}, ""),
    ],
)
def test_tokens_are_read_from_json_and_forms(value: Any, kind: str) -> None:
    tokens = tokens_of(reply(value, kind=kind), "s")
    assert (tokens.access_token, tokens.refresh_token, tokens.scopes, tokens.token_type) == (
        "t",
        "r",
        ("a", "b"),
        "Bearer",
    )


@pytest.mark.parametrize("odd", ["\ud800", "é", "a\r\nb", "x" * 70_000, "", 5, ["r"]])
def test_a_refresh_token_that_no_form_can_carry_is_none(odd: Any) -> None:
    tokens = tokens_of(reply({"access_token": "t", "refresh_token": odd}), "s")
    assert (tokens.access_token, tokens.refresh_token) == ("t", None)


def test_what_was_asked_for_stands_in_for_scopes_that_are_not_named() -> None:
    assert tokens_of(reply({"access_token": "t"}), "s", asked=("a",)).scopes == ("a",)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"access_token": ""},
        {"access_token": 5},
        {"access_token": f"{SECRET}\r\nX: y"},
        {"access_token": f"{SECRET} x"},
        {"access_token": f"{SECRET}é"},
        {"access_token": "x" * 70_000},
        {"access_token": SECRET, "token_type": "mac"},
        {"access_token": SECRET, "token_type": "DPoP"},
        SECRET.encode(),
        b"\xff\xfe",
    ],
)
def test_a_reply_that_holds_no_usable_token_is_an_error_without_its_words(value: Any) -> None:
    with pytest.raises(AuthenticationError) as error:
        tokens_of(reply(value), "s")
    assert error.value.diagnostic.code == "oauth_failed"
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("value", "status", "error"),
    [
        ({"error": "invalid_grant", "error_description": SECRET}, 400, "invalid_grant"),
        ({"error": "invalid_client"}, 401, "invalid_client"),
        ({"error": "bad_verification_code"}, 200, "invalid_grant"),
        ({"ok": False, "error": "invalid_grant"}, 200, "invalid_grant"),
        ({"error": {"code": "invalid_grant"}}, 400, "invalid_grant"),
        ({"error": SECRET}, 400, "unknown"),
        (SECRET.encode(), 401, "invalid_client"),
        (SECRET.encode(), 403, "unknown"),
        ({"error": "invalid_grant"}, 401, "invalid_grant"),
    ],
)
def test_a_refusal_is_known_by_its_registered_name_alone(value: Any, status: int, error: str) -> None:
    with pytest.raises(TokenRefused) as refused:
        tokens_of(reply(value, status), "s")
    assert (refused.value.error, refused.value.status) == (error, status)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"", 500),
        (b"", 503),
        (b"", 429),
        (b"", 408),
        ({"error": "server_error"}, 400),
        ({"error": "temporarily_unavailable"}, 400),
        ({"error": "invalid_grant"}, 502),
    ],
)
def test_a_server_in_trouble_has_refused_nothing(value: Any, status: int) -> None:
    with pytest.raises(ServerError) as error:
        tokens_of(reply(value, status), "s")
    assert error.value.diagnostic.code == "connection_failed"


def test_a_redirect_of_a_token_request_is_no_refusal_either() -> None:
    with pytest.raises(PiMcpError) as error:
        tokens_of(reply(b"", 307), "s")
    assert not isinstance(error.value, TokenRefused)


def test_an_error_name_is_only_what_the_registries_know() -> None:
    assert error_name(reply({"error": f"<b>{SECRET}"})) == "unknown"
    assert error_name(reply({"error": ""})) is None
    assert error_name(reply({"access_token": "t"})) is None


def test_a_client_proves_itself_in_the_way_that_it_has() -> None:
    def fields(method: str, **more: Any) -> tuple[dict[str, str], dict[str, str]]:
        client = Client("a:b c", "configured", None, method, **more)
        return client_fields(client, ClientProof(secret="s%:1"), "https://as/token", "s")

    assert fields("none") == ({"client_id": "a:b c"}, {})
    assert fields("client_secret_post") == ({"client_id": "a:b c", "client_secret": "s%:1"}, {})
    form, headers = fields("client_secret_basic")
    assert form == {}
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"a%3Ab%20c:s%25%3A1"
    with pytest.raises(PiMcpError, match="secret is not known"):
        client_fields(Client("a", "configured", None, "client_secret_basic"), ClientProof(), "https://as/token", "s")


@pytest.mark.parametrize("kind", ["ec", "rsa", "ed25519"])
def test_a_private_key_signs_an_assertion_for_the_issuer(kind: str) -> None:
    import jwt
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    key: Any = {
        "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "ed25519": ed25519.Ed25519PrivateKey.generate,
    }[kind]()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    client = Client("app", "configured", None, "private_key_jwt")
    form, headers = client_fields(client, ClientProof(None, pem, "https://as"), "https://as/token", "s")
    assert headers == {}
    claims = jwt.decode(
        form["client_assertion"], key.public_key(), algorithms=["ES256", "RS256", "EdDSA"], audience="https://as"
    )
    assert (claims["iss"], claims["sub"]) == ("app", "app")
    assert 0 < claims["exp"] - claims["iat"] <= 300


@pytest.mark.parametrize("key", [None, "", SECRET, f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----"])
def test_a_key_that_cannot_be_used_is_an_error_without_the_key(key: str | None) -> None:
    client = Client("app", "configured", None, "private_key_jwt")
    with pytest.raises(PiMcpError, match="private key cannot be used") as error:
        client_fields(client, ClientProof(None, key, "https://as"), "https://as/token", "s")
    assert SECRET not in str(error.value) + repr(error.value.__context__)


def test_a_request_is_sent_once_whatever_comes_back() -> None:
    async def main() -> None:
        with AuthServer() as server:
            for reaction in ({"status": 503}, {"status": 400, "json": {"error": "invalid_grant"}}, {"text": "x"}):
                server.seen.clear()
                server.override["/token"] = reaction
                with pytest.raises(PiMcpError):
                    await request_tokens(
                        Fetcher("s", server.url, environ={}),
                        server.origin + "/token",
                        Client("app", "registered", None),
                        None,
                        {"grant_type": "refresh_token", "refresh_token": SECRET},
                        resource=server.url,
                    )
                assert len(server.at("/token")) == 1

    run(main())


class Bound:
    """A proof of possession as `Proofs` wants it."""

    token_type = "DPoP"

    def __init__(self) -> None:
        self.nonces: list[str | None] = []

    def headers(self, method: str, url: str) -> Mapping[str, str]:
        return {"DPoP": f"proof {self.nonces[-1] if self.nonces else None}"}

    def learned(self, url: str, nonce: str | None) -> bool:
        if nonce is None or nonce in self.nonces:
            return False
        self.nonces.append(nonce)
        return True


def test_a_nonce_that_is_wanted_is_sent_once_more_and_no_more() -> None:
    async def main() -> None:
        with AuthServer() as server:

            def react(seen: Any) -> dict[str, Any]:
                if seen.headers["dpop"] == "proof n1":
                    return {"json": {"access_token": "t", "token_type": "DPoP"}}
                return {"status": 400, "json": {"error": "use_dpop_nonce"}, "headers": {"DPoP-Nonce": "n1"}}

            async def ask(bound: Bound) -> Any:
                return await request_tokens(
                    Fetcher("s", server.url, environ={}),
                    server.origin + "/token",
                    Client("app", "registered", None),
                    None,
                    {"grant_type": "client_credentials"},
                    resource=None,
                    dpop=bound,
                )

            server.override["/token"] = react
            assert (await ask(Bound())).token_type == "DPoP"
            assert len(server.at("/token")) == 2
            server.override["/token"] = {
                "status": 400, "json": {"error": "use_dpop_nonce"}, "headers": {"DPoP-Nonce": "n2"},
            }  # fmt: skip
            with pytest.raises(TokenRefused):
                await ask(Bound())
            assert len(server.at("/token")) == 4

    run(main())
