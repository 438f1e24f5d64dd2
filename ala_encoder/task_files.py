"""The records of a task's file: TSV in GLUE's own layouts, and whatever else is a table.

For: which columns the lines of a TSV file have. Not for: what the columns mean (`glue`), which
files there are (`splits`), other tables (`tables`).

A TSV file has no quoting: `"` is a plain character. Its first line is a header when it holds the
names of the sentence columns, in any order, each once; otherwise the task's `headerless` columns
are taken, and a task without those refuses the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ala_encoder import tables
from ala_encoder.errors import UserError, shown
from ala_encoder.glue import Task
from ala_encoder.lines import Reading, read_lines
from ala_encoder.tables import Record

_TSV = (".tsv", ".txt", ".tsv.gz", ".txt.gz")
ENDINGS = (*_TSV, *tables.ENDINGS)


def read_records(path: Path, task: Task, reading: Reading) -> Iterator[Record]:
    """Yield the records of a file, by its ending, which is one of `ENDINGS`.

    Raises UserError for a file that cannot be read, a header that is needed and not there, and for
    a bad row by the policy.
    """
    if path.name.lower().endswith(_TSV):
        return _tsv_records(path, task, reading)
    return tables.records(path, reading)


def _tsv_records(path: Path, task: Task, reading: Reading) -> Iterator[Record]:
    layouts: tuple[tuple[str, ...], ...] | None = None
    place, headers = "", 0
    for number, line in read_lines(path, reading):
        cells = tuple(line.split("\t"))
        place = f"{path}:{number}"
        if layouts is None:
            if _is_header(task, cells):
                layouts, headers = (cells,), 1
                continue
            layouts = task.headerless
            if not layouts:
                raise UserError(f"{place}: {_no_header(task, cells)}")
            place += f" (read as a row, it is no header with {_needed(task)})"
        names = next((names for names in layouts if len(names) == len(cells)), None)
        if names is None:
            allowed = " or ".join(f"{len(names)} ({', '.join(names)})" for names in layouts)
            reading.refuse(place, f"{len(cells)} columns, allowed are {allowed[:200]}")
            continue
        yield Record(number - 1 - headers, place, dict(zip(names, cells, strict=True)))


def _is_header(task: Task, cells: tuple[str, ...]) -> bool:
    """Tell a header from a row, of which one cell may by chance be a column's name."""
    columns, distinct = task.columns, set(cells)
    if len(distinct) < len(cells) or not all(distinct.intersection(n) for n in columns.texts):
        return False
    like_a_row = any(len(cells) == len(names) for names in task.headerless)
    return not like_a_row or bool(distinct.intersection(columns.label + columns.index))


def _no_header(task: Task, cells: tuple[str, ...]) -> str:
    return (
        f"{shown(' | '.join(cells))} is no header of {task.name}: needed are {_needed(task)}, each "
        "once"
    )


def _needed(task: Task) -> str:
    return ", ".join(" or ".join(map(repr, names)) for names in task.columns.texts)
