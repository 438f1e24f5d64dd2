"""Cleaning: each pair that is dropped is counted once, under its first reason."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from ala_encoder.cleaning import REASONS, Cleaner
from ala_encoder.settings.loader import check
from ala_encoder.settings.parallel import CleaningSettings

OFF: dict[str, Any] = {
    "drop_empty": False, "drop_duplicates": False, "max_words": None, "max_length": None,
    "max_ratio": None,
}  # fmt: skip


def cleaner(**changes: Any) -> Cleaner:
    return Cleaner(check(OFF | changes, CleaningSettings))


def kept(which: Cleaner, *pairs: tuple[str, str]) -> list[bool]:
    """Say of each pair whether it stays; a piece is a letter that is no space."""
    return [
        which.keeps_texts(*pair) and which.keeps_pieces(*(side.replace(" ", "") for side in pair))
        for pair in pairs
    ]


@pytest.mark.parametrize(
    ("changes", "pair", "reason"),
    [
        ({"drop_empty": True}, ("", "a"), "empty"),
        ({"drop_empty": True}, ("a", " \u2003\x85"), "empty"),
        ({"max_words": 2}, ("a b c", "a"), "words"),
        ({"max_words": 2}, ("a", "a b c"), "words"),
        ({"max_length": 3}, ("aaaa", "a"), "length"),
        ({"max_length": 3}, ("a", "aa aa"), "length"),
        ({"max_ratio": 1.5}, ("aaaa", "aa"), "ratio"),
        ({"max_ratio": 1.5}, ("aa", "aaaa"), "ratio"),
    ],
)
def test_a_pair_is_dropped_for_its_reason_and_stays_without_it(
    changes: dict[str, Any], pair: tuple[str, str], reason: str
) -> None:
    which = cleaner(**changes)
    assert kept(which, pair) == [False]
    assert which.dropped == {reason: 1}
    other = cleaner()
    assert kept(other, pair) == [True]
    assert other.dropped == {}


@pytest.mark.parametrize(
    ("changes", "pair"),
    [
        ({"max_words": 2}, ("a b", "a b")),
        ({"max_length": 3}, ("aaa", "aaa")),
        ({"max_ratio": 1.5}, ("aaa", "aa")),
        ({"max_ratio": 1.15}, ("a" * 115, "a" * 100)),  # 1.15 · 100 is 114.99…
        ({"max_ratio": 1.0}, ("aa", "aa")),
        ({"max_ratio": 1.5}, ("", "aaaa")),  # that is the other setting's
    ],
)
def test_a_limit_is_the_most_that_stays(changes: dict[str, Any], pair: tuple[str, str]) -> None:
    assert kept(cleaner(**changes), pair) == [True]


def test_a_side_whose_text_has_no_piece_is_empty() -> None:
    which = cleaner(drop_empty=True)
    assert which.keeps_texts("\u200b", "a")
    assert not which.keeps_pieces([], [7])
    assert which.dropped == {"empty": 1}


def test_duplicates_are_pairs_of_which_both_sides_are_the_same() -> None:
    which = cleaner(drop_duplicates=True)
    pairs = [("a", "x"), ("a", "y"), ("b", "x"), ("a", "x"), ("b", "x"), ("ax", ""), ("", "ax")]
    assert kept(which, *pairs) == [True, True, True, False, False, True, True]
    assert which.dropped == {"duplicate": 2}
    assert all(kept(cleaner(), *pairs))


def test_a_pair_counts_once_under_its_first_reason() -> None:
    everything = {"drop_empty": True, "drop_duplicates": True, "max_words": 2, "max_length": 3}
    which = cleaner(**everything, max_ratio=1.5)
    pairs = [("", "a b c d"), ("a b c d", "a"), ("a b c d", "a"), ("aaaa", "a"), ("aaaa", "a")]
    assert kept(which, *pairs) == [False] * 5
    assert which.dropped == {"empty": 1, "words": 2, "length": 1, "duplicate": 1}
    assert list(REASONS) == ["empty", "words", "duplicate", "length", "ratio"]


def test_random_pairs_are_cleaned_as_a_plain_loop_cleans_them() -> None:
    draw = random.Random(5)
    pairs = [
        tuple("".join(draw.choices("ab  ", k=draw.randint(0, 6))) for _ in "st")
        for _ in range(3000)
    ]
    which = cleaner(drop_empty=True, drop_duplicates=True, max_words=2, max_length=4, max_ratio=2)
    seen: list[tuple[str, ...]] = []
    expected, reasons = [], Counter[str]()
    for pair in pairs:
        sizes = [len(side.replace(" ", "")) for side in pair]
        words = max(len(side.split()) for side in pair)
        fresh, reason = pair not in seen, ""
        if 0 in sizes:
            reason = "empty"
        elif words > 2:
            reason = "words"
        elif not fresh:
            reason = "duplicate"
        elif max(sizes) > 4:
            reason = "length"
        elif max(sizes) > 2 * min(sizes):
            reason = "ratio"
        if reason not in ("empty", "words"):
            seen.append(pair)
        expected.append(not reason)
        reasons[reason] += 1
    assert kept(which, *pairs) == expected  # type: ignore[arg-type]
    del reasons[""]
    assert which.dropped == reasons
    assert set(reasons) == set(REASONS)
