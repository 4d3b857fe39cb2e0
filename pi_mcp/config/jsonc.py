"""JSON as people write it: comments, trailing commas, a byte order mark; with the place of every member.

Comes in: the text of a file. Goes out: a `Document` (plain Python values, and where each of them stands in
the text), or a `JsoncError` with line, column and a hint. It never repeats what the file says, since that may
be a secret, and it never reads or writes a file.
"""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]
"""Keys and indices from the root: `("mcpServers", "docs", "args", 0)`."""

MAX_DEPTH = 100
"""Objects and arrays within each other; a configuration file has five."""

_BOM = "\ufeff"
_BLANK = re.compile(r"(?:[ \t\r\n]+|//[^\r\n]*|/\*(?:[^*]|\*(?!/))*\*/)*+")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|[^"\\\x00-\x1f]+)*+"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![0-9A-Za-z_.+-])")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_LINE_END = re.compile(r"\r\n|\n|\r")
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}


class JsoncError(ValueError):
    """The text is not JSON with comments. `line` and `column` count from 1, in characters."""

    def __init__(self, line: int, column: int, hint: str) -> None:
        super().__init__(f"line {line}, column {column}: {hint}")
        self.line = line
        self.column = column
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _Place:
    """Offsets of one value, end exclusive. An array's element, and the root, have no key: `key == start`."""

    key: int
    start: int
    end: int
    inner: dict[str | int, _Place]


