"""Between HTTP and values: bounded bodies, forms, answers.

Comes in: Starlette requests. Goes out: pairs, JSON, responses. What is too large, no text or no form is refused here,
so that nothing behind it meets such a thing.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pi_mcp.access.scopes import MAX_TOKENS
from pi_mcp.errors import PiMcpError
from pi_mcp.server.oauth.grants import Answer, error_answer
from pi_mcp.server.oauth.limits import counted_as
from pi_mcp.server.replies import BODY_TIME

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

LARGEST = 48 * 1024
"""Bytes of a body: that of consent holds the query, and each scope of it once more."""
LONGEST_QUERY = 8 * 1024
"""Characters of a query. Consent sends one back in a form, where each may take three bytes."""
MOST_FIELDS = MAX_TOKENS + 50
"""Fields of a form or query; consent has one for each scope."""
OPEN = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, MCP-Protocol-Version",
    "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
    "Access-Control-Max-Age": "3600",
}
"""For what reads no cookie: clients that are web pages may ask, too."""

_LOG = logging.getLogger("pi_mcp.server.oauth")
Handler = Callable[[Any, "Request"], Awaitable["Response"]]


class Unreadable(Exception):
    """A body or query that is not looked at; `status` and `description` are the answer."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description


async def body_of(request: Request) -> bytes:
    """The body, of at most `LARGEST` bytes, within `BODY_TIME`. Raises Unreadable."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIME):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST:
                    raise Unreadable(413, "The request is too large.")
                parts.append(part)
    except TimeoutError:
        raise Unreadable(408, "The request did not come in time.") from None
    return b"".join(parts)


async def form_of(request: Request) -> list[tuple[str, str]]:
    """The fields of a form in their order. Raises Unreadable."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise Unreadable(415, "The body has to be application/x-www-form-urlencoded.")
    try:
        return pairs_of((await body_of(request)).decode("utf-8"))
    except UnicodeDecodeError:
        raise Unreadable(400, "The body is no UTF-8.") from None


def query_of(request: Request) -> str:
    """The query as it was sent. Raises Unreadable."""
    raw: bytes = request.scope.get("query_string", b"")
    if len(raw) > LONGEST_QUERY:
        raise Unreadable(414, "The address is too long.")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise Unreadable(400, "The address holds what no address may.") from None


def pairs_of(text: str) -> list[tuple[str, str]]:
    """The pairs of a form or query. Raises Unreadable."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError:  # too many fields, or bytes that are no UTF-8
        raise Unreadable(400, "The parameters cannot be read.") from None
    if any("\0" in part for pair in pairs for part in pair):
        raise Unreadable(400, "The parameters cannot be read.")
    return pairs


async def json_of(request: Request) -> Any:
    """The body as JSON. Raises Unreadable."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Unreadable(415, "The body has to be application/json.")
    try:
        return json.loads((await body_of(request)).decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Unreadable(400, "The body is no JSON.") from None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def address_of(request: Request) -> str:
    """Where a request came from, for limits."""
    return counted_as(request.client.host if request.client is not None else None)


def sent(answer: Answer) -> Response:
    """An `Answer` as a response that any origin may read."""
    from starlette.responses import JSONResponse, Response

    headers = {name: value for name, value in answer.headers if name.lower() != "content-type"}
    if answer.location is not None:
        return Response(status_code=answer.status, headers={"Location": answer.location, "Cache-Control": "no-store"})
    return JSONResponse(dict(answer.body), answer.status, {**OPEN, **headers})


def api(handler: Handler) -> Handler:
    """For endpoints of programs: OPTIONS, unreadable requests and a store that fails, answered as OAuth errors."""

    @functools.wraps(handler)
    async def guarded(self: Any, request: Request) -> Response:
        from starlette.responses import Response

        if request.method == "OPTIONS":
            return Response(status_code=204, headers=OPEN)
        try:
            return await handler(self, request)
        except Unreadable as error:
            code = "invalid_client_metadata" if request.url.path.endswith("/register") else "invalid_request"
            return sent(error_answer(code, error.description, error.status))
        except PiMcpError as error:
            _LOG.warning("an OAuth request failed: %s", error.diagnostic.line())
            return sent(error_answer("temporarily_unavailable", "The gateway's store cannot be used now.", 503))

    return guarded
