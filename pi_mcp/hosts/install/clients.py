"""The clients of the gateway: where each keeps its servers, and how it spells an entry.

Comes in: the surroundings. Goes out: one `EntryTarget` for each. Formats and places are those that the clients' own
commands write (Claude Code 2.1.332, Gemini CLI 0.61.0, Codex 0.171.0, opencode 1.18.33: run in the tests) and those of
the manuals of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pi_mcp.config.importing import claude_desktop_file
from pi_mcp.hosts.install.entries import Entry, EntryTarget
from pi_mcp.hosts.install.found import of_any, of_npm
from pi_mcp.hosts.install.plan import Found
from pi_mcp.hosts.install.surroundings import Surroundings
from pi_mcp.hosts.install.variables import OURS, looks_kept_back


def _words(**more: Any) -> Callable[[str, list[str]], Entry]:
    return lambda command, args: {**more, "command": command, "args": args}


def _address(**more: Any) -> Callable[[str], Entry]:
    return lambda url: {**more, "url": url}


def _bearer(reference: str) -> Callable[[str], Entry]:
    """The header with a reference to a variable in the client's spelling, where `NAME` stands for the name."""
    return lambda name: {"headers": {"Authorization": f"Bearer {reference.replace('NAME', name)}"}}


def _program(name: str, *packages: str) -> Callable[[Surroundings], Found]:
    def find(around: Surroundings) -> Found:
        found = of_npm(around, name, packages) if packages else Found(False)
        return found if found.present else of_any(around, name)

    return find


def _claude_code(around: Surroundings) -> Path:
    return (around.named("CLAUDE_CONFIG_DIR") or around.home) / ".claude.json"


def _claude_desktop(around: Surroundings) -> Path:
    path = claude_desktop_file(around.home, around.environ, around.platform)
    return path or around.home / "AppData" / "Roaming" / "Claude" / "claude_desktop_config.json"


def _has_claude_desktop(around: Surroundings) -> Found:
    # What it keeps there itself: a folder with the one file that we write, or with nothing, says nothing.
    file = _claude_desktop(around)
    try:
        there = any(path.name != file.name for path in file.parent.iterdir())
    except OSError:
        there = False
    return Found(there, None, file.parent if there else None)


def _codex(around: Surroundings) -> Path:
    return (around.named("CODEX_HOME") or around.home / ".codex") / "config.toml"


def _gemini(around: Surroundings) -> Path:
    return (around.named("GEMINI_CLI_HOME") or around.home) / ".gemini" / "settings.json"


def _opencode(around: Surroundings) -> Path:
    folder = around.config_home / "opencode"
    # It reads both, the one with comments last.
    return next((folder / name for name in ("opencode.jsonc",) if (folder / name).exists()), folder / "opencode.json")


def _cursor(around: Surroundings) -> Path:
    return around.home / ".cursor" / "mcp.json"


def _vscode(around: Surroundings) -> Path:
    if around.platform == "darwin":
        base = around.home / "Library" / "Application Support"
    elif around.platform == "win32":
        base = around.named("APPDATA") or around.home / "AppData" / "Roaming"
    else:
        base = around.config_home
    names = ("Code", "Code - Insiders", "VSCodium")
    return base / next((name for name in names if (base / name).is_dir()), "Code") / "User" / "mcp.json"


def _zed(around: Surroundings) -> Path:
    if around.platform == "win32":
        return (around.named("APPDATA") or around.home / "AppData" / "Roaming") / "Zed" / "settings.json"
    base = around.home / ".config" if around.platform == "darwin" else around.config_home
    return base / "zed" / "settings.json"


def _codex_variables(names: tuple[str, ...], environ: Mapping[str, str]) -> Entry:
    del environ  # a name that is not set is passed by
    return {"env_vars": sorted({*OURS, *names})}


def _gemini_variables(names: tuple[str, ...], environ: Mapping[str, str]) -> Entry:
    # A name that is not set arrives as an empty text there, which is something else for what pi-mcp itself reads.
    kept_back = sorted(filter(looks_kept_back, {*names, *(name for name in OURS if name in environ)}))
    return {"env": {name: f"${name}" for name in kept_back}} if kept_back else {}


def _opencode_words(command: str, args: list[str]) -> Entry:
    return {"type": "local", "command": [command, *args], "enabled": True}


CLIENTS: tuple[EntryTarget, ...] = (
    EntryTarget(
        "claude-code",
        "Claude Code",
        _claude_code,
        ("mcpServers",),
        _words(type="stdio"),
        _address(type="http"),
        _program("claude", "@anthropic-ai/claude-code"),
        (
            "Start `claude` anew; `/mcp` there shows pi-mcp. Its own tool search defers other servers' tools, ours are "
            "marked to be always there.",
            "Servers that Claude Code has itself can go to pi-mcp: `pi-mcp import` copies them, `claude mcp remove` "
            "takes them out.",
        ),
        project=".mcp.json",
        token=_bearer("${NAME}"),
        remarks=("a Claude Code that is running may write its file, too: leave it before.",),
    ),
    EntryTarget(
        "claude-desktop",
        "Claude Desktop",
        _claude_desktop,
        ("mcpServers",),
        _words(),
        None,
        _has_claude_desktop,
        ("Quit Claude Desktop and start it again.",),
        no_remote="Add the address in Claude Desktop under Settings, Connectors; or leave --url out.",
    ),
    EntryTarget(
        "codex",
        "Codex",
        _codex,
        ("mcp_servers",),
        _words(),
        _address(),
        _program("codex", "@openai/codex"),
        ("Start `codex` anew; it lists tools once, so its model calls what it found through `mcp_call`.",),
        syntax="toml",
        hands_over=_codex_variables,
        token=lambda name: {"bearer_token_env_var": name},
    ),
    EntryTarget(
        "gemini",
        "Gemini CLI",
        _gemini,
        ("mcpServers",),
        _words(),
        _address(type="http"),
        _program("gemini", "@google/gemini-cli"),
        ("Start `gemini` anew; `/mcp` there shows pi-mcp. In a folder that it does not trust it starts no servers.",),
        project=".gemini/settings.json",
        hands_over=_gemini_variables,
        token=_bearer("$NAME"),
    ),
    EntryTarget(
        "opencode",
        "opencode",
        _opencode,
        ("mcp",),
        _opencode_words,
        lambda url: {"type": "remote", "url": url, "enabled": True},
        _program("opencode", "opencode-ai"),
        ("Start `opencode` anew; `opencode mcp list` shows pi-mcp.",),
        project="opencode.json",
        token=_bearer("{env:NAME}"),
    ),
    EntryTarget(
        "cursor",
        "Cursor",
        _cursor,
        ("mcpServers",),
        _words(),
        _address(),
        _program("cursor"),
        ("In Cursor's settings, under MCP, switch pi-mcp on; restart Cursor when it is not there.",),
        project=".cursor/mcp.json",
        token=_bearer("${env:NAME}"),
    ),
    EntryTarget(
        "vscode",
        "VS Code",
        _vscode,
        ("servers",),
        _words(type="stdio"),
        _address(type="http"),
        _program("code"),
        (
            "In VS Code run `MCP: List Servers`, choose pi-mcp and start it. This is the file of the default profile; "
            "another profile has its own.",
        ),
        project=".vscode/mcp.json",
        token=_bearer("${env:NAME}"),
    ),
    EntryTarget(
        "zed",
        "Zed",
        _zed,
        ("context_servers",),
        _words(),
        _address(),
        _program("zed"),
        ("Zed starts it by itself; the Agent Panel's settings show it with a green dot.",),
    ),
)
