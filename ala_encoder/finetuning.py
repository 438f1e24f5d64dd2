"""What a classification run starts from and learns: an encoder, and a task's splits.

For: the pieces that `finetune_glue` and `evaluate` share. Not for: training (`training`) or reading
tables (`glue`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ala_encoder import export, glue, metrics, ranks
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Forward, classify, write_scores
from ala_encoder.examples import LabelledSentences
from ala_encoder.models import Classifier
from ala_encoder.runs import Run
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.experiment import FinetuneRun
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.task import TaskSettings
from ala_encoder.tokenizer import Tokenizer

_PREFIX = {"train": "train", "dev": "eval", "test": "test"}
"""Split → prefix of its scores, as Hugging Face's Trainer names them."""


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

    def build(self, num_labels: int) -> Classifier:
        """Return the classifier: the encoder's weights copied in, the head new."""
        model = Classifier(self.model, self.encoder, self.tokenizer.vocab_size, num_labels)
        if self.source is not None:
            self.source.load_encoder(model.encoder)
        return model


def start_from(settings: FinetuneRun) -> Start:
    """Read what `init` names, or take the settings' own model; raises UserError on a misfit."""
    if settings.init is None:
        assert settings.model and settings.tokenizer and settings.variant
        if not settings.tokenizer.path.exists():
            raise UserError(
                f"tokenizer.path = {settings.tokenizer.path}: run train_tokenizer first"
            )
        tokenizer = Tokenizer.load(settings.tokenizer.path)
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
    folder: Path
    parts: Mapping[str, LabelledSentences]
    notes: list[str] = field(default_factory=list)

    @property
    def train(self) -> LabelledSentences:
        return self.parts["train"]

    @property
    def digest(self) -> str:
        """SHA-256 over the training rows and labels."""
        return _digest(self.train)

    def splits(self, *names: str) -> list[str]:
        """Return those of `names` that the data has."""
        return [name for name in names if name in self.parts]

    def scores(
        self, forward: Forward, split: str, batch_size: int, folder: Path | None = None
    ) -> dict[str, float | None]:
        """Return the official metrics of a split, and write its predictions into `folder`.

        Metrics are None where the split has no labels; files are written by rank 0.
        """
        part = self.parts[split]
        predicted, loss = classify(forward, part, batch_size)
        values, reasons = metrics.scores(self.task.metrics, predicted, part.labels)
        prefix = _PREFIX[split]
        scores: dict[str, float | None] = {f"{prefix}_{k}": v for k, v in values.items()}
        if loss.count:
            scores[f"{prefix}_loss"] = loss.mean
        scores[f"{prefix}_examples"] = float(len(part))
        if folder is not None and ranks.is_main():
            folder.mkdir(parents=True, exist_ok=True)
            server = Path(self.task.server_file)
            path = folder / f"{server.stem}-{split}{server.suffix}"
            glue.write_predictions(path, self.task, part.ids, predicted)
            write_scores(folder, self.task.name, split, self.name, scores, reasons)
        return scores


def _digest(part: LabelledSentences) -> str:
    return hashlib.sha256(json.dumps([part.rows, part.labels]).encode("utf-8")).hexdigest()


def read(
    task: glue.Task,
    data: TaskSettings,
    tokenizer: Tokenizer,
    splits: Sequence[str] | None = None,
) -> TaskData:
    """Read and tokenise `splits`; None: train, dev and, where there is one, test.

    Raises UserError for what cannot be read, and when the embedded set is asked for another task.
    """
    folder, name, credit = _locate(task, data)
    if splits is None:
        splits = ("train", "dev", "test") if _has(task, folder, "test") else ("train", "dev")
    parts, notes = {}, []
    for split in splits:
        examples = glue.read_split(task, folder, split, on_bad_row=data.on_bad_row)
        if split == "train" and data.max_train_examples:
            examples = _first(examples, data.max_train_examples)
        part = LabelledSentences(examples, task, data, tokenizer)
        notes += list(examples.notes)
        if part.num_cut:
            notes.append(f"{split}: {part.num_cut} inputs cut to {data.length} tokens")
        parts[split] = part
    return TaskData(task, name, credit, folder, parts, notes)


def _locate(task: glue.Task, data: TaskSettings) -> tuple[Path, str, str]:
    if data.path is not None:
        return data.path, data.path.name, "user's files"
    from ala_encoder.quickstart import embedded_classification

    if task.name != "sst2":
        raise UserError(f"data.path: missing; the embedded set is for sst2, not {task.name}")
    embedded = embedded_classification(data.cache, ranks.say)
    return embedded.files["train"].parent, embedded.name, embedded.credit


def _has(task: glue.Task, folder: Path, split: str) -> bool:
    name = task.files[split]
    return (folder / name).exists() or (folder / f"{name}.gz").exists()


def _first(examples: glue.Examples, most: int) -> glue.Examples:
    return replace(
        examples,
        first=examples.first[:most],
        second=None if examples.second is None else examples.second[:most],
        labels=None if examples.labels is None else examples.labels[:most],
        ids=examples.ids[:most],
    )


def log_data(run: Run, data: TaskData) -> None:
    """Record the task's splits as the run's inputs, and say what was noticed while reading."""
    if not ranks.is_main():
        return
    run.log.params({"data_name": data.name})
    for note in data.notes:
        ranks.say(note)
    for split, part in data.parts.items():
        context = {"train": "training", "dev": "evaluation", "test": "test"}[split]
        profile = {"examples": len(part), "credit": data.credit}
        # a digest of its own: MLflow takes equal ones for one input and keeps the first use only
        run.log.dataset(data.name, part.source, _digest(part)[:16], profile, context)
