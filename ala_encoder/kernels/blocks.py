"""A distance bias without a T x T map: keys near a query in the open, far ones on a fused kernel.

For: long texts on the `slope` path on a CPU, where a token sees both ways or slopes are steep.

- near: the text is cut into blocks; each with itself, scores in the open (`tiles`).
- far: all other pairs, as squares. On level 0 the text is two blocks, on level 1 four, …; every
  second block sees the one before it and, unless causal, every first the one after it. Within a
  square the bias is linear in j, so columns of q and k carry it (`features`) through PyTorch's
  fused kernel.

All are merged by their log-sum-exps. In the backward pass each runs with the *merged* output and
log-sum-exp: its weights are exp(s − lse), so they come out normalised over all keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.features import TILE, document_columns, slope_columns, slope_error, widen
from ala_encoder.kernels.once import once
from ala_encoder.kernels.tiles import Tiles

_BLOCK = 256
"""Tokens of a block at most."""
_WHOLE = TILE
"""A block has whole groups of so many rows: shorter tails lose digits in the fused kernel."""


def near_and_far(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None, *, causal: bool
) -> Tensor:
    """Compute softmax(q_i·k_j/sqrt(d) − slopes_i |i − j|) v; `causal` hides j > i.

    q, k, v: [B, H, T, d]; slopes: float32 [B, H, T]; segments: int [B, T] from `numbered`, equal
    numbers see each other, so that 0, padding, sees padding. Returns [B, H, T, d].
    """
    length = q.shape[2]
    blocks = 2 ** (-(-length // _BLOCK) - 1).bit_length()
    more = -length % (blocks * _WHOLE)
    if more:
        if segments is None:
            segments = torch.ones(q.shape[0], length, dtype=torch.int, device=q.device)
        segments, slopes = F.pad(segments, (0, more)), F.pad(slopes, (0, more))
        q, k, v = (F.pad(x, (0, 0, 0, more)) for x in (q, k, v))
    mixed: Tensor = _NearAndFar.apply(  # type: ignore[no-untyped-call]
        *_with_columns(q, k, v, slopes, segments), slopes, segments, blocks, q.shape[-1], causal
    )
    return mixed[:, :, :length, -v.shape[-1] :]


def _with_columns(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v with columns in front, the slope's two the last of them."""
    # Their gradient is not taken: the slopes get theirs from `_NearAndFar`.
    steep_q, steep_k = slope_columns(slopes.detach(), q.shape[-1] ** -0.5)
    columns_q, columns_k = [steep_q], [steep_k]
    if segments is not None:
        documents_q, documents_k = document_columns(segments)
        columns_q, columns_k = [documents_q, steep_q], [documents_k, steep_k]
    wide_q = widen(q, columns_q)
    # Unequal widths of K and V would take the CPU to its slow kernel.
    return wide_q, widen(k, columns_k), F.pad(v, (wide_q.shape[-1] - v.shape[-1], 0))


class _NearAndFar(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        q, k, v, slopes, segments, ctx.blocks, ctx.width, ctx.causal = given
        near, far = _cut(ctx, q, k, v, slopes, segments)
        out = torch.empty_like(v)
        lse = v.new_empty(v.shape[:3])
        _near(near, out.view(near.v.shape), lse.view(near.slopes.shape))
        parts = list(far)
        total = lse.clone()
        for place, _, part_lse in parts:
            rows = place.of(total)
            rows.copy_(torch.logaddexp(rows, part_lse))
        out.mul_((lse - total).exp()[..., None])
        for place, part, part_lse in parts:
            share = (part_lse - place.of(total)).exp()
            place.of(out).addcmul_(part, share[..., None])
        ctx.save_for_backward(q, k, v, slopes, segments, out, total)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *given, out, lse = ctx.saved_tensors
        near, far = _cut(ctx, *given)
        grad = grads[0].contiguous()
        q, k, v, slopes, _ = given
        dq, dk, dv, da = (torch.zeros_like(x) for x in (q, k, v, lse))
        _near_backward(near, grad, out, lse, (dq, dk, dv, da))
        far.add_gradients(grad, out, lse, (dq, dk, dv, da))
        return dq, dk, dv, da.to(slopes.dtype), None, None, None, None


def _cut(
    ctx: Any, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None
) -> tuple[Tiles, _Squares]:
    size, columns = q.shape[2] // ctx.blocks, q.shape[-1] - ctx.width
    scale = ctx.width**-0.5
    own = (q[..., columns:], k[..., columns:], v, slopes, segments)
    near = Tiles.of(*own, size, scale=scale, causal=ctx.causal)
    sides = {1: q}
    if not ctx.causal:
        sides[0] = q.clone()
        sides[0][..., columns - 2 : columns].neg_()
    return near, _Squares(sides, k, v, slope_error(slopes, scale), ctx.blocks, columns, scale)


# ---------------------------------------------------------------------------------------------
# Near: the blocks on the diagonal
# ---------------------------------------------------------------------------------------------


def _near(tiles: Tiles, out: Tensor, lse: Tensor) -> None:
    """Fill in each block's attention to itself, [N, size, columns + d], and lse [N, size, 1]."""
    for tile, keys in tiles:
        scores = tiles.scores(tile, keys)
        top = scores.amax(-1, keepdim=True)
        weights = scores.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True)
        torch.bmm(weights, tiles.v[keys], out=out[tile])
        out[tile].div_(total)
        lse[tile] = top + total.log()


