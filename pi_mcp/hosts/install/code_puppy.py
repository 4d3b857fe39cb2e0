"""code-puppy: a user plugin. Its folder is below the home whatever XDG variables say (read in 0.0.946).

The folder's name becomes a package in code-puppy's process, so it is one that no installed package has.
"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from pi_mcp.hosts.install.found import of_python
from pi_mcp.hosts.install.plan import Found
from pi_mcp.hosts.install.shim_host import CLIENT, ShimHost
from pi_mcp.hosts.install.surroundings import Surroundings


class CodePuppy(ShimHost):
    name = "code-puppy"
    title = "code-puppy"
    places = MappingProxyType({**{name: name for name in CLIENT}, "code_puppy.py": "register_callbacks.py"})

    def folder(self, around: Surroundings) -> Path:
        return around.home / ".code_puppy" / "plugins" / "pi_mcp_code_puppy"

    def detect(self, around: Surroundings) -> Found:
        return of_python(around, "code-puppy", "code-puppy")

    def warnings(self, around: Surroundings) -> list[str]:
        if self.detect(around).present:
            return []
        return ["code-puppy was not found on the PATH; the plugin is for one that reads this folder."]

    def next_steps(self, around: Surroundings) -> tuple[str, ...]:
        del around
        return (
            "Start `code-puppy` anew and type `/mcp`. Words that pi-mcp does not know go to code-puppy's own `/mcp`.",
            "Servers that code-puppy has itself stay there: `pi-mcp add` takes them over one by one.",
        )
