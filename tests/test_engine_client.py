"""The client that Python shims share: lazy, silent, restarting, with a sync and an async face."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.hosts.shims import engine_client as client
from pi_mcp.hosts.shims import engine_process, engine_values
from pi_mcp.hosts.shims.engine_client import Engine, EngineError, Person, Session
from pi_mcp.tools.search_tool import SEARCH_SCHEMA, SEARCH_TEXT
from tests.auth_support import until
from tests.fake_engine import RECORD
from tests.hostile.processes import alive, descendants_of, gone
from tests.shim_support import ADD, PI_MCP, SECRET, WAIT, ProtocolCheck, Stage, wait_for
from tests.support import run

ROOT = Path(__file__).resolve().parent.parent
TOOL = "mcp__s__t"


@pytest.fixture(scope="module", autouse=True)
def the_clients_thread() -> None:
    """It lives as long as the process, with a pair of sockets of its own."""
    client.submit(asyncio.sleep(0)).result(10)


class Fake:
    """A folder with a fake engine, and the client's engines over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engines: list[Engine] = []

    def how(self, **what: Any) -> None:
        temporary = self.folder / "how.tmp"
        temporary.write_text(json.dumps(what))
        temporary.replace(self.folder / "how.json")

    def engine(self, host: str = "test") -> Engine:
        command = [sys.executable, "-S", "-E", str(ROOT / "tests" / "fake_engine.py"), str(self.folder), "engine"]
        self.engines.append(Engine(command, host=host, cwd=str(self.folder)))
        return self.engines[-1]

    def session(self, person: Person | None = None, *, id: str = "s", begin: str = "new", **more: Any) -> Session:
        session = self.engine().session(id, person, **more)
        session.begin(begin)
        return session

    @property
    def starts(self) -> list[int]:
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def lines(self) -> list[dict[str, Any]]:
        path = self.folder / "lines"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def sent(self, method: str) -> list[dict[str, Any]]:
        return [line["params"] for line in self.lines if line.get("method") == method]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    found = Fake(tmp_path)
    yield found
    for engine in found.engines:
        engine.close()
    check = ProtocolCheck()
    for line in found.lines:
        if "method" in line:
            check("host", line)


# -- starting ---------------------------------------------------------------------------------------------------


def test_its_fallback_says_what_the_engine_says_without_a_directory() -> None:
    assert engine_values.SEARCH_TEXT == SEARCH_TEXT
    assert engine_values.SEARCH_SCHEMA == SEARCH_SCHEMA


