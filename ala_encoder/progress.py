"""How far a run is: what its checkpoints carry, and its loss and speed since the last log.

For: the one loop (`training`). Not for: weights and random state (`checkpoint`).
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ala_encoder import ranks
from ala_encoder.batches import Position, StepBatch
from ala_encoder.metrics import finite


@dataclass
class State:
    """Everything the loop carries from step to step; stored in every checkpoint as JSON."""

    step: int = 0
    position: Position = field(default_factory=Position)
    skipped: int = 0
    """Steps whose gradient was not finite, or whose batch had no target."""
    skipped_in_a_row: int = 0
    best_score: float | None = None
    best_step: int | None = None
    best_loss: float | None = None
    """`Goal.best_loss` of the best weights, which their export must score again."""
    evaluated_step: int = -1
    scores: dict[str, float | None] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint; a score that is not finite becomes None."""
        return {**asdict(self), "scores": finite(self.scores)}

    @classmethod
    def from_json(cls, data: Any) -> State:
        """Return what `as_json` gave; raises ValueError for other keys or types."""
        state = TypeAdapter(cls).validate_json(json.dumps(data), strict=True)
        if state.as_json() != data:  # a key is missing, or has another name
            raise ValueError(f"its keys are not {', '.join(asdict(state))}")
        return state


@dataclass(frozen=True)
class Outcome:
    """How a call of `fit` ended."""

    state: State
    finished: bool
    """False when `stop_after` ended it early."""
    best_weights: Path | None


class Window:
    """Loss and speed since the last logged step: sums, so that the mean is over all tokens."""

    def __init__(self) -> None:
        self.shown = ""
        self._restart()

    def _restart(self) -> None:
        self.loss_sum, self.count, self.tokens = 0.0, 0, 0
        self.since = time.perf_counter()

    def add(self, loss_sum: float, batch: StepBatch) -> None:
        self.loss_sum += loss_sum
        self.count += batch.count
        self.tokens += batch.num_tokens

    def leave_out(self, seconds: float) -> None:
        """Do not count this time, which went to an evaluation or a checkpoint, as training."""
        self.since += seconds

    def close(self, rate: float) -> dict[str, float]:
        """Return the window's values, summed over ranks, and start the next one."""
        loss = ranks.all_sum([self.loss_sum])[0] / self.count
        speed = self.tokens / max(time.perf_counter() - self.since, 1e-9)
        self.shown = f"loss {loss:.3f}, lr {rate:.2e}, {speed:,.0f} tok/s"
        self._restart()
        return {"loss": loss, "learning_rate": rate, "train_tokens_per_second": speed}
