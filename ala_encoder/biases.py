"""Distance biases: numbers added to the attention scores, functions of the offset j − i.

For: one final class a formula; `build` makes them from settings. Adding one touches this file, its
settings class and its test. Not for: masks after the softmax (`heads`).

All are computed and added in float32, because bf16 keeps only 513 of 1,024 distances. An offset is
j − i, or j − ratio·i in cross-attention (ours), so it may be a fraction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ala_encoder.settings.biases import SHARED, BiasSettings


class Bias(nn.Module, ABC):
    """A term of the scores; −inf hides a key."""

    @abstractmethod
    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        """Return the bias in float32, broadcastable to [B, H, Q, K].

        offset: j − i, [Q, K] or [B, 1, Q, K]; x: [B, Q, dim], the input of the attention module. A
        row of offsets [1, N] gives their values at every query, broadcastable to [B, H, Q, N].
        """


def slopes(bias: nn.Module, x: Tensor) -> Tensor:
    """Return a_i of a bias −a_i |i − j| (`settings.biases.LINEAR`), broadcastable to [B, H, Q].

    It is minus the value at distance 1: the module is called, as ZeRO-3 wants, not looked into.
    """
    return -bias(torch.ones(1, 1, device=x.device), x)[..., 0]  # type: ignore[no-any-return]


class DistBias(Bias):
    """−alpha_h |i − j| with alpha_h = softplus(raw_alpha_h) > 0, one a head in every layer.

    Adaptive Locality Attention (Agnihotri 2025).
    """

    def __init__(self, num_heads: int, *, alpha_init: float, alpha_learnable: bool = True) -> None:
        super().__init__()
        self.alpha_init = alpha_init
        self.raw_alpha = nn.Parameter(torch.empty(num_heads), requires_grad=alpha_learnable)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set alpha to `alpha_init`: raw = ln(e^alpha − 1), −4.6002 for 0.01."""
        nn.init.constant_(self.raw_alpha, inverse_softplus(self.alpha_init))

    def alpha(self) -> Tensor:
        """Return the slopes in float32: [H]."""
        return F.softplus(self.raw_alpha.float())

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        return -self.alpha()[:, None, None] * offset.abs().float()


class GatedDistBias(Bias):
    """−alpha_h g_i^(h) |i − j| with g_i^(h) = sigmoid(W_g x_i + b_g) (Agnihotri 2025)."""

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


class MultiScaleDistBias(Bias):
    """−sum_m alpha_hm g_im^(h) min(|i − j|, range_m): a gate and a range for each slope (ours)."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        ranges: Sequence[int],
        *,
        alpha_init: float,
        alpha_learnable: bool = True,
    ) -> None:
        super().__init__()
        self.ranges = tuple(ranges)
        self.scales = nn.ModuleList(
            GatedDistBias(dim, num_heads, alpha_init=alpha_init, alpha_learnable=alpha_learnable)
            for _ in ranges
        )

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        terms = [
            scale(offset.clamp(-reach, reach), x)
            for scale, reach in zip(self.scales, self.ranges, strict=True)
        ]
        return torch.stack(terms).sum(0)


class Alibi(Bias):
    """−|i − j| / 2^h_n (Press et al. 2022, arXiv:2108.12409)."""

    def __init__(self, exponents: Sequence[float]) -> None:
        super().__init__()
        slopes = torch.tensor([2.0**-h for h in exponents], dtype=torch.float32)
        # As whole numbers, a model that goes to bf16 leaves them float32.
        self.register_buffer("bits", slopes.view(torch.int32), persistent=False)

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        fixed: Tensor = self.bits.view(torch.float32)  # type: ignore[operator]
        return -fixed[:, None, None] * offset.abs().float()


def alibi_exponents(
    num_heads: int, slopes: str = "8n/H", shift: float = 0.0, equal: float | None = None
) -> list[float]:
    """Return h_n of every head, slope 2^-h_n.

    8n/H: h_n = 8n/H (Chi et al. 2023). press: the same when H is a power of two; else that list for
    the next smaller power, then every other one of the next larger power's (Press et al.).
    """
    if slopes == "equal":
        assert equal is not None
        return [equal] * num_heads
    if slopes == "8n/H":
        return [8 * n / num_heads + shift for n in range(1, num_heads + 1)]
    power = 1 << (num_heads.bit_length() - 1)
    exponents = [8 * n / power for n in range(1, power + 1)]
    exponents += [4 * n / power for n in range(1, 2 * power, 2)][: num_heads - power]
    return [h + shift for h in exponents]


class Window(Bias):
    """0 where |i − j| < width, −inf elsewhere: `width` counts the current token (ours)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        zeros = torch.zeros(offset.shape, dtype=torch.float32, device=offset.device)
        return zeros.masked_fill(offset.abs() >= self.width, float("-inf"))


