"""Commands about who may use the gateway, and what they did: keys, grants, audit.

Comes in: their options. Goes out: changes in the gateway's store, tables, JSON. A key or link is printed once, on
standard output and alone on its line; nothing else of it is ever shown but its id. A running gateway sees a change at
once.
"""

from __future__ import annotations

import asyncio
import getpass
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pi_mcp.cli import moments
from pi_mcp.cli.common import show, show_json, terminal_columns
from pi_mcp.errors import PiMcpError, failure
from pi_mcp.text import clean_line

if TYPE_CHECKING:
    import argparse

    from pi_mcp.access import AuditFilter, AuditRow, Consent, Key, Limits, Scopes
    from pi_mcp.cli.common import Add
    from pi_mcp.server.oauth.places import Places
    from pi_mcp.store import SqliteStore

LINK_LIFE = "15m"
EXPORT_PAGE = 500
ACTIONS = ("write", "read", "tool", "resource", "prompt", "search", "method", "request")
OUTCOMES = ("unknown", "ok", "tool_error", "input_required", "error", "refused", "limited", "cancelled")
"""The words of a row, for a filter that somebody mistypes."""
_LIMITS = ("requests_per_minute", "concurrent", "result_bytes")


def register(add: Add) -> None:
    command = add("keys", "make, list and end API keys of the gateway, and links to sign in with", keys, config=False)
    command.add_argument("action", choices=("create", "list", "revoke", "link"))
    command.add_argument("words", nargs="*", metavar="WORD", help="create: a label; revoke: ids; link: a key's id")
    _store_option(command)
    command.add_argument("--subject", metavar="NAME", help="create, link: whose it is (default: your user name)")
    command.add_argument(
        "--scope",
        "--scopes",
        action="append",
        default=[],
        metavar="SCOPES",
        help="create, link: what it may do, separated by spaces or commas; may be repeated",
    )
    command.add_argument(
        "--expires",
        metavar="WHEN",
        help=f"create, link: a span such as 30d or a date (default: never; a link: {LINK_LIFE})",
    )
    command.add_argument("--requests-per-minute", type=int, metavar="N", help="create: requests within a minute")
    command.add_argument("--concurrent", type=int, metavar="N", help="create: calls at the same time")
    command.add_argument("--result-bytes", type=int, metavar="N", help="create: bytes of results within a minute")
    command.add_argument(
        "--public-url", metavar="URL", help="link: the gateway's address (default http://127.0.0.1:8400)"
    )
    command.add_argument("--all", action="store_true", help="list: those that have ended, too")

    command = add("grants", "list and end what people allowed OAuth clients of the gateway", grants, config=False)
    command.add_argument("action", choices=("list", "revoke"))
    command.add_argument("words", nargs="*", metavar="ID", help="revoke: ids of grants")
    _store_option(command)
    command.add_argument("--subject", metavar="NAME", help="list: of this person only")
    command.add_argument("--all", action="store_true", help="list: those that have ended, too")

    command = add("audit", "what was called through the gateway: list, filter, export", audit, config=False)
    _store_option(command)
    command.add_argument("--since", metavar="WHEN", help="from then on: a span back such as 2h, or a date")
    command.add_argument("--until", metavar="WHEN", help="up to then")
    for name, meaning in (
        ("subject", "by this person or program"),
        ("credential", "with the key, sign-in or grant of this id"),
        ("server", "of this server"),
        ("tool", "of this tool, by its original name"),
        ("action", f"{', '.join(ACTIONS[:-1])} or {ACTIONS[-1]}"),
        ("outcome", f"{', '.join(OUTCOMES[:-1])} or {OUTCOMES[-1]}"),
        ("session", "in this session"),
        ("request", "with this JSON-RPC id"),
    ):
        command.add_argument(f"--{name}", metavar="VALUE", help=meaning)
    command.add_argument(
        "--limit", type=int, default=None, metavar="N", help="list: the newest N (50); export: the oldest N (all)"
    )
    command.add_argument("--export", action="store_true", help="JSON Lines on standard output, the oldest first")


def _store_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--store", type=Path, metavar="FILE", help="the gateway's store (default: in your state folder)"
    )


# keys


def keys(options: argparse.Namespace) -> int:
    if options.action == "create":
        # Looked at before there is a store: one that was made for nothing would close a gateway that was open.
        key, text = _minted(options)
        return _with_store(options, lambda store: _create(store, options, key, text), create=True)
    if options.action == "list":
        _no_words(options)
        return _with_store(options, lambda store: _list_keys(store, options), empty={"keys": []})
    if options.action == "revoke":
        _some_words(options, "key")
        return _with_store(options, lambda store: _revoke(store, options, "key"))
    link = _wanted_link(options)
    return _with_store(options, lambda store: _link(store, options, link), create=not options.words)


