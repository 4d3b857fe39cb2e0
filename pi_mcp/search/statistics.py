"""BM25Plus over weighted term counts, and the words it knows.

Comes in: documents. Goes out: what a term adds to each document that holds it, and indexed terms that are like a
word. `rank_bm25.BM25Plus` holds the statistics; only how its products are summed is ours, so that a query touches the
documents with its words and no others. Importing this module does not import rank-bm25 (and numpy with it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from pi_mcp.search.document import Document
from pi_mcp.search.words import grams, stem


class Statistics:
    """Term statistics of a non-empty sequence of documents; a document's number is its place."""

    def __init__(self, documents: Sequence[Document], k1: float, b: float) -> None:
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
        scale = bm25.b / bm25.avgdl
        self.norms: list[float] = [bm25.k1 * (1 - bm25.b + scale * length) for length in bm25.doc_len]
        self.documents = documents
        self.postings: dict[str, list[int]] = {}
        postings = self.postings
        for number, document in enumerate(documents):
            for term in document.counts:
                if term in postings:
                    postings[term].append(number)
                else:
                    postings[term] = [number]
        self._impacts: dict[str, dict[int, float]] = {}
        self._words: list[str] | None = None
        self._stems: dict[str, list[str]] = {}
        self._grams: dict[str, list[str]] = {}

    def __contains__(self, term: str) -> bool:
        return term in self.postings

    def impacts(self, term: str) -> dict[int, float]:
        """document → what `term` adds there: BM25+'s product, less the `idf · delta` that every document gets alike."""
        found = self._impacts.get(term)
        if found is None:
            factor = self.idf[term] * self.gain
            norms, documents = self.norms, self.documents
            found = {}
            for number in self.postings[term]:
                count = documents[number].counts[term]
                found[number] = factor * count / (norms[number] + count)
            self._impacts[term] = found
        return found

    def base(self, terms: Mapping[str, float]) -> float:
        """What BM25+ gives every document for `terms` (term → weight), whether it holds them or not."""
        delta: float = self.bm25.delta
        return sum(weight * self.idf.get(term, 0.0) * delta for term, weight in terms.items())

    def scores(self, terms: Mapping[str, float]) -> dict[int, float]:
        """document → sum over `terms` of weight times impact, for the documents that hold one of them."""
        totals: dict[int, float] = {}
        for term, weight in terms.items():
            if term in self.postings:
                for number, impact in self.impacts(term).items():
                    totals[number] = totals.get(number, 0.0) + weight * impact
        return totals

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

    def similar(self, word: str, limit: int) -> list[tuple[str, float]]:
        """(term, likeness 0–1) within a typing error of `word`: the pairs of letters they share (Dice), best first."""
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
        scored = []
        for term, common in shared.items():
            if abs(len(term) - len(word)) <= 2:
                likeness = 2 * common / (len(mine) + len(term) + 1)
                if likeness >= 0.55:
                    scored.append((-likeness, -len(self.postings[term]), term))
        scored.sort()
        return [(term, -likeness) for likeness, _, term in scored[:limit]]
