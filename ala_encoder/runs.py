"""A run's folder and its log, from the first line to the export.

For: what pretraining and fine-tuning share around the loop: `settings.yaml`, `environment.json`,
the MLflow parameters under the same names for every family, the DeepSpeed configuration, the
export and the final scores. Not for: the loop (`training`).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ala_encoder import (
    averaging,
    cards,
    checkpoint,
    export,
    ranks,
    relabelling,
    reporting,
    signals,
    slurm,
)
from ala_encoder import engine as engines
from ala_encoder.attention import Attention, compile_long_runs
from ala_encoder.engine import Engine
from ala_encoder.environment import environment
from ala_encoder.errors import RunSaved, RunStopped, UserError
from ala_encoder.evaluation import Plain, plain
from ala_encoder.files import locked, read_json, write_aside, write_json, write_text
from ala_encoder.goal import Goal, Scores
from ala_encoder.manifests import Manifest
from ala_encoder.parallel_manifests import ParallelManifest
from ala_encoder.progress import Outcome
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.experiment import TrainingRun
from ala_encoder.settings.loader import dump, flatten
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.settings.train import split_batch
from ala_encoder.tokenizer import Tokenizer
from ala_encoder.tracking import (
    NullLog,
    RunInfo,
    RunLog,
    checked_uri,
    is_open,
    null_log,
    public_uri,
)
from ala_encoder.training import fit, plan_of, total_steps


@dataclass(frozen=True)
class Run:
    """An open run: its folder and its log (the null log on all ranks but the first)."""

    folder: Path
    log: RunLog | NullLog


@contextmanager
def open_run(
    settings: TrainingRun, card: cards.AnyCard, task: str, tags: Mapping[str, str] | None = None
) -> Iterator[Run]:
    """Start the ranks, make the run folder and open the log; close it with the right status.

    The card's parameter counts are logged as params/NAME.
    """
    folder, job = settings.output / card.run_name, os.environ.get("SLURM_JOB_ID")
    log: RunLog | NullLog = null_log()

    @locked(folder, ranks.say)  # until the log is open, by which others see that the run is taken
    def prepare() -> None:
        nonlocal log
        _wait_for_last(folder)
        _refuse_relabelling(folder, settings)
        _make_folder(folder, settings)
        named = {
            "variant": card.variant,
            "seed": card.seed,
            "model_family": card.family,
            "task": task,
        }
        params = {f"params/{key}": value for key, value in card.parameters.items()}
        info = RunInfo(
            run_name=card.run_name,
            experiment=settings.tracking.experiment,
            params={**flatten(settings.model_dump(mode="json")), **named, **params},
            tags={**(tags or {}), **({"slurm_job": job} if job else {})},
            parent_run_id=os.environ.get("ALA_PARENT_RUN"),
        )
        log = RunLog(
            folder,
            info,
            uri=settings.tracking.uri,
            enabled=settings.tracking.enabled,
            system_metrics=settings.tracking.system_metrics,
            say=ranks.say,
        )
        log.artifact(folder / "settings.yaml")
        log.artifact(folder / "environment.json")

    engines.start()
    try:
        ranks.on_main(prepare)
        tracking = settings.tracking
        store = public_uri(checked_uri(tracking.uri)) if tracking.enabled else "off"
        ranks.say(f"run folder {folder}, MLflow {store}")
        if job and store.startswith("sqlite"):
            ranks.say("note: sqlite is for one machine; jobs of several nodes need a server")
        torch.manual_seed(settings.seed)
        with log:
            try:
                ranks.check_signals()
                yield Run(folder, log)
            except signals.Asked as asked:
                _leave(folder, log, asked)
    finally:
        engines.stop()


def _leave(folder: Path, log: RunLog | NullLog, asked: signals.Asked) -> NoReturn:
    """End a run that was asked to leave, on all ranks; raises RunSaved.

    Raises RunStopped where the start before it was asked to leave at the same step: requeued once
    more, the run would only come here again. Only the third start does where the second was asked
    at once: Slurm may bring a signal that was meant for the first.
    """
    newest = checkpoint.newest(folder / "checkpoints")

    def note() -> bool:
        log.close("KILLED")
        path = folder / _LEFT
        told = read_json(path) if path.is_file() else {}
        left = [*told.get("checkpoints", []), None if newest is None else newest.name]
        times = [*told.get("times", []), time.time()]
        write_json(path, {"checkpoints": left, "times": times})
        is_late = len(times) > 1 and times[-1] - times[-2] < _LATE_SECONDS
        same = left[-3:] if is_late else left[-2:]
        return len(same) == (3 if is_late else 2) and len(set(same)) == 1

    # No rank ends before all is written: a launcher kills the others when one has ended.
    is_stuck = ranks.on_main(note)
    again = "start the same command again to go on"
    if is_stuck:
        raise RunStopped(
            f"{asked}; all is saved, but nothing was done since the start before was asked to "
            f"leave too: give it more time, then {again}"
        )
    raise RunSaved(f"{asked}; {again}")


_LEFT = "left.json"
"""The newest checkpoint at each time that signals ended the run, and the time."""
_LATE_SECONDS = 60.0
"""Within them of an end a signal may still be one of those that led to it."""

_LAST_SECONDS = 120.0
"""What a start before this one is given to end, where Slurm has put the job back."""


def _wait_for_last(folder: Path) -> None:
    """Raise UserError while another process is at this run.

    A node that Slurm has given up may still be at the start before; this one waits for its end.
    """
    until = time.monotonic() + (_LAST_SECONDS if slurm.requeues() else 0.0)
    while is_open(folder):
        if time.monotonic() >= until:
            raise UserError(f"{folder}: another process is training this run")
        time.sleep(1.0)


def _refuse_relabelling(folder: Path, settings: TrainingRun) -> None:
    """Raise UserError when a finished run is started again with other settings.

    It would find nothing left to train, and old weights would carry the new settings' name.
    """
    if _begins_anew(folder, settings) or not (folder / "export" / "export.json").exists():
        return
    if changed := relabelling.difference(folder, settings):
        raise UserError(changed)


def _begins_anew(folder: Path, settings: TrainingRun) -> bool:
    """Tell whether a run that is there makes way; one that this job began does not."""
    if not settings.train.from_scratch or not folder.exists():
        return False
    path = folder / "environment.json"
    if not slurm.requeues() or not path.exists():
        return True
    return bool(read_json(path).get("slurm_job") != os.environ.get("SLURM_JOB_ID"))


def _make_folder(folder: Path, settings: TrainingRun) -> None:
    if _begins_anew(folder, settings):
        number = 1
        while (kept := folder.with_name(f"{folder.name}.before-{number}")).exists():
            number += 1
        os.replace(folder, kept)
        print(f"the earlier run is kept as {kept}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    # What earlier starts were given stays known: a result may stem from several.
    number = 1
    while (folder / f"environment-{number}.json").exists():
        number += 1
    for name in ("settings.yaml", "environment.json"):
        if (folder / name).exists():
            stem, suffix = name.split(".")
            os.replace(folder / name, folder / f"{stem}-{number}.{suffix}")
    dump(settings, folder / "settings.yaml")
    write_json(folder / "environment.json", environment())


_TRAIN_KEYS = ("batch_size", "batch_tokens", "max_length", "label_smoothing")
_DATA_KEYS = ("length", "mask_probability", "mask_selection", "spans", "max_train_examples")


def identity(settings: TrainingRun, tokenizer: Tokenizer, data_sha256: str) -> dict[str, Any]:
    """Return what must not change between a checkpoint and its resume: order, data and model."""
    whole = settings.model_dump(mode="json")
    kept = ("seed", "model", "encoder", "decoder", "cross", "init")
    return {
        **{key: value for key, value in whole.items() if key in kept},
        **{f"train.{key}": whole["train"][key] for key in _TRAIN_KEYS if key in whole["train"]},
        "engine.zero_stage": settings.engine.zero_stage,
        "engine.precision": engines.choose_precision(settings.engine),
        **{f"data.{key}": whole["data"][key] for key in _DATA_KEYS if key in whole["data"]},
        "tokenizer": tokenizer.fingerprint,
        "data": data_sha256,
    }


_TOKENIZER = "tokenizer.fingerprint"
"""Named as a setting is: a table names it where it averages runs of several."""


def log_corpus(run: Run, data: CorpusSettings, manifest: Manifest) -> None:
    """Record the prepared corpus as the run's input."""
    params = {"data_name": manifest.name, "held_out_text": manifest.held_out_text}
    run.log.params({**params, _TOKENIZER: manifest.tokenizer[:16]})
    for record, context in ((manifest.train, "training"), (manifest.valid, "evaluation")):
        counts = {**record.model_dump(), **asdict(record.reading)}
        profile: dict[str, Any] = {k: v for k, v in counts.items() if isinstance(v, int)}
        profile["credit"] = manifest.credit
        run.log.dataset(manifest.name, str(data.path), record.sha256[:16], profile, context)


