"""The ranking: tools of all servers in, the best of them for a query out.

Comes in: `SearchTool` values, one set per server, and queries. Goes out: hits with their reasons. It does no I/O, loads
nothing and decides nothing about permission: what a caller may see is its `allowed`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pi_mcp.search.document import FIELDS, Document, FieldWeights, SearchTool, document
from pi_mcp.search.names import NameTable
from pi_mcp.search.query import Query, clauses, read_query
from pi_mcp.search.synonyms import EXPANSIONS
from pi_mcp.search.words import grams, name_terms

if TYPE_CHECKING:
    from rank_bm25 import BM25Plus

Allowed = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Reason:
    """One query word's part in a hit."""

    term: str
    """The query's word."""
    field: str
    """Where it was found: one of `FIELDS`, or several joined by `+`."""
    matched: str
    """The indexed term that matched: the word itself or an expansion."""
    weight: float
    """Its share of the score before the factors for the name and the server."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One place in a ranking."""

    server: str
    name: str
    score: float
    exact: bool
    """The query writes this tool's name (DESIGN §6)."""
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Tuning:
    """Every number of the ranking. Chosen by cross-validation; `docs/search.md` has the effect of each."""

    fields: FieldWeights = field(default_factory=FieldWeights)
    k1: float = 1.2
    b: float = 0.5
    synonym: float = 0.6
    stem: float = 0.7
    prefix: float = 0.4
    prefixes: int = 8
    typo: float = 0.7
    coverage: float = 0.5
    server: float = 0.3
    pair: float = 0.25
    compound: float = 0.8
    agree: float = 0.15
    oppose: float = 0.15
    prefix_known: float = 0.2
    named: float = 0.2
    acronym: float = 0.5
    synonym_by_stem: bool = True
    phrase: float = 0.6
    home: float = 1.0
    clause: float = 1.0
    clause_power: float = 1.0
    clause_min: float = 0.3
    clause_weak: float = 0.5
    synonym_unknown: float = 0.6


DEFAULT = Tuning()
WINDOW = 200
"""How many candidates the second stage looks at. Fixed, so that a larger limit never reorders the first places."""


@dataclass(slots=True)
class _Alternative:
    term: str
    weight: float


class _Statistics:
    """BM25Plus over the current documents, and postings so that a query touches only documents with its words."""

    def __init__(self, documents: list[Document], tuning: Tuning) -> None:
        from rank_bm25 import BM25Plus

        self.documents = documents
        self.postings: dict[str, list[int]] = {}
        # The constructor counts in how many documents a term stands and derives `idf`; distinct terms are enough
        # for that. Frequencies and lengths then become the field-weighted ones.
        bm25: BM25Plus = BM25Plus([each.counts for each in documents], k1=tuning.k1, b=tuning.b)
        bm25.doc_freqs = [each.counts for each in documents]
        bm25.doc_len = [each.length for each in documents]
        bm25.avgdl = sum(bm25.doc_len) / len(documents) or 1.0
        self.bm25 = bm25
        self.idf: dict[str, float] = bm25.idf
        scale = bm25.b / bm25.avgdl
        self.norms = [bm25.k1 * (1 - bm25.b + scale * length) for length in bm25.doc_len]
        postings = self.postings
        for number, each in enumerate(documents):
            for term in each.counts:
                try:
                    postings[term].append(number)
                except KeyError:
                    postings[term] = [number]
        self.marks_name = {term for each in documents for term in each.name}
        self._impacts: dict[str, list[tuple[int, float]]] = {}
        self._sorted: list[str] | None = None
        self._stems: dict[str, list[str]] | None = None
        self._grams: dict[str, list[str]] | None = None

    def impacts(self, term: str) -> list[tuple[int, float]]:
        """(document, what the term adds there beyond BM25+'s constant `idf · delta`) for each that holds the term."""
        found = self._impacts.get(term)
        if found is None:
            factor = self.idf[term] * (self.bm25.k1 + 1)
            norms, documents = self.norms, self.documents
            found = []
            for number in self.postings[term]:
                frequency = documents[number].counts[term]
                found.append((number, factor * frequency / (norms[number] + frequency)))
            self._impacts[term] = found
        return found

    @property
    def words(self) -> list[str]:
        """All terms in order, without the pairs."""
        if self._sorted is None:
            self._sorted = sorted(term for term in self.postings if " " not in term)
        return self._sorted

    def with_stem(self, word: str) -> list[str]:
        if self._stems is None:
            self._stems = {}
            for term in self.words:
                self._stems.setdefault(stem(term), []).append(term)
        return self._stems.get(stem(word), [])

    def with_prefix(self, word: str, limit: int) -> list[str]:
        words = self.words
        at = bisect_left(words, word)
        found = []
        while at < len(words) and words[at].startswith(word) and len(found) < 200:
            found.append(words[at])
            at += 1
        return sorted(found, key=lambda term: (-len(self.postings[term]), term))[:limit]

    def similar(self, word: str) -> list[tuple[str, float]]:
        """Terms within a typing error of `word`, most alike first."""
        if self._grams is None:
            self._grams = {}
            for term in self.words:
                if len(term) >= 4:
                    for gram in set(grams(f"^{term}$")):
                        self._grams.setdefault(gram, []).append(term)
        mine = set(grams(f"^{word}$"))
        common: dict[str, int] = {}
        for gram in mine:
            for term in self._grams.get(gram, ()):
                common[term] = common.get(term, 0) + 1
        scored = []
        for term, shared in common.items():
            if abs(len(term) - len(word)) <= 2:
                dice = 2 * shared / (len(mine) + len(term) + 1)
                if dice >= 0.55:
                    scored.append((dice, len(self.postings[term]), term))
        scored.sort(key=lambda each: (-each[0], -each[1], each[2]))
        return [(term, dice) for dice, _, term in scored]


