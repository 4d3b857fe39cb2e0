"""One state of the index: documents in, the order of tools for a query out, with the reason for each place.

Comes in: tools, their documents, queries. Goes out: hits. Two stages: BM25+ over the query's terms and what answers
them; then, for the best of these, factors for the name, the action and the server. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pi_mcp.search.document import DESCRIPTION, FIELDS, Document, SearchTool
from pi_mcp.search.names import NameTable
from pi_mcp.search.query import SOFT_WORDS, Query, needs, read_query
from pi_mcp.search.statistics import Postings, Statistics
from pi_mcp.search.synonyms import synonyms
from pi_mcp.search.tuning import Tuning
from pi_mcp.search.words import name_terms

Admit = Callable[[SearchTool], bool]
_KEPT_AT_MOST = 2_000_000
"""Numbers held in kept answers, 16 bytes each."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One part of a hit's score; the parts of a hit sum up to its score."""

    term: str
    """The query's word, pair or phrase; for a factor of the second stage what it is about: name, action, server."""
    field: str
    """Where it was found: names of `FIELDS` joined by `+`, `neighbours` for a pair, `factor` for a factor."""
    matched: str
    """The indexed term that answered: the word itself, another form, a synonym, a correction."""
    weight: float
    """What it adds to the score; an action that does not agree takes away."""


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
class _Answer:
    """What answers one word of a query: indexed terms, each with its weight."""

    word: str
    terms: list[tuple[str, float]]
    postings: Postings
    """A document gets its best term, not the sum of them: several names for one thing are one match."""


@dataclass(frozen=True, slots=True)
class _Scored:
    """The outcome of both stages for one query."""

    query: Query
    answers: list[tuple[_Answer, float]]
    """With the weight of the query's word."""
    sums: Any
    """First stage: an array over all documents."""
    factors: dict[int, tuple[float, float, float]]
    """Second stage: candidate → factors for name, action, server."""
    final: dict[int, float]
    """candidate → score."""
    order: list[int]
    """Candidates, best first."""


