"""The field reports about protocol, tool definitions and results, through the whole product.

Listings and results come from the scriptable stdio server, so what is asserted is what a model would be given. The
planted secret is in every server's environment.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.connect import connection as connection_module
from pi_mcp.tools.names import native_name
from tests.hostile.http_server import HttpServer
from tests.hostile.product import SECRET, product
from tests.hostile.script import GONE, entry, methods_of, pids_of, record_of, tool
from tests.support import run

ENV = {"TOKEN": "${PLANTED}"}
NATIVE = re.compile("[a-zA-Z0-9_-]{1,64}")


def server(folder: Path, script: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return entry(folder, script, env=ENV, **fields)


def listing(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"result": {"tools": list(tools), **more}}


def capable(capabilities: dict[str, Any]) -> list[dict[str, Any]]:
    info = {"name": "hostile", "version": "1"}
    return [{"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}]


def asked(entry_: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [line.get("params") or {} for line in record_of(entry_) if line.get("method") == method]


# --- listings ----------------------------------------------------------------------------------------------


def test_b077_a_cursor_that_does_not_advance_ends_the_search_with_each_tool_once(tmp_path: Path) -> None:
    async def main() -> None:
        pages = [listing(*(tool(name) for name in "abcdefgh"), nextCursor="8")]
        s = server(tmp_path, {"tools/list": pages})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("a", limit=50)
            assert made.plugin.status("s").tools == 8
            assert "cursor" in await made.mcp("get s")
            assert len(asked(s, "tools/list")) <= 2

    run(main())


def test_b079_an_empty_cursor_leads_to_the_second_page(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"tools/list": [[listing(tool("alpha"), nextCursor="")], [listing(tool("beta"))]]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("alpha beta", limit=9)
            assert {one.tool for one in made.session.loaded} == {"alpha", "beta"}
            assert asked(s, "tools/list")[1] == {"cursor": ""}

    run(main())


def test_b080_a_repeated_page_gives_each_tool_once(tmp_path: Path) -> None:
    async def main() -> None:
        again = [listing(tool("c"), nextCursor="x")]
        s = server(tmp_path, {"tools/list": [[listing(tool("a"), tool("b"), nextCursor="x")], again, again]})
        async with product(tmp_path, {"s": s}) as made:
            await made.mcp("refresh s")
            held = made.plugin.catalogs.held("s")
            assert held is not None
            assert [one.name for one in held.tools] == ["a", "b", "c"]

    run(main())


@pytest.mark.slow
def test_b082_pages_without_end_are_bounded_reported_and_block_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        endless = server(tmp_path, {"tools/list": [{"page": [1, 10**9]}]})
        good = server(tmp_path)
        async with product(tmp_path, {"endless": endless, "good": good}) as made:
            begun = time.monotonic()
            await made.search("echo")
            assert time.monotonic() - begun < 16
            assert "mcp__good__echo" in {one.native for one in made.session.loaded}
            assert "The listing was cut after" in await made.mcp("refresh endless")
            assert 0 < (made.plugin.status("endless").tools or 0) <= 10_000
            assert len(asked(endless, "tools/list")) <= 2 * 1001
        # A part is not kept as the whole.
        before = len(asked(endless, "tools/list"))
        async with product(tmp_path, {"endless": endless}) as made:
            await made.search("t1")
        assert len(asked(endless, "tools/list")) > before

    run(main(), 100)


def test_b083_names_that_providers_refuse_are_mapped_and_the_original_goes_out(tmp_path: Path) -> None:
    async def main() -> None:
        names = ["agenda.list", "files/read", "my tool"]
        s = server(tmp_path, {"tools/list": [listing(*(tool(name) for name in names))]})
        seen = []
        for folder in (tmp_path / "one", tmp_path / "two"):
            folder.mkdir()
            async with product(folder, {"s": s}) as made:
                await made.load(*(f"s.{name}" for name in names))
                loaded = made.session.loaded
                assert [one.tool for one in loaded] == names
                assert all(NATIVE.fullmatch(one.native) for one in loaded)
                seen.append([one.native for one in loaded])
                for one in loaded:
                    await made.call(one.native)
        assert seen[0] == seen[1]
        assert [params["name"] for params in asked(s, "tools/call")] == names * 2

    run(main())


def test_b085_one_bad_name_costs_nobody_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        names: list[Any] = [
            "",
            " ",
            "a b",
            "x" * 300,
            "工具",
            7,
            None,
            "ok",
            "ok",
            "\u001b[31mred",
            "nul\u0000",
            "\ud800",
        ]
        s = server(tmp_path, {"tools/list": [listing(*({**tool("t"), "name": name} for name in names))]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("ok", limit=50)
            await made.load("s.ok", "s.a b", "s.工具")
            natives = [one.native for one in made.session.loaded]
            assert all(NATIVE.fullmatch(native) for native in natives)
            assert len(set(natives)) == len(natives)
            await made.text("mcp__s__ok")
            shown = await made.mcp()
            assert re.search(r"Note: .*(name|left out|skipped)", shown), shown
            json.dumps([one.to_record() for one in made.session.loaded]).encode()

    run(main())


SCHEMAS: dict[str, Any] = {
    "enum_and_null": {"type": "object", "properties": {"v": {"enum": ["A", "B"], "type": "null"}}},
    "enum_on_array": {"type": "object", "properties": {"v": {"type": "array", "enum": ["A", "B"]}}},
    "no_type": {"properties": {"v": {}}},
    "any_of": {
        "type": "object",
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "properties": {"a": {}, "b": {}},
    },
    "reference": {
        "type": "object",
        "$defs": {"Q": {"type": "object", "properties": {"limit": {"type": "integer"}}}},
        "properties": {"q": {"$ref": "#/$defs/Q"}},
        "required": ["q"],
    },
    "recursive": {
        "type": "object",
        "$defs": {"N": {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}},
        "properties": {"n": {"$ref": "#/$defs/N"}},
    },
    "a_string": "object",
    "an_array": {"type": "array", "items": {"type": "string"}},
    "absent": None,
}


def test_b086_b088_b089_every_definition_that_reaches_a_model_is_accepted_by_providers(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as evil:
            remote = {"type": "object", "properties": {"r": {"$ref": f"{evil.origin}/x.json"}}}
            tools = [tool(name, inputSchema=schema) for name, schema in {**SCHEMAS, "remote": remote}.items()]
            s = server(tmp_path, {"tools/list": [listing(*tools, tool("good"))]})
            async with product(tmp_path, {"s": s}) as made:
                answer = await made.search("good", limit=50)
                await made.load(*(f"s.{one['name']}" for one in tools), "s.good")
                forms = {one.tool: one.input_schema for one in made.session.loaded}
                assert "good" in forms
                for name, form in forms.items():
                    assert form["type"] == "object", name
                    assert not {"anyOf", "oneOf", "allOf", "not", "enum"} & set(form), name
                    assert evil.origin not in json.dumps(form), name
                # What a model has to build is there, inlined or beside its definition.
                assert "limit" in json.dumps(forms["reference"])
                assert forms["reference"]["required"] == ["q"]
                assert {"a", "b"} <= set(forms["any_of"]["properties"])
                assert len(json.dumps(forms["recursive"])) < 5000
                # What could not be used is named with its reason, and the rest is there.
                missing = {one["name"] for one in tools} - set(forms)
                for name in missing:
                    assert name in answer.text + (await made.mcp("tools s"))
                description = next(one.description for one in made.session.loaded if one.tool == "any_of")
                assert "a" in description
                assert description.strip()
                # The server validates for itself: arguments go out as given.
                await made.call("mcp__s__any_of", a=1)
                assert asked(s, "tools/call")[-1]["arguments"] == {"a": 1}
            assert not evil.requests

    run(main())


def test_b107_b109_a_server_without_tools_is_connected_with_none(tmp_path: Path) -> None:
    async def main() -> None:
        without = server(tmp_path, {"initialize": capable({"resources": {}}), "tools/list": [GONE]})
        lying = server(tmp_path, {"initialize": capable({"tools": {}}), "tools/list": [GONE]})
        async with product(tmp_path, {"without": without, "lying": lying}) as made:
            answer = await made.search("anything")
            assert not answer.not_searched
            for name in ("without", "lying"):
                assert (made.state(name), made.plugin.status(name).tools) == ("connected", 0)
                assert "0 tools (server offers none)" in await made.mcp(f"refresh {name}")
            assert "tools/list" not in methods_of(without)
            assert "0 tools" in await made.mcp()

    run(main())


@pytest.mark.parametrize("tools", [[], [tool("a")]])
def test_b110_an_empty_capabilities_object_is_tried_once_and_noted(tmp_path: Path, tools: list[Any]) -> None:
    async def main() -> None:
        s = server(tmp_path, {"initialize": capable({}), "tools/list": [listing(*tools)]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("a")
            assert made.plugin.status("s").tools == len(tools)
            assert methods_of(s).count("tools/list") == 1
            if tools:
                assert "declares no capabilities" in await made.mcp("get s")
                await made.text("mcp__s__a")

    run(main())


@pytest.mark.parametrize("refusal", [[GONE], [{"error": [-32600, "Invalid request"]}], [{"exit": 3}]])
def test_b112_a_server_of_2025_is_found_and_remembered(tmp_path: Path, refusal: list[Any]) -> None:
    async def main() -> None:
        s = server(tmp_path, {"server/discover": refusal})
        for number in range(2):
            async with product(tmp_path, {"s": s}) as made:
                await made.mcp("refresh s")
                await made.search("echo")
                await made.text()
                assert methods_of(s).count("server/discover") == 1, number
        legacy = server(tmp_path, {"server/discover": refusal}, protocol="legacy")
        async with product(tmp_path, {"legacy": legacy}) as made:
            await made.search("echo", server="legacy")
            assert "server/discover" not in methods_of(legacy)

    run(main())


@pytest.mark.parametrize("status", [400, 403, 404, 405, 406, 415, 422, 500, 501, 502, 503, 504])
def test_b112_an_http_server_may_refuse_the_probe_in_any_way(tmp_path: Path, status: int) -> None:
    async def main() -> None:
        with HttpServer({"server/discover": {"status": status, "body": SECRET}}, session=True) as http:
            async with product(tmp_path, {"s": {"url": http.url}}) as made:
                await made.search("echo")
                await made.text()

    run(main())


# --- results -----------------------------------------------------------------------------------------------


async def result_of(folder: Path, result: dict[str, Any], **definition: Any) -> Any:
    """What the product makes of this result."""
    s = server(folder, {"tools/list": [listing(tool("t", **definition))], "tools/call": [{"result": result}]})
    async with product(folder, {"s": s}) as made:
        await made.search("t")
        await made.load("s.t")
        return await made.call("mcp__s__t")


@pytest.mark.parametrize(
    "result",
    [
        {"structuredContent": {"n": 1}},
        {"structuredContent": {"n": 1}, "content": None},
        {"structuredContent": {"n": 1}, "content": []},
    ],
)
def test_b091_structured_content_alone_is_a_success(tmp_path: Path, result: dict[str, Any]) -> None:
    answer = run(result_of(tmp_path, result))
    assert not answer.is_error
    assert json.loads(answer.text) == {"n": 1}
    assert answer.structured == {"n": 1}


def test_numbers_that_json_cannot_spell_do_not_reach_what_is_written_as_json(tmp_path: Path) -> None:
    async def main() -> None:
        raw = '{"jsonrpc":"2.0","id":$ID,"result":{"structuredContent":{"a":NaN,"b":1e999,"c":-1e999,"d":1.5}}}\n'
        s = server(tmp_path, {"tools/call": [{"raw": raw}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            answer = await made.call()
            assert json.loads(json.dumps(answer.raw, allow_nan=False)) == dict(answer.raw)
            assert json.loads(answer.text)["d"] == 1.5
            assert json.loads(answer.text)["b"] == "1e999"

    run(main())


def test_b092_a_result_against_its_schema_is_given_with_a_warning(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"v": {"enum": ["a", "b"]}}, "required": ["v"]}
    result = {"content": [{"type": "text", "text": "c"}], "structuredContent": {"v": "c"}}
    answer = run(result_of(tmp_path, result, outputSchema=schema))
    assert not answer.is_error
    assert answer.text.startswith("c\n")
    assert "Warning" in answer.text
    assert len(answer.text) < 400


def test_b095_a_line_of_five_megabytes_is_cut_for_the_model_and_the_session_lives(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"tools/call:echo": [{"big": 5_000_000}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            answer = await made.call()
            assert len(answer.text.encode()) <= 50 * 1024
            (path,) = answer.details["files"]
            kept = json.loads(await asyncio.to_thread(Path(path).read_text))
            assert len(kept["content"][0]["text"]) == 5_000_000
            assert path in answer.text
            await made.load("s.other")
            await made.text("mcp__s__other")
            assert len([pid for pid in record_of(s) if "pid" in pid]) == 1

    run(main())


def test_b097_details_and_the_kept_session_hold_no_second_copy(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"tools/call": [{"big": 300_000}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            answer = await made.call()
            assert len(json.dumps(answer.details)) < 2000
            assert len(json.dumps(answer.content)) < 60_000
            sizes = {path.name: path.stat().st_size for path in (tmp_path / "state").rglob("*") if path.is_file()}
            assert sum(size > 100_000 for size in sizes.values()) == 1, sizes

    run(main())


PNG = b"\x89PNG\r\n\x1a\n" + bytes(30)


@pytest.mark.parametrize(
    ("data", "mime", "passes"),
    [
        (base64.b64encode(PNG).decode(), "image/png", True),
        (base64.b64encode(PNG + bytes(15_000_000)).decode(), "image/png", False),
        ("!!! no base64 \u001b[31m", "image/png", False),
        (base64.b64encode(b"<html>").decode(), "text/html", False),
        (base64.b64encode(b"<svg onload=alert(1)>").decode(), "image/svg+xml", False),
        (None, "image/png", False),
    ],
)
def test_b098_images_are_bounded_typed_and_never_fatal(tmp_path: Path, data: Any, mime: str, passes: bool) -> None:
    content = [{"type": "image", "data": data, "mimeType": mime}]
    answer = run(result_of(tmp_path, {"content": content}))
    assert any(block["type"] == "image" for block in answer.content) is passes
    if not passes:
        assert mime in answer.text
        assert "\x1b" not in answer.text
        assert sum(len(json.dumps(block)) for block in answer.content) < 2000


def test_b113_every_block_leaves_a_line_and_no_link_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        with HttpServer() as linked:
            blob = base64.b64encode(b"%PDF-1.7 x").decode()
            content = [
                {"type": "text", "text": "hello"},
                {"type": "resource_link", "uri": linked.url, "name": "doc.pdf", "mimeType": "application/pdf"},
                {"type": "resource", "resource": {"uri": "x://a", "mimeType": "application/pdf", "blob": blob}},
                {"type": "resource", "resource": {"uri": "x://b", "mimeType": "text/plain", "text": "inline words"}},
                {"type": "audio", "data": base64.b64encode(b"RIFF").decode(), "mimeType": "audio/wav"},
                {"type": "future", "x": 1},
            ]
            answer = await result_of(tmp_path, {"content": content})
            parts = ["hello", linked.url, "doc.pdf", "x://a", "application/pdf", "inline words", "audio/wav", "future"]
            assert [part for part in parts if part not in answer.text] == []
            assert len(answer.details["files"]) == 2
            assert not linked.requests

    run(main())


# --- time, cancellation, ids -------------------------------------------------------------------------------


def test_b100_progress_without_end_runs_into_the_cap_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HARD_CAP", 2.0)

    async def main() -> None:
        s = server(tmp_path, {"tools/call": [{"progress": 100, "every": 0.1}]}, toolTimeoutMs=500)
        async with product(tmp_path, {"s": s}) as made:
            await made.search("echo")
            begun = time.monotonic()
            diagnostic = await made.fails()
            assert 1.8 < time.monotonic() - begun < 8
            assert diagnostic.code == "timeout"
            assert "2 s" in diagnostic.message
            assert "0.5" not in diagnostic.message
            assert "unknown" in diagnostic.message

    run(main())


def test_b100_progress_of_another_call_does_not_extend_this_one(tmp_path: Path) -> None:
    async def main() -> None:
        script = {
            "tools/call:echo": [{"hang": True}],
            "tools/call:other": [{"progress": 25, "every": 0.1}, {"echo": True}],
        }
        s = server(tmp_path, script, toolTimeoutMs=500)
        async with product(tmp_path, {"s": s}) as made:
            await made.load("s.echo", "s.other")
            noisy = asyncio.ensure_future(made.text("mcp__s__other"))
            begun = time.monotonic()
            diagnostic = await made.fails("mcp__s__echo")
            assert 0.4 < time.monotonic() - begun < 2.4
            assert "0.5 s" in diagnostic.message
            assert "toolTimeoutMs" in diagnostic.message
            await noisy

    run(main())


@pytest.mark.slow
@pytest.mark.parametrize("answers", ["json", "sse"])
def test_b101_the_configured_limit_is_the_one_in_force_over_http(tmp_path: Path, answers: str) -> None:
    async def main() -> None:
        with HttpServer({"tools/call": [{"sleep": 1.2}]}, answers=answers) as http:
            servers = {
                "patient": {"url": http.url, "toolTimeoutMs": 5000, "timeoutMs": 300},
                "hasty": {"url": http.url, "toolTimeoutMs": 300, "timeoutMs": 5000},
            }
            async with product(tmp_path, servers) as made:
                await made.load("patient.echo", "hasty.echo")
                assert await made.text("mcp__patient__echo")
                begun = time.monotonic()
                assert "0.3 s" in (await made.fails("mcp__hasty__echo")).message
                assert time.monotonic() - begun < 4

    run(main())


def test_b103_b104_cancelling_ends_one_call_within_a_second_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        s = server(tmp_path, {"tools/call:echo": [{"sleep": 30}], "tools/call:other": [{"pid": True}]})
        async with product(tmp_path, {"s": s}) as made:
            await made.load("s.echo", "s.other")
            before = await made.text("mcp__s__other")
            task = asyncio.ensure_future(made.session.call("mcp__s__echo", {}))
            await asyncio.sleep(0.2)
            begun = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - begun < 5
            assert await made.text("mcp__s__other") == before
            assert made.state("s") == "connected"
            assert len(asked(s, "notifications/cancelled")) == 1
            assert pids_of(s) == [int(before)]

    run(main())


def test_b106_late_double_and_foreign_answers_harm_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        right = {"jsonrpc": "2.0", "id": "$ID", "result": {"content": [{"type": "text", "text": "right"}]}}
        stray = [
            {"write": {**right, "id": 424242}},
            {"write": {**right, "id": None}},
            {"write": {**right, "id": [1]}},
            {"write": right},
            {"write": right},
        ]
        textual = [{"raw": '{"jsonrpc":"2.0","id":"$ID","result":{"content":[{"type":"text","text":"textual"}]}}\n'}]
        s = server(
            tmp_path, {"tools/call:echo": [stray, textual], "tools/call:other": [{"sleep": 0.2}, {"echo": True}]}
        )
        async with product(tmp_path, {"s": s}) as made:
            await made.load("s.echo", "s.other")
            slow = asyncio.ensure_future(made.text("mcp__s__other"))
            assert await made.text("mcp__s__echo") == "right"
            assert await made.text("mcp__s__echo") == "textual"
            await slow
            assert made.state("s") == "connected"

    run(main())


# --- names over several servers ----------------------------------------------------------------------------


def test_b166_the_same_tool_of_two_servers_is_two_tools(tmp_path: Path) -> None:
    async def main() -> None:
        script = {"tools/list": [listing(tool("notify_user"))], "tools/call": [{"pid": True}]}
        servers = {"post1": server(tmp_path, script), "post2": server(tmp_path, script)}
        async with product(tmp_path, servers) as made:
            answer = await made.search("notify_user")
            natives = [one.native for one in answer.loaded]
            assert natives == ["mcp__post1__notify_user", "mcp__post2__notify_user"]
            assert "(post1)" in answer.text
            assert "(post2)" in answer.text
            for name in servers:
                pid = await made.text(f"mcp__{name}__notify_user")
                assert pids_of(servers[name]) == [int(pid)]

    run(main())


def test_b167_names_that_fall_together_stay_apart_in_any_order(tmp_path: Path) -> None:
    async def main() -> None:
        names = ["a.b", "a_b", "a-b", "Run", "run"]
        seen = []
        for order in (names, names[::-1]):
            folder = tmp_path / order[0]
            folder.mkdir()
            script = {"tools/list": [listing(*(tool(name) for name in order))]}
            servers = {"my srv": server(folder, script), "my_srv": server(folder, script)}
            async with product(folder, servers) as made:
                await made.load(*(f"{owner}.{name}" for owner in servers for name in order))
                seen.append({(one.server, one.tool): one.native for one in made.session.loaded})
                for one in made.session.loaded:
                    assert one.native == native_name(one.server, one.tool)
                    await made.call(one.native)
                for owner, entry_ in servers.items():
                    assert sorted(p["name"] for p in asked(entry_, "tools/call")) == sorted(names), owner
        assert seen[0] == seen[1]
        assert len(set(seen[0].values())) == 10

    run(main())
