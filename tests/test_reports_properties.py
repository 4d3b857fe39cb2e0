"""Properties behind whole families of field reports: functions of values, held against a model of what is right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.config import configuration_of, resolve
from pi_mcp.config.interpolate import InterpolationError, expand
from pi_mcp.connect.messages import EventParser, messages_in
from pi_mcp.tools.names import native_name
from pi_mcp.tools.schema import Quarantined, model_schema

SET = {"A": "one", "LONG_NAME": "two words", "EMPTY": "", "ODD": "${A}}$B"}
NAMES = st.sampled_from([*SET, "UNSET", "UNSET_2"])
LITERAL = st.text(alphabet="ab/:-{ \"'\n", max_size=6)
"""Text without `$` and `}`: what ends a reference inside a default is written there as the file's author must."""
TREE = st.recursive(
    st.tuples(st.just("text"), LITERAL) | st.tuples(st.just("var"), NAMES),
    lambda inner: st.tuples(st.just("default"), NAMES, st.lists(inner, max_size=3)),
    max_leaves=8,
)


def written(node: Any) -> str:
    """A node as a file spells it. Braces within a default balance (B005)."""
    if node[0] == "text":
        return str(node[1]).replace("{", "")
    if node[0] == "var":
        return f"${{{node[1]}}}"
    return f"${{{node[1]}:-{''.join(map(written, node[2]))}}}"


def meant(node: Any) -> str | None:
    """Its value; None where a variable that is needed is not set."""
    if node[0] == "text":
        return str(node[1]).replace("{", "")
    if node[0] == "var":
        return SET.get(node[1])
    if SET.get(node[1]):
        return SET[node[1]]
    parts = [meant(part) for part in node[2]]
    return None if None in parts else "".join(part or "" for part in parts)


@given(st.lists(TREE, max_size=4))
def test_b005_b008_references_nest_to_any_depth_and_a_missing_one_stops(nodes: list[Any]) -> None:
    text = "".join(map(written, nodes))
    parts = [meant(node) for node in nodes]
    try:
        found = expand(text, SET).text
    except InterpolationError:
        assert None in parts
    else:
        assert None not in parts
        assert found == "".join(part or "" for part in parts)


@given(st.lists(TREE, max_size=3), st.sampled_from(["command", "args", "cwd", "env", "url", "headers"]))
def test_b008_an_entry_resolves_to_what_is_meant_or_to_nothing(nodes: list[Any], field: str) -> None:
    text = "x" + "".join(map(written, nodes)).replace("\n", "")
    parts = [meant(node) for node in nodes]
    entry: dict[str, Any] = {"url": "https://h/mcp"} if field in ("url", "headers") else {"command": "c"}
    entry[field] = {"env": {"K": text}, "headers": {"K": text}, "args": [text], "url": f"https://h/{text}"}.get(
        field, text
    )
    configuration = configuration_of({"s": entry}, environ={**SET, "HOME": "/h"})
    if "s" not in configuration.servers:
        return  # refused as written, before any variable was looked at
    try:
        resolved = resolve(configuration.servers["s"], configuration)
    except Exception as error:
        refused = json.dumps(getattr(error, "diagnostic").to_json())  # noqa: B009 -- anything else is a failure here
        assert "configuration_invalid" in refused
        assert "two words" not in refused
        return
    assert None not in parts
    wanted = "x" + "".join(part or "" for part in parts).replace("\n", "")
    if field in ("command", "cwd"):
        wanted = str(Path(wanted))  # these are paths: `x/` and `x//y` are spelled anew
    assert wanted in "\n".join(
        [
            str(resolved.command),
            *resolved.args,
            str(resolved.cwd),
            str(resolved.url),
            *(one.reveal() for one in (*resolved.env.values(), *resolved.headers.values())),
        ]
    )


MESSAGE = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0"), "id": st.just(7), "result": st.dictionaries(st.text(), st.text())}
)


@given(MESSAGE, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
@settings(max_examples=60)
def test_b070_an_event_is_read_however_its_bytes_are_cut(
    message: dict[str, Any], end: str, data: st.DataObject
) -> None:
    lines = [
        ": ping",
        "",
        "event: message",
        "id: 1",
        *(f"data: {part}" for part in json.dumps(message).split(", ")),
        "",
        "",
    ]
    text = end.join(lines).replace(f"data: {end}", "data:").encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parser = EventParser()
    events = []
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        events += list(parser.feed(text[start:stop]))
    joined = "".join(event.data for event in events).replace("\n", "")
    assert joined == json.dumps(message).replace(", ", "")
    assert parser.rest() == ""


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.text() | ANY.map(json.dumps), st.sampled_from([{}, {"7": 7}, {"7": 7, "8": 8}]))
def test_b068_b071_b106_any_text_is_messages_noise_or_a_failed_request(text: str, waiting: dict[str, Any]) -> None:
    found = messages_in(text, waiting)
    for message in found.messages:
        assert message["jsonrpc"] == "2.0"
        if "method" not in message:
            assert message["id"] in waiting.values()
    assert set(found.malformed) <= set(waiting.values())


@given(st.text(max_size=80), st.text(max_size=300), ANY)
def test_b083_b085_b086_whatever_a_server_lists_is_well_formed_for_a_provider(
    server: str, tool: str, schema: Any
) -> None:
    native = native_name(server, tool)
    assert 1 <= len(native) <= 64
    assert native.isascii()
    assert all(char.isalnum() or char in "_-" for char in native)
    try:
        form = model_schema(schema).schema
    except Quarantined:
        return
    assert form["type"] == "object"
    assert "$ref" not in form
    json.dumps(form, allow_nan=False).encode("utf-8")
