"""How local attention weights are: expected distance, mass nearby, entropy.

For: the metrics of Adaptive Locality Attention on weights that a model hands out (`blocks.Trace`).
Not for: averaging over layers, heads and texts, which needs the counts of real queries as well.

All take weights [..., Q, K] of queries i and keys j and return a number for each query, [..., Q],
in float32 or better. A query with nothing to see, padding too, has weights of 0 and gets 0: leave
it out of an average.
"""

from __future__ import annotations

import torch
from torch import Tensor


def expected_distance(weights: Tensor) -> Tensor:
    """Return E|i − j| = sum_j w_ij |i − j|, in tokens: [..., Q, K] → [..., Q]."""
    weights = _wide(weights)
    mean: Tensor = (weights * _distance(weights)).sum(-1)
    return mean


def local_mass(weights: Tensor, width: int) -> Tensor:
    """Return the weight at |i − j| <= width: [..., Q, K] → [..., Q]."""
    weights = _wide(weights)
    return weights.masked_fill(_distance(weights) > width, 0.0).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """Return −sum_j w_ij ln w_ij in nats, where 0 ln 0 is 0: [..., Q, K] → [..., Q]."""
    entropies: Tensor = torch.special.entr(_wide(weights)).sum(-1)
    return entropies


def _wide(weights: Tensor) -> Tensor:
    return weights.to(torch.promote_types(weights.dtype, torch.float32))


def _distance(weights: Tensor) -> Tensor:
    """Return |i − j|, [Q, K], in the dtype of the weights."""
    queries, keys = (torch.arange(n, device=weights.device) for n in weights.shape[-2:])
    return (keys - queries[:, None]).abs().to(weights.dtype)
