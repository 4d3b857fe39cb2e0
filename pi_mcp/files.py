"""The only place that creates, replaces, appends to or removes files and directories.

Comes in: a path of our own and bytes. Goes out: a file with mode 0600 in a directory with mode 0700, written
whole or not at all. It follows no symbolic link and never decides what is stored: that is its callers' matter.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pi_mcp.errors import failure

APP = "pi-mcp"


def config_dir() -> Path:
    """Where the person's own `mcp.json` is (platformdirs' user_config_dir)."""
    return _user_dir("config", "XDG_CONFIG_HOME", ".config")


def state_dir() -> Path:
    """Trust records, sessions, results, logs and audit (platformdirs' user_state_dir)."""
    return _user_dir("state", "XDG_STATE_HOME", ".local/state")


def cache_dir() -> Path:
    """Catalogs (platformdirs' user_cache_dir). Everything here can be fetched again."""
    return _user_dir("cache", "XDG_CACHE_HOME", ".cache")


def _user_dir(kind: str, variable: str, below_home: str) -> Path:
    """What platformdirs says, told without it in the ordinary case of a Linux user.

    Importing it costs an eighth of the time that building a plugin may take (docs/performance.md).
    """
    home = os.environ.get("HOME", "")
    if sys.platform == "linux" and home.startswith("/") and "~" not in home:
        named = os.environ.get(variable, "")
        return Path(named if named.startswith("/") else f"{home}/{below_home}") / APP
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_dir")(APP, appauthor=False))


def private_dir(path: Path) -> Path:
    """Make `path` and its missing parents, all of them with mode 0700, and return it.

    Raises ConfigurationError when `path` is a symbolic link, not a directory, or belongs to someone else.
    """
    with contextlib.suppress(FileExistsError):  # a file or a dangling link: the next lines say so
        for folder in reversed((path, *path.parents)):  # `parents=True` would leave those between open to others
            if not folder.is_dir():
                folder.mkdir(mode=0o700, exist_ok=True)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{path} is not a directory of its own (a symbolic link is not followed).",
            "Move it away.",
        )
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise failure("configuration_invalid", "configure", None, f"{path} belongs to another user.", "Move it away.")
    if info.st_mode & 0o077:
        path.chmod(0o700)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step: temporary file, fsync, rename; mode 0600 in a 0700 directory.

    A reader sees the old bytes or the new ones. A symbolic link at `path` is replaced, not followed.
    """
    private_dir(path.parent)
    _replace(path, data, 0o600)


def write_config(path: Path, data: bytes) -> None:
    """Replace a configuration file of the person's, keeping its mode; a new one gets 0600.

    The directory is made when missing and otherwise left as it is. Raises ConfigurationError for a
    symbolic link: renaming over it would cut it from the file that it stands for.
    """
    if path.is_symlink():
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{path} is a symbolic link and is not written through.",
            "Edit the file that it points to.",
        )
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        mode = 0o600
    _replace(path, data, mode)


def create_private(directory: Path, prefix: str, suffix: str, data: bytes) -> Path:
    """Write `data` to a new file with a generated name in `directory` and return its path."""
    private_dir(directory)
    for _ in range(100):
        path = directory / f"{prefix}{os.urandom(8).hex()}{suffix}"
        if _created(path, data):
            return path
    raise FileExistsError(errno.EEXIST, "no free name", str(directory))


def create_numbered(directory: Path, stem: str, suffix: str, data: bytes) -> Path:
    """Write `data` to the first free of `stem-1.suffix`, `stem-2.suffix` … in a directory that the person named.

    The directory is made when missing, and otherwise left as it is; nothing is written over and no link followed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(1, 100_000):
        path = directory / f"{stem}-{number}{suffix}"
        if _created(path, data):
            return path
    raise FileExistsError(errno.EEXIST, "no free name", str(directory))


def _created(path: Path, data: bytes) -> bool:
    """Whether the name was free; then the file is there, whole."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    except FileExistsError:
        return False
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except BaseException:
        remove(path)  # a full disk: half a file says nothing and takes the last of the room
        raise
    return True


def open_beside(path: Path) -> int:
    """A descriptor for reading and appending to a private file beside one of the person's; the caller closes it.

    The directory is left as it is. Raises OSError for a link, what is no regular file, or another user's.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags, 0o600)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file of this user", str(path))
    if info.st_mode & 0o077:
        os.fchmod(fd, 0o600)
    return fd


