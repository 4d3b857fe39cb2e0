"""One entry of `mcpServers`: is it a server, and which? The table of its fields is here, for people too.

Comes in: a name, the raw JSON value, and where it stands. Goes out: a `ServerDefinition` or one diagnostic that
names every fault with its line and column, and warnings about fields of other clients. It never shows a value,
replaces no variable and looks at nothing outside of the entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pi_mcp.config.definition import (
    AccessRules,
    Scope,
    ServerDefinition,
    Source,
    Transport,
    TrustLevel,
    WriteRule,
)
from pi_mcp.config.secret import OAUTH_SECRETS, Hidden
from pi_mcp.errors import Diagnostic
from pi_mcp.text import clean_line, quoted

Value = Literal[
    "text", "texts", "table of texts", "boolean", "boolean or texts", "boolean or object",
    "milliseconds", "type", "protocol", "trust", "access", "exposure", "exposures",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One row of the reference: validation reads it, and the documentation prints it."""

    name: str
    type: Value
    meaning: str
    default: str = ""
    only: Literal["stdio", "http", ""] = ""
    """The transport that it belongs to; `http` covers `sse`."""


FIELDS: tuple[Field, ...] = (
    Field("type", "type", "`stdio`, `http` or `sse` (the legacy HTTP transport)", "from `command` or `url`"),
    Field("command", "text", "The program to start, without a shell; `~/` opens", "", "stdio"),
    Field("args", "texts", "Its arguments; `~/` opens", "none", "stdio"),
    Field("cwd", "text", "Its working directory; a relative one stands in the host's", "the host's", "stdio"),
    Field("env", "table of texts", "Variables that it gets besides the minimal environment", "none", "stdio"),
    Field(
        "inheritEnv",
        "boolean or texts",
        "`true` passes the whole environment, a list the variables named",
        "false",
        "stdio",
    ),
    Field("url", "text", "The address of an HTTP server", "", "http"),
    Field("serverUrl", "text", "Another name of `url`", "", "http"),
    Field("httpUrl", "text", "Another name of `url`", "", "http"),
    Field("headers", "table of texts", "Sent with every request", "none", "http"),
    Field(
        "oauth",
        "boolean or object",
        "`false`: never; `true` or an object: login with `/mcp auth`",
        "login when the server asks for it",
        "http",
    ),
    Field("description", "text", "A short text for the server directory that the model sees", "none"),
    Field("keywords", "texts", "Words that a search may match besides the server's own", "none"),
    Field("disabled", "boolean", "The server is never connected and exposes nothing", "false"),
    Field("enabled", "boolean", "The opposite of `disabled`", "true"),
    Field("includeTools", "texts", "The only tools exposed; `*` matches any run, `[]` exposes nothing", "all"),
    Field("excludeTools", "texts", "Tools that are not exposed, applied last", "none"),
    Field("alwaysLoad", "boolean or texts", "Tools that are loaded from the first turn, without a search", "false"),
    Field(
        "startupTimeoutMs",
        "milliseconds",
        "From the start of the process to the end of the handshake",
        "`timeoutMs`, else 60000 for stdio and 15000 for HTTP",
    ),
    Field("timeoutMs", "milliseconds", "Each other request", "15000"),
    Field(
        "toolTimeoutMs",
        "milliseconds",
        "Silence during a tool call; progress restarts it, 600000 end it in any case",
        "`timeoutMs`, else 30000",
    ),
    Field("protocol", "protocol", "`auto` or `legacy`", "auto"),
    Field(
        "shared",
        "boolean",
        "In the gateway: one process for all clients; `false`: one for each client, which may be asked things",
        "true",
    ),
    Field(
        "trust",
        "trust",
        "`trusted`, `verified` or `untrusted`; in a project's file it can only lower the default",
        "`trusted`; `verified` in a project's file",
    ),
    Field(
        "access",
        "access",
        "Which tools only read (`readOnly`) and which change something (`write`), whatever the server says of them",
        "the `readOnlyHint` of a `trusted` server",
    ),
    Field("exposure", "exposure", 'Pi\'s own: `hidden` is `excludeTools: ["*"]`, `direct` is `alwaysLoad: true`'),
    Field("toolExposure", "exposures", "Pi's own: the same for single tools, by name or pattern; hidden wins"),
)

