"""What a decoder has read so far, so that one more token costs one step and not the whole text.

For: keys and values of every layer, kept from step to step, for one text a row or for the several
hypotheses of a beam. Not for: the search itself (`decoding`), sampling (`generation`), what a score
is (`kernels`).

The hypotheses of a row share its keys: each step adds one key a hypothesis, and a mask says which
of them are of whose past. So when the search goes on from other hypotheses, rows of that small mask
are moved and no key is.

With a window of w tokens a query sees the w − 1 keys before it and its own, in every layer, and
older ones are dropped: time and memory of a token are O(w), however long the text. No key is
computed again: it keeps what its own layer saw when it was read. Places go on counting.
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
        """Keys that are kept."""
        self._first = 0
        """Where in the room they begin."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def all(self) -> tuple[Tensor | None, Tensor]:
        """The keys (None: no head has any) and values so far."""
        assert self._v is not None
        kept = slice(self._first, self._first + self.length)
        return None if self._k is None else self._k[:, :, kept], self._v[:, :, kept]

    def append(self, k: Tensor | None, v: Tensor) -> tuple[Tensor | None, Tensor]:
        """Put further keys and values behind the others, in place, and return all."""
        assert not torch.is_grad_enabled(), "a cache is written in place"
        start, end = self._first, self._first + self.length
        if self._v is None or self._v.shape[2] < end + v.shape[2]:
            size = max(self.length + v.shape[2], 2 * self.length)
            if k is not None:
                self._k = _moved(self._k, k, start, end, size)
            self._v = _moved(self._v, v, start, end, size)
            self._first, end = 0, self.length
        for room, new in ((self._k, k), (self._v, v)):
            if room is not None and new is not None:
                room[:, :, end : end + new.shape[2]] = new
        self.length += v.shape[2]
        return self.all

    def drop(self, most: int) -> None:
        """Forget the oldest keys where there are more than `most`; nothing is moved."""
        self._first += max(0, self.length - most)
        self.length = min(self.length, most)

    def keep(self, order: Tensor, moved: Tensor) -> None:
        """Keep the rows `order`, int [B']; moved: the places in it that get the row of another."""
        end = self._first + self.length
        if self._k is not None:
            self._k = _kept(self._k, order, moved, end)
        if self._v is not None:
            self._v = _kept(self._v, order, moved, end)


def _moved(room: Tensor | None, like: Tensor, start: int, end: int, size: int) -> Tensor:
    """Return a room for `size` keys with what lies from `start` to `end` at its front.

    It is at least twice as large as that, so a key is moved once for each that is added.
    """
    larger = like.new_empty(*like.shape[:2], size, like.shape[3])
    if room is not None:
        larger[:, :, : end - start] = room[:, :, start:end]
    return larger


def _kept(room: Tensor, order: Tensor, moved: Tensor, length: int) -> Tensor:
    room[moved, :, :length] = room[order[moved], :, :length]
    return room[: len(order)]


class Cache:
    """What a stack has read: a text a row, or with `beam` several hypotheses a row.

    A row of input is the next tokens of a text, [B, Q]; or it is the next token of each hypothesis,
    at least one, and all stand at one place. window: tokens that a token sees, itself among them,
    of a text a row; None: all before it.
    """

    def __init__(self, num_layers: int, *, beam: bool = False, window: int | None = None) -> None:
        assert window is None or (window > 0 and not beam)
        self.beam, self.window = beam, window
        self.length = 0
        """Tokens read, of each text or hypothesis."""
        self.own = [KeyValues() for _ in range(num_layers)]
        self.cross = [KeyValues() for _ in range(num_layers)]
        """Of the memory, filled by the first step."""
        self._segments: Tensor | None = None
        """Of the tokens that are kept."""
        self._last: Tensor | None = None
        """The segment of each row's last token and its place in it, int [B, 2]."""
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
        if segments is None:
            return self.length + torch.arange(self.steps(queries), device=device)[None]
        places = counted(segments, queries, device)
        if self._last is None:
            return places
        number, last = self._last[:, :1], self._last[:, 1:]
        goes_on = ((segments == number) & (number > 0)).int().cumprod(1) > 0
        return torch.where(goes_on, last + 1 + torch.arange(queries, device=device), places)

    def visibility(self, segments: Tensor | None, x: Tensor) -> Visibility:
        """Return what the next tokens, x [B, Q, dim], see of all so far and of one another."""
        queries = x.shape[1]
        if self.beam:
            assert segments is None
            if self._seen is None:
                self._seen = _each_itself(len(x), queries, x.device)
            widths = torch.tensor([*self._widths, queries], device=x.device)
            keys = torch.arange(self.length + 1, device=x.device)
            offset = keys.repeat_interleave(widths) - self.length
            return Visibility.of_step(offset[None], self._seen[:, None])
        if self.length == 0 and (self.window is None or queries <= self.window):
            return Visibility.of(segments, causal=True)
        everything = self._with(segments)
        kept = self._kept
        keys = torch.arange(kept + queries, device=x.device)
        offset = keys - keys[kept:, None]
        pairs = None if queries == 1 else self._near(offset)[None, None]
        if segments is not None and everything is not None:
            same = (segments[:, :, None] == everything[:, None]) & (segments > 0)[:, :, None]
            pairs = (same & self._near(offset))[:, None]
        return Visibility.of_step(offset, pairs, segments=segments, keys=everything)

    @property
    def _kept(self) -> int:
        """Tokens of each text whose keys are kept."""
        return self.length if self.window is None else min(self.length, self.window - 1)

    def _near(self, offset: Tensor) -> Tensor:
        """Return which offsets are seen, bool of their shape."""
        seen = offset <= 0
        return seen if self.window is None else seen & (offset > -self.window)

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
        if segments is not None:
            places = self.places(segments, queries, segments.device)
            self._last = torch.stack([segments[:, -1], places[:, -1]], 1)
        self._segments = self._with(segments)
        if self.beam:
            self._widths.append(queries)
        self.length += self.steps(queries)
        if self.window is not None:
            for kept in self.own:
                kept.drop(self._kept)
            if self._segments is not None:
                self._segments = self._segments[:, self._segments.shape[1] - self._kept :]

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
        self._last = _rows(self._last, order)
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


def without(done: Tensor) -> Tensor:
    """Return the rows that stay, for `Cache.keep`: bool [B] → int [B'].

    The last rows move into the gaps, so that no other has to.
    """
    stay = (~done).nonzero()[:, 0]
    order = torch.arange(len(stay), device=done.device)
    order[done[: len(stay)]] = stay[stay >= len(stay)]
    return order


def _rows(x: Tensor | None, order: Tensor) -> Tensor | None:
    return None if x is None else x[order]


def _each_itself(batch: int, width: int, device: torch.device) -> Tensor:
    return torch.eye(width, dtype=torch.bool, device=device).expand(batch, -1, -1)
