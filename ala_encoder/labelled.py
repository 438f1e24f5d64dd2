"""The rows of a task's split, read and checked one by one.

For: texts, labels and ids out of TSV, JSONL, CSV and Parquet files and named data sets alike. Not
for: where they are (`splits`), what the columns mean (`glue`), lines and records (`lines`,
`tables`), tokenizing (`examples`).

- A TSV file has no quoting: `"` is a plain character. Its first line is a header when it holds the
  names of the sentence columns, in any order, each once; otherwise the task's `headerless` columns
  are taken, and a task without those refuses the file.
- Columns are found by name, any others are ignored. A text is kept as it stands, even empty.
- A label is the class's name or its spelling in the task's files, or a number in the score's range.
- A test split is unlabelled when it has no label column or every label is -1 or empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ala_encoder.errors import UserError
from ala_encoder.glue import TASKS, Task, kind_of, quoted
from ala_encoder.lines import BadRowPolicy, Reading, read_lines
from ala_encoder.settings.task import Rows
from ala_encoder.tables import ENDINGS, Record, records

_TSV = (".tsv", ".txt")
_NO_LABEL = (None, "", "-1", -1)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class Examples:
    """The rows of one split, N in file order.

    `labels` are class numbers or scores, None for an unlabelled split. `ids` come from the index
    column, else they count the rows from 0, skipped ones included. `notes` are sentences for the
    user on whatever was not read as it stood.
    """

    first: list[str]
    second: list[str] | None
    labels: list[int] | list[float] | None
    ids: list[int]
    source: str
    skipped: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for column in (self.second, self.labels, self.ids):
            assert column is None or len(column) == len(self.first), self.source

    def __len__(self) -> int:
        return len(self.first)


@dataclass(frozen=True)
class Source:
    """Where the rows of one split are."""

    name: str
    """Path of the file, or data set and split."""
    rows: Rows
    """Which of its rows; named by the resolved path, or by data set and split."""
    records: Callable[[Reading], Iterator[Record]]


# ---- records -------------------------------------------------------------------------------------


def open_records(path: Path) -> Callable[[Path, Task, Reading], Iterator[Record]]:
    """Return what yields the records of a file, by its ending; UserError for another ending."""
    if path.name.removesuffix(".gz").endswith(_TSV):
        return _tsv_records
    if path.name.lower().endswith(ENDINGS):
        return lambda path, _, reading: records(path, reading)
    allowed = ", ".join((*_TSV, *(f"{ending}.gz" for ending in _TSV), *ENDINGS))
    raise UserError(f"{path}: not a table; allowed endings are {allowed}")


def _tsv_records(path: Path, task: Task, reading: Reading) -> Iterator[Record]:
    layouts: tuple[tuple[str, ...], ...] | None = None
    for number, line in read_lines(path, reading):
        cells = tuple(line.split("\t"))
        if layouts is None:
            if _is_header(task, cells):
                layouts = (cells,)
                continue
            layouts = task.headerless
            if not layouts:
                raise UserError(f"{path}:{number}: {_no_header(task, cells)}")
        names = next((names for names in layouts if len(names) == len(cells)), None)
        if names is None:
            allowed = " or ".join(f"{len(names)} ({', '.join(names)})" for names in layouts)
            hint = _header_hint(task) if number == 1 else ""
            reading.refuse(
                f"{path}:{number}", f"{len(cells)} columns, allowed are {_cut(allowed)}{hint}"
            )
            continue
        yield Record(f"{path}:{number}", dict(zip(names, cells, strict=True)))


def _is_header(task: Task, cells: tuple[str, ...]) -> bool:
    """Tell a header from a row, of which one cell may by chance be a column's name."""
    columns, distinct = task.columns, set(cells)
    if len(distinct) < len(cells) or not all(distinct.intersection(n) for n in columns.texts):
        return False
    like_a_row = any(len(cells) == len(names) for names in task.headerless)
    return not like_a_row or bool(distinct.intersection(columns.label + columns.index))


def _no_header(task: Task, cells: tuple[str, ...]) -> str:
    needed = ", ".join(" or ".join(map(repr, names)) for names in task.columns.texts)
    return (
        f"{quoted(' | '.join(cells))} is no header of {task.name}: needed are {needed}, each once"
    )


def _header_hint(task: Task) -> str:
    names = (*task.columns.texts, task.columns.label)
    return f" (nor is line 1 a header with {', '.join(' or '.join(some) for some in names)})"


