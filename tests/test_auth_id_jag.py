"""Enterprise-managed authorization: identity provider and authorization server, each with its own tokens alone."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jwt
import pytest
from starlette.responses import JSONResponse, Response

from pi_mcp.auth.id_jag import ID_JAG, TOKEN_EXCHANGE, subject_type
from pi_mcp.auth.workload import JWT_BEARER
from pi_mcp.config import configuration_of
from pi_mcp.errors import PiMcpError
from pi_mcp.host import HeadlessHost
from tests.auth_server import AuthServer, Seen
from tests.auth_support import KEY, everything_in
from tests.plugin_support import plugin_of
from tests.support import run

GRANT_KEY = "the-identity-provider-signs-with-this-key"
PERSON_KEY = "and-with-this-one-for-people-who-log-in"
SECRET = "planted-secret-1"
IDP_SECRET = "planted-secret-2"


def person(client: str = "idp-client", *, key: str = PERSON_KEY) -> str:
    """An identity token of the organisation's login."""
    claims = {"sub": "ada@example.org", "aud": client, "exp": int(time.time()) + 300}
    return jwt.encode(claims, key, algorithm="HS256")


class IdentityProvider(AuthServer):
    """Exchanges identity tokens of `idp-client` for grants. `reply`: what it says in place of a grant."""

    reply: tuple[int, dict[str, Any]] | None = None

    def _token(self, seen: Seen) -> Response:
        form = seen.form
        basic = seen.headers.get("authorization", "")
        name, _, word = base64.b64decode(basic.removeprefix("Basic ")).decode().partition(":")
        client, secret = (name, word) if basic else (form.get("client_id"), form.get("client_secret"))
        if (client, secret) != ("idp-client", IDP_SECRET):
            return self._refusal("invalid_client", 401)
        if form.get("grant_type") != TOKEN_EXCHANGE or form.get("requested_token_type") != ID_JAG:
            return self._refusal("unsupported_grant_type")
        if form.get("subject_token_type") != "urn:ietf:params:oauth:token-type:id_token":
            return self._refusal("invalid_request")
        try:
            claims = jwt.decode(form["subject_token"], PERSON_KEY, algorithms=["HS256"], audience="idp-client")
        except jwt.PyJWTError:
            return self._refusal("invalid_grant")
        if self.reply is not None:
            return JSONResponse(self.reply[1], self.reply[0])
        grant = {
            "sub": claims["sub"],
            "aud": form["audience"],
            "resource": form["resource"],
            "client_id": "app",
            "scope": form.get("scope", ""),
            "exp": int(time.time()) + 60,
        }
        token = jwt.encode(grant, GRANT_KEY, algorithm="HS256", headers={"typ": "oauth-id-jag+jwt"})
        return JSONResponse({"access_token": token, "issued_token_type": ID_JAG, "token_type": "N_A", "expires_in": 60})


class Managed(AuthServer):
    """Believes one identity provider's grants, for its client `app`."""

    def _token(self, seen: Seen) -> Response:
        if seen.form.get("grant_type") != JWT_BEARER:
            return self._refusal("unsupported_grant_type")
        name, _, word = base64.b64decode(seen.headers["authorization"].removeprefix("Basic ")).decode().partition(":")
        if (unquote(name), unquote(word)) != ("app", SECRET):
            return self._refusal("invalid_client", 401)
        try:
            claims = jwt.decode(seen.form["assertion"], GRANT_KEY, algorithms=["HS256"], audience=self.issuer)
        except jwt.PyJWTError:
            return self._refusal("invalid_grant")
        if claims["resource"] != self.url or claims["client_id"] != "app":
            return self._refusal("invalid_grant")
        return self._tokens(self._granted({**seen.form, "scope": claims["scope"]}), refresh=False)


def entries(server: AuthServer, idp: AuthServer, **oauth: Any) -> dict[str, Any]:
    login = {
        "grant": "id_jag",
        "clientId": "app",
        "clientSecret": "${SECRET}",
        "assertion": "${PERSON}",
        "idpIssuer": idp.issuer,
        "idpClientId": "idp-client",
        "idpClientSecret": f"!printf {IDP_SECRET}",
        "scopes": ["read"],
        **oauth,
    }
    return {"s": {"url": server.url, "oauth": login}}


