"""The `pi-mcp` command as a process: documents, lines, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli import main
from tests.auth_store_support import credential, store_of
from tests.support import run

SECRET = "S3CR3T-planted-value-9041"
ROOT = Path(__file__).resolve().parent.parent


def pi_mcp(
    *words: str, cwd: Path | None = None, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pi_mcp.cli", *words],
        cwd=cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    )


def document(done: subprocess.CompletedProcess[str]) -> Any:
    """With --json standard output is exactly one document, whatever happens."""
    return json.loads(done.stdout)


@pytest.fixture
def clock(private_home: Path) -> str:
    """The reference time server under the name `time`."""
    done = pi_mcp("add", "time", "--", sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC")
    assert done.returncode == 0, done.stderr
    return "time"


def test_the_version_is_printed() -> None:
    from pi_mcp import __version__

    assert pi_mcp("--version").stdout == f"pi-mcp {__version__}\n"


def test_servers_without_configuration_names_the_files_looked_for_and_shows_an_example(private_home: Path) -> None:
    done = pi_mcp("servers")
    assert done.returncode == 0
    assert str(private_home / ".config/pi-mcp/mcp.json") in done.stdout
    assert '"mcpServers"' in done.stdout
    assert document(pi_mcp("servers", "--json")) == {"servers": []}


def test_a_search_without_configuration_is_a_configuration_error_on_one_line(private_home: Path) -> None:
    done = pi_mcp("search", "anything")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "[configuration_invalid]" in done.stderr
    again = pi_mcp("search", "--json", "anything")
    assert (again.returncode, again.stderr) == (2, "")
    assert document(again)["tools"] == []
    assert document(again)["notSearched"][0]["code"] == "configuration_invalid"


def test_a_search_prints_the_ranking_as_one_document(clock: str) -> None:
    done = pi_mcp("search", "current", "time", "--json")
    assert done.returncode == 0, done.stdout
    first = document(done)["tools"][0]
    assert {"server", "name", "nativeName", "description", "inputSchema", "score"} <= set(first)
    assert (first["server"], first["name"]) == ("time", "get_current_time")
    assert first["nativeName"] == "mcp__time__get_current_time"
    assert document(done)["notSearched"] == []


def test_tools_prints_every_tool_without_scores(clock: str) -> None:
    rows = document(pi_mcp("tools", "time", "--json"))["tools"]
    assert [row["name"] for row in rows] == ["get_current_time", "convert_time"]
    assert all("score" not in row and row["quarantined"] is None for row in rows)


def test_a_call_prints_the_result_and_takes_options_between_its_words(clock: str) -> None:
    done = pi_mcp("call", "time", "get_current_time", "--json", "timezone=Asia/Tokyo")
    assert done.returncode == 0, done.stdout
    assert json.loads(document(done)["content"][0]["text"])["timezone"] == "Asia/Tokyo"
    plain = pi_mcp("call", "time", "mcp__time__get_current_time", '{"timezone": "UTC"}')
    assert json.loads(plain.stdout)["timezone"] == "UTC"
    piped = pi_mcp("call", "time", "get_current_time", "-", stdin='{"timezone": "UTC"}')
    assert json.loads(piped.stdout)["timezone"] == "UTC"


def test_a_tool_s_own_error_is_exit_code_1_with_its_words(clock: str) -> None:
    done = pi_mcp("call", "time", "get_current_time", "timezone=Nowhere")
    assert done.returncode == 1
    assert "Nowhere" in done.stdout
    assert done.stderr.startswith("time: [tool_error]")
    assert done.stderr.count("\n") == 1
    again = pi_mcp("call", "time", "get_current_time", "timezone=Nowhere", "--json")
    assert again.returncode == 1
    assert document(again)["isError"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["call", "nope", "x"], "not_found", 5),
        (["call", "time", "nope"], "not_found", 5),
        (["tools", "nope"], "not_found", 5),
        (["get", "nope"], "not_found", 5),
        (["refresh", "nope"], "not_found", 5),
        (["search", "x", "--server", "nope"], "not_found", 5),
        (["search", "x", "--limit", "51"], "usage", 2),
        (["search", "x" * 501], "usage", 2),
        (["call", "time", "get_current_time", "{"], "usage", 2),
        (["call", "time", "get_current_time", "novalue"], "usage", 2),
        (["add", "time", "https://x.example/mcp"], "configuration_invalid", 2),
        (["add", "other", "ftp://x.example/mcp"], "configuration_invalid", 2),
        (["add", "other"], "configuration_invalid", 2),
        (["add", "other", "mcp-server-time"], "configuration_invalid", 2),
        (["install", "cluade-code"], "usage", 2),
        (["frobnicate"], "usage", 2),
        (["purge"], "usage", 2),
        (["servers", "--config", "/nonexistent/mcp.json"], "configuration_invalid", 2),
    ],
)
def test_a_wrong_command_is_one_line_or_one_document(clock: str, words: list[str], code: str, exit_code: int) -> None:
    plain = pi_mcp(*words)
    assert (plain.returncode, plain.stdout) == (exit_code, "")
    assert f"[{code}]" in plain.stderr
    assert plain.stderr.count("\n") == 1
    as_json = pi_mcp(*words, "--json")
    assert (as_json.returncode, as_json.stderr) == (exit_code, "")
    error = document(as_json)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "operation", "server", "message", "hint"}


def test_only_what_is_required_is_asked_for() -> None:
    for words, missing in (("get", "SERVER"), ("keys", "action"), ("grants", "action"), ("call", "SERVER")):
        done = pi_mcp(words)
        assert done.returncode == 2
        assert f"required: {missing}." in done.stderr


def test_a_broken_file_is_an_error_of_servers_and_no_reason_to_add_one(
    private_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = private_home / ".config/pi-mcp/mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"mcpServers": {')
    assert main(["servers"]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("No MCP server can be used until a file is mended:\n")
    assert f"{path}, line 1, column 16: the file is not JSON with comments." in shown
    assert "pi-mcp add" not in shown
    assert main(["servers", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "configuration_invalid"


def test_a_project_s_file_that_waits_for_trust_is_told_once_and_where_it_is_answered(
    tmp_path: Path, private_home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"command": "y"}}}')
    monkeypatch.chdir(tmp_path)
    assert main(["servers"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("is not trusted") == 1
    assert "`/mcp trust`, in your agent or in `pi-mcp chat`" in shown
    assert "a: untrusted project" in shown


@pytest.mark.parametrize("expose", [[], ["--expose", "search"]])
def test_original_names_are_refused_where_no_list_would_show_them(
    expose: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvicorn")
    assert main(["serve", "--no-prefix", *expose]) == 2
    assert capsys.readouterr().err.startswith("[usage] --no-prefix goes with --expose all.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sevrers", "there is no command 'sevrers'. Close: servers"),
        ("xyzzy", "there is no command 'xyzzy'. See pi-mcp --help."),
        ("tools --jsn", "there is no option --jsn. Close: --json."),
        ("serve --htpp 127.0.0.1:0", "there is no option --htpp. Close: --http"),
        ("call s t --svae=/x", "there is no option --svae. Close: --save."),
        ("batch --xyzzy f", "there is no option --xyzzy. See pi-mcp batch --help."),
        ("tools a b", "'b' is a word too many. See pi-mcp tools --help."),
        ("--config /nope.json servers", "--config goes after the command. Write: pi-mcp servers --config …"),
        ("--config=/nope.json", "--config goes after the command. Write: pi-mcp COMMAND --config …"),
        ("--jsn", "--jsn goes after the command. Write: pi-mcp COMMAND --jsn …"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_right_one(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith(f"[usage] {said}")
    assert err.count("\n") == 1


def test_an_unreachable_server_is_reported_beside_the_healthy_ones(clock: str) -> None:
    assert pi_mcp("add", "broken", "--", "/nonexistent/server").returncode == 0
    done = pi_mcp("search", "time", "--json")
    assert done.returncode == 0
    assert document(done)["tools"][0]["server"] == "time"
    assert [one["server"] for one in document(done)["notSearched"]] == ["broken"]
    assert pi_mcp("tools", "broken").returncode == 3
    assert pi_mcp("refresh", "broken").returncode == 3


def test_a_missing_variable_is_exit_code_2_and_no_value_is_shown(clock: str) -> None:
    words = ["add", "needy", "--env", "TOKEN=${PI_MCP_TEST_UNSET}", "--env", f"OTHER={SECRET}"]
    assert pi_mcp(*words, "--", sys.executable, "-c", "pass").returncode == 0
    for done in (
        pi_mcp("tools", "needy"),
        pi_mcp("call", "needy", "x", "--json"),
        pi_mcp("get", "needy"),
        pi_mcp("servers"),
    ):
        assert SECRET not in done.stdout + done.stderr
    assert pi_mcp("tools", "needy").returncode == 2
    assert "PI_MCP_TEST_UNSET" in pi_mcp("tools", "needy").stderr


def test_a_name_with_a_blank_is_quoted_and_a_program_without_its_sign_is_told_where_it_goes(
    private_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["add", "clock", "mcp-server-time"]) == 2
    assert "A program stands behind --: pi-mcp add clock -- COMMAND ARGS." in capsys.readouterr().err
    assert main(["add", "bad name", "--", "/nowhere/x"]) == 0
    assert capsys.readouterr().out.endswith("Try: pi-mcp tools 'bad name'\n")
    assert main(["install", "cluade-code"]) == 2
    assert "'cluade-code'. Close: claude-code" in capsys.readouterr().err


def test_add_writes_what_servers_then_shows(private_home: Path) -> None:
    done = pi_mcp("add", "docs", "https://docs.example.com/mcp", "--header", "Authorization: Bearer ${TOKEN}")
    assert done.returncode == 0, done.stderr
    path = private_home / ".config/pi-mcp/mcp.json"
    assert json.loads(path.read_text())["mcpServers"]["docs"] == {
        "url": "https://docs.example.com/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }
    row = document(pi_mcp("servers", "--json"))["servers"][0]
    assert (row["name"], row["transport"], row["state"], row["tools"]) == ("docs", "http", "invalid", None)
    assert row["error"]["code"] == "configuration_invalid"  # TOKEN is not set here
    assert "TOKEN" in row["error"]["message"]
    assert pi_mcp("add", "docs", "--force", "--", "srv", "--flag").returncode == 0
    assert json.loads(path.read_text())["mcpServers"]["docs"] == {"command": "srv", "args": ["--flag"]}


def test_import_shows_first_and_writes_only_with_yes(private_home: Path) -> None:
    cursor = private_home / ".cursor/mcp.json"
    cursor.parent.mkdir()
    cursor.write_text(json.dumps({"mcpServers": {"clock": {"command": "clock", "env": {"KEY": SECRET}}}}))
    target = private_home / ".config/pi-mcp/mcp.json"
    preview = pi_mcp("import", cwd=private_home)
    assert preview.returncode == 0
    assert "clock" in preview.stdout
    assert SECRET not in preview.stdout + preview.stderr
    assert not target.exists()
    written = pi_mcp("import", "--yes", "--json", cwd=private_home)
    assert document(written)["written"] == ["clock"]
    assert SECRET not in written.stdout
    assert json.loads(target.read_text())["mcpServers"]["clock"]["env"] == {"KEY": SECRET}


def test_purge_removes_cache_and_state_and_never_the_configuration(clock: str, private_home: Path) -> None:
    assert pi_mcp("tools").returncode == 0
    assert any((private_home / ".cache/pi-mcp").rglob("*.json"))
    removed = document(pi_mcp("purge", "--all", "--json"))["removed"]
    assert removed["cache"]["files"] > 0
    assert not (private_home / ".cache/pi-mcp").exists()
    assert (private_home / ".config/pi-mcp/mcp.json").exists()


def test_a_gateways_keys_go_with_a_yes_alone_and_are_named(private_home: Path) -> None:
    folder = private_home / ".local/state/pi-mcp/gateway"
    assert pi_mcp("keys", "create", "--scope", "tools:read").returncode == 0
    assert document(pi_mcp("purge", "--state", "--yes", "--json"))["removed"]["state"]["files"] == 0
    for words in (("purge", "--all"), ("purge", "--all", "--json")):
        refused = pi_mcp(*words)
        assert refused.returncode == 7
        assert "keys, sign-ins, grants and audit trail" in refused.stdout + refused.stderr
        assert "--yes" in refused.stdout + refused.stderr
        assert (folder / "store.sqlite3").exists()
    done = pi_mcp("purge", "--all", "--yes")
    assert done.returncode == 0
    assert "(the gateway's keys, sign-ins, grants and audit trail)" in done.stdout
    assert not folder.exists()


def test_b209_purge_removes_logins_of_servers_that_are_configured_no_more(private_home: Path) -> None:
    state = private_home / ".local/state/pi-mcp"
    for server in ("gone", "other"):
        run(store_of(state).save(credential(server)))
    assert document(pi_mcp("purge", "--state", "--json"))["removed"]["state"]["files"] == 0
    assert len(run(store_of(state).stored())) == 2, "what the keyring holds can still be found"
    done = pi_mcp("purge", "--credentials")
    assert (done.returncode, done.stdout) == (0, "credentials: 2 logins removed\n")
    assert run(store_of(state).stored()) == []
    assert not list(state.rglob("*.sealed"))
    pi_mcp("purge", "--all")
    assert not state.exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_ends_with_130_and_leaves_no_server(private_home: Path, number: signal.Signals) -> None:
    marker = private_home / "pid"
    server = f"import os, time; open({str(marker)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    assert pi_mcp("add", "slow", "--", sys.executable, "-c", server).returncode == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "pi_mcp.cli", "tools", "slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    deadline = time.monotonic() + 20
    while not (marker.exists() and marker.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "[cancelled]" in stderr
    assert "Traceback" not in stderr
    child = Path(f"/proc/{marker.read_text()}/stat")
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or child.read_text().split()[2] == "Z"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["tools", "tools --json", "search time", "call time get_current_time timezone=UTC", "servers", "get time --json"],
)
def test_an_output_that_takes_nothing_is_told_by_the_exit_code_in_every_command(clock: str, words: str) -> None:
    assert pi_mcp("tools").returncode == 0
    reading, writing = os.pipe()
    os.close(reading)
    for output, code in ((writing, 141), (os.open("/dev/full", os.O_WRONLY), 3)):
        with os.fdopen(output, "wb") as stdout:
            done = subprocess.run(
                [sys.executable, "-m", "pi_mcp.cli", *words.split()],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                timeout=60,
            )
        assert done.returncode == code, done.stderr
        if code == 141:
            assert done.stderr == ""
        else:
            assert done.stderr.startswith("[operation_failed] The output cannot be written.")
            assert done.stderr.count("\n") == 1


def test_an_error_that_nobody_can_read_keeps_its_exit_code() -> None:
    for words in (["call", "gone", "x"], ["call", "gone", "x", "--json"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "pi_mcp.cli", *words],
                stdout=full,
                stderr=full,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                timeout=60,
            )
        assert done.returncode == 5


def test_get_connect_shows_what_a_failing_server_wrote(private_home: Path) -> None:
    program = "import sys; sys.exit('no ' + 'licence file')"
    assert pi_mcp("add", "picky", "--", sys.executable, "-c", program).returncode == 0
    failed = pi_mcp("refresh", "picky")
    assert (failed.returncode, failed.stderr.count("\n")) == (3, 1)
    assert "`pi-mcp get --connect picky`" in failed.stderr
    shown = pi_mcp("get", "--connect", "picky")
    assert shown.returncode == 3
    assert "no licence file" in shown.stdout
    assert "before the handshake." in shown.stdout
    assert "get --connect" not in shown.stdout, "it does not send the person to where they are"
    as_json = pi_mcp("get", "picky", "--connect", "--json")
    assert as_json.returncode == 3
    assert "no licence file" in document(as_json)["server"]["log"]
    assert "no licence file" not in pi_mcp("get", "picky").stdout


@pytest.mark.parametrize("words", [["refresh"], ["tools"], ["search", "x"]])
def test_with_nothing_configured_every_listing_says_where_was_looked(private_home: Path, words: list[str]) -> None:
    done = pi_mcp(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("[configuration_invalid] No MCP server is configured. Files looked for: ")
    assert document(pi_mcp(*words, "--json"))["error" if words == ["refresh"] else "notSearched"]
    assert "No MCP server is configured. Files looked for:" in pi_mcp("chat", "-p", "/mcp refresh").stdout


def test_a_server_that_is_not_ready_in_time_is_to_be_refreshed(private_home: Path) -> None:
    from pi_mcp.cli.common import for_command_line
    from pi_mcp.errors import Diagnostic

    late = Diagnostic("timeout", "list", "slow", "Late.", "It goes on in the background; search again in a moment.")
    assert "`pi-mcp refresh slow`" in for_command_line(late).line()
    assert "background" not in for_command_line(late).line()


def test_a_terminal_that_is_not_utf_8_gets_question_marks(private_home: Path) -> None:
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert pi_mcp("add", "x", "--", "caf\N{LATIN SMALL LETTER E WITH ACUTE}").returncode == 0
    for words in (["get", "x"], ["chat", "-p", "/mcp get x"]):
        done = pi_mcp(*words, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "caf?" in done.stdout


def test_a_home_that_cannot_be_used_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("a file")
    folders = dict.fromkeys(("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), "")
    done = pi_mcp("purge", "--all", env={"HOME": str(home), **folders})
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("[operation_failed] ")
    assert done.stderr.count("\n") == 1
    assert document(pi_mcp("purge", "--all", "--json", env={"HOME": str(home), **folders}))["error"]["operation"]


def test_the_reference_page_is_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate.py"), "--check"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, "run docs/generate.py"


def test_progress_on_a_terminal_is_gone_before_anything_is_printed(clock: str) -> None:
    assert pi_mcp("add", "broken", "--", "/nonexistent/server").returncode == 0
    controller, terminal = os.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "pi_mcp.cli", "tools"],
            stdout=terminal,
            stderr=terminal,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"},
        ) as process:
            assert process.wait(60) == 0
        shown = os.read(controller, 65536).decode()
    finally:
        os.close(controller)
        os.close(terminal)
    assert "Asked" in shown or "Asking" in shown
    last = shown.rpartition("\x1b[K")[2]
    assert last.startswith("mcp__time__")
    assert "broken: [connection_failed]" in last


LOADING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(finder)
            os.kill(os.getpid(), signal.SIGINT)
finder = Finder()
sys.meta_path.insert(0, finder)
sys.argv = ["pi-mcp", {command!r}]
from pi_mcp.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "command", "said"),
    [
        ("argparse", "servers", ""),
        ("pi_mcp.errors", "call", ""),
        ("pi_mcp.log", "servers", ""),
        ("pi_mcp.cli.chat", "servers", "[cancelled] Stopped.\n"),
        ("pi_mcp.cli.batch", "batch", "[cancelled] Stopped. Calls that were under way may have taken effect. The same "
         "command goes on where this one was.\n"),
    ],
)  # fmt: skip
def test_ctrl_c_ends_a_command_that_is_still_being_loaded_quietly(module: str, command: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADING.format(module=module, command=command)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


def test_loading_the_command_leaves_the_handler_of_ctrl_c_as_it_was() -> None:
    code = "import pi_mcp.cli, signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    in_a_thread = "import threading; t = threading.Thread(target=lambda: __import__('pi_mcp.cli')); t.start(); t.join()"
    for words in (code, f"{in_a_thread}; {code}", f"import signal; signal.signal(2, signal.SIG_IGN); {in_a_thread}"):
        done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_is_like_dev_null(closed: str, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    config.write_text('{"mcpServers": {"s": {"command": "x"}}}')
    for words in ("servers --config CONFIG", "call --config CONFIG gone x", "engine"):
        line = f"exec {sys.executable} -m pi_mcp.cli {words.replace('CONFIG', str(config))} {closed}"
        done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, timeout=60, input=b"")
        assert done.returncode == (5 if "gone" in words else 0), done.stderr
        assert b"Traceback" not in done.stderr


def test_what_nobody_expected_shows_no_traceback_in_any_command() -> None:
    script = (
        "import pi_mcp.cli.call as call\n"
        "def fails(*_): raise RuntimeError('PLANTED-SECRET')\n"
        "call.configuration_of_run = fails\n"
        "from pi_mcp.cli import main\n"
        "raise SystemExit(main(['call', 's', 't']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("[operation_failed]")
    assert done.stderr.count("\n") == 1
