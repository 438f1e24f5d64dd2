"""Random numbers that are functions of what they are for, not of when they are drawn.

For: data order and corruption that do not depend on ranks, workers, batch size or a resume. The
value for (seed, epoch, example, place) is a hash, so any process can work it out alone. Not for:
dropout and initial weights, which come from torch's generators.

The mixer is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014); it is fixed here because library
generators may change their streams between versions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def keyed_bits(*keys: ArrayLike) -> NDArray[np.uint64]:
    """Return 64 hashed bits for each combination of the keys (integers, broadcast together)."""
    state = np.zeros((), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for key in keys:
            state = _mix(state ^ np.asarray(key).astype(np.uint64)) + _GOLDEN
    return _mix(state)


def keyed_uniform(*keys: ArrayLike) -> NDArray[np.float64]:
    """Return numbers in [0, 1), 53 bits each, one for each combination of the keys."""
    return (keyed_bits(*keys) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def keyed_permutation(size: int, *keys: int) -> NDArray[np.int64]:
    """Return 0 … size−1 in an order that depends on the keys alone."""
    order: NDArray[np.int64] = np.argsort(keyed_bits(*keys, np.arange(size)), kind="stable")
    return order


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        z = (z + _GOLDEN).astype(np.uint64)
        z = (z ^ (z >> np.uint64(30))) * _MIX1
        z = (z ^ (z >> np.uint64(27))) * _MIX2
    mixed: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return mixed
