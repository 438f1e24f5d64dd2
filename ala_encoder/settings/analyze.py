"""The settings of `analyze`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import NonNegativeInt, PositiveInt, Section


class AnalyzeRun(Section):
    """Locality and receptive fields of language models, masked or causal, from their exports."""

    export: Annotated[tuple[Path, ...], Field(min_length=1)]
    """Export folders, or run folders that have one."""
    path: Path | None = None
    """Other text than an export's own: a prepared corpus,"""
    files: tuple[Path, ...] = ()
    """or plain text files (.gz too), in which an empty line ends a document."""
    split: Literal["valid", "train"] = "valid"
    """The split of a corpus that is read."""
    widths: tuple[NonNegativeInt, ...] = (32, 64)
    """The w of the local mass: weight at |i − j| <= w."""
    blocks: PositiveInt = 32
    """Blocks of the training length over which locality is averaged, spread over the text."""
    lengths: tuple[Annotated[int, Field(ge=3)], ...] = ()
    """Lengths at which receptive fields and losses of the same tokens are measured; none: that of
    training."""
    segments: PositiveInt = 100
    """Predicted tokens of a receptive field, spread over the text."""
    batch_size: PositiveInt = 4
    """Texts at once; locality holds a map of all pairs of tokens for each head of one layer."""
    output: Path | None = None
    """Folder of the plot that several exports share. What is of one export goes to analysis/ beside
    it, or of other text than its own to analysis-TEXT-DIGEST/."""

    @field_validator("export", "files", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        """Take one name for the list of it."""
        return (
            (value,) if isinstance(value, str) else tuple(value) if type(value) is list else value
        )

    @model_validator(mode="after")
    def _consistent(self) -> AnalyzeRun:
        for name in ("lengths", "export"):
            some = list(map(str, getattr(self, name)))
            if len(set(some)) < len(some):
                raise UserError(f"{name} = [{', '.join(some)}]: one of them is there twice")
        if self.path is not None and self.files:
            raise UserError("path and files: both say what is read, give one")
        if self.files and self.split != "valid":
            raise UserError(f"split = {self.split}: does nothing beside files, which have none")
        if len(self.export) > 1 and self.output is None:
            raise UserError("output: missing, the folder of the plot that several exports share")
        if len(self.export) == 1 and self.output is not None:
            raise UserError("output: does nothing for one export, whose plots go to its folder")
        return self
