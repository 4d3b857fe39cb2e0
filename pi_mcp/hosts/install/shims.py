"""A host with a plugin folder: our shim in it, and a record of exactly what was put there.

Comes in: the shim's source files and a folder. Goes out: plans that write, renew or remove these files and nothing
else. `pi_mcp_shim.json` in the folder says how to start the engine and holds the SHA-256 of every file: what differs
from it was changed by the person and stays; what it does not name is not ours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pi_mcp.errors import Diagnostic, PiMcpError, failure
from pi_mcp.hosts.install.apply import read
from pi_mcp.hosts.install.plan import Change, Installed, as_record, counts
from pi_mcp.hosts.install.surroundings import Surroundings
from pi_mcp.text import clean_line

RECORD = "pi_mcp_shim.json"
_SKIPPED = ("__pycache__", "node_modules", "test", "tests")


@dataclass(frozen=True, slots=True)
class Shim:
    """What is copied where. Paths in the folder use `/`; the file that the host loads is the last one."""

    host: str
    folder: Path
    files: Mapping[str, bytes] = field(repr=False)
    record: str = RECORD
    """Where the record stands: beside the host's file, which reads it."""


@dataclass(frozen=True, slots=True)
class Steps:
    """One part of a plan."""

    changes: tuple[Change, ...] = ()
    kept: tuple[str, ...] = ()
    problem: Diagnostic | None = None
    folders: tuple[Path, ...] = ()


def sources(around: Surroundings, places: Mapping[str, str]) -> dict[str, bytes]:
    """`{place in the folder: content}` from `{source below shims/: place}`; a source that is a folder goes whole.

    Raises ServerError when this pi-mcp has no such file.
    """
    found: dict[str, bytes] = {}
    for source, place in places.items():
        path = around.shims / source
        if path.is_dir():
            inner = [
                file
                for file in sorted(path.rglob("*"))
                if file.is_file()
                and not any(part in _SKIPPED or part.startswith(".") for part in file.relative_to(path).parts)
            ]
            # The file that hosts look for comes last: a folder without it is no plugin yet.
            inner.sort(key=lambda file: file.name in ("index.ts", "package.json"))
            found.update({place + file.relative_to(path).as_posix(): file.read_bytes() for file in inner})
        elif path.is_file():
            found[place] = path.read_bytes()
    missing = [source for source in places if not (around.shims / source).exists()]
    if missing or not found:
        raise failure(
            "operation_failed",
            "command",
            None,
            f"This pi-mcp is not whole: {' and '.join(missing)} is missing.",
            "Install pi-mcp again.",
        )
    return found


def place(shim: Shim, around: Surroundings) -> Steps:
    """The changes that put the shim there as it is in this pi-mcp; none when it is there."""
    try:
        _refuse_links(shim)
        old = _record(shim)
        known = _known(old)
        _refuse_links(shim, known)
        record = shim.folder / shim.record
        wanted = {name: _digest(data) for name, data in shim.files.items()}
        changes: list[Change] = []
        for name, data in shim.files.items():
            path = shim.folder / name
            before = read(path)
            if before == data:
                continue
            if before is not None and _digest(before) not in known.get(name, ()):
                raise _foreign(path, named=name in known)
            changes.append(Change(path, before, data, (counts(before, data),)))
        kept: list[str] = []
        for name in known.keys() - wanted.keys():
            path = shim.folder / name
            before = read(path)
            if before is not None and _digest(before) in known[name]:
                changes.append(Change(path, before, None, ("of an earlier version",)))
            elif before is not None:
                kept.append(f"{clean_line(str(path), 1000)} was changed by hand.")
        final: dict[str, Any] = {
            "command": [*around.command, "engine"],
            "version": around.version,
            "host": shim.host,
            "files": wanted,
        }
        final["check"] = _check(final)
        before = read(record)
        after = as_record(final)
        if before != after:
            if changes:
                # Written first, with old and new sums: a break after it leaves no file that nobody knows.
                names = sorted(wanted.keys() | known.keys())
                sums = {name: sorted({wanted.get(name, ""), *known.get(name, ())} - {""}) for name in names}
                journal = {**final, "files": sums}
                journal["check"] = _check(journal)
                changes.insert(0, Change(record, before, as_record(journal), quiet=True))
                changes.append(Change(record, as_record(journal), after, (f"starts {_shown(around.command)}",)))
                if before is None:
                    changes[-1] = Change(record, None, after, changes[-1].shown)
            else:
                changes.append(Change(record, before, after, (f"starts {_shown(around.command)}",)))
        return Steps(tuple(changes), tuple(kept))
    except PiMcpError as error:
        return Steps(problem=error.diagnostic)


