"""From a definition as written to what a connection needs: variables replaced, paths absolute, URL checked.

Comes in: a `ServerDefinition` and the environment of its configuration. Goes out: a `ResolvedServer`, or an error
that names every variable, field and server at fault. It starts, contacts and reads nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pi_mcp.config.definition import Configuration, ServerDefinition
from pi_mcp.config.interpolate import InterpolationError, expand, has_variables
from pi_mcp.config.secret import OAUTH_SECRETS, TIME_LIMIT, Secret, SecretCommand, header_fault
from pi_mcp.errors import failure
from pi_mcp.text import Redactor, clean_line

# Variables that say who and where, not what is secret: without them paths in messages would be blanked.
_PUBLIC = frozenset(
    {"HOME", "USER", "LOGNAME", "USERNAME", "USERPROFILE", "PATH", "PWD", "SHELL", "LANG", "TMPDIR", "TEMP", "TMP"}
)
_SECRET_NAME = re.compile(
    r"auth|token|secret|passw|pwd|credential|cookie|session|signature|private|(?:^|[^a-z])key|api_?key|pat$", re.I
)


@dataclass(frozen=True, slots=True)
class ResolvedServer:
    """One server, ready to be connected once `commands` is empty. Its repr shows no value that may be secret."""

    definition: ServerDefinition
    command: str | None = None
    """As given when it is a bare name, to be looked up in PATH; otherwise an absolute path."""
    args: tuple[str, ...] = field(default=(), repr=False)
    cwd: Path | None = None
    """Absolute. For an HTTP server it is where its secret commands run."""
    env: dict[str, Secret] = field(default_factory=dict)
    """What the file adds to the child's environment; without the values of `commands`."""
    url: str | None = field(default=None, repr=False)
    """Without user information: that has become an `Authorization` header."""
    headers: dict[str, Secret] = field(default_factory=dict)
    oauth: bool | Mapping[str, Any] | None = field(default=None, repr=False)
    """As in the definition, with variables replaced in its texts: a client's secret need not stand in the file."""
    commands: tuple[SecretCommand, ...] = ()
    """The `!command` values that `resolve_secrets` has still to run."""
    redactor: Redactor = field(default_factory=Redactor, compare=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """The engine's environment, for `inheritEnv` and for the secret commands."""


def resolve(definition: ServerDefinition, configuration: Configuration) -> ResolvedServer:
    """Interpolate one definition. Raises ConfigurationError (`configuration_invalid`); runs nothing."""
    return _Resolution(definition, configuration.environ).result()


def looks_secret(name: str) -> bool:
    """Whether a header, variable, option or query parameter of this name usually holds a secret."""
    return _SECRET_NAME.search(name) is not None


def url_fault(url: str) -> str | None:
    """Why a text is no address of an HTTP server, as a clause about `url`; None when it is one."""
    from urllib.parse import urlsplit

    if re.search("[\x00-\x20\x7f]", url):
        return "has a blank or a control character inside"
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
        host = parts.hostname
    except ValueError:
        return "is not an address that can be read (see its host and port)"
    if parts.scheme.lower() not in ("http", "https"):
        return "does not begin with http:// or https://"
    if not host:
        return "names no host"
    return None if port_ok else "has a port that cannot be used"


class _Resolution:
    """The work of one `resolve`: problems are collected, so that all of them are named at once."""

    def __init__(self, definition: ServerDefinition, environ: Mapping[str, str]) -> None:
        self.definition = definition
        self.environ = environ
        self.redactor = Redactor()
        self.missing: list[str] = []
        self.faults: list[str] = []
        self.hints: dict[str, None] = {}

    def result(self) -> ResolvedServer:
        definition = self.definition
        home = self.environ.get("HOME") or str(Path.home())
        directory = self.text("cwd", definition.cwd) if definition.cwd is not None else None
        cwd = (definition.base_dir / _open_tilde(directory or "", home)).absolute()
        command: str | None = None
        if definition.command is not None:
            command = _open_tilde(self.text("command", definition.command), home)
            if not command.strip() and not self.missing:
                self.fault("`command` is empty", "See the variables in it.")
            if "/" in command or (os.sep != "/" and os.sep in command):
                command = str(cwd / command)
        args = tuple(_open_tilde(self.text(f"args[{index}]", arg), home) for index, arg in enumerate(definition.args))
        self.remember_options(args)
        env, env_commands = self.table("env", definition.env)
        headers, header_commands = self.table("headers", definition.headers)
        url = self.address(definition.url, headers) if definition.url is not None else None
        oauth = self.login(definition.oauth)
        self.finish()
        return ResolvedServer(
            definition=definition,
            command=command,
            args=args,
            cwd=cwd,
            env=env,
            url=url,
            headers=headers,
            oauth=oauth,
            commands=(*env_commands, *header_commands),
            redactor=self.redactor,
            environ=self.environ,
        )

    def text(self, name: str, written: str, *, dollar: bool = False) -> str:
        """One field expanded; on a fault it is noted and the text is empty."""
        try:
            expanded = expand(written, self.environ, dollar=dollar)
        except InterpolationError as error:
            if error.variable is None:
                self.faults.append(f"in `{name}` {error.reason}")
            else:
                self.missing.append(f"variable `{error.variable}` for `{name}`")
                self.hints["Set it where the agent is started, or give a default: ${NAME:-default}."] = None
            self.hints["A literal $ is written $$ there." if dollar else "A literal ${ is written $${."] = None
            return ""
        if "\0" in expanded.text:
            self.fault(f"`{name}` has a NUL character inside", "Remove it.")
        for variable in expanded.used - _PUBLIC:
            value = self.environ[variable]
            self.redactor.add(value)
            if name == "url":
                from urllib.parse import quote

                self.redactor.add(quote(value, safe=""))
        return expanded.text

    def table(self, name: str, written: Mapping[str, str]) -> tuple[dict[str, Secret], list[SecretCommand]]:
        values: dict[str, Secret] = {}
        commands: list[SecretCommand] = []
        limit = min(TIME_LIMIT, self.definition.timeout)
        for key, text in written.items():
            field_name = f"{name}.{clean_line(key, 80)}"
            if text.startswith("!"):
                commands.append(SecretCommand("env" if name == "env" else "headers", key, text[1:], limit))
                continue
            value = self.text(field_name, text, dollar=True)
            if name == "headers" and (fault := header_fault(value)):
                self.fault(f"`{field_name}` {fault}", "A header's value is one line.")
            if looks_secret(key):
                self.redactor.add(value)
            values[key] = Secret(value)
        return values, commands

    def address(self, written: str, headers: dict[str, Secret]) -> str:
        """The URL; user information in it becomes the header that it means, and a secret."""
        import base64
        from urllib.parse import parse_qsl, quote, unquote, urlsplit

        url = self.text("url", written)
        if not url:
            if not has_variables(written):
                self.fault("`url` is empty", "Give the server's address.")
            return url
        if fault := url_fault(url):
            self.fault(f"`url` {fault}", "An address looks like https://host/mcp.")
            return url
        parts = urlsplit(url)
        for key, value in parse_qsl(parts.query):
            if looks_secret(key):
                self.redactor.add(value)
                self.redactor.add(quote(value, safe=""))
        user, at, host = parts.netloc.rpartition("@")
        if not at:
            return url
        if self.definition.oauth or any(key.lower() == "authorization" for key in self.definition.headers):
            self.fault("`url` holds a user name next to another way to log in", "Keep one of them.")
            return url
        name, _, password = user.partition(":")
        self.redactor.add(unquote(password) or unquote(name))
        pair = base64.b64encode(f"{unquote(name)}:{unquote(password)}".encode()).decode()
        self.redactor.add(pair)
        headers["Authorization"] = Secret(f"Basic {pair}")
        return parts._replace(netloc=host).geturl()

    def login(self, written: bool | Mapping[str, Any] | None) -> bool | Mapping[str, Any] | None:
        """The `oauth` object expanded; `$NAME` stays, since a generated secret may well hold a `$`."""
        if not isinstance(written, Mapping):
            return written
        values: dict[str, Any] = {}
        for key, item in written.items():
            values[key] = item
            if key in OAUTH_SECRETS and isinstance(item, str) and item.startswith("!"):
                continue  # a command, for `auth/proof.py`
            if isinstance(item, str):
                values[key] = self.text(f"oauth.{key}", item)
            elif isinstance(item, list):
                values[key] = [self.text(f"oauth.{key}", text) for text in item]
            if key in OAUTH_SECRETS:
                self.redactor.add(str(values[key]))
            if key == "assertionFile":
                values[key] = _open_tilde(str(values[key]), self.environ.get("HOME") or str(Path.home()))
        return values

    def remember_options(self, args: tuple[str, ...]) -> None:
        """Keep `--api-key VALUE` and `--api-key=VALUE` out of logs."""
        for index, arg in enumerate(args):
            option, equals, value = arg.partition("=")
            if not option.startswith("-") or not looks_secret(option):
                continue
            if equals:
                self.redactor.add(value)
            elif index + 1 < len(args) and not args[index + 1].startswith("-"):
                self.redactor.add(args[index + 1])

    def fault(self, what: str, hint: str) -> None:
        self.faults.append(what)
        self.hints[hint] = None

    def finish(self) -> None:
        clauses = list(self.faults)
        if self.missing:
            clauses.insert(0, f"{_listed(self.missing)} {'is' if len(self.missing) == 1 else 'are'} not set")
        if not clauses:
            return
        sentence = "; ".join(clauses)
        raise failure(
            "configuration_invalid",
            "configure",
            self.definition.name,
            f"{sentence[0].upper()}{sentence[1:]}.",
            " ".join(self.hints),
        )


def _open_tilde(text: str, home: str) -> str:
    if text == "~":
        return home
    return f"{home}/{text[2:]}" if text.startswith("~/") else text


def _listed(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
