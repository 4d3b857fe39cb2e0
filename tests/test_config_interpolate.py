"""Variables in configuration text: the grammar of DESIGN §4, and what a resolved server is made of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pi_mcp.config import ResolvedServer, configuration_of, fingerprint, resolve
from pi_mcp.config.interpolate import InterpolationError, expand, literal
from pi_mcp.errors import ConfigurationError

ENVIRON = {"A": "va", "AB": "vab", "EMPTY": "", "HOME": "/home/u", "REF": "${A}", "BANG": "!touch /nowhere"}
PLANTED = "s3cr3t-planted-value"


def resolved(entry: dict[str, Any], environ: dict[str, str] | None = None, cwd: Path | None = None) -> ResolvedServer:
    configuration = configuration_of({"s": entry}, environ=ENVIRON if environ is None else environ, cwd=cwd)
    return resolve(configuration.servers["s"], configuration)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${A}", "va"),
        ("x${A}y${AB}z", "xvayvabz"),
        ("${env:A}", "va"),
        ("${EMPTY}", ""),
        ("${A:-d}", "va"),
        ("${NO:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${NO:-}", ""),
        ("${env:NO:-d}", "d"),
        ("${NO:-${A}}", "va"),
        ("${NO:-${NO2:-${AB}}x}y", "vabxy"),
        ('${NO:-{"k": {}}}', '{"k": {}}'),
        ("${A:-${NO}}", "va"),
        ("${NO:-$${A}}", "${A}"),
        ("$${A}", "${A}"),
        ("$$${A}", "$${A}"),
        ("${REF}", "${A}"),
        ("a $ b $", "a $ b $"),
        ("$A $$ $! $1", "$A $$ $! $1"),
        ("}{", "}{"),
    ],
)
def test_references_are_replaced(written: str, expected: str) -> None:
    assert expand(written, ENVIRON).text == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("$A", "va"),
        ("$AB", "vab"),
        ("$A-$AB.", "va-vab."),
        ("$$A", "$A"),
        ("$$$A", "$va"),
        ("$!x", "!x"),
        ("$!!", "!!"),
        ("pa$5 $ $", "pa$5 $ $"),
        ("$${A}", "${A}"),
        ("$$${A}", "$va"),
        ("${NO:-$A}", "va"),
        ("$REF", "${A}"),
        ("$BANG", "!touch /nowhere"),
    ],
)
def test_headers_and_env_know_the_short_form_too(written: str, expected: str) -> None:
    assert expand(written, ENVIRON, dollar=True).text == expected


def test_b005_a_default_has_balanced_braces() -> None:
    written = "${DATA_DIR:-${HOME}/.d}:/d"
    assert expand(written, {"DATA_DIR": "/srv/d", "HOME": "/home/u"}).text == "/srv/d:/d"
    assert expand(written, {"HOME": "/home/u"}).text == "/home/u/.d:/d"
    configuration = configuration_of({"s": {"command": "srv", "args": ["-v", written]}}, environ={"HOME": "/home/u"})
    assert resolve(configuration.servers["s"], configuration).args == ("-v", "/home/u/.d:/d")


@pytest.mark.parametrize(
    "written", ["${A", "${", "${}", "${A:-x", "${A:-${A}", "${1}", "${A-x}", "${input:t}", "${ A}"]
)
def test_what_is_no_reference_is_refused_and_never_passed_on(written: str) -> None:
    with pytest.raises(InterpolationError) as caught:
        expand(f"{PLANTED}{written}", ENVIRON)
    assert caught.value.variable is None
    assert PLANTED not in str(caught.value)
    with pytest.raises(ConfigurationError) as refused:
        resolved({"command": "x", "args": [f"{PLANTED}{written}"]})
    assert "args[0]" in str(refused.value)
    assert "$${" in str(refused.value)
    assert PLANTED not in str(refused.value)


def test_endless_nesting_of_defaults_is_refused() -> None:
    with pytest.raises(InterpolationError, match="nested"):
        expand("${NO:-" * 5000 + "}" * 5000, {})


def test_b008_a_missing_variable_names_variable_field_and_server() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved({"command": "srv", "env": {"DATA": "${PROJECT_DIR_UNSET}/.d"}})
    diagnostic = caught.value.diagnostic
    assert diagnostic.code == "configuration_invalid"
    assert diagnostic.server == "s"
    assert "`PROJECT_DIR_UNSET`" in diagnostic.message
    assert "`env.DATA`" in diagnostic.message
    assert diagnostic.hint is not None
    assert "$$" in diagnostic.hint


def test_all_missing_variables_are_named_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolved({"command": "${ONE}", "args": ["a", "${TWO}"], "cwd": "${THREE}", "env": {"X": "$FOUR"}})
    for part in ("ONE", "TWO", "THREE", "FOUR", "`command`", "`args[1]`", "`cwd`", "`env.X`"):
        assert part in caught.value.diagnostic.message


@given(st.text())
def test_a_literal_text_comes_back_as_it_was(text: str) -> None:
    assert expand(literal(text), {}).text == text
    written = literal(text, dollar=True)
    assert not written.startswith("!")
    assert expand(written, {}, dollar=True).text == text


@given(st.text(alphabet="${}:-!A_ \n"), st.booleans())
def test_any_text_is_expanded_or_refused_without_showing_it(text: str, dollar: bool) -> None:
    reason = ""
    try:
        expand(text, {"A": "x"}, dollar=dollar)
    except InterpolationError as error:
        reason = error.reason
    assert reason.startswith(("a `${`", "variable `", "defaults")) or not reason


@given(st.text(alphabet="ab${}!"))
def test_a_value_is_never_read_again(value: str) -> None:
    assert expand("${V}|$V", {"V": value}, dollar=True).text == f"{value}|{value}"


def test_a_value_from_a_variable_is_never_a_command() -> None:
    server = resolved({"url": "https://h/mcp", "headers": {"X": "$BANG", "Y": "$!echo", "Z": "${NO:-!x}"}})
    assert server.commands == ()
    assert {key: value.reveal() for key, value in server.headers.items()} == {
        "X": "!touch /nowhere",
        "Y": "!echo",
        "Z": "!x",
    }


def test_the_text_of_a_command_is_left_as_written() -> None:
    server = resolved({"url": "https://h/mcp", "headers": {"X": "!printf '%s' \"$TOKEN ${NO}\" $$"}})
    assert [command.text for command in server.commands] == ["printf '%s' \"$TOKEN ${NO}\" $$"]
    assert server.headers == {}


def test_b019_b020_paths_open_a_tilde_and_resolve_against_the_working_directory() -> None:
    base = Path("/p/x")
    assert resolved({"command": "srv"}, cwd=base).cwd == base
    server = resolved({"command": "./scripts/s.sh", "cwd": "sub"}, cwd=base)
    assert (server.cwd, server.command) == (Path("/p/x/sub"), "/p/x/sub/scripts/s.sh")
    server = resolved({"command": "~/bin/s", "cwd": "~/work", "args": ["~/a", "~", "--d=~/b"]}, cwd=base)
    assert (server.cwd, server.command) == (Path("/home/u/work"), "/home/u/bin/s")
    assert server.args == ("/home/u/a", "/home/u", "--d=~/b")
    assert resolved({"command": "npx", "cwd": "sub"}, cwd=base).command == "npx"
    assert resolved({"command": "/bin/x", "cwd": "/abs"}, cwd=base).cwd == Path("/abs")


@pytest.mark.parametrize(
    "url", ["ftp://h/x", "${U}", "//h/mcp", "https://", "https://h:99999/", "https://h/ x", "https://[::1/", "mcp"]
)
def test_an_address_has_to_be_one_of_an_http_server(url: str) -> None:
    configuration = configuration_of({"s": {"url": url}}, environ={"U": f"file:///{PLANTED}"})
    entry = configuration.entries["s"]
    if entry.definition is None:
        assert entry.diagnostic is not None
        assert "`url`" in entry.diagnostic.message
        return
    with pytest.raises(ConfigurationError, match="`url`") as caught:
        resolve(entry.definition, configuration)
    assert PLANTED not in str(caught.value)


def test_user_information_in_an_address_becomes_a_header() -> None:
    server = resolved({"url": "https://u%40x:${P}@host:8443/mcp?a=1"}, {"P": PLANTED})
    assert server.url == "https://host:8443/mcp?a=1"
    assert server.headers["Authorization"].reveal() == "Basic dUB4OnMzY3IzdC1wbGFudGVkLXZhbHVl"
    assert PLANTED not in server.redactor(f"x {PLANTED} y")
    assert PLANTED not in repr(server)
    for other in ({"headers": {"authorization": "x"}}, {"oauth": True}):
        with pytest.raises(ConfigurationError, match="another way to log in"):
            resolved({"url": "https://u:p@h/mcp", **other})


def test_a_header_cannot_be_given_a_line_break_by_a_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"`headers\.X` has a line break") as caught:
        resolved({"url": "https://h/mcp", "headers": {"X": "${V}"}}, {"V": f"{PLANTED}\r\nEvil: 1"})
    assert PLANTED not in str(caught.value)


def test_b187_no_repr_and_no_copy_shows_a_value() -> None:
    entry = {
        "url": "https://h/mcp?token=${T}",
        "headers": {"Authorization": "Bearer ${T}", "X-Api-Key": f"lit-{PLANTED}", "Y": "!printf S3CR-command"},
    }
    configuration = configuration_of({"s": entry}, environ={"T": PLANTED})
    server = resolve(configuration.servers["s"], configuration)
    shown = " ".join(
        [
            repr(configuration),
            repr(server),
            str(server.headers),
            f"{server.headers['Authorization']:>5}",
            repr(dataclasses.asdict(server.definition)["headers"]),
            repr(dataclasses.replace(server)),
        ]
    )
    assert PLANTED not in shown
    assert "S3CR" not in shown
    for text in (f"Bearer {PLANTED}", PLANTED, f"lit-{PLANTED}"):
        assert PLANTED not in server.redactor(f"said {text}")


def test_what_follows_a_secret_option_is_kept_out_of_logs() -> None:
    server = resolved({"command": "x", "args": ["--api-key", "k-12345", "--token=t-12345", "--verbose", "plain"]})
    assert server.redactor("k-12345 t-12345 plain") == "*** *** plain"


def test_a_fingerprint_follows_what_a_server_is() -> None:
    key = b"k" * 32
    entry: dict[str, Any] = {"command": "srv", "args": ["${A}"], "env": {"X": "!echo 1"}}
    base = fingerprint(resolved(entry), key)
    assert len(base) == 64
    assert base == fingerprint(resolved({**entry, "description": "d", "timeoutMs": 200}), key)
    changed = [
        fingerprint(resolved(entry), b"other"),
        fingerprint(resolved(entry), key, credential_id="c"),
        fingerprint(resolved(entry, {**ENVIRON, "A": "z"}), key),
        fingerprint(resolved({**entry, "cwd": "/elsewhere"}), key),
        fingerprint(resolved({**entry, "env": {"X": "!echo 2"}}), key),
        fingerprint(resolved({**entry, "env": {"X": "$!echo 1"}}), key),
        fingerprint(resolved({"url": "https://h/mcp"}), key),
        fingerprint(resolved({"url": "https://h/mcp", "type": "sse"}), key),
    ]
    assert len({base, *changed}) == len(changed) + 1
    assert fingerprint(resolved({"url": "https://h/mcp"}, cwd=Path("/a")), key) == fingerprint(
        resolved({"url": "https://h/mcp"}, cwd=Path("/b")), key
    )


def test_the_texts_of_an_oauth_object_may_name_variables() -> None:
    oauth = {"clientId": "c", "clientSecret": "${S}", "scopes": ["${A}"], "callbackPort": 8080}
    server = resolved({"url": "https://h/mcp", "oauth": oauth}, {"S": f"{PLANTED}$x", "A": "a"})
    assert server.oauth == {**oauth, "clientSecret": f"{PLANTED}$x", "scopes": ["a"]}
    assert PLANTED not in repr(server) + server.redactor(f"secret {PLANTED}$x")
    with pytest.raises(ConfigurationError, match=r"`S` for `oauth\.clientSecret`"):
        resolved({"url": "https://h/mcp", "oauth": oauth}, {"A": "a"})