FOREIGN: Mapping[str, str] = {
    "alwaysAllow": "It allows nothing here; the trust level and `/mcp trust` decide what is asked.",
    "autoApprove": "It allows nothing here; the trust level and `/mcp trust` decide what is asked.",
    "autoApproved": "It allows nothing here; the trust level and `/mcp trust` decide what is asked.",
    "timeout": "Its unit differs between clients; use `timeoutMs` or `toolTimeoutMs`, in milliseconds.",
    "lifecycle": "Servers start when they are needed and stay.",
    "idleTimeout": "Connections stay until the session ends.",
    "directTools": "Use `alwaysLoad` for tools that are loaded from the first turn.",
    "transportType": "Use `type`.",
    "gallery": "It has no meaning here.",
    "version": "It has no meaning here; name the version in `args`.",
}
"""Fields of other clients that give a warning, and what to use instead."""

_REPLACED: Mapping[str, str] = {
    "auth": 'Write "headers": {"Authorization": "Bearer ${TOK}"}, TOK being the variable with the token, or `oauth`.',
    "bearerTokenEnv": 'Write "headers": {"Authorization": "Bearer ${TOK}"}, TOK being the variable with the token.',
    "bearerTokenEnvVar": 'Write "headers": {"Authorization": "Bearer ${TOK}"}, TOK being the variable with the token.',
    "bearerToken": 'Write "headers": {"Authorization": "Bearer ${TOK}"}, TOK being the variable with the token.',
    "transport": "Write `type` and `url`, or `command`, directly in the entry.",
    "enable": "The field is called `enabled`, or `disabled`.",
    "envFile": "Name the variables in `env`; values come from the environment with ${NAME}.",
    "tools": "Use `includeTools` and `excludeTools`.",
    "allowedTools": "Use `includeTools`.",
    "disabledTools": "Use `excludeTools`.",
    "workingDirectory": "The field is called `cwd`.",
    "http_headers": "The field is called `headers`.",
    "requestInit": "Use `headers`.",
}
"""Unknown fields of which it is known what their writer wanted. They are faults all the same."""

OAUTH: Mapping[str, tuple[str, str]] = {
    "clientId": ("text", "A client registered beforehand"),
    "clientSecret": ("text", "Its secret"),
    "clientMetadataUrl": ("https", "The address of a client metadata document"),
    "scopes": ("text or texts", "Scopes to ask for"),
    "callbackHost": ("loopback", "`127.0.0.1` or `localhost`"),
    "callbackPort": ("port", "Default 19847"),
    "callbackPath": ("path", "Default `/callback`"),
    "tokenEndpointAuthMethod": ("method", "How the client proves itself"),
    "grant": ("grant", "`authorization_code`, `device_code`, `client_credentials`, `jwt_bearer` or `id_jag`"),
    "privateKey": ("text", "For `private_key_jwt`"),
    "assertion": ("text", "A token of another issuer that speaks for the client (`jwt_bearer`) or a person (`id_jag`)"),
    "assertionFile": ("text", "The file that holds that token, read anew each time"),
    "idpIssuer": ("issuer", "For `id_jag`: the organisation's identity provider"),
    "idpClientId": ("text", "The client's name there"),
    "idpClientSecret": ("text", "Its secret there"),
    "trustIssuer": ("boolean or text", "An issuer that is not the one the server names"),
    "dpop": ("boolean", "Tokens bound to a key"),
}
"""The keys of an `oauth` object (DESIGN §8): kind of value, meaning."""

_OAUTH_REPLACED: Mapping[str, str] = {
    "scope": "The key is called `scopes`.",
    "callbackUrl": "Use `callbackHost`, `callbackPort` and `callbackPath`.",
    "redirectUri": "Use `callbackHost`, `callbackPort` and `callbackPath`.",
    "clientName": "Register a client beforehand and give its `clientId`.",
    "clientRegistration": "Give `clientId` or `clientMetadataUrl`, or neither to have a client registered.",
    "authServerMetadataUrl": "See `trustIssuer`.",
}
"""Keys that Pi and others know, and what to use instead."""
AUTH_METHODS = ("none", "client_secret_basic", "client_secret_post", "private_key_jwt")
GRANTS = ("authorization_code", "device_code", "client_credentials", "jwt_bearer", "id_jag")
TIMEOUT_RANGE = (100, 600_000)
"""Milliseconds."""

