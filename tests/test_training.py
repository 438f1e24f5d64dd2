"""The loop: what it logs, when it evaluates and saves, and that a resume changes nothing."""

from __future__ import annotations

import json
import math
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ala_encoder import runs
from ala_encoder.batches import Inputs, Plan, Position, StepBatch
from ala_encoder.engine import Engine
from ala_encoder.errors import UserError
from ala_encoder.files import read_json
from ala_encoder.goal import Goal
from ala_encoder.models import Classifier
from ala_encoder.optim import learning_rate
from ala_encoder.progress import Outcome
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.loader import read_plain
from ala_encoder.settings.train import split_batch
from ala_encoder.tracking import RunInfo, RunLog
from ala_encoder.training import Loop, fit, total_steps
from tests import referee
from tests.launched import small
from tests.referee import Ragged
from tests.test_export import card_of

pytestmark = pytest.mark.usefixtures("started")

GOLDEN = Path(__file__).with_name("golden_losses.json")
DROPOUT = {"model": {"dropout": 0.2}}


def train(folder: Path, home: Path, **sections: Any) -> Outcome:
    return small.fit(small.loop(small.settings(**sections), folder, home))


def weights(folder: Path, home: Path, **sections: Any) -> dict[str, torch.Tensor]:
    """Return the weights of the newest checkpoint of a run."""
    job = small.loop(small.settings(**sections), folder, home)
    with job.log:
        job.resume()
        assert job.state.step > 0
    return job.engine.full_state()


def scored(
    folder: Path, home: Path, scores: dict[int, float | None], mode: Any = "max", **sections: Any
) -> Outcome:
    """Fit with given scores: {step: score}; the best is kept by them."""
    job = small.loop(small.settings(**sections), folder, home)
    job.goal = replace(
        job.goal,
        evaluate=lambda _: {"eval_score": scores.get(job.state.step, 0.0)},
        best_metric="eval_score",
        best_mode=mode,
    )
    return small.fit(job)


class Graded:
    """Rows of tokens with a number each; every third has none, which is NaN."""

    def __init__(self, n: int) -> None:
        draw = np.random.default_rng(0)
        self.rows = draw.integers(5, 300, (n, 8))
        self.labels = draw.uniform(0, 5, n)
        self.labels[::3] = math.nan

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self, ids: np.ndarray, epoch: int) -> np.ndarray:
        return (~np.isnan(self.labels[ids])).astype(np.int64)

    def lengths(self) -> None:
        return None

    def num_tokens(self, ids: np.ndarray) -> int:
        return 8 * len(ids)

    def collate(self, ids: np.ndarray, epoch: int) -> Inputs:
        rows, labels = self.rows[ids], self.labels[ids]
        if len(ids) == 0:
            rows, labels = self.rows[:1], np.array([math.nan])
        return {"input_ids": torch.tensor(rows), "labels": torch.tensor(labels).float()}


# ---- what is trained


def test_floating_labels_train_on_their_mean_squared_error(tmp_path: Path) -> None:
    """Micro-batches of 2 in batches of 5 against whole batches, autograd and AdamW by hand."""
    run = small.settings(train={"steps": 6, "batch_size": 5, "micro_batch_size": 2})
    graded = Graded(15)

    def model() -> Classifier:
        torch.manual_seed(3)
        return Classifier(run.model, run.encoder, 300, 1)

    split = split_batch(run.train, 1)
    goal = Goal(graded, lambda _: {}, {})
    log = RunLog(tmp_path, RunInfo("graded", "test", {}), uri=None, enabled=False)
    job = Loop(Engine(model(), run, split), goal, run, split, tmp_path, log)
    small.fit(job)

    by_hand, moments, losses = model(), {}, {}
    walk = Plan(run.seed, 15, 5).walk(Position())
    for step, (_, ids) in enumerate(walk, 1):
        if step > 6:
            break
        by_hand.zero_grad()
        known = [i for i in ids.tolist() if not math.isnan(graded.labels[i])]
        found = by_hand(torch.tensor(graded.rows[known]))[:, 0]
        wanted = graded.labels[known].tolist()
        loss = sum((x - y) ** 2 for x, y in zip(found, wanted, strict=True)) / len(known)
        loss.backward()
        losses[step] = loss.item()
        referee.adamw(by_hand, run, step, learning_rate(step, run.optim, 6), moments)
    assert small.losses(tmp_path) == pytest.approx(losses, rel=1e-5)
    assert losses[1] > 1
    weights = {name: p.detach() for name, p in by_hand.named_parameters()}
    state = {name: tensor for name, tensor in job.engine.full_state().items() if name in weights}
    assert referee.distance(state, weights) < 1e-5


