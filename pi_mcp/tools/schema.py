"""A tool's input schema in the form that every model provider accepts.

Comes in: the server's `inputSchema`, any JSON. Goes out: a new schema and sentences about what it cannot say, or
`Quarantined` with a reason. It never changes its input, fetches nothing, and never forbids what the server
allows: where a rule cannot be kept it is loosened and put into words; the server checks the arguments itself.

The common ground of OpenAI, Anthropic and Gemini that is aimed at:

    top                  type object with properties; no combinator, enum, const or $ref
    keywords             type (one), description, title, default, enum, properties, required,
                         additionalProperties, items, anyOf, min/max bounds, pattern, format date-time
    other keywords       oneOf is anyOf, allOf is merged, const is an enum, the rest becomes words
    property names       [a-zA-Z0-9_.-]{1,64}
    $ref                 inlined while that is small, else kept next to $defs; recursion cut after one round
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from pi_mcp.text import clean_line, clean_metadata

MAX_BYTES = 96 * 1024
"""UTF-8 bytes of JSON of one model form; deep levels are opened before a tool is given up for its size."""

LARGEST_INPUT = 512 * 1024
"""Characters of JSON of a server's schema that are looked at; the largest of 5,700 real ones has a sixth of it."""

INLINE_BYTES = 8 * 1024
"""Up to this size references are inlined: some hosts and providers lose `$defs` (report B089)."""

DEPTHS = (16, 6, 4, 3, 2)
"""Levels of schemas that are kept, tried in this order until the form is small enough."""

MAX_NODES = 20_000
DESCRIPTION_LIMIT = 2000
"""Characters of one description within a schema."""

_PROPERTY_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_ALIASES = {
    "str": "string",
    "text": "string",
    "file": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "dict": "object",
    "map": "object",
    "json": "object",
    "none": "null",
    "nil": "null",
}
_KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "string": ("minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "object": (
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependencies",
    ),
    "boolean": (),
    "null": (),
}
_ANNOTATIONS = ("description", "title", "default")
_CONSTRAINTS = frozenset({key for keys in _KEYWORDS.values() for key in keys} | {"type", "enum", "const"})
_APPLICATORS = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas"})
_DEFINITIONS = ("$defs", "definitions")
_LARGEST_INTEGER = 2**53 - 1

_SORTED = json.JSONEncoder(sort_keys=True)

Schema = dict[str, Any]


class Quarantined(ValueError):
    """No provider would accept this tool; `reason` is a phrase of ours for `/mcp tools`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class ModelSchema:
    """What the model gets: the schema, and sentences to append to the tool's description."""

    schema: Schema
    notes: tuple[str, ...] = ()


class _TooLarge(Exception):
    pass


def model_schema(input_schema: object) -> ModelSchema:
    """The model's form of a server's input schema (DESIGN §7; reports B086, B088, B089).

    Converting a converted schema changes nothing. Raises Quarantined.
    """
    if input_schema is None or input_schema is True:
        input_schema = {}
    if not isinstance(input_schema, Mapping):
        raise Quarantined("its input schema is not an object")
    try:
        if _is_over(input_schema, LARGEST_INPUT):
            raise Quarantined(f"its input schema is larger than {LARGEST_INPUT // 1024} KiB")
        for depth in DEPTHS:
            notes: dict[str, None] = {}
            try:
                schema = _settled(input_schema, depth, notes)
            except _TooLarge:
                continue
            if _size(schema) <= MAX_BYTES:
                if depth != DEPTHS[0]:
                    notes["The deeper levels of its parameters are not described."] = None
                return ModelSchema(schema, tuple(notes))
    except RecursionError:
        raise Quarantined("its input schema is nested too deeply") from None
    raise Quarantined(f"its input schema is larger than {MAX_BYTES // 1024} KiB")


def _settled(raw: Mapping[str, Any], depth: int, notes: dict[str, None]) -> Schema:
    """Convert until nothing changes: inlining can bring things together that another pass simplifies."""
    current = _Pass(raw, depth, notes).run()
    for _ in range(4):
        inlined = _inlined(current)
        following = _Pass(current if inlined is None else inlined, DEPTHS[0], notes).run()
        if following == current:
            break
        current = following
    return current


