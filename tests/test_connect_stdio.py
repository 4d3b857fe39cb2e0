"""Real processes that misbehave: what a connection makes of them (field reports of the kind stdio)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.connect import CallHandlers, Connection, connection, stdio
from pi_mcp.errors import ServerError
from tests.hostile.connecting import SECRET, connected, refused, text_of, until
from tests.hostile.processes import alive, children_of, gone
from tests.hostile.script import entry, methods_of, pids_of, record_of, tool
from tests.support import run


def test_connect_list_and_call(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            assert (one.state, one.info, one.generation) == ("idle", None, 0)
            info = await one.connect()
            assert (info.name, info.era, info.protocol_version) == ("hostile", "legacy", "2025-11-25")
            assert (info.has_tools, info.list_changed) == (True, True)
            assert (one.state, one.generation, one.diagnostic) == ("connected", 1, None)
            listing = await one.list_tools()
            assert [each["name"] for each in listing.tools] == ["echo", "other"]
            result = await one.call_tool("echo", {"a": [1, "ü"]}, handlers=CallHandlers())
            assert json.loads(text_of(result))["arguments"] == {"a": [1, "ü"]}
            assert one.last_success is not None
        assert methods_of(server)[:3] == ["server/discover", "initialize", "notifications/initialized"]

    run(main())


def test_b031_the_configured_limit_is_the_start_up_limit_and_a_later_use_starts_afresh(tmp_path: Path) -> None:
    async def main() -> None:
        slow = entry(tmp_path, {"start": [{"sleep": 0.6}]}, startupTimeoutMs=5000)
        late = entry(
            tmp_path,
            {"initialize": [[{"sleep": 30}]]},
            startupTimeoutMs=400,
        )
        async with connected({"slow": slow, "late": late}) as connections:
            await connections.get("slow").connect()
            one = connections.get("late")
            before = time.monotonic()
            error = await refused(one.connect())
            assert time.monotonic() - before < 10
            assert (error.diagnostic.code, one.state) == ("timeout", "failed")
            assert "0.4 s" in error.diagnostic.message
            await refused(one.connect())
            first, second = pids_of(late)
            assert alive([first]) == []
            assert first != second

    run(main())


def test_b032_the_exit_status_is_told_at_once_and_stderr_is_kept_clean_and_redacted(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(
            tmp_path,
            {"start": [{"stderr": f"\x1b[31mError:\x1b[0m missing API_URL {SECRET}\n"}, {"exit": 1}]},
            env={"API_TOKEN": SECRET},
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            before = time.monotonic()
            error = await refused(one.connect())
            assert time.monotonic() - before < 10
            assert "exited with status 1 before the handshake" in error.diagnostic.message
            assert error.diagnostic.code == "connection_failed"
            assert "Error: missing API_URL ***" in one.log.lines()

    run(main())


@pytest.mark.parametrize("later", [1, 2, 3])
def test_a_process_that_is_gone_before_it_is_written_to_has_its_exit_for_a_reason(
    later: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write notices the end before the reader does; `later` is the first write that waits for that."""
    write, writes = stdio._Child.write, []

    async def wait_and_write(child: stdio._Child, data: bytes) -> bool:
        writes.append(data)
        if len(writes) >= later:
            await asyncio.wait_for(child.exited.wait(), 10)
        return await write(child, data)

    async def main() -> None:
        monkeypatch.setattr(stdio._Child, "write", wait_and_write)
        server = entry(tmp_path, {"start": [{"exit": 3}]})
        async with connected({"s": server}) as connections:
            error = await refused(connections.get("s").connect())
            assert "exited with status 3 before the handshake" in error.diagnostic.message
            assert len(pids_of(server)) == 2, "once more without the probe, which may have killed it"

    run(main())


def test_b034_reconnects_leave_no_defunct_children(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"start": [{"sleep": 0.02}, {"exit": 0}]}, protocol="legacy")
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            for _ in range(8):
                await refused(one.reconnect())
                assert len(children_of(os.getpid())) <= 1
            assert await asyncio.to_thread(gone, pids_of(server))
            assert len(pids_of(server)) == 8

    run(main())


