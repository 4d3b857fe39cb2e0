"""The store's file: whose it is, in which form, and what happens when it cannot be used."""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.access import AuditFilter
from pi_mcp.errors import PiMcpError
from pi_mcp.store import database, open_store, opening
from pi_mcp.store.tables import metadata
from tests.support import run
from tests.test_store_records import NOW, key, row, store_at, with_store

SECRET = "planted-secret-1f2e3d"


def path_in(folder: Path) -> Path:
    return folder / "store.sqlite3"


def raw(path: Path, statement: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()


def failing(work: Any) -> PiMcpError:
    with pytest.raises(PiMcpError) as caught:
        run(work)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value.__cause__)
    return caught.value


def test_the_file_is_private_wherever_it_is(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        for place in (path_in(tmp_path), opening.default_path()):

            async def work(place: Path = place) -> None:
                async with store_at(place) as store:
                    await store.add_key(key())
                    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in place.parent.iterdir()}
                    assert {mode for name, mode in modes.items() if name.startswith(place.name)} == {0o600}, modes

            run(work())
    finally:
        os.umask(old)
    assert stat.S_IMODE(opening.default_path().parent.stat().st_mode) == 0o700
    assert run(_default_is_below_the_state_folder())


async def _default_is_below_the_state_folder() -> bool:
    store = await open_store()
    await store.close()
    return opening.default_path().is_file() and ".local/state" in str(opening.default_path())


def test_an_open_mode_is_closed_and_the_folder_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with_store(tmp_path, lambda store: store.add_key(key()))
    path_in(tmp_path).chmod(0o644)
    with_store(tmp_path, lambda store: store.keys())
    assert stat.S_IMODE(path_in(tmp_path).stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_no_link_is_followed_and_no_folder_that_others_write_to_is_used(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"")
    (tmp_path / "link.db").symlink_to(target)
    assert "symbolic link" in str(failing(open_store(tmp_path / "link.db")))
    assert target.read_bytes() == b""
    (tmp_path / "folder.db").mkdir()
    assert failing(open_store(tmp_path / "folder.db")).diagnostic.code == "configuration_invalid"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "by others" in str(failing(open_store(shared / "gw.db")))
    assert list(shared.iterdir()) == []


def test_a_missing_store_is_not_made_by_who_only_looks(tmp_path: Path) -> None:
    error = failing(open_store(path_in(tmp_path), create=False))
    assert error.diagnostic.code == "not_found"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path_in(tmp_path).write_text(f"not a database: {SECRET}\n" * 100)
    before = path_in(tmp_path).read_bytes()
    assert "damaged" in str(failing(open_store(path_in(tmp_path))))
    assert path_in(tmp_path).read_bytes() == before


def test_a_database_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    raw(path_in(tmp_path), "CREATE TABLE theirs (x)")
    before = path_in(tmp_path).read_bytes()
    assert "something else" in str(failing(open_store(path_in(tmp_path))))
    assert path_in(tmp_path).read_bytes() == before


def test_a_store_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    kept = key()
    with_store(tmp_path, lambda store: store.add_key(kept))
    raw(path_in(tmp_path), "UPDATE alembic_version SET version_num = '9999'")
    error = failing(open_store(path_in(tmp_path)))
    assert "newer pi-mcp" in str(error)
    raw(path_in(tmp_path), "UPDATE alembic_version SET version_num = '0001'")
    assert with_store(tmp_path, lambda store: store.key(kept.id)) == kept


def test_a_damaged_page_is_reported_and_other_tables_can_be_read(tmp_path: Path) -> None:
    kept = key()

    async def fill(store: Any) -> None:
        await store.add_key(kept)
        for number in range(300):
            await store.record(row(input=f"{SECRET}{number}" * 20))

    with_store(tmp_path, fill)
    raw(path_in(tmp_path), "PRAGMA wal_checkpoint(TRUNCATE)")
    ((page,),) = raw(path_in(tmp_path), "SELECT rootpage FROM sqlite_master WHERE name = 'audit'")
    ((size,),) = raw(path_in(tmp_path), "PRAGMA page_size")
    with path_in(tmp_path).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    async def work(store: Any) -> None:
        for attempt in (store.audit(AuditFilter()), store.record(row())):
            with pytest.raises(PiMcpError) as caught:
                await attempt
            assert "damaged" in str(caught.value)
            assert SECRET not in str(caught.value)
        assert await store.key(kept.id) == kept

    with_store(tmp_path, work)


def test_a_full_disk_loses_nothing_and_the_store_goes_on_afterwards(tmp_path: Path) -> None:
    async def work(store: Any) -> None:
        first = row()
        await store.open_call(first)
        # The writer's connection is the only one in the pool that was used for writing; SQLite counts pages for it.
        pages = await store._database.write(lambda one: one.exec_driver_sql("PRAGMA page_count").scalar_one())
        limit = "PRAGMA max_page_count="
        await store._database.write(lambda one: one.exec_driver_sql(f"{limit}{pages}").scalar_one())
        with pytest.raises(PiMcpError) as caught:
            await store.record(row(input=SECRET * 10_000))
        assert "full" in str(caught.value)
        assert SECRET not in str(caught.value)
        await store._database.write(lambda one: one.exec_driver_sql(f"{limit}1000000").scalar_one())
        await store.close_call(first.id, "ok", 0.1)
        assert [one.outcome for one in await store.audit(AuditFilter())] == ["ok"]

    with_store(tmp_path, work)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EROFS, "for writing"),
        (errno.EACCES, "for writing"),
        (errno.EIO, "disk failed"),
    ],
)
@pytest.mark.parametrize("what", ["database", "locked"])
def test_a_disk_that_fails_beside_the_database_is_told_as_the_databases_own_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, number: int, said: str
) -> None:
    """Its folder and its lock are on the same disk."""

    def fails(path: Path, **_: Any) -> None:
        raise OSError(number, SECRET, str(path))

    monkeypatch.setattr(opening.files, what, fails)
    assert said in str(failing(open_store(path_in(tmp_path))))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 0.2)


