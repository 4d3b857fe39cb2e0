"""What a transport learned that a JSON-RPC error cannot carry, and the one mapping from it to diagnostics.

Comes in: facts (a process's exit status, an HTTP status, a refused connection) noted by the transports. Goes
out: `Diagnostic`s in our own words. It never carries exception text, HTTP bodies or secrets, and does no I/O.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from pi_mcp.config.definition import ServerDefinition
from pi_mcp.errors import Diagnostic, NotExecuted, Operation, PiMcpError, error_of
from pi_mcp.text import clean_line, quoted, redact

RequestId = int | str

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fact. `kind` is a word of `_KINDS` or `status`, `exit`, `rate_limited`; anything else is unknown.

    `status` is an HTTP status; `headers` are the few response headers that later steps need (lower-case names:
    `www-authenticate`, `retry-after`). `executed` is "no" only where the request provably did not run.
    `retry_after` is in seconds. `session_lost`: the session id is dead, a new connection is needed.
    `detail` is our own text: a path, a host and port, a limit; never something that a server wrote.
    `diagnostic` is there when whatever failed has already said it in our words: a login that cannot be renewed.
    """

    kind: str
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)
    executed: Literal["no", "unknown"] = "unknown"
    exit_status: int | None = None
    signal: int | None = None
    retry_after: float | None = None
    session_lost: bool = False
    detail: str = ""
    diagnostic: Diagnostic | None = None


class Faults:
    """The facts of one connection. Request ids are compared as the protocol does: "7" and 7 are one."""

    _KEPT = 256

    def __init__(self) -> None:
        self.fatal: Fault | None = None
        """What ended the whole transport: exit of the process, refused connection, TLS failure …"""
        self._noted: dict[RequestId, Fault] = {}

    def note(self, request_id: RequestId | None, fault: Fault) -> None:
        """Remember why `request_id` failed; None means the whole transport (the first fatal fault stays)."""
        if request_id is None:
            if self.fatal is None:
                self.fatal = fault
            return
        self._noted[_key(request_id)] = fault
        while len(self._noted) > self._KEPT:
            self._noted.pop(next(iter(self._noted)))

    def take(self, request_id: RequestId) -> Fault | None:
        """The fact noted for this request, once."""
        return self._noted.pop(_key(request_id), None)


def _key(request_id: RequestId) -> RequestId:
    if isinstance(request_id, str):
        try:
            return int(request_id)
        except ValueError:
            return request_id
    return request_id