def environ(**more: str) -> dict[str, str]:
    return {"PI_MCP_CREDENTIAL_KEY": KEY, "SECRET": SECRET, "PERSON": person(), **more}


async def outcome(plugin: Any) -> Any:
    answer = await plugin.session("one", HeadlessHost()).command("auth s")
    assert answer.diagnostic is not None, answer.text
    return answer.diagnostic


def test_nobody_is_asked_and_each_server_sees_its_own_tokens_alone(tmp_path: Path) -> None:
    async def main() -> None:
        variables = environ()
        with IdentityProvider() as idp, Managed() as server:
            async with plugin_of(entries(server, idp), tmp_path, **variables) as plugin:
                session = plugin.session("one", HeadlessHost())
                answer = await session.command("auth s")
                assert answer.diagnostic is None, answer.text
                await session.load(["s.whoami"])
                assert (await session.call("mcp__s__whoami", {})).text == "user-1"
                # Renewed by being made again: a grant is good for one exchange.
                server.expire()
                assert (await session.call("mcp__s__whoami", {})).text == "user-2"
            exchange = idp.tokens()[0]
            assert exchange.form == {
                "grant_type": TOKEN_EXCHANGE,
                "requested_token_type": ID_JAG,
                "audience": server.issuer,
                "resource": server.url,
                "scope": "read",
                "subject_token": variables["PERSON"],
                "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            }
            assert (len(idp.tokens()), len(server.tokens(JWT_BEARER))) == (2, 2)
            assert (server.at("/register"), server.at("/authorize"), idp.at("/authorize")) == ([], [], [])
            grants = {one.form["assertion"] for one in server.tokens()}
            at_server = repr([(one.headers, one.body, one.form) for one in server.seen])
            at_idp = repr([(one.headers, one.body, one.form) for one in idp.seen])
            assert variables["PERSON"] not in at_server
            assert IDP_SECRET not in at_server
            assert not [one for one in (SECRET, *grants, *server.secrets()) if one in at_idp]
            assert not [one for one in server.at("/mcp") if grants & set(one.headers.values())]
            kept = everything_in(tmp_path) + answer.text
            assert not [one for one in (SECRET, IDP_SECRET, variables["PERSON"], *grants) if one in kept]

    run(main())


def test_the_secret_goes_by_form_where_the_identity_provider_wants_it_so(tmp_path: Path) -> None:
    async def main() -> None:
        with IdentityProvider() as idp, Managed() as server:
            idp.metadata_changes["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
            async with plugin_of(entries(server, idp), tmp_path, **environ()) as plugin:
                answer = await plugin.session("one", HeadlessHost()).command("auth s")
                assert answer.diagnostic is None, answer.text
                assert idp.tokens()[0].form["client_secret"] == IDP_SECRET

    run(main())


@pytest.mark.parametrize(
    ("reply", "code", "word"),
    [
        ((400, {"error": "access_denied"}), "oauth_failed", "access_denied"),
        ((400, {"error": "invalid_target", "error_description": "planted"}), "oauth_failed", "invalid_target"),
        ((400, {"error": "planted"}), "oauth_failed", "does not let this server be used"),
        ((503, {"error": "planted"}), "connection_failed", "HTTP 503"),
        ((200, {"access_token": "planted", "issued_token_type": "planted"}), "oauth_failed", "gave no grant"),
        ((200, {"access_token": "planted\n", "issued_token_type": ID_JAG}), "oauth_failed", "gave no grant"),
        ((200, {"issued_token_type": ID_JAG}), "oauth_failed", "gave no grant"),
        ((302, {}), "oauth_failed", "redirects"),
    ],
)
def test_what_the_identity_provider_does_not_give_is_not_asked_for_elsewhere(
    tmp_path: Path, reply: tuple[int, dict[str, Any]], code: str, word: str
) -> None:
    async def main() -> None:
        with IdentityProvider() as idp, Managed() as server:
            idp.reply = reply
            async with plugin_of(entries(server, idp), tmp_path, **environ()) as plugin:
                diagnostic = await outcome(plugin)
                assert (diagnostic.code, word in diagnostic.message) == (code, True), diagnostic
                assert "planted" not in repr(diagnostic)
                assert (len(idp.tokens()), server.tokens()) == (1, [])
                assert await plugin.credentials.load("s", server.url) is None

    run(main())


def test_a_wrong_secret_and_an_old_identity_token_say_where_to_look(tmp_path: Path) -> None:
    async def main() -> None:
        with IdentityProvider() as idp, Managed() as server:
            wrong = entries(server, idp, idpClientSecret="planted-wrong")
            async with plugin_of(wrong, tmp_path, **environ()) as plugin:
                diagnostic = await outcome(plugin)
                assert "idpClientSecret" in str(diagnostic.hint)
                assert "planted" not in repr(diagnostic)
            variables = environ(PERSON=person(key="nobody's key, and long enough to be one"))
            async with plugin_of(entries(server, idp), tmp_path, **variables) as plugin:
                diagnostic = await outcome(plugin)
                assert "assertion" in str(diagnostic.hint)
                assert variables["PERSON"] not in repr(diagnostic)

    run(main())


def test_an_old_identity_token_ends_no_login(tmp_path: Path) -> None:
    async def main() -> None:
        with IdentityProvider() as idp, Managed() as server:
            file = tmp_path / "person"
            file.write_text(person())
            servers = entries(server, idp, assertionFile=str(file))
            del servers["s"]["oauth"]["assertion"]
            async with plugin_of(servers, tmp_path, **environ()) as plugin:
                session = plugin.session("one", HeadlessHost())
                assert (await session.command("auth s")).diagnostic is None
                await session.load(["s.whoami"])
                server.expire()
                file.write_text(person(key="nobody's key, and long enough to be one"))
                with pytest.raises(PiMcpError) as error:
                    await session.call("mcp__s__whoami", {})
                assert error.value.diagnostic.code == "oauth_failed"
                file.write_text(person())
                assert (await session.call("mcp__s__whoami", {})).text == "user-2"

    run(main())


def test_metadata_of_another_identity_provider_get_no_token(tmp_path: Path) -> None:
    async def main() -> None:
        with IdentityProvider() as idp, Managed() as server:
            idp.metadata_changes["issuer"] = "https://other.example"
            async with plugin_of(entries(server, idp), tmp_path, **environ()) as plugin:
                assert (await outcome(plugin)).code == "oauth_failed"
                assert idp.tokens() == []

    run(main())


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (person(), "id_token"),
        (base64.urlsafe_b64encode(b'<?xml version="1.0"?><Assertion>').decode(), "saml2"),
        (base64.b64encode(b"\xef\xbb\xbf\n<samlp:Response xmlns:samlp='urn:oasis'>" + b"?>" * 30).decode(), "saml2"),
        ("0.AXoAq-opaque_refresh.token", "refresh_token"),
        ("1//0gAbc", "refresh_token"),
        ("x", "refresh_token"),
    ],
)
def test_the_kind_of_an_identity_token_is_seen_by_its_form(token: str, kind: str) -> None:
    assert subject_type(token) == kind


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"idpIssuer": None}, "needs `idpIssuer`"),
        ({"clientId": None}, "needs `clientId`"),
        ({"idpClientId": None}, "needs `idpClientId`"),
        ({"assertion": None}, "needs `assertion` or `assertionFile`"),
        ({"grant": "client_credentials"}, "`oauth.idpIssuer` belongs to the grant `id_jag`"),
        ({"idpIssuer": "http://idp.example"}, "has to be an https:// address"),
        ({"idpIssuer": "!echo x"}, "cannot be a command"),
    ],
)
def test_keys_that_are_missing_or_too_many_are_named(change: dict[str, Any], word: str) -> None:
    oauth = {
        "grant": "id_jag",
        "clientId": "app",
        "assertion": "${PERSON}",
        "idpIssuer": "https://idp.example",
        "idpClientId": "c",
        **change,
    }
    oauth = {key: value for key, value in oauth.items() if value is not None}
    entry = configuration_of({"s": {"url": "https://h/mcp", "oauth": oauth}}).entries["s"]
    assert entry.diagnostic is not None
    assert word in entry.diagnostic.message
