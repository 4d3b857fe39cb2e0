"""Text from servers cannot steer a terminal, hide from a reader, or carry a secret that is known."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
import unicodedata
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pi_mcp.text import Redactor, clean, clean_line, clean_metadata, redact, visible, width

# Characters of every class that matters here, mixed with ordinary text.
HOSTILE = st.text(
    st.one_of(
        st.characters(max_codepoint=0x9F),
        st.sampled_from("\x1b\x07\x9b\x9d\x9c\x90[]P;\\m0\n\t\r\u202e\u2066\u2069\u200b\u200f\u061c\ufeff\ud800"),
        st.characters(),
    ),
    max_size=60,
)
BIDIRECTIONAL = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN"}


def harmless(text: str) -> bool:
    return not any((ord(c) < 0x20 and c not in "\n\t") or 0x7F <= ord(c) <= 0x9F for c in text)


@given(HOSTILE)
def test_no_control_byte_and_no_escape_survives_cleaning(text: str) -> None:
    assert harmless(clean(text))
    clean(text).encode()


@given(HOSTILE)
def test_no_bidirectional_or_invisible_character_survives_in_metadata(text: str) -> None:
    result = clean_metadata(text)
    assert harmless(result)
    assert not any(unicodedata.bidirectional(c) in BIDIRECTIONAL for c in result)
    assert not set(result) & set("\u200e\u200f\u061c\u200b\u200c\u200d\u2060\ufeff\u00ad\u2028\u2029")


@given(HOSTILE, st.integers(1, 50))
def test_a_line_of_metadata_is_one_line_within_its_limit(text: str, limit: int) -> None:
    line = clean_line(text, limit)
    assert len(line) <= limit
    assert harmless(line)
    assert "\n" not in line
    assert "\t" not in line


@given(HOSTILE)
def test_what_is_made_visible_is_harmless_and_complete(text: str) -> None:
    result = visible(text)
    assert harmless(result)
    assert clean_metadata(result) == result
    assert len(result) >= len(text)
    kept = iter(result)
    assert all(char in kept for char in text if char.isascii() and char.isprintable())


def test_a_line_out_of_megabytes_takes_no_longer_than_its_beginning() -> None:
    started = time.monotonic()
    for _ in range(100):
        clean_line("\x1b]" * 5_000_000, 80)
    assert time.monotonic() - started < 10


@given(HOSTILE)
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    assert clean(clean(text)) == clean(text)
    assert clean_metadata(clean_metadata(text)) == clean_metadata(text)


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=80))
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert clean(text) == text
    assert clean_metadata(text) == text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("oops\x1b[H\x1b[J\x1b]2;title\x07!", "oops!"),
        ("a\x1b]52;c;ZXZpbA==\x07b", "ab"),
        ("a\x1b]52;c;ZXZpbA==\x1b\\b", "ab"),
        ("\x1b]8;;http://evil.test\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1bPq#0;2;0;0;0\nmore\x1b\\b", "ab"),
        ("a\x9b31mred\x9b0m", "ared"),
        ("a\x9d2;title\x9cb", "ab"),
        ("a\x1b(Bb\x1b7c\x1bcd", "abcd"),
        ("a\x1b[38;2;1;2;3mb", "ab"),
        ("tail\x1b", "tail"),
        ("tail\x1b[", "tail"),
        ("tail\x1b]0;evil", "tail"),
        ("bell\x07 back\x08 del\x7f nul\x00", "bell back del nul"),
        ("a\r\nb", "a\nb"),
        ("\ud83d", "\ufffd"),
    ],
)
def test_escape_sequences_go_whole(hostile: str, shown: str) -> None:
    assert clean(hostile) == shown


def test_a_string_sequence_that_never_ends_takes_only_its_line() -> None:
    assert clean("a\x1b]0;title\nsecond line\nthird") == "a\nsecond line\nthird"


def test_quotation_marks_of_mis_decoded_text_do_not_swallow_what_follows() -> None:
    garbled = "He said “yes” and ‘no’ to it.".encode().decode("latin-1")
    assert "yes" in clean(garbled)
    assert clean(garbled).endswith("to it.")


def test_a_text_that_reads_backwards_is_shown_in_its_true_order() -> None:
    assert clean_metadata("safe\u202egnp.exe\u202c") == "safegnp.exe"
    assert clean_metadata("a\u2066b\u2069c\u200bd\U000e0041e") == "abcde"


@pytest.mark.parametrize("unit", ["\x1b]", "\x9d", "\x90a", "\x1b[", "\x1bP\n", "\x1b", "\x9b0"])
def test_a_megabyte_of_introducers_is_cleaned_in_linear_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    started = time.monotonic()
    assert harmless(clean(text))
    assert time.monotonic() - started < 5


def test_wide_characters_count_two_columns_and_marks_none() -> None:
    assert width("ab") == 2
    assert width("日本") == 4
    assert width("e\u0301") == 1


SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=4, max_size=30).filter(
    lambda text: len(text.strip()) >= 4
)


@given(SECRETS, st.text(max_size=20), st.text(max_size=20))
@settings(max_examples=50)
def test_a_known_value_is_nowhere_in_redacted_text(secret: str, before: str, after: str) -> None:
    redactor = Redactor()
    redactor.add(secret)
    result = redactor(f"{before}{secret}{after}")
    assert "***" in result
    assert secret not in result.replace("***", "") or secret in before or secret in after


def test_the_token_of_a_header_goes_in_every_spelling() -> None:
    redactor = Redactor()
    redactor.add('Bearer PLANTED"sé/+cret')
    token = 'PLANTED"sé/+cret'
    for text in (token, json.dumps(token), json.dumps({"t": token}, ensure_ascii=False), quote(token, safe="")):
        assert "PLANTED" not in redactor(f"x {text} y")
    assert redactor("Bearer of news") == "Bearer of news"


def test_short_values_do_not_blank_ordinary_words() -> None:
    redactor = Redactor()
    redactor.add("on")
    assert redactor("on and on") == "on and on"


def test_what_a_cut_leaves_of_a_value_is_redacted_too() -> None:
    redactor = Redactor()
    redactor.add("PLANTED-SECRET-PLAN")
    for length in range(14, 40):
        line = redactor(clean_line("http://host/PLANTED-SECRET-PLAN/mcp and more of it", length))
        assert "PLAN" not in line
        assert line.endswith("…")
    assert redactor("PLANTED-SECRET-PL… PLANTED-SECRET-PLAN… PLANET…") == "***… ***… PLANET…"
    assert redactor("an ordinary cut…") == "an ordinary cut…"


def test_a_redactor_shows_no_value_and_counts_only_while_it_lives() -> None:
    redactor = Redactor()
    redactor.add("PLANTED-SECRET")
    assert "PLANTED" not in repr(redactor)
    assert redact("a PLANTED-SECRET b") == "a *** b"
    del redactor
    gc.collect()
    assert redact("a PLANTED-SECRET b") == "a PLANTED-SECRET b"


def test_threads_that_redact_while_others_learn_secrets_miss_none() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    kept, faults, ended = Redactor(), [], threading.Event()

    def reading() -> None:
        try:
            while not ended.is_set():
                redact("ordinary text")
        except BaseException as fault:
            faults.append(fault)

    readers = [threading.Thread(target=reading) for _ in range(2)]
    try:
        for reader in readers:
            reader.start()
        others = [Redactor() for _ in range(50)]
        for number in range(120):
            others = [*others[1:], Redactor()]
            kept.add(f"secret-{number}-value")
            assert kept(f"a secret-{number}-value") == "a ***"
    finally:
        ended.set()
        for reader in readers:
            reader.join()
        sys.setswitchinterval(before)
    assert not faults
