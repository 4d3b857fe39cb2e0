"""Every kind of credential, with every kind of scope, in both eras and both faces: what is seen, what is done, and
that nothing else is told of and nothing that was refused ever left.

The expectations are written down by hand: nothing here asks the code under test what is right.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pi_mcp.access import AuditFilter
from tests.access_support import KINDS, Shared, shared_gateway
from tests.gateway_support import Client, Failed, ModernClient
from tests.hostile.script import entry, methods_of, record_of, tool
from tests.plugin_support import greeting
from tests.support import run

READ = {"annotations": {"readOnlyHint": True}}
# Each word is of one server alone, so that a text tells whom it speaks of.
APPLE = [tool("apple_look", description="appleseed", **READ), tool("apple_turn"), tool("apple_show", **READ)]
BERRY = [tool("berry_look", description="berryseed", **READ), tool("berry_turn")]
CEDAR = [tool("cedar_look", description="cedarseed", **READ)]
TOOLS = {
    **{f"apple__{one['name']}": "apple" for one in APPLE},
    **{f"berry__{one['name']}": "berry" for one in BERRY},
    **{f"cedar__{one['name']}": "cedar" for one in CEDAR},
}
SERVERS = ("apple", "berry", "cedar")
ARGUMENTS: dict[str, Any] = {"apple__apple_show": {"deckId": 1}}
"""`apple_show` reads, and with this argument writes, by the operator's word."""