@dataclass
class _Pass:
    """One conversion of one document."""

    root: Mapping[str, Any]
    depth: int
    notes: dict[str, None]
    nodes: int = 0
    defs: dict[str, Schema | None] = field(default_factory=dict)
    """Converted targets of references by their name in `$defs`; None while one is being converted."""
    names: dict[tuple[str, ...], str] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """The last number that made a name in `$defs` distinct."""
    anchors: dict[str, dict[str, tuple[str, ...]]] | None = None
    """Where definitions are, by `$id` and `$anchor`; None until a reference asks."""

    def run(self) -> Schema:
        node = self.flattened(self.root, 0)
        types = _types(node)
        if types and "object" not in types:
            raise Quarantined(f"its arguments are no object but {' or '.join(types)}")
        for key in ("enum", "const", "not"):
            if key in node:
                self.note("The server checks further rules on the arguments as a whole.")
        words: list[str] = []
        for key in ("anyOf", "oneOf"):
            branches = node.get(key)
            if isinstance(branches, list) and branches:
                node = self.merged_choice(node, key, words, 0)
        schema = self.object(node, 1, words, top=True)
        schema = {"type": "object", "properties": {}, **schema}
        if description := _description(node, []):
            schema["description"] = description
        for word in words:
            self.note(word)
        if defs := self.used(schema):
            schema["$defs"] = defs
        return schema

    def note(self, text: str) -> None:
        self.notes[text] = None

    def used(self, schema: Schema) -> dict[str, Schema]:
        """The definitions that `schema` reaches, in the order of their first conversion."""
        reached: set[str] = set()
        waiting = [schema]
        while waiting:
            for name in _references(waiting.pop()):
                if name not in reached:
                    reached.add(name)
                    waiting.append(self.defs[name] or {})
        return {name: target or {} for name, target in self.defs.items() if name in reached}

    # One schema

    def convert(self, node: Any, level: int) -> Schema | None:
        """The model's form of a schema at `level`; None for one that admits nothing."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _TooLarge
        if node is False:
            return None
        if not isinstance(node, Mapping):
            return {}
        if level > self.depth:
            return self.opened(node)
        if isinstance(node.get("$ref"), str) and not any(key in _CONSTRAINTS or key in _APPLICATORS for key in node):
            return self.reference(node)
        node = self.flattened(node, level)
        key = next((key for key in ("anyOf", "oneOf") if isinstance(node.get(key), list) and node[key]), None)
        if key is not None:
            return self.choice(node, key, level)
        types = _types(node)
        if len(types) > 1:
            return self.choice({**_annotations_of(node), "anyOf": _by_type(node, types)}, "anyOf", level)
        return self.plain(node, types[0] if types else None, level)

    def plain(self, node: Mapping[str, Any], kind: str | None, level: int) -> Schema | None:
        """A schema of one type, or of any, without combinators."""
        out: Schema = {}
        words: list[str] = []
        if (values := _enum(node)) is not None:
            fitting = [value for value in values if kind is None or _is(value, kind)]
            if not fitting and kind == "array":
                # `enum` beside `type: array` means the items (report B086).
                items = node.get("items")
                if not (isinstance(items, Mapping) and ("enum" in items or "const" in items)):
                    node = {**node, "items": {**(items if isinstance(items, Mapping) else {}), "enum": values}}
                values = []
            elif not fitting:
                # The type fits no value: the values are what the server compares with.
                kind, fitting = None, values
            kinds = list(dict.fromkeys(_kind(value) for value in fitting))
            if kind is None and len(kinds) > 1:
                branches = [{"type": one, "enum": [value for value in fitting if _kind(value) == one]} for one in kinds]
                return self.choice({**_annotations_of(node), "anyOf": branches}, "anyOf", level)
            kind = kind or (kinds[0] if kinds else None)
            if kind is not None and values:
                _put_enum(out, fitting, kind, words)
        kind = kind or _inferred(node)
        if kind is not None:
            body: Schema = {"type": kind}
            if kind == "object":
                body |= self.object(node, level, words)
            elif kind == "array":
                body |= self.array(node, level, words)
            elif kind == "string":
                _put_string(body, node, words)
            elif kind in ("number", "integer"):
                _put_number(body, node, kind, words)
            out = {**body, **out}
        return self.annotated(out, node, words)

    def annotated(self, out: Schema, node: Mapping[str, Any], words: Iterable[str] = ()) -> Schema:
        """`out` with the annotations of `node`, and `words` behind its description."""
        if description := _description(node, list(words)):
            out["description"] = description
        title = node.get("title")
        if isinstance(title, str) and "description" not in out and (title := clean_line(title, 120)):
            out["title"] = title
        if "default" in node and node["default"] is not None:
            try:
                value = _copied(node["default"])
            except ValueError:
                return out
            if len(json.dumps(value)) <= 400:
                out["default"] = value
        return out

    def opened(self, node: Mapping[str, Any]) -> Schema:
        """A schema that admits all that `node` does, without its inner levels."""
        node = self.flattened(node, 0, only_reference=True)
        out: Schema = {}
        types = _types(node)
        if len(types) == 1 and not (_APPLICATORS & node.keys()):
            out["type"] = types[0]
            if types == ["array"]:
                out["items"] = {}
        if description := _description(node, []):
            out["description"] = description
        return out

    # Objects

    def object(self, node: Mapping[str, Any], level: int, words: list[str], *, top: bool = False) -> Schema:
        properties = node.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = _names(node.get("required"))
        for name, sub in properties.items():  # the way of draft 3
            if isinstance(sub, Mapping) and sub.get("required") is True:
                required.setdefault(name)
        open_ended = False
        kept: dict[str, Schema] = {}
        for name in (*properties, *(name for name in required if name not in properties)):
            form = self.convert(properties.get(name, True), level + 1)
            if form is None:
                if name in required and top:
                    raise Quarantined(f"its required parameter {clean_line(name, 80)} admits no value")
                required.pop(name, None)
                continue
            if _PROPERTY_NAME.fullmatch(name):
                kept[name] = _without_plain_title(name, form)
                continue
            if top and name in required:
                raise Quarantined(f'providers refuse the name of its required parameter "{clean_line(name, 80)}"')
            # The server takes it all the same: in words, with its form (nothing is lost for a model that reads).
            state = "required" if name in required else "optional"
            words.append(f"Also takes {_json(name, 120)} ({state}): {_json(form, 1200)}")
            required.pop(name, None)
            open_ended = True
        out: Schema = {}
        if kept or top:
            out["properties"] = kept
        if names := [name for name in required if name in kept]:
            out["required"] = names
        self.put_additional(out, node, level, words, open_ended)
        for key in ("minProperties", "maxProperties"):
            if (count := _count(node.get(key))) is not None and (count or key == "maxProperties"):
                out[key] = count
        names_schema = node.get("propertyNames")
        if isinstance(names_schema, Mapping):
            if values := _enum(names_schema):
                words.append(f"Names: {_list(values)}.")
            elif isinstance(names_schema.get("pattern"), str):
                words.append(f"Names match {_json(names_schema['pattern'], 200)}.")
        for key in ("dependentRequired", "dependencies"):
            if isinstance(node.get(key), Mapping):
                for name, needed in list(node[key].items())[:20]:
                    if listed := list(_names(needed)):
                        words.append(f"{clean_line(name, 80)} needs {_list(listed, quoted=False)}.")
        return out

    def put_additional(
        self, out: Schema, node: Mapping[str, Any], level: int, words: list[str], open_ended: bool
    ) -> None:
        additional = node.get("additionalProperties", True)
        patterns = node.get("patternProperties")
        if isinstance(patterns, Mapping) and patterns:
            if additional is False:
                additional = {"anyOf": list(patterns.values())}
            else:
                for pattern, sub in list(patterns.items())[:10]:
                    form = self.convert(sub, level + 1)
                    if form:
                        words.append(f"Names that match {_json(pattern, 120)}: {_json(form, 600)}")
        if open_ended:  # a name that is told in words only must not be forbidden
            return
        if isinstance(additional, Mapping):
            form = self.convert(additional, level + 1)
            if form is None:
                additional = False
            elif form:
                out["additionalProperties"] = form
        if additional is False:
            out["additionalProperties"] = False

    # Arrays

    def array(self, node: Mapping[str, Any], level: int, words: list[str]) -> Schema:
        out: Schema = {}
        items, prefix = node.get("items", True), node.get("prefixItems")
        if isinstance(items, list):  # tuples before 2020-12
            items, prefix = node.get("additionalItems", True), items
        smallest, largest = _count(node.get("minItems")), _count(node.get("maxItems"))
        if isinstance(prefix, list) and prefix:
            forms = [self.convert(sub, level + 1) or {} for sub in prefix[:50]]
            words.append(f"By position: {_json(forms, 800)}")
            if items is False:
                largest = len(prefix) if largest is None else min(largest, len(prefix))
            closed = largest is not None and largest <= len(prefix)
            rest = [] if closed or items is False else [items]
            items = {"anyOf": [*prefix[:50], *rest]} if len(prefix) <= 50 else True
        form = self.convert(items, level + 1)
        if form is None:
            largest = 0
        out["items"] = form or {}  # OpenAI refuses an array without items
        if smallest:
            out["minItems"] = smallest
        if largest is not None:
            out["maxItems"] = largest
        if node.get("uniqueItems") is True:
            words.append("No duplicates.")
        return out

    # Choices

    def choice(self, node: Mapping[str, Any], key: str, level: int) -> Schema | None:
        """`anyOf` or `oneOf`, with what stands beside it, as an `anyOf` that stands alone."""
        beside = {name: value for name, value in node.items() if name in _CONSTRAINTS}
        branches = node[key]
        if isinstance(beside.get("properties"), Mapping) and self.object_like(branches):
            words: list[str] = []
            node = self.merged_choice(node, key, words, level)
            return self.annotated({"type": "object", **self.object(node, level, words)}, node, words)
        if beside:
            branches = [{"allOf": [branch, beside]} for branch in branches]
        forms: list[Schema] = []
        for branch in branches:
            form = self.convert(branch, level + 1)
            if form is None:
                continue
            if not (form.keys() - set(_ANNOTATIONS)):
                return self.annotated({}, node, [text] if (text := form.get("description")) else [])
            forms += form["anyOf"] if form.keys() == {"anyOf"} else [form]
        if not forms:
            return None
        words = []
        forms = _collapsed(_distinct(forms), words)
        if len(forms) == 1:
            return self.annotated(dict(forms[0]), _beneath(node, forms[0]), words)
        return self.annotated({"anyOf": forms}, node, words)

    def object_like(self, branches: list[Any]) -> bool:
        for branch in branches:
            if isinstance(branch, bool):
                continue
            if not isinstance(branch, Mapping):
                return False
            flat = self.flattened(branch, 0)
            types = _types(flat)
            if types != ["object"] and not (not types and ("required" in flat or "properties" in flat)):
                return False
        return True

    def merged_choice(self, node: Mapping[str, Any], key: str, words: list[str], level: int) -> Mapping[str, Any]:
        """An object whose parameters are those of all branches; the rule between them goes into `words`."""
        flat: list[Mapping[str, Any]] = []
        for branch in node[key][:100]:
            if branch is False:
                continue
            one = self.flattened(branch if isinstance(branch, Mapping) else {}, level)
            if (types := _types(one)) and "object" not in types:
                continue
            for inner in ("anyOf", "oneOf"):
                if isinstance(one.get(inner), list) and one[inner] and level < self.depth:
                    one = self.merged_choice(one, inner, [], level + 1)
            flat.append(one)
        rest = {name: value for name, value in node.items() if name != key}
        if not flat:
            if level:
                return rest
            raise Quarantined("its arguments are no object in any of the forms it offers")
        own = rest.get("properties")
        own = own if isinstance(own, Mapping) else {}
        properties = dict(own)
        offered: dict[str, list[Any]] = {}
        for one in flat:
            subs = one.get("properties")
            for name, sub in (subs if isinstance(subs, Mapping) else {}).items():
                if sub is not False:
                    offered.setdefault(name, []).append(sub)
        for name, subs in offered.items():
            subs = _distinct(subs)
            # Beside a schema of the object's own a branch only narrows.
            if subs and (name not in own or own[name] is True or own[name] == {}):
                properties[name] = subs[0] if len(subs) == 1 else {"anyOf": subs}
        required = _names(rest.get("required"))
        needed = [_names(one.get("required")) for one in flat]
        for name in needed[0]:
            if all(name in names for names in needed):
                required.setdefault(name)
        if properties.keys() - own.keys():
            rest.pop("additionalProperties", None)
            if all(one.get("additionalProperties") is False for one in flat):
                rest["additionalProperties"] = False
        _put_rule(flat, key, required, words)
        return {**rest, "properties": properties, "required": list(required)}

    def flattened(
        self,
        node: Mapping[str, Any],
        level: int,
        *,
        only_reference: bool = False,
        seen: frozenset[tuple[str, ...]] = frozenset(),
    ) -> Mapping[str, Any]:
        """`node` with its `$ref` and `allOf` merged into it, and the parameters of its conditional parts."""
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _TooLarge
        if level > 4 * DEPTHS[0]:
            return {}
        reference = node.get("$ref")
        if isinstance(reference, str):
            node = {key: value for key, value in node.items() if key != "$ref"}
            tokens = self.located(reference)
            if tokens is None:
                self.note("A part of its parameters is defined elsewhere and not described here.")
            elif tokens not in seen:
                target = self.target(tokens)
                if isinstance(target, Mapping):
                    inner = self.flattened(target, level + 1, only_reference=only_reference, seen=seen | {tokens})
                    node = _merged(node, inner)
        if only_reference:
            return node
        if isinstance(parts := node.get("allOf"), list):
            node = {key: value for key, value in node.items() if key != "allOf"}
            for part in parts[:200]:
                if isinstance(part, Mapping):
                    node = _merged(node, self.flattened(part, level + 1, seen=seen))
        conditional = [node.get("then"), node.get("else")]
        if isinstance(dependent := node.get("dependentSchemas"), Mapping):
            conditional += dependent.values()
        for part in conditional:
            if isinstance(part, Mapping) and isinstance(part.get("properties"), Mapping):
                own = node.get("properties")
                own = own if isinstance(own, Mapping) else {}
                new = {name: sub for name, sub in part["properties"].items() if name not in own}
                if new and any(sub is not True and sub != {} for sub in new.values()):
                    node = {**node, "properties": {**own, **new}}
        return node

    # References

    def reference(self, node: Mapping[str, Any]) -> Schema | None:
        """`$ref` to a definition of ours, or an open schema where it leads nowhere or back to itself."""
        tokens = self.located(node["$ref"])
        if tokens is None:
            self.note("A part of its parameters is defined elsewhere and not described here.")
            return self.annotated({}, node)
        target = self.target(tokens)
        if target is False:
            return None
        if not isinstance(target, Mapping):
            return self.annotated({}, node)
        name = self.names.get(tokens)
        if not tokens or (name is not None and self.defs[name] is None):
            label = "the whole" if not tokens else clean_line(tokens[-1], 60)
            opened = self.opened(target) if tokens else {"type": "object"}
            opened.pop("description", None)
            return self.annotated(opened, node, [f"Of the same form as {label}."])
        if name is None:
            name = self.free_name(tokens)
            self.names[tokens] = name
            self.defs[name] = None
            form = self.convert(target, 1)
            if form is None:
                self.names.pop(tokens)
                self.defs.pop(name)
                return None
            self.defs[name] = form
        return self.annotated({"$ref": f"#/$defs/{name}"}, node)

    def free_name(self, tokens: tuple[str, ...]) -> str:
        base = re.sub(r"[^a-zA-Z0-9_.-]", "_", tokens[-1])[:60] or "form"
        name = base
        while name in self.defs:
            number = self.numbers[base] = self.numbers.get(base, 1) + 1
            name = f"{base}_{number}"
        return name

    def located(self, reference: str) -> tuple[str, ...] | None:
        """The JSON pointer, as tokens, of a reference into this document; None for any other."""
        base, _, fragment = reference.partition("#")
        tokens: tuple[str, ...] = ()
        if base and base != self.root.get("$id"):
            found = self.definition_with("$id", base) or self.definition_named(base)
            if found is None:
                return None
            tokens = found
        fragment = unquote(fragment)
        if fragment.startswith("/"):
            tokens += tuple(token.replace("~1", "/").replace("~0", "~") for token in fragment[1:].split("/"))
        elif fragment:
            found = self.definition_with("$anchor", fragment) or self.definition_with("$id", f"#{fragment}")
            if found is None:
                return None
            tokens = found
        if self.target(tokens) is None:
            # `#/components/schemas/X` and the like, left over from another document.
            return self.definition_named(tokens[-1]) if tokens else None
        return tokens

    def target(self, tokens: tuple[str, ...]) -> Any:
        value: Any = self.root
        for token in tokens:
            if isinstance(value, Mapping) and token in value:
                value = value[token]
            elif isinstance(value, list) and token.isascii() and token.isdigit() and int(token) < len(value):
                value = value[int(token)]
            else:
                return None
        return value if isinstance(value, (Mapping, bool)) else None

    def definition_named(self, name: str) -> tuple[str, ...] | None:
        for place in _DEFINITIONS:
            if isinstance(self.root.get(place), Mapping) and name in self.root[place]:
                return (place, name) if isinstance(self.root[place][name], (Mapping, bool)) else None
        return None

    def definition_with(self, key: str, value: str) -> tuple[str, ...] | None:
        if self.anchors is None:
            self.anchors = {"$id": {}, "$anchor": {}}
            for place in _DEFINITIONS:
                definitions = self.root.get(place)
                for name, target in (definitions if isinstance(definitions, Mapping) else {}).items():
                    for kind, found in self.anchors.items() if isinstance(target, Mapping) else ():
                        if isinstance(text := target.get(kind), str):
                            found.setdefault(text, (place, name))
        return self.anchors[key].get(value)


def _inlined(schema: Schema) -> Schema | None:
    """`schema`, which is a converted one, without references; None where it would be over `INLINE_BYTES`."""
    defs = schema.get("$defs")
    if not defs:
        return None
    budget = [INLINE_BYTES // 8]

    def expand(one: Schema) -> Schema:
        budget[0] -= 1
        if budget[0] < 0:
            raise _TooLarge
        if "$ref" in one:
            rest = {key: value for key, value in one.items() if key != "$ref"}
            return {**expand(defs[one["$ref"].removeprefix("#/$defs/")]), **rest}
        return _rebuilt(one, expand)

    try:
        result = expand({key: value for key, value in schema.items() if key != "$defs"})
    except _TooLarge:
        return None
    return result if _size(result) <= INLINE_BYTES else None


def _references(schema: Schema) -> list[str]:
    """The names of the definitions that a converted schema refers to, its inner schemas included."""
    found: list[str] = []

    def visit(one: Schema) -> Schema:
        if "$ref" in one:
            found.append(one["$ref"].removeprefix("#/$defs/"))
        return _rebuilt(one, visit)

    visit(schema)
    return found


def _rebuilt(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A converted schema with each schema directly inside it changed."""
    out: Schema = {}
    for key, value in schema.items():
        if key == "properties":
            value = {name: change(one) for name, one in value.items()}
        elif key == "anyOf":
            value = [change(one) for one in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            value = change(value)
        out[key] = value
    return out


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> Schema:
    """Both at once (`allOf`); where that cannot be written the first stands, which admits more."""
    out = dict(first)
    for key, value in second.items():
        if key not in out:
            out[key] = value
            continue
        own = out[key]
        if key == "properties" and isinstance(own, Mapping) and isinstance(value, Mapping):
            out[key] = {
                **own,
                **{
                    name: sub if name not in own or own[name] == sub else {"allOf": [own[name], sub]}
                    for name, sub in value.items()
                },
            }
        elif key == "required":
            out[key] = list({**_names(own), **_names(value)})
        elif key == "type":
            out[key] = _common_types(_types(first), _types(second)) or own
        elif key == "enum" and isinstance(own, list) and isinstance(value, list):
            other = set(map(_key, value))
            out[key] = [one for one in own if _key(one) in other] or own
    # `additionalProperties: false` knows the properties of its own branch only.
    if out.get("additionalProperties") is False:
        for part in (first, second):
            own = part.get("properties")
            if part.get("additionalProperties") is False and isinstance(out.get("properties"), Mapping):
                known = own.keys() if isinstance(own, Mapping) else set()
                if out["properties"].keys() - known:
                    out.pop("additionalProperties", None)
    return out


def _common_types(first: list[str], second: list[str]) -> list[str]:
    if not first or not second:
        return first or second
    common = [kind for kind in first if kind in second]
    if "integer" not in common and {"integer", "number"} <= {*first, *second}:
        common.append("integer")
    return common


def _put_rule(flat: list[Mapping[str, Any]], key: str, required: Mapping[str, None], words: list[str]) -> None:
    """A sentence about which parameters go together."""
    sets = [[name for name in _names(one.get("required")) if name not in required] for one in flat]
    texts = list(dict.fromkeys(" and ".join(clean_line(name, 60) for name in names[:20]) for names in sets))
    if len(texts) > 1 and all(texts):
        lead = "Give exactly one of these" if key == "oneOf" else "Give at least one of these"
        words.append(clean_line(f"{lead}: {'; '.join(texts)}.", 500))
    elif len(flat) > 1:
        words.append("The server takes only some combinations of these parameters.")


def _collapsed(forms: list[Schema], words: list[str]) -> list[Schema]:
    """Branches that are only lists of values of one type become one list; their descriptions go into words."""
    if len(forms) < 2:
        return forms
    lists = [form for form in forms if "enum" in form and not (form.keys() - {"type", "enum", *_ANNOTATIONS})]
    kinds = {form.get("type") for form in lists}
    if len(lists) < 2 or len(kinds) != 1:
        return forms
    values: list[Any] = []
    told: list[str] = []
    for form in lists:
        values += form["enum"]
        if text := form.get("description") or form.get("title"):
            told.append(f"{_list(form['enum'])}: {clean_line(text, 200)}")
    one: Schema = {"type": lists[0]["type"], "enum": _distinct(values)}
    if told:
        text = clean_line(" ".join(part if part.endswith(".") else f"{part}." for part in told), 1500)
        if len(lists) == len(forms):
            words.append(text)
        else:
            one["description"] = text
    chosen = set(map(id, lists))
    rest = [form for form in forms if id(form) not in chosen]
    at = forms.index(lists[0])
    return [*rest[:at], one, *rest[at:]]


def _beneath(node: Mapping[str, Any], form: Schema) -> Mapping[str, Any]:
    """The annotations of `node`, and where it has none those of its only branch."""
    return {**_annotations_of(form), **_annotations_of(node)}


def _annotations_of(node: Mapping[str, Any]) -> Schema:
    return {key: node[key] for key in _ANNOTATIONS if key in node}


def _by_type(node: Mapping[str, Any], types: list[str]) -> list[Schema]:
    values = _enum(node)
    branches: list[Schema] = []
    for kind in types:
        branch: Schema = {"type": kind, **{key: node[key] for key in _KEYWORDS[kind] if key in node}}
        if values is not None:
            branch["enum"] = [value for value in values if _is(value, kind)]
            if not branch["enum"]:
                continue
        branches.append(branch)
    if not branches and values is not None:  # no value fits any type
        return [{"enum": values}]
    return branches


def _put_enum(out: Schema, values: list[Any], kind: str, words: list[str]) -> None:
    """List the values where all providers take such a list, else say them (Gemini takes no empty string)."""
    if kind in ("string", "number", "integer") and "" not in values:
        out["enum"] = values
    elif kind == "boolean":
        if len(values) == 1:
            words.append(f"Only {_list(values)}.")
    elif kind != "null":
        words.append(f"One of: {_list(values)}.")


def _put_string(out: Schema, node: Mapping[str, Any], words: list[str]) -> None:
    for key in ("minLength", "maxLength"):
        if (count := _count(node.get(key))) is not None and (count or key == "maxLength"):
            out[key] = count
    pattern = node.get("pattern")
    if isinstance(pattern, str) and pattern:
        if _portable(pattern):
            out["pattern"] = pattern
        elif len(pattern) <= 300:
            words.append(f"Pattern: {clean_line(pattern, 300)}")
    form = node.get("format")
    if form == "date-time":
        out["format"] = form
    elif isinstance(form, str) and form not in ("string", "text", "regex", "enum") and clean_line(form):
        words.append(f"Format: {clean_line(form, 60)}.")
    encoding = node.get("contentEncoding")
    if isinstance(encoding, str) and clean_line(encoding):
        words.append(f"Encoding: {clean_line(encoding, 60)}.")


@lru_cache(maxsize=1024)
def _portable(pattern: str) -> bool:
    """A regular expression that RE2 and Python both know: no look-around, no reference back."""
    if len(pattern) > 300 or re.search(r"\(\?(?!:)|\\[1-9pPkA-CE-RT-VX-Z]", pattern) or not pattern.isprintable():
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _put_number(out: Schema, node: Mapping[str, Any], kind: str, words: list[str]) -> None:
    for key, exclusive, step, word in (
        ("minimum", "exclusiveMinimum", 1, "Greater"),
        ("maximum", "exclusiveMaximum", -1, "Less"),
    ):
        bound, beyond = _number(node.get(key)), _number(node.get(exclusive))
        if node.get(exclusive) is True:  # draft 4
            bound, beyond = None, bound
        if beyond is not None:
            if kind == "integer":
                whole = (math.floor(beyond) if step > 0 else math.ceil(beyond)) + step
                bound = whole if bound is None else (max if step > 0 else min)(bound, whole)
            else:
                words.append(f"{word} than {_json(beyond, 40)}.")
        if bound is not None and abs(bound) < _LARGEST_INTEGER:  # the bounds of JavaScript say nothing
            out[key] = bound
    multiple = _number(node.get("multipleOf"))
    if multiple is not None and multiple > 0 and not (kind == "integer" and multiple == 1):
        words.append(f"A multiple of {_json(multiple, 40)}.")


def _types(node: Mapping[str, Any]) -> list[str]:
    """The types that `node` names, in JSON Schema's words; empty for any."""
    given = node.get("type")
    names: list[str] = []
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, Mapping):
            return []
        if not isinstance(one, str):
            continue
        name = one if one in _TYPES else _ALIASES.get(one.lower(), one.lower())
        if name not in _TYPES:
            return []
        if name not in names:
            names.append(name)
    if "number" in names and "integer" in names:
        names.remove("integer")
    if names and node.get("nullable") is True and "null" not in names:
        names.append("null")
    return [] if len(names) == 6 and "integer" not in names else names


