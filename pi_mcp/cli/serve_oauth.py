"""The options of `serve` that say who issues OAuth tokens.

Comes in: options and what the gateway knows of itself. Goes out: the routes and the verifier for them. Secrets come
from the environment alone: a command line can be read by every process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pi_mcp.errors import failure

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from pi_mcp.access import Store
    from pi_mcp.plugin import Plugin
    from pi_mcp.server.oauth.outside import Issuer
    from pi_mcp.server.oauth.places import Places
    from pi_mcp.server.oauth.setup import Parts
    from pi_mcp.server.pages.routes import ServerRow

SECRET = "PI_MCP_INTROSPECTION_SECRET"  # noqa: S105 - a name


def add_arguments(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("OAuth, over HTTP")
    group.add_argument(
        "--oauth", choices=("embedded",), help="be an authorization server, too: people agree on a page of the gateway"
    )
    group.add_argument("--oauth-issuer", metavar="URL", help="take the tokens of this issuer")
    group.add_argument(
        "--oauth-audience",
        action="append",
        default=[],
        metavar="TEXT",
        help="audience of the issuer's tokens in place of the public URL with /mcp; may be repeated",
    )
    group.add_argument("--oauth-jwks", metavar="URL", help="the issuer's keys, in place of where its metadata say")
    group.add_argument(
        "--oauth-introspection",
        metavar="CLIENT_ID",
        help=f"ask the issuer about each token, as this client; its secret is in {SECRET}",
    )


def wanted(options: argparse.Namespace) -> bool:
    """Is OAuth asked for? Raises PiMcpError `usage` for options that do not go together."""
    details = {
        "--oauth-audience": options.oauth_audience,
        "--oauth-jwks": options.oauth_jwks,
        "--oauth-introspection": options.oauth_introspection,
    }
    if options.oauth_issuer is None:
        for name, value in details.items():
            if value:
                raise failure("usage", "configure", None, f"{name} belongs to --oauth-issuer.")
    elif options.oauth is not None:
        raise failure(
            "usage", "configure", None, "--oauth embedded and --oauth-issuer exclude each other.", "Give one of them."
        )
    chosen = options.oauth is not None or options.oauth_issuer is not None
    if chosen and options.http is None:
        raise failure("usage", "configure", None, "OAuth is for HTTP.", "Give --http HOST:PORT.")
    return chosen


def places_of(options: argparse.Namespace, host: str, port: int) -> Places:
    """How the gateway is called from outside: --public-url, or where it listens on this machine."""
    from pi_mcp.server.oauth.places import Places

    if options.public_url is not None:
        return Places.of(options.public_url)
    if port == 0:
        raise failure(
            "usage", "configure", None, "Port 0 has no address that can be published.", "Give a port, or --public-url."
        )
    return Places.of(f"http://{f'[{host}]' if ':' in host else host}:{port}")


def outside_of(options: argparse.Namespace, places: Places) -> Issuer | None:
    """The issuer of --oauth-issuer. Raises PiMcpError for options that do not fit together."""
    from pi_mcp.server.oauth.setup import issuer_of

    if options.oauth_issuer is None:
        return None
    return issuer_of(
        options.oauth_issuer,
        places,
        audiences=options.oauth_audience,
        jwks_url=options.oauth_jwks,
        introspection_client=options.oauth_introspection,
        introspection_secret=os.environ.get(SECRET),
    )


def parts_of(
    options: argparse.Namespace, places: Places, store: Store, plugin: Plugin, outside: Issuer | None
) -> Parts:
    """Routes and verifier as the options say."""
    from pi_mcp.server.oauth.setup import parts

    return parts(places, store, embedded=options.oauth == "embedded", outside=outside, servers=_rows(plugin))


def _rows(plugin: Plugin) -> Callable[[], Sequence[ServerRow]]:
    from pi_mcp.server.pages.routes import ServerRow

    def rows() -> list[ServerRow]:
        found = []
        for name in plugin.configuration.entries:
            status = plugin.status(name)
            found.append(ServerRow(name, status.state, status.tools, status.error))
        return found

    return rows
