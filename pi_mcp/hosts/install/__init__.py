"""Puts pi-mcp into hosts and clients: shims into plugin folders, the gateway's entry into configuration files.

Comes in: the name of a host or client. Goes out: a `Plan` to look at, and, when it is applied, exactly these changes.
`TARGETS` is the one place where a host is named; a new one is one module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pi_mcp.errors import failure
from pi_mcp.hosts.install.apply import UNREADABLE, apply, steady, unusable, written
from pi_mcp.hosts.install.clients import CLIENTS
from pi_mcp.hosts.install.code_puppy import CodePuppy
from pi_mcp.hosts.install.gptme import Gptme
from pi_mcp.hosts.install.pi import Pi
from pi_mcp.hosts.install.plan import Found, Installed, Plan, Target, Verb, Wishes
from pi_mcp.hosts.install.pp import Pp
from pi_mcp.hosts.install.pydantic_ai import PydanticAi
from pi_mcp.hosts.install.surroundings import Surroundings, surroundings
from pi_mcp.text import clean_line, close_words

TARGETS: tuple[Target, ...] = (Pi(), Pp(), CodePuppy(), Gptme(), PydanticAi(), *CLIENTS)
"""In the order in which they are shown."""
_TRIES = 5
"""Plans that are made before `apply` may refuse the last: each of the others met a run that wrote beside it."""


def target_named(name: str) -> Target:
    """Raises ConfigurationError with the names that there are."""
    for target in TARGETS:
        if target.name == name:
            return target
    known = [target.name for target in TARGETS]
    hint = close_words(name, known) or f"One of {', '.join(known)}."
    raise failure("usage", "command", None, f"There is no host or client {clean_line(name, 60)!r}.", hint)


def planned(targets: Sequence[Target], verb: Verb, around: Surroundings, wishes: Wishes) -> list[Plan]:
    """What it would do to each. Where another run wrote in the meantime they are made again, so that they show what
    that one left. Raises PiMcpError where another run does not end."""
    for _ in range(_TRIES):
        since = written(around)
        plans = [_plan(target, verb, around, wishes) for target in targets]
        if steady(since, around):
            break
    return plans


def _plan(target: Target, verb: Verb, around: Surroundings, wishes: Wishes) -> Plan:
    """A folder that cannot be looked into is this target's problem and stops no other."""
    try:
        return target.install(around, wishes) if verb == "install" else target.uninstall(around, wishes)
    except OSError as error:
        problem = unusable(Path(str(error.filename or around.home)), *UNREADABLE).diagnostic
        return Plan(target.name, target.title, verb, problem=problem)


def survey(around: Surroundings) -> list[tuple[Target, Found, Installed]]:
    """Each host and client: is it here, and is pi-mcp in it? All at once, in little over `found.LIMIT` s."""

    def look(target: Target) -> tuple[Target, Found, Installed]:
        found, installed = Found(False), Installed("changed")  # what cannot be looked into
        with contextlib.suppress(OSError):
            found = target.detect(around)
        with contextlib.suppress(OSError):
            installed = target.installed(around)
        return target, found, installed

    with ThreadPoolExecutor(max_workers=len(TARGETS)) as pool:
        return list(pool.map(look, TARGETS))


__all__ = ["TARGETS", "Plan", "Surroundings", "Wishes", "apply", "planned", "surroundings", "survey", "target_named"]