# kind: (code, message, hint). `{detail}` is the fault's own, `{server}` the server's name.
_KINDS: Mapping[str, tuple[str, str, str | None]] = MappingProxyType(
    {
        # stdio
        "command_missing": (
            "connection_failed",
            "The command was not found ({detail}).",
            "Install it, or give its absolute path in `command`.",
        ),
        "command_line": (
            "connection_failed",
            "The command was not found ({detail}).",
            "`command` names one program: put what follows its name into `args`.",
        ),
        "cwd_missing": (
            "connection_failed",
            "The working directory does not exist ({detail}).",
            "Create it, or change `cwd`.",
        ),
        "not_executable": (
            "connection_failed",
            "The command cannot be executed ({detail}).",
            "Make the file executable, or name its interpreter in `command`.",
        ),
        "spawn_failed": (
            "connection_failed",
            "The server process could not be started.",
            "Look at `command`, `args` and the system's process limits.",
        ),
        "stdout_closed": (
            "connection_failed",
            "The server closed its output.",
            "`/mcp get {server}` shows what it wrote to stderr.",
        ),
        # HTTP
        "refused": (
            "connection_failed",
            "The connection was refused ({detail}).",
            "See that the server runs and that host and port are right.",
        ),
        "dns": (
            "connection_failed",
            "The host name could not be resolved ({detail}).",
            "Look at `url`, the network and the DNS.",
        ),
        "tls": (
            "connection_failed",
            "The TLS connection could not be made ({detail}).",
            "Look at the certificate, the clock, and SSL_CERT_FILE for a private CA.",
        ),
        "unreachable": (
            "connection_failed",
            "The host could not be reached ({detail}).",
            "Look at the network, VPN and proxy settings.",
        ),
        "proxy": (
            "connection_failed",
            "The proxy did not connect ({detail}).",
            "Look at HTTP_PROXY, HTTPS_PROXY and NO_PROXY.",
        ),
        "reset": ("connection_failed", "The connection broke off.", "Try again; look at the server's log."),
        "connect_timeout": (
            "connection_failed",
            "The host did not accept the connection in time ({detail}).",
            "Look at `url`, the network and the proxy.",
        ),
        "redirect": (
            "connection_failed",
            "The server redirects elsewhere ({detail}); that is not followed.",
            "Put the final address into `url`.",
        ),
        "not_mcp": (
            "protocol_error",
            "The address does not answer as an MCP server ({detail}).",
            "Look at `url`; a web page or a login portal may be in between.",
        ),
        "html": (
            "protocol_error",
            "The address answers with a web page, not as an MCP server.",
            "Look at `url`; a login portal or a proxy may be in between.",
        ),
        "malformed": (
            "protocol_error",
            "The answer is not a JSON-RPC message.",
            "Look at the server's version and the `protocol` setting.",
        ),
        "no_response": (
            "connection_failed",
            "The server's stream ended without an answer.",
            "Try again; look at the server's log.",
        ),
        "session_lost": (
            "connection_failed",
            "The server no longer knows this session.",
            "The next use starts a new one; `/mcp reconnect {server}` does it now.",
        ),
        # both
        "unsendable": (
            "operation_failed",
            "The arguments cannot be written as JSON; nothing was sent.",
            "Use texts, numbers, lists and objects only.",
        ),
        "too_large": (
            "protocol_error",
            "The answer is larger than {detail} and was dropped.",
            "Ask for less: a filter, a page, a range.",
        ),
        "disconnected": (
            "connection_failed",
            "The connection ended.",
            "The next use connects again; `/mcp reconnect {server}` does it now.",
        ),
    }
)

UNKNOWN_OUTCOME = "Whether the call took effect is unknown."


def diagnose(
    fault: Fault,
    *,
    operation: Operation,
    server: str,
    definition: ServerDefinition | None = None,
    idle: bool = False,
) -> Diagnostic:
    """The diagnostic for a fault. During a call that may have run, the message says so (DESIGN §7).

    `idle`: it happened to a connected server that was not asked for anything.
    """
    if fault.diagnostic is not None:
        return replace(fault.diagnostic, operation=operation, server=server)
    code, message, hint = _words(fault, server, definition)
    if fault.kind == "exit":
        when = {"connect": "before the handshake", "call": "during the call"}.get(operation, "before it answered")
        message = f"The server process {_exit(fault)}{'' if idle else ' ' + when}."
        code, hint = "connection_failed", f"`/mcp get {quoted(server)}` shows what it wrote to stderr."
    if operation == "call" and fault.executed == "unknown":
        message = f"{message} {UNKNOWN_OUTCOME}"
    return Diagnostic(code, operation, server, message, hint)


def late(definition: ServerDefinition, operation: Operation, *, capped: float | None = None) -> Diagnostic:
    """The diagnostic for a limit of `definition` that passed while connecting, listing or calling.

    `capped`: seconds of the limit for any call, where it was that one.
    """
    name = definition.name
    if operation == "connect":
        return Diagnostic(
            "timeout",
            "connect",
            name,
            f"The server did not finish its handshake within {definition.startup_timeout:g} s (`startupTimeoutMs`).",
            _look(definition),
        )
    if operation == "list":
        return Diagnostic(
            "timeout",
            "list",
            name,
            f"The server did not answer `tools/list` within {definition.timeout:g} s (`timeoutMs`).",
            _look(definition),
        )
    if capped is not None:
        message = f"The call was ended after {capped:g} s, the limit for any call."
        hint = "Ask for less in one call."
    else:
        silence = definition.tool_timeout
        message = f"The server gave no sign of life for {silence:g} s during the call (`toolTimeoutMs`)."
        hint = "Raise the limit if the tool needs longer."
    return Diagnostic("timeout", "call", name, f"{message} {UNKNOWN_OUTCOME}", hint)


