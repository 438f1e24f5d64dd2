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

from ala_encoder.errors import UserError

TILE = 16
_APART = 2.0**12
"""c above: at a head width of 256 keys of other documents still stand 256 below."""
_MAX_DOCUMENT = 2048
"""s above: beyond it the sums were no longer exact in float32."""


def slope_columns(slopes: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Return columns for −a_i (i − j), q's [B, H, T, 2] and k's [T, 2], float32.

    slopes: float32 [B, H, T]; `scale` multiplies the kernel's scores, so q's are divided by it.
    """
    positions = torch.arange(slopes.shape[2], dtype=torch.float32, device=slopes.device)
    steep = slopes / scale
    ones = torch.ones_like(positions)
    return torch.stack([-(steep * positions), steep], -1), torch.stack([ones, positions], -1)


@torch.no_grad()
def slope_error(slopes: Tensor, scale: float) -> Tensor:
    """Return by how much the scores of `slope_columns` are off, a row's constant: [B, H, T]."""
    positions = torch.arange(slopes.shape[2], dtype=torch.float32, device=slopes.device)
    steep = slopes / scale
    exact = steep.double() * positions.double()
    return ((exact - (steep * positions).double()) * scale).float()


def numbered(segments: Tensor) -> Tensor:
    """Return segments with numbers small enough for exact sums; equal stays equal, 0 stays 0."""
    if int(segments.max()) <= _MAX_DOCUMENT:
        return segments
    values, order = segments.sort(1)
    steps = torch.zeros_like(values)
    steps[:, 0] = values[:, 0] > 0
    steps[:, 1:] = values[:, 1:] != values[:, :-1]
    numbers = torch.empty_like(steps).scatter_(1, order, steps.cumsum(1))
    if int(numbers.max()) > _MAX_DOCUMENT:
        raise UserError(f"segments: {int(numbers.max())} documents in a row, at most 2,048 fit")
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
    more = -x.shape[2] % TILE
    return F.pad(x, (0, 0, 0, more)) if more else x


def cut(x: Tensor, length: int, width: int) -> Tensor:
    """Return x without filling: [B, H, T', d'] → [B, H, length, width]."""
    x = x[..., :width] if width < x.shape[-1] else x  # a slice of all copies its gradient
    return x[:, :, :length] if length < x.shape[2] else x
