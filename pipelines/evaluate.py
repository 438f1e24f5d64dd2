"""Score an export: the loss of a language model on held-out text, or a classifier's metrics.

One process:   python -m pipelines.evaluate RUN_OR_EXPORT [split=test] [path=DATA] [task=ax]
Many:          deepspeed --num_gpus N --module pipelines.evaluate …
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ala_encoder.command import run
from ala_encoder.errors import UserError, nearest, shown
from ala_encoder.settings.experiment import EvaluateRun

if TYPE_CHECKING:
    from ala_encoder.evaluation import Forward
    from ala_encoder.export import Export

_TEXT_SPLITS = ("valid", "train")


class _Data(NamedTuple):
    """What an export is scored on."""

    name: str
    splits: tuple[str, ...]
    folder: Path
    """Where SPLIT.json goes."""
    scores: Callable[[Forward, str], dict[str, float | None]]
    """Scores a split, and writes into the folder."""


def main(settings: EvaluateRun, as_json: bool) -> None:
    """Read the export, score it on the splits, write the JSON of each and print the scores."""
    from ala_encoder import engine, evaluation, export, metrics, ranks

    exported = export.read(settings.export)
    is_classifier = exported.card.kind == "classifier"
    data = (_labelled if is_classifier else _text)(exported, settings)
    engine.start()
    scores: dict[str, float | None] = {}
    try:
        forward = evaluation.plain(exported.build().to(engine.device()))
        for split in data.splits:
            scores |= data.scores(forward, split)
    finally:
        engine.stop()
    if not ranks.is_main():
        return
    name = exported.card.run_name
    if as_json:
        alone = {"split": data.splits[0]} if len(data.splits) == 1 else {}
        about = {"run": name, **alone, "splits": data.splits, "data": data.name}
        print(json.dumps({**about, "scores": metrics.finite(scores)}, allow_nan=False))
        return
    print(f"{name} on {' '.join(data.splits)} of {data.name}:")
    for metric, value in scores.items():
        print(f"  {metric:<24} {_shown(metric, value)}")
    written = (str(data.folder / f"{split}.json") for split in data.splits)
    print(f"written to {', '.join(written)}")


def _shown(name: str, value: float | None) -> str:
    """Return a score in six digits, and a count, such as the targets of a perplexity, in full."""
    if value is None:
        return "undefined"
    return format(value, ".0f" if name.endswith(("_targets", "_examples")) else ".6g")


def _folder(exported: Export, settings: EvaluateRun, other: str | None) -> Path:
    """Return where scores go; those on data of another name never replace the run's own."""
    name = "eval"
    if other is not None:
        name += "-" + re.sub(r"[^A-Za-z0-9._-]+", "-", other).strip("-.")
    return settings.output or exported.folder.parent / name


def _text(exported: Export, settings: EvaluateRun) -> _Data:
    """Open the held-out text of a language model."""
    from ala_encoder import corpus, evaluation, examples, manifests, metrics, ranks
    from ala_encoder.settings.corpus import CorpusSettings

    kind, data = exported.card.kind, exported.card.data
    assert isinstance(data, CorpusSettings)
    for name in ("task", "files", "dataset", "config", "revision"):
        if getattr(settings, name):
            raise UserError(f"{name}: does nothing for a {kind}, which is scored on `path`")
    split = settings.split or _TEXT_SPLITS[0]
    if split not in _TEXT_SPLITS:
        allowed, hint = ", ".join(_TEXT_SPLITS), nearest(split, _TEXT_SPLITS)
        raise UserError(f"split = {shown(split)}: a {kind} is scored on {allowed}{hint}")
    prepared = settings.path or data.path
    manifest = manifests.read(prepared)
    folder = _folder(exported, settings, None if prepared == data.path else manifest.name)
    tokens = corpus.open_tokens(prepared, manifest, exported.tokenizer, verify=ranks.is_main())
    blocks = examples.validation_blocks(tokens[split], data, exported.tokenizer)

    def scores(forward: Forward, split: str) -> dict[str, float | None]:
        found = evaluation.masked_lm_scores(forward, blocks, settings.batch_size)
        if ranks.is_main():
            written = {name: metrics.Score(value) for name, value in found.items()}
            evaluation.write_scores(folder, "mlm", split, manifest.name, written)
        return found

    return _Data(manifest.name, (split,), folder, scores)


def _labelled(exported: Export, settings: EvaluateRun) -> _Data:
    """Read the splits to score; raises UserError when the model's classes are not the task's."""
    from ala_encoder import export, finetuning, glue, ranks
    from ala_encoder.settings.task import TaskSettings
    from ala_encoder.splits import locate

    own = exported.card.data
    assert isinstance(own, TaskSettings)
    data = settings.task_data(own)
    task = glue.task_of(data)
    export.check_task(exported.card, task)
    found = locate(task, data, ranks.say)
    splits = found.present("dev") or found.present("test") or task.splits_of("dev", "test")[:1]
    if settings.split is not None:
        splits = (settings.split,)
    read = finetuning.read(found, data, exported.tokenizer, splits)
    other = read.name if data.task == own.task else f"{read.name}-{data.task}"
    folder = _folder(exported, settings, None if data == own else other)

    def scores(forward: Forward, split: str) -> dict[str, float | None]:
        return read.scores(forward, split, settings.batch_size, folder)

    return _Data(read.name, splits, folder, scores)


if __name__ == "__main__":
    sys.exit(run(main, EvaluateRun, __doc__ or "", json_flag=True, positional="export"))
