"""The device flow: a code for another device, polling as slowly as told, and the pasted address in its place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import pi_mcp.auth.device as device_module
from tests.auth_server import DEVICE_GRANT, AuthServer
from tests.auth_support import BrowserHost, asked, everything_in, redirected, signing_in, stay, until
from tests.support import run


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "SLOWER", 0.1)


def offering(**options: Any) -> AuthServer:
    server = AuthServer(**options)
    server.metadata_changes["device_authorization_endpoint"] = "{origin}/device"
    return server


def polls(server: AuthServer) -> list[Any]:
    return server.tokens(DEVICE_GRANT)


@pytest.mark.parametrize("line", ["auth s --no-browser", "auth s"])
def test_the_code_and_address_are_shown_and_the_login_follows(tmp_path: Path, line: str) -> None:
    async def main() -> None:
        with offering(pending=2) as server:
            more = {"grant": "device_code"} if line == "auth s" else {}
            async with signing_in(server, tmp_path, BrowserHost(browse=stay), **more) as (_, host, session):
                answer = await session.command(line)
                assert answer.diagnostic is None, answer.text
                assert "WDJB-MJHT" in host.shown[0]
                assert f"{server.origin}/enter" in host.shown[0]
                assert host.opened == ([f"{server.origin}/enter?user_code=WDJB-MJHT"] if line == "auth s" else [])
                await session.load(["s.whoami"])
                assert (await session.call("mcp__s__whoami", {})).text == "user-1"
                assert len(polls(server)) == 3
                assert server.at("/authorize") == []
                assert server.at("/device")[0].form["resource"] == server.url
                assert DEVICE_GRANT in server.at("/register")[0].json["grant_types"]
                shown = str(host.shown) + repr(answer) + everything_in(tmp_path)
                assert "dev-" not in shown
                assert [one for one in server.secrets() if one in shown] == []

    run(main())


def test_slow_down_and_lost_polls_make_the_polling_slower_and_do_not_end_it(tmp_path: Path) -> None:
    async def main() -> None:
        with offering(pending=0) as server:
            replies: list[dict[str, Any]] = [
                {"status": 400, "json": {"error": "slow_down"}},
                {"status": 503},
                {"status": 400, "json": {"error": "authorization_pending"}},
            ]

            def react(seen: Any) -> dict[str, Any] | None:
                return replies.pop(0) if replies and seen.form["grant_type"] == DEVICE_GRANT else None

            server.override["/token"] = react
            async with signing_in(server, tmp_path) as (_, _, session):
                assert (await session.command("auth s --no-browser")).diagnostic is None
                times = [one.at for one in polls(server)]
                assert len(times) == 4
                assert times[1] - times[0] >= 0.14
                assert times[2] - times[1] >= 0.28

    run(main())


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant"])
def test_a_refusal_ends_it(tmp_path: Path, error: str) -> None:
    async def main() -> None:
        with offering() as server:
            server.override["/token"] = {"status": 400, "json": {"error": error, "error_description": "planted-x"}}
            async with signing_in(server, tmp_path) as (_, _, session):
                diagnostic = (await session.command("auth s --no-browser")).diagnostic
                assert diagnostic.code == "oauth_failed"
                assert error in diagnostic.message
                assert "planted" not in diagnostic.line()
                assert len(polls(server)) == 1

    run(main())


def test_nobody_enters_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "DEVICE_LIMIT", 0.3)

    async def main() -> None:
        with offering(pending=1000) as server:
            async with signing_in(server, tmp_path) as (_, _, session):
                diagnostic = (await session.command("auth s --no-browser")).diagnostic
                assert diagnostic.code == "timeout"
                assert "dev-" not in diagnostic.line()

    run(main())


def test_it_can_be_cancelled_while_it_waits(tmp_path: Path) -> None:
    async def main() -> None:
        with offering(pending=1000) as server:
            async with signing_in(server, tmp_path) as (plugin, host, session):
                task = asyncio.create_task(session.command("auth s --no-browser"))
                await until(lambda: bool(host.shown))
                task.cancel()
                await asyncio.wait({task}, timeout=1)
                assert task.cancelled()
                assert await plugin.credentials.stored() == []

    run(main())


def test_where_this_client_may_not_use_it_the_address_is_pasted(tmp_path: Path) -> None:
    async def main() -> None:
        with offering() as server:
            server.override["/device"] = {"status": 400, "json": {"error": "unauthorized_client"}}
            host = BrowserHost(pastes=[redirected])
            async with signing_in(server, tmp_path, host) as (_, _, session):
                assert (await session.command("auth s --no-browser")).diagnostic is None
                assert asked(host.urls[0])["response_type"] == "code"
            # Where the file asks for this flow, nothing else is tried.
            async with signing_in(server, tmp_path / "b", grant="device_code") as (_, other, session):
                assert (await session.command("auth s")).diagnostic.code == "oauth_failed"
                assert other.urls == []

    run(main())


@pytest.mark.parametrize(
    "changes",
    [
        {"verification_uri": "http://169.254.169.254/enter"},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri_complete": "file:///etc/passwd"},
        {"device_code": None},
        {"user_code": 5},
    ],
)
def test_an_address_or_code_that_cannot_be_used_is_not_shown(tmp_path: Path, changes: dict[str, Any]) -> None:
    async def main() -> None:
        with offering() as server:
            reply = {
                "device_code": "dev-planted",
                "user_code": "ABCD",
                "verification_uri": f"{server.origin}/enter",
                "interval": 0.05,
                **changes,
            }
            server.override["/device"] = {"json": reply}
            async with signing_in(server, tmp_path, grant="device_code") as (_, host, session):
                diagnostic = (await session.command("auth s")).diagnostic
                assert diagnostic.code == "oauth_failed"
                assert "dev-planted" not in diagnostic.line()
                assert host.shown == []
                assert host.opened == []
                assert polls(server) == []

    run(main())


def test_a_server_without_the_flow_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        with AuthServer() as server:
            async with signing_in(server, tmp_path, grant="device_code") as (_, _, session):
                diagnostic = (await session.command("auth s")).diagnostic
                assert "no device flow" in diagnostic.message
                assert server.at("/register") == []

    run(main())
