"""Commands about the configuration and what is kept on this machine: add, import, purge."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp.cli.common import show, show_json
from pi_mcp.errors import failure
from pi_mcp.text import clean_line, quoted

if TYPE_CHECKING:
    import argparse

    from pi_mcp.cli.common import Add

GATEWAY_HOLDS = "the gateway's keys, sign-ins, grants and audit trail"


def register(add: Add) -> None:
    command = add(
        "add",
        "write a server into the configuration: add NAME URL, or add NAME -- COMMAND ARGS…",
        add_server,
        project=False,
    )
    command.add_argument("name", metavar="NAME")
    command.add_argument("url", nargs="?", metavar="URL")
    command.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable (stdio)")
    command.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="a header (HTTP)")
    command.add_argument("--force", action="store_true", help="replace a server of that name")
    command.set_defaults(command_line=None)

    command = add(
        "import", "take servers over from other clients' files; shows them first", import_servers, project=False
    )
    command.add_argument("--yes", action="store_true", help="write what the preview shows")

    command = add("purge", "remove what pi-mcp keeps on this machine; never the configuration", purge, config=False)
    command.add_argument("--cache", action="store_true", help="catalogs")
    command.add_argument(
        "--state", action="store_true", help="trust, sessions, chats, results and logs; not the gateway's store"
    )
    command.add_argument("--credentials", action="store_true", help="stored logins")
    command.add_argument("--all", action="store_true", help="all three, and the gateway's keys and audit trail")
    command.add_argument("--yes", action="store_true", help="with --all: a gateway's store, too, without asking")


def add_server(options: argparse.Namespace) -> int:
    from pi_mcp import files
    from pi_mcp.config import edit, importing

    target = options.config or Path(os.environ.get("PI_MCP_CONFIG") or files.config_dir() / "mcp.json")
    command = options.command_line
    entry = importing.add_entry(
        options.name,
        url=options.url,
        command=command[0] if command else None,
        args=tuple(command[1:]) if command else (),
        env=_pairs(options.env, "=", "--env"),
        headers=_pairs(options.header, ":", "--header"),
    )
    written = edit.add_servers(target, {options.name: entry}) if not options.force else None
    if options.force:
        edit.set_server(target, options.name, entry)
    elif not written:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{target} has a server called {clean_line(options.name, 64)!r} already.",
            "Use --force to replace it, or another name.",
        )
    if options.json:
        show_json({"path": str(target), "name": options.name})
    else:
        show(f"Added {options.name} to {target}. Try: pi-mcp tools {quoted(options.name)}")
    return 0


def import_servers(options: argparse.Namespace) -> int:
    from pi_mcp import files
    from pi_mcp.config import importing, load_config

    target = options.config or Path(os.environ.get("PI_MCP_CONFIG") or files.config_dir() / "mcp.json")
    found = importing.find_importable(Path.home(), Path.cwd(), os.environ)
    # What is there already is judged by the file that would be written, whatever else is configured.
    plan = importing.plan_import(found, load_config(config=target, cwd=Path.cwd()))
    names = importing.apply_import(plan, target) if options.yes and plan.additions else ()
    if options.json:
        show_json({**plan.to_json(), "path": str(target), "written": list(names)})
        return 0
    show(plan.text)
    if names:
        show(f"Written to {target}: {', '.join(names)}")
    elif plan.additions:
        show(f"Nothing is written yet. `pi-mcp import --yes` writes what is marked `add` to {target}.")
    elif plan.rows:
        show(f"There is nothing to add to {target}.")
    return 0


def purge(options: argparse.Namespace) -> int:
    from pi_mcp import files

    chosen = {
        "cache": options.cache or options.all,
        "state": options.state or options.all,
        "credentials": options.credentials or options.all,
    }
    if not any(chosen.values()):
        raise failure(
            "usage", "command", None, "Say what to remove.", "One or more of --cache, --state, --credentials, --all."
        )
    gateway = files.state_dir() / "gateway"
    if options.all and gateway.is_dir():
        _ask_for_the_gateway(options, gateway)
    removed: dict[str, Any] = {}
    if chosen["cache"]:
        removed["cache"] = {"path": str(files.cache_dir()), "files": files.remove_tree(files.cache_dir())}
    if chosen["credentials"]:
        removed["credentials"] = {"path": None, "files": asyncio.run(purge_logins())}
    if chosen["state"]:
        # The index of logins stays with them: without it nobody would find what the keyring holds. So do the
        # gateway's keys and audit trail, which others depend on, unless everything is to go.
        folder = files.state_dir()
        kept = set() if chosen["credentials"] else {folder / "credentials"}
        if not options.all:
            kept.add(gateway)
        elif gateway.is_dir():
            removed["gateway"] = {"path": str(gateway), "files": files.remove_tree(gateway)}
        children = [path for path in folder.iterdir() if path not in kept] if folder.is_dir() else []
        count = sum(files.remove_tree(path) for path in children)
        removed["state"] = {"path": str(folder), "files": count + (0 if kept else files.remove_tree(folder))}
    if options.json:
        show_json({"removed": removed})
    else:
        for what, row in removed.items():
            place = f" from {row['path']}" if row["path"] else ""
            thing = "login" if what == "credentials" else "file"
            number = f"{row['files']} {thing}" + ("" if row["files"] == 1 else "s")
            named = f" ({GATEWAY_HOLDS})" if what == "gateway" else ""
            show(f"{what}: {number} removed{place}{named}")
    return 0


def _ask_for_the_gateway(options: argparse.Namespace, folder: Path) -> None:
    """Others depend on what nobody can make again. Raises PiMcpError `refused` unless somebody says yes."""
    if options.yes:
        return
    what = f"{GATEWAY_HOLDS} in {clean_line(str(folder), 300)}"
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise failure(
            "refused",
            "command",
            None,
            f"Nothing was removed: there is nobody to ask whether {what} may go, too.",
            "Repeat this with --yes; or --cache, --state and --credentials, which leave them.",
        )
    show(f"This removes {what}, too. Nobody gets in with them any more.")
    try:
        answer = input("Remove all? [y/N] ")
    except EOFError:
        print()
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise failure("refused", "command", None, "Nothing was removed.")


async def purge_logins() -> int:
    """Remove every stored login, those of forgotten servers included; how many. They are not revoked by it."""
    from pi_mcp.auth.store import CredentialStore

    store = CredentialStore()
    stored = await store.stored()
    for server in {entry.server for entry in stored}:
        await store.delete(server)
    return len(stored)


def _pairs(words: Sequence[str], separator: str, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in words:
        name, found, value = word.partition(separator)
        if not found or not name.strip():
            raise failure(
                "usage", "configure", None, f"{option} takes {'NAME: VALUE' if separator == ':' else 'NAME=VALUE'}."
            )
        pairs[name.strip()] = value.strip() if separator == ":" else value
    return pairs
