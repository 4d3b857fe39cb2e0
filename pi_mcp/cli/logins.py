"""Commands about logins: auth and logout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pi_mcp.cli.common import show_command, with_session
from pi_mcp.errors import failure
from pi_mcp.text import quoted

if TYPE_CHECKING:
    import argparse

    from pi_mcp.cli.common import Add
    from pi_mcp.plugin import Plugin, Session


def register(add: Add) -> None:
    command = add("auth", "sign in to an HTTP server", auth)
    command.add_argument("server", metavar="SERVER")
    command.add_argument(
        "--no-browser",
        action="store_true",
        help="show a code or take the pasted address; for another machine's browser",
    )

    command = add("logout", "forget a stored login and revoke it", logout)
    command.add_argument("server", nargs="?", metavar="SERVER", help="also one that is not configured any more")
    command.add_argument("--all", action="store_true", help="every stored login")


def auth(options: argparse.Namespace) -> int:
    """Sign in. A person is asked on a terminal; without one only a grant that needs nobody works."""
    from pi_mcp.hosts.script import LoginHost

    line = f"auth {quoted(options.server)}" + (" --no-browser" if options.no_browser else "")
    person = sys.stdin.isatty() and (sys.stderr if options.json else sys.stdout).isatty()

    async def work(plugin: Plugin, session: Session) -> int:
        del plugin
        return show_command(await session.command(line), options)

    async def on_terminal(plugin: Plugin, session: Session) -> int:
        from pi_mcp.hosts.terminal.dialogs import TerminalHost
        from pi_mcp.hosts.terminal.keys import Keys, Stopped
        from pi_mcp.hosts.terminal.render import Screen

        del plugin
        screen, keys = Screen(interactive=True), Keys(interactive=True)
        session.host = TerminalHost(screen, keys)
        try:
            answer = await keys.run(session.command(line))
        except Stopped:
            raise failure("cancelled", "authenticate", options.server, "The login was stopped.") from None
        finally:
            screen.idle()
            await keys.close()
        return show_command(answer, options)

    if person and not options.json:
        return with_session(options, on_terminal)
    return with_session(options, work, LoginHost(quiet=True) if person else None)


def logout(options: argparse.Namespace) -> int:
    if (options.server is None) != options.all:
        raise failure("usage", "authenticate", None, "Name one server, or give --all.")

    async def work(plugin: Plugin, session: Session) -> int:
        del plugin
        line = "logout --all" if options.all else f"logout {quoted(options.server)}"
        return show_command(await session.command(line), options)

    return with_session(options, work)
