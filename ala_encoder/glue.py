"""GLUE tasks, one declarative row each, and the exact reading of their tab-separated files.

For: turning `train.tsv`, `dev.tsv`, `test.tsv` (or `.tsv.gz`) into texts, labels and ids, and
writing predictions in the form the GLUE server takes (Wang et al. 2018, arXiv:1804.07461).
Not for: tokenizing, batching, or scores (`metrics`).

The format, read by one rule for every task:
- UTF-8 only; a byte-order mark is stripped at the very start, any later one is text.
- Only LF ends a line, one CR before it is stripped and noted; U+2028, U+0085, a lone CR are text.
- There is no quoting: `"` is a plain character. A text cell is kept as it stands, even empty.
- The first line is a header when its cells are known column names, in any order, each once, and
  hold the sentences. Otherwise the task's `headerless` columns are taken; a task without those
  refuses the file.
- A test split is unlabelled when it has no label column or every label is -1.
"""

from __future__ import annotations

import gzip
import operator
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ala_encoder.errors import UserError, nearest

_UNLABELLED = "-1"
_SPLITS = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}


@dataclass(frozen=True)
class Columns:
    """Names of a task's columns; `other` are known and ignored."""

    first: str
    label: str
    second: str | None = None
    index: str = "index"
    other: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """The one or two sentence columns."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def known(self) -> tuple[str, ...]:
        """Every name a header may hold."""
        return (self.index, self.label, *self.other, *self.texts)


@dataclass(frozen=True)
class Task:
    """One GLUE task: where its columns are, what its labels mean, how it is scored.

    `labels` are the names in class order and `label_cells` their spelling in the files and in the
    predictions. `headerless` names the columns of a file without a header; empty: it must have one.
    """

    name: str
    columns: Columns
    labels: tuple[str, ...]
    label_cells: tuple[str, ...]
    metrics: tuple[str, ...]
    best_metric: str
    server_file: str
    headerless: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=lambda: dict(_SPLITS), hash=False)

    def __post_init__(self) -> None:
        assert len(self.labels) == len(self.label_cells) == len(set(self.label_cells)), self.name
        assert self.best_metric in self.metrics, self.name
        assert set(self.headerless) <= set(self.columns.known), self.name

    @property
    def num_labels(self) -> int:
        """Classes of the task: the width of its classifier."""
        return len(self.labels)


TASKS: dict[str, Task] = {
    row.name: row
    for row in (
        Task(
            name="sst2",
            columns=Columns(first="sentence", label="label"),
            labels=("negative", "positive"),
            label_cells=("0", "1"),
            metrics=("accuracy",),
            best_metric="accuracy",
            server_file="SST-2.tsv",
            headerless=("sentence", "label"),
        ),
        Task(
            name="mrpc",
            columns=Columns(
                first="#1 String", second="#2 String", label="Quality", other=("#1 ID", "#2 ID")
            ),
            labels=("not_equivalent", "equivalent"),
            label_cells=("0", "1"),
            metrics=("accuracy", "f1"),
            best_metric="f1",
            server_file="MRPC.tsv",
        ),
    )
}


def task(name: str) -> Task:
    """Return the task called `name`; raises UserError, with the nearest name, when unknown."""
    if name not in TASKS:
        hint = nearest(name.lower(), TASKS)
        raise UserError(f"GLUE task {_shown(name)}: allowed are {', '.join(TASKS)}{hint}")
    return TASKS[name]


@dataclass(frozen=True)
class Examples:
    """The rows of one split, N in file order.

    `labels` are class numbers, None for an unlabelled split. `ids` come from the index column,
    else they count the file's rows from 0, skipped ones included. `notes` are sentences for the
    user on whatever was not read as it stood.
    """

    first: list[str]
    second: list[str] | None
    labels: list[int] | None
    ids: list[int]
    source: str
    skipped: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for column in (self.second, self.labels, self.ids):
            assert column is None or len(column) == len(self.first), self.source

    def __len__(self) -> int:
        return len(self.first)


class _Layout(NamedTuple):
    """How the lines of one file are to be read."""

    task: Task
    path: Path
    names: tuple[str, ...]  # of the columns
    header: int  # lines of it: 0 or 1
    test: bool  # a test split, where labels may be missing


class _Row(NamedTuple):
    line: int  # 1-based, in the file
    id: int
    texts: tuple[str, ...]
    label: int | None  # None: no label column, or -1 in a test split


class _BadRow(Exception):
    """What is wrong with one row, without the place."""


def read_split(
    task: Task, folder: Path, split: str, *, on_bad_row: Literal["error", "skip"] = "error"
) -> Examples:
    """Read one split of `task` from `folder`; see the module's head for the format.

    A bad row has a wrong number of columns, an unknown label, or an index that is no whole number
    or came before. `on_bad_row="error"` raises with file:line; "skip" leaves such rows out,
    counts them in `skipped` and notes the first. A plain file goes before a `.gz` beside it.

    Raises UserError for a bad row (by policy), and under either policy for an unknown split, a
    missing or unreadable file, bytes that are not UTF-8, a header that is needed and not there,
    train or dev without labels, and a split without any row left.
    """
    assert on_bad_row in ("error", "skip"), on_bad_row
    path = _find(task, folder, split)
    lines, notes = _lines(path)
    rows, bad = _rows(_layout(task, path, split, lines), lines)
    if bad and on_bad_row == "error":
        raise UserError(bad[0])
    if not rows:
        why = f"all {len(bad)} rows are bad, the first: {bad[0]}" if bad else "only a header"
        raise UserError(f"{path}: split {split!r} of {task.name} is empty: {why}")
    if bad:
        notes.append(f"{path}: {len(bad)} bad rows skipped, the first: {bad[0]}")
    labels = [row.label for row in rows if row.label is not None]
    if not labels:
        notes.append(f"{path}: unlabelled, so it can be predicted but not scored")
    return Examples(
        first=[row.texts[0] for row in rows],
        second=None if task.columns.second is None else [row.texts[1] for row in rows],
        labels=labels or None,
        ids=[row.id for row in rows],
        source=str(path),
        skipped=len(bad),
        notes=tuple(notes),
    )


def write_predictions(
    path: Path, task: Task, ids: Sequence[int], predictions: Sequence[int]
) -> None:
    """Write the GLUE server's form: a header `index<TAB>prediction`, then one row an example.

    `ids` and `predictions` (class numbers) hold N each; a class is spelled as in the task's files.
    Written aside and renamed, so `path` is never half a file. Raises OSError when it cannot be.
    """
    assert len(ids) == len(predictions), (len(ids), len(predictions))
    assert len(set(ids)) == len(ids), "an id occurs twice"
    rows = ["index\tprediction"]
    for index, prediction in zip(ids, predictions, strict=True):
        label = operator.index(prediction)
        assert 0 <= label < task.num_labels, f"class {label} of {task.num_labels} for id {index}"
        rows.append(f"{operator.index(index)}\t{task.label_cells[label]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with open(aside, "w", encoding="utf-8", newline="\n") as out:
            out.write("\n".join(rows) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _find(task: Task, folder: Path, split: str) -> Path:
    if split not in task.files:
        allowed = ", ".join(task.files)
        hint = nearest(split, task.files)
        raise UserError(f"split {_shown(split)} of {task.name}: allowed are {allowed}{hint}")
    name = task.files[split]
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    try:
        found = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise UserError(f"{folder}: no folder to read {task.name} from: {error.strerror}") from None
    more = f" and {len(found) - 20} more" if len(found) > 20 else ""
    listing = (", ".join(found[:20]) + more) or "nothing"
    raise UserError(f"{folder}: has neither {name} nor {name}.gz; it has {listing}")


def _lines(path: Path) -> tuple[list[str], list[str]]:
    """Return the lines of a file, ends stripped, and notes on what was stripped."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data:
        raise UserError(f"{path}: the file is empty, not even a header")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = data[error.start : error.end].hex(" ")
        raise UserError(f"{path}:{line}: not UTF-8 (bytes {found}); save it as UTF-8") from None
    # not splitlines(): that cuts at U+2028, U+0085, form feeds and a lone CR as well
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    carriage_returns = sum(line.endswith("\r") for line in lines)
    if not carriage_returns:
        return lines, []
    note = f"{path}: {carriage_returns} of {len(lines)} lines end in CR LF; the CR was stripped"
    return [line.removesuffix("\r") for line in lines], [note]


