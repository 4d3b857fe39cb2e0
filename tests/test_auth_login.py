"""A login as a whole: what it leaves, what it never harms, who may begin one, and how it ends."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from pi_mcp.auth.callback import CallbackListener, NotThisLogin, pasted_answer, read_answer
from pi_mcp.auth.discovery import AuthorizationServer, Discovered
from pi_mcp.auth.login import prompt_of
from pi_mcp.auth.scopes import WantedScopes, choose, configured, union
from pi_mcp.config import configuration_of, resolve
from pi_mcp.errors import PiMcpError
from pi_mcp.hosts.browser import has_browser, may_open, open_browser
from tests.auth_server import AuthServer, free_port
from tests.auth_support import (
    KEY,
    BrowserHost,
    agree,
    asked,
    everything_in,
    pending_tasks,
    redirected,
    signing_in,
    stay,
    until,
)
from tests.plugin_support import plugin_of
from tests.support import run


async def failed(session: Any, line: str = "auth s") -> Any:
    answer = await session.command(line)
    assert answer.diagnostic is not None, answer.text
    return answer.diagnostic


async def stored_token(plugin: Any, server: AuthServer) -> str | None:
    credential = await plugin.credentials.load("s", server.url)
    return None if credential is None else credential.tokens.access_token


# What it leaves and what it harms


def test_a_login_that_fails_at_any_step_leaves_the_stored_one_and_no_task(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path) as (plugin, host, session):
                assert (await session.command("auth s")).diagnostic is None
                await host.settle()
                before, tasks = await stored_token(plugin, server), pending_tasks()
                assert before
                steps: list[dict[str, Any]] = [
                    {"/mcp": {"status": 307, "headers": {"Location": "https://evil.example.test/"}}},
                    {"/.well-known/oauth-protected-resource/mcp": {"status": 502}},
                    {"/.well-known/oauth-authorization-server": {"status": 502}},
                    {"/token": {"status": 400, "json": {"error": "invalid_grant"}}},
                    {"/token": {"status": 503}},
                    {"/token": {"text": "<html>"}},
                ]
                for step in steps:
                    server.override.clear()
                    server.override.update(step)
                    diagnostic = await failed(session)
                    assert diagnostic.code in ("oauth_failed", "connection_failed"), (step, diagnostic)
                    assert await stored_token(plugin, server) == before
                    await host.settle()
                    assert pending_tasks() == tasks
                    assert [one for one in server.secrets() if one in diagnostic.line()] == []

    run(main())


def test_cancelling_ends_it_at_once_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path) as (plugin, host, session):
                assert (await session.command("auth s")).diagnostic is None
                before = await stored_token(plugin, server)
                host.browse = stay
                task = asyncio.create_task(session.command("auth s"))
                await until(lambda: len(host.urls) == 2)
                loop = asyncio.get_running_loop()
                began = loop.time()
                task.cancel()
                await asyncio.wait({task}, timeout=10)
                assert task.cancelled()
                assert loop.time() - began < 5
                assert await stored_token(plugin, server) == before

    run(main())


def test_a_person_who_dismisses_the_question_stops_the_login(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:

            async def escape(url: str) -> None:
                await asyncio.sleep(0.4)

            host = BrowserHost(browse=stay, pastes=[escape])
            async with signing_in(server, tmp_path, host) as (_, _, session):
                assert (await failed(session)).code == "cancelled"

    run(main())


def test_nothing_begins_when_it_could_not_be_stored(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            entries = {"s": {"url": server.url, "oauth": {"callbackPort": free_port()}}}
            async with plugin_of(entries, tmp_path, PI_MCP_CREDENTIAL_KEY="") as plugin:
                host = BrowserHost()
                diagnostic = await failed(plugin.session("one", host))
                assert diagnostic.code == "credential_store_unavailable"
                assert server.seen == []
                assert host.shown == []

    run(main())


def test_a_callback_of_another_issuer_is_refused_also_when_it_brings_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:

            def answering(**parameters: str) -> Any:
                async def browse(url: str) -> str:
                    query = {"state": asked(url)["state"], **parameters}
                    async with httpx2.AsyncClient(trust_env=False) as client:
                        return (await client.get(asked(url)["redirect_uri"] + "?" + urlencode(query))).text

                return browse

            async with signing_in(server, tmp_path) as (_, host, session):
                for parameters in (
                    {"code": "cod-evil", "iss": "https://evil.example.test"},
                    {"code": "cod-evil"},
                    {"code": "cod-evil", "iss": server.issuer + "/"},
                    {"error": "access_denied", "iss": "https://evil.example.test"},
                ):
                    host.browse = answering(**parameters)
                    diagnostic = await failed(session)
                    assert "does not come from" in diagnostic.message
                    assert server.tokens() == []
                host.browse = answering(error="access_denied", error_description="planted-1", iss=server.issuer)
                diagnostic = await failed(session)
                assert "access_denied" in diagnostic.message
                assert "planted" not in diagnostic.line()
                host.browse = answering(error="planted-error", iss=server.issuer)
                assert "planted" not in (await failed(session)).line()

    run(main())


@pytest.mark.parametrize("methods", [None, [], ["plain"]])
def test_without_pkce_there_is_no_login(tmp_path: Path, methods: Any) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.metadata_changes["code_challenge_methods_supported"] = methods
            async with signing_in(server, tmp_path) as (_, host, session):
                diagnostic = await failed(session)
                assert "PKCE" in diagnostic.message
                assert server.at("/register") == []
                assert host.opened == []
            # A person may vouch for what the issuer does not say, and not against what it says.
            async with signing_in(server, tmp_path / "b", trustIssuer=server.issuer) as (_, host, session):
                answer = await session.command("auth s")
                assert (answer.diagnostic is None) == (methods is None)
                assert all(asked(url)["code_challenge_method"] == "S256" for url in host.urls)

    run(main())


def test_the_2025_03_26_endpoints_work_where_there_are_no_metadata(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer(expose_prm=False) as server:
            server.override["/.well-known/oauth-authorization-server"] = {"status": 404}
            async with signing_in(server, tmp_path) as (_, _, session):
                answer = await session.command("auth s")
                assert answer.diagnostic is None, answer.text

    run(main())


def test_the_question_before_a_login_carries_the_configured_headers_and_fits_the_transport(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            more = {"headers": {"X-Tenant": "!printf blue", "accept": "text/html"}}
            for kind, method in (("http", "POST"), ("sse", "GET")):
                server.seen.clear()
                entry = {"type": kind, "url": server.url, "oauth": {"callbackPort": free_port()}, **more}
                async with plugin_of({"s": entry}, tmp_path / kind, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
                    host = BrowserHost()
                    answer = await plugin.session("one", host).command("auth s")
                    assert answer.text.startswith("Signed in to s")
                    await host.settle()
                first = server.at("/mcp")[0]
                assert (first.method, first.headers["x-tenant"]) == (method, "blue")
                assert "text/event-stream" in first.headers["accept"]
                assert "text/html" not in first.headers["accept"]

    run(main())


def test_client_credentials_need_nobody_and_renew_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            server.client("robot", client_secret="sec-robot-1")
            oauth = {"grant": "client_credentials", "clientId": "robot", "clientSecret": "${ROBOT}", "scopes": ["run"]}
            entries = {"s": {"url": server.url, "oauth": oauth}}
            async with plugin_of(entries, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY, ROBOT="sec-robot-1") as plugin:
                session = plugin.session("one", BrowserHost(interactive=False))
                answer = await session.command("auth s")
                assert answer.diagnostic is None, answer.text
                await session.load(["s.whoami"])
                assert (await session.call("mcp__s__whoami", {})).text == "user-1"
                server.expire()
                assert (await session.call("mcp__s__whoami", {})).text == "user-2"
                assert [one.form["scope"] for one in server.tokens()] == ["run", "run"]
                assert "sec-robot-1" not in everything_in(tmp_path) + repr(answer)

    run(main())


def test_client_credentials_by_private_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    async def main() -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        with AuthServer() as server:
            server.client("robot", public_key=public)
            oauth = {"grant": "client_credentials", "clientId": "robot", "privateKey": "${ROBOT}"}
            entries = {"s": {"url": server.url, "oauth": oauth}}
            one_line = pem.replace("\n", "\\n")
            async with plugin_of(entries, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY, ROBOT=one_line) as plugin:
                session = plugin.session("one", BrowserHost(interactive=False))
                answer = await session.command("auth s")
                assert answer.diagnostic is None, answer.text
                assert pem.splitlines()[1] not in everything_in(tmp_path)
            del oauth["privateKey"]
            async with plugin_of(entries, tmp_path / "b", PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
                assert (await failed(plugin.session("one", None))).code == "configuration_invalid"

    run(main())


# Who may begin one


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"command": "x"}, "refused"),
        ({"url": "http://127.0.0.1:1/mcp", "oauth": False}, "refused"),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"authorization": "Bearer planted-9"}}, "configuration_invalid"),
        ({"url": "http://u:planted-9@127.0.0.1:1/mcp"}, "configuration_invalid"),
        ({"url": "http://127.0.0.1:1/mcp", "headers": {"Authorization": "!echo planted-9"}}, "configuration_invalid"),
    ],
)
def test_a_server_with_another_login_is_not_signed_in_to(tmp_path: Path, entry: dict[str, Any], code: str) -> None:
    async def main() -> None:
        async with plugin_of({"s": entry}, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
            host = BrowserHost()
            diagnostic = await failed(plugin.session("one", host))
            assert diagnostic.code == code
            assert diagnostic.hint
            assert "planted" not in diagnostic.line()
            assert host.shown == []

    run(main())


def test_the_command_line_says_what_to_do_where_nobody_is(tmp_path: Path) -> None:
    with AuthServer() as server:
        config = tmp_path / "mcp.json"
        config.write_text(f'{{"mcpServers": {{"s": {{"url": "{server.url}"}}}}}}')
        for options in ([], ["--no-browser"], ["--json"]):
            done = subprocess.run(
                [sys.executable, "-m", "pi_mcp.cli", "auth", "s", "--config", str(config), *options],
                capture_output=True,
                text=True,
                timeout=60,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PI_MCP_CREDENTIAL_KEY": KEY},
            )
            assert done.returncode == 4, done
            shown = done.stdout if options == ["--json"] else done.stderr
            assert "authentication_required" in shown
            assert "pi-mcp auth s" in shown
        done = subprocess.run(
            [sys.executable, "-m", "pi_mcp.cli", "logout", "--all", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PI_MCP_CREDENTIAL_KEY": KEY},
        )
        assert (done.returncode, done.stdout) == (0, "No login is stored.\n")
        assert server.seen == []


def test_a_wrong_command_line_is_a_usage_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with plugin_of({}, tmp_path) as plugin:
            session = plugin.session("one")
            for line in ("auth", "auth a b", "auth --no-browser", "auth --all", "logout", "logout a b", "logout --x"):
                assert (await failed(session, line)).code == "usage"
            assert (await failed(session, "logout nobody")).code == "not_found"

    run(main())


# Its end


def test_logout_forgets_first_and_then_revokes_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pi_mcp.auth.revoke as revoke_module

    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path) as (plugin, _, session):

                async def in_and_out() -> str:
                    assert (await session.command("auth s")).diagnostic is None
                    answer = await session.command("logout s")
                    assert answer.diagnostic is None
                    assert await plugin.credentials.stored() == []
                    return str(answer.text)

                assert "revoked" in await in_and_out()
                assert [one.form["token_type_hint"] for one in server.at("/revoke")] == [
                    "refresh_token",
                    "access_token",
                ]
                server.override["/revoke"] = {"status": 503}
                assert "did not confirm" in await in_and_out()
                monkeypatch.setattr(revoke_module, "REVOKE_LIMIT", 0.2)
                server.override["/revoke"] = {"sleep": 20}
                loop = asyncio.get_running_loop()
                assert (await session.command("auth s")).diagnostic is None
                began = loop.time()
                credential = await plugin.credentials.load("s", server.url)
                from pi_mcp.auth.fetch import Fetcher

                fetcher = Fetcher("s", server.url, environ={})
                assert await revoke_module.revoke(fetcher, credential, limit=0.2) == "failed"
                assert loop.time() - began < 10
                server.override.clear()
                server.metadata_changes["revocation_endpoint"] = None
                assert "offers no revocation" in await in_and_out()
                # Out means out, also for a connection that lived.
                with pytest.raises(PiMcpError) as error:
                    await plugin.catalogs.refresh("s")
                assert error.value.diagnostic.code == "authentication_required"

    run(main())


def test_logout_finds_logins_of_servers_that_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path) as (_, _, session):
                assert (await session.command("auth s")).diagnostic is None
            async with plugin_of({}, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
                session = plugin.session("one", BrowserHost())
                answer = await session.command("logout s")
                assert (answer.diagnostic, "revoked" in answer.text) == (None, True)
                assert await plugin.credentials.stored() == []
                assert (await session.command("logout --all")).text == "No login is stored."

    run(main())


def test_logout_of_all_takes_every_one(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as one, AuthServer() as two:
            entries = {
                name: {"url": server.url, "oauth": {"callbackPort": free_port()}}
                for name, server in {"one": one, "two": two}.items()
            }
            async with plugin_of(entries, tmp_path, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
                host = BrowserHost()
                session = plugin.session("x", host)
                for name in entries:
                    assert (await session.command(f"auth {name}")).diagnostic is None
                answer = await session.command("logout --all")
                assert answer.text.count("revoked") == 2
                assert await plugin.credentials.stored() == []
                await host.settle()

    run(main())


# The parts


@pytest.mark.parametrize(
    ("wanted", "challenge", "resource", "known", "expected"),
    [
        (("x", "y"), ("c",), ("r",), ("offline_access",), ("x", "y")),
        (None, ("c",), ("r",), None, ("c",)),
        (None, None, ("r", "q"), None, ("r", "q")),
        (None, None, ("r", "offline_access"), None, ("r",)),
        (None, None, ("r",), ("offline_access",), ("r", "offline_access")),
        (None, ("c",), None, ("offline_access", "c"), ("c", "offline_access")),
        (None, None, None, ("a", "offline_access"), ()),
        (None, None, None, None, ()),
    ],
)
def test_scopes_come_from_the_first_who_names_some(
    wanted: Any, challenge: Any, resource: Any, known: Any, expected: Any
) -> None:
    assert choose(wanted, challenge, resource, known) == expected


def test_configured_scopes_are_a_text_or_a_list() -> None:
    assert configured("a  b") == ("a", "b")
    assert configured(["a b", "c", "a"]) == ("a", "b", "c")
    assert configured("") is None
    assert configured(None) is None
    assert union("ab", "bc") == ("a", "b", "c")


def test_wanted_scopes_are_kept_for_another_process_and_hold_no_address(tmp_path: Path) -> None:
    url = "https://h/mcp?key=planted-1"
    wanted = WantedScopes(tmp_path)
    assert wanted.of("s", url) == ()
    wanted.tried("s", url)
    wanted.forget("s", url)
    assert list(tmp_path.iterdir()) == []
    wanted.note("s", url, ["write", "bad scope\x1b", ""])
    assert WantedScopes(tmp_path).of("s", url) == ("write", "bad")
    assert wanted.of("s", "https://h/other") == ()
    assert "planted" not in everything_in(tmp_path)
    for _ in range(3):
        assert not wanted.in_vain("s", url)
        wanted.tried("s", url)
        wanted.note("s", url, ["write"])
    assert wanted.in_vain("s", url)
    wanted.note("s", url, ["more"])
    assert not wanted.in_vain("s", url)
    (tmp_path / "auth" / "wanted-scopes.json").write_text('{"x": 5}')
    assert wanted.of("s", url) == ()


@pytest.mark.parametrize(
    ("prompts", "openid", "scopes", "again", "expected"),
    [
        (None, False, (), True, None),
        (None, True, (), True, "login"),
        (None, True, (), False, None),
        (None, True, ("offline_access",), False, "consent"),
        (("none", "login", "select_account"), True, (), False, "select_account"),
        (("login",), True, (), False, "login"),
        (("consent",), True, (), True, "consent"),
        (("none",), True, (), True, None),
        (("select_account", "consent"), True, ("offline_access",), True, "select_account consent"),
    ],
)
def test_the_prompt_is_one_that_the_server_knows(
    prompts: Any, openid: bool, scopes: Any, again: bool, expected: str | None
) -> None:
    server = AuthorizationServer("https://as", "https://as/a", "https://as/t", prompts=prompts, openid=openid)
    assert prompt_of(Discovered("https://h", "https://as", server), scopes, again=again) == expected


def test_an_answer_is_read_strictly() -> None:
    assert read_answer("code=c&state=s&iss=i", "s").code == "c"
    assert read_answer("error=access_denied&state=s", "s").error == "access_denied"
    for query in ("", "code=c", "code=c&state=", "code=c&state=S", "state=s", "code=&state=s", "code=a&code=b&state=s"):
        with pytest.raises(NotThisLogin) as error:
            read_answer(query, "s")
        assert "code=" not in str(error.value)
    assert "planted" not in repr(read_answer("code=planted&state=s", "s"))


def test_a_pasted_address_may_be_wrapped_or_only_its_query() -> None:
    redirect = "http://127.0.0.1:19847/callback"
    for text in (
        f"{redirect}?code=c&state=s",
        f"  {redirect}?co\nde=c&sta te=s ",
        "http://localhost:19847/callback?state=s&code=c#x",
        "?code=c&state=s",
    ):
        assert pasted_answer(text, redirect, "s").code == "c"
    for text in (
        "",
        "c",
        "http://127.0.0.1:1/callback?code=c&state=s",
        "http://[::1",
        "https://127.0.0.1:19847/callback?x",
        "http://127.0.0.1:19847/callback?code=c&state=\udc80",
    ):
        with pytest.raises(NotThisLogin):
            pasted_answer(text, redirect, "s")


def test_a_listener_survives_clients_that_say_nothing_or_too_much() -> None:
    async def main() -> None:
        port = free_port()
        async with CallbackListener("s", port=port) as listener:
            answer = listener.expect("st")
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for bad in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" * 20 + b"\r\n\r\n", b"A" * 70_000):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(bad)
                await asyncio.wait_for(reader.read(), 5)
                writer.close()
            async with httpx2.AsyncClient(trust_env=False) as client:
                page = await client.get(f"http://127.0.0.1:{port}/callback?code=c&state=st")
                again = await client.get(f"http://127.0.0.1:{port}/callback?code=d&state=st")
            assert (page.status_code, again.status_code) == (200, 410)
            assert page.headers["content-security-policy"].startswith("default-src 'none'")
            assert (await answer).code == "c"
            for _, writer in idle:
                writer.close()
        with socket.socket() as one:
            assert one.connect_ex(("127.0.0.1", port)) != 0

    run(main())


def test_localhost_is_listened_to_on_both_addresses() -> None:
    async def main() -> None:
        port = free_port()
        async with CallbackListener("s", host="localhost", port=port, path="/x") as listener:
            assert listener.redirect_uri == f"http://localhost:{port}/x"
            answer = listener.expect("st")
            host = "::1" if socket.has_ipv6 else "127.0.0.1"
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /x?code=c&state=st HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            assert b"200 OK" in await reader.read()
            writer.close()
            assert (await answer).code == "c"

    run(main())


def test_a_browser_gets_only_addresses_that_it_may_have() -> None:
    assert may_open("https://example.test/?a=b")
    assert may_open("http://127.0.0.1:8080/x")
    for url in (
        "http://example.test/",
        "file:///x",
        "javascript:1",
        "-x",
        "https://a b/",
        "https://",
        "http://127.evil.test/x y",
    ):
        assert not may_open(url)
    assert not has_browser({}, "linux")
    assert has_browser({"DISPLAY": ":0"}, "linux")
    assert has_browser({}, "darwin")


def test_a_browser_that_fails_or_hangs_is_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    import webbrowser

    import pi_mcp.hosts.browser as browser_module

    async def main() -> None:
        monkeypatch.setenv("BROWSER", "x")

        def fail(url: str) -> bool:
            raise ValueError("planted")

        monkeypatch.setattr(webbrowser, "open", fail)
        assert not await open_browser("https://example.test/")
        monkeypatch.setattr(browser_module, "BROWSER_WAIT", 0.1)
        release = threading.Event()
        monkeypatch.setattr(webbrowser, "open", lambda url: release.wait(5))
        assert not await open_browser("https://example.test/")
        release.set()
        monkeypatch.setattr(browser_module, "BROWSER_WAIT", 5.0)
        monkeypatch.setattr(webbrowser, "open", lambda url: True)
        assert await open_browser("https://example.test/")
        assert not await open_browser("http://example.test/")

    run(main())


def test_the_oauth_object_may_hold_commands_and_shows_none_of_them(tmp_path: Path) -> None:
    from pi_mcp.auth.proof import proof_of

    async def main() -> None:
        oauth = {"clientId": "c", "clientSecret": "!printf planted-77", "privateKey": "!printf 'a\\nb'"}
        configuration = configuration_of({"s": {"url": "https://h/mcp", "oauth": oauth}}, cwd=tmp_path)
        resolved = resolve(configuration.servers["s"], configuration)
        proof = await proof_of(resolved, "https://as")
        assert (proof.secret, proof.private_key, proof.audience) == ("planted-77", "a\nb", "https://as")
        assert "planted" not in repr(proof) + repr(resolved)
        assert resolved.redactor("x planted-77 y") == "x *** y"
        oauth["clientSecret"] = "!exit 3"
        configuration = configuration_of({"s": {"url": "https://h/mcp", "oauth": oauth}}, cwd=tmp_path)
        with pytest.raises(PiMcpError) as error:
            await proof_of(resolve(configuration.servers["s"], configuration), "https://as")
        assert error.value.diagnostic.code == "secret_lookup_failed"
        assert "oauth.clientSecret" in error.value.diagnostic.message

    run(main())


def test_a_login_works_while_the_browser_comes_back_through_another_name(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:

            async def browse(url: str) -> str:
                target = (await redirected(url)).replace("127.0.0.1", "localhost", 1)
                async with httpx2.AsyncClient(trust_env=False) as client:
                    return (await client.get(target)).text

            async with signing_in(server, tmp_path, BrowserHost(browse=browse)) as (_, host, session):
                assert (await session.command("auth s")).diagnostic is None
                host.browse = agree

    run(main())


def test_an_address_is_shown_as_it_is_also_where_a_variable_gave_a_part_of_it() -> None:
    import io

    from pi_mcp.hosts.terminal.dialogs import TerminalHost
    from pi_mcp.hosts.terminal.keys import Keys
    from pi_mcp.hosts.terminal.render import Screen
    from pi_mcp.text import Redactor

    redactor = Redactor()
    redactor.add("client-from-variable")
    out = io.StringIO()
    host = TerminalHost(Screen(out), Keys(interactive=False))
    url = "https://as.example.test/authorize?client_id=client-from-variable&state=x"
    run(host.notify("info", f"To sign in to client-from-variable, open this address:\n{url}"))
    assert out.getvalue() == f"To sign in to ***, open this address:\n{url}\n"
