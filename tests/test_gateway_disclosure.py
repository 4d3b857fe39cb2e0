"""What callers of a shared gateway hear of failures: nothing about the machine that it runs on."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.access import Grant, Scopes
from pi_mcp.connect.faults import UNKNOWN_OUTCOME
from pi_mcp.errors import CODES, Diagnostic
from pi_mcp.server.disclosure import Disclosure
from pi_mcp.server.gate import Caller
from tests.access_support import shared_gateway
from tests.gateway_support import Client, Failed, gateway_of
from tests.hostile.script import entry, tool
from tests.plugin_support import spoken
from tests.support import run

INTERNALS = ("/opt/planted", "PLANTED_VARIABLE", "planted.invalid", "cwd", "/mcp", "pi-mcp get", "includeTools", "`")
ALL = "tools:read tools:write prompts:read resources:read"


def servers(folder: Path) -> dict[str, Any]:
    return {
        "good": entry(folder, spoken([tool("look")])),
        "gone": {"command": "/opt/planted/server"},
        "unset": {"command": "x", "env": {"KEY": "${PLANTED_VARIABLE}"}},
        "nowhere": {"command": "python3", "cwd": "/opt/planted"},
        "web": {"type": "http", "url": "http://planted.invalid:1/mcp"},
    }


async def everything(client: Client, expose: str) -> str:
    """All that the client hears of the servers that cannot be used."""
    heard: list[Any] = []
    for server in ("gone", "unset", "nowhere", "web"):
        with pytest.raises(Failed) as failed:
            await client.call(f"{server}__anything", {})
        heard.append((failed.value.code, str(failed.value), failed.value.data))
    if expose == "search":
        heard.append(await client.call("mcp_search", {"query": "look"}))
        heard.append(await client.call("mcp_search", {"query": "look", "server": "gone"}))
        heard.append(await client.call("mcp_search", {"query": "look", "server": "unset"}))
    else:
        for method in ("tools/list", "prompts/list", "resources/list"):
            heard.append(await client.request(method))
    return json.dumps(heard)


@pytest.mark.slow
@pytest.mark.parametrize("expose", ["search", "all"])
def test_who_calls_with_a_credential_hears_nothing_of_paths_variables_and_addresses(
    tmp_path: Path, expose: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        with caplog.at_level(logging.WARNING, "pi_mcp.server"):
            async with shared_gateway(servers(tmp_path), tmp_path, expose=expose) as shared:
                for kind in ("bearer", "oauth"):
                    async with Client(shared.url, **await shared.headers(kind, ALL)) as client:
                        heard = await everything(client, expose)
                        assert not [word for word in INTERNALS if word in heard], heard
                        assert "gone" in heard
                        assert "connection_failed" in heard
                narrow = await shared.headers("bearer", "server:good:*")
                async with Client(shared.url, **narrow) as client:
                    first = (
                        await client.call("mcp_search", {"query": "look"})
                        if expose == "search"
                        else await client.request("tools/list")
                    )
                    assert "gone" not in json.dumps(first)
        assert "/opt/planted/server" in caplog.text
        lines = [record.getMessage() for record in caplog.records]
        repeated = {line for line in lines if lines.count(line) > 1}
        assert not repeated, "a line for the operator is written once, until it changes"
        assert "PLANTED_VARIABLE" in caplog.text

    run(work(), 60)


def test_who_is_not_asked_for_a_credential_hears_what_to_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway_of(servers(tmp_path), tmp_path) as running, Client(running.url) as client:
            heard = await everything(client, "search")
            for word in ("/opt/planted/server", "PLANTED_VARIABLE"):
                assert word in heard

    run(work(), 60)


@pytest.mark.parametrize("kind", ["local", "dev"])
def test_the_next_step_that_a_client_and_the_operator_hear_is_no_command_of_a_chat(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = Diagnostic("connection_failed", "connect", "s", "It ended.", "`/mcp get s` shows what it wrote to stderr.")
    disclosure = Disclosure()
    caller = Caller(None, Grant("me", None, kind, Scopes.everything()), 1, "stdio")
    assert disclosure.told(caller, said).hint == "`pi-mcp get --connect s` shows what it wrote to stderr."
    with caplog.at_level(logging.WARNING, "pi_mcp.server"):
        disclosure.log(said)
        disclosure.log(said)
    (record,) = caplog.records
    assert record.getMessage().endswith("`pi-mcp get --connect s` shows what it wrote to stderr.")


@pytest.mark.parametrize("code", sorted(CODES))
def test_no_code_lets_a_path_through(code: str) -> None:
    grant = Grant("ann", "k", "key", Scopes.everything())
    caller = Caller(None, grant, 1, "http")
    told = Disclosure().told(caller, Diagnostic(code, "call", "s", "It is in /opt/planted.", "Look at /opt/planted."))
    assert (told.code, told.server) == (code, "s")
    assert ("planted" in told.line()) == (code == "usage")  # that is about what the caller sent


def test_that_a_call_may_have_run_is_said_to_everybody() -> None:
    caller = Caller(None, Grant("ann", "k", "key", Scopes.everything()), 1, "http")
    said = Diagnostic(
        "timeout", "call", "s", f"No sign of life for 5 s (`toolTimeoutMs`). {UNKNOWN_OUTCOME}", "Raise it."
    )
    told = Disclosure().told(caller, said)
    assert told.message == f"The server did not answer in time. {UNKNOWN_OUTCOME}"
    assert told.hint is None


def test_one_failure_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller(None, Grant("ann", "k", "key", Scopes.everything()), 1, "http")
    disclosure = Disclosure()
    with caplog.at_level(logging.WARNING, "pi_mcp.server"):
        for path in ("/a", "/a", "/b"):
            disclosure.told(caller, Diagnostic("connection_failed", "connect", "s", f"No {path}."))
    assert [record.getMessage() for record in caplog.records] == [
        "s: [connection_failed] No /a.",
        "s: [connection_failed] No /b.",
    ]