class Ranking:
    """The order of `tools`, which must be sorted by server and name: ties fall that way."""

    def __init__(self, tools: Sequence[SearchTool], documents: Sequence[Document], tuning: Tuning) -> None:
        self.tools = tools
        self.documents = documents
        self.tuning = tuning
        self.names = NameTable(tools)
        self.statistics = Statistics(documents, tuning.k1, tuning.b)
        self._homes = {tool.server: frozenset(name_terms(tool.server)) for tool in tools}
        self._name_terms = {term for document in documents for term in document.name}
        self._name_weights = [sum(self.statistics.idf[term] for term in document.name) for document in documents]
        self._answers: dict[str, _Answer] = {}
        self._kept = 0

    def search(self, text: str, limit: int, admit: Admit | None) -> list[Hit]:
        """The best tools for `text`; those whose name it writes come first."""
        if admit is not None:
            admit = _asked_once(admit)
        scored = self._score(read_query(text, self.tuning), admit)
        order = self._with_each_need(text, scored, admit)
        if limit > len(order) == self.tuning.window:
            # Beyond the window the first stage's order goes on.
            rest = self.statistics.highest(scored.sums, len(self.tools))
            known = set(order)
            order = order + [number for number in self._admitted(rest, admit) if number not in known]
        written = self._admitted(self.names.written(text, scored.final), admit)
        exact = set(written)
        chosen = (written + [number for number in order if number not in exact])[:limit]
        return [self._hit(number, number in exact, scored) for number in chosen]

    def _admitted(self, numbers: list[int], admit: Admit | None) -> list[int]:
        return numbers if admit is None else [number for number in numbers if admit(self.tools[number])]

    def _with_each_need(self, text: str, scored: _Scored, admit: Admit | None) -> list[int]:
        """The order in which each need of a query of several has one of its best tools among the first five."""
        parts = needs(text)
        if len(parts) < 2:
            return scored.order
        missing: list[int] = []
        for part in parts:
            best = self._score(read_query(part, self.tuning), admit).order[:3]
            if best and not set(best) & {*scored.order[:4], *missing}:
                missing.append(best[0])
        missing = missing[:3]
        rest = [number for number in scored.order if number not in missing]
        at = 5 - len(missing)
        return rest[:at] + missing + rest[at:]

    def _score(self, query: Query, admit: Admit | None) -> _Scored:
        answers = self._answer(query)
        statistics, pair_weight = self.statistics, self.tuning.pair
        pairs = [(statistics.impacts(pair), pair_weight) for pair in query.pairs if pair in statistics]
        sums = statistics.total([*((answer.postings, weight) for answer, weight in answers), *pairs])
        candidates = self._candidates(sums, admit)
        matched: dict[str, float] = {}
        for answer, weight in answers:
            for term, share in answer.terms:
                if share * weight > matched.get(term, 0.0):
                    matched[term] = share * weight
        factors: dict[int, tuple[float, float, float]] = {}
        final: dict[int, float] = {}
        named: dict[str, bool] = {}
        for number, value in zip(candidates, sums[candidates].tolist(), strict=True):
            server = self.tools[number].server
            if server not in named:
                home = self._homes[server]
                named[server] = bool(home) and all(matched.get(term, 0.0) >= 0.6 for term in home)
            each = self._factors(number, matched, query.actions, named[server])
            factors[number] = each
            final[number] = value * each[0] * each[1] * each[2]
        order = sorted(candidates, key=lambda number: (-final[number], number))
        return _Scored(query, answers, sums, factors, final, order)

    def _candidates(self, sums: Any, admit: Admit | None) -> list[int]:
        """The admitted documents with the highest sums, as many as the window holds."""
        window = asked = self.tuning.window
        while True:
            highest = self.statistics.highest(sums, asked)
            admitted = self._admitted(highest, admit)
            if len(admitted) >= window or len(highest) < asked:
                return admitted[:window]
            asked *= 4

    def _answer(self, query: Query) -> list[tuple[_Answer, float]]:
        """What answers each word, joined pair, acronym and phrase of the query, with its weight."""
        statistics, tuning = self.statistics, self.tuning
        answers = []
        for word, weight in query.terms.items():
            answers.append((self._answer_for(word), weight))
            for half in statistics.halves(word) or ():
                if half not in query.terms:
                    share = weight * tuning.soft if half in SOFT_WORDS else weight
                    answers.append((self._answer_for("+" + half, [(half, tuning.compound)]), share))
        for joined, weight in query.joined.items():
            if joined in statistics and joined not in query.terms:
                answers.append((self._answer_for("+" + joined, [(joined, tuning.compound)]), weight))
        for acronym in query.acronyms:
            if acronym in self._name_terms and acronym not in query.terms:
                answers.append((self._answer_for("." + acronym, [(acronym, tuning.acronym)]), 1.0))
        for phrase, others in query.phrases:
            terms = [(term, tuning.phrase) for term in others if term in statistics]
            answers.append((self._answer_for(phrase, terms), 1.0))
        return [(answer, weight) for answer, weight in answers if answer.terms]

    def _answer_for(self, key: str, terms: list[tuple[str, float]] | None = None) -> _Answer:
        """The answer of `terms`, or of what a word expands to; kept under `key`, because words come again.

        `key` is the word or phrase itself; `+` or `.` before it mark what is no word of the query.
        """
        answer = self._answers.get(key)
        if answer is None:
            terms = self._expand(key) if terms is None else terms
            answer = _Answer(key.lstrip("+."), terms, self.statistics.best_of(terms))
            self._kept += 1 + len(answer.postings.numbers)
            if self._kept > _KEPT_AT_MOST:
                self._answers.clear()
                self._kept = 0
            self._answers[key] = answer
        return answer

    def _expand(self, word: str) -> list[tuple[str, float]]:
        statistics, tuning = self.statistics, self.tuning
        found: dict[str, float] = {word: 1.0} if word in statistics else {}
        for term in statistics.with_stem(word):
            found.setdefault(term, tuning.stem)
        if len(word) >= 3 and word.isascii():
            share = tuning.prefix_known if found else tuning.prefix
            for term in statistics.with_prefix(word, tuning.prefixes):
                found.setdefault(term, share)
        known = bool(found)
        share = tuning.synonym if known else tuning.synonym_unknown
        for term in synonyms(word):
            if term in statistics:
                found[term] = max(share, found.get(term, 0.0))
        if not known and len(word) >= 4 and statistics.halves(word) is None:
            for term, likeness in statistics.similar(word, 3):
                found.setdefault(term, tuning.typo * likeness)
        return list(found.items())

    def _factors(
        self, number: int, matched: Mapping[str, float], actions: int, named: bool
    ) -> tuple[float, float, float]:
        tuning, idf, document = self.tuning, self.statistics.idf, self.documents[number]
        part = 0.0
        for term in document.name:
            share = matched.get(term)
            if share is not None:
                part += idf[term] * min(1.0, share)
        name = 1 + tuning.coverage * part / self._name_weights[number] if part else 1.0
        action = 1.0
        if actions and document.actions:
            action = 1 + tuning.agree if actions & document.actions else 1 - tuning.oppose
        return name, action, 1 + tuning.named if named else 1.0

    def _hit(self, number: int, exact: bool, scored: _Scored) -> Hit:
        tool = self.tools[number]
        reasons = self._reasons(number, scored)
        if exact:
            reasons.insert(0, Reason(tool.name, "name", "written as a name", 0.0))
        score = scored.final.get(number)
        return Hit(
            tool.server, tool.name, float(scored.sums[number]) if score is None else score, exact, tuple(reasons)
        )

    def _reasons(self, number: int, scored: _Scored) -> list[Reason]:
        statistics, document = self.statistics, self.documents[number]
        found: list[Reason] = []
        for answer, asked in scored.answers:
            value, best = 0.0, ""
            for term, share in answer.terms:
                if term in document.counts:
                    product = asked * share * statistics.impact(term, number)
                    if product > value:
                        value, best = product, term
            if best:
                found.append(Reason(answer.word, fields_of(document, best), best, value))
        for pair in scored.query.pairs:
            if pair in document.counts:
                value = self.tuning.pair * statistics.impact(pair, number)
                found.append(Reason(pair, "neighbours", pair, value))
        found.sort(key=lambda reason: (-reason.weight, reason.term))
        running = float(scored.sums[number])
        for about, factor in zip(("name", "action", "server"), scored.factors.get(number, ()), strict=False):
            if factor != 1.0:
                found.append(Reason(about, "factor", f"× {factor:.2f}", running * (factor - 1)))
                running *= factor
        return found


def _asked_once(admit: Admit) -> Admit:
    """`admit` with its answers kept: one search may look at a tool several times."""
    known: dict[int, bool] = {}

    def ask(tool: SearchTool) -> bool:
        key = id(tool)
        if key not in known:
            known[key] = admit(tool)
        return known[key]

    return ask


def fields_of(document: Document, term: str) -> str:
    """The fields that hold a term, joined by `+`."""
    bits = document.marks.get(term, DESCRIPTION)
    return "+".join(name for bit, name in enumerate(FIELDS) if bits >> bit & 1)
