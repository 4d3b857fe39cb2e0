"""Commands that put pi-mcp into hosts and clients: install, uninstall, hosts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pi_mcp.cli.common import report, show, show_json
from pi_mcp.errors import Diagnostic

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pi_mcp.cli.common import Add
    from pi_mcp.hosts.install import Plan


def register(add: Add) -> None:
    for name, summary in (
        ("install", "put pi-mcp into a host or client: shows the changes first"),
        ("uninstall", "take what `install` wrote out of a host or client"),
    ):
        command = add(name, summary, change, config=False)
        command.add_argument("hosts", nargs="+", metavar="HOST", help="a name of `pi-mcp hosts`")
        command.add_argument("--yes", action="store_true", help="write without asking")
        command.add_argument(
            "--project", action="store_true", help="this folder's file in the place of yours (clients of the gateway)"
        )
        if name == "install":
            command.add_argument("--url", metavar="URL", help="a running gateway, in the place of a command (clients)")
            command.add_argument("--token-env", metavar="NAME", help="with --url: the variable that holds your key")
        command.set_defaults(verb=name, **({} if name == "install" else {"url": None, "token_env": None}))
    add("hosts", "which hosts and clients are here, and which have pi-mcp", hosts, config=False)


def change(options: argparse.Namespace) -> int:
    from pi_mcp.hosts.install import Wishes, apply, planned, surroundings, target_named

    targets = [target_named(name) for name in dict.fromkeys(options.hosts)]
    around = surroundings()
    wishes = Wishes(options.url, options.project, options.token_env)
    plans = planned(targets, options.verb, around, wishes)
    if not options.json:
        said: set[str] = set()
        shown = [plan.text(said) for plan in plans if plan.problem is None]
        if shown:
            show("\n\n".join(shown))
        for plan in plans:
            if plan.problem is not None:
                report(plan.problem, as_json=False)
    todo = [plan for plan in plans if plan.problem is None and plan.changes]
    # A record of ours that is out of date is renewed without a question: the person has nothing to decide.
    asked = [plan for plan in todo if plan.visible]
    refusal = _refusal(options) if asked else None
    if todo and refusal is None:
        apply(todo, around)
    return _tell(options, plans, refusal)


def _refusal(options: argparse.Namespace) -> Diagnostic | None:
    """None when what was shown may be written."""
    if options.yes:
        return None
    if options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        why = "Nothing was written: there is nobody to ask."
        return Diagnostic("refused", "command", None, why, "Look at the preview, then repeat this with --yes.")
    try:
        answer = input("\nWrite this? [y/N] ")
    except EOFError:
        print()
        answer = ""
    if answer.strip().lower() in ("y", "yes"):
        return None
    return Diagnostic("refused", "command", None, "Nothing was written.", None)


def _tell(options: argparse.Namespace, plans: Sequence[Plan], refusal: Diagnostic | None) -> int:
    problems = [plan.problem for plan in plans if plan.problem is not None]
    first = refusal or next(iter(problems), None)
    if options.json:
        rows = [plan.to_json(written=bool(refusal is None and not plan.problem and plan.visible)) for plan in plans]
        show_json({"hosts": rows, **({"error": first.to_json()} if first else {})})
        return first.exit_code if first else 0
    if refusal is not None:
        return report(refusal, as_json=False)
    for plan in plans:
        if plan.problem is None:
            done = "Done" if plan.visible else "As it was"
            show(f"\n{plan.title}: {done}.\n{plan.afterwards}".rstrip())
    return first.exit_code if first else 0


def hosts(options: argparse.Namespace) -> int:
    from pi_mcp.hosts.install import surroundings, survey

    rows = survey(surroundings())
    if options.json:
        show_json(
            {
                "hosts": [
                    {"host": target.name, "kind": target.kind, **found.to_json(), **installed.to_json()}
                    for target, found, installed in rows
                ]
            }
        )
        return 0
    lines = [("HOST", "HERE", "PI-MCP", "")]
    for target, found, installed in rows:
        here = (found.version or "yes") if found.present else "-"
        there = {
            "none": "-",
            "current": f"{installed.version}",
            "outdated": f"{installed.version or 'older'}: run `pi-mcp install {target.name}`",
            "changed": "changed by hand, not ours, or not readable",
        }[installed.state]
        what = {"host": "plugin", "client": "gateway", "library": "toolset"}[target.kind]
        lines.append((target.name, here, there, what))
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        show("  ".join(word.ljust(width) for word, width in zip(line, (*widths, 0), strict=True)).rstrip())
    show("\n`pi-mcp install HOST` shows what it would write, and asks.")
    return 0
