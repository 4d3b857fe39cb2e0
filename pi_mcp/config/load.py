"""Which files are read, what counts, and what waits for the person's trust (DESIGN §4, §9).

Comes in: a working directory and an environment. Goes out: a `Configuration`; bad content becomes entries and
diagnostics, never an exception. It reads files and trust records; it starts nothing, contacts nothing, replaces no
variable and writes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pi_mcp import files
from pi_mcp.config.definition import (
    Configuration,
    EntryState,
    FileReport,
    ProjectQuestion,
    Scope,
    ServerDefinition,
    ServerEntry,
)
from pi_mcp.config.gateway_entry import starts_gateway
from pi_mcp.config.jsonc import Document, JsoncError, parse
from pi_mcp.config.policy import sensitive_words
from pi_mcp.config.resolve import looks_secret
from pi_mcp.config.trust import TrustStore, definition_digest
from pi_mcp.config.validate import Checked, Origin, check
from pi_mcp.errors import ConfigurationError, Diagnostic
from pi_mcp.text import clean_line, visible

MAX_FILE = 4 * 1024 * 1024
"""Bytes of one configuration file."""

EXAMPLE = """\
{
  "mcpServers": {
    // a program on this machine
    "git": {"command": "uvx", "args": ["mcp-server-git", "--repository", "."]},
    // a server on the network
    "docs": {
      "url": "https://mcp.example.com/mcp",
      "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
      "description": "Search the product documentation"
    }
  }
}
"""
"""What to write into `mcp.json` when nothing is configured."""

_OPAQUE = re.compile(r"[\w+/=.~-]*", re.ASCII)
"""A variable's value that the trust question may hide by its name. A D-Bus address, a list of options or a line of a
shell is none, whatever the variable is called: it can start a program."""

_FOREIGN_ROOTS: Mapping[str, str] = {
    "servers": "VS Code",
    "context_servers": "Zed",
    "mcp_servers": "Codex",
    "mcp": "other clients",
}


def load_config(
    *,
    cwd: Path | None = None,
    config: Path | None = None,
    trust_project: bool = False,
    environ: Mapping[str, str] | None = None,
    state_dir: Path | None = None,
) -> Configuration:
    """Read the configuration files of DESIGN §4 and say what is in them. Never raises for bad content.

    `config` (or `PI_MCP_CONFIG`) names one file in place of the two user files. `trust_project` trusts the
    project's file for this run alone. `environ` is the environment to take paths and, later, variables from;
    `state_dir` is where the trust records are, by default the person's own.
    """
    environment = dict(os.environ if environ is None else environ)
    directory = _directory(cwd)
    home = Path(environment.get("HOME") or Path.home())
    loading = _Loading(directory, environment, TrustStore(state_dir))
    named = config or (Path(environment["PI_MCP_CONFIG"]) if environment.get("PI_MCP_CONFIG") else None)
    if named is not None:
        places: list[tuple[Path, Scope]] = [(directory / _open_tilde(named, home), "override")]
    else:
        pi_directory = Path(environment.get("PI_CODING_AGENT_DIR") or home / ".pi" / "agent")
        places = [
            (files.config_dir() / "mcp.json", "user"),
            (directory / _open_tilde(pi_directory, home) / "mcp.json", "pi"),
        ]
    read: set[Path] = set()
    for path, scope in places:
        if path.resolve() not in read:
            read.add(path.resolve())
            loading.person_file(path, scope)
    project = project_file(directory)
    if project is None:
        loading.report(FileReport(directory / ".mcp.json", "project", "missing"))
    elif project.resolve() not in read:
        loading.project_file(project, trust_project)
    return loading.configuration()


def configuration_of(
    servers: Mapping[str, Mapping[str, Any]],
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] | None = None,
    scope: Scope = "code",
) -> Configuration:
    """A configuration from raw `mcpServers` entries, validated as a file's would be; reads no file."""
    loading = _Loading(_directory(cwd), dict(os.environ if environ is None else environ), TrustStore())
    origin = Origin(None, scope, loading.cwd)
    for name, raw in servers.items():
        loading.add(name, check(name, _plain(raw), origin))
    return loading.configuration()


def project_file(cwd: Path) -> Path | None:
    """The nearest `.mcp.json` from `cwd` up to the root of its repository; outside of one only `cwd`'s."""
    directory = cwd.resolve()
    lineage = [directory, *directory.parents]
    root = next((parent for parent in lineage if _exists(parent / ".git")), None)
    for parent in lineage:
        if _exists(parent / ".mcp.json"):
            return parent / ".mcp.json"
        if root is None or parent == root:
            return None
    return None