def test_importing_it_and_making_an_engine_starts_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, threading\n"
        f"sys.path.insert(0, {str(ROOT / 'pi_mcp' / 'hosts')!r})\n"
        "from shims import engine_client\n"
        f"e = engine_client.Engine([sys.executable, '-c', 'x'], host='h'); e.session('s')\n"
        "print(threading.active_count(), [m for m in sys.modules if m.startswith('pi_mcp')])\n"
    )
    done = subprocess.run([sys.executable, "-S", "-E", "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("1 []\n", "")


def test_beginning_returns_although_the_engine_never_answers(fake: Fake) -> None:
    fake.how(silent=["initialize"])
    session = fake.session()
    assert session.search_tool.description == SEARCH_TEXT


def test_the_first_request_waits_for_the_directory(fake: Fake) -> None:
    fake.how(delay=0.2)
    search, tools = fake.session().declare(20)
    assert search.description == "the directory"
    assert tools == ()
    assert len(fake.starts) == 1


def test_a_slow_engine_leaves_the_fixed_text_for_the_whole_session_and_after_resume(fake: Fake) -> None:
    fake.how(delay=2)
    session = fake.session()
    assert session.declare(0.1)[0].description == SEARCH_TEXT
    fake.how()
    assert session.search({"query": "x"}).text == "found"
    assert session.declare()[0].description == SEARCH_TEXT
    again = fake.session(begin="resume")
    search, tools = again.declare(20)
    assert search.description == SEARCH_TEXT
    assert [tool.name for tool in tools] == [TOOL]
    # Another session of the same host gets the directory.
    assert fake.session(id="other").declare(20)[0].description == "the directory"


def test_only_the_first_request_waits(fake: Fake) -> None:
    assert client.FIRST_WAIT == 1.0
    fake.how(silent=["initialize"])
    session = fake.session()
    session.declare(0.1)
    began = time.monotonic()
    session.declare(60)
    run(session.adeclare(60))
    assert time.monotonic() - began < 50


def test_an_engine_that_is_missing_gives_one_clear_message_and_is_started_by_the_next_search(fake: Fake) -> None:
    engine = fake.engine("gptme")
    good, engine.command = engine.command, ["/nowhere/pi-mcp", "engine"]
    session = engine.session("s")
    session.begin()
    assert session.declare()[0].description == SEARCH_TEXT
    with pytest.raises(EngineError) as failed:
        session.search({"query": "x"})
    assert str(failed.value) == (
        "[connection_failed] The pi-mcp engine cannot be started (/nowhere/pi-mcp does not run). "
        "Install pi-mcp, then run `pi-mcp install gptme`; the next search starts it."
    )
    assert failed.value.details["diagnostics"][0]["code"] == "connection_failed"
    engine.command = good
    assert session.search({"query": "x"}).text == "found"


def test_a_shim_without_its_manifest_says_so(tmp_path: Path) -> None:
    for content in (None, "{", "[]", '{"command": 5}'):
        if content is not None:
            (tmp_path / "pi_mcp_shim.json").write_text(content)
        engine = Engine.installed(tmp_path)
        with pytest.raises(EngineError, match="damaged"):
            engine.session("s", keep=False).search({"query": "x"})
        engine.close()


def test_the_manifest_names_the_engine(tmp_path: Path) -> None:
    (tmp_path / "pi_mcp_shim.json").write_text('{"command": ["/a b/pi-mcp", "engine"], "version": "1", "host": "pp"}')
    engine = Engine.installed(tmp_path)
    assert (engine.command, engine.host) == (["/a b/pi-mcp", "engine"], "pp")
    engine.close()


def test_an_engine_of_another_protocol_is_told_in_its_own_words(fake: Fake) -> None:
    data = {
        "code": "configuration_invalid",
        "operation": "configure",
        "server": None,
        "message": "Other.",
        "hint": "Do.",
    }
    fake.how(answers={"initialize": {"error": {"code": -32000, "message": "x", "data": data}}})
    session = fake.session()
    session.declare(20)
    with pytest.raises(EngineError, match="configuration_invalid"):
        session.search({"query": "x"})


def test_an_engine_that_ends_at_once_is_a_message_not_a_wait(fake: Fake) -> None:
    fake.how(exit=3)
    session = fake.session()
    session.declare(20)
    for _ in range(2):
        with pytest.raises(EngineError) as failed:
            session.search({"query": "x"})
        assert str(failed.value) == (
            "[connection_failed] The pi-mcp engine ended before it answered anything; no call was sent. "
            f"Run `{shlex.join(session.engine.command)}` in a terminal: it says why. The next search starts it again."
        )


# -- dying ------------------------------------------------------------------------------------------------------


def test_an_engine_killed_in_mid_call_is_told_and_the_next_search_restores_the_loaded_tools(fake: Fake) -> None:
    session = fake.session()
    session.search({"query": "x"})
    fake.how(die=["call"])
    with pytest.raises(EngineError) as failed:
        session.call(TOOL, {})
    assert str(failed.value) == (
        "[connection_failed] The pi-mcp engine ended; whether a call that was under way took effect is unknown. "
        "The next search starts it again."
    )
    assert [tool.name for tool in session.tools] == [TOOL]
    fake.how(answers={"search": {"text": "none", "tools": [{"name": TOOL, "inputSchema": {}}], "details": {}}})
    assert session.search({"query": "y"}).text == "none"
    assert len(fake.starts) == 2
    told = fake.sent("initialize")[-1]["session"]
    assert told == {"id": "s", "kind": "resume", "records": [RECORD]}
    assert session.records == [RECORD]
    # Whatever was in flight was not sent again.
    assert len(fake.sent("call")) == 1


def test_every_request_in_flight_hears_of_the_engines_end(fake: Fake) -> None:
    async def main() -> None:
        session = fake.session()
        await session.adeclare(20)
        fake.how(silent=["call"], die=["load"])
        calls = [asyncio.ensure_future(session.acall(TOOL, {})) for _ in range(5)]
        await until(lambda: len(fake.sent("call")) >= 5)
        with pytest.raises(EngineError):
            await session.aload(["x"])
        for call in calls:
            with pytest.raises(EngineError, match="ended"):
                await call
        await session.engine.aclose()

    run(main())


def test_garbage_of_an_engine_harms_nobody(fake: Fake) -> None:
    odd: list[Any] = [
        "hello", "[1]", "null", "\u0000", '{"jsonrpc": "2.0"}', '{"id": 1}', "{" * 5000,
        {"id": "x", "result": 5}, {"id": 10**6, "error": "no"}, {"method": 5, "params": {}},
        {"method": "progress"}, {"method": "progress", "params": []}, {"method": "cancel", "params": 1},
        {"method": "notify", "params": {"session": "s"}}, {"method": "progress", "params": {"session": "s"}},
        {"method": "toolsChanged", "params": {"session": "s", "tools": [5, {"name": 1}], "details": 3}},
        {"id": "e1", "method": "confirm", "params": {"session": "s"}},
        {"id": "e2", "method": "unknown", "params": {"session": "s"}},
        {"id": "e3", "method": "confirm", "params": {"session": "nobody", "question": "x"}},
        {"id": "e4", "method": "confirm"},
        {"id": [1], "method": "confirm", "params": {"session": "s", "question": "x"}},
        {"method": "cancel", "params": {"id": []}}, {"method": "progress", "params": {"session": "s", "id": {}}},
    ]  # fmt: skip
    fake.how(before={"search": odd})
    session = fake.session()
    assert session.search({"query": "x"}).text == "found"
    wait_for(lambda: len([line for line in fake.lines if "method" not in line]) >= 4)
    answers = {line["id"]: line for line in fake.lines if "method" not in line}
    assert answers["e1"]["result"] == {"ok": False}
    assert {answers[name]["error"]["code"] for name in ("e2", "e3", "e4")} == {-32601}


def test_arguments_that_cannot_be_sent_are_refused_before_they_are(fake: Fake) -> None:
    session = fake.session()
    for arguments in ({"a": "x" * (17 << 20)}, {"a": float("nan")}, {"a": object()}):
        with pytest.raises(EngineError) as failed:
            session.call(TOOL, arguments)
        assert failed.value.code == "usage"
    assert fake.sent("call") == []
    assert session.call(TOOL, {}).text == "called"


# -- ending -----------------------------------------------------------------------------------------------------


def test_closing_ends_the_engine_even_one_that_will_not(fake: Fake) -> None:
    session = fake.session()
    session.declare(20)
    fake.how(ignore_eof=True)
    session.engine.close()
    assert gone(fake.starts)
    with pytest.raises(EngineError, match="closed"):
        session.search({"query": "x"})
    session.engine.close()


def test_a_host_that_just_ends_leaves_nothing_and_prints_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal\n"
        f"sys.path.insert(0, {str(ROOT / 'pi_mcp' / 'hosts')!r})\n"
        "from shims.engine_client import Engine\n"
        f"e = Engine([sys.executable, '-S', {str(ROOT / 'tests' / 'fake_engine.py')!r}, {str(tmp_path)!r}], host='h')\n"
        "s = e.session('s', keep=False); s.begin(); s.search({'query': 'x'})\n"
        "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == 'kill' else None\n"
    )
    for how, code in (("end", 0), ("kill", -signal.SIGKILL)):
        done = subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
        assert gone([int(line) for line in (tmp_path / "starts").read_text().split()])


def test_a_fork_of_the_host_leaves_the_engine_to_the_host(fake: Fake) -> None:
    script = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'pi_mcp' / 'hosts')!r})\n"
        "from shims.engine_client import Engine\n"
        f"e = Engine({fake.engine().command!r}, host='h')\n"
        "s = e.session('s', keep=False); s.begin(); s.search({'query': 'x'})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    e.close(); os._exit(0)\n"
        "print(os.waitpid(pid, 0)[1], s.search({'query': 'y'}).text)\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("0 found\n", "")
    assert len(fake.starts) == 1
    assert len(fake.sent("shutdown")) == 1


