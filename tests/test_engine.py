"""The engine: exact gradients for any split, clipping, precision, DeepSpeed's configuration."""

from __future__ import annotations

import fcntl
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ala_encoder import engine as engines
from ala_encoder.batches import Examples, Plan, Position, StepBatch, pieces
from ala_encoder.engine import Engine, deepspeed_config, processes
from ala_encoder.errors import RunStopped, UserError
from ala_encoder.objectives import cross_entropy
from ala_encoder.optim import learning_rate
from ala_encoder.settings.experiment import PretrainRun
from ala_encoder.settings.train import BatchSplit, split_batch
from ala_encoder.training import Loop
from tests import referee
from tests.launched import small
from tests.referee import Ragged

pytestmark = pytest.mark.usefixtures("started")

SPLITS = [(8, 1), (4, 2), (2, 4), (1, 8), (3, 3)]
"""(micro-batch, accumulation) of a batch of 8; 3 x 3 leaves the last piece short."""


def run_of(micro: int, accumulation: int, batch_size: int = 8, **sections: Any) -> PretrainRun:
    train = {"batch_size": batch_size, "micro_batch_size": micro, "steps": 20}
    if micro * accumulation == batch_size:
        train["gradient_accumulation_steps"] = accumulation
    return small.settings(**{**sections, "train": {**train, **sections.get("train", {})}})


def rates(run: PretrainRun, steps: int) -> list[float]:
    return [learning_rate(step, run.optim, steps) for step in range(1, steps + 1)]


def engine_of(run: PretrainRun, home: Path) -> Engine:
    tokenizer, _ = small.data(home)
    return Engine(small.model(run, tokenizer.vocab_size), run, split_batch(run.train, 1))


def accumulate(
    engine: Engine, examples: Examples, ids: Any, split: BatchSplit
) -> dict[str, Tensor]:
    """Return the gradient an engine has after all micro-batches of one step, before the update."""
    count = int(examples.counts(ids, 0).sum())
    parts = pieces(ids, 0, 1, split)
    for number, piece in enumerate(parts, 1):
        inputs = examples.collate(piece, 0)
        loss, _ = cross_entropy(engine(inputs), inputs["labels"])
        engine.backward(loss, count, is_last=number == len(parts))
    named = engine.module.named_parameters()
    return {name: p.grad.clone() for name, p in named if p.grad is not None}


# ---- exact gradients


@pytest.mark.parametrize(("micro", "accumulation"), SPLITS)
def test_r25_twenty_steps_equal_a_hand_written_loop_over_big_batches(
    micro: int, accumulation: int, home: Path, tmp_path: Path
) -> None:
    run = run_of(micro, accumulation)
    job = small.loop(run, tmp_path, home)
    small.fit(job)
    expected, weights = referee.train(run, home, rates(run, 20))
    assert list(small.losses(tmp_path).values()) == pytest.approx(expected, rel=1e-6)
    # the keys' biases have gradient 0 in exact arithmetic, so AdamW scales up their rounding errors
    found = {name: w for name, w in job.engine.full_state().items() if "k_proj.bias" not in name}
    assert referee.distance(found, {name: weights[name] for name in found}) < 1e-5


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize(("micro", "accumulation"), [(1, 3), (2, 2), (3, 1), (1, 5)])
def test_d11_micro_batches_with_1_2_and_9_targets_weigh_by_their_targets(
    micro: int, accumulation: int, order: tuple[int, ...], home: Path
) -> None:
    run = small.settings(train={"batch_size": 3, "micro_batch_size": micro})
    split = BatchSplit(micro=micro, accumulation=accumulation)  # (1, 5) has two empty pieces
    tokenizer, _ = small.data(home)
    engine = Engine(small.model(run, tokenizer.vocab_size), run, split)
    examples, ids = Ragged((1, 2, 9), tokenizer.vocab_size), np.array(order)
    found = accumulate(engine, examples, ids, split)
    model = small.model(run, tokenizer.vocab_size)
    whole = referee.gradient(model, examples.collate(ids, 0))
    assert referee.distance(found, whole) < 1e-6
    means = [referee.gradient(model, examples.collate(ids[i : i + 1], 0)) for i in range(3)]
    mean_of_means = {n: torch.stack([m[n] for m in means]).mean(0) for n in whole}
    assert referee.distance(mean_of_means, whole) > 0.1  # what is not computed here


