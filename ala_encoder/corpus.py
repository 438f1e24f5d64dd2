"""Running text as token arrays on disk, with a manifest that says exactly what is in them.

For: reading text files, tokenising them once, and refusing arrays that no longer fit the text or
the tokenizer. Not for: cutting batches (`batches`) or corruption (`objectives`).

A folder holds one file of little-endian unsigned integers a split, wide enough for the vocabulary,
and `manifest.json`. Only LF ends a line; a paragraph is a line; an empty line or the end of a file
ends a document, which is stored as its tokens and one [SEP].
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ala_encoder.errors import UserError
from ala_encoder.files import write_json
from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section
from ala_encoder.settings.corpus import CorpusSettings, TextFiles
from ala_encoder.settings.loader import check
from ala_encoder.tokenizer import Tokenizer

FORMAT = 1
_CHUNK = 2000  # paragraphs tokenised at once
SPLITS = ("train", "valid")


@dataclass(frozen=True)
class Source:
    """The text behind a corpus: a name for tables, its credit, and its files by split."""

    name: str
    credit: str
    files: dict[str, list[Path]]
    generated: bool = False


def find_source(settings: CorpusSettings, say: Callable[[str], None] = print) -> Source:
    """Return the files a corpus is made of, fetching the embedded text when it is asked for.

    Raises UserError for a pattern without a file and for a file in both splits.
    """
    source = settings.source
    if not isinstance(source, TextFiles):
        from ala_encoder.quickstart import embedded_text

        data = embedded_text(source.cache, say)
        return Source(
            data.name, data.credit, {split: [data.files[split]] for split in SPLITS}, data.generated
        )
    files = {split: _expand(getattr(source, split), f"data.source.{split}") for split in SPLITS}
    both = set(files["train"]) & set(files["valid"])
    if both:
        raise UserError(f"data.source: {sorted(both)[0]} is in train and in valid")
    return Source(settings.path.name, "user's files", files)


def _expand(patterns: Sequence[str], key: str) -> list[Path]:
    found: set[Path] = set()
    for pattern in patterns:
        path = Path(pattern)
        if path.is_file():  # as it is spelt: `[1].txt` would be a pattern for 1.txt
            matches = [path]
        elif path.is_dir():
            matches = [p for p in path.rglob("*") if p.name.endswith((".txt", ".txt.gz", ".gz"))]
        else:
            matches = [Path(name) for name in glob.glob(pattern, recursive=True)]
        matches = [match for match in matches if match.is_file()]
        if not matches:
            raise UserError(f"{key}: {pattern!r} matches no file")
        found.update(matches)
    return sorted(found)


# ---------------------------------------------------------------------------------------------
# Making
# ---------------------------------------------------------------------------------------------


def prepare(
    folder: Path, source: Source, tokenizer: Tokenizer, *, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Tokenise `source` into `folder` and return the manifest; nothing is done when it is current.

    Written aside and renamed. Raises UserError when the folder holds a corpus of other text or
    another tokenizer (delete it, or choose another path), when a split has no token, or when the
    folder cannot be written.
    """
    if (folder / "manifest.json").exists():
        manifest = read_manifest(folder)
        _refuse_stale(folder, manifest, tokenizer, source)
        say(f"{folder} is current: {_describe(manifest)}")
        return manifest
    if folder.exists() and not folder.is_dir():
        raise UserError(f"data.path = {folder}: a file, allowed is a folder")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"data.path = {folder}: holds files, but no corpus (manifest.json)")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as scratch:
            aside = Path(scratch) / folder.name
            aside.mkdir()
            manifest = _write(aside, source, tokenizer)
            if folder.exists():
                folder.rmdir()
            os.replace(aside, folder)
    except OSError as error:
        raise UserError(f"data.path = {folder}: cannot write the corpus: {error}") from None
    say(f"{folder}: {_describe(manifest)}")
    return manifest


def _write(folder: Path, source: Source, tokenizer: Tokenizer) -> dict[str, Any]:
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "name": source.name,
        "credit": source.credit,
        "generated": source.generated,
        "tokenizer": tokenizer.fingerprint,
        "vocab_size": tokenizer.vocab_size,
        "dtype": dtype.str,
        "splits": {},
    }
    for split in SPLITS:
        path = folder / f"{split}.bin"
        with path.open("wb") as out:
            counts = _tokenise(source.files[split], tokenizer, dtype, out, split)
            out.flush()
            os.fsync(out.fileno())
        if counts["tokens"] == 0:
            names = ", ".join(map(str, source.files[split]))
            raise UserError(f"data.source.{split}: no token in {names}: the text is empty")
        manifest["splits"][split] = {
            **counts,
            "sha256": _sha256(path),
            "files": [_file_record(file) for file in source.files[split]],
        }
    write_json(folder / "manifest.json", manifest)
    return manifest


