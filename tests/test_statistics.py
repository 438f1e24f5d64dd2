"""Means, deviations and paired tests: the published numbers, loops, and what has no answer."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest
from scipy import stats

from ala_encoder.analysis.statistics import (
    aggregate,
    in_both,
    paired_bootstrap,
    paired_t,
)

PPL = {
    "baseline": [36.63, 35.60, 36.37],
    "distbias": [35.68, 35.16, 35.76],
    "gated": [35.31, 36.13, 35.69],
}
"""Perplexities of Adaptive Locality Attention at seeds 1337, 42 and 2025."""


@pytest.mark.parametrize(
    ("variant", "mean", "population", "sample"),
    [("baseline", 36.20, 0.44, 0.536), ("distbias", 35.54, 0.27, 0.326),
     ("gated", 35.71, 0.33, 0.410)],
)  # fmt: skip
def test_the_published_spread_is_the_populations(
    variant: str, mean: float, population: float, sample: float
) -> None:
    found = aggregate(PPL[variant], ddof=0)
    assert found.mean == pytest.approx(mean, abs=0.01)
    assert found.sd == pytest.approx(population, abs=0.006)
    assert (found.n, found.ddof, found.reason) == (3, 0, None)
    own = aggregate(PPL[variant])
    assert own.sd == pytest.approx(sample, abs=0.0006)
    assert own.se == found.se == pytest.approx(sample / math.sqrt(3), abs=0.0004)


@pytest.mark.parametrize(
    ("first", "second", "difference", "t", "p"),
    [
        ("baseline", "distbias", 0.667, 4.45, 0.047),
        ("baseline", "gated", 0.490, 0.90, 0.46),
        ("distbias", "gated", -0.177, None, 0.71),
    ],
)
def test_the_paired_tests_over_its_seeds(
    first: str, second: str, difference: float, t: float | None, p: float
) -> None:
    found = paired_t(PPL[first], PPL[second])
    assert found.difference == pytest.approx(difference, abs=0.0005)
    assert found.df == 2
    assert found.p == pytest.approx(p, abs=0.005)
    assert t is None or found.t == pytest.approx(t, abs=0.005)
    assert found.reason is None


def test_the_test_is_scipys_and_the_error_that_of_the_standard_library() -> None:
    draw = random.Random(1)
    first = [draw.gauss(3, 1) for _ in range(11)]
    second = [x + draw.gauss(0.3, 0.5) for x in first]
    found = paired_t(first, second)
    theirs = stats.ttest_rel(first, second)
    assert (found.t, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    differences = [a - b for a, b in zip(first, second, strict=True)]
    assert found.difference == pytest.approx(statistics.fmean(differences))
    assert found.sd == pytest.approx(statistics.stdev(differences))
    assert found.se == pytest.approx(statistics.stdev(differences) / math.sqrt(11))


def test_numbers_are_paired_by_their_seed() -> None:
    first, second = {42: 1.0, 7: 2.0, 1: 3.0}, {7: 5.0, 42: 4.0, 9: 6.0}
    assert in_both(first, second) == ([1.0, 2.0], [4.0, 5.0])


def test_one_value_has_a_mean_and_a_reason_for_the_rest() -> None:
    one = aggregate([2.5])
    assert (one.n, one.mean, one.sd, one.se) == (1, 2.5, None, None)
    assert one.reason == "one value does not tell how values spread"
    assert aggregate([2.5], ddof=0).sd == 0.0
    test = paired_t([2.5], [2.0])
    assert (test.n, test.difference, test.df, test.t, test.p) == (1, 0.5, 0, None, None)
    assert test.reason is not None
    resampled = paired_bootstrap([2.5], [2.0])
    assert (resampled.difference, resampled.low, resampled.p) == (0.5, None, None)
    assert resampled.reason is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_what_is_not_finite_has_a_reason(bad: float | None) -> None:
    values = [1.0, bad, 3.0]
    found = aggregate(values)  # type: ignore[arg-type]
    assert (found.mean, found.sd, found.se) == (None, None, None)
    assert found.reason == "1 of 3 values are not finite"
    test = paired_t(values, values)  # type: ignore[arg-type]
    assert (test.difference, test.t, test.p, test.reason) == (None, None, None, found.reason)
    assert paired_bootstrap(values, [0.0] * 3).reason == found.reason  # type: ignore[arg-type]


def test_no_value_has_a_reason() -> None:
    assert aggregate([]).reason == "there is no value"
    assert paired_t([], []).reason == paired_bootstrap([], []).reason == "there is no value"
    assert paired_t([], []).df == 0


@pytest.mark.parametrize("second", [[1.0, 2.0, 4.0], [0.9, 1.9, 3.9], [1001.0, 1002.0, 1004.0]])
def test_equal_differences_have_no_t_and_say_so(second: list[float]) -> None:
    """Also where they are equal up to rounding alone."""
    found = paired_t([1.0, 2.0, 4.0], second)
    assert found.difference == pytest.approx(1.0 - second[0])
    assert (found.t, found.p) == (None, None)
    assert "equal" in str(found.reason)


def test_the_bootstrap_agrees_with_the_t_test_where_both_apply() -> None:
    draw = np.random.default_rng(0)
    first = draw.normal(3.0, 1.0, 400)
    second = first + draw.normal(0.05, 0.5, 400)
    found, test = paired_bootstrap(first, second, 4000), paired_t(first, second)
    assert found.difference == test.difference
    assert test.difference is not None and test.se is not None
    assert found.low == pytest.approx(test.difference - 1.96 * test.se, abs=0.1 * test.se)
    assert found.high == pytest.approx(test.difference + 1.96 * test.se, abs=0.1 * test.se)
    assert found.p == pytest.approx(test.p, abs=0.02)
    assert found == paired_bootstrap(first, second, 4000)
    assert paired_bootstrap(first, first).p == 1.0
    assert paired_bootstrap(first + 1.0, first + 0.0 * second).p == 1 / 1001


def test_numbers_that_are_no_pairs_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="no pairs"):
        paired_t([1.0, 2.0], [1.0])
