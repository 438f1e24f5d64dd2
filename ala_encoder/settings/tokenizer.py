"""Settings of the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import PositiveInt, Section


class TokenizerSettings(Section):
    """The tokenizer folder: read when it exists, made by `train_tokenizer` otherwise."""

    path: Path
    kind: Literal["wordpiece"] = "wordpiece"
    vocab_size: Annotated[int, Field(ge=16)] = 30_522
    """Pieces to train, special tokens included; a folder that exists keeps its own size."""
    lowercase: bool = True
    min_frequency: PositiveInt = 2
    """Merges seen less often are not learned."""
