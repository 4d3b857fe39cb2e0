"""Conversations kept for `--resume`: one private JSON file each.

Comes in: a chat's messages and loaded tools. Goes out: the same, later. No API key, and no part of a base URL that
could hold one, is ever written.
"""

from __future__ import annotations

import datetime
import json
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pi_mcp import files
from pi_mcp.errors import failure
from pi_mcp.text import clean_line

DAYS = 90.0
"""How long a chat is kept after its last turn, as long as a session's record."""
LARGEST = 256 << 20
"""Bytes of a chat file that is read; images in results make them large."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass
class Chat:
    """One conversation. `messages` are pydantic-ai's, as JSON; `loaded` are records of tools (DESIGN §3)."""

    id: str
    cwd: str
    model: str | None = None
    base_url: str | None = None
    title: str = ""
    search_text: str | None = None
    messages: list[Any] = field(default_factory=list)
    loaded: list[Mapping[str, Any]] = field(default_factory=list)
    demo: bool = False
    created: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)


def new_chat(cwd: Path) -> Chat:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return Chat(f"{stamp}-{secrets.token_hex(2)}", str(cwd))


class ChatStore:
    """The folder of chats."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def save(self, chat: Chat) -> None:
        """Write the chat; blocking. Chats that were not used for 90 days go."""
        chat.updated = time.time()
        document = {
            "version": 1,
            "id": chat.id,
            "cwd": chat.cwd,
            "model": chat.model,
            "baseUrl": without_secrets(chat.base_url),
            "title": clean_line(chat.title, 100),
            "searchText": chat.search_text,
            "demo": chat.demo,
            "created": chat.created,
            "updated": chat.updated,
            "loaded": list(chat.loaded),
            "messages": chat.messages,
        }
        files.write_private(self._directory / f"{chat.id}.json", json.dumps(document, ensure_ascii=False).encode())
        files.remove_older(self._directory, DAYS * 86400)

    def load(self, id: str, cwd: Path) -> Chat:
        """The chat of that id; "" is the latest one of this directory. Raises NotFound."""
        if id:
            chat = self._read(self._directory / f"{id}.json") if _ID.fullmatch(id) else None
            if chat is None:
                raise failure(
                    "not_found", "command", None, f"No chat is called {clean_line(id, 64)!r}.", self._recent()
                )
            return chat
        for path in self._paths():
            chat = self._read(path)
            if chat is not None and chat.cwd == str(cwd):
                return chat
        raise failure("not_found", "command", None, "There is no earlier chat in this directory.", self._recent())

    def _paths(self) -> list[Path]:
        """Chat files, the latest first."""
        dated = []
        for path in self._directory.glob("*.json"):
            try:
                dated.append((path.stat().st_mtime, path))
            except OSError:
                continue
        return [path for _, path in sorted(dated, reverse=True)]

    def _recent(self) -> str:
        recent = [path.stem for path in self._paths()[:5]]
        return f"Latest: {', '.join(recent)}." if recent else "Start one without --resume."

    def _read(self, path: Path) -> Chat | None:
        try:
            data = files.read_private(path, LARGEST)
            document = json.loads(data) if data is not None else None
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(document, dict) or document.get("version") != 1 or document.get("id") != path.stem:
            return None

        def text(key: str) -> str | None:
            value = document.get(key)
            return value if isinstance(value, str) else None

        def items(key: str) -> list[Any]:
            value = document.get(key)
            return value if isinstance(value, list) else []

        return Chat(
            path.stem,
            text("cwd") or "",
            text("model"),
            text("baseUrl"),
            text("title") or "",
            text("searchText"),
            items("messages"),
            [record for record in items("loaded") if isinstance(record, dict)],
            document.get("demo") is True,
            float(document.get("created") or 0),
        )


def without_secrets(url: str | None) -> str | None:
    """The URL when it has neither user, query nor fragment; None otherwise: it has to be given again."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.username or parts.password or parts.query or parts.fragment:
        return None
    return urlunsplit(parts)
