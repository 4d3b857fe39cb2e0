"""The command `serve`: the gateway over standard input and output, or over HTTP.

Comes in: its options. Goes out: a running gateway until a signal or the end of the input, and its exit code. Over
stdio nothing but the protocol is written to standard output.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pi_mcp.cli import serve_access, serve_oauth
from pi_mcp.cli.common import configuration_of_run, ending_signals
from pi_mcp.cli.operator_lines import operator_lines
from pi_mcp.errors import failure, outside_chat
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

    from pi_mcp.cli.common import Add
    from pi_mcp.cli.operator_lines import Say
    from pi_mcp.config import Configuration
    from pi_mcp.plugin import Plugin
    from pi_mcp.server.gateway import Gateway

_LOG = logging.getLogger("pi_mcp.server")
DRAIN = 30.0
"""Seconds that running requests may take to end after SIGTERM."""
SESSION = 1800.0
MAX_BODY = 4 * 1024 * 1024
HTTP_ONLY: Mapping[str, object] = MappingProxyType(
    {
        "stateless": False,
        "json_response": False,
        "public_url": None,
        "allowed_host": [],
        "session_timeout": SESSION,
        "drain_timeout": DRAIN,
        "max_body": MAX_BODY,
    }
)
"""Options that mean nothing over stdio, and what they are when nobody gave them."""
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Why the system gives no connection; asyncio tries again every second."""
SAY_AGAIN = 60.0
"""Seconds for which it is not said again that no connection can be taken."""


def register(add: Add) -> None:
    command = add("serve", "an MCP server in front of all configured servers", serve, as_json=False)
    command.add_argument("--http", metavar="HOST:PORT", help="serve Streamable HTTP there (default: stdio)")
    command.add_argument(
        "--expose",
        choices=("search", "all"),
        default="search",
        help="one search tool and what it has found (default), or every tool",
    )
    command.add_argument("--no-prefix", action="store_true", help="with --expose all and one upstream: original names")
    command.add_argument("--stateless", action="store_true", help="HTTP: no sessions")
    command.add_argument("--json-response", action="store_true", help="HTTP: never answer with an event stream")
    command.add_argument("--public-url", metavar="URL", help="HTTP: the address under which clients reach a proxy")
    command.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="HTTP: a name in Host and Origin that is let in beside loopback; may be repeated",
    )
    command.add_argument(
        "--idle-timeout",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="close an upstream that nobody has used for so long; 0 never does (default 1800)",
    )
    command.add_argument(
        "--session-timeout",
        type=float,
        default=SESSION,
        metavar="SECONDS",
        help="HTTP: end a session that nobody has used for so long (default 1800)",
    )
    command.add_argument(
        "--drain-timeout",
        type=float,
        default=DRAIN,
        metavar="SECONDS",
        help="HTTP: how long running requests may take after SIGTERM (default 30)",
    )
    command.add_argument(
        "--page-size", type=int, default=100, metavar="N", help="objects on one page of a list (default 100)"
    )
    command.add_argument(
        "--max-body", type=int, default=MAX_BODY, metavar="BYTES", help="HTTP: the largest request (4 MiB)"
    )
    serve_access.add_options(command)
    serve_oauth.add_arguments(command)


def serve(options: argparse.Namespace) -> int:
    _check(options)
    configuration = configuration_of_run(options)
    address = None if options.http is None else _address(options.http)
    try:
        import starlette
        import uvicorn
    except ImportError:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            "The gateway's packages are not installed.",
            "Install pi-mcp with it, from its folder: pip install '.[gateway]'.",
        ) from None
    del starlette, uvicorn
    with operator_lines(_LOG) as say:
        _say_left_out(configuration, say)
        return _serve(options, configuration, address, say)


def _serve(options: argparse.Namespace, configuration: Configuration, address: tuple[str, int] | None, say: Say) -> int:
    if address is None:
        if sys.stdin.isatty():
            say(
                "pi-mcp: The gateway speaks MCP on standard input and output, and this is a terminal: a client starts "
                "it. `pi-mcp install CLIENT` writes it into a client's file, --http 127.0.0.1:8400 serves clients by "
                "address; Ctrl-C ends this."
            )
        return asyncio.run(_stdio(options, configuration))
    return asyncio.run(_http(options, configuration, *address, say))


def _say_left_out(configuration: Configuration, say: Say) -> None:
    """Who starts a gateway sees no `/mcp`, and a server that is missing looks to its callers like one never named."""
    from pi_mcp.commands.configured import left_out

    for diagnostic in left_out(configuration):
        hint = None if diagnostic.hint is None else outside_chat(diagnostic.hint)
        say(f"pi-mcp: {replace(diagnostic, hint=hint).line()}")
    if not configuration.servers:
        say("pi-mcp: There is no server to serve. `pi-mcp servers` shows what was read, and from where.")


