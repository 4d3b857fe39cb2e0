"""How `serve` knows its callers: the store, keys, OAuth, --dev-no-auth, and what the audit trail keeps.

Comes in: options, and where the gateway listens. Goes out: what the gateway and its HTTP application are given, and
lines for the operator. Whatever would let somebody in unasked from another machine is refused here, before anything
listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp.cli import serve_oauth
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import argparse

    from pi_mcp.access import Grant
    from pi_mcp.plugin import Plugin
    from pi_mcp.server.authenticate import Authentication
    from pi_mcp.server.gate import Gate
    from pi_mcp.server.oauth.outside import Issuer
    from pi_mcp.server.oauth.places import Places
    from pi_mcp.store import SqliteStore

TIDY_SECONDS = 600.0
"""How often what has expired is removed, and the audit trail is kept to its age and size."""

_LOG = logging.getLogger("pi_mcp.server")


@dataclass(frozen=True, slots=True)
class Access:
    """What the parts of a gateway are given. `lines` are for the operator, at the start."""

    gate: Gate | None = None
    grant: Grant | None = None
    """Who calls over stdio."""
    authentication: Authentication | None = None
    routes: Sequence[Any] = ()
    lines: tuple[str, ...] = field(default=())


def add_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keys, grants and the audit trail; made when missing. HTTP: callers need a key then "
        "(default: your own store, once `pi-mcp keys create` has made it)",
    )
    command.add_argument(
        "--dev-no-auth", action="store_true", help="HTTP on loopback only: callers need no key and may do everything"
    )
    command.add_argument("--dev-as", metavar="SUBJECT", help="with --dev-no-auth: as whom they act (default dev)")
    command.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="HTTP: a proxy whose X-Forwarded-For is believed, as an address or a network; may be repeated",
    )
    command.add_argument("--audit-reads", action="store_true", help="audit: keep rows of calls that only read, too")
    command.add_argument("--audit-no-arguments", action="store_true", help="audit: keep nothing of the arguments")
    command.add_argument(
        "--audit-days", type=float, default=400.0, metavar="DAYS", help="audit: remove older rows; 0: never (400)"
    )
    command.add_argument(
        "--audit-megabytes",
        type=float,
        default=1024.0,
        metavar="MB",
        help="audit: remove the oldest rows beyond this size; 0: never (1024)",
    )


@contextlib.asynccontextmanager
async def stdio_access(options: argparse.Namespace, plugin: Plugin) -> AsyncIterator[Access]:
    """One caller, who started the process and may do everything; with --store there is an audit trail."""
    from pi_mcp.access import Grant

    _check(options, http=False)
    if options.store is None:
        yield Access()
        return
    async with _store(options) as store:
        yield Access(gate=_gate(options, plugin, store), grant=Grant.everything("local"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options say about callers over HTTP, looked through before anything is made."""

    keys: bool
    """Callers are asked who they are: there is a store, or is to be one."""
    places: Places | None
    outside: Issuer | None


def http_wanted(options: argparse.Namespace, host: str, port: int) -> Wanted:
    """Makes nothing. Raises ConfigurationError where callers of other machines would be let in unasked, and for
    options that do not go together."""
    from pi_mcp.server.doors import is_loopback
    from pi_mcp.store import default_is_there

    _check(options, http=True)
    loopback = is_loopback(host)
    if options.dev_no_auth and not loopback:
        raise failure(
            "usage",
            "configure",
            None,
            f"--dev-no-auth works on loopback only, not on {clean_line(host, 100)}.",
            "Use --http 127.0.0.1:PORT.",
        )
    oauth = serve_oauth.wanted(options)
    there = oauth or options.store is not None or default_is_there()
    if not there and not loopback:
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"Without authentication the gateway listens on loopback only, not on {clean_line(host, 100)}.",
            "`pi-mcp keys create --scope …` makes a key, and callers need one then; or use 127.0.0.1.",
        )
    if options.dev_no_auth or not there:
        _check_unasked(options)
    if not there:
        return Wanted(False, None, None)
    places = serve_oauth.places_of(options, host, port) if oauth else _places(options, host, port)
    return Wanted(True, places, None if places is None else serve_oauth.outside_of(options, places))


@contextlib.asynccontextmanager
async def http_access(options: argparse.Namespace, plugin: Plugin, wanted: Wanted) -> AsyncIterator[Access]:
    """Callers over HTTP."""
    from pi_mcp.access import Grant
    from pi_mcp.server.authenticate import Authentication, developer

    anonymous = developer(options.dev_as) if options.dev_no_auth else None
    warning: tuple[str, ...] = ()
    if anonymous is not None:
        warning = (
            f"--dev-no-auth: every program on this machine may do everything here, as {anonymous.subject}, without a "
            "key.",
        )
    if not wanted.keys:
        if anonymous is None:
            anonymous = Grant.everything("local")
            warning = (
                "There are no keys: every program on this machine may do everything here. `pi-mcp keys create --scope "
                "…` makes a key; from the next start on callers need one.",
            )
        yield Access(authentication=Authentication(anonymous=anonymous), lines=warning)
        return
    places = wanted.places
    async with _store(options) as store:
        gate = _gate(options, plugin, store)
        made = None if places is None else serve_oauth.parts_of(options, places, store, plugin, wanted.outside)
        verifier = None if made is None else made.verifier
        yield Access(
            gate=gate,
            authentication=Authentication(store, verifier, places, anonymous, limits=gate.limits),
            routes=() if made is None else made.routes,
            lines=(*warning, *await _said(store, places, options)),
        )


