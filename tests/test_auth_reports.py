"""The reports of kind oauth, and B184 and B185, against a real authorization server on loopback, through the product.

Each test plants secrets by signing in or by what servers say, and `no_secret` looks for them wherever they must not be.
"""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

import pi_mcp.auth.login as login_module
from tests.auth_server import AuthServer, free_port
from tests.auth_support import (
    KEY,
    BrowserHost,
    agree,
    asked,
    everything_in,
    free_again,
    redirected,
    signing_in,
    stay,
    until,
)
from tests.plugin_support import plugin_of
from tests.support import run


def no_secret(server: AuthServer, folder: Path, *texts: object) -> None:
    """No token, code or client secret is in these texts or in any file of the plugin."""
    shown = "\n".join(repr(text) + str(text) for text in texts) + everything_in(folder)
    assert [one for one in server.secrets() if one in shown] == []


async def signed_in(session: Any, name: str = "s") -> str:
    """`/mcp auth`, which has to work; the first authorization address that was shown for it."""
    before = len(session.host.urls)
    answer = await session.command(f"auth {name}")
    assert answer.diagnostic is None, answer.text
    return str(session.host.urls[before])


async def whoami(session: Any, name: str = "s") -> str:
    await session.load([f"{name}.whoami"])
    return str((await session.call(f"mcp__{name}__whoami", {})).text)


async def refused(session: Any, line: str = "auth s") -> Any:
    """The diagnostic of a command that has to fail."""
    answer = await session.command(line)
    assert answer.diagnostic is not None, answer.text
    assert answer.diagnostic.hint
    return answer.diagnostic


# Resource and discovery