def _cut(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


# ---- rows ----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    place: str
    id: int
    texts: tuple[str, ...]
    label: float | None  # None: no label column, or no label in a test split


class _BadRow(Exception):
    """What is wrong with one row, without the place."""


def read_split(
    task: Task, source: Source, split: str, *, on_bad_row: BadRowPolicy = "error"
) -> Examples:
    """Read one split; see the module's head for the rules.

    A bad row has a wrong number of columns, no text, an unknown label, a score out of range, or an
    index that is no whole number or came before. `on_bad_row="error"` raises with file:line; "skip"
    leaves such rows out, counts them in `skipped` and notes the first.

    Raises UserError for a bad row (by policy), and under either policy for a file that cannot be
    read, a header that is needed and not there, and a split without any row left.
    """
    reading = Reading(on_bad_row)
    rows, seen = _rows(task, source, split, reading)
    unlabelled = [row for row in rows if row.label is None]
    if 0 < len(unlabelled) < len(rows):
        for row in unlabelled:
            reading.refuse(
                row.place,
                f"no label among labelled rows, allowed are {task.allowed}, or none in every row",
            )
        rows, unlabelled = [row for row in rows if row.label is not None], []
    if not rows:
        why = f"it has {seen:,} rows, none of them in {_slice(source.rows)}"
        if reading.skipped:
            why = f"all {reading.skipped} rows are bad, the first: {reading.first_skipped}"
        elif not seen:
            why = "the file is empty" if not reading.lines else "it has no row, only a header"
        raise UserError(f"{source.name}: split {split!r} of {task.name} is empty: {why}")
    notes = [f"{source.name}: {note}" for note in reading.notes()]
    if unlabelled:
        notes.append(f"{source.name}: unlabelled, so it can be predicted but not scored")
    labels: Any = [row.label for row in rows]
    return Examples(
        first=[row.texts[0] for row in rows],
        second=[row.texts[1] for row in rows] if task.columns.second else None,
        labels=None if unlabelled else labels,
        ids=[row.id for row in rows],
        source=source.name,
        skipped=reading.skipped,
        notes=tuple(notes),
    )


def _rows(task: Task, source: Source, split: str, reading: Reading) -> tuple[list[_Row], int]:
    """Return the good rows of the wanted ones, and how many rows were looked at."""
    _, start, stop = source.rows
    rows: list[_Row] = []
    ids: set[int] = set()
    yielded = refused = 0
    for place, cells in source.records(reading):
        # rows that the reader itself skipped keep their numbers
        number = yielded + reading.skipped - refused
        if stop is not None and number >= stop:
            break
        yielded += 1
        if number < start:
            continue
        try:
            row = _row(task, place, cells, number, is_test=kind_of(split) == "test")
            if row.id in ids:
                raise _BadRow(f"index {row.id} occurs a second time")
        except _BadRow as error:
            hint = _header_hint(task) if _is_first_line(task, place) else ""
            reading.refuse(place, f"{error}{hint}")
            refused += 1
        else:
            ids.add(row.id)
            rows.append(row)
    return rows, yielded + reading.skipped - refused


def _is_first_line(task: Task, place: str) -> bool:
    return bool(task.headerless) and place.removesuffix(".gz:1").removesuffix(":1").endswith(_TSV)


def _slice(rows: Rows) -> str:
    return f"[{rows.start}:{'' if rows.stop is None else rows.stop}]"


def _row(task: Task, place: str, cells: Mapping[str, Any], number: int, *, is_test: bool) -> _Row:
    columns = task.columns
    texts = []
    for names in columns.texts:
        text = cells[_column(cells, names)]
        if not isinstance(text, str):
            raise _BadRow(f"{_column(cells, names)} is {quoted(text)}, allowed is a text")
        texts.append(text)
    label = None
    if not (is_test and not any(name in cells for name in columns.label)):
        label = _label(task, cells[_column(cells, columns.label)], is_test)
    index = next((cells[name] for name in columns.index if name in cells), number)
    return _Row(place, _index(index), tuple(texts), label)


def _column(cells: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        if name in cells:
            return name
    wanted = " or ".join(map(repr, names))
    raise _BadRow(f"has no column {wanted}; it has {_cut(', '.join(cells))}")


def _index(value: Any) -> int:
    digits = value if isinstance(value, str) else str(value)  # True and 1.0 are no digits
    # int() alone would take "1_0", " 1" and digits of other scripts
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise _BadRow(f"index {quoted(digits)} is no whole number of up to 18 digits")
    return int(digits)


def _label(task: Task, value: Any, is_test: bool) -> float | None:
    label = _score(task, value) if task.is_regression else _class(task, value)
    if label is not None or (is_test and value in _NO_LABEL):
        return label
    hint = "" if task.name in TASKS else " (data.columns.labels)"
    raise _BadRow(f"label {quoted(value)}, allowed are {task.allowed}{hint}")


def _class(task: Task, value: Any) -> int | None:
    if isinstance(value, str):
        names: tuple[str, ...] = task.labels
    elif isinstance(value, int) and not isinstance(value, bool):
        names, value = (), str(value)  # a number counts where the task's own files write that one
    else:
        return None
    for spelled in (task.spellings, names):
        if value in spelled:
            return spelled.index(value)
    return None


def _score(task: Task, value: Any) -> float | None:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        score = float(value)
    except OverflowError:  # JSON's whole numbers know no bounds
        return None
    low, high = task.score_range or (-math.inf, math.inf)
    return score if math.isfinite(score) and low <= score <= high else None
