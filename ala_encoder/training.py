"""The one training loop, for every task.

For: batches → exact gradients → update → log, evaluate, save, by rules that all ranks follow alike
(from the step, or from numbers summed over ranks). Not for: what the examples are, where DeepSpeed
comes in (`engine`), folders of checkpoints (`checkpoint`).
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from ala_encoder import averaging, checkpoint, ranks, signals
from ala_encoder.batches import (
    BatchPlan,
    Examples,
    Plan,
    StepBatch,
    TokenPlan,
    step_batches,
)
from ala_encoder.engine import Engine, Update
from ala_encoder.errors import RunStopped, UserError, reason
from ala_encoder.files import read_json, write_aside
from ala_encoder.goal import Goal
from ala_encoder.lead import Lead
from ala_encoder.metrics import is_better
from ala_encoder.optim import learning_rate
from ala_encoder.progress import Outcome, State, Window
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.train import BatchSplit, TokenTrainSettings, TrainSettings
from ala_encoder.tracking import NullLog, RunLog

_SKIPS_IN_A_ROW = 3
_RESCALES_IN_A_ROW = 32


def plan_of(run: TrainingRun, examples: Examples) -> BatchPlan:
    """Return the plan by which a run goes through its examples."""
    train, lengths = run.train, examples.lengths()
    if isinstance(train, TokenTrainSettings):
        assert lengths is not None
        return TokenPlan(run.seed, lengths, train.batch_tokens)
    assert isinstance(train, TrainSettings)
    return Plan(run.seed, len(examples), train.batch_size, lengths)


def total_steps(run: TrainingRun, plan: BatchPlan) -> int:
    """Return how many updates the whole run makes."""
    if run.train.steps is not None:
        return run.train.steps
    assert run.train.epochs is not None
    return run.train.epochs * plan.batches_per_epoch


class Loop:
    """One run of `fit`; use `fit`."""

    def __init__(
        self,
        engine: Engine,
        goal: Goal,
        run: TrainingRun,
        split: BatchSplit,
        folder: Path,
        log: RunLog | NullLog,
    ) -> None:
        self.engine, self.goal, self.run, self.split = engine, goal, run, split
        self.folder, self.log, self.train = folder, log, run.train
        self.checkpoints = folder / "checkpoints"
        self.plan = plan_of(run, goal.examples)
        self.total = total_steps(run, self.plan)
        self.state = State()
        self.window = Window()
        self.lead = Lead()
        self._drawn: dict[str, Tensor] | None = None
        """The generators as a step found them, until it has ended."""

    # -- the loop --------------------------------------------------------------------------

    def fit(self) -> Outcome:
        """Train from the newest checkpoint, or from the start, to the last step.

        Raises signals.Asked, on all ranks and after a save, where a signal ends it.
        """
        self.resume()
        try:
            return self._fit()
        except signals.Asked:
            if self._drawn is not None:  # in the middle of a step, which a resume begins again
                self.engine.set_random_state(self._drawn)
            self.save()
            raise

    def _fit(self) -> Outcome:
        self._at_step()  # what a signal may have cut short
        stop = min(self.total, self.train.stop_after or self.total)
        with self._bar(stop) as bar:
            for batch in self._batches():
                if self.state.step >= stop or self._is_stale():
                    break
                ranks.check_signals()
                self._step(batch)
                bar.update(self.state.step - bar.n)
                if self.window.shown:
                    bar.set_postfix_str(self.window.shown, refresh=False)
        if self._is_stale():
            ranks.say(f"stopped early: nothing better since step {self.state.best_step or 0}")
        finished = self.state.step >= self.total or self._is_stale()
        self.evaluate_if(finished)
        if finished:
            self._keep_weights()
        self.save()
        best = self.state.best_step
        return Outcome(self.state, finished, None if best is None else self._best_path(best))

    def _is_stale(self) -> bool:
        """Tell whether the validation of this step ends the run: nothing better for too long."""
        patience = self.train.patience
        if patience is None or self.state.evaluated_step != self.state.step:
            return False
        return self.state.step - (self.state.best_step or 0) >= patience

    def _step(self, batch: StepBatch) -> None:
        began = time.perf_counter()
        loss_sum, update = self._train(batch) if batch.count else (0.0, None)
        self.lead.stepped(time.perf_counter() - began)
        self.state.position = self.plan.after(batch.position)
        if update is None or not update.applied:
            self._skip(batch, update, loss_sum)
        else:
            self.state.step += 1
            self.state.skipped_in_a_row = 0
            self.window.add(loss_sum, batch)
            if self.state.step % self.train.log_every == 0 or self.state.step == self.total:
                self._log(update)
        self._at_step()
        if self.lead.is_due():
            self.save()
            self.lead.check()

    def _at_step(self) -> None:
        """Evaluate and save where this step is one of those that do; again, it changes nothing."""
        step, every, save_every = self.state.step, self.train.eval_every, self.train.save_every
        epoch_ended = self.state.position.index == 0 and self.train.epochs is not None
        self.evaluate_if(step == 0 or (step % every == 0 if every else epoch_ended))
        if save_every and step and step % save_every == 0:
            self._keep_weights()
            self.save()
            self.lead.check()

    def _train(self, batch: StepBatch) -> tuple[float, Update]:
        """Run forward and backward on every micro-batch, then update; returns this rank's loss."""
        self.engine.train()
        losses: list[Tensor] = []
        self._drawn = self.engine.random_state()
        for number, inputs in enumerate(batch.micro_batches, 1):
            if number > 1:
                ranks.check_signals()
            loss, reported = self.goal.losses(self.engine, inputs)
            is_last = number == len(batch.micro_batches)
            self.engine.backward(loss, batch.count, is_last=is_last)
            losses.append(reported.detach())
        update = self.engine.step(learning_rate(self.state.step + 1, self.run.optim, self.total))
        self._drawn = None
        return float(sum(losses)), update

    def _skip(self, batch: StepBatch, update: Update | None, loss_sum: float) -> None:
        """Count a batch that changed nothing; stop when the policy says so. Same on all ranks."""
        self.state.skipped += 1
        if update is None:
            return  # no target anywhere in the batch
        self.state.skipped_in_a_row += 1
        self.log.metrics({"skipped_steps": self.state.skipped}, self.state.step + 1)
        losses = ranks.gather(loss_sum)
        # fp16 finds its scale by overflowing; only a loss that is itself finite can be helped so.
        rescales = self.engine.precision == "fp16" and all(map(math.isfinite, losses))
        most = _RESCALES_IN_A_ROW if rescales else _SKIPS_IN_A_ROW
        may_skip = rescales or self.train.on_nonfinite == "skip"
        if not may_skip or self.state.skipped_in_a_row > most:
            bad = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
            ids = ", ".join(map(str, batch.ids[:20])) + (" …" if len(batch.ids) > 20 else "")
            raise RunStopped(
                f"step {self.state.step + 1}: the gradient is not finite; no weight was changed. "
                f"Loss not finite on ranks {bad or 'none'}; examples of the batch: {ids}"
            )

    # -- around it ---------------------------------------------------------------------------

    def resume(self) -> None:
        """Take up the newest checkpoint, if there is one.

        Raises UserError when the ranks do not hold the same data, tokenizer and settings: they
        would follow different plans.
        """
        known = ranks.gather(json.dumps(dict(self.goal.identity), sort_keys=True, default=str))
        if len(set(known)) > 1:
            odd = next(rank for rank, identity in enumerate(known) if identity != known[0])
            raise UserError(f"rank {odd} has other data, tokenizer or settings than rank 0")
        newest = checkpoint.newest(self.checkpoints)
        if newest is None:
            return
        saved = read_json(newest / "state.json")
        checkpoint.check_resumable(saved, dict(self.goal.identity), newest)
        try:
            self.state = State.from_json(saved["loop"])
            loss_sum, count = saved["windows"][ranks.rank()]
            self.window.loss_sum, self.window.count = float(loss_sum), int(count)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise UserError(
                f"{newest / 'state.json'}: holds no state of a run ({reason(error)}); delete its "
                "checkpoint to resume from the one before"
            ) from None
        checkpoint.load(self.engine, newest)
        if ranks.is_main():
            print(f"resuming {newest} at step {self.state.step}", file=sys.stderr, flush=True)

    def save(self) -> None:
        """Write a checkpoint and delete the oldest ones."""
        began = time.perf_counter()
        state = {
            "loop": self.state.as_json(),
            "identity": dict(self.goal.identity),
            "windows": ranks.gather((self.window.loss_sum, self.window.count)),
        }
        checkpoint.save(self.engine, self.checkpoints, self.state.step, state)
        ranks.on_main(self._rotate)
        seconds = time.perf_counter() - began
        self.lead.saved(seconds)
        self.window.leave_out(seconds)

    def _keep_weights(self) -> None:
        """Keep the weights of this step where the export is to be a mean; on all ranks."""
        most, step = self.run.train.average_checkpoints, self.state.step
        if most is None:
            return
        state, folder = self.engine.full_state(), self.folder / "weights"
        ranks.on_main(lambda: averaging.keep(folder, step, state, most))

    def evaluate_if(self, wanted: bool) -> None:
        """Evaluate once for this step, log the scores, and keep the weights if they are best."""
        if not wanted or self.state.evaluated_step == self.state.step:
            return
        began = time.perf_counter()
        self.engine.eval()
        evaluate = self.goal.evaluate
        if self.state.step == 0 and self.goal.evaluate_start is not None:
            evaluate = self.goal.evaluate_start
        scores = dict(evaluate(self.engine))
        self.state.scores, self.state.evaluated_step = scores, self.state.step
        self.log.metrics({k: v for k, v in scores.items() if v is not None}, self.state.step)
        score, loss = scores.get(self.goal.best_metric or ""), scores.get(self.goal.best_loss)
        is_best = is_better(score, self.state.best_score, self.goal.best_mode)
        if score is not None and score == self.state.best_score:  # as BLEU, which is 0 for long
            is_best = is_better(loss, self.state.best_loss, "min")
        if self.state.step and is_best:
            self.state.best_score, self.state.best_step = score, self.state.step
            self.state.best_loss = loss
            weights, path = self.engine.full_state(), self._best_path(self.state.step)
            ranks.on_main(lambda: write_aside(path, lambda aside: save_file(weights, aside)))
        self.window.leave_out(time.perf_counter() - began)

    def _best_path(self, step: int) -> Path:
        return self.folder / f"best_{step:07d}.safetensors"

    def _rotate(self) -> None:
        """Delete old checkpoints, and best weights to which no checkpoint could go back."""
        checkpoint.rotate(self.checkpoints, self.train.keep_checkpoints)
        kept = {self.state.best_step}
        for path in checkpoint.steps(self.checkpoints).values():
            # a damaged one is never resumed
            with contextlib.suppress(UserError, KeyError, TypeError):
                kept.add(read_json(path / "state.json")["loop"]["best_step"])
        for path in self.folder.glob("best_*.safetensors"):
            if all(step is None or path != self._best_path(step) for step in kept):
                path.unlink()

    def _log(self, update: Update) -> None:
        rate = learning_rate(self.state.step, self.run.optim, self.total)
        values = self.window.close(rate)
        values["epoch"] = self.state.position.epoch + (
            self.state.position.index / self.plan.batches_per_epoch
        )
        values["grad_norm"] = update.grad_norm
        if self.engine.precision == "fp16":
            values["loss_scale"] = update.loss_scale
        self.log.metrics(values, self.state.step)

    def _batches(self) -> Any:
        return step_batches(
            self.goal.examples,
            self.plan,
            self.state.position,
            rank=ranks.rank(),
            world_size=ranks.world_size(),
            split=self.split,
            num_workers=self.train.num_workers,
        )

    def _bar(self, stop: int) -> tqdm[Any]:
        seconds = 0.2 if sys.stderr.isatty() else 15.0  # a log file is not a screen
        return tqdm(
            total=stop,
            initial=self.state.step,
            unit="step",
            desc=self.folder.name,
            disable=not ranks.is_main(),
            mininterval=seconds,
            dynamic_ncols=True,
        )


def fit(
    engine: Engine,
    goal: Goal,
    run: TrainingRun,
    split: BatchSplit,
    folder: Path,
    log: RunLog | NullLog,
) -> Outcome:
    """Train, resuming from `folder`; every rank calls it and gets the same outcome.

    Raises RunStopped when a gradient is not finite and the policy is to stop.
    """
    total = total_steps(run, plan_of(run, goal.examples))
    if total < 1:
        raise UserError("train: no step to make, there is no example")
    if run.optim.warmup_steps > total:
        raise UserError(
            f"optim.warmup_steps = {run.optim.warmup_steps}: the run has only {total} steps"
        )
    return Loop(engine, goal, run, split, folder, log).fit()