def _minted(options: argparse.Namespace) -> tuple[Key, str]:
    """The key that the options describe, and its text. Raises PiMcpError `usage`."""
    from pi_mcp.access import Key, Limits, secrets

    now = time.time()
    if len(options.words) > 1:
        raise failure("usage", "command", None, "A key has one label.", "Put it in quotes.")
    made = secrets.mint("key")
    key = Key(
        made.id,
        made.digest,
        _subject(options),
        _scopes(options),
        now,
        label=clean_line(options.words[0], 80) if options.words else "",
        expires=moments.ahead(options.expires, "--expires", now) if options.expires else None,
        limits=Limits(*(_positive(options, name) for name in _LIMITS)),
    )
    return key, made.text


async def _create(store: SqliteStore, options: argparse.Namespace, key: Key, text: str) -> int:
    await store.add_key(key)
    if options.json:
        show_json({"key": text, **_key_json(key, key.created)})
        return 0
    print(text)
    _aside(f"Key {key.id} for {key.subject} may: {key.scopes}. It is shown this once; the store has only its hash.")
    return 0


async def _list_keys(store: SqliteStore, options: argparse.Namespace) -> int:
    now = time.time()
    found = [key for key in await store.keys(subject=options.subject) if options.all or key.valid(now)]
    if options.json:
        show_json({"keys": [_key_json(key, now) for key in found]})
        return 0
    rows = [
        (
            key.id,
            clean_line(key.label, 40),
            clean_line(key.subject, 40),
            _state(key, now),
            moments.shown(key.created),
            moments.shown(key.expires),
            moments.shown(key.last_used),
            _limits_text(key.limits),
            str(key.scopes),
        )
        for key in found
    ]
    if not rows and await store.keys(subject=options.subject):
        show("No key is valid. --all shows those that have ended; `pi-mcp keys create --scope tools:read` makes one.")
        return 0
    columns = ("id", "label", "subject", "state", "created", "expires", "last used", "limits", "scopes")
    return _table(columns, rows, "No keys. `pi-mcp keys create --scope tools:read` makes one.")


def _limits_text(limits: Limits) -> str:
    parts = (
        (limits.requests_per_minute, "requests a minute"),
        (limits.concurrent, "at a time"),
        (limits.result_bytes, "bytes a minute"),
    )
    return ", ".join(f"{number} {of}" for number, of in parts if number is not None)


async def _revoke(store: SqliteStore, options: argparse.Namespace, what: str) -> int:
    from pi_mcp.access import secrets

    done: list[str] = []
    missing: list[str] = []
    for word in options.words:
        # The key itself is taken for its id: who has found one somewhere has nothing else at hand.
        recognised = secrets.recognise(word, "key")
        id = recognised[0] if recognised else word
        end = store.revoke_key if what == "key" else store.revoke_consent
        (done if await end(id, time.time()) else missing).append(clean_line(id, 40))
    if missing:
        also = f" Ended: {', '.join(done)}." if done else ""
        raise failure(
            "not_found",
            "command",
            None,
            f"There is no {what} {', '.join(missing)}, or it had ended already.{also}",
            f"`pi-mcp {what}s list --all` shows the ids.",
        )
    if options.json:
        show_json({"revoked": done})
    else:
        show(f"Ended: {', '.join(done)}. A running gateway lets nobody in with it from now on.")
    return 0


@dataclass(frozen=True, slots=True)
class _Link:
    """What a link was asked for; of a key's link `scopes` is None where it may do all that the key may."""

    expires: float
    places: Places
    scopes: Scopes | None
    subject: str


def _wanted_link(options: argparse.Namespace) -> _Link:
    """Raises PiMcpError `usage`."""
    from pi_mcp.server.oauth.places import Places

    if len(options.words) > 1:
        raise failure("usage", "command", None, "A link is for one key.", "pi-mcp keys link [KEY]")
    of_key = bool(options.words)
    return _Link(
        moments.ahead(options.expires or LINK_LIFE, "--expires", time.time()),
        Places.of(options.public_url or "http://127.0.0.1:8400"),
        _scopes(options) if options.scope or not of_key else None,
        "" if of_key else _subject(options),
    )


