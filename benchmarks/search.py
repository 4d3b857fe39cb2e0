#!/usr/bin/env python3
"""Time tool search side by side: ours, FastMCP's BM25 index, bm25s and plain rank-bm25, in one run.

    python benchmarks/search.py [--sizes 500,3000,10000] [--rounds 5] [--json]
    python benchmarks/search.py --catalog catalog.jsonl --queries dev.jsonl    (a labelled set)

Comes in: made-up tools and queries from a fixed seed, or labelled ones. Goes out: milliseconds per query (p50 and p95),
time to build, memory, time to import, and each as a ratio to ours. Engines take turns, round by round, and a figure is
the median over the rounds, so that what else the machine does falls on all of them alike. An engine that is not
installed gets one line that says so. Rankings are not compared here: that is `score.py`'s matter (docs/search.md).
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import random
import re
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pi_mcp.search import Index, SearchTool, words
from pi_mcp.search.document import from_listing

Query = Callable[[str], object]

_VERBS = "create list get update delete search send read write run move export import archive assign approve"
_THINGS = (
    "issue comment branch release pipeline invoice customer contact message channel thread calendar event meeting file"
    " directory document page table row column record database index collection cluster node pod volume snapshot image"
    " network rule policy role user group team project board card sprint label tag webhook secret variable function"
    " deployment log metric alert dashboard report query dataset model job task note reminder order product payment"
)
_SERVICES = (
    "forge tracker chatter ledger planner shelf cellar harbor beacon lantern meadow orchard quarry compass anvil loom"
    " prism ferry tundra summit canyon delta ember fjord grove heron inlet jetty kiln lagoon marsh nectar oasis pylon"
)
_FILLER = (
    "returns the details of each matching entry in the workspace and supports filtering by name status owner or date"
    " use this when you need to work with several items at once results are paginated and sorted by creation time"
    " requires permission to write optional parameters limit the number of returned entries"
)

VERBS, THINGS, SERVICES, FILLER = (words.split() for words in (_VERBS, _THINGS, _SERVICES, _FILLER))


def made_up_tools(count: int) -> list[SearchTool]:
    """`count` tools of servers with up to 60 tools each; the same for the same count."""
    chance = random.Random(count)
    tools: list[SearchTool] = []
    while len(tools) < count:
        number = len(tools) // 60
        server = SERVICES[number % len(SERVICES)] + (f"-{number // len(SERVICES)}" if number >= len(SERVICES) else "")
        verb, thing, other = chance.choice(VERBS), chance.choice(THINGS), chance.choice(THINGS)
        name = f"{verb}_{thing}_{other}_{len(tools)}" if chance.random() < 0.5 else f"{verb}{thing.title()}{len(tools)}"
        words = [chance.choice(FILLER) for _ in range(chance.randint(8, 60))]
        description = f"{verb.title()} a {thing} of a {other} in {server}. " + " ".join(words).capitalize() + "."
        parameters = tuple(f"{chance.choice(THINGS)}_{suffix}" for suffix in ("id", "name", "filter"))
        tools.append(SearchTool(server, name, None, description, parameters, server, native=f"mcp__{server}__{name}"))
    return tools


def made_up_queries(count: int = 200) -> list[str]:
    """Queries of two to nine words: names of services and things, sentences, lists, typing errors."""
    chance = random.Random(7)
    queries = []
    for _ in range(count):
        verb, thing, other, service = (chance.choice(words) for words in (VERBS, THINGS, THINGS, SERVICES))
        queries.append(
            chance.choice(
                (
                    f"{service} {verb} {thing}",
                    f"{verb} {thing}",
                    f"I need to {verb} the {thing} of my {other} in {service}",
                    f"show me all {thing}s with their {other}s",
                    f"{verb} a {thing} and then send it to the {other}",
                    f"{service} {thing[:-2] + thing[-1] + thing[-2]}",
                    f"{verb}_{thing}",
                )
            )
        )
    return queries


def labelled(catalog: Path, queries: Path) -> tuple[list[SearchTool], list[str]]:
    """Tools and queries of a labelled set; queries over the 500 characters of `mcp_search` are left out."""
    tools = [from_listing(json.loads(line)) for line in catalog.read_text().splitlines() if line.strip()]
    asked = [json.loads(line)["query"] for line in queries.read_text().splitlines() if line.strip()]
    return tools, [query for query in asked if len(query) <= 500]


def grown(tools: list[SearchTool], count: int) -> list[SearchTool]:
    """As many tools as asked for: copies on further servers where there are not enough."""
    from dataclasses import replace

    return [
        tool if copy == 0 else replace(tool, server=f"{tool.server}-{copy}")
        for copy in range(-(-count // len(tools)))
        for tool in tools
    ][:count]


def text_of(tool: SearchTool) -> str:
    return " ".join((tool.name, tool.title or "", tool.description, *tool.parameters, tool.server))


_PLAIN = re.compile(r"[^\W_]+")


def plain_tokens(text: str) -> list[str]:
    return _PLAIN.findall(text.lower())


def index_of(tools: list[SearchTool]) -> Index:
    servers: dict[str, list[SearchTool]] = {}
    for tool in tools:
        servers.setdefault(tool.server, []).append(tool)
    index = Index()
    for server, offered in servers.items():
        index.replace(server, offered)
    return index


def ours(tools: list[SearchTool]) -> Query:
    # A first build has no words kept from an earlier one.
    words.forget()
    index = index_of(tools)
    index.search("warm", 1)
    return lambda query: index.search(query, 5)


def fastmcp(tools: list[SearchTool]) -> Query:
    from fastmcp.server.transforms.search.bm25 import _BM25Index

    index = _BM25Index()
    index.build([text_of(tool) for tool in tools])
    return lambda query: index.query(query, 5)


def bm25s(tools: list[SearchTool]) -> Query:
    import bm25s as engine

    index = engine.BM25()
    index.index([plain_tokens(text_of(tool)) for tool in tools], show_progress=False)

    def query(text: str) -> object:
        known = [token for token in plain_tokens(text) if token in index.vocab_dict]
        return index.retrieve([known], k=min(5, len(tools)), show_progress=False) if known else None

    return query


def rank_bm25(tools: list[SearchTool]) -> Query:
    from rank_bm25 import BM25Plus

    index = BM25Plus([plain_tokens(text_of(tool)) for tool in tools])
    places = list(range(len(tools)))
    return lambda text: index.get_top_n(plain_tokens(text), places, 5)


ENGINES: dict[str, tuple[Callable[[list[SearchTool]], Query], str, str]] = {
    "pi-mcp": (ours, "pi_mcp", "import pi_mcp.search, rank_bm25"),
    "FastMCP": (fastmcp, "fastmcp", "import fastmcp.server.transforms.search.bm25"),
    "bm25s": (bm25s, "bm25s", "import bm25s"),
    "rank-bm25": (rank_bm25, "rank_bm25", "import rank_bm25"),
}


def import_time(statement: str, rounds: int) -> float:
    """Milliseconds that `statement` adds to a fresh interpreter."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    root = str(Path(__file__).resolve().parent.parent)
    figures = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r}); {code}"],
            check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        figures.append(float(done.stdout.split()[-1]) * 1000)
    return statistics.median(figures)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(
    tools: list[SearchTool], queries: list[str], rounds: int, engines: list[str]
) -> dict[str, dict[str, float]]:
    """engine → p50 and p95 in ms per query, build time in ms, memory in MiB: medians over interleaved rounds."""
    rows: dict[str, dict[str, list[float]]] = {name: {} for name in engines}

    def note(name: str, what: str, value: float) -> None:
        rows[name].setdefault(what, []).append(value)

    ready: dict[str, Query] = {}
    for name in engines:
        # Once without counting, so that what an import brings in is not laid to the index.
        ENGINES[name][0](tools[:10])
        tracemalloc.start()
        ready[name] = ENGINES[name][0](tools)
        note(name, "MiB", tracemalloc.get_traced_memory()[0] / 2**20)
        tracemalloc.stop()
    for _ in range(min(rounds, 3)):
        for name in engines:
            ready.pop(name, None)
            gc.collect()
            start = time.perf_counter()
            ready[name] = ENGINES[name][0](tools)
            note(name, "build", (time.perf_counter() - start) * 1000)
    for _ in range(rounds):
        for name in engines:
            query, spent = ready[name], []
            for text in queries:
                start = time.perf_counter()
                query(text)
                spent.append((time.perf_counter() - start) * 1000)
            note(name, "p50", percentile(spent, 0.5))
            note(name, "p95", percentile(spent, 0.95))
    return {name: {what: statistics.median(values) for what, values in row.items()} for name, row in rows.items()}


