"""Every failure as a value: codes, diagnostics, exit codes, and the exception tree.

Comes in: the kind of a failure and where it happened. Goes out: a `Diagnostic` written by us. It never
carries exception text, an HTTP body, a secret or a stack trace.

    PiMcpError                  carries one Diagnostic
     ├── ConfigurationError     usage, configuration_invalid, secret_lookup_failed   (exit 2)
     ├── ServerError            connection_failed, protocol_error, operation_failed,
     │    │                     busy, tool_changed, timeout                          (exit 3, 6)
     │    └── NotExecuted       the answer proves that the call did not run: it may be sent once more
     ├── AuthenticationError    authentication_required, permission_denied, …        (exit 4)
     ├── NotFound               not_found                                            (exit 5)
     └── Refused                refused                                              (exit 7)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

Operation = Literal["configure", "trust", "connect", "authenticate", "list", "search", "load", "call", "command"]


@dataclass(frozen=True, slots=True)
class Code:
    """What a diagnostic code means: process exit code, and a sentence for the reference table."""

    exit_code: int
    meaning: str
    check: str


CODES: Mapping[str, Code] = MappingProxyType(
    {
        "tool_error": Code(
            1,
            "The tool ran and reported an error.",
            "The server's own text; verify the outcome before trying again.",
        ),
        "usage": Code(
            2,
            "A command or its arguments are not understood.",
            "`/mcp help`, or the tool's own input schema.",
        ),
        "configuration_invalid": Code(
            2,
            "A configuration file or one of its entries cannot be used.",
            "JSON syntax, field names, transport type and environment variables, at the file and line named.",
        ),
        "secret_lookup_failed": Code(
            2,
            "A `!command` for a header or variable gave no usable value.",
            "That the helper is installed and signed in, exits 0, prints one line of at most 64 KiB within 10 s.",
        ),
        "connection_failed": Code(
            3,
            "The server could not be reached or went away.",
            "Executable, working directory, URL, network and TLS.",
        ),
        "protocol_error": Code(
            3,
            "The server's answer does not follow the protocol.",
            "Server version and the `protocol` setting.",
        ),
        "operation_failed": Code(3, "A failure of unknown kind.", "`/mcp get SERVER` and the debug log."),
        "busy": Code(3, "Another operation on this server is running.", "Wait for it to finish, then repeat."),
        "tool_changed": Code(
            3,
            "The tool's live definition differs from the loaded one; nothing was sent.",
            "The difference shown; search again to accept the new definition.",
        ),
        "authentication_required": Code(4, "The server wants a login.", "`/mcp auth SERVER`, or the header's value."),
        "permission_denied": Code(4, "The login is valid and lacks a right.", "Account, scopes and service policy."),
        "credential_store_unavailable": Code(
            4, "The operating system's credential store cannot be used.", "That it runs and is unlocked."
        ),
        "oauth_failed": Code(4, "The login did not complete.", "Browser access to the callback, client registration."),
        "callback_unavailable": Code(4, "The login's local port is taken.", "Which process listens on it."),
        "not_found": Code(5, "No server or tool of that name.", "The names in `/mcp` or `/mcp tools`."),
        "timeout": Code(6, "The time limit passed.", "Server responsiveness and the limit's setting."),
        "refused": Code(7, "Policy or a person declined.", "Trust level, `includeTools`, or confirm when asked."),
        "cancelled": Code(130, "Stopped on request.", "Whether an interrupted call took effect."),
    }
)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One failure or warning, in our own words.

    `message` is a sentence or two ending in a full stop; `hint` says what to do next. Server names and other
    text from outside must have been cleaned with `pi_mcp.text` before they come here.
    """

    code: str
    operation: Operation
    server: str | None
    message: str
    hint: str | None = None

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"unknown diagnostic code {self.code!r}")

    @property
    def exit_code(self) -> int:
        return CODES[self.code].exit_code

    def line(self) -> str:
        """`SERVER: [code] Message. Hint.`, on one line."""
        lead = f"{self.server}: " if self.server else ""
        tail = f" {self.hint}" if self.hint else ""
        return f"{lead}[{self.code}] {self.message}{tail}"

    def to_json(self) -> dict[str, Any]:
        """`{code, operation, server, message, hint}`; server and hint may be null."""
        return {
            "code": self.code,
            "operation": self.operation,
            "server": self.server,
            "message": self.message,
            "hint": self.hint,
        }


class PiMcpError(Exception):
    """Base of everything that pi-mcp raises on purpose; `str()` is the diagnostic's line."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.diagnostic = diagnostic

    def __str__(self) -> str:
        return self.diagnostic.line()


class ConfigurationError(PiMcpError):
    """The person has to change a file or a variable."""


class ServerError(PiMcpError):
    """The server, or the way to it, failed."""


class NotExecuted(ServerError):
    """The server's answer proves that the request was not executed (DESIGN §7): it may be sent once more."""


class AuthenticationError(PiMcpError):
    """A credential is missing, refused or cannot be stored."""


class NotFound(PiMcpError):
    """No server or tool of that name."""


class Refused(PiMcpError):
    """Policy, trust or a person said no."""


_CLASSES: Mapping[str, type[PiMcpError]] = MappingProxyType(
    {
        "usage": ConfigurationError,
        "configuration_invalid": ConfigurationError,
        "secret_lookup_failed": ConfigurationError,
        "connection_failed": ServerError,
        "protocol_error": ServerError,
        "operation_failed": ServerError,
        "busy": ServerError,
        "tool_changed": ServerError,
        "timeout": ServerError,
        "authentication_required": AuthenticationError,
        "permission_denied": AuthenticationError,
        "credential_store_unavailable": AuthenticationError,
        "oauth_failed": AuthenticationError,
        "callback_unavailable": AuthenticationError,
        "not_found": NotFound,
        "refused": Refused,
    }
)


def failure(code: str, operation: Operation, server: str | None, message: str, hint: str | None = None) -> PiMcpError:
    """The exception of the right class for `code`, to be raised by the caller."""
    return error_of(Diagnostic(code, operation, server, message, hint))


def error_of(diagnostic: Diagnostic) -> PiMcpError:
    """The exception of the right class for a diagnostic."""
    return _CLASSES.get(diagnostic.code, PiMcpError)(diagnostic)


_RECONNECT = re.compile(r"; `/mcp reconnect [^`]*` does it now")
_ENABLE = re.compile(r"`/mcp enable ([^`]*)`")
_SAME = re.compile(r"`/mcp (auth|logout|refresh|search|tools) ")


def outside_chat(text: str) -> str:
    """A hint for where no `/mcp` can be typed, in a shell and at a gateway: the same step as a command of `pi-mcp`."""
    text = text.replace("`/mcp get ", "`pi-mcp get --connect ")
    text = _ENABLE.sub(r"""`pi-mcp chat -p "/mcp enable \1"`""", _RECONNECT.sub("", text))
    return _SAME.sub(r"`pi-mcp \1 ", text)
