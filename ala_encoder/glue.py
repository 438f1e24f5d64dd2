"""The nine GLUE tasks and the diagnostic set, one declarative row each; any other table likewise.

For: what the columns and labels of a task are called wherever its tables come from, how it is
scored, and its predictions in the form the GLUE server takes (Wang et al. 2018, arXiv:1804.07461).
Not for: reading tables (`labelled`), tokenizing, or scores (`metrics`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ala_encoder.files import write_text
from ala_encoder.settings.task import GLUE, SCORE_METRICS, TaskSettings, task_splits

_PREFIX = {"train": "train", "dev": "eval", "test": "test"}
_SERVER_PARTS = {"": "", "matched": "-m", "mismatched": "-mm"}


@dataclass(frozen=True)
class Columns:
    """Names of a task's columns: of several names for one column the first that is there counts.

    GLUE's files, the `datasets` library and the authors' own files name the same column otherwise.
    """

    first: tuple[str, ...]
    label: tuple[str, ...]
    second: tuple[str, ...] = ()
    index: tuple[str, ...] = ("index", "idx")

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The names of the one or two sentence columns."""
        return (self.first, self.second) if self.second else (self.first,)


@dataclass(frozen=True)
class Task:
    """One task: where its columns are, what its labels mean, how it is scored.

    `labels` are the classes in order, and `spellings` what they are called in the files and the
    predictions. No labels: a regression, whose scores lie in `score_range` where there is one.
    `headerless` are the columns that a file without a header has; none: it must have one.
    """

    name: str
    columns: Columns
    metrics: tuple[str, ...]
    server_name: str
    labels: tuple[str, ...] = ()
    spellings: tuple[str, ...] = ()
    score_range: tuple[float, float] | None = None
    best: str = ""
    headerless: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.labels) == len(self.spellings) == len(set(self.spellings)), self.name
        assert len(self.labels) != 1 and (not self.labels or self.score_range is None), self.name
        assert self.best_metric in self.metrics, self.name

    @property
    def best_metric(self) -> str:
        """The metric that chooses the best weights."""
        return self.best or self.metrics[0]

    @property
    def is_regression(self) -> bool:
        """Tell whether the labels are numbers, not classes."""
        return not self.labels

    @property
    def num_outputs(self) -> int:
        """Width of the model's last layer: one for each class, or one for a score."""
        return len(self.labels) or 1

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits a data set of the task may have."""
        return task_splits(self.name)

    def splits_of(self, *kinds: str) -> tuple[str, ...]:
        """Return the splits whose kind (train, dev, test) is among `kinds`."""
        return tuple(split for split in self.splits if kind_of(split) in kinds)

    @property
    def allowed(self) -> str:
        """What a label may be, for messages."""
        if self.is_regression:
            low, high = self.score_range or (-math.inf, math.inf)
            return f"numbers from {low:g} to {high:g}" if self.score_range else "finite numbers"
        words = dict.fromkeys((*self.spellings, *self.labels))
        return ", ".join(words)


_NLI = ("entailment", "neutral", "contradiction")
_TWO_WAY = ("entailment", "not_entailment")
_STSB = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")
TASKS: dict[str, Task] = {
    row.name: row
    for row in (
        Task(
            name="cola",
            columns=Columns(first=("sentence",), label=("label",)),
            labels=("unacceptable", "acceptable"),
            spellings=("0", "1"),
            metrics=("matthews_correlation",),
            server_name="CoLA",
            headerless=(("source", "label", "mark", "sentence"),),
        ),
        Task(
            name="sst2",
            columns=Columns(first=("sentence",), label=("label",)),
            labels=("negative", "positive"),
            spellings=("0", "1"),
            metrics=("accuracy",),
            server_name="SST-2",
            headerless=(("sentence", "label"),),
        ),
        Task(
            name="mrpc",
            columns=Columns(
                first=("#1 String", "sentence1"),
                second=("#2 String", "sentence2"),
                label=("Quality", "label"),
            ),
            labels=("not_equivalent", "equivalent"),
            spellings=("0", "1"),
            metrics=("accuracy", "f1"),
            best="f1",
            server_name="MRPC",
        ),
        Task(
            name="qqp",
            columns=Columns(
                first=("question1",),
                second=("question2",),
                label=("is_duplicate", "label"),
                index=("id", "idx", "index"),
            ),
            labels=("not_duplicate", "duplicate"),
            spellings=("0", "1"),
            metrics=("accuracy", "f1"),
            best="f1",
            server_name="QQP",
        ),
        Task(
            name="stsb",
            columns=Columns(first=("sentence1",), second=("sentence2",), label=("score", "label")),
            score_range=(0.0, 5.0),
            metrics=("pearson", "spearmanr"),
            server_name="STS-B",
            headerless=(_STSB, (*_STSB, "source1", "source2")),
        ),
        Task(
            name="mnli",
            columns=Columns(
                first=("sentence1", "premise"),
                second=("sentence2", "hypothesis"),
                label=("gold_label", "label"),
            ),
            labels=_NLI,
            spellings=_NLI,
            metrics=("accuracy",),
            server_name="MNLI",
        ),
        Task(
            name="qnli",
            columns=Columns(first=("question",), second=("sentence",), label=("label",)),
            labels=_TWO_WAY,
            spellings=_TWO_WAY,
            metrics=("accuracy",),
            server_name="QNLI",
        ),
        Task(
            name="rte",
            columns=Columns(first=("sentence1",), second=("sentence2",), label=("label",)),
            labels=_TWO_WAY,
            spellings=_TWO_WAY,
            metrics=("accuracy",),
            server_name="RTE",
        ),
        Task(
            name="wnli",
            columns=Columns(first=("sentence1",), second=("sentence2",), label=("label",)),
            labels=("not_entailment", "entailment"),
            spellings=("0", "1"),
            metrics=("accuracy",),
            server_name="WNLI",
        ),
        Task(
            name="ax",
            columns=Columns(
                first=("sentence1", "premise", "Premise"),
                second=("sentence2", "hypothesis", "Hypothesis"),
                label=("label", "Label"),
            ),
            labels=_NLI,
            spellings=_NLI,
            metrics=("matthews_correlation",),
            server_name="AX",
        ),
    )
}
assert tuple(TASKS) == GLUE


def task_of(data: TaskSettings) -> Task:
    """Return the task that the settings name, or describe under `columns`."""
    if data.columns is None:
        return TASKS[data.task]
    given, labels = data.columns, data.columns.labels or ()
    return Task(
        name=data.task,
        columns=Columns(
            first=(given.first,),
            label=(given.label,),
            second=(given.second,) if given.second else (),
            index=(given.index,) if given.index else (),
        ),
        labels=labels,
        spellings=labels,
        metrics=given.metrics or (("accuracy",) if labels else SCORE_METRICS),
        server_name=data.task,
    )


def kind_of(split: str) -> str:
    """Return train, dev or test: dev for dev_mismatched."""
    return split.partition("_")[0]


def prefix_of(split: str) -> str:
    """Return the prefix of a split's scores: eval for dev, eval_matched for dev_matched."""
    kind, _, part = split.partition("_")
    return _PREFIX[kind] + (f"_{part}" if part else "")


