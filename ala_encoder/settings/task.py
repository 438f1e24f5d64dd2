"""Settings of a classification or regression task, and where its rows come from.

For: what can be checked of them without reading a file. Not for: what a GLUE task is (`glue`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, field_validator, model_validator

from ala_encoder.errors import UserError, nearest
from ala_encoder.settings.base import BadRowPolicy, NonNegativeInt, Section

GLUE = ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli", "ax")
"""The tasks whose columns, labels and metrics are known."""
CLASS_METRICS = ("accuracy", "f1", "matthews_correlation")
SCORE_METRICS = ("pearson", "spearmanr")
_CACHE = Path(".cache/quickstart")
_SPLITS = {
    "mnli": ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
    "ax": ("test",),
}
_ROWS = re.compile(r"(?P<name>[^\[\]]+)(?:\[(?P<start>[0-9]{0,12}):(?P<stop>[0-9]{0,12})\])?")


def task_splits(task: str) -> tuple[str, ...]:
    """Return the splits of a task: train, then dev, then test ones."""
    return _SPLITS.get(task, ("train", "dev", "test"))


class Rows(NamedTuple):
    """Some rows of a file or of a data set's split: `dev.tsv[4000:]` is ("dev.tsv", 4000, None)."""

    name: str
    start: int = 0
    stop: int | None = None

    @classmethod
    def parse(cls, text: str) -> Rows:
        """Read NAME or NAME[START:STOP]; raises UserError for anything else, or for no row."""
        match = _ROWS.fullmatch(text)
        if match is None:
            raise UserError(
                f"{text!r}: allowed is NAME or NAME[START:STOP], such as dev.tsv[:4000]"
            )
        start, stop = int(match["start"] or 0), int(match["stop"]) if match["stop"] else None
        if stop is not None and stop <= start:
            raise UserError(f"{text!r}: holds no row, START is the first and STOP after the last")
        return cls(match["name"], start, stop)

    def holds(self, number: int) -> bool:
        """Tell whether the row of this number is one of them."""
        return self.start <= number and (self.stop is None or number < self.stop)

    def overlaps(self, other: Rows) -> bool:
        """Tell whether both hold a row of the same number."""
        return (other.stop is None or self.start < other.stop) and (
            self.stop is None or other.start < self.stop
        )


class TaskColumns(Section):
    """The columns of a table that is none of GLUE's, and what is predicted from them."""

    first: str
    """Column of the sentence, or of the first one of a pair."""
    second: str | None = None
    """Column of a pair's second sentence."""
    label: str
    """Column of the class, or of the score."""
    index: str | None = None
    """Column of a whole number that names the row in predictions; none: rows are counted from 0."""
    labels: tuple[str, ...] | None = None
    """The classes in order, spelled as in the table; none: the label is a number (regression)."""
    metrics: tuple[str, ...] = ()
    """The first chooses the best weights; none: accuracy, or pearson and spearmanr."""

    @field_validator("labels", mode="before")
    @classmethod
    def _spelled(cls, value: Any) -> Any:
        """Take [0, 1], which YAML reads as numbers, for the texts they are in a table."""
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(str(label) if type(label) is int else label for label in value)

    @model_validator(mode="after")
    def _possible(self) -> TaskColumns:
        names = [name for name in (self.first, self.second, self.label, self.index) if name]
        if len(set(names)) < len(names):
            raise UserError(f"first, second, label, index = {', '.join(names)}: a name twice")
        if self.labels is not None and len(set(self.labels)) < max(2, len(self.labels)):
            raise UserError(f"labels = {list(self.labels)}: allowed are two or more, all different")
        allowed = SCORE_METRICS if self.labels is None else CLASS_METRICS
        kind = "without `labels`, scores" if self.labels is None else "of classes"
        for metric in self.metrics:
            if metric not in allowed:
                hint = nearest(metric, allowed)
                raise UserError(
                    f"metrics: {metric!r} {kind}: allowed are {', '.join(allowed)}{hint}"
                )
        if "f1" in self.metrics and len(self.labels or ()) != 2:
            raise UserError(f"metrics: 'f1' is of the second of two classes, labels has "
                            f"{len(self.labels or ())}")  # fmt: skip
        return self


class RowSource(Section):
    """Where a task's rows are: files of a folder, or splits of a named data set."""

    path: Path | None = None
    """Folder with train, dev and test as .tsv, .jsonl, .csv or .parquet; without `path` and
    `dataset` the embedded set (an sst2-style task)."""
    files: dict[str, str] | None = None
    """Split → other file than the task's in `path`, or other split of `dataset`; NAME[START:STOP]
    takes those rows only, counted from 0."""
    dataset: str | None = None
    """Name of a data set that the `datasets` library loads."""
    config: str | None = None
    """Its configuration; none: the task's own for `glue`."""
    revision: str | None = None
    """Its version: a tag, branch or commit."""

    @model_validator(mode="after")
    def _one_source(self) -> RowSource:
        if self.path is not None and self.dataset is not None:
            raise UserError("path and dataset: both say where the rows are, give one of the two")
        for name in ("config", "revision"):
            if getattr(self, name) is not None and self.dataset is None:
                raise UserError(f"{name}: does nothing without `dataset`")
        for split, text in (self.files or {}).items():
            try:
                Rows.parse(text)
            except UserError as error:
                raise UserError(f"files.{split} = {error}") from None
        return self


class TaskSettings(RowSource):
    """A task on one or two sentences: GLUE's by name, or any labelled table by its columns."""

    task: str
    """A GLUE task (cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax), or with `columns` any
    other name."""
    columns: TaskColumns | None = None
    cache: Path = _CACHE
    """Where the embedded set's archive and files are kept."""
    length: Annotated[int, Field(ge=5)] = 128
    """Longest input in tokens, [CLS] and [SEP] included; longer ones are cut and counted."""
    on_bad_row: BadRowPolicy = "error"
    max_train_examples: NonNegativeInt = 0
    """Use only the first this many training examples; 0 means all."""

    @model_validator(mode="after")
    def _known_task(self) -> TaskSettings:
        if self.columns is None and self.task not in GLUE:
            hint = nearest(self.task.lower(), GLUE)
            raise UserError(
                f"task = {self.task!r}: allowed are {', '.join(GLUE)}{hint}, or any name with "
                "`columns`"
            )
        if self.columns is not None and self.task in GLUE:
            raise UserError(f"columns: {self.task} has its own, give the task another name")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}", self.task):
            raise UserError(f"task = {self.task!r}: allowed are letters, digits and _ . + -")
        allowed = task_splits(self.task)
        for split in self.files or {}:
            if split not in allowed:
                hint = nearest(split, allowed)
                raise UserError(
                    f"files.{split}: the splits of {self.task} are {', '.join(allowed)}{hint}"
                )
        return self

    @model_validator(mode="after")
    def _has_rows(self) -> TaskSettings:
        elsewhere = self.path is not None or self.dataset is not None
        if self.files and not elsewhere:
            raise UserError("files: does nothing without `path` or `dataset`")
        if self.cache != _CACHE and elsewhere:
            raise UserError("cache: keeps the embedded set only, leave it out")
        if self.task != "sst2" and not elsewhere:
            raise UserError(
                f"path: missing, so is dataset; the embedded set is for sst2, not {self.task}"
            )
        return self