# ---- what is logged


def test_the_losses_are_those_on_record(home: Path, tmp_path: Path) -> None:
    """A refactoring leaves tests/golden_losses.json as it is; a change in numerics explains it."""
    train(tmp_path, home)
    assert list(small.losses(tmp_path).values()) == pytest.approx(
        json.loads(GOLDEN.read_text(encoding="utf-8"))["losses"], rel=1e-5
    )


def test_d06_the_logged_loss_is_the_mean_over_tokens_not_over_batches(
    home: Path, tmp_path: Path
) -> None:
    """Between two logged points lie batches with 1 and with 9 targets, and the weights move."""
    train_settings = {"batch_size": 1, "micro_batch_size": 1, "steps": 8}
    order = Plan(small.SETTINGS["seed"], 8, 1).epoch(0, 0)
    examples = Ragged([9 if place % 2 else 1 for place in order.argsort()], 300)
    for every in (1, 4):
        run = small.settings(train={**train_settings, "log_every": every})
        small.fit(small.loop(run, tmp_path / str(every), home, examples))
    single = small.losses(tmp_path / "1")
    counts = {step: examples.targets[order[step - 1]] for step in single}
    logged = small.losses(tmp_path / "4")
    assert sorted(logged) == [4, 8]
    for last in (4, 8):
        steps = range(last - 3, last + 1)
        assert {counts[step] for step in steps} == {1, 9}
        total = sum(single[step] * counts[step] for step in steps)
        expected = total / sum(counts[step] for step in steps)
        assert logged[last] == pytest.approx(expected, rel=1e-6)
        assert abs(logged[last] - sum(single[step] for step in steps) / 4) > 1e-3


def test_a_window_that_a_stop_cuts_is_logged_whole(home: Path, tmp_path: Path) -> None:
    train(tmp_path / "whole", home, train={"steps": 12, "log_every": 5})
    train(tmp_path / "parts", home, train={"steps": 12, "log_every": 5, "stop_after": 7})
    train(tmp_path / "parts", home, train={"steps": 12, "log_every": 5})
    whole = small.losses(tmp_path / "whole")
    assert list(whole) == [5, 10, 12]
    assert small.losses(tmp_path / "parts") == whole


