"""`pi-mcp engine` speaks the protocol of docs/engine.md: every line here is held against docs/engine.schema.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine_support import COMMAND, EngineProcess, engine
from tests.hostile.processes import alive, descendants_of, gone
from tests.hostile.script import entry, pids_of
from tests.shim_support import ADD, DRAW, ROOT, SECRET, WAIT, Stage, wait_for

ASK = "mcp__desk__ask_person"
HEAVY = ("mcp", "mcp_types", "anyio", "httpx2", "pydantic", "numpy", "jsonschema", "rich", "prompt_toolkit", "keyring")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("DESK_SECRET", SECRET)
    return Stage(tmp_path)


def names(answer: dict[str, Any]) -> list[str]:
    return [tool["name"] for tool in answer["tools"]]


def load(host: EngineProcess, *tools: str, session: str = "s1") -> dict[str, Any]:
    return host.ask("load", session=session, names=list(tools))


# -- the loop -------------------------------------------------------------------------------------------------


def test_a_conversation_searches_loads_calls_and_asks_for_status(stage: Stage) -> None:
    with engine(stage.work) as host:
        began = host.initialize()
        assert began["searchTool"]["name"] == "mcp_search"
        assert "- desk: numbers, pictures and forms" in began["searchTool"]["description"]
        assert began["tools"] == []
        found = host.ask("search", session="s1", query="add two numbers")
        assert names(found)[0] == ADD
        assert found["details"]["loaded"][0]["native"] == ADD
        assert ADD in found["text"]
        called = host.ask("call", session="s1", name=ADD, arguments={"a": 2, "b": 40})
        assert called["content"] == [{"type": "text", "text": "42"}]
        assert called["isError"] is False
        assert names(called) == names(found)
        shown = host.ask("command", session="s1", line="/mcp")
        assert shown["text"].startswith("desk: connected")
        assert host.ask("complete", session="s1", line="/mcp reco")["items"] == ["reconnect"]
        picture = load(host, DRAW)
        assert names(picture) == [*names(found), DRAW]
        blocks = host.ask("call", session="s1", name=DRAW)["content"]
        assert [block["type"] for block in blocks] == ["text", "image"]
        assert blocks[1]["mimeType"] == "image/png"


def test_null_arguments_of_a_model_count_as_absent(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        found = host.ask("search", session="s1", query="add two numbers", server=None, limit="1", load=None)
        assert names(found) == [ADD]


def test_the_tools_own_error_is_an_answer(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, "always_fails")
        answer = host.ask("call", session="s1", name="mcp__desk__always_fails", arguments={})
        assert answer["isError"] is True
        assert answer["details"]["diagnostics"][0]["code"] == "tool_error"


def test_a_failure_is_an_error_whose_data_is_the_diagnostic(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        error = host.fail("call", session="s1", name="mcp__desk__none", arguments={})
        assert error["code"] == -32000
        assert error["data"]["code"] == "not_found"
        assert error["data"]["operation"] == "call"


def test_progress_belongs_to_the_request_that_it_is_for(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        number = host.begin("search", session="s1", query="add two numbers")
        host.answer(number)
        assert host.news("progress")["params"]["id"] == number


@pytest.mark.slow
def test_progress_of_a_call_belongs_to_that_call_whoever_opened_the_connection(stage: Stage) -> None:
    steps = [{"progress": 2, "every": 0.2, "of": "own", "total": 2}, {"echo": True}]
    stage.servers = {"steps": entry(stage.folder, {"tools/call": [steps]})}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        host.answer(host.begin("load", session="s1", names=["steps.echo"]))
        for _ in range(2):
            host.told.clear()
            number = host.begin("call", session="s1", name="mcp__steps__echo", arguments={})
            host.answer(number)
            told = [message["params"] for message in host.told]
            assert {"session": "s1", "id": number, "text": "step 1", "done": 1, "total": 2} in told
            assert {params["id"] for params in told} == {number}


def test_the_definitions_are_the_same_bytes_after_resume(stage: Stage) -> None:
    with engine(stage.work) as host:
        first = host.initialize()
        found = load(host, WAIT, ADD)
    with engine(stage.work) as host:
        again = host.initialize(kind="resume", records=found["details"]["loaded"])
        assert host.told == []
        assert json.dumps(again["tools"]) == json.dumps(found["tools"])
        # The directory says "7 tools" by now, and the text of a session never changes.
        assert again["searchTool"] == first["searchTool"]
        assert host.initialize("s2")["searchTool"] != first["searchTool"]


def test_a_resumed_conversation_without_records_has_what_was_kept_under_its_id(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, ADD)
    with engine(stage.work) as host:
        assert names(host.initialize(kind="resume")) == [ADD]
        assert names(host.initialize(kind="resume", records=[])) == []


def test_restoring_works_while_the_server_is_gone_and_the_call_says_so(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        records = load(host, ADD)["details"]["loaded"]
    stage.extra = {"command": str(stage.folder / "nothing"), "args": []}
    stage.configure()
    with engine(stage.work) as host:
        assert names(host.initialize(kind="resume", records=records)) == [ADD]
        error = host.fail("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})
        assert error["data"]["code"] == "connection_failed"
        assert SECRET not in json.dumps(error)


def test_another_branch_has_exactly_its_own_tools(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        one = load(host, ADD)["details"]["loaded"]
        two = load(host, WAIT)["details"]["loaded"]
        for kind, records in (("branch", one), ("branch", [*two, *one]), ("compact", one), ("branch", [])):
            answer = host.ask("session", session="s1", kind=kind, records=records)
            assert names(answer) == [record["native"] for record in records]
            assert answer["details"]["loaded"] == records
        assert names(host.ask("session", session="s1", kind="new")) == []


def test_a_damaged_record_costs_its_tool_and_nothing_else(stage: Stage) -> None:
    with engine(stage.work, checked=False) as host:
        host.initialize()
        record = load(host, ADD)["details"]["loaded"][0]
        bad = [{"native": ADD}, "x", {**record, "hash": "0"}, {**record, "native": "mcp__desk__other"}]
        answer = host.ask("session", session="s1", kind="branch", records=[*bad, record])
        assert names(answer) == [ADD]
        assert answer["details"]["diagnostics"]


def test_always_loaded_tools_are_there_from_the_start_and_on_every_branch(stage: Stage) -> None:
    stage.extra = {"alwaysLoad": ["draw*"]}
    stage.configure()
    with engine(stage.work) as host:
        assert host.initialize()["tools"] == []  # its catalog is not known yet
        changed = host.news("toolsChanged")["params"]
        assert names(changed) == [DRAW]
        assert changed["details"]["loaded"][0]["native"] == DRAW
        found = load(host, ADD)
        # A host that keeps tool results only has all records in them.
        assert [record["native"] for record in found["details"]["loaded"]] == [DRAW, ADD]
        add = found["details"]["loaded"][1]
        assert names(host.ask("session", session="s1", kind="branch", records=[add])) == [DRAW, ADD]
    with engine(stage.work) as host:
        assert names(host.initialize("s2")) == [DRAW]
        assert names(host.initialize("s3", kind="resume", records=[add])) == [DRAW, ADD]


def test_what_a_command_loads_is_in_its_answer(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        answer = host.ask("command", session="s1", line="/mcp load desk.add_numbers")
        assert names(answer) == [ADD]
        assert [record["native"] for record in answer["details"]["loaded"]] == [ADD]
        assert names(host.ask("command", session="s1", line="/mcp unload add_numbers")) == []
        wrong = host.ask("command", session="s1", line="/mcp nonsense")
        assert wrong["details"]["diagnostics"][0]["code"] == "usage"


def test_two_conversations_of_one_host_do_not_mix(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize("one")
        host.initialize("two")
        load(host, ADD, session="one")
        load(host, WAIT, session="two")
        assert names(host.ask("command", session="one", line="/mcp")) == [ADD]
        assert names(host.ask("command", session="two", line="/mcp")) == [WAIT]
        assert host.fail("call", session="two", name=ADD, arguments={})["data"]["code"] == "not_found"
        # What one of them changes for both is news to the other.
        host.ask("command", session="one", line="/mcp disable desk")
        assert host.news("toolsChanged")["params"] | {"details": 0} == {"session": "two", "tools": [], "details": 0}


def test_the_same_id_again_begins_the_conversation_anew(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, ADD)
        assert host.initialize()["tools"] == []
        assert names(host.initialize(kind="resume")) == []


def test_a_conversation_that_has_ended_is_not_there_and_comes_back_as_it_was(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize("one")
        host.initialize("two")
        load(host, ADD, session="one")
        host.send({"method": "end", "params": {"session": "one"}})
        assert host.fail("command", session="one", line="/mcp")["data"]["code"] == "not_found"
        assert host.ask("command", session="two", line="/mcp")["text"].startswith("desk: connected")
        assert names(host.initialize("one", kind="resume")) == [ADD]


# -- the host's rules -------------------------------------------------------------------------------------------


def test_what_the_host_excludes_is_never_loaded(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize(excluded=["read", ADD])
        found = host.ask("search", session="s1", query="add two numbers")
        assert ADD not in names(found)
        assert "the host has a tool of this name already" in found["text"]
        assert host.fail("load", session="s1", names=[ADD])["data"]["code"] == "refused"
        host.initialize("s2", excluded=["mcp__*"])
        assert names(host.ask("search", session="s2", query="add two numbers")) == []


def test_only_what_the_host_allows_is_loaded(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize(allowed=["mcp_search", "mcp__desk__draw*"])
        assert names(host.ask("search", session="s1", query="number picture form", limit=50)) == [DRAW]


def test_a_restored_tool_that_the_host_excludes_now_is_left_out(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        records = load(host, ADD, WAIT)["details"]["loaded"]
        answer = host.initialize("s2", kind="resume", records=records, excluded=[ADD])
        assert names(answer) == [WAIT]
        assert answer["details"]["diagnostics"][0]["code"] == "refused"


def test_no_more_tools_than_the_host_takes_are_loaded(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize(maxTools=2)
        assert len(names(host.ask("search", session="s1", query="number picture form options", limit=50))) == 2


# -- questions --------------------------------------------------------------------------------------------------


def test_a_call_that_wants_consent_is_asked_about_in_the_hosts_dialog(stage: Stage) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        load(host, ADD)
        host.asks = lambda method, params: {"ok": False}
        error = host.fail("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})
        assert error["data"]["code"] == "refused"
        asked = host.news("confirm")["params"]
        assert asked["session"] == "s1"
        assert "add_numbers" in asked["question"]
        assert '"a": 1' in asked["details"]
        assert stage.calls == []
        host.asks = lambda method, params: {"ok": True}
        assert host.ask("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})["content"][0]["text"] == "3"


@pytest.mark.parametrize("odd", [{}, {"ok": "yes"}, {"ok": 1}, {"choice": True}])
def test_only_true_is_a_yes(stage: Stage, odd: dict[str, Any]) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with engine(stage.work, checked=False) as host:
        host.initialize()
        load(host, ADD)
        host.asks = lambda method, params: odd
        assert host.fail("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})["data"]["code"] == "refused"


def test_an_error_in_place_of_an_answer_counts_as_dismissed(stage: Stage) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        load(host, ADD)
        number = host.begin("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})
        asked = host.news("confirm")
        host.send({"id": asked["id"], "error": {"code": -32601, "message": "no dialogs"}})
        assert host.answer(number)["error"]["data"]["code"] == "refused"


def test_a_host_without_a_yes_or_no_dialog_is_asked_with_a_choice(stage: Stage) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize(ui=["select"])
        load(host, ADD)
        host.asks = lambda method, params: {"choice": params["choices"][-1]}
        assert host.ask("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})["isError"] is False
        assert host.news("select")["params"]["choices"] == ["No", "Yes"]


def test_a_headless_host_is_asked_nothing(stage: Stage) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize(interactive=False)
        load(host, ADD, ASK)
        assert host.fail("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})["data"]["code"] == "refused"
        assert not [message for message in host.told if "id" in message]


def test_a_question_is_withdrawn_when_its_call_is_cancelled(stage: Stage) -> None:
    stage.extra = {"trust": "verified"}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        load(host, ADD)
        number = host.begin("call", session="s1", name=ADD, arguments={"a": 1, "b": 2})
        asked = host.news("confirm")
        host.send({"method": "cancel", "params": {"id": number}})
        assert host.answer(number, 2)["error"]["data"]["code"] == "cancelled"
        assert host.news("cancel")["params"] == {"id": asked["id"]}
        # Its late answer is nobody's.
        host.send({"id": asked["id"], "result": {"ok": True}})
        assert host.ask("complete", session="s1", line="/mcp sta")["items"] == ["status"]
        assert stage.calls == []


def test_a_servers_form_is_the_hosts_own_where_it_has_one(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize(ui=["confirm", "elicit"])
        load(host, ASK)
        host.asks = lambda method, params: {"content": {"street": "Elm", "zip": 1, "size": "s"}}
        answer = host.ask("call", session="s1", name=ASK, arguments={})
        assert '"street": "Elm"' in answer["content"][0]["text"]
        assert host.news("elicit")["params"]["message"].startswith("desk: ")


def test_a_form_is_asked_field_by_field_where_the_host_has_none(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, ASK)
        lines = iter(["Elm Street", "not a number", "12345", ""])

        def person(method: str, params: dict[str, Any]) -> dict[str, Any]:
            return {"choice": params["choices"][0]} if method == "select" else {"text": next(lines)}

        host.asks = person
        text = host.ask("call", session="s1", name=ASK, arguments={})["content"][0]["text"]
        content = json.loads(text.removeprefix("form: "))["content"]
        assert content == {"street": "Elm Street", "zip": 12345, "size": "s", "express": False}
        questions = [message["params"]["question"] for message in host.told if message["method"] == "input"]
        assert "Where shall it go?" in questions[0]
        assert questions[1].count("whole number") == 1
        assert "A whole number" in questions[2]


def test_a_form_of_which_one_question_is_closed_is_declined(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, ASK)
        host.asks = lambda method, params: {"text": None}
        text = host.ask("call", session="s1", name=ASK, arguments={})["content"][0]["text"]
        assert "accept" not in text
        assert len([message for message in host.told if message["method"] == "input"]) == 1


def test_the_fields_of_two_forms_are_asked_one_form_after_the_other(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, ASK)
        asked: list[str] = []

        def person(method: str, params: dict[str, Any]) -> dict[str, Any]:
            if not asked:
                wait_for(lambda: len(stage.calls) == 2)
                time.sleep(0.3)  # the other form is there by now
            asked.append(params["question"].splitlines()[1].split(" ")[0])
            text = "" if "mail" in asked[-1] else "12345"
            return {"choice": params["choices"][0]} if method == "select" else {"text": text}

        host.asks = person
        for number in [host.begin("call", session="s1", name=ASK, arguments={}) for _ in range(2)]:
            assert "accept" in host.answer(number)["result"]["content"][0]["text"]
        one = asked[: len(asked) // 2]
        assert len(one) == len(set(one)) > 2
        assert asked == [*one, *one]


@pytest.mark.slow
def test_a_project_is_asked_about_once_before_the_first_search_that_would_look_into_it(stage: Stage) -> None:
    server = {"command": sys.executable, "args": [str(ROOT / "tests" / "chat_server.py"), str(stage.folder / "p")]}
    (stage.work / ".mcp.json").write_text(json.dumps({"mcpServers": {"project": server}}))
    with engine(stage.work) as host:
        host.initialize()
        assert host.ask("search", session="s1", query="add", server="desk")["tools"]
        assert not [message for message in host.told if "id" in message]
        host.asks = lambda method, params: {"ok": False}
        searches = [host.begin("search", session="s1", query="add numbers") for _ in range(2)]
        assert all("project: [" in host.answer(number)["result"]["text"] for number in searches)
        asked = [message["params"] for message in host.told if message["method"] == "confirm"]
        assert len(asked) == 1
        assert "chat_server.py" in asked[0]["details"]
        host.told.clear()
        assert host.fail("search", session="s1", query="add", server="project")["data"]["code"] == "refused"
        assert host.told == []
        host.asks = lambda method, params: {"ok": True}
        assert "Trusted" in host.ask("command", session="s1", line="/mcp trust")["text"]
        assert "mcp__project__add_numbers" in names(host.ask("search", session="s1", query="add", server="project"))
    with engine(stage.work) as host:
        host.initialize("s2")
        assert "mcp__project__add_numbers" in names(host.ask("search", session="s2", query="add numbers"))
        assert not [message for message in host.told if message["method"] == "confirm"]


def test_a_project_that_the_person_trusts_is_in_the_same_search(stage: Stage) -> None:
    server = {"command": sys.executable, "args": [str(ROOT / "tests" / "chat_server.py"), str(stage.folder / "p")]}
    (stage.work / ".mcp.json").write_text(json.dumps({"mcpServers": {"project": server}}))
    with engine(stage.work) as host:
        host.initialize()
        host.asks = lambda method, params: {"ok": True}
        assert "mcp__project__add_numbers" in names(host.ask("search", session="s1", query="add numbers"))


# -- cancelling, ending -----------------------------------------------------------------------------------------


def test_a_question_about_one_project_holds_up_nobody_elsewhere(stage: Stage) -> None:
    project = json.dumps({"mcpServers": {"theirs": {"command": sys.executable, "args": ["-c", ""]}}})
    for place in (stage.work, stage.folder / "other"):
        place.mkdir(exist_ok=True)
        (place / ".mcp.json").write_text(project)
    with engine(stage.work) as host:
        host.initialize("here")
        host.initialize("headless", interactive=False)
        host.initialize("there", cwd=str(stage.folder / "other"))
        waiting = host.begin("search", session="here", query="add two numbers")
        assert host.news("confirm")["params"]["session"] == "here"
        # Nobody has answered yet.
        assert ADD in names(host.ask("search", session="headless", query="add two numbers", limit=1))
        other = host.begin("search", session="there", query="add two numbers", limit=1)
        assert host.news("confirm")["params"]["session"] == "there"
        for number in (waiting, other):
            host.send({"method": "cancel", "params": {"id": number}})
            assert host.answer(number)["error"]["data"]["code"] == "cancelled"


def test_a_cancelled_call_is_answered_within_a_second_and_its_server_lives(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, WAIT, ADD)
        number = host.begin("call", session="s1", name=WAIT, arguments={"seconds": 60})
        wait_for(lambda: stage.calls)
        began = time.monotonic()
        host.send({"method": "cancel", "params": {"id": number}})
        error = host.answer(number)["error"]
        assert time.monotonic() - began < 5
        assert error["code"] == -32000
        assert error["data"]["code"] == "cancelled"
        wait_for(lambda: stage.cancelled)
        assert host.ask("call", session="s1", name=ADD, arguments={"a": 1, "b": 1})["content"][0]["text"] == "2"


def test_cancelling_what_is_not_there_changes_nothing(stage: Stage) -> None:
    with engine(stage.work, checked=False) as host:
        host.initialize()
        for number in (77, "x", None, [1], {}, True):
            host.send({"method": "cancel", "params": {"id": number}})
        assert host.ask("complete", session="s1", line="/mcp sta")["items"] == ["status"]


def test_shutdown_is_answered_and_ends_everything(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, WAIT)
        host.begin("call", session="s1", name=WAIT, arguments={})
        wait_for(lambda: stage.calls)
        everyone = descendants_of(host.process.pid)
        assert everyone
        assert host.ask("shutdown") == {}
        assert host.exit_code() == 0
        assert gone(everyone, 5), alive(everyone)


def test_a_request_without_parameters_needs_no_member_for_them(stage: Stage) -> None:
    with engine(stage.work) as host:  # `checked`: the schema agrees
        host.initialize()
        for number, method in ((901, "ping"), (902, "shutdown")):
            host.send({"id": number, "method": method})
            assert host.answer(number)["result"] == {}
        assert host.exit_code() == 0


def test_the_end_of_its_input_ends_the_engine_in_the_middle_of_a_call(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        load(host, WAIT)
        host.begin("call", session="s1", name=WAIT, arguments={})
        wait_for(lambda: stage.calls)
        everyone = descendants_of(host.process.pid)
        host.close()
        assert host.exit_code(6) == 0
        assert gone(everyone, 5), alive(everyone)


@pytest.mark.slow
def test_servers_that_will_not_end_are_ended_within_five_seconds(stage: Stage) -> None:
    deaf = {"ignore_eof": True, "ignore_term": True, "start": [{"spawn": "daemon"}], "tools/call": [[{"hang": True}]]}
    stage.servers = {name: entry(stage.folder, deaf) for name in ("deaf", "dumb")}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        load(host, "deaf.echo", "dumb.echo")
        host.begin("call", session="s1", name="mcp__deaf__echo", arguments={})
        everyone = [pid for server in stage.servers.values() for pid in pids_of(server)]
        assert len(everyone) == 4
        began = time.monotonic()
        host.close()
        assert host.exit_code(8) == 0
        assert gone(everyone, 3), alive(everyone)
        assert time.monotonic() - began < 8


def test_a_killed_host_leaves_no_process_although_its_child_holds_the_pipe(stage: Stage) -> None:
    # A host that forked: the engine's input stays open in a process that has nothing to do with it.
    script = (
        "import json, os, subprocess, sys, time\n"
        f"p = subprocess.Popen({COMMAND!r}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)\n"
        "os.set_inheritable(p.stdin.fileno(), True)\n"
        "c = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], close_fds=False)\n"
        "print(p.pid, c.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=stage.work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as host:
        assert host.stdout is not None
        pid, child = map(int, host.stdout.readline().split())
        try:
            # Only an engine that is up has looked at who its parent is.
            wait_for(lambda: len(list(Path(f"/proc/{pid}/task").iterdir())) >= 3)
            host.kill()
            host.wait(5)
            assert gone([pid], 8), "the engine is left"
        finally:
            for one in alive([pid, child]):
                os.kill(one, 9)


STANDS_STILL = """
import sys, time
from pi_mcp.hosts.engine.serve import Engine

