"""Scores over ranks: every example once, in order, whatever the world size and batch.

For: the loss of a masked language model, and the predictions of a classifier or a regression. Works
on an `Engine` or on a plain model. Losses are summed in float64, so that no cut into batches and
ranks changes them. Not for: the metrics themselves (`metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ala_encoder import ranks
from ala_encoder.batches import FIXED_EPOCH, Examples, Ids, TokenPlan, model_inputs, pieces
from ala_encoder.files import write_json
from ala_encoder.kernels import Pruning
from ala_encoder.language_model import perplexity
from ala_encoder.metrics import Score, finite
from ala_encoder.objectives import cross_entropy, summed_loss
from ala_encoder.settings.train import BatchSplit

_ROWS = 512
"""Targets whose loss is taken at once, in float64."""
Forward = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Loss:
    """A summed loss (nats, or squared error) and the number of targets it was taken over."""

    total: float
    count: int

    @property
    def mean(self) -> float | None:
        """None where there is no mean: no target, or a sum that is not a number."""
        return self.total / self.count if self.count and math.isfinite(self.total) else None


class Scored(Protocol):
    """A model to be scored, under an `Engine` or `plain`."""

    @property
    def module(self) -> nn.Module: ...

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor: ...


@dataclass(frozen=True)
class Plain:
    """A model that is not under an engine, called like one."""

    module: nn.Module

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        ranks.check_signals()
        where = next(self.module.parameters(), torch.empty(0)).device
        logits: Tensor = self.module(**model_inputs(inputs, where))
        return logits


def plain(model: nn.Module) -> Plain:
    """Return a forward function for a model that is not under an engine."""
    return Plain(model)


@dataclass(frozen=True)
class Part:
    """What one rank found: (example, prediction) of its share, and the share's loss."""

    predictions: tuple[tuple[int, float], ...]
    loss: Loss


def language_model_loss(forward: Forward, examples: Examples, batch_size: int) -> Loss:
    """Return the loss over all targets of `examples`, summed over batches and ranks."""
    total, count = 0.0, 0
    for _, logits, labels in _batches(forward, examples, batch_size):
        loss, targets = summed_loss(logits.double(), labels)
        total += float(loss)
        count += int(targets)
    summed = ranks.all_sum([total, count])
    return Loss(summed[0], int(summed[1]))


def token_loss(forward: Forward, examples: Examples, batch_tokens: int) -> Loss:
    """Return the loss, not smoothed, over all target tokens, summed over batches and ranks.

    Every rank makes as many calls; a pair longer than `batch_tokens` is a batch of its own.
    """
    total, count, world = 0.0, 0, ranks.world_size()
    lengths = examples.lengths()
    assert lengths is not None
    batches = TokenPlan(0, lengths, batch_tokens).batches(0, FIXED_EPOCH)
    none = np.empty(0, dtype=np.int64)
    with torch.no_grad():
        for first in range(0, len(batches), world):
            turn = [*batches[first : first + world], *[none] * world]
            inputs = examples.collate(turn[ranks.rank()], FIXED_EPOCH)
            logits = forward(inputs).flatten(0, -2)
            labels = inputs["labels"].to(logits.device).flatten()
            for start in range(0, len(labels), _ROWS):
                part = slice(start, start + _ROWS)
                loss, targets = cross_entropy(logits[part].double(), labels[part])
                total += float(loss)
                count += int(targets)
    summed = ranks.all_sum([total, count])
    return Loss(summed[0], int(summed[1]))


def masked_lm_scores(
    forward: Forward, examples: Examples, batch_size: int
) -> dict[str, float | None]:
    """Return `loss_scores` of a masked language model."""
    return loss_scores(language_model_loss(forward, examples, batch_size))


def loss_scores(loss: Loss, prefix: str = "eval") -> dict[str, float | None]:
    """Return PREFIX_loss (nats), PREFIX_perplexity and PREFIX_targets, their count."""
    mean = loss.mean
    return {
        f"{prefix}_loss": mean,
        f"{prefix}_perplexity": None if mean is None else perplexity(loss.total, loss.count),
        f"{prefix}_targets": float(loss.count),
    }


