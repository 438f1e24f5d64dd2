"""Scores with a distance bias in the open, a tile at a time that stays in the processor's cache.

For: short texts on the `slope` path, and what lies near the diagonal of long ones (`blocks`).
Nothing as large as the map of all heads is ever held: the backward pass computes each tile again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from ala_encoder.kernels.once import once

# Of 2^17 … 2^20 numbers and 64 … 512 rows these were the fastest at 128 and 512 tokens
# (docs/log.md), on a processor with 2 MiB of cache a core.
_NUMBERS = 2**19
"""Scores of a tile: 2 MiB in float32."""
_HEIGHT = 512
"""Rows of a tile at most, in one text and head."""
_CAUSAL_HEIGHT = 128
"""The same where attention is causal: flat tiles compute less above the diagonal in vain."""

Tile = tuple[slice, slice]
"""Some texts and some of their rows, an index of [N, T]."""


@dataclass(frozen=True, eq=False)
class Tiles:
    """N texts of T tokens, such as B·H: q, k [N, T, d], v [N, T, e], slopes [N, T, 1]."""

    q: Tensor
    k: Tensor
    v: Tensor
    slopes: Tensor
    segments: Tensor | None
    """int [N, T]: equal numbers see each other."""
    distance: Tensor
    """−|i − j|: [T, T]."""
    bias: Tensor
    """The same, with −inf where nothing is seen."""
    rooms: tuple[Tensor, Tensor]
    """Memory of two tiles: taking it anew for each would cost more than the arithmetic."""
    scale: float
    causal: bool = False

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Tensor,
        segments: Tensor | None,
        length: int,
        *,
        scale: float,
        causal: bool = False,
    ) -> Tiles:
        """Cut q, k, v [B, H, T, …], slopes [B, H, T] and segments [B, T] to texts of `length`."""
        if segments is not None:
            segments = segments[:, None].expand(slopes.shape).reshape(-1, length)
        q, k, v = (x.reshape(-1, length, x.shape[-1]) for x in (q, k, v))
        slopes = slopes.to(q.dtype).reshape(-1, length, 1)
        distance, bias = _distances(length, causal, q.dtype, q.device)
        if causal:
            slopes = slopes.clamp(min=torch.finfo(slopes.dtype).tiny)  # 0 times −inf is no number
        most = min(max(_NUMBERS, length * _HEIGHT), slopes.numel() * length)
        rooms = (q.new_empty(most), q.new_empty(most))
        return cls(q, k, v, slopes, segments, distance, bias, rooms, scale, causal)

    def __iter__(self) -> Iterator[tuple[Tile, Tile]]:
        """Yield a tile, and the keys of its texts that it may see."""
        number, length, _ = self.q.shape
        height = min(_CAUSAL_HEIGHT if self.causal else _HEIGHT, length)
        deep = max(1, _NUMBERS // (height * length))
        for first in range(0, number, deep):
            texts = slice(first, min(first + deep, number))
            for top in range(0, length, height):
                end = min(top + height, length)
                yield (texts, slice(top, end)), (texts, slice(0, end if self.causal else length))

    def scores(self, tile: Tile, keys: Tile) -> Tensor:
        """Return scale · q_i·k_j − a_i |i − j|, −inf where nothing is seen: [n, rows, keys].

        They lie in the first room.
        """
        bias = self.bias[tile[1], keys[1]]
        scores = torch.mul(self.slopes[tile], bias, out=self.room(0, tile, keys))
        scores.baddbmm_(self.q[tile], self.k[keys].transpose(1, 2), alpha=self.scale)
        if self.segments is not None:
            apart = self.segments[tile][..., None] != self.segments[keys][:, None]
            scores.masked_fill_(apart, -inf)
        return scores

    def room(self, number: int, tile: Tile, keys: Tile) -> Tensor:
        """Return memory for a tile, [n, rows, keys], with whatever lies there."""
        shape = [part.stop - part.start for part in (*tile, keys[1])]
        return self.rooms[number][: math.prod(shape)].view(shape)

    def add_gradients(
        self, tile: Tile, keys: Tile, ds: Tensor, into: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Add what dL/dscores gives q, k and the slopes to arrays of their shapes; uses up `ds`."""
        dq, dk, da = into
        dk[keys].baddbmm_(ds.transpose(1, 2), self.q[tile], alpha=self.scale)
        dq[tile].baddbmm_(ds, self.k[keys], alpha=self.scale)
        da[tile] = ds.mul_(self.distance[tile[1], keys[1]]).sum(-1, keepdim=True)


@lru_cache(maxsize=8)
def _distances(
    length: int, causal: bool, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return −|i − j|, and the same with −inf where nothing is seen: [T, T]."""
    places = torch.arange(length, dtype=dtype, device=device)
    distance = (places[:, None] - places).abs_().neg_()
    if not causal:
        return distance, distance
    ahead = torch.ones_like(distance, dtype=torch.bool).triu(1)
    return distance, distance.masked_fill(ahead, -inf)


def in_tiles(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None, *, causal: bool
) -> Tensor:
    """Compute softmax(q_i·k_j/sqrt(d) − slopes_i |i − j|) v; `causal` hides j > i.

    q, k, v: [B, H, T, d]; slopes: [B, H, T]; segments: int [B, T], equal numbers see each other, so
    that padding sees padding. Returns [B, H, T, d].
    """
    mixed: Tensor = _InTiles.apply(  # type: ignore[no-untyped-call]
        q, k, v, slopes, segments, causal
    )
    return mixed


class _InTiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        q, k, v, slopes, segments, causal = given
        ctx.save_for_backward(q, k, v, slopes, segments)
        ctx.causal = causal
        tiles = _whole(q, k, v, slopes, segments, causal)
        out = torch.empty_like(tiles.v)
        for tile, keys in tiles:
            weights = torch.softmax(tiles.scores(tile, keys), -1, out=tiles.room(1, tile, keys))
            torch.bmm(weights, tiles.v[keys], out=out[tile])
        return out.view(v.shape)

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, slopes, segments = ctx.saved_tensors
        tiles = _whole(q, k, v, slopes, segments, ctx.causal)
        grad = grads[0].reshape(tiles.v.shape)
        dq, dk, dv, da = (torch.zeros_like(x) for x in (tiles.q, tiles.k, tiles.v, tiles.slopes))
        for tile, keys in tiles:
            scores, weights = tiles.scores(tile, keys), tiles.room(1, tile, keys)
            torch.softmax(scores, -1, out=weights)
            dv[keys].baddbmm_(weights.transpose(1, 2), grad[tile])
            ds = torch.bmm(grad[tile], tiles.v[keys].transpose(1, 2), out=scores)
            torch._softmax_backward_data(ds, weights, -1, ds.dtype, grad_input=ds)
            tiles.add_gradients(tile, keys, ds, (dq, dk, da))
        return *(x.view(q.shape) for x in (dq, dk, dv)), da.view(slopes.shape), None, None


def _whole(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None, causal: bool
) -> Tiles:
    length, width = q.shape[2:]
    return Tiles.of(q, k, v, slopes, segments, length, scale=width**-0.5, causal=causal)
