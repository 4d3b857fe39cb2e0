"""A program that signs in with a token of its platform: as the grant, or as the proof of a client."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from pi_mcp.auth import workload
from pi_mcp.auth.workload import JWT_BEARER, assertion_of, check_audience
from pi_mcp.config import configuration_of, resolve
from pi_mcp.errors import PiMcpError
from pi_mcp.host import HeadlessHost
from tests.auth_server import AuthServer, Seen
from tests.auth_support import KEY, everything_in
from tests.plugin_support import plugin_of
from tests.support import run

PLATFORM = "the-platform-signs-with-this-key-"


def signed(audience: Any, *, subject: str = "workload-1", key: str = PLATFORM) -> str:
    """A token as a platform makes them; with `planted` in it once it is decoded."""
    claims = {"iss": "https://platform.example", "sub": subject, "aud": audience, "exp": int(time.time()) + 300}
    return jwt.encode({**claims, "note": "planted"}, key, algorithm="HS256")


class Federated(AuthServer):
    """Takes a platform's tokens, as grants and as proofs of its client `app`. `refuses`: an error for every grant."""

    refuses: str | None = None

    def taken(self, token: str) -> bool:
        try:
            jwt.decode(token, PLATFORM, algorithms=["HS256"], audience=[self.issuer, "api://exchange"])
        except jwt.PyJWTError:
            return False
        return True

    def _assertion_holds(self, seen: Seen, client: Any) -> bool:
        return self.taken(seen.form.get("client_assertion", ""))

    def _token(self, seen: Seen) -> Any:
        if seen.form.get("grant_type") != JWT_BEARER:
            return super()._token(seen)
        if self.refuses is not None:
            return self._refusal(self.refuses)
        if not self.taken(seen.form.get("assertion", "")):
            return self._refusal("invalid_grant")
        return self._tokens(self._granted(seen.form), refresh=False)


def by_grant(server: AuthServer, **oauth: Any) -> dict[str, Any]:
    return {"s": {"url": server.url, "oauth": {"grant": "jwt_bearer", "clientId": "app", **oauth}}}


async def signed_in(plugin: Any) -> Any:
    """Sign in where nobody is, and call."""
    session = plugin.session("one", HeadlessHost())
    answer = await session.command("auth s")
    assert answer.diagnostic is None, answer.text
    await session.load(["s.whoami"])
    return session