def _near_backward(
    tiles: Tiles, grad: Tensor, out: Tensor, lse: Tensor, into: tuple[Tensor, ...]
) -> None:
    """Add the blocks' part to the gradients of q, k, v and the slopes."""
    delta = (grad * out).sum(-1)
    dq, dk, dv, grad = (x.view(*tiles.v.shape[:2], -1) for x in (*into[:3], grad))
    da, lse, delta = (x.view(tiles.slopes.shape) for x in (into[3], lse, delta))
    columns = dq.shape[-1] - tiles.q.shape[-1]
    for tile, keys in tiles:
        scores, weights = tiles.scores(tile, keys), tiles.room(1, tile, keys)
        torch.sub(scores, lse[tile], out=weights).exp_()
        dv[keys].baddbmm_(weights.transpose(1, 2), grad[tile])
        ds = torch.bmm(grad[tile], tiles.v[keys].transpose(1, 2), out=scores)
        ds.sub_(delta[tile]).mul_(weights)
        tiles.add_gradients(tile, keys, ds, (dq[..., columns:], dk[..., columns:], da))


# ---------------------------------------------------------------------------------------------
# Far: squares beside the diagonal
# ---------------------------------------------------------------------------------------------

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class _Place:
    """The first (0) or the second (1) block of every pair of a level."""

    level: int
    side: int

    def of(self, x: Tensor) -> Tensor:
        """View x [B, H, T, …] as [B, H · 2^level, T / 2^(level + 1), …]."""
        batch, heads, length = x.shape[:3]
        pairs = 2**self.level
        return x.view(batch, heads * pairs, 2, length // (2 * pairs), *x.shape[3:])[:, :, self.side]

    @property
    def other(self) -> _Place:
        return _Place(self.level, 1 - self.side)


@dataclass(frozen=True, eq=False)
class _Squares:
    """All pairs of blocks, with columns in front of q, k and v."""

    sides: dict[int, Tensor]
    """q by the side of the queries: 1 looks back, 0 ahead, where the slope's columns have the other
    sign; that one is missing where attention is causal."""
    k: Tensor
    v: Tensor
    error: Tensor
    """By how much the scores are off, looking back; the opposite ahead: [B, H, T]."""
    blocks: int
    columns: int
    scale: float

    def places(self) -> Iterator[_Place]:
        """Yield where the queries are; their keys are at the other place."""
        for level in range(self.blocks.bit_length() - 1):
            for side in self.sides:
                yield _Place(level, side)

    def __iter__(self) -> Iterator[tuple[_Place, Tensor, Tensor]]:
        """Yield the place of the queries, their outputs and their log-sum-exps."""
        for place in self.places():
            keys, values = place.other.of(self.k), place.other.of(self.v)
            rows = place.of(self.sides[place.side])
            out, lse = _forward(rows, keys, values, 0.0, False, scale=self.scale)
            yield place, out, lse - self._error(place)

    def add_gradients(
        self, grad: Tensor, out: Tensor, lse: Tensor, into: tuple[Tensor, ...]
    ) -> None:
        """Add the squares' part to the gradients of q, k, v and the slopes."""
        dq, dk, dv, da = into
        steep = slice(self.columns - 2, self.columns)
        for place in self.places():
            keys, values = place.other.of(self.k), place.other.of(self.v)
            rows = [place.of(x) for x in (grad, self.sides[place.side], out)]
            known = place.of(lse) + self._error(place)
            more_q, more_k, more_v = _backward(
                rows[0], rows[1], keys, values, rows[2], known, 0.0, False, scale=self.scale
            )
            if place.side == 0:
                more_q[..., steep].neg_()
            place.of(dq).add_(more_q)
            place.other.of(dk).add_(more_k)
            place.other.of(dv).add_(more_v)
        positions = torch.arange(dq.shape[2], dtype=dq.dtype, device=dq.device)
        constant, linear = dq[..., steep].unbind(-1)
        da.add_((linear - positions * constant) / self.scale)

    def _error(self, place: _Place) -> Tensor:
        return place.of(self.error if place.side == 1 else -self.error)