def test_the_log_names_epoch_rate_norm_and_speed(home: Path, tmp_path: Path) -> None:
    job = small.loop(small.settings(), tmp_path, home)
    per_epoch = -(-len(job.goal.examples) // 15)
    small.fit(job)
    epochs = small.metrics(tmp_path, "epoch")
    assert epochs == {step: pytest.approx(step / per_epoch) for step in range(1, 21)}
    assert min(small.metrics(tmp_path, "train_tokens_per_second").values()) > 0
    assert all(0 < norm < 100 for norm in small.metrics(tmp_path, "grad_norm").values())


# ---- length


@pytest.mark.parametrize(
    ("train", "examples", "steps"),
    [
        ({"steps": 7}, 100, 7),
        ({"steps": None, "epochs": 3}, 30, 6),
        ({"steps": None, "epochs": 3}, 31, 9),
        ({"steps": None, "epochs": 1}, 1, 1),
        ({"steps": None, "epochs": 2}, 0, 0),
    ],
)
def test_epochs_count_their_short_last_batch(
    train: dict[str, Any], examples: int, steps: int
) -> None:
    run = small.settings(train=train, optim={"warmup_steps": 0})
    assert total_steps(run, Plan(run.seed, examples, run.train.batch_size)) == steps


def test_a_run_by_epochs_sees_every_example_that_often_and_evaluates_at_each_end(
    home: Path, tmp_path: Path
) -> None:
    seen: list[int] = []
    run = small.settings(
        train={"steps": None, "epochs": 2, "batch_size": 4, "micro_batch_size": 2},
    )
    job = small.loop(run, tmp_path, home, Ragged((1, 2, 3, 1, 2, 3, 1, 2, 3, 4), 300))
    step = job._step

    def watched(batch: StepBatch) -> None:
        seen.extend(batch.ids.tolist())
        step(batch)

    job._step = watched  # type: ignore[method-assign]
    small.fit(job)
    assert sorted(seen) == sorted(2 * list(range(10)))
    assert list(small.metrics(tmp_path, "eval_loss")) == [0, 3, 6]


# ---- resume


@pytest.mark.parametrize("stage", [0, 1])
def test_r29_a_resume_at_every_step_gives_the_same_rates_losses_and_weights(
    stage: int, home: Path, tmp_path: Path
) -> None:
    """With dropout, across the border of an epoch of 5 batches, to the last bit."""
    sections: dict[str, Any] = {
        **DROPOUT,
        "engine": {"zero_stage": stage},
        "train": {"steps": 8, "batch_size": 40, "micro_batch_size": 20, "save_every": 1,
                  "keep_checkpoints": 20, "eval_every": 3},
    }  # fmt: skip
    whole = tmp_path / "whole"
    train(whole, home, **sections)
    last = weights(whole, home, **sections)
    epochs = {read_json(path)["loop"]["position"]["epoch"]
              for path in whole.glob("checkpoints/*/state.json")}  # fmt: skip
    assert len(epochs) > 1
    run = small.settings(**sections)
    rates = {step: learning_rate(step, run.optim, 8) for step in range(1, 9)}
    for step in range(1, 8):
        parts = tmp_path / f"from{step}"
        for number in range(1, step + 1):
            name = f"checkpoints/step_{number:07d}"
            shutil.copytree(whole / name, parts / name)
        outcome = train(parts, home, **sections)
        assert (outcome.state.step, outcome.finished) == (8, True)
        later = range(step + 1, 9)
        expected = small.losses(whole)
        assert small.losses(parts) == {n: expected[n] for n in later}
        assert small.metrics(parts, "learning_rate") == {n: rates[n] for n in later}
        assert small.metrics(parts, "grad_norm") == {
            n: norm for n, norm in small.metrics(whole, "grad_norm").items() if n in later
        }
        found = weights(parts, home, **sections)
        assert all(torch.equal(found[name], last[name]) for name in last)


def test_stop_after_and_resume_are_bitwise_the_unbroken_run(home: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {**DROPOUT, "train": {"steps": 12}}
    train(tmp_path / "whole", home, **sections)
    for stop in (1, 5, 9):
        first = {**sections, "train": {"steps": 12, "stop_after": stop}}
        outcome = train(tmp_path / "parts", home, **first)
        assert (outcome.finished, outcome.state.step) == (False, stop)
    assert train(tmp_path / "parts", home, **sections).finished
    assert small.losses(tmp_path / "parts") == small.losses(tmp_path / "whole")
    one, other = (weights(tmp_path / name, home, **sections) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_run_started_again_trains_nothing(home: Path, tmp_path: Path) -> None:
    first = train(tmp_path, home, train={"steps": 4})
    again = train(tmp_path, home, train={"steps": 4})
    assert again == first
    assert list(small.losses(tmp_path)) == [1, 2, 3, 4]
    assert (tmp_path / "metrics.jsonl").read_text().count('"loss"') == 4


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"seed": 8}, "seed was 7, now 8"),
        ({"train": {"batch_size": 12}}, "train.batch_size was 15, now 12"),
        ({"model": {"ffn_dim": 65}}, "model was"),
        ({"model": {"dropout": 0.1}}, "model was"),
        ({"encoder": {"biases": []}}, "encoder was"),
        ({"data": {"length": 30}}, "data.length was 32, now 30"),
        ({"engine": {"zero_stage": 1}}, "engine.zero_stage was 0, now 1"),
        ({"engine": {"precision": "bf16"}}, "engine.precision was 'float32', now 'bf16'"),
    ],
)
def test_a_resume_of_another_run_is_refused_by_name(
    sections: dict[str, Any], named: str, home: Path, tmp_path: Path
) -> None:
    train(tmp_path, home, train={"stop_after": 2})
    with pytest.raises(UserError) as caught:
        train(tmp_path, home, **sections)
    text = str(caught.value)
    assert named in text
    assert "train.from_scratch=true" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("stage", "optim"),
    [
        (0, {"learning_rate": 1e-2}),
        (0, {"weight_decay": 0.5}),
        (0, {"betas": [0.5, 0.6]}),
        (0, {"eps": 1e-2}),
        (1, {"learning_rate": 1e-2}),
        (1, {"weight_decay": 0.5}),
        (2, {"betas": [0.5, 0.6]}),
        (3, {"weight_decay": 0.5}),
    ],
)
def test_a_resume_with_another_optimizer_setting_goes_on_with_it(
    stage: int, optim: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    """Its next step is that of the new setting, not the one that DeepSpeed's file remembers."""
    engine = {"zero_stage": stage}
    train(tmp_path / "old", home, engine=engine, train={"steps": 8, "stop_after": 4})
    ended = {}
    for name, changes in (("same", {}), ("changed", optim)):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "old" / "checkpoints", folder / "checkpoints")
        sections = {"engine": engine, "optim": changes, "train": {"steps": 8, "stop_after": 5}}
        assert train(folder, home, **sections).state.step == 5
        ended[name] = weights(folder, home, **sections)
    start = weights(tmp_path / "old", home, engine=engine)
    moved = {name: {n: w[n] - start[n] for n in start} for name, w in ended.items()}
    assert referee.distance(moved["changed"], moved["same"]) > 1e-3


