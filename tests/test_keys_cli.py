"""`pi-mcp keys`, `grants`, `audit` and `serve` as an operator types them: real processes, one store between them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from pi_mcp.access import AuditRow, Consent, Outcome, Scopes
from pi_mcp.access import secrets as minted
from pi_mcp.cli import main, moments
from pi_mcp.cli.access import ACTIONS, OUTCOMES
from pi_mcp.config.policy import Action
from pi_mcp.errors import PiMcpError
from pi_mcp.server.gate import Asked
from pi_mcp.store import default_path, open_store
from tests.gateway_support import ACCEPT, Client, Failed, http_process
from tests.hostile.script import entry, methods_of, tool
from tests.plugin_support import spoken
from tests.support import run


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[str, str]:
    """What the command printed."""
    try:
        found = main(list(words))
    except SystemExit as ended:
        found = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert found == code, (out, err)
    return out, err


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(said(capsys, *words, "--json", code=code)[0])


def test_a_key_is_shown_once_alone_on_its_line_and_kept_as_a_hash(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = said(capsys, "keys", "create", "my laptop", "--scope", "tools:read,server:git:*", "--subject", "ann")
    key = out.strip()
    found = minted.recognise(key, "key")
    assert found is not None
    assert found[0] in err
    assert key not in err
    secret = key.rpartition("_")[2]
    for file in default_path().parent.iterdir():
        assert secret.encode() not in file.read_bytes(), file
    (row,) = told(capsys, "keys", "list")["keys"]
    assert row["id"] == found[0]
    assert (row["label"], row["subject"], row["scopes"]) == ("my laptop", "ann", ["server:git:*", "tools:read"])
    assert (row["state"], row["expires"], row["lastUsed"], row["revoked"]) == ("valid", None, None, None)
    table, _ = said(capsys, "keys", "list")
    assert secret not in table
    assert found[0] in table


def test_a_key_can_end_and_can_be_named_by_its_own_text(capsys: pytest.CaptureFixture[str]) -> None:
    made = told(capsys, "keys", "create", "--scope", "tools:read", "--expires", "30d", "--concurrent", "4")
    assert made["limits"] == {"requestsPerMinute": None, "concurrent": 4, "resultBytes": None}
    assert made["expires"] > made["created"]
    out, _ = said(capsys, "keys", "revoke", made["key"])
    assert made["id"] in out
    assert made["key"] not in out
    assert told(capsys, "keys", "list")["keys"] == []
    (row,) = told(capsys, "keys", "list", "--all")["keys"]
    assert row["state"] == "revoked"
    error = told(capsys, "keys", "revoke", made["id"], code=5)["error"]
    assert error["code"] == "not_found"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("keys", "create"), "--scope"),
        (("keys", "create", "--scope", "tools:all"), "'tools:all' is no scope"),
        (("keys", "create", "--scope", "server:a b:read"), "no scope"),
        (("keys", "create", "--scope", "tools:read", "--expires", "yesterday"), "--expires"),
        (("keys", "create", "--scope", "tools:read", "--expires", "2020-01-01"), "not in the future"),
        (("keys", "create", "--scope", "tools:read", "--concurrent", "0"), "--concurrent"),
        (("keys", "create", "--scope", "tools:read", "--subject", "a\x1b[31m"), "--subject"),
        (("keys", "create", "one", "two", "--scope", "tools:read"), "one label"),
        (("keys", "revoke"), "which"),
        (("keys", "list", "x"), "takes no"),
        (("keys", "forget"), "invalid choice"),
        (("grants", "revoke"), "which"),
        (("audit", "--since", "soon"), "--since"),
        (("audit", "--limit", "0"), "--limit"),
    ],
)
def test_what_is_not_understood_is_said_in_one_line(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = said(capsys, *words, code=2)
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert not default_path().exists() or words[1] == "create"


def test_lists_of_a_store_that_nobody_made_are_empty_and_make_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "keys", "list") == {"keys": []}
    assert told(capsys, "grants", "list") == {"grants": []}
    assert told(capsys, "audit") == {"rows": [], "count": 0}
    assert said(capsys, "audit", "--export")[0] == ""
    assert not default_path().exists()
    assert told(capsys, "keys", "revoke", "k1", code=5)["error"]["code"] == "not_found"
    assert told(capsys, "keys", "list", "--store", "/nowhere/x.db", code=5)["error"]["code"] == "not_found"


def test_a_link_signs_in_as_the_key_that_it_is_for_and_may_do_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    made = told(capsys, "keys", "create", "--scope", "tools:read", "--subject", "ann")
    link = told(capsys, "keys", "link", made["id"], "--public-url", "https://mcp.example.test")
    assert link["url"].startswith("https://mcp.example.test/signin/link/pimcp_l")
    assert (link["subject"], link["scopes"]) == ("ann", ["tools:read"])
    out, err = said(capsys, "keys", "link", made["id"])
    assert out.strip().startswith("http://127.0.0.1:8400/signin/link/")
    assert out.strip().rpartition("_")[2] not in err
    wider = told(capsys, "keys", "link", made["id"], "--scope", "tools:write", code=2)
    assert "no more than the key" in wider["error"]["message"]
    other = told(capsys, "keys", "link", made["id"], "--subject", "bob", code=2)
    assert "ann" in other["error"]["message"]
    assert told(capsys, "keys", "link", made["id"], "--subject", "ann")["subject"] == "ann"
    assert told(capsys, "keys", "link", "nobody", code=5)["error"]["code"] == "not_found"
    assert told(capsys, "keys", "link", "--scope", "admin", "--public-url", "http://x.test", code=2)


def test_grants_are_listed_and_ended(capsys: pytest.CaptureFixture[str]) -> None:
    async def fill() -> None:
        store = await open_store()
        for number in range(2):
            await store.add_consent(
                Consent(
                    f"g{number}",
                    "ann",
                    "c",
                    "A \x1b[31mclient",
                    Scopes.of(["tools:read"]),
                    "https://gw/mcp",
                    time.time(),
                )
            )
        await store.close()

    run(fill())
    assert [one["id"] for one in told(capsys, "grants", "list")["grants"]] == ["g0", "g1"]
    assert "\x1b[31m" not in said(capsys, "grants", "list")[0]
    assert told(capsys, "grants", "revoke", "g0") == {"revoked": ["g0"]}
    assert [one["id"] for one in told(capsys, "grants", "list")["grants"]] == ["g1"]
    assert told(capsys, "grants", "revoke", "g0", "g1", code=5)["error"]["message"].endswith("Ended: g1.")


def test_the_trail_is_listed_filtered_and_exported(capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()

    async def fill() -> None:
        store = await open_store()
        for number in range(605):
            row = AuditRow(
                f"e{number:05}", now - 10_000 + number, "ann" if number % 2 else "bob", "k1", "key", "write", "ok",
                server="git", tool="commit", input='{"n": 1}',
            )  # fmt: skip
            await store.record(row)
        await store.close()

    run(fill())
    listed = told(capsys, "audit", "--subject", "ann", "--limit", "3")
    assert listed["count"] == 302
    assert [row["id"] for row in listed["rows"]] == ["e00603", "e00601", "e00599"]
    lines = said(capsys, "audit", "--export")[0].splitlines()
    assert [json.loads(line)["id"] for line in lines] == [f"e{number:05}" for number in range(605)]
    assert json.loads(lines[0])["time"].endswith("Z")
    some = said(capsys, "audit", "--export", "--limit", "200", "--subject", "bob")[0].splitlines()
    assert len(some) == 200
    assert told(capsys, "audit", "--since", "1h")["count"] == 0
    assert told(capsys, "audit", "--since", "3h", "--outcome", "ok", "--server", "git")["count"] == 605
    table, err = said(capsys, "audit")
    assert "git.commit" in table
    assert "50 of 605" in err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)]
)
def test_a_span_is_understood(text: str, seconds: int) -> None:
    assert moments.ahead(text, "--x", 1000.0) == 1000.0 + seconds
    assert moments.back(text, "--x", 1e9) == 1e9 - seconds


@pytest.mark.parametrize("text", ["", "d", "1.5h", "-3d", "99999999999d", "2026-13-01", "now", "\x1b"])
def test_an_odd_time_is_a_fault_of_usage(text: str) -> None:
    with pytest.raises(PiMcpError):
        moments.ahead(text, "--x", 0.0)


# serve


def configured(folder: Path) -> tuple[Path, dict[str, Any]]:
    server = entry(folder, spoken([tool("look", annotations={"readOnlyHint": True}), tool("turn")]))
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"s": server}}))
    return file, server


async def status(url: str, **headers: str) -> int:
    async with httpx2.AsyncClient(trust_env=False, verify=False) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await http.post(url, headers={**ACCEPT, "mcp-session-id": "x", **sent}, json=body)
        return answer.status_code


def test_without_keys_the_gateway_serves_this_machine_and_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        file, _ = configured(tmp_path)
        async with http_process(file) as (_, url, lines):
            assert any("There are no keys" in line for line in lines)
            async with Client(url):
                pass
            assert await status(url, x_api_key=minted.mint("key").text) == 401
        assert not default_path().exists()

    run(work())


@pytest.mark.slow
def test_with_a_key_everybody_needs_one_and_a_running_gateway_sees_changes(tmp_path: Path) -> None:
    async def work() -> None:
        file, server = configured(tmp_path)
        first = await asyncio.to_thread(_json, "keys", "create", "--scope", "tools:read tools:write")
        async with http_process(file, "--expose", "all") as (_, url, lines):
            assert not any("no keys" in line for line in lines)
            assert await status(url) == 401
            async with Client(url, authorization=f"Bearer {first['key']}") as client:
                await client.call("s__turn", {"id": "i1"})
                second = await asyncio.to_thread(_json, "keys", "create", "--scope", "tools:read")
                async with Client(url, **{"x-api-key": second["key"]}) as other:
                    with pytest.raises(Failed):
                        await other.call("s__turn", {})
                await asyncio.to_thread(_json, "keys", "revoke", first["id"])
                assert await status(url, authorization=f"Bearer {first['key']}") == 401
                client.session = None
            rows = (await asyncio.to_thread(_json, "audit"))["rows"]
            assert [(row["outcome"], row["credential"], row["affected"]) for row in rows] == [
                ("refused", second["id"], []),
                ("ok", first["id"], ["i1"]),
            ]
            keys = (await asyncio.to_thread(_json, "keys", "list", "--all"))["keys"]
            assert [key["state"] for key in keys] == ["revoked", "valid"]
        assert methods_of(server).count("tools/call") == 1
        keys = (await asyncio.to_thread(_json, "keys", "list", "--all"))["keys"]
        assert all(key["lastUsed"] for key in keys)

    run(work(), 60)


def _json(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "pi_mcp", *words, "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_dev_mode_says_what_it_is_and_rescues_no_bad_key(tmp_path: Path) -> None:
    async def work() -> None:
        file, _ = configured(tmp_path)
        store = str(tmp_path / "gw.db")
        key = await asyncio.to_thread(_json, "keys", "create", "--scope", "tools:read", "--store", store)
        await asyncio.to_thread(_json, "keys", "revoke", key["id"], "--store", store)
        options = ("--store", store, "--dev-no-auth", "--dev-as", "eve", "--expose", "all")
        async with http_process(file, *options) as (_, url, lines):
            assert any("--dev-no-auth" in line and "eve" in line for line in lines)
            assert not any("need a key" in line or "No key" in line for line in lines)
            async with Client(url) as client:
                await client.call("s__turn", {})
            for header in ({"authorization": f"Bearer {key['key']}"}, {"x_api_key": "x"}):
                assert await status(url, **header) == 401
        (row,) = (await asyncio.to_thread(_json, "audit", "--store", store))["rows"]
        assert (row["subject"], row["credentialKind"]) == ("eve", "dev")

    run(work(), 60)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--http", "0.0.0.0:0"), "loopback only"),
        (("--http", "[::]:0"), "loopback only"),
        (("--http", "0.0.0.0:0", "--dev-no-auth"), "--dev-no-auth works on loopback only"),
        (("--http", "127.0.0.1:0", "--public-url", "https://gw.test"), "--public-url is for callers from elsewhere"),
        (("--http", "127.0.0.1:0", "--allowed-host", "gw.test"), "--allowed-host is for callers from elsewhere"),
        (("--http", "127.0.0.1:0", "--trusted-proxy", "10.0.0.1"), "--trusted-proxy is for callers from elsewhere"),
        (
            ("--http", "127.0.0.1:0", "--dev-no-auth", "--public-url", "https://gw.test/mcp"),
            "With --dev-no-auth nobody is asked",
        ),
        (("--http", "127.0.0.1:0", "--dev-as", "x"), "--dev-as goes with"),
        (("--dev-no-auth",), "for HTTP"),
        (("--stateless",), "--stateless is for HTTP. Add --http."),
        (
            ("--public-url", "https://gw.test", "--allowed-host", "gw.test"),
            "--public-url and --allowed-host are for HTTP",
        ),
        (("--json-response",), "--json-response is for HTTP"),
        (("--session-timeout", "5"), "--session-timeout is for HTTP"),
        (("--drain-timeout", "5"), "--drain-timeout is for HTTP"),
        (("--max-body", "5000"), "--max-body is for HTTP"),
        (("--http", "127.0.0.1:0", "--trusted-proxy", "everybody"), "--trusted-proxy"),
        (("--http", "127.0.0.1:0", "--store", "/dev/null"), "/dev"),
        (("--http", "127.0.0.1:0", "--audit-days", "-1"), "--audit-days"),
    ],
)
def test_what_would_be_unsafe_or_senseless_is_refused_at_the_start(
    tmp_path: Path, options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = configured(tmp_path)
    out, err = said(capsys, "serve", "--config", str(file), *options, code=2)
    assert out == ""
    assert says in err


@pytest.mark.slow
def test_over_stdio_a_store_keeps_the_trail(tmp_path: Path) -> None:
    from tests.gateway_support import StdioClient, stdio_gateway

    async def work() -> None:
        server = entry(tmp_path, spoken([tool("turn")]))
        store = tmp_path / "gw.db"
        async with (
            stdio_gateway({"s": server}, tmp_path, "--expose", "all", "--store", str(store)) as process,
            StdioClient(process) as client,
        ):
            await client.call("s__turn", {"id": 5})
        (row,) = (await asyncio.to_thread(_json, "audit", "--store", str(store)))["rows"]
        assert (row["subject"], row["outcome"], row["affected"]) == ("local", "ok", ["5"])

    run(work(), 60)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("create",), 2),
        (("create", "--scope", "bad"), 2),
        (("create", "--scope", "tools:read", "--concurrent", "0"), 2),
        (("link",), 2),
        (("link", "k"), 5),
        (("link", "--scope", "tools:read", "--public-url", "http://elsewhere.example"), 2),
        (("link", "--scope", "tools:read", "--expires", "yesterday"), 2),
        (("revoke", "k"), 5),
    ],
)
def test_a_command_that_fails_makes_no_store_which_would_close_the_gateway(
    words: tuple[str, ...], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, "keys", *words, code=code)
    assert not default_path().parent.exists()


@pytest.mark.parametrize(
    "options",
    [
        ("--oauth", "embedded", "--public-url", "http://elsewhere.example"),
        ("--oauth", "embedded"),
        ("--oauth-issuer", "ftp://issuer.example", "--public-url", "https://gw.example"),
    ],
)
def test_a_gateway_that_does_not_start_leaves_no_store_either(
    tmp_path: Path, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = configured(tmp_path)
    said(capsys, "serve", "--config", str(file), "--http", "127.0.0.1:0", *options, code=2)
    assert not default_path().exists()


@pytest.mark.parametrize("how", ["a link that leads nowhere", "a folder that cannot be read"])
def test_a_store_that_cannot_be_looked_at_lets_nobody_in_unasked(
    tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk is not there, or belongs to somebody else now: there are keys all the same."""
    file, _ = configured(tmp_path)
    place = default_path()
    if how.startswith("a link"):
        place.parent.mkdir(parents=True, mode=0o700)
        place.symlink_to(tmp_path / "disk" / "store.sqlite3")
        code = 2
    else:
        look = os.lstat

        def forbidden(path: Any, *words: Any, **more: Any) -> os.stat_result:
            if Path(path) == place:
                raise PermissionError(errno.EACCES, "no", str(path))
            return look(path, *words, **more)

        monkeypatch.setattr(os, "lstat", forbidden)
        code = 3
    out, err = said(capsys, "serve", "--config", str(file), "--http", "127.0.0.1:0", code=code)
    assert "every program on this machine" not in out + err
    assert str(place) in err


