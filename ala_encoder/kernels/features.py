"""Columns in front of q and k that carry a linear bias or documents into any fused kernel.

For: telling a kernel what it would otherwise need a T x T mask for. A score is a dot product, so
any u_i · w_j can be had from further columns.

- A causal distance bias −a_i (i − j) is linear in j: u_i = [−a_i i, a_i], w_j = [1, j]. The two
  large terms cancel, so these columns stand **in front**, and lengths are padded to whole tiles: a
  kernel then adds them up before anything small (a tail of a few rows goes through another routine,
  and lost up to 6e-4 here).
- Documents: for each bit b of a document's number u_i = −c [b_i, 1 − b_i], w_j = [1 − b_j, b_j].
  Every product is 0 within a document, whatever the order of a sum, and the sum is out of reach of
  exp elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 16
_APART = 2.0**60
"""c above: no q·k comes near it, and what it costs in digits is those of hidden keys alone."""
_LARGEST = 2048
"""Numbers up to which documents keep them; larger ones would take more columns than are needed."""


def slope_columns(slopes: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return columns for −a_i (i − j), q's [B, H, T, 2] and k's [T, 2].

    slopes: [B, H, T]; `scale` multiplies the kernel's scores, so q's are divided by it.
    """
    positions = torch.arange(slopes.shape[2], dtype=slopes.dtype, device=slopes.device)
    steep = slopes / scale
    ones = torch.ones_like(positions)
    return torch.stack([-(steep * positions), steep], -1), torch.stack([ones, positions], -1)


@torch.no_grad()
def slope_error(slopes: Tensor, scale: float) -> Tensor:
    """Return by how much the scores of `slope_columns` are off, a row's constant: [B, H, T]."""
    positions = torch.arange(slopes.shape[2], dtype=slopes.dtype, device=slopes.device)
    steep = slopes / scale
    exact = steep.double() * positions.double()
    return ((exact - (steep * positions).double()) * scale).to(slopes.dtype)


def numbered(segments: Tensor) -> Tensor:
    """Return segments with small numbers; within a row equal stays equal, and 0 stays 0."""
    if segments.numel() == 0 or int(segments.max()) <= _LARGEST:
        return segments
    values, order = segments.sort(1)
    steps = torch.zeros_like(values)
    steps[:, 0] = values[:, 0] > 0
    steps[:, 1:] = values[:, 1:] != values[:, :-1]
    return torch.empty_like(steps).scatter_(1, order, steps.cumsum(1, dtype=steps.dtype))


def filled(segments: Tensor) -> Tensor:
    """Return segments with padding up to whole tiles."""
    return F.pad(segments, (0, -segments.shape[1] % TILE))


def document_columns(segments: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return columns that keep documents apart: [B, 1, Q, n] of q, [B, 1, K, n] of k.

    segments: int [B, Q] from `numbered`; keys: int [B, K], None: the same. n is twice the bits of
    the largest number. Not divided by the scale: c leaves room for it.
    """
    keys = segments if keys is None else keys
    largest = max((int(x.max()) for x in (segments, keys) if x.numel()), default=0)
    places = torch.arange(max(1, largest.bit_length()), device=segments.device)
    q, k = (((x[:, None, :, None] >> places) & 1).float() for x in (segments, keys))
    return -_APART * torch.cat([q, 1 - q], -1), torch.cat([1 - k, k], -1)


def widen(x: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """Return [columns, x]: x [B, H, T, d] → [B, H, T, n + d]."""
    if not columns:
        return x
    return torch.cat([*(c.to(x.dtype).expand(*x.shape[:3], -1) for c in columns), x], -1)


def tiled(x: Tensor) -> Tensor:
    """Return x with rows of 0 up to whole tiles: [B, H, T, d] → [B, H, T', d]."""
    more = -x.shape[2] % TILE
    return F.pad(x, (0, 0, 0, more)) if more else x


def cut(x: Tensor, length: int, width: int) -> Tensor:
    """Return x without filling: [B, H, T', d'] → [B, H, length, width]."""
    x = x[..., :width] if width < x.shape[-1] else x  # a slice of all copies its gradient
    return x[:, :, :length] if length < x.shape[2] else x
