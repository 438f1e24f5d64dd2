"""What the backward passes written by hand have in common.

For: functions whose backward pass is a formula of its own, on memory that it reuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def once(backward: Callable[..., Result]) -> Callable[..., Result]:
    """Compute a backward pass in the numbers it is given, autocast or not, and refuse a second one.

    Raises RuntimeError under create_graph=True: autograd does not see what the formula depends on,
    so the next derivative would silently miss parts.
    """

    @wraps(backward)
    def run(ctx: Any, *grads: Any) -> Result:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True: second derivatives need path='dense'")
        device = next((x.device.type for x in grads if x is not None), "cpu")
        with torch.autocast(device, enabled=False):
            return backward(ctx, *grads)

    return run
