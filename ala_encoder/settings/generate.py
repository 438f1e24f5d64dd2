"""The settings of `generate`, and of sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import NonNegativeFloat, NonNegativeInt, PositiveInt, Section
from ala_encoder.settings.pipes import TextThrough


class Sampling(Section):
    """How a causal language model goes on with a text."""

    temperature: NonNegativeFloat = 1.0
    """What logits are divided by before a token is drawn; 0: greedy, the most probable is taken."""
    top_k: PositiveInt | None = None
    """Only so many of the most probable tokens are drawn from; none: all."""
    top_p: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Only the most probable tokens whose sum first reaches this part are drawn from, after
    `top_k` (nucleus sampling, Holtzman et al. 2020); none: all."""
    seed: NonNegativeInt = 1337
    """Of the draws: a text's depend on this and its number alone, not on others of its batch."""
    max_new_tokens: PositiveInt = 64
    """Where a text ends that the model does not end."""
    window: PositiveInt | None = None
    """Tokens that each token sees, itself among them: older ones are dropped in every layer and
    nothing is read again, so time and memory of a token are bounded. None: all."""

    @model_validator(mode="after")
    def _acts(self) -> Sampling:
        if self.temperature:
            return self
        for name in ("top_k", "top_p", "seed"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise UserError(f"{name}: does nothing with temperature = 0, which draws nothing")
        return self


class GenerateRun(TextThrough, Sampling):
    """Texts that begin with the given lines, by the export of a causal language model."""

    export: Path
    """An export folder, or a run folder that has one."""
    batch_size: PositiveInt = 16
    """Most texts at once."""
