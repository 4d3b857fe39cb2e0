"""The store: what is put in comes out, ends when it should, and is used once where once is meant."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.access import (
    AuditFilter,
    AuditRow,
    Client,
    Code,
    Consent,
    Key,
    Limits,
    Once,
    Scopes,
    SignIn,
    SigningKey,
    Store,
    Token,
)
from pi_mcp.access.secrets import digest, mint, new_id
from pi_mcp.errors import PiMcpError
from pi_mcp.store import SqliteStore, open_store
from tests.support import run

NOW = time.time()


@contextlib.asynccontextmanager
async def store_at(path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_store(path)
    try:
        yield store
    finally:
        await store.close()


def with_store(folder: Path, work: Any) -> Any:
    async def main() -> Any:
        async with store_at(folder / "store.sqlite3") as store:
            return await work(store)

    return run(main())


def key(**members: Any) -> Key:
    made = mint("key")
    return replace(Key(made.id, made.digest, "ann", Scopes.of(["tools:read"]), NOW), **members)


def consent(**members: Any) -> Consent:
    made = Consent(new_id("g"), "ann", "client", "Client", Scopes.of(["tools:read"]), "https://gw/mcp", NOW)
    return replace(made, **members)


def token(of: Consent, kind: Any = "refresh", **members: Any) -> Token:
    made = mint("refresh" if kind == "refresh" else "access")
    return replace(
        Token(made.id, made.digest, kind, "f1", of.id, of.client, of.subject, of.scopes, of.resource, NOW, NOW + 600),
        **members,
    )


def code(of: Consent, **members: Any) -> Code:
    made = mint("code")
    return replace(
        Code(
            made.id, made.digest, of.id, of.client, "http://127.0.0.1/cb", of.scopes, of.resource, "ch", NOW, NOW + 60
        ),
        **members,
    )


async def issue(store: SqliteStore, of: Consent, *tokens: Token) -> None:
    """Tokens as a program gets them: for a code."""
    used = code(of)
    await store.add_code(used)
    assert await store.redeem_code(used.id, NOW, tokens) == "rotated"


def row(**members: Any) -> AuditRow:
    return replace(AuditRow(new_id("e"), NOW, "ann", "k1", "key", "write", server="s", tool="t"), **members)


def test_a_store_is_what_the_gateway_is_handed(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        handed: Store = store  # the type checker's test as much as ours
        assert await handed.keys() == []

    with_store(tmp_path, work)


def test_every_kind_of_record_comes_out_as_it_was_put_in(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        full = key(
            label="büro", expires=NOW + 5, scopes=Scopes.of(["server:a%20b:*", "admin"]), limits=Limits(1, None, 3)
        )
        await store.add_key(full)
        assert await store.key(full.id) == full
        assert await store.keys() == [full]
        assert await store.keys(subject="ben") == []
        signed = SignIn("s1", b"d", "ann", full.scopes, NOW, NOW + 60, key=None)
        await store.add_sign_in(signed)
        assert await store.sign_in("s1") == signed
        client = Client("https://c/meta", "document", {"redirect_uris": ["http://x"]}, NOW, b"s", NOW + 9, None)
        await store.put_client(client)
        await store.put_client(replace(client, metadata={"client_name": "ä"}))
        assert await store.client(client.id) == replace(client, metadata={"client_name": "ä"})
        assert await store.count_clients(since=NOW + 1) == 0
        given = consent()
        await store.add_consent(given)
        assert await store.consents() == [given]
        issued = code(given)
        await store.add_code(issued)
        assert await store.code(issued.id) == issued
        made = token(given, "access")
        await issue(store, given, made)
        assert await store.token(made.id) == made
        signing = SigningKey("j1", "ES256", {"kty": "EC"}, NOW)
        assert await store.add_signing_key(signing)
        assert await store.signing_keys() == [signing]
        audited = row(request="7", session="x", client="c", input='{"a": 1}', affected=("1", "ü"), scope="tools:write")
        await store.open_call(audited)
        assert await store.audit(AuditFilter()) == [audited]

    with_store(tmp_path, work)


def test_what_was_kept_is_there_after_the_store_was_opened_anew(tmp_path: Path) -> None:
    kept = key()
    with_store(tmp_path, lambda store: store.add_key(kept))
    assert with_store(tmp_path, lambda store: store.key(kept.id)) == kept


def test_a_revoked_key_takes_its_sign_ins_and_grants_along(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        kept = key()
        given = consent(key=kept.id)
        made = token(given, "access")
        await store.add_key(kept)
        await store.add_sign_in(SignIn("s1", b"d", "ann", kept.scopes, NOW, NOW + 60, key=kept.id))
        await store.add_consent(given)
        await issue(store, given, made)
        before = await store.revision()
        assert await store.revoke_key(kept.id, NOW)
        assert await store.revision() > before
        assert not await store.revoke_key(kept.id, NOW)
        assert not await store.revoke_key("nobody", NOW)
        assert await store.sign_in("s1") is None
        assert await store.consent(given.id) is None
        assert await store.token(made.id) is None
        assert await store.rotate(made.id, NOW, []) == "unknown"

    with_store(tmp_path, work)


def test_a_change_by_another_process_is_seen_at_once(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        async with store_at(store.path) as second:
            kept, late = key(), key()
            await store.add_key(kept)
            for _ in range(3):
                assert await store.key(kept.id) == kept
                assert await store.key(late.id) is None
            await second.add_key(late)
            assert await store.key(late.id) == late
            assert await second.revoke_key(kept.id, NOW)
            found = await store.key(kept.id)
            assert found is not None
            assert found.revoked == NOW
            await second.record(row())
            assert await store.key(late.id) == late

    with_store(tmp_path, work)


def test_what_came_from_an_expired_key_is_worth_nothing(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        old = key(expires=NOW - 1)
        given = consent(key=old.id)
        await store.add_key(old)
        await store.add_sign_in(SignIn("s1", b"d", "ann", old.scopes, NOW, NOW + 60, key=old.id))
        await store.add_consent(given)
        issued = code(given)
        await store.add_code(issued)
        assert await store.sign_in("s1") is None
        assert await store.consent(given.id) is None
        assert await store.redeem_code(issued.id, NOW, []) == "unknown"

    with_store(tmp_path, work)


def test_of_many_who_take_a_link_one_gets_it(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        async with store_at(store.path) as second:
            made = mint("link")
            link = Once("link", made.id, made.digest, NOW + 3600, "ann", Scopes.everything(), {"to": "/"})
            assert await store.keep(link)
            assert not await second.keep(link)
            assert await second.peek("link", made.id, NOW) == link
            assert await store.take("link", made.id, digest("wrong"), NOW) is None
            tries = [one.take("link", made.id, made.digest, NOW) for one in (store, second) for _ in range(8)]
            taken = [one for one in await asyncio.gather(*tries) if one is not None]
            assert taken == [link]
            assert await store.peek("link", made.id, NOW) is None
            assert not await store.keep(link), "used, and not yet expired: it was seen"

    with_store(tmp_path, work)


def test_an_expired_link_is_not_given_out_and_its_id_is_free_again(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        old = Once("link", "j", b"", NOW - 5)
        assert await store.keep(old)
        assert await store.take("link", "j", b"", NOW) is None
        assert await store.keep(replace(old, expires=NOW + 60))
        assert await store.purge(NOW + 61) == 1

    with_store(tmp_path, work)


def test_a_code_is_redeemed_once_and_its_second_use_ends_its_tokens(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        given = consent()
        await store.add_consent(given)
        issued = code(given)
        await store.add_code(issued)
        made = token(given)
        assert await store.redeem_code("nothing", NOW, []) == "unknown"
        assert await store.redeem_code(issued.id, issued.expires, []) == "unknown"
        assert await store.redeem_code(issued.id, NOW, [made]) == "rotated"
        other = token(given)
        assert await store.redeem_code(issued.id, NOW, [other]) == "reused"
        kept = await store.token(made.id)
        assert kept is not None
        assert kept.revoked == NOW
        assert await store.token(other.id) is None

    with_store(tmp_path, work)


def test_of_two_rotations_at_once_one_wins_and_the_other_ends_the_family(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        async with store_at(store.path) as second:
            given = consent()
            await store.add_consent(given)
            first, sibling, stranger = token(given), token(given, "access"), token(given, family="f2")
            await issue(store, given, first, sibling, stranger)
            before = await store.revision()
            new = [token(given) for _ in range(2)]
            outcomes = await asyncio.gather(store.rotate(first.id, NOW, new[:1]), second.rotate(first.id, NOW, new[1:]))
            assert sorted(outcomes) == ["reused", "rotated"]
            assert await store.revision() > before
            states = [await store.token(one.id) for one in (first, sibling, *new)]
            assert all(one is None or one.revoked is not None for one in states)
            assert sum(one is not None for one in states) == 3
            left = await store.token(stranger.id)
            assert left is not None
            assert left.valid(NOW)
            assert await store.rotate(stranger.id, stranger.expires, []) == "unknown"

    with_store(tmp_path, work)


def test_a_revoked_consent_ends_its_tokens_and_no_others(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        one, two = consent(), consent(client="other")
        for given in (one, two):
            await store.add_consent(given)
        first, second = token(one), token(two)
        await issue(store, one, first)
        await issue(store, two, second)
        assert await store.revoke_consent(one.id, NOW)
        assert not await store.revoke_consent(one.id, NOW)
        assert await store.token(first.id) is None
        assert await store.token(second.id) == second

    with_store(tmp_path, work)


def test_two_processes_do_not_both_replace_the_signing_key(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        assert await store.add_signing_key(SigningKey("a", "ES256", {}, NOW))
        assert not await store.add_signing_key(SigningKey("b", "ES256", {}, NOW))
        assert await store.add_signing_key(SigningKey("b", "ES256", {}, NOW + 1), replaces="a", until=NOW + 9000)
        assert not await store.add_signing_key(SigningKey("c", "ES256", {}, NOW + 2), replaces="a", until=NOW + 9000)
        found = [(one.id, one.retired, one.expires) for one in await store.signing_keys()]
        assert found == [("b", None, None), ("a", NOW + 1, NOW + 9000)]
        assert await store.add_signing_key(SigningKey("c", "ES256", {}, NOW + 2), replaces="b", until=NOW - 1)
        assert [one.id for one in await store.signing_keys()] == ["c", "a"]
        assert await store.purge(NOW + 9001) == 2
        assert [one.id for one in await store.signing_keys()] == ["c"]

    with_store(tmp_path, work)


def test_the_last_use_is_written_at_the_latest_when_the_store_is_closed(tmp_path: Path) -> None:
    kept = key()

    async def work(store: SqliteStore) -> None:
        await store.add_key(kept)
        for second in range(5):
            store.used("key", kept.id, NOW + second)

    with_store(tmp_path, work)
    found = with_store(tmp_path, lambda store: store.key(kept.id))
    assert found.last_used == NOW + 4


def test_a_row_is_closed_once(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        opened = row()
        await store.open_call(opened)
        await store.close_call(opened.id, "ok", 0.25, affected=["i1"])
        assert await store.audit(AuditFilter()) == [replace(opened, outcome="ok", duration=0.25, affected=("i1",))]
        for id in (opened.id, "nothing"):
            with pytest.raises(PiMcpError):
                await store.close_call(id, "error", 1.0)

    with_store(tmp_path, work)


def test_the_trail_is_filtered_and_paged(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        all_rows = [
            row(time=NOW + number, server=f"s{number % 2}", outcome="refused" if number % 3 else "ok")
            for number in range(20)
        ]
        for one in all_rows:
            await store.record(one)
        newest = await store.audit(AuditFilter(limit=3))
        assert list(newest) == all_rows[:-4:-1]
        assert list(await store.audit(AuditFilter(limit=2, after=newest[-1].id))) == all_rows[-4:-6:-1]
        assert list(await store.audit(AuditFilter(oldest_first=True, limit=None))) == all_rows
        assert len(await store.audit(AuditFilter(server="s0", outcome="ok"))) == 4
        assert len(await store.audit(AuditFilter(since=NOW + 5, until=NOW + 8))) == 3
        assert await store.count_audit(AuditFilter(server="s1", limit=1)) == 10
        assert await store.audit(AuditFilter(subject="x' OR 1=1 --")) == []
        # A page after one that was removed meanwhile would end the reading as if there were no more.
        await store.prune_audit(before=NOW + 3)
        with pytest.raises(PiMcpError, match="not all"):
            await store.audit(AuditFilter(oldest_first=True, after=all_rows[2].id))

    with_store(tmp_path, work)


def test_the_trail_is_kept_to_an_age_and_a_size_and_calls_under_way_stay(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        under_way = row(time=time.time(), input="x" * 1000)
        await store.open_call(under_way)
        for number in range(100):
            await store.record(row(time=NOW - 1000 + number, outcome="ok", input="x" * 1000))
        assert await store.prune_audit(before=NOW - 950) == 50
        assert await store.prune_audit(max_bytes=15_000) > 30
        left = await store.audit(AuditFilter(oldest_first=True, limit=None))
        assert left[0].id == under_way.id
        assert 8 < len(left) < 16
        assert left[-1].time == NOW - 901
        assert await store.prune_audit(max_bytes=0) == len(left) - 1
        assert await store.prune_audit(before=time.time() + 1) == 1

    with_store(tmp_path, work)


def test_expired_things_go_and_valid_ones_stay(tmp_path: Path) -> None:
    async def work(store: SqliteStore) -> None:
        given = consent()
        await store.add_consent(given)
        old, good = token(given, expires=NOW - 1), token(given)
        await issue(store, given, old, good)
        await store.add_code(code(given, expires=NOW - 1))
        await store.put_client(Client("old", "document", {}, NOW, expires=NOW - 1))
        await store.put_client(Client("good", "document", {}, NOW))
        ended = [consent(id=f"g{days}", expires=NOW - days * 86400) for days in (1, 366)]
        for one in ended:
            await store.add_consent(one)
        await store.add_sign_in(SignIn("s1", b"d", "ann", Scopes(), NOW - 9, NOW - 1))
        assert await store.purge(NOW) == 5
        assert {one.id for one in await store.consents()} == {given.id, "g1"}
        assert await store.token(good.id) == good
        assert await store.client("old") is None
        assert await store.client("good") is not None

    with_store(tmp_path, work)