async def complete(self, params):
    time.sleep(1000)

Engine._methods = {**Engine._methods, "complete": complete}
from pi_mcp.hosts.engine import process
process.PARENT_EVERY, process.END_LIMIT = 0.1, 0.5
process.run()
"""
HOST_OF_ONE_THAT_STANDS_STILL = """
import json, os, subprocess, sys
pipe, null = subprocess.PIPE, subprocess.DEVNULL
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=pipe, stdout=pipe, stderr=null)
for method in ("ping", "complete"):
    child.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}).encode() + b"\\n")
    child.stdin.flush()
    if method == "ping":
        child.stdout.readline()
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_an_engine_whose_loop_stands_still_does_not_outlive_its_host(stage: Stage) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOST_OF_ONE_THAT_STANDS_STILL, STANDS_STILL],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=stage.work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert gone([int(done.stdout)], 15)


def test_sigterm_ends_it_like_the_host_would(stage: Stage) -> None:
    with engine(stage.work) as host:
        host.initialize()
        host.process.terminate()
        assert host.exit_code() == 0


def test_the_schema_knows_exactly_the_methods_that_the_engine_has() -> None:
    from pi_mcp.hosts.engine.serve import Engine

    schema = json.loads((ROOT / "docs" / "engine.schema.json").read_text())["$defs"]
    methods = {
        one["properties"]["method"]["const"]
        for one in schema["hostMessage"]["oneOf"]
        if "id" in one["properties"] and "method" in one["properties"]
    }
    assert methods == {*Engine._methods, "shutdown"}
    page = (ROOT / "docs" / "engine.md").read_text()
    for method in methods:
        assert f"| `{method}` |" in page


