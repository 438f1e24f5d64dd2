"""The `banded` path: local masks in O(T · offsets), without anything of size T x T.

For: heads that see few offsets j − i (prev, next, band, identity, narrow windows). The text is cut
into blocks of rows; a block's keys are the window from the first key of its first row to the last
key of its last. So all is matrix products, of which a narrow band is used.

- Pre-softmax: the softmax runs over the offsets alone. `shifted` has the same as sums of shifted
  products, to be compiled.
- Post-softmax (Pande et al.): w_ij = exp(s_ij − lse_i) inside the mask, lse_i over *all* keys, once
  for each Q/K group (`lse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.lse import log_sum_exp
from ala_encoder.kernels.once import once
from ala_encoder.kernels.visibility import combine


def banded_pre(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Sequence[int],
    *,
    bias: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Attend to the keys i + offset alone: softmax over `offsets`, times v.

    q, k, v: [B, H, T, d]; bias: float32, broadcastable to [B, H, T, offsets], −inf hides; segments:
    int [B, T]. Returns [B, H, T, d]; a row with nothing to see is 0.
    """
    band = _Band.of(offsets, q.shape[2])
    scores = band.scores(q, k)
    given = None if bias is None else band.spread(bias, float("-inf"))
    mask, empty = combine(given, band.visible(segments, q.device))
    assert mask is not None and empty is not None
    hides = mask.dtype == torch.bool
    scores = scores.masked_fill(~mask, float("-inf")) if hides else scores + mask
    weights = scores.softmax(-1).masked_fill(empty, 0.0)
    return band.mix(weights.to(v.dtype), v)


