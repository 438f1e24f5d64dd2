"""Score an export: the loss of a language model on held-out text, or a classifier's metrics.

One process:   python -m pipelines.evaluate RUN_OR_EXPORT [split=test] [path=DATA]
Many:          deepspeed --num_gpus N --module pipelines.evaluate …
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ala_encoder.command import run
from ala_encoder.errors import UserError
from ala_encoder.settings.experiment import EvaluateRun

if TYPE_CHECKING:
    from ala_encoder.evaluation import Forward
    from ala_encoder.export import Export

_SPLITS = {"masked_lm": ("valid", "train"), "classifier": ("dev", "test", "train")}


def main(settings: EvaluateRun, as_json: bool) -> None:
    """Read the export, score it on one split, write the JSON and print it."""
    from ala_encoder import engine, evaluation, export, ranks

    exported = export.read(settings.export)
    kind = exported.card.kind
    split = settings.split or _SPLITS[kind][0]
    if split not in _SPLITS[kind]:
        allowed = ", ".join(_SPLITS[kind])
        raise UserError(f"split = {split!r}: a {kind} is scored on {allowed}")
    engine.start()
    try:
        forward = evaluation.plain(exported.build().to(engine.device()))
        score = _language_model if kind == "masked_lm" else _classifier
        data_name, folder, scores = score(exported, settings, split, forward)
    finally:
        engine.stop()
    if not ranks.is_main():
        return
    name = exported.card.run_name
    if as_json:
        found = {"run": name, "split": split, "data": data_name, "scores": scores}
        print(json.dumps(found))
        return
    print(f"{name} on {split} of {data_name}:")
    for metric, value in scores.items():
        print(f"  {metric:<20} {'undefined' if value is None else format(value, '.6g')}")
    print(f"written to {folder / f'{split}.json'}")


def _folder(exported: Export, settings: EvaluateRun, data_name: str) -> Path:
    """Return where scores go; those on other data never replace the run's own."""
    own = "eval" if settings.path is None else f"eval-{data_name}"
    return settings.output or exported.folder.parent / own


def _language_model(
    exported: Export, settings: EvaluateRun, split: str, forward: Forward
) -> tuple[str, Path, dict[str, float | None]]:
    from ala_encoder import corpus, evaluation, examples, ranks
    from ala_encoder.settings.corpus import CorpusSettings

    data = exported.card.data
    assert isinstance(data, CorpusSettings)
    prepared = settings.path or data.path
    tokens = corpus.open_tokens(prepared, exported.tokenizer, verify=ranks.is_main())
    blocks = examples.validation_blocks(tokens[split], data, exported.tokenizer)
    scores = evaluation.masked_lm_scores(forward, blocks, settings.batch_size)
    name = str(corpus.read_manifest(prepared)["name"])
    folder = _folder(exported, settings, name)
    if ranks.is_main():
        evaluation.write_scores(folder, "mlm", split, name, scores, {})
    return name, folder, scores


def _classifier(
    exported: Export, settings: EvaluateRun, split: str, forward: Forward
) -> tuple[str, Path, dict[str, float | None]]:
    from ala_encoder import finetuning, glue
    from ala_encoder.settings.task import TaskSettings

    data = exported.card.data
    assert isinstance(data, TaskSettings)
    if settings.path is not None:
        data = data.model_copy(update={"path": settings.path})
    read = finetuning.read(glue.task(data.task), data, exported.tokenizer, (split,))
    folder = _folder(exported, settings, read.name)
    return read.name, folder, read.scores(forward, split, settings.batch_size, folder)


if __name__ == "__main__":
    sys.exit(run(main, EvaluateRun, __doc__ or "", json_flag=True, positional="export"))
