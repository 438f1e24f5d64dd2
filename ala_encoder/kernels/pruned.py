"""Learned-locality pruning (ours): keys so far away that they cannot matter are not computed.

For: inference with distance biases −a_i |i − j| on a CPU, in place of `slope`, which computes all
keys. `reach` has the bounds and their proof: in no row do the keys left out weigh more than `prune`
together. The work is done by PyTorch's fused kernel; nothing is T x T.

1. windows: every query sees the keys of its own tile and of some tiles before it, as many for all
   queries of a head as make the least work. Tiles overlap, so they are views: nothing is copied.
2. gathered: with the log-sum-exp over its window a row's bound is known. The rows that need more
   keys, such as those whose gate is all but closed, are gathered, some at a time, and done again.

Bidirectional attention has two sides, the keys j <= i as they stand and j > i on reversed arrays,
merged by their log-sum-exps. Where windows would save little, `slope` does it all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from ala_encoder.kernels import reach
from ala_encoder.kernels.features import numbered
from ala_encoder.kernels.slope import slope
from ala_encoder.kernels.windows import ROWS, TILE, Side, Work, sides_of

_SAMPLE = 8
"""The windows are chosen by every eighth token."""
# Times on a CPU, after a fit to measurements; the unit is that of a query and a key, 1.35 ns with
# heads of 16.
_CALL = 2**16
"""Windows of a head, beside their pairs."""
_GROUP = 2**15
"""A group of gathered rows, beside its pairs."""
_ROW = 192
"""All that is done for a query alone."""
_LENGTHS = 2
"""Distances of log(1 / prune) / a_i in a text from which pruning is thought of at all."""
_WORTH = 1.0
"""Part of the time of all pairs from which `slope` does them all."""


@dataclass(frozen=True)
class Pruning:
    """What was left out of one attention, or of several together."""

    pairs: int
    """Pairs of a query and a key that it may see."""
    computed: int
    """Those computed."""
    weight: float
    """No row lost more: the largest bound on the sum of weights left out."""
    error: float
    """The largest bound on the change of a head's output, as a Euclidean norm."""

    @property
    def fraction(self) -> float:
        return self.computed / self.pairs if self.pairs else 1.0

    @classmethod
    def together(cls, found: Sequence[Pruning]) -> Pruning:
        """Return the pairs of several attentions and the worst of their bounds."""
        return cls(
            sum(one.pairs for one in found),
            sum(one.computed for one in found),
            max((one.weight for one in found), default=0.0),
            max((one.error for one in found), default=0.0),
        )


_found: ContextVar[list[Pruning] | None] = ContextVar("found", default=None)


@contextmanager
def watch_pruning() -> Iterator[list[Pruning]]:
    """Collect what each attention left out while the block runs, in order of computation."""
    found: list[Pruning] = []
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


@torch.no_grad()
def pruned(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor,
    prune: float,
    *,
    causal: bool,
    segments: Tensor | None = None,
) -> Tensor:
    """Compute what `slope` does, but for keys that weigh at most `prune` together in any row.

    Shapes as `slope`, on a CPU; no gradient.
    """
    slopes = slopes.float().expand(q.shape[:3])
    segments = None if segments is None else numbered(segments)
    sides = sides_of(segments, q.shape[2], causal=causal)
    share = prune / len(sides)
    tiles = _tiles(q, k, slopes, segments, sides, share)
    work = None
    if tiles is None:
        mixed = slope(q, k, v, slopes, causal=causal, segments=segments)
    else:
        work = Work.of(q, k, v, slopes, segments, sides)
        work.compute(tiles, share)
        mixed = work.mixed(v.shape[-1])
        if segments is not None:
            mixed = mixed.masked_fill((segments == 0)[:, None, :, None], 0.0)
    found = _found.get()
    if found is not None:
        pairs = q.shape[1] * sum(side.pairs(len(q)) for side in sides)
        left, weight, error = work.left_out(mixed, v) if work else (0, 0.0, 0.0)
        found.append(Pruning(pairs, pairs - left, weight, error))
    return mixed


# ---------------------------------------------------------------------------------------------
# The windows
# ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """The window of each head in tiles, the time that takes, and the time of all pairs."""

    tiles: list[int]
    time: float
    whole: float


def _tiles(
    q: Tensor,
    k: Tensor,
    slopes: Tensor,
    segments: Tensor | None,
    sides: Sequence[Side],
    share: float,
) -> list[list[int]] | None:
    """Choose windows by side and head, from what a sample of the tokens seems to need.

    None: too little would be saved.
    """
    length = q.shape[2]
    q, k, slopes = (x[:, :, ::_SAMPLE] for x in (q, k, slopes))
    if float(slopes.mean((0, 2)).max()) * length < _LENGTHS * -math.log(share):
        return None
    sample = [Side(s.places[::_SAMPLE], s.begin[..., ::_SAMPLE], s.ahead) for s in sides]
    centre, away = reach.mean_key(k, None if segments is None else segments[:, ::_SAMPLE] > 0)
    decays = [
        reach.decay(slopes, (s.places + 1 - s.begin).clamp(min=0)) - s.ahead * slopes
        for s in sample
    ]
    known = torch.stack(decays).logsumexp(0) + reach.typical(q, centre, away)
    ratio = (reach.highest(q, centre, away) - known).double()
    plans = [_plan(side, side.needed(ratio, slopes, share), length - side.ahead) for side in sample]
    if sum(plan.time for plan in plans) > _WORTH * sum(plan.whole for plan in plans):
        return None
    return [plan.tiles for plan in plans]


def _plan(side: Side, start: Tensor, length: int) -> _Plan:
    """Choose the windows that take least time, with the rows that will be gathered then."""
    batch, heads, _ = start.shape
    most = -(-length // TILE)
    tiles = side.places // TILE + 1 - start // TILE
    alone = _SAMPLE * ((side.places + 1 - start).double() + _GROUP / ROWS)
    times = torch.zeros(heads, most + 2, dtype=torch.float64)
    times.scatter_add_(1, *(x.transpose(0, 1).flatten(1) for x in (tiles, alone)))
    gathered = times.flip(1).cumsum(1).flip(1)[:, 2:]  # the rows that need more tiles
    # Rows of one call are spread over the text; each gets what the first and the last need.
    gathered += ROWS * batch * length * (gathered > 0)
    width = torch.arange(1, most + 1, dtype=torch.float64)
    pairs = batch * (width / 2 + most - width) * width * TILE**2
    least = (pairs + _CALL * (1 + (width < most)) + gathered).min(1)
    whole = batch * heads * (most * TILE) ** 2 / 2
    time = float(least.values.sum()) + batch * heads * length * _ROW
    return _Plan((least.indices + 1).tolist(), time, whole)
