"""Keys while work runs: Escape and Ctrl-C cancel it, everything else waits for the next prompt.

Comes in: a coroutine and, on a terminal, key presses. Goes out: its result, or `Stopped`. It never swallows a
cancellation that came from elsewhere, and leaves the terminal as it found it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from prompt_toolkit.input import Input
    from prompt_toolkit.key_binding import KeyPress

T = TypeVar("T")
LONE_ESCAPE = 0.05
"""Seconds after which an ESC byte was the key, and not the start of an arrow key's sequence."""
UNWIND = 3.0
"""Seconds that cancelled work may take to clean up before it is left to finish alone."""


class Stopped(Exception):
    """The person stopped the work."""


class Keys:
    """The keyboard between prompts. Without a terminal only signals stop work (`stop`)."""

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._task: asyncio.Task[Any] | None = None
        self._stopped = False
        self._left: set[asyncio.Task[Any]] = set()
        self._listening: _Listening | None = None

    @property
    def busy(self) -> bool:
        return self._task is not None

    def stop(self) -> bool:
        """Cancel the running work; False when there is none."""
        if self._task is None or self._task.done():
            return False
        self._stopped = True
        self._task.cancel()
        return True

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` until it ends or the person stops it; raises Stopped then."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._task, self._stopped = task, False
        try:
            with self._listen():
                await asyncio.wait({task}, return_when=asyncio.FIRST_COMPLETED)
                if self._stopped and not task.done():
                    await asyncio.wait({task}, timeout=UNWIND)
        finally:
            self._task = None
            if not task.done():
                # Either we are cancelled ourselves, or it does not unwind in time: it is waited for at the end.
                task.cancel()
                self._left.add(task)
                task.add_done_callback(self._left.discard)
        if self._stopped:
            if task.done() and not task.cancelled() and task.exception() is None:
                return task.result()
            raise Stopped
        return task.result()

    async def close(self) -> None:
        """Wait, bounded, for cancelled work that had not ended."""
        if self._left:
            await asyncio.wait(set(self._left), timeout=UNWIND)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Give the keyboard to a prompt in the middle of work."""
        listening = self._listening
        if listening is None:
            yield
            return
        listening.detach()
        try:
            yield
        finally:
            if self._listening is listening:
                listening.attach()

    @contextlib.contextmanager
    def _listen(self) -> Iterator[None]:
        if not self._interactive:
            yield
            return
        self._listening = _Listening(self.stop)
        self._listening.start()
        try:
            yield
        finally:
            self._listening.stop()
            self._listening.keep_typed()
            self._listening = None


class _Listening:
    def __init__(self, stop: Any) -> None:
        self._stop = stop
        self._input: Input | None = None
        self._raw = contextlib.ExitStack()
        self._attached = contextlib.ExitStack()
        self._typed: list[KeyPress] = []
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        from prompt_toolkit.input import create_input

        self._input = create_input()
        self._raw.enter_context(self._input.raw_mode())
        self.attach()

    def stop(self) -> None:
        self.detach()
        self._raw.close()

    def attach(self) -> None:
        if self._input is not None:
            self._attached.enter_context(self._input.attach(self._ready))

    def detach(self) -> None:
        """Leave the keys to someone else; the terminal stays raw, so that none is echoed in between."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._attached.close()

    def keep_typed(self) -> None:
        """What was typed meanwhile comes up in the next prompt."""
        if self._input is not None and self._typed:
            from prompt_toolkit.input.typeahead import store_typeahead

            store_typeahead(self._input, self._typed)
            self._typed = []

    def _ready(self) -> None:
        if self._input is None:
            return
        self._take(self._input.read_keys())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LONE_ESCAPE, self._flush)

    def _flush(self) -> None:
        if self._input is not None:
            self._take(self._input.flush_keys())

    def _take(self, presses: list[KeyPress]) -> None:
        from prompt_toolkit.keys import Keys as Key

        for press in presses:
            if press.key in (Key.Escape, Key.ControlC):
                self._typed.clear()
                self._stop()
            elif press.key is not Key.CPRResponse:
                self._typed.append(press)
