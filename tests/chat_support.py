"""What the tests of `pi-mcp chat` share: a configuration with a real server, and the chat as a process."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SERVER = ROOT / "tests" / "chat_server.py"


@dataclass
class Desk:
    """A folder with a configuration of one server, `desk`, and what that server saw."""

    folder: Path
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entry = {"command": sys.executable, "args": [str(SERVER), str(self.seen_file)], **self.extra}
        self.config.write_text(json.dumps({"mcpServers": {"desk": entry}}))

    @property
    def config(self) -> Path:
        return self.folder / "mcp.json"

    @property
    def seen_file(self) -> Path:
        return self.folder / "seen"

    @property
    def seen(self) -> list[dict[str, Any]]:
        if not self.seen_file.exists():
            return []
        return [json.loads(line) for line in self.seen_file.read_text().splitlines()]

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pi_mcp.cli", "chat", "--config", str(self.config), *arguments]

    def run(
        self, *arguments: str, typed: str = "", environ: dict[str, str] | None = None, limit: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run the chat with `typed` as its piped input."""
        return subprocess.run(
            self.command(*arguments),
            input=typed,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=self.folder,
            env={**chat_environ(), **(environ or {})},
        )


def chat_environ() -> dict[str, str]:
    """This environment without model keys, with the source tree importable."""
    kept = {
        k: v for k, v in os.environ.items() if not k.endswith("_API_KEY") and k not in ("NO_COLOR", "PYTHONUNBUFFERED")
    }
    return {**kept, "PYTHONPATH": str(ROOT)}


class Terminal:
    """A program in a tmux window; `with Terminal([...], columns=80) as terminal`."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path,
        columns: int = 80,
        lines: int = 40,
        environ: dict[str, str] | None = None,
    ) -> None:
        self._name = f"pimcp-test-{os.getpid()}-{secrets.token_hex(4)}"
        self._columns = columns
        words = ["env", *(f"{key}={value}" for key, value in (environ or {}).items()), *command]
        ended = cwd / "ended"
        line = f"{shlex.join(words)}; echo $? > {shlex.quote(str(ended))}; sleep 60"
        self._ended = ended
        self._start = ["new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(cwd), line]

    def __enter__(self) -> Terminal:
        self._tmux(*self._start)
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["tmux", "-L", self._name, "kill-server"], capture_output=True, timeout=10)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            env=chat_environ(),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """tmux's key names: Enter, Escape, Up, Tab, C-c."""
        self._tmux("send-keys", *keys)

    def enter(self, text: str) -> None:
        self.type(text)
        self.press("Enter")

    def paste(self, text: str) -> None:
        self._tmux("set-buffer", "--", text)
        self._tmux("paste-buffer", "-p")

    def screen(self, *, colours: bool = False) -> str:
        return self._tmux("capture-pane", "-p", "-S", "-200", *(["-e"] if colours else []))

    def wait(self, text: str, *, count: int = 1, limit: float = 20.0) -> str:
        """The screen, once it shows `text` `count` times; line breaks of a narrow window count as blanks."""
        end = time.monotonic() + limit
        while True:
            screen = self.screen()
            if " ".join(screen.split()).count(text) >= count:
                return screen
            if time.monotonic() > end:
                raise AssertionError(f"{text!r} did not come up {count} times:\n{screen}")
            time.sleep(0.05)

    def exit_code(self, limit: float = 15.0) -> int:
        end = time.monotonic() + limit
        while not (self._ended.exists() and self._ended.read_text().strip()):
            assert time.monotonic() < end, self.screen()
            time.sleep(0.05)
        return int(self._ended.read_text())


def servers_alive(marker: str) -> list[int]:
    """Process ids of running Python servers with `marker` on their command line; zombies do not count."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z" and any(marker in word for word in words) and any("chat_server" in word for word in words):
            found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], bool], limit: float = 10.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.05)
