"""What a model has to read: tool definitions in the first request and after three searches, held against all of them.

Bytes are those of compact JSON with name, description and input schema, as a provider gets them. Tokens are
approximate: four bytes each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import Options, Row
from setting import catalogs, entries, warm, write_config

QUERIES = ("create an issue in a repository", "run a query on the database", "take a screenshot of a web page")


def first_requests(options: Options, home: Path) -> list[Row]:
    if options.data is None:
        return [Row("bytes of tool definitions", "skipped", "PI_MCP_TEST_DATA is not set")]
    config = write_config(home, entries(options.data, None))
    warm(home, config)
    return asyncio.run(_rows(options.data, home, config))


async def _rows(data: Path, home: Path, config: Path) -> list[Row]:
    from pi_mcp import Plugin, load_config
    from pi_mcp.tools.names import native_name

    listed = [
        (path.stem.replace(".", "-"), tool) for path in catalogs(data) for tool in json.loads(path.read_text())["tools"]
    ]
    everything = size(
        (native_name(server, tool["name"]), tool.get("description", ""), tool.get("inputSchema", {}))
        for server, tool in listed
    )
    configuration = load_config(config=config, cwd=home)
    async with Plugin(configuration, state_dir=home / "state", cache_dir=home / "cache" / "pi-mcp") as plugin:
        session = plugin.session("benchmark", keep=False)
        search = session.search_tool
        first = size([(search.name, search.description, search.input_schema)])
        rows = [_row("in the first request", first, everything, len(listed))]
        for query in QUERIES:
            await session.search(query)
        tools = [(tool.native, tool.description, tool.input_schema) for tool in session.loaded]
        after = first + size(tools)
        rows.append(_row(f"after three searches ({len(tools)} tools loaded)", after, everything, len(listed)))
    return rows


def size(tools: Iterable[tuple[str, str, Any]]) -> int:
    """Bytes of UTF-8."""
    return sum(
        len(
            json.dumps(
                {"name": name, "description": description, "input_schema": dict(schema)},
                ensure_ascii=False,
                separators=(",", ":"),
            ).encode("utf-8", "replace")
        )
        for name, description, schema in tools
    )


def _row(when: str, ours: int, everything: int, count: int) -> Row:
    return Row(
        f"tool definitions {when}",
        f"{ours:,} bytes, ~{ours // 4:,} tokens",
        f"all {count:,} definitions: {everything:,} bytes, ~{everything // 4:,} tokens",
        f"{ours / everything:.3f}×",
    )
