"""Windows of keys on the fused kernel, and single rows over more: the work of `pruned` (ours).

For: the keys on one side of each query (`Side`), arrays in that side's order (`Half`), and both
sides merged by their log-sum-exps (`Work`). Not for: what a row needs (`reach`) or how wide windows
should be (`pruned`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels import reach
from ala_encoder.kernels.features import document_columns, slope_columns, slope_error, widen

TILE = 64
"""Queries that share a window, and the step of its width."""
ROWS = 32
"""Rows gathered for one call."""


@dataclass(frozen=True, eq=False)
class Side:
    """The keys on one side of each query, in an order in which place p sees the keys up to p."""

    places: Tensor
    """Of the queries: int [T], −1 for one without keys on this side."""
    begin: Tensor
    """First key of a query's document, beyond its place where it sees none: [B or 1, 1, T]."""
    ahead: int
    """Distance of the key at a query's own place."""

    def pairs(self, batch: int) -> int:
        """Return how many keys all queries see."""
        seen = int((self.places + 1 - self.begin).clamp(min=0).sum())
        return seen * batch // len(self.begin)

    def needed(self, ratio: Tensor, slopes: Tensor, share: float) -> Tensor:
        """Return the first key needed, before which all have a part of at most `share` in Z_i.

        ratio: u_i − log Z_i, float64 [B, H, T].
        """
        distance = reach.distance(ratio, slopes.double(), share)
        start = (self.places + (1 + self.ahead) - distance).floor().clamp(min=0).long()
        return torch.minimum(torch.maximum(start, self.begin), self.places)


def sides_of(segments: Tensor | None, length: int, *, causal: bool) -> list[Side]:
    """Return the keys up to each query and, unless `causal`, those behind it, which are reversed.

    Those are queries T − 2 … 0 and keys T − 1 … 1.
    """
    places = torch.arange(length)
    first, last = places[:1, None, None], places[-1:, None, None]
    if segments is None:
        first, last = (x.expand(1, 1, length) for x in (first, last))
    else:
        numbers = segments.long()
        known = torch.zeros(len(numbers), int(numbers.max()) + 1, dtype=torch.long)
        first, last = (
            known.scatter_reduce(1, numbers, places.expand_as(numbers), how, include_self=False)
            .gather(1, numbers)
            .where(numbers > 0, alone)[:, None]
            for how, alone in (("amin", places + 1), ("amax", places))
        )
    behind = Side(length - 2 - places, length - 1 - last, 1)
    return [Side(places, first, 0)] if causal or length == 1 else [Side(places, first, 0), behind]


def _alike(tiles: Sequence[int], *, single: bool) -> Iterator[tuple[slice, int]]:
    """Yield heads in a row whose windows are alike, and their tiles; of several texts, each head.

    Only those are one dimension, as views, with the texts or with their tiles.
    """
    head = 0
    for number, alike in itertools.groupby(tiles):
        count = len(list(alike))
        for first in (head,) if single else range(head, head + count):
            yield slice(first, first + (count if single else 1)), number
        head += count


