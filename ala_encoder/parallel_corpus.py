"""Parallel text as token arrays on disk: both sides of every pair, aligned, with a manifest.

For: tokenising the pairs of a translation once, cleaned for training and as they stand for
evaluation, and refusing arrays that no longer fit text, tokenizer or options. Not for: finding and
reading pairs (`parallel`), batches of them.

For each split and side a folder holds the tokens of all sentences, each with eos at its end, as
little-endian unsigned integers wide enough for the vocabulary (`train.src.bin`), the places where
sentences end as int64 (`train.src.ends`), and `manifest.json`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ala_encoder import manifests, parallel
from ala_encoder.cleaning import Cleaner
from ala_encoder.corpus import build_once, check_tokenizer, open_array, width_of
from ala_encoder.errors import UserError
from ala_encoder.files import write_json
from ala_encoder.lines import Reading
from ala_encoder.manifests import FileRecord, sha256_of
from ala_encoder.parallel import Pair, ParallelSource
from ala_encoder.parallel_manifests import (
    PairsRecord,
    ParallelManifest,
    SideRecord,
    dataset_record,
    dropped_text,
    read,
    refuse_stale,
)
from ala_encoder.settings.parallel import TranslationData
from ala_encoder.tokenizer import Tokenizer

_CHUNK = 2000  # pairs tokenised at once,
_CHUNK_LENGTH = 1 << 19  # and their characters
_ENDS = "<i8"

Ids = NDArray[np.unsignedinteger[Any]]


# ---------------------------------------------------------------------------------------------
# Making
# ---------------------------------------------------------------------------------------------


def prepare(
    data: TranslationData, tokenizer: Tokenizer, *, say: Callable[[str], None] = print
) -> ParallelManifest:
    """Tokenise the pairs into `data.path` and return the manifest; nothing is done when current.

    Any number of processes may call it at once: one builds, the others wait and find it current.
    Either way `say` is told what was made, mended, skipped and dropped. Written aside and renamed.
    Raises UserError as `parallel` does for the text, for a split without a pair, for a language
    that the tokenizer has not, and when the folder holds a corpus of other text, another tokenizer
    or other options, or cannot be written.
    """
    sources = parallel.find_sources(data, say)
    sides = tuple(tokenizer.of_language(language) for language in data.languages)
    built = build_once(data.path, lambda aside: _write(aside, data, sources, tokenizer, sides), say)
    manifest = built or read(data.path)
    if not built:
        manifests.refuse_other_tokenizer(data.path, manifest.tokenizer, tokenizer)
        refuse_stale(data, manifest, sources)
    say(f"{data.path}{'' if built else ' is current'}: {manifest.describe()}")
    for note in manifest.notes():
        say(f"  {note}")
    return manifest


def _write(
    folder: Path,
    data: TranslationData,
    sources: dict[str, ParallelSource],
    tokenizer: Tokenizer,
    sides: tuple[Tokenizer, ...],
) -> ParallelManifest:
    dtype = width_of(tokenizer)
    records = {}
    training = Cleaner(data.cleaning)
    for split, source in sources.items():  # train is the first
        cleaner, in_train = training if split == "train" else None, 0
        with ExitStack() as stack:
            files = [
                stack.enter_context(_SideFiles(folder / f"{split}.{side}", one, dtype))
                for side, one in zip(("src", "trg"), sides, strict=True)
            ]
            reading = source.reading()
            pairs = parallel.pairs(source, reading)
            with tqdm(unit=" pairs", unit_scale=True, desc=split, disable=None) as bar:
                for chunk in _chunks(pairs):
                    if cleaner is None:
                        in_train += sum(training.has_seen(pair.src, pair.trg) for pair in chunk)
                    _write_chunk(chunk, files, cleaner)
                    bar.update(len(chunk))
        dropped = {} if cleaner is None else dict(cleaner.dropped)
        if not files[0].sentences:
            why = _why_empty(reading, dropped)  # before the paths, whose middle may be cut out
            raise UserError(f"data.{split}: no pair is left: {why}: in {source}")
        records[split] = PairsRecord(
            pairs=files[0].sentences,
            dropped=dropped,
            in_train=in_train,
            src=files[0].record(),
            trg=files[1].record(),
            reading=reading,
            files=tuple(map(FileRecord.of, source.files)),
            dataset=dataset_record(source),
            embedded=source.embedded and source.embedded.name,
            credit=source.embedded and source.embedded.credit,
        )
    manifest = ParallelManifest(
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype,
        data=data,
        train=records["train"],
        valid=records["valid"],
        test=records.get("test"),
    )
    write_json(folder / "manifest.json", manifest.model_dump(mode="json"))
    return manifest


def _why_empty(reading: Reading, dropped: dict[str, int]) -> str:
    said = [dropped_text(dropped)] if dropped else []
    if reading.skipped:
        said.append(f"{reading.skipped:,} bad ones, the first: {reading.first_skipped}")
    return "; ".join(said) or "the text is empty"


def _chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    chunk: list[Pair] = []
    length = 0
    for pair in pairs:
        chunk.append(pair)
        length += len(pair.src) + len(pair.trg)
        if len(chunk) >= _CHUNK or length >= _CHUNK_LENGTH:
            yield chunk
            chunk, length = [], 0
    yield chunk


def _write_chunk(chunk: list[Pair], files: list[_SideFiles], cleaner: Cleaner | None) -> None:
    if cleaner is not None:
        chunk = [pair for pair in chunk if cleaner.keeps_texts(pair.src, pair.trg)]
    src, trg = (side.tokenizer for side in files)
    rows = list(
        zip(
            src.encode_sentences([pair.src for pair in chunk]),
            trg.encode_sentences([pair.trg for pair in chunk]),
            strict=True,
        )
    )
    if cleaner is not None:
        rows = [pair for pair in rows if cleaner.keeps_pieces(*pair)]
    for number, side in enumerate(files):
        side.write([pair[number] for pair in rows])


class _SideFiles:
    """The two files of one side of a split, while they are written."""

    def __init__(self, path: Path, tokenizer: Tokenizer, dtype: str) -> None:
        self.tokenizer, self.sentences, self._dtype = tokenizer, 0, np.dtype(dtype)
        self._paths = Path(f"{path}.bin"), Path(f"{path}.ends")
        self._files = [path.open("wb") for path in self._paths]
        self._eos_id, self._unk_id = tokenizer.eos_id, tokenizer.unk_id
        self._tokens = self._unknown = 0

    def __enter__(self) -> _SideFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def write(self, rows: list[list[int]]) -> None:
        """Write sentences, eos after each."""
        lengths = np.array([len(row) + 1 for row in rows], dtype=np.int64)
        flat = chain.from_iterable((*row, self._eos_id) for row in rows)
        tokens = np.fromiter(flat, dtype=self._dtype, count=int(lengths.sum()))
        ends = self._tokens + lengths.cumsum()
        self._files[0].write(tokens.tobytes())
        self._files[1].write(ends.astype(_ENDS).tobytes())
        self.sentences += len(rows)
        self._tokens += len(tokens)
        if self._unk_id is not None:
            self._unknown += int((tokens == self._unk_id).sum())

    def record(self) -> SideRecord:
        """Return what was written, once the files are closed."""
        tokens, ends = map(sha256_of, self._paths)
        return SideRecord(
            tokens=self._tokens, unknown=self._unknown, sha256=tokens, ends_sha256=ends
        )


# ---------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Pairs:
    """The pairs of a split, memory-mapped, numbered from 0 in the order of the text."""

    src: Ids
    """Tokens of all sentences, end to end."""
    trg: Ids
    src_ends: NDArray[np.int64]
    """Place after the last token of each sentence, its eos."""
    trg_ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.src_ends)

    def pair(self, index: int) -> tuple[Ids, Ids]:
        """Return the tokens of a pair: source [S] and target [T], each with its eos."""
        assert 0 <= index < len(self), index
        return _sentence(self.src, self.src_ends, index), _sentence(self.trg, self.trg_ends, index)

    def lengths(self) -> NDArray[np.int64]:
        """Return the tokens of each pair's source and target, eos included: int64 [N, 2]."""
        ends = np.stack([self.src_ends, self.trg_ends], axis=1)
        return np.diff(ends, axis=0, prepend=0)


def _sentence(tokens: Ids, ends: NDArray[np.int64], index: int) -> Ids:
    return tokens[int(ends[index - 1]) if index else 0 : int(ends[index])]


def open_pairs(
    folder: Path, manifest: ParallelManifest, tokenizer: Tokenizer, *, verify: bool = True
) -> dict[str, Pairs]:
    """Return the pairs of a corpus by split.

    Raises UserError when they were made with another tokenizer, or when a file is not what the
    manifest says (size, and SHA-256 when `verify`).
    """
    check_tokenizer(folder, manifest.tokenizer, manifest.dtype, tokenizer)
    found = {}
    for split, record in manifest.splits.items():
        arrays = []
        for side, its in (("src", record.src), ("trg", record.trg)):
            sums = (its.sha256, its.ends_sha256) if verify else (None, None)
            path = folder / f"{split}.{side}"
            tokens = open_array(Path(f"{path}.bin"), manifest.dtype, its.tokens, sums[0])
            ends = open_array(Path(f"{path}.ends"), _ENDS, record.pairs, sums[1])
            arrays += [tokens, ends]
        src, src_ends, trg, trg_ends = arrays
        found[split] = Pairs(src, trg, src_ends, trg_ends)
    return found
