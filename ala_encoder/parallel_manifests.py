"""The manifest of a parallel corpus: what was tokenised, how, what came out, what was left out.

For: writing it, checking it strictly, and saying what differs. Not for: the arrays
(`parallel_corpus`), running text (`manifests`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ala_encoder.cleaning import REASONS
from ala_encoder.errors import UserError, shown
from ala_encoder.files import read_json
from ala_encoder.lines import Reading
from ala_encoder.manifests import ADVICE, DatasetRecord, FileRecord, has_changed, text_digest
from ala_encoder.parallel import ParallelSource
from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section
from ala_encoder.settings.loader import check, flatten
from ala_encoder.settings.parallel import NamedParallel, TranslationData

FORMAT: Literal["parallel-1"] = "parallel-1"


class SideRecord(Section):
    """What came out of one side of a split."""

    tokens: PositiveInt
    """eos of each sentence included."""
    unknown: NonNegativeInt
    sha256: str
    """Of the file of tokens."""
    ends_sha256: str
    """Of the file of places."""


class PairsRecord(Section):
    """What came out of a split, what was met and dropped, and where that is."""

    pairs: PositiveInt
    dropped: dict[str, PositiveInt]
    """Pairs by the reason of `cleaning` why they are not there."""
    in_train: NonNegativeInt = 0
    """Pairs of valid or test that the training text has too."""
    src: SideRecord
    trg: SideRecord
    reading: Reading
    files: tuple[FileRecord, ...]
    dataset: DatasetRecord | None
    embedded: str | None = None
    """Name of the embedded set that it is of."""
    credit: str | None = None
    """Of that set."""


class ParallelManifest(Section):
    """A prepared parallel corpus."""

    format: Literal["parallel-1"] = FORMAT
    tokenizer: str
    """Its fingerprint."""
    vocab_size: PositiveInt
    dtype: Literal["<u2", "<u4"]
    data: TranslationData
    """What it was made with; `path` is where it was then."""
    train: PairsRecord
    valid: PairsRecord
    test: PairsRecord | None

    @property
    def splits(self) -> dict[str, PairsRecord]:
        """The records of the splits there are."""
        found = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: record for split, record in found.items() if record is not None}

    @property
    def digest(self) -> str:
        """The SHA-256 of every file of tokens and places: what is learned and scored."""
        sides = [side for one in self.splits.values() for side in (one.src, one.trg)]
        return " ".join(word for side in sides for word in (side.sha256, side.ends_sha256))

    @property
    def held_out_text(self) -> str:
        """A digest of the text that is scored, whatever the tokenizer makes of it."""
        return text_digest((self.valid, self.test))

    @property
    def ratio(self) -> float:
        """Source tokens for one target token of the training text: keys per query of `cross`."""
        return self.train.src.tokens / self.train.trg.tokens

    def data_name(self, path: Path) -> str:
        """Return the name of the data in tables; path: where the corpus is."""
        own = f"{path.name} {'-'.join(self.data.languages)}"
        embedded = sorted({one.embedded for one in self.splits.values() if one.embedded})
        if not embedded:
            return own
        is_whole = all(record.embedded for record in self.splits.values())
        return ", ".join(embedded) if is_whole else f"{own} ({', '.join(embedded)})"

    def describe(self) -> str:
        """Return one line for the user."""
        parts = (f"{split} {record.pairs:,} pairs" for split, record in self.splits.items())
        return f"{'-'.join(self.data.languages)}: {', '.join(parts)}"

    def notes(self) -> list[str]:
        """Return a sentence for the user on whatever was mended, skipped or dropped."""
        notes = sorted({one.credit for one in self.splits.values() if one.credit})
        for split, record in self.splits.items():
            notes += [f"{split}: {note}" for note in record.reading.notes()]
            if record.in_train:
                notes.append(f"{split}: {record.in_train:,} of {record.pairs:,} are in train too")
            if dropped := record.dropped:
                read = record.pairs + sum(dropped.values())
                notes.append(f"{split}: of {read:,} pairs were dropped {dropped_text(dropped)}")
        return notes


def dropped_text(counts: dict[str, int]) -> str:
    """Return how many pairs were dropped and why, for the user."""
    said = [f"{counts[reason]:,} {what}" for reason, what in REASONS.items() if reason in counts]
    return ", ".join(said)


def dataset_record(source: ParallelSource) -> DatasetRecord | None:
    """Return the data set of a split and its fingerprint; None for files."""
    if not isinstance(source.text, NamedParallel):
        return None
    assert source.dataset is not None
    fingerprint = source.dataset.fingerprint(source.text.split)
    return DatasetRecord(name=str(source), fingerprint=fingerprint)


def read(folder: Path) -> ParallelManifest:
    """Return the manifest of a parallel corpus; raises UserError when missing or damaged."""
    path = folder / "manifest.json"
    if not path.exists():
        raise UserError(f"data.path = {folder}: no corpus there, run prepare_data first")
    advice = "delete the folder and prepare again"
    data = read_json(path)
    if data.get("format") != FORMAT:
        raise UserError(f"{path}: not a parallel corpus of format {FORMAT}, {advice}")
    try:
        return check(data, ParallelManifest)
    except UserError as error:
        raise UserError(f"{path}: damaged, {advice}: {error}") from None


def refuse_stale(
    data: TranslationData, manifest: ParallelManifest, sources: dict[str, ParallelSource]
) -> None:
    """Raise UserError, saying what differs, when a corpus is not of this text as it is now."""
    made, wanted = (
        flatten(settings.model_dump(mode="json", exclude={"path"}), "data")
        for settings in (manifest.data, data)
    )
    if manifest.splits.keys() != sources.keys():
        has = ", ".join(manifest.splits)
        raise UserError(f"{data.path}: made of {has}, not {', '.join(sources)}; {ADVICE}")
    for key, value in made.items():
        if key not in wanted or wanted[key] != value:
            now = shown(wanted.get(key))
            raise UserError(f"{data.path}: made with {key} = {shown(value)}, not {now}; {ADVICE}")
    for split, source in sources.items():
        refuse_changed(data.path, manifest, split, source)


def refuse_changed(
    path: Path, manifest: ParallelManifest, split: str, source: ParallelSource
) -> None:
    """Raise UserError when the text of a split is not as it was when the corpus was made of it."""
    record = manifest.splits[split]
    name = source.embedded and source.embedded.name
    if record.embedded != name:
        raise UserError(f"{path}: {split} is made of {record.embedded}, not {name}; {ADVICE}")
    for file in record.files:
        if has_changed(Path(file.path), file):
            raise UserError(f"{path}: {file.path} has changed since; {ADVICE}")
    if record.dataset != dataset_record(source):
        raise UserError(f"{path}: {source} has changed since; {ADVICE}")
