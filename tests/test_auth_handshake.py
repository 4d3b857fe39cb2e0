"""Servers that let anybody shake hands and ask for a login at the first question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.auth_server import AuthServer, Seen
from tests.auth_support import asked, signing_in
from tests.support import run

GREETING = {
    "jsonrpc": "2.0",
    "id": 1,
    "result": {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "open", "version": "1"}},
}


def opened(*, session: str | None, last: Mapping[str, Any] | None = None) -> Any:
    """Answers `initialize` and DELETE to everybody; `last` to the question after it, in place of a 401."""

    def react(seen: Seen) -> Mapping[str, Any] | None:
        if "authorization" in seen.headers:
            return None
        if seen.method == "DELETE":
            return {"status": 204}
        if isinstance(seen.json, dict) and seen.json.get("method") == "initialize":
            return {"json": GREETING, "headers": {} if session is None else {"Mcp-Session-Id": session}}
        return last

    return react


@pytest.mark.parametrize("session", [None, "session-1"])
def test_the_challenge_of_the_first_question_counts_and_the_session_is_ended(
    tmp_path: Path, session: str | None
) -> None:
    async def main() -> None:
        line = 'Bearer scope="basic", resource_metadata="{prm}"'
        with AuthServer(challenge=line, resource_scopes=["profile"]) as server:
            server.override["/mcp"] = opened(session=session)
            async with signing_in(server, tmp_path) as (_, host, chat):
                answer = await chat.command("auth s")
                assert answer.diagnostic is None, answer.text
                assert asked(host.opened[0])["scope"] == "basic"
            before = [one for one in server.at("/mcp") if "authorization" not in one.headers]
            assert [one.method for one in before] == ["POST", "POST", *(["DELETE"] if session else [])]
            assert [one.headers.get("mcp-session-id") for one in before[1:]] == [session] * (len(before) - 1)

    run(main())


@pytest.mark.parametrize("last", [{"json": {"jsonrpc": "2.0", "id": 2, "result": {"tools": []}}}, {"status": 500}])
def test_a_server_that_never_asks_is_signed_in_to_all_the_same(tmp_path: Path, last: Mapping[str, Any]) -> None:
    async def main() -> None:
        with AuthServer(resource_scopes=["profile"]) as server:
            server.override["/mcp"] = opened(session=None, last=last)
            async with signing_in(server, tmp_path) as (_, host, chat):
                answer = await chat.command("auth s")
                assert answer.diagnostic is None, answer.text
                assert asked(host.opened[0])["scope"] == "profile"

    run(main())