def pruning_scores(found: Sequence[Pruning]) -> dict[str, float | None]:
    """Return what attention left out, over ranks, as scores.

    prune_computed: part of all query-key pairs; prune_weight: the most that a query's weights lost
    in sum; prune_error: the most that a head's output changed, as a Euclidean norm.
    """
    total = Pruning.together(ranks.gather(Pruning.together(found)))
    return {
        "prune_computed": total.fraction,
        "prune_weight": total.weight,
        "prune_error": total.error,
    }


def predict(
    forward: Forward, examples: Examples, batch_size: int
) -> tuple[list[int] | list[float], Loss]:
    """Return the prediction for every example in order, and the summed loss, on all ranks.

    Predictions are class numbers (-1 for a row whose logits are not all finite), or where the
    labels are floating the outputs themselves; a label of IGNORE or NaN has no part in the loss.
    """
    parts = ranks.gather(predict_part(forward, examples, batch_size))
    return merge(parts, len(examples))


def predict_part(forward: Forward, examples: Examples, batch_size: int) -> Part:
    """Return what this rank finds in its share of `examples`; every rank makes as many calls."""
    found: list[tuple[int, float]] = []
    total, count = 0.0, 0
    for ids, logits, labels in _batches(forward, examples, batch_size):
        loss, targets = summed_loss(logits.double(), labels)
        total += float(loss)
        count += int(targets)
        real = logits[: len(ids)]
        # argmax alone would call a row of NaN class 0, and a run that diverged would get a score
        classes = real.argmax(-1).where(real.isfinite().all(-1), -1)
        values = real[:, 0] if labels.is_floating_point() else classes
        found.extend(zip(ids.tolist(), values.tolist(), strict=True))
    return Part(tuple(found), Loss(total, count))


def merge(parts: Sequence[Part], num_examples: int) -> tuple[list[int] | list[float], Loss]:
    """Join what the ranks found into predictions in order and one loss.

    An example that is missing, or there twice as padded samplers make it, is an AssertionError.
    """
    everyone = sorted(pair for part in parts for pair in part.predictions)
    assert [i for i, _ in everyone] == list(range(num_examples)), "each example exactly once"
    loss = Loss(sum(p.loss.total for p in parts), sum(p.loss.count for p in parts))
    return [value for _, value in everyone], loss


def write_scores(
    folder: Path,
    task: str,
    split: str,
    data: str,
    scores: Mapping[str, Score],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write folder/SPLIT.json: the scores, the reason of each that has no value, and notes.

    about: what else the scores depend on, as JSON can say it. What is not finite becomes null,
    since JSON has no NaN, and every null has a reason.
    """
    values = finite({name: score.value for name, score in scores.items()})
    missing = [name for name, value in values.items() if value is None]
    found = {
        "task": task,
        "split": split,
        "data": data,
        "scores": values,
        "undefined": {name: scores[name].reason or "it is not finite" for name in missing},
        "notes": {name: score.note for name, score in scores.items() if score.note},
        **(about or {}),
    }
    write_json(folder / f"{split}.json", found)


def _batches(
    forward: Forward, examples: Examples, batch_size: int
) -> Iterator[tuple[Ids, Tensor, Tensor]]:
    """Yield (ids, logits, labels) of this rank's share; every rank makes as many calls."""
    world, everything = ranks.world_size(), np.arange(len(examples), dtype=np.int64)
    split = BatchSplit(micro=batch_size, accumulation=1)
    with torch.no_grad():
        for first in range(0, len(examples), batch_size * world):
            together = everything[first : first + batch_size * world]
            ids = pieces(together, ranks.rank(), world, split)[0]
            inputs = examples.collate(ids, FIXED_EPOCH)
            logits = forward(inputs)
            yield ids, logits, inputs["labels"].to(logits.device)
