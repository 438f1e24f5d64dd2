"""Rows of tables, one record at a time: JSONL, CSV and Parquet files.

For: whatever has named columns, corpora and tasks alike. Not for: what a column means, TSV in
GLUE's own layouts (`glue`), data sets by name (`named_datasets`).

Text is cleaned by `Reading`, whatever it came in; a bad row is an error or skipped, by its policy.
Cells are what the table holds, nested values included: whoever uses a column checks it. Integers of
a `ClassLabel` become its names; -1, "no label", stays -1.

CSV is RFC 4180: a header, commas, quoted cells that may hold LF. A quote that never closes spoils
its own line, not the rest of the file.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ala_encoder.errors import UserError, reason
from ala_encoder.files import json_object
from ala_encoder.lines import MAX_LINE, Reading, read_lines

if TYPE_CHECKING:
    import pyarrow as pa

JSON_ENDINGS = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
CSV_ENDINGS = (".csv", ".csv.gz")
ENDINGS = (*JSON_ENDINGS, *CSV_ENDINGS, ".parquet")
AT_ONCE = 1024
"""Rows of Arrow data turned into Python values at once."""


class Record(NamedTuple):
    """One row: its number, where it stands, for messages, and its cells by column."""

    number: int
    """The row's number in its file or split from 0, those that were skipped counted."""
    place: str
    """`reviews.jsonl:12` by line, or `reviews.parquet, row 12`; both count from 1."""
    cells: dict[str, object]


def records(path: Path, reading: Reading) -> Iterator[Record]:
    """Yield the rows of a file, by its ending; empty lines of JSONL and CSV are no rows.

    Raises UserError, naming the path, for another ending and for a file that cannot be read; and
    for a bad row by the policy.
    """
    name = path.name.lower()
    if name.endswith(JSON_ENDINGS):
        return _json_records(path, reading)
    if name.endswith(CSV_ENDINGS):
        return _csv_records(path, reading)
    if name.endswith(".parquet"):
        return _parquet_records(path, reading)
    raise UserError(f"{path}: not a table; allowed endings are {', '.join(ENDINGS)}")


# ---------------------------------------------------------------------------------------------
# JSONL
# ---------------------------------------------------------------------------------------------


def _json_records(path: Path, reading: Reading) -> Iterator[Record]:
    empty = 0
    for line_number, line in read_lines(path, reading):
        if not line.strip():
            empty += 1
            continue
        place = f"{path}:{line_number}"
        try:
            row = json_object(line)
        except ValueError as error:
            reading.refuse(place, str(error))
        else:
            yield make_record(line_number - 1 - empty, place, row, reading)


def make_record(number: int, place: str, row: Mapping[str, object], reading: Reading) -> Record:
    """Return a row as a record, its text cleaned."""
    cells = {k: reading.clean(v) if isinstance(v, str) else v for k, v in row.items()}
    return Record(number, place, cells)


# ---------------------------------------------------------------------------------------------
# CSV
# ---------------------------------------------------------------------------------------------


def _csv_records(path: Path, reading: Reading) -> Iterator[Record]:
    rows = _csv_rows(path, reading)
    first, line_number, header = next(rows, (0, 1, []))
    if not header:
        raise UserError(f"{path}: empty; a header of column names is needed")
    if len(set(header)) < len(header):
        raise UserError(f"{path}:{line_number}: the header names a column twice")
    for number, line_number, row in rows:
        place = f"{path}:{line_number}"
        if len(row) == len(header):
            cells = dict(zip(header, row, strict=True))
            yield make_record(number - first - 1, place, cells, reading)
        else:
            reading.refuse(place, f"{len(row)} cells, the header has {len(header)}")


def _csv_rows(path: Path, reading: Reading) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (number, line number of the first line, cells) of each row of one line or more.

    An even number of quotes ends a row. Where that gives no row, the lines after the first are
    read again, so that one stray quote costs one row. A row's number, from 0, counts those that
    were skipped.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # the library's is 128 KiB
    source = read_lines(path, reading)
    again: deque[tuple[int, str]] = deque()
    no_rows = 0  # lines that are empty, or a row's second and following
    while (first := again.popleft() if again else next(source, None)) is not None:
        line_number, line = first
        taken = [first]
        size, quotes = len(line), line.count('"')
        while quotes % 2 and size <= MAX_LINE:
            following = again.popleft() if again else next(source, None)
            if following is None:
                break
            taken.append(following)
            size, quotes = size + len(following[1]), quotes + following[1].count('"')
        why = "a quote that opens here never closes"
        if quotes % 2 == 0:
            try:
                row = next(csv.reader(["\n".join(text for _, text in taken)], strict=True), [])
            except csv.Error as error:
                why = f"not CSV: {error}"
            else:
                if row:
                    yield line_number - 1 - no_rows, line_number, row
                no_rows += len(taken) - bool(row)
                continue
        again.extendleft(reversed(taken[1:]))
        reading.refuse(f"{path}:{line_number}", why)


# ---------------------------------------------------------------------------------------------
# Arrow: Parquet files
# ---------------------------------------------------------------------------------------------


def _parquet_records(path: Path, reading: Reading) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start = 0
    try:
        with pq.ParquetFile(path) as file:
            labels = label_names(file.schema_arrow)
            for batch in file.iter_batches(AT_ONCE):
                for row in arrow_rows(batch, labels):
                    yield make_record(start, f"{path}, row {start + 1}", row, reading)
                    start += 1
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        after = f" after row {start}" if start else ""
        raise UserError(f"{path}: cannot be read as Parquet{after}: {reason(error)}") from None


def label_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the names of each `ClassLabel` column that Hugging Face's metadata tells of."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    import datasets

    features = datasets.Features.from_arrow_schema(schema)
    return {
        column: feature.names
        for column, feature in features.items()
        if isinstance(feature, datasets.ClassLabel)
    }


def arrow_rows(
    table: pa.Table | pa.RecordBatch, labels: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, object]]:
    """Yield the rows of Arrow data as cells by column; `labels` are those of `label_names`.

    Raises ValueError for a column name that appears twice.
    """
    names = table.schema.names
    if len(set(names)) < len(names):
        raise ValueError("a column name appears twice")
    columns = [table.column(index).to_pylist() for index in range(len(names))]
    for index, name in enumerate(names):
        if known := labels.get(name):
            columns[index] = [
                known[value] if value is not None and 0 <= value < len(known) else value
                for value in columns[index]
            ]
    for cells in zip(*columns, strict=True):
        yield dict(zip(names, cells, strict=True))
