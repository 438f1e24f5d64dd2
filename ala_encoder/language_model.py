"""The perplexity of a language model, and its floor: a model that knows token frequencies alone.

For: numbers about losses in nats that were summed elsewhere. Not for: the losses themselves
(`objectives`), or the metrics of tasks (`metrics`). Needs numpy only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ala_encoder.errors import UserError
from ala_encoder.metrics import Undefined


def perplexity(loss_sum: float, count: int) -> float:
    """Return exp(loss_sum / count), the perplexity per target; infinity where that overflows.

    `loss_sum` is the summed negative log-likelihood in nats over `count` targets: sums, never
    means of batches, so that no batch weighs more than its targets. Raises Undefined when there is
    no target or the sum is NaN.
    """
    if count <= 0 or math.isnan(loss_sum):
        raise Undefined(f"perplexity of a loss of {loss_sum} over {count} targets")
    try:
        return math.exp(loss_sum / count)
    except OverflowError:
        return math.inf


_AT_ONCE = 1 << 24  # tokens counted at once: a corpus may be larger than memory


def token_counts(tokens: npt.NDArray[np.integer[Any]], vocab_size: int) -> npt.NDArray[np.int64]:
    """Return how often each id of the vocabulary is among `tokens`: int64 [V]."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for first in range(0, len(tokens), _AT_ONCE):
        counts += np.bincount(tokens[first : first + _AT_ONCE], minlength=vocab_size)
    return counts


class Unigram:
    """The floor of a language model: token frequencies alone, with add-one smoothing.

    p(v) = (counts[v] + 1) / (sum(counts) + V)    (Laplace; Jurafsky & Martin, ch. 3)
    """

    def __init__(self, counts: npt.NDArray[np.integer[Any]]) -> None:
        """Fit on `counts`, shape (V,): how often each token of the vocabulary was in training."""
        counts = np.asarray(counts)
        assert counts.ndim == 1 and counts.size and counts.dtype.kind in "iu", counts.shape
        assert int(counts.min()) >= 0, "a negative count"
        total = int(counts.sum(dtype=np.int64)) + len(counts)
        self.log_probabilities: npt.NDArray[np.float64] = np.log(counts + 1.0) - math.log(total)

    def loss(self, tokens: npt.ArrayLike) -> float:
        """Return the mean negative log-likelihood of held-out target `tokens`, in nats per token.

        `tokens` are ids in 0..V-1 of any shape; padding and unchosen positions are left out by the
        caller. Counted before they are weighed, so that no order or cut changes the value. Raises
        Undefined when there is none, UserError for an id outside the vocabulary.
        """
        ids = np.asarray(tokens).reshape(-1)
        if ids.size == 0:
            raise Undefined("unigram loss of no token")
        assert ids.dtype.kind in "iu", ids.dtype
        low, high, size = int(ids.min()), int(ids.max()), len(self.log_probabilities)
        if low < 0 or high >= size:
            outside = low if low < 0 else high
            raise UserError(f"unigram loss: token id {outside}, allowed are 0..{size - 1}")
        counts = np.bincount(ids.astype(np.int64), minlength=size)
        return -float(counts @ self.log_probabilities) / ids.size