_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@dataclass(frozen=True, eq=False)
class Half:
    """The arrays of a side, in its order, and what has been computed from them."""

    side: Side
    q: Tensor
    k: Tensor
    v: Tensor
    """With columns, in whole tiles: [B, H, N', d'], the N queries of the side first."""
    constant: Tensor
    """By how much the kernel's scores of a query are too high: [B, H, N]."""
    scale: float
    out: Tensor
    """[B, H, N', d'], in the side's order."""
    lse: Tensor
    """Over the keys computed, −inf for none: float64 [B, H, T], in the text's order."""
    first: Tensor
    """The first key computed: int [B, H, T]."""

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None, side: Side
    ) -> Half:
        scale, whole = q.shape[-1] ** -0.5, slopes.shape
        numbers = None if segments is None else (segments, segments)
        if side.ahead:
            q, slopes = (x[:, :, :-1].flip(2) for x in (q, slopes))
            k, v = (x[:, :, 1:].flip(2) for x in (k, v))
            if segments is not None:
                numbers = segments[:, :-1].flip(1), segments[:, 1:].flip(1)
        columns_q, columns_k = ([x] for x in slope_columns(slopes, scale))
        if numbers is not None:
            documents_q, documents_k = document_columns(*numbers)
            columns_q.insert(0, documents_q)
            columns_k.insert(0, documents_k)
        wide_q, wide_k = widen(q, columns_q), widen(k, columns_k)
        more = -q.shape[2] % TILE
        if more:
            wide_q, wide_k = (F.pad(x, (0, 0, 0, more)) for x in (wide_q, wide_k))
        # Unequal widths of K and V would take the CPU to its slow kernel.
        wide_v = F.pad(v, (0, wide_q.shape[-1] - v.shape[-1], 0, more))
        constant = slope_error(slopes, scale) + side.ahead * slopes
        out, lse = torch.empty_like(wide_v), torch.empty(whole, dtype=torch.float64)
        first = torch.zeros(whole, dtype=torch.long)
        return cls(side, wide_q, wide_k, wide_v, constant, scale, out, lse, first)

    def compute_windows(self, tiles: Sequence[int]) -> None:
        """Compute all rows, each head over so many tiles; the first tiles are a causal text."""
        padded = self.q.shape[2]
        ahead = self.q.new_full((TILE, TILE), -math.inf).triu(1)
        mask = F.pad(ahead, (padded - TILE, 0))
        lse = self.q.new_empty(*self.q.shape[:3], 1)
        first = torch.zeros(len(tiles), padded, dtype=torch.long)
        for heads, number in _alike(tiles, single=len(self.q) == 1):
            edge = number * TILE
            q, k, v, out, found = (
                x[:, heads].view(-1, padded, x.shape[-1])
                for x in (self.q, self.k, self.v, self.out, lse)
            )
            begin = (x[None, :, :edge] for x in (q, k, v))
            mixed, part = _fused(*begin, 0.0, True, scale=self.scale)
            out[:, :edge], found[:, :edge] = mixed[0], part[0, ..., None]
            if edge == padded:
                continue
            rows = q[:, edge:].unflatten(1, (-1, TILE))  # type: ignore[no-untyped-call]
            keys, values = (x.unfold(1, edge, TILE)[:, 1:].transpose(2, 3) for x in (k, v))
            mixed, part = _fused(
                rows, keys, values, 0.0, False, attn_mask=mask[:, -edge:], scale=self.scale
            )
            out[:, edge:], found[:, edge:] = mixed.flatten(1, 2), part.flatten(1, 2)[..., None]
            starts = torch.arange(TILE, padded - edge + 1, TILE)
            first[heads, edge:] = starts.repeat_interleave(TILE)
        there = self.side.places >= 0
        places = self.side.places.clamp(min=0)
        exact = (lse[:, :, : self.constant.shape[2], 0] - self.constant).double()
        self.lse.copy_(exact[:, :, places].where(there, -math.inf))
        self.first.copy_(first[:, places])

    def compute_gathered(self, needed: Tensor) -> None:
        """Compute the rows again that need keys before those computed."""
        padded, heads = self.q.shape[2], self.q.shape[1]
        short = ((needed < self.first) & (self.side.places >= 0)).flatten(0, 1)
        steps = F.pad(self.q.new_zeros(padded), (0, padded), value=-math.inf)
        masks = self.q.new_empty(ROWS * padded)  # fresh memory for each would take longer to get
        for number in short.any(1).nonzero()[:, 0].tolist():
            at = divmod(number, heads)
            rows = short[number].nonzero()[:, 0]
            # the last row fills its group
            rows = rows[torch.arange(-(-len(rows) // ROWS) * ROWS).clamp(max=len(rows) - 1)]
            places = self.side.places[rows]
            groups = places.view(-1, ROWS)
            begins = needed[at][rows].view(groups.shape).amin(1) // TILE * TILE
            ends = (groups.amax(1) // TILE + 1) * TILE
            q, k, v = self.q[at][groups], self.k[at], self.v[at]
            # place p sees p + 1 − begin keys: so many zeros are left in its row of the mask
            left = padded - 1 - groups + begins[:, None]
            found = []
            for group, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                mask = masks[: ROWS * (end - begin)].view(ROWS, -1)
                torch.index_select(steps.unfold(0, end - begin, 1), 0, left[group], out=mask)
                texts = (x[None, None] for x in (q[group], k[begin:end], v[begin:end]))
                found.append(_fused(*texts, 0.0, False, attn_mask=mask, scale=self.scale))
            out, lse = (torch.cat(x, 2)[0, 0] for x in zip(*found, strict=True))
            self.out[at].index_copy_(0, places, out)
            self.lse[at].index_copy_(0, rows, (lse - self.constant[at][places]).double())
            self.first[at].index_copy_(0, rows, begins.repeat_interleave(ROWS))

    def mixed(self, lse: Tensor, width: int) -> Tensor:
        """Return this half's part of the output: [B, H, T, width]; lse: over both halves."""
        out = self.out[:, :, self.side.places.clamp(min=0), :width]
        return out * (self.lse - lse).exp()[..., None].to(out.dtype)


@dataclass(frozen=True, eq=False)
class Work:
    """The halves of one attention, and u_i and a_i of its rows, float64 [B, H, T]."""

    halves: list[Half]
    above: Tensor
    slopes: Tensor

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Tensor,
        segments: Tensor | None,
        sides: Sequence[Side],
    ) -> Work:
        halves = [Half.of(q, k, v, slopes, segments, side) for side in sides]
        keys = reach.mean_key(k, None if segments is None else segments > 0)
        return cls(halves, reach.highest(q, *keys).double(), slopes.double())

    @property
    def lse(self) -> Tensor:
        return torch.stack([half.lse for half in self.halves]).logsumexp(0)

    def compute(self, tiles: Sequence[Sequence[int]], share: float) -> None:
        """Compute windows of so many tiles, by half and head, then the rows that need more."""
        for half, own in zip(self.halves, tiles, strict=True):
            half.compute_windows(own)
        ratio = self.above - self.lse
        for half in self.halves:
            half.compute_gathered(half.side.needed(ratio, self.slopes, share))

    def mixed(self, width: int) -> Tensor:
        """Return the output [B, H, T, width]."""
        if len(self.halves) == 1:
            return self.halves[0].out[:, :, : self.slopes.shape[2], :width]
        lse = self.lse
        return sum((h.mixed(lse, width) for h in self.halves[1:]), self.halves[0].mixed(lse, width))

    def left_out(self, mixed: Tensor, v: Tensor) -> tuple[int, float, float]:
        """Return the pairs left out, and the most that a row's weights and output lost thereby.

        mixed: the output [B, H, T, d]; bounds of `reach`, the last a Euclidean norm.
        """
        ratio, lost, left = self.above - self.lse, torch.zeros_like(self.above), 0
        for half in self.halves:
            count = half.first - half.side.begin
            nearest = half.side.places + (1 + half.side.ahead) - half.first
            lost += reach.lost(ratio, self.slopes, nearest, count)
            left += int(count.clamp(min=0).sum())
        lost = (lost / (1 + lost)).nan_to_num(1.0)
        centre = v.mean(2, keepdim=True)
        far = (v - centre).norm(dim=-1).amax(2, keepdim=True) + (mixed - centre).norm(dim=-1)
        return left, float(lost.max()), float((lost * far).max())
