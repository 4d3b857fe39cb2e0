"""The machine as an installation sees it: places, and how this very pi-mcp is started.

Comes in: an environment. Goes out: `Surroundings`. It starts nothing and writes nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pi_mcp import files
from pi_mcp._version import __version__
from pi_mcp.errors import failure

BY_MODULE = ("-P", "-m", "pi_mcp")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where things are. `command` starts this pi-mcp from anywhere; `shims` holds what is copied."""

    home: Path
    cwd: Path
    environ: Mapping[str, str] = field(repr=False)
    platform: str = sys.platform
    command: tuple[str, ...] = ("pi-mcp",)
    version: str = __version__
    shims: Path = Path(__file__).resolve().parent.parent / "shims"
    state: Path = field(default_factory=files.state_dir)
    serves: bool = True
    """Can this pi-mcp run `pi-mcp serve`: are the packages of the extra `gateway` there?"""

    @property
    def config_home(self) -> Path:
        """`$XDG_CONFIG_HOME`, by default `~/.config`."""
        return self.named("XDG_CONFIG_HOME") or self.home / ".config"

    def named(self, variable: str) -> Path | None:
        """The folder that a variable names; `~` is the home, anything else relative counts as unset."""
        value = self.environ.get(variable, "").strip()
        if value == "~" or value.startswith("~/"):
            return self.home / value[2:]
        return Path(value) if value.startswith("/") or (len(value) > 2 and value[1] == ":") else None

    @property
    def pi_directory(self) -> Path:
        """Pi's own, which pp shares."""
        return self.named("PI_CODING_AGENT_DIR") or self.home / ".pi" / "agent"

    @property
    def passing(self) -> str | None:
        """Why this pi-mcp will not stay where it is; None when it will."""
        return passing_place(self.command, self.environ)


def surroundings() -> Surroundings:
    """Those of this process. Raises ConfigurationError when there is no home."""
    home = os.environ.get("HOME") or os.environ.get("USERPROFILE") or ""
    if not Path(home).is_absolute():
        try:
            import pwd

            home = pwd.getpwuid(os.getuid()).pw_dir
        except (ImportError, KeyError):
            home = ""
    if not Path(home).is_absolute() or not Path(home).is_dir():
        raise failure(
            "configuration_invalid",
            "command",
            None,
            "There is no home directory: HOME names none.",
            "Set HOME to a folder of yours.",
        )
    return Surroundings(Path(home), Path.cwd(), dict(os.environ), command=own_command(), serves=can_serve())


def own_command(executable: str | None = None) -> tuple[str, ...]:
    """The words that start this pi-mcp from anywhere: the script beside this Python, or `python -P -m pi_mcp`."""
    # Not resolved: the python of an environment is a link to one outside, which knows nothing of us.
    python = Path(os.path.abspath(executable or sys.executable))  # noqa: PTH100
    script = python.with_name("pi-mcp.exe" if sys.platform == "win32" else "pi-mcp")
    if script.is_file() and os.access(script, os.X_OK):
        return (str(script),)
    # -P: without it Python would take modules from whatever folder a host is started in.
    return (str(python), *BY_MODULE)


def can_serve() -> bool:
    """Are the packages of the extra `gateway` in this environment? Looked for and not loaded."""
    from importlib.util import find_spec

    return find_spec("starlette") is not None and find_spec("uvicorn") is not None


def passing_place(command: tuple[str, ...], environ: Mapping[str, str]) -> str | None:
    """A sentence when the program lies where it will be cleaned away: a runner's cache or a temporary folder."""
    program = Path(command[0])
    parts = program.parts
    cache = environ.get("UV_CACHE_DIR")
    in_uv = ("uv" in parts and ("archive-v0" in parts or ".cache" in parts)) or (
        bool(cache) and program.is_relative_to(cache or "/")
    )
    if in_uv or "archive-v0" in parts or any(part.startswith("environments-v") for part in parts):
        return f"{program} is in the cache of uvx and will be gone some day; one of `uv tool install` stays."
    if "pipx" in parts and ".cache" in parts:
        return f"{program} is in the cache of `pipx run` and will be gone some day; one of `pipx install` stays."
    temporary = {Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")}  # noqa: S108 - compared, never written
    if any(program.is_relative_to(folder) for folder in temporary):
        return f"{program} is in a temporary folder and will be gone some day; one of `pipx install` stays."
    return None