@dataclass(slots=True)
class _Loading:
    """The work of one load, file after file, lower ones first."""

    cwd: Path
    environ: dict[str, str]
    trust: TrustStore
    entries: dict[str, ServerEntry] = field(default_factory=dict)
    reports: list[FileReport] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    deny_all: bool = False
    question: ProjectQuestion | None = None

    def configuration(self) -> Configuration:
        return Configuration(
            entries=MappingProxyType(self.entries),
            files=tuple(self.reports),
            diagnostics=(*self.diagnostics, *self.trust.problems),
            sensitive=sensitive_words(self.words),
            deny_all=self.deny_all,
            project=self.question,
            cwd=self.cwd,
            environ=MappingProxyType(self.environ),
        )

    def report(self, report: FileReport) -> None:
        self.reports.append(report)
        if report.diagnostic is not None:
            self.diagnostics.append(report.diagnostic)

    def add(self, name: str, checked: Checked, state: EntryState | None = None) -> None:
        """Put one entry in its place; a lower one of the same name goes as a whole."""
        definition = checked.definition
        if definition is None:
            # The name of a broken entry may be what is broken. It is shown, so it is cleaned, and it must not
            # take the place of a server that is really called so.
            shown = clean_line(name, 128)
            if shown != name or not name:
                name = _free(f"{shown} (unusable name)".strip(), self.entries)
        if state is None:
            state = "invalid" if definition is None else "disabled" if definition.disabled else "ready"
        self.entries[name] = ServerEntry(name, state, checked.source, definition, checked.diagnostic, checked.warnings)

    def person_file(self, path: Path, scope: Scope) -> None:
        """A file of the person's own: its servers count, and its policy does."""
        outcome = _read(path, scope)
        if isinstance(outcome, FileReport):
            if outcome.status == "missing" and scope == "override":
                outcome = replace(
                    outcome,
                    diagnostic=_file_diagnostic(path, "the file does not exist", "Correct --config or PI_MCP_CONFIG."),
                )
            # A policy that cannot be read denies (DESIGN §9); a file that is not there has none.
            self.deny_all = self.deny_all or outcome.status == "invalid"
            self.report(outcome)
            return
        checked = outcome.check(scope, self.cwd)
        for name, entry in checked.items():
            self.add(name, _with_level(entry, self.trust))
        self.policy(outcome)
        self.finish(outcome, scope, len(checked))

    def policy(self, outcome: _File) -> None:
        """`sensitiveTools` of one file; a later file adds to an earlier one's."""
        words = outcome.root.get("sensitiveTools")
        try:
            sensitive_words(words)
        except ConfigurationError as error:
            line, column = outcome.document.position(("sensitiveTools",))
            where = f"{clean_line(str(outcome.path), 500)}, line {line}, column {column}: "
            self.diagnostics.append(replace(error.diagnostic, message=where + error.diagnostic.message))
            self.deny_all = True
        else:
            self.words.extend(words or ())

    def project_file(self, path: Path, trust: bool) -> None:
        """The project's file: data, until the person has trusted exactly this content."""
        outcome = _read(path, "project")
        if isinstance(outcome, FileReport):
            self.report(outcome)
            return
        if "sensitiveTools" in outcome.root:
            self.diagnostics.append(
                _file_diagnostic(
                    path,
                    "`sensitiveTools` has no effect in a project's file",
                    "Write it into your own mcp.json.",
                )
            )
        checked = outcome.check("project", self.cwd)
        if trust or self.trust.is_trusted(path, outcome.sha256):
            for name, entry in checked.items():
                self.add(name, _switched(_with_level(entry, self.trust), self.trust, path))
            self.finish(outcome, "project", len(checked))
            return
        if any(entry.definition is not None for entry in checked.values()):
            self.question = ProjectQuestion(path, outcome.sha256, self.question_text(checked))
        for name, entry in checked.items():
            if name in self.entries:
                continue
            if entry.definition is None:
                self.add(name, entry)
                continue
            waiting = replace(entry, diagnostic=_untrusted(name, path))
            self.add(name, waiting, "untrusted_project")
        if not checked:  # such as the gateway's own entry alone: there is nothing to trust
            self.finish(outcome, "project", 0)
            return
        self.reports.append(FileReport(path, "project", "untrusted", _untrusted(None, path), len(checked)))

    def finish(self, outcome: _File, scope: Scope, servers: int) -> None:
        self.diagnostics.extend(outcome.remarks)
        self.reports.append(FileReport(outcome.path, scope, "read", None, servers))

    def question_text(self, checked: Mapping[str, Checked]) -> str:
        """What the trust question shows, in the words of the file."""
        lines: list[str] = []
        for name, entry in checked.items():
            if entry.definition is None:
                lines.append(f"{clean_line(name, 128)}: cannot be used (see its error)")
                continue
            lines.extend(_shown(entry.definition))
            replaced = self.entries.get(name)
            if replaced is not None:
                lines.append(f"    replaces your own server {clean_line(name, 128)} ({_brief(replaced)})")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _File:
    """One file that was read: its root object, and the raw entries."""

    path: Path
    data: bytes
    document: Document
    root: dict[str, Any]
    servers: dict[str, Any]
    remarks: tuple[Diagnostic, ...]

    @property
    def sha256(self) -> str:
        """What a project's trust is bound to; of other files nobody asks it."""
        import hashlib

        return hashlib.sha256(self.data).hexdigest()

    def check(self, scope: Scope, base_dir: Path) -> dict[str, Checked]:
        origin = Origin(self.path, scope, base_dir, self.document.position)
        # Other clients start our gateway by such an entry; here it would lead back to this very file. A project's file
        # is such a client's own; in a file of ours it is an entry that cannot be used.
        return {
            name: _own_gateway(name, origin) if starts_gateway(raw) else check(name, raw, origin)
            for name, raw in self.servers.items()
            if scope != "project" or not starts_gateway(raw)
        }