def _look(definition: ServerDefinition) -> str:
    """What to do about a server that is slow: only one that is a process of ours writes where we see it."""
    if definition.url is not None:
        return "See that the server is well; raise the limit if it needs longer."
    return f"`/mcp get {quoted(definition.name)}` shows what it wrote to stderr; raise the limit if it needs longer."


def error_for(
    fault: Fault, *, operation: Operation, server: str, definition: ServerDefinition | None = None
) -> PiMcpError:
    """The exception for a fault: `NotExecuted` where a call or listing provably did not run (DESIGN §7)."""
    diagnostic = diagnose(fault, operation=operation, server=server, definition=definition)
    repeatable = fault.session_lost or fault.kind in ("refused", "session_lost", "disconnected")
    if operation in ("call", "list") and fault.executed == "no" and repeatable:
        return NotExecuted(diagnostic)
    return error_of(diagnostic)


def _words(fault: Fault, server: str, definition: ServerDefinition | None) -> tuple[str, str, str | None]:
    if fault.session_lost:
        code, message, hint = _KINDS["session_lost"]
    elif fault.status is not None and fault.kind not in _KINDS:
        code, message, hint = _status_words(fault, definition)
    else:
        code, message, hint = _KINDS.get(
            fault.kind, ("operation_failed", "The operation failed.", "`/mcp get {server}` shows more.")
        )
    detail = redact(clean_line(fault.detail, 300))
    message = message.replace("{detail}", detail) if detail else message.replace(" ({detail})", "")
    message = message.replace("larger than {detail}", "too large")
    return code, message, hint.replace("{server}", quoted(server)) if hint else None


def _status_words(fault: Fault, definition: ServerDefinition | None) -> tuple[str, str, str | None]:
    status = fault.status or 0
    if status == 401:
        names = () if definition is None else _credentials_in(definition)
        switched_off = definition is not None and definition.oauth is False
        if names:
            hint = f"Check the value of {' and '.join(f'`{name}`' for name in names)} in `headers`"
            if not switched_off and not any(name.lower() == "authorization" for name in names):
                hint += "; if it wants a login instead, run `/mcp auth {server}`"
            return "authentication_required", "The server refused the configured credential (HTTP 401).", f"{hint}."
        if switched_off:
            return (
                "authentication_required",
                "The server wants a login (HTTP 401).",
                "Put a credential into `headers`; `oauth` is switched off for this server.",
            )
        return (
            "authentication_required",
            "The server wants a login (HTTP 401).",
            "Run `/mcp auth {server}`, or put a credential into `headers`.",
        )
    if status == 403:
        missing = _missing_scopes(fault)
        if missing:
            return (
                "permission_denied",
                f"The login lacks a right that the server wants (HTTP 403): {missing}.",
                "Run `/mcp auth {server}` to ask for it.",
            )
        return (
            "permission_denied",
            "The server refuses access (HTTP 403).",
            "Check the account, its scopes and the service's policy.",
        )
    if status == 429:
        wait = f" It asks to wait {fault.retry_after:g} s." if fault.retry_after is not None else ""
        return (
            "operation_failed",
            f"The server limits the rate of requests (HTTP 429).{wait}",
            "Wait, then try again.",
        )
    if status in (404, 405, 410):
        other = "an older server may need `type: sse`"
        if definition is not None and definition.transport == "sse":
            other = "a server of today needs `type: http`"
        return (
            "connection_failed",
            f"There is no MCP endpoint at this address (HTTP {status}).",
            f"Look at the path in `url`; {other}.",
        )
    if status == 407:
        return (
            "connection_failed",
            "The proxy wants a login (HTTP 407).",
            "Put the credential into HTTPS_PROXY.",
        )
    if status == 413:
        return "operation_failed", "The request is too large for the server (HTTP 413).", "Send less."
    if 300 <= status < 400:
        return (
            "connection_failed",
            f"The server redirects elsewhere (HTTP {status}); that is not followed.",
            "Put the final address into `url`.",
        )
    if status >= 500:
        wait = f" It asks to wait {fault.retry_after:g} s." if fault.retry_after is not None else ""
        return (
            "connection_failed",
            f"The server reports a failure of its own (HTTP {status}).{wait}",
            "Try again later; look at the server's log.",
        )
    return (
        "protocol_error",
        f"The server did not accept the request (HTTP {status}).",
        "Look at `url`, `headers` and the `protocol` setting.",
    )


