"""Arguments of a call as a person types them: JSON, `key=value` typed by the schema, `@file`, or standard input.

Comes in: words and the tool's input schema. Goes out: a JSON object. It validates types only as far as it must
choose one; the server judges the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

MAX_BYTES = 16 << 20
"""Bytes of an argument file or of standard input that are read at most."""


def parse_arguments(
    words: Sequence[str], schema: Mapping[str, Any], *, standard_input: Callable[[int], bytes] | None = None
) -> dict[str, Any]:
    """One JSON object from words.

    A single word that begins with `{`, `@FILE` or `-` (standard input, read by `standard_input(limit)`) is the
    whole object; otherwise every word is `key=value`, typed by the property's schema. A value of `@FILE` is the
    file's text, and `@@` at its beginning is one `@`. Raises ConfigurationError `usage`.
    """
    if not words:
        return {}
    if len(words) == 1 and words[0] == "-":
        if standard_input is None:
            raise _usage("Standard input is not available here.")
        return _object(_decode(standard_input(MAX_BYTES + 1), "standard input"), "standard input")
    if len(words) == 1 and words[0].startswith("@"):
        return _object(_read(words[0][1:]), words[0][1:])
    if words[0].lstrip().startswith("{"):
        return _object(" ".join(words), "the text of the arguments")
    properties = schema.get("properties")
    arguments: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise _usage(f"{clean_line(word, 60)!r} is neither JSON nor key=value.")
        if key in arguments:
            raise _usage(f"{clean_line(key, 60)!r} is given twice.")
        if _is_broken(word):
            raise _usage(f"The value of {clean_line(key, 60)!r} is not UTF-8.")
        if text.startswith("@@"):
            text = text[1:]
        elif text.startswith("@") and len(text) > 1:
            text = _read(text[1:])
        about = properties.get(key) if isinstance(properties, Mapping) else None
        arguments[key] = typed(text, about if isinstance(about, Mapping) else {}, key)
    return arguments


def kinds(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """The JSON types that a property's schema admits, in its order; empty when it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return (declared,)
    if isinstance(declared, list):
        return tuple(kind for kind in declared if isinstance(kind, str))
    if "const" in schema:
        return (_kind_of(schema["const"]),)
    found: list[str] = []
    for key in ("anyOf", "oneOf"):
        options = schema.get(key)
        if isinstance(options, list):
            for option in options:
                if isinstance(option, Mapping):
                    found.extend(kind for kind in kinds(option) if kind not in found)
    if not found and isinstance(schema.get("enum"), list) and all(isinstance(v, str) for v in schema["enum"]):
        return ("string",)
    return tuple(found)


def typed(text: str, schema: Mapping[str, Any], key: str) -> Any:
    """`text` as the type that the schema of property `key` asks for; without a type, JSON where it parses.

    Where text is among several types it stays text, unless it spells a value of another one as JSON does. A list
    may be written with commas; its items are typed by `items`. Raises ConfigurationError `usage` that names the key
    and the type, never the value.
    """
    admitted = kinds(schema)
    enum = schema.get("enum")
    if isinstance(enum, list) and text in enum:
        return text
    if not admitted:
        try:
            return _json(text)
        except ValueError:
            return text
    if "string" in admitted:
        if len(admitted) == 1:
            return text
        try:
            value = _json(text)
        except ValueError:
            return text
        return value if _kind_of(value) in admitted or (_is_whole(value) and "integer" in admitted) else text
    for kind in admitted:
        try:
            if kind == "array":
                return _array(text, schema.get("items"), key)
            return _CASTS[kind](text)
        except (KeyError, ValueError):
            continue
    raise _usage(f"The value of {clean_line(key, 60)!r} must be of type {clean_line(' or '.join(admitted))}.")


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in ("true", "yes", "y", "1", "on"):
        return True
    if word in ("false", "no", "n", "0", "off"):
        return False
    raise ValueError


def _null(text: str) -> None:
    if text.strip() not in ("null", ""):
        raise ValueError


def _number(text: str) -> int | float:
    """A number as JSON writes it; a leading `+` or `.` is taken too, `1_000`, `nan` and `inf` are not."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        raise ValueError
    if text.lstrip("+-").isdecimal():
        return int(text)
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _integer(text: str) -> int:
    number = _number(text)
    if not _is_whole(number):
        raise ValueError
    return int(number)


def _array(text: str, items: Any, key: str) -> list[Any]:
    if text.lstrip().startswith("["):
        value = _json(text)
        if not isinstance(value, list):
            raise ValueError
        return value
    if not text.strip():
        return []
    about = items if isinstance(items, Mapping) else {}
    # Without a type an item is text: `ids=1,2` of unknown items must not become numbers by chance.
    return [typed(part.strip(), about, key) if kinds(about) else part.strip() for part in text.split(",")]


def _mapping(text: str) -> dict[str, Any]:
    value = _json(text)
    if not isinstance(value, dict):
        raise ValueError
    return value


_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_CASTS: Mapping[str, Callable[[str], Any]] = {
    "string": str,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _mapping,
    "null": _null,
}


def _json(text: str) -> Any:
    """JSON, without what only Python's reader takes; raises ValueError for anything else."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError("too large a number")
    return number


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value == int(value)


def _is_broken(word: str) -> bool:
    """Bytes of the command line that were no text: Python keeps them as lone surrogates."""
    return any("\ud800" <= char <= "\udfff" for char in word)


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = _json(text)
    except ValueError as error:
        place = f" (line {error.lineno}, column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        raise _usage(f"{clean_line(where, 200)} cannot be read as JSON{place}.") from None
    if not isinstance(value, dict):
        raise _usage(f"{clean_line(where, 200)} must be a JSON object.")
    return value


def _read(name: str) -> str:
    try:
        path = Path(name).expanduser()
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError, RuntimeError):
        raise failure(
            "usage",
            "call",
            None,
            f"The file {clean_line(name, 300)} cannot be read.",
            "A value that begins with @ itself is written @@.",
        ) from None
    return _decode(data, name)


def _decode(data: bytes, where: str) -> str:
    if len(data) > MAX_BYTES:
        raise _usage(f"{clean_line(where, 300)} is over {MAX_BYTES >> 20} MiB.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _usage(f"{clean_line(where, 300)} is not UTF-8.") from None


def _usage(message: str) -> PiMcpError:
    return failure("usage", "call", None, message, "Give a JSON object, key=value words, @FILE or -.")