def test_b035_a_banner_before_the_first_message_is_skipped_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(
            tmp_path, {"start": [{"raw": "Server version: 1.2\n\n[not json\n"}, {"hex": "fffe41"}, {"raw": "\n"}]}
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            assert one.log.noise == 3
            assert "stdout: Server version: 1.2" in one.log.lines()

    run(main())


def test_b037_messages_cut_and_glued_anywhere_arrive_whole(tmp_path: Path) -> None:
    answer = '{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"%s"}]}}'
    whole = answer % "größer"

    async def main() -> None:
        first = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        server = entry(
            tmp_path,
            {
                "tools/call:cut": [{"pieces": [whole[:30], whole[30:], "\r\n"]}],
                "tools/call:glued": [{"raw": f"{first}\r\n{whole}\r\n"}],
                "tools/call:bytes": [
                    {
                        "pieces": ['{"jsonrpc":"2.0","id":$ID,"result":{"content":[{"type":"text","text":"gr'],
                        "pause": 0.0,
                    },
                    {"hex": "c3"},
                    {"sleep": 0.05},
                    {"hex": "b6"},
                    {"raw": 'ßer"}]}}\n'},
                ],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            changes: list[int] = []
            one.on_tools_changed.append(lambda: changes.append(1))
            for name in ("cut", "glued", "bytes"):
                assert text_of(await one.call_tool(name, {})) == "größer"
            assert changes == [1]
            assert one.log.noise == 0

    run(main())


@pytest.mark.parametrize("newlines", [True, False])
def test_b040_a_megabyte_of_stderr_before_each_answer_blocks_nothing(tmp_path: Path, newlines: bool) -> None:
    async def main() -> None:
        flood = {"flood": 1_000_000, "newlines": newlines}
        server = entry(
            tmp_path,
            {"tools/list": [[flood, {"result": {"tools": []}}]], "tools/call": [[flood, {"echo": True}]]},
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.list_tools()
            for _ in range(3):
                await one.call_tool("echo", {})
            assert sum(len(line) for line in one.log.lines()) <= 80_000

    run(main())


def test_b041_a_noisy_refusal_of_the_probe_does_not_hinder_initialize(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"server/discover": [[{"flood": 200_000}, {"error": [-32601, "no"]}]]})
        async with connected({"s": server}) as connections:
            assert (await connections.get("s").connect()).era == "legacy"
        assert len(pids_of(server)) == 1

    run(main())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"kill": 9}, "was ended by signal 9 (SIGKILL) during the call"),
        ({"exit": 0}, "exited with status 0 during the call"),
        ({"close_stdout": True}, "closed its output"),
    ],
)
def test_b043_a_server_that_dies_in_a_call_ends_the_call_and_nothing_is_repeated(
    tmp_path: Path, step: dict[str, Any], words: str
) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call:die": [[step]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            before = time.monotonic()
            error = await refused(one.call_tool("die", {}))
            assert time.monotonic() - before < 5
            assert error.diagnostic.code == "connection_failed"
            assert words in error.diagnostic.message
            assert "Whether the call took effect is unknown." in error.diagnostic.message
            assert type(error) is ServerError
            assert one.state == "failed"
            assert text_of(await one.call_tool("echo", {}))
            assert (one.generation, one.state) == (2, "connected")
        assert methods_of(server).count("tools/call") == 2

    run(main())


@pytest.mark.slow
def test_b044_a_process_that_ends_or_says_nothing_before_the_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        later = entry(tmp_path, {"start": [{"sleep": 0.2}, {"exit": 1}]})
        silent = {"command": "sleep", "args": ["60"], "startupTimeoutMs": 300}
        async with connected({"false": {"command": "false"}, "later": later, "silent": silent}) as connections:
            for name, code, words in (
                ("false", "connection_failed", "exited with status 1 before the handshake"),
                ("later", "connection_failed", "exited with status 1 before the handshake"),
                ("silent", "timeout", "0.3 s"),
            ):
                before = time.monotonic()
                error = await refused(connections.get(name).connect())
                assert time.monotonic() - before < 10
                assert error.diagnostic.code == code
                assert words in error.diagnostic.message

    run(main())


