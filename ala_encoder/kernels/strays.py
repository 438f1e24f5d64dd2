"""Numbers that are NaN or infinite, kept to the queries that see them.

For: `parts`, on a CPU. Not for: padding, which is emptied before (`attention`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.scoring import Scoring
from ala_encoder.kernels.taken import with_maps
from ala_encoder.kernels.visibility import combine
from ala_encoder.settings.paths import Part


def is_finite(x: Tensor) -> bool:
    """Tell whether all is finite, in one pass; a sum that overflows counts as not."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return bool(torch.isfinite(x.detach().sum(dtype=wide)))


def mix_strays(
    q: Tensor | None,
    k: Tensor | None,
    v: Tensor,
    scoring: Scoring,
    mix: Callable[..., Tensor],
) -> Tensor:
    """Mix where some number is NaN or infinite: only a query that sees it, or has it, gets NaN.

    mix: computes all the others. In a matrix product a hidden NaN would reach every row, since 0
    times NaN is NaN. Which query sees which key takes a map, so this is for the exception alone.
    """
    q, bad_rows = _without_strays(q, scoring)
    k, bad_keys = _without_strays(k, scoring)
    v, bad_values = torch.where(torch.isfinite(v), v, 0.0), ~torch.isfinite(v).all(-1)
    if scoring.slopes is not None:
        finite = torch.isfinite(scoring.slopes)
        scoring = replace(scoring, slopes=torch.where(finite, scoring.slopes, 0.0))
    mixed = mix(q, k, v, scoring)
    every = Part(tuple(range(len(scoring.heads))), ((0, "dense"),))
    with torch.no_grad():
        given, keep = with_maps(q, k, v, scoring, every)
        pairs = scoring.visibility.pairs(mixed.shape[2], v.shape[2], v.device)
        mask, empty = combine(given["bias"], pairs)
        seen = torch.ones((), dtype=torch.bool)
        if mask is not None:
            assert empty is not None
            seen = (mask if mask.dtype == torch.bool else ~torch.isneginf(mask)) & ~empty
        kept = seen if keep is None else seen & keep
        reached = (seen & bad_keys[:, :, None]) | (kept & bad_values[:, :, None])
        reached = reached.any(-1) | bad_rows
    return mixed.masked_fill(reached[..., None], float("nan"))


def _without_strays(x: Tensor | None, scoring: Scoring) -> tuple[Tensor | None, Tensor]:
    """Return q or k with 0 for what is not finite, and where that was: bool [B, H, T]."""
    if x is None:
        return None, torch.zeros(1, len(scoring.groups), 1, dtype=torch.bool)
    finite = torch.isfinite(x)
    bad = F.pad(~finite.all(-1), (0, 0, 0, 1))  # the last is for heads without Q and K
    return torch.where(finite, x, 0.0), bad[:, [-1 if g is None else g for g in scoring.groups]]