def _check(options: argparse.Namespace, *, http: bool) -> None:
    if options.dev_as is not None and not options.dev_no_auth:
        raise failure("usage", "configure", None, "--dev-as goes with --dev-no-auth.")
    if options.dev_as is not None and (not options.dev_as.strip() or clean_line(options.dev_as, 128) != options.dev_as):
        raise failure("usage", "configure", None, "--dev-as has to be one line of at most 128 plain characters.")
    if not http and (serve_oauth.wanted(options) or options.dev_no_auth or options.trusted_proxy):
        raise failure("usage", "configure", None, "--dev-no-auth and --trusted-proxy are for HTTP.", "Add --http.")
    for name in ("audit_days", "audit_megabytes"):
        if not 0 <= getattr(options, name) <= 1e9:
            raise failure("usage", "configure", None, f"--{name.replace('_', '-')} has to be 0 or more.")
    import ipaddress

    for text in options.trusted_proxy:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise failure(
                "usage", "configure", None, f"--trusted-proxy {clean_line(text, 80)!r} is no address or network."
            ) from None


def _check_unasked(options: argparse.Namespace) -> None:
    """Nobody is asked who they are: then nothing may lead here from elsewhere. Raises PiMcpError where it would."""
    from pi_mcp.server.doors import Doors

    here = Doors()
    named = {
        "--public-url": options.public_url is not None and not here.origin(options.public_url.lower()),
        "--allowed-host": not all(here.host(host) for host in options.allowed_host),
        "--trusted-proxy": bool(options.trusted_proxy),
    }
    for name, leads in named.items():
        if leads:
            how = "With --dev-no-auth" if options.dev_no_auth else "Without keys"
            raise failure(
                "configuration_invalid",
                "configure",
                None,
                f"{how} nobody is asked who they are, and {name} is for callers from elsewhere.",
                "`pi-mcp keys create --scope …` makes a key, and callers need one then; or leave "
                f"{name}{' and --dev-no-auth' if options.dev_no_auth else ''} out.",
            )


def _gate(options: argparse.Namespace, plugin: Plugin, store: SqliteStore) -> Any:
    from pi_mcp.server.scoped_gate import AuditSettings, ScopedGate

    audit = AuditSettings(arguments=not options.audit_no_arguments, reads=options.audit_reads)
    return ScopedGate(lambda: plugin.configuration, store, audit=audit)


def _places(options: argparse.Namespace, host: str, port: int) -> Any:
    """The address by which clients know the gateway; None where nobody said it and it cannot be told."""
    from pi_mcp.server.doors import is_loopback
    from pi_mcp.server.oauth.places import Places

    if options.public_url is not None:
        return Places.of(options.public_url)
    if not is_loopback(host) or port == 0:
        return None
    return Places.of(f"http://{f'[{host}]' if ':' in host else host}:{port}")


async def _said(store: SqliteStore, places: Any, options: argparse.Namespace) -> list[str]:
    if options.dev_no_auth:
        return []  # what callers would need is of no account: it has been said that they need nothing
    now = time.time()
    valid = sum(1 for key in await store.keys() if key.valid(now))
    option = "" if options.store is None else f" --store {clean_line(str(options.store), 200)}"
    lines = []
    if not valid and options.oauth_issuer is None:
        lines.append(f"No key is valid, so that nobody is let in: `pi-mcp keys create{option} --scope …` makes one.")
    if places is None:
        lines.append("Without --public-url there are keys alone: no OAuth, and no page to sign in.")
    elif options.oauth_issuer is not None:
        lines.append(f"Access tokens of {clean_line(options.oauth_issuer, 200)} and keys are taken.")
    else:
        lines.append(f"Callers need a key, or sign in: {places.issuer}/signin")
    return lines


@contextlib.asynccontextmanager
async def _store(options: argparse.Namespace) -> AsyncIterator[SqliteStore]:
    """The store while the gateway runs, kept tidy."""
    from pi_mcp.store import open_store

    store = await open_store(options.store)
    tidying = asyncio.create_task(_tidy(store, options))
    try:
        yield store
    finally:
        tidying.cancel()
        await asyncio.gather(tidying, return_exceptions=True)
        await store.close()


async def _tidy(store: SqliteStore, options: argparse.Namespace) -> None:
    while True:
        now = time.time()
        try:
            await store.purge(now)
            await store.prune_audit(
                before=now - options.audit_days * 86400 if options.audit_days else None,
                max_bytes=int(options.audit_megabytes * 1_000_000) if options.audit_megabytes else None,
            )
        except PiMcpError as error:
            _LOG.warning("%s", error.diagnostic.line())
        await asyncio.sleep(TIDY_SECONDS)