def test_d12_the_tail_of_ten_micro_batches_is_used_with_its_own_scale(
    home: Path, tmp_path: Path
) -> None:
    examples = Ragged((1, 2, 9, 4, 1, 1, 7, 3, 2, 5), 300)
    run = small.settings(
        train={"batch_size": 4, "micro_batch_size": 1, "gradient_accumulation_steps": 4,
               "epochs": 2, "steps": None},
    )  # fmt: skip
    seen: list[list[int]] = []
    job = small.loop(run, tmp_path, home, examples)
    step = job._step

    def watched(batch: StepBatch) -> None:
        seen.append(batch.ids.tolist())
        step(batch)

    job._step = watched  # type: ignore[method-assign]
    assert small.fit(job).state.step == 6
    assert [len(ids) for ids in seen] == [4, 4, 2, 4, 4, 2]
    for epoch in (seen[:3], seen[3:]):
        assert sorted(i for ids in epoch for i in ids) == list(range(10))
    expected, _ = referee.train(run, home, rates(run, 6), examples)
    assert list(small.losses(tmp_path).values()) == pytest.approx(expected, rel=1e-6)


def test_f06_the_reported_loss_is_the_true_mean_under_accumulation(
    home: Path, tmp_path: Path
) -> None:
    run = run_of(2, 4, train={"stop_after": 1})
    job = small.loop(run, tmp_path, home)
    data = job.goal.examples
    inputs = data.collate(Plan(run.seed, len(data), 8).epoch(0, 0)[:8], 0)
    with torch.no_grad():
        expected = float(referee.mean_loss(small.model(run, 300), inputs))
    small.fit(job)
    assert small.losses(tmp_path)[1] == pytest.approx(expected, rel=1e-6)


# ---- clipping


@pytest.mark.parametrize("clip", [0.0, 0.05, 100.0])
def test_clipping_equals_clip_grad_norm(clip: float, home: Path, tmp_path: Path) -> None:
    """A large eps makes AdamW's step feel the gradient's size, which it otherwise hides."""
    optim = {"clip_grad_norm": clip, "eps": 0.1, "learning_rate": 0.1, "warmup_steps": 0}
    run = run_of(4, 2, optim=optim, train={"steps": 5})
    job = small.loop(run, tmp_path, home)
    assert job.engine.config["gradient_clipping"] == clip
    assert job.engine._engine.gradient_clipping() == clip
    small.fit(job)
    expected, weights = referee.train(run, home, rates(run, 5))
    assert list(small.losses(tmp_path).values()) == pytest.approx(expected, rel=1e-6)
    assert referee.distance(job.engine.full_state(), weights) < 1e-6
    other = run.model_copy(update={"optim": run.optim.model_copy(update={"clip_grad_norm": 0.3})})
    moved = {n: w - small.model(run, 300).state_dict()[n] for n, w in weights.items()}
    apart = {n: w - small.model(run, 300).state_dict()[n]
             for n, w in referee.train(other, home, rates(run, 5))[1].items()}  # fmt: skip
    assert referee.distance(moved, apart) > 0.1  # the check above can tell clipped from not


def test_the_logged_norm_is_that_before_clipping(home: Path, tmp_path: Path) -> None:
    run = run_of(8, 1, optim={"clip_grad_norm": 0.01}, train={"stop_after": 1})
    job = small.loop(run, tmp_path, home)
    data = job.goal.examples
    inputs = data.collate(Plan(run.seed, len(data), 8).epoch(0, 0)[:8], 0)
    gradient = referee.gradient(small.model(run, 300), inputs)
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradient.values()))
    small.fit(job)
    assert norm > 0.1
    assert small.metrics(tmp_path, "grad_norm")[1] == pytest.approx(norm, rel=1e-5)


