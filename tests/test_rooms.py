"""The rules of the house that no reader should have to check: who imports whom, who writes files, what is light.

Every module is read with `ast`, imports inside functions and under TYPE_CHECKING included. Planted violations at
the end show that each rule can fail.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pi_mcp"

# Who may import whom (DESIGN §3): a floor stands on the floors under it. The ground floor first.
GROUND = {"_version", "errors", "text", "jsontext", "files", "log", "host", "network"}
ROOMS: dict[str, set[str]] = {
    "_version": set(),
    "errors": set(),  # values only
    "jsontext": set(),  # pure, too
    "text": set(),  # pure functions; the redactor is asked by whoever shows or logs something
    "files": {"errors"},
    "log": {"errors", "text", "files"},
    "host": {"errors"},
    "network": set(),  # the environment's proxies and certificates
    "config": GROUND,
    "auth": GROUND | {"config"},
    "connect": GROUND | {"config", "auth"},
    "catalog": GROUND | {"config", "auth", "connect"},
    "search": GROUND | {"config", "catalog"},  # ranks records; what is connected is none of its business
    "tools": GROUND | {"config", "connect", "catalog", "search"},
    "commands": GROUND | {"config", "auth", "connect", "catalog", "search", "tools"},
    "session": GROUND | {"config", "auth", "connect", "catalog", "search", "tools", "commands"},
    "plugin": GROUND | {"config", "auth", "connect", "catalog", "search", "tools", "commands", "session"},
    # Hosts and the gateway know Plugin, Host, the diagnostics, and the types these hand out: the configuration
    # that a plugin is built from, catalog records, native tools, and what a command answers. Connections, ranking
    # and the commands themselves stay behind Plugin.
    "hosts": GROUND | {"config", "catalog.records", "commands.answer", "tools", "plugin"},
    "access": {"errors", "text"},  # whom the gateway serves, as values: grants, scopes, and the store's interface
    "store": GROUND | {"access"},  # the only room that knows a database
    # Of auth/ only the requests that trust no address: whoever is asked for a client's metadata or an issuer's keys is
    # named by somebody else there as here, and a second such client would be a second place for the same holes.
    "server": GROUND | {"config", "catalog.records", "commands.answer", "tools", "plugin", "access", "auth.fetch",
                        "auth.addresses"},
    # Single-shot use in CI: nothing but the standard library behind it, and the one place that knows about proxies.
    "http_client": {"_version", "errors", "network"},
    "cli": GROUND | {"config", "auth", "connect", "catalog", "search", "tools", "commands", "plugin", "hosts",
                     "access", "store", "server", "http_client"},
    "__main__": {"cli"},
    "__init__": {"_version", "config", "errors", "host", "plugin", "tools"},  # the public surface
}  # fmt: skip
# Only for annotations: a command gets its session passed in and never builds one, and so a session its plugin.
FOR_TYPES_ONLY: dict[str, set[str]] = {"commands": {"plugin", "session"}, "session": {"plugin"}}
SDK = {"mcp", "mcp_types"}
SDK_ROOMS = {"connect", "auth", "server"}
# Run or copied outside the package, with no site-packages around: the standard library alone.
STANDALONE = re.compile(r"^(connect/supervisor\.py|connect/guardian\.py|hosts/shims/.*)$")
STANDARD_LIBRARY_ONLY = {"http_client"}
# What every Python shim has beside it; `from .engine_client import …` works here and there.
SHARED_BY_SHIMS = tuple(f"pi_mcp.hosts.shims.engine_{name}" for name in ("client", "process", "records", "values"))
# Packages that a host brings and that we have, too: its shim means the host's.
HOSTS_OWN = {"hosts/shims/code_puppy.py": {"pydantic_ai", "rich"}}
# What `import pi_mcp` and everything under it loads only where it is used (DESIGN §11).
HEAVY = {
    "aiohappyeyeballs", "alembic", "anyio", "authlib", "httpx2", "jinja2", "joserfc", "jsonschema", "keyring", "mcp",
    "mcp_types", "numpy", "prompt_toolkit", "pydantic", "pydantic_ai", "rank_bm25", "rich", "sqlalchemy", "starlette",
    "tomlkit", "uvicorn",
}  # fmt: skip
# A module that exists for users of another library, and subclasses what that library has.
FOR_USERS_OF = {"hosts/pydantic_ai.py": {"pydantic", "pydantic_ai"}}

FILE_WRITERS = {
    "os": {"open", "mkdir", "makedirs", "unlink", "remove", "removedirs", "rmdir", "rename", "renames", "replace",
           "symlink", "link", "chmod", "chown", "lchown", "truncate", "utime", "mkfifo", "mknod"},
    "tempfile": {"NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile", "TemporaryDirectory", "mkstemp",
                 "mkdtemp", "mktemp"},
    "shutil": {"copy", "copy2", "copyfile", "copyfileobj", "copymode", "copystat", "copytree", "move", "rmtree",
               "make_archive", "unpack_archive", "chown"},
    "logging": {"FileHandler"},
    "logging.handlers": {"RotatingFileHandler", "TimedRotatingFileHandler", "WatchedFileHandler"},
}  # fmt: skip
PATH_METHODS = {
    "write_text", "write_bytes", "mkdir", "unlink", "rmdir", "touch", "symlink_to", "hardlink_to", "chmod",
    "lchmod", "rename",
}  # fmt: skip
WRITING_MODE = re.compile(r"^(?=.*[wax+])[rwaxbtU+]{1,4}$")


@dataclass(frozen=True)
class Module:
    """One source file: its path below the package, its room, and its tree."""

    path: str
    tree: ast.Module

    @property
    def room(self) -> str:
        first = self.path.split("/")[0]
        return first.removesuffix(".py")

    @property
    def standalone(self) -> bool:
        return STANDALONE.match(self.path) is not None


@dataclass(frozen=True)
class Import:
    """One imported module, absolute: where, and whether it happens when the file is imported."""

    name: str
    line: int
    at_import: bool
    for_types: bool


def modules() -> list[Module]:
    return [
        Module(path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def module_of(path: str, source: str) -> Module:
    return Module(path, ast.parse(source))


def imports(module: Module) -> Iterator[Import]:
    yield from _imports(module, module.tree, at_import=True, for_types=False)


def _imports(module: Module, node: ast.AST, *, at_import: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for part in child.body:
                yield from _imports(module, _wrapped(part), at_import=False, for_types=True)
            for part in child.orelse:
                yield from _imports(module, _wrapped(part), at_import=at_import, for_types=for_types)
            continue
        inside = at_import and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name in _named(module, child):
            yield Import(name, getattr(child, "lineno", 0), inside, for_types)
        yield from _imports(module, child, at_import=inside, for_types=for_types)


def _wrapped(node: ast.stmt) -> ast.Module:
    return ast.Module([node], [])


def _named(module: Module, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = ["pi_mcp", *module.path.split("/")[:-1]]
            base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {
        "importlib.import_module",
        "import_module",
        "__import__",
    }:
        first = node.args[0] if node.args else None
        return [first.value] if isinstance(first, ast.Constant) and isinstance(first.value, str) else []
    return []


def public_homes() -> dict[str, str]:
    import pi_mcp

    return dict(pi_mcp._HOMES)


def import_faults(module: Module) -> list[str]:
    """Imports that go upward, past the SDK's door, or out of a standalone file."""
    faults = []
    homes = public_homes()
    allowed = ROOMS.get(module.room)
    if allowed is None:
        return [f"{module.path}: the room {module.room!r} is not in the table of tests/test_rooms.py"]
    for found in imports(module):
        where = f"{module.path}:{found.line}"
        top, _, rest = found.name.partition(".")
        if module.standalone or module.room in STANDARD_LIBRARY_ONLY:
            ours = top == "pi_mcp" and not module.standalone
            # A shim may use the packages of the host that it is copied into, and no package of ours.
            theirs = HOSTS_OWN.get(module.path, set())
            shim = module.path.startswith("hosts/shims/") and top not in (HEAVY | {"pi_mcp"}) - theirs
            # It stands beside the client in the host's folder, too.
            beside = module.path.startswith("hosts/shims/") and found.name.startswith(SHARED_BY_SHIMS)
            if not ours and not shim and not beside and top not in sys.stdlib_module_names:
                faults.append(f"{where}: imports {found.name}; this file has the standard library only")
                continue
        if top in SDK and module.room not in SDK_ROOMS:
            faults.append(f"{where}: imports the SDK; only {', '.join(sorted(SDK_ROOMS))} may")
        heavy = HEAVY - FOR_USERS_OF.get(module.path, set())
        if top in heavy and found.at_import and not module.standalone:
            faults.append(f"{where}: imports {top} at import time; import it where it is used")
        if top != "pi_mcp" or module.standalone:
            continue
        target = homes.get(rest, f"pi_mcp.{rest}").removeprefix("pi_mcp.")
        room = target.split(".")[0]
        if room == module.room:
            continue
        permitted = allowed | (FOR_TYPES_ONLY.get(module.room, set()) if found.for_types else set())
        if not any(target == entry or target.startswith(f"{entry}.") for entry in permitted):
            faults.append(f"{where}: {module.room} imports {target}, which is no room below it")
    return faults