def test_a_first_request_that_is_given_up_leaves_the_start_to_the_others(fake: Fake) -> None:
    fake.how(delay=0.3)

    async def main() -> None:
        session = fake.engine().session("s")
        first = asyncio.ensure_future(session.asearch({"query": "x"}))
        second = asyncio.ensure_future(session.asearch({"query": "y"}))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).text == "found"

    run(main())
    assert len(fake.starts) == 1


# -- two faces --------------------------------------------------------------------------------------------------

CONFIRM = {"id": "e1", "method": "confirm", "params": {"session": "s", "question": "Really?", "details": "d"}}


class Sync(Person):
    def __init__(self) -> None:
        self.where: list[threading.Thread] = []
        self.told: list[Any] = []

    def confirm(self, question: str, details: str) -> bool:
        self.where.append(threading.current_thread())
        return question == "Really?"

    def progress(self, text: str, done: Any, total: Any) -> None:
        self.told.append((text, done, total))

    def notify(self, level: str, text: str) -> None:
        self.told.append((level, text))
        raise RuntimeError("a display that fails harms nobody")


class Async(Sync):
    async def confirm(self, question: str, details: str) -> bool:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().confirm(question, details)


def answers_of(fake: Fake) -> dict[str, Any]:
    wait_for(lambda: [line for line in fake.lines if line.get("id") == "e1"])
    return next(line for line in fake.lines if line.get("id") == "e1")


