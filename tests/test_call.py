"""`pi-mcp call`: the short way without the SDK and the long way through the plugin say, show and refuse the same.

Each case runs in this process, once as it is and once with the short way shut; what is printed and the exit code have
to be the same, and every tool is called once at most.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.cli import direct, later, main
from pi_mcp.files import state_dir
from pi_mcp.tools.names import native_name
from tests.auth_store_support import KEY, PLANTED, credential, store_of
from tests.chat_support import wait_until
from tests.hostile.http_server import HttpServer, Request, closed_port
from tests.support import run

SECRET = "s3cr3t-planted-value"
ROOT = Path(__file__).resolve().parent.parent
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
TYPED = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "s": {"type": "string"},
        "l": {"type": "array"},
        "city": {"type": "string"},
    },
}
OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "description": "Say it again.", "inputSchema": TYPED},
    {"name": "delete_all", "inputSchema": {"type": "object"}},
    {"name": "shaped", "inputSchema": {"type": "object"}, "outputSchema": OUTPUT},
    {"name": "unusable", "inputSchema": {"type": "array"}},
]


@dataclass(frozen=True)
class Case:
    """Words behind `pi-mcp call`, and the server that they meet."""

    name: str
    words: tuple[str, ...] = ("s", "echo", "n=1")
    script: Mapping[str, Any] = field(default_factory=dict)
    entry: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    code: int = 0
    stdin: bytes = b""

    def __repr__(self) -> str:
        return self.name


def says(result: Mapping[str, Any], name: str, code: int = 0, **more: Any) -> Case:
    return Case(name, script={"tools/call": {"result": result}}, code=code, **more)


def text(words: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": words}]}


FORM = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "elicitation/create",
    "params": {"message": "?", "requestedSchema": {"type": "object"}},
}
CASES = [
    Case("typed by the schema", ("s", "echo", "n=1", "s=2", "l=a,b")),
    Case("one document", ("s", "echo", "--json", '{"n": 1}')),
    Case("native name", ("s", "mcp__s__echo")),
    Case("native name alone", ("mcp__s__echo", "n=1", "s=2")),
    Case("native name alone, without arguments", ("mcp__s__echo",)),
    Case("native name alone, as a document", ("mcp__s__echo", "--json", '{"n": 1}')),
    Case("server and tool in one word", ("s.echo", "n=1")),
    Case("unknown tool in one word", ("s.ecco", "n=1"), code=5),
    Case("unknown native name", ("mcp__s__ecco",), code=5),
    Case("no tool", ("s",), code=2),
    Case("an address", ("http://127.0.0.1/mcp", "echo"), code=5),
    Case("standard input", ("s", "echo", "-"), stdin=b'{"s": "from standard input"}'),
    Case("standard input that is none", ("s", "echo", "-"), stdin=b"nothing", code=2),
    Case("a value of another type", ("s", "echo", "n=x"), code=2),
    Case("a misspelt argument", ("s", "echo", "citty=Oslo")),
    Case("a misspelt argument as a document", ("s", "echo", "--json", "citty=Oslo")),
    Case("neither json nor a pair", ("s", "echo", "x"), code=2),
    Case("unknown server", ("t", "echo"), code=2 + 3),
    Case("unknown tool", ("s", "ecco"), code=5),
    Case("unknown tool as a document", ("s", "ecco", "--json"), code=5),
    Case("quarantined", ("s", "unusable"), code=3),
    # what may be called
    Case("excluded", entry={"excludeTools": ["e*"]}, code=7),
    Case("not included", entry={"includeTools": ["other"]}, code=7),
    Case("disabled", entry={"disabled": True}, code=7),
    Case("sensitive, untrusted", ("s", "delete_all"), entry={"trust": "untrusted"}, code=7),
    Case("sensitive, verified", ("s", "delete_all"), entry={"trust": "verified"}, code=7),
    Case("sensitive, named", ("s", "delete_all"), entry={"trust": "verified", "includeTools": ["delete_all"]}),
    Case("typed by a person, untrusted", entry={"trust": "untrusted"}),
    Case("a missing variable", entry={"headers": {"X": "${NOT_SET_ANYWHERE}"}}, code=2),
    Case("a secret command", entry={"headers": {"X-Key": "!echo " + SECRET}}),
    Case("a secret command that fails", entry={"headers": {"X-Key": "!exit 3"}}, code=2),
    Case("an invalid entry", entry={"nonsense": 1}, code=2),
    # results
    says(text("two\nlines"), "text"),
    says(text("a line\n" * 20_000), "a long text"),
    says(text("\x1b[31mred\x07\x00\u202e"), "control bytes"),
    says({"isError": True, **text("it is bad")}, "tool error", 1),
    says({"isError": True, **text("bad")}, "tool error as a document", 1, words=("s", "echo", "--json")),
    says({"content": []}, "nothing"),
    says({"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}, "image"),
    says({"content": [{"type": "resource_link", "uri": "a:1", "name": "A"}]}, "link"),
    says({"content": [{"type": "odd", "x": 1}], "structuredContent": {"b": 2}}, "odd"),
    says({**text("x"), "structuredContent": {"n": 1}}, "fits its schema", words=("s", "shaped")),
    says({**text("x"), "structuredContent": {"n": "1"}}, "does not fit its schema", words=("s", "shaped")),
    says(text("x"), "has no structured content", words=("s", "shaped")),
    # servers
    Case("json session", options={"session": True}),
    Case("sse session", options={"session": True, "answers": "sse"}),
    Case("newer protocol", options={"era": "modern"}),
    Case("legacy protocol", entry={"protocol": "legacy"}),
    *[Case(f"status {n}", script={"tools/call": {"status": n, "body": SECRET}}, code=3) for n in (400, 404, 500)],
    Case("403", script={"tools/call": {"status": 403}}, code=4),
    Case("401", script={"*": {"status": 401, "headers": {"WWW-Authenticate": "Bearer"}}}, code=4),
    Case("a refused key", entry={"headers": {"X-Key": SECRET}}, script={"*": {"status": 401}}, code=4),
    Case("error", script={"tools/call": {"error": {"code": -32602, "message": "no \x1b[1msuch"}}}, code=3),
    Case("reset", script={"tools/call": {"reset": True}}, code=3),
    Case("hangs", script={"tools/call": {"hang": True}}, entry={"toolTimeoutMs": 400}, code=6),
    Case("handshake hangs", script={"initialize": {"hang": True}}, entry={"startupTimeoutMs": 400}, code=6),
    Case("handshake refused", script={"*": {"status": 500}}, code=3),
    Case("a web page", script={"*": {"type": "text/html", "body": "<html>"}}, code=3),
    Case("listing refused", script={"tools/list": {"status": 500}}, code=3),
    Case("asks for a form", script={"tools/call": {"events": [{"data": FORM}, {"answer": True}]}}),
]  # fmt: skip

Printed = tuple[int, str, str]


class Typed(io.TextIOWrapper):
    """Standard input with something in it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