def _read(path: Path, scope: Scope) -> _File | FileReport:
    """Read and parse one file; a report instead where there is none, or none that can be used."""

    def invalid(what: str, hint: str, line: int = 0, column: int = 0) -> FileReport:
        return FileReport(path, scope, "invalid", _file_diagnostic(path, what, hint, line, column))

    try:
        # Looked at before it is opened: opening a pipe would wait for its other end.
        info = path.stat()
        if stat.S_ISDIR(info.st_mode):
            return invalid("this is a directory", "A file with this name is expected.")
        if not stat.S_ISREG(info.st_mode):
            return invalid("this is no regular file", "A file with this name is expected.")
        if info.st_size > MAX_FILE:
            return invalid("the file is larger than 4 MiB", "Is it the right one?")
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            return invalid("this is a symbolic link to nowhere", "Correct or remove it.")
        return FileReport(path, scope, "missing")
    except (OSError, ValueError):
        return invalid("the file cannot be read", "See its owner and permissions.")
    if len(data) > MAX_FILE:
        return invalid("the file is larger than 4 MiB", "Is it the right one?")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        return invalid("the text is not UTF-8", "Save the file in UTF-8.", line, 0)
    try:
        document = parse(text)
    except JsoncError as error:
        return invalid("the file is not JSON with comments", error.hint, error.line, error.column)
    root = document.value
    if not isinstance(root, dict):
        return invalid("an object is expected", 'Write {"mcpServers": {…}}.', 1, 1)
    fault = _root_fault(root)
    if fault is not None:
        key, what, hint = fault
        return invalid(what, hint, *document.position((key,) if key else ()))
    servers = root.get("mcpServers", {})
    return _File(path, data, document, root, servers, tuple(_remarks(path, document, root)))


def _root_fault(root: dict[str, Any]) -> tuple[str | None, str, str] | None:
    """Why a file with this root object has no servers of ours: key, clause, hint."""
    if "mcpServers" in root:
        if isinstance(root["mcpServers"], dict):
            return None
        return "mcpServers", "`mcpServers` has to be an object of servers", 'Write "mcpServers": {"name": {…}}.'
    for key, client in _FOREIGN_ROOTS.items():
        if isinstance(root.get(key), dict):
            return (
                key,
                f"the servers stand under `{key}`, as {client} writes them; `mcpServers` is expected",
                f"Rename `{key}` to `mcpServers`.",
            )
    for key, value in root.items():
        if isinstance(value, dict) and ("command" in value or "url" in value):
            return (
                key,
                "servers stand at the top of the file; they belong under `mcpServers`",
                'Write {"mcpServers": {…}} around them.',
            )
    return None


def _remarks(path: Path, document: Document, root: dict[str, Any]) -> list[Diagnostic]:
    """What is odd about a file that can be used all the same."""
    remarks = []
    for place in document.duplicates:
        line, column = document.position(place)
        shown = clean_line(".".join(str(part) for part in place), 120)
        remarks.append(
            _file_diagnostic(
                path, f"`{shown}` is there more than once and the last one counts", "Remove the others.", line, column
            )
        )
    for key, client in _FOREIGN_ROOTS.items():
        if "mcpServers" in root and key in ("servers", "context_servers") and isinstance(root.get(key), dict):
            line, column = document.position((key,))
            remarks.append(
                _file_diagnostic(
                    path,
                    f"`{key}`, as {client} writes it, is ignored next to `mcpServers`",
                    "Move its servers.",
                    line,
                    column,
                )
            )
    return remarks