def _inferred(node: Mapping[str, Any]) -> str | None:
    """The type that the keywords are for, where none is named."""
    for kind, keys in (
        ("object", ("properties", "required", "additionalProperties", "patternProperties", "propertyNames")),
        ("array", ("items", "prefixItems", "minItems", "maxItems", "uniqueItems")),
        ("string", ("minLength", "maxLength", "pattern", "format")),
    ):
        if any(key in node and not isinstance(node[key], bool) for key in keys):
            return kind
    return None


def _enum(node: Mapping[str, Any]) -> list[Any] | None:
    """The values of `enum` or `const`, distinct; None where neither is usable."""
    given = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(given, list):
        return None
    values: dict[str, Any] = {}
    for value in given:
        try:
            copied = _copied(value)
        except ValueError:
            continue
        values.setdefault(json.dumps(copied, sort_keys=True), copied)
    return list(values.values()) or None


def _distinct(values: list[Any]) -> list[Any]:
    """The values in their order, each once, in linear time: a server may list tens of thousands."""
    return list({_key(value): value for value in reversed(values)}.values())[::-1]


def _key(value: Any) -> str:
    """Equal for values that are equal as JSON."""
    return _SORTED.encode(value)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if value is None:
        return "null"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "array" if isinstance(value, list) else "object"


