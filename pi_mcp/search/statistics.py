"""BM25Plus over weighted term counts, and the words it knows.

Comes in: documents. Goes out: what a term adds to each document that holds it, and indexed terms that are like a
word. `rank_bm25.BM25Plus` holds the statistics; only how its products are summed is ours, so that a query touches the
documents with its words and no others. Importing this module does not import rank-bm25 (and numpy with it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pi_mcp.search.document import Document
from pi_mcp.search.words import grams, singular, stem


class Postings(NamedTuple):
    """Documents and what each of them gets: two numpy arrays of one length, numbers distinct and ascending."""

    numbers: Any
    values: Any


class Statistics:
    """Term statistics of a non-empty sequence of documents; a document's number is its place."""

    def __init__(self, documents: Sequence[Document], k1: float, b: float) -> None:
        import numpy
        from rank_bm25 import BM25Plus

        # The constructor counts in how many documents a term stands and derives `idf`: distinct terms are enough for
        # that, and one empty document would divide by zero. Then counts and lengths become the field-weighted ones.
        bm25 = BM25Plus([document.counts or ("",) for document in documents], k1=k1, b=b)
        bm25.doc_freqs = [document.counts for document in documents]
        bm25.doc_len = [document.length for document in documents]
        bm25.avgdl = sum(bm25.doc_len) / len(documents) or 1.0
        self.bm25 = bm25
        self.idf: dict[str, float] = bm25.idf
        self.gain: float = bm25.k1 + 1
        lengths = numpy.array(bm25.doc_len, dtype=float)
        self.norms: Any = bm25.k1 * (1 - bm25.b + bm25.b * lengths / bm25.avgdl)
        """document → `k1 · (1 - b + b · length / average)`, as an array."""
        self.documents = documents
        self.postings: dict[str, list[int]] = {}
        postings = self.postings
        for number, document in enumerate(documents):
            for term in document.counts:
                if term in postings:
                    postings[term].append(number)
                else:
                    postings[term] = [number]
        self._impacts: dict[str, Postings] = {}
        self._words: list[str] | None = None
        self._stems: dict[str, list[str]] = {}
        self._grams: dict[str, list[str]] = {}

    def __contains__(self, term: str) -> bool:
        return term in self.postings

    def impacts(self, term: str) -> Postings:
        """What an indexed `term` adds to each document that holds it: BM25+'s product, less the `idf · delta` that
        every document gets alike."""
        found = self._impacts.get(term)
        if found is None:
            import numpy

            numbers = numpy.array(self.postings[term])
            counts = numpy.array([self.documents[number].counts[term] for number in self.postings[term]])
            values = self.idf[term] * self.gain * counts / (self.norms[numbers] + counts)
            found = self._impacts[term] = Postings(numbers, values)
        return found

    def impact(self, term: str, number: int) -> float:
        """What an indexed `term` adds to one document; 0 where it does not stand there."""
        count = self.documents[number].counts.get(term, 0.0)
        return float(self.idf[term] * self.gain * count / (self.norms[number] + count))

    def best_of(self, terms: Sequence[tuple[str, float]]) -> Postings:
        """For each document that holds one of `terms` (indexed term, weight), the greatest weighted impact."""
        import numpy

        if len(terms) == 1:
            term, weight = terms[0]
            alone = self.impacts(term)
            return Postings(alone.numbers, weight * alone.values)
        best = numpy.zeros(len(self.documents))
        for term, weight in terms:
            each = self.impacts(term)
            best[each.numbers] = numpy.maximum(best[each.numbers], weight * each.values)
        numbers = numpy.flatnonzero(best)
        return Postings(numbers, best[numbers])

    def total(self, parts: Iterable[tuple[Postings, float]]) -> Any:
        """An array over all documents: the sum of weighted postings, 0 where none of them has the document."""
        import numpy

        sums = numpy.zeros(len(self.documents))
        for postings, weight in parts:
            # Numbers are distinct within a posting, so that this adds to each once.
            sums[postings.numbers] += weight * postings.values
        return sums

    def highest(self, sums: Any, limit: int) -> list[int]:
        """The at most `limit` documents with the highest positive sums; ties in the order of the documents."""
        import numpy

        numbers = numpy.flatnonzero(sums)
        values = sums[numbers]
        if len(numbers) > limit:
            least = numpy.partition(values, len(values) - limit)[len(values) - limit]
            numbers = numbers[values >= least]
            values = sums[numbers]
        order: list[int] = numbers[numpy.argsort(-values, kind="stable")].tolist()
        return order[:limit]

    def base(self, terms: Mapping[str, float]) -> float:
        """What BM25+ gives every document for `terms` (term → weight), whether it holds them or not."""
        delta: float = self.bm25.delta
        return sum(weight * self.idf.get(term, 0.0) * delta for term, weight in terms.items())

    @property
    def words(self) -> list[str]:
        """All indexed terms but the pairs, sorted."""
        if self._words is None:
            self._words = sorted(term for term in self.postings if " " not in term)
        return self._words

    def with_stem(self, word: str) -> list[str]:
        """Terms that are forms of the same word."""
        if not self._stems:
            for term in self.words:
                self._stems.setdefault(stem(term), []).append(term)
        return self._stems.get(stem(word), [])

    def with_prefix(self, word: str, limit: int) -> list[str]:
        """The at most `limit` most frequent terms that begin with `word`, itself included."""
        words = self.words
        found: list[str] = []
        at = bisect_left(words, word)
        while at < len(words) and words[at].startswith(word) and len(found) < 200:
            found.append(words[at])
            at += 1
        return sorted(found, key=lambda term: (-len(self.postings[term]), term))[:limit]

    def halves(self, word: str) -> tuple[str, str] | None:
        """Two indexed terms that make up a word which is none itself: the most even split into known words."""
        if len(word) < 6 or not word.isascii() or word in self.postings:
            return None
        for one in sorted(range(3, len(word) - 2), key=lambda at: abs(2 * at - len(word))):
            first, second = singular(word[:one]), singular(word[one:])
            if first in self.postings and second in self.postings:
                return first, second
        return None

    def similar(self, word: str, limit: int) -> list[tuple[str, float]]:
        """(term, likeness 0–1) that differ from `word` by one slip of typing, or two where it is long; best first."""
        if not self._grams:
            for term in self.words:
                if len(term) >= 4:
                    for gram in set(grams(f"^{term}$")):
                        self._grams.setdefault(gram, []).append(term)
        mine = set(grams(f"^{word}$"))
        shared: dict[str, int] = {}
        for gram in mine:
            for term in self._grams.get(gram, ()):
                shared[term] = shared.get(term, 0) + 1
        allowed = 1 if len(word) < 8 else 2
        scored = []
        for term, common in shared.items():
            # One slip spoils at most three pairs of letters.
            if abs(len(term) - len(word)) <= allowed and common >= len(mine) - 3 * allowed and common > 1:
                slips = distance(word, term, allowed)
                if slips <= allowed and (len(word) > 5 or _likely_slip(word, term)):
                    scored.append((slips - 1 + (word[0] != term[0]), -len(self.postings[term]), term))
        scored.sort()
        return [(term, LIKENESS[min(slips, 2)]) for slips, _, term in scored[:limit]]


LIKENESS = (1.0, 0.75, 0.5)
"""Of a word with one slip, with two (or one in its first letter), with more."""


def _likely_slip(word: str, term: str) -> bool:
    """Whether a short word is a slip of another: with one wrong letter it is more likely another word (cake, case)."""
    return word[0] == term[0] and (len(word) != len(term) or sorted(word) == sorted(term))


def distance(one: str, two: str, limit: int) -> int:
    """Slips between two words: a letter too much, too few, wrong, two changed places. May stop beyond `limit`."""
    before: list[int] = []
    row = list(range(len(two) + 1))
    for at, letter in enumerate(one, 1):
        older, before = before, row
        row = [at]
        for place, other in enumerate(two, 1):
            least = min(before[place] + 1, row[-1] + 1, before[place - 1] + (letter != other))
            if at > 1 and place > 1 and letter == two[place - 2] and one[at - 2] == other:
                least = min(least, older[place - 2] + 1)
            row.append(least)
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return row[-1]
