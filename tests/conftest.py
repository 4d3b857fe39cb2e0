"""Every test runs with its own home, configuration, state and cache directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The machines that run this are busy at times: how long an example takes is no property of the code.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

KEYS = ("PI_MCP_CREDENTIAL_KEY", "PI_MCP_CREDENTIAL_KEY_FILE")


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep a test away from the developer's own files."""
    home = tmp_path_factory.mktemp("home")
    for name in ("PI_MCP_CONFIG", "PI_CODING_AGENT_DIR", "XDG_RUNTIME_DIR", "PI_MCP_LOG", *KEYS):
        monkeypatch.delenv(name, raising=False)
    # Nor with the developer's keyring: a test that wants one brings it.
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / ".local/state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / ".cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / ".local/share"))
    return home
