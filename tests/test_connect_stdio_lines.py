"""Bytes to lines to messages, as functions: framing, oversized messages, envelopes, the executable, the log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.connect.command import CannotStart, batch_line, child_environment, find_command
from pi_mcp.connect.faults import Faults
from pi_mcp.connect.logring import LogRing
from pi_mcp.connect.stdio import LineReader, Oversized, parse
from pi_mcp.connect.stdio import _messages as messages
from pi_mcp.connect.streams import envelope
from pi_mcp.text import Redactor

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of these sizes, over and over."""
    pieces, start, turn = [], 0, 0
    while start < len(data):
        size = sizes[turn % len(sizes)]
        pieces.append(data[start : start + size])
        start, turn = start + size, turn + 1
    return pieces


@given(
    st.lists(st.binary(max_size=60).filter(lambda line: b"\n" not in line and not line.endswith(b"\r"))),
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_lines_do_not_depend_on_how_the_bytes_are_cut(lines: list[bytes], sizes: list[int], ending: bytes) -> None:
    reader = LineReader()
    data = b"".join(line + ending for line in lines)
    assert [line for piece in cut(data, sizes) for line in reader.feed(piece)] == lines
    assert reader.end() == []


@given(st.integers(1, 400), st.lists(st.integers(1, 90), min_size=1, max_size=4))
def test_a_line_over_the_limit_is_drained_and_the_next_one_is_whole(size: int, sizes: list[int]) -> None:
    reader = LineReader(limit=100)
    found = [line for piece in cut(b"x" * size + b"\nnext\n", sizes) for line in reader.feed(piece)]
    assert found[1:] == [b"next"]
    if size > 100:
        assert isinstance(found[0], Oversized)
        assert found[0].size == size
    else:
        assert found[0] == b"x" * size


def test_a_last_line_without_an_ending_counts() -> None:
    reader = LineReader()
    assert reader.feed(b"a\nb") == [b"a"]
    assert reader.end() == [b"b"]


def test_a_long_line_takes_linear_time() -> None:
    reader = LineReader()
    piece = b"x" * 65536
    for _ in range(900):
        assert reader.feed(piece) == []
    [line] = reader.feed(b"\n")
    assert isinstance(line, bytes)
    assert len(line) == 900 * 65536


@pytest.mark.parametrize(
    ("head", "tail", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"x', b"yz", 7),
        (b'{ "id": "a-1", "jsonrpc": "2.0", "result"', b"", "a-1"),
        (b'{"result":{"content', b'}]},"jsonrpc":"2.0","id":12}', 12),
        (b'{"result":{"content', b'}]},"id":"q","jsonrpc":"2.0"}\r', "q"),
        (b'{"result":{"id":5,', b'"text":"x"}]}}', None),
        (b"garbage", b"garbage", None),
    ],
)
def test_the_id_of_a_message_that_is_too_large_is_found_where_it_is_certain(
    head: bytes, tail: bytes, expected: object
) -> None:
    assert Oversized(head, tail, 1).request_id == expected


@settings(max_examples=200)
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_line_raises(line: bytes) -> None:
    messages = parse(line)
    for message in messages or []:
        envelope(message, Faults())


@given(st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), JSON))
def test_no_object_raises(message: dict[str, Any]) -> None:
    envelope(message, Faults())


