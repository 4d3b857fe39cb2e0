"""The OAuth endpoints of programs: metadata, keys, registration, tokens, revocation.

Comes in: HTTP requests. Goes out: JSON that any origin may read; no cookie is looked at here. Authorization, where a
person is asked, is with the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pi_mcp.server.oauth import metadata
from pi_mcp.server.oauth import places as at
from pi_mcp.server.oauth.places import Places
from pi_mcp.server.oauth.server import AuthorizationServer
from pi_mcp.server.oauth.wire import OPEN, address_of, api, form_of, json_of, sent

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

_CACHED = {**OPEN, "Cache-Control": "public, max-age=300"}


def resource_routes(places: Places, issuers: Sequence[str]) -> list[Route]:
    """The protected resource's metadata: at the root, behind the path of `/mcp`, and behind that of its alias."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    async def document(request: Request) -> Response:
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=OPEN)
        path = request.url.path.removeprefix(at.PROTECTED)
        return JSONResponse(metadata.protected_resource(places, path, tuple(issuers)), headers=_CACHED)

    # The root has the same document: it is there for clients that look nowhere else, and there is but one resource.
    return [Route(at.PROTECTED + path, document, methods=["GET", "OPTIONS"]) for path in ("", at.MCP, at.ALIAS)]


class Endpoints:
    """The endpoints of the embedded authorization server."""

    def __init__(self, server: AuthorizationServer) -> None:
        self.server = server

    def routes(self) -> list[Route]:
        from starlette.routing import Route

        reading, writing = ["GET", "OPTIONS"], ["POST", "OPTIONS"]
        return [
            Route(at.SERVER_METADATA, self.describe, methods=reading),
            Route(at.OPENID, self.describe_openid, methods=reading),
            Route(at.JWKS, self.keys, methods=reading),
            Route(at.REGISTER, self.register, methods=writing),
            Route(at.TOKEN, self.token, methods=writing),
            Route(at.REVOKE, self.revoke, methods=writing),
        ]

    @api
    async def describe(self, request: Request) -> Response:
        del request
        return _json(metadata.authorization_server(self.server.places), _CACHED)

    @api
    async def describe_openid(self, request: Request) -> Response:
        del request
        return _json(metadata.openid_provider(self.server.places), _CACHED)

    @api
    async def keys(self, request: Request) -> Response:
        del request
        return _json(await self.server.keys.published(), _CACHED)

    @api
    async def register(self, request: Request) -> Response:
        return sent(await self.server.register(await json_of(request), address_of(request)))

    @api
    async def token(self, request: Request) -> Response:
        return sent(await self.server.token(await form_of(request), request.headers.get("authorization")))

    @api
    async def revoke(self, request: Request) -> Response:
        return sent(await self.server.revoke(await form_of(request), request.headers.get("authorization")))


def _json(body: dict[str, Any], headers: dict[str, str]) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse(body, headers=headers)