def take_away(shim: Shim) -> Steps:
    """The changes that remove what the record names and nobody changed since."""
    try:
        old = _record(shim)
        if old is None:
            if shim.folder.is_dir() and any(shim.folder.iterdir()):
                return Steps(kept=(f"{clean_line(str(shim.folder), 1000)} is not from pi-mcp.",))
            return Steps()
        known = _known(old)
        _refuse_links(shim, known)
        changes: list[Change] = []
        kept: list[str] = []
        for name in _loaded_first(known):
            path = shim.folder / name
            before = read(path)
            if before is not None and _digest(before) in known[name]:
                changes.append(Change(path, before, None, (counts(before, None),)))
            elif before is not None:
                kept.append(f"{clean_line(str(path), 1000)} was changed by hand. Remove it yourself.")
        record = shim.folder / shim.record
        if not kept:  # with it a later run still knows the others
            changes.append(Change(record, read(record), None, ("the record of these files",)))
        inner = {folder for name in (*known, shim.record) for folder in Path(name).parents if folder != Path()}
        folders = sorted(inner, key=lambda folder: -len(folder.parts))
        return Steps(tuple(changes), tuple(kept), folders=(*(shim.folder / one for one in folders), shim.folder))
    except PiMcpError as error:
        return Steps(problem=error.diagnostic)


def state_of(shim: Shim, around: Surroundings) -> Installed:
    """What `pi-mcp hosts` says about it."""
    try:
        old = _record(shim)
    except PiMcpError:
        return Installed("changed", None, shim.folder)
    if old is None:
        return Installed("none")
    version = old.get("version")
    version = clean_line(version, 40) if isinstance(version, str) else None
    steps = place(shim, around)
    state = "changed" if steps.problem else "outdated" if steps.changes else "current"
    return Installed(state, version, shim.folder)  # type: ignore[arg-type]


def _record(shim: Shim) -> dict[str, Any] | None:
    """The record in the folder, None when there is none. Raises ConfigurationError for one that is not ours."""
    path = shim.folder / shim.record
    data = read(path)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise _foreign(path, named=True) from None
    if not isinstance(value, dict) or value.get("host") != shim.host:
        raise _foreign(path, named=False)
    if "check" in value and value["check"] != _check(value):
        raise _foreign(path, named=True)
    return value


def _known(record: Mapping[str, Any] | None) -> dict[str, tuple[str, ...]]:
    """`{name: sums}` of a record; names that lead out of the folder do not count."""
    named = (record or {}).get("files")
    known: dict[str, tuple[str, ...]] = {}
    for name, sums in named.items() if isinstance(named, dict) else ():
        parts = Path(name).parts
        if parts and not Path(name).is_absolute() and ".." not in parts:
            known[name] = tuple(map(str, sums)) if isinstance(sums, list) else (str(sums),)
    return known


def _loaded_first(names: Mapping[str, Any]) -> list[str]:
    """The host's own file goes first, so that it never loads half of a shim."""
    first = ("index.ts", "package.json", "__init__.py", "register_callbacks.py")
    return sorted(names, key=lambda name: (Path(name).name not in first, name))


def _refuse_links(shim: Shim, known: Iterable[str] = ()) -> None:
    """`known` are the names of a record, which may be anybody's: through a link they would lead out of the folder."""
    inner = {shim.folder / parent for name in (*shim.files, shim.record, *known) for parent in Path(name).parents}
    for folder in sorted(inner):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise _foreign(folder, named=False)


def _foreign(path: Path, *, named: bool) -> PiMcpError:
    what = "was changed by hand" if named else "is not from pi-mcp"
    return failure(
        "configuration_invalid",
        "command",
        None,
        f"{clean_line(str(path), 1000)} {what} and stays as it is; nothing was written.",
        "Move it away, then repeat this.",
    )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _check(record: Mapping[str, Any]) -> str:
    """A sum over the record itself: it tells a hand's change from an earlier version."""
    rest = {key: value for key, value in record.items() if key != "check"}
    return _digest(json.dumps(rest, sort_keys=True).encode())


def _shown(command: tuple[str, ...]) -> str:
    return clean_line(" ".join((*command, "engine")), 500)
