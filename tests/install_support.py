"""A machine for tests of `pi-mcp install`: a home, planted shims, and the command run as a person runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pi_mcp.hosts.install import Surroundings, Wishes, apply, planned, target_named
from pi_mcp.hosts.install.plan import Plan, Verb

SECRET = "sk-PLANTED-0123456789abcdef"


@dataclass
class Machine:
    """A home with nothing in it, and an installer whose shims are three short files."""

    root: Path
    command: tuple[str, ...] = ("/opt/pi-mcp/bin/pi-mcp",)
    version: str = "1.0"
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, text in {
            "engine_client.py": "# engine\n",
            "engine_process.py": "# engine process\n",
            "engine_records.py": "# engine records\n",
            "engine_values.py": "# engine values\n",
            "pp.py": "# pp\n",
            "code_puppy.py": "# puppy\n",
            "gptme.py": "# gptme\n",
            "pi/index.ts": "// index\n",
            "pi/package.json": "{}\n",
            "pi/engine.ts": "// engine\n",
        }.items():
            if not self.shims.exists() or not (self.root / "ready").exists():
                self.write(self.shims / name, text)
        self.write(self.root / "ready", "")
        self.home.mkdir(exist_ok=True)
        self.cwd.mkdir(exist_ok=True)

    @property
    def shims(self) -> Path:
        return self.root / "shims"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def cwd(self) -> Path:
        return self.root / "project"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def around(self) -> Surroundings:
        return Surroundings(
            self.home,
            self.cwd,
            self.environ,
            platform="linux",
            command=self.command,
            version=self.version,
            shims=self.shims,
            state=self.state,
        )

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
        return path

    def plan(self, verb: Verb, name: str, wishes: Wishes | None = None) -> Plan:
        (plan,) = planned([target_named(name)], verb, self.around, wishes or Wishes())
        assert SECRET not in plan.text(set()) + repr(plan) + str(plan.to_json(written=False))
        return plan

    def do(self, verb: Verb, name: str, wishes: Wishes | None = None) -> Plan:
        plan = self.plan(verb, name, wishes)
        if plan.problem is None:
            apply([plan], self.around)
        return plan

    def newer(self, version: str, **shims: str) -> Machine:
        """The same machine with a later pi-mcp."""
        for name, text in shims.items():
            self.write(self.shims / name.replace("__", "/").replace("_ts", ".ts").replace("_py", ".py"), text)
        return replace(self, version=version)

    def files(self) -> dict[str, str]:
        """Every file below the home."""
        return {
            path.relative_to(self.home).as_posix(): path.read_bytes().decode()
            for path in sorted(self.home.rglob("*"))
            if path.is_file()
        }


def pi_mcp(*words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """`pi-mcp WORDS` in a process of its own, with nobody at its terminal."""
    return subprocess.run(
        [sys.executable, "-m", "pi_mcp", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def lines_of(plan: Plan) -> list[Any]:
    return [line for change in plan.visible for line in change.shown]
