"""Scopes: what a credential may see and do, as tokens, and the questions that are asked of a set of them.

Comes in: tokens as people, keys and OAuth clients write them. Goes out: a `Scopes` value, and yes or no. It knows
no request, no server that is configured and no store; nothing here ever adds a right.

| token | allows |
| --- | --- |
| `tools:read` | tools that only read, of every server |
| `tools:write` | all other tools, of every server |
| `resources:read` | resources of every server, but for `ui://` |
| `prompts:read` | prompts of every server |
| `apps:render` | `ui://` resources of every server |
| `admin` | the status page and what is done on it; no tool |
| `server:NAME:read`, `server:NAME:write` | as `tools:read` and `tools:write`, of that server alone |
| `server:NAME:*` | everything of that server: its tools, resources, prompts and `ui://` |
| `tool:NAME/TOOL` | that tool, whether it reads or writes |

NAME and TOOL are percent-encoded: letters, digits and `-._~` stand for themselves, all else is `%XX` of its UTF-8.
A tool that writes for some arguments only is seen with a read scope, and needs the write scope besides for those.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, unquote_to_bytes

from pi_mcp.text import clean_line

Action = Literal["read", "write"]
"""What a tool does; a call of a tool with a write rule can need both."""

MEANINGS = {
    "tools:read": "Use tools that only read, of every server",
    "tools:write": "Use tools that change something, of every server",
    "resources:read": "Read resources of every server",
    "prompts:read": "Read prompts of every server",
    "apps:render": "Show the user interfaces (`ui://`) of every server",
    "admin": "See everybody's keys, grants and calls on the status page, and end grants",
    "server:NAME:read": "Use the tools of the server NAME that only read",
    "server:NAME:write": "Use the tools of the server NAME that change something",
    "server:NAME:*": "Everything of the server NAME: tools, resources, prompts and user interfaces",
    "tool:NAME/TOOL": "Use the tool TOOL of the server NAME",
}
"""Every form of a token, for the reference and the consent page."""

PLAIN = frozenset({"tools:read", "tools:write", "resources:read", "prompts:read", "apps:render", "admin"})
"""The tokens without a name inside. Together they are everything."""

MAX_TOKENS = 200
"""Tokens in one set; more are malformed, so that no request can make us compare for long."""
MAX_TOKEN = 1024
"""Characters of one token."""

_PART = r"(?:[A-Za-z0-9._~-]|%[0-9A-Fa-f]{2})+"
_SERVER = re.compile(rf"server:({_PART}):(read|write|\*)")
_TOOL = re.compile(rf"tool:({_PART})/({_PART})")
_SEPARATORS = re.compile(r"[ \t,]+")
_SKIPPED = r"[\x00-\x20\x7f\s\ufeff]*"
_UI = re.compile(_SKIPPED + _SKIPPED.join(("[uU]", "[iI]", ":", "/", "/")))


class MalformedScope(ValueError):
    """A token that is none of the forms above; `token` is what was written, not cleaned."""

    def __init__(self, token: str) -> None:
        super().__init__("malformed scope")
        self.token = token


@dataclass(frozen=True, slots=True)
class Scopes:
    """A set of tokens in their one canonical spelling. Iterates in order; `str()` joins them by spaces."""

    tokens: frozenset[str] = frozenset()

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Scopes:
        """The set of these tokens; raises MalformedScope for the first one that is none."""
        found: set[str] = set()
        for token in tokens:
            found.add(canonical(token))
            if len(found) > MAX_TOKENS:
                raise MalformedScope(token)
        return cls(frozenset(found))

    @classmethod
    def parse(cls, text: str) -> Scopes:
        """The tokens of `text`, separated by spaces or commas; raises MalformedScope."""
        return cls.of(token for token in _SEPARATORS.split(text) if token)

    @classmethod
    def everything(cls) -> Scopes:
        return cls(PLAIN)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.tokens))

    def __len__(self) -> int:
        return len(self.tokens)

    def __str__(self) -> str:
        return " ".join(self)

    # What is allowed

    def tool(self, server: str, tool: str, action: Action) -> bool:
        """May this tool be used for that? `server` and `tool` are the names themselves, not encoded."""
        tokens, name = self.tokens, encoded(server)
        return (
            f"tools:{action}" in tokens
            or f"server:{name}:{action}" in tokens
            or f"server:{name}:*" in tokens
            or f"tool:{name}/{encoded(tool)}" in tokens
        )

    def any_tool(self) -> bool:
        """Is there a right to any tool at all? What `mcp_search` needs."""
        return any(token.startswith(("tools:", "server:", "tool:")) for token in self.tokens)

    def any_tool_of(self, server: str) -> bool:
        """Could a tool of this server be within these scopes?"""
        name = encoded(server)
        return not self.tokens.isdisjoint(
            ("tools:read", "tools:write", *(f"server:{name}:{what}" for what in ("read", "write", "*")))
        ) or any(token.startswith(f"tool:{name}/") for token in self.tokens)

    def every_tool_of(self, server: str) -> bool:
        """Are all tools of this server within these scopes, whatever they do?"""
        return all(self.holds(server_scope(server, action)) for action in ("read", "write"))

    def resource(self, server: str, uri: str) -> bool:
        """May this resource, or a template of this form, be listed and read?"""
        return self.has("apps:render" if is_ui(uri) else "resources:read", server)

    def prompts(self, server: str) -> bool:
        return self.has("prompts:read", server)

    def has(self, plain: str, server: str | None = None) -> bool:
        """Is this plain token held, for every server or for the one named?"""
        return plain in self.tokens or (
            server is not None and plain != "admin" and f"server:{encoded(server)}:*" in self.tokens
        )

    def server(self, name: str) -> bool:
        """Is anything of this server within these scopes? Else it does not exist for the caller."""
        return self.any_tool_of(name) or not self.tokens.isdisjoint(("resources:read", "prompts:read", "apps:render"))

    # Less of it

    def holds(self, token: str) -> bool:
        """Is everything that a canonical token allows allowed by this set?

        `tool:NAME/TOOL` allows reading and writing, so `tools:read` alone does not hold it.
        """
        if token in self.tokens:
            return True
        if match := _SERVER.fullmatch(token):
            name, what = match.groups()
            if what == "*":
                return self.tokens >= PLAIN - {"admin"}
            return f"tools:{what}" in self.tokens or f"server:{name}:*" in self.tokens
        if match := _TOOL.fullmatch(token):
            server = f"server:{match[1]}:"
            return f"{server}*" in self.tokens or all(
                f"tools:{action}" in self.tokens or f"{server}{action}" in self.tokens for action in ("read", "write")
            )
        return False

    def narrowed(self, text: str) -> Scopes:
        """These scopes limited to the tokens of an `x-mcp-scopes` header; never more than these.

        One token that is malformed or not held empties the whole, and so does a header without any.
        """
        try:
            asked = Scopes.parse(text)
        except MalformedScope:
            return NOTHING
        return asked if all(self.holds(token) for token in asked.tokens) else NOTHING

    def within(self, other: Scopes) -> bool:
        """Does `other` hold every one of these?"""
        return all(other.holds(token) for token in self.tokens)

    def of_programs(self) -> Scopes:
        """Without what no client of OAuth gets: `admin` is for people."""
        return Scopes(self.tokens - {"admin"})

    def common(self, other: Scopes) -> Scopes:
        """The tokens of either that the other holds too: what a client asked for and a person may give."""
        return Scopes(
            frozenset(token for token in self.tokens if other.holds(token))
            | frozenset(token for token in other.tokens if self.holds(token))
        )


NOTHING = Scopes()


def canonical(token: str) -> str:
    """The one spelling of a token; raises MalformedScope."""
    if token in PLAIN:
        return token
    if len(token) <= MAX_TOKEN:
        if match := _SERVER.fullmatch(token):
            return server_scope(_decoded(match[1], token), match[2])
        if match := _TOOL.fullmatch(token):
            return tool_scope(_decoded(match[1], token), _decoded(match[2], token))
    raise MalformedScope(token)


def server_scope(server: str, what: str) -> str:
    """`server:NAME:read`, `:write` or `:*` for a server's own name."""
    return f"server:{encoded(server)}:{what}"


