"""A login with everything, in a process that logs at debug level: no secret is anywhere but in the sealed store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.auth_server import DEVICE_GRANT, PLANTED, AuthServer, free_port
from tests.auth_support import KEY, everything_in

HOST = """
import asyncio, json, sys, traceback
from pi_mcp.config import load_config
from pi_mcp.log import configure_logging
from pi_mcp.plugin import Plugin
from tests.auth_support import BrowserHost, agree, stay

async def main():
    configure_logging()
    plugin = Plugin(load_config())
    host = BrowserHost()
    session = plugin.session("one", host)
    for line in sys.argv[1:]:
        host.browse = stay if line == "auth device" else agree
        answer = await session.command(line)
        print(answer, repr(answer), json.dumps(answer.to_json()))
        await host.settle()
        host.browsers.clear()
        for name in plugin.configuration.servers:
            try:
                await session.load([name + ".whoami"])
                print(await session.call(f"mcp__{name}__whoami", {}))
            except Exception as error:
                print(error, error.args)
                traceback.print_exc()
    for definition in plugin.configuration.servers.values():
        credential = await plugin.credentials.load(definition.name, definition.url)
        print(definition, credential, repr(credential))
    print(host.shown[1:], host.pages, host.asked, host.told, await plugin.credentials.stored())
    print([status.to_json() for status in session.statuses()])
    await plugin.close()

asyncio.run(main())
print("FINISHED")
"""


@pytest.mark.slow
def test_no_token_code_verifier_state_or_secret_is_in_any_output_log_or_file(private_home: Path) -> None:
    config = private_home / ".config/pi-mcp/mcp.json"
    config.parent.mkdir(parents=True)
    with AuthServer(lifetime=1, confidential=True) as server, AuthServer() as device, AuthServer() as broken:
        device.metadata_changes["device_authorization_endpoint"] = "{origin}/device"
        broken.override["/token"] = lambda seen: {
            "status": 400,
            "json": {"error": "invalid_grant", "error_description": json.dumps(seen.form) + json.dumps(seen.headers)},
        }
        entries = {
            name: {"url": one.url, "oauth": {"callbackPort": free_port(), **more}}
            for name, one, more in (
                ("s", server, {}),
                ("device", device, {"grant": "device_code"}),
                ("broken", broken, {}),
            )
        }
        config.write_text(json.dumps({"mcpServers": entries}))
        lines = ["auth s", "get s", "auth device", "auth broken", "status", "tools s", "logout device"]
        done = subprocess.run(
            [sys.executable, "-c", HOST, *lines],
            capture_output=True,
            text=True,
            timeout=90,
            cwd=Path(__file__).resolve().parent.parent,
            env={**os.environ, "PI_MCP_CREDENTIAL_KEY": KEY, "PI_MCP_LOG": "debug"},
        )
        assert done.stdout.endswith("FINISHED\n"), done.stderr[-3000:]
        given = server.secrets() | device.secrets() | broken.secrets()
        seen = [*server.seen, *device.seen, *broken.seen]
        for one in seen:
            given |= {
                one.form[name]
                for name in ("code", "code_verifier", "refresh_token", "device_code", "client_secret", "state")
                if name in one.form
            }
            given |= {one.headers["authorization"].partition(" ")[2]} if "authorization" in one.headers else set()
        assert {one[:4] for one in given if one[:4] in PLANTED} == set(PLANTED)
        assert device.tokens(DEVICE_GRANT)
        assert server.tokens("refresh_token")
        logs = list((private_home / ".local/state/pi-mcp/logs").iterdir())
        assert logs
        everywhere = done.stdout + done.stderr + everything_in(private_home)
        # The address of a login is shown to the person; `shown` begins behind the first one.
        states = {one.form["state"] for one in seen if "state" in one.form}
        found = sorted(one for one in given - states if one in everywhere)
        assert found == []
        assert [one for one in states if one in everything_in(private_home)] == []
