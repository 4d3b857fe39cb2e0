"""A session's record on disk: the text of its search tool, its loaded tools, whose instructions it has seen.

Comes in: a state directory, a session's id, and what is to be kept. Goes out: the same in a later process. A file
that is damaged, foreign or another user's counts as absent, and one that cannot be written stops nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.errors import PiMcpError

log = logging.getLogger("pi_mcp.tools")

VERSION = 1
KEEP_SECONDS = 90 * 86400.0
"""How long a session that nobody resumes is kept."""
MAX_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Kept:
    """What one session had when it was last written."""

    text: str | None = None
    """The description of `mcp_search`, None where it was never read."""
    loaded: tuple[Mapping[str, Any], ...] = ()
    """Records (DESIGN §3) in the order of loading; not checked."""
    instructed: frozenset[str] = frozenset()
    """Servers whose instructions the conversation has."""


class KeptSession:
    """The file of one session id."""

    def __init__(self, state_dir: Path, id: str) -> None:
        digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        self._path = state_dir / "sessions" / f"{digest}.json"
        self._order = asyncio.Lock()
        self._written: bytes | None = None

    async def read(self) -> Kept | None:
        return await asyncio.to_thread(self._read)

    async def write(self, text: str | None, records: Iterable[Mapping[str, Any]], instructed: Iterable[str]) -> None:
        """Replace the file, unless it says this already. The content is that of the moment of the call."""
        content = {
            "version": VERSION,
            "text": text,
            "loaded": list(records),
            "instructed": sorted(instructed),
        }
        data = json.dumps(content).encode()
        # One after the other: an older state must not overtake a newer one.
        async with self._order:
            if data == self._written:
                return
            try:
                await asyncio.to_thread(self._replace, data)
            except (OSError, PiMcpError) as error:
                # A full disk must not lose the search or the call that is under way.
                log.warning("a session record could not be written: %s", error)
                return
            self._written = data

    def _replace(self, data: bytes) -> None:
        files.write_private(self._path, data)
        files.remove_older(self._path.parent, KEEP_SECONDS)

    def _read(self) -> Kept | None:
        try:
            data = files.read_private(self._path, MAX_BYTES)
            content = None if data is None else json.loads(data)
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(content, dict) or content.get("version") != VERSION:
            return None
        text, loaded, instructed = (content.get(key) for key in ("text", "loaded", "instructed"))
        return Kept(
            text if isinstance(text, str) and text else None,
            tuple(record for record in loaded if isinstance(record, dict)) if isinstance(loaded, list) else (),
            frozenset(name for name in instructed if isinstance(name, str))
            if isinstance(instructed, list)
            else frozenset(),
        )