def test_b046_after_a_crash_the_next_call_starts_the_server_again(tmp_path: Path) -> None:
    async def main() -> None:
        fine = [{"echo": True}]
        server = entry(tmp_path, {"tools/call": [fine, fine, fine, [{"exit": 3}], fine], "in_order": True})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            for _ in range(3):
                await one.call_tool("echo", {})
            error = await refused(one.call_tool("echo", {}))
            assert "status 3" in error.diagnostic.message
            before = time.monotonic()
            results = await asyncio.gather(*(one.call_tool("echo", {}) for _ in range(3)))
            assert len(results) == 3
            assert time.monotonic() - before < 10.0
            assert one.generation == 2
        assert len(pids_of(server)) == 2

    run(main())


def test_an_exit_while_nobody_asks_is_noticed_and_the_next_use_starts_again(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            os.kill(pids_of(server)[0], signal.SIGKILL)
            await until(lambda: one.state != "connected")
            assert one.state == "failed"
            assert one.diagnostic is not None
            assert "signal 9" in one.diagnostic.message
            assert "handshake" not in one.diagnostic.message
            await one.call_tool("echo", {})
            assert (one.state, one.diagnostic) == ("connected", None)

    run(main())


def test_b095_a_line_of_5_mb_arrives_and_the_session_lives_on(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call:big": [[{"big": 5_000_000}]]})
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            assert len(text_of(await one.call_tool("big", {}))) == 5_000_000
            await one.call_tool("echo", {})
            assert one.generation == 1

    run(main())


@pytest.mark.parametrize("id_last", [False, True])
def test_a_message_over_the_limit_fails_only_its_own_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_last: bool
) -> None:
    monkeypatch.setitem(stdio.stdio_transport.__wrapped__.__kwdefaults__, "limit", 1_000_000)

    async def main() -> None:
        server = entry(
            tmp_path,
            {
                "tools/call:big": [[{"big": 3_000_000, "id_last": id_last}]],
                "tools/call:slow": [[{"sleep": 0.5}, {"echo": True}]],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            slow = asyncio.create_task(one.call_tool("slow", {}))
            error = await refused(one.call_tool("big", {}))
            assert error.diagnostic.code == "protocol_error"
            assert "too large" in error.diagnostic.message or "larger than" in error.diagnostic.message
            assert "unknown" in error.diagnostic.message
            assert text_of(await slow)
            assert one.generation == 1

    run(main())


def test_a_large_message_does_not_block_the_loop_for_long(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call:big": [[{"big": 20_000_000}]]}, toolTimeoutMs=20000)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            before = time.monotonic()
            await one.call_tool("big", {})
            assert time.monotonic() - before < 5.0

    run(main())


def test_b100_the_message_states_the_limit_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HARD_CAP", 1.2)

    async def main() -> None:
        endless = [[{"progress": 100, "every": 0.1}]]
        server = entry(
            tmp_path,
            {"tools/call:own": endless, "tools/call:other": [[{"progress": 100, "every": 0.1, "of": "other"}]]},
            toolTimeoutMs=400,
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            steps: list[float] = []
            before = time.monotonic()
            error = await refused(
                one.call_tool(
                    "own", {}, handlers=CallHandlers(on_progress=lambda done, total, message: steps.append(done))
                )
            )
            assert 1.1 < time.monotonic() - before < 10
            assert error.diagnostic.code == "timeout"
            assert "1.2 s" in error.diagnostic.message
            assert "0.4 s" not in error.diagnostic.message
            assert len(steps) > 5
            before = time.monotonic()
            error = await refused(one.call_tool("other", {}))
            assert 0.3 < time.monotonic() - before < 8.0
            assert "0.4 s" in error.diagnostic.message
            assert "unknown" in error.diagnostic.message
            assert one.state == "connected"
        assert methods_of(server).count("notifications/cancelled") == 2

    run(main())


def test_b101_progress_carries_a_call_beyond_every_other_limit(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(
            tmp_path,
            {"tools/call": [[{"progress": 12, "every": 0.1}, {"echo": True}]]},
            timeoutMs=300,
            toolTimeoutMs=400,
        )
        async with connected({"s": server}) as connections:
            assert text_of(await connections.get("s").call_tool("echo", {}))

    run(main())


def test_b103_cancelling_one_call_leaves_the_server_and_its_other_calls(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(
            tmp_path,
            {
                "tools/call:sleep": [[{"sleep": 30}, {"echo": True}]],
                "tools/call:other": [[{"sleep": 0.4}, {"pid": True}]],
                "tools/call:where": [[{"environ": True}]],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            sleeping = asyncio.create_task(one.call_tool("sleep", {}))
            other = asyncio.create_task(one.call_tool("other", {}))
            await asyncio.sleep(0.1)
            sleeping.cancel()
            before = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await sleeping
            assert time.monotonic() - before < 5
            assert int(text_of(await other)) == pids_of(server)[0]
            where = json.loads(text_of(await one.call_tool("where", {})))
            assert where["sid"] != os.getsid(0)
            assert where["pgid"] != os.getpgid(0)
        cancelled = [line for line in record_of(server) if line.get("method") == "notifications/cancelled"]
        asked = [line["id"] for line in record_of(server) if line.get("method") == "tools/call"]
        assert [line["params"]["requestId"] for line in cancelled] == asked[:1]

    run(main())


@pytest.mark.slow
def test_b104_a_call_that_never_answers_is_cancelled_within_a_second_even_if_stdin_is_not_read(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        server = entry(tmp_path, {"tools/call": [[{"stop_reading": True}, {"hang": True}]]}, toolTimeoutMs=60000)
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.connect()
            calls = [asyncio.create_task(one.call_tool("x", {"data": "y" * 100_000})) for _ in range(5)]
            await asyncio.sleep(0.3)
            before = time.monotonic()
            for call in calls:
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - before < 5
            assert all(isinstance(result, asyncio.CancelledError) for result in results)

    run(main())


def test_b106_late_duplicate_unknown_and_odd_ids_harm_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        good = '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s"}]}}\n'
        server = entry(
            tmp_path,
            {
                "tools/call:twice": [[{"raw": good % ("$ID", "first") + good % ("$ID", "second")}]],
                "tools/call:odd": [
                    [
                        {
                            "raw": good % ("99999", "unknown")
                            + good % ('"nobody"', "unknown")
                            + good % ("null", "none")
                            + good % ("[1]", "list")
                            + good % ("true", "bool")
                            + '{"jsonrpc":"2.0"}\n{"id":12345}\n[]\n[1]\nnull\n'
                            + good % ('"$ID"', "as a string")
                        }
                    ]
                ],
                "tools/call:late": [[{"sleep": 0.2}, {"echo": True}]],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            assert text_of(await one.call_tool("twice", {})) == "first"
            assert text_of(await one.call_tool("odd", {})) == "as a string"
            for wait in (0.15, 0.19, 0.2, 0.205, 0.21):
                call = asyncio.create_task(one.call_tool("late", {}))
                await asyncio.sleep(wait)
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
            await asyncio.sleep(0.1)
            assert text_of(await one.call_tool("echo", {}))
            assert one.generation == 1

    run(main())


def test_b019_a_relative_command_with_a_slash_resolves_against_cwd_and_the_error_shows_the_path(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        sub = tmp_path / "sub"
        (sub / "scripts").mkdir(parents=True)
        program = sub / "scripts" / "s.sh"
        server = entry(tmp_path)
        program.write_text(f"#!/bin/sh\nexec {sys.executable} {' '.join(server['args'])}\n")
        program.chmod(0o755)
        entries = {
            "good": {"command": "./scripts/s.sh", "cwd": "sub"},
            "bad": {"command": "./scripts/none.sh", "cwd": "sub"},
        }
        async with connected(entries, cwd=tmp_path) as connections:
            await connections.get("good").connect()
            error = await refused(connections.get("bad").connect())
            assert str(sub / "scripts/none.sh") in error.diagnostic.message.replace("/./", "/")

    run(main())


def test_b020_a_missing_directory_and_a_missing_command_are_told_apart(tmp_path: Path) -> None:
    async def main() -> None:
        plain = tmp_path / "plain.txt"
        plain.write_text("no program")
        entries = {
            "cwd": {"command": "true", "cwd": "/no/such/dir"},
            "command": {"command": "no-such-command-here", "env": {"PATH": "/usr/nowhere"}},
            "mode": {"command": str(plain)},
        }
        async with connected(entries) as connections:
            cwd = (await refused(connections.get("cwd").connect())).diagnostic
            command = (await refused(connections.get("command").connect())).diagnostic
            mode = (await refused(connections.get("mode").connect())).diagnostic
        assert "working directory does not exist (/no/such/dir)" in cwd.message
        assert "`no-such-command-here`, looked for in PATH: /usr/nowhere" in command.message
        assert f"cannot be executed ({plain})" in mode.message
        assert {d.code for d in (cwd, command, mode)} == {"connection_failed"}

    run(main())


def test_the_child_gets_the_minimal_environment_and_what_the_entry_adds(tmp_path: Path) -> None:
    environ = {
        "HOME": "/h",
        "PATH": os.environ["PATH"],
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "HTTPS_PROXY": "http://proxy:1",
        "SSL_CERT_FILE": "/ca.pem",
        "EXTRA": "e",
        "USER": "() { :; }",
    }

    async def environment(**fields: Any) -> dict[str, str]:
        server = entry(tmp_path, {"tools/call": [[{"environ": True}]]}, **fields)
        async with connected({"s": server}, environ=environ) as connections:
            found = json.loads(text_of(await connections.get("s").call_tool("x", {})))
        assert found["cwd"] == str(Path.cwd())
        assert found["sigpipe"] is True or found["sigpipe"] is False
        env: dict[str, str] = found["env"]
        env.pop("LC_CTYPE", None)  # the Python of the hostile server itself sets it
        return env

    async def main() -> None:
        minimal = await environment(env={"A": "1", "PATH": "/bin"})
        assert minimal == {
            "A": "1",
            "HOME": "/h",
            "PATH": "/bin",
            "HTTPS_PROXY": "http://proxy:1",
            "SSL_CERT_FILE": "/ca.pem",
        }
        named = await environment(inheritEnv=["EXTRA", "ABSENT"])
        assert named["EXTRA"] == "e"
        assert "AWS_SECRET_ACCESS_KEY" not in named
        assert (await environment(inheritEnv=True))["AWS_SECRET_ACCESS_KEY"] == SECRET

    run(main())


@pytest.mark.slow
def test_closing_ends_servers_that_ignore_everything_with_their_descendants_within_bounds(tmp_path: Path) -> None:
    async def main() -> None:
        stubborn = {
            f"s{number}": entry(
                tmp_path,
                {"ignore_eof": True, "ignore_term": True, "start": [{"spawn": "daemon"}, {"spawn": "child"}]},
            )
            for number in range(3)
        }
        async with connected(stubborn) as connections:
            await asyncio.gather(*(connections.get(name).connect() for name in stubborn))
            pids = [pid for server in stubborn.values() for pid in pids_of(server)]
            assert len(pids) == 9
            before = time.monotonic()
            await connections.close()
            assert time.monotonic() - before < 6.0
            assert await asyncio.to_thread(gone, pids, 1.0)
            await connections.close()

    run(main())


@pytest.mark.slow
def test_a_loop_that_ends_without_close_leaves_no_process(tmp_path: Path) -> None:
    server = entry(tmp_path, {"start": [{"spawn": "daemon"}], "ignore_eof": True})

    async def main() -> None:
        from pi_mcp.config import configuration_of
        from pi_mcp.connect import Connections

        connections = Connections(configuration_of({"s": server}))
        await connections.get("s").connect()

    run(main(), tidy=False)
    assert gone(pids_of(server), 6.0)


def test_no_sdk_text_and_no_traceback_reaches_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        server = entry(
            tmp_path,
            {
                "start": [{"raw": "noise\n"}],
                "tools/call": [[{"raw": '{"jsonrpc":"2.0","id":$ID,"result":7}\n'}]],
                "tools/list": [[{"raw": "{\n"}, {"error": [-32603, f"Traceback {SECRET}"]}]],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            assert (await refused(one.call_tool("x", {}))).diagnostic.code == "protocol_error"
            assert (await refused(one.list_tools())).diagnostic.code == "operation_failed"

    run(main())
    assert capfd.readouterr() == ("", "")


def test_cycles_of_connect_and_close_leak_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(tmp_path, protocol="legacy")
        async with connected({"s": server}) as connections:
            one: Connection = connections.get("s")
            for _ in range(10):
                await one.connect()
                await one.close()
                assert (one.state, len(children_of(os.getpid()))) == ("idle", 0)

    run(main())


def test_tools_keep_what_the_sdk_would_drop(tmp_path: Path) -> None:
    odd = [tool("a", extra={"k": 1}, annotations={"readOnlyHint": "yes"}), {"name": "bare"}]
    results = {
        "none": {"structuredContent": {"n": 1}},
        "null": {"content": None},
        "block": {"content": [{"type": "hologram", "data": "…"}], "other": 1, "isError": "no"},
    }

    async def main() -> None:
        script: dict[str, Any] = {"tools/list": [[{"result": {"tools": odd}}]]}
        script |= {f"tools/call:{name}": [[{"result": result}]] for name, result in results.items()}
        async with connected({"s": entry(tmp_path, script)}) as connections:
            one = connections.get("s")
            assert list((await one.list_tools()).tools) == odd
            for name, result in results.items():
                assert await one.call_tool(name, {}) == result

    run(main())


def test_text_that_is_no_unicode_and_arguments_that_are_no_json_harm_only_their_call(tmp_path: Path) -> None:
    async def main() -> None:
        answer = '{"jsonrpc":"2.0","id":$ID,"result":%s}\n'
        server = entry(
            tmp_path,
            {
                "tools/call:value": [{"raw": answer % '{"content":[],"x":"\\ud800"}'}],
                "tools/call:key": [{"raw": answer % '{"\\ud800":1}'}],
                "tools/call:id": [{"raw": '{"id":"\\ud800","result":{}}\n{"method":"\\ud800"}\n'}, {"echo": True}],
            },
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            assert (await one.call_tool("value", {}))["x"] == "\ud800"
            assert (await one.call_tool("key", {}))["\ud800"] == 1
            assert text_of(await one.call_tool("id", {}))
            sent = json.loads(text_of(await one.call_tool("echo", {"a": "\ud800é"})))
            assert sent["arguments"] == {"a": "\ud800é"}
            error = await refused(one.call_tool("echo", {"a": object()}))
            assert "nothing was sent" in error.diagnostic.message
            assert "unknown" not in error.diagnostic.message
            assert text_of(await one.call_tool("echo", {}))
            assert one.generation == 1

    run(main())


@pytest.mark.slow
def test_a_server_that_closes_its_stdin_ends_the_call_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        server = entry(
            tmp_path, {"tools/call:deaf": [[{"echo": True}, {"close_stdin": True}, {"sleep": 60}]], "in_order": True}
        )
        async with connected({"s": server}) as connections:
            one = connections.get("s")
            await one.call_tool("deaf", {})
            await asyncio.sleep(0.2)
            before = time.monotonic()
            await refused(one.call_tool("echo", {"a": 1}))
            await one.call_tool("echo", {})
            assert time.monotonic() - before < 6.0
            assert one.generation == 2

    run(main())
