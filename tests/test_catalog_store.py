"""Catalog files: private, one per server, believed for a day at most, and without any secret."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.catalog import DAY, Catalog, CatalogStore, Tool
from pi_mcp.config import ResolvedServer, configuration_of, resolve

SECRET = "planted-secret-5519"
ROOT = Path(__file__).resolve().parent.parent


def server(
    entry: Mapping[str, Any] | None = None, *, name: str = "maps", environ: Mapping[str, str] | None = None
) -> ResolvedServer:
    configuration = configuration_of(
        {name: entry or {"command": "srv"}}, cwd=Path("/"), environ=environ or {"HOME": "/home/u"}
    )
    return resolve(configuration.servers[name], configuration)


def catalog(*descriptions: str, name: str = "maps", **fields: Any) -> Catalog:
    tools = tuple(
        Tool(name, {"name": f"tool_{number}", "description": text, "inputSchema": {"type": "object"}})
        for number, text in enumerate(descriptions or ("Finds a place.",))
    )
    return Catalog(name, tools, fields.pop("fetched_at", time.time()), **fields)


@pytest.fixture
def store(tmp_path: Path) -> CatalogStore:
    return CatalogStore(tmp_path / "catalogs")


def catalog_files(store: CatalogStore) -> list[Path]:
    return sorted(store.directory.glob("*.json"))


def everything_on_disk(directory: Path) -> bytes:
    return b"\n".join(path.read_bytes() + path.name.encode() for path in directory.rglob("*") if path.is_file())


def test_what_was_saved_comes_back_the_same(store: CatalogStore) -> None:
    kept = catalog(
        "Größe 📏 \ud800",
        "two",
        ttl=60.0,
        stated_ttl=60.0,
        notes=("A note.",),
        era="modern",
        instructions="Be kind.",
        title="Maps",
        list_changed=True,
    )
    assert store.save(server(), kept)
    again = CatalogStore(store.directory).load(server())
    assert again == kept
    assert [tool.hash for tool in again.tools] == [tool.hash for tool in kept.tools]


def test_without_a_directory_it_is_in_the_users_cache(private_home: Path) -> None:
    store = CatalogStore()
    assert store.save(server(), catalog())
    assert private_home in store.directory.parents
    assert store.directory.parts[-2:] == ("pi-mcp", "catalogs")


def test_files_are_private_and_named_by_a_keyed_digest(store: CatalogStore) -> None:
    store.save(server(), catalog())
    (file,) = catalog_files(store)
    assert len(file.stem) == 64
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.directory.iterdir()} == {0o600}
    other = CatalogStore(store.directory.parent / "other")
    other.save(server(), catalog())
    assert catalog_files(other)[0].name != file.name, "the key is random, not derived from the server"


def test_looking_for_a_catalog_connects_to_nothing_and_runs_no_secret_command(
    store: CatalogStore, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    resolved = server({"url": "https://maps.invalid/mcp", "headers": {"X-Key": f"!touch {marker}; echo 1234"}})
    store.save(resolved, catalog())
    assert store.load(resolved) is not None
    assert not marker.exists()


@pytest.mark.parametrize(
    "changed",
    [
        {"command": "srv2"},
        {"command": "srv", "args": ["-x"]},
        {"command": "srv", "env": {"A": "1"}},
        {"command": "srv", "cwd": "/tmp"},
        {"url": "https://maps.invalid/mcp"},
    ],
)
def test_a_server_defined_otherwise_has_another_catalog(store: CatalogStore, changed: dict[str, Any]) -> None:
    store.save(server(), catalog())
    assert store.load(server(changed)) is None
    assert store.load(server()) is not None


def test_another_value_of_a_variable_is_another_catalog(store: CatalogStore) -> None:
    entry = {"url": "https://maps.invalid/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}
    store.save(server(entry, environ={"TOKEN": SECRET}), catalog())
    assert store.load(server(entry, environ={"TOKEN": "another-" + SECRET})) is None
    assert store.load(server(entry, environ={"TOKEN": SECRET})) is not None
    assert SECRET.encode() not in everything_on_disk(store.directory)


def test_another_login_is_another_catalog(tmp_path: Path) -> None:
    login: list[str | None] = [None]
    store = CatalogStore(tmp_path / "catalogs", credential_id=lambda resolved: login[0])
    resolved = server({"url": "https://maps.invalid/mcp"})
    store.save(resolved, catalog())
    login[0] = "credential-1"
    assert store.load(resolved) is None
    store.save(resolved, catalog("Only for members."))
    login[0] = None
    assert store.load(resolved).tools[0].description == "Finds a place."


@pytest.mark.parametrize(("ttl", "age", "fresh"), [(DAY, DAY - 60, True), (DAY, DAY + 1, False), (60.0, 61, False)])
def test_a_catalog_is_good_for_a_day_or_the_smaller_time_that_the_server_states(
    store: CatalogStore, ttl: float, age: float, fresh: bool
) -> None:
    now = time.time()
    store.save(server(), catalog(fetched_at=now - age, ttl=ttl, era="legacy"))
    assert (store.load(server(), now=now) is not None) is fresh
    assert store.load_expired(server(), now=now).era == "legacy"


def test_a_file_from_the_future_is_not_believed(store: CatalogStore) -> None:
    store.save(server(), catalog(fetched_at=time.time() + 7200))
    assert store.load(server()) is None


def damaged() -> list[bytes]:
    good = {
        "version": 1,
        "server": "maps",
        "fetchedAt": time.time(),
        "ttl": 100.0,
        "statedTtl": None,
        "era": None,
        "title": None,
        "instructions": None,
        "listChanged": False,
        "notes": [],
        "tools": [{"name": "a"}],
    }
    changes: list[dict[str, Any]] = [
        {"version": 2},
        {"version": "1"},
        {"server": "other"},
        {"fetchedAt": "now"},
        {"fetchedAt": float("nan")},
        {"ttl": -1},
        {"ttl": True},
        {"tools": {}},
        {"tools": [1]},
        {"tools": [{"name": 1}]},
        {"tools": [{"name": "a"}, {"name": "a"}]},
        {"era": "ancient"},
        {"notes": [1]},
        {"listChanged": None},
        {"masked": True, "notes": ["\x01pi-mcp:" + "0" * 32 + "\x02"]},
    ]
    whole = [json.dumps(good | change).encode() for change in changes]
    broken = json.dumps(good).encode()
    return [*whole, b"", b"null", b"[]", broken[:-20], b"\xff\xfe", b"[" * 200_000, b"x" * (33 * 1024 * 1024)]


@pytest.mark.parametrize("number", range(len(damaged())))
def test_a_damaged_or_foreign_file_counts_as_absent_and_is_replaced(store: CatalogStore, number: int) -> None:
    store.save(server(), catalog())
    catalog_files(store)[0].write_bytes(damaged()[number])
    assert store.load(server()) is None
    assert store.load_expired(server()) is None
    assert store.save(server(), catalog("new"))
    assert store.load(server()).tools[0].description == "new"


def test_a_damaged_key_is_replaced(store: CatalogStore) -> None:
    store.save(server(), catalog())
    (store.directory / "key").write_bytes(b"short")
    again = CatalogStore(store.directory)
    assert again.load(server()) is None
    assert again.save(server(), catalog())
    assert CatalogStore(store.directory).load(server()) is not None


def test_a_partial_catalog_is_not_kept_and_takes_the_older_file_with_it(store: CatalogStore) -> None:
    store.save(server(), catalog("old"))
    assert not store.save(server(), catalog("part", complete=False))
    assert catalog_files(store) == []


def test_forgetting_removes_the_servers_file_alone(store: CatalogStore) -> None:
    other = server(name="other")
    store.save(server(), catalog())
    store.save(other, catalog(name="other"))
    assert store.forget(server())
    assert not store.forget(server())
    assert store.load(other) is not None


@pytest.mark.parametrize(
    ("entry", "environ"),
    [
        ({"command": "srv", "env": {"API_TOKEN": SECRET}}, {}),
        ({"command": "srv", "env": {"SETTING": "${VALUE}"}}, {"VALUE": SECRET}),
        ({"command": "srv", "args": ["--key", "${VALUE}"]}, {"VALUE": SECRET}),
        ({"url": "https://maps.invalid/mcp", "headers": {"Authorization": f"Bearer {SECRET}"}}, {}),
    ],
)
def test_a_secret_that_a_server_repeats_is_not_on_disk_and_the_catalog_still_comes_back(
    store: CatalogStore, entry: dict[str, Any], environ: dict[str, str]
) -> None:
    kept = replace(catalog(f"Uses {SECRET}.", "plain"), instructions=f"Say {SECRET}", title="server")
    assert store.save(server(entry, environ=environ), kept)
    assert SECRET.encode() not in everything_on_disk(store.directory)
    assert store.load(server(entry, environ=environ)) == kept


def test_the_output_of_a_secret_command_that_a_server_repeats_is_not_kept(store: CatalogStore) -> None:
    resolved = server({"command": "srv", "env": {"API_TOKEN": "!print-token"}})
    store.save(resolved, catalog("old"))
    resolved.redactor.add(SECRET)  # what a connection does that has run the command
    connected = server({"command": "srv", "env": {"API_TOKEN": "!print-token"}})
    assert not store.save(connected, catalog(f"Uses {SECRET}."))
    assert SECRET.encode() not in everything_on_disk(store.directory)
    assert store.load(connected) is None


def test_symbolic_links_are_not_followed(store: CatalogStore, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    store.save(server(), catalog())
    (file,) = catalog_files(store)
    content = file.read_bytes()
    file.unlink()
    (tmp_path / "copy").write_bytes(content)
    file.symlink_to(tmp_path / "copy")
    assert store.load(server()) is None
    file.unlink()
    file.symlink_to(precious)
    assert store.save(server(), catalog())
    assert (precious.read_bytes(), file.is_symlink()) == (b"mine", False)


def test_a_linked_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "catalogs").symlink_to(tmp_path / "elsewhere")
    store = CatalogStore(tmp_path / "catalogs")
    assert not store.save(server(), catalog())
    assert store.load(server()) is None
    assert not store.forget(server())
    assert store.sweep() == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_directory_that_cannot_be_made_only_means_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = CatalogStore(tmp_path / "file" / "catalogs")
    assert not store.save(server(), catalog())
    assert store.load(server()) is None


def test_unused_files_go_after_thirty_days_and_used_ones_stay_with_the_key(store: CatalogStore) -> None:
    unused, used = server(name="unused"), server(name="used")
    for resolved in (unused, used):
        store.save(resolved, catalog(name=resolved.definition.name))
    past = time.time() - 31 * DAY
    for path in store.directory.iterdir():
        os.utime(path, (past, past))
    assert store.load(used) is not None
    assert store.sweep() == 1
    assert store.sweep() == 0
    again = CatalogStore(store.directory)
    assert again.load(used) is not None
    assert again.load(unused) is None


def test_sweeping_makes_no_directory(store: CatalogStore) -> None:
    assert store.sweep() == 0
    assert not store.directory.exists()


def test_b161_eight_processes_write_eight_catalogs_at_once(store: CatalogStore, tmp_path: Path) -> None:
    start = time.time() + 2.0
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.test_catalog_store import CatalogStore, catalog, server\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "name = sys.argv[3]\n"
        "for _ in range(5):\n"
        "    assert CatalogStore(Path(sys.argv[1])).save(server(name=name), catalog('x' * 50_000, name=name))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(store.directory), str(start), f"s{number}"], cwd=ROOT)
        for number in range(8)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 8
    assert len(catalog_files(store)) == 8
    for number in range(8):
        assert len(store.load(server(name=f"s{number}")).tools[0].description) == 50_000
    assert {path.name for path in store.directory.iterdir() if path.suffix != ".json"} == {"key", "lock"}
