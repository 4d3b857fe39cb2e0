"""What `serve` needs of OAuth and the pages, from its options: one place to put it together.

Comes in: the public address, the store, and how tokens are to be had. Goes out: `Parts`. It starts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pi_mcp.access import Store
from pi_mcp.auth.addresses import url_problem
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.server.oauth import places as at
from pi_mcp.server.oauth.bearer import Verifier
from pi_mcp.server.oauth.outside import Issuer, OutsideIssuer
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.routes import Endpoints, resource_routes
from pi_mcp.server.oauth.server import AuthorizationServer
from pi_mcp.server.pages.routes import Pages, ServerRow
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    from starlette.routing import Route


@dataclass(frozen=True, slots=True)
class Parts:
    """For `authenticate` the verifier, for `http.app` the routes."""

    verifier: Verifier | None
    routes: Sequence[Route]


def parts(
    places: Places,
    store: Store,
    *,
    embedded: bool = False,
    outside: Issuer | None = None,
    servers: Callable[[], Sequence[ServerRow]] = tuple,
) -> Parts:
    """Everything over HTTP beside `/mcp`. `servers` are the upstreams, for the status page.

    With neither `embedded` nor `outside` there are the pages alone, for people with keys.
    """
    server = AuthorizationServer(places, store) if embedded else None
    verifier: Verifier | None = server
    issuers = [places.issuer]
    if outside is not None:
        verifier, issuers = OutsideIssuer(outside), [outside.issuer]
    routes: list[Any] = []
    if verifier is not None:
        routes += resource_routes(places, issuers)
    if server is not None:
        routes += Endpoints(server).routes()
    routes += Pages(places, store, server, servers=servers).routes()
    return Parts(verifier, routes)


def issuer_of(
    issuer: str,
    places: Places,
    *,
    audiences: Sequence[str] = (),
    jwks_url: str | None = None,
    introspection_client: str | None = None,
    introspection_secret: str | None = None,
) -> Issuer:
    """The outside issuer that the options name. Raises PiMcpError `usage`; no secret is in it."""
    for option, url in (("--oauth-issuer", issuer), ("--oauth-jwks", jwks_url)):
        if url is None:
            continue
        problem = url_problem(url)
        if problem is None and option == "--oauth-issuer" and (urlsplit(url).query or urlsplit(url).fragment):
            problem = "has a query"
        if problem is not None:
            raise _wrong(f"{option} {clean_line(url.rpartition('@')[2].partition('?')[0], 160)} {problem}.")
    if introspection_client is not None and not introspection_secret:
        raise _wrong("--oauth-introspection needs the client's secret.", "Put it into PI_MCP_INTROSPECTION_SECRET.")
    return Issuer(
        issuer,
        # Tokens for the alias are for the same thing; what the operator names comes in place of both.
        tuple(audiences) or (places.resource, places.at(at.ALIAS)),
        introspection_client,
        introspection_secret,
        jwks_url,
    )


def _wrong(message: str, hint: str = "See docs/gateway-oauth.md.") -> PiMcpError:
    return failure("usage", "configure", None, message, hint)