# ---- evaluation and the best weights


def test_evaluation_does_not_disturb_training(home: Path, tmp_path: Path) -> None:
    for every in (0, 1, 3):
        train(tmp_path / str(every), home, **DROPOUT, train={"steps": 9, "eval_every": every})
    expected = small.losses(tmp_path / "0")
    assert small.losses(tmp_path / "1") == small.losses(tmp_path / "3") == expected
    assert list(small.metrics(tmp_path / "0", "eval_loss")) == [0, 9]
    assert list(small.metrics(tmp_path / "1", "eval_loss")) == list(range(10))
    assert list(small.metrics(tmp_path / "3", "eval_loss")) == [0, 3, 6, 9]
    one, other = (small.metrics(tmp_path / name, "eval_loss") for name in ("1", "3"))
    assert {step: one[step] for step in other} == other


@pytest.mark.parametrize(
    ("mode", "scores", "best"),
    [
        ("max", {1: 0.1, 2: 0.5, 3: 0.3, 4: 0.5}, 2),
        ("min", {1: 0.4, 2: 0.5, 3: 0.3, 4: 0.3}, 3),
        ("max", {1: math.nan, 2: 0.1, 3: None, 4: math.nan}, 2),
        ("min", {1: None, 2: math.nan, 3: 0.7, 4: math.inf}, 3),
        ("max", {1: None, 2: math.nan, 3: None, 4: None}, None),
    ],
)
def test_a14_the_best_weights_are_kept_and_what_is_no_score_is_never_best(
    mode: str, scores: dict[int, float | None], best: int | None, home: Path, tmp_path: Path
) -> None:
    sections = {"train": {"steps": 4, "eval_every": 1, "save_every": 1, "keep_checkpoints": 9}}
    outcome = scored(tmp_path, home, scores, mode, **sections)
    assert outcome.state.best_step == best
    if best is None:
        assert outcome.best_weights is None
        return
    assert outcome.state.best_score == scores[best]
    assert outcome.best_weights is not None
    kept = load_file(outcome.best_weights)
    for later in range(best + 1, 5):
        shutil.rmtree(tmp_path / "checkpoints" / f"step_{later:07d}")
    then = weights(tmp_path, home, **sections)
    assert all(torch.equal(kept[name], then[name]) for name in then)