class Sandwich(Bias):
    """sum_{m < d/2} cos((i − j) / 10000^(2m/d)) / (8n/H) (Chi et al. 2023, arXiv:2212.10356)."""

    def __init__(self, num_heads: int, dim: int) -> None:
        super().__init__()
        self.num_heads, self.dim = num_heads, dim

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        heads = torch.arange(1, self.num_heads + 1, device=offset.device)
        return self._sum(offset) * (self.num_heads / (8.0 * heads))[:, None, None]

    def _sum(self, offset: Tensor) -> Tensor:
        """Return the sum of the cosines at each offset, float32 of its shape."""
        if offset.is_floating_point():
            return self._cosines(offset)
        # A map has few distances; d/2 cosines of each of its numbers would cost more than all else.
        distances = torch.arange(int(offset.abs().max()) + 1, device=offset.device)
        return self._cosines(distances)[offset.abs()]

    def _cosines(self, offset: Tensor) -> Tensor:
        # One at a time: nothing d/2 times as large as the offsets is ever held.
        total = torch.zeros(offset.shape, dtype=torch.float32, device=offset.device)
        for m in range(self.dim // 2):
            total = total + torch.cos(offset.float() * 10_000.0 ** (-2 * m / self.dim))
        return total


_KERPLE_LEAST = 0.01


def _within(r: Tensor, low: float, high: float | None = None) -> Tensor:
    """Return r in float32 and in bounds, [H, 1, 1]; its gradient passes as if it always were.

    A plain clamp would leave a parameter that once stepped over a bound there for ever.
    """
    r = r.float()
    return (r + (r.clamp(low, high) - r).detach())[:, None, None]


class _Kerple(Bias, ABC):
    """r1 and r2 of every head, drawn from U(0, starts[0]) and U(0, starts[1])."""

    starts: ClassVar[tuple[float, float]]

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.r1 = nn.Parameter(torch.empty(num_heads))
        self.r2 = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw both anew."""
        nn.init.uniform_(self.r1, 0.0, self.starts[0])
        nn.init.uniform_(self.r2, 0.0, self.starts[1])


class KerpleLog(_Kerple):
    """−r1 ln(1 + r2 |i − j|), r1 and r2 >= .01 per head (Chi et al. 2022, arXiv:2205.09921)."""

    starts = (2.0, 1.0)

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        r1, r2 = _within(self.r1, _KERPLE_LEAST), _within(self.r2, _KERPLE_LEAST)
        return -r1 * torch.log1p(r2 * offset.abs().float())


class KerplePower(_Kerple):
    """−r1 |i − j|^r2, r1 >= .01 and r2 in [.01, 2] per head (Chi et al. 2022)."""

    starts = (1.0, 2.0)

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        r1, r2 = _within(self.r1, _KERPLE_LEAST), _within(self.r2, _KERPLE_LEAST, 2.0)
        distance = offset.abs().float()
        # At distance 0 the power is 0, but the gradient of its exponent would be 0 · ln 0.
        power = distance.masked_fill(distance == 0, 1.0) ** r2
        return -r1 * power.masked_fill(distance == 0, 0.0)


class T5Bias(Bias):
    """A learned number for each head and bucket of j − i (Raffel et al. 2020, arXiv:1910.10683)."""

    def __init__(
        self, num_heads: int, num_buckets: int, max_distance: int, *, causal: bool
    ) -> None:
        super().__init__()
        self.num_buckets, self.max_distance, self.causal = num_buckets, max_distance, causal
        self.table = nn.Embedding(num_buckets, num_heads)

    def forward(self, offset: Tensor, x: Tensor) -> Tensor:
        offset = offset if offset.dim() > 2 else offset[None]
        bucket = t5_bucket(offset, self.num_buckets, self.max_distance, causal=self.causal)
        numbers: Tensor = self.table(bucket)
        # [..., 1, Q, K, H] → [..., H, Q, K]
        return numbers.float().transpose(-1, -4).squeeze(-1)


def t5_bucket(offset: Tensor, num_buckets: int, max_distance: int, *, causal: bool) -> Tensor:
    """Return the bucket of each offset j − i, int of its shape.

    Causal: 0 … n/2 − 1 exact distances, then logarithmic up to `max_distance`, all with
    n = num_buckets. Bidirectional: half of the buckets a side, keys to the right in the upper half.
    """
    offset = offset.round().long() if offset.is_floating_point() else offset
    side = torch.zeros_like(offset)
    if causal:
        distance = (-offset).clamp(min=0)
    else:
        num_buckets //= 2
        side = (offset > 0).long() * num_buckets
        distance = offset.abs()
    exact = num_buckets // 2
    far = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    coarse = (exact + (far * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return side + torch.where(distance < exact, distance, coarse)


def inverse_softplus(value: float) -> float:
    """Return x with softplus(x) = value, in double precision."""
    return value + math.log(-math.expm1(-value))


_BUILDERS: dict[str, Callable[[Any, int, int, bool], Bias]] = {
    "distbias": lambda s, dim, heads, causal: DistBias(
        heads, alpha_init=s.alpha_init, alpha_learnable=s.alpha_learnable
    ),
    "gated_distbias": lambda s, dim, heads, causal: GatedDistBias(
        dim, heads, alpha_init=s.alpha_init, alpha_learnable=s.alpha_learnable
    ),
    "multiscale_distbias": lambda s, dim, heads, causal: MultiScaleDistBias(
        dim, heads, s.ranges, alpha_init=s.alpha_init, alpha_learnable=s.alpha_learnable
    ),
    "alibi": lambda s, dim, heads, causal: Alibi(
        alibi_exponents(heads, s.slopes, s.shift, s.equal)
    ),
    "window": lambda s, dim, heads, causal: Window(s.width),
    "sandwich": lambda s, dim, heads, causal: Sandwich(heads, s.dim),
    "kerple_log": lambda s, dim, heads, causal: KerpleLog(heads),
    "kerple_power": lambda s, dim, heads, causal: KerplePower(heads),
    "t5": lambda s, dim, heads, causal: T5Bias(heads, s.num_buckets, s.max_distance, causal=causal),
}


def build(
    settings: Sequence[BiasSettings],
    dim: int,
    num_heads: int,
    *,
    causal: bool = False,
    shared: bool = False,
) -> nn.ModuleList:
    """Return a module for each entry of a layer, or (`shared`) for each that all layers share."""
    return nn.ModuleList(
        _BUILDERS[bias.kind](bias, dim, num_heads, causal)
        for bias in settings
        if isinstance(bias, SHARED) == shared
    )