def change_one_server(tools: list[SearchTool]) -> float:
    """Milliseconds from a server's changed catalog to the next answer, the other servers being counted already."""
    index = index_of(tools)
    index.search("warm", 1)
    figures = []
    for server in list(dict.fromkeys(tool.server for tool in tools))[:3]:
        offered = [tool for tool in tools if tool.server == server]
        start = time.perf_counter()
        index.replace(server, offered[:-1])
        index.search("warm", 1)
        figures.append((time.perf_counter() - start) * 1000)
    return statistics.median(figures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="500,3000,10000", help="numbers of tools, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--catalog", type=Path, help="JSON lines of tools in place of made-up ones")
    parser.add_argument("--queries", type=Path, help="JSON lines with a `query` each; goes with --catalog")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    args = parser.parse_args()
    if bool(args.catalog) != bool(args.queries):
        parser.error("--catalog and --queries go together")

    engines = [name for name, (_, module, _) in ENGINES.items() if importlib.util.find_spec(module)]
    figures: dict[str, Any] = {"imports": {name: import_time(ENGINES[name][2], 3) for name in engines}, "sizes": {}}
    own, queries = labelled(args.catalog, args.queries) if args.catalog else ([], made_up_queries())
    for size in map(int, args.sizes.split(",")):
        tools = grown(own, size) if own else made_up_tools(size)
        figures["sizes"][size] = {
            "engines": measure(tools, queries, args.rounds, engines),
            "one server changed": change_one_server(tools),
        }
    if args.json:
        print(json.dumps(figures))
        return 0
    for name in ENGINES:
        if name not in engines:
            print(f"{name}: not installed, skipped")
    for size, row in figures["sizes"].items():
        print(f"\n{size} tools, {len(queries)} queries; ms, MiB, and in brackets the ratio to ours")
        mine = row["engines"]["pi-mcp"]
        for name in engines:
            cells = [
                f"{what} {value:8.2f} ({value / mine[what]:6.2f})"
                for what, value in ((what, row["engines"][name][what]) for what in ("p50", "p95", "build", "MiB"))
            ]
            print(f"  {name:10}" + "  ".join(cells) + f"  import {figures['imports'][name]:6.0f}")
        print(f"  one server changed, to the next answer: {row['one server changed']:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
