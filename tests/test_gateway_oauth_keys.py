"""The signing keys of the embedded authorization server: several processes, and replacement."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pi_mcp.server.oauth.keys import ROTATE, Keys
from pi_mcp.store import open_store
from tests.support import run

OVERLAP = 3660.0


def test_several_processes_agree_on_the_key_that_signs(tmp_path: Path) -> None:
    async def work() -> None:
        now = [2_000_000_000.0]
        stores = [await open_store(tmp_path / "store.sqlite3") for _ in range(3)]
        try:
            processes = [Keys(store, overlap=OVERLAP, clock=lambda: now[0]) for store in stores]
            first = await asyncio.gather(*(keys.signing() for keys in processes for _ in range(3)))
            assert len({key.id for key in first}) == 1
            now[0] += ROTATE
            second = await asyncio.gather(*(keys.signing() for keys in processes for _ in range(3)))
            assert len({key.id for key in second}) == 1
            assert second[0].id != first[0].id
            for keys in processes:
                # What the old key signed a moment ago is still good, for as long as such a token lives.
                assert await keys.verifying(first[0].id) is not None
                assert await keys.verifying("unknown") is None
                assert {one["kid"] for one in (await keys.published())["keys"]} == {first[0].id, second[0].id}
            now[0] += OVERLAP + 1
            for keys in processes:
                assert await keys.verifying(first[0].id) is None
                assert await keys.verifying(second[0].id) is not None
        finally:
            for store in stores:
                await store.close()

    run(work())


def test_a_key_of_another_process_is_found_before_the_next_look(tmp_path: Path) -> None:
    async def work() -> None:
        now = [2_000_000_000.0]
        store = await open_store(tmp_path / "store.sqlite3")
        try:
            ours, theirs = (Keys(store, overlap=OVERLAP, clock=lambda: now[0]) for _ in range(2))
            old = await ours.signing()
            now[0] += 5
            new = await theirs.rotate(old)
            assert await ours.verifying(new.id) is not None
        finally:
            await store.close()

    run(work())


def test_a_key_that_was_made_while_the_clock_was_ahead_is_replaced_when_it_is_right_again(tmp_path: Path) -> None:
    async def work() -> None:
        now = [2_000_000_000.0]
        store = await open_store(tmp_path / "store.sqlite3")
        try:
            keys = Keys(store, overlap=OVERLAP, clock=lambda: now[0])
            ahead = await keys.signing()
            now[0] -= 60  # as the clock of another gateway may differ
            assert (await keys.signing()).id == ahead.id
            now[0] -= ROTATE * 12
            right = await keys.signing()
            assert right.id != ahead.id
            assert (await keys.signing()).id == right.id
            assert await keys.verifying(ahead.id) is not None
        finally:
            await store.close()

    run(work())
