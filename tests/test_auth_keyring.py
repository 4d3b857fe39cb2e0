"""A real Secret Service: gnome-keyring on a session bus of its own, unlocked, locked, absent, and with nobody there.

Every test starts its own bus and daemon below a folder of its own; the developer's keyring is never touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.auth_store_support import PLANTED

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("gnome-keyring-daemon") and shutil.which("dbus-run-session")),
        reason="gnome-keyring and dbus are not installed",
    ),
]

HEAD = """
import asyncio, os, subprocess, sys, time
from pathlib import Path
from pi_mcp.errors import PiMcpError
from tests.auth_store_support import PLANTED, URL, credential, store_of

FOLDER = Path(sys.argv[1])

def store(limit=45.0):
    import keyring
    return store_of(FOLDER / "state", keyring.get_keyring(), environ={}, time_limit=limit)

def lock():
    import secretstorage
    secretstorage.get_default_collection(secretstorage.dbus_init()).lock()

async def code(work):
    try:
        return repr(await work)
    except PiMcpError as error:
        return error.diagnostic.line()
"""
UNLOCK = "printf pw | gnome-keyring-daemon --unlock --components=secrets >/dev/null; "


def session(folder: Path, script: str, *, before: str = UNLOCK, bus: bool = True) -> str:
    """The output of a Python script within a session of its own, whose files are below `folder`."""
    home, runtime = folder / "home", folder / "run"
    home.mkdir(exist_ok=True)
    runtime.mkdir(mode=0o700, exist_ok=True)
    program = folder / "program.py"
    program.write_text(HEAD + textwrap.dedent(script))
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XDG_", "DBUS_", "GNOME_", "DISPLAY", "WAYLAND", "PI_MCP", "PYTHON_KEYRING"))
    }
    environ.update(HOME=str(home), XDG_RUNTIME_DIR=str(runtime), PYTHONPATH=str(ROOT))
    python = f"exec '{sys.executable}' '{program}' '{folder}'"
    command = ["dbus-run-session", "--", "sh", "-c", before + python] if bus else ["sh", "-c", python]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    assert PLANTED not in done.stdout
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    assert PLANTED not in done.stderr
    return done.stdout


def test_a_login_is_kept_in_the_secret_service_over_sessions_and_goes_whole(tmp_path: Path) -> None:
    out = session(
        tmp_path,
        """
        async def main():
            saved = credential(size=20_000, lifetime=None)
            await store().check()
            await store().save(saved)
            assert (await store().load("s", URL)).tokens.access_token == saved.tokens.access_token
            print("kept")
        asyncio.run(main())
        """,
    )
    assert out == "kept\n"
    out = session(
        tmp_path,
        """
        import secretstorage
        def ours():
            collection = secretstorage.get_default_collection(secretstorage.dbus_init())
            return [one for one in collection.get_all_items() if "pi-mcp" in str(one.get_attributes())]
        async def main():
            found = await store().load("s", URL)
            assert len(found.tokens.access_token) > 20_000
            assert len(ours()) > 10
            assert all(len(one.get_secret()) <= 1280 for one in ours())
            assert len(await store().delete("s")) == 1
            print(len(ours()), await store().load("s", URL), await store().stored())
        asyncio.run(main())
        """,
    )
    assert out == "0 None []\n"
    state = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert PLANTED.encode() not in state


def test_a_locked_secret_service_is_unavailable_and_loses_nothing(tmp_path: Path) -> None:
    out = session(
        tmp_path,
        """
        async def main():
            await store().save(credential())
            used = store()
            await used.load("s", URL)
            lock()
            print(await code(store().load("s", URL)))
            print(await code(store().save(credential(number=2))))
            print(await code(store().delete("s")))
            print(await code(store().check("s")))
            print("in memory", (await used.load("s", URL)).server)
            print("other", await store().load("other", URL))
        asyncio.run(main())
        """,
    )
    *refusals, memory, other = out.splitlines()
    assert len(refusals) == 4
    for line in refusals:
        assert line.startswith("s: [credential_store_unavailable] The credential store is locked.")
    assert memory == "in memory s"
    assert other == "other None"
    out = session(tmp_path, 'print(asyncio.run(store().load("s", URL)).tokens.access_token[:3])\n')
    assert out == "at1\n"


def test_a_wrong_password_at_the_start_of_the_session_is_a_locked_store(tmp_path: Path) -> None:
    session(tmp_path, "asyncio.run(store().save(credential()))\n")
    out = session(
        tmp_path,
        'print(asyncio.run(code(store().load("s", URL))))\n',
        before=UNLOCK.replace("pw", "wrong"),
    )
    assert "[credential_store_unavailable]" in out
    assert "at1" in session(tmp_path, 'print(asyncio.run(store().load("s", URL)).tokens.access_token[:3])\n')


def test_a_secret_service_that_was_never_set_up_or_is_not_there_is_unavailable(tmp_path: Path) -> None:
    script = """
    async def main():
        print(await code(store(3.0).check()))
        print(await code(store(3.0).save(credential())))
        print(await store(3.0).stored())
    asyncio.run(main())
    """
    for bus in (True, False):
        first, second, left = session(tmp_path, script, before="", bus=bus).splitlines()
        assert second.startswith("s: [credential_store_unavailable]")
        if not bus:
            assert "[credential_store_unavailable] There is no credential store on this machine." in first
            assert "PI_MCP_CREDENTIAL_KEY" in first
        assert left == "[]"


def test_a_prompter_that_never_answers_bounds_the_call_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    started = time.monotonic()
    out = session(
        tmp_path,
        """
        async def main():
            await store().save(credential())
            lock()
            away = subprocess.Popen([sys.executable, "-m", "tests.hang_prompter"], stdout=subprocess.PIPE)
            away.stdout.readline()
            try:
                used = store(3.0)
                before = time.monotonic()
                ticks = 0
                waiting = asyncio.create_task(code(used.load("s", URL)))
                while not waiting.done():
                    await asyncio.sleep(0.05)
                    ticks += 1
                print(await waiting)
                print("waited", 1.0 < time.monotonic() - before < 20.0, "free", ticks > 20)
                print(await code(used.load("s", URL)))
            finally:
                away.kill()
                away.wait()
        asyncio.run(main())
        os.write(1, b"ended\\n")
        """,
    )
    first, waited, second, ended = out.splitlines()
    if "locked" in first:
        pytest.skip("this gnome-keyring refuses at once where it could ask")
    assert first.startswith("s: [credential_store_unavailable] The credential store did not answer within 3 s.")
    assert waited == "waited True free True"
    assert second == first
    assert ended == "ended"
    assert time.monotonic() - started < 55


def test_ten_processes_read_and_write_one_login_in_the_secret_service(tmp_path: Path) -> None:
    out = session(
        tmp_path,
        """
        async def work(number):
            for _ in range(2):
                found = await store().load("s", URL)
                assert found.tokens.access_token.endswith("x" * 3000), "mixed"
                await store().save(credential(size=3000, number=number), renewed=True)
        if len(sys.argv) > 2:
            asyncio.run(work(int(sys.argv[2])))
            sys.exit()
        asyncio.run(store().save(credential(size=3000)))
        running = [subprocess.Popen([sys.executable, __file__, sys.argv[1], str(n)]) for n in range(2, 12)]
        print([one.wait() for one in running])
        import secretstorage
        collection = secretstorage.get_default_collection(secretstorage.dbus_init())
        print(len([one for one in collection.get_all_items() if "pi-mcp" in str(one.get_attributes())]))
        """,
    )
    codes, left = out.splitlines()
    assert codes == str([0] * 10)
    assert left == "4", "one head and three parts"


def test_a_call_uses_a_login_of_the_secret_service_and_a_locked_one_stops_no_other_server(tmp_path: Path) -> None:
    out = session(
        tmp_path,
        """
        from pi_mcp.config import configuration_of
        from pi_mcp.plugin import Plugin
        from tests.auth_store_support import Authority
        from tests.hostile.http_server import HttpServer

        async def called(servers):
            configuration = configuration_of(servers, environ={}, cwd=FOLDER)
            async with Plugin(configuration, state_dir=FOLDER / "state", cache_dir=FOLDER / "cache") as plugin:
                session = plugin.session("one", keep=False)
                codes = {}
                for name in servers:
                    found = await session.load([f"{name}.echo"])
                    if found.not_searched:
                        codes[name] = found.not_searched[0].code
                        continue
                    try:
                        await session.call(f"mcp__{name}__echo", {})
                        codes[name] = "ok"
                    except PiMcpError as error:
                        codes[name] = error.diagnostic.code
                return codes, (await session.command("get s")).text

        async def main():
            authority = Authority()
            with HttpServer(authority.script()) as http, HttpServer() as free:
                servers = {"s": {"url": http.url}, "free": {"url": free.url}}
                await store().save(authority.login("s", http, lifetime=-5.0))
                codes, text = await called(servers)
                print(codes, len(authority.requests), "in the keyring" in text, PLANTED in text)
                lock()
                codes, text = await called(servers)
                print(codes, len(authority.requests), "in the keyring" in text, PLANTED in text)
        asyncio.run(main())
        """,
    )
    first, second = out.splitlines()
    assert first == "{'s': 'ok', 'free': 'ok'} 1 True False"
    assert second == "{'s': 'credential_store_unavailable', 'free': 'ok'} 1 True False"
