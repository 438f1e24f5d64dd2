"""On every rank: all ZeRO stages, resume, offload, a gradient that is not finite, and a causal
model, whose loss is made inside of its vocabulary.

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
from ala_encoder.command import leave
from ala_encoder.errors import RunStopped
from tests.launched import causal, small

ZERO3 = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}
SHARED = ("vocabulary.weight", "bank.projections.0.q_proj.weight")


def sections(stage: int, **more: Any) -> dict[str, Any]:
    return {"engine": {"zero_stage": stage}, "deepspeed": ZERO3 if stage == 3 else {}, **more}


def run(folder: Path, stage: int) -> dict[str, Any]:
    """Train 20 steps whole, and again in two parts of 10; return what rank 0 saw."""
    whole = small.loop(small.settings(**sections(stage)), folder / f"whole{stage}", folder)
    outcome = small.fit(whole)
    assert outcome.finished
    assert outcome.state.step == 20
    found: dict[str, Any] = {"held": ranks.gather(held(whole.engine))}
    state = whole.engine.full_state()

    parts = folder / f"parts{stage}"
    first = small.settings(**sections(stage, train={"stop_after": 10}))
    assert not small.fit(small.loop(first, parts, folder)).finished
    second = small.loop(small.settings(**sections(stage)), parts, folder)
    small.fit(second)
    resumed = second.engine.full_state()
    if ranks.is_main():
        found["losses"] = small.losses(folder / f"whole{stage}")
        found["resumed"] = small.losses(parts)
        found["same_weights"] = all(torch.equal(state[name], resumed[name]) for name in state)
        found["names"] = sorted(state)
        found["shapes"] = {name: list(tensor.shape) for name, tensor in state.items()}
    return found


def held(engine: engines.Engine) -> dict[str, int]:
    """Return how many elements of the shared parameters this rank holds between two steps."""
    return {
        name: parameter.numel()
        for name, parameter in engine.module.named_parameters()
        if name.endswith(SHARED)
    }


def poison(folder: Path, stage: int, policy: str) -> dict[str, Any]:
    """Make rank 1's logits NaN at step 5 and tell how every rank ended and what it changed."""
    settings = small.settings(**sections(stage, train={"on_nonfinite": policy}))
    job = small.loop(settings, folder / f"{policy}{stage}", folder)
    step, skip = job.engine.step, job._skip
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}

    def is_now() -> bool:
        return job.state.step == 4 and job.state.skipped == 0

    def poisoned(module: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits * float("nan") if is_now() and ranks.rank() == 1 else logits

    def watched_step(rate: float) -> Any:
        if is_now():
            before.update(job.engine.full_state())
        return step(rate)

    def watched_skip(batch: Any, update: Any, loss_sum: float) -> None:
        after.update(job.engine.full_state())
        skip(batch, update, loss_sum)

    job.engine.module.register_forward_hook(poisoned)
    job.engine.step = watched_step  # type: ignore[method-assign,assignment]
    job._skip = watched_skip  # type: ignore[method-assign]
    try:
        small.fit(job)
        ended = f"finished at {job.state.step}, skipped {job.state.skipped}"
    except RunStopped as error:
        ended = str(error)
    same = bool(before) and all(torch.equal(before[name], after[name]) for name in before)
    return {
        "ended": ranks.gather(ended),
        "steps": ranks.gather(job.state.step),
        "same_weights": same,  # rank 0's, which has them all
    }


def offload(folder: Path) -> None:
    """ZeRO-2 with the optimizer offloaded and activations recomputed."""
    engine = {"zero_stage": 2, "offload_optimizer": "cpu", "activation_checkpointing": True}
    small.fit(small.loop(small.settings(engine=engine), folder / "offloaded", folder))


def causal_run(folder: Path, stage: int, tied: bool) -> dict[str, Any]:
    """Train a causal language model for six steps; return what rank 0 saw."""
    settings = causal.settings(**sections(stage, model={"tied_embeddings": tied}))
    job = causal.loop(settings, folder / f"causal{stage}{tied}", folder)
    small.fit(job)
    names = ("vocabulary.weight", "output.weight")
    parameters = job.engine.module.named_parameters()
    kept = {name: parameter.numel() for name, parameter in parameters if name in names}
    found = {"held": ranks.gather(kept), "scores": job.state.scores}
    if ranks.is_main():
        found["losses"] = small.losses(folder / f"causal{stage}{tied}")
    return found


def main(folder: Path) -> None:
    engines.start()
    found: dict[str, Any] = {"world_size": ranks.world_size(), "stages": {}, "poisoned": {}}
    for stage in (0, 1, 2, 3):
        found["stages"][stage] = run(folder, stage)
        found["poisoned"][f"stop{stage}"] = poison(folder, stage, "stop")
    for stage in (0, 2):
        found["poisoned"][f"skip{stage}"] = poison(folder, stage, "skip")
    offload(folder)
    for stage, tied in ((0, True), (3, True), (3, False)):
        found[f"causal{stage}{tied}"] = causal_run(folder, stage, tied)
    if ranks.is_main():
        found["offloaded"] = small.losses(folder / "offloaded")
        (folder / "zero.json").write_text(json.dumps(found), encoding="utf-8")
    engines.stop()


if __name__ == "__main__":
    main(Path(next(word for word in sys.argv[1:] if not word.startswith("--"))))
    leave(0)