async def _link(store: SqliteStore, options: argparse.Namespace, wanted: _Link) -> int:
    from pi_mcp.access import Once, Scopes, secrets
    from pi_mcp.server.oauth.places import LINK

    subject, scopes, payload = wanted.subject, wanted.scopes or Scopes(), {}
    if options.words:
        key = await store.key(options.words[0])
        if key is None or not key.valid(time.time()):
            raise failure("not_found", "command", None, f"There is no valid key {clean_line(options.words[0], 40)}.")
        scopes = wanted.scopes or key.scopes
        if not scopes.within(key.scopes):
            raise failure("usage", "command", None, "A link for a key may do no more than the key.")
        if options.subject not in (None, key.subject):
            raise failure("usage", "command", None, f"A link for this key signs {key.subject} in, and nobody else.")
        subject, payload = key.subject, {"key": key.id}
    made = secrets.mint("link")
    await store.keep(Once("link", made.id, made.digest, wanted.expires, subject, scopes, payload))
    address = wanted.places.at(f"{LINK}/{made.text}")
    if options.json:
        show_json(
            {
                "url": address,
                "id": made.id,
                "subject": subject,
                "scopes": list(scopes),
                "expires": moments.written(wanted.expires),
            }
        )
        return 0
    print(address)
    _aside(f"Signs {subject} in once, until {moments.shown(wanted.expires)}, with: {scopes}")
    return 0


def _subject(options: argparse.Namespace) -> str:
    subject = options.subject
    if subject is None:
        try:
            subject = getpass.getuser()
        except (OSError, KeyError):
            subject = "owner"
    if not subject.strip() or clean_line(subject, 128) != subject:
        raise failure("usage", "command", None, "--subject has to be one line of at most 128 plain characters.")
    return str(subject)


def _scopes(options: argparse.Namespace) -> Scopes:
    from pi_mcp.access import MalformedScope, Scopes
    from pi_mcp.access.scopes import MEANINGS

    forms = f"Scopes are {', '.join(MEANINGS)}; in NAME and TOOL all but letters, digits and -._~ is percent-encoded."
    try:
        scopes = Scopes.parse(" ".join(options.scope))
    except MalformedScope as error:
        raise failure("usage", "command", None, f"{clean_line(error.token, 80)!r} is no scope.", forms) from None
    if not scopes:
        raise failure("usage", "command", None, "Say what it may do with --scope.", forms)
    return scopes


def _positive(options: argparse.Namespace, name: str) -> int | None:
    value: int | None = getattr(options, name)
    if value is not None and not 0 < value < 2**53:
        raise failure("usage", "command", None, f"--{name.replace('_', '-')} has to be at least 1.")
    return value


def _state(one: Key | Consent, now: float) -> str:
    return "valid" if one.valid(now) else "revoked" if one.revoked is not None else "expired"


def _key_json(key: Key, now: float) -> dict[str, Any]:
    return {
        "id": key.id,
        "label": key.label,
        "subject": key.subject,
        "scopes": list(key.scopes),
        "created": moments.written(key.created),
        "expires": moments.written(key.expires),
        "lastUsed": moments.written(key.last_used),
        "revoked": moments.written(key.revoked),
        "state": _state(key, now),
        "limits": {
            "requestsPerMinute": key.limits.requests_per_minute,
            "concurrent": key.limits.concurrent,
            "resultBytes": key.limits.result_bytes,
        },
    }


# grants


def grants(options: argparse.Namespace) -> int:
    if options.action == "list":
        _no_words(options)
        return _with_store(options, lambda store: _list_grants(store, options), empty={"grants": []})
    _some_words(options, "grant")
    return _with_store(options, lambda store: _revoke(store, options, "grant"))


async def _list_grants(store: SqliteStore, options: argparse.Namespace) -> int:
    now = time.time()
    found = [one for one in await store.consents(subject=options.subject) if options.all or one.valid(now)]
    if options.json:
        show_json({"grants": [_grant_json(one, now) for one in found]})
        return 0
    rows = [
        (
            one.id,
            clean_line(one.client_name or one.client, 40),
            clean_line(one.subject, 40),
            _state(one, now),
            moments.shown(one.created),
            moments.shown(one.expires),
            moments.shown(one.last_used),
            str(one.scopes),
        )
        for one in found
    ]
    if not rows and await store.consents(subject=options.subject):
        show("No grant is in force. --all shows those that have ended.")
        return 0
    columns = ("id", "client", "subject", "state", "created", "expires", "last used", "scopes")
    whose = "nobody has" if options.subject is None else f"{clean_line(options.subject, 128)} has not"
    return _table(columns, rows, f"No grants: {whose} allowed an OAuth client anything.")


def _grant_json(one: Consent, now: float) -> dict[str, Any]:
    return {
        "id": one.id,
        "client": one.client,
        "clientName": one.client_name,
        "subject": one.subject,
        "scopes": list(one.scopes),
        "resource": one.resource,
        "key": one.key,
        "created": moments.written(one.created),
        "expires": moments.written(one.expires),
        "lastUsed": moments.written(one.last_used),
        "revoked": moments.written(one.revoked),
        "state": _state(one, now),
    }


# audit


