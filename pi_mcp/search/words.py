"""Text of any script becomes index terms: folded, split, without the words that say nothing.

Comes in: names, titles, descriptions, queries. Goes out: lower-case terms. It knows no tool, no catalog and no
weight, and it accepts every string Python can hold, lone surrogates included.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")
# aB | ABc, but URLs stays one word before its plural s.
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z](?!s(?![a-z]))[a-z])")
# Scripts that do not separate words (Han, kana, Thai, Lao, Khmer, Burmese), and Hangul, whose particles stick.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f]+"
)
_APOSTROPHE = re.compile(r"(?<=\w)['’](?:s|t|re|ve|ll|d|m)\b", re.IGNORECASE)
# e-mail and email, e-commerce and ecommerce are one word.
_LETTER_AND_WORD = re.compile(r"\b([A-Za-z])-(?=([A-Za-z]{3,}))\2")
# Letters that no decomposition takes apart, and the one Cyrillic letter that people type without its dots.
_LETTERS = {
    "ø": "o",
    "Ø": "O",
    "ł": "l",
    "Ł": "L",
    "đ": "d",
    "Đ": "D",
    "æ": "ae",
    "Æ": "AE",
    "Œ": "OE",
    "œ": "oe",
    "ı": "i",
    "ё": "е",
    "Ё": "Е",
}

_STOP = """
    a an and any anything are as at be been being both but by can could did do does doing each either else for from
    had has have having he her here hers him his how i if in into is it its itself just let like me might mine more
    most must my myself need needs no nor not of on onto or other our ours out over own per please s same shall she
    should so some such t than that the their theirs them then there these they this those through to too under
    until up upon us very via want wants was we were what when where whether which while who whom whose why will
    with within would you your yours
"""
STOP_WORDS = frozenset(_STOP.split())
"""Words of English sentences that no tool is about. Words that name directions or actions (off, down, all) stay."""

# Final s that is no plural.
_NO_PLURAL = """
    news series kubernetes postgres https sms dns aws gps css rss tls ssl os ios js ts cors sass less access address
    alias always analytics atlas bias bus business canvas chaos class corpus cross focus gas genesis jenkins lens
    pandas previous process progress redis sales status success tennis this was windows wordpress keras express
    mathematics physics statistics
"""
_SINGULAR = frozenset(_NO_PLURAL.split())
_SHORT_PLURALS = frozenset(("vms", "prs", "mrs", "ids", "dbs", "pcs", "kvs"))


@lru_cache(maxsize=4096)
def _fold_letter(char: str) -> str:
    if char in _LETTERS:
        return _LETTERS[char]
    if "\u0300" <= char <= "\u036f":
        return ""
    first = unicodedata.normalize("NFD", char)[0]
    # Latin and Greek lose their accents; in other scripts a mark makes another letter (й, が).
    return first if first.isascii() or "\u0370" <= first <= "\u03ff" else char


def normalise(text: str) -> str:
    """NFKC without Latin and Greek accents; case is kept, because it separates the words of an identifier."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _fold_letter(char) for char in unicodedata.normalize("NFKC", text))


def singular(word: str) -> str:
    """The word without an English plural ending. Light on purpose: whole stemming was measured and is worse."""
    if len(word) < 4:
        return word[:-1] if word in _SHORT_PLURALS else word
    if word[-1] != "s" or word in _SINGULAR or not word.isascii():
        return word
    if word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith(("sses", "shes", "ches", "xes", "zzes")):
        return word[:-2]
    return word[:-1]


# Longest first: of two that fit, the longer one goes.
_FORMS = "ization isation ations ation ments ment ings ing ions ion ers ed er or es al e"
_ENDINGS = tuple(_FORMS.split())


def stem(word: str) -> str:
    """A crude common beginning of a word's forms (render, rendering, rendered); good enough for an expansion only."""
    if len(word) < 5 or not word.isascii():
        return word
    for _ in range(2):
        if not word.endswith(_ENDINGS):
            break
        for ending in _ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= 4:
                word = word[: -len(ending)]
                break
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] else word


def parts(identifier: str) -> list[str]:
    """The lower-case parts of a name in snake, kebab, dotted or camel case, in order, nothing dropped."""
    return [
        part.lower()
        for word in _WORD.findall(normalise(identifier))
        for part in (_HUMP.split(word) if not word.islower() else (word,))
        if part
    ]


def grams(run: str) -> list[str]:
    """Overlapping pairs of characters of a run without spaces; a single character is itself."""
    return [run[at : at + 2] for at in range(len(run) - 1)] or [run]


def _terms_of_word(word: str, split_all: bool) -> tuple[str, ...]:
    if not word.isascii() and _UNSPACED.search(word):
        found: list[str] = []
        last = 0
        for run in _UNSPACED.finditer(word):
            if run.start() > last:
                found += _terms_of_word(word[last : run.start()], split_all)
            found += grams(run.group())
            last = run.end()
        if last < len(word):
            found += _terms_of_word(word[last:], split_all)
        return tuple(found)
    lower = word.lower() if word.isascii() else word.casefold()
    if lower in STOP_WORDS:
        return ()
    if word != lower and len(word) > 2 and (split_all or word[0] == lower[0]):
        humps = _HUMP.split(word)
        if len(humps) > 1:
            lowered = [hump.lower() for hump in humps]
            return (*(singular(hump) for hump in lowered if hump not in STOP_WORDS), singular(lower))
    return (singular(lower),)


_prose_memo: dict[str, tuple[str, ...]] = {}
_name_memo: dict[str, tuple[str, ...]] = {}
_MEMO_LIMIT = 100_000


def _terms(text: str, memo: dict[str, tuple[str, ...]], split_all: bool) -> list[str]:
    found: list[str] = []
    for word in _WORD.findall(text):
        terms = memo.get(word)
        if terms is None:
            if len(memo) > _MEMO_LIMIT:
                memo.clear()
            terms = memo[word] = _terms_of_word(word, split_all)
        found += terms
    return found


def forget() -> None:
    """Drop the terms kept for words seen before; only a measurement of a first build needs it."""
    _prose_memo.clear()
    _name_memo.clear()


def prose_terms(text: str) -> list[str]:
    """Terms of sentences. camelCase is split only when it begins in lower case: GitHub and PostgreSQL are words."""
    text = normalise(text)
    if "-" in text:
        text = _LETTER_AND_WORD.sub(r"\1\2", text)
    if "'" in text or "’" in text:
        text = _APOSTROPHE.sub("", text)
    return _terms(text, _prose_memo, False)


def name_terms(text: str) -> list[str]:
    """Terms of an identifier: every hump is split, and a word of several humps is also kept joined."""
    return _terms(normalise(text), _name_memo, True)