@pytest.mark.parametrize("how", ["variable", "command", "file", "link"])
def test_the_token_is_the_grant_wherever_it_comes_from(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        with Federated() as server:
            token = signed(server.issuer)
            # As Kubernetes mounts them: a link to a link that it turns when it writes a new one.
            (tmp_path / "token").write_text(token + "\n")
            (tmp_path / "link").symlink_to(tmp_path / "token")
            oauth = {
                "variable": {"assertion": "${TOKEN}"},
                "command": {"assertion": f"!cat '{tmp_path}/token'"},
                "file": {"assertionFile": "${PLACE}/token"},
                "link": {"assertionFile": "link"},
            }[how]
            environ = {"PI_MCP_CREDENTIAL_KEY": KEY, "TOKEN": token, "PLACE": str(tmp_path)}
            async with plugin_of(by_grant(server, **oauth, scopes="run"), tmp_path, **environ) as plugin:
                session = await signed_in(plugin)
                assert (await session.call("mcp__s__whoami", {})).text == "user-1"
            (request,) = server.tokens()
            assert request.form == {
                "grant_type": JWT_BEARER,
                "assertion": token,
                "scope": "run",
                "resource": server.url,
                "client_id": "app",
            }
            assert "authorization" not in request.headers
            assert (server.at("/register"), server.at("/authorize")) == ([], [])
            assert token not in everything_in(tmp_path / "state") + everything_in(tmp_path / "cache")

    run(main())


def test_a_renewal_reads_the_file_again_and_a_refused_one_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        with Federated() as server:
            file = tmp_path / "token"
            file.write_text(signed(server.issuer))
            async with plugin_of(
                by_grant(server, assertionFile=str(file)), tmp_path, PI_MCP_CREDENTIAL_KEY=KEY
            ) as plugin:
                session = await signed_in(plugin)
                server.expire()
                file.write_text(signed(server.issuer, key="another key, which nobody there trusts"))
                with pytest.raises(PiMcpError) as error:
                    await session.call("mcp__s__whoami", {})
                assert error.value.diagnostic.code == "oauth_failed"
                assert "assertionFile" in str(error.value.diagnostic.hint)
                fresh = signed(server.issuer, subject="workload-2")
                file.write_text(fresh)
                assert (await session.call("mcp__s__whoami", {})).text == "user-2"
                assert server.tokens()[-1].form["assertion"] == fresh

    run(main())


@pytest.mark.parametrize("error", ["invalid_grant", "invalid_scope", "unauthorized_client", "planted-error"])
def test_a_refusal_is_final_for_this_login(tmp_path: Path, error: str) -> None:
    async def main() -> None:
        with Federated() as server:
            server.refuses = error
            token = signed(server.issuer)
            environ = {"PI_MCP_CREDENTIAL_KEY": KEY, "TOKEN": token}
            async with plugin_of(by_grant(server, assertion="${TOKEN}"), tmp_path, **environ) as plugin:
                answer = await plugin.session("one", HeadlessHost()).command("auth s")
                assert answer.diagnostic is not None
                assert answer.diagnostic.code == "oauth_failed"
                assert len(server.tokens()) == 1
                assert await plugin.credentials.load("s", server.url) is None
                shown = answer.text + repr(answer.diagnostic)
                assert (error in shown) == (error != "planted-error")
                assert token not in shown

    run(main())


def test_a_client_without_a_name_is_possible(tmp_path: Path) -> None:
    async def main() -> None:
        with Federated() as server:
            servers = {"s": {"url": server.url, "oauth": {"grant": "jwt_bearer", "assertion": "${TOKEN}"}}}
            environ = {"PI_MCP_CREDENTIAL_KEY": KEY, "TOKEN": signed(server.issuer)}
            async with plugin_of(servers, tmp_path, **environ) as plugin:
                session = await signed_in(plugin)
                server.expire()
                assert (await session.call("mcp__s__whoami", {})).text == "user-2"
                assert all("client_id" not in one.form for one in server.tokens())

    run(main())


def test_the_token_proves_a_client_in_place_of_its_secret(tmp_path: Path) -> None:
    async def main() -> None:
        with Federated() as server:
            server.client("app", public_key="judged by the platform's key")
            oauth = {"grant": "client_credentials", "clientId": "app", "assertionFile": "${TOKEN_FILE}"}
            file = tmp_path / "token"
            file.write_text(signed("api://exchange"))
            environ = {"PI_MCP_CREDENTIAL_KEY": KEY, "TOKEN_FILE": str(file)}
            async with plugin_of({"s": {"url": server.url, "oauth": oauth}}, tmp_path, **environ) as plugin:
                session = await signed_in(plugin)
                assert (await session.call("mcp__s__whoami", {})).text == "user-1"
                form = server.tokens()[0].form
                assert form["client_assertion"] == file.read_text()
                assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
                assert (form["grant_type"], "assertion" in form) == ("client_credentials", False)

    run(main())


@pytest.mark.parametrize("grant", ["jwt_bearer", "client_credentials"])
def test_an_assertion_for_another_authorization_server_stays_here(tmp_path: Path, grant: str) -> None:
    async def main() -> None:
        with Federated() as server:
            server.client("app", public_key="judged by the platform's key")
            token = signed("https://login.bank.example/oauth")
            oauth = {"grant": grant, "clientId": "app", "assertion": "${TOKEN}"}
            environ = {"PI_MCP_CREDENTIAL_KEY": KEY, "TOKEN": token}
            async with plugin_of({"s": {"url": server.url, "oauth": oauth}}, tmp_path, **environ) as plugin:
                answer = await plugin.session("one", HeadlessHost()).command("auth s")
                assert answer.diagnostic is not None
                assert answer.diagnostic.code == "oauth_failed"
                assert "https://login.bank.example" in answer.text
                assert server.tokens() == []
                assert not [one for one in server.seen if token.encode() in one.body]

    run(main())


def test_only_an_audience_of_other_addresses_is_another_one() -> None:
    for good in (
        "opaque",
        signed("https://as.example"),
        signed("https://AS.example:443/token"),
        signed(["https://other.example", "https://as.example/"]),
        signed("api://exchange"),
        signed(["api://exchange", "https://other.example"]),
        signed(None),
    ):
        check_audience(good, "s", "https://as.example/tenant", "https://as.example/tenant/token")
    for bad in (signed("https://other.example"), signed("http://as.example"), signed(["https://a", "https://[b"])):
        with pytest.raises(PiMcpError):
            check_audience(bad, "s", "https://as.example/tenant")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (None, "holds no readable token"),
        (b"", "holds no readable token"),
        (b"planted two words", "empty or no token"),
        (b"planted\xff", "holds no readable token"),
        (b"p" * 70_000, "holds no readable token"),
    ],
)
def test_a_file_without_a_token_is_named_and_not_quoted(tmp_path: Path, content: bytes | None, word: str) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    oauth = {"grant": "jwt_bearer", "assertionFile": "token"}
    configuration = configuration_of({"s": {"url": "https://h/mcp", "oauth": oauth}}, cwd=tmp_path)
    with pytest.raises(PiMcpError) as error:
        run(assertion_of(resolve(configuration.servers["s"], configuration)))
    assert error.value.diagnostic.code == "secret_lookup_failed"
    assert word in error.value.diagnostic.message
    assert "planted" not in str(error.value)