def test_in_a_sync_call_the_person_is_asked_in_the_waiting_thread(fake: Fake) -> None:
    person = Sync()
    fake.how(
        before={
            "call": [
                CONFIRM,
                {"method": "progress", "params": {"session": "s", "text": "half", "done": 1, "total": 2}},
                {"method": "notify", "params": {"session": "s", "level": "info", "text": "news"}},
            ]
        },
        delay=0.1,
    )
    session = fake.session(person)
    assert session.call(TOOL, {}).text == "called"
    assert person.where == [threading.current_thread()]
    assert ("half", 1, 2) in person.told
    assert ("info", "news") in person.told
    assert answers_of(fake)["result"] == {"ok": True}
    assert fake.sent("initialize")[0]["ui"] == ["confirm", "progress"]


def test_progress_as_a_line_has_the_numbers_as_they_are() -> None:
    lines = [Person.line("got", *numbers) for numbers in ((None, None), (None, 7), (3, None), (0.5, 1), (1234567, 1e7))]
    assert lines == ["got", "got", "got (3)", "got (0.5/1)", "got (1234567/10000000)"]


@pytest.mark.parametrize("kind", [Sync, Async])
def test_in_an_async_call_the_person_is_asked_on_the_hosts_loop(fake: Fake, kind: type[Sync]) -> None:
    person = kind()
    fake.how(before={"call": [CONFIRM]})

    async def main() -> None:
        session = fake.session(person)
        progress: list[str] = []
        answer = await session.acall(TOOL, {}, lambda text, done, total: progress.append(text))
        assert answer.text == "called"
        await until(lambda: person.where != [], 5)  # the fake does not wait for the answer
        await asyncio.to_thread(answers_of, fake)

    run(main())
    assert person.where == [threading.current_thread()]
    assert answers_of(fake)["result"] == {"ok": True}


def test_a_question_to_a_host_that_cannot_answer_is_dismissed(fake: Fake) -> None:
    fake.how(before={"search": [CONFIRM]})
    session = fake.session(Async())  # an async dialog, and a sync call
    session.search({"query": "x"})
    assert answers_of(fake)["result"] == {"ok": False}


