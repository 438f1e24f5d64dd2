"""The rows of a task's split, read and checked one by one.

For: texts, labels and ids out of TSV, JSONL, CSV and Parquet files and named data sets alike. Not
for: where they are (`splits`), what the columns mean (`glue`), records (`task_files`, `tables`),
tokenizing (`examples`).

- Columns are found by name, any others are ignored. A text is kept as it stands, even empty.
- A label is the class's name or its spelling in the task's files, or a number in the score's range.
- A test split is unlabelled when it has no label column or every label is -1 or empty.
- Of a slice the rows outside it are no matter, good or bad.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ala_encoder.errors import UserError, shown
from ala_encoder.glue import TASKS, Task, kind_of
from ala_encoder.lines import Reading
from ala_encoder.settings.base import BadRowPolicy
from ala_encoder.splits import SplitSource
from ala_encoder.tables import Record

_NO_LABEL = (None, "", "-1", -1)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class LabelledRows:
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


class _Row(NamedTuple):
    place: str
    id: int
    texts: tuple[str, ...]
    label: float | None  # None: no label column, or no label in a test split


@dataclass
class _HeldReading(Reading):
    """Holds what a reader refuses until it is known whether the row is wanted."""

    held: list[tuple[str, str]] = field(default_factory=list)
    """Place, and why."""

    def refuse(self, place: str, why: str) -> None:
        self.held.append((place, why))


class _BadRow(Exception):
    """What is wrong with one row, without the place."""


def read_split(
    task: Task, source: SplitSource, split: str, *, on_bad_row: BadRowPolicy = "error"
) -> LabelledRows:
    """Read one split; see the module's head for the rules.

    A bad row has a wrong number of columns, no text, an unknown label, a score out of range, or an
    index that is no whole number or came before. `on_bad_row="error"` raises with file:line; "skip"
    leaves such rows out, counts them in `skipped` and notes the first.

    Raises UserError for a bad row (by policy), and under either policy for a file that cannot be
    read, a header that is needed and not there, and a split without any row left.
    """
    reader, bad = _HeldReading(), Reading(on_bad_row)
    rows, seen = _rows(task, source, split, reader, bad)
    unlabelled = [row for row in rows if row.label is None]
    if 0 < len(unlabelled) < len(rows):
        for row in unlabelled:
            bad.refuse(
                row.place,
                f"no label among labelled rows, allowed are {task.allowed}, or none in every row",
            )
        rows, unlabelled = [row for row in rows if row.label is not None], []
    if not rows:
        why = _why_empty(source, seen, reader, bad)
        raise UserError(f"{source.name}: split {split!r} of {task.name} is empty: {why}")
    notes = [f"{source.name}: {note}" for note in (*reader.notes(), *bad.notes())]
    if unlabelled:
        notes.append(f"{source.name}: unlabelled, so it can be predicted but not scored")
    labels: Any = [row.label for row in rows]
    return LabelledRows(
        first=[row.texts[0] for row in rows],
        second=[row.texts[1] for row in rows] if task.columns.second else None,
        labels=None if unlabelled else labels,
        ids=[row.id for row in rows],
        source=source.name,
        skipped=bad.skipped,
        notes=tuple(notes),
    )


def _rows(
    task: Task, source: SplitSource, split: str, reader: _HeldReading, bad: Reading
) -> tuple[list[_Row], int]:
    """Return the good rows of the wanted ones, and how many rows were looked at.

    What the reader refuses is held until the next record tells its row's number.
    """
    rows: list[_Row] = []
    ids: set[int] = set()
    seen, held = 0, reader.held
    for record in itertools.chain(source.records(reader), (None,)):
        end = seen + len(held) if record is None else record.number
        for number, (place, why) in enumerate(held, end - len(held)):
            if source.rows.holds(max(number, 0)):  # below 0: before a header
                bad.refuse(place, why)
        held.clear()
        seen = end
        if record is None or (source.rows.stop is not None and end >= source.rows.stop):
            break
        seen += 1
        if not source.rows.holds(end):
            continue
        try:
            row = _row(task, record, is_test=kind_of(split) == "test")
            if row.id in ids:
                raise _BadRow(f"index {row.id} occurs a second time")
        except _BadRow as error:
            bad.refuse(record.place, str(error))
        else:
            ids.add(row.id)
            rows.append(row)
    return rows, seen


def _why_empty(source: SplitSource, seen: int, reader: Reading, bad: Reading) -> str:
    _, start, stop = source.rows
    if bad.skipped:
        return f"all {bad.skipped} rows are bad, the first: {bad.first_skipped}"
    if start or seen:
        rows = f"[{start}:{'' if stop is None else stop}]"
        return f"none of its rows{f', {seen:,},' if seen else ''} is in {rows}"
    return "it has no row, only a header" if reader.lines else "the file is empty"


def _row(task: Task, record: Record, *, is_test: bool) -> _Row:
    columns, cells = task.columns, record.cells
    texts = []
    for names in columns.texts:
        text = cells[_column(cells, names)]
        if not isinstance(text, str):
            raise _BadRow(f"{_column(cells, names)} is {shown(text)}, allowed is a text")
        texts.append(text)
    label = None
    if not (is_test and not any(name in cells for name in columns.label)):
        label = _label(task, cells[_column(cells, columns.label)], is_test)
    index = next((cells[name] for name in columns.index if name in cells), record.number)
    return _Row(record.place, _index(index), tuple(texts), label)


def _column(cells: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        if name in cells:
            return name
    wanted = " or ".join(map(repr, names))
    raise _BadRow(f"has no column {wanted}; it has {', '.join(cells)[:200]}")


def _index(value: Any) -> int:
    digits = value if isinstance(value, str) else str(value)  # True and 1.0 are no digits
    # int() alone would take "1_0", " 1" and digits of other scripts
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise _BadRow(f"index {shown(digits)} is no whole number of up to 18 digits")
    return int(digits)


def _label(task: Task, value: Any, is_test: bool) -> float | None:
    label = _score(task, value) if task.is_regression else _class(task, value)
    if label is not None or (is_test and value in _NO_LABEL):
        return label
    hint = "" if task.name in TASKS else " (data.columns.labels)"
    raise _BadRow(f"label {shown(value)}, allowed are {task.allowed}{hint}")


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