def _is(value: Any, kind: str) -> bool:
    own = _kind(value)
    if kind == "integer" and own == "number":
        return bool(value.is_integer())
    return own == kind or (kind == "number" and own == "integer")


def _copied(value: Any, level: int = 0) -> Any:
    """A copy that every JSON writer takes. Raises ValueError for NaN, infinity and depth."""
    if level > 20:
        raise ValueError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("no JSON number")
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, list):
        return [_copied(one, level + 1) for one in value]
    if isinstance(value, Mapping):
        return {_encodable(str(key)): _copied(one, level + 1) for key, one in value.items()}
    return value


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _names(value: Any) -> dict[str, None]:
    """The strings of a list, distinct and in order; anything else gives none."""
    if not isinstance(value, list):
        return {}
    return dict.fromkeys(name for name in value if isinstance(name, str))


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LARGEST_INTEGER:
        return None
    return int(value) if value == int(value) else None


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Not math.isfinite: it cannot take a whole number of four hundred digits, and JSON can hold one.
    return value if -(2**63) < value < 2**63 else None


def _without_plain_title(name: str, form: Schema) -> Schema:
    """A title that only repeats the name costs tokens and says nothing."""
    title = form.get("title")
    if isinstance(title, str) and _letters(title) == _letters(name):
        return {key: value for key, value in form.items() if key != "title"}
    return form


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _description(node: Mapping[str, Any], words: list[str]) -> str:
    given = node.get("description")
    # Only the beginning is kept, so only that is looked at: a server may send megabytes.
    text = clean_metadata(given[: 8 * DESCRIPTION_LIMIT]).strip() if isinstance(given, str) else ""
    new = [word for word in words if word not in text]
    tail = " ".join(new)
    if (text and len(tail) > DESCRIPTION_LIMIT // 2) or len(tail) > DESCRIPTION_LIMIT:
        most = DESCRIPTION_LIMIT // 2 if text else DESCRIPTION_LIMIT
        tail = tail[: most - 1].rstrip() + "…"
    room = DESCRIPTION_LIMIT - (len(tail) + 2 if tail else 0)
    if len(text) > room:
        text = text[: room - 1].rstrip() + "…"
    if text and tail:
        return f"{text}{' ' if text[-1] in '.!?:;…)' else '. '}{tail}"
    return text or tail


def _json(value: Any, limit: int) -> str:
    """Compact JSON of a value for a sentence, cleaned."""
    return clean_line(json.dumps(value, ensure_ascii=False, separators=(",", ":")), limit)


def _list(values: list[Any], limit: int = 500, *, quoted: bool = True) -> str:
    return clean_line(", ".join(_json(v, 100) if quoted else clean_line(str(v), 80) for v in values[:50]), limit)


def _is_over(value: Any, limit: int) -> bool:
    """Whether any JSON has more than about `limit` characters; for every depth, and no longer than that takes."""
    left, size = [value], 0
    while left and size <= limit:
        one = left.pop()
        size += 2
        if isinstance(one, str):
            size += len(one)
        elif isinstance(one, Mapping):
            size += sum(len(str(key)) + 3 for key in one)
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
        elif isinstance(one, int):
            size += one.bit_length() // 4
    return size > limit


def _size(schema: Schema) -> int:
    return len(json.dumps(schema, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))