def test_deep_nesting_and_endless_numbers_are_noise() -> None:
    assert parse(b'{"id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}") is None
    assert parse(b'{"id":1,"result":{"n":' + b"9" * 10_000 + b"}}") is None


@pytest.mark.parametrize(
    "body", [b"[" * 100_000 + b"]" * 100_000, b"9" * 5000, b"nonsense"], ids=["depth", "number", "broken"]
)
def test_an_answer_that_cannot_be_read_fails_its_request_at_once(body: bytes) -> None:
    for line in (
        b'{"jsonrpc":"2.0","id":7,"result":{"x":' + body + b"}}",
        b'{"result":{"x":' + body + b'},"jsonrpc":"2.0","id":7}',
    ):
        faults, log = Faults(), LogRing()
        (message,) = messages(line, faults, log, 1 << 26)
        assert message.id == 7
        fault = faults.take(7)
        assert fault is not None
        assert fault.kind == "malformed"
        assert log.noise == 1
    for line in (b'{"id":7, level: info}', b'{"jsonrpc":"2.0","id":7,"method":"ping","params":' + body):
        assert messages(line, Faults(), LogRing(), 1 << 26) == []


def test_a_batch_and_a_byte_order_mark_are_understood() -> None:
    assert parse(b'\xef\xbb\xbf{"id":1,"result":{}}') == [{"id": 1, "result": {}}]
    assert parse(b'[{"id":1,"result":{}},{"method":"a"},7]') == [{"id": 1, "result": {}}, {"method": "a"}]


def test_what_is_no_json_number_becomes_text() -> None:
    assert parse(b'{"id":1,"result":{"n":NaN}}') == [{"id": 1, "result": {"n": "NaN"}}]


def test_plain_meanings_are_accepted() -> None:
    faults = Faults()
    assert envelope({"id": 1.0, "result": None}, faults).model_dump() == {"jsonrpc": "2.0", "id": 1, "result": {}}
    error = envelope({"id": 1, "error": "broken"}, faults).error
    assert (error.code, error.message) == (-32603, "broken")
    assert envelope({"id": 2, "result": [1]}, faults).error.code == -32000
    fault = faults.take(2)
    assert fault is not None
    assert fault.kind == "malformed"
    assert envelope({"id": True, "result": {}}, faults) is None
    assert envelope({"method": "m", "id": None}, faults).model_dump(exclude_unset=True) == {
        "jsonrpc": "2.0",
        "method": "m",
    }


def test_b038_on_windows_a_bare_name_is_found_with_the_extensions_of_pathext(tmp_path: Path) -> None:
    (tmp_path / "npx.CMD").write_text("@echo off")
    found = find_command("npx", f"/nowhere;{tmp_path}", Path("/"), windows=True, pathext=".EXE;.CMD")
    assert found == str(tmp_path / "npx.CMD")
    with pytest.raises(CannotStart) as caught:
        find_command("uvx", f"/nowhere;{tmp_path}", Path("/"), windows=True, pathext=".EXE;.CMD")
    assert caught.value.fault.detail == f"`uvx`, looked for in PATH: /nowhere, {tmp_path}"


def test_b038_no_argument_of_a_batch_file_can_start_another_command() -> None:
    line = batch_line(r"C:\npx.cmd", ("-y", "a & calc.exe", "%PATH%", "^|x"))
    assert line == r'"C:\npx.cmd" "-y" "a & calc.exe" "%%cd:~,%PATH%%cd:~,%" "^|x"'
    for bad in ('a" & calc', "a\nb"):
        with pytest.raises(CannotStart):
            batch_line(r"C:\npx.cmd", (bad,))


def test_a_command_is_looked_for_along_the_childs_path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotStart) as caught:
        find_command("mine", "/usr/bin", tmp_path)
    assert "/usr/bin" in caught.value.fault.detail
    assert find_command("mine", f"{os.pathsep}/x{os.pathsep}{tmp_path}", Path("/")) == str(program)
    assert find_command(str(program), "", Path("/")) == str(program)
    program.chmod(0o644)
    with pytest.raises(CannotStart) as caught:
        find_command("mine", str(tmp_path), Path("/"))
    assert (caught.value.fault.kind, caught.value.fault.executed) == ("not_executable", "no")


def test_inherited_names_add_to_the_minimal_environment() -> None:
    environ = {"HOME": "/h", "A": "1", "B": "2", "no_proxy": "x", "F": "() { :; }"}
    assert child_environment(False, environ) == {"HOME": "/h", "no_proxy": "x"}
    assert child_environment(("A", "F"), environ) == {"HOME": "/h", "no_proxy": "x", "A": "1"}
    assert child_environment(True, environ) == environ


def test_the_log_is_bounded_clean_and_redacted_however_it_comes() -> None:
    redactor = Redactor()
    redactor.add("hunter2secret")
    log = LogRing(redactor, limit=1000)
    for byte in b"\x1b[31mred\x1b[0m hunter2secret\r\nnext\n":
        log.feed(bytes([byte]))
    log.feed("half of ü".encode()[:-1])
    assert log.lines() == ["red ***", "next", "half of \ufffd"]
    log.feed(b"\xbc\n")
    assert log.lines()[-1] == "half of ü"
    for number in range(500):
        log.feed(b"line %d\n" % number)
    assert sum(map(len, log.lines())) <= 1000
    assert log.lines()[-1] == "line 499"


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(0, 5000))
def test_no_cut_of_an_endless_line_shows_a_secret(pieces: list[bytes], offset: int) -> None:
    redactor = Redactor()
    redactor.add("hunter2secret")
    log = LogRing(redactor, limit=20_000)
    log.feed(b"z" * offset)
    for piece in pieces:
        log.feed(piece)
        log.feed(b"z" * 3000 + b"hunter2secret" + b"z" * 100)
    log.end()
    assert "hunter2" not in "".join(log.lines())
    assert sum(map(len, log.lines())) <= 20_000 + 10_000


@pytest.mark.parametrize("length", [20, 2000])
def test_no_cut_of_a_long_line_shows_a_part_of_a_secret(length: int) -> None:
    secret = "".join(f"{number:04x}" for number in range(length // 4))
    redactor = Redactor()
    redactor.add(secret)
    parts = [secret[at : at + 8] for at in range(0, length - 8, 4)]
    for offset in range(1900, 2010, 5):
        log = LogRing(redactor)
        log.stray(b"x" * offset + secret.encode() + b"y" * 9000)
        assert not any(part in line for line in log.lines() for part in parts)
    for before in range(length - 8, 0, -length // 20):
        log = LogRing(redactor)
        log.add("x" * 99 + secret + "y" * (65536 - length + before))
        log.feed(b"z" * 99 + secret.encode() + b"\0" * (131072 - length + before - 3) + b"w\nv")
        assert not any(part in line for line in log.lines() for part in parts)
