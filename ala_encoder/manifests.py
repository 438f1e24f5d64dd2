"""The manifest of a corpus: what was tokenised, how, what came out, and whether that still holds.

For: writing it, checking it strictly, and saying what differs. Not for: the arrays (`corpus`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, Protocol

from ala_encoder.errors import UserError, reason
from ala_encoder.files import read_json
from ala_encoder.lines import Reading
from ala_encoder.settings.base import BadRowPolicy, NonNegativeInt, PositiveInt, Section
from ala_encoder.settings.loader import check
from ala_encoder.sources import TextSource
from ala_encoder.tokenizer import Tokenizer

FORMAT = 3
ADVICE = "delete it or choose another data.path, then run prepare_data"


class FileRecord(Section):
    """What tells whether a file is still the same."""

    path: str
    size: NonNegativeInt
    mtime_ns: int
    ctime_ns: int | None = None
    """Unlike mtime it cannot be set back; None: made before it was recorded."""
    sha256: str

    @classmethod
    def of(cls, file: Path) -> FileRecord:
        """Record a file; raises UserError when it cannot be read."""
        size, mtime_ns, ctime_ns = _status(file)
        digest = sha256_of(file)
        return cls(path=str(file), size=size, mtime_ns=mtime_ns, ctime_ns=ctime_ns, sha256=digest)


class DatasetRecord(Section):
    """What tells whether a split of a named data set is still the same."""

    name: str
    fingerprint: str


class FromText(Protocol):
    """What came out of some text, and knows which."""

    @property
    def files(self) -> tuple[FileRecord, ...]: ...
    @property
    def dataset(self) -> DatasetRecord | None: ...


def text_digest(records: Iterable[FromText | None]) -> str:
    """Return a digest (16 hex digits) of texts: bytes of files, fingerprints of data sets."""
    texts = [
        [[file.sha256 for file in one.files], one.dataset and one.dataset.fingerprint]
        for one in records
        if one is not None
    ]
    return hashlib.sha256(json.dumps(texts).encode("ascii")).hexdigest()[:16]


class SplitRecord(Section):
    """What came out of a split, what was met in its text, and where that is."""

    tokens: PositiveInt
    documents: NonNegativeInt
    paragraphs: NonNegativeInt
    words: NonNegativeInt
    unknown: NonNegativeInt
    sha256: str
    """Of the array's file."""
    reading: Reading
    files: tuple[FileRecord, ...]
    dataset: DatasetRecord | None


class Manifest(Section):
    """A prepared corpus."""

    format: int = FORMAT
    name: str
    credit: str
    generated: bool
    tokenizer: str
    """Its fingerprint."""
    vocab_size: PositiveInt
    dtype: Literal["<u2", "<u4"]
    column: str | None
    train: SplitRecord
    valid: SplitRecord

    @property
    def held_out_text(self) -> str:
        """A digest of the text that is scored, whatever the tokenizer makes of it."""
        return text_digest([self.valid])

    @property
    def splits(self) -> dict[str, SplitRecord]:
        """The records by split."""
        return {"train": self.train, "valid": self.valid}

    def describe(self) -> str:
        """Return one line for the user."""
        parts = (f"{split} {record.tokens:,} tokens" for split, record in self.splits.items())
        return f"{self.name}: {', '.join(parts)}"

    def notes(self) -> list[str]:
        """Return a sentence for the user on each thing that was cleaned or skipped."""
        return [
            f"{split}: {note}"
            for split, record in self.splits.items()
            for note in record.reading.notes()
        ]


def read(folder: Path) -> Manifest:
    """Return the manifest of a prepared corpus; raises UserError when it is missing or damaged."""
    path = folder / "manifest.json"
    if not path.exists():
        raise UserError(f"data.path = {folder}: no corpus there, run prepare_data first")
    advice = "delete the folder and prepare again"
    data = read_json(path)
    made = data.get("format")
    if isinstance(made, int) and 0 < made < FORMAT:
        raise UserError(f"{path}: of an older version, {advice}")
    if made != FORMAT:
        raise UserError(f"{path}: not a corpus of format {FORMAT}, {advice}")
    try:
        return check(data, Manifest)
    except UserError as error:
        raise UserError(f"{path}: damaged, {advice}: {error}") from None


def refuse_other_tokenizer(folder: Path, made_with: str, tokenizer: Tokenizer) -> None:
    """Raise UserError when a corpus is of another tokenizer than that of this fingerprint."""
    if made_with != tokenizer.fingerprint:
        raise UserError(f"{folder}: made with another tokenizer; {ADVICE}")


def refuse_stale(
    folder: Path, manifest: Manifest, source: TextSource, on_bad_row: BadRowPolicy
) -> None:
    """Raise UserError, saying what differs, when a corpus is not of this source as it is now."""
    if manifest.column != source.column:
        made = manifest.column
        raise UserError(f"{folder}: made with column = {made}, not {source.column}; {ADVICE}")
    for split, record in manifest.splits.items():
        if (policy := record.reading.on_bad_row) != on_bad_row:
            raise UserError(
                f"{folder}: made with on_bad_row = {policy}, not {on_bad_row}; {ADVICE}"
            )
        if difference := _difference(record, source, split):
            raise UserError(f"{folder}: {difference}; {ADVICE}")


def _difference(record: SplitRecord, source: TextSource, split: str) -> str | None:
    made, wanted = record.dataset, dataset_record(source, split)
    names = {found.name if found else None for found in (made, wanted)}
    if len(names) > 1:
        return f"made from another {split} data set ({', '.join(sorted(filter(None, names)))})"
    if made is not None and made != wanted:
        return f"{made.name} has changed since"
    known = {file.path: file for file in record.files}
    given = {str(file): file for file in source.files.get(split, ())}
    if odd := sorted(known.keys() ^ given.keys()):
        return f"made from other {split} files ({odd[0]})"
    for name, file in given.items():
        if has_changed(file, known[name]):
            return f"{name} has changed since"
    return None


def has_changed(file: Path, record: FileRecord) -> bool:
    """Compare size and times, and the content unless all of them are equal.

    Raises UserError when the file cannot be read.
    """
    found = _status(file)
    if found == (record.size, record.mtime_ns, record.ctime_ns):
        return False
    return found[0] != record.size or sha256_of(file) != record.sha256


def dataset_record(source: TextSource, split: str) -> DatasetRecord | None:
    """Return the data set of a split and its fingerprint; None for files."""
    if source.dataset is None:
        return None
    fingerprint = source.dataset.fingerprint(source.slices[split])
    return DatasetRecord(name=source.describe(split), fingerprint=fingerprint)


def _status(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {reason(error)}") from None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file; raises UserError when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from None
    return digest.hexdigest()
