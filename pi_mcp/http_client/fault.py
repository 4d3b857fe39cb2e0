"""Why a request brought no result: one exception, whose `kind` says what happened.

Comes in: facts noted where they were seen. Goes out: `MCPClientError` with a diagnostic in our own words. It never
carries a header's value, an address with its query, a body that is no JSON-RPC, or a library's exception text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from pi_mcp.errors import Diagnostic, Operation, PiMcpError

KINDS: dict[str, tuple[str, str, str | None]] = {
    # before anything was sent
    "usage": ("usage", "{detail}.", None),
    "not_initialized": ("usage", "The client is not initialized.", "Call initialize() first."),
    "unsendable": ("operation_failed", "The arguments cannot be written as JSON; nothing was sent.", None),
    "refused": ("connection_failed", "The connection was refused ({detail}).", "See that the server runs."),
    "dns": ("connection_failed", "The host name could not be resolved ({detail}).", "Look at the address."),
    "tls": ("connection_failed", "The TLS connection could not be made ({detail}).", "See SSL_CERT_FILE."),
    "unreachable": ("connection_failed", "The host could not be reached ({detail}).", "Look at the network."),
    "proxy": ("connection_failed", "The proxy did not connect ({detail}).", "Look at HTTPS_PROXY and NO_PROXY."),
    "connect_timeout": ("connection_failed", "The host did not accept the connection in time ({detail}).", None),
    # on the way
    "reset": ("connection_failed", "The connection broke off.", "Look at the server's log."),
    "timeout": ("timeout", "There was no answer in time.", "Give a longer `timeout` if it needs one."),
    "aborted": ("cancelled", "The request was stopped.", None),
    # what was answered
    "redirect": ("connection_failed", "The server redirects elsewhere ({detail}).", "Use the final address."),
    "not_mcp": ("protocol_error", "The address does not answer as an MCP server ({detail}).", "Look at the address."),
    "html": ("protocol_error", "The address answers with a web page, not as an MCP server.", "Look at the address."),
    "malformed": ("protocol_error", "The answer is not a JSON-RPC message.", None),
    "too_large": ("protocol_error", "The answer is larger than {detail} and was dropped.", "Ask for less."),
    "no_response": ("connection_failed", "The server's stream ended without an answer.", None),
    "version": ("protocol_error", "The server answered with an unknown protocol version ({detail}).", None),
    "session_lost": ("connection_failed", "The server no longer knows this session.", "Initialize again."),
    "session_required": ("protocol_error", "The server insists on a session.", "Use a client with a session."),
    "rate_limited": ("operation_failed", "The server limits the rate of requests (HTTP 429).", "Wait, then try again."),
    "status": ("connection_failed", "The server answered with HTTP {status}.", None),
    "error": ("operation_failed", "The server reported an error (code {code}).{said}", None),
    "input_required": ("protocol_error", "The server asked for something that is not offered to it.", None),
    "tool_error": ("tool_error", "The tool reported an error.", "Its own text is in `result`."),
}
"""Kind → (diagnostic code, message, hint)."""

_STATUS_CODES = {401: "authentication_required", 403: "permission_denied"}


class MCPClientError(PiMcpError):
    """A request without a result to use; `kind` is a word of `KINDS`.

    `executed` is "no" where the request provably did not run, else "unknown". `result` is the whole result for
    `tool_error` and `input_required`; `code`, `server_message` and `data` are the server's for `error`. `status`,
    `challenges` (WWW-Authenticate) and `retry_after` (seconds) come from an HTTP answer. `detail` is text of ours: a
    host and port, a limit.
    """

    def __init__(
        self,
        kind: str,
        *,
        operation: Operation = "call",
        detail: str = "",
        status: int | None = None,
        code: int | None = None,
        server_message: str = "",
        data: Any = None,
        result: dict[str, Any] | None = None,
        executed: Literal["no", "unknown"] = "unknown",
        challenges: Iterable[str] = (),
        retry_after: float | None = None,
    ) -> None:
        name, message, hint = KINDS[kind]
        if kind == "status":
            name = _STATUS_CODES.get(status or 0, name)
        quote = printable(server_message, 300)
        message = message.replace("{detail}", detail) if detail else message.replace(" ({detail})", "")
        message = message.replace("{status}", str(status)).replace("{code}", str(code))
        message = message.replace("{said}", f" It says: {quote}" if quote else "")
        super().__init__(Diagnostic(name, operation, None, message, hint))
        self.kind = kind
        self.detail = detail
        self.status = status
        self.code = code
        self.server_message = server_message
        self.data = data
        self.result = result
        self.executed: Literal["no", "unknown"] = executed
        self.challenges = tuple(challenges)
        self.retry_after = retry_after


def printable(text: str, limit: int) -> str:
    """A server's sentence for an exception: one line, nothing that steers a terminal or hides."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 8 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
