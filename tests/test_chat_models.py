"""Conversations of `pi-mcp chat` with scripted models and a real server, as processes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.chat_support import Desk
from tests.model_servers import Call, Fail, ModelServer, Request, Say

pytestmark = pytest.mark.slow
KEY = "sk-planted-4711-secret"
SUM = "mcp__desk__add_numbers"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def options(kind: str, server: ModelServer) -> tuple[list[str], dict[str, str]]:
    if kind == "openai":
        return ["--model", "fake-model", "--base-url", server.openai], {"OPENAI_API_KEY": KEY}
    return ["--model", "anthropic:claude-fake", "--base-url", server.anthropic], {"ANTHROPIC_API_KEY": KEY}


def only_if_declared(name: str, arguments: dict[str, Any]):
    """The model calls a tool only when the very request declares it."""

    def step(body: dict[str, Any]) -> Call | Say:
        declared = [tool.get("function", tool)["name"] for tool in body["tools"]]
        return Call((name, arguments)) if name in declared else Say(f"{name} is not declared: {declared}")

    return step


def same_prefix(requests: list[Request]) -> None:
    """System prompt and the definitions that an earlier request had are the same bytes in every later one."""
    for earlier, later in itertools.pairwise(requests):
        assert later.system == earlier.system
        shared = later.tools[: len(earlier.tools)]
        assert json.dumps(shared) == json.dumps(earlier.tools)
        said = earlier.body["messages"]
        assert later.body["messages"][: len(said)] == said


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_tool_that_the_search_loads_is_called_in_the_same_turn_and_again_after_resume(desk: Desk, kind: str) -> None:
    script = [
        Call(("mcp_search", {"query": "add two numbers", "limit": 1})),
        only_if_declared(SUM, {"a": 20, "b": 22}),
        lambda body: Say("The sum is 42."),
        only_if_declared(SUM, {"a": 1, "b": 2}),
        Say("And that is 3."),
    ]
    with ModelServer(script) as server:
        arguments, environ = options(kind, server)
        first = desk.run(*arguments, "-p", "What is 20 plus 22?", environ=environ)
        assert (first.returncode, first.stdout) == (0, "The sum is 42.\n"), first.stderr
        one, two, three = server.requests
        assert one.tool_names == ["mcp_search"]
        assert two.tool_names == ["mcp_search", SUM]
        assert "The first number." in json.dumps(two.tool(SUM))
        assert three.results()[-1] == "42"
        assert desk.seen == [{"call": "add_numbers", "arguments": {"a": 20, "b": 22}}]

        second = desk.run("--resume", "-p", "And 1 plus 2?", environ=environ)
        assert (second.returncode, second.stdout) == (0, "And that is 3.\n"), second.stderr
        assert server.requests[3].tool_names == ["mcp_search", SUM]
        assert server.requests[4].results() == [*three.results(), "3"]
        same_prefix(server.requests)


@pytest.mark.parametrize(
    ("name", "arrives"), [("claude-opus-5", '"type":"tool_addition"'), ("claude-sonnet-5", '"type":"tool_reference"')]
)
def test_anthropics_own_endpoint_is_given_a_loaded_tool_deferred_so_that_what_it_has_cached_stays(
    desk: Desk, name: str, arrives: str
) -> None:
    script = [
        Call(("mcp_search", {"query": "add two numbers", "limit": 1})),
        only_if_declared(SUM, {"a": 20, "b": 22}),
        Say("The sum is 42."),
        only_if_declared(SUM, {"a": 1, "b": 2}),
        Say("And that is 3."),
    ]
    with ModelServer(script) as server:
        # What the client library takes for Anthropic's own address.
        environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.anthropic}
        first = desk.run("--model", f"anthropic:{name}", "-p", "What is 20 plus 22?", environ=environ)
        assert (first.returncode, first.stdout) == (0, "The sum is 42.\n"), first.stderr
        second = desk.run("--resume", "-p", "And 1 plus 2?", environ=environ)
        assert (second.returncode, second.stdout) == (0, "And that is 3.\n"), second.stderr
        one, *later = server.requests
        assert one.tool_names == ["mcp_search"]
        for request in later:
            assert (request.system, request.tools[0]) == (one.system, one.tools[0])
            assert [tool.get("defer_loading") for tool in request.tools] == [None, True]
            assert request.tool_names == ["mcp_search", SUM]
            assert arrives in request.raw.decode().replace('": "', '":"')


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_the_key_is_sent_and_kept_nowhere(desk: Desk, kind: str, private_home: Path) -> None:
    with ModelServer([Call(("mcp_search", {"query": "add"})), Fail(500), Fail(500), Fail(500), Fail(500)]) as server:
        arguments, environ = options(kind, server)
        done = desk.run(*arguments, "-p", "hello", environ={**environ, "PI_MCP_LOG": "debug"})
        sent = server.requests[0].headers
        assert KEY in sent.get("authorization", "") + sent.get("x-api-key", "")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "HTTP status 500" in done.stderr
    written = [path for path in private_home.rglob("*") if path.is_file()]
    assert any("chats" in path.parts for path in written)
    for path in written:
        assert KEY.encode() not in path.read_bytes(), path
    assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "authentication_required", 4),
        (403, "permission_denied", 4),
        (404, "not_found", 5),
        (400, "operation_failed", 3),
    ],
)
def test_an_endpoint_that_refuses_gives_one_line_in_our_words(
    desk: Desk, status: int, code: str, exit_code: int
) -> None:
    with ModelServer([Fail(status, json.dumps({"error": {"message": f"planted {KEY}"}}))]) as server:
        arguments, environ = options("openai", server)
        done = desk.run(*arguments, "-p", "hello", environ=environ)
    assert done.returncode == exit_code
    assert done.stderr.startswith(f"[{code}] ")
    assert done.stderr.count("\n") == 1
    assert KEY not in done.stderr
    assert "planted" not in done.stderr


def test_an_endpoint_that_is_not_there_is_named(desk: Desk) -> None:
    done = desk.run("--model", "x", "--base-url", "http://127.0.0.1:9/v1", "-p", "hello")
    assert done.returncode == 3
    assert done.stderr.startswith("[connection_failed] The model's endpoint cannot be reached.")


def test_a_missing_key_names_the_variable(desk: Desk) -> None:
    done = desk.run("--model", "openai:gpt-5", "-p", "hello")
    assert done.returncode == 4
    assert "OPENAI_API_KEY" in done.stderr
    done = desk.run("--model", "anthropic:claude-x", "-p", "hello")
    assert "ANTHROPIC_API_KEY" in done.stderr


def test_one_line_that_is_a_command_is_run_and_never_sent_to_the_model(desk: Desk) -> None:
    with ModelServer([Say("I am the model.")]) as server:
        arguments, environ = options("openai", server)
        called = desk.run(*arguments, "-p", "/call desk.add_numbers a=1 b=2", environ=environ)
        assert (called.returncode, called.stdout, called.stderr) == (0, "3\n", "")
        assert desk.run(*arguments, "-p", "/mcp load desk.add_numbers", environ=environ).returncode == 0
        resumed = desk.run("--resume", "-p", " /tools ", environ=environ)
        assert f"1  {SUM}" in resumed.stdout
        assert desk.run(*arguments, "-p", "/mcp get nobody", environ=environ).returncode == 5
        mistyped = desk.run(*arguments, "-p", "/mpc status", environ=environ)
        assert (mistyped.returncode, mistyped.stderr) == (2, "[usage] There is no command /mpc. Close: /mcp.\n")
        assert server.requests == []
        path = desk.run(*arguments, "-p", "/etc/hosts is odd, why?", environ=environ)
        assert path.stdout == "I am the model.\n"
    assert len(server.requests) == 1


def test_a_model_without_endpoint_is_refused_with_what_to_write(desk: Desk) -> None:
    done = desk.run("--model", "gpt-5", "-p", "hello")
    assert done.returncode == 2
    assert "openai:NAME" in done.stderr


def test_failures_of_a_tool_are_results_that_the_model_reads_and_nothing_is_repeated(desk: Desk) -> None:
    fails = "mcp__desk__always_fails"
    script = [
        Call(("mcp_search", {"query": "always_fails", "limit": 1})),
        Call((fails, {})),
        Call((fails, "{not json")),
        Call(("mcp_search", {"query": ""}), ("mcp_search", {"qeury": "x"})),
        Call(("mcp__desk__unknown", {})),
        Say("It did not work."),
    ]
    with ModelServer(script) as server:
        arguments, environ = options("openai", server)
        done = desk.run(*arguments, "-p", "break it", environ=environ)
        assert (done.returncode, done.stdout) == (0, "It did not work.\n"), done.stderr
        results = server.requests[-1].results()
    assert results[1] == f"{fails} reported an error:\nthe disk is full"
    assert results[2].startswith("[usage] The arguments were no JSON object")
    assert results[3].startswith("[usage] ")
    assert results[4].startswith("[usage] ")
    assert "unknown" in results[5].lower()
    assert desk.seen == [{"call": "always_fails", "arguments": {}}]


def test_a_secret_that_a_server_gives_away_is_not_kept_with_the_chat(tmp_path: Path, private_home: Path) -> None:
    desk = Desk(tmp_path, {"env": {"CHAT_SECRET": "${PLANTED}"}})
    script = [
        Call(("mcp_search", {"query": "show_secret", "limit": 1})),
        Call(("mcp__desk__show_secret", {})),
        Say("I saw it."),
        Say("Still readable."),
    ]
    with ModelServer(script) as server:
        arguments, environ = options("openai", server)
        environ["PLANTED"] = "planted-environment-value"
        done = desk.run(*arguments, "-p", "show it", environ=environ)
        assert done.stdout == "I saw it.\n", done.stderr
        for path in private_home.rglob("*"):
            assert not path.is_file() or b"planted-environment-value" not in path.read_bytes(), path
        again = desk.run("--resume", "-p", "and now", environ=environ)
        assert again.stdout == "Still readable.\n", again.stderr
        assert server.requests[-1].results()[-1] == "secret=***"


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_an_image_reaches_the_model_as_an_image(desk: Desk, kind: str) -> None:
    script = [
        Call(("mcp_search", {"query": "draw_picture", "limit": 1})),
        Call(("mcp__desk__draw_picture", {})),
        Say("A dot."),
    ]
    with ModelServer(script) as server:
        arguments, environ = options(kind, server)
        done = desk.run(*arguments, "-p", "draw", environ=environ)
        assert done.stdout == "A dot.\n", done.stderr
        sent = server.requests[-1].raw.decode()
        same_prefix(server.requests)
    assert "A red dot." in sent
    assert "iVBORw0KGgo" in sent
    assert "image/png" in sent


def test_parallel_searches_load_in_the_order_in_which_the_model_wrote_them(desk: Desk) -> None:
    script = [
        Call(("mcp_search", {"query": "wait_long", "limit": 1}), ("mcp_search", {"query": "add_numbers", "limit": 1})),
        Say("ok"),
    ]
    with ModelServer(script) as server:
        arguments, environ = options("openai", server)
        desk.run(*arguments, "-p", "go", environ=environ)
        assert server.requests[1].tool_names == ["mcp_search", "mcp__desk__wait_long", SUM]
