"""The stored login read without an event loop: used where it is good, left to the long way where more is to be done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.auth import at_hand
from pi_mcp.auth.at_hand import AtHand, login_at_hand
from pi_mcp.auth.records import Credential
from tests.auth_store_support import (
    KEY,
    PLANTED,
    URL,
    HangingKeyring,
    MemoryKeyring,
    credential,
    resolved_of,
    store_of,
)
from tests.support import run


def saved(folder: Path, login: Credential, keyring: MemoryKeyring | None = None) -> str | None:
    """Store a login; the id that the store of logins gives it."""

    async def main() -> str | None:
        store = store_of(folder, keyring)
        await store.save(login)
        found = store.credential_id(resolved_of(login.server, login.url))
        await store.close()
        return found

    return run(main())


def found(folder: Path, keyring: MemoryKeyring | None = None, **entry: Any) -> AtHand:
    environ = KEY if keyring is None else {}
    return login_at_hand(resolved_of("s", URL, **entry), environ, state_dir=folder, keyring=keyring)


@pytest.mark.parametrize("keyring", [None, MemoryKeyring()], ids=["file", "keyring"])
def test_a_good_login_is_a_header_and_has_the_stores_own_id(keyring: MemoryKeyring | None, tmp_path: Path) -> None:
    id = saved(tmp_path, credential("s", URL), keyring)
    login = found(tmp_path, keyring)
    assert login.credential_id == id
    assert login.headers is not None
    assert login.headers["Authorization"].startswith(f"Bearer at1-{PLANTED}")
    assert PLANTED not in repr(login)


def test_nobody_signed_in_is_no_header_and_no_keyring_is_touched(tmp_path: Path) -> None:
    assert found(tmp_path) == AtHand({})
    saved(tmp_path, credential("other", URL))
    assert found(tmp_path) == AtHand({})


@pytest.mark.parametrize("entry", [{"oauth": False}, {"headers": {"authorization": "Bearer x"}}])
def test_where_the_login_has_no_say_it_is_not_read(entry: dict[str, Any], tmp_path: Path) -> None:
    id = saved(tmp_path, credential("s", URL))
    assert found(tmp_path, **entry) == AtHand({}, id)


@pytest.mark.parametrize(
    "login",
    [
        credential("s", URL, lifetime=5),
        credential("s", URL, lifetime=-5),
        replace(credential("s", URL), dpop_key="a key"),
        replace(credential("s", URL), tokens=replace(credential("s", URL).tokens, access_token="")),
    ],
    ids=["near its end", "over", "bound to a key", "refused"],
)
def test_what_has_to_be_renewed_or_proved_goes_the_long_way(login: Credential, tmp_path: Path) -> None:
    saved(tmp_path, login)
    assert found(tmp_path).headers is None


def test_a_keyring_that_never_answers_or_has_lost_it_goes_the_long_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_hand, "TIME_LIMIT", 0.2)
    keyring = HangingKeyring()
    keyring.released.set()
    saved(tmp_path, credential("s", URL), keyring)
    keyring.released.clear()
    assert found(tmp_path, keyring).headers is None
    keyring.released.set()
    keyring.entries.clear()
    assert found(tmp_path, keyring).headers is None