def sync_name(path: Path) -> None:
    """Have a file's name outlast a power failure, too, where the file system knows how."""
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def append_private(path: Path, data: bytes) -> None:
    """Append `data` with one write to a file with mode 0600, made when missing; no symbolic link is followed."""
    private_dir(path.parent)
    fd = open_append(path)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def open_append(path: Path) -> int:
    """A file descriptor for appending to a private file; the caller closes it.

    Raises OSError for what is no regular file: writing to a pipe would wait for its other end, perhaps for ever.
    """
    private_dir(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    fd = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def database(path: Path) -> None:
    """Make `path` a private file that a database may open by name: there, 0600, ours, no symbolic link.

    A missing folder is made with mode 0700. The database puts files of its own beside it, so that an existing folder
    has to be ours and writable by nobody else; its mode is left. Raises ConfigurationError.
    """
    if not path.parent.exists():
        private_dir(path.parent)
    folder = path.parent.stat()
    if hasattr(os, "getuid") and (folder.st_uid != os.getuid() or folder.st_mode & 0o022):
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"The folder of {path} can be written by others.",
            "Choose one that is yours alone, or take their right away with chmod go-w.",
        )
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    # Looked at by name: closing a descriptor of it would end the locks that this process holds on it elsewhere.
    info = os.lstat(path)
    if not stat.S_ISREG(info.st_mode):
        raise failure(
            "configuration_invalid",
            "configure",
            None,
            f"{path} is no file of its own (a symbolic link is not followed).",
            "Name the file itself.",
        )
    if hasattr(os, "getuid") and info.st_uid != os.getuid():
        raise failure("configuration_invalid", "configure", None, f"{path} belongs to another user.", None)
    if info.st_mode & 0o077:
        path.chmod(0o600)


def read_private(path: Path, limit: int) -> bytes | None:
    """The bytes of a private file of ours, or None when it is missing or not to be believed.

    None too for a symbolic link (also as its directory), anything that is no regular file, a file of another
    user, and one over `limit` bytes. Raises OSError where the disk itself fails.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        if not stat.S_ISDIR(os.lstat(path.parent).st_mode):
            return None
        fd = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, getattr(errno, "EMLINK", errno.ELOOP)):
            return None
        raise
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
            return None
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(fd)
    return data if len(data) <= limit else None


def rotate(path: Path, limit: int) -> bool:
    """Move a file of `limit` bytes or more to `PATH.1`, over what is there; True when it was moved."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(info.st_mode) or info.st_size < limit:
        return False
    path.replace(path.with_name(path.name + ".1"))
    return True


def remove(path: Path) -> bool:
    """Remove one file (or the link itself); True when there was one."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def remove_empty(path: Path) -> bool:
    """Remove a directory that has nothing in it; False when it has, is a link, or is not there."""
    try:
        path.rmdir()
    except OSError:
        return False
    return True


def remove_tree(path: Path) -> int:
    """Remove a directory of ours with everything in it; the number of files that went. Links are not followed."""
    count = 0
    if path.is_symlink() or not path.is_dir():
        return int(remove(path))
    for root, directories, names in os.walk(path, topdown=False, followlinks=False):
        for name in names:
            count += remove(Path(root) / name)
        for name in directories:
            child = Path(root) / name
            if child.is_symlink():
                count += remove(child)
            else:
                with contextlib.suppress(OSError):
                    child.rmdir()
    with contextlib.suppress(OSError):
        path.rmdir()
    return count


def remove_older(directory: Path, seconds: float, *, now: float | None = None) -> int:
    """Remove files directly in `directory` that were not modified for `seconds`; how many went."""
    limit = (time.time() if now is None else now) - seconds
    count = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in list(os.scandir(directory)):
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_mtime < limit:
                    count += remove(Path(entry.path))
    return count


def touch(path: Path) -> None:
    """Mark an existing file as used now, to the nanosecond; nothing happens when it is gone."""
    now = time.time_ns()  # the system's own stamp moves on only every few milliseconds
    with contextlib.suppress(OSError):
        os.utime(path, ns=(now, now), follow_symlinks=False)


@contextlib.contextmanager
def locked(path: Path, *, timeout: float = 10.0, make_folder: bool = True) -> Iterator[None]:
    """Hold an exclusive lock between processes on `path`; blocking, so call it off the event loop.

    Raises TimeoutError after `timeout` seconds. The file stays; its content means nothing. Without `make_folder` the
    folder is the caller's matter, and its mode is left.
    """
    if make_folder:
        private_dir(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        deadline = time.monotonic() + timeout
        while not _try_lock(fd):
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{path.name} is locked by another process")
            time.sleep(0.01)
        yield
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _replace(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode != 0o600:
            temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise
