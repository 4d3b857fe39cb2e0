"""Changes to a configuration file that leave everything else as the person wrote it.

Comes in: a file, a server's name, an entry. Goes out: the same file with that one change; comments, order, unknown
keys, indentation, line ends and a byte order mark stay. A comment within something that goes is moved, not lost.
It never writes a file that it cannot parse (report B016), and it decides nothing about what an entry says.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pi_mcp import files
from pi_mcp.config import jsonc
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

SERVERS = "mcpServers"
_LINE = 80
"""A list of plain values up to this many characters stays on one line."""

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<comment>//[^\r\n]*|/\*.*?\*/)', re.DOTALL)
_EOL = re.compile(r"\r\n|\n|\r")


def set_server(path: Path, name: str, entry: Mapping[str, Any]) -> None:
    """Make `entry` the definition of `name`; the file, and `mcpServers` in it, are made when missing.

    An entry that is there is changed member by member, so that comments in it stay. Raises ConfigurationError
    for a file that does not parse (with its line and column), a symbolic link, or a file that cannot be written.
    """
    _edit(path, lambda root: {**root, SERVERS: {**_servers(root), name: dict(entry)}})


def add_servers(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Add those entries whose names the file does not have; these names. One write; errors as `set_server`."""
    added: list[str] = []

    def change(root: dict[str, Any]) -> dict[str, Any]:
        present = _servers(root)
        new = {name: dict(entry) for name, entry in entries.items() if name not in present}
        added.extend(new)
        return {**root, SERVERS: {**present, **new}} if new else root

    _edit(path, change)
    return tuple(added)


def remove_server(path: Path, name: str) -> None:
    """Take `name` out of `mcpServers`. Raises NotFound when it is not there; other errors as `set_server`."""

    def change(root: dict[str, Any]) -> dict[str, Any]:
        servers = _servers(root)
        if name not in servers:
            raise _absent(path, name)
        return {**root, SERVERS: {key: entry for key, entry in servers.items() if key != name}}

    _edit(path, change)


def set_disabled(path: Path, name: str, disabled: bool) -> None:
    """Switch `name` off or on in its file, with the field that it has: `disabled`, or `enabled` of other clients.

    Raises NotFound when the name is not there; other errors as `set_server`.
    """

    def change(root: dict[str, Any]) -> dict[str, Any]:
        servers = _servers(root)
        entry = servers.get(name)
        if not isinstance(entry, dict):
            raise _absent(path, name)
        switched = dict(entry)
        if "enabled" in entry:
            switched["enabled"] = not disabled
        if "disabled" in entry or (disabled and "enabled" not in entry):
            switched["disabled"] = disabled
        return {**root, SERVERS: {**servers, name: switched}}

    _edit(path, change)


def rewritten(text: str, value: Any) -> str:
    """`text`, a JSONC document, changed so that it parses to `value` and still has every comment.

    Raises JsoncError when `text` does not parse, ValueError when `value` is nothing that JSON can say.
    """
    result = _merged(text, (), value)
    after = _parsed(result)
    if not _same(after.value, value) or not _keeps_comments(text, result):
        raise ValueError("the change cannot be made without losing something")
    return result


def member_of(text: str, keys: tuple[str, ...], shown: str) -> tuple[Any, tuple[int, int]]:
    """The value at `keys` (None when absent) and its line and column, in the text of any client's file.

    `shown` is the file's name for messages. Raises ConfigurationError for a text that does not parse, a parent that
    is no object, and a member on the way that stands there twice.
    """
    document = _document(_filled(text), shown)
    value = document.value
    for depth, key in enumerate(keys):
        if not isinstance(value, dict):
            where = f"`{keys[depth - 1]}`" if depth else "The outermost value"
            raise _unusable(shown, document.position(keys[:depth]), f"{where} is not an object.")
        if keys[: depth + 1] in document.duplicates:
            raise _unusable(shown, document.position(keys[: depth + 1]), "This member stands in its object twice.")
        value = value.get(key)
        if value is None:
            break
    return value, document.position(keys)


