"""Opening a person's browser, without a shell and without taking the terminal.

Comes in: an address of a login. Goes out: whether a browser took it. Only https, or http on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from urllib.parse import urlsplit

BROWSER_WAIT = 5.0
"""Seconds; a browser that is still starting then counts as none."""


def may_open(url: str) -> bool:
    """https anywhere, http on this machine only; nothing that a browser would take for something else."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if " " in url or not url.isprintable() or not parts.hostname:
        return False
    local = parts.hostname in ("localhost", "::1") or parts.hostname.startswith("127.")
    return parts.scheme == "https" or (parts.scheme == "http" and local)


def has_browser(environ: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether there is a browser with a window. Without one Python would start a text browser in this terminal."""
    if not platform.startswith("linux"):
        return True
    return any(environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER", "WSL_DISTRO_NAME"))


async def open_browser(url: str) -> bool:
    """Open `url`, waiting for at most five seconds; False when it is not known to have worked."""
    if not may_open(url) or not has_browser(os.environ):
        return False
    import webbrowser

    loop = asyncio.get_running_loop()
    opened: asyncio.Future[bool] = loop.create_future()

    def tell(value: bool) -> None:
        if not opened.done():
            opened.set_result(value)

    def open_it() -> None:
        try:
            value = webbrowser.open(url)
        except Exception:
            value = False
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(tell, value)

    # Some browsers block until they are left, so it gets a thread that nobody has to wait for.
    threading.Thread(target=open_it, name="pi-mcp browser", daemon=True).start()
    try:
        return await asyncio.wait_for(opened, BROWSER_WAIT)
    except TimeoutError:
        return False
