"""What a decoder has read so far, so that one more token costs one step and not the whole text.

For: keys and values of every layer, kept from step to step, for one text a row or for the several
hypotheses of a beam. Not for: the search itself (`decoding`), what a score is (`kernels`).

The hypotheses of a row share its keys: each step adds one key a hypothesis, and a mask says which
of them are of whose past. So when the search goes on from other hypotheses, rows of that small mask
are moved and no key is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ala_encoder.kernels import Visibility
from ala_encoder.positions import counted


class KeyValues:
    """Keys [B, G, K, d] and values [B, H, K, d] of one attention, with room for more."""

    def __init__(self) -> None:
        self.length = 0
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def all(self) -> tuple[Tensor | None, Tensor]:
        """The keys (None: no head has any) and values so far."""
        assert self._v is not None
        k = None if self._k is None else self._k[:, :, : self.length]
        return k, self._v[:, :, : self.length]

    def append(self, k: Tensor | None, v: Tensor) -> tuple[Tensor | None, Tensor]:
        """Put further keys and values behind the others, in place, and return all."""
        assert not torch.is_grad_enabled(), "a cache is written in place"
        if k is not None:
            self._k = _appended(self._k, k, self.length)
        self._v = _appended(self._v, v, self.length)
        self.length += v.shape[2]
        return self.all

    def keep(self, order: Tensor, moved: Tensor) -> None:
        """Keep the rows `order`, int [B']; moved: the places in it that get the row of another."""
        if self._k is not None:
            self._k = _kept(self._k, order, moved, self.length)
        if self._v is not None:
            self._v = _kept(self._v, order, moved, self.length)


def _appended(room: Tensor | None, new: Tensor, start: int) -> Tensor:
    end = start + new.shape[2]
    if room is None or room.shape[2] < end:
        larger = new.new_empty(*new.shape[:2], max(end, 2 * start), new.shape[3])
        if room is not None:
            larger[:, :, :start] = room[:, :, :start]
        room = larger
    room[:, :, start:end] = new
    return room


def _kept(room: Tensor, order: Tensor, moved: Tensor, length: int) -> Tensor:
    room[moved, :, :length] = room[order[moved], :, :length]
    return room[: len(order)]


class Cache:
    """What a stack has read: a text a row, or with `beam` several hypotheses a row.

    A row of input is the next tokens of a text, [B, Q]; or it is the next token of each hypothesis,
    at least one, and all stand at one place.
    """

    def __init__(self, num_layers: int, *, beam: bool = False) -> None:
        self.beam = beam
        self.length = 0
        """Tokens read, of each text or hypothesis."""
        self.own = [KeyValues() for _ in range(num_layers)]
        self.cross = [KeyValues() for _ in range(num_layers)]
        """Of the memory, filled by the first step."""
        self._segments: Tensor | None = None
        self._memory_segments: Tensor | None = None
        self._widths: list[int] = []
        """Hypotheses of each step, which are its keys."""
        self._seen: Tensor | None = None
        """bool [B, hypotheses, keys], the next tokens' own keys included."""

    def steps(self, queries: int) -> int:
        """Return by how many tokens a text grows when so many are put in."""
        return 1 if self.beam else queries

    def places(self, segments: Tensor | None, queries: int, device: torch.device) -> Tensor:
        """Return where the next tokens stand in their documents: int [B or 1, queries or 1]."""
        total = self.length + self.steps(queries)
        return counted(self._with(segments), total, device)[:, self.length :]

    def visibility(self, segments: Tensor | None, x: Tensor) -> Visibility:
        """Return what the next tokens, x [B, Q, dim], see of all so far and of one another."""
        queries = x.shape[1]
        keys = torch.arange(self.length + self.steps(queries), device=x.device)
        if self.beam:
            assert segments is None
            if self._seen is None:
                self._seen = _each_itself(len(x), queries, x.device)
            widths = torch.tensor([*self._widths, queries], device=x.device)
            offset = keys.repeat_interleave(widths) - self.length
            return Visibility.of_step(offset[None], self._seen[:, None])
        if self.length == 0:
            return Visibility.of(segments, causal=True)
        everything = self._with(segments)
        offset = keys - keys[self.length :, None]
        pairs = None if queries == 1 else (offset <= 0)[None, None]
        if segments is not None and everything is not None:
            same = (segments[:, :, None] == everything[:, None]) & (segments > 0)[:, :, None]
            pairs = (same & (offset <= 0))[:, None]
        return Visibility.of_step(offset, pairs, segments=segments, keys=everything)

    def across(
        self,
        segments: Tensor | None,
        x: Tensor,
        memory: Tensor | None,
        memory_segments: Tensor | None,
    ) -> Visibility:
        """Return what x [B, Q, dim] sees of the memory, which the first step gives."""
        if self.length == 0:
            self._memory_segments = memory_segments
        keys = self.cross[0].length if memory is None else memory.shape[1]
        seen = Visibility.across(segments, self._memory_segments, x.shape[1], keys)
        return seen.at(self.places(segments, x.shape[1], x.device))

    def advance(self, segments: Tensor | None, queries: int) -> None:
        """Count tokens that every layer has read."""
        self._segments = self._with(segments)
        self._widths.append(queries)
        self.length += self.steps(queries)

    def follow(self, parents: Tensor) -> None:
        """Let each next hypothesis go on from one of those before: int [B, hypotheses]."""
        if self._seen is None:
            return
        seen = self._seen.gather(1, parents[..., None].expand(-1, -1, self._seen.shape[2]))
        itself = _each_itself(len(parents), parents.shape[1], seen.device)
        self._seen = torch.cat([seen, itself], 2)

    def keep(self, order: Tensor) -> None:
        """Keep the rows `order`, int [B'], in that order; a row that stays in place costs nothing.

        Takes no row twice.
        """
        moved = (order != torch.arange(len(order), device=order.device)).nonzero()[:, 0]
        for kept in (*self.own, *self.cross):
            kept.keep(order, moved)
        self._segments = _rows(self._segments, order)
        self._memory_segments = _rows(self._memory_segments, order)
        self._seen = _rows(self._seen, order)

    def _with(self, segments: Tensor | None) -> Tensor | None:
        """Return the segments of everything read and of the next tokens."""
        if self.length == 0:
            return segments
        assert (segments is None) == (self._segments is None), "segments in every step or in none"
        if segments is None or self._segments is None:
            return None
        return torch.cat([self._segments, segments], 1)


def _rows(x: Tensor | None, order: Tensor) -> Tensor | None:
    return None if x is None else x[order]


def _each_itself(batch: int, width: int, device: torch.device) -> Tensor:
    return torch.eye(width, dtype=torch.bool, device=device).expand(batch, -1, -1)
