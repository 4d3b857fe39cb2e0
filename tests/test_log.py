"""The debug log: only on request, only into a private file, without secrets and foreign exception texts."""

from __future__ import annotations

import logging
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pi_mcp import files, log
from pi_mcp.errors import failure
from pi_mcp.text import Redactor

SECRET = "planted-secret-8842"
LOGGER = logging.getLogger("pi_mcp.test")


@pytest.fixture(autouse=True)
def quiet_again() -> Iterator[None]:
    yield
    log.configure_logging({})


def logged(environ: dict[str, str] | None = None) -> Path:
    path = log.configure_logging(environ if environ is not None else {"PI_MCP_LOG": "debug"})
    assert path is not None
    return path


def test_without_the_variable_nothing_is_written_anywhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert log.configure_logging({}) is None
    LOGGER.error("nobody reads this")
    logging.getLogger("mcp").error("nor this")
    assert capfd.readouterr() == ("", "")
    assert not files.state_dir().exists()


def test_debug_writes_a_private_file_and_nothing_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    path = logged()
    LOGGER.debug("found %d tools", 3)
    assert path == files.state_dir() / "logs" / "debug.log"
    assert "DEBUG pi_mcp.test: found 3 tools\n" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert capfd.readouterr() == ("", "")


def test_a_host_that_logs_to_its_terminal_does_not_show_our_lines() -> None:
    script = (
        "import logging; logging.basicConfig(level=logging.DEBUG)\n"
        "from pi_mcp.log import configure_logging\n"
        "for value in ('', 'debug'):\n"
        "    configure_logging({'PI_MCP_LOG': value}); logging.getLogger('pi_mcp.x').error('ours')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=Path(__file__).parent.parent
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_configuring_twice_writes_each_line_once() -> None:
    path = logged()
    assert logged() == path
    LOGGER.warning("once")
    logging.getLogger("mcp.client").warning("library")
    text = path.read_text()
    assert (text.count("once"), text.count("library")) == (1, 1)


def test_secrets_are_redacted_also_when_an_escape_sequence_splits_them() -> None:
    redactor = Redactor()
    redactor.add(SECRET)
    path = logged()
    LOGGER.info("token %s and %s", SECRET, SECRET[:7] + "\x1b[0m" + SECRET[7:])
    text = path.read_text()
    assert SECRET not in text
    assert "\x1b" not in text
    assert text.count("***") == 2


def test_a_foreign_exception_leaves_its_type_alone() -> None:
    path = logged()
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise ExceptionGroup(SECRET, [error, OSError(SECRET)]) from error
    except ExceptionGroup as group:
        LOGGER.exception("listing failed: %s", group)
        LOGGER.error(group.exceptions[0])
        LOGGER.error("by name: %(error)s", {"error": group.exceptions[1]})
    text = path.read_text()
    assert SECRET not in text
    assert "Traceback" not in text
    assert "listing failed: ExceptionGroup(ValueError, OSError) [ExceptionGroup(ValueError, OSError)]" in text
    assert ": ValueError\n" in text
    assert "by name: OSError\n" in text


def test_our_own_failures_are_written_as_their_diagnostic() -> None:
    path = logged()
    LOGGER.debug("%s", failure("timeout", "list", "maps", "It took too long.", "Try again."))
    assert "maps: [timeout] It took too long. Try again." in path.read_text()


def test_a_record_that_cannot_be_formatted_stops_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    path = logged()
    # Handed over directly: pytest's own handler would take the first one as an error of the test.
    log.RedactedFile(path).handle(logging.LogRecord("pi_mcp", 10, "", 1, "%d", ("no number",), None))
    LOGGER.debug("next")
    assert "next" in path.read_text()
    assert capfd.readouterr() == ("", "")


def test_a_directory_that_cannot_be_used_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_bytes(b"")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    logged()
    LOGGER.error("lost")
    assert capfd.readouterr() == ("", "")


def test_libraries_are_heard_from_warnings_upward() -> None:
    path = logged()
    logger = logging.getLogger("httpx2")
    logger.setLevel(logging.DEBUG)
    try:
        logger.info("a whole request")
        logger.warning("a warning")
    finally:
        logger.setLevel(logging.NOTSET)
    text = path.read_text()
    assert "a whole request" not in text
    assert "a warning" in text


def test_lines_and_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FILE_LIMIT", 20_000)
    path = logged()
    for _ in range(30):
        LOGGER.debug("x" * 100_000)
    sizes = {entry.name: entry.stat().st_size for entry in path.parent.iterdir() if entry.name != "lock"}
    assert set(sizes) == {"debug.log", "debug.log.1"}
    assert all(size < 30_000 for size in sizes.values())


def test_several_threads_lose_no_line_while_the_file_is_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "FILE_LIMIT", 15_000)
    path = logged()
    threads = [
        threading.Thread(target=lambda n=n: [LOGGER.debug("line %d.%d.", n, i) for i in range(50)]) for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    older = path.with_name("debug.log.1")
    text = (older.read_text() if older.exists() else "") + path.read_text()
    assert sum(f"line {n}.{i}." in text for n in range(4) for i in range(50)) == 200


def test_a_server_cannot_forge_a_line_of_the_log() -> None:
    path = logged()
    LOGGER.debug("it said %s", "a\n2026-01-01T00:00:00.000Z 1 ERROR pi_mcp: forged")
    assert all(not line.startswith("2026-01-01") for line in path.read_text().splitlines())


@pytest.mark.parametrize("value", ["", "no", "0", "verbose"])
def test_other_values_of_the_variable_switch_nothing_on(value: str) -> None:
    assert log.configure_logging({"PI_MCP_LOG": value}) is None
