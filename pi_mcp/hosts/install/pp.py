"""pp (`pp-coding-agent`): an extension that is a Python package in the directory that it shares with Pi."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from pi_mcp.hosts.install.found import of_python
from pi_mcp.hosts.install.plan import Found
from pi_mcp.hosts.install.shim_host import CLIENT, ShimHost
from pi_mcp.hosts.install.surroundings import Surroundings


class Pp(ShimHost):
    name = "pp"
    title = "pp"
    # pp loads `extensions/*/__init__.py` and nothing else of such a folder; Pi wants an index.ts and passes it by.
    places = MappingProxyType({**{name: name for name in CLIENT}, "pp.py": "__init__.py"})

    def folder(self, around: Surroundings) -> Path:
        return around.pi_directory / "extensions" / "pi_mcp_pp"

    def detect(self, around: Surroundings) -> Found:
        return of_python(around, "pp", "pp-coding-agent")

    def warnings(self, around: Surroundings) -> list[str]:
        if self.detect(around).present:
            return []
        return ["pp was not found on the PATH; the extension is for one that reads this folder."]

    def next_steps(self, around: Surroundings) -> tuple[str, ...]:
        del around
        return ("Start `pp` anew and type `/mcp`.",)
