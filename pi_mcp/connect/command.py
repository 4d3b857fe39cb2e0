"""How a stdio server is started: the executable, its environment, its working directory.

Comes in: a resolved definition and the host's environment. Goes out: a `CommandLine`, or the fault that says
what was looked for and where. It starts nothing and writes nothing.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pi_mcp.connect.faults import Fault

if TYPE_CHECKING:
    from pi_mcp.config import ResolvedServer

_OWN_SECRETS = re.compile("PI_MCP_.*(KEY|KEY_FILE|SECRET|TOKEN)")
"""Variables with secrets of pi-mcp's own: the key to every stored login, the model's, the gateway's at its issuer. Only
who names one hands it to a server (docs/signing-in.md)."""
MINIMAL = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
"""What the SDK passes to a child on POSIX."""
MINIMAL_WINDOWS = (
    "APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE",
    "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE",
)  # fmt: skip
NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS",
)  # fmt: skip
"""Proxy and CA variables: without them a package runner cannot download behind a company's proxy."""


class CannotStart(Exception):
    """Nothing was started; `fault` says why."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.kind)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What to start. `shell_line` is set on Windows only, for a batch file that cmd.exe has to run."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(repr=False)
    shell_line: str | None = None


def command_line(resolved: ResolvedServer, environ: Mapping[str, str], *, supervised: bool) -> CommandLine:
    """The command line of a server; raises `CannotStart` when the directory or the executable is missing.

    A missing directory and a missing executable raise the same error in the operating system, so both are
    looked at beforehand (B020). `supervised` puts our supervisor in front.
    """
    definition = resolved.definition
    cwd = resolved.cwd or definition.base_dir
    if not cwd.is_dir():
        raise CannotStart(Fault("cwd_missing", executed="no", detail=str(cwd)))
    env = child_environment(definition.inherit_env, environ)
    env.update({name: value.reveal() for name, value in resolved.env.items()})
    executable = find_command(resolved.command or "", env.get("PATH", os.defpath), cwd)
    argv = (executable, *resolved.args)
    if sys.platform == "win32" and executable.lower().endswith((".cmd", ".bat")):
        return CommandLine(argv, str(cwd), env, batch_line(executable, resolved.args))
    # A frozen program's executable is no Python that could run a script.
    if supervised and sys.executable and not getattr(sys, "frozen", False):
        from pi_mcp.connect import supervisor

        env[supervisor.HOST_VARIABLE] = str(os.getpid())
        argv = (sys.executable, "-I", "-S", str(Path(supervisor.__file__)), *argv)
    return CommandLine(argv, str(cwd), env)


def child_environment(inherit: bool | tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment before `env` is laid over it: minimal, network, and what `inheritEnv` names."""
    if inherit is True:
        return {name: value for name, value in environ.items() if not _OWN_SECRETS.fullmatch(name)}
    names: list[str] = [*(MINIMAL_WINDOWS if sys.platform == "win32" else MINIMAL), *NETWORK]
    if inherit:
        names += inherit
    # A value that begins with "()" is an exported shell function; the SDK leaves those out for safety.
    return {name: environ[name] for name in names if name in environ and not environ[name].startswith("()")}


def find_command(
    command: str, path: str, cwd: Path, *, windows: bool = sys.platform == "win32", pathext: str | None = None
) -> str:
    """The absolute path of `command`: as given, below `cwd` when it has a slash, else along the child's PATH.

    On Windows a bare name is tried with each extension of PATHEXT, so that `npx` finds `npx.cmd` (B038).
    Raises `CannotStart` naming every place that was tried.
    """
    extensions = [""]
    if windows:
        listed = (pathext or os.environ.get("PATHEXT") or ".COM;.EXE;.BAT;.CMD").split(";")
        has_one = any(command.lower().endswith(extension.lower()) for extension in listed if extension)
        extensions = [""] if has_one else [extension for extension in listed if extension]
    separators = ("/", "\\") if windows else ("/",)
    if any(separator in command for separator in separators):
        folders, shown = [cwd], str(cwd / command)
    else:
        entries = [entry for entry in path.split(";" if windows else os.pathsep) if entry]
        folders = [cwd / entry for entry in entries]
        shown = f"`{command}`, looked for in PATH: {', '.join(entries) or 'it is empty'}"
    blocked: Path | None = None
    for folder in folders:
        for extension in extensions:
            candidate = folder / (command + extension)
            if candidate.is_file():
                if windows or os.access(candidate, os.X_OK):
                    return str(candidate)
                blocked = blocked or candidate
    if blocked is not None:
        raise CannotStart(Fault("not_executable", executed="no", detail=str(blocked)))
    if any((folder / command).is_dir() for folder in folders if "/" in command):
        raise CannotStart(Fault("not_executable", executed="no", detail=f"{shown} is a directory"))
    kind = "command_line" if any(blank in command.strip() for blank in " \t") else "command_missing"
    raise CannotStart(Fault(kind, executed="no", detail=shown))


def batch_line(executable: str, args: tuple[str, ...]) -> str:
    """A cmd.exe line for a batch file, in which no argument can start another command.

    Written for Windows and tested as text only. Raises `CannotStart` for arguments that cmd.exe cannot take
    safely: line breaks, and quotes, which batch files re-read when they pass `%*` on.
    """
    words = []
    for word in (executable, *args):
        if re.search(r'[\r\n\0"]', word):
            raise CannotStart(
                Fault("not_executable", executed="no", detail="a batch file takes no quotes or line breaks")
            )
        # Inside quotes only % is still special; `%%cd:~,%` is an empty expansion followed by the sign.
        words.append('"' + word.replace("%", "%%cd:~,%") + '"')
    return " ".join(words)
