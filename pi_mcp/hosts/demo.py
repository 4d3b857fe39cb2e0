"""The demo: three reference servers that come with the extra `demo`, and a small repository for one of them.

Comes in: nothing. Goes out: a Configuration that needs no file, account or network. The repository lies in the
cache directory; the person's own files are not touched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.config import Configuration, configuration_of
from pi_mcp.errors import failure

FIRST_QUERY = "what time is it in Tokyo"
"""A query that the first screen proposes; its best tool needs one argument."""
INSTALL = "Install pi-mcp with it, from its folder: pip install '.[demo]'."
GIT_LIMIT = 10.0

_ABOUT = {
    "time": "the current time anywhere, and conversion between time zones",
    "git": "a small demo repository: status, log, diff, branches, commits",
    "fetch": "a web page as text",
}
_FILES = {
    "README.md": "# Demo\n\nA repository for the git server of `pi-mcp chat --demo`. Nothing here matters.\n",
    "hello.py": 'def greet(name: str) -> str:\n    return f"Hello, {name}!"\n',
}


def demo_configuration(directory: Path | None = None, environ: Mapping[str, str] | None = None) -> Configuration:
    """The servers time, git and fetch, run by this very Python; `directory` is for the repository.

    Blocking. Raises ConfigurationError `usage` when none of them is installed. git is left out where the `git`
    program is missing.
    """
    found = [name for name in _ABOUT if importlib.util.find_spec(f"mcp_server_{name}") is not None]
    if not found:
        raise failure("usage", "command", None, "The demo needs the extra `demo`, which is not installed.", INSTALL)
    servers: dict[str, dict[str, Any]] = {}
    for name in found:
        arguments = ["-m", f"mcp_server_{name}"]
        if name == "git":
            repository = demo_repository(directory or files.cache_dir() / "demo" / "repository")
            if repository is None:
                continue
            arguments += ["--repository", str(repository)]
        servers[name] = {"command": sys.executable, "args": arguments, "description": _ABOUT[name]}
    return configuration_of(servers, environ=dict(os.environ) if environ is None else environ)


def demo_repository(directory: Path) -> Path | None:
    """A git repository with a few commits and one change that is not committed; None without `git`.

    It stays for the next demo: with the same path the server's cached catalog is good again.
    """
    if (directory / ".git" / "HEAD").exists():
        return directory
    program = shutil.which("git")
    if program is None:
        return None
    try:
        files.private_dir(directory)
        _git(program, directory, "init", "-q")
        for name, text in _FILES.items():
            files.write_private(directory / name, text.encode())
            _git(program, directory, "add", name)
            _git(program, directory, "commit", "-q", "-m", f"Add {name}")
        files.write_private(directory / "hello.py", _FILES["hello.py"].replace("Hello", "Good day").encode())
    except (OSError, subprocess.SubprocessError):
        with contextlib.suppress(OSError):
            files.remove_tree(directory)
        return None
    return directory


def _git(program: str, directory: Path, *arguments: str) -> None:
    # The person's own hooks, signing and identity have no part in this.
    settings = ("user.name=Demo", "user.email=demo@example.org", "commit.gpgsign=false", "core.hooksPath=/dev/null")
    options = [word for setting in settings for word in ("-c", setting)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(
        [program, *options, *arguments],
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=GIT_LIMIT,
        check=True,
    )