_ENDINGS = (
    "ization",
    "isation",
    "ations",
    "ation",
    "ments",
    "ment",
    "ings",
    "ing",
    "ions",
    "ion",
    "ers",
    "ed",
    "er",
    "or",
    "es",
    "al",
    "e",
)


def stem(word: str) -> str:
    """A crude common beginning of a word's forms (render, rendering, rendered); only ever an expansion."""
    if not word.isascii() or len(word) < 5:
        return word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            word = word[: -len(ending)]
            break
    if len(word) > 4 and word[-1] == word[-2]:
        word = word[:-1]
    return word


_BY_STEM: dict[str, tuple[str, ...]] = {}
for _term, _others in EXPANSIONS.items():
    _BY_STEM.setdefault(stem(_term), _others)


class Index:
    """A ranking over the tools of several servers. Built at the first search, and again after a change.

    Replacing one server counts that server's terms alone; only the statistics over all of them are made anew.
    """

    def __init__(self, tuning: Tuning = DEFAULT) -> None:
        self._tuning = tuning
        self._tools: dict[str, tuple[SearchTool, ...]] = {}
        self._counted: dict[str, tuple[Document, ...]] = {}
        self._built: _Built | None = None

    def replace(self, server: str, tools: Iterable[SearchTool]) -> None:
        """Make `tools` all that `server` offers. Of two tools of one name the first counts."""
        distinct: dict[str, SearchTool] = {}
        for tool in tools:
            distinct.setdefault(tool.name, tool)
        fresh = tuple(distinct[name] for name in sorted(distinct))
        if self._tools.get(server) == fresh:
            return
        self._tools[server] = fresh
        self._counted.pop(server, None)
        self._built = None

    def remove(self, server: str) -> None:
        """Forget a server; unknown names are no error."""
        if self._tools.pop(server, None) is not None:
            self._counted.pop(server, None)
            self._built = None

    def __len__(self) -> int:
        return sum(map(len, self._tools.values()))

    def build(self) -> None:
        """Do now what the first search would do."""
        self._ready()

    def _ready(self) -> _Built:
        built = self._built
        if built is None:
            tools: list[SearchTool] = []
            documents: list[Document] = []
            for server in sorted(self._tools):
                counted = self._counted.get(server)
                if counted is None:
                    counted = tuple(document(tool, self._tuning.fields) for tool in self._tools[server])
                    self._counted[server] = counted
                tools += self._tools[server]
                documents += counted
            built = self._built = _Built(tools, documents, self._tuning)
        return built

    def search(
        self,
        query: str,
        limit: int,
        *,
        allowed: Allowed | None = None,
        servers: Collection[str] | None = None,
    ) -> list[Hit]:
        """The at most `limit` best tools for `query`, tools whose name it writes first.

        `allowed(server, name)` and `servers` restrict what may be found. Empty where no word matches. Ties go by
        server, then name; the same index and query always give the same list.
        """
        if limit <= 0 or not self._tools:
            return []
        return self._ready().search(query, limit, allowed, servers)

    def close_names(
        self,
        query: str,
        limit: int = 5,
        *,
        allowed: Allowed | None = None,
        servers: Collection[str] | None = None,
    ) -> list[tuple[str, str]]:
        """(server, tool) whose names look most like the query: what to offer where nothing matched."""
        if limit <= 0 or not self._tools:
            return []
        return self._ready().names.close(query, limit, _admit(allowed, servers))


