"""Servers that people really run, started as they start them: connect, list, call, elicit, cancel, close.

npm packages are put into `.test-env/npm/PACKAGE_VERSION` once, without their install scripts; where npm or the registry
is missing their tests are skipped and say so. The PyPI servers come with the `demo` extra.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.http_server import HttpServer, closed_port
from tests.hostile.processes import alive, descendants_of
from tests.hostile.product import Person, product
from tests.support import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGES = {
    "everything": ("@modelcontextprotocol/server-everything", "2026.8.31", "mcp-server-everything"),
    "filesystem": ("@modelcontextprotocol/server-filesystem", "2026.8.31", "mcp-server-filesystem"),
    "memory": ("@modelcontextprotocol/server-memory", "2026.8.31", "mcp-server-memory"),
    "playwright": ("@playwright/mcp", "0.0.83", "playwright-mcp"),
    "devtools": ("chrome-devtools-mcp", "1.11.0", "chrome-devtools-mcp"),
}
FOLDER = Path(__file__).resolve().parent.parent / ".test-env" / "npm"


def npx(name: str, *arguments: str, **fields: Any) -> dict[str, Any]:
    """An entry that starts a pinned package with npx; the package is fetched when it is not there yet."""
    package, version, binary = PACKAGES[name]
    if shutil.which("npx") is None or shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = FOLDER / f"{re.sub('[/@]', '_', package)}_{version}"
    if not (folder / "node_modules" / ".bin" / binary).exists():
        folder.mkdir(parents=True, exist_ok=True)
        fetch = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
        try:
            done = subprocess.run([*fetch, f"{package}@{version}"], capture_output=True, timeout=180)
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not fetch {package}@{version} within 180 s")
        if done.returncode:
            pytest.skip(f"npm cannot fetch {package}@{version}")
    started = ["--no-install", "--offline", "--prefix", str(folder), binary, *arguments]
    return {"command": "npx", "args": started, "inheritEnv": ["npm_config_cache"], **fields}


def pypi(module: str, *arguments: str, **fields: Any) -> dict[str, Any]:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (the `demo` extra)")
    return {"command": sys.executable, "args": ["-m", module, *arguments], **fields}


def test_everything_lists_calls_asks_reports_progress_and_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        person = Person(form={"name": "Ada"})
        async with product(tmp_path, {"everything": npx("everything")}, host=person) as made:
            await made.search("echo a message")
            # It changes its list after the handshake, when it knows what the client can do.
            await asyncio.sleep(1.0)
            names = [
                "echo",
                "get-sum",
                "get-tiny-image",
                "get-structured-content",
                "get-resource-links",
                "get-roots-list",
            ]
            names += ["trigger-elicitation-request", "trigger-long-running-operation", "get-resource-reference"]
            await made.mcp("refresh everything")
            await made.load(*(f"everything.{name}" for name in names))
            native = {one.tool: one.native for one in made.session.loaded}
            assert set(names) <= set(native)
            assert "hello" in await made.text(native["echo"], message="hello")
            assert "5" in await made.text(native["get-sum"], a=2, b=3)
            image = await made.call(native["get-tiny-image"])
            assert any(block["type"] == "image" for block in image.content)
            structured = await made.call(native["get-structured-content"], location="Chicago")
            assert structured.structured
            assert "Warning" not in structured.text
            links = await made.call(native["get-resource-links"], count=3)
            assert len(re.findall(r"demo://", links.text)) >= 3
            assert (await made.call(native["get-resource-reference"], resourceType="Blob", resourceId=1)).text
            assert tmp_path.as_uri() in await made.text(native["get-roots-list"])
            answered = await made.text(native["trigger-elicitation-request"])
            assert person.asked
            assert "Ada" in answered
            wrong = await made.session.call(native["get-sum"], {"a": "no number"})
            assert wrong.is_error

            seen: list[float] = []
            steps = {"duration": 1, "steps": 4}
            await made.session.call(
                native["trigger-long-running-operation"], steps, on_progress=lambda done, total, text: seen.append(done)
            )
            assert len(seen) >= 3
            long = asyncio.ensure_future(
                made.session.call(native["trigger-long-running-operation"], {"duration": 60, "steps": 60})
            )
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            long.cancel()
            with pytest.raises(asyncio.CancelledError):
                await long
            assert time.monotonic() - begun < 5.0
            assert "again" in await made.text(native["echo"], message="again")
            assert made.plugin.connections.get("everything").generation == 1

    run(main(), 120)


@pytest.mark.parametrize("transport", ["streamableHttp", "sse"])
def test_everything_over_the_network(tmp_path: Path, transport: str) -> None:
    started = npx("everything", transport)
    port = closed_port()
    with subprocess.Popen(
        [started["command"], *started["args"]],
        env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip

        async def main() -> None:
            kind, path = ("http", "mcp") if transport == "streamableHttp" else ("sse", "sse")
            servers = {"everything": {"type": kind, "url": f"http://127.0.0.1:{port}/{path}"}}
            async with product(tmp_path, servers) as made:
                for _ in range(40):
                    answer = await made.search("echo a message")
                    if not answer.not_searched:
                        break
                    await asyncio.sleep(0.5)
                await made.load("everything.echo")
                assert "hello" in await made.text("mcp__everything__echo", message="hello")

        try:
            run(main(), 90)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_filesystem_and_memory_keep_what_they_are_given(tmp_path: Path) -> None:
    async def main() -> None:
        allowed = tmp_path / "allowed"
        allowed.mkdir()
        servers = {
            "files": npx("filesystem", str(allowed)),
            "memory": npx("memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}),
        }
        async with product(tmp_path, servers) as made:
            await made.search("read file")
            await made.load("files.write_file", "files.read_text_file", "memory.create_entities", "memory.read_graph")
            path = str(allowed / "a.txt")
            await made.text("mcp__files__write_file", path=path, content="grün\n")
            assert "grün" in await made.text("mcp__files__read_text_file", path=path)
            outside = await made.call("mcp__files__read_text_file", path="/etc/hostname")
            assert outside.is_error
            entity = {"name": "Ada", "entityType": "person", "observations": ["wrote the first program"]}
            await made.text("mcp__memory__create_entities", entities=[entity])
            assert "first program" in await made.text("mcp__memory__read_graph")

    run(main(), 120)


@pytest.mark.parametrize(("name", "least"), [("playwright", 15), ("devtools", 15)])
def test_browser_servers_list_and_say_in_words_what_is_missing(tmp_path: Path, name: str, least: int) -> None:
    async def main() -> None:
        async with product(tmp_path, {name: npx(name, "--headless", toolTimeoutMs=20_000)}) as made:
            await made.mcp(f"refresh {name}")
            held = made.plugin.catalogs.held(name)
            assert held is not None
            assert len(held.tools) >= least
            await made.load(*(f"{name}.{one.name}" for one in held.tools))
            assert len(made.session.loaded) == len(held.tools), await made.mcp(f"tools {name}")
            assert held.tools[0].wire["inputSchema"]
            browser = any(shutil.which(one) for one in ("chromium", "google-chrome", "chrome"))
            if not browser and name == "playwright":
                answer = await made.call("mcp__playwright__browser_tabs", action="list")
                assert answer.is_error
            assert descendants_of(os.getpid())

    run(main(), 120)


def test_the_reference_servers_from_pypi(tmp_path: Path) -> None:
    async def main() -> None:
        repository = tmp_path / "repository"
        repository.mkdir()
        for words in (["init", "-q"], ["config", "user.email", "a@b.invalid"], ["config", "user.name", "A"]):
            await asyncio.to_thread(subprocess.run, ["git", "-C", str(repository), *words], check=True, timeout=20)
        (repository / "a.txt").write_text("one\n")
        page = {"status": 200, "type": "text/html", "body": "<html><body><h1>Heading</h1><p>Words.</p></body></html>"}
        with HttpServer({"/page": page, "/robots.txt": {"status": 404}}) as web:
            servers = {
                "time": pypi("mcp_server_time", "--local-timezone", "UTC"),
                "git": pypi("mcp_server_git", "--repository", str(repository)),
                "fetch": pypi("mcp_server_fetch", "--allow-private-ips"),
            }
            async with product(tmp_path, servers) as made:
                answer = await made.search("current time")
                assert not answer.not_searched
                assert answer.loaded[0].native == "mcp__time__get_current_time"
                assert "UTC" in await made.text("mcp__time__get_current_time", timezone="UTC")
                await made.load("git.git_status", "git.git_add", "fetch.fetch", "time.convert_time")
                assert "a.txt" in await made.text("mcp__git__git_status", repo_path=str(repository))
                await made.text("mcp__git__git_add", repo_path=str(repository), files=["a.txt"])
                assert "Heading" in await made.text("mcp__fetch__fetch", url=f"{web.origin}/page")
                wrong = await made.call("mcp__time__get_current_time", timezone="Nowhere/Land")
                assert wrong.is_error
                task = asyncio.ensure_future(made.session.call("mcp__fetch__fetch", {"url": "http://192.0.2.1/"}))
                await asyncio.sleep(0.3)
                begun = time.monotonic()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert time.monotonic() - begun < 5.0
                assert "UTC" in await made.text("mcp__time__get_current_time", timezone="UTC")
                states = json.dumps([made.state(name) for name in servers])
                assert states == '["connected", "connected", "connected"]'
                pids = descendants_of(os.getpid())
            assert not alive(pids)

    run(main(), 120)
