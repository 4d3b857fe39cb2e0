"""`pi-mcp batch`: every line gets one result, in order, and no call goes out twice, whatever happens in between."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli import batch as batch_module
from pi_mcp.cli import main
from pi_mcp.cli.journal import Journal, JournalBroken
from pi_mcp.errors import PiMcpError
from tests import environments
from tests.chat_support import wait_until
from tests.hostile.http_server import HttpServer, Request, closed_port

SECRET = "s3cr3t-planted-value"
DONE = b'"result": {"line"'
"""What the journal says of a line that is done."""
ROOT = Path(__file__).resolve().parent.parent


class Batch:
    """A folder with a configuration and a file of lines, and what a run of it printed."""

    def __init__(self, folder: Path, servers: Mapping[str, Any], lines: Iterable[Any]) -> None:
        self.config, self.file = folder / "mcp.json", folder / "calls.jsonl"
        self.config.write_text(json.dumps({"mcpServers": servers}))
        self.file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        self.journal = folder / "calls.jsonl.journal"

    def words(self, *more: str) -> list[str]:
        return ["batch", "--config", str(self.config), str(self.file), *more]

    def run(self, capfdbinary: pytest.CaptureFixture[bytes], *more: str) -> tuple[int, list[dict[str, Any]], str]:
        code = main(self.words(*more))
        out, err = capfdbinary.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err.decode()

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "pi_mcp.cli", *self.words(*more)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def calls(count: int, server: str = "s", tool: str = "echo") -> list[dict[str, Any]]:
    return [{"server": server, "tool": tool, "arguments": {"i": i}, "id": f"call {i}"} for i in range(count)]


def numbers(requests: Iterable[Request]) -> Counter[int]:
    return Counter(request.message["params"]["arguments"]["i"] for request in requests)


@pytest.mark.parametrize("options", [{"session": True, "answers": "sse"}, {"session": True}, {"era": "modern"}])
def test_every_line_gets_its_result_in_the_order_of_the_file(
    options: dict[str, Any], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def late(request: Request, server: HttpServer) -> dict[str, Any]:
        return {"sleep": 0.2 if request.message["params"]["arguments"]["i"] % 10 == 0 else 0.0}

    with HttpServer({"tools/call": late}, **options) as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(60))
        code, rows, err = batch.run(capfdbinary)
        assert (code, err) == (0, "")
        assert [row["line"] for row in rows] == list(range(1, 61))
        assert [row["id"] for row in rows] == [f"call {i}" for i in range(60)]
        assert {row["outcome"] for row in rows} == {"ok"}
        assert json.loads(rows[7]["result"]["content"][0]["text"])["arguments"] == {"i": 7}
        assert numbers(server.of("tools/call")) == Counter(range(60))
        assert server.sessions == {}, "every session was ended"
        assert not batch.journal.exists(), "there is nothing to take up"


def test_a_bad_line_is_an_error_of_its_own_and_the_others_go_on(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        name = request.message["params"]["name"]
        return {"result": {"isError": True, "content": []}} if name == "other" else {}

    lines = [
        "not json", "[1]", '{"server": "s"}', '{"server": "s", "tool": "echo", "arguments": [1]}', "",
        '{"server": "s", "tool": "echo", "argumnets": {}}', {"server": "t", "tool": "echo"},
        "\ufeff" + json.dumps(calls(1)[0]),
        {"server": "s", "tool": "ecco"}, {"server": "s", "tool": "other"}, {"server": "gone", "tool": "echo"},
        '{"server": "s", "tool": "echo", "arguments": {"x": NaN}}', '{"server": "s", "tool": "echo", "id": {"a": 1}}',
    ]  # fmt: skip
    with HttpServer({"tools/call": react}) as server:
        gone = {"url": f"http://127.0.0.1:{closed_port()}/mcp?key={SECRET}"}
        batch = Batch(tmp_path, {"s": {"url": server.url}, "gone": gone}, lines)
        code, rows, err = batch.run(capfdbinary)
    assert (code, err) == (1, "")
    assert [row["line"] for row in rows] == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13]
    outcomes = [(row["outcome"], row.get("error", {}).get("code")) for row in rows]
    assert outcomes == [
        *[("error", "usage")] * 5, ("error", "not_found"), ("ok", None), ("error", "not_found"),
        ("tool_error", "tool_error"), ("error", "connection_failed"), ("error", "usage"), ("ok", None),
    ]  # fmt: skip
    assert rows[8]["result"] == {"isError": True, "content": []}
    assert rows[-1]["id"] == {"a": 1}
    assert SECRET not in json.dumps(rows)


def test_what_a_person_would_have_to_confirm_is_refused_unless_it_is_named(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with HttpServer() as server:
        servers = {
            "untrusted": {"url": server.url, "trust": "untrusted"},
            "named": {"url": server.url, "trust": "verified", "includeTools": ["echo"]},
            "excluded": {"url": server.url, "excludeTools": ["echo"]},
        }
        batch = Batch(tmp_path, servers, [calls(1, name)[0] for name in servers])
        _, rows, _ = batch.run(capfdbinary)
        assert [row["outcome"] for row in rows] == ["error", "ok", "error"]
        assert [rows[0]["error"]["code"], rows[2]["error"]["code"]] == ["refused", "refused"]
        assert len(server.of("tools/call")) == 1


def test_a_call_is_journaled_on_disk_before_it_goes_out(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    seen: list[bytes] = []

    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        seen.append(batch.journal.read_bytes())
        assert stat.S_IMODE(batch.journal.stat().st_mode) == 0o600
        return {}

    with HttpServer({"tools/call": react}) as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(3))
        tmp_path.chmod(0o755)
        assert batch.run(capfdbinary, "--concurrency", "1")[0] == 0
        assert [text.count(b'"sent"') for text in seen] == [1, 2, 3]
        assert [text.count(DONE) for text in seen] == [0, 1, 2]
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def hold(after: int, held: threading.Event) -> Callable[[Request, HttpServer], dict[str, Any]]:
    """Answers the first calls, and lets the others wait until `held` is set."""

    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        return {} if held.is_set() or request.message["params"]["arguments"]["i"] < after else {"hang": True}

    return react


@pytest.mark.parametrize("retry", [False, True])
def test_after_a_kill_nothing_done_is_repeated_and_what_was_under_way_is_unknown(
    retry: bool, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    held = threading.Event()
    with HttpServer({"tools/call": hold(10, held)}, session=True) as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(30))
        process = batch.start("--concurrency", "3")
        try:
            wait_until(lambda: len(server.of("tools/call")) == 13 and batch.journal.read_bytes().count(DONE) == 10, 20)
        finally:
            process.kill()
            process.communicate()
        held.set()
        first = numbers(server.of("tools/call"))
        server.requests.clear()
        code, rows, _ = batch.run(capfdbinary, *(["--retry-unknown"] if retry else []))
        assert [row["line"] for row in rows] == list(range(1, 31))
        again = numbers(server.of("tools/call"))
        outcomes = Counter(row["outcome"] for row in rows)
        under_way = {i for i in first if rows[i]["outcome"] == "unknown"} if not retry else set(first) & set(again)
        assert len(under_way) == 3
        if retry:
            assert (code, outcomes) == (0, {"ok": 30})
            assert again == Counter([*under_way, *range(13, 30)])
            assert not batch.journal.exists()
        else:
            assert (code, outcomes) == (1, {"ok": 27, "unknown": 3})
            assert again == Counter(range(13, 30))
            assert rows[min(under_way)]["error"]["message"].startswith("It was under way")
            # They can be asked for later.
            server.requests.clear()
            code, rows, _ = batch.run(capfdbinary, "--retry-unknown")
            assert (code, {row["outcome"] for row in rows}) == (0, {"ok"})
            assert numbers(server.of("tools/call")) == Counter(under_way)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_batch_ends_cleanly_and_goes_on_where_it_was(
    number: signal.Signals, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    held = threading.Event()
    with HttpServer({"tools/call": hold(8, held)}, session=True) as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(20))
        process = batch.start("--concurrency", "2")
        try:
            wait_until(lambda: len(server.of("tools/call")) == 10 and batch.journal.read_bytes().count(DONE) == 8, 20)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        assert process.returncode == 130
        assert b"[cancelled]" in err
        assert [json.loads(line)["line"] for line in out.splitlines()] == list(range(1, 9))
        assert len(server.of("notifications/cancelled")) == 2
        assert server.sessions == {}
        held.set()
        server.requests.clear()
        _, rows, _ = batch.run(capfdbinary)
        assert Counter(row["outcome"] for row in rows) == {"ok": 18, "unknown": 2}
        assert numbers(server.of("tools/call")) == Counter(range(10, 20))


def test_a_file_that_changed_since_sends_nothing(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    with HttpServer() as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(5))
        journal = Journal(batch.journal)
        lines = list(batch_module.lines_of(batch.file))
        journal.sent(2, lines[1].digest)
        journal.close(remove=False)
        text = batch.file.read_text().splitlines()
        for changed in ([text[0], text[0], *text[2:]], text[:1]):
            batch.file.write_text("\n".join(changed) + "\n")
            code, rows, err = batch.run(capfdbinary)
            assert (code, rows) == (2, [])
            assert "is not the file" in err
        assert server.requests == []
        batch.file.write_text("\n".join([*text, json.dumps(calls(6)[5])]) + "\n")
        _, rows, _ = batch.run(capfdbinary)
        assert [row["outcome"] for row in rows] == ["ok", "unknown", "ok", "ok", "ok", "ok"]


def test_a_journal_that_was_cut_off_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.sent(1, "a" * 32)
    journal.done(1, {"x": "y" * 200_000})
    journal.sent(2, "b" * 32)
    with pytest.raises(PiMcpError) as busy:
        Journal(path)
    assert busy.value.diagnostic.code == "busy"
    journal.close(remove=False)
    whole = path.read_bytes()
    for cut in (b'{"line": 3, "sent"', b'{"line": 2, "result": {"x', b"\0\0\0"):
        path.write_bytes(whole + cut)
        journal = Journal(path)
        assert [journal.state(number) for number in (1, 2, 3)] == ["done", "sent", "new"]
        assert json.loads(journal.result(1)) == {"x": "y" * 200_000}
        assert journal.is_same(1, "a" * 32)
        assert not journal.is_same(2, "c" * 32)
        journal.close(remove=False)
        assert path.read_bytes() == whole
    path.write_bytes(b"something else\n")
    with pytest.raises(PiMcpError):
        Journal(path)


@pytest.mark.parametrize(
    "line",
    [
        b"\0\0\0\n", b"{}\n", b'{"line": 2, "se{"line": 3, "sent": "cc"}\n', b'{"line": -1, "sent": "aa"}\n',
        b'{"line": 99999999999999, "sent": "aa"}\n', b'{"line": 1, "result": {"x\n', b'{"line": 2, "sent": "no"}\n',
    ],
)  # fmt: skip
def test_a_journal_with_a_damaged_line_is_not_gone_on_with(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.sent(1, "a" * 32)
    journal.close(remove=False)
    path.write_bytes(path.read_bytes() + line + b'{"line": 4, "sent": "dd"}\n')
    with pytest.raises(PiMcpError) as unusable:
        Journal(path)
    assert "Line 3" in unusable.value.diagnostic.line()


def test_a_journal_that_shrinks_under_a_run_is_told_and_not_waited_for(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.done(1, {"x": 1})
    journal.done(2, {"x": "y" * 100})
    os.truncate(tmp_path / "j", 60)
    with pytest.raises(JournalBroken):
        journal.result(2)
    journal.close(remove=False)


def test_a_full_disk_stops_the_batch_and_the_next_run_repeats_nothing(tmp_path: Path) -> None:
    with HttpServer() as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(40))
        for limit in (5, 1000, 1501, 2222):  # bytes that the disk takes: a journal's head, and into a line
            full = [
                "-c",
                f"import resource as r; r.setrlimit(r.RLIMIT_FSIZE, ({limit},) * 2); from pi_mcp.cli import main",
            ]
            done = subprocess.run(
                [sys.executable, full[0], f"{full[1]}; raise SystemExit(main({batch.words()!r}))"],
                capture_output=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                timeout=60,
            )
            assert done.returncode == 3, done.stderr
            assert done.stderr.startswith(b"[operation_failed] The journal")
            assert b"Traceback" not in done.stderr
            assert all(json.loads(line) for line in done.stdout.splitlines())
        done = subprocess.run(
            [sys.executable, "-m", "pi_mcp.cli", *batch.words()],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert [row["line"] for row in rows] == list(range(1, 41))
        assert {row["outcome"] for row in rows} <= {"ok", "unknown"}
        assert set(numbers(server.of("tools/call")).values()) == {1}


@pytest.mark.parametrize("gone", ["a reader that left", "/dev/full"])
def test_results_that_nobody_takes_end_the_batch_and_come_again_in_the_next_run(gone: str, tmp_path: Path) -> None:
    with HttpServer() as server:
        lines = [{**call, "arguments": {**call["arguments"], "pad": "x" * 4000}} for call in calls(100)]
        batch = Batch(tmp_path, {"s": {"url": server.url}}, lines)
        if gone == "/dev/full":
            writing = os.open(gone, os.O_WRONLY)
        else:
            reading, writing = os.pipe()
            os.close(reading)
        with os.fdopen(writing, "wb") as output:
            words = [sys.executable, "-m", "pi_mcp.cli", *batch.words()]
            environ = {**os.environ, "PYTHONPATH": str(ROOT)}
            with subprocess.Popen(words, stdout=output, stderr=subprocess.PIPE, env=environ) as process:
                _, err = process.communicate(timeout=60)
        assert process.returncode == (3 if gone == "/dev/full" else 141)
        assert err.startswith(b"[operation_failed] The results cannot be written any more")
        assert err.count(b"\n") == 1
        done = batch.start()
        out, _ = done.communicate(timeout=60)
        assert {json.loads(line)["outcome"] for line in out.splitlines()} == {"ok"}
        assert len(out.splitlines()) == 100
        assert set(numbers(server.of("tools/call")).values()) == {1}


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    batch = Batch(tmp_path, {}, calls(1))
    batch.file.unlink()
    os.mkfifo(batch.file)
    code, rows, err = batch.run(capfdbinary)
    assert (code, rows) == (2, [])
    assert "regular file" in err
    batch.file.unlink()
    code, rows, err = batch.run(capfdbinary)
    assert (code, rows) == (2, [])
    assert "is not there" in err


def test_numbers_that_no_json_has_stay_out_of_the_output(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    batch = Batch(
        tmp_path, {}, ['{"server": "s", "tool": "t", "id": 1e999}', '{"server": "s", "tool": "t", "id": 1e9}']
    )
    code, rows, _ = batch.run(capfdbinary)
    assert code == 1
    assert [row.get("id") for row in rows] == [None, 1e9]
    assert rows[0]["error"]["code"] == "usage"


@pytest.mark.parametrize("text", ["no line end", json.dumps(calls(1)[0]), "\n", "{}\n{}\n"])
def test_a_file_that_is_no_journal_stays_as_it_is(
    text: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    batch = Batch(tmp_path, {}, calls(1))
    other = tmp_path / "other"
    other.write_text(text)
    assert batch.run(capfdbinary, "--journal", str(other))[0] == 3
    assert other.read_text() == text
    batch.file.write_text(text)
    code, _, err = batch.run(capfdbinary, "--journal", str(batch.file))
    assert (code, err[:9]) == (2, "[usage] -")
    assert batch.file.read_text() == text


def test_a_fault_of_ours_in_a_worker_does_not_leave_the_batch_waiting(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Journal, "done", fails)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    with HttpServer() as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(3))
        assert batch.run(capfdbinary, "--concurrency", "1")[0] == 3
        assert len(server.of("tools/call")) == 1


def test_a_journal_is_no_link_and_no_directory(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    batch = Batch(tmp_path, {}, calls(1))
    batch.journal.symlink_to(tmp_path / "elsewhere")
    assert batch.run(capfdbinary)[0] == 3
    assert not (tmp_path / "elsewhere").exists()
    assert batch.run(capfdbinary, "--journal", str(tmp_path))[0] == 3
    assert batch.run(capfdbinary, "--concurrency", "0")[0] == 2
    batch.file.unlink()
    assert batch.run(capfdbinary)[0] == 2


def test_a_lost_session_and_a_dead_connection_end_no_other_line(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        number = request.message["params"]["arguments"]["i"]
        if number == 5:
            return {"reset": True}
        if number == 10 and numbers(server.of("tools/call"))[10] == 1:
            server.forget_sessions()
            return {"status": 404}
        return {}

    with HttpServer({"tools/call": react}, session=True) as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}}, calls(20))
        _, rows, _ = batch.run(capfdbinary, "--concurrency", "1")
        assert Counter(row["outcome"] for row in rows) == {"ok": 19, "error": 1}
        assert "unknown" in rows[5]["error"]["message"]
        # A 404 for its session proves that the call did not run: it is sent once more, with a new one.
        assert numbers(server.of("tools/call")) == Counter({**dict.fromkeys(range(20), 1), 10: 2})


def test_a_line_that_found_no_session_was_not_sent(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    journaled: list[int] = []
    monkeypatch.setattr(Journal, "sent", lambda _, number, digest: journaled.append(number))
    script = {"initialize": [{}, {"hang": True}], "tools/call": {"reset": True}}
    with HttpServer(script, session=True) as server:
        entry = {"url": server.url, "startupTimeoutMs": 400, "protocol": "legacy"}
        code, rows, _ = Batch(tmp_path, {"s": entry}, calls(2)).run(capfdbinary, "--concurrency", "1")
    assert code == 1
    assert [row["error"]["code"] for row in rows] == ["connection_failed", "timeout"]
    assert journaled == [1]


def test_servers_over_stdio_are_asked_too(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    clock = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
    asked = {"server": "clock", "tool": "get_current_time", "arguments": {"timezone": "UTC"}}
    with HttpServer() as server:
        batch = Batch(tmp_path, {"s": {"url": server.url}, "clock": clock}, [calls(1)[0], asked] * 5)
        code, rows, err = batch.run(capfdbinary)
    assert (code, err) == (0, ""), rows
    assert [row["server"] for row in rows] == ["s", "clock"] * 5


def test_a_refused_login_goes_the_long_way_and_is_told(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with HttpServer({"*": {"status": 401}}) as server:
        batch = Batch(tmp_path, {"s": {"url": server.url, "headers": {"Authorization": f"Bearer {SECRET}"}}}, calls(3))
        _, rows, _ = batch.run(capfdbinary)
        assert {row["error"]["code"] for row in rows} == {"authentication_required"}
        assert SECRET not in json.dumps(rows)
        assert server.of("tools/call") == []


# a thousand calls, against real servers


def peak(process: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """The peak of resident memory in KiB, and what the process printed."""
    highest = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.05):
            try:
                text = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            highest = max(highest, *(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")), 0)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        out, err = process.communicate(timeout=240)
    finally:
        done.set()
        thread.join()
        process.kill()
    assert process.returncode == 0, err[-2000:]
    return highest, out


def everything_python(port: int) -> subprocess.Popen[bytes]:
    source = environments.sdist("mcp", "2.3.0") / "examples" / "servers" / "everything-server"
    python = environments.venv("everything-server", "mcp==2.3.0", str(source))
    return subprocess.Popen(
        [str(python.with_name("mcp-everything-server")), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def everything_node(port: int) -> subprocess.Popen[bytes]:
    package = "@modelcontextprotocol/server-everything"
    folder = environments.npm(f"{package}@2026.8.31") / "node_modules" / package / "dist" / "index.js"
    return subprocess.Popen(
        [str(environments.node22()), str(folder), "streamableHttp"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PORT": str(port)},
    )


REAL = {
    "python": (everything_python, "test_simple_text", lambda i: {}),
    "node": (everything_node, "echo", lambda i: {"message": f"call {i}"}),
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", REAL)
def test_a_thousand_calls_lose_none_repeat_none_and_keep_the_memory_flat(kind: str, tmp_path: Path) -> None:
    start, tool, arguments = REAL[kind]
    port = closed_port()
    server = start(port)
    try:
        url = f"http://127.0.0.1:{port}/mcp"
        wait_until(lambda: answers(url), 60)
        peaks = []
        for count in (100, 1000):
            lines = [{"server": "s", "tool": tool, "arguments": arguments(i), "id": i} for i in range(count)]
            batch = Batch(tmp_path, {"s": {"url": url}}, lines)
            highest, out = peak(batch.start())
            rows = [json.loads(line) for line in out.splitlines()]
            assert [row["id"] for row in rows] == list(range(count))
            assert {row["outcome"] for row in rows} == {"ok"}
            if kind == "node":
                assert all(f"call {row['id']}" in row["result"]["content"][0]["text"] for row in rows)
            peaks.append(highest)
        assert peaks[1] < peaks[0] * 1.2 + 2048, peaks
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def answers(url: str) -> bool:
    from pi_mcp.http_client import MCPClientError, MCPHTTPClient

    try:
        with MCPHTTPClient(url) as client:
            client.initialize()
    except MCPClientError:
        return False
    return True
