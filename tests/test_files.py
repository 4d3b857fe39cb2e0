"""Files are private, whole, and never written through a symbolic link."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import platformdirs
import pytest

from pi_mcp import files
from pi_mcp.errors import ConfigurationError


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True)
def open_umask() -> object:
    """The widest umask: modes have to be asked for, not left to it."""
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.mark.parametrize("home", ["/home/someone", "/home/someone/", "relative", ""])
@pytest.mark.parametrize("xdg", [None, "", "/elsewhere", "relative", "~/below", "/with ~/tilde/"])
def test_the_directories_are_those_that_platformdirs_gives(
    monkeypatch: pytest.MonkeyPatch, home: str, xdg: str | None
) -> None:
    monkeypatch.setenv("HOME", home)
    for kind in ("CONFIG", "STATE", "CACHE"):
        if xdg is None:
            monkeypatch.delenv(f"XDG_{kind}_HOME", raising=False)
        else:
            monkeypatch.setenv(f"XDG_{kind}_HOME", xdg)
    assert [files.config_dir(), files.state_dir(), files.cache_dir()] == [
        Path(platformdirs.user_config_dir(files.APP, appauthor=False)),
        Path(platformdirs.user_state_dir(files.APP, appauthor=False)),
        Path(platformdirs.user_cache_dir(files.APP, appauthor=False)),
    ]


def test_a_private_file_has_mode_0600_in_a_directory_of_0700(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    files.write_private(path, b"one")
    assert (path.read_bytes(), mode(path), mode(path.parent)) == (b"one", 0o600, 0o700)


def test_a_directory_that_others_could_read_is_closed(tmp_path: Path) -> None:
    (tmp_path / "wide").mkdir(mode=0o777)
    files.private_dir(tmp_path / "wide")
    assert mode(tmp_path / "wide") == 0o700


@pytest.mark.parametrize("dangling", [True, False])
def test_a_symbolic_link_is_no_private_directory(tmp_path: Path, dangling: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    if not dangling:
        elsewhere.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(ConfigurationError):
        files.write_private(tmp_path / "link" / "file", b"x")
    assert elsewhere.exists() is not dangling
    if not dangling:
        assert (list(elsewhere.iterdir()), mode(elsewhere)) == ([], 0o755)


def test_a_file_in_the_place_of_a_directory_is_a_diagnostic(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError):
        files.private_dir(tmp_path / "file")


def test_a_symbolic_link_in_the_place_of_a_private_file_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    link = tmp_path / "private" / "file"
    files.private_dir(link.parent)
    link.symlink_to(target)
    files.write_private(link, b"new")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"mine", b"new", False)


def test_appending_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    link = tmp_path / "private" / "log"
    files.private_dir(link.parent)
    link.symlink_to(target)
    with pytest.raises(OSError):
        files.append_private(link, b"more")
    with pytest.raises(OSError):
        files.open_append(link)
    assert target.read_bytes() == b"mine"


def test_appending_makes_a_private_file_and_adds_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "private" / "log"
    files.append_private(path, b"one\n")
    files.append_private(path, b"two\n")
    fd = files.open_append(path)
    os.write(fd, b"three\n")
    os.close(fd)
    assert (path.read_bytes(), mode(path)) == (b"one\ntwo\nthree\n", 0o600)


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "private" / "file"
    files.write_private(path, b"old")

    def full(fd: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        files.write_private(path, b"new")
    assert (path.read_bytes(), [entry.name for entry in path.parent.iterdir()]) == (b"old", ["file"])


def test_a_reader_sees_the_old_bytes_or_the_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "private" / "file"
    first, second = b"a" * 300_000, b"b" * 300_000
    files.write_private(path, first)
    script = (
        "import sys; from pathlib import Path; from pi_mcp import files\n"
        "for i in range(60): files.write_private(Path(sys.argv[1]), (b'ab'[i % 2:i % 2 + 1]) * 300_000)"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, str(path)], cwd=Path(__file__).parent.parent)
    try:
        while writer.poll() is None:
            assert path.read_bytes() in (first, second)
    finally:
        assert writer.wait(30) == 0


def test_a_configuration_file_keeps_its_mode_and_a_new_one_is_private(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "deeper" / "new.json"
    old.write_bytes(b"{}")
    old.chmod(0o640)
    files.write_config(old, b"{ }")
    files.write_config(new, b"{}")
    assert (mode(old), old.read_bytes(), mode(new)) == (0o640, b"{ }", 0o600)


def test_a_linked_configuration_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_bytes(b"{}")
    (tmp_path / "mcp.json").symlink_to(target)
    with pytest.raises(ConfigurationError):
        files.write_config(tmp_path / "mcp.json", b"{ }")
    assert target.read_bytes() == b"{}"


def test_generated_names_differ(tmp_path: Path) -> None:
    made = {files.create_private(tmp_path / "results", "result-", ".json", b"{}") for _ in range(20)}
    assert len(made) == 20
    assert all(mode(path) == 0o600 for path in made)


def test_reading_gives_nothing_for_a_link_a_directory_a_pipe_or_too_much(tmp_path: Path) -> None:
    directory = files.private_dir(tmp_path / "private")
    (directory / "file").write_bytes(b"12345")
    (directory / "link").symlink_to(directory / "file")
    (directory / "folder").mkdir()
    os.mkfifo(directory / "pipe")
    (tmp_path / "linked").symlink_to(directory)
    assert files.read_private(directory / "file", 5) == b"12345"
    assert files.read_private(directory / "file", 4) is None
    assert files.read_private(tmp_path / "linked" / "file", 5) is None
    for name in ("link", "folder", "pipe", "missing", "file/below"):
        assert files.read_private(directory / name, 100) is None


def test_rotating_moves_a_full_file_only(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert not files.rotate(path, 3)
    path.write_bytes(b"ab")
    assert not files.rotate(path, 3)
    path.write_bytes(b"abc")
    assert files.rotate(path, 3)
    assert (path.exists(), (tmp_path / "log.1").read_bytes()) == (False, b"abc")


def test_removing_old_files_keeps_young_ones_directories_and_what_links_point_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x")
    directory = files.private_dir(tmp_path / "private")
    old, young, folder = directory / "old", directory / "young", directory / "folder"
    old.write_bytes(b"")
    young.write_bytes(b"")
    folder.mkdir()
    (directory / "link").symlink_to(precious)
    past = time.time() - 100
    for path in (old, folder, precious):
        os.utime(path, (past, past))
    assert files.remove_older(directory, 50) == 1
    assert sorted(path.name for path in directory.iterdir()) == ["folder", "link", "young"]
    assert files.remove_older(tmp_path / "missing", 50) == 0


def test_removing_a_tree_stops_at_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "file").write_bytes(b"x")
    (tree / "link").symlink_to(outside)
    assert files.remove_tree(tree) == 2
    assert not tree.exists()
    assert (outside / "file").exists()


def test_a_lock_is_exclusive_between_processes_and_gives_up_in_time(tmp_path: Path) -> None:
    lock = tmp_path / "private" / "lock"
    script = (
        "import sys; from pathlib import Path; from pi_mcp import files\n"
        "with files.locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    began = time.monotonic()
    with pytest.raises(TimeoutError), files.locked(lock, timeout=0.2):
        pass
    assert time.monotonic() - began < 10
    holder.communicate("", timeout=10)
    with files.locked(lock, timeout=2):
        pass
    assert mode(lock) == 0o600


def test_touching_does_not_make_a_file(tmp_path: Path) -> None:
    files.touch(tmp_path / "missing")
    assert list(tmp_path.iterdir()) == []


def test_the_places_are_the_users_own_and_apart(private_home: Path) -> None:
    places = {files.config_dir(), files.state_dir(), files.cache_dir()}
    assert len(places) == 3
    assert all(private_home in place.parents and place.name == "pi-mcp" for place in places)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "private" / "debug.log"
    files.private_dir(pipe.parent)
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"debug\.log"):
        files.append_private(pipe, b"line\n")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match=r"debug\.log"):
            files.append_private(pipe, b"line\n")
    finally:
        os.close(reader)


def test_a_file_that_did_not_fit_leaves_no_part(tmp_path: Path) -> None:
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError):
            files.create_private(tmp_path / "private", "result-", ".json", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "private").iterdir()) == []
