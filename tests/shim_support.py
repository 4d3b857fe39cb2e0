"""Drives a real host agent with our shim in it: a scripted model on loopback, a planted MCP server, a home of its own.

Comes in: a test's folder, a host's command line, a script for the model (`tests.model_servers`). Goes out: the host's
output, every model request, every call that the MCP server `desk` (`tests/chat_server.py`) saw, and, where asked for,
every line between shim and engine, held against `docs/engine.schema.json`.

    with ModelServer(search_and_call()) as model:
        stage = Stage(tmp_path)
        stage.pi_models(model)                       # hosts that read Pi's models.json; others bring their own
        install_shim("pp", stage, record=True)       # `pi-mcp install pp`
        done = stage.run([pp, "-p", "--model", "fake/fake", "add 2 and 40"])
    assert model.requests[1].tool_names[-1] == ADD   # the loaded tool is in the very next request
    assert stage.calls == [("add_numbers", {"a": 2, "b": 40})]
    stage.assert_protocol()

Process life: `engine_of(pid)` is the engine below a host, `wait_for(lambda: …)` polls with a bound, and
`tests.hostile.processes` says who is left.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.hostile.processes import alive, descendants_of
from tests.model_servers import Call, ModelServer, Say, Step

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "docs" / "engine.schema.json"
PI_MCP = Path(sys.executable).with_name("pi-mcp")
"""The command of the environment that runs the tests."""
SECRET = "s3cr3t-of-the-desk"
"""In the environment of the planted server, through `${DESK_SECRET}`; nothing may show it."""
ADD = "mcp__desk__add_numbers"
WAIT = "mcp__desk__wait_long"
DRAW = "mcp__desk__draw_picture"


@dataclass
class Stage:
    """A home with the planted server `desk`, and the folder that the host runs in.

    HOME and the XDG folders are the test's own (`tests/conftest.py`). `extra` goes into the server's entry, `servers`
    beside it.
    """

    folder: Path
    extra: Mapping[str, Any] = field(default_factory=dict)
    servers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.work.mkdir(exist_ok=True)
        self.configure()

    # Places

    @property
    def home(self) -> Path:
        return Path(os.environ["HOME"])

    @property
    def work(self) -> Path:
        """The working directory of the host."""
        return self.folder / "work"

    @property
    def agent_dir(self) -> Path:
        """Pi's and pp's folder."""
        return self.home / ".pi" / "agent"

    @property
    def seen_file(self) -> Path:
        return self.folder / "seen"

    @property
    def record(self) -> Path:
        return self.folder / "lines.jsonl"

    # What the host finds

    def configure(self) -> None:
        """Write the person's `mcp.json` anew."""
        entry = {
            "command": sys.executable,
            "args": [str(ROOT / "tests" / "chat_server.py"), str(self.seen_file)],
            "env": {"CHAT_SECRET": "${DESK_SECRET}"},
            "description": "numbers, pictures and forms",
            **self.extra,
        }
        config = Path(os.environ["XDG_CONFIG_HOME"]) / "pi-mcp" / "mcp.json"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"mcpServers": {"desk": entry, **self.servers}}, indent=2))

    def pi_models(self, model: ModelServer) -> None:
        """`models.json` of Pi and pp, with the model `fake/fake`."""
        self.agent_dir.mkdir(parents=True, exist_ok=True)
        provider = {
            "baseUrl": model.openai,
            "api": "openai-completions",
            "apiKey": "x",
            "models": [{"id": "fake", "input": ["text", "image"]}],
        }
        (self.agent_dir / "models.json").write_text(json.dumps({"providers": {"fake": provider}}))

    def environ(self, **more: str) -> dict[str, str]:
        """The environment of a host: no model keys, nothing of the tests' own Python."""
        dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "NO_COLOR")
        kept = {k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and k not in dropped}
        quiet = {"PI_OFFLINE": "1", "PI_TELEMETRY": "0", "DESK_SECRET": SECRET}
        return {**kept, **quiet, **more}

    # What happened

    @property
    def seen(self) -> list[dict[str, Any]]:
        """What the planted server noted: `{call, arguments}` and `{cancelled, at}`."""
        if not self.seen_file.exists():
            return []
        return [json.loads(line) for line in self.seen_file.read_text().splitlines()]

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        return [(entry["call"], entry["arguments"]) for entry in self.seen if "call" in entry]

    @property
    def cancelled(self) -> bool:
        return any("cancelled" in entry for entry in self.seen)

    def messages(self, who: str | None = None) -> list[dict[str, Any]]:
        """The recorded JSON-RPC messages, of `"host"`, `"engine"` or both."""
        if not self.record.exists():
            return []
        entries = [json.loads(line) for line in self.record.read_text().splitlines()]
        return [json.loads(entry["line"]) for entry in entries if who in (None, entry["from"])]

    def assert_protocol(self) -> None:
        """Every recorded line is what the schema says; there is at least one in each direction."""
        entries = [json.loads(line) for line in self.record.read_text().splitlines()]
        assert {entry["from"] for entry in entries} == {"host", "engine"}, "a direction was not recorded"
        check = ProtocolCheck()
        for entry in entries:
            check(entry["from"], json.loads(entry["line"]))

    # Running a host

    def run(
        self, words: Sequence[str | Path], *, typed: str = "", limit: float = 90, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a host to its end; `typed` is its standard input."""
        return subprocess.run(
            [str(word) for word in words],
            input=typed,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=self.work,
            env=self.environ(**environ),
        )

    @contextlib.contextmanager
    def start(self, words: Sequence[str | Path], **environ: str) -> Iterator[subprocess.Popen[str]]:
        """A running host, with pipes; whatever is left of it and below it is killed at the end."""
        process = subprocess.Popen(
            [str(word) for word in words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.work,
            env=self.environ(**environ),
        )
        try:
            yield process
        finally:
            everyone = [process.pid, *descendants_of(process.pid)]
            process.kill()
            process.wait(10)
            for pid in alive(everyone):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


# The model's side


def search_and_call(
    query: str = "add two numbers",
    tool: str = ADD,
    arguments: Mapping[str, Any] | None = None,
    say: str = "the model is done",
) -> list[Step]:
    """The model searches, then calls the tool if it is declared in that very request, then says something."""
    wanted = {"a": 2, "b": 40} if arguments is None else dict(arguments)
    return [Call(("mcp_search", {"query": query})), call_if_declared(tool, wanted), Say(say)]


def call_if_declared(tool: str, arguments: Mapping[str, Any]) -> Step:
    """Calls a tool that the request declares; says that it is missing otherwise."""

    def step(body: dict[str, Any]) -> Say | Call:
        names = [one["function"]["name"] if "function" in one else one["name"] for one in body.get("tools") or []]
        return Call((tool, dict(arguments))) if tool in names else Say(f"{tool} is not declared, only {names}")

    return step


# The shim


def install_shim(host: str, stage: Stage, *, record: bool = False, command: Sequence[str] | None = None) -> Path:
    """`pi-mcp install HOST` in the stage's home; the folder of the shim.

    `record` writes every line between shim and engine to `stage.record`; `command` takes the engine's place.
    """
    done = stage.run([PI_MCP, "install", host, "--yes"], limit=60)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = installed_folder(stage)
    path = folder / "pi_mcp_shim.json"
    manifest = json.loads(path.read_text())
    if command is not None:
        manifest["command"] = list(command)
    if record:
        tee = [sys.executable, str(ROOT / "tests" / "engine_tee.py"), str(stage.record)]
        manifest["command"] = [*tee, *manifest["command"]]
    path.write_text(json.dumps(manifest))
    return folder


def installed_folder(stage: Stage) -> Path:
    """The one folder below the home that holds a shim."""
    found = [path.parent for path in stage.home.rglob("pi_mcp_shim.json")]
    assert len(found) == 1, found
    return found[0]


# The protocol


class ProtocolCheck:
    """Holds the lines of one engine, in their order, against the schema; each result against that of its method."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, Any], str] = {}

    def __call__(self, who: str, message: Any) -> None:
        """One message of `"host"` or `"engine"`; jsonschema.ValidationError says what is wrong with it."""
        _validator(f"{who}Message").validate(message)
        if "method" in message and "id" in message:
            self._asked[who, message["id"]] = message["method"]
        elif "result" in message:
            other = "engine" if who == "host" else "host"
            _validator(f"{self._asked.pop((other, message['id']))}Result").validate(message["result"])


_VALIDATORS: dict[str, Any] = {}


def _validator(name: str) -> Any:
    if name not in _VALIDATORS:
        import jsonschema

        schema = json.loads(SCHEMA.read_text())
        kind = jsonschema.Draft202012Validator
        kind.check_schema(schema)
        assert name in schema["$defs"], name
        _VALIDATORS[name] = kind({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
    return _VALIDATORS[name]


# Processes


def engine_of(pid: int) -> int | None:
    """The process id of the engine below a host, None where none lives."""
    return _engine(alive(descendants_of(pid)))


def engine_in(folder: Path) -> int | None:
    """The same of a host that runs in this folder, wherever it was started from (a terminal window)."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "cwd").samefile(folder):
                found.append(int(entry.name))
    return _engine(found)


def _engine(pids: Sequence[int]) -> int | None:
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            if "engine" in words and not any(word.endswith("engine_tee.py") for word in words):
                return pid
    return None


def wait_for(what: Callable[[], T | None], limit: float = 30.0) -> T:
    """The first true value of `what()`; fails after `limit` seconds."""
    end = time.monotonic() + limit
    while not (value := what()):
        assert time.monotonic() < end, "that did not come true"
        time.sleep(0.05)
    return value