def audit(options: argparse.Namespace) -> int:
    from pi_mcp.access import AuditFilter

    now = time.time()
    if options.limit is not None and options.limit < 1:
        raise failure("usage", "command", None, "--limit has to be at least 1.")
    for name, words in (("action", ACTIONS), ("outcome", OUTCOMES)):
        word = getattr(options, name)
        if word is not None and word not in words:
            problem = f"No row has the {name} {clean_line(word, 40)!r}."
            raise failure("usage", "command", None, problem, f"--{name} takes one of {', '.join(words)}.")
    which = AuditFilter(
        since=moments.back(options.since, "--since", now) if options.since else None,
        until=moments.back(options.until, "--until", now) if options.until else None,
        subject=options.subject,
        credential=options.credential,
        server=options.server,
        tool=options.tool,
        action=options.action,
        outcome=options.outcome,
        session=options.session,
        request=options.request,
        limit=50 if options.limit is None else options.limit,
    )
    if options.export:
        return _with_store(options, lambda store: _export(store, which, options.limit), empty={})
    return _with_store(options, lambda store: _list_audit(store, which, options), empty={"rows": [], "count": 0})


async def _list_audit(store: SqliteStore, which: AuditFilter, options: argparse.Namespace) -> int:
    rows, count = await store.audit(which), await store.count_audit(which)
    if options.json:
        show_json({"rows": [_row_json(row) for row in rows], "count": count})
        return 0
    shown = [
        (
            moments.written(row.time) or "",
            clean_line(row.subject, 40),
            row.credential,
            row.action,
            clean_line(".".join(part for part in (row.server, row.tool) if part), 80),
            row.outcome,
            "" if row.duration is None else f"{row.duration:.3f} s",
            clean_line(row.input or "", 120),
        )
        for row in rows
    ]
    columns = ("time", "subject", "credential", "action", "tool", "outcome", "duration", "input")
    code = _table(columns, shown, "No rows.")
    if count > len(rows):
        _aside(f"{len(rows)} of {count}; --limit shows more, --export all.")
    return code


async def _export(store: SqliteStore, which: AuditFilter, limit: int | None) -> int:
    """JSON Lines, page by page: a trail may be larger than the memory."""
    from dataclasses import replace

    left, after = limit, None
    while left is None or left > 0:
        size = EXPORT_PAGE if left is None else min(EXPORT_PAGE, left)
        page = await store.audit(replace(which, limit=size, oldest_first=True, after=after))
        for row in page:
            sys.stdout.write(json.dumps(_row_json(row), ensure_ascii=True, separators=(",", ":")) + "\n")
        if len(page) < size:
            break
        after = page[-1].id
        left = None if left is None else left - len(page)
    return 0


def _row_json(row: AuditRow) -> dict[str, Any]:
    """`duration` in seconds, to the millisecond; `client` is an OAuth client's id."""
    return {
        "id": row.id,
        "time": moments.written(row.time),
        "request": row.request,
        "session": row.session,
        "subject": row.subject,
        "credential": row.credential,
        "credentialKind": row.credential_kind,
        "client": row.client,
        "server": row.server,
        "tool": row.tool,
        "action": row.action,
        "input": row.input,
        "affected": list(row.affected),
        "scope": row.scope,
        "outcome": row.outcome,
        "duration": None if row.duration is None else round(row.duration, 3),
    }


# shared


def _with_store(
    options: argparse.Namespace,
    work: Callable[[SqliteStore], Awaitable[int]],
    *,
    create: bool = False,
    empty: Mapping[str, Any] | None = None,
) -> int:
    """Run `work` with the store. `empty`: what there is to show where nobody has made a store yet."""
    from pi_mcp.store import open_store

    async def run() -> int:
        try:
            store = await open_store(options.store, create=create)
        except PiMcpError as error:
            if error.diagnostic.code != "not_found" or options.store is not None:
                raise
            if empty is not None and options.json:
                show_json(empty)
                return 0
            hint = "`pi-mcp keys create --scope …` makes one."
            if empty is not None:
                _aside(f"There is no store yet. {hint}")
                return 0
            raise failure("not_found", "command", None, "There is no store yet.", hint) from None
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def _some_words(options: argparse.Namespace, what: str) -> None:
    if not options.words:
        raise failure("usage", "command", None, "Say which.", f"`pi-mcp {what}s list` shows the ids.")


def _no_words(options: argparse.Namespace) -> None:
    if options.words:
        raise failure("usage", "command", None, f"`list` takes no {clean_line(options.words[0], 40)!r}.")


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], nothing: str) -> int:
    from pi_mcp.cli.listing import listed

    if rows:
        print(listed(columns, rows, terminal_columns(sys.stdout)))
    else:
        show(nothing)
    return 0


def _aside(text: str) -> None:
    """For the person, and not for a pipe."""
    show(text, error=True)
