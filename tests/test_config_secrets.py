"""Secret commands: when they run, what of their output is used, and that nothing of them is left or shown."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.config import (
    ResolvedServer,
    Secret,
    configuration_of,
    fingerprint,
    load_config,
    lookup,
    resolve,
    resolve_secrets,
)
from pi_mcp.errors import ConfigurationError
from tests.support import run

PLANTED = "s3cr3t-planted-value"


def server(
    *commands: str, table: str = "headers", cwd: Path | None = None, environ: dict[str, str] | None = None, **more: Any
) -> ResolvedServer:
    entry = {"url": "https://h/mcp"} if table == "headers" else {"command": "srv"}
    values = {f"K{index}": f"!{command}" for index, command in enumerate(commands)}
    configuration = configuration_of({"s": {**entry, table: values, **more}}, cwd=cwd, environ=environ)
    return resolve(configuration.servers["s"], configuration)


def values(resolved: ResolvedServer) -> list[str]:
    done = run(resolve_secrets(resolved))
    assert done.commands == ()
    return [secret.reveal() for secret in (done.headers or done.env).values()]


def refusal(resolved: ResolvedServer) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        run(resolve_secrets(resolved))
    error = caught.value
    assert error.diagnostic.code == "secret_lookup_failed"
    assert error.diagnostic.server == "s"
    assert "K0" in error.diagnostic.message
    shown = "".join(traceback.format_exception(error)) + repr(error.__context__) + repr(error.__cause__)
    assert PLANTED not in shown
    return error


def gone(pid_file: Path) -> bool:
    """Whether the process that wrote its id there has ended (a zombie that init has still to reap counts)."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        pid = int(pid_file.read_text())
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("table", ["headers", "env"])
def test_b029_output_is_trimmed(table: str) -> None:
    assert values(server("printf 'x\\n'", "printf 'x\\r\\n'", "printf '  a b \\n\\n'", table=table)) == [
        "x",
        "x",
        "a b",
    ]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("true", "wrote nothing"),
        ("printf ' \\n\\n'", "wrote nothing"),
        (f"echo {PLANTED}; exit 1", "status 1"),
        (f"echo {PLANTED}; kill -9 $$", "status 137"),
        (f"printf '{PLANTED}\\nEvil: b'", "line break"),
        (f"printf '{PLANTED}\\rb'", "line break"),
        (f"printf '{PLANTED}\\033b'", "control character"),
        (f"printf '{PLANTED}\\000b'", "control character"),
        (f"printf '{PLANTED}\\377'", "UTF-8"),
        (f"echo {PLANTED}; head -c 102400 /dev/zero | tr '\\0' x", "64 KiB"),
        (f"yes {PLANTED}", "64 KiB"),
        (f"echo {PLANTED} >&2; /no/such/helper", "status 127"),
    ],
)
def test_b029_output_that_is_no_value_is_refused_without_showing_it(command: str, says: str) -> None:
    assert says in refusal(server(command)).diagnostic.message


def test_a_variable_may_have_several_lines_but_no_nul() -> None:
    assert values(server("printf 'a\\nb'", table="env")) == ["a\nb"]
    assert "NUL" in refusal(server(f"printf '{PLANTED}\\000b'", table="env")).diagnostic.message


def test_64_kib_are_still_a_value() -> None:
    assert len(values(server("head -c 65536 /dev/zero | tr '\\0' x"))[0]) == 65536


def test_b028_a_command_over_the_limit_is_ended_with_its_whole_group(tmp_path: Path) -> None:
    started = time.monotonic()
    resolved = server("sleep 60 & echo $! > child; echo $$ > shell; wait", cwd=tmp_path, timeoutMs=400)
    assert resolved.commands[0].time_limit == 0.4
    assert "0.4 s" in refusal(resolved).diagnostic.message
    assert time.monotonic() - started < 5
    assert gone(tmp_path / "child")
    assert gone(tmp_path / "shell")


def test_the_limit_is_ten_seconds_where_the_request_limit_is_longer() -> None:
    assert server("true", timeoutMs=60_000).commands[0].time_limit == 10
    assert server("true").commands[0].time_limit == 10


def test_a_descendant_that_keeps_stdout_open_holds_nobody_up(tmp_path: Path) -> None:
    started = time.monotonic()
    assert values(server("sleep 60 & echo $! > child; echo token", cwd=tmp_path)) == ["token"]
    assert time.monotonic() - started < 5
    assert gone(tmp_path / "child")


def test_cancelling_ends_every_command_before_it_returns(tmp_path: Path) -> None:
    async def main() -> None:
        task = asyncio.create_task(
            resolve_secrets(server("echo $$ > a; sleep 60", "echo $$ > b; sleep 60", cwd=tmp_path))
        )
        for _ in range(1000):
            if all(map(written, "ab")):
                break
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    def written(name: str) -> bool:
        return (tmp_path / name).is_file() and bool((tmp_path / name).read_text())

    run(main())
    for name in "ab":
        assert gone(tmp_path / name)


