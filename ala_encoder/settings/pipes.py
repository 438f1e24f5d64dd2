"""Text that goes through a pipeline line by line: where it comes from, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import field_validator, model_validator

from ala_encoder.errors import UserError, nearest
from ala_encoder.settings.base import Section


class TextThrough(Section):
    """What `translate` and `generate` share; abstract."""

    input: tuple[Path, ...] = ()
    """Files of text, plain or .gz, one after the other; none: standard input."""
    output: Path | None = None
    """The file of results, compressed where it ends in .gz; none: standard output."""

    @field_validator("input", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        """Take one name for the list of it."""
        return (
            (value,) if isinstance(value, str) else tuple(value) if type(value) is list else value
        )

    @model_validator(mode="after")
    def _files(self) -> TextThrough:
        for path in self.input:
            if not path.exists() or path.is_dir():
                near = nearest(path.name, [other.name for other in path.parent.glob("*")])
                raise UserError(f"input = {path}: no such file{near}")
        if self.output is not None and self.output.exists() and not self.output.is_file():
            raise UserError(f"output = {self.output}: not a file; without `output` it is stdout")
        if self.output is not None:
            for path in self.input:
                if self.output.exists() and path.samefile(self.output):
                    raise UserError(f"output = {self.output}: is the input too, name another file")
        return self
