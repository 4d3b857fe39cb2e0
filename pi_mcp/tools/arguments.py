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
from pi_mcp.text import clean_line, close_words

MAX_BYTES = 16 << 20
"""Bytes of an argument file or of standard input that are read at most."""
_MOST = 300
"""Schemas within one property's schema that are looked at."""


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
    if words[0].lstrip().startswith("{") and (len(words) == 1 or not _is_whole_object(words[0])):
        return _object(" ".join(words), "the text of the arguments")
    if any(_is_whole_object(word) for word in words):
        raise _usage("A JSON object, @FILE and - stand alone: give one of them, or key=value words.")
    arguments: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise _usage(f"{clean_line(word, 60)!r} is neither a JSON object nor key=value.")
        if key in arguments:
            raise _usage(f"{clean_line(key, 60)!r} is given twice.")
        if _is_broken(word):
            raise _usage(f"The value of {clean_line(key, 60)!r} is not UTF-8.")
        if text.startswith("@@"):
            text = text[1:]
        elif text.startswith("@") and len(text) > 1:
            text = _read(text[1:])
        arguments[key] = typed(text, _property(schema, key), key, schema)
    return arguments


def misspelt(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> str | None:
    """A sentence on the arguments that the tool's schema does not have and that are close to ones it has.

    Whether they are an error is the server's to say: most schemas do not forbid others.
    """
    known = schema.get("properties")
    if not isinstance(known, Mapping) or schema.get("additionalProperties") or schema.get("patternProperties"):
        return None
    said = []
    for key in arguments:
        close = "" if _property(schema, key) or key in known else close_words(key, map(str, known))
        if close:
            said.append(
                f"The tool's schema has no {clean_line(key, 60)!r}; it is sent all the same. {clean_line(close)}"
            )
    return " ".join(said) or None


def _is_whole_object(word: str) -> bool:
    """Is this more than one argument? A text of JSON that a shell has cut into words is none of it."""
    if word == "-" or (word.startswith("@") and "=" not in word):
        return True
    try:
        return word.lstrip().startswith("{") and isinstance(_json(word), dict)
    except ValueError:
        return False


def kinds(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The JSON types that a property's schema admits, in its order; empty when it does not say.

    `root` is the schema that its references point into.
    """
    return _kinds_of(_forms(schema, schema if root is None else root))


def _kinds_of(forms: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for form in forms:
        own = _declared(form)
        if not own:
            return ()
        found |= dict.fromkeys(own)
    return tuple(found)


def _declared(form: Mapping[str, Any]) -> tuple[str, ...]:
    declared, values = form.get("type"), form.get("enum")
    if isinstance(declared, str):
        return (declared,)
    if isinstance(declared, list):
        return tuple(kind for kind in declared if isinstance(kind, str))
    if "const" in form:
        return (_kind_of(form["const"]),)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return ("string",)
    return ()


def _forms(schema: Any, root: Mapping[str, Any], left: list[None] | None = None) -> list[Mapping[str, Any]]:
    """What a value may be: alternatives apart, references within `root` looked up, the telling part of an `allOf`.

    `left` has an item for each schema that may still be looked at: one may refer to itself.
    """
    left = [None] * _MOST if left is None else left
    if not isinstance(schema, Mapping) or not left:
        return [{}]
    left.pop()
    if _declared(schema):
        return [schema]
    if isinstance(schema.get("$ref"), str):
        return _forms(_referred(schema["$ref"], root), root, left)
    for key in ("anyOf", "oneOf"):
        if options := _list(schema.get(key)):
            return [form for option in options for form in _forms(option, root, left)]
    for part in _list(schema.get("allOf")):
        if _kinds_of(forms := _forms(part, root, left)):
            return forms
    return [schema]


def _list(value: Any) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        return None
    found: Any = root
    for token in reference[1:].split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _property(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What the tool's schema says of one argument, wherever it lists it; empty where it does not."""
    left: list[Any] = [schema]
    for _ in range(_MOST):
        if not left:
            break
        node = left.pop(0)
        if not isinstance(node, Mapping):
            continue
        properties = node.get("properties")
        about = properties.get(key) if isinstance(properties, Mapping) else None
        if isinstance(about, Mapping):
            return about
        if isinstance(node.get("$ref"), str):
            left.append(_referred(node["$ref"], schema))
        left += [*_list(node.get("allOf")), *_list(node.get("anyOf")), *_list(node.get("oneOf"))]
    more = schema.get("additionalProperties")
    return more if isinstance(more, Mapping) else {}


def typed(
    text: str, schema: Mapping[str, Any], key: str, root: Mapping[str, Any] | None = None, *, item: bool = False
) -> Any:
    """`text` as the type that the schema of property `key` asks for; without a type, JSON where it parses.

    Where there are several types it is the value that JSON would have it be; text stays text, its quotation marks, too.
    A list may be written with commas; its items are typed by `items`. `root` is the tool's schema, where references
    lead; with `item` the text is one of the list `key`. Raises ConfigurationError `usage` that names the key and the
    type, never the value.
    """
    root = schema if root is None else root
    forms = _forms(schema, root)
    admitted = _kinds_of(forms)
    if any(text in form["enum"] for form in forms if isinstance(form.get("enum"), list)):
        return text
    if admitted == ("string",):
        return text
    if len(admitted) != 1:
        try:
            value = _json(text)
        except ValueError:
            if not admitted:
                return text
        else:
            if not admitted or (_kind_of(value) in admitted and not isinstance(value, str)):
                return value
            if "integer" in admitted and _is_whole(value):
                return int(value)
    if "string" in admitted:
        return text
    for form, kind in [(one, kind) for one in forms for kind in _declared(one)]:
        try:
            if kind == "array":
                return _array(text, form.get("items"), key, root)
            return _CASTS[kind](text)
        except (KeyError, ValueError):
            continue
    what = "Each item" if item else "The value"
    raise _usage(f"{what} of {clean_line(key, 60)!r} must be of type {clean_line(' or '.join(admitted))}.")


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


def _array(text: str, items: Any, key: str, root: Mapping[str, Any]) -> list[Any]:
    if text.lstrip().startswith("["):
        value = _json(text)
        if not isinstance(value, list):
            raise ValueError
        return value
    if not text.strip():
        return []
    about = items if isinstance(items, Mapping) else {}
    # Without a type an item is text: `ids=1,2` of unknown items must not become numbers by chance.
    known = kinds(about, root)
    # An object has commas of its own: it is one item, and several of them are written as JSON.
    parts = [text] if "object" in known and text.lstrip().startswith("{") else text.split(",")
    return [typed(part.strip(), about, key, root, item=True) if known else part.strip() for part in parts]


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
        value = _json(text.removeprefix("\ufeff"))
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