def test_the_untrained_model_is_scored_but_never_best(home: Path, tmp_path: Path) -> None:
    outcome = scored(tmp_path, home, {0: 9.0, 4: 0.5}, train={"steps": 4, "eval_every": 2})
    assert outcome.state.best_step == 4
    assert small.metrics(tmp_path, "eval_score") == {0: 9.0, 2: 0.0, 4: 0.5}


def test_best_weights_of_a_lost_stretch_do_not_stand_in_for_those_of_the_checkpoint(
    home: Path, tmp_path: Path
) -> None:
    """Killed after step 4, which was best until then; the resume from step 2 goes otherwise."""
    sections: dict[str, Any] = {
        "train": {"steps": 6, "eval_every": 1, "save_every": 2, "keep_checkpoints": 1,
                  "stop_after": 4},
    }  # fmt: skip
    scored(tmp_path, home, {2: 0.5, 4: 0.9}, **sections)
    shutil.rmtree(tmp_path / "checkpoints")
    again = {"train": {**sections["train"], "stop_after": 2}}
    shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
    scored(tmp_path / "fresh", home, {2: 0.5}, **again)
    expected = load_file(tmp_path / "fresh" / "best_0000002.safetensors")
    shutil.copytree(tmp_path / "fresh" / "checkpoints", tmp_path / "checkpoints")
    shutil.copy(tmp_path / "fresh" / "best_0000002.safetensors", tmp_path)
    final = {"train": {**sections["train"], "stop_after": 6}, "optim": {"learning_rate": 1e-4}}
    outcome = scored(tmp_path, home, {3: 0.1, 4: 0.2}, **final)
    assert outcome.state.best_step == 2
    assert outcome.best_weights is not None
    found = load_file(outcome.best_weights)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert [path.name for path in tmp_path.glob("best_*")] == ["best_0000002.safetensors"]


def test_a_final_evaluation_after_the_last_save_keeps_its_weights(
    home: Path, tmp_path: Path
) -> None:
    outcome = scored(tmp_path, home, {4: 0.9}, train={"steps": 4, "save_every": 2})
    assert outcome.best_weights is not None
    assert outcome.best_weights.is_file()
    again = scored(tmp_path, home, {4: 0.9}, train={"steps": 4, "save_every": 2})
    assert again.best_weights == outcome.best_weights


def test_a_score_that_is_not_finite_does_not_break_the_checkpoint(
    home: Path, tmp_path: Path
) -> None:
    sections = {"train": {"steps": 3, "save_every": 1, "eval_every": 1}}
    scored(tmp_path, home, {2: math.nan, 3: math.inf}, **sections)
    state = read_json(tmp_path / "checkpoints" / "step_0000002" / "state.json")
    assert state["loop"]["scores"] == {"eval_score": None}


# ---- the run folder


def make_folder(folder: Path, run: TrainingRun) -> None:
    runs._make_folder(folder, run)


