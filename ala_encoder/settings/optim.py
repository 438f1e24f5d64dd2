"""Settings of AdamW and of the learning rate as a function of the step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ala_encoder.settings.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, Section

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class OptimSettings(Section):
    """AdamW; biases, layer norms and scalars are not decayed."""

    learning_rate: PositiveFloat = 1e-4
    """The peak; see `schedule`."""
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "linear"
    warmup_steps: NonNegativeInt = 0
    final_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Where linear and cosine end, one step after the last, over the peak."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01
    clip_grad_norm: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0 turns clipping off."""
