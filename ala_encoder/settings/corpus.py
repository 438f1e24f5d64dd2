"""Settings of running text for pretraining."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import Section


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
