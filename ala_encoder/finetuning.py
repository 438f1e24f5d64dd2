"""What a classification run starts from and learns: an encoder, and a task's splits.

For: the pieces that `finetune_glue` and `evaluate` share. Not for: training (`training`) or reading
tables (`labelled`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ala_encoder import export, glue, labelled, metrics, ranks
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Forward, predict, write_scores
from ala_encoder.examples import LabelledSentences
from ala_encoder.metrics import Score
from ala_encoder.models import Classifier
from ala_encoder.runs import Run
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import FinetuneRun
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.task import TaskSettings
from ala_encoder.splits import Splits, check_apart
from ala_encoder.tokenizer import Tokenizer, open_folder


@dataclass(frozen=True)
class Start:
    """The encoder a run starts from, with its weights when they come from an export."""

    variant: str
    model: EncoderModel
    encoder: AttentionSettings
    tokenizer: Tokenizer
    source: export.Export | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Return the MLflow tags that link a run to the one its weights come from."""
        if self.source is None:
            return {}
        card = self.source.card
        tags = {"pretrained_run": card.run_name}
        if card.mlflow_run_id is not None:
            tags["pretrained_run_id"] = card.mlflow_run_id
        return tags

    def build(self, num_outputs: int) -> Classifier:
        """Return the classifier: the encoder's weights copied in, the head new."""
        model = Classifier(self.model, self.encoder, self.tokenizer.vocab_size, num_outputs)
        if self.source is not None:
            self.source.load_encoder(model.encoder)
        return model


def start_from(settings: FinetuneRun) -> Start:
    """Read what `init` names, or take the settings' own model; raises UserError on a misfit."""
    if settings.init is None:
        assert settings.model and settings.tokenizer and settings.variant
        tokenizer = open_folder(settings.tokenizer, ranks.say)
        encoder = settings.encoder or AttentionSettings()
        return Start(settings.variant, settings.model, encoder, tokenizer)
    source = export.read(settings.init)
    card = source.card
    if settings.data.length > card.model.max_length:
        raise UserError(
            f"data.length = {settings.data.length}: {source.folder} has {card.model.max_length} "
            "positions"
        )
    variant = settings.variant or card.variant
    return Start(variant, card.model, card.encoder, source.tokenizer, source)


@dataclass(frozen=True)
class TaskData:
    """The splits of a task, tokenised."""

    task: glue.Task
    name: str
    credit: str
    parts: Mapping[str, LabelledSentences]
    notes: list[str] = field(default_factory=list)

    @property
    def train(self) -> LabelledSentences:
        return self.parts["train"]

    @property
    def digest(self) -> str:
        """SHA-256 over the training rows and labels."""
        return _digest(self.train)

    def splits(self, *kinds: str) -> list[str]:
        """Return the splits of these kinds (train, dev, test) that were read."""
        return [split for split in self.task.splits_of(*kinds) if split in self.parts]

    def scores(
        self, forward: Forward, split: str, batch_size: int, folder: Path | None = None
    ) -> dict[str, float | None]:
        """Return the official metrics of a split, and write its predictions into `folder`.

        Metrics are None where the split has no labels; files are written by rank 0.
        """
        part = self.parts[split]
        predicted, loss = predict(forward, part, batch_size)
        scores = metrics.scores(self.task.metrics, predicted, part.labels)
        if loss.count:
            scores["loss"] = Score(loss.mean)
        scores["examples"] = Score(float(len(part)))
        scores = {f"{glue.prefix_of(split)}_{name}": score for name, score in scores.items()}
        if folder is not None and ranks.is_main():
            path = folder / glue.prediction_file(self.task, split)
            glue.write_predictions(path, self.task, part.ids, predicted)
            write_scores(folder, self.task.name, split, self.name, scores)
        return {name: score.value for name, score in scores.items()}


def _digest(part: LabelledSentences) -> str:
    return hashlib.sha256(json.dumps([part.rows, part.labels]).encode("utf-8")).hexdigest()


def read(
    found: Splits, data: TaskSettings, tokenizer: Tokenizer, splits: Sequence[str] | None = None
) -> TaskData:
    """Read and tokenise `splits`; None: train, the first dev split, and whatever else there is.

    Raises UserError for what cannot be read, and when rows are trained on and scored as well.
    """
    task = found.task
    if splits is None:
        needed = ("train", task.splits_of("dev")[0])
        others = (split for split in found.present("dev", "test") if split not in needed)
        splits = (*needed, *others)
    check_apart(found, splits)
    parts, notes = {}, []
    for split in splits:
        rows = labelled.read_split(task, found.source(split), split, on_bad_row=data.on_bad_row)
        if split == "train" and data.max_train_examples:
            rows = _first(rows, data.max_train_examples)
        part = LabelledSentences(rows, task, data.length, tokenizer)
        notes += list(rows.notes)
        if part.num_cut:
            notes.append(f"{split}: {part.num_cut} inputs cut to {data.length} tokens")
        parts[split] = part
    return TaskData(task, found.name, found.credit, parts, notes)


def _first(rows: labelled.LabelledRows, most: int) -> labelled.LabelledRows:
    return replace(
        rows,
        first=rows.first[:most],
        second=None if rows.second is None else rows.second[:most],
        labels=None if rows.labels is None else rows.labels[:most],
        ids=rows.ids[:most],
    )


def log_data(run: Run, data: TaskData) -> None:
    """Record the task's splits as the run's inputs, and say what was noticed while reading."""
    if not ranks.is_main():
        return
    run.log.params({"data_name": data.name})
    for note in data.notes:
        ranks.say(note)
    contexts = {"train": "training", "dev": "evaluation", "test": "test"}
    for split, part in data.parts.items():
        profile = {"examples": len(part), "credit": data.credit}
        context = contexts[glue.kind_of(split)]
        # a digest of its own: MLflow takes equal ones for one input and keeps the first use only
        run.log.dataset(data.name, part.source, _digest(part)[:16], profile, context)
