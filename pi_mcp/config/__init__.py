"""Configuration: files and environment become server definitions, and definitions what a connection needs.

Comes in: `mcp.json` files, trust records, an environment. Goes out: a `Configuration`, and for one server a
`ResolvedServer`. It contacts no server; the only processes that it starts are secret commands. Names are found
when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Now, not on first use: a later import of a module of the same name would take the function's place here.
from pi_mcp.config.fingerprint import fingerprint
from pi_mcp.config.resolve import ResolvedServer, resolve

if TYPE_CHECKING:
    from pi_mcp.config.definition import (
        Configuration,
        EntryState,
        FileReport,
        ProjectQuestion,
        Scope,
        ServerDefinition,
        ServerEntry,
        Source,
        Transport,
        TrustLevel,
    )
    from pi_mcp.config.edit import add_servers, remove_server, set_disabled, set_server
    from pi_mcp.config.importing import Importable, ImportPlan, add_entry, apply_import, find_importable, plan_import
    from pi_mcp.config.jsonc import Document, JsoncError, parse
    from pi_mcp.config.load import EXAMPLE, configuration_of, load_config, project_file
    from pi_mcp.config.lookup import resolve_secrets
    from pi_mcp.config.policy import (
        SENSITIVE_WORDS,
        Admission,
        admits,
        confirmation,
        headless_allows,
        is_sensitive,
        matches,
        names_tool,
        needs_confirmation,
        sensitive_words,
        split_name,
    )
    from pi_mcp.config.secret import Secret, SecretCommand
    from pi_mcp.config.trust import TrustStore, ask_trust, definition_digest
    from pi_mcp.config.validate import FIELDS, FOREIGN, OAUTH, Field

_HOMES = {
    "Admission": "policy",
    "Configuration": "definition",
    "Document": "jsonc",
    "EXAMPLE": "load",
    "EntryState": "definition",
    "FIELDS": "validate",
    "FOREIGN": "validate",
    "Field": "validate",
    "FileReport": "definition",
    "ImportPlan": "importing",
    "Importable": "importing",
    "JsoncError": "jsonc",
    "OAUTH": "validate",
    "ProjectQuestion": "definition",
    "SENSITIVE_WORDS": "policy",
    "Scope": "definition",
    "Secret": "secret",
    "SecretCommand": "secret",
    "ServerDefinition": "definition",
    "ServerEntry": "definition",
    "Source": "definition",
    "Transport": "definition",
    "TrustLevel": "definition",
    "TrustStore": "trust",
    "add_entry": "importing",
    "add_servers": "edit",
    "admits": "policy",
    "apply_import": "importing",
    "ask_trust": "trust",
    "configuration_of": "load",
    "confirmation": "policy",
    "definition_digest": "trust",
    "find_importable": "importing",
    "headless_allows": "policy",
    "is_sensitive": "policy",
    "load_config": "load",
    "matches": "policy",
    "names_tool": "policy",
    "needs_confirmation": "policy",
    "parse": "jsonc",
    "plan_import": "importing",
    "project_file": "load",
    "remove_server": "edit",
    "resolve_secrets": "lookup",
    "sensitive_words": "policy",
    "set_disabled": "edit",
    "set_server": "edit",
    "split_name": "policy",
}

__all__ = [
    "EXAMPLE",
    "FIELDS",
    "FOREIGN",
    "OAUTH",
    "SENSITIVE_WORDS",
    "Admission",
    "Configuration",
    "Document",
    "EntryState",
    "Field",
    "FileReport",
    "ImportPlan",
    "Importable",
    "JsoncError",
    "ProjectQuestion",
    "ResolvedServer",
    "Scope",
    "Secret",
    "SecretCommand",
    "ServerDefinition",
    "ServerEntry",
    "Source",
    "Transport",
    "TrustLevel",
    "TrustStore",
    "add_entry",
    "add_servers",
    "admits",
    "apply_import",
    "ask_trust",
    "configuration_of",
    "confirmation",
    "definition_digest",
    "find_importable",
    "fingerprint",
    "headless_allows",
    "is_sensitive",
    "load_config",
    "matches",
    "names_tool",
    "needs_confirmation",
    "parse",
    "plan_import",
    "project_file",
    "remove_server",
    "resolve",
    "resolve_secrets",
    "sensitive_words",
    "set_disabled",
    "set_server",
    "split_name",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