def file_faults(module: Module) -> list[str]:
    """Calls that create, replace, append to or remove files; only files.py may have any."""
    # The client of the engine is copied into hosts, without files.py: its side file is written by its own rules.
    if module.path in ("files.py", "hosts/shims/engine_records.py"):
        return []
    names: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name] = alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    faults = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and (what := _writes(node, names)):
            faults.append(f"{module.path}:{node.lineno}: {what}; go through pi_mcp/files.py")
    return faults


def _writes(call: ast.Call, names: dict[str, str]) -> str | None:
    func = call.func
    if call.args and ast.unparse(call.args[0]) == "os.devnull":
        return None
    if isinstance(func, ast.Name):
        full = names.get(func.id, func.id)
        if full in {"open", "io.open"}:
            return _open_mode(call, 1)
        owner, _, name = full.rpartition(".")
        return full if name in FILE_WRITERS.get(owner, set()) else None
    if not isinstance(func, ast.Attribute):
        return None
    receiver = ast.unparse(func.value)
    owner = names.get(receiver, receiver)
    if owner == "pi_mcp.files" or owner == "dataclasses":
        return None
    if func.attr in FILE_WRITERS.get(owner, set()):
        return f"{owner}.{func.attr}"
    if owner in {"io", "codecs"} and func.attr == "open":
        return _open_mode(call, 1)
    if owner in FILE_WRITERS:
        return None
    if func.attr in PATH_METHODS:
        return f".{func.attr}()"
    # str.replace takes two arguments, datetime.replace keywords; with a single one it is a path's.
    if func.attr == "replace" and len(call.args) == 1 and not call.keywords:
        return ".replace(target)"
    return _open_mode(call, 0) if func.attr == "open" else None


