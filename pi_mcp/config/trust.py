"""What the person trusts: project files, the levels of single servers, and servers switched on or off.

Comes in: answers of the person. Goes out: records in the state directory, and what they say. A record that
cannot be read, or that speaks of something else, means no: untrusted, switched off. It never reads a project's
file and starts nothing.

    trust/projects/SHA-256(absolute path).json         {version, path, sha256, switches: {server: disabled}}
    trust/levels/SHA-256(name NUL digest).json         {version, name, digest, level}

One file per record, so that a damaged one denies only what it speaks of.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pi_mcp import files
from pi_mcp.config.definition import Configuration, ServerDefinition, TrustLevel
from pi_mcp.errors import Diagnostic, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from pi_mcp.host import Host

VERSION = 1
MAX_RECORD = 1024 * 1024
"""Bytes of one record; a project with a thousand switched servers needs a twentieth of it."""

# What does not change what a server is: where its entry stands, whether it is on, the level itself, and what the
# person says of its tools.
_NOT_DEFINING = frozenset({"source", "base_dir", "disabled", "trust", "access"})


def definition_digest(definition: ServerDefinition) -> str:
    """SHA-256, hex, of a definition as it is written, before interpolation.

    Every field counts except its line, `disabled`, `trust` and `access`. For a server of a project the file's path
    counts too: the same relative command is another program in another project.
    """
    import hashlib

    fields = {
        name: _plain(getattr(definition, name)) for name in definition.__dataclass_fields__ if name not in _NOT_DEFINING
    }
    if definition.source.scope == "project" and definition.source.path is not None:
        fields["project"] = _absolute(definition.source.path)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


async def ask_trust(configuration: Configuration, host: Host, *, store: TrustStore | None = None) -> bool:
    """Put the trust question of the configuration's project to the person; True when it was answered with yes.

    One question, which shows `configuration.project.text`. A yes is stored for exactly the content that was shown.
    A no is not stored: the next session asks again. Headless, or without a project that waits: False.
    """
    project = configuration.project
    if project is None or not host.interactive:
        return False
    question = f"Trust the MCP servers of {clean_line(str(project.path), 1000)}?"
    details = (
        f"{project.text}\n"
        "A yes lets these commands run with your rights and these addresses be contacted, with the variables "
        "that they name. It holds until the file changes."
    )
    if await host.confirm(question, details) is not True:  # anything else is no yes
        return False
    import asyncio  # a load of the configuration alone has no use for it

    records = store or TrustStore()
    # The lock of the store blocks, so it is not taken on the event loop.
    await asyncio.to_thread(records.trust_project, project.path, project.sha256)
    return True


@dataclass(frozen=True, slots=True)
class _Kind:
    """One kind of record: its folder, and the members that say what it speaks of."""

    folder: str
    identity: tuple[str, ...]


_PROJECT = _Kind("projects", ("path",))
_LEVEL = _Kind("levels", ("name", "digest"))


class TrustStore:
    """The trust records below one state directory. Methods block for one small file, the writing ones also for
    the lock between processes (10 s at most, then `busy`)."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = (files.state_dir() if directory is None else directory) / "trust"
        self._problems: dict[Path, Diagnostic] = {}

    @property
    def problems(self) -> tuple[Diagnostic, ...]:
        """One diagnostic for each record that could not be read so far."""
        return tuple(self._problems.values())

    def trust_project(self, path: Path, sha256: str) -> None:
        """Trust the file at `path` as long as its content has this SHA-256 (hex). Its switches stay."""

        def trusted(record: dict[str, Any]) -> None:
            record["sha256"] = sha256.lower()

        self._change(_PROJECT, (_absolute(path),), trusted)

    def revoke(self, path: Path) -> bool:
        """Trust the project's file no longer; True when it was trusted. Its switches stay."""
        was_trusted = False

        def untrusted(record: dict[str, Any]) -> None:
            nonlocal was_trusted
            was_trusted = record.pop("sha256", None) is not None

        self._change(_PROJECT, (_absolute(path),), untrusted)
        return was_trusted

    def is_trusted(self, path: Path, sha256: str) -> bool:
        """Did the person trust the file at this path with this content?"""
        record = self._read(_PROJECT, (_absolute(path),))
        stored = record.get("sha256") if record else None
        return isinstance(stored, str) and bool(stored) and stored == sha256.lower()

    def switch(self, path: Path, name: str, disabled: bool) -> None:
        """`/mcp disable` (True) or `/mcp enable` (False) of a server of the project file at `path`."""

        def switched(record: dict[str, Any]) -> None:
            switches = record.get("switches")
            record["switches"] = {**(switches if isinstance(switches, dict) else {}), name: bool(disabled)}

        self._change(_PROJECT, (_absolute(path),), switched)

    def switched(self, path: Path, name: str) -> bool | None:
        """True: switched off by the person; False: switched on; None: the file decides.

        A record that cannot be read means off.
        """
        record = self._read(_PROJECT, (_absolute(path),))
        if record is None:
            return True
        switches = record.get("switches", {})
        if not isinstance(switches, dict):
            return True
        value = switches.get(name)
        return value if value is None or isinstance(value, bool) else True

    def set_level(self, name: str, digest: str, level: TrustLevel) -> None:
        """`/mcp trust SERVER LEVEL`, for the definition with this `definition_digest` alone."""
        if level not in get_args(TrustLevel):
            raise failure(
                "configuration_invalid",
                "trust",
                clean_line(name),
                "This is not a trust level.",
                "Use trusted, verified or untrusted.",
            )

        def raised(record: dict[str, Any]) -> None:
            record["level"] = level

        self._change(_LEVEL, (name, digest), raised)

    @property
    def has_levels(self) -> bool:
        """False only where it is certain that the person never gave any definition a level."""
        try:
            os.lstat(self._directory / _LEVEL.folder)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def level(self, name: str, digest: str) -> TrustLevel | None:
        """The level that the person gave this definition; None when there is none.

        A record that cannot be read means `untrusted`.
        """
        record = self._read(_LEVEL, (name, digest))
        if record is None:
            return "untrusted"
        level = record.get("level")
        if level is None:
            return None
        return next((known for known in get_args(TrustLevel) if known == level), "untrusted")

    def _path(self, kind: _Kind, key: tuple[str, ...]) -> Path:
        import hashlib

        name = hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).hexdigest()
        return self._directory / kind.folder / f"{name}.json"

    def _read(self, kind: _Kind, key: tuple[str, ...]) -> dict[str, Any] | None:
        """The record; empty when there is none, None when it cannot be read (which is noted in `problems`)."""
        path = self._path(kind, key)
        try:
            data = _private_bytes(path)
            record = {} if data is None else _record(data, kind, key)
        except (OSError, ValueError, RecursionError):
            self._problems[path] = Diagnostic(
                "configuration_invalid",
                "trust",
                None,
                f"The trust record {path} cannot be read, so what it speaks of counts as untrusted.",
                "Remove the file and answer the question again.",
            )
            return None
        self._problems.pop(path, None)
        return record

    def _change(self, kind: _Kind, key: tuple[str, ...], change: Callable[[dict[str, Any]], None]) -> None:
        """Read, change and replace one record under the lock of the store."""
        path = self._path(kind, key)
        try:
            with files.locked(self._directory / "lock"):
                # A damaged record is replaced: the person has just said what is to hold.
                record = self._read(kind, key) or {}
                change(record)
                record |= {"version": VERSION, **dict(zip(kind.identity, key, strict=True))}
                files.write_private(path, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())
                self._problems.pop(path, None)
        except TimeoutError:
            raise failure(
                "busy",
                "trust",
                None,
                "Another process has the trust records open for more than 10 s.",
                "Repeat this in a moment.",
            ) from None
        except OSError:
            raise failure(
                "operation_failed",
                "trust",
                None,
                f"The trust record could not be written below {self._directory}; nothing changed.",
                "See that the folder is yours and the disk has room.",
            ) from None


def _absolute(path: Path) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - Path.absolute keeps "..", and one file must have one record


def _private_bytes(path: Path) -> bytes | None:
    """The content of a file that only its owner can have written; None when there is no file."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_RECORD:
        raise ValueError("not a record of ours")
    if hasattr(os, "getuid") and (info.st_uid != os.getuid() or info.st_mode & 0o022):
        raise ValueError("another user can write this record")
    return path.read_bytes()


def _record(data: bytes, kind: _Kind, key: tuple[str, ...]) -> dict[str, Any]:
    record = json.loads(data)
    if not isinstance(record, dict) or record.get("version") != VERSION:
        raise ValueError("foreign version")
    if tuple(record.get(name) for name in kind.identity) != key:
        raise ValueError("a record of something else")
    return record


def _plain(value: Any) -> Any:
    """A field of a definition as JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value
