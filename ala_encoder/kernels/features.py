"""Columns in front of q and k that carry a linear bias or documents into any fused kernel.

For: telling a kernel what it would otherwise need a T x T mask for. A score is a dot product, so
any u_i · w_j can be had from further columns. They stand **in front**, and lengths are padded to
whole tiles: a kernel then adds up the large terms of a row, which cancel, before anything small
(a tail of one or two rows goes through another routine, and lost up to 3e-4 here).

- A causal distance bias −a_i (i − j) is linear in j: u_i = [−a_i i, a_i], w_j = [1, j].
- Documents: −c (s_i − s_j)² is 0 within a document and out of reach of exp elsewhere:
  u_i = c [−s_i², 2 s_i, −1], w_j = [1, s_j, s_j²]. With c a power of two and s a small whole number
  every partial sum is exact, so nothing at all is added within a document.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

TILE = 16
_APART = 2.0**12
"""c above: at a head width of 256 keys of other documents still stand 256 below."""
_MAX_DOCUMENT = 2048
"""s above: beyond it the sums were no longer exact in float32."""


def slope_columns(slopes: Tensor, ahead: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return columns for −a_i (i + ahead − j), and by how much they are off, as a row's constant.

    slopes: float32 [B, H, T]; `scale` multiplies the kernel's scores, so q's columns are divided by
    it. Returns q [B, H, T, 2], k [T, 2] and the error [B, H, T], all float32: the rounding of
    a_i (i + ahead) leaves the softmax as it is, but not the log-sum-exp.
    """
    positions = torch.arange(slopes.shape[2], dtype=torch.float32, device=slopes.device)
    steep = slopes / scale
    constant = -(steep * (positions + ahead))
    with torch.no_grad():
        exact = steep.double() * (positions + ahead).double()
        error = ((constant.double() + exact) * scale).float()
    ones = torch.ones_like(positions)
    return torch.stack([constant, steep], -1), torch.stack([ones, positions], -1), error


def numbered(segments: Tensor) -> Tensor:
    """Return segments with numbers small enough for exact sums; equal stays equal, 0 stays 0."""
    if int(segments.max()) <= _MAX_DOCUMENT:
        return segments
    values, order = segments.sort(1)
    steps = torch.zeros_like(values)
    steps[:, 0] = values[:, 0] > 0
    steps[:, 1:] = values[:, 1:] != values[:, :-1]
    numbers = torch.empty_like(steps).scatter_(1, order, steps.cumsum(1))
    assert int(numbers.max()) <= _MAX_DOCUMENT, "more than 2,048 documents in a row"
    return numbers


def filled(segments: Tensor) -> Tensor:
    """Return segments with padding up to whole tiles."""
    return F.pad(segments, (0, -segments.shape[1] % TILE))


def document_columns(segments: Tensor) -> tuple[Tensor, Tensor]:
    """Return columns that keep documents (and padding) apart: segments int [B, T] → [B, 1, T, 3].

    `segments` come from `numbered`. Not divided by the scale: c leaves room for it.
    """
    s = segments.float()[:, None]
    ones = torch.ones_like(s)
    q = _APART * torch.stack([-s * s, 2 * s, -ones], -1)
    return q, torch.stack([ones, s, s * s], -1)


def widen(x: Tensor, columns: Sequence[Tensor]) -> Tensor:
    """Return [columns, x]: x [B, H, T, d] → [B, H, T, n + d]."""
    if not columns:
        return x
    return torch.cat([*(c.to(x.dtype).expand(*x.shape[:3], -1) for c in columns), x], -1)


def tiled(x: Tensor) -> Tensor:
    """Return x with rows of 0 up to whole tiles: [B, H, T, d] → [B, H, T', d]."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % TILE))
