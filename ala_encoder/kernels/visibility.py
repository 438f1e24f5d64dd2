"""What may be seen at all: padding, documents and causality, worked out once for a forward pass.

For: one object that every layer of a stack reads. Nothing of size Q x K exists before a path asks
for `pairs` or `offset`. Not for: the masks of single heads (`heads`), windows (`biases`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ala_encoder.errors import UserError
from ala_encoder.kernels.features import document_columns, filled, numbered
from ala_encoder.positions import counted


@dataclass(frozen=True, eq=False)
class Visibility:
    """Who sees whom. segments: int [B, Q] of the queries, keys: int [B, K] of the keys.

    0 is padding, equal numbers see each other; both are None when all see all. In self-attention
    the two are the same. causal: query i sees no key j > i. is_step: the queries are not those of
    the whole text (`cache`), so paths that read places off the shape do not apply.
    """

    segments: Tensor | None = None
    keys: Tensor | None = None
    causal: bool = False
    is_step: bool = False
    _known: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Tensor | None, *, causal: bool = False) -> Visibility:
        """Return that of self-attention; segments: int or bool [B, T], None: no padding.

        Raises UserError for what is no number of a document.
        """
        segments = checked("segments", segments)
        return cls(segments, segments, causal)

    @classmethod
    def across(
        cls, segments: Tensor | None, memory: Tensor | None, queries: int, keys: int
    ) -> Visibility:
        """Return that of cross-attention; a side without segments is one document, number 1.

        Raises UserError for what is no number of a document.
        """
        segments, memory = checked("segments", segments), checked("memory_segments", memory)
        if segments is None and memory is None:
            return cls()
        if segments is None:
            assert memory is not None
            segments = memory.new_ones(len(memory), queries)
        if memory is None:
            memory = segments.new_ones(len(segments), keys)
        return cls(segments, memory)

    @classmethod
    def of_step(
        cls,
        offset: Tensor,
        pairs: Tensor | None,
        *,
        segments: Tensor | None = None,
        keys: Tensor | None = None,
    ) -> Visibility:
        """Return that of queries which come after keys that were read before.

        offset: int [Q, K], or [1, K] when all queries stand at one place; pairs: as `pairs` returns
        them; segments, keys: as above.
        """
        return cls(segments, keys, True, True, {"offset": offset, "pairs": pairs})

    def at(self, places: Tensor) -> Visibility:
        """Return this cross-attention for a step; places: of the queries, int [B or 1, Q or 1]."""
        return replace(self, is_step=True, _known={"places": places})

    @property
    def real(self) -> Tensor | None:
        """Queries that are no padding: bool [B, Q], None: all."""
        if self.segments is None:
            return None
        real: Tensor = self._once("real", torch.gt, self.segments, 0)
        return real

    @property
    def real_keys(self) -> Tensor | None:
        """Keys that are no padding: bool [B, K], None: all."""
        if self.keys is None:
            return None
        real: Tensor = self._once("real keys", torch.gt, self.keys, 0)
        return real

    @property
    def blind(self) -> Tensor | None:
        """Queries with nothing to see: bool [B, Q], None: there are none."""
        if self.segments is None or self.keys is None:
            return None
        blind: Tensor = self._once("blind", _blind, self.segments, self.keys)
        return blind

    @property
    def has_documents(self) -> bool:
        """Tell whether padding is not all: a row holds several documents, or only other ones.

        The tensor is read on a CPU alone: a device would be waited for, so there it is True.
        """
        if self.segments is None or self.keys is None:
            return False
        if self.segments.device.type != "cpu":
            return True
        return bool(self._once("documents", _has_documents, self.segments, self.keys))

    def pairs(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """Return who sees whom: bool, broadcastable to [B, 1, Q, K]; None when all see all."""
        if self.segments is None and not self.causal:
            return None
        pairs: Tensor = self._once("pairs", self._pairs, queries, keys, device)
        return pairs

    def _pairs(self, queries: int, keys: int, device: torch.device) -> Tensor:
        pairs = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=device)
        if self.segments is not None and self.keys is not None:
            same = self.segments[:, :, None] == self.keys[:, None, :]
            pairs = (same & (self.segments > 0)[:, :, None])[:, None]
        return pairs.tril() if self.causal else pairs

    def offset(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Return j − i, int [Q, K]."""
        offset: Tensor = self._once("offset", _offset, queries, keys, device)
        return offset

    def places(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the place of queries and keys in their own documents: [B or 1, Q], [B or 1, K]."""
        return (
            self._once("places", counted, self.segments, queries, device),
            self._once("key places", counted, self.keys, keys, device),
        )

    @property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Columns of q and k, over whole tiles, that keep documents and padding apart."""
        columns: tuple[Tensor, Tensor] = self._once("columns", self._columns)
        return columns

    def _columns(self) -> tuple[Tensor, Tensor]:
        assert self.segments is not None and self.keys is not None
        both = numbered(torch.cat([self.segments, self.keys], 1))
        queries, keys = both.tensor_split([self.segments.shape[1]], 1)
        return document_columns(filled(queries), filled(keys))

    def _once(self, name: str, make: Callable[..., Any], *given: object) -> Any:
        if name in self._known:  # told by `of_step` or `at`, whatever the sizes
            return self._known[name]
        key = (name, *(size for size in given if isinstance(size, int)))
        if key not in self._known:
            self._known[key] = make(*given)
        return self._known[key]


def checked(name: str, segments: Tensor | None) -> Tensor | None:
    """Return segments as integers.

    Raises UserError for other numbers and, on a CPU, for negative ones; a GPU would be waited for.
    """
    if segments is None:
        return None
    if segments.is_floating_point() or segments.is_complex():
        raise UserError(f"{name}: are {segments.dtype}, needed are whole numbers, 0 for padding")
    if segments.dtype == torch.bool:
        return segments.int()
    if segments.device.type == "cpu" and segments.numel() and int(segments.min()) < 0:
        raise UserError(f"{name}: hold {int(segments.min())}, allowed are 0 and above")
    return segments


def _blind(segments: Tensor, keys: Tensor) -> Tensor:
    if segments is keys:
        return segments == 0
    both = numbered(torch.cat([segments, keys], 1)).long()
    queries, others = both.tensor_split([segments.shape[1]], 1)
    there = torch.zeros(len(both), int(both.max()) + 1, dtype=torch.bool, device=both.device)
    there.scatter_(1, others, True)
    there[:, 0] = False
    return ~there.gather(1, queries)


def _has_documents(segments: Tensor, keys: Tensor) -> Tensor:
    number = keys.amax(1, keepdim=True)
    return torch.stack([((x > 0) & (x != number)).any() for x in (segments, keys)]).any()


def _offset(queries: int, keys: int, device: torch.device) -> Tensor:
    rows = torch.arange(queries, device=device)
    return torch.arange(keys, device=device)[None, :] - rows[:, None]


def combine(bias: Tensor | None, visible: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Merge additive bias and visibility into one mask, filled once.

    bias: float32 broadcastable to [B, H, Q, K], −inf hides; visible: bool, likewise.
    Returns (mask, empty): an additive float mask or a bool one, with the rows that see nothing
    opened so that their softmax stays finite, and those rows as bool [..., Q, 1] (None: there are
    none) to be set to 0 afterwards.
    """
    if bias is None and visible is None:
        return None, None
    if bias is None:
        assert visible is not None
        empty = ~visible.any(-1, keepdim=True)
        return visible | empty, empty
    allowed = ~torch.isneginf(bias)
    if visible is not None:
        allowed = allowed & visible
    empty = ~allowed.any(-1, keepdim=True)
    # Rows that see nothing lose their bias too, so nothing flows back through it.
    bias = bias.masked_fill(~allowed, float("-inf")).masked_fill(empty, 0.0)
    return bias, empty
