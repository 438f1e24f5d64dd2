"""Where the rows of a task's splits are: files of a folder, or splits of a named data set.

For: finding them, naming the data in every output, and keeping what is trained on apart from what
is scored. Not for: reading them (`labelled`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ala_encoder.errors import UserError, nearest, reason, shown
from ala_encoder.glue import TASKS, Task, kind_of
from ala_encoder.lines import Reading
from ala_encoder.named_datasets import NamedDataset
from ala_encoder.settings.task import Rows, TaskSettings
from ala_encoder.tables import Record
from ala_encoder.task_files import ENDINGS, read_records

_SUFFIXES = (".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet")
"""Of a split's file, in the order they are looked for."""
_STEMS = {"ax": "diagnostic"}
_GLUE_DATASETS = ("glue", "nyu-mll/glue")


@dataclass(frozen=True)
class SplitSource:
    """Where the rows of one split are."""

    name: str
    """Path of the file, or data set and split, for messages."""
    identity: str
    """The same for whatever leads to the same rows: the resolved path, or data set and split."""
    rows: Rows
    """Which of its rows, as the user wrote it."""
    records: Callable[[Reading], Iterator[Record]]


@dataclass(frozen=True)
class Splits:
    """The splits that a folder or a data set has."""

    task: Task
    name: str
    """Name of the data in every output; says which files and rows are not the usual ones."""
    credit: str
    sources: Mapping[str, SplitSource]
    place: str
    """The folder, or the data set."""
    there: str
    """What it has, for messages."""

    def source(self, split: str) -> SplitSource:
        """Return where a split is; raises UserError for one that the task or the data lacks."""
        if split not in self.task.splits:
            allowed = ", ".join(self.task.splits)
            hint = nearest(split, self.task.splits)
            raise UserError(f"split = {shown(split)}: {self.task.name} has {allowed}{hint}")
        if split not in self.sources:
            raise UserError(
                f"split {split!r} of {self.task.name}: not found in {self.place}, which has "
                f"{self.there}; `files` names other ones"
            )
        return self.sources[split]

    def present(self, *kinds: str) -> tuple[str, ...]:
        """Return the splits of these kinds (train, dev, test) that are there."""
        return tuple(split for split in self.task.splits_of(*kinds) if split in self.sources)


def locate(task: Task, data: TaskSettings, say: Callable[[str], None] = print) -> Splits:
    """Find the splits of `task` where the settings say; `say` gets what is to be told on the way.

    Raises UserError for a folder, file or data set that is not there, and for a kind of file that
    is not read.
    """
    if data.path is not None:
        return _in_folder(task, data, data.path, data.path.resolve().name, "user's files")
    if data.dataset is not None:
        return _in_dataset(task, data, data.dataset, say)
    from ala_encoder.quickstart import embedded_classification

    embedded = embedded_classification(data.cache, say)
    folder = embedded.files["train"].parent
    return _in_folder(task, data, folder, embedded.name, embedded.credit)


def check_apart(splits: Splits, names: Sequence[str]) -> None:
    """Raise UserError when a row that is trained on is also one of another split's."""
    for train, other in itertools.product(names, names):
        if kind_of(train) != "train" or kind_of(other) == "train":
            continue
        a, b = splits.source(train), splits.source(other)
        if a.identity == b.identity and a.rows.overlaps(b.rows):
            raise UserError(
                f"files: {train} and {other} share rows of {b.name}; give each "
                "its own, as in [:4000] and [4000:]"
            )


def _in_folder(task: Task, data: TaskSettings, folder: Path, name: str, credit: str) -> Splits:
    there, files = _listing(task, folder), data.files or {}
    sources = {}
    for split in task.splits:
        given = files.get(split)
        rows = Rows(_STEMS.get(task.name, split)) if given is None else Rows.parse(given)
        suffixes = _SUFFIXES if given is None else ("", ".gz")
        paths = [folder / f"{rows.name}{suffix}" for suffix in suffixes]
        path = next((path for path in paths if path.is_file()), None)
        if path is not None:
            if not path.name.lower().endswith(ENDINGS):
                raise UserError(f"{path}: not a table; allowed endings are {', '.join(ENDINGS)}")
            records = partial(read_records, path, task)
            sources[split] = SplitSource(str(path), str(path.resolve()), rows, records)
        elif given is not None:
            raise UserError(f"files.{split}: {folder} has no {rows.name}; it has {there}")
    return Splits(task, _with_files(name, files), credit, sources, str(folder), there)


def _listing(task: Task, folder: Path) -> str:
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: no folder to read {task.name} from: {reason(error)}") from None
    more = f" and {len(found) - 20} more" if len(found) > 20 else ""
    return (", ".join(found[:20]) + more) or "nothing"


def _in_dataset(task: Task, data: TaskSettings, name: str, say: Callable[[str], None]) -> Splits:
    config = data.config
    if config is None and name in _GLUE_DATASETS and task.name in TASKS:
        config = None if Path(name).is_dir() else task.name  # a local copy holds one task
    dataset = NamedDataset(name, config, data.revision, say=say)
    there, files = ", ".join(dataset.splits), data.files or {}
    sources = {}
    for split in task.splits:
        given = files.get(split)
        text = given or split.replace("dev", "validation")
        rows = Rows.parse(text)
        if rows.name in dataset.splits:
            place = f"{dataset}[{rows.name}]"
            sources[split] = SplitSource(place, place, rows, partial(dataset.records, text))
        elif given is not None:
            hint = nearest(rows.name, dataset.splits)
            raise UserError(f"files.{split}: {dataset} has no {rows.name}, but {there}{hint}")
    label = f"{dataset}@{data.revision}" if data.revision else str(dataset)
    whole = _with_files(label, files)
    return Splits(task, whole, f"data set {label}", sources, str(dataset), there)


def _with_files(name: str, files: Mapping[str, str]) -> str:
    given = ", ".join(f"{split} {rows}" for split, rows in files.items())
    return f"{name} ({given})" if given else name