def test_cancelling_the_awaiting_task_cancels_the_call_in_the_engine(fake: Fake) -> None:
    fake.how(silent=["call"])

    async def main() -> None:
        session = fake.session()
        task = asyncio.ensure_future(session.acall(TOOL, {}))
        await asyncio.to_thread(wait_for, lambda: fake.sent("call"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for, lambda: fake.sent("cancel"))
        number = next(line["id"] for line in fake.lines if line.get("method") == "call")
        assert fake.sent("cancel") == [{"id": number}]
        assert (await session.asearch({"query": "x"})).text == "found"

    run(main())


def test_an_interrupt_in_the_waiting_thread_cancels_the_call(fake: Fake) -> None:
    fake.how(silent=["call"])
    session = fake.session()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        wait_for(lambda: fake.sent("call"))
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            session.call(TOOL, {})
    finally:
        thread.join(30)
    wait_for(lambda: fake.sent("cancel"))
    assert session.search({"query": "x"}).text == "found"


def test_an_interrupt_in_a_dialog_dismisses_it_and_cancels_the_call(fake: Fake) -> None:
    class Interrupted(Person):
        def confirm(self, question: str, details: str) -> bool:
            raise KeyboardInterrupt

    fake.how(before={"call": [CONFIRM]}, silent=["call"])
    session = fake.session(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        session.call(TOOL, {})
    assert answers_of(fake)["result"] == {"ok": False}
    wait_for(lambda: fake.sent("cancel"))


def test_completion_never_waits_for_long_and_never_starts_the_engine(fake: Fake) -> None:
    engine = fake.engine()
    session = engine.session("s")
    assert session.complete("/mcp ") == []
    assert fake.starts == []
    session.begin()
    session.declare(20)
    assert session.complete("/mcp ") == ["one"]
    fake.how(silent=["complete"])
    assert session.complete("/mcp ") == []


def test_it_works_in_threads_and_loops_at_once(fake: Fake) -> None:
    session = fake.session()
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(session.search({"query": "x"}).text), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()

    async def main() -> None:
        answers = await asyncio.gather(*(session.asearch({"query": "x"}) for _ in range(8)))
        found.extend(answer.text for answer in answers)

    run(main())
    for thread in threads:
        thread.join(20)
    assert found == ["found"] * 16
    assert len(fake.starts) == 1
    assert len(fake.sent("initialize")) == 1


# -- sessions and their side files --------------------------------------------------------------------------------


def test_two_sessions_share_the_engine_and_nothing_else(fake: Fake) -> None:
    engine = fake.engine()
    one, two = engine.session("one"), engine.session("two")
    one.begin()
    two.begin()
    one.search({"query": "x"})
    two.declare(20)
    assert [tool.name for tool in one.tools] == [TOOL]
    assert two.tools == ()
    assert len(fake.starts) == 1


def test_a_session_that_ends_is_ended_in_the_engine_and_may_begin_again(fake: Fake) -> None:
    session = fake.session()
    session.search({"query": "x"})
    session.end()
    wait_for(lambda: fake.sent("end"))
    assert fake.sent("end") == [{"session": "s"}]
    again = session.engine.session("s")
    again.begin("resume")
    assert [tool.name for tool in again.declare(20)[1]] == [TOOL]
    assert len(fake.starts) == 1


def test_the_side_file_is_private_and_brings_the_tools_back_while_the_engine_is_gone(fake: Fake) -> None:
    session = fake.session(id="../s")
    session.declare(20)
    tools = session.search({"query": "x"}).tools
    session.engine.close()
    folder = client.default_side_dir("test")
    assert folder == Path(os.environ["XDG_STATE_HOME"]) / "pi-mcp" / "shims" / "test"
    files = list(folder.iterdir())
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    fake.how(exit=1)
    again = fake.session(id="../s", begin="resume")
    search, restored = again.declare(20)
    assert search.description == "the directory"
    assert restored == tools
    fake.how()
    again.search({"query": "x"})
    assert fake.sent("initialize")[-1]["session"]["records"] == [RECORD]


def test_records_of_the_host_win_over_the_side_file(fake: Fake) -> None:
    session = fake.session()
    session.search({"query": "x"})
    session.engine.close()
    again = fake.engine().session("s")
    again.begin("resume", [])
    assert again.declare(20)[1] == ()
    assert fake.sent("initialize")[-1]["session"]["records"] == []


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1, "text": 5, "records": 3}', b'{"version": 1, "tools": 5}',
        json.dumps({"version": 1, "records": [RECORD], "tools": [{"name": []}, 1, None]}).encode(), b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_side_file_counts_as_none(fake: Fake, content: bytes) -> None:
    session = fake.session()
    session.search({"query": "x"})
    session.engine.close()
    path = next(client.default_side_dir("test").iterdir())
    assert session.kept
    path.write_bytes(content)
    assert session.kept is (b'"hash"' in content)  # else a host that has records of its own gives those
    again = fake.session(begin="resume")
    again.declare(20)
    assert again.search({"query": "x"}).text == "found"


def test_a_side_file_gives_no_tool_of_the_hosts_and_no_text_that_cannot_be_sent(fake: Fake, tmp_path: Path) -> None:
    path = client.SideFile(tmp_path, "s").path
    tools = [{"name": name, "description": "x\ud800"} for name in ("bash", TOOL, "mcp__kept__out", "mcp__theirs")]
    broken = [{"native": "mcp__half__of"}, {**RECORD, "hash": 5}]
    records = [*({**RECORD, "native": tool["name"]} for tool in tools), *broken]
    path.write_text(json.dumps({"version": 1, "text": "\udfffhello", "records": records, "tools": tools}))
    fake.how(silent=["initialize"])
    excluded = ["bash", "mcp__kept__*", "mcp__theirs"]
    session = fake.session(side_dir=tmp_path, begin="resume", excluded=excluded)
    search, declared = session.declare(0)
    assert [tool.name for tool in declared] == [TOOL]
    assert (search.description.encode(), declared[0].description.encode()) == (
        "\ufffdhello".encode(),
        "x\ufffd".encode(),
    )


def test_a_side_file_that_is_a_pipe_or_far_too_large_is_not_waited_for(fake: Fake, tmp_path: Path) -> None:
    path = client.SideFile(tmp_path, "s").path
    os.mkfifo(path)
    session = fake.session(side_dir=tmp_path, begin="resume")
    assert session.search({"query": "x"}).text == "found"
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(64 << 20)
    assert fake.session(side_dir=tmp_path, begin="resume").search({"query": "x"}).text == "found"


def test_an_engine_that_stands_still_is_given_up_and_the_next_search_starts_another(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "START_LIMIT", 0.5)
    fake.how(silent=["initialize"])
    session = fake.session()
    with pytest.raises(EngineError) as late:
        session.search({"query": "x"})
    assert late.value.code == "timeout"
    fake.how()
    still = fake.starts
    wait_for(lambda: not alive(still))
    monkeypatch.undo()
    assert session.search({"query": "x"}).text == "found"


@pytest.mark.parametrize("argument", ["x", "x" * 1_000_000], ids=["sent", "more than the pipe holds"])
def test_an_engine_that_is_frozen_in_mid_call_is_ended_and_the_next_search_starts_another(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    monkeypatch.setattr(engine_process, "PING_EVERY", 0.1)
    fake.how(silent=["call"])
    session = fake.session()
    session.search({"query": "x"})
    frozen = list(fake.starts)
    failures: list[EngineError] = []

    def call(text: str) -> None:
        with pytest.raises(EngineError) as failed:
            session.call(TOOL, {"text": text})
        failures.append(failed.value)

    threads = [threading.Thread(target=call, args=(text,)) for text in ("first", argument)]
    threads[0].start()
    wait_for(lambda: fake.sent("call"))
    os.kill(frozen[0], signal.SIGSTOP)
    threads[1].start()
    for thread in threads:
        thread.join(30)
    assert [str(failure) for failure in failures] == [
        "[connection_failed] The pi-mcp engine did not answer any more and was ended; whether a call that was under "
        "way took effect is unknown. The next search starts it again."
    ] * 2
    assert gone(frozen, 10)
    fake.how()
    assert session.search({"query": "x"}).text == "found"
    assert [tool.name for tool in session.tools] == [TOOL]
    assert len(fake.starts) == 2


def test_an_engine_that_is_frozen_is_ended_although_nobody_waits_any_more(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "PING_EVERY", 0.2)
    monkeypatch.setattr(client, "COMPLETE_LIMIT", 0.05)
    session = fake.session()
    session.search({"query": "x"})
    os.kill(fake.starts[0], signal.SIGSTOP)
    assert session.complete("/mcp ") == []
    assert gone(fake.starts, 20)
    monkeypatch.undo()
    assert session.search({"query": "x"}).text == "found"


def test_an_engine_that_works_for_long_is_asked_for_a_sign_of_life_and_left_alone(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "PING_EVERY", 0.05)
    fake.how(silent=["call"])

    def nothing_more() -> None:
        asked = -1
        while asked != (asked := len(fake.sent("ping"))):
            time.sleep(0.3)

    async def main() -> None:
        session = fake.session()
        call = asyncio.ensure_future(session.acall(TOOL, {}))
        await asyncio.to_thread(wait_for, lambda: len(fake.sent("ping")) > 2 * engine_process.PINGS)
        assert not call.done()
        assert session.engine.alive
        call.cancel()
        await asyncio.to_thread(nothing_more)
        assert (await session.asearch({"query": "x"})).text == "found"

    run(main())
    assert len(fake.starts) == 1


def test_what_a_stopped_engine_does_not_read_is_not_waited_for_without_end(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fake.session()
    session.search({"query": "x"})
    os.kill(fake.starts[0], signal.SIGSTOP)
    monkeypatch.setattr(client, "REQUEST_LIMIT", 0.5)
    with pytest.raises(EngineError) as late:
        session.call(TOOL, {"text": "x" * 1_000_000})
    assert late.value.code == "timeout"
    assert session.complete("/mcp ") == []


def test_a_host_without_a_home_or_a_working_directory_gets_its_engine(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    def removed(*_: object) -> Path:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "home", lost)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert fake.session().search({"query": "x"}).text == "found"
    monkeypatch.setattr(Path, "cwd", removed)
    assert Engine(["x"], host="h").cwd == "/"


def test_a_side_file_that_cannot_be_written_or_is_a_link_stops_nothing(fake: Fake, tmp_path: Path) -> None:
    side = tmp_path / "side"
    side.write_text("a file in the folder's place")
    session = fake.session(side_dir=side)
    assert session.search({"query": "x"}).text == "found"
    session.engine.close()
    other = tmp_path / "other"
    other.mkdir()
    target = tmp_path / "target"
    target.write_text(json.dumps({"version": 1, "text": "foreign", "records": [], "tools": []}))
    client.SideFile(other, "s").path.symlink_to(target)
    again = fake.session(side_dir=other, begin="resume")
    again.search({"query": "x"})
    again.declare(20)
    assert again.search_tool.description == "the directory"
    assert "foreign" in target.read_text()


def test_records_that_no_line_holds_are_left_to_what_the_engine_kept(fake: Fake) -> None:
    session = fake.engine().session("s")
    large = {**RECORD, "definition": {"name": "t", "description": "x" * client.LINE_LIMIT}}
    session.begin("resume", [large])
    assert session.search({"query": "x"}).text == "found"
    assert fake.sent("initialize")[-1]["session"] == {"id": "s", "kind": "resume"}


def test_it_is_written_for_the_oldest_python_of_any_host() -> None:
    for path in Path(client.__file__).parent.glob("engine_*.py"):
        source = path.read_text()
        ast.parse(source, feature_version=(3, 10))
        assert "asyncio.timeout(" not in source
        assert "TaskGroup" not in source


def test_a_session_that_is_not_to_be_kept_writes_nothing(fake: Fake) -> None:
    fake.session(keep=False).search({"query": "x"})
    assert not client.default_side_dir("test").exists()


def test_a_new_session_forgets_what_its_id_had(fake: Fake) -> None:
    fake.session().search({"query": "x"})
    again = fake.session()
    assert again.declare(20)[1] == ()


def test_another_branch_replaces_the_records(fake: Fake) -> None:
    changed: list[tuple[str, ...]] = []

    class Host(Person):
        def tools_changed(self, tools: Any) -> None:
            changed.append(tuple(tool.name for tool in tools))

    session = fake.session(Host())
    session.search({"query": "x"})
    assert session.restore("branch", [RECORD, RECORD, {"bad": 1}]) == ()
    assert fake.sent("session") == [{"session": "s", "kind": "branch", "records": [RECORD]}]
    assert session.records == []
    assert changed[-1] == ()


def test_a_branch_that_no_engine_could_be_told_is_that_of_the_next_one(fake: Fake) -> None:
    engine = fake.engine()
    session = engine.session("s")
    session.begin()
    session.search({"query": "x"})
    other = {**RECORD, "native": "mcp__s__other"}
    os.kill(fake.starts[0], signal.SIGKILL)
    wait_for(lambda: not engine.alive)
    good, engine.command = engine.command, ["/nowhere/pi-mcp", "engine"]
    for records in ([], [RECORD, other]):
        with pytest.raises(EngineError):
            session.restore("branch", records)
        assert session.tools == ()  # what is declared meanwhile: nothing of the place that was left
    engine.command = good
    assert session.complete("/mcp ") == []
    session.call(TOOL, {})
    assert fake.sent("initialize")[-1]["session"] == {"id": "s", "kind": "branch", "records": [RECORD, other]}
    assert fake.sent("session") == []


def test_a_search_waits_for_the_branch_that_it_is_made_on(fake: Fake) -> None:
    fake.how(delay=0.2)

    async def main() -> None:
        session = fake.session()
        await session.adeclare(20)
        moved = asyncio.ensure_future(session.arestore("branch", [RECORD]))
        await asyncio.sleep(0)
        await session.asearch({"query": "x"})
        await moved

    run(main())
    assert [line["method"] for line in fake.lines[:3]] == ["initialize", "session", "search"]


def test_a_session_that_begins_again_before_the_engine_has_answered_is_told_as_it_is_then(fake: Fake) -> None:
    fake.how(delay=0.3)
    session = fake.engine().session("s")
    session.begin("resume", [RECORD])
    wait_for(lambda: fake.sent("initialize"))
    session.begin("new")
    session.search({"query": "x"})
    kinds = [params["session"]["kind"] for params in fake.sent("initialize")]
    assert kinds == ["resume", "new"]


def test_threads_that_write_a_side_file_at_once_leave_it_whole(tmp_path: Path) -> None:
    side = client.SideFile(tmp_path / "a" / "b", "s")
    texts = [str(number) * 300_000 for number in range(8)]
    threads = [threading.Thread(target=side.write, args=({"text": text},)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert side.read().get("text", texts[0]) in texts
    assert side.read()["text"] in texts
    assert [path.name for path in side.path.parent.iterdir()] == [side.path.name]
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700] * 2


def test_records_are_read_from_whatever_a_host_kept() -> None:
    assert client.records_in({"loaded": [RECORD, 5, {"native": 1}, RECORD]}) == [RECORD]
    for odd in (None, 5, "x", [], {}, {"loaded": 5}, {"loaded": {"a": 1}}):
        assert client.records_in(odd) == []


# -- with the real engine -----------------------------------------------------------------------------------------


def test_a_whole_conversation_with_the_real_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_SECRET", SECRET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "a host's own"))
    stage = Stage(tmp_path)
    engine = Engine([str(PI_MCP), "engine"], host="test", cwd=str(stage.work))
    try:
        session = engine.session("s", Sync())
        session.begin()
        assert "desk: numbers" in session.declare(10)[0].description
        assert session.search({"query": "add two numbers", "limit": 1}).tools[0].name == ADD
        assert session.call(ADD, {"a": 2, "b": 40}).text == "42"
        session.load([WAIT])

        async def stopped() -> None:
            task = asyncio.ensure_future(session.acall(WAIT, {}))
            await asyncio.to_thread(wait_for, lambda: len(stage.calls) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        run(stopped())
        wait_for(lambda: stage.cancelled)
        # The engine and all under it are killed; the next search starts it again with both tools.
        everyone = descendants_of(os.getpid())
        os.kill(next(pid for pid in everyone if _is_engine(pid)), signal.SIGKILL)
        assert gone(everyone, 8), alive(everyone)
        wait_for(lambda: not engine.alive)
        assert session.search({"query": "draw a picture", "limit": 1}).tools[0].name == ADD
        assert [tool.name for tool in session.tools][:2] == [ADD, WAIT]
        assert session.call(ADD, {"a": 1, "b": 1}).text == "2"
    finally:
        everyone = descendants_of(os.getpid())
        engine.close()
    assert gone(everyone, 8), alive(everyone)


def _is_engine(pid: int) -> bool:
    try:
        return b"\0engine\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