def _credentials_in(definition: ServerDefinition) -> tuple[str, ...]:
    """The configured headers that by their name are a credential."""
    from pi_mcp.config.resolve import looks_secret

    return tuple(clean_line(name, 100) for name in definition.headers if looks_secret(name))


def _missing_scopes(fault: Fault) -> str:
    """The scopes that a 403 names (RFC 6750 §3.1), cleaned; empty for any other 403."""
    line = fault.headers.get("www-authenticate")
    if line is None:
        return ""
    from pi_mcp.auth.challenges import of_login

    challenge = of_login([line])
    if challenge is None or challenge.error != "insufficient_scope":
        return ""
    return redact(clean_line(" ".join(challenge.scopes or ()), 200)) or "a scope that it does not name"


def _exit(fault: Fault) -> str:
    if fault.signal is not None:
        try:
            name = f" ({signals.Signals(fault.signal).name})"
        except ValueError:
            name = ""
        return f"was ended by signal {fault.signal}{name}"
    if fault.exit_status is not None:
        return f"exited with status {fault.exit_status}"
    return "ended"


# JSON-RPC error codes with a meaning of their own.
NOT_EXECUTED_CODES = frozenset({-32020, -32022})
"""Header mismatch and unsupported version: the server refused before it ran anything (DESIGN §7)."""


def diagnose_error(code: int, message: str, data: Any, *, operation: Operation, server: str) -> Diagnostic:
    """The diagnostic for a JSON-RPC error that the server sent.

    The server's own sentence is quoted, cleaned and cut, for calls only: there it speaks to the model about the
    arguments it was given.
    """
    del data
    # A server may quote the very header that it refuses.
    quote = clean_line(redact(clean_line(message, 4000)), 300) if operation == "call" else ""
    said = f" It says: {quote}" + ("" if quote.endswith((".", "!", "?", "…")) else ".") if quote else ""
    if code == -32601:
        return Diagnostic(
            "protocol_error",
            operation,
            server,
            f"The server does not know this method.{said}",
            "Look at the server's version and the `protocol` setting.",
        )
    if code == -32602:
        return Diagnostic(
            "operation_failed",
            operation,
            server,
            f"The server refused the parameters.{said}",
            "Correct the arguments." if operation == "call" else None,
        )
    if code in (-32600, -32700, -32020):
        return Diagnostic(
            "protocol_error",
            operation,
            server,
            f"The server refused the request as malformed (code {code}).{said}",
            "Look at the server's version and the `protocol` setting.",
        )
    if code == -32022:
        return Diagnostic(
            "protocol_error",
            operation,
            server,
            "The server does not speak this version of the protocol.",
            "Look at the `protocol` setting.",
        )
    if code == -32021:
        return Diagnostic(
            "protocol_error",
            operation,
            server,
            "The server needs a client capability that is not offered to it.",
            "A server that is not trusted gets no elicitation and no roots; `/mcp trust` raises the level.",
        )
    if code == -32042:
        return Diagnostic(
            "authentication_required",
            operation,
            server,
            f"The server wants something done in a browser first.{said}",
            "Look at the server's documentation.",
        )
    # A gateway in between may have said it already.
    ran = f" {UNKNOWN_OUTCOME}" if operation == "call" and UNKNOWN_OUTCOME not in said else ""
    return Diagnostic(
        "operation_failed",
        operation,
        server,
        f"The server reported an error (code {code}).{said}{ran}",
        f"`/mcp get {quoted(server)}` shows more.",
    )
