"""A result enters the conversation within limits, nothing is lost without a word, and nothing steers a terminal."""

from __future__ import annotations

import base64
import json
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pi_mcp.tools.results import DEFAULT, Limits, Presented, is_small, present, sweep

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()
SECRET = "PLANTED-9f2c"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "results"


def show(result: Any, directory: Path, limits: Limits = DEFAULT) -> Presented:
    """Present a result and check what holds for every one."""
    found = present(result, server="srv", directory=directory, limits=limits)
    assert found.content
    texts = [block["text"] for block in found.content if block["type"] == "text"]
    assert all(block["type"] in ("text", "image") for block in found.content)
    assert sum(text.count("\n") + 1 for text in texts) <= limits.lines
    assert sum(len(text.encode()) for text in texts) <= limits.text_bytes
    assert sum(len(block["data"]) for block in found.content if block["type"] == "image") <= limits.image_bytes
    for text in (*texts, found.text):
        assert not any((ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) <= 0x9F for c in text)
    for path in found.files:
        assert path.parent == directory
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    return found


def text_of(*texts: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text} for text in texts]}


def test_a_small_result_is_passed_on_as_it_is(directory: Path) -> None:
    found = show(text_of("one", "two\nlines"), directory)
    assert found.content == [{"type": "text", "text": "one"}, {"type": "text", "text": "two\nlines"}]
    assert found.text == "one\ntwo\nlines"
    assert found.files == ()
    assert not directory.exists()


@pytest.mark.parametrize("result", [{}, {"content": None}, {"content": []}, text_of(""), {"isError": True}])
def test_a_result_without_content_says_so(result: Any, directory: Path) -> None:
    assert show(result, directory).text == "(The tool returned no content.)"


@pytest.mark.parametrize("lines", [2001, 12_345])
def test_more_than_two_thousand_lines_are_cut_and_kept(lines: int, directory: Path) -> None:
    result = text_of("\n".join(f"line {n}" for n in range(lines)))
    found = show(result, directory)
    assert found.text.startswith("line 0\nline 1\n")
    assert f"of {lines:,} lines" in found.text
    (path,) = found.files
    assert str(path) in found.text
    assert json.loads(path.read_text()) == result


def test_more_than_fifty_kib_are_cut_at_a_whole_character(directory: Path) -> None:
    result = text_of("é" * 60_000)
    found = show(result, directory)
    assert found.content[0]["text"] == "é" * len(found.content[0]["text"])
    assert len(found.content[0]["text"].encode()) > 48 * 1024
    assert json.loads(found.files[0].read_text()) == result


def test_exactly_the_limits_are_not_cut(directory: Path) -> None:
    assert show(text_of("x" * 50 * 1024), directory).files == ()
    assert show(text_of("\n" * 1998 + "x"), directory).files == ()


def test_the_limits_count_over_all_blocks(directory: Path) -> None:
    found = show(text_of(*["x\n" * 300] * 10), directory)
    assert len(found.files) == 1
    assert "Cut: " in found.text


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_the_command_that_is_named_reads_on_where_the_head_ends(directory: Path) -> None:
    text = "".join(f"{n:07}\n" for n in range(20_000))
    found = show(text_of(text), directory)
    command = found.text.rsplit("with: ", 1)[1].removesuffix("]")
    output = subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=20).stdout
    shown = found.content[0]["text"]
    assert text.startswith(shown + output.rstrip("\n"))
    assert len(output) > 30_000


def test_nothing_but_the_file_holds_what_was_cut(directory: Path) -> None:
    found = show(text_of("a" * 300_000 + SECRET), directory)
    assert SECRET not in repr(found)
    assert len(repr(found)) < 4 * 50 * 1024
    assert SECRET in found.files[0].read_text()


def test_terminal_sequences_go_from_the_text_and_stay_escaped_in_the_file(directory: Path) -> None:
    hostile = "a\x1b]52;c;ZXZpbA==\x07b\x1b]8;;http://evil.test\x1b\\link\x1b]8;;\x1b\\\n"
    assert show(text_of(hostile), directory).text == "ablink\n"
    found = show(text_of(hostile * 3000), directory)
    raw = found.files[0].read_bytes()
    assert b"\x1b" not in raw
    assert b"\\u001b]52" in raw
    assert json.loads(raw) == text_of(hostile * 3000)


# structuredContent