def _open_mode(call: ast.Call, position: int) -> str | None:
    mode = call.args[position] if len(call.args) > position else None
    for keyword in call.keywords:
        if keyword.arg == "mode":
            mode = keyword.value
    if mode is None:
        return None
    if not isinstance(mode, ast.Constant):
        # `session.open(url)` and the like take anything first; the built-in's mode has to be readable here.
        return "open() with a mode that is not a literal" if position else None
    if isinstance(mode.value, str) and WRITING_MODE.match(mode.value):
        return f"open(…, {mode.value!r})"
    return None


# -- the rules ------------------------------------------------------------------------------------------------


def test_every_room_imports_only_rooms_below_it() -> None:
    faults = [fault for module in modules() for fault in import_faults(module)]
    assert not faults, "\n".join(faults)


def test_only_files_py_creates_replaces_or_removes_files() -> None:
    faults = [fault for module in modules() for fault in file_faults(module)]
    assert not faults, "\n".join(faults)


def loaded_heavy(code: str) -> list[str]:
    """The heavy packages in `sys.modules` after `code` ran in a process of its own."""
    script = f"{code}\nimport sys\nprint(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=PACKAGE.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_public_names_load_nothing_heavy() -> None:
    assert loaded_heavy("import pi_mcp; pi_mcp.Plugin; pi_mcp.load_config") == []


def test_no_module_loads_anything_heavy_when_it_is_imported() -> None:
    names = [
        ".".join(["pi_mcp", *Path(module.path).with_suffix("").parts]).removesuffix(".__init__")
        for module in modules()
        if not module.standalone and not module.path.endswith("__main__.py") and module.path not in FOR_USERS_OF
    ]
    assert loaded_heavy("\n".join(f"import {name}" for name in names)) == []


