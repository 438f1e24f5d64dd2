"""Settings of the distance biases: one class a formula; what is computed is in `biases`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from ala_encoder.errors import UserError
from ala_encoder.settings.base import PositiveInt, Section

Exponent = Annotated[float, Field(ge=-32, le=64)]
"""h of a slope 2^-h: beyond, float32 would have no such slope beside a score."""
Slope = Annotated[float, Field(ge=2.0**-64, le=2.0**32)]
"""A slope, within the same bounds."""


class DistBias(Section):
    """−alpha_h |i − j| (Adaptive Locality Attention), alpha = softplus(raw) per head and layer."""

    kind: Literal["distbias"]
    alpha_init: Slope = 0.01
    """The value of alpha at the start (not of its raw parameter)."""
    alpha_learnable: bool = True

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return num_heads


class GatedDistBias(Section):
    """−alpha_h g_i |i − j| with g_i = sigmoid(W_g x_i + b_g), one gate a head."""

    kind: Literal["gated_distbias"]
    alpha_init: Slope = 0.01
    alpha_learnable: bool = True

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return num_heads + num_heads * (dim + 1)


class MultiScaleDistBias(Section):
    """−sum_m alpha_hm g_im min(|i − j|, range_m): several slopes a head (ours)."""

    kind: Literal["multiscale_distbias"]
    ranges: Annotated[tuple[PositiveInt, ...], Field(min_length=2)] = (8, 64, 512)
    """Distance at which each scale stops growing; the last may be the length of the texts, and then
    never does."""
    alpha_init: Slope = 0.01
    """Start of every scale's slope."""
    alpha_learnable: bool = True

    @field_validator("ranges")
    @classmethod
    def _grow(cls, ranges: tuple[int, ...]) -> tuple[int, ...]:
        if list(ranges) != sorted(set(ranges)):
            raise UserError(f"{list(ranges)}: each range must be longer than the one before")
        return ranges

    def check(self, max_length: int) -> None:
        """Raise UserError for ranges that no two tokens of a text reach."""
        if self.ranges[-1] > max_length:
            raise UserError(
                f"ranges: {self.ranges[-1]} is never reached in {max_length} tokens, write "
                f"{max_length}, which never ends, or less"
            )
        if self.ranges[-2] >= max_length - 1:
            raise UserError(
                f"ranges: {self.ranges[-2]} and {self.ranges[-1]} are the same in {max_length} "
                "tokens"
            )

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return len(self.ranges) * (num_heads + num_heads * (dim + 1))


class Alibi(Section):
    """−|i − j| / 2^h (Press et al. 2022); nothing is learned."""

    kind: Literal["alibi"]
    slopes: Literal["8n/H", "press", "equal"] = "8n/H"
    """8n/H: h = 8n/H, n = 1 … H; press: for H no power of two, the list of Press et al.; equal: one
    h for every head (Chi et al. 2023)."""
    shift: Exponent = 0.0
    """Added to every h (Chi et al. 2023: −3 … 8)."""
    equal: Exponent | None = None
    """The h of `slopes: equal`."""

    @model_validator(mode="after")
    def _one_rule(self) -> Alibi:
        if (self.equal is not None) != (self.slopes == "equal"):
            raise UserError(f"equal = {self.equal}: given with `slopes: equal`, and only there")
        if self.slopes == "equal" and self.shift:
            raise UserError(f"shift = {self.shift}: does nothing beside `equal`, which is h itself")
        return self

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return 0


class Window(Section):
    """Keys at |i − j| >= width are hidden; the current token counts as one of `width`."""

    kind: Literal["window"]
    width: PositiveInt

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return 0


class Sandwich(Section):
    """sum_m cos((i − j) / 10000^(2m/d)) / (8n/H), m < d/2 (Chi et al. 2023); nothing is learned."""

    kind: Literal["sandwich"]
    dim: Annotated[int, Field(ge=2, multiple_of=2)] = 128
    """d: twice the number of cosines."""

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return 0


class KerpleLog(Section):
    """−r1 ln(1 + r2 |i − j|) (Chi et al. 2022), one module for all layers."""

    kind: Literal["kerple_log"]

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return 2 * num_heads


class KerplePower(Section):
    """−r1 |i − j|^r2, r2 <= 2 (Chi et al. 2022), one module for all layers."""

    kind: Literal["kerple_power"]

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return 2 * num_heads


class T5Bias(Section):
    """A learned number for each head and bucket of j − i (Raffel et al. 2020), for all layers."""

    kind: Literal["t5"]
    num_buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    max_distance: PositiveInt = 128
    """Distances from here on share the last bucket."""

    def check(self, *, causal: bool) -> None:
        """Raise UserError when no distance is left for the logarithmic buckets."""
        exact = self.num_buckets // (2 if causal else 4)
        if self.max_distance <= exact:
            raise UserError(
                f"max_distance = {self.max_distance}: distances below {exact} have buckets of "
                f"their own with {self.num_buckets} buckets, so it must be above {exact}"
            )

    def num_parameters(self, dim: int, num_heads: int) -> int:
        return self.num_buckets * num_heads


BiasSettings = Annotated[
    DistBias
    | GatedDistBias
    | MultiScaleDistBias
    | Alibi
    | Window
    | Sandwich
    | KerpleLog
    | KerplePower
    | T5Bias,
    Field(discriminator="kind"),
]

LINEAR = (DistBias, GatedDistBias, Alibi)
"""Biases −a_i |i − j|: the `slope` path carries them."""
SHARED = (KerpleLog, KerplePower, T5Bias)
"""Biases that all layers of a stack share."""
