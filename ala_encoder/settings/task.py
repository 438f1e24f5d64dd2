"""Settings of a classification or regression task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import NonNegativeInt, Section


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
