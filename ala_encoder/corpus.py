"""Running text as token arrays on disk, with a manifest that says exactly what is in them.

For: tokenising a source once, and refusing arrays that no longer fit the text, the tokenizer or
the options. Not for: finding and reading text (`sources`), cutting batches (`batches`) or
corruption (`objectives`).

A folder holds one file of little-endian unsigned integers a split, wide enough for the vocabulary,
and `manifest.json`. A document is stored as its tokens and one [SEP].
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ala_encoder import manifests
from ala_encoder.errors import UserError
from ala_encoder.files import folder_aside, locked, remove_leftovers, write_json
from ala_encoder.lines import Reading
from ala_encoder.manifests import Manifest, SplitRecord
from ala_encoder.settings.base import BadRowPolicy
from ala_encoder.sources import SPLITS, TextSource, documents
from ala_encoder.tokenizer import Tokenizer

Made = TypeVar("Made")

_CHUNK = 2000  # parts of text tokenised at once,
_CHUNK_LENGTH = 1 << 19  # and their characters
_PART_LENGTH = 1 << 16
_MAX_PART = 1 << 18
_CUT = re.compile(r"(?<=\w) (?=\w)")


# ---------------------------------------------------------------------------------------------
# Making
# ---------------------------------------------------------------------------------------------


def prepare(
    folder: Path,
    source: TextSource,
    tokenizer: Tokenizer,
    *,
    on_bad_row: BadRowPolicy = "error",
    say: Callable[[str], None] = print,
) -> Manifest:
    """Tokenise `source` into `folder` and return the manifest; nothing is done when it is current.

    Any number of processes may call it at once: one builds, the others wait and find it current.
    Either way `say` is told what was made, cleaned and skipped. Written aside and renamed. Raises
    UserError when the folder holds a corpus of other text, another tokenizer or other options
    (delete it, or choose another path), when a split has no token, when its text cannot be read,
    or when the folder cannot be written.
    """
    built = build_once(folder, lambda aside: _write(aside, source, tokenizer, on_bad_row), say)
    manifest = built or manifests.read(folder)
    if not built:
        manifests.refuse_other_tokenizer(folder, manifest.tokenizer, tokenizer)
        manifests.refuse_stale(folder, manifest, source, on_bad_row)
    say(f"{folder}{'' if built else ' is current'}: {manifest.describe()}")
    for note in manifest.notes():
        say(f"  {note}")
    return manifest


def build_once(
    folder: Path, write: Callable[[Path], Made], say: Callable[[str], None]
) -> Made | None:
    """Return what `write` made of a new folder aside, renamed after; None for one that was there.

    Of any number of processes one builds and the others wait. Raises UserError when the folder
    cannot be written or holds other things than a corpus.
    """
    if not _is_made(folder):
        with locked(folder, say):
            if not _is_made(folder):
                remove_leftovers(folder)
                with folder_aside(folder) as aside:
                    return write(aside)
    return None


def _is_made(folder: Path) -> bool:
    if (folder / "manifest.json").exists():
        return True
    if folder.exists() and not folder.is_dir():
        raise UserError(f"data.path = {folder}: a file, allowed is a folder")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"data.path = {folder}: holds files, but no corpus (manifest.json)")
    return False


def _write(
    folder: Path, source: TextSource, tokenizer: Tokenizer, on_bad_row: BadRowPolicy
) -> Manifest:
    dtype = width_of(tokenizer)
    train, valid = (
        _write_split(folder, source, split, Reading(on_bad_row), tokenizer, np.dtype(dtype))
        for split in SPLITS
    )
    manifest = Manifest(
        name=source.name,
        credit=source.credit,
        generated=source.generated,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype,
        column=source.column,
        train=train,
        valid=valid,
    )
    write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return manifest


def width_of(tokenizer: Tokenizer) -> Literal["<u2", "<u4"]:
    """Return the narrowest of the two types that holds every id."""
    return "<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4"


def _write_split(
    folder: Path,
    source: TextSource,
    split: str,
    reading: Reading,
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
) -> SplitRecord:
    path = folder / f"{split}.bin"
    with path.open("wb") as out:
        counts = _tokenise(documents(source, split, reading), tokenizer, dtype, out, split)
        out.flush()
        os.fsync(out.fileno())
    if not counts["tokens"]:
        why = "the text is empty"
        if reading.skipped:
            why = f"{reading.skipped:,} bad rows, the first: {reading.first_skipped}"
        raise UserError(f"data.source.{split}: no token in {source.describe(split)}: {why}")
    return SplitRecord(
        tokens=counts["tokens"],
        documents=counts["documents"],
        paragraphs=counts["paragraphs"],
        words=counts["words"],
        unknown=counts["unknown"],
        sha256=manifests.sha256_of(path),
        reading=reading,
        files=tuple(map(manifests.FileRecord.of, source.files.get(split, ()))),
        dataset=manifests.dataset_record(source, split),
    )


def _tokenise(
    marked: Iterable[str | None],
    tokenizer: Tokenizer,
    dtype: np.dtype[Any],
    out: BinaryIO,
    split: str,
) -> Counter[str]:
    """Write the tokens of paragraphs, and [SEP] where None ends a document that has some."""
    counts: Counter[str] = Counter()
    is_open = False
    with tqdm(unit=" tokens", unit_scale=True, desc=f"tokenising {split}", disable=None) as bar:
        for chunk in _chunks(_parts(marked, counts)):
            rows = iter(tokenizer.encode_batch([text for text in chunk if text is not None]))
            tokens: list[int] = []
            for text in chunk:
                if text is not None:
                    row = next(rows)
                    tokens += row
                    is_open = is_open or bool(row)
                elif is_open:
                    tokens.append(tokenizer.sep_id)
                    counts["documents"] += 1
                    is_open = False
            array = np.array(tokens, dtype=dtype)
            out.write(array.tobytes())
            counts["tokens"] += len(array)
            if tokenizer.unk_id is not None:
                counts["unknown"] += int((array == tokenizer.unk_id).sum())
            bar.update(len(array))
    return counts


def _parts(marked: Iterable[str | None], counts: Counter[str]) -> Iterator[str | None]:
    """Cut long paragraphs at single spaces between letters, where no token is on both sides.

    Memory then stays in bounds: the libraries keep some 500 bytes for each token of a text. Only
    256 Ki characters without such a space are cut as they stand, which may change a word there.
    """
    for text in marked:
        if text is None:
            yield None
            continue
        counts["paragraphs"] += 1
        start = 0
        while start < len(text):
            end = start + _MAX_PART
            cut = _CUT.search(text, start + _PART_LENGTH, end)
            part = text[start : cut.start() if cut else end]
            counts["words"] += len(part.split())
            yield part
            start += len(part)


def _chunks(parts: Iterable[str | None]) -> Iterator[list[str | None]]:
    chunk: list[str | None] = []
    length = 0
    for part in parts:
        chunk.append(part)
        length += len(part or "")
        if len(chunk) >= _CHUNK or length >= _CHUNK_LENGTH:
            yield chunk
            chunk, length = [], 0
    yield chunk


# ---------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------


def open_tokens(
    folder: Path, manifest: Manifest, tokenizer: Tokenizer, *, verify: bool = True
) -> dict[str, NDArray[np.unsignedinteger[Any]]]:
    """Return the token arrays of a corpus, memory-mapped, by split.

    Raises UserError when they were made with another tokenizer, or when a file is not what the
    manifest says (size, and SHA-256 when `verify`).
    """
    check_tokenizer(folder, manifest.tokenizer, manifest.dtype, tokenizer)
    arrays = {}
    for split, record in manifest.splits.items():
        sha256 = record.sha256 if verify else None
        path = folder / f"{split}.bin"
        arrays[split] = open_array(path, manifest.dtype, record.tokens, sha256)
    return arrays


def check_tokenizer(folder: Path, made_with: str, dtype: str, tokenizer: Tokenizer) -> None:
    """Raise UserError for another tokenizer, or one whose ids the arrays' type cannot hold."""
    manifests.refuse_other_tokenizer(folder, made_with, tokenizer)
    if tokenizer.vocab_size > np.iinfo(dtype).max + 1:
        raise UserError(f"{folder}: {dtype} cannot hold {tokenizer.vocab_size} pieces")


def open_array(path: Path, dtype: str, length: int, sha256: str | None) -> NDArray[Any]:
    """Return the array in a file, memory-mapped.

    Raises UserError when it is not of this length, or not of this SHA-256 if one is given.
    """
    size = path.stat().st_size if path.is_file() else -1
    wanted = length * np.dtype(dtype).itemsize
    if size != wanted:
        raise UserError(
            f"{path}: {size} bytes, the manifest says {wanted}: delete the folder and prepare again"
        )
    if sha256 is not None and (found := manifests.sha256_of(path)) != sha256:
        raise UserError(
            f"{path}: SHA-256 {found[:12]}…, the manifest says {sha256[:12]}…: "
            "the file is damaged, delete the folder and prepare again"
        )
    return np.memmap(path, dtype=dtype, mode="r", shape=(length,))