def _tokenise(
    files: Sequence[Path], tokenizer: Tokenizer, dtype: np.dtype[Any], out: BinaryIO, split: str
) -> dict[str, int]:
    counts = {"tokens": 0, "documents": 0, "paragraphs": 0, "unknown": 0, "carriage_returns": 0}
    size = sum(file.stat().st_size for file in files)
    with tqdm(total=size, unit="B", unit_scale=True, desc=f"tokenising {split}") as bar:
        for file in files:
            has_tokens = False
            for part, is_end in _documents(file, counts):
                tokens = [token for row in tokenizer.encode_batch(part) for token in row]
                counts["paragraphs"] += len(part) if tokens else 0
                has_tokens = has_tokens or bool(tokens)
                if is_end and has_tokens:
                    tokens.append(tokenizer.sep_id)
                    counts["documents"] += 1
                    has_tokens = False
                array = np.array(tokens, dtype=dtype)
                out.write(array.tobytes())
                counts["tokens"] += len(array)
                counts["unknown"] += int((array == tokenizer.unk_id).sum())
            bar.update(file.stat().st_size)
    return counts


def _documents(file: Path, counts: dict[str, int]) -> Iterator[tuple[list[str], bool]]:
    """Yield a file's documents as (paragraphs, whether the document ends here), line by line.

    A document of many paragraphs comes in several parts, so that a whole book stays in bounds.
    """
    part: list[str] = []
    is_open = False
    for raw in _lines(file):
        line = raw.removesuffix("\r")
        counts["carriage_returns"] += line != raw
        if line.strip():
            part.append(line)
            is_open = True
            if len(part) >= _CHUNK:
                yield part, False
                part = []
        elif is_open:
            yield part, True
            part, is_open = [], False
    if is_open:
        yield part, True


def _lines(file: Path) -> Iterator[str]:
    number = 0
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
            for number, raw in enumerate(stream, 1):
                text = raw.removesuffix(b"\n").decode("utf-8")
                yield text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        raise UserError(f"{file}:{number}: not UTF-8 at byte {error.start} of the line") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file}: cannot read after line {number}: {error}") from None


def _file_record(file: Path) -> dict[str, Any]:
    status = file.stat()
    return {
        "path": str(file),
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sha256": _sha256(file),
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _describe(manifest: dict[str, Any]) -> str:
    parts = [f"{split} {manifest['splits'][split]['tokens']:,} tokens" for split in SPLITS]
    return f"{manifest['name']}: {', '.join(parts)}"


# ---------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------


class _File(Section):
    path: str
    size: NonNegativeInt
    mtime_ns: int
    sha256: str


class _Split(Section):
    tokens: PositiveInt
    documents: NonNegativeInt
    paragraphs: NonNegativeInt
    unknown: NonNegativeInt
    carriage_returns: NonNegativeInt
    sha256: str
    files: tuple[_File, ...]


class _Splits(Section):
    train: _Split
    valid: _Split


class _Manifest(Section):
    format: Literal[1]
    name: str
    credit: str
    generated: bool
    tokenizer: str
    vocab_size: PositiveInt
    dtype: Literal["<u2", "<u4"]
    splits: _Splits


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a prepared corpus; raises UserError when it is missing or damaged."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"data.path = {folder}: no corpus there, run prepare_data first") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot read the manifest: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path}: not a corpus of format {FORMAT}: delete it and prepare again")
    try:
        check(manifest, _Manifest)
    except UserError as error:
        raise UserError(f"{path}: damaged, delete the folder and prepare again: {error}") from None
    return manifest


def open_tokens(
    folder: Path, tokenizer: Tokenizer, source: Source | None = None, *, verify: bool = True
) -> dict[str, NDArray[np.unsignedinteger[Any]]]:
    """Return the token arrays of a corpus, memory-mapped, by split.

    Raises UserError when the arrays were made with another tokenizer or from other text than
    `source`, or when a file is not what its manifest says (size, and SHA-256 when `verify`).
    """
    manifest = read_manifest(folder)
    _refuse_stale(folder, manifest, tokenizer, source)
    dtype = np.dtype(manifest["dtype"])
    if tokenizer.vocab_size > np.iinfo(dtype).max + 1:
        raise UserError(f"{folder}: {dtype} cannot hold {tokenizer.vocab_size} pieces")
    arrays: dict[str, NDArray[np.unsignedinteger[Any]]] = {}
    for split in SPLITS:
        record = manifest["splits"][split]
        path = folder / f"{split}.bin"
        size = path.stat().st_size if path.is_file() else -1
        if size != record["tokens"] * dtype.itemsize:
            raise UserError(
                f"{path}: {size} bytes, the manifest says {record['tokens'] * dtype.itemsize}: "
                "delete the folder and prepare again"
            )
        if verify and (found := _sha256(path)) != record["sha256"]:
            raise UserError(
                f"{path}: SHA-256 {found[:12]}…, the manifest says {record['sha256'][:12]}…: "
                "the file is damaged, delete the folder and prepare again"
            )
        arrays[split] = np.memmap(path, dtype=dtype, mode="r", shape=(record["tokens"],))
    return arrays


def _refuse_stale(
    folder: Path, manifest: dict[str, Any], tokenizer: Tokenizer, source: Source | None
) -> None:
    advice = "delete it or choose another data.path, then run prepare_data"
    if manifest["tokenizer"] != tokenizer.fingerprint:
        raise UserError(f"{folder}: made with another tokenizer; {advice}")
    if source is None:
        return
    for split in SPLITS:
        known = {record["path"]: record for record in manifest["splits"][split]["files"]}
        given = {str(file): file for file in source.files[split]}
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
    return bool(status.st_mtime_ns != record["mtime_ns"]) and _sha256(file) != record["sha256"]
