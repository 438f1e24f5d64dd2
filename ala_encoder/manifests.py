"""The manifest of a corpus: what was tokenised, how, what came out, and whether that still holds.

For: writing it, checking it strictly, and saying what differs. Not for: the arrays (`corpus`).
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from ala_encoder.errors import UserError
from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section
from ala_encoder.settings.loader import check
from ala_encoder.sources import SPLITS, Source
from ala_encoder.tokenizer import Tokenizer

FORMAT = 2


class _File(Section):
    path: str
    size: NonNegativeInt
    mtime_ns: int
    sha256: str


class _Dataset(Section):
    name: str
    fingerprint: str


class _Split(Section):
    tokens: PositiveInt
    documents: NonNegativeInt
    paragraphs: NonNegativeInt
    words: NonNegativeInt
    unknown: NonNegativeInt
    carriage_returns: NonNegativeInt
    byte_order_marks: NonNegativeInt
    nulls: NonNegativeInt
    surrogates: NonNegativeInt
    skipped: NonNegativeInt
    sha256: str
    files: tuple[_File, ...]
    dataset: _Dataset | None


class _Options(Section):
    column: str | None
    on_bad_row: Literal["error", "skip"]


class _Splits(Section):
    train: _Split
    valid: _Split


class _Manifest(Section):
    format: Literal[2]
    name: str
    credit: str
    generated: bool
    tokenizer: str
    vocab_size: PositiveInt
    dtype: Literal["<u2", "<u4"]
    options: _Options
    splits: _Splits


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared corpus; raises UserError when it is missing or damaged."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"data.path = {folder}: no corpus there, run prepare_data first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot read the manifest: {error}") from None
    if isinstance(manifest, dict) and manifest.get("format") == 1:
        raise UserError(f"{path}: of an older version, delete the folder and prepare again")
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path}: not a corpus of format {FORMAT}: delete it and prepare again")
    try:
        check(manifest, _Manifest)
    except UserError as error:
        raise UserError(f"{path}: damaged, delete the folder and prepare again: {error}") from None
    return manifest


def refuse_stale(
    folder: Path, manifest: dict[str, Any], tokenizer: Tokenizer, source: Source | None
) -> None:
    """Raise UserError, saying what differs, when a corpus is not of this tokenizer and source."""
    advice = "delete it or choose another data.path, then run prepare_data"
    if manifest["tokenizer"] != tokenizer.fingerprint:
        raise UserError(f"{folder}: made with another tokenizer; {advice}")
    if source is None:
        return
    for option, value in options_of(source).items():
        made = manifest["options"][option]
        if made != value:
            raise UserError(f"{folder}: made with {option} = {made}, not {value}; {advice}")
    for split in SPLITS:
        record = manifest["splits"][split]
        dataset, wanted = record["dataset"], dataset_record(source, split)
        names = {found["name"] if found else None for found in (dataset, wanted)}
        if len(names) > 1:
            odd = ", ".join(sorted(filter(None, names)))
            raise UserError(f"{folder}: made from another {split} data set ({odd}); {advice}")
        if dataset != wanted:
            raise UserError(f"{folder}: {dataset['name']} has changed since; {advice}")
        known = {file["path"]: file for file in record["files"]}
        given = {str(file): file for file in source.files.get(split, ())}
        if known.keys() != given.keys():
            odd = sorted(known.keys() ^ given.keys())[0]
            raise UserError(f"{folder}: made from other {split} files ({odd}); {advice}")
        for name, file in given.items():
            if _changed(file, known[name]):
                raise UserError(f"{folder}: {name} has changed since; {advice}")


def _changed(file: Path, record: dict[str, Any]) -> bool:
    """Compare size, then time, and the content only when the time differs."""
    status = file.stat()
    if status.st_size != record["size"]:
        return True
    return bool(status.st_mtime_ns != record["mtime_ns"]) and sha256_of(file) != record["sha256"]


def file_record(file: Path) -> dict[str, Any]:
    """Return what tells whether a file is still the same."""
    status = file.stat()
    return {
        "path": str(file),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": sha256_of(file),
    }


def dataset_record(source: Source, split: str) -> dict[str, str] | None:
    """Return the data set of a split and its fingerprint; None for files."""
    if source.dataset is None:
        return None
    slice_ = source.slices[split]
    return {"name": source.describe(split), "fingerprint": source.dataset.fingerprint(slice_)}


def options_of(source: Source) -> dict[str, str | None]:
    """Return the options that change what is read from a source."""
    return {"column": source.column, "on_bad_row": source.on_bad_row}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def describe(manifest: dict[str, Any]) -> str:
    """Return one line for the user."""
    parts = []
    for split in SPLITS:
        record = manifest["splits"][split]
        skipped = f" ({record['skipped']:,} bad rows skipped)" if record["skipped"] else ""
        parts.append(f"{split} {record['tokens']:,} tokens{skipped}")
    return f"{manifest['name']}: {', '.join(parts)}"
