"""One conversation's `Host`, whose person sits at the other end of the line.

Comes in: what the host said of itself (`Introduction`), and questions of a session. Goes out: requests and
notifications to the shim, and answers that are what they should be or count as dismissed. It owns no process.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from pi_mcp.config import policy
from pi_mcp.errors import failure
from pi_mcp.host import Level
from pi_mcp.text import clean_line

UI = frozenset({"confirm", "select", "input", "elicit", "open_url", "progress"})
PROGRESS_EVERY = 0.1
"""Seconds between two reports of one request: a server may send thousands."""

_UNUSABLE = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""No file system has these in a path; what is left of the surrogates are bytes that are no UTF-8."""

REQUEST: ContextVar[Any] = ContextVar("REQUEST", default=None)
"""The id of the host's request that is being worked at."""

Ask = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Sends a request of the engine; its result, or None when it failed."""
Tell = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class Introduction:
    """What a host says of itself in `initialize`."""

    host: str
    version: str
    cwd: str
    interactive: bool
    ui: frozenset[str]
    allowed: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()
    max_tools: int | None = None

    @classmethod
    def read(cls, params: Mapping[str, Any]) -> Introduction:
        """Raises ConfigurationError `usage`, which names the member that is wrong."""
        ui = _strings(params, "ui")
        most = params.get("maxTools")
        if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 0):
            raise wrong("maxTools", "a whole number")
        cwd = params.get("cwd")
        if not isinstance(cwd, str) or not PurePath(cwd).is_absolute() or _UNUSABLE.search(cwd):
            raise wrong("cwd", "an absolute path")
        host, version = params.get("host"), params.get("hostVersion", "")
        if not isinstance(host, str) or not host:
            raise wrong("host", "the host's name")
        return cls(
            clean_line(host, 64),
            clean_line(version, 64) if isinstance(version, str) else "",
            cwd,
            params.get("interactive") is True,
            UI & set(ui or ()),
            _strings(params, "allowed"),
            _strings(params, "excluded") or (),
            most,
        )


def wrong(member: str, wanted: str) -> Exception:
    return failure("usage", "command", None, f"The parameter {member!r} must be {wanted}.", "See docs/engine.md.")


def _strings(params: Mapping[str, Any], member: str) -> tuple[str, ...] | None:
    value = params.get(member)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise wrong(member, "a list of strings")
    return tuple(value)


class Questions:
    """What can be asked through the line; each is dismissed where the host cannot show it."""

    def __init__(self, session: str, about: Introduction, ask: Ask) -> None:
        self._session = session
        self._about = about
        self._ask = ask
        # Somebody can answer a yes-or-no question, at least.
        self.interactive = about.interactive and bool(about.ui & {"confirm", "select"})

    async def confirm(self, question: str, details: str) -> bool:
        if not self.interactive:
            return False
        if "confirm" in self._about.ui:
            answer = await self._asked("confirm", question=question, details=details)
            return _member(answer, "ok") is True
        whole = f"{question}\n{details}" if details else question
        return await self.select(whole, ["No", "Yes"]) == "Yes"

    async def select(self, question: str, choices: Sequence[str]) -> str | None:
        if not self._about.interactive or "select" not in self._about.ui:
            return None
        choice = _member(await self._asked("select", question=question, choices=list(choices)), "choice")
        return choice if isinstance(choice, str) and choice in choices else None

    async def input(self, question: str, *, secret: bool = False) -> str | None:
        if not self._about.interactive or "input" not in self._about.ui:
            return None
        text = _member(await self._asked("input", question=question, secret=secret), "text")
        return text if isinstance(text, str) else None

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        """The host's own form where it has one, else the fields one by one."""
        if not self._about.interactive:
            return None
        if "elicit" in self._about.ui:
            content = _member(await self._asked("elicit", schema=dict(schema), message=message), "content")
            return content if isinstance(content, dict) else None
        from pi_mcp.hosts.engine.forms import ask_fields

        return await ask_fields(self, schema, message)

    async def open_url(self, url: str) -> bool:
        if "open_url" in self._about.ui:
            return _member(await self._asked("openUrl", url=url), "ok") is True
        if not self._about.interactive:
            return False
        from pi_mcp.hosts.browser import open_browser

        return await open_browser(url)

    async def _asked(self, method: str, **params: Any) -> Any:
        return await self._ask(method, {"session": self._session, **params})


@dataclass
class EngineHost:
    """Asks and tells through the line, one question or form at a time."""

    session: str
    about: Introduction
    ask: Ask = field(repr=False)
    tell: Tell = field(repr=False)
    changed: Callable[[], None] = field(repr=False)

    def __post_init__(self) -> None:
        self._reported: dict[Any, float] = {}
        self._questions = Questions(self.session, self.about, self.ask)
        # A host has one place for a dialog, and the fields of two forms belong apart.
        self._turn = asyncio.Lock()
        self.interactive = self._questions.interactive
        self.max_tools = self.about.max_tools

    async def notify(self, level: Level, text: str) -> None:
        self.tell("notify", {"session": self.session, "level": level, "text": text})

    async def confirm(self, question: str, details: str) -> bool:
        async with self._turn:
            return await self._questions.confirm(question, details)

    async def select(self, question: str, choices: Sequence[str]) -> str | None:
        async with self._turn:
            return await self._questions.select(question, choices)

    async def input(self, question: str, *, secret: bool = False) -> str | None:
        async with self._turn:
            return await self._questions.input(question, secret=secret)

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        async with self._turn:
            return await self._questions.elicit(schema, message)

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Of the request that is being worked at; what goes on without one has no place on a host's screen."""
        if (request := REQUEST.get()) is not None:
            self.report(request, text, done, total)

    def report(self, request: Any, text: str, done: float | None, total: float | None) -> None:
        """Progress of one request of the host."""
        if "progress" not in self.about.ui:
            return
        now = time.monotonic()
        if now - self._reported.get(request, -1.0) < PROGRESS_EVERY:
            return
        self._reported = {request: now} if len(self._reported) > 64 else {**self._reported, request: now}
        told: dict[str, Any] = {"session": self.session, "id": request, "text": text}
        for key, value in (("done", done), ("total", total)):
            if value is not None:
                told[key] = value
        self.tell("progress", told)

    async def open_url(self, url: str) -> bool:
        return await self._questions.open_url(url)

    def tools_changed(self) -> None:
        self.changed()

    def allows(self, native_name: str) -> bool:
        """The host's own lists. A name on `excluded` may be one of the host's own tools."""
        allowed = self.about.allowed
        if allowed is not None and not any(policy.matches(pattern, native_name) for pattern in allowed):
            return False
        return not any(policy.matches(pattern, native_name) for pattern in self.about.excluded)


def _member(answer: Any, name: str) -> Any:
    """Whatever a host answers, only the value of the right member counts."""
    return answer.get(name) if isinstance(answer, dict) else None
