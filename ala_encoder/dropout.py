"""Dropout whose masks cost little on a CPU.

For: every dropout of hidden states (Srivastava et al. 2014). Not for: attention weights
(`kernels.dense`).

A CPU draws its random numbers one after the other, whatever the threads: a number for each entry
was an eighth of a training step of the small translation models. Here 64 random bits decide four.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_STEPS = 2**16


class Dropout(nn.Module):
    """Zeroes entries with probability p in training, and scales the others by 1 / (1 − p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def extra_repr(self) -> str:
        return f"p={self.p}"

    def forward(self, x: Tensor) -> Tensor:
        """Return x of any shape, dropped out; on a CPU p is rounded to a multiple of 2^-16."""
        kept = _STEPS - round(self.p * _STEPS)
        if not self.training or x.device.type != "cpu" or kept in (0, _STEPS):
            return F.dropout(x, self.p, self.training)
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        mask = words.view(torch.int16)[: x.numel()].view(x.shape) < kept - _STEPS // 2
        return x * mask.to(x.dtype).mul_(_STEPS / kept)