_TYPES: Mapping[str, Transport] = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamablehttp": "http",
    "streamable_http": "http",
    "streamable": "http",
    "sse": "sse",
}
_EXPOSURES = ("hidden", "direct", "deferred", "codemode", "codemode-deferred")
_BY_NAME: Mapping[str, Field] = {row.name: row for row in FIELDS}
_URLS = ("url", "serverUrl", "httpUrl")
_ISSUER = re.compile(r"https://|\$\{|http://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?:[:/]|$)", re.IGNORECASE)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_DEFAULT_TRUST: Mapping[Scope, TrustLevel] = {
    "user": "trusted",
    "pi": "trusted",
    "override": "trusted",
    "code": "trusted",
    "project": "verified",
}
_LEVELS = ("untrusted", "verified", "trusted")

Part = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where entries come from. `position` gives line and column of a path within the file, from 1."""

    path: Path | None
    scope: Scope
    base_dir: Path
    position: Callable[[Part], tuple[int, int]] | None = None
    root: Part = ("mcpServers",)

    def source(self, name: str) -> Source:
        line, column = self.place((name,))
        return Source(self.path, self.scope, line, column)

    def place(self, inner: Part) -> tuple[int, int]:
        """Line and column, 0 where there is no file."""
        return self.position((*self.root, *inner)) if self.position else (0, 0)


@dataclass(frozen=True, slots=True)
class Checked:
    """An entry's outcome: exactly one of `definition` and `diagnostic` is there."""

    source: Source
    definition: ServerDefinition | None = None
    diagnostic: Diagnostic | None = None
    warnings: tuple[Diagnostic, ...] = ()


def check(name: str, raw: object, origin: Origin) -> Checked:
    """Validate one entry. Never raises for bad content."""
    return _Entry(name, raw, origin).checked()


