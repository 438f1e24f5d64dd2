"""Means with their spread, and whether paired numbers differ: over seeds, tokens or segments.

For: every table that says "mean ± standard deviation", and every comparison of two models. Not for:
BLEU, whose resamples are of sentences (`significance`).

Nothing here is a crash: what cannot be told is None, and `reason` says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Key = TypeVar("Key")

_ROUNDING = 1e-12
"""Differences that spread by less, relative to the numbers, are equal up to rounding."""


@dataclass(frozen=True)
class Aggregate:
    """The mean of n numbers and how far they spread."""

    n: int
    mean: float | None
    sd: float | None
    """Standard deviation, the sum of squares over n − ddof."""
    ddof: int
    se: float | None
    """Standard error of the mean: the sample standard deviation (ddof 1) over sqrt(n)."""
    reason: str | None = None
    """Why something is None."""


@dataclass(frozen=True)
class PairedTest:
    """Two-sided paired t-test of n differences, first − second."""

    n: int
    difference: float | None
    """Their mean."""
    sd: float | None
    """Their sample standard deviation (ddof 1)."""
    se: float | None
    """Standard error of `difference`."""
    t: float | None
    df: int
    p: float | None
    reason: str | None = None
    """Why something is None."""


@dataclass(frozen=True)
class Bootstrap:
    """Paired bootstrap of n differences, first − second."""

    n: int
    difference: float | None
    low: float | None
    """The 95 % interval of `difference`, by percentiles."""
    high: float | None
    p: float | None
    """Two-sided: how often a resampled mean, moved to 0, is as far from 0 as the one found."""
    num_samples: int
    reason: str | None = None
    """Why something is None."""


def aggregate(values: ArrayLike, ddof: int = 1) -> Aggregate:
    """Return mean, standard deviation and standard error of numbers.

    ddof: 1 is the sample's standard deviation, 0 the population's. One number has a mean, and with
    ddof 0 a deviation of 0; numbers that are not finite have none.
    """
    found = _array(values)
    n = len(found)
    if reason := _unfit(found):
        return Aggregate(n, None, None, ddof, None, reason)
    mean = float(found.mean())
    sd = float(found.std(ddof=ddof)) if n > ddof else None
    if n < 2:
        return Aggregate(n, mean, sd, ddof, None, "one value does not tell how values spread")
    return Aggregate(n, mean, sd, ddof, float(found.std(ddof=1)) / math.sqrt(n))


def in_both(
    first: Mapping[Key, float], second: Mapping[Key, float]
) -> tuple[list[float], list[float]]:
    """Return the numbers whose key, such as a seed, is in both, in the order of the first."""
    keys = [key for key in first if key in second]
    return [first[key] for key in keys], [second[key] for key in keys]


def paired_t(first: ArrayLike, second: ArrayLike) -> PairedTest:
    """Test whether paired numbers differ in their mean: t = mean / (sd / sqrt(n)), df = n − 1.

    first, second: of the same seeds, tokens or segments, in the same order. Where all differences
    are equal, up to rounding, there is no t.
    """
    found, size = _differences(first, second)
    n = len(found)
    about = aggregate(found)
    t = p = None
    reason = about.reason
    if about.mean is not None and about.sd is not None and about.se is not None:
        if about.sd <= _ROUNDING * size:
            reason = "all differences are equal, so there is nothing to hold their mean against"
        else:
            from scipy import stats

            t = about.mean / about.se
            p = float(2.0 * stats.t.sf(abs(t), n - 1))
    return PairedTest(n, about.mean, about.sd, about.se, t, max(n - 1, 0), p, reason)


def paired_bootstrap(
    first: ArrayLike, second: ArrayLike, num_samples: int = 1000, seed: int = 12345
) -> Bootstrap:
    """Resample the pairs and return the interval and p of their mean difference.

    Units are what was drawn apart: segments or documents rather than the tokens in them. p counts
    the difference itself as one resample (Davison and Hinkley 1997), so it is never 0.
    """
    found, _ = _differences(first, second)
    n = len(found)
    if reason := _unfit(found):
        return Bootstrap(n, None, None, None, None, num_samples, reason)
    mean = float(found.mean())
    if n < 2:
        why = "one difference does not tell how differences spread"
        return Bootstrap(n, mean, None, None, None, num_samples, why)
    draw = np.random.default_rng(seed)
    means = np.array([found[draw.integers(0, n, n)].mean() for _ in range(num_samples)])
    low, high = np.quantile(means, (0.025, 0.975))
    as_far = int((np.abs(means - mean) >= abs(mean)).sum())
    p = (as_far + 1) / (num_samples + 1)
    return Bootstrap(n, mean, float(low), float(high), p, num_samples)


def _array(values: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)  # None becomes NaN
    assert found.ndim == 1, found.shape
    return found


def _differences(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.float64], float]:
    """Return first − second and the largest number of both."""
    a, b = _array(first), _array(second)
    assert a.shape == b.shape, f"{a.shape} and {b.shape} are no pairs"
    with np.errstate(invalid="ignore"):  # inf − inf
        return a - b, float(np.abs([a, b]).max(initial=0.0))


def _unfit(values: NDArray[np.float64]) -> str | None:
    if not len(values):
        return "there is no value"
    bad = int((~np.isfinite(values)).sum())
    return f"{bad} of {len(values)} values are not finite" if bad else None
