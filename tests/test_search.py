"""What a search finds, and in which order (DESIGN §6; reports B166–B175)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest

from pi_mcp.catalog.records import Tool
from pi_mcp.search import FIELDS, Index, SearchTool, rank, search_tool
from pi_mcp.search import document as documents
from pi_mcp.search.index import DEFAULT
from pi_mcp.search.query import needs, read_query


def tool(server: str, name: str, description: str = "", **fields: object) -> SearchTool:
    return SearchTool(server, name, description=description, native=f"mcp__{server}__{name}", **fields)  # type: ignore[arg-type]


def index_of(*tools: SearchTool) -> Index:
    servers: dict[str, list[SearchTool]] = {}
    for each in tools:
        servers.setdefault(each.server, []).append(each)
    index = Index()
    for server, offered in servers.items():
        index.replace(server, offered)
    return index


def names(index: Index, query: str, limit: int = 5, **restrictions: object) -> list[str]:
    return [hit.name for hit in index.search(query, limit, **restrictions)]  # type: ignore[arg-type]


def pairs(index: Index, query: str, limit: int = 5) -> list[tuple[str, str]]:
    return [(hit.server, hit.name) for hit in index.search(query, limit)]


OFFICE = index_of(
    tool("forge", "create_issue", "Create a new issue in a repository.", parameters=("owner", "repo", "title")),
    tool("forge", "list_issues", "List issues in a repository."),
    tool("forge", "merge_pull_request", "Merge a pull request in a repository."),
    tool("forge", "search_code", "Search for code across repositories."),
    tool("tracker", "create_issue", "Create an issue in a project."),
    tool("tracker", "search", "Search in all projects."),
    tool("chat", "send_message", "Send a message to a channel."),
    tool("chat", "list_channels", "List the channels of the workspace."),
    tool("files", "read_file", "Read the complete contents of a file."),
    tool("files", "list_directory", "List what is in a directory."),
    tool("files", "search", "Search for files by pattern."),
)


# Exact names


@pytest.mark.parametrize("query", ["find symbol", "findSymbol", "FIND_SYMBOL", "find-symbol", "find_symbol"])
def test_b170_a_query_that_spells_a_name_finds_it_before_longer_descriptions(query: str) -> None:
    others = [
        tool("code", f"reference_{number}", "Find every symbol: find a symbol, find the symbol's uses. " * 8)
        for number in range(30)
    ]
    index = index_of(tool("code", "find_symbol", "Looks one up."), *others)
    first = index.search(query, 5)[0]
    assert (first.name, first.exact) == ("find_symbol", True)


def test_b169_a_list_of_names_brings_each_of_them_before_others() -> None:
    wanted = ["graph_find", "path_walk", "snippet_read", "graph_ask", "code_grep"]
    others = [tool("code", f"graph_path_{number}", "graph find path walk read ask grep code") for number in range(55)]
    index = index_of(*(tool("code", name) for name in wanted), *others)
    assert names(index, " ".join(wanted)) == wanted
    assert names(index, ", ".join(f"`{name}`" for name in wanted), 7)[:5] == wanted


def test_b172_a_tool_is_found_by_its_own_its_native_and_its_spoken_name() -> None:
    index = index_of(tool("desk", "shift_notes"), *(tool("desk", f"shift_{word}") for word in ("plan", "swap", "log")))
    for query in ("shift_notes", "mcp__desk__shift_notes", "desk.shift_notes", "desk shift notes"):
        assert names(index, query)[0] == "shift_notes", query
    assert index.search("desk.shift_notes", 1)[0].exact
    assert index.search("mcp__desk__shift_notes", 1)[0].exact


def test_a_name_in_a_sentence_counts_when_it_has_several_parts() -> None:
    hits = OFFICE.search("please call merge_pull_request, not create_issue.", 5)
    assert [(hit.name, hit.exact) for hit in hits[:3]] == [
        ("merge_pull_request", True),
        ("create_issue", True),
        ("create_issue", True),
    ]


def test_a_one_word_name_in_a_longer_query_does_not_come_first_by_itself() -> None:
    hits = OFFICE.search("search code in repositories", 5)
    assert hits[0].name == "search_code"
    assert not any(hit.exact for hit in hits)


def test_a_one_word_query_that_is_a_name_brings_every_tool_of_that_name() -> None:
    hits = OFFICE.search("Search", 3)
    assert {(hit.server, hit.name) for hit in hits if hit.exact} == {("files", "search"), ("tracker", "search")}
    assert not hits[2].exact


def test_a_name_that_two_servers_offer_is_written_with_its_server() -> None:
    assert pairs(OFFICE, "tracker.create_issue", 1) == [("tracker", "create_issue")]
    both = OFFICE.search("create_issue", 2)
    assert {hit.server for hit in both} == {"forge", "tracker"}
    assert all(hit.exact for hit in both)


def test_each_name_of_a_list_gets_a_tool_before_any_gets_two() -> None:
    hits = OFFICE.search("create_issue send_message", 2)
    assert {hit.name for hit in hits} == {"create_issue", "send_message"}


def test_a_verbatim_name_goes_before_one_that_is_only_spelled_alike() -> None:
    index = index_of(*(tool("post", name) for name in ("a.b", "a_b", "a-b", "Run", "run")))
    for name in ("a.b", "a_b", "a-b", "Run", "run"):
        assert names(index, name, 1) == [name]


def test_b166_tools_of_one_name_on_two_servers_are_two_hits() -> None:
    index = index_of(tool("post1", "notify_user"), tool("post2", "notify_user"))
    assert pairs(index, "notify user") == [("post1", "notify_user"), ("post2", "notify_user")]


# Words


@pytest.mark.parametrize("query", ["photo render", "rendering photos", "photo-rendering", "PhotoRender"])
def test_b173_words_find_a_name_that_joins_them(query: str) -> None:
    index = index_of(tool("lab", "photo_render_job_create"), tool("lab", "job_list"), tool("lab", "printer_reset"))
    assert names(index, query)[0] == "photo_render_job_create"


def test_b175_a_whole_word_goes_before_the_inside_of_a_longer_one() -> None:
    index = index_of(
        *(tool("s", name) for name in ("listener_events", "researcher_topic", "list_files", "search_docs"))
    )
    assert names(index, "search")[0] == "search_docs"
    assert names(index, "list")[0] == "list_files"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("k8s logs", "pod_logs"),
        ("delete a folder", "remove_directory"),
        ("repo settings", "repository_configuration"),
        ("elasticsaerch", "elasticsearch_query"),
        ("postgress", "postgres_query"),
        ("restart the virtual machine", "vm_restart"),
        ("text to speech", "tts_create"),
        ("host pool", "hostpool_list"),
        ("get rid of a directory", "remove_directory"),
    ],
)
def test_abbreviations_synonyms_typing_errors_and_joined_words_find_the_tool(query: str, found: str) -> None:
    index = index_of(
        tool("a", "pod_logs", "Logs of a Kubernetes pod."),
        tool("a", "remove_directory", "Remove a directory."),
        tool("a", "repository_configuration"),
        tool("a", "elasticsearch_query"),
        tool("a", "postgres_query"),
        tool("a", "vm_restart"),
        tool("a", "tts_create"),
        tool("a", "hostpool_list"),
        tool("a", "weather_today"),
    )
    assert names(index, query)[0] == found


def test_the_action_decides_between_tools_for_one_thing() -> None:
    index = index_of(*(tool("ship", f"{verb}_container") for verb in ("create", "delete", "list", "update")))
    assert names(index, "remove a container")[0] == "delete_container"
    assert names(index, "which containers are there?")[0] == "list_container"
    assert names(index, "edit container")[0] == "update_container"


def test_a_server_that_is_named_is_preferred() -> None:
    assert pairs(OFFICE, "tracker create issue")[0] == ("tracker", "create_issue")
    assert pairs(OFFICE, "create issue in forge")[0] == ("forge", "create_issue")


def test_keywords_of_the_configuration_find_the_servers_tools() -> None:
    index = index_of(tool("crm", "list_accounts", keywords=("customers", "Kundschaft")), tool("bank", "list_accounts"))
    assert pairs(index, "Kundschaft") == [("crm", "list_accounts")]


def test_placeholders_quotations_and_paths_do_not_outweigh_the_need() -> None:
    index = index_of(
        tool("a", "send_message", "Send a message."), tool("a", "weather_report"), tool("a", "list_reports")
    )
    assert names(index, 'send a message "weather report list reports"')[0] == "send_message"
    assert "file" in read_query("summarise /home/me/notes.md", DEFAULT).terms
    assert "url" in read_query("summarise https://example.org/a?b=c", DEFAULT).terms
    assert "url" in read_query("open example.com and log in", DEFAULT).terms
    assert "email" in read_query("invite ada@example.org", DEFAULT).terms
    assert "url" not in read_query('post "a.b" in x.y to v1.2', DEFAULT).terms


def test_a_query_of_several_needs_brings_a_tool_for_each() -> None:
    crowd = [tool("forge", f"create_issue_{number}", "Create an issue, create issues.") for number in range(20)]
    index = index_of(tool("chat", "send_message", "Send a message to a channel."), *crowd)
    assert needs("create an issue and post it to the channel") == ["create an issue", "post it to the channel"]
    assert "send_message" in names(index, "create an issue and post it to the channel")
    assert len(needs("read files and folders")) < 2


# Scripts


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("查询天气", "cn_weather"),
        ("今天的天气", "cn_weather"),
        ("天気", "jp_weather"),
        ("날씨를 알려줘", "kr_weather"),
        ("погода", "ru_weather"),
        ("ПОГОДА", "ru_weather"),
        ("météo", "fr_weather"),
        ("METEO", "fr_weather"),
        ("ｗｅａｔｈｅｒ", "en_weather"),
        ("ﬁle", "file"),
    ],
)
def test_other_scripts_accents_and_compatibility_forms_are_found(query: str, found: str) -> None:
    index = index_of(
        tool("a", "cn_weather", "查询指定城市的天气预报"),
        tool("a", "cn_train", "查询火车票"),
        tool("a", "jp_weather", "都市の天気を調べる"),
        tool("a", "kr_weather", "도시의 날씨"),
        tool("a", "ru_weather", "Показывает погода по городу"),
        tool("a", "fr_weather", "Donne la météo"),
        tool("a", "en_weather", "Forecast"),
        tool("a", "file", "Something else"),
    )
    assert names(index, query)[0] == found


# Small catalogs, restrictions, order


def test_an_empty_index_finds_nothing() -> None:
    index = Index()
    assert index.search("anything", 5) == []
    assert index.close_names("anything") == []
    index.replace("empty", [])
    assert index.search("anything", 5) == []
    assert rank([], ["anything"], 5) == [[]]


def test_catalogs_of_one_and_two_tools_are_found() -> None:
    one = index_of(tool("s", "get_weather", "Weather of a city."))
    assert [hit.name for hit in one.search("weather in a city", 5) if hit.score > 0] == ["get_weather"]
    two = index_of(tool("s", "get_weather", "Weather of a city."), tool("s", "get_time", "Time of a city."))
    assert [hit.name for hit in two.search("weather in a city", 5) if hit.score > 0] == ["get_weather", "get_time"]


def test_tools_without_any_word_do_no_harm() -> None:
    index = index_of(tool("", ""), tool("s", "___"), tool("s", "read_file"))
    assert names(index, "read file") == ["read_file"]
    assert index_of(tool("", "")).search("x", 3) == []


def test_what_is_not_allowed_is_never_found_and_takes_no_place() -> None:
    crowd = [tool("a", f"read_file_{number}", "Read a file.") for number in range(300)]
    index = index_of(*crowd, tool("b", "read_document", "Read one."))
    assert names(index, "read file", 5, allowed=lambda server, name: server == "b") == ["read_document"]
    assert names(index, "read_file_1", 5, servers={"b"}) == ["read_document"]
    assert names(index, "read file", 5, servers=set()) == []
    assert index.close_names("read_file_7", 3, servers={"b"}) == [("b", "read_document")]
    assert len(index.search("read file", 50, allowed=lambda server, name: name.endswith("1"))) == 30


def test_ties_break_by_server_then_name() -> None:
    index = index_of(*(tool(server, name) for server in ("b", "a") for name in ("note_z", "note_y")))
    assert pairs(index, "note") == [("a", "note_y"), ("a", "note_z"), ("b", "note_y"), ("b", "note_z")]


def test_a_smaller_limit_gives_the_beginning_of_the_same_list() -> None:
    index = index_of(*(tool("s", f"read_{number}", "read " * (number % 7 + 1)) for number in range(250)))
    whole = names(index, "read the file", 250)
    assert len(set(whole)) == 250
    for limit in (0, 1, 5, 50, 100, 101):
        assert names(index, "read the file", limit) == whole[:limit]


def test_rank_is_the_ranking_of_the_index() -> None:
    catalog = [
        {
            "server": "forge",
            "name": "create_issue",
            "description": "Create an issue.",
            "inputSchema": {"properties": {"a": {}}},
        },
        {
            "server": "chat",
            "name": "send",
            "title": "Send",
            "description": None,
            "serverTitle": "Chat",
            "inputSchema": 7,
        },
        {"server": "forge", "name": "list_issues", "description": "List issues.", "serverDescription": ""},
    ]
    index = Index()
    for server in ("forge", "chat"):
        index.replace(
            server,
            [
                search_tool(Tool(server, each), native="", server_title=str(each.get("serverTitle") or ""))
                for each in catalog
                if each["server"] == server
            ],
        )
    for query in ("create an issue", "list", "chat send"):
        assert rank(catalog, [query], 10) == [pairs(index, query, 10)]


def test_a_search_tool_takes_its_texts_from_the_record() -> None:
    wire = {
        "name": "pay",
        "description": "Pays.",
        "annotations": {"title": "Pay now"},
        "inputSchema": {"properties": {"amount": {}, "to": {}}},
    }
    made = search_tool(Tool("bank", wire), native="mcp__bank__pay", server_title="Bank", keywords=["money"])
    assert made == SearchTool(
        "bank", "pay", "Pay now", "Pays.", ("amount", "to"), "Bank", None, ("money",), "mcp__bank__pay"
    )
    assert search_tool(Tool("bank", {"name": "x", "inputSchema": {"properties": ["a"]}}), native="").parameters == ()


# Change


def test_a_replaced_server_is_searched_with_its_new_tools_alone() -> None:
    index = index_of(tool("a", "read_file"), tool("b", "send_mail"))
    assert names(index, "read file") == ["read_file"]
    index.replace("a", [tool("a", "write_file"), tool("a", "write_file", "a second one of that name")])
    assert len(index) == 2
    assert names(index, "file") == ["write_file"]
    index.remove("a")
    index.remove("never was")
    assert names(index, "file") == []
    assert names(index, "send mail") == ["send_mail"]


def test_replacing_one_server_does_not_count_the_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    original = documents.document

    def counting(each: SearchTool, weights: documents.FieldWeights) -> documents.Document:
        counted.append(each.server)
        return original(each, weights)

    monkeypatch.setattr("pi_mcp.search.index.document", counting)
    index = index_of(tool("a", "read_file"), tool("b", "send_mail"), tool("c", "list_pods"))
    assert counted == []
    index.search("file", 5)
    assert sorted(counted) == ["a", "b", "c"]
    index.replace("b", [tool("b", "send_mails")])
    index.replace("c", [tool("c", "list_pods")])
    index.search("file", 5)
    assert sorted(counted) == ["a", "b", "b", "c"]


# Answers that steer


def test_the_reasons_of_a_hit_name_words_and_fields_and_sum_up_to_its_score() -> None:
    for query in ("create a ticket in forge", "merge pull request", "list channels and directories", "read file"):
        for hit in OFFICE.search(query, 10):
            assert sum(reason.weight for reason in hit.reasons) == pytest.approx(hit.score), (query, hit)
            for reason in hit.reasons:
                assert set(reason.field.split("+")) <= {*FIELDS, "neighbours", "factor"}
    reasons = {reason.term: reason for reason in OFFICE.search("open a ticket", 1)[0].reasons}
    assert (reasons["ticket"].matched, reasons["ticket"].field) == ("issue", "name+description")


def test_close_names_are_offered_for_a_query_that_finds_nothing() -> None:
    assert OFFICE.search("mrgpllrqst", 5) == []
    assert OFFICE.close_names("merge_pul_requets")[0] == ("forge", "merge_pull_request")
    assert OFFICE.close_names("qqqq zzzz") == []
    assert OFFICE.close_names("chanels", 1) == [("chat", "list_channels")]


def test_a_query_without_a_word_finds_nothing() -> None:
    for query in ("", " ", "?!", "what is the", "\u200b"):
        assert OFFICE.search(query, 5) == [], query


# The scorer


def _texts(index: Index) -> Iterable[str]:
    ranking = index._ready()
    assert ranking is not None
    return ranking.statistics.words


def test_our_sums_are_those_of_bm25plus_over_the_whole_set() -> None:
    import numpy

    ranking = OFFICE._ready()
    assert ranking is not None
    statistics = ranking.statistics
    bm25 = statistics.bm25
    assert type(bm25).__module__ == "rank_bm25"
    assert bm25.corpus_size == len(OFFICE)
    for terms in (["issue"], ["create", "issue", "forge"], ["list", "no_such_term", "channel"], list(_texts(OFFICE))):
        known = [term for term in terms if term in statistics]
        ours = statistics.total((statistics.impacts(term), 1.0) for term in known)
        ours = ours + statistics.base(dict.fromkeys(known, 1.0))
        numpy.testing.assert_allclose(ours, bm25.get_scores(terms), rtol=1e-12)
    weighted = statistics.total([(statistics.impacts("issue"), 0.7), (statistics.impacts("create"), 0.2)])
    weighted = weighted + statistics.base({"issue": 0.7, "create": 0.2})
    expected = 0.7 * bm25.get_scores(["issue"]) + 0.2 * bm25.get_scores(["create"])
    numpy.testing.assert_allclose(weighted, expected, rtol=1e-12)


def test_one_document_is_scored_as_in_the_sum() -> None:
    ranking = OFFICE._ready()
    assert ranking is not None
    statistics = ranking.statistics
    for term in statistics.words:
        each = statistics.impacts(term)
        for number, value in zip(each.numbers.tolist(), each.values.tolist(), strict=True):
            assert statistics.impact(term, number) == pytest.approx(value)


def test_importing_the_search_imports_no_numpy() -> None:
    code = (
        "import sys, pi_mcp.search as s; i = s.Index(); i.replace('a', [s.SearchTool('a', 'read_file')]);"
        "assert not {'numpy', 'rank_bm25', 'mcp', 'pydantic'} & set(sys.modules);"
        "assert i.search('read', 1) and 'rank_bm25' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_order_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from pi_mcp.search import Index, SearchTool\n"
        "i = Index()\n"
        "i.replace('s', [SearchTool('s', f'{v}_{n}', description=f'{v} the {n} of a virtual machine scale set')"
        " for v in ('get','list','create') for n in ('disk','image','vm','vmss','snapshot')])\n"
        "print([(h.name, h.score, h.reasons) for h in i.search("
        "'show virtual machine scale set images and list disks', 15)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            timeout=60,
            capture_output=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
