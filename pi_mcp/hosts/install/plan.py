"""What an installation would do, as values: changes of files, what stays, what to tell the person.

Comes in: nothing but values. Goes out: `Plan`, which shows itself without a secret. It reads and writes no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pi_mcp.errors import Diagnostic
from pi_mcp.hosts.install.surroundings import Surroundings
from pi_mcp.text import clean_line

Verb = Literal["install", "uninstall"]
Kind = Literal["host", "client", "library"]
"""host: gets a shim in its plugin folder. client: gets the gateway's entry. library: is told what to write."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file before and after; None is no file. Both may hold a person's secrets and are in no repr."""

    path: Path
    before: bytes | None = field(repr=False)
    after: bytes | None = field(repr=False)
    shown: tuple[str, ...] = ()
    """The lines that change, masked, each with its `+` or `-`."""
    quiet: bool = False
    """Our own record, of no interest to the person."""

    @property
    def action(self) -> Literal["create", "change", "remove"]:
        return "create" if self.before is None else "remove" if self.after is None else "change"

    def to_json(self) -> dict[str, Any]:
        """`{path, action, lines}`."""
        return {"path": str(self.path), "action": self.action, "lines": list(self.shown)}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that one `install` or `uninstall` would do to one host or client."""

    target: str
    title: str
    verb: Verb
    changes: tuple[Change, ...] = ()
    """In the order of writing: a break between any two of them is mended by the same command again."""
    folders: tuple[Path, ...] = ()
    """Ours, to be removed when they are empty in the end; the inner ones first."""
    kept: tuple[str, ...] = ()
    """What stays although it is in the place of ours, and why: sentences."""
    problem: Diagnostic | None = None
    """Why nothing is done here."""
    warnings: tuple[str, ...] = ()
    next_steps: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()

    @property
    def visible(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if not change.quiet)

    def text(self, said: set[str]) -> str:
        """The plan for a person, before anything is done: several lines, cleaned, without a secret. A `problem` is
        not in it: that is reported as every failure is.

        `said` holds the warnings that were shown before and is added to.
        """
        lines = [f"{self.title} ({self.target})"]
        for change in self.visible:
            lines.append(f"  {change.action:<7} {clean_line(str(change.path), 1000)}")
            lines.extend(f"    {line}" for line in change.shown)
        if self.problem is None and not self.visible and not self.kept and (self.undo or self.verb == "uninstall"):
            lines.append("  There is nothing to do.")
        lines.extend(f"  kept: {line}" for line in self.kept)
        lines.extend(f"  warning: {line}" for line in self.warnings if line not in said)
        said.update(self.warnings)
        return "\n".join(lines)

    @property
    def afterwards(self) -> str:
        """What to do next and how to go back."""
        lines = [*self.next_steps, *(f"To go back: {line}" for line in self.undo)]
        return "\n".join(f"  {line}" for line in lines)

    def to_json(self, *, written: bool) -> dict[str, Any]:
        """`{host, action, written, changes, kept, warnings, next, undo, error}`."""
        return {
            "host": self.target,
            "action": self.verb,
            "written": written,
            "changes": [change.to_json() for change in self.visible],
            "kept": list(self.kept),
            "warnings": list(self.warnings),
            "next": list(self.next_steps),
            "undo": list(self.undo),
            "error": self.problem.to_json() if self.problem else None,
        }


@dataclass(frozen=True, slots=True)
class Found:
    """Whether a host or client is on this machine, and which version."""

    present: bool
    version: str | None = None
    where: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """`{found, version, where}`."""
        return {"found": self.present, "version": self.version, "where": str(self.where) if self.where else None}


@dataclass(frozen=True, slots=True)
class Installed:
    """What of ours is there: `none`, `current`, `outdated` (install again), `changed` (by hand, or not
    to be read: we keep off)."""

    state: Literal["none", "current", "outdated", "changed"]
    version: str | None = None
    path: Path | None = None

    def to_json(self) -> dict[str, Any]:
        """`{installed, installedVersion, path}`."""
        return {
            "installed": self.state,
            "installedVersion": self.version,
            "path": str(self.path) if self.path else None,
        }


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the person asked for besides the name."""

    url: str | None = None
    """The address of a running gateway, in the place of a command that starts one."""
    project: bool = False
    """The current folder's file in the place of the person's own."""
    token_env: str | None = None
    """The variable that holds the gateway's key; with `url` alone."""


class Target(Protocol):
    """A host or client that pi-mcp can be installed into. Reads files; writes none."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def kind(self) -> Kind: ...

    def detect(self, around: Surroundings) -> Found:
        """Look for it; at most `found.LIMIT` seconds, no network."""

    def installed(self, around: Surroundings) -> Installed:
        """Look for what we wrote."""

    def install(self, around: Surroundings, wishes: Wishes) -> Plan:
        """Never raises for what is in the files: see `Plan.problem`."""

    def uninstall(self, around: Surroundings, wishes: Wishes) -> Plan:
        """As `install`."""


def counts(before: bytes | None, after: bytes | None) -> str:
    """`12 lines`, or `+3 -1 lines` for a change, of a file that is ours as a whole."""
    import difflib

    old = (before or b"").decode(errors="replace").splitlines()
    new = (after or b"").decode(errors="replace").splitlines()
    if before is None or after is None:
        count = len(new or old)
        return "1 line" if count == 1 else f"{count} lines"
    marks = [line[0] for line in difflib.ndiff(old, new)]
    return f"+{marks.count('+')} -{marks.count('-')} lines"


def as_record(value: Mapping[str, Any]) -> bytes:
    """How our own JSON files are written."""
    import json

    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
