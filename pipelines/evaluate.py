"""Score an export: the loss of a language model on held-out text, or a classifier's metrics.

One process:   python -m pipelines.evaluate RUN_OR_EXPORT [split=test] [path=DATA]
Many:          deepspeed --num_gpus N --module pipelines.evaluate …
"""

from __future__ import annotations

import json
import sys
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
    from ala_encoder.files import write_json

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
        data_name, scores = score(exported, settings, split, forward)
    finally:
        engine.stop()
    if not ranks.is_main():
        return
    name = exported.card.run_name
    path = settings.output or exported.folder.parent / "eval" / f"{split}.json"
    found = {"run": name, "split": split, "data": data_name, "scores": scores}
    write_json(path, found)
    if as_json:
        print(json.dumps(found))
        return
    print(f"{name} on {split} of {data_name}:")
    for metric, value in scores.items():
        print(f"  {metric:<20} {'undefined' if value is None else format(value, '.6g')}")
    print(f"written to {path}")


def _language_model(
    exported: Export, settings: EvaluateRun, split: str, forward: Forward
) -> tuple[str, dict[str, float | None]]:
    from ala_encoder import corpus, evaluation, examples
    from ala_encoder.settings.data import CorpusSettings

    data = exported.card.data
    assert isinstance(data, CorpusSettings)
    folder = settings.path or data.path
    tokens = corpus.open_tokens(folder, exported.tokenizer)
    blocks = examples.validation_blocks(tokens[split], data, exported.tokenizer)
    scores = evaluation.masked_lm_scores(forward, blocks, settings.batch_size)
    return str(corpus.read_manifest(folder)["name"]), scores


def _classifier(
    exported: Export, settings: EvaluateRun, split: str, forward: Forward
) -> tuple[str, dict[str, float | None]]:
    from ala_encoder import finetuning, glue
    from ala_encoder.settings.data import TaskSettings

    data = exported.card.data
    assert isinstance(data, TaskSettings)
    if settings.path is not None:
        data = data.model_copy(update={"path": settings.path})
    task = glue.task(data.task)
    read = finetuning.read(task, data, exported.tokenizer, (split,))
    folder = exported.folder.parent / "eval"
    return read.name, read.scores(forward, split, settings.batch_size, folder)


if __name__ == "__main__":
    sys.exit(run(main, EvaluateRun, __doc__ or "", json_flag=True, positional="export"))
