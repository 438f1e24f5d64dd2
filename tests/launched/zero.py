"""On every rank: all ZeRO stages, resume, offload, and a gradient that is not finite.

Started by the deepspeed launcher with a folder; rank 0 leaves zero.json there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from ala_encoder import engine as engines
from ala_encoder import ranks
from ala_encoder.errors import RunStopped
from tests.launched.small import loop, losses, settings

ZERO3 = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


def run(folder: Path, stage: int) -> dict[str, Any]:
    """Train 20 steps whole, and again in two parts of 10; return what rank 0 saw."""
    config = {"engine": {"zero_stage": stage}, "deepspeed": ZERO3 if stage == 3 else {}}
    whole = loop(settings(**config), folder, f"whole{stage}")
    outcome = whole.fit()
    assert outcome.finished
    assert outcome.state.step == 20
    found: dict[str, Any] = {"partitioned": partitioned(whole.engine) if stage == 3 else None}
    state = whole.engine.full_state()

    first = settings(**config, train={"stop_after": 10})
    assert not loop(first, folder, f"parts{stage}").fit().finished
    second = loop(settings(**config), folder, f"parts{stage}")
    second.fit()
    resumed = second.engine.full_state()
    if ranks.is_main():
        found["losses"] = losses(folder / f"whole{stage}")
        found["resumed"] = losses(folder / f"parts{stage}")
        found["same_weights"] = all(torch.equal(state[name], resumed[name]) for name in state)
        found["names"] = sorted(state)
    return found


def partitioned(engine: engines.Engine) -> dict[str, int]:
    """Return how many elements of the shared parameters this rank holds between two steps."""
    names = ("vocabulary.weight", "bank.projections.0.q_proj.weight")
    return {
        name: parameter.numel()
        for name, parameter in engine.module.named_parameters()
        if name.endswith(names)
    }




def poison(folder: Path, stage: int, policy: str) -> dict[str, Any]:
    """Make rank 1's loss NaN at step 5 and tell how the run ended and what it changed."""
    config = {"engine": {"zero_stage": stage}, "deepspeed": ZERO3 if stage == 3 else {}}
    job = loop(settings(**config, train={"on_nonfinite": policy}), folder, f"{policy}{stage}")
    backward, seen = job.engine.backward, {"last": 0, "before": {}}

    def poisoned(loss: torch.Tensor, count: int, *, is_last: bool) -> None:
        if job.state.step == 4 and ranks.rank() == 1 and is_last and job.state.skipped == 0:
            loss = loss * float("nan")
        backward(loss, count, is_last=is_last)

    job.engine.backward = poisoned  # type: ignore[method-assign]
    skip = job._skip

    def watched(batch: Any, update: Any, loss_sum: float) -> None:
        seen["after"] = job.engine.full_state()
        skip(batch, update, loss_sum)

    step = job.engine.step

    def before(rate: float) -> Any:
        if job.state.step == 4 and job.state.skipped == 0:
            seen["before"] = job.engine.full_state()
        return step(rate)

    job.engine.step = before  # type: ignore[method-assign]
    job._skip = watched  # type: ignore[method-assign]
    try:
        job.fit()
        ended = f"finished at {job.state.step}, skipped {job.state.skipped}"
    except RunStopped as error:
        ended = str(error)
    same = all(torch.equal(seen["before"][n], seen["after"][n]) for n in seen["before"])
    return {"ended": ended, "same_weights": same, "steps": job.state.step}


def main(folder: Path) -> None:
    engines.start(folder / "cache")
    found: dict[str, Any] = {"world_size": ranks.world_size(), "stages": {}, "poisoned": {}}
    for stage in (0, 1, 2, 3):
        found["stages"][stage] = run(folder, stage)
        found["poisoned"][f"stop{stage}"] = poison(folder, stage, "stop")
    found["poisoned"]["skip0"] = poison(folder, 0, "skip")
    offloaded = loop(
        settings(engine={"zero_stage": 2, "offload_optimizer": "cpu", "activation_checkpointing": True}),
        folder, "offloaded",
    )
    offloaded.fit()
    if ranks.is_main():
        found["offloaded"] = losses(folder / "offloaded")
        (folder / "zero.json").write_text(json.dumps(found), encoding="utf-8")
    engines.stop()


if __name__ == "__main__":
    main(Path(next(word for word in sys.argv[1:] if not word.startswith("--"))))