# ---- precision


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_bf16_run_exports_its_float32_masters(stage: int, home: Path, tmp_path: Path) -> None:
    engine = {"precision": "bf16", "zero_stage": stage}
    job = small.loop(small.settings(engine=engine, train={"steps": 3}), tmp_path, home)
    assert next(job.engine.module.parameters()).dtype == torch.bfloat16
    small.fit(job)
    state = job.engine.full_state()
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    finer = [name for name, w in state.items() if not torch.equal(w, w.bfloat16().float())]
    assert finer == list(state)
    plain = small.loop(small.settings(train={"steps": 3}), tmp_path / "float32", home)
    small.fit(plain)
    assert referee.distance(state, plain.engine.full_state()) < 0.1
    found = small.losses(tmp_path)
    assert list(found.values()) == pytest.approx(
        list(small.losses(tmp_path / "float32").values()), rel=0.02
    )


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_d14_a_gradient_that_is_not_finite_changes_no_weight(
    stage: int, precision: str, home: Path, tmp_path: Path
) -> None:
    run = small.settings(
        engine={"precision": precision, "zero_stage": stage}, train={"steps": 4, "log_every": 10}
    )
    job = small.loop(run, tmp_path, home)
    backward, before = job.engine.backward, {}

    def poisoned(loss: Tensor, count: int, *, is_last: bool) -> None:
        if job.state.step == 2 and is_last:
            before.update(job.engine.full_state())
            loss = loss * float("nan")
        backward(loss, count, is_last=is_last)

    job.engine.backward = poisoned  # type: ignore[method-assign,assignment]
    with pytest.raises(RunStopped, match="step 3: the gradient is not finite; no weight"):
        small.fit(job)
    after = job.engine.full_state()
    assert all(torch.equal(before[name], after[name]) for name in after)


@pytest.mark.parametrize("stage", [0, 1])
def test_skipped_steps_are_counted_and_three_in_a_row_are_the_most(
    stage: int, home: Path, tmp_path: Path
) -> None:
    run = small.settings(engine={"zero_stage": stage}, train={"steps": 6, "on_nonfinite": "skip"})

    def poisoned(bad: int) -> Loop:
        job = small.loop(run, tmp_path / str(bad), home)
        backward = job.engine.backward

        def wrapped(loss: Tensor, count: int, *, is_last: bool) -> None:
            poison = job.state.step == 2 and job.state.skipped < bad
            backward(loss * float("nan") if poison else loss, count, is_last=is_last)

        job.engine.backward = wrapped  # type: ignore[method-assign,assignment]
        return job

    state = small.fit(poisoned(3)).state
    assert (state.step, state.skipped, state.skipped_in_a_row) == (6, 3, 0)
    used = small.metrics(tmp_path / "3", "learning_rate")
    assert list(used.values()) == rates(run, 6)  # a skipped step takes no rate
    job = poisoned(4)
    with pytest.raises(RunStopped, match="step 3: the gradient is not finite"):
        small.fit(job)
    assert job.state.skipped == 4


def test_fp16_without_a_gpu_is_refused(home: Path, tmp_path: Path) -> None:
    if torch.cuda.is_available():
        assert (
            engines.choose_precision(small.settings(engine={"precision": "fp16"}).engine) == "fp16"
        )
        return
    with pytest.raises(UserError, match=r"engine.precision = 'fp16': needs CUDA"):
        engine_of(small.settings(engine={"precision": "fp16"}), home)


# ---- DeepSpeed's configuration


def test_the_configuration_keeps_the_users_keys_and_owns_its_own() -> None:
    run = small.settings(
        deepspeed={
            "zero_optimization": {"reduce_bucket_size": 1000, "overlap_comm": False},
            "wall_clock_breakdown": True,
            "fp16": {"initial_scale_power": 4},
        },
        engine={"zero_stage": 2, "offload_optimizer": "cpu"},
        optim={"clip_grad_norm": 0.0},
    )
    given = run.model_dump()
    config = deepspeed_config(run, BatchSplit(micro=4, accumulation=4), 2, "bf16")
    assert config == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "train_batch_size": 32,
        "gradient_clipping": 0.0,
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "reduce_bucket_size": 1000,
            "overlap_comm": False,
        },
        "zero_force_ds_cpu_optimizer": torch.cuda.is_available(),
        "wall_clock_breakdown": True,
        "fp16": {"initial_scale_power": 4, "enabled": False},
        "bf16": {"enabled": True},
    }
    assert run.model_dump() == given


