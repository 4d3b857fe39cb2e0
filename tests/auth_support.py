"""A person with a browser for the tests of logins, and a plugin whose logins lie in encrypted files.

Comes in: what the person does. Goes out: what they were told and asked, for a search after secrets.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2

from pi_mcp.host import Level
from pi_mcp.plugin import Plugin
from tests.auth_server import AuthServer, free_port
from tests.plugin_support import AskingHost, plugin_of

KEY = base64.b64encode(b"k" * 32).decode()


class BrowserHost(AskingHost):
    """`browse` is what the browser does with an address; by default it agrees and comes back."""

    def __init__(
        self,
        *,
        browse: Callable[[str], Any] | None = None,
        pastes: list[Any] | None = None,
        opens: bool = True,
        interactive: bool = True,
    ) -> None:
        super().__init__()
        self.interactive = interactive
        self.browse = browse or agree
        self.pastes = list(pastes or [])
        self.opens = opens
        self.opened: list[str] = []
        self.shown: list[str] = []
        self.pages: list[str] = []
        self.browsers: list[asyncio.Task[None]] = []

    @property
    def urls(self) -> list[str]:
        """The addresses that were shown."""
        return [line for text in self.shown for line in text.splitlines() if line.startswith("http")]

    async def notify(self, level: Level, text: str) -> None:
        self.shown.append(text)

    async def input(self, question: str, *, secret: bool = False) -> str | None:
        if not self.pastes:
            return None
        answer = self.pastes.pop(0)
        return await answer(self.urls[-1]) if callable(answer) else answer

    async def open_url(self, url: str) -> bool:
        self.opened.append(url)
        if not self.opens:
            return False
        self.browsers.append(asyncio.create_task(self._browse(url)))
        return True

    async def _browse(self, url: str) -> None:
        page = await self.browse(url)
        if isinstance(page, str):
            self.pages.append(page)

    async def settle(self) -> None:
        """Wait until the browsers have shown their pages; those that never come back are closed."""
        if self.browsers:
            _, late = await asyncio.wait(self.browsers, timeout=2)
            for one in late:
                one.cancel()
            for result in await asyncio.gather(*self.browsers, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result


async def redirected(url: str) -> str:
    """Where the authorization server sends a browser that agrees."""
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(url)
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])


async def agree(url: str) -> str:
    """Agree, and come back; the page that the listener shows."""
    target = await redirected(url)
    async with httpx2.AsyncClient(trust_env=False) as client:
        return (await client.get(target)).text


async def stay(url: str) -> None:
    """A browser that never comes back."""


async def until(happened: Callable[[], bool], limit: float = 10.0) -> None:
    """Wait until something is so, looking again and again."""
    async with asyncio.timeout(limit):
        while not happened():  # noqa: ASYNC110 - what is looked at has no event
            await asyncio.sleep(0.01)


def asked(url: str) -> dict[str, str]:
    """The parameters of an authorization request."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def entry(server: AuthServer, **oauth: Any) -> dict[str, Any]:
    """The configuration of a protected server, with a callback port of its own."""
    return {"url": server.url, "oauth": {"callbackPort": free_port(), **oauth}}


@contextlib.asynccontextmanager
async def signing_in(
    server: AuthServer, folder: Path, host: BrowserHost | None = None, **oauth: Any
) -> AsyncIterator[tuple[Plugin, BrowserHost, Any]]:
    """A plugin with one protected server `s`, its host, and a session."""
    async with plugin_of({"s": entry(server, **oauth)}, folder, PI_MCP_CREDENTIAL_KEY=KEY) as plugin:
        host = host or BrowserHost()
        yield plugin, host, plugin.session("one", host)
        await host.settle()


def free_again(port: int) -> bool:
    """Nobody listens on this port of 127.0.0.1 any more."""
    import socket

    with contextlib.closing(socket.socket()) as one:
        return one.connect_ex(("127.0.0.1", port)) != 0


def everything_in(folder: Path) -> str:
    """All files below a folder as text, but for the encrypted store."""
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            parts.append(path.read_bytes().decode("latin-1"))
    return "\n".join(parts)


def pending_tasks() -> set[str]:
    """The names of the tasks that run beside the current one."""
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
