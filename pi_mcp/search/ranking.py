"""One state of the index: documents in, the order of tools for a query out, with the reason for each place.

Comes in: tools, their documents, queries. Goes out: hits. Two stages: BM25+ over the query's terms and what answers
them; then, for the best of these, factors for the name, the action and the server. It changes nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pi_mcp.search.document import DESCRIPTION, FIELDS, Document, SearchTool
from pi_mcp.search.names import NameTable
from pi_mcp.search.query import Query, needs, read_query
from pi_mcp.search.statistics import Statistics
from pi_mcp.search.synonyms import synonyms
from pi_mcp.search.tuning import Tuning
from pi_mcp.search.words import name_terms

Admit = Callable[[SearchTool], bool]


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


@dataclass(slots=True)
class _Answer:
    """What answers one query word: indexed terms, each with its weight. A document gets its best one, not their sum."""

    word: str
    terms: list[tuple[str, float]]


@dataclass(slots=True)
class _Scored:
    """The outcome of both stages for one query."""

    query: Query
    answers: list[_Answer]
    sums: dict[int, float]
    factors: dict[int, tuple[float, float, float]]
    """document → factors for name, action, server."""
    final: dict[int, float]
    """document → score, for the candidates of the second stage."""
    order: list[int]
    """Candidates, best first, then the other admitted documents by the first stage."""


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
        self._answers: dict[str, list[tuple[str, float]]] = {}

    def search(self, text: str, limit: int, admit: Admit | None) -> list[Hit]:
        """The best tools for `text`; those whose name it writes come first."""
        scored = self._score(read_query(text, self.tuning), admit)
        order = self._with_each_need(text, scored, admit)
        written = [
            number for number in self.names.written(text, scored.final) if admit is None or admit(self.tools[number])
        ]
        exact = set(written)
        chosen = (written + [number for number in order if number not in exact])[:limit]
        return [self._hit(number, number in exact, scored) for number in chosen]

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
        sums = self._sum(query, answers)
        candidates, rest = self._best(sums, admit)
        matched: dict[str, float] = {}
        for answer in answers:
            for term, weight in answer.terms:
                if weight > matched.get(term, 0.0):
                    matched[term] = weight
        factors: dict[int, tuple[float, float, float]] = {}
        final: dict[int, float] = {}
        named: dict[str, bool] = {}
        for number in candidates:
            server = self.tools[number].server
            if server not in named:
                home = self._homes[server]
                named[server] = bool(home) and all(matched.get(term, 0.0) >= 0.6 for term in home)
            each = self._factors(self.documents[number], matched, query.actions, named[server])
            factors[number] = each
            final[number] = sums[number] * each[0] * each[1] * each[2]
        order = sorted(candidates, key=lambda number: (-final[number], number))
        return _Scored(query, answers, sums, factors, final, order + rest)

    def _answer(self, query: Query) -> list[_Answer]:
        """What answers each word, joined pair, acronym and phrase of the query."""
        statistics, tuning = self.statistics, self.tuning
        answers = [
            _Answer(word, [(term, share * weight) for term, share in self._terms_for(word)])
            for word, weight in query.terms.items()
        ]
        for joined, weight in query.joined.items():
            if joined in statistics and joined not in query.terms:
                answers.append(_Answer(joined, [(joined, weight * tuning.compound)]))
        for acronym in query.acronyms:
            if acronym in self._name_terms and acronym not in query.terms:
                answers.append(_Answer(acronym, [(acronym, tuning.acronym)]))
        for phrase, others in query.phrases:
            answers.append(_Answer(phrase, [(term, tuning.phrase) for term in others if term in statistics]))
        return [answer for answer in answers if answer.terms]

    def _terms_for(self, word: str) -> list[tuple[str, float]]:
        """Indexed terms that answer a word, each with its weight; kept, because words come again."""
        found = self._answers.get(word)
        if found is None:
            if len(self._answers) > 10_000:
                self._answers.clear()
            found = self._answers[word] = self._expand(word)
        return found

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
        if not known and len(word) >= 4:
            for term, likeness in statistics.similar(word, 3):
                found.setdefault(term, tuning.typo * likeness)
        return list(found.items())

    def _sum(self, query: Query, answers: list[_Answer]) -> dict[int, float]:
        """The first stage: document → sum over the answers of the best term's weighted product."""
        impacts = self.statistics.impacts
        sums: dict[int, float] = {}
        for answer in answers:
            best: dict[int, float] = {}
            for term, weight in answer.terms:
                for number, impact in impacts(term).items():
                    value = weight * impact
                    if value > best.get(number, 0.0):
                        best[number] = value
            for number, value in best.items():
                sums[number] = sums.get(number, 0.0) + value
        weight = self.tuning.pair
        for pair in query.pairs:
            if pair in self.statistics:
                for number, impact in impacts(pair).items():
                    sums[number] = sums.get(number, 0.0) + weight * impact
        return sums

    def _best(self, sums: Mapping[int, float], admit: Admit | None) -> tuple[list[int], list[int]]:
        """The admitted documents with the highest sums, and all other admitted ones in order."""
        window = self.tuning.window
        if admit is not None:
            sums = {number: value for number, value in sums.items() if admit(self.tools[number])}
        if len(sums) <= window:
            return list(sums), []
        least = heapq.nlargest(window, sums.values())[-1]
        ordered = sorted(
            (number for number, value in sums.items() if value >= least), key=lambda number: (-sums[number], number)
        )
        return ordered[:window], ordered[window:]

    def _factors(
        self, document: Document, matched: Mapping[str, float], actions: int, named: bool
    ) -> tuple[float, float, float]:
        tuning, idf = self.tuning, self.statistics.idf
        whole = part = 0.0
        for term in document.name:
            weight = idf[term]
            whole += weight
            part += weight * min(1.0, matched.get(term, 0.0))
        name = 1 + tuning.coverage * part / whole if whole else 1.0
        action = 1.0
        if actions and document.actions:
            action = 1 + tuning.agree if actions & document.actions else 1 - tuning.oppose
        return name, action, 1 + tuning.named if named else 1.0

    def _hit(self, number: int, exact: bool, scored: _Scored) -> Hit:
        tool = self.tools[number]
        reasons = self._reasons(number, scored)
        if exact:
            reasons.insert(0, Reason(tool.name, "name", "written as a name", 0.0))
        score = scored.final.get(number, scored.sums.get(number, 0.0))
        return Hit(tool.server, tool.name, score, exact, tuple(reasons))

    def _reasons(self, number: int, scored: _Scored) -> list[Reason]:
        statistics, document = self.statistics, self.documents[number]
        found: list[Reason] = []
        for answer in scored.answers:
            value, best = 0.0, ""
            for term, weight in answer.terms:
                if term in document.counts:
                    product = weight * statistics.impacts(term)[number]
                    if product > value:
                        value, best = product, term
            if best:
                found.append(Reason(answer.word, fields_of(document, best), best, value))
        for pair in scored.query.pairs:
            if pair in document.counts:
                value = self.tuning.pair * statistics.impacts(pair)[number]
                found.append(Reason(pair, "neighbours", pair, value))
        found.sort(key=lambda reason: (-reason.weight, reason.term))
        running = scored.sums.get(number, 0.0)
        for about, factor in zip(("name", "action", "server"), scored.factors.get(number, ()), strict=False):
            if factor != 1.0:
                found.append(Reason(about, "factor", f"× {factor:.2f}", running * (factor - 1)))
                running *= factor
        return found


def fields_of(document: Document, term: str) -> str:
    """The fields that hold a term, joined by `+`."""
    bits = document.marks.get(term, DESCRIPTION)
    return "+".join(name for bit, name in enumerate(FIELDS) if bits >> bit & 1)
