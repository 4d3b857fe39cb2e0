"""Questions to the person: yes or no, one of several, a line, a form. Escape dismisses each of them.

Comes in: the `Host` calls of a session. Goes out: the answers. It shows no text that was not cleaned, keeps
nothing that was typed, and asks one question at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pi_mcp.host import Level
from pi_mcp.hosts.browser import open_browser
from pi_mcp.hosts.terminal import form
from pi_mcp.hosts.terminal.keys import Keys
from pi_mcp.hosts.terminal.render import Screen, listed
from pi_mcp.text import clean, clean_line, clean_metadata

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

ESCAPE_WAIT = 0.05
"""Seconds until an ESC byte counts as the key; with prompt-toolkit's own 0.5 s a dialog feels stuck."""
CHORD_WAIT = 0.2
"""Seconds that a chord's second key may take; in prompt-toolkit's own second, what is typed after Escape is lost."""
MANY_OPTIONAL = 4
"""More optional arguments than these are not asked for one by one unless the person wants to."""


class Dismissed(Exception):
    """Escape, Ctrl-C or Ctrl-D in a dialog."""


class TerminalHost:
    """The terminal as a session's host. With `screen.interactive` False nobody is asked anything."""

    max_tools: int | None = None

    def __init__(self, screen: Screen, keys: Keys) -> None:
        self._screen = screen
        self._keys = keys
        self._asking = asyncio.Lock()
        self.interactive = screen.interactive
        self._current = ""

    async def notify(self, level: Level, text: str) -> None:
        for line in clean(text).split("\n"):
            # An address stays whole and as it is, so that it can be clicked or copied.
            address = line.startswith(("https://", "http://")) and " " not in line
            self._screen.line(line, {"warning": "warning", "error": "error"}.get(level, ""), whole=address)

    async def confirm(self, question: str, details: str) -> bool:
        if not self.interactive:
            return False
        async with self._asking:
            self._before()
            self._screen.line(clean_metadata(question), "strong")
            if details:
                self._screen.line(clean_metadata(details), indent=2)
            try:
                with self._keys.paused():
                    return await self._yes("Yes or no? [y/N] ", False)
            except Dismissed:
                return False
            finally:
                self._after()

    async def select(self, question: str, choices: Sequence[str]) -> str | None:
        if not self.interactive or not choices:
            return None
        async with self._asking:
            self._before()
            self._screen.line(clean_metadata(question), "strong")
            self._numbered(choices)
            try:
                with self._keys.paused():
                    while True:
                        line = (await self._line(f"1-{len(choices)}: ")).strip()
                        if line in choices:
                            return line
                        if line.isdecimal() and len(line) < 6 and 1 <= int(line) <= len(choices):
                            return choices[int(line) - 1]
                        self._screen.warning(f"A number from 1 to {len(choices)}, please; Escape leaves.")
            except Dismissed:
                return None
            finally:
                self._after()

    async def input(self, question: str, *, secret: bool = False) -> str | None:
        if not self.interactive:
            return None
        async with self._asking:
            self._before()
            self._screen.line(clean_metadata(question), "strong")
            try:
                with self._keys.paused():
                    return await self._line("> ", secret=secret)
            except Dismissed:
                return None
            finally:
                self._after()

    async def elicit(self, schema: Mapping[str, Any], message: str) -> dict[str, Any] | None:
        if not self.interactive:
            return None
        async with self._asking:
            self._before()
            self._screen.line("A server asks:", "strong")
            self._screen.line(clean_metadata(message), indent=2)
            fields = form.fields_of(schema)
            if fields:
                self._screen.line("Enter takes what is in [brackets] or skips; Escape declines.")
            try:
                with self._keys.paused():
                    values = await self.ask_fields(fields)
                    sent = await self._yes("Send this answer? [Y/n] " if fields else "Accept? [y/N] ", bool(fields))
            except Dismissed:
                sent, values = False, {}
            finally:
                self._after()
            if not sent:
                self._screen.line("Declined.")
                return None
            return values

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        self._current = clean_line(text)
        if done is not None:
            amount = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            self._current = f"{self._current} ({amount})"
        if not self._asking.locked():
            self._screen.working(f"{self._current} · Esc stops")

    async def open_url(self, url: str) -> bool:
        return await open_browser(url)

    def tools_changed(self) -> None:
        return None

    def allows(self, native_name: str) -> bool:
        del native_name
        return True

    # Forms

    async def ask_arguments(
        self, schema: Mapping[str, Any], given: Mapping[str, Any], *, optional: bool
    ) -> dict[str, Any] | None:
        """The arguments of a call: `given`, and what the person adds. None when dismissed.

        Required ones that are missing are asked for; with `optional` the others too, and Enter skips them.
        """
        fields = [item for item in form.fields_of(schema) if item.name not in given and (item.required or optional)]
        if not fields:
            return dict(given)
        needed = [item for item in fields if item.required]
        others = [item for item in fields if not item.required]
        async with self._asking:
            self._before()
            if others:
                self._screen.line("Enter takes what is in [brackets] or skips what is optional; Escape leaves.")
            try:
                values = await self.ask_fields(needed, send_defaults=False)
                if len(others) > MANY_OPTIONAL:
                    self._screen.line(f"Optional: {listed((item.name for item in others), 30)}")
                    if not await self._yes("Set some of these? [y/N] ", False):
                        others = []
                return {**given, **values, **await self.ask_fields(others, send_defaults=False)}
            except Dismissed:
                return None

    async def ask_fields(self, fields: Sequence[form.Field], *, send_defaults: bool = True) -> dict[str, Any]:
        """One value per field, asked again until it fits; raises Dismissed.

        Without `send_defaults` an Enter on a field that is not required leaves it out: the server knows its
        own default.
        """
        values: dict[str, Any] = {}
        for item in fields:
            self._describe(item)
            while True:
                line = await self._line(_prompt(item))
                if not line.strip() and not send_defaults and not item.required:
                    break
                try:
                    value = form.read(item, line)
                except form.Invalid as problem:
                    self._screen.warning(str(problem))
                    continue
                if value is not form.MISSING:
                    values[item.name] = value
                break
        return values

    def _describe(self, item: form.Field) -> None:
        self._screen.parts((item.heading, "strong"))
        about = " — ".join(part for part in (item.title, item.description) if part and part != item.name)
        if about:
            self._screen.line(about, indent=2)
        if item.choices:
            self._numbered([choice.label for choice in item.choices])
            if item.several:
                self._screen.line("Several, with commas between.", indent=2)

    def _numbered(self, choices: Sequence[str]) -> None:
        for number, choice in enumerate(choices, 1):
            self._screen.line(f"{number}  {clean_line(choice, 120)}", indent=2)

    # Prompts

    def _before(self) -> None:
        self._screen.idle()

    def _after(self) -> None:
        if self._keys.busy and self._current:
            self._screen.working(f"{self._current} · Esc stops")

    async def _yes(self, question: str, default: bool) -> bool:
        while True:
            word = (await self._line(question)).strip().casefold()
            if not word:
                return default
            if word in ("y", "yes"):
                return True
            if word in ("n", "no"):
                return False
            self._screen.warning("y or n, please.")

    async def _line(self, question: str, *, secret: bool = False) -> str:
        """One line; raises Dismissed."""
        prompt = prompt_session()
        try:
            return str(await prompt.prompt_async(question, is_password=secret, handle_sigint=False))
        except (EOFError, KeyboardInterrupt):
            raise Dismissed from None


def prompt_session(**options: Any) -> PromptSession[str]:
    """A prompt-toolkit session that Escape leaves at once (as EOF), in the terminal's own colours."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import DummyHistory
    from prompt_toolkit.key_binding import KeyBindings

    bindings = KeyBindings()

    @bindings.add("escape", eager=True)
    @bindings.add("c-d", eager=True)
    @bindings.add("c-c", eager=True)
    def leave(event: Any) -> None:
        event.app.exit(exception=EOFError)

    session: PromptSession[str] = PromptSession(
        key_bindings=bindings, history=DummyHistory(), color_depth=color_depth(), **options
    )
    session.app.ttimeoutlen = ESCAPE_WAIT
    return session


def color_depth() -> Any:
    """No colour where NO_COLOR is set to anything (no-color.org)."""
    import os

    from prompt_toolkit.output import ColorDepth

    return ColorDepth.DEPTH_1_BIT if os.environ.get("NO_COLOR") else None


def _prompt(item: form.Field) -> str:
    if item.default is not form.MISSING and item.default is not None:
        return f"{clean_line(item.name, 30)} [{form.show(item.default)}]: "
    return f"{clean_line(item.name, 30)}: "
