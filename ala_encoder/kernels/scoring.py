"""What decides the weights of a layer, beside its queries and keys.

For: one object that carries heads, biases and visibility from a layer to the paths. Not for:
running them (`parts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ala_encoder.heads import Head
from ala_encoder.kernels.visibility import Visibility
from ala_encoder.settings.paths import Case, Part, plan


@dataclass(frozen=True, eq=False)
class Scoring:
    """All that decides the weights of a layer beside q and k."""

    heads: tuple[Head, ...]
    groups: tuple[int | None, ...]
    """The Q/K group of each head; None: it has no Q and K, which are 0 then."""
    case: Case
    """`has_slopes` and `has_others` say what is given below; device and dtype are filled in."""
    visibility: Visibility = field(default_factory=Visibility)
    slopes: Tensor | None = None
    """a_i of biases −a_i |i − j|, broadcastable to [B, H, Q]."""
    bias: Callable[[Tensor], Tensor] | None = None
    """All other biases: offsets → float32, broadcastable to [B, H, Q, offsets]."""
    ratio: float | Tensor = 1.0
    """Cross-attention: its offset is j − ratio·i."""
    dropout: float = 0.0
    path: str = "auto"
    compile: bool = False
    prune: float | None = None
    """Weight that a row may lose on `slope`; no gradient then."""

    def __post_init__(self) -> None:
        assert self.case.causal == self.visibility.causal
        assert self.case.has_slopes == (self.slopes is not None)
        assert self.bias is None or self.case.has_others or self.case.window is not None

    def parts(self, q: Tensor | None, v: Tensor) -> tuple[Part, ...]:
        """Return the parts on the device at hand."""
        given = [t for t in (q, v, self.slopes) if t is not None]
        case = replace(
            self.case,
            device=v.device.type,
            is_half=v.dtype in (torch.float16, torch.bfloat16),
            needs_gradient=torch.is_grad_enabled() and any(t.requires_grad for t in given),
        )
        return plan(self.heads, case, self.path)

    def total(self, offset: Tensor) -> Tensor | None:
        """Return all biases at some offsets, float32 broadcastable to [B, H, Q, offsets]."""
        terms = []
        if self.slopes is not None:
            terms.append(-self.slopes[..., None] * offset.abs().float())
        if self.bias is not None:
            terms.append(self.bias(offset))
        return sum(terms[1:], terms[0]) if terms else None
