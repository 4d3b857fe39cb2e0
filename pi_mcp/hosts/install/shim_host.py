"""What hosts with a plugin folder have in common; each host's own module says the rest.

Comes in: a host's places and sentences. Goes out: its plans. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pi_mcp.errors import PiMcpError, failure
from pi_mcp.hosts.install import shims
from pi_mcp.hosts.install.plan import Change, Found, Installed, Kind, Plan, Wishes
from pi_mcp.hosts.install.surroundings import Surroundings

CLIENT = ("engine_values.py", "engine_process.py", "engine_records.py", "engine_client.py")
"""What every Python shim has beside it."""


class ShimHost:
    """A `Target` whose shim is files in one folder. A subclass is a host."""

    name = ""
    title = ""
    kind: Kind = "host"
    places: ClassVar[Mapping[str, str]]
    """`{source below shims/: place in the folder}`; the file that the host loads is the last."""
    markers: ClassVar[Mapping[str, bytes]] = {}
    """Files that the host wants and that say nothing."""
    record: ClassVar[str] = shims.RECORD

    def folder(self, around: Surroundings) -> Path:
        """Where the shim goes; nothing but the shim is in it."""
        raise NotImplementedError

    def detect(self, around: Surroundings) -> Found:
        raise NotImplementedError

    def warnings(self, around: Surroundings) -> list[str]:
        """What to know before."""
        del around
        return []

    def next_steps(self, around: Surroundings) -> tuple[str, ...]:
        raise NotImplementedError

    def settings(self, around: Surroundings, *, present: bool) -> tuple[Change, ...]:
        """Changes to the host's own configuration, where a folder alone is not enough. Raises PiMcpError."""
        del around, present
        return ()

    def installed(self, around: Surroundings) -> Installed:
        try:
            state = shims.state_of(self._shim(around), around)
            if state.state == "current" and self.settings(around, present=True):
                return Installed("outdated", state.version, state.path)
            return state
        except PiMcpError:
            there = (self.folder(around) / self.record).exists()
            return Installed("changed" if there else "none", None, self.folder(around) if there else None)

    def install(self, around: Surroundings, wishes: Wishes) -> Plan:
        def plan(**more: Any) -> Plan:
            return Plan(self.name, self.title, "install", **more)

        try:
            self._no_wishes(wishes)
            steps = shims.place(self._shim(around), around)
            if steps.problem is not None:
                return plan(problem=steps.problem)
            changes = (*steps.changes, *self.settings(around, present=True))
            warnings = self.warnings(around) if changes else []
            return plan(
                changes=changes,
                kept=steps.kept,
                warnings=(*warnings, *filter(None, [around.passing])),
                next_steps=self.next_steps(around),
                undo=(f"pi-mcp uninstall {self.name}",),
            )
        except PiMcpError as error:
            return plan(problem=error.diagnostic)

    def uninstall(self, around: Surroundings, wishes: Wishes) -> Plan:
        def plan(**more: Any) -> Plan:
            return Plan(self.name, self.title, "uninstall", **more)

        try:
            self._no_wishes(wishes)
            steps = shims.take_away(shims.Shim(self.name, self.folder(around), {}, self.record))
            if steps.problem is not None:
                return plan(problem=steps.problem)
            changes = (*self.settings(around, present=False), *steps.changes)
            return plan(changes=changes, kept=steps.kept, folders=steps.folders, next_steps=self.afterwards(around))
        except PiMcpError as error:
            return plan(problem=error.diagnostic)

    def afterwards(self, around: Surroundings) -> tuple[str, ...]:
        """What to do after it was removed."""
        del around
        return (
            f"Start {self.title} anew. Servers, logins and caches stay; `pi-mcp purge --all` takes the latter two.",
        )

    def _shim(self, around: Surroundings) -> shims.Shim:
        files = {**self.markers, **shims.sources(around, self.places)}
        return shims.Shim(self.name, self.folder(around), files, self.record)

    def _no_wishes(self, wishes: Wishes) -> None:
        if wishes != Wishes():
            raise failure(
                "usage",
                "command",
                None,
                f"--url, --token-env and --project are for clients of the gateway; {self.title} gets a plugin.",
                f"pi-mcp install {self.name}",
            )