@dataclass(slots=True)
class Document:
    """What a text says, and where. The places are found when they are first asked for."""

    text: str = field(repr=False)
    value: Any = field(repr=False)
    duplicates: tuple[Path, ...] = ()
    """Members that stand in their object more than once (the first hundred); `value` has the last of each."""
    _root: _Place | None = field(default=None, repr=False)
    _lines: list[int] | None = field(default=None, repr=False)

    def span(self, path: Path) -> tuple[int, int, int]:
        """`(key_start, value_start, value_end)` as offsets into `text`. Raises KeyError for an absent path.

        Of a duplicate it is the last one. `text[value_end - 1]` closes an object or array.
        """
        if self._root is None:
            self._root = _Scanner(self.text).document()[1]
        place = self._root
        for part in path:
            place = place.inner[part]
        return place.key, place.start, place.end

    def position(self, path: Path) -> tuple[int, int]:
        """1-based line and column of a member's key, or of an element.

        For a path that is absent it is the place of the nearest parent that exists.
        """
        while True:
            try:
                return self.line_column(self.span(path)[0])
            except KeyError:
                path = path[:-1]

    def line_column(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset into `text`; a byte order mark takes no column."""
        if self._lines is None:
            self._lines = _line_starts(self.text)
        return _line_column(self.text, self._lines, offset)


def parse(text: str) -> Document:
    """Read a whole text. Raises JsoncError; the recursion of the reader is bounded by `MAX_DEPTH`."""
    # Most files are plain JSON: the C reader has them in microseconds. What it refuses, or what has to be
    # reported with a place (duplicates, depth), is read again by the slow one.
    body = text[1:] if text.startswith(_BOM) else text
    repeated = False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeated
        result = dict(pairs)
        repeated = repeated or len(result) != len(pairs)
        return result

    try:
        value = json.loads(body, object_pairs_hook=members, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        pass
    else:
        if not repeated and _is_shallow(body, value):
            return Document(text, value)
    scanner = _Scanner(text)
    value, root = scanner.document()
    return Document(text, value, tuple(scanner.duplicates), root)


def skip_blank(text: str, offset: int) -> int:
    """The offset of the next character that is neither white space nor in a comment."""
    match = _BLANK.match(text, offset)
    return match.end() if match else offset


class _Scanner:
    """Reads one text from front to back and notes where every value stands."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 1 if text.startswith(_BOM) else 0
        self.path: list[str | int] = []
        self.duplicates: list[Path] = []

    def document(self) -> tuple[Any, _Place]:
        self.blank()
        if self.at >= len(self.text):
            raise self.error(self.at, 'The file is empty; an object such as {"mcpServers": {}} is expected.')
        result = self.value(self.at)
        end = self.at
        self.blank()
        if self.peek() and self.peek() in "}]":
            raise self.error(self.at, "There is one closing bracket too many.")
        if self.peek():
            raise self.error(end, "There is more text after the end of the outermost value.")
        return result

    def value(self, key: int) -> tuple[Any, _Place]:
        start = self.at
        inner: dict[str | int, _Place] = {}
        result: Any
        match self.peek():
            case "{":
                result = self.object(inner)
            case "[":
                result = self.array(inner)
            case '"':
                result = self.string()
            case _:
                result = self.plain()
        return result, _Place(key, start, self.at, inner)

    def object(self, places: dict[str | int, _Place]) -> dict[str, Any]:
        opened = self.enter()
        result: dict[str, Any] = {}
        while self.peek() != "}":
            key_at = self.at
            if self.peek() != '"':
                raise self.bad_key(opened)
            key = self.string()
            key_end = self.at
            self.blank()
            if self.peek() != ":":
                raise self.error(key_end, "A colon is missing after this key.")
            self.at += 1
            self.blank()
            self.path.append(key)
            if key in result and len(self.duplicates) < 100:
                self.duplicates.append(tuple(self.path))
            result[key], places[key] = self.value(key_at)
            self.path.pop()
            if not self.comma("}", opened):
                break
        self.at += 1
        return result

    def array(self, places: dict[str | int, _Place]) -> list[Any]:
        opened = self.enter()
        result: list[Any] = []
        while self.peek() != "]":
            index = len(result)
            self.path.append(index)
            element, places[index] = self.value(self.at)
            result.append(element)
            self.path.pop()
            if not self.comma("]", opened):
                break
        self.at += 1
        return result

    def enter(self) -> int:
        """Go past an opening bracket and the blanks after it; where it stands."""
        opened = self.at
        if len(self.path) >= MAX_DEPTH:
            raise self.error(opened, f"Values are nested more than {MAX_DEPTH} deep.")
        self.at += 1
        self.blank()
        return opened

    def comma(self, closing: str, opened: int) -> bool:
        """Go past the comma after a value; False at the closing bracket (which stays)."""
        value_end = self.at
        self.blank()
        more = self.peek() == ","
        if more:
            self.at += 1
            self.blank()
        char = self.peek()
        if not char:
            raise self.error(opened, f"This bracket is never closed: a {closing} is missing.")
        if char in "}]" and char != closing:
            raise self.error(self.at, f"This bracket does not fit the one that was opened: a {closing} is expected.")
        if more or char == closing:
            return more
        if char == ":":
            raise self.error(self.at, "A colon stands here where a comma is expected.")
        if char in '"{[-' or char.isalnum():
            raise self.error(value_end, "A comma is missing after this value.")
        raise self.bad_character()

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if match is None:
            raise self.bad_string()
        token = match.group()
        self.at = match.end()
        return str(json.loads(token)) if "\\" in token else token[1:-1]

    def plain(self) -> Any:
        match = _NUMBER.match(self.text, self.at)
        if match is not None:
            try:
                number = json.loads(match.group())
            except ValueError:
                raise self.error(self.at, "This number has too many digits.") from None
            self.at = match.end()
            return number
        word = _WORD.match(self.text, self.at)
        if word is not None:
            name = word.group()
            if name in _CONSTANTS:
                self.at = word.end()
                return _CONSTANTS[name]
            if name.lower() in _CONSTANTS:
                raise self.error(self.at, "true, false and null are written in lower case.")
            if name in ("None", "undefined"):
                raise self.error(self.at, "This word is not known in JSON; write null, or leave the member out.")
            if name in ("NaN", "Infinity"):
                raise self.error(self.at, "This is not a number that JSON knows.")
            raise self.error(self.at, "A value is expected; text stands in double quotes.")
        raise self.bad_character()

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def blank(self) -> None:
        self.at = skip_blank(self.text, self.at)
        if self.text.startswith("/*", self.at):
            raise self.error(self.at, "This comment is never closed: a */ is missing.")

    def bad_key(self, opened: int) -> JsoncError:
        char = self.peek()
        if not char:
            return self.error(opened, "This bracket is never closed: a } is missing.")
        if _WORD.match(char):
            return self.error(self.at, "A key stands in double quotes.")
        if char == "]":
            return self.error(self.at, "This bracket does not fit the one that was opened: a } is expected.")
        return self.bad_character()

    def bad_string(self) -> JsoncError:
        """Say why the string that begins here cannot be read, at the place of the fault."""
        at = self.at + 1
        while True:
            char = self.text[at : at + 1]
            if not char or char in "\r\n":
                return self.error(self.at, "This text is never closed: a double quote is missing.")
            if char == "\\":
                escape = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})').match(self.text, at)
                if escape is None:
                    return self.error(at, r"This escape is not known in JSON; a backslash itself is written \\.")
                at = escape.end()
                continue
            if char < " ":
                return self.error(at, r"A control character stands in this text; write \t or \u00XX for it.")
            at += 1

    def bad_character(self) -> JsoncError:
        char = self.peek()
        if not char:
            return self.error(self.at, "The text ends where a value is expected.")
        if char in "'`":
            return self.error(self.at, "Text stands in double quotes, not in single ones.")
        if char in "\u201c\u201d\u201e\u201f\u2018\u2019\u00ab\u00bb":
            return self.error(self.at, 'A typographic quotation mark stands here; write ".')
        if char == "#":
            return self.error(self.at, "A comment begins with //, not with #.")
        if char == "/":
            return self.error(self.at, "A comment begins with // or /*.")
        if char == ",":
            return self.error(self.at, "There is a comma too many, or a value is missing before it.")
        if char in "}]":
            return self.error(self.at, "A value is missing before this bracket.")
        if char.isdigit() or char in "-+.":
            return self.error(self.at, "This number is not written as JSON wants it.")
        if unicodedata.category(char) in ("Zs", "Zl", "Zp", "Cf", "Cc"):
            return self.error(self.at, "An invisible character stands here that is no blank of JSON.")
        return self.error(self.at, "This character is not expected here.")

    def error(self, offset: int, hint: str) -> JsoncError:
        line, column = _line_column(self.text, _line_starts(self.text), offset)
        return JsoncError(line, column, hint)


def _refuse_constant(name: str) -> JsoncError:
    raise ValueError(name)


def _is_shallow(body: str, value: Any) -> bool:
    """Whether nothing is nested deeper than MAX_DEPTH; the value is walked only where that is in doubt."""
    if body.count("{") + body.count("[") <= MAX_DEPTH:
        return True
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return True
    return False


def _line_starts(text: str) -> list[int]:
    first = 1 if text.startswith(_BOM) else 0
    return [first, *(match.end() for match in _LINE_END.finditer(text))]


def _line_column(text: str, starts: list[int], offset: int) -> tuple[int, int]:
    offset = min(max(offset, starts[0]), len(text))
    line = bisect_right(starts, offset)
    return line, offset - starts[line - 1] + 1
