"""What a write put into a person's file, remembered well enough that taking it out leaves the very bytes of before.

Comes in: the text before and after a write. Goes out: a note of it, and later the text without it. The note holds no
text of the file but blanks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

_MOST_BLANKS = 1000
"""Characters of a place that was empty before."""


@dataclass(frozen=True, slots=True)
class Seam:
    """What a write put into a file's text, by its sum and length; the text itself may hold what is nobody's business.

    The structure alone cannot tell `{}` from `{ }`, nor whose a blank or a comma was.
    """

    digest: str
    length: int
    mark: str
    mark_at: int
    """A word of ours, and where it stands in it for the first time: a file of megabytes is searched for that."""
    blanks: str
    """What its place held before."""
    kept: tuple[int, int] | None = None
    """Where in it the comment of the person's is that its place held, in the place of `blanks`."""

    @classmethod
    def between(cls, before: str, after: str, mark: str) -> Seam | None:
        """None where more went than blanks, or was moved."""
        start = _common(before, after, 1)
        end = _common(before[start:], after[start:], -1)
        put, instead = after[start : len(after) - end], before[start : len(before) - end]
        if not instead.strip():
            return cls._of(put, mark, instead, None)
        kept = put.find(instead)
        return cls._of(put, mark, "", (kept, kept + len(instead))) if kept >= 0 else None

    @classmethod
    def _of(cls, put: str, mark: str, blanks: str, kept: tuple[int, int] | None) -> Seam | None:
        if mark not in put or len(blanks) > _MOST_BLANKS:
            return None
        return cls(_sum(put), len(put), mark, put.index(mark), blanks, kept)

    def renewed(self, before: str, after: str) -> Seam | None:
        """The same after a change within it."""
        place = self._place(before)
        if place is None:
            return None
        rest = len(before) - place - self.length
        if before[:place] != after[:place] or before[len(before) - rest :] != after[len(after) - rest :]:
            return None
        old, put = before[place : place + self.length], after[place : len(after) - rest]
        if self.kept is not None and old[: self.kept[1]] != put[: self.kept[1]]:
            return None
        return Seam._of(put, self.mark, self.blanks, self.kept)

    def without(self, text: str) -> str | None:
        """The text as it was before, with what was changed elsewhere since; None where it is not there whole."""
        place = self._place(text)
        if place is None:
            return None
        instead = self.blanks if self.kept is None else text[place + self.kept[0] : place + self.kept[1]]
        return text[:place] + instead + text[place + self.length :]

    def _place(self, text: str) -> int | None:
        at = text.find(self.mark)
        while at >= 0:
            place = at - self.mark_at
            if place >= 0 and _sum(text[place : place + self.length]) == self.digest:
                return place
            at = text.find(self.mark, at + 1)
        return None

    def to_json(self) -> dict[str, Any]:
        value = {"sha256": self.digest, "length": self.length, "markAt": self.mark_at, "blanks": self.blanks}
        return value if self.kept is None else {**value, "kept": list(self.kept)}

    @classmethod
    def from_json(cls, value: Any, mark: str) -> Seam | None:
        """None for what is missing or damaged."""
        try:
            kept = value.get("kept")
            span = None if kept is None else (int(kept[0]), int(kept[1]))
            numbers = int(value["length"]), mark, int(value["markAt"])
            seam = cls(str(value["sha256"]), *numbers, str(value["blanks"]), span)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            return None
        inside = span is None or 0 <= span[0] <= span[1] <= seam.length
        fits = inside and 0 <= seam.mark_at < seam.length and not seam.blanks.strip()
        return seam if fits and len(seam.blanks) <= _MOST_BLANKS else None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _common(one: str, other: str, way: Literal[1, -1]) -> int:
    """How many characters at the beginning (1) or at the end (-1) are the same; by halves, for files of megabytes."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        same = one[:middle] == other[:middle] if way == 1 else one[-middle:] == other[-middle:]
        low, high = (middle, high) if same else (low, middle - 1)
    return low