def upstream(folder: Path, name: str, tools: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return entry(
        folder,
        {
            "initialize": greeting(
                capabilities={"tools": {}, "resources": {}, "prompts": {}, "completions": {}},
                instructions=f"{name} instructions",
            ),
            "tools/list": [{"result": {"tools": tools}}],
            "resources/list": [
                {
                    "result": {
                        "resources": [
                            {"uri": f"file:///{name}", "name": f"{name}-file"},
                            {"uri": f"ui://{name}/app", "name": f"{name}-app"},
                        ]
                    }
                }
            ],
            "resources/templates/list": [
                {"result": {"resourceTemplates": [{"uriTemplate": f"file:///{name}/{{id}}", "name": f"{name}-t"}]}}
            ],
            "resources/read": [{"result": {"contents": [{"uri": f"file:///{name}", "text": f"{name} content"}]}}],
            "prompts/list": [{"result": {"prompts": [{"name": f"{name}_ask"}]}}],
            "prompts/get": [
                {"result": {"messages": [{"role": "user", "content": {"type": "text", "text": f"{name} prompt"}}]}}
            ],
            "completion/complete": [{"result": {"completion": {"values": [f"{name}-value"]}}}],
        },
        **fields,
    )


def world(folder: Path) -> dict[str, dict[str, Any]]:
    folder.mkdir(parents=True)
    rules = {"write": [{"tool": "apple_show", "when": {"argument": "deckId"}}]}
    return {
        "apple": upstream(folder, "apple", APPLE, access=rules),
        "berry": upstream(folder, "berry", BERRY),
        # Its claim that it only reads does not count; that its tools are called is its operator's word.
        "cedar": upstream(folder, "cedar", CEDAR, trust="untrusted", includeTools=["cedar_look"]),
    }


def allowed(tools: str = "", resources: str = "", apps: str = "", prompts: str = "", show: bool = False) -> Any:
    """Tools as `apple_look`, the others by server. `show`: apple_show with its writing argument."""
    names = {f"{one.split('_')[0]}__{one}" for one in tools.split()}
    return names, set(resources.split()), set(apps.split()), set(prompts.split()), show


EVERY = "apple berry cedar"
READS = "apple_look apple_show berry_look"
WRITES = "apple_turn berry_turn cedar_look"
SCOPES: dict[str, Any] = {
    "": allowed(),
    "tools:read": allowed(READS),
    "tools:write": allowed(WRITES),
    "tools:read tools:write": allowed(f"{READS} {WRITES}", show=True),
    "resources:read": allowed(resources=EVERY),
    "apps:render": allowed(apps=EVERY),
    "prompts:read": allowed(prompts=EVERY),
    "admin": allowed(),
    "server:apple:read": allowed("apple_look apple_show"),
    "server:berry:write": allowed("berry_turn"),
    "server:apple:*": allowed("apple_look apple_show apple_turn", "apple", "apple", "apple", show=True),
    "server:nobody:*": allowed(),
    "tool:berry/berry_turn": allowed("berry_turn"),
    "tool:apple/apple_show": allowed("apple_show", show=True),
    "tool:apple/nothing server:berry:read": allowed("berry_look"),
    "tools:read resources:read server:cedar:*": allowed(f"{READS} cedar_look", EVERY, "cedar", "cedar"),
}


class Texts(Client):
    """Keeps everything that it was answered, as text."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.said: list[str] = []
        self.statuses: Counter[int] = Counter()

    async def send(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            result = await super().send(message)
        except Failed as failed:
            # What the client itself wrote comes back in some errors: that tells nothing.
            self.said.append(json.dumps([failed.code, failed.message, _without_echo(failed.data)]))
            self.statuses[failed.status] += 1
            raise
        self.said.append(json.dumps(result))
        return result

    async def outcome(self, method: str, **params: Any) -> Any:
        """The result, or (code, message, data) of the error."""
        try:
            return await self.request(method, params)
        except Failed as failed:
            return failed.code, failed.message, json.dumps(_without_echo(failed.data))


class ModernTexts(Texts, ModernClient):
    pass


def _without_echo(data: Any) -> Any:
    return {key: value for key, value in data.items() if key != "uri"} if isinstance(data, dict) else data


async def check(shared: Shared, client: Texts, expected: Any, kind: str, era: str) -> None:
    tools, resources, apps, prompts, show = expected
    # lists
    listed = await client.every("tools/list", "tools")
    assert {one["name"] for one in listed} == tools
    found = {one["uri"] for one in await client.every("resources/list", "resources")}
    assert found == {f"file:///{one}" for one in resources} | {f"ui://{one}/app" for one in apps}
    templates = {one["uriTemplate"] for one in await client.every("resources/templates/list", "resourceTemplates")}
    assert templates == {f"file:///{one}/{{id}}" for one in resources}
    assert {one["name"] for one in await client.every("prompts/list", "prompts")} == {f"{s}__{s}_ask" for s in prompts}
    # what is done
    refusals = {
        "tool": await client.outcome("tools/call", name="nobody__nothing", arguments={}),
        "prompt": await client.outcome("prompts/get", name="nobody__nothing"),
    }
    for name in TOOLS:
        outcome = await client.outcome("tools/call", name=name, arguments={})
        assert isinstance(outcome, dict) == (name in tools), (name, outcome)
        if name not in tools:
            assert outcome == refusals["tool"], "a tool that is not granted and one that is not there differ"
            assert outcome[0] == -32003
    outcome = await client.outcome("tools/call", name="apple__apple_show", arguments=ARGUMENTS["apple__apple_show"])
    assert isinstance(outcome, dict) == show
    if not show:
        assert outcome[0] == -32003
    for server in SERVERS:
        for uri, permitted in ((f"file:///{server}", resources), (f"ui://{server}/app", apps)):
            outcome = await client.outcome("resources/read", uri=uri)
            # These upstreams answer for every address: with one permitted, that one may be asked.
            assert isinstance(outcome, dict) == bool(permitted), (uri, outcome)
            assert not permitted or server_of(outcome) in permitted
            if server not in permitted:
                assert outcome == await client.outcome("resources/read", uri=uri.replace(server, "nobody"))
        for reference, permitted in (
            ({"type": "ref/prompt", "name": f"{server}__{server}_ask"}, prompts),
            ({"type": "ref/resource", "uri": f"file:///{server}/{{id}}"}, resources),
        ):
            outcome = await client.outcome("completion/complete", ref=reference, argument={"name": "id", "value": ""})
            asked = bool(permitted) if "uri" in reference else server in permitted
            assert isinstance(outcome, dict) == asked, (reference, outcome)
            assert not asked or server_of(outcome) in permitted
        outcome = await client.outcome("prompts/get", name=f"{server}__{server}_ask")
        assert isinstance(outcome, dict) == (server in prompts)
        if server not in prompts and not prompts:
            assert outcome == refusals["prompt"]
    # what is told
    reached = {TOOLS[name] for name in tools} | resources | apps | prompts
    silent = [server for server in SERVERS if server not in reached]
    hidden = [name.split("__")[1] for name in TOOLS if name not in tools]
    for text in client.said:
        assert not any(server in text for server in silent), (silent, text)
        assert not any(name in text for name in hidden), (hidden, text)
    # how it is told
    if kind == "oauth":
        assert client.statuses[403] > 0
    else:
        assert client.statuses[403] == 0
        assert client.statuses[401] == 0


def server_of(outcome: Any) -> str | None:
    """The server whose own answer it is."""
    text = json.dumps(outcome)
    return next((server for server in SERVERS if server in text), None)


QUICK = ("tools:read", "server:apple:*", "tool:berry/berry_turn")


@pytest.mark.parametrize(
    ("kind", "era", "some"),
    [
        *(pytest.param(kind, era, tuple(SCOPES), marks=pytest.mark.slow) for kind in KINDS for era in ("2025", "2026")),
        ("bearer", "2025", QUICK),
        ("oauth", "2026", QUICK),
    ],
)
def test_b200_who_may_see_and_do_what(tmp_path: Path, kind: str, era: str, some: tuple[str, ...]) -> None:
    async def work() -> None:
        servers = world(tmp_path / "servers")
        made = Texts if era == "2025" else ModernTexts
        async with shared_gateway(servers, tmp_path, expose="all", page_size=2) as shared:
            permitted: Counter[str] = Counter()
            for scopes in some:
                expected = SCOPES[scopes]
                if kind == "oauth" and scopes in ("", "admin"):
                    continue  # the embedded server gives no token for nothing, and no program administers
                async with made(shared.url, **await shared.headers(kind, scopes)) as client:
                    await check(shared, client, expected, kind, era)
                permitted.update(TOOLS[name] for name in expected[0])
                permitted["apple"] += expected[4]
            for name, server in servers.items():
                assert methods_of(server).count("tools/call") == permitted[name], name
            await every_call_has_its_row(shared, servers)

    run(work(), 110)


async def every_call_has_its_row(shared: Shared, servers: dict[str, dict[str, Any]]) -> None:
    rows = await shared.store.audit(AuditFilter(limit=None))
    assert {row.outcome for row in rows} <= {"ok", "refused"}
    written = Counter(row.tool for row in rows if row.outcome == "ok")
    sent = Counter(
        line["params"]["name"]
        for server in servers.values()
        for line in record_of(server)
        if line.get("method") == "tools/call"
        and (line["params"]["name"] not in ("apple_look", "berry_look", "apple_show") or line["params"]["arguments"])
    )
    assert written == sent
    assert all(row.scope for row in rows if row.outcome == "refused")


@pytest.mark.slow
@pytest.mark.parametrize("era", ["2025", "2026"])
@pytest.mark.parametrize("kind", ["x-api-key", "oauth"])
def test_b200_a_search_finds_counts_and_loads_what_is_granted(tmp_path: Path, kind: str, era: str) -> None:
    async def work() -> None:
        servers = world(tmp_path / "servers")
        made = Texts if era == "2025" else ModernTexts
        async with shared_gateway(servers, tmp_path) as shared:
            for scopes, (tools, *_, show) in SCOPES.items():
                if kind == "oauth" and scopes in ("", "admin"):
                    continue
                may_search = any(word in scopes for word in ("tools:", "server:", "tool:"))
                async with made(shared.url, **await shared.headers(kind, scopes)) as client:
                    own = [one["name"] for one in (await client.request("tools/list"))["tools"]]
                    assert own == (["mcp_search", "mcp_call"] if may_search else [])
                    for query in ("apple_turn", "look", "appleseed berryseed cedarseed", "nothing of the kind"):
                        outcome = await client.outcome(
                            "tools/call", name="mcp_search", arguments={"query": query, "limit": 50}
                        )
                        assert isinstance(outcome, dict) == may_search
                    for server in (*SERVERS, "nobody"):
                        arguments = {"query": "look", "server": server}
                        outcome = await client.outcome("tools/call", name="mcp_search", arguments=arguments)
                        if may_search and "tools:" not in scopes and f":{server}" not in scopes:
                            nobody = {"query": "look", "server": "nobodyelse"}
                            other = await client.outcome("tools/call", name="mcp_search", arguments=nobody)
                            said = [
                                json.dumps(one).replace(word, "X")
                                for one, word in ((outcome, server), (other, "nobodyelse"))
                            ]
                            assert said[0] == said[1]
                    for name in TOOLS:
                        inner = {"name": name, "arguments": {}}
                        outcome = await client.outcome("tools/call", name="mcp_call", arguments=inner)
                        assert isinstance(outcome, dict) == (name in tools), (scopes, name, outcome)
                    inner = {"name": "apple__apple_show", "arguments": {"deckId": 1}}
                    outcome = await client.outcome("tools/call", name="mcp_call", arguments=inner)
                    assert isinstance(outcome, dict) == show
                    loaded = [one["name"] for one in (await client.request("tools/list"))["tools"]][2:]
                    assert set(loaded) <= tools
                    # A server in reach is named, also when it has no tool that the caller may use.
                    reached = {TOOLS[name] for name in tools}
                    reached |= {one for one in SERVERS if re.search(f":{one}[:/]", scopes)}
                    if "tools:" in scopes:
                        reached |= set(SERVERS)
                    hidden = [name.split("__")[1] for name in TOOLS if name not in tools]
                    for text in client.said:
                        # What the client itself asked for comes back in these two sentences.
                        told = re.sub(r"No server is called '[a-z]+'|says anything of [^.]*\.", "", text)
                        assert not any(word in told for word in hidden), (scopes, told)
                        assert not any(word in told for word in SERVERS if word not in reached), (scopes, told)

    run(work(), 110)


def test_a_header_narrows_one_request_and_nothing_else(tmp_path: Path) -> None:
    async def work() -> None:
        servers = world(tmp_path / "servers")
        async with shared_gateway(servers, tmp_path, expose="all", page_size=2) as shared:
            for made in (Texts, ModernTexts):
                async with made(shared.url, **await shared.headers("bearer", "tools:read server:berry:*")) as client:
                    everything = {one["name"] for one in await client.every("tools/list", "tools")}
                    for header, left in (
                        ("server:berry:write", {"berry__berry_turn"}),
                        ("tools:read", {"apple__apple_look", "apple__apple_show", "berry__berry_look"}),
                        ("tools:read, tools:write", set()),
                        ("tools:read nonsense", set()),
                        ("", set()),
                        ("server:nobody:read", set()),
                    ):
                        # The list is read page by page, each page with another header: no page of one is the other's.
                        first = await client.request("tools/list")
                        assert {one["name"] for one in first["tools"]} <= everything
                        client.headers["x-mcp-scopes"] = header
                        try:
                            second = await client.request("tools/list", {"cursor": first["nextCursor"]})
                            assert {one["name"] for one in second["tools"]} <= left
                            assert {one["name"] for one in await client.every("tools/list", "tools")} == left
                            outcome = await client.outcome("tools/call", name="berry__berry_turn", arguments={})
                            assert isinstance(outcome, dict) == ("berry__berry_turn" in left)
                        finally:
                            del client.headers["x-mcp-scopes"]
                        assert {one["name"] for one in await client.every("tools/list", "tools")} == everything
            assert methods_of(servers["berry"]).count("tools/call") == 2

    run(work(), 60)


def test_one_upstream_under_its_own_names_tells_no_more(tmp_path: Path) -> None:
    """--no-prefix: capabilities, instructions, unknown methods and pages of the upstream itself."""

    async def work() -> None:
        servers = {"apple": world(tmp_path / "servers")["apple"]}
        async with shared_gateway(servers, tmp_path, expose="all", prefix=False) as shared:
            async with Texts(shared.url, **await shared.headers("bearer", "server:other:*")) as client:
                assert "instructions" not in client.initialized
                assert (await client.request("tools/list"))["tools"] == []
                for method in ("vendor/secret", "apple/method"):
                    outcome = await client.outcome(method)
                    assert outcome[0] == -32003
                assert await client.outcome("tools/call", name="apple_look", arguments={}) == await client.outcome(
                    "tools/call", name="nothing", arguments={}
                )
                assert not any("apple" in text for text in client.said)
            assert methods_of(servers["apple"]) == [], "it was not even started"
            async with Texts(shared.url, **await shared.headers("bearer", "tools:read")) as client:
                assert client.initialized["instructions"] == "apple instructions"
                assert [one["name"] for one in (await client.request("tools/list"))["tools"]] == [
                    "apple_look",
                    "apple_show",
                ]
                assert (await client.outcome("vendor/secret"))[0] == -32003
            assert "vendor/secret" not in methods_of(servers["apple"])

    run(work(), 60)