@pytest.mark.parametrize(
    ("texts", "structured", "told"),
    [
        ([], {"n": 1}, False),
        (['{"n":1}'], {"n": 1}, True),
        (['{ "b" : 2,\n "a" : 1.0 }'], {"a": 1, "b": 2}, True),
        (['{"n": true}'], {"n": 1}, False),
        (["done"], {"n": 1}, False),
        (["hello"], {"result": "hello"}, True),
        (["5"], {"result": 5}, True),
        (["a", "b"], {"result": ["a", "b"]}, True),
        (['{"x":1}', '{"x":2}'], {"result": [{"x": 1}, {"x": 2}]}, True),
        (["a"], {"result": ["a", "b"]}, False),
        (["summary", '{"n":1}'], {"n": 1}, True),
        (["[]"], [], True),
    ],
)
def test_structured_content_is_shown_where_no_text_says_the_same(
    texts: list[str], structured: Any, told: bool, directory: Path
) -> None:
    found = show({**text_of(*texts), "structuredContent": structured}, directory)
    assert len(found.content) == len(texts) + (not told)
    if not told:
        assert json.loads(found.content[-1]["text"]) == structured


def test_structured_content_without_content_is_a_success(directory: Path) -> None:
    assert show({"structuredContent": {"n": 1}}, directory).text == '{"n": 1}'
    assert show({"content": None, "structuredContent": {"n": 1}}, directory).text == '{"n": 1}'
    found = show({"structuredContent": {"rows": ["x" * 100] * 1000}}, directory)
    assert ".structuredContent" in found.text


# Images and other content


@pytest.mark.parametrize(
    ("head", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF1234WEBP", "image/webp"),
    ],
)
def test_images_pass_through_under_the_type_that_their_bytes_have(head: bytes, mime: str, directory: Path) -> None:
    data = base64.b64encode(head + bytes(30)).decode()
    block = {"type": "image", "data": data, "mimeType": "image/png"}
    found = show({"content": [block]}, directory)
    assert found.content == [{"type": "image", "data": data, "mimeType": mime}]
    assert found.images == 1
    assert mime in found.text
    assert data not in found.text


def test_images_pass_through_up_to_eight_mib_of_base64_in_all(directory: Path) -> None:
    three = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(3 * 1024 * 1024 - 20)).decode()
    block = {"type": "image", "data": three, "mimeType": "image/png"}
    found = show({"content": [block, block, block]}, directory)
    assert found.images == 2
    (path,) = found.files
    assert path.suffix == ".png"
    assert path.read_bytes() == base64.b64decode(three)
    assert "image/png, 3.0 MiB, beyond the budget for images" in found.text
    assert str(path) in found.text


@pytest.mark.parametrize("mime", ["text/html", "image/svg+xml", "../../x", "", None, 5, "image/png\x1b[2J"])
def test_an_image_of_another_type_is_saved_and_named(mime: Any, directory: Path) -> None:
    data = base64.b64encode(b"<svg/>").decode()
    found = show({"content": [{"type": "image", "data": data, "mimeType": mime}]}, directory)
    assert found.images == 0
    (path,) = found.files
    assert path.read_bytes() == b"<svg/>"
    assert "6 bytes" in found.text
    assert str(path) in found.text


@pytest.mark.parametrize("data", ["%%%", "", None, 7, "aGk", "é", "a"])
def test_invalid_base64_is_named_or_decoded_and_never_fails(data: Any, directory: Path) -> None:
    found = show({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}, directory)
    assert found.images == 0
    assert found.text.startswith("[image image/png")
    assert found.files


def test_an_error_page_that_calls_itself_an_image_does_not_reach_a_provider(directory: Path) -> None:
    data = base64.b64encode(b"404 not found").decode()
    found = show({"content": [{"type": "image", "data": data, "mimeType": "image/png"}]}, directory)
    assert found.images == 0
    assert "no image of that type" in found.text


def test_every_other_block_has_at_least_one_line(directory: Path) -> None:
    blob = base64.b64encode(b"%PDF-1.7").decode()
    found = show(
        {
            "content": [
                {"type": "text", "text": "metadata"},
                {"type": "resource_link", "uri": "file:///doc.pdf", "name": "doc.pdf", "mimeType": "application/pdf"},
                {"type": "resource_link", "uri": "x://b", "title": "B", "size": 2048, "description": "about b"},
                {"type": "resource", "resource": {"uri": "x://a", "mimeType": "application/pdf", "blob": blob}},
                {"type": "resource", "resource": {"uri": "x://t", "mimeType": "text/plain", "text": "inline text"}},
                {"type": "resource", "resource": {"uri": "x://i", "mimeType": "image/png", "blob": PNG}},
                {"type": "resource", "resource": {"uri": "x://none"}},
                {"type": "audio", "data": base64.b64encode(b"RIFF").decode(), "mimeType": "audio/wav"},
                {"type": "future", "x": 1},
                {"no": "type"},
                "bare",
                None,
            ]
        },
        directory,
    )
    lines = found.text.split("\n")
    assert lines[0] == "metadata"
    assert lines[1] == "[resource link file:///doc.pdf (application/pdf)] doc.pdf"
    assert lines[2] == "[resource link x://b (2.0 KiB)] B — about b"
    assert lines[3].startswith("[resource x://a application/pdf, 8 bytes; saved as ")
    assert lines[4:6] == ["[resource x://t (text/plain)]", "inline text"]
    assert lines[6].startswith("[resource x://i: image/png, ")
    assert lines[7].startswith("[image image/png, ")
    assert lines[8] == "[resource x://none, without content]"
    assert lines[9].startswith("[audio audio/wav, 4 bytes; saved as ")
    assert lines[10] == '[content of type "future"] {"type": "future", "x": 1}'
    assert lines[11] == '[content of no known type] {"no": "type"}'
    assert lines[12:] == ["bare", "null"]
    assert {path.suffix for path in found.files} == {".pdf", ".wav"}
    assert found.images == 1