def with_member(text: str, keys: tuple[str, ...], value: Any, shown: str) -> str:
    """`text` with `value` at `keys`, objects on the way made when missing; the rest of it stays. As `member_of`."""
    member_of(text, keys, shown)
    text = _filled(text)
    return _changed(text, _put(_parsed(text).value, keys, value), shown)


def without_member(text: str, keys: tuple[str, ...], shown: str, *, made: int = 0) -> str:
    """`text` without the member at `keys`, and without the last `made` objects on the way that are empty then."""
    if member_of(text, keys, shown)[0] is None:
        return text
    root = _put(_parsed(text).value, keys, None)
    for depth in range(len(keys) - 1, max(len(keys) - 1 - made, 0), -1):
        if _at(root, keys[:depth]) == {}:
            root = _put(root, keys[:depth], None)
    return _changed(text, root, shown)


def _filled(text: str) -> str:
    """A file with nothing in it is what some clients begin with."""
    return text if text.strip("\ufeff \t\r\n") else "{}\n"


def _put(root: Any, keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of the object with `value` at `keys`; None takes the member out."""
    members = dict(root or {})
    if len(keys) > 1:
        members[keys[0]] = _put(members.get(keys[0]), keys[1:], value)
    elif value is None:
        members.pop(keys[0], None)
    else:
        members[keys[0]] = value
    return members


def _changed(text: str, value: Any, shown: str) -> str:
    try:
        return rewritten(text, value)
    except (TypeError, ValueError, RecursionError):
        raise _lossy(shown) from None


def _edit(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    shown = clean_line(str(path), 1000)
    try:
        with files.locked(_lock(path)):
            text = _text(path, shown)
            document = _document(text, shown)
            _refuse_duplicates(document, shown)
            before = _root(document, shown)
            after = change(before)
            if _same(before, after):
                return
            files.write_config(path, rewritten(text, after).encode())
    except PiMcpError:
        raise
    except TimeoutError:
        raise failure(
            "busy", "configure", None, f"Another process is changing {shown}.", "Repeat this in a moment."
        ) from None
    except OSError:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{shown} could not be read or written; nothing changed.",
            "See that it is a file of yours in a folder of yours, and that the disk has room.",
        ) from None
    except (TypeError, ValueError, RecursionError):
        raise _lossy(shown) from None


def _lossy(shown: str) -> PiMcpError:
    return failure(
        "configuration_invalid",
        "configure",
        None,
        f"The change to {shown} cannot be made without losing something, so nothing changed.",
        "Make it in an editor.",
    )


def _lock(path: Path) -> Path:
    """The lock of a file that is not ours stands with our state, not beside it."""
    key = os.path.abspath(path)  # noqa: PTH100 - one file, one lock: ".." has to go
    return files.state_dir() / "locks" / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.lock"


def _text(path: Path, shown: str) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return "{}\n"
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise _unusable(shown, (line, column), "This is not UTF-8 text.") from None


@functools.lru_cache(maxsize=2)
def _parsed(text: str) -> jsonc.Document:
    """Of the text before a change and after it: a client's file may be tens of megabytes, and is looked at many times.

    Nothing here changes a document's value.
    """
    return jsonc.parse(text)


def _document(text: str, shown: str) -> jsonc.Document:
    try:
        return _parsed(text)
    except jsonc.JsoncError as error:
        raise _unusable(shown, (error.line, error.column), error.hint) from None


def _root(document: jsonc.Document, shown: str) -> dict[str, Any]:
    if not isinstance(document.value, dict):
        raise _unusable(shown, document.position(()), "The outermost value is not an object.")
    if not isinstance(document.value.get(SERVERS, {}), dict):
        raise _unusable(shown, document.position((SERVERS,)), f"`{SERVERS}` is not an object.")
    return document.value


def _refuse_duplicates(document: jsonc.Document, shown: str) -> None:
    """Which of two members of one name is meant, only the person knows."""
    for path in document.duplicates:
        if path[0] == SERVERS:
            raise _unusable(shown, document.position(path), "This member stands in its object twice.")


def _servers(root: Mapping[str, Any]) -> dict[str, Any]:
    servers = root.get(SERVERS, {})
    return servers if isinstance(servers, dict) else {}


def _unusable(shown: str, position: tuple[int, int], why: str) -> PiMcpError:
    line, column = position
    return failure(
        "configuration_invalid",
        "configure",
        None,
        f"{shown}, line {line}, column {column}: {why} The file was not written to.",
        "Correct it in an editor, then repeat this.",
    )


def _absent(path: Path, name: str) -> PiMcpError:
    return failure(
        "not_found",
        "configure",
        clean_line(name),
        f"There is no such server in {clean_line(str(path), 1000)}.",
        "`/mcp` shows which file a server comes from.",
    )


# The text itself. Each function below makes one change and hands the new text on; places are looked up anew
# after every change.


def _merged(text: str, path: jsonc.Path, new: Any) -> str:
    document = _parsed(text)
    old = _at(document.value, path)
    if _same(old, new):
        return text
    if not isinstance(old, dict) or not isinstance(new, dict):
        return _replaced(text, path, new)
    for key in old:
        if key not in new:
            text = _without(text, (*path, key))
    for key, value in new.items():
        text = _merged(text, (*path, key), value) if key in old else _with(text, path, key, value)
    return text


def _replaced(text: str, path: jsonc.Path, value: Any) -> str:
    key, start, end = _parsed(text).span(path)
    layout = _Layout(text)
    indent = layout.indent_at(key)
    wide = layout.is_first_on_line(key)
    saved = _moved(_comments(text[start:end]), layout.eol + indent, wide)
    return text[:key] + saved + text[key:start] + layout.render(value, indent, wide) + text[end:]


def _with(text: str, path: jsonc.Path, key: str, value: Any) -> str:
    """Add a member at the end of the object at `path`, after the comments that stand there."""
    document = _parsed(text)
    own_key, start, end = document.span(path)
    close = end - 1
    layout = _Layout(text)
    spans = sorted(document.span((*path, member)) for member in _at(document.value, path))
    if spans:
        last_end = spans[-1][2]
        comma = jsonc.skip_blank(text, last_end)
        trailing = text[comma] == ","
        tail = comma + 1 if trailing else last_end
        wide = layout.is_first_on_line(spans[0][0])
        indent = layout.indent_at(spans[0][0])
    else:
        tail = start + 1
        trailing = False
        wide = layout.has_lines or not path
        indent = layout.indent_at(own_key) + layout.unit
    at, after_line_comment = _after_comments(text, tail, close)
    member = f"{_json(key)}: {layout.render(value, indent, wide)}"
    if wide or after_line_comment:
        member = layout.eol + indent + member
    elif spans:
        member = " " + member
    if trailing:
        member += ","
    if wide and not spans and not _EOL.search(text, at, close):
        member += layout.eol + layout.indent_at(own_key)
    if spans and not trailing:
        return text[:last_end] + "," + text[last_end:at] + member + text[at:]
    return text[:at] + member + text[at:]


def _without(text: str, path: jsonc.Path) -> str:
    """Take a member out with its comma, and with its line where nothing else stands there."""
    document = _parsed(text)
    key, _, end = document.span(path)
    layout = _Layout(text)
    indent = layout.indent_at(key)
    comments = _comments(text[key:end])
    cuts: list[tuple[int, int]] = []
    comma = jsonc.skip_blank(text, end)
    if text[comma] == ",":
        if text[end:comma].strip():
            cuts.append((comma, comma + 1))
        else:
            end = comma + 1
    else:
        ends = [document.span((*path[:-1], member))[2] for member in _at(document.value, path[:-1])]
        before = [place for place in ends if place <= key]
        if before:
            # The last member goes: a comma before it would make the file unreadable for strict readers.
            previous = jsonc.skip_blank(text, max(before))
            rest = layout.rest_of_line(end).lstrip()
            if not text[previous + 1 : key].strip() and not comments and not rest.startswith("/"):
                key = previous
            else:
                cuts.append((previous, previous + 1))
    wide = layout.is_first_on_line(key)
    alone = wide and not layout.rest_of_line(end).strip()
    saved = _moved(comments, layout.eol + indent, wide)
    if alone and not comments:
        key, end = layout.line_around(key, end)
    elif alone:
        saved = saved.removesuffix(layout.eol + indent)
    elif not comments and text[key - 1 : key] in {" ", "\t", "{"}:
        while text[end] in " \t":
            end += 1
    text_after = text[:key] + saved + text[end:]
    for start, stop in cuts:
        shift = len(text_after) - len(text) if start >= end else 0
        text_after = text_after[: start + shift] + text_after[stop + shift :]
    return text_after


class _Layout:
    """How a text is laid out: its line ends, its unit of indentation, and what stands on a line."""

    def __init__(self, text: str) -> None:
        self.text = text
        first = _EOL.search(text)
        self.eol = first.group() if first else "\n"
        self.has_lines = bool(first and text[first.end() :].strip())
        indented = re.search(r'[\r\n]([ \t]+)"', text)
        self.unit = indented.group(1) if indented else "  "

    def line_start(self, offset: int) -> int:
        return max(self.text.rfind("\n", 0, offset), self.text.rfind("\r", 0, offset)) + 1

    def rest_of_line(self, offset: int) -> str:
        end = _EOL.search(self.text, offset)
        return self.text[offset : end.start() if end else len(self.text)]

    def indent_at(self, offset: int) -> str:
        line = self.text[self.line_start(offset) : offset]
        return line[: len(line) - len(line.lstrip(" \t"))]

    def is_first_on_line(self, offset: int) -> bool:
        """Is there a line end, and nothing but indentation, before this place?"""
        start = self.line_start(offset)
        return start > 0 and not self.text[start:offset].strip(" \t")

    def line_around(self, start: int, end: int) -> tuple[int, int]:
        """The whole lines from `start` to `end`, with the line end after them."""
        stop = _EOL.search(self.text, end)
        return self.line_start(start), stop.end() if stop else len(self.text)

    def render(self, value: Any, indent: str, wide: bool) -> str:
        """`value` as JSON: over several lines from this indentation, or on one."""
        if not wide or not isinstance(value, dict | list) or not value:
            return _json(value)
        inner = indent + self.unit
        if isinstance(value, list):
            flat = _json(value)
            if len(flat) <= _LINE and not any(isinstance(element, dict | list) for element in value):
                return flat
            lines = [self.render(element, inner, wide) for element in value]
        else:
            lines = [f"{_json(key)}: {self.render(member, inner, wide)}" for key, member in value.items()]
        opening, closing = "[]" if isinstance(value, list) else "{}"
        body = f",{self.eol}{inner}".join(lines)
        return f"{opening}{self.eol}{inner}{body}{self.eol}{indent}{closing}"


def _comments(text: str) -> list[str]:
    return [match.group() for match in _COMMENT.finditer(text) if match.group("comment")]


def _after_comments(text: str, start: int, stop: int) -> tuple[int, bool]:
    """Where the last comment between the offsets ends, and whether it runs to the end of its line."""
    found = [match for match in _COMMENT.finditer(text, start, stop) if match.group("comment")]
    if not found:
        return start, False
    return found[-1].end(), found[-1].group().startswith("//")


def _moved(comments: list[str], newline: str, wide: bool) -> str:
    """Comments for a new place before a member: on lines of their own, or in its line where they can be."""
    return "".join(comment + (newline if wide or comment.startswith("//") else " ") for comment in comments)


def _keeps_comments(before: str, after: str) -> bool:
    return sorted(_comments(before)) == sorted(_comments(after))


def _at(value: Any, path: jsonc.Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: `true` is not 1, `1.0` is not 1, and the order of members does not count."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _json(value: Any) -> str:
    """One line of JSON, readable in any script; half characters are escaped, since no file can hold them."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match.group()):04x}", text)