def log_pairs(
    run: Run,
    data: TranslationData,
    manifest: ParallelManifest,
    card: cards.TranslationCard,
    num_dropped: int,
) -> None:
    """Record the prepared pairs as the run's inputs, and how many are too long to be trained on."""
    params: dict[str, Any] = {f"{name}_signature": text for name, text in card.signatures.items()}
    params |= {"data_name": card.data_name, "held_out_text": manifest.held_out_text}
    params |= {_TOKENIZER: manifest.tokenizer[:16], "dropped_pairs": num_dropped}
    run.log.params(params)
    if num_dropped:
        ranks.say(f"train.max_length: {num_dropped:,} longer pairs are left out of training")
    contexts = {"train": "training", "valid": "evaluation", "test": "test"}
    for split, record in manifest.splits.items():
        profile = {
            "pairs": record.pairs,
            "src_tokens": record.src.tokens,
            "trg_tokens": record.trg.tokens,
            **({"credit": record.credit} if record.credit else {}),
        }
        digest = record.src.sha256[:8] + record.trg.sha256[:8]
        run.log.dataset(card.data_name, str(data.path), digest, profile, contexts[split])


def log_engine(run: Run, engine: Engine) -> None:
    """Keep with the run how it is computed: DeepSpeed's configuration, precision, paths."""
    if not ranks.is_main():
        return
    write_json(run.folder / "deepspeed.json", engine.config)
    run.log.artifact(run.folder / "deepspeed.json")
    paths = [part.path for part in engine.module.modules() if isinstance(part, Attention)]
    run.log.params({"attention_path": " ".join(paths), "precision": engine.precision})
    ranks.say(f"precision {engine.precision}, attention by layer: {' '.join(paths)}")


