"""What a run is trained for: its examples, its losses, and how progress is judged.

For: what tasks give to the one loop (`training`). Not for: losses themselves (`objectives`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from ala_encoder.batches import Examples, Inputs
from ala_encoder.engine import Engine
from ala_encoder.evaluation import Forward
from ala_encoder.objectives import summed_loss

Scores = Mapping[str, float | None]


Losses = Callable[[Forward, Inputs], tuple[Tensor, Tensor]]
"""What a micro-batch gives: the summed loss that is trained, and the one that is reported."""


def of_logits(objective: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Losses:
    """Return the losses of a model that gives logits, by an objective of (logits, labels)."""

    def losses(forward: Forward, inputs: Inputs) -> tuple[Tensor, Tensor]:
        logits = forward(inputs)
        return objective(logits, inputs["labels"].to(logits.device))

    return losses


def _unsmoothed(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed loss twice: what is trained is what is reported."""
    loss, _ = summed_loss(logits, labels)
    return loss, loss


UNSMOOTHED = of_logits(_unsmoothed)
"""The losses of classes, scores and masked tokens."""


@dataclass(frozen=True)
class Goal:
    """What is trained on and how progress is judged."""

    examples: Examples
    evaluate: Callable[[Engine], Scores]
    identity: Mapping[str, Any]
    """What a checkpoint must agree with to be resumed: model, data, seed."""
    best_metric: str | None = None
    """Keep the weights that were best by this score; None: the last ones are exported."""
    best_mode: Literal["max", "min"] = "max"
    best_loss: str = "eval_loss"
    """The loss that the export of the best weights must score again."""
    losses: Losses = UNSMOOTHED
    evaluate_start: Callable[[Engine], Scores] | None = None
    """What is evaluated before the first step; None: as later."""
