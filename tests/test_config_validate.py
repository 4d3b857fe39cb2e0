"""Entries of `mcpServers`: which are servers, what is wrong with the others, and that one never hides another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.config import FIELDS, Configuration, ServerDefinition, configuration_of, load_config
from pi_mcp.config.definition import AccessRules, WriteRule
from pi_mcp.config.validate import FOREIGN, Origin, check

PLANTED = "s3cr3t-planted-value"


def load(tmp_path: Path, text: str) -> Configuration:
    file = tmp_path / "mcp.json"
    file.write_text(text)
    return load_config(cwd=tmp_path, config=file)


def definition(entry: dict[str, Any], **more: Any) -> ServerDefinition:
    configuration = configuration_of({"s": entry}, **more)
    assert configuration.entries["s"].diagnostic is None, configuration.entries["s"].diagnostic
    found = configuration.entries["s"].definition
    assert found is not None
    return found


def fault(entry: Any) -> str:
    """The line of the diagnostic of an entry that cannot be used."""
    configuration = configuration_of({"s": entry, "other": {"command": "x"}})
    assert list(configuration.servers) == ["other"]
    broken = configuration.entries["s"]
    assert (broken.state, broken.definition) == ("invalid", None)
    assert broken.diagnostic is not None
    assert broken.diagnostic.code == "configuration_invalid"
    assert PLANTED not in broken.diagnostic.line()
    return broken.diagnostic.line()


def test_b017_a_bad_entry_hides_no_other(tmp_path: Path) -> None:
    configuration = load(
        tmp_path,
        '{"mcpServers":{"a":{"command":"x"},"b":{"command":5},"c":"str","d":null,\n'
        '"e":{"command":"y","args":"not-a-list"}}}',
    )
    assert list(configuration.entries) == ["a", "b", "c", "d", "e"]
    assert list(configuration.servers) == ["a"]
    for name, field in {"b": "`command`", "c": "object", "d": "object", "e": "`args`"}.items():
        entry = configuration.entries[name]
        assert entry.state == "invalid"
        assert entry.diagnostic is not None
        assert field in entry.diagnostic.message
        assert str(tmp_path / "mcp.json") in entry.diagnostic.message
    broken = configuration.entries["e"]
    assert (broken.source.line, broken.source.column) == (2, 1)
    assert broken.diagnostic is not None
    assert "line 2, column 20" in broken.diagnostic.message


def test_all_faults_of_an_entry_are_named_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = f"""{{"mcpServers": {{"s": {{
  "trust": true,
  "args": ["a", 1, {{}}],
  "command": "{PLANTED}",
  "timeoutMs": 5,
  "env": {{"PORT": 3000, "A=B": "{PLANTED}"}},
  "disabled": "true",
  "wrong": "{PLANTED}"
}}}}}}"""
    diagnostic = load(tmp_path, text).entries["s"].diagnostic
    assert diagnostic is not None
    places = ["line 2, column 3", "line 3, column 17", "line 3, column 20", "line 5, column 3"]
    places += ["line 6, column 11", "line 6, column 25", "line 7, column 3", "line 8, column 3"]
    found = [diagnostic.message.index(place) for place in places]
    assert found == sorted(found)
    assert "command" not in diagnostic.message
    assert PLANTED not in diagnostic.line()


def test_a_definition_has_the_defaults_of_its_transport(tmp_path: Path) -> None:
    stdio = definition({"command": "srv"}, cwd=tmp_path)
    assert (stdio.transport, stdio.startup_timeout, stdio.timeout, stdio.tool_timeout) == ("stdio", 60, 15, 30)
    assert (stdio.protocol, stdio.trust, stdio.base_dir) == ("auto", "trusted", tmp_path)
    assert (stdio.include_tools, stdio.exclude_tools, stdio.always_load) == (None, (), False)
    http = definition({"url": "https://h/mcp"})
    assert (http.transport, http.startup_timeout, http.timeout, http.tool_timeout) == ("http", 15, 15, 30)
    assert http.oauth is None
    one = definition({"command": "srv", "timeoutMs": 250})
    assert (one.startup_timeout, one.timeout, one.tool_timeout) == (0.25, 0.25, 0.25)
    all_three = definition({"command": "s", "timeoutMs": 250, "startupTimeoutMs": 100, "toolTimeoutMs": 600_000})
    assert (all_three.startup_timeout, all_three.timeout, all_three.tool_timeout) == (0.1, 0.25, 600)


def test_every_field_reaches_the_definition() -> None:
    found = definition(
        {
            "type": "stdio",
            "command": "c",
            "args": ["a"],
            "cwd": "d",
            "env": {"E": "v"},
            "inheritEnv": ["X"],
            "description": "text",
            "keywords": ["k"],
            "includeTools": [],
            "excludeTools": ["x*"],
            "alwaysLoad": ["a*"],
            "protocol": "legacy",
            "trust": "untrusted",
        }
    )
    assert (found.args, found.cwd, dict(found.env), found.inherit_env) == (("a",), "d", {"E": "v"}, ("X",))
    assert (found.description, found.keywords) == ("text", ("k",))
    assert (found.include_tools, found.exclude_tools, found.always_load) == ((), ("x*",), ("a*",))
    assert (found.protocol, found.trust) == ("legacy", "untrusted")
    http = definition({"url": "http://h", "headers": {"A": "b"}, "oauth": {"clientId": "c"}, "alwaysLoad": True})
    assert (dict(http.headers), http.oauth, http.always_load) == ({"A": "b"}, {"clientId": "c"}, True)


@pytest.mark.parametrize(
    "spelling", ["http", "streamableHttp", "streamable-http", "streamable_http", "STREAMABLE", "HTTP"]
)
def test_b011_all_spellings_of_the_http_transport_are_one(spelling: str) -> None:
    assert definition({"type": spelling, "url": "https://h/mcp"}).transport == "http"


def test_b011_an_unknown_type_is_an_error_of_that_server_that_lists_what_is_allowed() -> None:
    line = fault({"type": f"ws-{PLANTED}", "url": "https://h/mcp"})
    assert "stdio, http or sse" in line


def test_b014_sse_is_used_only_when_asked_for() -> None:
    assert definition({"type": "sse", "url": "http://h/mcp"}).transport == "sse"
    assert definition({"url": "http://h/sse"}).transport == "http"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({}, "`command` or `url` is missing"),
        ({"disabled": True}, "`command` or `url` is missing"),
        ({"type": "http"}, "`url` is missing"),
        ({"type": "stdio"}, "`command` is missing"),
        ({"command": "x", "url": "https://h"}, "exclude each other"),
        ({"type": "http", "command": "x"}, "contradicts `command`"),
        ({"type": "sse", "command": "x"}, "contradicts `command`"),
        ({"type": "stdio", "url": "https://h"}, "contradicts `url`"),
        ({"url": "https://h", "serverUrl": "https://other"}, "different addresses"),
        ({"url": "https://h", "args": ["x"]}, "`args` has no meaning"),
        ({"url": "https://h", "env": {"A": "b"}}, "`env` has no meaning"),
        ({"url": "https://h", "cwd": "x"}, "`cwd` has no meaning"),
        ({"url": "https://h", "inheritEnv": True}, "`inheritEnv` has no meaning"),
        ({"command": "x", "headers": {"A": "b"}}, "`headers` has no meaning"),
        ({"command": "x", "oauth": True}, "`oauth` has no meaning"),
        ({"command": ""}, "`command` is empty"),
        ({"command": "a\0b"}, "NUL"),
        ({"command": "x", "args": ["a", 8080]}, "`args[1]` has to be a string in quotes"),
        ({"command": "x", "env": {"PORT": 3000}}, "`env.PORT` has to be a string in quotes"),
        ({"command": "x", "env": {"": "x"}}, "no name of a variable"),
        ({"command": "x", "env": {"A": "! "}}, "command without text"),
        ({"command": "x", "env": ["A=b"]}, "`env` has to be an object"),
        ({"url": "https://h", "headers": {"A b": "x"}}, "no name of a header"),
        ({"url": "https://h", "headers": {"A": "x", "a": "y"}}, "twice"),
        ({"url": "https://h", "oauth": True, "headers": {"authorization": "x"}}, "Authorization"),
        ({"url": "https://h", "oauth": {"clientId": "x"}, "headers": {"Authorization": "x"}}, "Authorization"),
        ({"url": "https://h", "oauth": "yes"}, "`oauth` has to be"),
        ({"url": f"ftp://{PLANTED}"}, "`url` does not begin"),
        ({"url": "h/mcp"}, "`url` does not begin"),
        ({"command": "x", "timeoutMs": 99}, "100 to 600000"),
        ({"command": "x", "timeoutMs": 600_001}, "100 to 600000"),
        ({"command": "x", "timeoutMs": True}, "100 to 600000"),
        ({"command": "x", "toolTimeoutMs": "30"}, "100 to 600000"),
        ({"command": "x", "startupTimeoutMs": None}, "100 to 600000"),
        ({"command": "x", "protocol": "2025-06-18"}, "auto or legacy"),
        ({"command": "x", "trust": True}, "trusted, verified or untrusted"),
        ({"command": "x", "trust": "full"}, "trusted, verified or untrusted"),
        ({"command": "x", "includeTools": "a"}, "list of strings"),
        ({"command": "x", "alwaysLoad": "all"}, "true, false or a list"),
        ({"command": "x", "keywords": "a b"}, "list of strings"),
        ({"command": "x", "transportType": "http"}, "`transportType` contradicts"),
        ({"command": "x", "comand": "y"}, "Did you mean `command`?"),
        ({"url": "https://h", "Headers": {}}, "Did you mean `headers`?"),
    ],
)
def test_what_is_no_server_is_said_in_one_line(entry: dict[str, Any], says: str) -> None:
    assert says in fault(entry)


@pytest.mark.parametrize(
    ("key", "value", "good"),
    [
        ("clientId", "c", True),
        ("clientId", 5, False),
        ("clientSecret", "", False),
        ("clientMetadataUrl", "https://c/meta.json", True),
        ("clientMetadataUrl", "http://c/meta.json", False),
        ("scopes", "a b", True),
        ("scopes", ["a", "b"], True),
        ("scopes", [1], False),
        ("callbackHost", "127.0.0.1", True),
        ("callbackHost", "localhost", True),
        ("callbackHost", "0.0.0.0", False),
        ("callbackPort", 8080, True),
        ("callbackPort", 0, False),
        ("callbackPort", "8080", False),
        ("callbackPort", True, False),
        ("callbackPath", "/cb", True),
        ("callbackPath", "cb", False),
        ("callbackPath", "/cb?x", False),
        ("tokenEndpointAuthMethod", "none", True),
        ("tokenEndpointAuthMethod", "magic", False),
        ("grant", "device_code", True),
        ("grant", "password", False),
        ("privateKey", "k", True),
        ("trustIssuer", True, True),
        ("dpop", "yes", False),
        ("client_id", "c", False),
        ("scope", "a", False),
        ("clientSecret", "!op read x", True),
        ("clientSecret", "! ", False),
        ("clientId", "!op read x", False),
        ("clientSecret", "${SECRET}", True),
    ],
)
def test_the_keys_of_an_oauth_object_are_checked(key: str, value: object, good: bool) -> None:
    entry = {"url": "https://h/mcp", "oauth": {key: value}}
    if good:
        assert definition(entry).oauth == {key: value}
    else:
        assert f"`oauth.{key}" in fault(entry)


def test_oauth_may_be_refused_next_to_an_authorization_header() -> None:
    assert definition({"url": "https://h", "oauth": False, "headers": {"Authorization": "x"}}).oauth is False


def test_addresses_may_be_called_by_other_names_and_given_twice() -> None:
    assert definition({"serverUrl": "https://h"}).url == "https://h"
    assert definition({"httpUrl": "https://h", "url": "https://h"}).url == "https://h"


def test_b013_a_nested_transport_object_is_refused() -> None:
    line = fault({"command": "node", "args": ["x"], "transport": {"type": "http", "url": f"http://h/{PLANTED}"}})
    assert "`transport` is not known" in line
    assert "`type` and `url`" in line


def test_b022_bearer_fields_are_refused_with_the_replacement() -> None:
    line = fault({"url": "http://127.0.0.1:1/mcp", "auth": "bearer", "bearerTokenEnv": PLANTED, "lifecycle": "lazy"})
    for part in ("`auth`", "`bearerTokenEnv`", "`lifecycle`", '"Authorization": "Bearer ${TOK}"'):
        assert part in line
    assert "Bearer ${TOK}" in fault({"url": "http://h/mcp", "bearerTokenEnvVar": PLANTED})


def test_b023_fields_of_other_clients_give_one_warning_each_and_grant_nothing() -> None:
    entry = {"command": "srv", "disabled": False, "alwaysAllow": ["x"], "autoApprove": [], "timeout": 30}
    found = configuration_of({"s": entry}).entries["s"]
    assert found.state == "ready"
    assert [warning.message.split("`")[1] for warning in found.warnings] == ["alwaysAllow", "autoApprove", "timeout"]
    assert all(warning.hint for warning in found.warnings)
    assert found.definition is not None
    assert (found.definition.timeout, found.definition.always_load) == (15, False)
    every = configuration_of({"s": {"command": "x", **dict.fromkeys(FOREIGN, "stdio")}}).entries["s"]
    assert every.state == "ready"
    assert len(every.warnings) == len(FOREIGN)


@pytest.mark.parametrize(
    "entry",
    [{"disabled": True}, {"enabled": False}, {"disabled": True, "enabled": False}],
)
def test_b025_a_server_is_switched_off_either_way(entry: dict[str, Any]) -> None:
    configuration = configuration_of({"s": {"command": "touch", **entry}})
    assert configuration.entries["s"].state == "disabled"
    assert configuration.servers == {}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"enable": False}, "`enabled`"),
        ({"enable": False, "enabled": True}, "`enable` is not known"),
        ({"disabled": "true"}, "`disabled` has to be true or false"),
        ({"enabled": 0}, "`enabled` has to be true or false"),
        ({"disabled": None}, "`disabled` has to be true or false"),
        ({"disabled": True, "enabled": True}, "contradict"),
        ({"disabled": False, "enabled": False}, "contradict"),
    ],
)
def test_b025_b026_what_cannot_be_understood_does_not_start(entry: dict[str, Any], says: str) -> None:
    assert says in fault({"command": "touch", **entry})


def test_the_persons_word_on_tools_reaches_the_definition() -> None:
    rules = {"readOnly": ["get_*"], "write": ["get_x", {"tool": "show", "when": {"argument": "id"}}]}
    made = definition({"command": "x", "access": rules})
    assert made.access == AccessRules(("get_*",), (WriteRule("get_x"), WriteRule("show", "id")))
    assert definition({"command": "x"}).access == AccessRules()


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        (True, "`access` has to be an object"),
        ({"readonly": []}, "`access.readonly` is not known"),
        ({"readOnly": "get_*"}, "`access.readOnly` has to be a list of tool names"),
        ({"readOnly": [1]}, "`access.readOnly[0]` has to be a string"),
        ({"write": "x"}, "`access.write` has to be a list"),
        ({"write": [""]}, "`access.write[0]` is empty"),
        ({"write": [{"tool": "x"}]}, "`access.write[0]` has to be a tool name, or an object"),
        ({"write": [{"tool": "x", "when": {}}]}, "`access.write[0]` has to be a tool name, or an object"),
        ({"write": [{"tool": "x", "when": {"argument": 1}}]}, "`access.write[0] argument` has to be a string"),
        ({"write": [{"tool": 1, "when": {"argument": "a"}}]}, "`access.write[0] tool` has to be a string"),
        ({"write": [{"tool": "x", "when": {"argument": "a", "value": 1}}]}, "has to be a tool name, or an object"),
    ],
)
def test_a_word_on_tools_that_cannot_be_understood_stops_the_server(rules: Any, says: str) -> None:
    assert says in fault({"command": "x", "access": rules})


def test_a_projects_file_can_say_that_a_tool_writes_but_not_that_it_only_reads() -> None:
    rules = {"readOnly": ["*"], "write": ["get_x"]}
    checked = check("s", {"command": "x", "access": rules}, Origin(None, "project", Path.cwd()))
    assert checked.definition is not None
    assert checked.definition.access == AccessRules((), (WriteRule("get_x"),))
    assert "readOnly" in checked.warnings[0].message


def test_pis_own_exposure_is_worked_in() -> None:
    assert definition({"command": "x", "exposure": "hidden"}).exclude_tools == ("*",)
    assert definition({"command": "x", "exposure": "direct"}).always_load is True
    for nothing in ("deferred", "codemode"):
        found = definition({"command": "x", "exposure": nothing})
        assert (found.exclude_tools, found.always_load) == ((), False)
    single = definition({"command": "x", "toolExposure": {"a": "hidden", "b": "direct", "c": "deferred"}})
    assert (single.exclude_tools, single.always_load) == (("a",), ("b",))
    only = definition({"command": "x", "exposure": "hidden", "toolExposure": {"b": "direct"}})
    assert (only.include_tools, only.exclude_tools, only.always_load) == (("b",), (), ("b",))
    assert "hidden, direct, deferred, codemode or codemode-deferred" in fault({"command": "x", "exposure": True})
    assert "`toolExposure.t`" in fault({"command": "x", "toolExposure": {"t": 1}})


def test_the_trust_default_follows_the_file_and_a_project_can_only_lower_it() -> None:
    assert definition({"command": "x"}, scope="user").trust == "trusted"
    assert definition({"command": "x"}, scope="project").trust == "verified"
    assert definition({"command": "x", "trust": "untrusted"}, scope="project").trust == "untrusted"
    raised = configuration_of({"s": {"command": "x", "trust": "trusted"}}, scope="project").entries["s"]
    assert raised.definition is not None
    assert raised.definition.trust == "verified"
    assert "/mcp trust s trusted" in (raised.warnings[0].hint or "")


@pytest.mark.parametrize("name", ["", " a", "a\nb", "a\x1b[31mb", "a\u202eb", "x" * 129])
def test_a_name_that_cannot_be_shown_is_refused_and_shown_cleaned(name: str) -> None:
    configuration = configuration_of({name: {"command": "x"}, "a": {"command": "y"}})
    assert list(configuration.servers) == ["a"]
    (shown,) = [entry for entry in configuration.entries.values() if entry.state == "invalid"]
    assert shown.diagnostic is not None
    assert shown.diagnostic.line().isprintable()
    assert shown.name.isprintable()


def test_names_in_the_words_of_a_person_are_fine() -> None:
    names = ["GitHub (work)", "ünïcode", "a.b/c", "日本"]
    assert list(configuration_of({name: {"command": "x"} for name in names}).servers) == names


@given(
    st.dictionaries(
        st.sampled_from([row.name for row in FIELDS] + ["x", *FOREIGN]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
            max_leaves=4,
        ),
        max_size=6,
    )
)
def test_any_entry_becomes_a_server_or_a_diagnostic(entry: dict[str, Any]) -> None:
    found = configuration_of({"s": entry}).entries["s"]
    assert (found.state == "invalid") == (found.definition is None) == (found.diagnostic is not None)
    if found.diagnostic is not None:
        assert "\n" not in found.diagnostic.line()


def test_the_reference_has_a_row_for_every_field_and_each_is_accepted() -> None:
    assert len({row.name for row in FIELDS}) == len(FIELDS)
    assert all(row.meaning and row.type for row in FIELDS)
    for row in FIELDS:
        configuration = configuration_of({"s": {row.name: object()}})
        diagnostic = configuration.entries["s"].diagnostic
        assert diagnostic is not None
        assert f"`{row.name}` is not known" not in diagnostic.message


def test_an_entry_of_a_program_may_use_tuples_and_paths(tmp_path: Path) -> None:
    assert definition({"command": tmp_path / "srv", "args": ("a",)}).args == ("a",)
    json.dumps(configuration_of({"s": 5}).entries["s"].diagnostic.to_json())  # type: ignore[union-attr,dict-item]