def test_b115_a_resource_without_a_path_is_sent_as_it_was_published(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(path="/") as server:
            # Byte for byte the origin, without the slash that URL libraries add; the server refuses any other.
            server.prm_changes["resource"] = "{origin}"
            async with signing_in(server, tmp_path) as (_, host, session):
                url = await signed_in(session)
                assert await whoami(session) == "user-1"
                server.expire()
                assert await whoami(session) == "user-1"
                assert asked(url)["resource"] == server.origin
                assert [one.form["resource"] for one in server.tokens()] == [server.origin, server.origin]
                no_secret(server, tmp_path, host.shown)

    run(main())


@pytest.mark.parametrize("named", [True, False])
def test_b116_the_metadata_of_the_path_win_over_those_of_the_origin(tmp_path: Path, named: bool) -> None:
    async def main() -> None:
        with AuthServer(challenge=None if named else "Bearer") as server:
            server.override["/.well-known/oauth-protected-resource"] = {
                "json": {"resource": server.origin, "authorization_servers": [server.issuer]}
            }
            async with signing_in(server, tmp_path) as (_, _, session):
                assert asked(await signed_in(session))["resource"] == server.url
                assert server.at("/.well-known/oauth-protected-resource") == []

    run(main())


@pytest.mark.parametrize(
    "challenge",
    [
        "Negotiate",
        ['Basic realm="a, b"', 'Bearer realm="x", resource_metadata="{prm}"'],
        'Basic realm="x", Bearer resource_metadata={prm}',
    ],
)
def test_b127_only_bearer_challenges_count_and_without_one_the_well_known_places_do(
    tmp_path: Path, challenge: Any
) -> None:
    async def main() -> None:
        with AuthServer(challenge=challenge) as server:
            async with signing_in(server, tmp_path) as (_, _, session):
                await signed_in(session)
                assert await whoami(session) == "user-1"

    run(main())


def test_b128_a_401_with_any_body_says_how_to_sign_in_and_does_not_quote_it(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            secret = "planted-5f4e3d"
            server.override["/mcp"] = {
                "status": 401,
                "headers": {"WWW-Authenticate": "Bearer"},
                "text": f"<html>{secret}",
                "type": "text/html",
            }
            async with signing_in(server, tmp_path) as (plugin, host, session):
                answer = await session.search("who am I")
                assert "[authentication_required]" in answer.text
                assert "/mcp auth s" in answer.text
                assert plugin.status("s").state == "authentication_required"
                assert secret not in answer.text + json.dumps(answer.details)
                # Looking for tools registers nobody and opens nothing.
                assert {one.path for one in server.seen} == {"/mcp"}
                assert host.opened == []
                assert host.shown == []

    run(main())


@pytest.mark.parametrize("received", ["{origin}", "https://elsewhere.example.test/"])
def test_b130_metadata_of_another_issuer_are_refused_and_both_are_named(tmp_path: Path, received: str) -> None:
    async def main() -> None:
        with AuthServer() as server:
            tenant = f"{server.origin}/tenant1"
            server.prm_changes["authorization_servers"] = [tenant]
            document = {**server.metadata(), "issuer": received.replace("{origin}", server.origin)}
            server.override["/.well-known/oauth-authorization-server/tenant1"] = {"json": document}
            async with signing_in(server, tmp_path) as (plugin, host, session):
                diagnostic = await refused(session)
                assert diagnostic.code == "oauth_failed"
                assert f'expected "{tenant}", received "{document["issuer"]}"' in diagnostic.message
                assert f'"trustIssuer": "{document["issuer"]}"' in diagnostic.hint
                assert host.opened == []
                assert host.shown == []
                assert server.at("/register") == []
                assert await plugin.credentials.stored() == []

    run(main())


def test_b130_one_issuer_may_be_trusted_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.prm_changes["authorization_servers"] = [f"{server.origin}/tenant1"]
            server.override["/.well-known/oauth-authorization-server/tenant1"] = {"json": server.metadata()}
            async with signing_in(server, tmp_path / "a", trustIssuer=server.issuer) as (plugin, _, session):
                await signed_in(session)
                assert [entry.issuer for entry in await plugin.credentials.stored()] == [server.issuer]
            async with signing_in(server, tmp_path / "b", trustIssuer=server.issuer + "/x") as (_, _, session):
                assert (await refused(session)).code == "oauth_failed"

    run(main())


def test_b131_a_lone_slash_at_the_end_of_an_issuer_is_no_other_issuer(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.prm_changes["authorization_servers"] = ["{origin}/"]
            async with signing_in(server, tmp_path) as (plugin, _, session):
                await signed_in(session)
                assert [entry.issuer for entry in await plugin.credentials.stored()] == [server.issuer]

    run(main())


# The callback


@pytest.mark.parametrize("words", ["auth s", "auth s --no-browser"])
def test_b121_a_taken_port_is_named_before_anything_else_happens(tmp_path: Path, words: str) -> None:
    async def main() -> None:
        with AuthServer() as server, socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            async with signing_in(server, tmp_path, callbackPort=port) as (_, host, session):
                diagnostic = await refused(session, words)
                assert diagnostic.code == "callback_unavailable"
                assert str(port) in diagnostic.message
                assert "callbackPort" in diagnostic.hint
                assert server.seen == []
                assert host.opened == []
                assert host.shown == []
                other.close()
                await signed_in(session)

    run(main())


def test_b125_the_port_is_free_again_after_success_failure_cancel_and_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        port = free_port()
        with AuthServer() as server:
            async with signing_in(server, tmp_path, callbackPort=port) as (_, host, session):
                await signed_in(session)
                assert free_again(port)
                host.browse = stay
                task = asyncio.create_task(session.command("auth s"))
                await until(lambda: not free_again(port))
                task.cancel()
                await asyncio.wait({task}, timeout=2)
                assert task.cancelled()
                assert free_again(port)
                monkeypatch.setattr(login_module, "LOGIN_LIMIT", 0.2)
                diagnostic = await refused(session)
                assert (diagnostic.code, free_again(port)) == ("timeout", True)
                monkeypatch.undo()
                host.browse = agree
                await signed_in(session)
                assert await whoami(session) == "user-2"

    run(main())


def test_b122_a_registration_is_renewed_when_the_redirect_address_changed(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            ports = [free_port(), free_port()]
            for port in (ports[0], ports[0], ports[1]):
                async with signing_in(server, tmp_path, callbackPort=port) as (_, _, session):
                    await signed_in(session)
            registered = [one.json["redirect_uris"] for one in server.at("/register")]
            assert registered == [[f"http://127.0.0.1:{port}/callback"] for port in ports]
            assert {one.form["client_id"] for one in server.tokens()} == {"client-1", "client-2"}

    run(main())


def test_b122_a_registration_is_not_used_at_another_issuer(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        with AuthServer() as server, AuthServer() as other:
            async with signing_in(server, tmp_path, callbackPort=port) as (_, _, session):
                await signed_in(session)
                server.prm_changes["authorization_servers"] = [other.issuer]
                other.prm_changes["resource"] = server.url
                host = session.host
                # The resource server does not know the other one's tokens: the login is stored and does not work.
                answer = await session.command("auth s")
                assert answer.text.startswith("Signed in to s")
                assert asked(host.urls[-1])["client_id"] == "client-1"
                assert len(other.at("/register")) == 1
                assert await session.plugin.credentials.load("s", server.url)
                stored = await session.plugin.credentials.load("s", server.url)
                assert stored.issuer == other.issuer

    run(main())


def test_b124_host_port_and_path_of_the_redirect_are_those_of_a_registered_client(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        with AuthServer() as server:
            server.client("app")
            redirect = f"http://localhost:{port}/oauth/back"
            server.exact_redirects = {redirect}
            oauth = {
                "clientId": "app",
                "callbackHost": "localhost",
                "callbackPort": port,
                "callbackPath": "/oauth/back",
            }
            async with signing_in(server, tmp_path, **oauth) as (_, _, session):
                assert asked(await signed_in(session))["redirect_uri"] == redirect
                assert await whoami(session) == "user-1"
                assert server.at("/register") == []

    run(main())


def test_b136_on_another_machine_the_address_is_shown_and_the_callback_pasted(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            host = BrowserHost(pastes=[redirected])
            async with signing_in(server, tmp_path, host) as (_, _, session):
                answer = await session.command("auth s --no-browser")
                assert answer.diagnostic is None
                assert host.opened == []
                assert len(host.urls) == 1
                assert await whoami(session) == "user-1"
                no_secret(server, tmp_path, host.shown, answer)

    run(main())


def test_b136_a_pasted_address_with_another_state_or_place_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            port = free_port()

            async def right(url: str) -> str:
                return await redirected(url)

            host = BrowserHost(
                pastes=[
                    f"http://127.0.0.1:{port}/callback?code=cod-evil&state=wrong",
                    f"http://127.0.0.1:{port}/callback?code=cod-evil",
                    f"https://evil.example.test:{port}/callback?code=cod-evil",
                    right,
                ]
            )
            async with signing_in(server, tmp_path, host, callbackPort=port) as (_, _, session):
                answer = await session.command("auth s --no-browser")
                assert answer.diagnostic is None, answer.text
                warnings = [text for text in host.shown if "not used" in text]
                assert len(warnings) == 3
                assert "cod-evil" not in str(host.shown)
                assert [one.form["code"] for one in server.tokens()] != ["cod-evil"]

    run(main())


def test_b136_what_comes_first_wins_the_listener_or_the_paste(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            waiting = asyncio.Event()

            async def never(url: str) -> str:
                del url
                try:
                    await asyncio.Event().wait()
                finally:
                    waiting.set()
                return ""

            host = BrowserHost(pastes=[never])
            async with signing_in(server, tmp_path, host) as (_, _, session):
                await signed_in(session)
                # The question to the person was taken back.
                assert waiting.is_set()

    run(main())


def test_b136_nothing_is_opened_asked_or_registered_where_nobody_is(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            host = BrowserHost(interactive=False)
            async with signing_in(server, tmp_path, host) as (_, _, session):
                for line in ("auth s", "auth s --no-browser"):
                    diagnostic = await refused(session, line)
                    assert diagnostic.code == "authentication_required"
                    assert "pi-mcp auth s" in diagnostic.hint
                assert server.seen == []
                assert host.shown == []
                assert host.opened == []

    run(main())


def test_b137_without_a_browser_the_login_goes_on_and_the_time_out_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        with AuthServer() as server:
            host = BrowserHost(opens=False)
            async with signing_in(server, tmp_path, host) as (plugin, _, session):
                task = asyncio.create_task(session.command("auth s"))
                await until(lambda: bool(host.urls))
                # The person opens the address that was shown; the loop is free meanwhile.
                await asyncio.wait_for(agree(host.urls[0]), 5)
                assert (await task).diagnostic is None
                assert any("open the address yourself" in text for text in host.shown)

                async def broken(url: str) -> bool:
                    raise OSError("planted-secret")

                host.open_url = broken  # type: ignore[method-assign]
                monkeypatch.setattr(login_module, "LOGIN_LIMIT", 0.3)
                diagnostic = await refused(session)
                assert diagnostic.code == "timeout"
                assert "--no-browser" in diagnostic.hint
                assert "forward the port" in diagnostic.hint
                assert "planted-secret" not in str(host.shown)
                assert await plugin.credentials.load("s", server.url) is not None

    run(main())


def test_b139_an_explicit_login_always_begins_anew_and_may_be_another_account(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.metadata_changes["prompt_values_supported"] = ["none", "login", "select_account"]
            async with signing_in(server, tmp_path) as (_, _, session):
                first = await signed_in(session)
                assert await whoami(session) == "user-1"
                second = await signed_in(session)
                assert await whoami(session) == "user-2"
                assert asked(first)["state"] != asked(second)["state"]
                assert asked(second)["prompt"] == "select_account"
                assert [one.form["grant_type"] for one in server.tokens()] == ["authorization_code"] * 2

    run(main())


def test_b139_openid_connect_asks_for_the_login_again_only_when_somebody_is_signed_in(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.metadata_changes["subject_types_supported"] = ["public"]
            async with signing_in(server, tmp_path) as (_, _, session):
                assert "prompt" not in asked(await signed_in(session))
                assert asked(await signed_in(session))["prompt"] == "login"

    run(main())


# Registration


@pytest.mark.parametrize(
    "reaction",
    [
        {"status": 403, "text": "Forbidden planted-1a2b3c"},
        {"status": 401, "text": "<html>planted-1a2b3c", "type": "text/html"},
        {"status": 404, "text": "planted-1a2b3c"},
        {"status": 500, "text": "planted-1a2b3c"},
        {"status": 201, "text": "planted-1a2b3c"},
        {"status": 201, "json": {"client_id": "", "note": "planted-1a2b3c"}},
    ],
    ids=["403", "401", "404", "500", "no JSON", "no id"],
)
def test_b140_a_refused_registration_ends_the_login_before_a_browser_opens(
    tmp_path: Path, reaction: dict[str, Any]
) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/register"] = reaction
            async with signing_in(server, tmp_path) as (_, host, session):
                diagnostic = await refused(session)
                assert diagnostic.code == "oauth_failed"
                if reaction["status"] >= 400:
                    assert f"HTTP {reaction['status']}" in diagnostic.message
                assert "clientId" in diagnostic.hint
                assert host.opened == []
                assert host.shown == []
                assert server.at("/authorize") == []
                assert "planted" not in diagnostic.line()
                assert "planted" not in everything_in(tmp_path)

    run(main())


def test_b142_no_browser_opens_without_a_client(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/register"] = {"status": 403, "text": "Forbidden"}
            async with signing_in(server, tmp_path) as (_, host, session):
                for line in ("auth s", "auth s --no-browser"):
                    assert (await refused(session, line)).code == "oauth_failed"
                assert server.at("/authorize") == []
                assert host.urls == []

    run(main())


@pytest.mark.parametrize("secret", ["none", "variable", "command"])
def test_b143_a_client_registered_beforehand_works_with_and_without_a_secret(tmp_path: Path, secret: str) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.metadata_changes["registration_endpoint"] = None
            planted = "sec-variable-9f8e7d"
            server.client("app", **({} if secret == "none" else {"client_secret": planted}))
            (tmp_path / "secret").write_text(planted)
            port = free_port()
            oauth: dict[str, Any] = {"clientId": "app", "callbackPort": port, "scopes": ["read"]}
            if secret != "none":
                oauth["clientSecret"] = "${APP_SECRET}" if secret == "variable" else f"!cat {tmp_path / 'secret'}"
            home = tmp_path / "home"
            home.mkdir()
            entries = {"s": {"url": server.url, "oauth": oauth}}
            async with plugin_of(entries, home, PI_MCP_CREDENTIAL_KEY=KEY, APP_SECRET=planted) as plugin:
                host = BrowserHost()
                session = plugin.session("one", host)
                await signed_in(session)
                assert await whoami(session) == "user-1"
                server.expire()
                assert await whoami(session) == "user-1"
                answer = await session.command("get s")
                no_secret(server, home, host.shown, answer, plugin.configuration)
                stored = await plugin.credentials.load("s", server.url)
                # The file has it; the store does not keep a copy.
                assert stored is not None
                assert stored.client.secret is None
                await host.settle()

    run(main())


def test_b143_without_registration_the_error_says_what_to_register(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.metadata_changes["registration_endpoint"] = None
            port = free_port()
            async with signing_in(server, tmp_path, callbackPort=port) as (_, host, session):
                diagnostic = await refused(session)
                assert diagnostic.code == "oauth_failed"
                assert f"http://127.0.0.1:{port}/callback" in diagnostic.hint
                assert "clientId" in diagnostic.hint
                assert host.opened == []

    run(main())


# Replies and scopes


@pytest.mark.parametrize(
    "reply",
    [
        {"form": {"access_token": "{token}", "token_type": "bearer", "scope": "repo,user"}},
        {"json": {"access_token": "{token}", "expires_in": "3600"}},
        {"json": {"access_token": "{token}", "token_type": "Bearer", "expires_in": None}},
        {"text": "access_token={token}&scope=", "type": "text/plain"},
    ],
    ids=["form", "no type", "no expiry", "form as text"],
)
def test_b133_a_token_reply_is_read_as_it_comes(tmp_path: Path, reply: dict[str, Any]) -> None:
    async def main() -> None:
        with AuthServer() as server:

            def react(seen: Any) -> dict[str, Any]:
                assert seen.headers["accept"] == "application/json"
                token = json.loads(bytes(server._token(seen).body))["access_token"]
                return dict(json.loads(json.dumps(reply).replace("{token}", token)))

            server.override["/token"] = react
            async with signing_in(server, tmp_path) as (plugin, host, session):
                await signed_in(session)
                assert await whoami(session) == "user-1"
                if "form" in reply:
                    assert (await plugin.credentials.stored())[0].scopes == ("repo", "user")
                no_secret(server, tmp_path, host.shown)

    run(main())


def test_b134_a_missing_scope_is_named_and_only_an_explicit_login_asks_for_the_union(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(
            needs_scope={"write": "write"}, challenge='Bearer scope="read", resource_metadata="{prm}"'
        ) as server:
            async with signing_in(server, tmp_path) as (_, host, session):
                assert asked(await signed_in(session))["scope"] == "read"
                await session.load(["s.write"])
                from pi_mcp.errors import PiMcpError

                with pytest.raises(PiMcpError) as error:
                    await session.call("mcp__s__write", {})
                diagnostic = error.value.diagnostic
                assert diagnostic.code == "permission_denied"
                assert "write" in diagnostic.message
                assert "/mcp auth s" in str(diagnostic.hint)
                # No refresh, no second call, no browser.
                assert len(server.tokens("refresh_token")) == 0
                assert len(server.calls("tools/call")) == 1
                assert len(host.urls) == 1
                assert asked(await signed_in(session))["scope"] == "read write"
                assert (await session.call("mcp__s__write", {})).text == "user-2"
                no_secret(server, tmp_path, host.shown, diagnostic)

    run(main())


def test_b134_after_three_logins_in_vain_the_next_one_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(needs_scope={"write": "write"}) as server:
            async with signing_in(server, tmp_path) as (_, host, session):
                await signed_in(session)
                await session.load(["s.write"])

                def lesser(seen: Any) -> dict[str, Any] | None:
                    # The account has no right to it: the tokens come without the scope.
                    for grant in server.grants:
                        grant.scope = ""
                    return None

                server.override["/mcp"] = lesser
                from pi_mcp.errors import PiMcpError

                for _ in range(3):
                    with pytest.raises(PiMcpError):
                        await session.call("mcp__s__write", {})
                    assert asked(await signed_in(session))["scope"] == "write"
                with pytest.raises(PiMcpError):
                    await session.call("mcp__s__write", {})
                before = len(host.urls)
                diagnostic = await refused(session)
                assert diagnostic.code == "permission_denied"
                assert "write" in diagnostic.message
                assert len(host.urls) == before

    run(main())


def test_b145_only_scopes_that_somebody_named_are_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(scopes_supported=["openid", "profile"]) as server:
            async with signing_in(server, tmp_path / "a") as (_, _, session):
                assert "scope" not in asked(await signed_in(session))
            server.resource_scopes = ["profile", "offline_access"]
            async with signing_in(server, tmp_path / "b") as (_, _, session):
                assert asked(await signed_in(session))["scope"] == "profile"
            server.scopes_supported = ["profile", "offline_access"]
            async with signing_in(server, tmp_path / "c") as (_, _, session):
                assert asked(await signed_in(session))["scope"] == "profile offline_access"

    run(main())


def test_b145_an_error_in_the_callback_is_shown_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(scopes_supported=["openid"]) as server:
            async with signing_in(server, tmp_path, scopes="other") as (_, host, session):
                diagnostic = await asyncio.wait_for(refused(session), 10)
                assert diagnostic.code == "oauth_failed"
                assert "invalid_scope" in diagnostic.message
                await host.settle()
                assert "refused" in host.pages[0]

    run(main())


def test_b146_configured_scopes_are_sent_exactly(tmp_path: Path) -> None:
    async def main() -> None:
        challenge = 'Bearer scope="other", resource_metadata="{prm}"'
        with AuthServer(resource_scopes=["mcp"], challenge=challenge) as server:
            async with signing_in(server, tmp_path, scopes="mcp offline_access") as (_, _, session):
                assert asked(await signed_in(session))["scope"] == "mcp offline_access"

    run(main())


# Addresses


class Trap:
    """A port of this machine that nobody should ever connect to."""

    def __enter__(self) -> Trap:
        self.socket = socket.socket()
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen()
        self.socket.setblocking(False)
        self.port = self.socket.getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    @property
    def untouched(self) -> bool:
        try:
            self.socket.accept()
        except BlockingIOError:
            return True
        return False


FORBIDDEN = [
    "http://169.254.169.254/x",
    "https://169.254.169.254/x",
    "http://10.0.0.5",
    "http://[::ffff:169.254.169.254]/x",
    "https://[fd00:ec2::254]:0/x",
    "file:///etc/passwd",
    "https://user@as.example.test/",
    "ftp://as.example.test/",
]


@pytest.mark.parametrize("target", FORBIDDEN)
@pytest.mark.parametrize(
    "place",
    ["resource_metadata", "authorization_servers", "authorization_endpoint", "token_endpoint", "registration_endpoint"],
)
def test_b184_addresses_that_a_server_may_not_lead_to_are_refused_on_every_hop(
    tmp_path: Path, place: str, target: str
) -> None:
    async def main() -> None:
        with AuthServer() as server:
            if place == "resource_metadata":
                server.challenge = f'Bearer resource_metadata="{target}"'
            elif place == "authorization_servers":
                server.prm_changes[place] = [target]
            else:
                server.metadata_changes[place] = target
            async with signing_in(server, tmp_path) as (_, host, session):
                diagnostic = await asyncio.wait_for(refused(session), 10)
                assert diagnostic.code == "oauth_failed", diagnostic
                assert host.opened == []
                assert host.shown == []
                assert server.tokens() == []
                assert server.at("/register") == []

    run(main())


def test_b184_a_public_server_may_not_lead_to_this_machine_by_literal_or_by_dns(tmp_path: Path) -> None:
    from pi_mcp.auth.discovery import discover
    from pi_mcp.auth.fetch import Fetcher
    from pi_mcp.errors import PiMcpError

    async def names(host: str, port: int) -> list[str]:
        return {"public.test": ["93.184.216.34"], "inside.test": ["93.184.216.34", "10.0.0.5"]}.get(host, ["127.0.0.1"])

    async def main() -> None:
        with Trap() as trap:
            for target in (
                f"http://127.0.0.1:{trap.port}/x",
                f"http://[::1]:{trap.port}/x",
                f"https://rebound.test:{trap.port}/x",
                f"https://inside.test:{trap.port}/x",
                f"http://localhost:{trap.port}/x",
                f"https://2130706433:{trap.port}/x",
            ):
                fetcher = Fetcher("s", "https://public.test/mcp", environ={}, resolve=names)
                with pytest.raises(PiMcpError) as error:
                    await discover(fetcher, "https://public.test/mcp", [f'Bearer resource_metadata="{target}"'])
                assert error.value.diagnostic.code == "oauth_failed"
                assert "may not lead to" in error.value.diagnostic.message
            assert trap.untouched

    run(main())


@pytest.mark.parametrize(
    "path",
    ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server", "/register", "/token"],
)
@pytest.mark.parametrize("status", [302, 307])
def test_b185_no_redirect_leaves_the_origin(tmp_path: Path, path: str, status: int) -> None:
    async def main() -> None:
        with AuthServer() as server, Trap() as trap:
            location = f"http://127.0.0.1:{trap.port}/stolen"
            server.override[path] = {"status": status, "headers": {"Location": location}}
            async with signing_in(server, tmp_path) as (_, host, session):
                diagnostic = await refused(session)
                assert diagnostic.code == "oauth_failed"
                assert trap.untouched
                no_secret(server, tmp_path, diagnostic, host.shown)

    run(main())


def test_b185_a_token_request_is_not_redirected_within_the_origin_either(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.override["/token"] = {"status": 307, "headers": {"Location": "/other"}}
            async with signing_in(server, tmp_path) as (_, _, session):
                diagnostic = await refused(session)
                assert "HTTP 307" in diagnostic.message
                assert server.at("/other") == []

    run(main())


def test_a_foreign_page_cannot_end_or_answer_a_login(tmp_path: Path) -> None:
    async def main() -> None:
        port = free_port()
        with AuthServer() as server:

            async def browse(url: str) -> str:
                async with httpx2.AsyncClient(trust_env=False) as client:
                    base = f"http://127.0.0.1:{port}"
                    good = await redirected(url)
                    tries = [
                        ("GET", f"{base}/callback?{urlencode({'code': 'cod-evil', 'state': 'x'})}", {}, 400),
                        ("GET", f"{base}/callback?error=access_denied", {}, 400),
                        ("GET", f"{base}/favicon.ico", {}, 404),
                        ("POST", good, {}, 405),
                        ("GET", good, {"Host": "evil.example.test"}, 400),
                        ("GET", good, {"Host": f"evil.example.test:{port}"}, 400),
                        ("GET", good + "&code=cod-other", {}, 400),
                    ]
                    for method, target, headers, status in tries:
                        answer = await client.request(method, target, headers=headers)
                        assert answer.status_code == status, target
                        assert "cod-" not in answer.text
                    return (await client.get(good)).text

            async with signing_in(server, tmp_path, BrowserHost(browse=browse), callbackPort=port) as (
                _,
                host,
                session,
            ):
                await signed_in(session)
                await host.settle()
                assert "return to the terminal" in host.pages[0]

    run(main())
