"""The plan of an epoch's batches, and how a global batch reaches the ranks.

For: an order that is a pure function of (seed, phase, epoch). Ranks, micro-batches and workers are
cut *after* planning, so they cannot change it, and a position (phase, epoch, index) says exactly
which examples were consumed. Every rank runs the same number of forward and backward calls; where
a batch does not reach, a rank gets an empty piece. Not for: what an example is (`corpus`,
`objectives`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ala_encoder import signals
from ala_encoder.keyed import keyed_permutation
from ala_encoder.settings.train import BatchSplit

FIXED_EPOCH = 0
"""The one epoch of validation: its masks are the same at every step and for every variant."""

Ids = NDArray[np.int64]
Inputs = Mapping[str, Tensor]


class Examples(Protocol):
    """What can be trained or evaluated on: numbered examples that know their loss denominators."""

    def __len__(self) -> int: ...

    def counts(self, ids: Ids, epoch: int) -> NDArray[np.int64]:
        """Return how many targets each example has in this epoch."""
        ...

    def lengths(self) -> NDArray[np.int64] | None:
        """Return the tokens of each example, int64 [N], or where it has two sides those of each,
        [N, 2]; None when nearly all are equally long."""
        ...

    def num_tokens(self, ids: Ids) -> int:
        """Return how many real input tokens the examples have together."""
        ...

    def collate(self, ids: Ids, epoch: int) -> Inputs:
        """Return model inputs for the examples; an empty `ids` gives a batch without targets."""
        ...


_BATCHES_A_CHUNK = 50
_BATCHES = 1  # a stream of the keyed hash


@dataclass(frozen=True)
class Position:
    """The next batch to consume; stored in every checkpoint. The step is only a counter."""

    phase: int = 0
    epoch: int = 0
    index: int = 0


class BatchPlan(ABC):
    """The global batches of every epoch, a pure function of (seed, phase, epoch); abstract."""

    @property
    @abstractmethod
    def batches_per_epoch(self) -> int:
        """How many batches an epoch has; the same in every epoch."""

    @abstractmethod
    def batches(self, phase: int, epoch: int) -> Sequence[Ids]:
        """Return the ids of each global batch of an epoch, in order."""

    def after(self, position: Position) -> Position:
        """Return the position that follows one batch."""
        if position.index + 1 < self.batches_per_epoch:
            return Position(position.phase, position.epoch, position.index + 1)
        return Position(position.phase, position.epoch + 1, 0)

    def walk(self, start: Position) -> Iterator[tuple[Position, Ids]]:
        """Yield (position, ids of the global batch) from `start`, without end."""
        position = start
        while True:
            for ids in self.batches(position.phase, position.epoch)[position.index :]:
                yield position, ids
                position = self.after(position)


@final
@dataclass(frozen=True)
class Plan(BatchPlan):
    """Global batches of `batch_size` examples in a keyed order; the last of an epoch is shorter.

    With `lengths` (tokens of each example) a batch holds examples of similar length, so that little
    is padded: keyed chunks are sorted by (length, keyed hash), cut, and the batches shuffled.
    """

    seed: int
    num_examples: int
    batch_size: int
    lengths: NDArray[np.int64] | None = None

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.num_examples // self.batch_size)

    def epoch(self, phase: int, epoch: int) -> Ids:
        """Return the ids of an epoch in order: int64 [num_examples]."""
        order = keyed_permutation(self.num_examples, self.seed, phase, epoch)
        if self.lengths is None:
            return order
        chunk = self.batch_size * _BATCHES_A_CHUNK
        for first in range(0, len(order), chunk):
            part = order[first : first + chunk]
            order[first : first + chunk] = part[self.lengths[part].argsort(kind="stable")]
        full = len(order) // self.batch_size
        shuffled = order[: full * self.batch_size].reshape(full, self.batch_size)
        shuffled = shuffled[keyed_permutation(full, self.seed, phase, epoch, _BATCHES)]
        return np.concatenate([shuffled.reshape(-1), order[full * self.batch_size :]])

    def batches(self, phase: int, epoch: int) -> Sequence[Ids]:
        order, size = self.epoch(phase, epoch), self.batch_size
        return [order[first : first + size] for first in range(0, len(order), size)]


@final
@dataclass(frozen=True)
class TokenPlan(BatchPlan):
    """Global batches of at most `batch_tokens` tokens, padding counted: rows x the longest.

    The examples, longest first and those of equal length in a keyed order, are cut into batches,
    and the batches shuffled. Of two sides the longer counts, and pairs that are equally long are
    ordered by how much longer one is than the other, so that the shorter is little padded too.
    Where the cuts are follows from the lengths alone, so every epoch has as many batches: a run by
    epochs knows its steps. An example longer than `batch_tokens` is a batch of its own.
    """

    seed: int
    lengths: NDArray[np.int64]
    """Tokens of each example, [N], or of its sides, [N, 2]."""
    batch_tokens: int

    @cached_property
    def starts(self) -> list[int]:
        """The place of each batch's first example, in the order by length."""
        longest = self.lengths if self.lengths.ndim == 1 else self.lengths.max(1)
        lengths = np.sort(longest)[::-1].tolist()
        starts, start = [], 0
        while start < len(lengths):
            starts.append(start)
            start += max(1, self.batch_tokens // lengths[start])
        return starts

    @property
    def batches_per_epoch(self) -> int:
        return len(self.starts)

    def batches(self, phase: int, epoch: int) -> Sequence[Ids]:
        shuffled = keyed_permutation(len(self.lengths), self.seed, phase, epoch)
        order = shuffled[self._keys[shuffled].argsort(kind="stable")]
        cut = np.split(order, self.starts[1:])
        turns = keyed_permutation(len(self.starts), self.seed, phase, epoch, _BATCHES)
        return [cut[turn] for turn in turns]

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        """What the examples are sorted by."""
        if self.lengths.ndim == 1:
            return -self.lengths
        first, second = self.lengths.T
        longest = np.maximum(first, second)
        # The difference is smaller than the longest there is, so it only parts equals.
        keys: NDArray[np.int64] = second - first - longest * (2 * longest.max(initial=0) + 1)
        return keys


def pieces(ids: Ids, rank: int, world_size: int, split: BatchSplit) -> list[Ids]:
    """Return this rank's share of a global batch, one piece for each accumulation step.

    Piece a of rank r is number a · world_size + r of the batch cut into runs of `micro` examples,
    or where `micro` is tokens into runs of equal size; past the batch's end pieces are empty.
    """
    size = split.micro
    if split.unit == "tokens":
        size = -(-len(ids) // (split.accumulation * world_size))
    starts = [(step * world_size + rank) * size for step in range(split.accumulation)]
    return [ids[start : start + size] for start in starts]


def model_inputs(inputs: Inputs, device: torch.device) -> dict[str, Tensor]:
    """Return what a model's `forward` takes, on its device; `labels` are the loss's."""
    return {name: tensor.to(device) for name, tensor in inputs.items() if name != "labels"}


@dataclass(frozen=True)
class StepBatch:
    """One optimizer step's data, as one rank sees it."""

    position: Position
    ids: Ids
    """The whole global batch, in order."""
    count: int
    """Targets in the global batch: the denominator of the loss on every rank."""
    num_tokens: int
    """Real input tokens in the global batch."""
    micro_batches: list[Inputs]
    """This rank's inputs, one entry for each accumulation step."""


class _Steps(Dataset[StepBatch]):
    def __init__(self, examples: Examples, rank: int, world_size: int, split: BatchSplit) -> None:
        self.examples, self.rank, self.world_size, self.split = examples, rank, world_size, split

    def __getitem__(self, item: tuple[Position, Ids]) -> StepBatch:
        position, ids = item
        epoch = position.epoch
        return StepBatch(
            position=position,
            ids=ids,
            count=int(self.examples.counts(ids, epoch).sum()),
            num_tokens=self.examples.num_tokens(ids),
            micro_batches=[
                self.examples.collate(piece, epoch)
                for piece in pieces(ids, self.rank, self.world_size, self.split)
            ],
        )


def step_batches(
    examples: Examples,
    plan: BatchPlan,
    start: Position,
    *,
    rank: int,
    world_size: int,
    split: BatchSplit,
    num_workers: int = 0,
) -> Iterator[StepBatch]:
    """Yield the batches of consecutive steps from `start`, assembled here or by workers."""
    steps = _Steps(examples, rank, world_size, split)
    walk: Sequence[tuple[Position, Ids]] = _Walk(plan, start)  # type: ignore[assignment]
    # A generator of its own: DataLoader draws a seed when it starts, and out of the global one that
    # would shift dropout after every resume.
    loader: DataLoader[StepBatch] = DataLoader(
        steps,
        batch_size=None,
        sampler=walk,
        num_workers=num_workers,
        generator=torch.Generator(),
        worker_init_fn=signals.ignore if num_workers else None,
    )
    yield from loader


@dataclass(frozen=True)
class _Walk:
    """A plan's walk as a sampler; the order exists before any worker does."""

    plan: BatchPlan
    start: Position

    def __iter__(self) -> Iterator[tuple[Position, Ids]]:
        return self.plan.walk(self.start)


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Return rows of different lengths as one int64 [B, T], padded on the right."""
    width = max((len(row) for row in rows), default=0)
    out = np.full((len(rows), width), value, dtype=np.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return torch.from_numpy(out)


def padded(rows: Sequence[Sequence[int]], value: int) -> tuple[Tensor, Tensor]:
    """Return texts padded on the right, and their segments, 1 and at padding 0: int64 [B, T]."""
    return pad(rows, value), pad([[1] * len(row) for row in rows], 0)