@pytest.mark.parametrize("name", ["file:///../../.ssh/authorized_keys", "../../x", "CON", "n" * 300, "a\0b\nc"])
def test_no_file_takes_its_name_from_a_server(name: str, directory: Path) -> None:
    blob = base64.b64encode(b"evil").decode()
    result = {"content": [{"type": "resource", "resource": {"uri": name, "name": name, "blob": blob}}]}
    found = present(result, server="../evil", directory=directory)
    (path,) = found.files
    assert path.parent == directory
    assert sorted(p.name for p in directory.parent.iterdir()) == ["results"]
    assert path.name.startswith("part-")
    assert path.suffix == ".bin"


def test_many_parts_do_not_fill_the_disk_with_files(directory: Path) -> None:
    block = {"type": "audio", "data": base64.b64encode(b"x").decode(), "mimeType": "audio/wav"}
    found = show({"content": [block] * 500}, directory)
    assert len(found.files) == 21
    assert "The whole result is in " in found.text


def test_a_disk_that_cannot_be_written_loses_no_text(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file, no directory")
    found = present(text_of("x" * 100_000), server="s", directory=tmp_path / "results")
    assert found.text.startswith("xxx")
    assert "could not be saved" in found.text
    assert found.files == ()


def test_saved_results_go_after_seven_days(directory: Path) -> None:
    old = show(text_of("x" * 100_000), directory).files[0]
    new = show(text_of("x" * 100_000), directory).files[0]
    week_ago = time.time() - 7 * 86400 - 5
    os.utime(old, (week_ago, week_ago))
    assert sweep(directory) == 1
    assert not old.exists()
    assert new.exists()
    assert sweep(directory / "absent") == 0


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([PNG, "image/png"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["content", "structuredContent", "type", "text", "data", "mimeType", "resource", "uri"])
            | st.sampled_from(["blob", "isError", "result", "size", "name", "title", "_meta"])
            | st.text(max_size=5),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)
BLOCKS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "audio", "resource", "resource_link", "future", 1, None])},
    optional=dict.fromkeys(("text", "data", "mimeType", "resource", "uri", "name", "size", "title"), JSON),
)


@given(st.one_of(JSON, st.fixed_dictionaries({"content": st.lists(BLOCKS, max_size=5), "structuredContent": JSON})))
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_json_in_place_of_a_result_is_shown(tmp_path: Path, result: Any) -> None:
    show(result, tmp_path / "results")
    show(result, tmp_path / "results", Limits(lines=20, text_bytes=2000, image_bytes=10))


def test_a_result_nested_beyond_reason_is_shown(directory: Path) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    show({"content": deep, "structuredContent": deep}, directory)
    show({"content": [{"type": "future", "x": deep}]}, directory)
    while deep:  # taken apart by hand: the interpreter would recurse
        deep = deep.pop()


def test_five_megabytes_are_presented_quickly(directory: Path) -> None:
    started = time.monotonic()
    show(text_of("word " * 1_000_000), directory)
    show(text_of("\x1b]" * 2_500_000), directory)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("result", "small"),
    [
        ({"content": [{"type": "text", "text": "done"}]}, True),
        ({"content": [], "structuredContent": {"rows": [1, 2, 3]}}, True),
        ({"content": [{"type": "resource_link", "uri": "a:b"}], "isError": True}, True),
        ({}, True),
        ({"content": [{"type": "text", "text": "x" * 20_000}]}, False),
        ({"content": [{"type": "text", "text": "x"}] * 20_000}, False),
        ({"structuredContent": {"rows": [0] * 20_000}}, False),
        ({"content": [{"type": "image", "data": "", "mimeType": "image/png"}]}, False),
        ({"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "x"}}]}, False),
        ({"content": [{"type": "unheard of"}]}, False),
        ({"content": "text"}, False),
        ("text", False),
        (None, False),
    ],
)
def test_a_result_is_small_when_it_is_a_few_texts_and_values(result: object, small: bool) -> None:
    assert is_small(result) is small


def test_a_result_nested_beyond_the_recursion_limit_can_still_be_sized() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    assert is_small({"structuredContent": {"deep": deep}})