def _layout(task: Task, path: Path, split: str, lines: Sequence[str]) -> _Layout:
    columns = task.columns
    first = tuple(lines[0].split("\t"))
    distinct = set(first)
    if len(first) == len(distinct) and set(columns.texts) <= distinct <= set(columns.known):
        names, header = first, 1
    elif task.headerless:
        names, header = task.headerless, 0
    else:
        raise UserError(
            f"{path}:1: {_shown(' | '.join(first))} is no header of {task.name}: needed are "
            f"{', '.join(columns.texts)}, allowed are {', '.join(columns.known)}"
        )
    test = split.startswith("test")
    if columns.label not in names and not test:
        raise UserError(
            f"{path}:1: split {split!r} of {task.name} has no label column {columns.label!r}; "
            f"it has {', '.join(names)}, and only a test split may be unlabelled"
        )
    return _Layout(task, path, names, header, test)


def _rows(layout: _Layout, lines: Sequence[str]) -> tuple[list[_Row], list[str]]:
    """Return the good rows, and the bad ones as file:line and reason, in file order."""
    task, header = layout.task, layout.header
    rows: list[_Row] = []
    bad: list[tuple[int, str]] = []
    seen: set[int] = set()
    for number, line in enumerate(lines[header:], start=header + 1):
        try:
            row = _row(layout, number, line.split("\t"))
            if row.id in seen:
                raise _BadRow(f"index {row.id} occurs a second time")
        except _BadRow as error:
            known = ", ".join(task.columns.known)
            hint = f" (nor is line 1 a header of: {known})" if number == 1 else ""
            bad.append((number, f"{error}{hint}"))
        else:
            seen.add(row.id)
            rows.append(row)
    labelled = [row for row in rows if row.label is not None]
    if 0 < len(labelled) < len(rows):
        allowed = ", ".join(task.label_cells)
        reason = f"label '-1' among labelled rows, allowed are {allowed}, or -1 in every row"
        bad += [(row.line, reason) for row in rows if row.label is None]
        rows = labelled
    return rows, [f"{layout.path}:{number}: {reason}" for number, reason in sorted(bad)]


def _row(layout: _Layout, number: int, cells: Sequence[str]) -> _Row:
    task, _, names, header, test = layout
    if len(cells) != len(names):
        raise _BadRow(f"{len(cells)} columns, allowed are {len(names)}: {', '.join(names)}")
    columns = task.columns
    cell = dict(zip(names, cells, strict=True))
    digits = cell.get(columns.index, str(number - header - 1))
    # int() alone would take "1_0", " 1" and digits of other scripts
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise _BadRow(f"index {_shown(digits)} is no whole number of up to 18 digits")
    label = None
    found = cell.get(columns.label, _UNLABELLED)
    if found in task.label_cells:
        label = task.label_cells.index(found)
    elif not (test and found == _UNLABELLED):
        raise _BadRow(f"label {_shown(found)}, allowed are {', '.join(task.label_cells)}")
    return _Row(number, int(digits), tuple(cell[name] for name in columns.texts), label)


def _shown(text: str) -> str:
    """Quote what was found, short enough for a one-line message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