@dataclass(slots=True)
class _Entry:
    """The work on one entry; faults are collected, each with its place."""

    name: str
    raw: object
    origin: Origin
    faults: list[tuple[Part, str]] = field(default_factory=list)
    hints: dict[str, None] = field(default_factory=dict)
    warnings: list[Diagnostic] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return clean_line(self.name, 128) or "(no name)"

    def fault(self, path: Part, what: str, hint: str | None = None) -> None:
        self.faults.append((path, what))
        if hint:
            self.hints[hint] = None

    def checked(self) -> Checked:
        source = self.origin.source(self.name)
        definition: ServerDefinition | None = None
        if self.label != self.name or not self.name:
            self.fault(
                (),
                "the server's name is empty, longer than 128 characters, or holds control or invisible characters",
                "Give it a plain name.",
            )
        if not isinstance(self.raw, dict):
            self.fault((), "an object is expected", 'Write {"command": …} or {"url": …}.')
        else:
            definition = self.definition(cast("dict[str, Any]", self.raw), source)
        if self.faults or definition is None:
            return Checked(source, None, self.diagnostic(), tuple(self.warnings))
        return Checked(source, definition, None, tuple(self.warnings))

    def diagnostic(self) -> Diagnostic:
        """All faults in one sentence, in the order of the file: place first, then what is wrong."""
        placed = [(self.origin.place((self.name, *path)), what) for path, what in self.faults]
        if self.origin.position:
            placed.sort(key=lambda item: item[0])
        clauses = [
            f"line {line}, column {column}: {what}" if line else what for (line, column), what in dict.fromkeys(placed)
        ]
        if self.foreign:
            clauses.append(f"also, without a meaning here: {', '.join(self.foreign)}")
        where = f"{clean_line(str(self.origin.path), 500)}, " if self.origin.path else ""
        sentence = f"{where}{'; '.join(clauses)}."
        return Diagnostic(
            "configuration_invalid",
            "configure",
            self.label,
            sentence if where else sentence[0].upper() + sentence[1:],
            " ".join(self.hints) or None,
        )

    def warn(self, path: Part, message: str, hint: str) -> None:
        line, _ = self.origin.place((self.name, *path))
        place = f"{clean_line(str(self.origin.path), 500)}, line {line}: " if self.origin.path else ""
        self.warnings.append(Diagnostic("configuration_invalid", "configure", self.label, f"{place}{message}", hint))

    def definition(self, raw: dict[str, Any], source: Source) -> ServerDefinition | None:
        self.unknown_fields(raw)
        good: dict[str, Any] = {}
        for key, row in _BY_NAME.items():
            if key in raw and self.fits(row, raw[key]):
                good[key] = raw[key]
        transport = self.transport(raw, good)
        self.foreign_fields(raw, transport)
        disabled = self.disabled(good)
        trust = self.trust(good)
        access = self.access_rules(good)
        if transport is None or self.faults:
            return None
        stdio = transport == "stdio"
        headers = good.get("headers", {})
        oauth = good.get("oauth")
        if oauth and any(key.lower() == "authorization" for key in headers):
            self.fault(
                ("oauth",),
                "`oauth` and an Authorization header are both there",
                "Keep one of them.",
            )
        include, exclude, always = self.exposure(good)
        timeout = good.get("timeoutMs")
        url = next((good[key] for key in _URLS if key in good), None)
        if url is not None and "${" not in url:
            from pi_mcp.config.resolve import url_fault  # needs urllib, which an entry without a URL does not

            if what := url_fault(url):
                self.fault(("url",), f"`url` {what}", "An address looks like https://host/mcp.")
        return ServerDefinition(
            name=self.name,
            transport=transport,
            source=source,
            command=good.get("command"),
            args=tuple(good.get("args", ())),
            cwd=good.get("cwd"),
            env=Hidden(good.get("env")),
            inherit_env=_flag_or_texts(good.get("inheritEnv", False)),
            url=url,
            headers=Hidden(headers),
            oauth=oauth,
            description=good.get("description"),
            keywords=tuple(good.get("keywords", ())),
            disabled=disabled,
            include_tools=include,
            exclude_tools=exclude,
            always_load=always,
            startup_timeout=good.get("startupTimeoutMs", timeout or (60_000 if stdio else 15_000)) / 1000,
            timeout=(timeout or 15_000) / 1000,
            tool_timeout=good.get("toolTimeoutMs", timeout or 30_000) / 1000,
            protocol=good.get("protocol", "auto"),
            shared=good.get("shared", True),
            trust=trust,
            access=access,
            base_dir=self.origin.base_dir,
        )

    def unknown_fields(self, raw: dict[str, Any]) -> None:
        for key in raw:
            if key in _BY_NAME or key in FOREIGN:
                continue
            shown = clean_line(key, 60)
            hint = _REPLACED.get(key)
            if hint is None:
                import difflib

                known = {name.lower(): name for name in _BY_NAME}
                near = difflib.get_close_matches(key.lower()[:60], known, 1, 0.75)
                hint = f"Did you mean `{known[near[0]]}`?" if near else None
            self.fault((key,), f"field `{shown}` is not known", hint)

    def foreign_fields(self, raw: dict[str, Any], transport: Transport | None) -> None:
        for key, instead in FOREIGN.items():
            if key not in raw:
                continue
            if key == "transportType" and _transport_of(raw[key]) != transport and transport is not None:
                self.fault((key,), "`transportType` contradicts the other fields", "Use `type` alone.")
                continue
            self.foreign.append(f"`{key}`")
            self.warn((key,), f"`{key}` is a field of other clients and is ignored.", instead)

    def transport(self, raw: dict[str, Any], good: dict[str, Any]) -> Transport | None:
        """Which transport the entry asks for; None (and a fault) when that cannot be said."""
        urls = [key for key in _URLS if key in raw]
        if len({good[key] for key in urls if key in good}) > 1:
            self.fault((urls[-1],), f"{' and '.join(f'`{key}`' for key in urls)} are different addresses", "Keep one.")
        declared = _transport_of(good["type"]) if "type" in good else None
        if "type" in raw and declared is None:
            return None
        if "command" in raw and urls:
            self.fault((urls[0],), f"`command` and `{urls[0]}` exclude each other", "Keep one of them.")
            return None
        found: Literal["stdio", "http", ""] = "stdio" if "command" in raw else "http" if urls else ""
        if not found:
            # An entry that is only switched off still has to be a server.
            needs = {"stdio": "`command`", "http": "`url`", "sse": "`url`", None: "`command` or `url`"}[declared]
            self.fault((), f"{needs} is missing", None)
            return None
        if declared and (declared == "stdio") != (found == "stdio"):
            what = "command" if found == "stdio" else urls[0]
            self.fault(("type",), f"`type` contradicts `{what}`", "Leave `type` out, or correct it.")
            return None
        for key in raw:
            row = _BY_NAME.get(key)
            if row and row.only and row.only != found:
                other = "an HTTP server" if found == "http" else "a program (`command`)"
                self.fault((key,), f"`{key}` has no meaning for {other}", f"Remove `{key}`.")
        return declared or ("stdio" if found == "stdio" else "http")

    def disabled(self, good: dict[str, Any]) -> bool:
        off = good.get("disabled")
        on = good.get("enabled")
        if off is not None and on is not None and off == on:
            self.fault(("enabled",), "`disabled` and `enabled` contradict each other", "Keep `disabled`.")
        return bool(off) or on is False

    def trust(self, good: dict[str, Any]) -> TrustLevel:
        default = _DEFAULT_TRUST[self.origin.scope]
        asked = cast("TrustLevel", good.get("trust", default))
        if self.origin.scope == "project" and _LEVELS.index(asked) > _LEVELS.index(default):
            self.warn(
                ("trust",),
                f"a project's file can only lower the trust level; it stays `{default}`.",
                f"A person raises it with `/mcp trust {quoted(self.label)} {asked}`.",
            )
            return default
        return asked

    def access_rules(self, good: dict[str, Any]) -> AccessRules:
        """What the person says of the tools. A project's file may say that a tool writes, not that it only reads."""
        rules: dict[str, Any] = good.get("access", {})
        read_only = tuple(rules.get("readOnly", ()))
        if read_only and self.origin.scope == "project":
            self.warn(
                ("access", "readOnly"),
                "a project's file cannot say that tools only read; `access.readOnly` is ignored.",
                "Write it into a file of your own.",
            )
            read_only = ()
        write = tuple(
            WriteRule(rule) if isinstance(rule, str) else WriteRule(rule["tool"], rule["when"]["argument"])
            for rule in rules.get("write", ())
        )
        return AccessRules(read_only, write)

    def exposure(self, good: dict[str, Any]) -> tuple[tuple[str, ...] | None, tuple[str, ...], bool | tuple[str, ...]]:
        """include, exclude and always-load, with Pi's own fields worked in."""
        include = tuple(good["includeTools"]) if "includeTools" in good else None
        exclude = tuple(good.get("excludeTools", ()))
        always = _flag_or_texts(good.get("alwaysLoad", False))
        single: dict[str, str] = good.get("toolExposure", {})
        exposed = tuple(tool for tool, how in single.items() if how != "hidden")
        exclude += tuple(tool for tool, how in single.items() if how == "hidden")
        if good.get("exposure") == "hidden":
            if exposed and include is None:
                include = exposed
            else:
                exclude += ("*",)
        direct = tuple(tool for tool, how in single.items() if how == "direct")
        if good.get("exposure") == "direct":
            always = True
        elif direct and always is not True:
            always = (*(always or ()), *direct)
        return include, exclude, always

    def fits(self, row: Field, value: object) -> bool:
        """Does a value have the kind of its field? Faults are noted."""
        before = len(self.faults)
        path: Part = (row.name,)
        name = f"`{row.name}`"
        match row.type:
            case "text":
                self.text(path, name, value, empty=row.name == "description")
            case "texts":
                self.texts(path, name, value)
            case "table of texts":
                self.table(path, name, value)
            case "boolean":
                if not isinstance(value, bool):
                    self.fault(path, f"{name} has to be true or false, without quotes")
            case "boolean or texts":
                if not isinstance(value, bool):
                    self.texts(path, name, value, "true, false or a list of strings")
            case "boolean or object":
                if not isinstance(value, bool):
                    self.oauth(path, value)
            case "milliseconds":
                low, high = TIMEOUT_RANGE
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                    self.fault(path, f"{name} has to be a number from {low} to {high} (milliseconds)")
            case "type":
                if _transport_of(value) is None:
                    self.fault(
                        path,
                        "`type` has to be stdio, http or sse",
                        "streamable-http and streamableHttp are read as http.",
                    )
            case "protocol":
                self.choice(path, name, value, ("auto", "legacy"))
            case "trust":
                self.choice(path, name, value, get_args(TrustLevel))
            case "access":
                self.access(path, value)
            case "exposure":
                self.choice(path, name, value, _EXPOSURES)
            case "exposures":
                if not isinstance(value, dict):
                    self.fault(path, f"{name} has to be an object of tool names")
                    return False
                for tool, how in value.items():
                    self.choice((*path, tool), f"`{row.name}.{clean_line(tool, 60)}`", how, _EXPOSURES)
        return len(self.faults) == before

    def text(self, path: Part, name: str, value: object, *, empty: bool = False) -> None:
        if not isinstance(value, str):
            quoted = " in quotes" if isinstance(value, int | float) else ""
            self.fault(path, f"{name} has to be a string{quoted}")
        elif not value.strip() and not empty:
            self.fault(path, f"{name} is empty")
        elif "\0" in value:
            self.fault(path, f"{name} has a NUL character inside")

    def texts(self, path: Part, name: str, value: object, kinds: str = "a list of strings") -> None:
        if not isinstance(value, list):
            self.fault(path, f"{name} has to be {kinds}")
            return
        for index, item in enumerate(value):
            self.text((*path, index), f"{name[:-1]}[{index}]`", item, empty=True)

    def table(self, path: Part, name: str, value: object) -> None:
        if not isinstance(value, dict):
            self.fault(path, f"{name} has to be an object of strings")
            return
        seen: set[str] = set()
        for key, item in value.items():
            place = (*path, key)
            shown = f"`{path[-1]}.{clean_line(key, 80)}`"
            if path[-1] == "headers" and not _TOKEN.fullmatch(key):
                self.fault(place, f"{shown} is no name of a header")
            if path[-1] == "env" and (not key or "=" in key or "\0" in key):
                self.fault(place, f"{shown} is no name of a variable")
            if path[-1] == "headers" and key.lower() in seen:
                self.fault(place, f"{shown} is there twice, since capitals do not count")
            seen.add(key.lower())
            self.text(place, shown, item, empty=True)
            if isinstance(item, str) and item.startswith("!") and not item[1:].strip():
                self.fault(place, f"{shown} is a command without text", "Write $! for a value that begins with !.")

    def choice(self, path: Part, name: str, value: object, choices: tuple[str, ...]) -> None:
        if not isinstance(value, str) or value not in choices:
            self.fault(path, f"{name} has to be {', '.join(choices[:-1])} or {choices[-1]}")

    def access(self, path: Part, value: object) -> None:
        if not isinstance(value, dict):
            self.fault(path, "`access` has to be an object", "Its keys are readOnly and write.")
            return
        for key in value.keys() - {"readOnly", "write"}:
            self.fault((*path, key), f"`access.{clean_line(key, 60)}` is not known", "The keys are readOnly and write.")
        if "readOnly" in value:
            self.texts((*path, "readOnly"), "`access.readOnly`", value["readOnly"], "a list of tool names")
        rules = value.get("write", [])
        if not isinstance(rules, list):
            self.fault((*path, "write"), "`access.write` has to be a list")
            return
        for index, rule in enumerate(rules):
            place, name = (*path, "write", index), f"`access.write[{index}]`"
            if isinstance(rule, str):
                self.text(place, name, rule)
                continue
            when = rule.get("when") if isinstance(rule, dict) else None
            argument = when.get("argument") if isinstance(when, dict) else None
            if (
                not isinstance(rule, dict)
                or not isinstance(when, dict)
                or rule.keys() != {"tool", "when"}
                or when.keys() != {"argument"}
            ):
                self.fault(
                    place,
                    f"{name} has to be a tool name, or an object of `tool` and `when`",
                    'Write {"tool": NAME, "when": {"argument": NAME}}.',
                )
                continue
            self.text((*place, "tool"), f"{name[:-1]} tool`", rule["tool"])
            self.text((*place, "when", "argument"), f"{name[:-1]} argument`", argument)

    def oauth(self, path: Part, value: object) -> None:
        if not isinstance(value, dict):
            self.fault(path, "`oauth` has to be true, false or an object")
            return
        for key, item in value.items():
            place = (*path, key)
            shown = f"`oauth.{clean_line(key, 60)}`"
            if key not in OAUTH:
                hint = _OAUTH_REPLACED.get(key) or f"The keys of `oauth` are {', '.join(OAUTH)}."
                self.fault(place, f"{shown} is not known", hint)
                continue
            if isinstance(item, str) and item.startswith("!"):
                if key in OAUTH_SECRETS:
                    if not item[1:].strip():
                        self.fault(place, f"{shown} is a command without text")
                    continue
                # Its writer expects a command; sending the text itself would give the command away.
                self.fault(
                    place,
                    f"{shown} cannot be a command",
                    f"Commands work in `headers`, `env` and {_named(OAUTH_SECRETS)}; use ${{NAME}} here.",
                )
                continue
            match OAUTH[key][0]:
                case "text":
                    self.text(place, shown, item)
                case "https":
                    if not isinstance(item, str) or not item.startswith(("https://", "${")):
                        self.fault(place, f"{shown} has to be an https:// address")
                case "issuer":
                    if not isinstance(item, str) or not _ISSUER.match(item):
                        self.fault(place, f"{shown} has to be an https:// address, or http:// on this machine")
                case "text or texts":
                    if not isinstance(item, str):
                        self.texts(place, shown, item, "a string or a list of strings")
                case "loopback":
                    self.choice(place, shown, item, ("127.0.0.1", "localhost"))
                case "port":
                    if isinstance(item, bool) or not isinstance(item, int) or not 1 <= item <= 65535:
                        self.fault(place, f"{shown} has to be a port, 1 to 65535")
                case "path":
                    if not isinstance(item, str) or not re.fullmatch(r"/[A-Za-z0-9._~/-]*", item):
                        self.fault(place, f"{shown} has to begin with / and hold letters, digits and ._~/-")
                case "method":
                    self.choice(place, shown, item, AUTH_METHODS)
                case "grant":
                    self.choice(place, shown, item, GRANTS)
                case "boolean":
                    if not isinstance(item, bool):
                        self.fault(place, f"{shown} has to be true or false, without quotes")
                case "boolean or text":
                    if not isinstance(item, bool):
                        self.text(place, shown, item)
        self.grant(path, value)

    def grant(self, path: Part, value: Mapping[str, Any]) -> None:
        """Do the keys of an `oauth` object go together?"""
        grant = value.get("grant")
        if "assertion" in value and "assertionFile" in value:
            self.fault(
                (*path, "assertionFile"),
                "`oauth.assertion` and `oauth.assertionFile` are two answers to one question",
                "Keep one of them.",
            )
        assertion = "assertion" in value or "assertionFile" in value
        if assertion and grant not in ("jwt_bearer", "id_jag") and "privateKey" in value:
            self.fault(
                (*path, "privateKey"),
                "`oauth.privateKey` and an assertion are two proofs of one client",
                "Keep one of them.",
            )
        if grant in ("jwt_bearer", "id_jag") and not assertion:
            self.fault((*path, "grant"), f"the grant `{grant}` needs `assertion` or `assertionFile`")
        if grant == "id_jag":
            for key in ("clientId", "idpIssuer", "idpClientId"):
                if key not in value:
                    self.fault((*path, "grant"), f"the grant `id_jag` needs `{key}`")
        else:
            for key in ("idpIssuer", "idpClientId", "idpClientSecret"):
                if key in value:
                    self.fault((*path, key), f"`oauth.{key}` belongs to the grant `id_jag`", 'Set "grant": "id_jag".')


def _named(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key}`" for key in keys[:-1]) + f" and `{keys[-1]}`"


def _transport_of(value: object) -> Transport | None:
    return _TYPES.get(value.strip().lower()) if isinstance(value, str) else None


def _flag_or_texts(value: bool | list[str]) -> bool | tuple[str, ...]:
    return value if isinstance(value, bool) else tuple(value)