def _admit(allowed: Allowed | None, servers: Collection[str] | None) -> Callable[[SearchTool], bool]:
    def admit(tool: SearchTool) -> bool:
        return (servers is None or tool.server in servers) and (allowed is None or allowed(tool.server, tool.name))

    return admit


class _Built:
    """One state of the index."""

    def __init__(self, tools: list[SearchTool], documents: list[Document], tuning: Tuning) -> None:
        self.tools = tools
        self.documents = documents
        self.tuning = tuning
        self.names = NameTable(tools)
        self.server_terms = {tool.server: tuple(name_terms(tool.server)) or ("",) for tool in tools}
        self.server_sets = {server: frozenset(terms) for server, terms in self.server_terms.items()}
        self.statistics = _Statistics(documents, tuning) if documents else None

    def alternatives(self, term: str) -> list[tuple[str, float]]:
        """The indexed terms that answer a query term, with the weight of each."""
        statistics, tuning = self.statistics, self.tuning
        assert statistics is not None
        postings = statistics.postings
        found: dict[str, float] = {}
        if term in postings:
            found[term] = 1.0
        for other in statistics.with_stem(term):
            found.setdefault(other, tuning.stem)
        known = bool(found)
        share = tuning.prefix_known if known else tuning.prefix
        if len(term) >= 3 and share and term.isascii():
            for other in statistics.with_prefix(term, tuning.prefixes):
                found.setdefault(other, share)
        known = bool(found)
        if tuning.synonym:
            others = EXPANSIONS.get(term)
            if others is None and tuning.synonym_by_stem:
                others = _BY_STEM.get(stem(term), ())
            for other in others or ():
                if other in postings:
                    found[other] = max(found.get(other, 0.0), tuning.synonym if known else tuning.synonym_unknown)
        if not known and len(term) >= 4 and tuning.typo:
            for other, likeness in statistics.similar(term)[:3]:
                found.setdefault(other, tuning.typo * likeness)
        return list(found.items())

    def score(
        self, query: Query
    ) -> tuple[dict[int, float], dict[str, float], list[tuple[str, list[tuple[str, float]]]]]:
        statistics, tuning = self.statistics, self.tuning
        assert statistics is not None
        totals: dict[int, float] = {}
        matched: dict[str, float] = {}
        used: list[tuple[str, list[tuple[str, float]]]] = []
        for term, weight in query.terms.items():
            self.add(term, weight, self.alternatives(term), totals, matched, used)
        for joined, (one, two) in query.joined.items():
            if joined in statistics.postings and joined not in query.terms:
                share = tuning.compound * min(query.terms[one], query.terms[two])
                used.append((joined, [(joined, share)]))
                matched[joined] = max(share, matched.get(joined, 0.0))
                for number, impact in statistics.impacts(joined):
                    totals[number] = totals.get(number, 0.0) + share * impact
        if tuning.acronym:
            for acronym in query.acronyms:
                if acronym in statistics.marks_name and acronym not in query.terms:
                    share = tuning.acronym
                    used.append((acronym, [(acronym, share)]))
                    matched[acronym] = max(share, matched.get(acronym, 0.0))
                    for number, impact in statistics.impacts(acronym):
                        totals[number] = totals.get(number, 0.0) + share * impact
        for phrase, others in query.phrases if tuning.phrase else ():
            options = [(other, tuning.phrase) for other in others if other in statistics.postings]
            self.add(phrase, 1.0, options, totals, matched, used)
        if tuning.fields.pair:
            for pair in query.pairs:
                if pair in statistics.postings:
                    for number, impact in statistics.impacts(pair):
                        totals[number] = totals.get(number, 0.0) + tuning.pair * impact
        return totals, matched, used

    def add(self, term, weight, options, totals, matched, used):
        statistics = self.statistics
        used.append((term, options))
        for other, share in options:
            if share * weight > matched.get(other, 0.0):
                matched[other] = share * weight
        if len(options) == 1:
            other, share = options[0]
            factor = share * weight
            for number, impact in statistics.impacts(other):
                totals[number] = totals.get(number, 0.0) + factor * impact
            return
        best: dict[int, float] = {}
        for other, share in options:
            factor = share * weight
            for number, impact in statistics.impacts(other):
                value = factor * impact
                if value > best.get(number, 0.0):
                    best[number] = value
        for number, value in best.items():
            totals[number] = totals.get(number, 0.0) + value

    def final(self, query: Query, admit: Callable[[SearchTool], bool] | None):
        statistics = self.statistics
        totals, matched, used = self.score(query)
        if admit is not None:
            totals = {number: value for number, value in totals.items() if admit(self.tools[number])}
        window = heapq.nsmallest(WINDOW, totals, key=lambda number: (-totals[number], number))
        idf = statistics.idf
        tuning = self.tuning
        servers_named = {
            server: all(term in matched and matched[term] >= 0.6 for term in terms)
            for server, terms in self.server_terms.items()
        }
        final: dict[int, float] = {}
        for number in window:
            each = self.documents[number]
            value = totals[number]
            if each.name:
                whole = part = 0.0
                home = self.server_sets[self.tools[number].server]
                for term in each.name:
                    if tuning.home != 1.0 and term in home:
                        whole += idf[term] * tuning.home
                        part += idf[term] * tuning.home * min(1.0, matched.get(term, 0.0))
                        continue
                    whole += idf[term]
                    part += idf[term] * min(1.0, matched.get(term, 0.0))
                value *= 1 + tuning.coverage * part / (whole or 1.0)
            if query.actions and each.actions:
                value *= 1 + tuning.agree if query.actions & each.actions else 1 - tuning.oppose
            if servers_named.get(self.tools[number].server):
                value *= 1 + tuning.named
            final[number] = value
        return final, used

    def search(self, text: str, limit: int, allowed: Allowed | None, servers: Collection[str] | None) -> list[Hit]:
        statistics = self.statistics
        if statistics is None:
            return []
        admit = _admit(allowed, servers)
        query = read_query(text)
        final, used = self.final(query, admit if allowed or servers is not None else None)
        order = sorted(final, key=lambda number: (-final[number], number))
        if self.tuning.clause and final:
            needs = clauses(text)
            if len(needs) > 1:
                missing = []
                for need in needs:
                    f, _ = self.final(read_query(need), admit if allowed or servers is not None else None)
                    best = heapq.nsmallest(3, f, key=lambda n: (-f[n], n))
                    if best and not set(best) & set(order[:4] + missing):
                        missing.append(best[0])
                if missing:
                    missing = missing[:3]
                    rest = [n for n in order if n not in missing]
                    at = max(1, 5 - len(missing))
                    order = rest[:at] + missing + rest[at:]
        exact = [number for number in self.names.written(text, final) if admit(self.tools[number])]
        named = set(exact)
        chosen = (exact + [number for number in order if number not in named])[:limit]
        return [
            Hit(
                self.tools[number].server,
                self.tools[number].name,
                round(final.get(number, 0.0), 6),
                number in named,
                self.reasons(number, query, used),
            )
            for number in chosen
        ]

    def reasons(self, number: int, query: Query, used: list[tuple[str, list[tuple[str, float]]]]) -> tuple[Reason, ...]:
        statistics = self.statistics
        assert statistics is not None
        each = self.documents[number]
        found = []
        for term, options in used:
            best = None
            for other, share in options:
                frequency = each.counts.get(other)
                if frequency is None:
                    continue
                value = (
                    share
                    * query.terms.get(term, 1.0)
                    * statistics.idf[other]
                    * (statistics.bm25.k1 + 1)
                    * frequency
                    / (statistics.norms[number] + frequency)
                )
                if best is None or value > best[0]:
                    best = (value, other)
            if best is not None:
                bits = each.marks.get(best[1], 4)
                fields = "+".join(name for at, name in enumerate(FIELDS) if bits >> at & 1)
                found.append(Reason(term, fields, best[1], round(best[0], 4)))
        found.sort(key=lambda reason: (-reason.weight, reason.term))
        return tuple(found)
