"""What a classification run starts from and learns: an encoder, and a task's splits.

For: the pieces that `finetune_glue` and `evaluate` share. Not for: training (`training`) or reading
tables (`labelled`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ala_encoder import export, glue, labelled, metrics, ranks
from ala_encoder.errors import UserError
from ala_encoder.evaluation import Forward, predict, write_scores
from ala_encoder.examples import LabelledSentences
from ala_encoder.metrics import Score
from ala_encoder.models import Classifier
from ala_encoder.runs import Run
from ala_encoder.settings.attention import AttentionSettings
from ala_encoder.settings.corpus import CorpusSettings
from ala_encoder.settings.experiment import FinetuneRun
from ala_encoder.settings.model import EncoderModel
from ala_encoder.settings.task import TaskSettings
from ala_encoder.splits import Splits, SplitSource, check_apart, locate
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
        return {} if self.source is None else export.link_to(self.source)

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
    if isinstance(card.data, CorpusSettings) and settings.data.length > card.data.length:
        ranks.say(
            f"data.length = {settings.data.length}: the encoder was pretrained on "
            f"{card.data.length} tokens, positions from {card.data.length} on are untrained"
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

    @cached_property
    def digests(self) -> dict[str, str]:
        """SHA-256 over the rows and labels of each split."""
        return {split: _sha256([part.rows, part.labels]) for split, part in self.parts.items()}

    @property
    def digest(self) -> str:
        """SHA-256 over all splits: what a run learns, is steered by and is scored on."""
        return _sha256(self.digests)

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


def _sha256(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode("utf-8")).hexdigest()


def read(
    found: Splits, data: TaskSettings, tokenizer: Tokenizer, splits: Sequence[str] | None = None
) -> TaskData:
    """Read and tokenise `splits`; None: train, the first dev split, and whatever else there is.

    Raises UserError for what cannot be read, and when the rows of a split to score are all trained
    on as well; `notes` tells of some.
    """
    task = found.task
    if splits is None:
        needed = ("train", task.splits_of("dev")[0])
        others = (split for split in found.present("dev", "test") if split not in needed)
        splits = (*needed, *others)
    check_apart(found, splits)
    notes: list[str] = []
    read = {}
    for split in splits:
        source = found.source(split)
        rows = labelled.read_split(task, source, split, on_bad_row=data.on_bad_row)
        notes += [*rows.notes, *_short_slice(source, rows)]
        if split == "train" and data.max_train_examples:
            rows = _first(rows, data.max_train_examples)
        read[split] = rows
    notes += _also_in_train(read)
    parts = {}
    for split, rows in read.items():
        part = LabelledSentences(rows, task, data.length, tokenizer)
        if part.num_cut:
            notes.append(f"{split}: {part.num_cut} inputs cut to {data.length} tokens")
        parts[split] = part
    name = found.name
    if data.max_train_examples:
        name += f" (first {data.max_train_examples} of train)"
    return TaskData(task, name, found.credit, parts, notes)


def check_unseen(
    own: TaskSettings, data: TaskSettings, found: Splits, splits: Sequence[str]
) -> None:
    """Raise UserError when `splits` of `data`, but train, hold rows a run on `own` was trained on.

    Nothing is known where the run's training rows are no longer where they were.
    """
    if own.dataset != data.dataset:
        return
    scored = [split for split in splits if glue.kind_of(split) != "train"]
    try:
        train = locate(glue.task_of(own), own, lambda text: None).source("train")
    except UserError:
        return
    used = train.rows
    if own.max_train_examples and own.on_bad_row == "error":  # else skipped rows move the end
        end = used.start + own.max_train_examples
        used = used._replace(stop=end if used.stop is None else min(end, used.stop))
    for split in scored:
        source = found.source(split)
        if source.identity == train.identity and source.rows.overlaps(used):
            stop = "" if used.stop is None else used.stop
            rest = f"{used.name}[{stop}:]" if stop else "FILE[START:STOP]"
            raise UserError(
                f"split {split}: the model was trained on rows [{used.start}:{stop}] of "
                f"{source.name}; give it others, as in files={{{split}: '{rest}'}}, or split=train"
            )


def _short_slice(source: SplitSource, rows: labelled.LabelledRows) -> list[str]:
    """Say so when a slice ends after the last row there is."""
    _, start, stop = source.rows
    end = start + len(rows) + rows.skipped
    if stop is None or end >= stop:
        return []
    return [f"{source.name}: has {end} rows, so [{start}:{stop}] gives {end - start}"]


def _also_in_train(read: Mapping[str, labelled.LabelledRows]) -> list[str]:
    """Say how many rows of each split to score have texts of a training row; UserError if all."""
    if "train" not in read:
        return []
    trained, notes = set(_texts(read["train"])), []
    for split, rows in read.items():
        if split == "train":
            continue
        again = sum(texts in trained for texts in _texts(rows))
        if again == len(rows):
            raise UserError(
                f"split {split}: the texts of all {again:,} rows of {rows.source} also occur in "
                f"train ({read['train'].source}); give one of the two other rows"
            )
        if again:
            notes.append(f"{split}: {again:,} of {len(rows):,} rows also occur in train")
    return notes


def _texts(rows: labelled.LabelledRows) -> list[tuple[str, ...]]:
    if rows.second is None:
        return [(text,) for text in rows.first]
    return list(zip(rows.first, rows.second, strict=True))


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
        # a digest of its own: MLflow takes equal ones for one input and keeps the first use only
        digest = data.digests[split][:16]
        profile = {"examples": len(part), "credit": data.credit}
        context = contexts[glue.kind_of(split)]
        run.log.dataset(data.name, part.source, digest, profile, context)