@pytest.mark.parametrize("what", ["port", "face"])
def test_a_gateway_whose_port_is_taken_or_whose_face_cannot_be_shown_leaves_no_store_either(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {name: {"command": "x"} for name in ("a", "b")}}))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1] if what == "port" else 8400
        options = () if what == "port" else ("--expose", "all", "--no-prefix")
        oauth = ("--oauth", "embedded", "--http", f"127.0.0.1:{port}")
        _, error = said(capsys, "serve", "--config", str(file), *oauth, *options, code=2)
    assert (f"127.0.0.1:{port} cannot be listened on" if what == "port" else "exactly one usable server") in error
    assert not default_path().exists()


def test_a_folder_that_was_named_for_the_store_and_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "not" / "there"
    error = told(capsys, "keys", "create", "--scope", "tools:read", "--store", str(there / "s.db"), code=2)["error"]
    assert error["code"] == "configuration_invalid"
    assert str(there) in error["message"]
    assert not there.parent.exists()


def test_lists_name_what_a_key_may_use_and_that_all_have_ended(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--requests-per-minute", "60", "--concurrent", "4", "--result-bytes", "1000")
    limited = told(capsys, "keys", "create", "--scope", "tools:read", *limits)["id"]
    free = told(capsys, "keys", "create", "b", "--scope", "tools:read", "--expires", "30d")["id"]
    heading, *rows = said(capsys, "keys", "list")[0].splitlines()
    assert heading.startswith("ID ")
    found = {row.split()[0]: row for row in rows}
    assert "60 requests a minute, 4 at a time, 1000 bytes a minute" in found[limited]
    assert found[limited][heading.index("EXPIRES") :].startswith("- ")
    assert found[free][heading.index("EXPIRES") :].startswith("20")
    assert found[free][heading.index("LIMITS") :].startswith("- ")
    said(capsys, "keys", "revoke", limited, free)
    assert "--all" in said(capsys, "keys", "list")[0]


def test_an_ended_grant_is_not_as_if_there_had_been_none(capsys: pytest.CaptureFixture[str]) -> None:
    async def fill() -> None:
        store = await open_store()
        await store.add_consent(
            Consent("g0", "ann", "c", "A client", Scopes.of(["tools:read"]), "https://gw/mcp", time.time())
        )
        await store.close()

    run(fill())
    said(capsys, "grants", "revoke", "g0")
    assert said(capsys, "grants", "list")[0] == "No grant is in force. --all shows those that have ended.\n"
    assert "nobody has allowed" not in said(capsys, "grants", "list", "--subject", "ann")[0]
    assert said(capsys, "grants", "list", "--subject", "bob")[0] == (
        "No grants: bob has not allowed an OAuth client anything.\n"
    )
    assert "revoked" in said(capsys, "grants", "list", "--all")[0]


@pytest.mark.parametrize(("option", "right"), [("action", "prompt"), ("outcome", "tool_error")])
def test_a_word_that_no_row_has_is_told_with_those_that_rows_have(
    option: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = told(capsys, "audit", f"--{option}", "foo", code=2)["error"]
    assert "'foo'" in error["message"]
    assert right in error["hint"]
    assert told(capsys, "audit", f"--{option}", right) == {"rows": [], "count": 0}


def test_the_words_of_rows_are_those_that_are_recorded() -> None:
    assert get_args(Outcome) == OUTCOMES
    assert {*get_args(Asked), *get_args(Action), "request"} == set(ACTIONS)
