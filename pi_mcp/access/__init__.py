"""Whom the gateway serves, as values: scopes, grants, the records of its store and the store's interface.

Comes in: what requests and people say. Goes out: frozen values and yes or no. No I/O, nothing heavy.
"""

from pi_mcp.access.grant import Grant, GrantKind, Limits
from pi_mcp.access.records import (
    AuditFilter,
    AuditRow,
    Client,
    Code,
    Consent,
    Key,
    Once,
    Outcome,
    SignIn,
    SigningKey,
    Token,
)
from pi_mcp.access.scopes import NOTHING, Action, MalformedScope, Scopes, server_scope, tool_scope
from pi_mcp.access.store import Rotation, Store

__all__ = [
    "NOTHING",
    "Action",
    "AuditFilter",
    "AuditRow",
    "Client",
    "Code",
    "Consent",
    "Grant",
    "GrantKind",
    "Key",
    "Limits",
    "MalformedScope",
    "Once",
    "Outcome",
    "Rotation",
    "Scopes",
    "SignIn",
    "SigningKey",
    "Store",
    "Token",
    "server_scope",
    "tool_scope",
]