def printed(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> Printed:
    code = main(["call", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Shuts the short way."""

    def refuse(*_: object, **__: object) -> None:
        raise direct.LongWay

    return lambda: monkeypatch.setattr(direct.DirectServer, "__init__", refuse)


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_both_ways_print_the_same(
    case: Case,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shut: Callable[[], None],
) -> None:
    found: list[Printed] = []
    for long in (False, True):
        if long:
            shut()
        monkeypatch.setattr(sys, "stdin", Typed(case.stdin))
        with HttpServer(case.script, tools=TOOLS, **case.options) as server:
            config = tmp_path / "mcp.json"
            entry = {"url": f"{server.url}?key={SECRET}", **case.entry}
            config.write_text(json.dumps({"mcpServers": {"s": entry}}))
            code, out, err = printed(("--config", str(config), *case.words), capsys)
            found.append((code, out.replace(str(server.port), "PORT"), err.replace(str(server.port), "PORT")))
            calls = server.of("tools/call")
            assert len(calls) <= 1
            if case.name == "a secret command":
                assert calls[0].headers["x-key"] == SECRET
        for path in (Path(os.environ["HOME"]) / ".cache").rglob("*.json"):
            path.unlink()
    short, long_way = found
    assert short == long_way
    assert short[0] == case.code
    assert SECRET not in short[1] + short[2]
    assert "\x1b" not in short[1] + short[2]
    assert short[2].count("\n") <= 1
    assert ("no 'citty'" in short[2]) == ("citty=Oslo" in case.words and "--json" not in case.words)


def write(path: Path, **servers: Any) -> tuple[str, str]:
    path.write_text(json.dumps({"mcpServers": servers}))
    return ("--config", str(path))


@pytest.mark.parametrize("name", ["no such host", "refused"])
def test_both_ways_say_the_same_of_a_server_that_is_not_there(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], shut: Callable[[], None]
) -> None:
    url = f"http://127.0.0.1:{closed_port()}/mcp" if name == "refused" else "http://nowhere.invalid/mcp"
    config = write(tmp_path / "mcp.json", s={"url": url})
    short = printed((*config, "s", "echo"), capsys)
    shut()
    assert printed((*config, "s", "echo"), capsys) == short
    assert short[0] == 3


def test_a_projects_server_waits_for_trust_on_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shut: Callable[[], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    with HttpServer(tools=TOOLS) as server:
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"s": {"url": server.url}}}))
        refused = printed(("s", "echo"), capsys)
        assert refused[0] != 0
        assert server.requests == []
        sensitive = printed(("--trust-project", "s", "delete_all"), capsys)
        allowed = printed(("--trust-project", "s", "echo"), capsys)
        assert (sensitive[0], allowed[0]) == (7, 0)
        shut()
        assert printed(("s", "echo"), capsys) == refused
        assert printed(("--trust-project", "s", "delete_all"), capsys) == sensitive
        assert printed(("--trust-project", "s", "echo"), capsys) == allowed


def test_a_kept_catalog_spares_the_listing_and_the_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with HttpServer(tools=TOOLS) as server:
        config = write(tmp_path / "mcp.json", s={"url": server.url})
        assert main(["refresh", *config, "s"]) == 0
        capsys.readouterr()
        server.requests.clear()
        assert json.loads(printed((*config, "s", "echo", "n=7"), capsys)[1])["arguments"] == {"n": 7}
        assert [request.method for request in server.requests] == [
            "initialize",
            "notifications/initialized",
            "tools/call",
        ]
        # A tool that came since is found all the same.
        server.tools = [*TOOLS, {"name": "new", "inputSchema": {"type": "object"}}]
        assert printed((*config, "s", "new"), capsys)[0] == 0


def test_a_stored_login_is_used_and_one_at_its_end_goes_the_long_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEY.items():
        monkeypatch.setenv(name, value)
    long: list[object] = []
    monkeypatch.setattr("pi_mcp.cli.call._by_plugin", lambda *words: long.append(words) or 0)
    with HttpServer(tools=TOOLS) as server:
        config = write(tmp_path / "mcp.json", s={"url": server.url})

        async def signed_in(lifetime: float) -> None:
            store = store_of(state_dir(), environ=KEY)
            await store.save(credential("s", server.url, lifetime=lifetime))
            await store.close()

        run(signed_in(3600))
        code, out, err = printed((*config, "s", "echo", "n=1"), capsys)
        assert (code, long) == (0, [])
        assert PLANTED in server.of("tools/call")[0].headers["authorization"]
        assert PLANTED not in out + err
        run(signed_in(5))
        printed((*config, "s", "echo", "n=1"), capsys)
        assert len(long) == 1
        assert len(server.of("tools/call")) == 1


def test_a_401_during_the_call_goes_the_long_way_with_the_arguments_that_were_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "count"
    counter.write_text("")
    command = f"!printf x >> {counter}; printf '{SECRET}-'; wc -c < {counter}"

    def react(request: Request, server: HttpServer) -> dict[str, Any]:
        return {} if request.headers["x-key"] == f"{SECRET}-2" else {"status": 401}

    monkeypatch.setattr(sys, "stdin", Typed(b'{"s": "typed"}'))
    with HttpServer({"tools/call": react}, tools=TOOLS) as server:
        config = write(tmp_path / "mcp.json", s={"url": server.url, "headers": {"X-Key": command}})
        code, out, _ = printed((*config, "s", "echo", "-"), capsys)
        assert code == 0
        assert json.loads(out)["arguments"] == {"s": "typed"}
        assert len(server.of("tools/call")) == 2


# --stateless


@pytest.mark.parametrize("words", [("s", "get_sum"), ("s.get_sum",), ("mcp__s__get_sum",)])
@pytest.mark.parametrize("long", [False, True])
def test_a_name_that_differs_by_a_hyphen_alone_is_offered_first_and_without_a_second_way(
    words: tuple[str, ...],
    long: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    shut: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shut() if long else monkeypatch.setattr("pi_mcp.cli.call._by_plugin", None)
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("get-env", "get-sum", "get-tiny-image")]
    with HttpServer(tools=tools) as server:
        code, _, err = printed((*write(tmp_path / "mcp.json", s={"url": server.url}), *words), capsys)
    assert code == 5
    assert err.startswith("[not_found] No tool is called 's.get_sum'. Close names: s.get-sum")


def test_the_longest_server_that_a_name_begins_with_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a server with a very long name that no model provider would take"
    with HttpServer(tools=TOOLS) as server:
        entries = {name: {"url": server.url} for name in ("git", "git.hub", "my server", long)}
        words = write(tmp_path / "mcp.json", **entries)
        for name in ("git.echo", "git.hub.echo", *(native_name(one, "echo") for one in entries)):
            code, out, err = printed((*words, name, "n=3"), capsys)
            assert (code, err) == (0, ""), name
            assert json.loads(out)["arguments"] == {"n": 3}
        code, _, err = printed((*words, "gitt.echo"), capsys)
        assert code == 5
        assert "Close: git" in err


def test_an_address_is_called_without_configuration(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("PLANTED", SECRET)
    with HttpServer(tools=TOOLS) as server:
        words = ("--stateless", "--header", "Authorization: Bearer ${PLANTED}", server.url)
        code, out, err = printed((*words, "echo", "n=2"), capsys)
        assert (code, err, json.loads(out)["arguments"]) == (0, "", {"n": 2})
        assert server.of("initialize") == []
        assert server.of("tools/call")[0].headers["authorization"] == f"Bearer {SECRET}"
        code, _, err = printed((*words, "ecco"), capsys)
        assert code == 5
        assert "Close names: echo." in err
        assert f"{server.port}: " not in err
        code, _, err = printed((server.url, "echo"), capsys)
        assert code == 5
        assert "pi-mcp call --stateless URL TOOL" in err
        assert printed(("--header", "a: b", "s", "echo"), capsys)[0] == 2
        code, _, err = printed(("--stateless", "tracker", "echo"), capsys)
        assert (code, err.partition(".")[0]) == (2, "[usage] --stateless takes an address, and 'tracker' is none")
        assert not (Path(os.environ["HOME"]) / ".cache").exists()


@pytest.mark.parametrize(
    ("options", "script", "code", "said"),
    [
        ({"session": True}, {}, 3, "insists on a session"),
        ({}, {"*": {"status": 404}}, 3, "no MCP endpoint"),
        ({}, {"*": {"status": 401, "body": SECRET}}, 4, "wants a login (HTTP 401). Give the credential with --header"),
        ({}, {"tools/call": {"result": {"isError": True, "content": []}}}, 1, "[tool_error]"),
    ],
)
def test_an_address_that_cannot_be_asked_so_says_why(
    options: dict[str, Any], script: dict[str, Any], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with HttpServer(script, tools=TOOLS, **options) as server:
        found, _, err = printed(("--stateless", f"{server.url}?key={SECRET}", "echo"), capsys)
    assert found == code
    assert said in err
    assert err.startswith(f"127.0.0.1:{server.port}: [")
    assert SECRET not in err


# --save


def test_images_and_blobs_are_saved_and_nothing_is_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shut: Callable[[], None]
) -> None:
    blob = base64.b64encode(b"a,b\n").decode()
    content = [
        {"type": "text", "text": "here"},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "resource", "resource": {"uri": "../../etc/passwd", "blob": blob, "mimeType": "text/csv"}},
        {"type": "audio", "data": "not base64!", "mimeType": "audio/wav"},
    ]
    folder = tmp_path / "out"
    with HttpServer({"tools/call": {"result": {"content": content}}}, tools=TOOLS) as server:
        config = write(tmp_path / "mcp.json", s={"url": server.url})
        code, out, _ = printed((*config, "s", "echo", "--save", str(folder)), capsys)
        assert code == 0
        assert (folder / "image-1.png").read_bytes().startswith(b"\x89PNG")
        assert (folder / "resource-1.csv").read_bytes() == b"a,b\n"
        assert out.splitlines()[:3] == [
            "here",
            f"[image image/png, 12 bytes; saved as {folder / 'image-1.png'}]",
            f"[resource text/csv, 4 bytes; saved as {folder / 'resource-1.csv'}]",
        ]
        shut()
        saved = json.loads(printed((*config, "s", "echo", "--json", "--save", str(folder)), capsys)[1])
        assert saved["content"][1]["_meta"] == {"pi-mcp/file": str(folder / "image-2.png")}
        assert saved["content"][1]["data"] == PNG
        assert sorted(path.name for path in folder.iterdir()) == [
            "image-1.png", "image-2.png", "resource-1.csv", "resource-2.csv",
        ]  # fmt: skip
        called = len(server.of("tools/call"))
        code, _, err = printed((*config, "s", "echo", "--save", str(folder / "image-1.png")), capsys)
        assert (code, len(server.of("tools/call"))) == (2, called)
        assert err.startswith("[usage] --save names a folder that cannot be written")


def test_a_result_that_cannot_be_saved_is_shown_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pi_mcp.files.create_numbered", full)
    content = [{"type": "text", "text": "here"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]
    with HttpServer({"tools/call": {"result": {"content": content}}}, tools=TOOLS) as server:
        words = (*write(tmp_path / "mcp.json", s={"url": server.url}), "s", "echo", "--save", str(tmp_path / "new"))
        code, out, err = printed(words, capsys)
        assert (code, out.splitlines()[0]) == (3, "here")
        assert err.startswith("[operation_failed] A part of the result cannot be saved")
        code, out, err = printed((*words, "--json"), capsys)
        assert (code, err) == (3, "")
        assert json.loads(out)["result"] == {"content": content}
        assert json.loads(out)["error"]["code"] == "operation_failed"


# a process of its own


def started(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pi_mcp.cli", "call", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_call_tells_the_server_and_exits_130(number: signal.Signals, tmp_path: Path) -> None:
    with HttpServer({"tools/call": {"hang": True}}, tools=TOOLS, session=True) as server:
        process = started(*write(tmp_path / "mcp.json", s={"url": server.url}), "s", "echo")
        wait_until(lambda: server.of("tools/call") != [], 20)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (130, "")
        assert "[cancelled]" in err
        assert len(server.of("notifications/cancelled")) == 1
        assert server.sessions == {}


@pytest.mark.parametrize(("command", "method"), [("call s echo", "tools/call"), ("tools s", "tools/list")])
def test_a_hang_up_that_is_ignored_stays_so(command: str, method: str, tmp_path: Path) -> None:
    with HttpServer({method: {"sleep": 1}}, tools=TOOLS) as server:
        words = " ".join((command, *write(tmp_path / "mcp.json", s={"url": server.url})))
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"trap '' HUP; exec {sys.executable} -m pi_mcp.cli {words}"],  # as nohup does
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        wait_until(lambda: server.of(method) != [], 20)
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, b"")
        assert b"echo" in out


def test_a_result_that_nobody_takes_ends_the_session_all_the_same(tmp_path: Path) -> None:
    with HttpServer(tools=TOOLS, session=True) as server:
        words = ["-m", "pi_mcp.cli", "call", *write(tmp_path / "mcp.json", s={"url": server.url}), "s", "echo"]
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as stdout:
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, *words], stdout=stdout, stderr=subprocess.PIPE, env=environment, timeout=60
            )
        assert (done.returncode, done.stderr) == (141, b"")
        assert server.sessions == {}


def test_the_short_way_loads_nothing_of_others_and_no_event_loop(tmp_path: Path) -> None:
    with HttpServer(tools=TOOLS) as server:
        config = write(tmp_path / "mcp.json", s={"url": server.url, "headers": {"X-Key": "${HOME}"}})
        loaded = imported("-m", "pi_mcp.cli", "call", *config, "s", "echo", "n=1") - imported("-c", "pass")
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"pi_mcp"}
    assert foreign <= {"platformdirs", "org"}  # `copy` asks for Jython's
    unwanted = {"asyncio", "_ssl", "logging", "shutil", "pi_mcp.plugin", "pi_mcp.session", "pi_mcp.connect"}
    assert loaded & unwanted == set()
    assert loaded & {*later.UNUSED} == set()


def test_a_module_that_is_put_off_is_the_real_one_at_its_first_use() -> None:
    code = (
        "import sys; sys.argv = ['pi-mcp', 'call']; from pi_mcp.cli import later; later.put_off('sys')\n"
        "import random, calendar\nfrom calendar import timegm\n"
        "held = random\nassert type(sys.modules['random']) is later.Later\n"
        "assert held.Random(1).random() == held.Random(1).random()\n"
        "import random\nassert type(random) is type(sys) and held.Random is random.Random\n"
        "assert timegm((1970, 1, 1, 0, 0, 0)) == 0\n"
        "try: held.nothing\nexcept AttributeError: print('done')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_light_dataclasses_compare_hash_and_show_themselves_as_real_ones_do() -> None:
    def classes(module: str) -> tuple[Any, Any]:
        kind = dataclasses.dataclass  # as `from dataclasses import dataclass` finds it

        class Point:
            __module__, __qualname__ = module, "Point"
            x: int
            y: int = dataclasses.field(default=2, compare=False)
            secret: str = dataclasses.field(default="planted", repr=False)

        class Open:
            __module__, __qualname__ = module, "Open"
            x: int

            def __repr__(self) -> str:
                return "its own"

        return kind(frozen=True, slots=True)(Point), kind(Open)

    later.lighten_dataclasses()
    try:
        point, free = classes("pi_mcp.text")
        foreign = classes("json")[0]
    finally:
        later.real_dataclasses()
    real = classes("pi_mcp.text")[0]
    for one in (point, real):
        assert one(1) == one(1, 3) != one(2)
        assert one(1) != (1, 2, "planted")
        assert hash(one(1)) == hash((1, "planted"))
        assert repr(one(1)) == "Point(x=1, y=2)"
        assert dataclasses.replace(one(1), x=5) == one(5)
        assert not hasattr(one(1), "__dict__")
    assert repr(free(1)) == "its own"
    with pytest.raises(TypeError, match="unhashable"):
        hash(free(1))
    for one in (foreign, real):
        with pytest.raises(dataclasses.FrozenInstanceError):
            one(1).x = 2


def imported(*words: str) -> set[str]:
    """The modules that a Python process imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines[1:]}


def test_collections_are_put_off_and_come_again_for_what_is_made_later() -> None:
    probe = """
import gc, weakref
from pi_mcp.cli import later
class Node: pass
def ring():
    one = Node()
    one.self = one
    return weakref.ref(one)
later.collect_again()
print(gc.isenabled(), gc.get_freeze_count() > 0)
later.put_off_collections()
print(gc.isenabled())
later.collect_again()
print(gc.isenabled(), gc.get_freeze_count() > 1000)
late = ring()
gc.collect()
print(late() is None)
later.put_off_collections()
ring()
"""
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False", "False", "True", "True", "True"], done.stderr
    assert (done.returncode, done.stderr) == (0, "")
