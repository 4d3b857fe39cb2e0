"""Changes to a person's TOML file that leave every other byte as it is.

Comes in: the file's text and one change. Goes out: the new text. What can be added at the end or cut out as whole
lines is, since a comment keeps its place that way; the rest is tomlkit's work. Every result is read again, and one that
says anything else than the old file with that change is refused. It reads and writes no file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from pi_mcp.errors import PiMcpError, failure

Keys = tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parsed(text: str, shown: str) -> dict[str, Any]:
    """What the text says. Raises ConfigurationError that names line and column, and nothing of the text."""
    import tomlkit
    from tomlkit.exceptions import ParseError, TOMLKitError

    line, column = 1, 1
    try:
        value = tomllib.loads(text)
        # tomlkit knows less than the standard library now and then; what it cannot read it cannot edit either.
        if tomlkit.parse(text).as_string() == text:
            return value
        why = "This file cannot be edited without changing more of it."
    except ParseError as error:
        line, column, why = error.line, error.col, "This is not TOML."
    except tomllib.TOMLDecodeError as error:
        line, column = _place(str(error), text)
        why = "This is not TOML."
    except (TOMLKitError, ValueError, RecursionError):
        why = "This file cannot be edited without changing more of it."
    raise failure(
        "configuration_invalid",
        "configure",
        None,
        f"{shown}, line {line}, column {column}: {why} The file was not written to.",
        "Correct it in an editor, then repeat this.",
    )


def with_table(text: str, shown: str, keys: Keys, members: Mapping[str, Any]) -> str:
    """`text` with these members in the table at `keys`, which is made at the end of the file when it is missing.

    Members that are there and not among `members` stay. Raises ConfigurationError.
    """
    value = parsed(text, shown)
    expected = _copied(value)
    table = _open_table(expected, keys, shown)
    fresh = not table
    table.update(members)
    if expected == value:
        return text
    if fresh:
        added = _ended(text) + ("" if not text.strip() else _eol(text)) + _block(keys, members, _eol(text))
        if _says(added, expected):
            return added
    return _by_tomlkit(text, shown, expected, lambda document: _fill(document, keys, members))


def without_table(text: str, shown: str, keys: Keys) -> str:
    """`text` without the table at `keys`; empty tables above stay only where they have their own header."""
    value = parsed(text, shown)
    expected = _copied(value)
    if not _delete(expected, keys):
        return text
    for depth in range(len(keys) - 1, 0, -1):
        header = re.compile(rf"(?m)^[ \t]*{_header(keys[:depth])}")
        if _at(expected, keys[:depth]) == {} and not header.search(text):
            _delete(expected, keys[:depth])
    cut = _cut(text, keys)
    if cut is not None and _says(cut, expected):
        return cut

    def remove(document: Any) -> None:
        _delete(document, keys)

    return _by_tomlkit(text, shown, expected, remove)


def with_element(text: str, shown: str, keys: Keys, element: str) -> str:
    """`text` with `element` in the list at `keys` (a table and a member), both made when missing."""
    value = parsed(text, shown)
    expected = _copied(value)
    table = _open_table(expected, keys[:-1], shown)
    name = keys[-1]
    present = table.get(name)
    if present is None:
        table[name] = [element]
        line = f"{name} = {_value([element])}"
        header = re.search(rf"(?m)^[ \t]*{_header(keys[:-1])}[ \t]*(?:#[^\r\n]*)?(\r?\n|$)", text)
        if header:
            at = header.end()
            added = text[:at] + ("" if header.group(1) else _eol(text)) + line + _eol(text) + text[at:]
        else:
            added = _ended(text) + ("" if not text.strip() else _eol(text)) + _block(keys[:-1], {name: [element]}, "\n")
        if _says(added, expected):
            return added
    elif not isinstance(present, list):
        raise _unusable(shown, f"`{'.'.join(keys)}` is not a list.")
    elif element in present:
        return text
    else:
        present.append(element)

    def append(document: Any) -> None:
        holder = _at(document, keys[:-1])
        if name in holder:
            holder[name].append(element)
        else:
            holder[name] = [element]

    return _by_tomlkit(text, shown, expected, append)


def without_element(text: str, shown: str, keys: Keys, element: str) -> str:
    """`text` without `element` in the list at `keys`; a list and a table that held nothing else go with it."""
    value = parsed(text, shown)
    present = _at(value, keys)
    if not isinstance(present, list) or element not in present:
        return text
    if present == [element] and _at(value, keys[:-1]) == {keys[-1]: [element]}:
        cut = _cut(text, keys[:-1])
        expected = _copied(value)
        _delete(expected, keys[:-1])
        if cut is not None and _says(cut, expected):
            return cut
    expected = _copied(value)
    if present == [element]:
        _delete(expected, keys)
        line = re.compile(
            rf"(?m)^[ \t]*{re.escape(keys[-1])}[ \t]*=[ \t]*{re.escape(_value([element]))}[ \t]*(?:\r?\n|$)"
        )
        cut = line.sub("", text, count=1)
        if _says(cut, expected):
            return cut
        return _by_tomlkit(text, shown, expected, lambda document: _delete(document, keys))
    _at(expected, keys).remove(element)
    return _by_tomlkit(text, shown, expected, lambda document: _at(document, keys).remove(element))


# Text


def _eol(text: str) -> str:
    first = re.search(r"\r?\n", text)
    return first.group() if first else "\n"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + _eol(text)


def _key(word: str) -> str:
    return word if _BARE.fullmatch(word) else _value(word)


def _header(keys: Keys) -> str:
    """A pattern for the header line of a table."""
    words = r"[ \t]*\.[ \t]*".join(rf"[\"']?{re.escape(key)}[\"']?" for key in keys)
    return rf"\[[ \t]*{words}[ \t]*\]"


def header(keys: Keys) -> str:
    """The line that begins a table."""
    return f"[{'.'.join(map(_key, keys))}]"


def member(key: str, value: Any) -> str:
    """A table's line."""
    return f"{_key(key)} = {_value(value)}"


