"""Scores over ranks: every example once, in order, whatever the world size and batch.

For: the loss of a masked language model and the predictions of a classifier. Works on an `Engine`
or on a plain model. Not for: the metrics themselves (`metrics`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ala_encoder import ranks
from ala_encoder.batches import FIXED_EPOCH, Examples, Ids, model_inputs, pieces
from ala_encoder.files import write_json
from ala_encoder.metrics import perplexity
from ala_encoder.objectives import cross_entropy
from ala_encoder.settings.train import BatchSplit

Forward = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Loss:
    """A summed loss in nats and the number of targets it was taken over."""

    total: float
    count: int

    @property
    def mean(self) -> float | None:
        """None where there is no mean: no target, or a sum that is not a number."""
        return self.total / self.count if self.count and math.isfinite(self.total) else None


def plain(model: nn.Module) -> Forward:
    """Return a forward function for a model that is not under an engine."""
    where = next(model.parameters(), torch.empty(0)).device
    return lambda inputs: model(**model_inputs(inputs, where))


def language_model_loss(forward: Forward, examples: Examples, batch_size: int) -> Loss:
    """Return the loss over all targets of `examples`, summed over batches and ranks."""
    total, count = 0.0, 0
    for _, logits, labels in _batches(forward, examples, batch_size):
        loss, targets = cross_entropy(logits, labels)
        total += float(loss)
        count += int(targets)
    summed = ranks.all_sum([total, count])
    return Loss(summed[0], int(summed[1]))


def masked_lm_scores(
    forward: Forward, examples: Examples, batch_size: int
) -> dict[str, float | None]:
    """Return eval_loss (nats), eval_perplexity and the number of targets they are taken over."""
    loss = language_model_loss(forward, examples, batch_size)
    return {
        "eval_loss": loss.mean,
        "eval_perplexity": None if loss.mean is None else perplexity(loss.total, loss.count),
        "eval_targets": float(loss.count),
    }


def classify(forward: Forward, examples: Examples, batch_size: int) -> tuple[list[int], Loss]:
    """Return the predicted class of every example in order, and the summed loss, on all ranks."""
    found: list[tuple[int, int]] = []
    total, count = 0.0, 0
    for ids, logits, labels in _batches(forward, examples, batch_size):
        loss, targets = cross_entropy(logits, labels)
        total += float(loss)
        count += int(targets)
        found.extend(zip(ids.tolist(), logits[: len(ids)].argmax(-1).tolist(), strict=True))
    everyone = sorted(pair for part in ranks.gather(found) for pair in part)
    assert [i for i, _ in everyone] == list(range(len(examples))), "each example exactly once"
    summed = ranks.all_sum([total, count])
    return [label for _, label in everyone], Loss(summed[0], int(summed[1]))


def write_scores(
    folder: Path,
    task: str,
    split: str,
    data: str,
    scores: Mapping[str, float | None],
    undefined: Mapping[str, str],
) -> None:
    """Write folder/SPLIT.json: the scores, and for each that has no value the reason."""
    found = {"task": task, "split": split, "data": data, "scores": dict(scores)}
    write_json(folder / f"{split}.json", {**found, "undefined": dict(undefined)})


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
