"""What a shim keeps of a conversation: records of loaded tools, a side file for each session, images as files.

Comes in: `details` as the engine gave them, and folders. Goes out: records in their order, and private files: 0600 in
0700, written whole, no link followed. A file that is damaged counts as none, and a disk that fails stops nothing. The
standard library alone is used (Python 3.10).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

KEEP_SECONDS = 90 * 86400.0
"""How long the side file of a session that nobody resumes is kept."""
LARGEST = 32 * 1024 * 1024
"""Bytes of a side file: twice what one line to the engine may hold."""
IMAGES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
"""What models take as an image, and how such a file ends."""
_HALF_PAIR = re.compile("[\ud800-\udfff]")


class SideFile:
    """What one session keeps beside the host's own file: the search tool's text, the loaded tools, their records."""

    def __init__(self, folder: Path, session: str) -> None:
        digest = hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()
        self.path = folder / f"{digest}.json"
        self._written: bytes | None = None
        self._writing = threading.Lock()

    def read(self) -> dict[str, Any]:
        """`{text, records, tools}`; empty where there is none that can be believed."""
        try:
            fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            with os.fdopen(fd, "rb") as file:
                # A pipe in its place would be waited for.
                info = os.fstat(file.fileno())
                if not stat.S_ISREG(info.st_mode) or info.st_size > LARGEST:
                    return {}
                data = file.read(LARGEST)
            # Halves of surrogate pairs could not be sent to any model.
            found = json.loads(_HALF_PAIR.sub("\ufffd", json.dumps(json.loads(data), ensure_ascii=False)))
        except (OSError, ValueError, RecursionError):
            return {}
        kept = found if isinstance(found, dict) and found.get("version") == 1 else {}
        kinds = {"text": str, "records": list, "tools": list}
        return {key: kept[key] for key, kind in kinds.items() if isinstance(kept.get(key), kind)}

    def write(self, content: Mapping[str, Any]) -> None:
        """Replace the file, private and whole; a disk that fails stops nothing."""
        data = json.dumps({"version": 1, **content}).encode()
        with self._writing:  # the host's thread writes, and the client's
            if data == self._written or len(data) > LARGEST:
                return
            try:
                _private(self.path.parent)
                if self._written is None:
                    self._sweep()
                _put(self.path, data)
                self._written = data
            except OSError:
                return

    def _sweep(self) -> None:
        for path in self.path.parent.iterdir():
            with contextlib.suppress(OSError):
                if path.suffix in (".json", ".tmp") and path.stat().st_mtime < time.time() - KEEP_SECONDS:
                    path.unlink()


def default_side_dir(host: str) -> Path | None:
    """Below the user's state folder, by host; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        if sys.platform == "darwin":
            base = Path.home() / "Library" / "Application Support"
        else:
            base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return base / "pi-mcp" / "shims" / "".join(char if char.isalnum() or char in "-_" else "_" for char in host)


RECORD = {"native": str, "server": str, "tool": str, "hash": str, "definition": dict}
"""The members of a record; what has not all of them is none, and is not sent to the engine."""


def unique_records(records: Iterable[Any]) -> list[dict[str, Any]]:
    """Records of several tool results as one list: each tool at its first place, with its newest definition."""
    found: dict[str, dict[str, Any]] = {}
    for record in records if isinstance(records, Iterable) else ():
        if isinstance(record, Mapping) and all(isinstance(record.get(name), kind) for name, kind in RECORD.items()):
            found[record["native"]] = {name: record[name] for name in RECORD}
    return list(found.values())


def records_in(details: Any) -> list[dict[str, Any]]:
    """The records in the `details` that a host kept with one tool result; none in what is not ours."""
    loaded = details.get("loaded") if isinstance(details, Mapping) else None
    return unique_records(loaded) if isinstance(loaded, list) else []


def arguments_in(text: str | None) -> dict[str, Any] | None:
    """The JSON object that a model wrote as text, None where it is none."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def keep_image(folder: Path, data: str, kind: str) -> Path | None:
    """An image block as a private file in `folder`, for hosts whose messages have files; None if it cannot be one."""
    try:
        content = base64.b64decode(data, validate=True)
        path = folder / f"mcp-{hashlib.sha256(content).hexdigest()[:16]}{IMAGES[kind]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _put(path, content)
    except (OSError, ValueError, KeyError):
        return None
    return path


def _private(folder: Path) -> None:
    """Make it, and what is missing above it, 0700."""
    for each in reversed((folder, *folder.parents)):  # `parents=True` would leave those between open to others
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)


def _put(path: Path, data: bytes) -> None:
    """Write a private file whole or not at all; a link in its place is replaced. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