def _block(keys: Keys, members: Mapping[str, Any], eol: str) -> str:
    lines = [header(keys), *(member(key, value) for key, value in members.items())]
    return eol.join(lines) + eol


def _value(value: Any) -> str:
    import tomlkit

    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(tomlkit.item(value).as_string())


def _cut(text: str, keys: Keys) -> str | None:
    """`text` without the lines of this table, and without one empty line before them; comments after them stay."""
    found = re.search(rf"(?m)^[ \t]*{_header(keys)}[ \t]*(?:#[^\r\n]*)?\r?$", text)
    if found is None:
        return None
    lines = text[found.start() :].splitlines(keepends=True)
    end = 1
    for number, line in enumerate(lines[1:], 1):
        if line.lstrip().startswith("["):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            end = number + 1
    if any("#" in line for line in lines[:end]):
        return None  # a comment of the person's in it or on it
    head = text[: found.start()]
    blank = re.search(r"(?:\r?\n)(\r?\n)$", head)
    if blank:
        head = head[: blank.start(1)]
    return head + "".join(lines[end:])


# Values


def _says(text: str, expected: Mapping[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except (ValueError, RecursionError):
        return False


def _by_tomlkit(text: str, shown: str, expected: Mapping[str, Any], change: Any) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        change(document)
        after = document.as_string()
        if _says(after, expected):
            return after
    except (TOMLKitError, KeyError, TypeError, ValueError, AttributeError):
        pass
    raise _unusable(shown, "The change cannot be made without changing more of the file.")


def _fill(document: Any, keys: Keys, members: Mapping[str, Any]) -> None:
    import tomlkit
    from tomlkit.items import InlineTable

    holder = document
    for key in keys:
        if key not in holder:
            holder[key] = tomlkit.inline_table() if isinstance(holder, InlineTable) else tomlkit.table()
        holder = holder[key]
    for key, value in members.items():
        holder[key] = value


def _open_table(root: dict[str, Any], keys: Keys, shown: str) -> dict[str, Any]:
    for depth, key in enumerate(keys, 1):
        root = root.setdefault(key, {})
        if not isinstance(root, dict):
            raise _unusable(shown, f"`{'.'.join(keys[:depth])}` is not a table.")
    return root


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def _at(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _delete(root: Any, keys: Keys) -> bool:
    holder = _at(root, keys[:-1])
    if not isinstance(holder, Mapping) or keys[-1] not in holder:
        return False
    del holder[keys[-1]]  # type: ignore[attr-defined]
    return True


def _place(message: str, text: str) -> tuple[int, int]:
    """Line and column of the standard library's error, which are only in its message before Python 3.14."""
    found = re.search(r"\(at line (\d+), column (\d+)\)$", message)
    if found:
        return int(found[1]), int(found[2])
    return text.count("\n") + 1, 1


def _unusable(shown: str, why: str) -> PiMcpError:
    return failure(
        "configuration_invalid",
        "configure",
        None,
        f"{shown}: {why} The file was not written to.",
        "Make the change in an editor.",
    )