def _check(options: argparse.Namespace) -> None:
    if options.http is None:
        given = [f"--{name.replace('_', '-')}" for name, usual in HTTP_ONLY.items() if getattr(options, name) != usual]
        if given:
            raise failure(
                "usage",
                "command",
                None,
                f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for HTTP.",
                "Add --http.",
            )
    if options.no_prefix and options.expose != "all":
        hint = "Add --expose all, or leave --no-prefix out."
        raise failure("usage", "command", None, "--no-prefix goes with --expose all.", hint)
    for name in ("idle_timeout", "session_timeout", "drain_timeout"):
        value = getattr(options, name)
        if not 0 <= value <= 1e7 or (name == "session_timeout" and value == 0):
            raise failure(
                "usage", "command", None, f"--{name.replace('_', '-')} {value:g} is no time.", "Give seconds."
            )
    if not 1 <= options.page_size <= 10_000:
        raise failure("usage", "command", None, "--page-size has to be from 1 to 10000.")
    if not 1024 <= options.max_body <= 256 * 1024 * 1024:
        raise failure("usage", "command", None, "--max-body has to be from 1024 to 268435456 bytes.")


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise failure(
            "usage", "command", None, f"--http {clean_line(text, 100)!r} is no HOST:PORT.", "Write 127.0.0.1:8400."
        )
    return host, int(port)


def _gateway(options: argparse.Namespace, plugin: Plugin, **more: Any) -> Gateway:
    from pi_mcp.server.gateway import Gateway

    gateway = Gateway(
        plugin,
        expose=options.expose,
        prefix=not options.no_prefix,
        page_size=options.page_size,
        idle_timeout=options.idle_timeout,
        **more,
    )
    gateway.check()
    return gateway


def _plugin(options: argparse.Namespace, configuration: Configuration) -> Plugin:
    from pi_mcp.config import load_config
    from pi_mcp.plugin import Plugin

    plugin = Plugin(
        configuration, reload=lambda: load_config(config=options.config, trust_project=options.trust_project)
    )
    _tell_slips(plugin)
    return plugin


def _tell_slips(plugin: Plugin) -> None:
    """Warn once of each name in a filter or a rule of `access` that no tool of its server has, when it was listed: what
    the rule was to keep from a caller is not kept from anybody."""
    from pi_mcp.commands.server_status import slips

    said: set[str] = set()

    def look(name: str) -> None:
        catalog, entry = plugin.catalogs.held(name), plugin.configuration.entries.get(name)
        if catalog is None or entry is None or entry.definition is None:
            return
        for sentence in slips(entry.definition, catalog):
            line = f"{clean_line(name, 64)}: {sentence}"
            if line not in said:
                said.add(line)
                _LOG.warning("%s", line)

    plugin.catalogs.on_change.append(look)


async def _stdio(options: argparse.Namespace, configuration: Configuration) -> int:
    from pi_mcp.server.stdio import serve_stdio

    plugin = _plugin(options, configuration)
    stop = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(_Faults())
    _on_signals(stop.set)
    try:
        _gateway(options, plugin)
        async with serve_access.stdio_access(options, plugin) as access:
            gateway = _gateway(options, plugin, single=True, gate=access.gate)
            await serve_stdio(gateway, grant=access.grant, stop=stop)
    finally:
        await plugin.close()
    return 0


async def _http(options: argparse.Namespace, configuration: Configuration, host: str, port: int, say: Say) -> int:
    from pi_mcp.server.http import app
    from pi_mcp.server.listening import listening, serve_http

    asyncio.get_running_loop().set_exception_handler(_Faults())
    # Whatever can be in the way comes before there is a store: one that is left behind would want keys.
    wanted = serve_access.http_wanted(options, host, port)
    plugin = _plugin(options, configuration)
    try:
        _gateway(options, plugin)
        listener = listening(host, port)
    except BaseException:
        await plugin.close()
        raise
    try:
        async with serve_access.http_access(options, plugin, wanted) as access:
            application = app(
                _gateway(options, plugin, gate=access.gate),
                authenticate=access.authentication,
                statuses=None if access.authentication is None else access.authentication.statuses,
                routes=access.routes,
                public_url=options.public_url,
                allowed_hosts=options.allowed_host,
                trusted_proxies=options.trusted_proxy,
                bound=host,
                stateless=options.stateless,
                json_response=options.json_response,
                max_body=options.max_body,
                session_timeout=options.session_timeout,
            )

            def ready(url: str) -> None:
                for line in access.lines:
                    say(f"pi-mcp: {line}")
                say(f"pi-mcp serves {url}")

            await serve_http(application, listener, drain=options.drain_timeout, on_signals=_on_signals, on_ready=ready)
    finally:
        listener.close()
        await plugin.close()
    return 0


def _on_signals(call: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, *ending_signals()):
        loop.add_signal_handler(number, call)


class _Faults:
    """What the event loop would print with a traceback, which has lines of source and perhaps values: one line."""

    def __init__(self) -> None:
        self._said = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        del loop
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in FULL and "socket" in context:
            if time.monotonic() >= self._said + SAY_AGAIN:
                self._said = time.monotonic()
                _LOG.error(
                    "no further connection can be taken for now: %s. Every client and every upstream takes files; "
                    "`ulimit -n`, or LimitNOFILE= of a unit, allows more",
                    os.strerror(error.errno),
                )
            return
        if "._start_serving(" in str(context.get("message")):
            return  # it tries again where nobody listens any more
        _LOG.error("something failed inside pi-mcp: %s", type(error).__name__ if error else "no exception")
