"""A host that talks nonsense, too much, or not at all: the engine answers what it can, and always ends."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.hosts.engine import wire
from pi_mcp.hosts.engine.serve import Engine
from tests.engine_support import engine
from tests.shim_support import ADD, SECRET, WAIT, Stage, wait_for
from tests.support import run


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("DESK_SECRET", SECRET)
    return Stage(tmp_path)


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; none when it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


GOOD = b'{"jsonrpc": "2.0", "id": 99, "method": "nothing"}\n'
MALFORMED: list[tuple[bytes, int, Any]] = [
    (b"hello", -32700, None),
    (b"{", -32700, None),
    (b"\xff\xfe\x00", -32700, None),
    (b"[" * 200_000, -32700, None),
    (b'{"jsonrpc": "2.0", "id": ' + b"9" * 10_000 + b', "method": "x"}', -32700, None),
    (b"[]", -32600, None),
    (b'[{"jsonrpc": "2.0", "id": 1, "method": "shutdown"}]', -32600, None),
    (b"42", -32600, None),
    (b"null", -32600, None),
    (b'{"id": 1, "method": "shutdown"}', -32600, 1),
    (b'{"jsonrpc": "1.0", "id": 2, "method": "shutdown"}', -32600, 2),
    (b'{"jsonrpc": "2.0", "id": 3}', -32600, 3),
    (b'{"jsonrpc": "2.0", "id": 4, "method": 5}', -32600, 4),
    (b'{"jsonrpc": "2.0", "id": 5, "method": "shutdown", "params": []}', -32600, 5),
    (b'{"jsonrpc": "2.0", "id": 5.5, "method": "shutdown"}', -32600, None),
    (b'{"jsonrpc": "2.0", "id": true, "method": "shutdown"}', -32600, None),
    (b'{"jsonrpc": "2.0", "id": null, "method": "shutdown"}', -32600, None),
    (b'{"jsonrpc": "2.0", "id": {"a": 1}, "method": "shutdown"}', -32600, None),
]


def test_lines_that_are_no_json_rpc_are_answered_and_skipped(stage: Stage) -> None:
    with engine(stage.work) as host:
        host._check = None
        for line, code, number in MALFORMED:
            host.raw(line + b"\n")
            answer = host.line()
            assert answer is not None
            assert (answer["error"]["code"], answer["id"]) == (code, number), line[:80]
            host.raw(b"\n \n" + GOOD)
            assert host.answer(99)["error"]["code"] == -32601


def test_ten_malformed_lines_in_a_row_end_the_engine(stage: Stage) -> None:
    with engine(stage.work) as host:
        host._check = None
        host.raw(b"x\n" * 9 + GOOD + b"x\n" * 10 + GOOD)
        lines = []
        while (line := host.line()) is not None:
            lines.append(line["error"]["code"])
        assert lines == [-32700] * 9 + [-32601] + [-32700] * 10
        assert host.exit_code() == 2


@pytest.mark.parametrize("ended", [True, False], ids=["with its end", "without an end"])
def test_a_line_over_16_mib_ends_the_engine(stage: Stage, ended: bool) -> None:
    with engine(stage.work) as host:
        host._check = None
        host.raw(GOOD)
        host.answer(99)
        before = resident(host.process.pid)
        line = b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * wire.LINE_LIMIT + b'"}'
        sent = threading.Thread(target=_send, args=(host, line + (b"\n" if ended else b"")))
        sent.start()
        answer = host.line()
        assert answer is not None
        assert answer["error"]["code"] == -32600
        assert "16 MiB" in answer["error"]["message"]
        assert resident(host.process.pid) - before < 3 * wire.LINE_LIMIT
        assert host.exit_code() == 2
        sent.join(5)


def _send(host: Any, data: bytes) -> None:
    try:
        host.raw(data)
    except OSError:
        pass


def test_a_long_line_within_the_limit_is_a_line(stage: Stage) -> None:
    with engine(stage.work, checked=False) as host:
        host.raw(b'{"jsonrpc": "2.0", "id": 99, "method": "' + b"x" * (wire.LINE_LIMIT - 100) + b'"}\n')
        error = host.answer(99)["error"]
        assert error["code"] == -32601
        assert len(error["message"]) < 200


@pytest.mark.parametrize("protocol", [0, 2, "1", None, True, 1.5, [1]])
def test_another_protocol_is_told_to_be_installed_again(stage: Stage, protocol: Any) -> None:
    with engine(stage.work, checked=False) as host:
        error = host.fail("initialize", protocol=protocol, host="pp", cwd="/", session={"id": "x", "kind": "new"})
        assert error["data"]["code"] == "configuration_invalid"
        assert "`pi-mcp install pp`" in error["data"]["hint"]
        # It goes on for a shim that can do better.
        assert host.initialize()["protocol"] == 1


def test_wrong_parameters_are_named_and_change_nothing(stage: Stage) -> None:
    with engine(stage.work, checked=False) as host:
        about: dict[str, Any] = {
            "protocol": 1,
            "host": "x",
            "cwd": "/",
            "session": {"id": "a", "kind": "new", "records": []},
        }
        wrong: list[tuple[str, dict[str, Any], str]] = [
            ("initialize", {**about, "cwd": "here"}, "cwd"),
            ("initialize", {**about, "cwd": None}, "cwd"),
            ("initialize", {**about, "cwd": "/a\0b"}, "cwd"),
            ("initialize", {**about, "cwd": "/\ud800"}, "cwd"),
            ("initialize", {**about, "host": ""}, "host"),
            ("initialize", {**about, "ui": "confirm"}, "ui"),
            ("initialize", {**about, "excluded": [1]}, "excluded"),
            ("initialize", {**about, "maxTools": -1}, "maxTools"),
            ("initialize", {**about, "maxTools": True}, "maxTools"),
            ("initialize", {**about, "session": "a"}, "session"),
            ("initialize", {**about, "session": {"id": 1}}, "session"),
            ("initialize", {**about, "session": {"id": "x" * 2000}}, "session"),
            ("initialize", {**about, "session": {"id": "a", "kind": "old"}}, "kind"),
            ("initialize", {**about, "session": {"id": "a", "records": {}}}, "records"),
            ("call", {"session": "s1", "name": 7}, "name"),
            ("call", {"session": "s1", "name": "x", "arguments": []}, "arguments"),
            ("load", {"session": "s1", "names": "x"}, "names"),
            ("command", {"session": "s1"}, "line"),
            ("complete", {"session": "s1", "line": None}, "line"),
            ("session", {"session": "s1", "kind": None}, "kind"),
            ("search", {"query": "x"}, "session"),
        ]
        host.initialize()
        for method, params, member in wrong:
            error = host.fail(method, **params)
            assert error["code"] == -32602, (method, params, error)
            assert f"'{member}'" in error["message"]
            assert error["data"]["code"] == "usage"
        for arguments in ({}, {"query": 5}, {"query": ""}, {"query": "x" * 501}, {"query": "x", "limit": 99}):
            error = host.fail("search", session="s1", **arguments)
            assert error["data"]["code"] == "usage", arguments
        assert host.ask("command", session="s1", line="/mcp")["tools"] == []


def test_an_unknown_session_and_an_unknown_method_are_told_apart(stage: Stage) -> None:
    with engine(stage.work, checked=False) as host:
        host.initialize()
        for method, more in (("search", {"query": "x"}), ("call", {"name": "x"}), ("session", {"kind": "branch"})):
            error = host.fail(method, session="nobody", **more)
            assert error["code"] == -32000
            assert error["data"]["code"] == "not_found"
        assert host.fail("tools/list", session="s1")["code"] == -32601
        host.send({"method": "nonsense", "params": {}})
        host.send({"id": "e77", "result": {"ok": True}})
        host.send({"id": None, "error": {}})
        assert host.ask("complete", session="s1", line="/mcp sta")["items"] == ["status"]


def test_an_id_that_is_under_way_stays_that_of_its_first_request(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        host.ask("load", session="s1", names=[ADD, WAIT])
        number = host.begin("call", session="s1", name=WAIT, arguments={"seconds": 60})
        wait_for(lambda: stage.calls)
        host._check = None
        again = {"session": "s1", "name": ADD, "arguments": {"a": 1, "b": 1}}
        host.send({"id": number, "method": "call", "params": again})
        answer = host.answer(None)
        assert answer["error"]["code"] == -32600
        host.send({"method": "cancel", "params": {"id": number}})
        assert host.answer(number)["error"]["data"]["code"] == "cancelled"
        assert stage.calls == [("wait_long", {"seconds": 60})]
        # Ids may be strings, and used again afterwards.
        host.send({"id": "again", "method": "complete", "params": {"session": "s1", "line": "/mcp sta"}})
        assert host.answer("again")["result"] == {"items": ["status"]}


def test_odd_characters_go_through_and_come_back_as_json(stage: Stage) -> None:
    with engine(stage.work) as host:
        host._check = None
        host.initialize("s\u0000\U0001f600")
        for query in ("\ud800 numbers", "\u0000\u001b[31m", "\u202e" * 100, "\U0001f600"):
            host.answer(host.begin("search", session="s\u0000\U0001f600", query=query))
        assert "\x1b" not in host.ask("command", session="s\u0000\U0001f600", line="/mcp \x1b[31mx")["text"]


def test_a_host_that_stops_reading_ends_the_engine_when_it_closes_the_pipe(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        host.ask("load", session="s1", names=[WAIT])
        host.begin("call", session="s1", name=WAIT, arguments={"seconds": 60})
        wait_for(lambda: stage.calls)
        host.stop_reading()
        host.begin("command", session="s1", line="/mcp help")  # the reading thread may take this one
        assert host.process.stdout is not None
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, host.process.stdout.fileno())  # the read end is closed; nobody's thread is disturbed
        os.close(null)

        def ended() -> bool:
            _send(host, b'{"jsonrpc": "2.0", "id": 1000, "method": "nothing"}\n')  # an answer finds the pipe closed
            return host.process.poll() is not None

        wait_for(ended)
        assert host.exit_code() == 0


@pytest.mark.slow
def test_a_host_that_does_not_read_fills_no_memory_and_gets_every_answer_later(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        host.ask("search", session="s1", query="number form picture options", limit=50)
        params = {"session": "s1", "line": "help"}
        # Three times what it lets pile up.
        count = 3 * wire.PENDING_LIMIT // len(json.dumps(host.ask("command", **params)))
        host.stop_reading()
        before = resident(host.process.pid)
        asked = [{"jsonrpc": "2.0", "id": f"n{i}", "method": "command", "params": params} for i in range(count)]
        data = b"".join(json.dumps(one).encode() + b"\n" for one in asked)
        sent = threading.Thread(target=_send, args=(host, data), daemon=True)
        sent.start()
        sent.join(4)
        assert sent.is_alive(), "the engine took everything that it was sent"
        assert resident(host.process.pid) - before < 64 << 20
        host._check = None
        host.read_on()
        for i in range(count):
            assert "result" in host.answer(f"n{i}", 60)
        sent.join(5)


def test_numbers_that_no_json_has_reach_a_host_as_null() -> None:
    odd = {"a": [float("nan"), float("inf"), 1.5], "b": {"c": 10**5000, "d": (1, -float("inf"))}}
    assert json.loads(wire.encode(odd)) == {"a": [None, None, 1.5], "b": {"c": None, "d": [1, None]}}


def test_halves_of_surrogate_pairs_reach_no_host() -> None:
    odd = {"\ud800": ["\udc00x", "\U0001f600", "a\\ud800", {"k": "é"}]}
    line = wire.encode(odd)
    assert json.loads(line) == {"\ufffd": ["\ufffdx", "\U0001f600", "a\\ud800", {"k": "é"}]}
    assert line.count(b"\n") == 1
    assert wire.encode({"k": "\U0001f600 é"}) == b'{"k": "\\ud83d\\ude00 \\u00e9"}\n'


def test_a_result_that_cannot_be_written_is_a_failure_not_a_silence() -> None:
    async def main() -> None:
        down, up = os.pipe(), os.pipe()
        running = Engine(wire.Reader(down[0]), wire.Writer(up[1]))
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]

        async def complete(engine: Engine, params: Any) -> dict[str, Any]:
            return {"items": deep}

        running._methods = {"complete": complete}  # type: ignore[misc]
        serving = asyncio.ensure_future(running.run())
        os.write(down[1], b'{"jsonrpc": "2.0", "id": 7, "method": "complete", "params": {"session": "x"}}\n')
        answer = json.loads(await asyncio.to_thread(os.read, up[0], 65536))
        assert answer["id"] == 7
        assert answer["error"]["data"]["code"] == "operation_failed"
        os.close(down[1])
        assert await serving == 0
        await running._writer.finish(5)
        for fd in (down[0], *up):
            os.close(fd)

    run(main())


def test_the_writer_drops_news_and_keeps_answers_while_the_host_is_behind() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        writer = wire.Writer(writing)
        big = "x" * (1 << 20)
        while not writer.full:
            writer.send({"id": 1, "result": {"text": big}})
        assert not writer._room.is_set()
        writer.send({"method": "progress", "params": {}}, news=True)
        writer.send({"id": "last", "result": {}})

        def read() -> bytes:
            data = b""
            while not data.endswith(b'"last", "result": {}}\n'):
                data += os.read(reading, 1 << 20)
            return data

        data = await asyncio.to_thread(read)
        assert b"progress" not in data
        await asyncio.wait_for(writer.room(), 5)
        await writer.finish(5)
        os.close(reading)
        os.close(writing)

    run(main())


def test_a_writer_whose_reader_is_gone_says_so_and_takes_everything_without_harm() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        writer = wire.Writer(writing)
        os.close(reading)
        writer.send({"id": 1, "result": {}})
        await asyncio.wait_for(writer.closed.wait(), 5)
        writer.send({"id": 2, "result": {}})
        await asyncio.wait_for(writer.room(), 5)
        await writer.finish(5)
        os.close(writing)

    run(main())


@pytest.mark.slow
def test_a_server_that_prints_the_secret_shows_it_in_no_line_and_no_log(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PI_MCP_LOG", "debug")
    stage.servers = {
        "broken": {"command": "/bin/sh", "args": ["-c", "echo $KEY >&2; exit 3"], "env": {"KEY": "${DESK_SECRET}"}},
        "helper": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "!echo $DESK_SECRET; exit 1"}},
    }
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        found = host.ask("search", session="s1", query="add two numbers")
        assert "broken: [" in found["text"]
        assert "helper: [secret_lookup_failed]" in found["text"]
        seen = [json.dumps(host.told), json.dumps(found)]
        for line in ("/mcp", "/mcp get broken", "/mcp get helper", "/mcp reconnect broken"):
            seen.append(json.dumps(host.ask("command", session="s1", line=line)))
        for server in ("broken", "helper"):
            seen.append(json.dumps(host.ask("search", session="s1", query="x", server=server)))
        host.close()
        host.exit_code()
        seen.append(host.errors.decode())
    for path in Path(os.environ["HOME"]).rglob("*"):
        if path.is_file() and path.name != "mcp.json":
            seen.append(path.read_text(errors="replace"))
    assert any("helper" in text for text in seen)
    assert not [text for text in seen if SECRET in text]