@pytest.mark.parametrize("clip", [0.0, 1.0, 0.25])
def test_clipping_is_always_written_since_deepspeed_clips_when_it_is_not(clip: float) -> None:
    run = small.settings(optim={"clip_grad_norm": clip})
    config = deepspeed_config(run, BatchSplit(micro=1, accumulation=1), 1, "float32")
    assert config["gradient_clipping"] == clip


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"zero_optimization": {"nonsense": 1}}, "nonsense"),
        ({"zero_optimization": {"reduce_bucket_size": "many"}}, "reduce_bucket_size"),
        ({"fp16": {"nonsense": 1}}, "nonsense"),
        (
            {"zero_optimization": {"offload_optimizer": {"nonsense": 1}}},
            "offload_optimizer.nonsense",
        ),
        ({"communication_data_type": "fp8"}, "communication_data_type"),
    ],
)
def test_a_wrong_nested_deepspeed_key_is_one_line_that_names_it(
    keys: dict[str, Any], told: str, home: Path
) -> None:
    with pytest.raises(UserError) as caught:
        engine_of(small.settings(deepspeed=keys, engine={"zero_stage": 1}), home)
    text = str(caught.value)
    assert text.startswith("deepspeed: ")
    assert told in text
    assert "\n" not in text


def test_the_engine_leaves_the_settings_alone(home: Path) -> None:
    run = small.settings(deepspeed={"zero_optimization": {"overlap_comm": False}})
    given = run.model_dump()
    engine = engine_of(run, home)
    assert run.model_dump() == given
    assert engine.config["zero_optimization"] == {"overlap_comm": False, "stage": 0}


# ---- batches without targets


def test_d04_a_batch_without_targets_is_skipped_and_counted(home: Path, tmp_path: Path) -> None:
    examples = Ragged((0, 3, 0, 2, 0, 0), 300)
    run = small.settings(train={"batch_size": 1, "micro_batch_size": 1, "steps": 4, "log_every": 2})
    state = small.fit(small.loop(run, tmp_path, home, examples)).state
    order = [ids[0] for _, ids in zip(range(20), _walk(run, 6), strict=False)]
    useful = [place for place, i in enumerate(order, 1) if examples.targets[i] > 0]
    consumed = useful[3]
    assert (state.step, state.skipped) == (4, consumed - 4)
    assert consumed > 4
    assert state.position.epoch * 6 + state.position.index == consumed
    assert all(math.isfinite(loss) for loss in small.losses(tmp_path).values())


def _walk(run: PretrainRun, size: int) -> Any:
    plan = Plan(run.seed, size, run.train.batch_size)
    return (ids for _, ids in plan.walk(Position()))


# ---- builds of DeepSpeed's extension


def test_the_lock_of_a_killed_build_is_cleared_and_ours_is_kept(tmp_path: Path) -> None:
    stale = tmp_path / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    stale.parent.mkdir(parents=True)
    stale.touch()
    built = stale.with_name("deepspeed_shm_comm.so")
    built.write_bytes(b"built")
    with (tmp_path / "ala_build.lock").open("w") as ours:
        fcntl.flock(ours, fcntl.LOCK_EX)
        processes._clear_stale_locks(tmp_path)
    assert not stale.exists()
    assert built.read_bytes() == b"built"
    assert (tmp_path / "ala_build.lock").exists()


def test_one_plain_process_needs_no_build_and_no_launcher(home: Path) -> None:
    import deepspeed.ops

    assert "RANK" not in os.environ
    assert not deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"]
    assert torch.distributed.get_world_size() == 1
