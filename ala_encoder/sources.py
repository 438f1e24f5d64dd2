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
from ala_encoder.errors import UserError, nearest, reason, shown
from ala_encoder.lines import Reading, read_lines
from ala_encoder.named_datasets import NamedDataset
from ala_encoder.settings.corpus import CorpusSettings, EmbeddedText, NamedText, TextFiles

SPLITS = ("train", "valid")


@dataclass(frozen=True)
class TextSource:
    """The text behind a corpus: a name for tables, its credit, and files or a data set by split."""

    name: str
    credit: str
    files: dict[str, list[Path]] = field(default_factory=dict)
    dataset: NamedDataset | None = None
    slices: dict[str, str] = field(default_factory=dict)
    """By split what to take of `dataset`; `files` are empty then."""
    column: str | None = None
    """Column of the text; None where there are no columns."""
    generated: bool = False

    def describe(self, split: str) -> str:
        """Return what the text of a split is read from, for messages."""
        if self.dataset is not None:
            return f"{self.dataset}[{self.slices[split]}]"
        return ", ".join(map(str, self.files[split]))


def find_source(settings: CorpusSettings, say: Callable[[str], None] = print) -> TextSource:
    """Return what a corpus is made of, fetching the embedded text or the data set it asks for.

    Raises UserError for a pattern without a file, a file or row in both splits, a `column` without
    a table, and a data set that cannot be had.
    """
    source = settings.source
    if isinstance(source, EmbeddedText):
        return _embedded(source, say)
    if isinstance(source, NamedText):
        return _named(source, say)
    return _files(source, settings.path.name)


def _embedded(source: EmbeddedText, say: Callable[[str], None]) -> TextSource:
    from ala_encoder.quickstart import embedded_text, embedded_translation

    if source.text == "wikipedia":
        data = embedded_text(source.cache, say)
        name, files = data.name, {split: [data.files[split]] for split in SPLITS}
    else:
        data = embedded_translation(source.cache, say)
        name = f"{data.name} (en)"
        files = {"train": [data.files["train.en"]], "valid": [data.files["dev.en"]]}
    return TextSource(name, data.credit, files, generated=data.generated)


def _named(source: NamedText, say: Callable[[str], None]) -> TextSource:
    data = NamedDataset(source.name, source.config, source.revision, say=say)
    (train, rows), (valid, others) = data.rows(source.train), data.rows(source.valid)
    if train == valid and max(rows.start, others.start) < min(rows.stop, others.stop):
        raise UserError(
            f"data.source: train = {source.train!r} and valid = {source.valid!r} share rows"
        )
    return TextSource(
        str(data),
        f"data set {data}",
        dataset=data,
        slices={"train": source.train, "valid": source.valid},
        column=source.column,
    )


def _files(source: TextFiles, name: str) -> TextSource:
    files = {split: _expand(getattr(source, split), f"data.source.{split}") for split in SPLITS}
    trained = {_identity(path) for path in files["train"]}
    both = next((path for path in files["valid"] if _identity(path) in trained), None)
    if both is not None:
        raise UserError(f"data.source: {both} is in train and in valid")
    has_tables = any(_is_table(path) for split in SPLITS for path in files[split])
    if source.column is not None and not has_tables:
        raise UserError(
            f"data.source.column = {source.column!r} has no effect: no file is a table "
            f"({', '.join(tables.ENDINGS)})"
        )
    column = (source.column or "text") if has_tables else None
    return TextSource(name, "user's files", files, column=column)


def _identity(path: Path) -> tuple[int, int]:
    """Return what two names of one file share, links of either kind included."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _is_table(path: Path) -> bool:
    return path.name.lower().endswith(tables.ENDINGS)


def _expand(patterns: Sequence[str], key: str) -> list[Path]:
    found: dict[tuple[int, int], Path] = {}
    for pattern in patterns:
        try:
            matches = _matches(pattern)
        except OSError as error:  # a folder that is not ours, a name that is too long
            raise UserError(f"{key}: {shown(pattern, 200)}: {reason(error)}") from None
        if not matches:
            raise UserError(f"{key}: {shown(pattern, 200)} matches no file")
        for match in matches:
            found.setdefault(_identity(match), match)
    return sorted(found.values())


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_file():  # as it is spelt: `[1].txt` would be a pattern for 1.txt
        return [path]
    if path.is_dir():
        endings = (*tables.ENDINGS, ".txt", ".gz")
        inside = (p for p in path.rglob("*") if not p.name.startswith("."))
        matches = [p for p in inside if p.name.lower().endswith(endings)]
    else:
        matches = [Path(name) for name in glob.glob(pattern, recursive=True)]
    return [match for match in matches if match.is_file()]


def texts(source: TextSource, split: str, reading: Reading) -> Iterator[str]:
    """Yield the paragraphs of a split; raises UserError for a bad row by the policy."""
    return (text for text in documents(source, split, reading) if text is not None)


def documents(source: TextSource, split: str, reading: Reading) -> Iterator[str | None]:
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
    records: Iterator[tables.Record], source: TextSource, reading: Reading
) -> Iterator[str | None]:
    column = source.column
    assert column is not None
    for _, place, cells in records:
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
    found = ", ".join(map(shown, cells)) or "none"
    return f"no column {column!r}{nearest(column, cells)}; found are {found}"
