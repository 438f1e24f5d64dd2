"""The settings of `translate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from ala_encoder.errors import UserError, nearest
from ala_encoder.settings.base import Section
from ala_encoder.settings.search import SearchSettings


class TranslateRun(Section):
    """Translations of text, line by line, by the export of a translation model."""

    export: Path
    """An export folder, or a run folder that has one."""
    input: tuple[Path, ...] = ()
    """Files of text, plain or .gz, one after the other; none: standard input."""
    output: Path | None = None
    """The file of translations, compressed where it ends in .gz; none: standard output."""
    search: SearchSettings | None = None
    """What is given here is in place of the export's own."""
    too_long: Literal["cut", "error"] = "cut"
    """What a line of more tokens than the model has positions does: its end is not translated,
    which standard error tells with the number of such lines, or it stops."""

    @field_validator("input", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        """Take one name for the list of it."""
        return (
            (value,) if isinstance(value, str) else tuple(value) if type(value) is list else value
        )

    @model_validator(mode="after")
    def _files(self) -> TranslateRun:
        for path in self.input:
            if not path.exists() or path.is_dir():
                near = nearest(path.name, [other.name for other in path.parent.glob("*")])
                raise UserError(f"input = {path}: no such file{near}")
        if self.output is not None and self.output.exists() and not self.output.is_file():
            raise UserError(f"output = {self.output}: not a file; without `output` it is stdout")
        return self
