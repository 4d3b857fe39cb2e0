"""The tools that one branch of a session has loaded, in the order of loading.

Comes in: tools of catalogs, and records of an earlier session. Goes out: native tools as the model gets them.
It decides nothing about what may be loaded, and trusts no record that it has not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pi_mcp.catalog.records import Tool
from pi_mcp.text import clean_line, clean_metadata
from pi_mcp.tools.names import native_name
from pi_mcp.tools.schema import ModelSchema, model_schema

DESCRIPTION_LIMIT = 6144
"""Characters of a server's description that the model gets; the notes of the schema come on top."""

RECORD_LIMIT = 1024 * 1024
"""Characters of JSON in one definition of a record; more is damage."""


@dataclass(frozen=True)
class NativeTool:
    """One loaded tool. `native`, `description` and `input_schema` are for the model, the rest is the server's."""

    native: str
    server: str
    tool: str
    """The original name: what goes out in `tools/call`."""
    description: str = field(repr=False)
    input_schema: Mapping[str, Any] = field(repr=False, hash=False)
    """The form that providers accept (`pi_mcp.tools.schema`)."""
    annotations: Mapping[str, Any] = field(repr=False, hash=False)
    hash: str = field(repr=False)
    """SHA-256 (hex) of the definition, compared before each call."""
    definition: Mapping[str, Any] = field(repr=False, hash=False)
    """The JSON object of `tools/list`, verbatim."""

    @classmethod
    def from_tool(cls, tool: Tool, native: str | None = None, form: ModelSchema | None = None) -> NativeTool:
        """The native form of a catalog's tool; `form` is its converted schema where that is at hand.

        Raises Quarantined when no provider would accept its schema.
        """
        form = form or model_schema(tool.wire.get("inputSchema"))
        return cls(
            native=native or native_name(tool.server, tool.name),
            server=tool.server,
            tool=tool.name,
            description=_description(tool, form.notes),
            input_schema=form.schema,
            annotations=tool.annotations,
            hash=tool.hash,
            definition=tool.wire,
        )

    @classmethod
    def from_record(cls, record: object) -> NativeTool:
        """The tool of a session record. Raises ValueError for a damaged one (Quarantined is one too)."""
        if not isinstance(record, Mapping):
            raise ValueError("a record is a JSON object")
        native, server, tool, digest, definition = (
            record.get(key) for key in ("native", "server", "tool", "hash", "definition")
        )
        if not (isinstance(native, str) and isinstance(server, str) and isinstance(tool, str)):
            raise ValueError("native, server and tool are strings")
        if not isinstance(definition, dict) or definition.get("name") != tool:
            raise ValueError("the definition is that of the tool")
        # The pair alone decides the name: a record cannot put one server's tool under another's name.
        if native != native_name(server, tool):
            raise ValueError("the native name belongs to server and tool")
        try:
            if len(json.dumps(definition)) > RECORD_LIMIT:
                raise ValueError("the definition is too large")
            found = Tool(server, definition)
            if found.hash != digest:
                raise ValueError("the hash is that of the definition")
            return cls.from_tool(found, native)
        except (RecursionError, TypeError) as error:
            raise ValueError("the definition is no JSON") from error

    def to_record(self) -> dict[str, Any]:
        """`{native, server, tool, hash, definition}`: enough to restore the tool while its server is down."""
        return {
            "native": self.native,
            "server": self.server,
            "tool": self.tool,
            "hash": self.hash,
            "definition": dict(self.definition),
        }

    def to_model(self) -> dict[str, Any]:
        """`{name, description, input_schema}`: the declaration of the tool in a model request."""
        return {
            "name": self.native,
            "description": self.description,
            "input_schema": dict(self.input_schema),
        }

    @property
    def key(self) -> tuple[str, str]:
        return (self.server, self.tool)


def approx_tokens(tool: NativeTool) -> int:
    """About how many tokens the tool's declaration costs in each request: bytes of its JSON divided by 4."""
    text = json.dumps(tool.to_model(), ensure_ascii=False, separators=(",", ":"))
    return (len(text.encode("utf-8", "replace")) + 3) // 4


class LoadedSet:
    """Native tools in a stable order, so that provider prompt caches hold: additions go to the end."""

    def __init__(self, tools: Iterable[NativeTool] = ()) -> None:
        self._tools: dict[str, NativeTool] = {}
        for tool in tools:
            self.add(tool)

    def add(self, tool: NativeTool) -> bool:
        """Put a tool at the end; False, and nothing changes, when its native name is taken."""
        if tool.native in self._tools:
            return False
        self._tools[tool.native] = tool
        return True

    def replace(self, tool: NativeTool) -> NativeTool:
        """Put a new definition in the old one's place, which is returned. Raises KeyError without an old one."""
        old = self._tools[tool.native]
        self._tools[tool.native] = tool
        return old

    def put(self, tool: NativeTool) -> NativeTool | None:
        """`replace` where the native name is taken, else `add`; the tool that was there before."""
        old = self._tools.get(tool.native)
        self._tools[tool.native] = tool
        return old

    def remove(self, native: str) -> NativeTool | None:
        """Take a tool out (`/mcp unload`); None when there is none of that name."""
        return self._tools.pop(native, None)

    def clear(self) -> None:
        self._tools.clear()

    def restore(self, records: object) -> int:
        """Make the set exactly that of `records` (any JSON), in their order.

        The number of records that were left out: damaged, repeated, or with a schema that cannot be used.
        """
        if not isinstance(records, Iterable) or isinstance(records, (str, bytes, Mapping)):
            records = ()
        tools: dict[str, NativeTool] = {}
        skipped = 0
        for record in records:
            tool = self._restored(record)
            if tool is None or tool.native in tools:
                skipped += 1
            else:
                tools[tool.native] = tool
        self._tools = tools
        return skipped

    def _restored(self, record: object) -> NativeTool | None:
        # A tool that is loaded already is not converted again: branch navigation restores often.
        if isinstance(record, Mapping) and isinstance(record.get("native"), str):
            known = self._tools.get(record["native"])
            try:
                if known is not None and known.to_record() == record:
                    return known
            except RecursionError:
                return None
        try:
            return NativeTool.from_record(record)
        except ValueError:
            return None

    def records(self) -> list[dict[str, Any]]:
        """The records that `restore` takes."""
        return [tool.to_record() for tool in self]

    def by_native(self, native: str) -> NativeTool | None:
        return self._tools.get(native)

    def by_key(self, server: str, tool: str) -> NativeTool | None:
        """The loaded tool of a server by its original name."""
        for loaded in self:
            if loaded.key == (server, tool):
                return loaded
        return None

    @property
    def tools(self) -> tuple[NativeTool, ...]:
        return tuple(self._tools.values())

    def __iter__(self) -> Iterator[NativeTool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, native: object) -> bool:
        return native in self._tools


def _description(tool: Tool, notes: Iterable[str]) -> str:
    text = clean_metadata(tool.description).strip()
    if len(text) > DESCRIPTION_LIMIT:
        text = text[: DESCRIPTION_LIMIT - 1].rstrip() + "…"
    if not text:
        title = clean_line(tool.title or tool.name)
        text = f"{title} (MCP server {clean_line(tool.server)})"
    return "\n".join([text, *notes])


__all__ = ["LoadedSet", "NativeTool", "approx_tokens"]