# -- light ------------------------------------------------------------------------------------------------------

LIGHT = """
import asyncio, json, os, sys
from pi_mcp.hosts.engine.wire import Reader, Writer
from pi_mcp.hosts.engine.serve import Engine

async def main():
    down, up = os.pipe(), os.pipe()
    engine = Engine(Reader(down[0]), Writer(up[1]))
    running = asyncio.ensure_future(engine.run())
    os.write(down[1], sys.argv[1].encode() + b"\\n")
    line = await asyncio.to_thread(lambda: os.fdopen(up[0], "rb").readline())
    loaded = sorted(name for name in sys.modules if name in set(sys.argv[2:]))
    print(json.dumps([json.loads(line), loaded]), flush=True)
    os._exit(0)

asyncio.run(main())
"""


def test_initialize_is_answered_from_configuration_record_and_catalogs_without_anything_heavy(stage: Stage) -> None:
    stage.extra = {"alwaysLoad": ["draw*"]}
    stage.configure()
    with engine(stage.work) as host:
        host.initialize()
        host.news("toolsChanged")
        records = load(host, ADD)["details"]["loaded"]
    about = {
        "protocol": 1, "host": "test", "cwd": str(stage.work), "interactive": True, "ui": ["confirm"],
        "session": {"id": "s1", "kind": "resume", "records": records},
    }  # fmt: skip
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about})
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, line, *HEAVY],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    answer, heavy = json.loads(done.stdout)
    assert names(answer["result"]) == [DRAW, ADD]
    assert heavy == []


def test_a_person_who_starts_it_in_a_terminal_is_told_what_it_is() -> None:
    master, terminal = os.openpty()
    try:
        done = subprocess.run(
            COMMAND,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=30,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    finally:
        os.close(master)
        os.close(terminal)
    assert done.returncode == 2
    assert "pi-mcp install HOST" in done.stderr
    assert done.stdout == ""
