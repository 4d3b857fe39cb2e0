"""The store of logins: what it keeps, for whom, and what it does where keyrings fail, crash, forget or hang."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.auth.index import id_of
from pi_mcp.auth.os_keyring import LIMIT
from pi_mcp.auth.records import from_json, to_json
from pi_mcp.auth.store import CredentialStore
from pi_mcp.cli.serve_oauth import SECRET
from pi_mcp.connect.command import child_environment
from pi_mcp.errors import PiMcpError
from pi_mcp.hosts.terminal.model import OWN_KEY
from tests.auth_store_support import (
    KEY,
    PLANTED,
    URL,
    Crash,
    CrashingKeyring,
    FailingKeyring,
    ForgetfulKeyring,
    HangingKeyring,
    MemoryKeyring,
    credential,
    files_below,
    newer,
    resolved_of,
    store_of,
)
from tests.support import run

ROOT = Path(__file__).resolve().parent.parent


async def unavailable(work: Any, code: str = "credential_store_unavailable") -> PiMcpError:
    with pytest.raises(PiMcpError) as caught:
        await work
    assert caught.value.diagnostic.code == code
    shown = json.dumps(caught.value.diagnostic.to_json()) + repr(caught.value) + repr(caught.value.__cause__)
    assert PLANTED not in shown
    return caught.value


def kinds(tmp_path: Path, kind: str) -> CredentialStore:
    return store_of(tmp_path, MemoryKeyring() if kind == "keyring" else None)


def sealed_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.sealed"))


# -- keeping


@pytest.mark.parametrize("kind", ["keyring", "file"])
@pytest.mark.parametrize("size", [0, 900, 1280, 5000, 60_000])
def test_what_was_saved_is_loaded_again_by_another_process(tmp_path: Path, kind: str, size: int) -> None:
    keyring = MemoryKeyring() if kind == "keyring" else None
    saved = credential(size=size)

    async def main() -> None:
        await store_of(tmp_path, keyring).save(saved)
        assert await store_of(tmp_path, keyring).load("s", URL) == saved

    run(main())


def test_a_record_survives_json_and_shows_no_secret() -> None:
    saved = credential()
    assert from_json(json.loads(json.dumps(to_json(saved)))) == saved
    assert PLANTED not in repr(saved)


@pytest.mark.parametrize("kind", ["keyring", "file"])
def test_b148_two_names_with_one_url_have_their_own_logins(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        store = kinds(tmp_path, kind)
        one, two = credential("a", number=1), credential("b", number=2)
        await store.save(one)
        await store.save(two)
        assert await store.load("a", URL) == one
        assert await store.load("b", URL) == two
        await store.delete("a")
        assert await store.load("a", URL) is None
        assert await store.load("b", URL) == two

    run(main())


@pytest.mark.parametrize("kind", ["keyring", "file"])
def test_b149_a_login_is_for_its_name_and_address_alone(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        store = kinds(tmp_path, kind)
        await store.save(credential("s", "https://one.example/mcp"))
        assert await store.load("s", "https://two.example/mcp") is None
        assert await store.load("t", "https://one.example/mcp") is None
        moved = store.elsewhere("s", "https://two.example/mcp")
        renamed = store.elsewhere("t", "https://one.example/mcp")
        assert moved is not None
        assert moved.url_shown == "https://one.example/mcp"
        assert renamed is not None
        assert renamed.server == "s"
        assert store.elsewhere("other", "https://three.example/mcp") is None

    run(main())


def test_a_login_is_read_once_and_again_when_another_process_changed_it(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring()
        mine, other = store_of(tmp_path, keyring), store_of(tmp_path, keyring)
        first = credential()
        await mine.save(first)
        assert await other.load("s", URL) == first
        before = len(keyring.calls)
        for _ in range(100):
            assert await other.load("s", URL) == first
        assert len(keyring.calls) == before
        second = newer(first, 2)
        await mine.save(second, renewed=True)
        assert await other.load("s", URL) == second
        await mine.delete("s")
        assert await other.load("s", URL) is None

    run(main())


def test_many_who_ask_at_once_read_the_keyring_once_and_off_the_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring()
        await store_of(tmp_path, keyring).save(credential())
        keyring.calls.clear()
        store = store_of(tmp_path, keyring)
        await asyncio.gather(*(store.load("s", URL) for _ in range(20)))
        assert keyring.calls == ["get"]
        assert keyring.threads == {"pi-mcp credentials"}

    run(main())


def test_a_server_without_a_login_never_touches_the_keyring(tmp_path: Path) -> None:
    keyring = FailingKeyring(lambda: RuntimeError(PLANTED))

    async def main() -> None:
        store = store_of(tmp_path, keyring)
        assert await store.load("s", URL) is None
        assert await store.delete("s") == []
        assert await store.stored() == []
        assert store.entry("s", URL) is None

    run(main())


# -- the index


def test_the_index_says_what_is_stored_and_holds_no_secret(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_of(tmp_path, MemoryKeyring())
        url = f"https://me:{PLANTED}@mcp.example/mcp?token={PLANTED}"
        saved = credential("s", url, size=4000)
        await store.save(saved)
        (entry,) = await store.stored()
        assert (entry.server, entry.issuer, entry.scopes) == ("s", "https://login.example", ("read", "write"))
        assert entry.expires_at == saved.tokens.expires_at
        assert entry.renewable
        assert abs(entry.saved_at - time.time()) < 5
        assert entry.url_shown.startswith("https://")
        assert "mcp.example/mcp" in entry.url_shown
        assert PLANTED not in files_below(tmp_path)

    run(main())


def test_b209_logins_of_servers_that_are_configured_no_more_are_listed_and_removed(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring()
        await store_of(tmp_path, keyring).save(credential("gone", size=3000))
        await store_of(tmp_path, environ=KEY).save(credential("sealed"))
        store = store_of(tmp_path, keyring)
        assert [(one.server, one.place) for one in await store.stored()] == [("gone", "keyring"), ("sealed", "file")]
        for entry in await store.stored():
            await store.delete(entry.server)
        assert await store.stored() == []
        assert keyring.entries == {}
        assert not sealed_in(tmp_path)

    run(main())


def test_another_login_has_another_catalog_and_a_renewal_has_not(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_of(tmp_path, MemoryKeyring())
        resolved = resolved_of("s", URL)
        assert store.credential_id(resolved) is None
        await store.save(credential())
        first = store.credential_id(resolved)
        assert first is not None
        await store.save(credential(number=2), renewed=True)
        assert store.credential_id(resolved) == first
        await store.save(credential(number=3))
        assert store.credential_id(resolved) not in (None, first)

    run(main())


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"version": 99, "entries": []}', b'{"version":1,"entries":[{}]}']
)
def test_a_damaged_index_is_empty_and_kept_aside(tmp_path: Path, damage: bytes) -> None:
    async def main() -> None:
        store = store_of(tmp_path, MemoryKeyring())
        await store.save(credential())
        index = tmp_path / "credentials/index.json"
        index.write_bytes(damage)
        assert await store.load("s", URL) is None
        await store.save(credential("t"))
        assert [one.server for one in await store.stored()] == ["t"]
        aside = tmp_path / "credentials/index.json.1"
        assert not damage or aside.read_bytes() == damage

    run(main())


# -- parts


def test_b154_no_entry_is_longer_than_windows_takes(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring(limit=1280)
        store = store_of(tmp_path, keyring)
        saved = credential(size=4000)
        await store.save(saved)
        assert len(keyring.entries) > 3
        assert max(len(value.encode("utf-16-le")) // 2 for value in keyring.entries.values()) == LIMIT
        assert await store_of(tmp_path, keyring).load("s", URL) == saved

    run(main())


def test_b155_a_shorter_login_after_a_longer_one_leaves_no_parts_and_removal_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring()
        store = store_of(tmp_path, keyring)
        await store.save(credential(size=5000))
        long = len(keyring.entries)
        short = credential(size=500, number=2)
        await store.save(short)
        assert len(keyring.entries) < long
        assert await store_of(tmp_path, keyring).load("s", URL) == short
        await store.delete("s")
        assert keyring.entries == {}

    run(main())


@pytest.mark.parametrize("sizes", [(5000, 4000), (5000, 0), (0, 5000), (0, 0), (2000, 2000)])
def test_b154_a_crash_at_any_point_leaves_the_old_login_or_the_new_one(tmp_path: Path, sizes: tuple[int, int]) -> None:
    old, new = credential(size=sizes[0]), credential(size=sizes[1], number=2)

    async def main() -> None:
        seen = set()
        for after in range(100):
            folder = tmp_path / str(after)
            keyring = MemoryKeyring()
            await store_of(folder, keyring).save(old)
            crashing = CrashingKeyring(after, keyring.entries)
            try:
                await store_of(folder, crashing).save(new)
            except Crash:
                pass
            else:
                break
            keyring.entries = crashing.entries
            found = await store_of(folder, keyring).load("s", URL)
            assert found in (old, new)
            seen.add(found == new)
            # The next login or the removal finds what the crash left lying about.
            again = store_of(folder, keyring)
            if after % 2:
                await again.save(credential(size=100, number=3))
            await again.delete("s")
            assert keyring.entries == {}
        assert False in seen

    run(main())


@pytest.mark.parametrize("size", [0, 4000])
def test_a_crash_in_the_first_login_leaves_nothing_that_cannot_be_found(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        for after in range(20):
            folder, saved = tmp_path / str(after), credential(size=size)
            crashing = CrashingKeyring(after, {})
            try:
                await store_of(folder, crashing).save(saved)
            except Crash:
                pass
            else:
                break
            keyring = MemoryKeyring()
            keyring.entries = crashing.entries
            store = store_of(folder, keyring)
            assert await store.load("s", URL) in (None, saved)
            for entry in await store.stored():
                await store.delete(entry.server)
            assert keyring.entries == {}
            assert await store.stored() == []

    run(main())


def test_parts_of_two_logins_are_never_read_as_one(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring()
        store = store_of(tmp_path, keyring)
        await store.save(credential(size=4000))
        parts = sorted(service for service, _ in keyring.entries if len(service.split()) == 4)
        for change in ("other", "", None):
            kept = dict(keyring.entries)
            if change is None:
                del keyring.entries[(parts[1], "s")]
            else:
                keyring.entries[(parts[1], "s")] = change
            assert await store_of(tmp_path, keyring).load("s", URL) is None
            keyring.entries = kept
        keyring.entries[(f"pi-mcp {id_of('s', URL)}", "s")] = "something else"
        assert await store_of(tmp_path, keyring).load("s", URL) is None

    run(main())


def test_a_login_that_is_replaced_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    old, new = credential(size=4000), credential(size=3000, number=2)

    async def main() -> None:
        keyring = MemoryKeyring()
        await store_of(tmp_path, keyring).save(old)
        fresh = MemoryKeyring()
        fresh.entries = dict(keyring.entries)
        await store_of(tmp_path, fresh).save(new)

        class Replaced(MemoryKeyring):
            def get_password(self, service: str, username: str) -> str | None:
                found = super().get_password(service, username)
                self.entries = dict(fresh.entries)
                return found

        replaced = Replaced()
        replaced.entries = dict(keyring.entries)
        assert await store_of(tmp_path, replaced).load("s", URL) == new

    run(main())


@pytest.mark.parametrize("always", [False, True])
def test_an_entry_that_goes_between_being_found_and_being_read_is_looked_for_anew(tmp_path: Path, always: bool) -> None:
    secretstorage = pytest.importorskip("secretstorage.exceptions")

    class Shared(MemoryKeyring):
        """Whose entries others take away and replace at any time."""

        def __init__(self) -> None:
            super().__init__()
            self.gone: set[str] = set()
            self.written: set[str] = set()

        def get_password(self, service: str, username: str) -> str | None:
            if always or service not in self.gone:
                self.gone.add(service)
                raise secretstorage.ItemNotFoundException(f"Item does not exist! {PLANTED}")
            self.gone.discard(service)
            return super().get_password(service, username)

        def set_password(self, service: str, username: str, password: str) -> None:
            super().set_password(service, username, password)
            if service not in self.written:
                self.written.add(service)
                raise secretstorage.ItemNotFoundException(PLANTED)

        def delete_password(self, service: str, username: str) -> None:
            super().delete_password(service, username)
            raise secretstorage.ItemNotFoundException(PLANTED)

    async def main() -> None:
        keyring = Shared()
        store = store_of(tmp_path, keyring)
        if always:
            assert "The credential store failed." in str(await unavailable(store.check()))
            return
        saved = credential(size=3000)
        await store.save(saved)
        assert await store_of(tmp_path, keyring).load("s", URL) == saved
        await store.delete("s")
        assert keyring.entries == {}

    run(main())


# -- keyrings that fail


def locked() -> Exception:
    from keyring.errors import KeyringLocked

    return KeyringLocked(PLANTED)


def absent() -> Exception:
    from keyring.errors import NoKeyringError

    return NoKeyringError(PLANTED)


def dismissed() -> Exception:
    from keyring.errors import InitError

    return InitError(PLANTED)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (locked, "locked"),
        (absent, "no credential store"),
        (dismissed, "set up"),
        (lambda: OSError(1783, PLANTED), "failed"),
    ],
)
def test_a_keyring_that_fails_says_how_and_erases_nothing(tmp_path: Path, error: Any, word: str) -> None:
    async def main() -> None:
        good, saved = MemoryKeyring(), credential()
        await store_of(tmp_path, good).save(saved)
        before = files_below(tmp_path), dict(good.entries)
        store = store_of(tmp_path, FailingKeyring(error))
        for work in (
            store.load("s", URL),
            store.save(credential(number=2)),
            store.delete("s"),
            store.check("s"),
        ):
            raised = await unavailable(work)
            assert word in raised.diagnostic.message
        assert (files_below(tmp_path), good.entries) == before
        assert await store_of(tmp_path, good).load("s", URL) == saved

    run(main())


def test_b152_a_store_that_keeps_nothing_is_found_out_when_it_is_read_back(tmp_path: Path) -> None:
    from keyring.backends import fail, null

    async def main() -> None:
        for number, backend in enumerate((ForgetfulKeyring(), fail.Keyring(), null.Keyring())):
            store = store_of(tmp_path / str(number), backend)
            await unavailable(store.save(credential(size=3000 * number)))
            assert await store.load("s", URL) is None
            assert await store.stored() == []
            if not isinstance(backend, ForgetfulKeyring):
                await unavailable(store.check())

    run(main())


def test_a_null_or_missing_keyring_is_unavailable_for_a_login_that_is_stored(tmp_path: Path) -> None:
    from keyring.backends import fail, null

    async def main() -> None:
        await store_of(tmp_path, MemoryKeyring()).save(credential())
        for backend in (fail.Keyring(), null.Keyring()):
            await unavailable(store_of(tmp_path, backend).load("s", URL))

    run(main())


def test_a_keyring_in_plain_text_is_not_used(tmp_path: Path) -> None:
    class PlaintextKeyring(MemoryKeyring):
        pass

    async def main() -> None:
        keyring = PlaintextKeyring()
        raised = await unavailable(store_of(tmp_path, keyring).save(credential()))
        assert "plain text" in raised.diagnostic.message
        assert keyring.entries == {}

    run(main())


def test_b151_a_keyring_that_forgot_is_no_failure_and_one_that_hangs_is_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        await store_of(tmp_path, MemoryKeyring()).save(credential())
        assert await store_of(tmp_path, MemoryKeyring()).load("s", URL) is None
        hanging = HangingKeyring()
        store = store_of(tmp_path, hanging, time_limit=2.0)
        started = time.monotonic()
        await unavailable(store.load("s", URL))
        assert 1.9 < time.monotonic() - started < 15
        # While that call hangs, no second thread is given to the same prompter.
        started = time.monotonic()
        await unavailable(store.save(credential(number=2)))
        assert time.monotonic() - started < 1.8
        hanging.released.set()
        await asyncio.sleep(0.1)
        assert await store.load("s", URL) is None
        assert hanging.entries == {}, "who gave up wants nothing written later"

    run(main())


def test_nothing_is_written_by_a_save_that_was_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        hanging = HangingKeyring()
        await unavailable(store_of(tmp_path, hanging, time_limit=0.2).save(credential(size=4000)))
        hanging.released.set()
        await asyncio.sleep(0.2)
        assert hanging.entries == {}
        assert await store_of(tmp_path, hanging).stored() == []

    run(main())


def test_a_hanging_keyring_does_not_keep_the_process(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from tests.auth_store_support import HangingKeyring, MemoryKeyring, URL, credential, store_of
async def main():
    folder = Path(sys.argv[1])
    await store_of(folder, MemoryKeyring()).save(credential())
    try:
        await store_of(folder, HangingKeyring(), time_limit=0.3).load("s", URL)
    except Exception as error:
        print(error)
asyncio.run(main())
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", script, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert "credential_store_unavailable" in done.stdout
    assert "Traceback" not in done.stderr
    assert time.monotonic() - started < 20


# -- replacing and removing


@pytest.mark.parametrize("kind", ["keyring", "file"])
def test_b206_logging_out_removes_every_entry_and_hands_out_what_went(tmp_path: Path, kind: str) -> None:
    async def main() -> None:
        keyring = MemoryKeyring() if kind == "keyring" else None
        store = store_of(tmp_path, keyring)
        one, two = credential(size=4000), credential(url="https://other.example/mcp", number=2)
        await store.save(one)
        await store.save(two)
        await store.save(credential("kept"))
        assert await store.delete("s", URL) == [one]
        assert await store.delete("s") == [two]
        assert await store.delete("s") == []
        assert [entry.server for entry in await store.stored()] == ["kept"]
        if keyring is not None:
            assert {user for _, user in keyring.entries} == {"kept"}
        else:
            assert len(sealed_in(tmp_path)) == 1

    run(main())


def test_b208_a_login_stays_until_the_new_one_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        keyring = MemoryKeyring()
        store = store_of(tmp_path, keyring)
        old = credential(size=3000)
        await store.save(old)
        for failing in (FailingKeyring(locked), HangingKeyring()):
            failing.entries = keyring.entries
            await unavailable(store_of(tmp_path, failing, time_limit=0.2).save(credential(number=2)))
            assert await store_of(tmp_path, keyring).load("s", URL) == old
        new = credential(number=3)
        await store.save(new)
        assert await store_of(tmp_path, keyring).load("s", URL) == new

    run(main())


def test_a_file_without_its_key_can_be_removed_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        await store_of(tmp_path, environ=KEY).save(credential())
        other = {"PI_MCP_CREDENTIAL_KEY": "f" * 64}
        store = store_of(tmp_path, environ=other)
        await unavailable(store.load("s", URL))
        assert len(sealed_in(tmp_path)) == 1
        assert await store.delete("s") == []
        assert not sealed_in(tmp_path)
        assert await store.stored() == []

    run(main())


# -- encrypted files


def test_an_encrypted_file_is_private_and_holds_nothing_in_the_clear(tmp_path: Path) -> None:
    async def main() -> None:
        await store_of(tmp_path).save(credential())
        written = files_below(tmp_path)
        assert PLANTED not in written
        assert KEY["PI_MCP_CREDENTIAL_KEY"] not in written
        assert "client-s" not in written
        (sealed,) = sealed_in(tmp_path)
        assert stat.S_IMODE(sealed.stat().st_mode) == 0o600
        assert stat.S_IMODE(sealed.parent.stat().st_mode) == 0o700

    run(main())


@pytest.mark.parametrize(
    "key",
    ["0123456789ABCDEF" * 4, "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
     "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY", "correct horse battery staple", "pässword with ümlauts"],
)  # fmt: skip
@pytest.mark.parametrize("source", ["variable", "file"])
def test_a_key_or_a_passphrase_opens_what_it_sealed_and_no_other_does(tmp_path: Path, key: str, source: str) -> None:
    def environ(text: str) -> dict[str, str]:
        if source == "variable":
            return {"PI_MCP_CREDENTIAL_KEY": text}
        path = tmp_path / "key"
        path.write_text(text + "\n")
        return {"PI_MCP_CREDENTIAL_KEY_FILE": str(path)}

    async def main() -> None:
        saved = credential()
        await store_of(tmp_path / "state", environ=environ(key)).save(saved)
        assert await store_of(tmp_path / "state", environ=environ(key)).load("s", URL) == saved
        for wrong in (key[:-2] + "xQ", "another passphrase", "e" * 64):
            raised = await unavailable(store_of(tmp_path / "state", environ=environ(wrong)).load("s", URL))
            assert "decrypted" in raised.diagnostic.message
            assert wrong not in str(raised)
        assert await store_of(tmp_path / "state", environ=environ(key)).load("s", URL) == saved

    run(main())


def test_a_key_that_cannot_be_used_never_leads_to_another_place(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    unusable = [
        {"PI_MCP_CREDENTIAL_KEY": ""},
        {"PI_MCP_CREDENTIAL_KEY": "  "},
        {"PI_MCP_CREDENTIAL_KEY": "short"},
        {"PI_MCP_CREDENTIAL_KEY_FILE": ""},
        {"PI_MCP_CREDENTIAL_KEY_FILE": str(tmp_path / "missing")},
        {"PI_MCP_CREDENTIAL_KEY_FILE": str(tmp_path)},
        {"PI_MCP_CREDENTIAL_KEY_FILE": str(empty)},
        {**KEY, "PI_MCP_CREDENTIAL_KEY_FILE": str(empty)},
    ]

    async def main() -> None:
        keyring = MemoryKeyring()
        for environ in unusable:
            store = CredentialStore(state_dir=tmp_path / "state", environ=environ, keyring=keyring)
            await unavailable(store.save(credential()))
            await unavailable(store.check())
            assert await store.load("s", URL) is None
        assert keyring.entries == {}
        assert PLANTED not in files_below(tmp_path)

    run(main())


def test_no_stdio_server_is_given_our_own_secrets_with_the_rest_of_the_environment() -> None:
    ours = dict.fromkeys(("PI_MCP_CREDENTIAL_KEY_FILE", OWN_KEY, SECRET), PLANTED)
    others = {"OTHER": "x", "PATH": "/bin", "PI_MCP_CONFIG": "/c.json", "MY_PI_MCP_KEY": "y"}
    environ = {**KEY, **ours, **others}
    assert child_environment(True, environ) == others
    assert child_environment(False, environ) == {"PATH": "/bin"}
    named = child_environment(("PI_MCP_CREDENTIAL_KEY",), environ)
    assert named["PI_MCP_CREDENTIAL_KEY"] == KEY["PI_MCP_CREDENTIAL_KEY"], "who names it means it"


def test_one_sealed_file_does_not_stand_for_another(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_of(tmp_path)
        await store.save(credential("a"))
        await store.save(credential("b"))
        folder = tmp_path / "credentials"
        (folder / f"{id_of('a', URL)}.sealed").replace(folder / f"{id_of('b', URL)}.sealed")
        await unavailable(store_of(tmp_path).load("b", URL))

    run(main())


@pytest.mark.parametrize("damage", [b"", b"{}", b"[]", b'{"version": 2}', b"\x00" * 100, b'{"version":1,"kdf":"hkdf"}'])
def test_a_damaged_sealed_file_counts_as_lost(tmp_path: Path, damage: bytes) -> None:
    async def main() -> None:
        await store_of(tmp_path).save(credential())
        (sealed,) = sealed_in(tmp_path)
        sealed.write_bytes(damage)
        assert await store_of(tmp_path).load("s", URL) is None

    run(main())


def test_a_folder_that_cannot_be_used_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")

    async def main() -> None:
        for keyring in (None, MemoryKeyring()):
            store = store_of(tmp_path / "state", keyring)
            assert await store.load("s", URL) is None
            with pytest.raises(PiMcpError) as caught:
                await store.save(credential())
            assert PLANTED not in str(caught.value)

    run(main())


# -- locks


def test_a_lock_is_nested_within_a_task_and_exclusive_between_tasks(tmp_path: Path) -> None:
    async def main() -> None:
        store = store_of(tmp_path)
        order: list[str] = []
        entered = asyncio.Event()

        async def other() -> None:
            await entered.wait()
            async with store.lock("s", URL):
                order.append("other")

        waiting = asyncio.create_task(other())
        async with store.lock("s", URL):
            entered.set()
            await asyncio.sleep(0.1)
            async with store.lock("s", URL):
                await store.save(credential())
            order.append("first")
        await waiting
        assert order == ["first", "other"]

    run(main())


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from tests.auth_store_support import URL, store_of
async def main():
    async with store_of(Path(sys.argv[1])).lock("s", URL):
        print("held", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"

        async def main() -> None:
            store = store_of(tmp_path)
            waiting = asyncio.create_task(store.save(credential()))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            holder.kill()
            await waiting

        run(main())
    finally:
        holder.kill()
        holder.communicate()


def test_a_lock_that_never_comes_free_is_busy_after_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, other = store_of(tmp_path), store_of(tmp_path)
        monkeypatch.setattr(other._locks, "hold", functools.partial(other._locks.hold, wait=0.5))
        async with store.lock("s", URL):
            started = time.monotonic()
            await unavailable(other.save(credential()), "busy")
            assert time.monotonic() - started < 10
        await other.save(credential())

    run(main())


def test_who_stops_waiting_for_a_lock_leaves_it_free(tmp_path: Path) -> None:
    async def main() -> None:
        store, other = store_of(tmp_path), store_of(tmp_path)
        entered = asyncio.Event()
        leave = asyncio.Event()

        async def hold() -> None:
            async with store.lock("s", URL):
                entered.set()
                await leave.wait()

        holder = asyncio.create_task(hold())
        await entered.wait()
        waiting = [asyncio.create_task(other.save(credential())) for _ in range(3)]
        await asyncio.sleep(0.25)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        leave.set()
        await holder
        await asyncio.wait_for(other.save(credential()), 5)

    run(main())
