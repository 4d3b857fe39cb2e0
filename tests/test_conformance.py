"""The official conformance suite against the product, one scenario at a time and strictly.

The suite and the Node that it needs are put into `.test-env/conformance` from npm, once; where npm, the registry or the
shared data is missing the tests are skipped and say so. `client.py` beside this file's folder `conformance` is what
the suite starts. One scenario by hand:

    PYTHONPATH=. python $PI_MCP_TEST_DATA/conformance/run_client.py "python tests/conformance/client.py" \\
        --home .test-env/conformance --only auth/dpop-nonce
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import shared_data

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".test-env" / "conformance"
CLIENT = ROOT / "tests" / "conformance" / "client.py"
SUITES = {
    # The extension for skills (SEP-2640) is nothing that this client has.
    "0.2.0-alpha.12": {
        "sep-2640-client-no-prefetch",
        "sep-2640-client-verify-digest",
        "sep-2640-client-verify-size",
        "sep-2640-client-verify-frontmatter",
    },
    # Its metadata name another issuer than the one they stand at, which is refused (RFC 8414 §3.3). The scenario is
    # mended in the next suite.
    "0.1.16": {"auth/2025-03-26-oauth-metadata-backcompat"},
}
"""Every suite, and what does not pass there."""
SCENARIOS = {"0.2.0-alpha.12": 48, "0.1.16": 26}


def runner() -> Path:
    path = shared_data() / "conformance" / "run_client.py"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    return path


def installed(path: Path, suite: str) -> None:
    """The suite and its Node, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    spec = importlib.util.spec_from_file_location("run_client", path)
    assert spec is not None
    assert spec.loader is not None
    module = ModuleType("run_client")
    spec.loader.exec_module(module)
    packages = {"node": module.NODE, suite: f"@modelcontextprotocol/conformance@{suite}"}
    for name, package in packages.items():
        try:
            module.npm_install(HOME / name, package)
        except (subprocess.SubprocessError, OSError):
            # Half of it would count as all of it the next time.
            shutil.rmtree(HOME / name, ignore_errors=True)
            pytest.skip(f"npm cannot fetch {package}")


@pytest.mark.parametrize("suite", SUITES)
def test_every_scenario_of_the_official_suite_passes_but_those_that_are_named_here(suite: str) -> None:
    path = runner()
    installed(path, suite)
    done = subprocess.run(
        [sys.executable, str(path), f"{sys.executable} {CLIENT}", "--suite", suite, "--home", str(HOME)],
        capture_output=True,
        text=True,
        timeout=840,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith(("pass ", "FAIL "))]
    failed = {name for verdict, name, *_ in lines if verdict == "FAIL"}
    assert len(lines) == SCENARIOS[suite], done.stdout + done.stderr
    assert failed == SUITES[suite], f"{done.stdout}\n{said(suite, failed - SUITES[suite])}"


def said(suite: str, names: set[str]) -> str:
    """What the client said in the scenarios that failed."""
    texts = []
    for name in sorted(names):
        for file in (HOME / "results" / suite / name.replace("/", "_")).rglob("stderr.txt"):
            texts.append(f"-- {name}\n{file.read_text()[-2000:]}")
    return "\n".join(texts)