# -- each rule can fail -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("config/x.py", "from pi_mcp.connect import Connections"),
        ("config/x.py", "def f():\n    from pi_mcp import plugin"),
        ("config/x.py", "def f():\n    from pi_mcp import Plugin"),
        ("config/x.py", "from ..connect import faults"),
        ("catalog/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pi_mcp.tools import names"),
        ("search/x.py", "import importlib\nimportlib.import_module('pi_mcp.connect')"),
        ("commands/x.py", "from pi_mcp.plugin import Session"),
        ("hosts/x.py", "from pi_mcp.connect import Connection"),
        ("hosts/x.py", "from pi_mcp.catalog import Catalogs"),
        ("hosts/x.py", "from pi_mcp.commands import auth"),
        ("hosts/x.py", "from pi_mcp.server import gateway"),
        ("server/x.py", "from pi_mcp.hosts import engine"),
        ("server/x.py", "from pi_mcp.store import keys"),
        ("store/x.py", "from pi_mcp.server import gateway"),
        ("access/x.py", "import sqlalchemy"),
        ("errors.py", "import pi_mcp.text"),
        ("tools/x.py", "def f():\n    import mcp"),
        ("hosts/x.py", "def f():\n    from mcp_types import Tool"),
        ("connect/x.py", "import mcp"),
        ("connect/x.py", "try:\n    from mcp.client import session\nexcept ImportError:\n    pass"),
        ("search/x.py", "class A:\n    import numpy"),
        ("connect/supervisor.py", "from pi_mcp import files"),
        ("connect/supervisor.py", "def f():\n    import platformdirs"),
        ("hosts/shims/x.py", "import pi_mcp.errors"),
        ("http_client.py", "def f():\n    import httpx2"),
        ("http_client.py", "from pi_mcp.connect import faults"),
        ("cellar/x.py", ""),
    ],
)
def test_a_planted_import_is_found(path: str, source: str) -> None:
    assert import_faults(module_of(path, source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("connect/x.py", "def f():\n    import mcp"),
        ("connect/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mcp import types"),
        ("catalog/x.py", "from pi_mcp import files\nfrom pi_mcp.connect import Listing"),
        ("catalog/x.py", "from .records import Tool"),
        ("commands/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pi_mcp.plugin import Session"),
        ("hosts/x.py", "from pi_mcp import Plugin, load_config\nfrom pi_mcp.catalog.records import Tool"),
        ("http_client.py", "import http.client\nfrom pi_mcp.errors import Diagnostic"),
        ("hosts/shims/x.py", "from code_puppy import callbacks"),
        ("hosts/shims/x.py", "from .engine_client import Engine"),
    ],
)
def test_an_import_downward_is_no_fault(path: str, source: str) -> None:
    assert import_faults(module_of(path, source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "open('a', 'w')",
        "open('a', mode='ab')",
        "open('a', 'r+')",
        "open('a', x)",
        "path.open('w')",
        "path.open(mode='x')",
        "import io\nio.open('a', 'w')",
        "import os\nos.open('a', os.O_RDONLY)",
        "import os\nos.replace('a', 'b')",
        "import os as o\no.makedirs('a')",
        "from os import unlink as gone\ngone('a')",
        "import shutil\nshutil.rmtree('a')",
        "import tempfile\ntempfile.mkdtemp()",
        "from tempfile import TemporaryDirectory\nTemporaryDirectory()",
        "import logging\nlogging.FileHandler('a')",
        "path.write_text('x')",
        "(base / 'a').mkdir()",
        "path.replace(other)",
        "path.rename(other)",
        "path.touch()",
        "path.chmod(0o600)",
    ],
)
def test_a_planted_write_is_found(source: str) -> None:
    assert file_faults(module_of("tools/x.py", source))


@pytest.mark.parametrize(
    "source",
    [
        "open('a')",
        "open('a', 'rb')",
        "path.open('rb')",
        "text.replace('a', 'b')",
        "when.replace(tzinfo=None)",
        "import dataclasses\ndataclasses.replace(x)",
        "from pi_mcp import files\nfiles.touch(path)\nfiles.remove(path)",
        "import shutil\nshutil.which('a')",
        "import os\nos.write(1, b'x')\nos.close(1)",
        "import os\nos.open(os.devnull, os.O_RDWR)",
        "names.remove('a')",
        "import webbrowser\nwebbrowser.open('https://a')",
        "host.open(url)",
    ],
)
def test_reading_and_strings_are_no_fault(source: str) -> None:
    assert file_faults(module_of("tools/x.py", source)) == []


def test_a_heavy_import_is_seen_in_the_subprocess() -> None:
    assert loaded_heavy("import rank_bm25") == ["numpy", "rank_bm25"]


def test_a_hosts_own_file_stays_under_300_lines() -> None:
    """What several hosts need belongs beside it (`engine_*`), so that a new host is one short file."""
    shims = PACKAGE / "hosts" / "shims"
    own = [path for path in (*shims.glob("*.py"), shims / "pi" / "index.ts") if not path.name.startswith("engine_")]
    assert {"pp.py", "gptme.py", "code_puppy.py", "index.ts"} <= {path.name for path in own}
    assert [path.name for path in own if len(path.read_text().splitlines()) >= 300] == []
