"""Distance biases: numbers added to the attention scores, functions of the offset j − i.

For: one final class a formula; `build` makes them from settings. Adding one touches this file, its
settings class and its test. Not for: masks after the softmax (`heads`).

distbias and gated_distbias: Adaptive Locality Attention (Agnihotri 2025). All are computed and
added in float32, because bf16 keeps only 513 of 1,024 distances.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.settings.attention import BiasSettings


class Bias(nn.Module, ABC):
    """A term of the scores; −inf hides a key."""

    @abstractmethod
    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        """Return the bias in float32, broadcastable to [B, H, Q, K].

        offset: int [Q, K], j − i; x: [B, Q, dim], the input of the attention module.
        """


class DistBias(Bias):
    """−alpha_h |i − j| with alpha_h = softplus(raw_alpha_h) > 0, one a head in every layer."""

    def __init__(self, num_heads: int, *, alpha_init: float, alpha_learnable: bool = True) -> None:
        super().__init__()
        self.alpha_init = alpha_init
        self.raw_alpha = nn.Parameter(torch.empty(num_heads), requires_grad=alpha_learnable)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set alpha to `alpha_init`: raw = ln(e^alpha − 1), −4.6002 for 0.01."""
        start = torch.tensor(self.alpha_init, dtype=torch.float64, device="cpu")
        nn.init.constant_(self.raw_alpha, float(start + torch.log(-torch.expm1(-start))))

    def alpha(self) -> Tensor:
        """Return the slopes in float32: [H]."""
        return F.softplus(self.raw_alpha.float())

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        return -self.alpha()[:, None, None] * offset.abs().float()


class GatedDistBias(Bias):
    """−alpha_h g_i^(h) |i − j| with g_i^(h) = sigmoid(W_g x_i + b_g)."""

    def __init__(
        self, dim: int, num_heads: int, *, alpha_init: float, alpha_learnable: bool = True
    ) -> None:
        super().__init__()
        self.distance = DistBias(num_heads, alpha_init=alpha_init, alpha_learnable=alpha_learnable)
        self.gate_proj = nn.Linear(dim, num_heads)

    def gate(self, x: Tensor) -> Tensor:
        """Return the gates in float32: x [B, Q, dim] → [B, H, Q]."""
        return torch.sigmoid(self.gate_proj(x).float()).transpose(1, 2)

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        bias: Tensor = self.gate(x)[..., None] * self.distance(offset, x)
        return bias


class Window(Bias):
    """0 where |i − j| < width, −inf elsewhere: `width` counts the current token (ours)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        zeros = torch.zeros(offset.shape, dtype=torch.float32, device=offset.device)
        return zeros.masked_fill(offset.abs() >= self.width, float("-inf"))


_BUILDERS: dict[str, Callable[[Any, int, int], Bias]] = {
    "distbias": lambda s, dim, heads: DistBias(
        heads, alpha_init=s.alpha_init, alpha_learnable=s.alpha_learnable
    ),
    "gated_distbias": lambda s, dim, heads: GatedDistBias(
        dim, heads, alpha_init=s.alpha_init, alpha_learnable=s.alpha_learnable
    ),
    "window": lambda s, dim, heads: Window(s.width),
}


def build(settings: Sequence[BiasSettings], dim: int, num_heads: int) -> nn.ModuleList:
    """Return one bias module for each entry; the attention sums them."""
    return nn.ModuleList(_BUILDERS[bias.kind](bias, dim, num_heads) for bias in settings)
