"""Looks for programs on this machine and their versions, from what their packages say about themselves.

Comes in: names. Goes out: paths and versions. It starts a program only where nothing else tells its version, for a
bounded time, and uses no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from pi_mcp.hosts.install.plan import Found
from pi_mcp.hosts.install.surroundings import Surroundings

LIMIT = 5.0
"""Seconds that `X --version` may take."""

_VERSION = re.compile(r"\d+(?:\.\d+)+[-+.\w]*")


def of_npm(around: Surroundings, program: str, packages: tuple[str, ...]) -> Found:
    """A program that an npm package of one of these names brings; another one of that name does not count."""
    for path in _programs(program, around.environ):
        for folder in path.resolve().parents:
            with contextlib.suppress(OSError, ValueError):
                about = json.loads((folder / "package.json").read_bytes())
                if isinstance(about, dict) and about.get("name") in packages:
                    version = about.get("version")
                    return Found(True, version if isinstance(version, str) else None, path)
    return Found(False)


def of_python(around: Surroundings, program: str, package: str) -> Found:
    """A program that a Python package brings, asked from the environment in its first line."""
    for path in _programs(program, around.environ):
        with contextlib.suppress(OSError):
            with path.open("rb") as file:
                head = file.read(1024)
            python = re.search(rb"(/[^\s\"']*python[0-9.]*)", head)
            if not head.startswith(b"#!") or python is None:
                continue
            environment = Path(os.fsdecode(python[1])).parent.parent
            stem = re.sub(r"[-_.]+", "_", package).lower()
            for about in sorted(environment.glob(f"lib*/python*/site-packages/{stem}-*.dist-info")):
                return Found(True, about.name.removesuffix(".dist-info").rpartition("-")[2], path)
    return Found(False)


def of_any(around: Surroundings, program: str) -> Found:
    """A program with a name of its own; its `--version` is asked for at most `LIMIT` seconds."""
    for path in _programs(program, around.environ):
        return Found(True, _asked(path, around.environ), path)
    return Found(False)


def older(version: str | None, bound: tuple[int, ...]) -> bool:
    """Is a known version below the bound?"""
    numbers = [int(part) for part in re.findall(r"\d+", (version or "").split("-")[0])[: len(bound)]]
    return bool(numbers) and tuple(numbers) < bound


def _programs(name: str, environ: Mapping[str, str]) -> list[Path]:
    """Every executable of that name on the PATH, the first first."""
    found: list[Path] = []
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder and (path := shutil.which(name, path=folder)) and Path(path) not in found:
            found.append(Path(path))
    return found


def _asked(program: Path, environ: Mapping[str, str]) -> str | None:
    try:
        process = subprocess.Popen(
            [str(program), "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return None
    output = process.stdout
    try:
        # Not until the pipe ends: what it left running may hold it. The answer fits into the pipe.
        process.wait(timeout=LIMIT)
        said = b""
        if output is not None:
            os.set_blocking(output.fileno(), False)
            said = output.read(4096) or b""
    except (subprocess.TimeoutExpired, OSError):
        said = b""
    finally:
        # Whatever it left running goes, too: it was asked a question and nothing else.
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if output is not None:
            output.close()
    found = _VERSION.search(said.decode(errors="replace"))
    return found.group() if found else None
