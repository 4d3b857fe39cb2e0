"""The texts of keys, links, cookies and tokens."""

from __future__ import annotations

import typing

import pytest

from pi_mcp.access import secrets
from pi_mcp.access.records import Key
from pi_mcp.access.scopes import Scopes


@pytest.mark.parametrize("kind", typing.get_args(secrets.Kind))
def test_a_secret_is_recognised_as_its_own_kind_only(kind: secrets.Kind) -> None:
    made = secrets.mint(kind)
    assert secrets.recognise(made.text, kind) == (made.id, made.digest)
    for other in typing.get_args(secrets.Kind):
        if other != kind:
            assert secrets.recognise(made.text, other) is None
    assert secrets.is_ours(made.text)


def test_the_id_tells_nothing_of_the_secret_and_a_repr_shows_neither() -> None:
    made = secrets.mint("key")
    rest = made.text.rpartition("_")[2]
    assert len(rest) * 5 >= 256
    assert made.id not in rest
    key = Key(made.id, made.digest, "ann", Scopes(), 0.0)
    for shown in (repr(made), repr(key)):
        assert rest not in shown
        assert repr(made.digest) not in shown


@pytest.mark.parametrize(
    "change", [str.upper, lambda text: text + "a", lambda text: text[:-1], lambda text: " " + text]
)
def test_a_text_that_is_not_exactly_one_is_none(change: typing.Callable[[str], str]) -> None:
    assert secrets.recognise(change(secrets.mint("key").text), "key") is None


@pytest.mark.parametrize("text", ["", "pimcp_", "\ud800", "x" * 100_000, "pimcp_k" + "a" * 12 + "_" + "é" * 52])
def test_odd_texts_are_none(text: str) -> None:
    assert secrets.recognise(text, "key") is None


def test_two_secrets_differ() -> None:
    assert len({secrets.mint("key").text for _ in range(100)}) == 100
    assert secrets.same(secrets.digest("a"), secrets.digest("a"))
    assert not secrets.same(secrets.digest("a"), secrets.digest("b"))
