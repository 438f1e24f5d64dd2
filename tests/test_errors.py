"""Errors: what was given and what failed, short enough for one line."""

from __future__ import annotations

import pytest

from ala_encoder.errors import MAX_TEXT, UserError, cut, reason, shown


def test_a_value_is_shown_as_it_is_written_and_cut_in_its_middle() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown([1, None]) == "[1, None]"
    assert shown("x" * 58) == repr("x" * 58)
    long = shown("a" * 500 + "b" * 500)
    assert len(long) <= 60
    assert long.startswith("'aaa")
    assert " … " in long
    assert long.endswith("bbb'")
    assert len(shown("x" * 500, 20)) <= 20


@pytest.mark.parametrize("most", [10, 11, 60])
def test_a_cut_text_is_never_longer_than_allowed(most: int) -> None:
    for length in range(3 * most):
        text = "x" * length
        assert len(cut(text, most)) <= most
        assert (cut(text, most) == text) == (length <= most)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(2, "No such file or directory", "a"), "No such file or directory"),
        (OSError("HTTP status 503"), "HTTP status 503"),
        (ValueError("one\n  two\tthree "), "one two three"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "'a'"),
    ],
)
def test_a_reason_is_one_line(error: Exception, said: str) -> None:
    assert reason(error) == said
    assert len(reason(ValueError("x" * 1000))) <= 300


def test_an_error_is_cut_to_a_line_that_fits() -> None:
    assert len(str(UserError("x\n" * 1000))) <= MAX_TEXT
    assert "\n" not in str(UserError("a\nb"))