def _own_gateway(name: str, origin: Origin) -> Checked:
    """An entry that was written for other clients, in a file where only pi-mcp reads it. Whatever `--config` it names:
    that file may name this one in turn."""
    line, column = origin.place((name,))
    where = f"{clean_line(str(origin.path), 500)}, line {line}, column {column}: " if line else ""
    diagnostic = Diagnostic(
        "configuration_invalid",
        "configure",
        clean_line(name, 128),
        f"{where}this entry starts pi-mcp itself and is left out.",
        "It belongs into the files of other clients; write the servers that it would offer into this file.",
    )
    return Checked(origin.source(name), None, diagnostic)


def _file_diagnostic(path: Path, what: str, hint: str, line: int = 0, column: int = 0) -> Diagnostic:
    where = clean_line(str(path), 500)
    if line:
        where += f", line {line}" + (f", column {column}" if column else "")
    return Diagnostic("configuration_invalid", "configure", None, f"{where}: {what}.", hint)


def _untrusted(name: str | None, path: Path) -> Diagnostic:
    return Diagnostic(
        "refused",
        "trust",
        name,
        f"The project's file {clean_line(str(path), 500)} is not trusted, or has changed since it was.",
        "Answer the question of `/mcp trust`, in your agent or in `pi-mcp chat`, or pass --trust-project for one run.",
    )


def _with_level(checked: Checked, store: TrustStore) -> Checked:
    """The level that the person gave this very definition with `/mcp trust`."""
    definition = checked.definition
    if definition is None or not store.has_levels:
        return checked
    level = store.level(definition.name, definition_digest(definition))
    return checked if level is None else replace(checked, definition=replace(definition, trust=level))


def _switched(checked: Checked, store: TrustStore, path: Path) -> Checked:
    """`/mcp enable` and `/mcp disable` of a project's server are kept with the trust record."""
    definition = checked.definition
    if definition is None:
        return checked
    off = store.switched(path, definition.name)
    return checked if off is None else replace(checked, definition=replace(definition, disabled=off))


def _shown(definition: ServerDefinition) -> list[str]:
    """A server of an untrusted file, as written: what would be run, contacted and passed."""
    name = clean_line(definition.name, 128)
    off = " (switched off)" if definition.disabled else ""
    if definition.transport == "stdio":
        command = shlex.join([definition.command or "", *definition.args])
        lines = [f"{name}: runs {_whole(command)}{off}"]
        if definition.cwd is not None:
            lines.append(f"    in {_whole(definition.cwd)}")
        if definition.inherit_env is True:
            lines.append("    with your whole environment")
        elif definition.inherit_env:
            lines.append(f"    with your variables {_whole(' '.join(definition.inherit_env))}")
    else:
        lines = [f"{name}: contacts {_whole(definition.url or '')}{off}"]
    for table, written in (("header", definition.headers), ("variable", definition.env)):
        for key, text in written.items():
            shown = _whole(key)
            if text.startswith("!"):
                lines.append(f"    {table} {shown}: runs {_whole(text[1:])}")
            elif looks_secret(key) and "$" not in text and (table == "header" or _OPAQUE.fullmatch(text)):
                lines.append(f"    {table} {shown}: ***")
            else:
                lines.append(f"    {table} {shown}: {_whole(text)}")
    return lines


def _whole(text: str, limit: int = 4000) -> str:
    """Text of the file on one line, whole, with what is invisible made visible: what is shown is what would run.

    What is cut is counted: the end of a long command must not go unseen.
    """
    # A line end is shown, too: what follows it is no comment because the line before ends in one.
    line = " ".join(visible(text).replace("\n", "\\n").split())
    return line if len(line) <= limit else f"{line[:limit]} … and {len(line) - limit} more characters, not shown"


def _brief(entry: ServerEntry) -> str:
    definition = entry.definition
    if definition is None:
        return "which cannot be used now"
    if definition.transport == "stdio":
        return _whole(shlex.join([definition.command or "", *definition.args]), 200)
    return _whole(definition.url or "", 200)


def _free(name: str, taken: Mapping[str, object]) -> str:
    number = 2
    candidate = name
    while candidate in taken:
        candidate = f"{name} ({number})"
        number += 1
    return candidate


def _directory(cwd: Path | None) -> Path:
    if cwd is not None:
        return Path(cwd).absolute()
    try:
        return Path.cwd()
    except FileNotFoundError:
        # The directory was removed under the shell; there is no project there then.
        return Path.home()


def _open_tilde(path: Path, home: Path) -> Path:
    return home.joinpath(*path.parts[1:]) if path.parts[:1] == ("~",) else path


def _exists(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def _plain(value: Any) -> Any:
    """Mappings and tuples of a program as the dicts and lists that JSON would give."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
