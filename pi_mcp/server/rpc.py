"""JSON-RPC messages of the gateway's clients: taken apart, put together, and made to fit the client's era.

Comes in: bytes or JSON values. Goes out: messages as plain dicts. Functions from values to values, no I/O. Whatever
is not the protocol's envelope stays as it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from pi_mcp.errors import Diagnostic
from pi_mcp.jsontext import compact_json
from pi_mcp.plugin import RpcError
from pi_mcp.text import clean_line

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNREACHABLE = -32000
"""The upstream could not be reached, or went away. `data` is the diagnostic."""
TIMED_OUT = -32001
RESOURCE_NOT_FOUND = -32002
FORBIDDEN = -32003
"""The caller may not do that."""
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
REQUEST_CANCELLED = -32800
"""Ends the HTTP stream of a request that its client cancelled in the handshake era, as the SDK does."""

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSIONS = ("2026-07-28",)

META = "io.modelcontextprotocol/"
SERVER_INFO = META + "serverInfo"
SUBSCRIPTION = META + "subscriptionId"

_CACHEABLE = frozenset(
    {"tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "server/discover"}
)
"""Results that state for how long and for whom they hold (2026-07-28)."""
_MODERN_MEMBERS = ("resultType", "ttlMs", "cacheScope")


class Malformed(RpcError):
    """Bytes that are no JSON-RPC message."""


def decoded(body: bytes | str) -> Any:
    """The JSON value of a message. Raises Malformed; never says what was wrong in the parser's words."""
    try:
        # As UTF-8, which is what JSON-RPC is: what stands before a gateway and reads bodies reads no UTF-16.
        text = body if isinstance(body, str) else body.decode("utf-8-sig")
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        raise Malformed(PARSE_ERROR, "Parse error") from None


def _no_number(text: str) -> float:
    """NaN and infinities, which Python would read and write, are no JSON: no peer could read them."""
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def is_id(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def kind_of(message: Any) -> str:
    """`request`, `notification`, `response`, or `` for what is none of them."""
    if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
        return ""
    params = message.get("params")
    if isinstance(message.get("method"), str):
        if params is not None and not isinstance(params, dict):
            return ""
        if "id" not in message:
            return "notification"
        return "request" if is_id(message["id"]) else ""
    if is_id(message.get("id")) and (isinstance(message.get("result"), dict) or isinstance(message.get("error"), dict)):
        return "response"
    return ""


MOST_DECLARED = 8 * 1024
"""Characters, as JSON, of what is kept of a client's own description for as long as it is known: capabilities, and as
much again of its name and version. Thousands of clients are known at a time; real ones say a few hundred."""
_NAMES = ("name", "title", "version", "websiteUrl")


def described(capabilities: dict[str, Any], info: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is kept of a client's name and version. Raises RpcError for capabilities beyond all measure.

    Pictures and the like, which nobody shows, are what makes it long: then the names alone are kept, cut.
    """
    if len(compact_json(capabilities)) > MOST_DECLARED:
        raise RpcError(INVALID_PARAMS, f"The client's capabilities are longer than {MOST_DECLARED} characters")
    if info is None or len(compact_json(info)) <= MOST_DECLARED:
        return info
    return {name: text[:256] for name in _NAMES if isinstance(text := info.get(name), str)}


def envelope_of(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Client capabilities and client info of a request of 2026-07-28. Raises RpcError.

    As the SDK classifies it, which takes a second to load: a client over stdio that probes would not wait for that.
    """
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        raise RpcError(INVALID_PARAMS, "params._meta is missing the envelope of 2026-07-28")
    missing = [key for key in (META + "protocolVersion", META + "clientCapabilities") if key not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"params._meta is missing {', '.join(missing)}")
    version, capabilities, info = (
        meta.get(META + name) for name in ("protocolVersion", "clientCapabilities", "clientInfo")
    )
    if not isinstance(version, str) or not isinstance(capabilities, dict):
        raise RpcError(INVALID_PARAMS, "The envelope in params._meta cannot be read")
    if version not in MODERN_VERSIONS:
        data = {"supported": list(MODERN_VERSIONS), "requested": version}
        raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
    return capabilities, described(capabilities, info if isinstance(info, dict) else None)


def result_message(request_id: int | str, result: Mapping[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error_message(request_id: int | str | None, error: RpcError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": error.to_json()}


def notification(method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return message


def of_diagnostic(diagnostic: Diagnostic) -> RpcError:
    """Our own failure as an error for the client: our words, and the diagnostic as `data`."""
    code = INTERNAL_ERROR
    if diagnostic.code in ("connection_failed", "busy", "authentication_required", "permission_denied"):
        code = UNREACHABLE
    elif diagnostic.code == "timeout":
        code = TIMED_OUT
    elif diagnostic.code == "refused":
        code = FORBIDDEN
    elif diagnostic.code in ("usage", "not_found", "tool_changed"):
        code = INVALID_PARAMS
    lead = f"{clean_line(diagnostic.server, 64)}: " if diagnostic.server else ""
    return RpcError(code, f"{lead}{diagnostic.message}", diagnostic.to_json())


def fitted(method: str, result: dict[str, Any], *, modern: bool, private: bool = True) -> dict[str, Any]:
    """A result with the members that the client's era wants, and without those that it does not know."""
    if not modern:
        if result.get("resultType", "complete") == "complete" and any(name in result for name in _MODERN_MEMBERS):
            return {name: value for name, value in result.items() if name not in _MODERN_MEMBERS}
        return result
    kind = result.get("resultType")
    if kind is None:
        result = {**result, "resultType": "complete"}
    elif kind != "complete":
        return result
    if method in _CACHEABLE:
        if "ttlMs" not in result:
            result = {**result, "ttlMs": 0}
        if result.get("cacheScope") is None or (private and result["cacheScope"] != "private"):
            result = {**result, "cacheScope": "private"}
    return result