def train(
    run: Run,
    settings: TrainingRun,
    model: nn.Module,
    goal: Goal,
    card: cards.AnyCard,
    tokenizer: Tokenizer,
    score: Callable[[Plain], Scores],
) -> None:
    """Train `model` to the end, export it, check the export and log what it scores.

    Every rank calls it. Nothing is exported where `stop_after` ended the training. Raises
    RunStopped when the gradient is not finite, or the export is wrong.
    """
    split = split_batch(settings.train, ranks.world_size())
    compile_long_runs(model, total_steps(settings, plan_of(settings, goal.examples)))
    engine = Engine(model, settings, split)
    log_engine(run, engine)
    ranks.check_signals()
    outcome = fit(engine, goal, settings, split, run.folder, run.log)
    if not outcome.finished:
        run.log.close("KILLED")
        return
    trained = outcome.state.scores.get(goal.best_loss)
    if outcome.best_weights is not None:
        trained = outcome.state.best_loss
    most = settings.train.average_checkpoints
    if most is not None:
        path, names = ranks.on_main(lambda: _average(run, outcome.state.step, most))
        outcome, trained = replace(outcome, best_weights=path), None
        card = card.model_copy(update={"averaged": names})
    scores = score(plain(write_export(run, engine, outcome, card, tokenizer)))
    check_export(scores.get(goal.best_loss), trained, engine)
    finish(run, card, scores)


def _average(run: Run, step: int, most: int) -> tuple[Path, tuple[str, ...]]:
    """Write the mean of the last kept weights, and return its path and their names."""
    state, names = averaging.mean(run.folder / "weights", step, most)
    path = run.folder / "averaged.safetensors"
    write_aside(path, lambda aside: save_file(state, aside))
    run.log.params({"averaged_checkpoints": " ".join(names)})
    ranks.say(f"the export is the mean of {', '.join(names)}")
    return path, names


def write_export(
    run: Run, engine: Engine, outcome: Outcome, card: cards.AnyCard, tokenizer: Tokenizer
) -> nn.Module:
    """Write `export/` from the best or the last weights, read it back, and return that model.

    What is scored afterwards is the export itself, so a wrong one cannot pass; on all ranks. Raises
    RunStopped when a weight is not bitwise what was written.
    """
    best = outcome.best_weights
    last = engine.full_state() if best is None else {}
    folder = run.folder / "export"

    def write() -> None:
        wanted = last if best is None else load_file(best)
        export.write(folder, card, tokenizer, wanted)
        found = export.read_any(folder).build().state_dict()
        wrong = [name for name, value in wanted.items() if not torch.equal(found[name], value)]
        if wrong:
            raise RunStopped(f"{folder}: {wrong[0]} is not what was trained")

    ranks.on_main(write)
    model: nn.Module = export.read_any(folder).build()
    return model.to(engines.device())


def check_export(score: float | None, trained: float | None, engine: Engine) -> None:
    """Raise RunStopped when the export does not score what the trained model scored."""
    if score is None or trained is None:
        return
    # The export is float32; a half-precision run scored rounded weights.
    tolerance = 1e-3 if engine.precision == "float32" else 3e-2
    if not abs(score - trained) <= tolerance * max(1.0, abs(trained)):  # NaN is wrong too
        raise RunStopped(f"the export scores {score}, the trained model {trained}: it is wrong")


def finish(run: Run, card: cards.AnyCard, scores: Mapping[str, float | None]) -> None:
    """Put the final scores into the export's card, the log and a plot; on rank 0."""
    if not ranks.is_main():
        return
    run_id = run.log.run_id if isinstance(run.log, RunLog) else None
    final = card.model_copy(update={"scores": dict(scores), "mlflow_run_id": run_id})
    folder = run.folder / "export"
    write_json(folder / "export.json", final.model_dump(mode="json"))
    write_text(folder / "README.md", export.readme(final))
    run.log.summary({name: value for name, value in scores.items() if value is not None})
    shown = (f"{name} {value:.6g}" for name, value in scores.items() if value is not None)
    ranks.say(f"{run.folder}: {', '.join(shown)}")
    plot = reporting.plot_run(run.folder)
    if plot is not None:
        run.log.artifact(plot, "plots")
