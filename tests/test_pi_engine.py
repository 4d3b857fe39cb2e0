"""The Node side of the engine's protocol without Pi: engines that are of no use, and records that are too many."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import environments
from tests.fake_engine import RECORD
from tests.hostile.processes import gone

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
HEAD = """
import { objects, Session } from "ENGINE";
const host = { about: () => ({ host: "pi", cwd: "/", interactive: false, ui: [] }), changed() {}, notify() {} };
const session = new Session(import.meta.url, host as any);
const search = () => session.request("search", { query: "x" }).then(({ text }) => text, ({ message }) => message);
const say = (...values: unknown[]) => console.log(JSON.stringify(values));
"""


def node(folder: Path, script: str, *, ping: int | None = None, **how: Any) -> list[Any]:
    """What the script says, one value a line; `how` is what the fake engine does; `ping` ms in the place of ten s."""
    (folder / "how.json").write_text(json.dumps(how))
    command = [sys.executable, "-S", "-E", str(ROOT / "tests" / "fake_engine.py"), str(folder), "engine"]
    (folder / "pi_mcp_shim.json").write_text(json.dumps({"command": command}))
    engine = ROOT / "pi_mcp" / "hosts" / "shims" / "pi" / "engine.ts"
    if ping is not None:
        source = engine.read_text()
        assert "10_000, 5" in source
        engine = folder / "engine.ts"
        engine.write_text(source.replace("10_000, 5", f"{ping}, 5"))
    (folder / "run.ts").write_text(HEAD.replace("ENGINE", str(engine)) + script)
    words = [str(environments.node22()), "--no-warnings", "--experimental-transform-types", str(folder / "run.ts")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def started(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "starts").read_text().split()]


def test_an_engine_that_refuses_the_start_is_ended_before_the_next_one(tmp_path: Path) -> None:
    refusal = {"code": -32000, "message": "", "data": {"code": "configuration_invalid", "message": "another protocol"}}
    script = 'session.begin("s", "new", []); say(await search(), await search());'
    # Node ends by itself: nothing of an engine holds it.
    said = node(tmp_path, script, answers={"initialize": {"error": refusal}}, ignore_eof=True)
    assert said == [["[configuration_invalid] another protocol"] * 2]
    assert len(started(tmp_path)) == 2
    assert gone(started(tmp_path), 10)


def test_records_that_no_line_holds_are_left_to_what_the_engine_kept(tmp_path: Path) -> None:
    script = f"""
        const large = {{ ...{json.dumps(RECORD)}, filling: "x".repeat(6 << 20) }};
        session.begin("s", "resume", [large]);
        say(await search());
        await session.stop(5000);
    """
    assert node(tmp_path, script) == [["found"]]
    sent = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert sent[0]["params"]["session"] == {"id": "s", "kind": "resume"}


def test_what_a_session_file_holds_in_the_place_of_a_list_counts_as_none(tmp_path: Path) -> None:
    assert node(tmp_path, "say(objects(5), objects({}), objects(undefined), objects([null, 1, {}]));") == [
        [[], [], [], [{}]]
    ]


FROZEN = """
import { readFileSync, writeFileSync } from "node:fs";
const call = (text: string) => {
    return session.request("call", { name: "t", arguments: { text } }).catch(({ message }) => message);
};
session.begin("s", "new", []);
say(await search());
const calls = [call("first")];
while (!readFileSync("FOLDER/lines", "utf8").includes('"call"')) await new Promise((done) => setTimeout(done, 20));
process.kill(Number(readFileSync("FOLDER/starts", "utf8")), "SIGSTOP");
calls.push(call("x".repeat(1 << 20)));
say(...(await Promise.all(calls)));
writeFileSync("FOLDER/how.json", "{}");
say(await search(), session.loaded);
await session.stop(5000);
"""


def test_an_engine_that_is_frozen_in_mid_call_is_ended_and_the_next_search_starts_another(tmp_path: Path) -> None:
    said = node(tmp_path, FROZEN.replace("FOLDER", str(tmp_path)), ping=100, silent=["call"])
    assert said == [
        ["found"],
        [
            "[connection_failed] The pi-mcp engine did not answer any more and was ended. Whether the call took effect "
            "is unknown: check before calling again. The next mcp_search starts it again. If it stays away, run "
            "`pi-mcp install pi`."
        ]
        * 2,
        ["found", ["mcp__s__t"]],
    ]
    assert len(started(tmp_path)) == 2
    assert gone(started(tmp_path), 10)


def test_an_engine_that_works_for_long_is_asked_for_a_sign_of_life_and_left_alone(tmp_path: Path) -> None:
    script = """
        import { readFileSync } from "node:fs";
        session.begin("s", "new", []);
        const stop = new AbortController();
        const call = session.request("call", { name: "t" }, { signal: stop.signal }).catch(({ message }) => message);
        const pings = () => readFileSync("FOLDER/lines", "utf8").split('"ping"').length - 1;
        await session.enter();
        while (pings() < 12) await new Promise((resolve) => setTimeout(resolve, 20));
        stop.abort();
        say(await call);
        say(await search());
        await session.stop(5000);
    """
    said = node(tmp_path, script.replace("FOLDER", str(tmp_path)), ping=50, silent=["call"])
    assert said[0][0].startswith("[cancelled] The call was cancelled.")
    assert said[1] == ["found"]
    assert len(started(tmp_path)) == 1


def test_an_engine_that_is_frozen_is_ended_although_nobody_waits_any_more(tmp_path: Path) -> None:
    script = """
        import { readFileSync } from "node:fs";
        session.begin("s", "new", []);
        await search();
        process.kill(Number(readFileSync("FOLDER/starts", "utf8")), "SIGSTOP");
        say(await session.complete("/mcp ").catch(({ diagnostic }) => diagnostic.code));
        while ((session as any).process.alive) await new Promise((resolve) => setTimeout(resolve, 20));
        say(await search());
        await session.stop(5000);
    """
    assert node(tmp_path, script.replace("FOLDER", str(tmp_path)), ping=600) == [["timeout"], ["found"]]
    assert gone(started(tmp_path), 10)


def test_who_stops_waiting_for_an_engine_that_does_not_start_is_free_at_once(tmp_path: Path) -> None:
    script = """
        session.begin("s", "new", []);
        const stop = new AbortController();
        const asked = performance.now();
        const request = session.request("call", { name: "t" }, { signal: stop.signal }).catch(({ message }) => message);
        setTimeout(() => stop.abort(), 100);
        say(await request, performance.now() - asked < 20_000);
        await session.stop(5000);
    """
    said = node(tmp_path, script, silent=["initialize"])
    assert said == [["[cancelled] Cancelled; nothing was sent. Try again when it is wanted.", True]]
    assert gone(started(tmp_path), 10)