def test_a_file_that_never_answers_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "READ_LIMIT", 0.2)
    os.mkfifo(tmp_path / "token")
    oauth = {"grant": "jwt_bearer", "assertionFile": "token"}
    configuration = configuration_of({"s": {"url": "https://h/mcp", "oauth": oauth}}, cwd=tmp_path)
    began = time.monotonic()
    with pytest.raises(PiMcpError):
        run(assertion_of(resolve(configuration.servers["s"], configuration)))
    assert time.monotonic() - began < 15
    # The thread that waits for a writer gets one.
    os.close(os.open(tmp_path / "token", os.O_WRONLY))


def test_an_assertion_is_a_secret_to_everything_that_shows_configuration(tmp_path: Path) -> None:
    from pi_mcp.config.masking import shown_entry

    oauth = {"grant": "jwt_bearer", "assertion": "planted-1", "clientId": "c"}
    entry = {"url": "https://h/mcp", "oauth": oauth}
    assert "planted" not in shown_entry(entry)
    configuration = configuration_of({"s": entry}, cwd=tmp_path)
    resolved = resolve(configuration.servers["s"], configuration)
    assert "planted" not in repr(resolved) + repr(configuration)
    assert resolved.redactor("x planted-1") == "x ***"


@pytest.mark.parametrize(
    ("oauth", "word"),
    [
        ({"grant": "jwt_bearer"}, "needs `assertion` or `assertionFile`"),
        ({"grant": "jwt_bearer", "assertion": "a", "assertionFile": "b"}, "two answers"),
        ({"grant": "client_credentials", "assertion": "a", "privateKey": "b"}, "two proofs"),
        ({"grant": "jwt_bearer", "assertion": ""}, "is empty"),
        ({"grant": "jwt_bearer", "assertionFile": "!cat x"}, "cannot be a command"),
        ({"grant": "jwt_bearer", "assertion": 7}, "has to be a string"),
    ],
)
def test_keys_that_do_not_go_together_are_named(oauth: dict[str, Any], word: str) -> None:
    entry = configuration_of({"s": {"url": "https://h/mcp", "oauth": oauth}}).entries["s"]
    assert entry.diagnostic is not None
    assert word in entry.diagnostic.message
