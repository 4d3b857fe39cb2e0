"""mcp.example.json shows every field, and everything in it works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import jsonc, load_config, policy, resolve, resolve_secrets
from pi_mcp.config.definition import Configuration
from pi_mcp.config.validate import FIELDS
from tests.support import run

EXAMPLE = Path(__file__).parent.parent / "mcp.example.json"
VARIABLES = {"FILES_ROOT": "/srv/files", "DOCS_TOKEN": "t0ken-of-docs", "HOME": "/home/u", "PATH": "/usr/bin:/bin"}


def load(environ: dict[str, str] = VARIABLES) -> Configuration:
    return load_config(config=EXAMPLE, cwd=EXAMPLE.parent, environ=environ)


def test_every_entry_is_valid_and_nothing_is_warned_about() -> None:
    configuration = load()
    for entry in configuration.entries.values():
        assert entry.diagnostic is None
        assert entry.warnings == ()
        assert entry.definition is not None
    assert configuration.diagnostics == ()
    assert not configuration.deny_all
    states = {name: entry.state for name, entry in configuration.entries.items()}
    assert {name for name, state in states.items() if state == "disabled"} == {"tickets", "wiki"}
    assert {server.transport for server in configuration.servers.values()} == {"stdio", "http", "sse"}


def test_every_field_is_shown_and_every_feature_has_a_comment() -> None:
    value: dict[str, Any] = jsonc.parse(EXAMPLE.read_text()).value
    used = {field for entry in value["mcpServers"].values() for field in entry}
    assert used == {row.name for row in FIELDS}
    commented = re.findall(r"^\s*// .+\n(?:\s*//.+\n)*\s*\"([^\"]+)\":", EXAMPLE.read_text(), re.MULTILINE)
    for field in ("type", "cwd", "description", "includeTools", "inheritEnv", "oauth", "trust", "sensitiveTools"):
        assert field in commented


def test_the_sensitive_words_are_in_force() -> None:
    configuration = load()
    assert policy.is_sensitive("publish_page", configuration)
    assert policy.is_sensitive("forcePush", configuration)
    assert not policy.is_sensitive("get_token", configuration)


@pytest.mark.skipif(shutil.which("printf") is None, reason="printf is not installed")
def test_with_its_variables_set_every_server_resolves() -> None:
    configuration = load()
    resolved = {name: resolve(server, configuration) for name, server in configuration.servers.items()}
    assert resolved["files"].args == (
        "-y",
        "@modelcontextprotocol/server-filesystem",
        "/srv/files",
        "/home/u/notes",
    )
    assert resolved["clock"].args[-1] == "UTC"
    assert resolved["git"].cwd == EXAMPLE.parent
    assert resolved["docs"].headers["Authorization"].reveal() == "Bearer t0ken-of-docs"
    assert VARIABLES["DOCS_TOKEN"] not in repr(resolved)
    files = run(resolve_secrets(resolved["files"]))
    assert files.commands == ()
    assert {name: value.reveal() for name, value in files.env.items()} == {
        "LOG_FOLDER": "/home/u/logs",
        "PRICE_LABEL": "5$",
        "FILES_TOKEN": "example-token",
    }


def test_without_a_variable_the_message_names_it_and_the_others_resolve() -> None:
    configuration = load({"HOME": "/home/u", "PATH": "/usr/bin:/bin"})
    with pytest.raises(Exception, match="FILES_ROOT"):
        resolve(configuration.servers["files"], configuration)
    with pytest.raises(Exception, match="DOCS_TOKEN"):
        resolve(configuration.servers["docs"], configuration)
    assert resolve(configuration.servers["git"], configuration).command == "uvx"


def test_it_names_no_secret_of_its_own() -> None:
    assert not re.search(r"ghp_|sk-[A-Za-z0-9]|Bearer [A-Za-z0-9]", EXAMPLE.read_text())
