"""AdamW's parameter groups, and the learning rate as a pure function of the step.

For: which parameters decay, and a rate that is the same after every resume because nothing is
stored. Not for: stepping (`engine`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ala_encoder.settings.optim import OptimSettings


def learning_rate(step: int, settings: OptimSettings, total_steps: int) -> float:
    """Return the rate of update number `step`, counted from 1.

    Warm-up is linear and reaches the peak at `warmup_steps`, so the first update already moves.
    linear and cosine fall from there to final_ratio · peak, which they would reach one step after
    the last, so the last update moves too; inverse_sqrt is peak · sqrt(warmup / step) (Vaswani et
    al. 2017).
    """
    peak, warmup = settings.learning_rate, settings.warmup_steps
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "constant":
        return peak
    if settings.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup / step)
    progress = min(1.0, (step - warmup) / max(1, total_steps + 1 - warmup))
    if settings.schedule == "linear":
        left = 1.0 - progress
    else:
        left = 0.5 * (1.0 + math.cos(math.pi * progress))
    return peak * (settings.final_ratio + (1.0 - settings.final_ratio) * left)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split trainable parameters: matrices decay; biases, layer norms and scalars do not."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(model: nn.Module, settings: OptimSettings) -> torch.optim.AdamW:
    """Return AdamW over the groups of `model`; the loop sets the rate before each update."""
    return torch.optim.AdamW(
        parameter_groups(model, settings.weight_decay),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,  # one pass for each parameter instead of a dozen
    )