def tool_scope(server: str, tool: str) -> str:
    """`tool:NAME/TOOL` for the original names."""
    return f"tool:{encoded(server)}/{encoded(tool)}"


def encoded(name: str) -> str:
    """Percent-encoded as in a token. A name with a lone surrogate has a spelling that no token can have."""
    return quote(name, safe="", errors="surrogatepass")


def is_ui(uri: str) -> bool:
    """Is it an MCP Apps resource? The scheme's capitals do not count.

    Nor do control characters and spaces, which readers of addresses leave out before they look at the scheme.
    """
    return _UI.match(uri) is not None


def meaning(token: str) -> str:
    """What a token allows, for a person: the text of `MEANINGS` with the names put in; raises MalformedScope."""
    token = canonical(token)
    names = {}
    form = token
    if match := _SERVER.fullmatch(token):
        names, form = {"NAME": match[1]}, f"server:NAME:{match[2]}"
    elif match := _TOOL.fullmatch(token):
        names, form = {"NAME": match[1], "TOOL": match[2]}, "tool:NAME/TOOL"
    return re.sub(r"\b(?:NAME|TOOL)\b", lambda found: clean_line(_decoded(names[found[0]], token), 128), MEANINGS[form])


def _decoded(part: str, token: str) -> str:
    try:
        return unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError:
        raise MalformedScope(token) from None