def prediction_file(task: Task, split: str) -> str:
    """Return the name of a split's predictions; a test split's is the one the server wants.

    MNLI-m.tsv for test_matched, MNLI-m-dev.tsv for dev_matched.
    """
    kind, _, part = split.partition("_")
    kind = "" if kind == "test" else f"-{kind}"
    return f"{task.server_name}{_SERVER_PARTS[part]}{kind}.tsv"


def write_predictions(
    path: Path, task: Task, ids: Sequence[int], predictions: Sequence[float]
) -> None:
    """Write the GLUE server's form: a header `index<TAB>prediction`, then one row an example.

    `ids` and `predictions` hold N each. A class number is spelled as in the task's files; a score
    is brought into the task's range and has 3 decimals, as STS-B's. `nan`: the model gave no finite
    number, or for class -1 no finite logits.
    Written aside and renamed, so `path` is never half a file. Raises OSError when it cannot be.
    """
    assert len(ids) == len(predictions), (len(ids), len(predictions))
    assert len(set(ids)) == len(ids), "an id occurs twice"
    rows = ["index\tprediction"]
    for index, prediction in zip(ids, predictions, strict=True):
        rows.append(f"{operator.index(index)}\t{_spelled(task, prediction)}")
    write_text(path, "\n".join(rows) + "\n")


def _spelled(task: Task, prediction: float) -> str:
    if task.is_regression:
        if task.score_range is not None and not math.isnan(prediction):
            low, high = task.score_range
            prediction = min(max(prediction, low), high)
        return f"{prediction:.3f}"
    label = operator.index(prediction)  # type: ignore[arg-type]  # a class is no float
    if label == -1:
        return "nan"
    assert 0 <= label < len(task.labels), f"class {label} of {len(task.labels)}"
    return task.spellings[label]
