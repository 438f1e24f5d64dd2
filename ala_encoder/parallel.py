"""Parallel text: pairs of sentences out of files or data sets, which never shift.

For: finding what a config names and reading it, for tokenizers, corpora and references alike. Not
for: cleaning (`cleaning`), storing (`parallel_corpus`).

Lines are read by the rule of `lines`; line n of one file belongs to line n of the other, empty ones
too. A line that cannot be read takes its partner with it, so does one that holds a tab: that is a
row of a table. Files of unequal numbers of lines are refused under either policy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ala_encoder import tables
from ala_encoder.errors import UserError, nearest, shown
from ala_encoder.lines import Reading, read_lines
from ala_encoder.named_datasets import NamedDataset
from ala_encoder.settings.base import BadRowPolicy
from ala_encoder.settings.parallel import (
    EmbeddedParallel,
    NamedParallel,
    ParallelFiles,
    TranslationData,
)
from ala_encoder.settings.task import Rows
from ala_encoder.tokenizer import InLanguage

if TYPE_CHECKING:
    from ala_encoder.quickstart import EmbeddedData


class Pair(NamedTuple):
    """A sentence and its translation, as they stand in the text."""

    number: int
    """From 0 in its split; pairs that were skipped are counted."""
    src: str
    trg: str


@dataclass(frozen=True)
class ParallelSource:
    """Where the pairs of one split are."""

    languages: tuple[str, str]
    on_bad_row: BadRowPolicy
    text: ParallelFiles | NamedParallel
    dataset: NamedDataset | None = None
    """Where `text` names one."""
    embedded: EmbeddedData | None = None
    """The set that the files of `text` are of."""

    def __str__(self) -> str:
        if isinstance(self.text, NamedParallel):
            return f"{self.dataset}[{self.text.split}]"
        return ", ".join(map(" and ".join, zip(self.text.src, self.text.trg, strict=True)))

    @property
    def files(self) -> list[Path]:
        """Every file, once; none of a data set."""
        pairs = self.text.pairs if isinstance(self.text, ParallelFiles) else []
        return list(dict.fromkeys(Path(rows.name) for pair in pairs for rows in pair))

    def reading(self) -> Reading:
        """Return a new count for `pairs`, with the policy that this split has."""
        return Reading(self.on_bad_row)


# ---------------------------------------------------------------------------------------------
# Finding
# ---------------------------------------------------------------------------------------------


def find_sources(
    data: TranslationData,
    say: Callable[[str], None] = print,
    splits: Collection[str] = ("train", "valid", "test"),
) -> dict[str, ParallelSource]:
    """Return where the pairs of each of the splits are, loading the data sets it asks for.

    Raises UserError for a file that is not there, is a table or stands on both sides, for a data
    set that cannot be had, and for a line or row of train in another split.
    """
    loaded: dict[tuple[str | None, ...], NamedDataset] = {}
    embedded_sets: dict[Path, EmbeddedData] = {}
    found = {}
    wanted = {split: text for split, text in data.splits.items() if split in splits}
    for split, text in wanted.items():
        policy: BadRowPolicy = data.on_bad_row if split == "train" else "error"
        dataset = embedded = None
        if isinstance(text, EmbeddedParallel):
            from ala_encoder.quickstart import embedded_translation

            embedded = embedded_sets.get(text.cache) or embedded_translation(text.cache, say)
            embedded_sets[text.cache] = embedded
            text = _files_of(embedded, text.split, data.languages)
        if isinstance(text, NamedParallel):
            key = (text.name, text.config, text.revision)
            dataset = loaded.setdefault(key, NamedDataset(*key, say=say))
            dataset.rows(text.split)  # tells what is not there
        else:
            _check_files(f"data.{split}", text)
        found[split] = ParallelSource(data.languages, policy, text, dataset, embedded)
    if "train" in found:
        for split in ("valid", "test"):
            if split in found:
                _check_apart(found["train"], found[split], split)
    return found


def _files_of(embedded: EmbeddedData, split: str, languages: tuple[str, str]) -> ParallelFiles:
    src, trg = (str(embedded.files[f"{split}.{language}"]) for language in languages)
    return ParallelFiles(kind="files", src=(src,), trg=(trg,))


def _check_files(key: str, text: ParallelFiles) -> None:
    for pair in text.pairs:
        for rows, side in zip(pair, ("src", "trg"), strict=True):
            path = Path(rows.name)
            if path.name.lower().endswith(tables.ENDINGS):
                raise UserError(f"{key}.{side}: {path}: a table, allowed is one sentence a line")
            if not path.is_file():
                near = nearest(path.name, [other.name for other in path.parent.glob("*")])
                raise UserError(f"{key}.{side}: {path}: no such file{near}")
        if _same_file(*pair):
            raise UserError(f"{key}: {pair[0].name}: is on both sides")


def _same_file(one: Rows, other: Rows) -> bool:
    return Path(one.name).samefile(other.name)


def _check_apart(train: ParallelSource, other: ParallelSource, split: str) -> None:
    mine, yours = train.text, other.text
    if isinstance(mine, ParallelFiles) and isinstance(yours, ParallelFiles):
        for pair, held_out in itertools.product(mine.pairs, yours.pairs):
            if pair[0].overlaps(held_out[0]) and any(
                _same_file(one, two) for one, two in itertools.product(pair, held_out)
            ):
                raise UserError(f"data: train and {split} share lines of {held_out[0].name}")
    elif train.dataset is not None and train.dataset is other.dataset:
        assert isinstance(mine, NamedParallel) and isinstance(yours, NamedParallel)
        name, rows = train.dataset.rows(mine.split)
        other_name, others = train.dataset.rows(yours.split)
        if name == other_name and max(rows.start, others.start) < min(rows.stop, others.stop):
            raise UserError(f"data: train and {split} share rows of {train.dataset}[{name}]")


# ---------------------------------------------------------------------------------------------
# Reading
# ---------------------------------------------------------------------------------------------


def pairs(source: ParallelSource, reading: Reading) -> Iterator[Pair]:
    """Yield the pairs of a split, counting in `reading` whatever was met; one count a bad pair.

    Raises UserError for a bad pair by the policy of `reading`; for two files of unequal numbers of
    lines, naming both and both numbers, once they are read; for a file that cannot be read.
    """
    if isinstance(source.text, NamedParallel):
        found = _of_dataset(source, source.text, reading)
    else:
        found = itertools.chain.from_iterable(
            _of_files(*files, reading) for files in source.text.pairs
        )
    for number, pair in enumerate(found):
        if pair is not None:
            yield Pair(number, *pair)


def texts(source: ParallelSource, reading: Reading) -> Iterator[InLanguage]:
    """Yield both sides of each pair, each with its language; raises UserError as `pairs`."""
    src_lang, trg_lang = source.languages
    for _, src, trg in pairs(source, reading):
        yield InLanguage(src_lang, src)
        yield InLanguage(trg_lang, trg)


class _Bad(NamedTuple):
    """A line or cell that is no sentence."""

    place: str
    why: str


@dataclass
class _HeldReading(Reading):
    """Holds what a reader refuses until it is known whether the pair is wanted."""

    held: list[_Bad] = field(default_factory=list)

    def refuse(self, place: str, why: str) -> None:
        self.skipped += 1
        self.held.append(_Bad(place, why))


def _of_files(src: Rows, trg: Rows, reading: Reading) -> Iterator[tuple[str, str] | None]:
    """Yield the pairs of two files, None for one that is skipped."""
    read = _HeldReading(), _HeldReading()
    sides = _every_line(Path(src.name), read[0]), _every_line(Path(trg.name), read[1])
    for number, (one, other) in enumerate(itertools.zip_longest(*sides)):
        if one is not None and other is not None and src.holds(number):
            yield _checked(one, other, reading)
    for side in read:
        reading.lines += side.lines
        reading.carriage_returns += side.carriage_returns
        reading.byte_order_marks += side.byte_order_marks
        reading.nulls += side.nulls
    lines = [side.lines + side.skipped for side in read]
    if lines[0] != lines[1]:
        raise UserError(
            f"{src.name}: {lines[0]:,} lines, {trg.name}: {lines[1]:,} lines; "
            "each line of one must translate that line of the other"
        )


def _every_line(path: Path, reading: _HeldReading) -> Iterator[str | _Bad]:
    """Yield one item for each line that a file has, bad ones too."""
    for number, line in read_lines(path, reading):
        yield from reading.held
        reading.held.clear()
        yield _Bad(f"{path}:{number}", _TAB) if "\t" in line else line
    yield from reading.held


_TAB = "a tab inside a sentence: one line is one sentence, not a row of a table"


def _checked(src: str | _Bad, trg: str | _Bad, reading: Reading) -> tuple[str, str] | None:
    if isinstance(src, str) and isinstance(trg, str):
        return src, trg
    reading.refuse(*(src if isinstance(src, _Bad) else trg))
    return None


def _of_dataset(
    source: ParallelSource, text: NamedParallel, reading: Reading
) -> Iterator[tuple[str, str] | None]:
    """Yield the pairs of a data set's rows, None for one that is skipped."""
    assert source.dataset is not None
    wanted = zip((text.src_column, text.trg_column), source.languages, strict=True)
    columns = list(wanted)
    for record in source.dataset.records(text.split, reading):
        src, trg = (_sentence(record, *column, reading) for column in columns)
        yield _checked(src, trg, reading)


def _sentence(
    record: tables.Record, column: str | None, language: str, reading: Reading
) -> str | _Bad:
    cells = record.cells
    if column is None and isinstance(translation := cells.get("translation"), dict):
        cells, column = translation, language
    name = column or language
    if name not in cells:
        found = ", ".join(map(shown, cells)) or "none"
        return _Bad(record.place, f"no text {name!r}{nearest(name, cells)}; found are {found}")
    value = cells[name]
    if not isinstance(value, str):
        return _Bad(record.place, f"{name} is {shown(value)}, allowed is a text")
    sentence = reading.strip(value)
    if "\n" in sentence or "\t" in sentence:
        return _Bad(record.place, f"{name} holds a line end or a tab, allowed is one sentence")
    return sentence
