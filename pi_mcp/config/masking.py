"""An entry of `mcpServers` made fit to be shown: what may be a secret becomes `***`.

Comes in: an entry as it stands in a file. Goes out: the same entry to be looked at. Names, references such as
`${TOKEN}` and the text of a `!command` stay readable, since a person decides by them; a value that stands there
itself does not. It rather hides too much, and its output is never written to a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pi_mcp.config.resolve import looks_secret
from pi_mcp.config.secret import OAUTH_SECRETS
from pi_mcp.text import clean_line

MASK = "***"

_TABLES = ("env", "headers")
_NAME = r"(?:env:)?[A-Za-z_][A-Za-z0-9_]*"
_REFERENCE = re.compile(rf"(?<!\$)\$\{{({_NAME})(:-[^${{}}]*)?\}}")
_SHORT_REFERENCE = re.compile(r"(?<!\$)\$[A-Za-z_][A-Za-z0-9_]*")
_SCHEME = re.compile(r"(?:Bearer|Basic|Token)\s+", re.IGNORECASE)
# Prefixes that issuers give their tokens, JSON web tokens, and long runs of letters mixed with digits.
_TOKEN = re.compile(
    r"(?:\b(?:sk|pk|rk|gh[opusr]|github_pat|glpat|xox[a-z]|npm|hf|pat|key|tok)[-_][A-Za-z0-9_-]{6,}"
    r"|\b(?:AKIA|ASIA|AIza|ya29\.)[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)*"
    r"|(?<![A-Za-z0-9+=_-])(?=[A-Za-z+=_-]*[0-9])(?=[0-9+=_-]*[A-Za-z])[A-Za-z0-9+=_-]{20,})"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_ASSIGNMENT = re.compile(r"(-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(.+)", re.DOTALL)
_HEADER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):(\s*)(\S.*)", re.DOTALL)
_HEADER_OPTIONS = ("-H", "--header", "--headers")


def shown_entry(entry: Mapping[str, Any]) -> str:
    """One line of JSON without control characters, in which nothing that may be a secret can be read."""
    masked = {key: _member(key, value) for key, value in entry.items()}
    return clean_line(json.dumps(masked, ensure_ascii=False), 4000)


def shown_words(words: Sequence[str]) -> list[str]:
    """A command and its arguments, word by word."""
    return [clean_line(word, 1000) for word in _words(list(words))]


def shown_value(value: str) -> str:
    """The value of a header or a variable: a reference or the text of a command, else `***`."""
    return clean_line(_table_value(value), 1000)


def shown_text(text: str) -> str:
    """Any text, a command line included: what looks like a secret in it is `***`. Not cut; a line in, a line out."""
    return " ".join(_words([text]))


def shown_url(url: str) -> str:
    """An address without user information, query values and path segments that look like a token."""
    return clean_line(_url(url), 1000) if "://" in url else clean_line(_literal(url), 1000)


def _member(key: str, value: Any) -> Any:
    if key in _TABLES and isinstance(value, Mapping):
        return {name: _table_value(item) if isinstance(item, str) else MASK for name, item in value.items()}
    if isinstance(value, str):
        if key in OAUTH_SECRETS or looks_secret(key):
            return _literal(value)
        return " ".join(_words([value]))
    if isinstance(value, list):
        return _words(value) if all(isinstance(item, str) for item in value) else [_member("", item) for item in value]
    if isinstance(value, Mapping):
        return {name: _member(name, item) for name, item in value.items()}
    return value


def _table_value(value: str) -> str:
    """A header or variable: references and commands are shown, anything else may be the secret itself."""
    if value.startswith("!"):
        return "!" + " ".join(_words([value[1:]]))
    return _literal(value)


def _literal(value: str) -> str:
    scheme = _SCHEME.match(value)
    rest = value[scheme.end() :] if scheme else value
    plain = _SHORT_REFERENCE.sub("", _REFERENCE.sub("", rest))
    if plain.strip() or not value:
        return MASK if value else ""
    return _references(value)


def _references(text: str) -> str:
    """References stay, their defaults do not: a default is a value."""
    return _REFERENCE.sub(lambda match: f"${{{match.group(1)}{':-' + MASK if match.group(2) else ''}}}", text)


def _words(words: list[str]) -> list[str]:
    """Arguments of a command; one that is a whole command line is looked at word by word."""
    result: list[str] = []
    option = ""
    for word in words:
        if option in _HEADER_OPTIONS:
            result.append(_header(word))
        elif option and looks_secret(option) and not word.startswith("-"):
            result.append(_literal(word))
        elif re.search(r"\s", word) and not _HEADER.fullmatch(word):
            pieces = re.split(r"(\s+)", word)
            inner = iter(_words(pieces[::2]))
            result.append("".join(next(inner) if index % 2 == 0 else piece for index, piece in enumerate(pieces)))
        else:
            result.append(_word(word))
        # `--token VALUE`, and `Bearer VALUE` within a longer text.
        option = word if word.startswith("-") and "=" not in word else ""
        if re.fullmatch(r"""["']?(?:Authorization:)?["']?(?:Bearer|Basic)""", word, re.IGNORECASE):
            option = "--token"
    return result


def _word(word: str) -> str:
    if _URL.fullmatch(word):
        return _url(word)
    assignment = _ASSIGNMENT.fullmatch(word)
    if assignment:
        name, value = assignment.groups()
        if looks_secret(name) or not name.startswith("-"):
            return f"{name}={_literal(value)}"
        return f"{name}={_word(value)}"
    header = _HEADER.fullmatch(word)
    if header and looks_secret(header.group(1)):
        return _header(word)
    return _TOKEN.sub(MASK, _URL.sub(lambda match: _url(match.group()), _references(word)))


def _header(word: str) -> str:
    header = _HEADER.fullmatch(word)
    return f"{header.group(1)}:{header.group(2)}{_literal(header.group(3))}" if header else _literal(word)


def _url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    rest, mark, fragment = _partition(rest, "#")
    rest, question, query = _partition(rest, "?")
    authority, slash, path = _partition(rest, "/")
    user, at, host = authority.rpartition("@")
    user = ":".join(_literal(part) for part in user.split(":")) if at else ""
    pairs = [pair.partition("=") for pair in query.split("&")] if question else []
    query = "&".join(f"{name}{equals}{_literal(value)}" if equals else _literal(name) for name, equals, value in pairs)
    path = _TOKEN.sub(MASK, _references(path))
    return f"{scheme}://{user}{at}{_references(host)}{slash}{path}{question}{query}{mark}{_literal(fragment)}"


def _partition(text: str, separator: str) -> tuple[str, str, str]:
    """As str.partition, but a separator within `${…}` does not count."""
    depth = 0
    for index, char in enumerate(text):
        depth += (text.startswith("${", index)) - (char == "}" and depth > 0)
        if char == separator and depth == 0:
            return text[:index], separator, text[index + 1 :]
    return text, "", ""
