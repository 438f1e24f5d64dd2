"""Where running text comes from: plain text, tables and data sets, as documents of paragraphs.

For: finding what a config names and reading it, for tokenizers and corpora alike. Not for: storing
it (`corpus`).

In plain text a paragraph is a line; an empty line or the end of a file ends a document. A row of a
table or data set is one document, in whose text LF ends a paragraph. A paragraph holds more than
white space.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ala_encoder import tables
from ala_encoder.errors import UserError, nearest
from ala_encoder.lines import BadRowPolicy, Reading, read_lines
from ala_encoder.settings.corpus import CorpusSettings, EmbeddedText, NamedText, TextFiles

SPLITS = ("train", "valid")


@dataclass(frozen=True)
class Source:
    """The text behind a corpus: a name for tables, its credit, and files or a data set by split."""

    name: str
    credit: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    dataset: tables.NamedDataset | None = None
    slices: dict[str, str] = field(default_factory=dict)
    """By split what to take of `dataset`; `files` are empty then."""
    column: str | None = None
    """Column of the text; None where there are no columns."""
    on_bad_row: BadRowPolicy = "error"
    generated: bool = False

    def describe(self, split: str) -> str:
        """Return what the text of a split is read from, for messages."""
        if self.dataset is not None:
            return f"{self.dataset}[{self.slices[split]}]"
        return ", ".join(map(str, self.files[split]))


def find_source(settings: CorpusSettings, say: Callable[[str], None] = print) -> Source:
    """Return what a corpus is made of, fetching the embedded text or the data set it asks for.

    Raises UserError for a pattern without a file, a file or row in both splits, a `column` without
    a table, and a data set that cannot be had.
    """
    source = settings.source
    if isinstance(source, EmbeddedText):
        from ala_encoder.quickstart import embedded_text

        data = embedded_text(source.cache, say)
        files = {split: [data.files[split]] for split in SPLITS}
        return Source(
            data.name,
            data.credit,
            files,
            on_bad_row=settings.on_bad_row,
            generated=data.generated,
        )
    if isinstance(source, NamedText):
        return _named(source, settings.on_bad_row)
    return _files(source, settings.path.name, settings.on_bad_row)


def _named(source: NamedText, on_bad_row: BadRowPolicy) -> Source:
    data = tables.NamedDataset(source.name, source.config, source.revision)
    (train, rows), (valid, others) = data.rows(source.train), data.rows(source.valid)
    if train == valid and max(rows.start, others.start) < min(rows.stop, others.stop):
        raise UserError(
            f"data.source: train = {source.train!r} and valid = {source.valid!r} share rows"
        )
    return Source(
        str(data),
        f"data set {data}",
        dataset=data,
        slices={"train": source.train, "valid": source.valid},
        column=source.column,
        on_bad_row=on_bad_row,
    )


def _files(source: TextFiles, name: str, on_bad_row: BadRowPolicy) -> Source:
    files = {split: _expand(getattr(source, split), f"data.source.{split}") for split in SPLITS}
    both = set(files["train"]) & set(files["valid"])
    if both:
        raise UserError(f"data.source: {sorted(both)[0]} is in train and in valid")
    has_tables = any(_is_table(path) for split in SPLITS for path in files[split])
    if source.column is not None and not has_tables:
        raise UserError(
            f"data.source.column = {source.column!r} has no effect: no file is a table "
            f"({', '.join(tables.ENDINGS)})"
        )
    column = (source.column or "text") if has_tables else None
    return Source(name, "user's files", files, column=column, on_bad_row=on_bad_row)


def _is_table(path: Path) -> bool:
    return path.name.lower().endswith(tables.ENDINGS)


def _expand(patterns: Sequence[str], key: str) -> list[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        path = Path(pattern)
        if path.is_file():  # as it is spelt: `[1].txt` would be a pattern for 1.txt
            matches = [path]
        elif path.is_dir():
            endings = (*tables.ENDINGS, ".txt", ".gz")
            matches = [p for p in path.rglob("*") if p.name.lower().endswith(endings)]
        else:
            matches = [Path(name) for name in glob.glob(pattern, recursive=True)]
        matches = [match for match in matches if match.is_file()]
        if not matches:
            raise UserError(f"{key}: {pattern!r} matches no file")
        found.update(matches)
    return sorted(found)


def texts(source: Source, split: str, reading: Reading) -> Iterator[str]:
    """Yield the paragraphs of a split; raises UserError for a bad row by the policy."""
    return (text for text in documents(source, split, reading) if text is not None)


def documents(source: Source, split: str, reading: Reading) -> Iterator[str | None]:
    """Yield the paragraphs of a split, with None where a document ends."""
    if source.dataset is not None:
        yield from _of_records(
            source.dataset.records(source.slices[split], reading), source, reading
        )
        return
    for path in source.files[split]:
        if _is_table(path):
            yield from _of_records(tables.records(path, reading), source, reading)
        else:
            for _, line in read_lines(path, reading):
                yield line if line.strip() else None
            yield None


def _of_records(
    records: Iterator[tables.Record], source: Source, reading: Reading
) -> Iterator[str | None]:
    column = source.column
    assert column is not None
    for place, cells in records:
        text = cells.get(column)
        if not isinstance(text, str):
            reading.refuse(place, _no_text(cells, column))
            continue
        for line in map(reading.strip, text.split("\n")):
            if line.strip():
                yield line
        yield None


def _no_text(cells: dict[str, object], column: str) -> str:
    if column in cells:
        value = cells[column]
        kind = "null" if value is None else f"a value of type {type(value).__name__}"
        return f"column {column!r} holds {kind}, allowed is text"
    found = ", ".join(map(repr, cells)) or "none"
    return f"no column {column!r}{nearest(column, cells)}; found are {found}"
