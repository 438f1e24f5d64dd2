"""What every settings class shares."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127
PositiveFloat = Annotated[float, Field(gt=0.0, le=_FLOAT32_MAX)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, le=_FLOAT32_MAX)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
BadRowPolicy = Literal["error", "skip"]
"""What a row or line that cannot be read does: stop, or be skipped and counted."""


class Section(BaseModel):
    """A frozen group of settings; unknown keys, wrong types and non-finite numbers are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