def test_a_store_that_another_program_holds_is_reported_and_usable_again_later(tmp_path: Path, impatient: None) -> None:
    async def work(store: Any) -> None:
        await store.add_key(key())
        holder = sqlite3.connect(store.path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(PiMcpError) as caught:
                await store.add_key(key())
            assert caught.value.diagnostic.code == "timeout"
            assert len(await store.keys()) == 1, "reading goes on meanwhile"
        finally:
            holder.close()
        await store.add_key(key())
        assert len(await store.keys()) == 2

    with_store(tmp_path, work)


def test_a_store_in_its_newest_form_is_opened_without_a_write(tmp_path: Path, impatient: None) -> None:
    """What only looks works on a full disk, and while somebody else writes."""
    kept = key()
    with_store(tmp_path, lambda store: store.add_key(kept))
    holder = sqlite3.connect(path_in(tmp_path), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        assert with_store(tmp_path, lambda store: store.keys()) == [kept]
    finally:
        holder.close()


def test_one_write_that_fails_does_not_undo_those_that_share_its_transaction(tmp_path: Path) -> None:
    kept = key()

    async def work(store: Any) -> None:
        await store.add_key(kept)
        held = threading.Event()
        first = asyncio.ensure_future(store._database.write(lambda _: held.wait(10)))
        others = [asyncio.ensure_future(one) for one in (store.record(row()), store.add_key(kept), store.record(row()))]
        await asyncio.sleep(0)
        held.set()
        results = await asyncio.gather(*others, return_exceptions=True)
        assert await first
        assert [isinstance(one, PiMcpError) for one in results] == [False, True, False]
        assert await store.count_audit(AuditFilter()) == 2

    with_store(tmp_path, work)


def test_the_loop_goes_on_while_the_disk_is_waited_for(tmp_path: Path) -> None:
    async def work(store: Any) -> None:
        held = threading.Event()
        slow = asyncio.ensure_future(store._database.write(lambda _: held.wait(10)))
        waiting = asyncio.ensure_future(store.record(row()))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiting.done()
        assert await store.keys() == []
        held.set()
        await asyncio.gather(slow, waiting)

    with_store(tmp_path, work)


def test_a_cancelled_write_that_has_not_begun_is_not_made(tmp_path: Path) -> None:
    async def work(store: Any) -> None:
        begun, held = threading.Event(), threading.Event()
        slow = asyncio.ensure_future(store._database.write(lambda _: begun.set() or held.wait(10)))
        await asyncio.to_thread(begun.wait, 10)
        waiting = asyncio.ensure_future(store.record(row()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        held.set()
        await slow
        await store.record(row())
        assert await store.count_audit(AuditFilter()) == 1

    with_store(tmp_path, work)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        store = await open_store(path_in(tmp_path))
        await store.close()
        await store.close()
        store.used("key", "k", NOW)
        for attempt in (store.keys(), store.record(row())):
            with pytest.raises(PiMcpError):
                await attempt

    run(work())


def test_several_who_open_a_new_store_at_once_all_get_it(tmp_path: Path) -> None:
    async def work() -> None:
        stores = await asyncio.gather(*(open_store(path_in(tmp_path)) for _ in range(6)))
        try:
            kept = [key() for _ in stores]
            await asyncio.gather(*(store.add_key(one) for store, one in zip(stores, kept, strict=True)))
            assert {one.id for one in await stores[0].keys()} == {one.id for one in kept}
        finally:
            for store in stores:
                await store.close()

    run(work())


def test_the_migrations_end_in_the_tables_that_the_code_describes(tmp_path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with_store(tmp_path, lambda store: store.keys())
    engine = database.engine_for(path_in(tmp_path))
    try:
        with engine.connect() as connection:
            assert compare_metadata(MigrationContext.configure(connection), metadata()) == []
    finally:
        engine.dispose()


def test_an_older_store_is_brought_up_in_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A migration that fails half way leaves the file as it was."""
    from alembic import command

    def half(config: Any, target: str) -> None:
        config.attributes["connection"].exec_driver_sql("CREATE TABLE half (x)")
        raise RuntimeError(SECRET)

    with monkeypatch.context() as patched:
        patched.setattr(command, "upgrade", half)
        assert failing(open_store(path_in(tmp_path))).diagnostic.code == "operation_failed"
    assert raw(path_in(tmp_path), "SELECT name FROM sqlite_master") == []
    with_store(tmp_path, lambda store: store.add_key(key()))


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_no_longer_the_store_is_neither_believed_nor_written(tmp_path: Path, how: str) -> None:
    """A gateway that went on with it would hear of no revoked key, and its audit rows would be nowhere."""

    async def work() -> None:
        place, away = tmp_path / "store.sqlite3", tmp_path / "away"
        store = await open_store(place)
        try:
            await store.add_key(key(id="k1"))
            assert await store.key("k1") is not None
            place.rename(away)
            if how == "replaced":
                await (await open_store(place)).close()
            for asked in (store.key("k1"), store.keys(), store.open_call(row(id="e1"))):
                with pytest.raises(PiMcpError) as caught:
                    await asked
                assert "removed or replaced" in caught.value.diagnostic.message
            if how == "removed":
                away.rename(place)
                assert await store.key("k1") is not None
                await store.open_call(row(id="e1"))
        finally:
            await store.close()

    run(work())