def test_an_engine_that_is_killed_leaves_no_command_behind(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib\n"
        "from pi_mcp.config import configuration_of, resolve, resolve_secrets\n"
        "text = '!sleep 60 & echo $! > child; echo $$ > shell; wait'\n"
        "c = configuration_of({'s': {'url': 'https://h', 'headers': {'X': text}}}, cwd=pathlib.Path.cwd())\n"
        "asyncio.run(resolve_secrets(resolve(c.servers['s'], c)))"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    engine = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environ)
    try:
        for _ in range(1000):
            if (tmp_path / "shell").is_file() and (tmp_path / "shell").read_text():
                break
            time.sleep(0.01)
    finally:
        engine.kill()
        engine.wait(10)
    assert gone(tmp_path / "child")
    assert gone(tmp_path / "shell")


def test_a_command_line_reaches_the_shell_as_written(tmp_path: Path) -> None:
    assert values(server("printf '%s|' \"$0\" \"$#\" 'a  b' \"it's\" '$x' `echo y`", cwd=tmp_path, table="env")) == [
        "/bin/sh|0|a  b|it's|$x|y|"
    ]


def test_the_first_failure_ends_the_other_commands(tmp_path: Path) -> None:
    started = time.monotonic()
    assert "K0" in refusal(server("sleep 0.2; exit 3", "echo $$ > other; sleep 60", cwd=tmp_path)).diagnostic.message
    assert time.monotonic() - started < 5
    assert gone(tmp_path / "other")


def test_commands_of_one_connection_run_at_the_same_time() -> None:
    started = time.monotonic()
    assert values(server(*["sleep 1; echo x"] * 6)) == ["x"] * 6
    assert time.monotonic() - started < 5.5


def test_a_command_gets_the_whole_environment_and_the_servers_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PI_MCP_TEST_OWN", "own")
    (tmp_path / "sub").mkdir()
    resolved = server("echo $PI_MCP_TEST_OWN; pwd", table="env", cwd=tmp_path)
    assert values(resolved) == [f"own\n{tmp_path}"]
    configuration = configuration_of({"s": {"command": "x", "cwd": "sub", "env": {"K0": "!pwd"}}}, cwd=tmp_path)
    assert values(resolve(configuration.servers["s"], configuration)) == [str(tmp_path / "sub")]
    assert values(server('echo "$ONLY_THERE"', environ={"ONLY_THERE": "there"})) == ["there"]


def test_a_missing_working_directory_is_named_as_such(tmp_path: Path) -> None:
    message = refusal(server("echo x", cwd=tmp_path / "absent")).diagnostic.message
    assert "working directory" in message
    assert str(tmp_path / "absent") in message


def test_stderr_and_stdin_are_not_the_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    assert values(server(f"echo {PLANTED} >&2; cat; echo x")) == ["x"]
    captured = capfd.readouterr()
    assert PLANTED not in captured.out + captured.err


def test_loading_and_resolving_run_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    entry = {"url": "https://h/mcp", "headers": {"K0": f"!touch {mark}; echo x"}}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"s": entry}}))
    configuration = load_config(config=file, cwd=tmp_path)
    resolved = resolve(configuration.servers["s"], configuration)
    before = fingerprint(resolved, b"k")
    assert not mark.exists()
    done = run(resolve_secrets(resolved))
    assert mark.exists()
    assert fingerprint(done, b"k") == before


def test_what_a_command_prints_is_never_run_or_expanded() -> None:
    assert values(server("echo '!touch /nowhere ${HOME} $HOME'")) == ["!touch /nowhere ${HOME} $HOME"]


def test_b187_a_looked_up_value_is_shown_nowhere() -> None:
    done = run(resolve_secrets(server(f"printf 'Bearer {PLANTED}'")))
    assert PLANTED not in repr(done) + str(done.headers) + f"{done.headers['K0']}" + done.redactor(f"x {PLANTED}")
    assert done.headers["K0"].reveal() == f"Bearer {PLANTED}"


def test_a_secret_is_compared_copied_and_hidden() -> None:
    secret = Secret(PLANTED)
    assert secret == Secret(PLANTED)
    assert secret != Secret("other")
    assert secret != PLANTED
    assert copy.deepcopy({"a": secret})["a"] is secret
    assert (repr(secret), str(secret), f"{secret:>5}", f"{secret!r}") == ("***", "***", "  ***", "***")
    for write in (pickle.dumps, json.dumps):
        with pytest.raises(TypeError) as caught:
            write(secret)
        assert PLANTED not in str(caught.value)
    assert not hasattr(secret, "__dict__")


def test_no_descriptor_is_left_open_by_commands_of_any_end(tmp_path: Path) -> None:
    async def main() -> None:
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(5):
            for command in ("echo x", "exit 1", "sleep 60 & echo x"):
                try:
                    await resolve_secrets(server(command, cwd=tmp_path))
                except ConfigurationError:
                    pass
        await asyncio.sleep(0.05)
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208

    run(main())
    assert lookup.MAX_OUTPUT == 65536