def test_from_scratch_keeps_the_earlier_run_aside(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(folder, home, train={"steps": 4})
    log = (folder / "metrics.jsonl").read_bytes()
    scratch: dict[str, Any] = {"train": {"steps": 3, "from_scratch": True}}
    for number in (1, 2):
        make_folder(folder, small.settings(**scratch))
        assert (folder.with_name(f"run.before-{number}") / "metrics.jsonl").exists()
        outcome = train(folder, home, **scratch)
        assert outcome.state.step == 3
        assert list(small.losses(folder)) == [1, 2, 3]
    assert (tmp_path / "run.before-1" / "metrics.jsonl").read_bytes() == log
    assert sorted(path.name for path in tmp_path.glob("run*")) == [
        "run", "run.before-1", "run.before-2"
    ]  # fmt: skip


def test_a_job_begins_from_scratch_once_and_goes_on_after_a_requeue(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    train(folder, home, train={"steps": 4})  # another job's
    run = small.settings(train={"steps": 4, "from_scratch": True})
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    for restart in (1, 2):  # its very first start was put back before it got here
        monkeypatch.setenv("SLURM_RESTART_COUNT", str(restart))
        make_folder(folder, run)
        train(folder, home, train={"steps": 4, "from_scratch": True, "stop_after": restart})
    assert [path.name for path in tmp_path.glob("run.before-*")] == ["run.before-1"]
    assert list(small.losses(folder)) == [1, 2]
    monkeypatch.setenv("SLURM_JOB_ID", "79")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    make_folder(folder, run)
    assert not list(folder.glob("checkpoints/*"))


def test_without_from_scratch_the_folder_stays(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    make_folder(folder, small.settings())
    assert (folder / "checkpoints").is_dir()
    assert read_json(folder / "environment.json")["world_size"] == 1
    assert (folder / "settings.yaml").is_file()


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({}, None),
        ({"train": {"log_every": 5, "keep_checkpoints": 7}}, None),
        ({"optim": {"learning_rate": 1e-3}}, "optim.learning_rate = 0.003, now 0.001"),
        ({"train": {"steps": 30}}, "train.steps = 20, now 30"),
        ({"optim": {"learning_rate": 1e-3}, "train": {"from_scratch": True}}, None),
    ],
)
def test_a_finished_run_is_not_taken_for_one_with_other_settings(
    sections: dict[str, Any], told: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    make_folder(folder, small.settings())
    runs._refuse_relabelling(folder, small.settings(optim={"learning_rate": 1e-3}))  # unfinished
    (folder / "export").mkdir()
    (folder / "export" / "export.json").write_text("{}")
    if told is None:
        runs._refuse_relabelling(folder, small.settings(**sections))
        return
    with pytest.raises(UserError) as caught:
        runs._refuse_relabelling(folder, small.settings(**sections))
    assert told in str(caught.value)


@pytest.mark.parametrize("requeues", [0, 1])
def test_g16_a_run_that_another_process_is_at_is_left_alone_or_waited_for(
    requeues: int, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.engines, "stop", lambda: None)
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(requeues))
    run = small.settings(output=str(tmp_path), tracking={"enabled": False})
    card = card_of(run, small.data(home)[0])
    folder = tmp_path / card.run_name
    last = RunLog(folder, RunInfo("last", "e", {}), uri=None, enabled=False)  # the start before
    before = sorted(folder.iterdir())
    ending = threading.Timer(1.5, last.close, ["KILLED"])
    ending.start()
    if requeues:
        with runs.open_run(run, card, "mlm") as opened:
            assert opened.folder == folder and not ending.is_alive()
    else:
        told = pytest.raises(UserError, match="another process is training this run")
        with told, runs.open_run(run, card, "mlm"):
            pass
        assert sorted(folder.iterdir()) == before
    ending.join()


def test_a_warmup_longer_than_the_epochs_is_refused(home: Path, tmp_path: Path) -> None:
    run = small.settings(
        train={"steps": None, "epochs": 1, "batch_size": 3, "micro_batch_size": 3},
        optim={"warmup_steps": 4},
    )
    job = small.loop(run, tmp_path, home, Ragged((1,) * 9, 300))
    with job.log, pytest.raises(UserError, match="warmup_steps = 4: the run has only 3 steps"):
        fit(job.engine, job.goal, run, job.split, tmp_path, job.log)


def test_every_start_leaves_its_settings_and_environment(tmp_path: Path) -> None:
    """A resume may have other settings: those that came before must not be lost."""
    folder = tmp_path / "run"
    for rate in (1e-3, 2e-3, 3e-3):
        runs._make_folder(folder, small.settings(optim={"learning_rate": rate}))
    rates = {
        name: read_plain(folder / name)["optim"]["learning_rate"]
        for name in ("settings-1.yaml", "settings-2.yaml", "settings.yaml")
    }
    assert list(rates.values()) == [1e-3, 2e-3, 3e-3]
    assert len(list(folder.glob("environment*.json"))) == 3
