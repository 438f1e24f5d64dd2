"""Score an export: the loss of a language model on held-out text, or a classifier's metrics.

One process:   python -m pipelines.evaluate RUN_OR_EXPORT [split=test] [path=DATA] [task=ax]
Many:          deepspeed --num_gpus N --module pipelines.evaluate …
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ala_encoder.command import run
from ala_encoder.errors import UserError, nearest
from ala_encoder.settings.experiment import EvaluateRun

if TYPE_CHECKING:
    from ala_encoder.evaluation import Forward
    from ala_encoder.export import Export
    from ala_encoder.settings.task import TaskSettings

_TEXT_SPLITS = ("valid", "train")


def main(settings: EvaluateRun, as_json: bool) -> None:
    """Read the export, score it on the splits, write the JSON of each and print the scores."""
    from ala_encoder import engine, evaluation, export, ranks

    exported = export.read(settings.export)
    is_classifier = exported.card.kind == "classifier"
    splits = (_task_splits if is_classifier else _text_splits)(exported, settings)
    engine.start()
    scores: dict[str, float | None] = {}
    try:
        forward = evaluation.plain(exported.build().to(engine.device()))
        score = _classifier if is_classifier else _language_model
        for split in splits:
            data_name, folder, found = score(exported, settings, split, forward)
            scores |= found
    finally:
        engine.stop()
    if not ranks.is_main():
        return
    name, split = exported.card.run_name, " ".join(splits)
    if as_json:
        finite = {k: v if v is None or math.isfinite(v) else None for k, v in scores.items()}
        answer = {"run": name, "split": split, "data": data_name, "scores": finite}
        print(json.dumps(answer, allow_nan=False))
        return
    print(f"{name} on {split} of {data_name}:")
    for metric, value in scores.items():
        print(f"  {metric:<24} {_shown(metric, value)}")
    print(f"written to {', '.join(str(folder / f'{split}.json') for split in splits)}")


def _shown(name: str, value: float | None) -> str:
    """Return a score in six digits, and a count, such as the targets of a perplexity, in full."""
    if value is None:
        return "undefined"
    return format(value, ".0f" if name.endswith(("_targets", "_examples")) else ".6g")


def _folder(exported: Export, settings: EvaluateRun, data_name: str) -> Path:
    """Return where scores go; those on other data never replace the run's own."""
    name = f"{data_name}-{settings.task}" if settings.task else data_name
    other = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
    own = "eval" if settings.is_own else f"eval-{other}"
    return settings.output or exported.folder.parent / own


def _language_model(
    exported: Export, settings: EvaluateRun, split: str, forward: Forward
) -> tuple[str, Path, dict[str, float | None]]:
    from ala_encoder import corpus, evaluation, examples, manifests, ranks
    from ala_encoder.settings.corpus import CorpusSettings

    data = exported.card.data
    assert isinstance(data, CorpusSettings)
    prepared = settings.path or data.path
    tokens = corpus.open_tokens(prepared, exported.tokenizer, verify=ranks.is_main())
    blocks = examples.validation_blocks(tokens[split], data, exported.tokenizer)
    scores = evaluation.masked_lm_scores(forward, blocks, settings.batch_size)
    name = str(manifests.read(prepared)["name"])
    folder = _folder(exported, settings, name)
    if ranks.is_main():
        evaluation.write_scores(folder, "mlm", split, name, scores, {}, {})
    return name, folder, scores


def _text_splits(exported: Export, settings: EvaluateRun) -> tuple[str, ...]:
    kind = exported.card.kind
    for name in ("task", "files", "dataset", "config", "revision"):
        if getattr(settings, name):
            raise UserError(f"{name}: does nothing for a {kind}, which is scored on `path`")
    split = settings.split or _TEXT_SPLITS[0]
    if split not in _TEXT_SPLITS:
        allowed = ", ".join(_TEXT_SPLITS)
        hint = nearest(split, _TEXT_SPLITS)
        raise UserError(f"split = {split!r}: a {kind} is scored on {allowed}{hint}")
    return (split,)


def _task_splits(exported: Export, settings: EvaluateRun) -> tuple[str, ...]:
    """Return the splits to score; raises UserError when the model's classes are not the task's."""
    from ala_encoder import export, glue, ranks, splits

    data = _task_data(exported, settings)
    task = glue.task_of(data)
    export.check_task(exported.card, task)
    if settings.split is not None:
        if settings.split not in task.splits:
            allowed = ", ".join(task.splits)
            hint = nearest(settings.split, task.splits)
            raise UserError(f"split = {settings.split!r}: {task.name} has {allowed}{hint}")
        return (settings.split,)
    found = splits.locate(task, data, ranks.say)
    return found.present("dev") or found.present("test") or task.splits_of("dev", "test")[:1]


def _task_data(exported: Export, settings: EvaluateRun) -> TaskSettings:
    from ala_encoder.settings.task import TaskSettings

    own = exported.card.data
    assert isinstance(own, TaskSettings)
    return settings.task_data(own)


def _classifier(
    exported: Export, settings: EvaluateRun, split: str, forward: Forward
) -> tuple[str, Path, dict[str, float | None]]:
    from ala_encoder import finetuning, glue

    data = _task_data(exported, settings)
    read = finetuning.read(glue.task_of(data), data, exported.tokenizer, (split,))
    folder = _folder(exported, settings, read.name)
    return read.name, folder, read.scores(forward, split, settings.batch_size, folder)


if __name__ == "__main__":
    sys.exit(run(main, EvaluateRun, __doc__ or "", json_flag=True, positional="export"))
