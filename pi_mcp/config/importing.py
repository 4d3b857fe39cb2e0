"""Servers that a person has in other clients, and new ones: what would be written to `mcp.json`.

Comes in: the files of Claude Code, Claude Desktop, Cursor and a project; or the words of `pi-mcp add`. Goes out: a
plan to look at, in which no secret can be read, and on request the entries in the person's file. It changes no
other client's file, replaces no entry that is there, and starts nothing.

Each client has its own idea of what a `$` means. An entry is rewritten so that it means the same here: what was
plain text there is written so that it is plain text here, above all a leading `!`, which would be a command.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pi_mcp.config import edit, jsonc
from pi_mcp.config.definition import Configuration
from pi_mcp.config.gateway_entry import starts_gateway
from pi_mcp.config.interpolate import literal
from pi_mcp.config.load import project_file
from pi_mcp.config.masking import shown_entry
from pi_mcp.config.resolve import looks_secret
from pi_mcp.config.trust import definition_digest
from pi_mcp.config.validate import FOREIGN, Checked, Origin, check
from pi_mcp.errors import Diagnostic, error_of, failure
from pi_mcp.text import clean_line, quoted

Action = Literal["add", "same", "conflict", "invalid", "not_shown"]
"""add: would be written. same: the configuration has it. conflict: the name stands for something else there, or in
a source before this one. invalid: cannot be used here. not_shown: the same as in a source before, or pi-mcp itself."""

Dialect = Literal["ours", "claude", "plain", "cursor"]
"""How a client reads a `$`: as we do; `${VAR}` and its default; not at all; `${env:VAR}` and names of its own."""

MAX_NAME = 64
"""Characters of a server's name in `pi-mcp add`."""
MAX_FILE = 64 * 1024 * 1024
"""Bytes of another client's file; that of Claude Code holds histories and grows to megabytes."""


@dataclass(frozen=True, slots=True)
class Importable:
    """One place of one client that has servers, or that cannot be read (`diagnostic`)."""

    path: Path
    client: str
    servers: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    dialect: Dialect = "plain"
    diagnostic: Diagnostic | None = None
    document: jsonc.Document | None = field(default=None, repr=False, compare=False)
    root: jsonc.Path = ("mcpServers",)


