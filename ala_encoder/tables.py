"""Rows of tables, one record at a time: JSONL, CSV and Parquet files, and `datasets` by name.

For: whatever has named columns, corpora and tasks alike. Not for: what a column means, nor TSV in
GLUE's own layouts (`glue`). Text is cleaned by `Reading`, whatever it came in; a bad row is an
error or skipped, by its policy. Cells are what the table holds, nested values included: whoever
uses a column checks it. Integers of a `ClassLabel` become its names; -1, "no label", stays -1.

CSV is RFC 4180: a header, commas, quoted cells that may hold LF. A quote that never closes spoils
its own line, not the rest of the file.
"""

from __future__ import annotations

import csv
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ala_encoder.errors import UserError, nearest
from ala_encoder.hubdata import load, one_line
from ala_encoder.lines import MAX_LINE, Reading, read_lines

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

JSON_ENDINGS = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
CSV_ENDINGS = (".csv", ".csv.gz")
ENDINGS = (*JSON_ENDINGS, *CSV_ENDINGS, ".parquet")
_AT_ONCE = 1024  # rows of Arrow data turned into Python values


class Record(NamedTuple):
    """One row: where it stands, for messages, and its cells by column."""

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
    for number, line in read_lines(path, reading):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = json.loads(
                line,
                object_pairs_hook=_unique,
                parse_constant=_no_constant,
                parse_float=_finite,
            )
        except RecursionError:
            reading.refuse(place, "JSON nested too deeply")
        except ValueError as error:
            reading.refuse(place, f"not JSON: {error}")
        else:
            if isinstance(row, dict):
                yield _record(place, row, reading)
            else:
                reading.refuse(place, f"a JSON {type(row).__name__}; a line is one object {{…}}")


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key appears twice")
    return row


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is beyond a float")
    return number


def _record(place: str, row: Mapping[str, object], reading: Reading) -> Record:
    cells = {k: reading.clean(v) if isinstance(v, str) else v for k, v in row.items()}
    return Record(place, cells)


# ---------------------------------------------------------------------------------------------
# CSV
# ---------------------------------------------------------------------------------------------


def _csv_records(path: Path, reading: Reading) -> Iterator[Record]:
    rows = _csv_rows(path, reading)
    number, header = next(rows, (1, []))
    if not header:
        raise UserError(f"{path}: empty; a header of column names is needed")
    if len(set(header)) < len(header):
        raise UserError(f"{path}:{number}: the header names a column twice")
    for number, row in rows:
        if len(row) == len(header):
            yield _record(f"{path}:{number}", dict(zip(header, row, strict=True)), reading)
        else:
            reason = f"{len(row)} cells, the header has {len(header)}"
            reading.refuse(f"{path}:{number}", reason)


def _csv_rows(path: Path, reading: Reading) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number of the first line, cells) of each row of one line or more.

    An even number of quotes ends a row. Where that gives no row, the lines after the first are
    read again, so that one stray quote costs one row.
    """
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))  # the library's is 128 KiB
    source = read_lines(path, reading)
    again: deque[tuple[int, str]] = deque()
    while (first := again.popleft() if again else next(source, None)) is not None:
        number, line = first
        taken = [first]
        size, quotes = len(line), line.count('"')
        while quotes % 2 and size <= MAX_LINE:
            following = again.popleft() if again else next(source, None)
            if following is None:
                break
            taken.append(following)
            size, quotes = size + len(following[1]), quotes + following[1].count('"')
        reason = "a quote that opens here never closes"
        if quotes % 2 == 0:
            try:
                row = next(csv.reader(["\n".join(text for _, text in taken)], strict=True), [])
            except csv.Error as error:
                reason = f"not CSV: {error}"
            else:
                if row:
                    yield number, row
                continue
        again.extendleft(reversed(taken[1:]))
        reading.refuse(f"{path}:{number}", reason)


# ---------------------------------------------------------------------------------------------
# Arrow: Parquet files and `datasets`
# ---------------------------------------------------------------------------------------------


def _parquet_records(path: Path, reading: Reading) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    start = 0
    try:
        with pq.ParquetFile(path) as file:
            labels = _label_names(file.schema_arrow)
            for batch in file.iter_batches(_AT_ONCE):
                rows = list(_arrow_rows(batch, labels))
                for number, row in enumerate(rows, start + 1):
                    yield _record(f"{path}, row {number}", row, reading)
                start += len(rows)
    except UserError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        after = f" after row {start}" if start else ""
        raise UserError(f"{path}: cannot be read as Parquet{after}: {one_line(error)}") from None


def _label_names(schema: pa.Schema) -> dict[str, list[str]]:
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


def _arrow_rows(
    table: pa.Table | pa.RecordBatch, labels: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, object]]:
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


class NamedDataset:
    """A data set by its `datasets` name: on the hub, a local folder, or of `save_to_disk`.

    It is loaded when first used; no code of a data set ever runs. Raises UserError, then, for a
    name, config, revision or split that is not there, and within seconds when the hub cannot be
    reached and no copy is in the cache.
    """

    def __init__(self, name: str, config: str | None = None, revision: str | None = None) -> None:
        self.name, self.config, self.revision = name, config, revision

    def __str__(self) -> str:
        return f"{self.name}/{self.config}" if self.config else self.name

    @cached_property
    def _loaded(self) -> Mapping[str, datasets.Dataset]:
        return load(self.name, self.config, self.revision)

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits there are."""
        return tuple(self._loaded)

    def rows(self, split: str) -> tuple[str, range]:
        """Return the split and the rows in it that a name or a slice (`train[:10%]`) means."""
        import datasets

        base = split.partition("[")[0]
        if base not in self.splits:
            near, allowed = nearest(base, self.splits), ", ".join(self.splits)
            raise UserError(f"{self}: no split {base!r}{near}; allowed are {allowed}")
        length = len(self._loaded[base])
        try:
            (part,) = datasets.ReadInstruction.from_spec(split).to_absolute({base: length})
        except (ValueError, AssertionError) as error:
            raise UserError(
                f"{self}: split {split!r}: allowed is a split or one slice of it, such as "
                f"{base}[:10%]: {one_line(error)}"
            ) from None
        return base, range(part.from_ or 0, length if part.to is None else part.to)

    def fingerprint(self, split: str) -> str:
        """Return the library's fingerprint of a split, with the rows taken: another for other data.

        It follows the version on the hub, or the files' names and times, or what was saved.
        """
        base, rows = self.rows(split)
        return f"{self._loaded[base]._fingerprint}[{rows.start}:{rows.stop}]"

    def records(self, split: str, reading: Reading) -> Iterator[Record]:
        """Yield the rows of a split or a slice, numbered from 1 as they stand in the split."""
        base, rows = self.rows(split)
        data = self._loaded[base]
        labels = _label_names(data.features.arrow_schema)
        number = rows.start
        for table in data.select(rows).with_format("arrow").iter(_AT_ONCE):
            for row in _arrow_rows(table, labels):
                number += 1
                yield _record(f"{self}[{base}], row {number}", row, reading)