def banded_post(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Sequence[int],
    keep: Tensor,
    *,
    groups: Sequence[int] | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Compute keep · softmax(q k^T / sqrt(d)) v, the softmax over all keys, keep inside `offsets`.

    q, k: [B, G, T, d] of G Q/K groups; v: [B, H, T, d]; keep: bool [H, offsets]; groups: the group
    of each head (None: head h has group h). Returns [B, H, T, d], 0 at padding. CPU only.
    """
    band = _Band.of(offsets, q.shape[2])
    lse = log_sum_exp(q, k, segments)
    visible = band.visible(segments, q.device)
    scores = band.scores(q, k) - band.rows(lse[..., None])
    weights = scores.masked_fill(~visible, float("-inf")).exp()
    if groups is not None:
        weights = weights[:, list(groups)]
    kept = band.spread(keep[:, None].to(weights.dtype), 0.0)
    return band.mix((weights * kept).to(v.dtype), v)


def banded_one(v: Tensor, offsets: Sequence[int], *, segments: Tensor | None = None) -> Tensor:
    """Return v_{i + offset} of each head's own offset, 0 where there is no such key.

    A pre-softmax head of one key: its weight is 1. v: [B, H, T, d]; offsets: one a head.
    """
    mixed = torch.cat([shift(v[:, h : h + 1], o) for h, o in enumerate(offsets)], 1)
    if segments is None:
        return mixed
    seen = torch.stack([shift(segments[:, None, :, None], o)[:, 0] for o in offsets], 1)
    hidden = (seen != segments[:, None, :, None]) | (seen == 0)
    return mixed.masked_fill(hidden, 0.0)


def shift(x: Tensor, offset: int) -> Tensor:
    """Return y with y_i = x_{i + offset}, 0 outside: x [B, H, T, d] → [B, H, T, d]."""
    length = x.shape[2]
    if abs(offset) >= length:
        return F.pad(x[:, :, :0], (0, 0, 0, length))
    if offset >= 0:
        return F.pad(x[:, :, offset:], (0, 0, 0, offset))
    return F.pad(x[:, :, :offset], (0, 0, -offset, 0))


@dataclass(frozen=True)
class _Band:
    """Blocks of `size` rows, and the window of keys of each: offsets low … high of its rows."""

    offsets: tuple[int, ...]
    length: int
    size: int

    @classmethod
    def of(cls, offsets: Sequence[int], length: int) -> _Band:
        """Choose blocks about as long as the band is wide: shorter copy more, longer waste more."""
        span = max(offsets) - min(offsets)
        return cls(tuple(offsets), length, 32 if span < 32 else 64 if span < 128 else 128)

    @property
    def low(self) -> int:
        return min(self.offsets)

    @property
    def width(self) -> int:
        return self.size + max(self.offsets) - self.low

    @property
    def filling(self) -> int:
        return -self.length % self.size

    def rows(self, x: Tensor) -> Tensor:
        """x [B, H, T, d] → blocks [B, H, n, size, d]."""
        if self.filling:
            x = F.pad(x, (0, 0, 0, self.filling))
        return x.view(*x.shape[:2], -1, self.size, x.shape[-1])

    def windows(self, x: Tensor) -> Tensor:
        """x [B, H, T, d] → the keys of each block [B, H, n, width, d], 0 outside the text."""
        high = max(self.offsets) + self.filling
        windows: Tensor = _Windows.apply(  # type: ignore[no-untyped-call]
            F.pad(x, (0, 0, -self.low, high)), self.size, self.width
        )
        return windows

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Return q_i·k_j / sqrt(d), [B, H, n, size, width], float32 or better."""
        wide = torch.promote_types(q.dtype, torch.float32)  # half precision would round them
        scores = self.rows(q.to(wide)) @ self.windows(k.to(wide)).transpose(-1, -2)
        return scores * float(q.shape[-1] ** -0.5)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        """Weights [B, H, n, size, width] and v [B, H, T, d] → [B, H, T, d]."""
        mixed = (weights @ self.windows(v)).flatten(2, 3)
        return mixed[:, :, : self.length] if self.filling else mixed

    def visible(self, segments: Tensor | None, device: torch.device) -> Tensor:
        """Tell which keys exist, at one of the offsets and of the row's document.

        bool [n, size, width], with segments [B, 1, n, size, width].
        """
        if segments is None:
            segments = torch.ones(1, self.length, dtype=torch.int, device=device)
        numbers = segments[:, None, :, None]
        same = self.rows(numbers) == self.windows(numbers).transpose(-1, -2)
        ones = torch.ones(1, len(self.offsets), dtype=torch.int, device=device)
        return same & (self.rows(numbers) > 0) & (self.spread(ones, 0) > 0)

    def spread(self, x: Tensor, elsewhere: float) -> Tensor:
        """Move numbers of offsets to where their keys stand in the windows.

        x: [..., T or 1, offsets] → [..., n or 1, size, width].
        """
        if x.shape[-2] == 1:
            x = x.expand(*x.shape[:-2], self.size, -1)
        elif self.filling:
            x = F.pad(x, (0, 0, 0, self.filling), value=elsewhere)
        places = torch.tensor(self.offsets, device=x.device) - self.low
        x = x.new_full((*x.shape[:-1], self.width + 1), elsewhere).index_copy(-1, places, x)
        # Read in rows of one less, each row of a block begins one place further right.
        number = x.shape[-2] // self.size
        rows = x.reshape(*x.shape[:-2], number, self.size * (self.width + 1))
        rows = rows[..., : self.size * self.width]
        return rows.reshape(*rows.shape[:-1], self.size, self.width)


class _Windows(torch.autograd.Function):
    """Windows of `width` rows, one every `size`: [B, H, T, d] → [B, H, n, width, d]."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        x, ctx.size, width = given
        ctx.shape = x.shape
        windows: Tensor = x.unfold(2, width, ctx.size).transpose(-1, -2).contiguous()
        return windows

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        batch, heads, number, width, dim = grad.shape
        pieces, size = -(-width // ctx.size), ctx.size
        whole = grad.new_zeros(batch, heads, (number + pieces) * size, dim)
        # Windows overlap, the same piece of each does not.
        for first in range(0, width, size):
            piece = grad[..., first : first + size, :]
            rows = whole[:, :, first : first + number * size]
            blocks = rows.view(batch, heads, number, size, dim)
            blocks[..., : piece.shape[-2], :] += piece
        return whole[:, :, : ctx.shape[2]], None, None