@dataclass(frozen=True, slots=True)
class ImportRow:
    """What would become of one entry. `entry` may hold secrets and is not in the repr; `shown` holds none."""

    name: str
    client: str
    path: Path
    action: Action
    shown: str
    note: str | None = None
    warnings: tuple[str, ...] = ()
    entry: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    def to_json(self) -> dict[str, Any]:
        """`{name, client, path, action, shown, note, warnings}`; `shown` is the masked entry as text, or empty."""
        return {
            "name": self.name,
            "client": self.client,
            "path": str(self.path),
            "action": self.action,
            "shown": self.shown,
            "note": self.note,
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """Every entry that was found, in the order of the sources; nothing is written yet."""

    rows: tuple[ImportRow, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    """Sources that could not be read."""

    @property
    def additions(self) -> dict[str, Mapping[str, Any]]:
        """The entries to be written, by name. They may hold secrets."""
        return {row.name: row.entry for row in self.rows if row.action == "add"}

    def to_json(self) -> dict[str, Any]:
        """`{rows, diagnostics}`, without a secret."""
        return {
            "rows": [row.to_json() for row in self.rows],
            "diagnostics": [diagnostic.to_json() for diagnostic in self.diagnostics],
        }

    @property
    def text(self) -> str:
        """The plan for a person: several lines, cleaned, without a secret."""
        lines: list[str] = []
        for row in self.rows:
            if row.action == "not_shown":
                continue
            source = clean_line(str(row.path), 500)
            lines.append(f"{row.action:<8}  {clean_line(row.name, 128) or '(no name)'}  from {row.client} ({source})")
            details = (row.shown, row.note, *(f"warning: {warning}" for warning in row.warnings))
            lines.extend(f"          {detail}" for detail in details if detail)
        lines.extend(diagnostic.line() for diagnostic in self.diagnostics)
        hidden = sum(row.action == "not_shown" for row in self.rows)
        if hidden:
            lines.append(f"{hidden} more {'says' if hidden == 1 else 'say'} the same again or lead back to pi-mcp.")
        return "\n".join(lines) or "No other client's servers were found."


def find_importable(
    home: Path, cwd: Path, environ: Mapping[str, str], *, platform: str = sys.platform
) -> tuple[Importable, ...]:
    """Look at the places of the known clients; those with servers, or that cannot be read. Reads files alone.

    In this order, which is the one in which names are given away: Claude Code for this folder, Claude Code, the
    project's `.mcp.json`, Claude Desktop, Cursor.
    """
    found: list[Importable] = []
    claude = Path(environ.get("CLAUDE_CONFIG_DIR") or home) / ".claude.json"
    document = _read(claude, "Claude Code", found)
    if document is not None:
        for folder in _project_keys(document.value, cwd):
            root = ("projects", folder, "mcpServers")
            _add(found, claude, "Claude Code, this folder", "claude", document, root)
        _add(found, claude, "Claude Code", "claude", document)
    sources: tuple[tuple[Path | None, str, Dialect], ...] = (
        (project_file(cwd), "the project", "ours"),
        (claude_desktop_file(home, environ, platform), "Claude Desktop", "plain"),
        (home / ".cursor" / "mcp.json", "Cursor", "cursor"),
    )
    for path, client, dialect in sources:
        if path is not None and (document := _read(path, client, found)) is not None:
            _add(found, path, client, dialect, document)
    return tuple(found)


def plan_import(importables: tuple[Importable, ...], configuration: Configuration) -> ImportPlan:
    """Decide for every entry what an import would do. Reads and writes nothing."""
    rows: list[ImportRow] = []
    taken: dict[str, str] = {}
    for source in importables:
        for name, raw in source.servers.items():
            rows.append(_row(source, name, raw, configuration, taken))
    return ImportPlan(tuple(rows), tuple(source.diagnostic for source in importables if source.diagnostic))


def apply_import(plan: ImportPlan, target: Path) -> tuple[str, ...]:
    """Write the plan's additions to `target`, in one step; the names that were written.

    A name that the file has by now is left as it is. Raises ConfigurationError as `edit.set_server` does.
    """
    additions = plan.additions
    return edit.add_servers(target, additions) if additions else ()


def add_entry(
    name: str,
    url: str | None = None,
    command: str | None = None,
    args: tuple[str, ...] | list[str] = (),
    env: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The entry for `pi-mcp add NAME URL` or `pi-mcp add NAME -- COMMAND ARGS…`, as it is to be written.

    Values are taken as written: `${VAR}` and `!command` mean what they mean in the file. Raises
    ConfigurationError that says what is wrong, without any value.
    """
    shown = clean_line(name, MAX_NAME)
    if not name.strip() or len(name) > MAX_NAME or shown != name:
        raise failure(
            "configuration_invalid",
            "configure",
            shown or None,
            f"A server's name has 1 to {MAX_NAME} characters, none of them a control or invisible character, and no "
            "blanks at its ends.",
            "Choose a short plain name.",
        )
    if (url is None) == (command is None):
        raise failure(
            "configuration_invalid",
            "configure",
            shown,
            "A server needs either an address or a command.",
            "pi-mcp add NAME URL, or pi-mcp add NAME -- COMMAND ARGS.",
        )
    if url is not None and "://" not in url:
        raise failure(
            "configuration_invalid",
            "configure",
            shown,
            "That is no address: https:// or http:// is not at its beginning.",
            f"A program stands behind --: pi-mcp add {quoted(name)} -- COMMAND ARGS.",
        )
    entry: dict[str, Any] = {"command": command} if url is None else {"url": url}
    if args:
        entry["args"] = list(args)
    if env:
        entry["env"] = dict(env)
    if headers:
        entry["headers"] = dict(headers)
    checked = check(name, entry, Origin(None, "user", Path.cwd()))
    if checked.diagnostic is not None:
        raise error_of(checked.diagnostic)
    return entry


# One entry


def _row(source: Importable, name: str, raw: Any, configuration: Configuration, taken: dict[str, str]) -> ImportRow:
    def row(action: Action, note: str | None, warnings: tuple[str, ...] = ()) -> ImportRow:
        shown = "" if action == "invalid" else shown_entry(entry)
        kept = entry if action == "add" else {}
        return ImportRow(name, source.client, source.path, action, shown, note, warnings, MappingProxyType(kept))

    entry: dict[str, Any] = {}
    if not isinstance(raw, dict):
        return row("invalid", _invalid(_checked(source, name, raw)))
    present = {key: value for key, value in raw.items() if value is not None}
    missing: list[str] = []
    present = _translated(present, source.dialect, missing)
    checked = _checked(source, name, present)
    if checked.definition is None:
        return row("invalid", _invalid(checked))
    if missing:
        names = ", ".join(f"`{clean_line(variable, 60)}`" for variable in dict.fromkeys(missing))
        return row("invalid", f"{names} of {source.client} has no counterpart. Write the entry by hand.")
    entry = {key: value for key, value in present.items() if key not in FOREIGN}
    if starts_gateway(entry):
        return row("not_shown", "This is pi-mcp itself.")
    digest = definition_digest(checked.definition)
    if name in taken:
        if taken[name] == digest:
            return row("not_shown", "The same entry stands in a source before this one.")
        return row("conflict", "A source before this one has another entry of this name.")
    existing = configuration.entries.get(name)
    # A project's entry is not the person's own: it goes with the folder.
    if existing is not None and existing.source.scope != "project":
        if existing.definition is not None and definition_digest(existing.definition) == digest:
            return row("same", None)
        return row("conflict", "Your configuration has another entry of this name, which stays.")
    taken[name] = digest
    dropped = [f"`{key}`" for key in present if key in FOREIGN]
    note = f"Left out, without a meaning here: {', '.join(dropped)}." if dropped else None
    return row("add", note, _plain_secrets(entry))


def _checked(source: Importable, name: str, raw: Any) -> Checked:
    position = source.document.position if source.document is not None else None
    return check(name, raw, Origin(source.path, "user", Path.cwd(), position, source.root))


def _invalid(checked: Checked) -> str:
    diagnostic = checked.diagnostic
    return "" if diagnostic is None else " ".join(filter(None, (diagnostic.message, diagnostic.hint)))


def _plain_secrets(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of headers and variables whose secret stands in the file itself."""
    return tuple(
        f"`{table}.{clean_line(key, 60)}` holds its value in plain text; `${{{_variable(key)}}}` or a `!command` "
        "keeps it out of the file."
        for table in ("env", "headers")
        for key, value in entry.get(table, {}).items()
        if looks_secret(key) and value and not value.startswith("!") and not re.search(r"(?<!\$)\$[{A-Za-z_]", value)
    )


def _variable(key: str) -> str:
    return "TOKEN" if key.lower() == "authorization" else re.sub(r"\W", "_", key, flags=re.ASCII).upper()


# What a `$` means elsewhere

_CLAUDE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_CURSOR = re.compile(
    r"\$\{(?:(userHome|workspaceFolder|workspaceFolderBasename|pathSeparator|/)|(?:env:)?([A-Za-z_][A-Za-z0-9_]*))\}"
)
_CURSOR_OWN = {"userHome": "${HOME}", "pathSeparator": "/", "/": "/"}
_TEXTS = ("command", "cwd", "url", "serverUrl", "httpUrl")
_TABLES = ("env", "headers")


def _translated(entry: dict[str, Any], dialect: Dialect, missing: list[str]) -> dict[str, Any]:
    """The entry with every text written so that it means here what it means there.

    Variables of the other client that nothing stands for here are added to `missing`.
    """
    if dialect == "ours":
        return entry

    def text(value: Any, *, dollar: bool = False) -> Any:
        return _text(value, dialect, dollar, missing) if isinstance(value, str) else value

    result = dict(entry)
    for key in _TEXTS:
        if key in result:
            result[key] = text(result[key])
    if isinstance(result.get("args"), list):
        result["args"] = [text(value) for value in result["args"]]
    for key in _TABLES:
        if isinstance(result.get(key), dict):
            result[key] = {name: text(value, dollar=True) for name, value in result[key].items()}
    if dialect == "cursor" and isinstance(result.get("auth"), dict) and "oauth" not in result:
        result["oauth"] = _cursor_login(result.pop("auth"))
    return result


def _text(value: str, dialect: Dialect, dollar: bool, missing: list[str]) -> str:
    if dialect == "plain":
        return literal(value, dollar=dollar)
    pattern = _CLAUDE if dialect == "claude" else _CURSOR
    replace: Callable[[re.Match[str], bool], str] = _claude_reference if dialect == "claude" else _cursor_reference
    out: list[str] = []
    at = 0
    for match in pattern.finditer(value):
        out.append(literal(value[at : match.start()], dollar=dollar))
        reference = replace(match, dollar)
        if not reference:
            # A relative path already starts in the working directory, which is the workspace.
            if match.group(1) == "workspaceFolder" and match.start() == 0:
                reference = "."
            else:
                missing.append(match.group())
        out.append(reference)
        at = match.end()
    return "".join([*out, literal(value[at:], dollar=dollar)])


def _claude_reference(match: re.Match[str], dollar: bool) -> str:
    default = match.group(2)
    return match.group() if default is None else f"${{{match.group(1)}:-{literal(default, dollar=dollar)}}}"


def _cursor_reference(match: re.Match[str], dollar: bool) -> str:
    del dollar
    own, variable = match.groups()
    return _CURSOR_OWN.get(own, "") if own else f"${{{variable}}}"


def _cursor_login(auth: dict[str, Any]) -> dict[str, Any]:
    names = {"CLIENT_ID": "clientId", "CLIENT_SECRET": "clientSecret"}
    return {names.get(key, key): value for key, value in auth.items()}


# Where other clients keep their servers


def claude_desktop_file(home: Path, environ: Mapping[str, str], platform: str) -> Path | None:
    """Claude Desktop's file; None where Windows does not say where programs keep theirs."""
    name = "claude_desktop_config.json"
    if platform == "darwin":
        return home / "Library" / "Application Support" / "Claude" / name
    if platform == "win32":
        roaming = environ.get("APPDATA")
        return Path(roaming) / "Claude" / name if roaming else None
    return Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "Claude" / name


def _project_keys(value: Any, cwd: Path) -> list[str]:
    """The key of this folder, or of the nearest one above it, in Claude Code's table of projects."""
    projects = value.get("projects") if isinstance(value, dict) else None
    if not isinstance(projects, dict):
        return []
    keys = [key for folder in (cwd, *cwd.parents) for key in dict.fromkeys((str(folder), folder.as_posix()))]
    return [key for key in keys if isinstance(projects.get(key), dict) and projects[key].get("mcpServers")][:1]


def _read(path: Path, client: str, found: list[Importable]) -> jsonc.Document | None:
    """The file's content; None when there is no file, or none that can be read (which is added to `found`)."""
    shown = clean_line(str(path), 500)
    try:
        if path.stat().st_size > MAX_FILE:
            raise ValueError("too large")
        return jsonc.parse(path.read_bytes().decode())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except jsonc.JsoncError as error:
        message = f"{shown}, line {error.line}, column {error.column}: {error.hint}"
    except (OSError, ValueError):
        message = f"{shown} cannot be read as UTF-8 text."
    diagnostic = Diagnostic("configuration_invalid", "configure", None, message, f"Correct the file of {client}.")
    found.append(Importable(path, client, diagnostic=diagnostic))
    return None


def _add(
    found: list[Importable],
    path: Path,
    client: str,
    dialect: Dialect,
    document: jsonc.Document,
    root: jsonc.Path = ("mcpServers",),
) -> None:
    value: Any = document.value
    for key in root:
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, dict):
        if value:
            found.append(Importable(path, client, MappingProxyType(value), dialect, None, document, root))
        return
    if value is not None:
        line, column = document.position(root)
        what = "`mcpServers` is not an object"
    elif len(root) == 1 and isinstance(document.value, dict) and isinstance(document.value.get("servers"), dict):
        line, column = document.position(("servers",))
        what = "`servers` is VS Code's key; `mcpServers` is expected"
    else:
        return
    message = f"{clean_line(str(path), 500)}, line {line}, column {column}: {what}."
    diagnostic = Diagnostic("configuration_invalid", "configure", None, message, "Rename the key to import it.")
    found.append(Importable(path, client, diagnostic=diagnostic))
