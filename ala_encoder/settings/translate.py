"""The settings of `translate`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ala_encoder.settings.pipes import TextThrough
from ala_encoder.settings.search import SearchSettings


class TranslateRun(TextThrough):
    """Translations of text, line by line, by the export of a translation model."""

    export: Path
    """An export folder, or a run folder that has one."""
    search: SearchSettings | None = None
    """What is given here is in place of the export's own."""
    too_long: Literal["cut", "error"] = "cut"
    """What a line of more tokens than the model has positions does: its end is not translated,
    which standard error tells with the number of such lines, or it stops."""
