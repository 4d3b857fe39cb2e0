"""What a person waits for before anything happens: building a plugin, and a whole `pi-mcp search`."""

from __future__ import annotations

from pathlib import Path

from measure import Options, Row, at_most, environment, milliseconds, output_of, process_seconds, python
from setting import entries, warm, write_config

PLUGIN = "from pi_mcp import Plugin, load_config; Plugin(load_config())"
BARE = "import asyncio, json"
HEAVY = ("mcp", "numpy", "pydantic", "rich", "prompt_toolkit", "keyring", "httpx2", "anyio", "jsonschema")
LOADED = f"import sys; {PLUGIN}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
COMMAND = "import sys; from pi_mcp.cli import main; sys.exit(main())"
"""What the installed `pi-mcp` script does."""


def plugin(options: Options, home: Path) -> list[Row]:
    """Import, read a file of ten servers, build a plugin: held against an interpreter with asyncio and json."""
    env = environment(home, PI_MCP_CONFIG=str(write_config(home, entries(options.data, 10))))
    seconds = process_seconds(
        {"pi-mcp": python(PLUGIN), "bare": python(BARE), "nothing": python("pass")}, options.times(41, 2), env, home
    )
    ratio = seconds["pi-mcp"] / seconds["bare"]
    heavy = output_of(python(LOADED), env, home).split()
    return [
        Row(
            "`Plugin(load_config())`, ten servers, whole process",
            milliseconds(seconds["pi-mcp"]),
            f"`import asyncio, json`: {milliseconds(seconds['bare'])} (an empty program: "
            f"{milliseconds(seconds['nothing'])})",
            f"{ratio:.2f}×",
            "≤ 1.3×",
            at_most(ratio, 1.3),
        ),
        Row(
            "heavy modules it imports", ", ".join(heavy) or "none", "SDK, numpy, pydantic, rich, …", aim="none",
            met=not heavy,
        ),
    ]  # fmt: skip


def search(options: Options, home: Path) -> list[Row]:
    """`pi-mcp search` with the catalogs of ten servers in the cache: held against importing the SDK."""
    env = warm(home, write_config(home, entries(options.data, 10)))
    sides = {
        "pi-mcp": python(COMMAND, "search", "create", "an", "issue"),
        "sdk": python("import mcp"),
        "numpy": python("import numpy"),
    }
    if options.data is None:
        sides["pi-mcp"] = python(COMMAND, "search", "thing", "number")
    seconds = process_seconds(sides, options.times(21, 2), env, home)
    ratio = seconds["pi-mcp"] / seconds["sdk"]
    return [
        Row(
            "`pi-mcp search`, ten servers in the cache, whole process",
            milliseconds(seconds["pi-mcp"]),
            f"`import mcp`: {milliseconds(seconds['sdk'])} (`import numpy`: {milliseconds(seconds['numpy'])})",
            f"{ratio:.2f}×",
            "≤ 0.5×",
            at_most(ratio, 0.5),
        )
    ]
