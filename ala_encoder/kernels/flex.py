"""The `flex` path: PyTorch's FlexAttention, block-sparse, with any bias.

For: CUDA, where it is compiled and holds nothing of size Q x K; on a CPU it runs forward alone, as
a check. A bias is a function of the offset, so its values on the row of all offsets are all there
is to hand in: [Q + K − 1] numbers, by head or token where they depend on it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.errors import UserError
from ala_encoder.kernels.visibility import Visibility

_LEAST_WIDTH = 16
"""The kernel takes no narrower heads."""


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    slopes: Tensor | None = None,
    bias: Callable[[Tensor], Tensor] | None = None,
    allowed: Callable[[Tensor], Tensor] | None = None,
    visibility: Visibility | None = None,
) -> Tensor:
    """Compute softmax(q_i·k_j/sqrt(d) − slopes_i |i − j| + bias(j − i)) v over the allowed keys.

    q, k, v: [B, H, T, d]; slopes: broadcastable to [B, H, T]; bias: offsets [1, N] → float32
    broadcastable to [B, H, T, N]; allowed: offsets [1, N] → bool [H, 1, N], masks of the heads.
    Returns [B, H, T, d], 0 where there is nothing to see.

    Raises UserError for a gradient on a CPU, which FlexAttention has not.
    """
    visibility = visibility or Visibility()
    given = [t for t in (q, k, v, slopes) if t is not None]
    if q.device.type == "cpu" and torch.is_grad_enabled() and any(t.requires_grad for t in given):
        raise UserError("path = 'flex': FlexAttention has no backward on a CPU")
    length, width = q.shape[2], q.shape[3]
    row = torch.arange(1 - length, length, device=q.device)[None]
    out = _kernel(q.device.type)(
        *(F.pad(t, (0, max(0, _LEAST_WIDTH - width))) for t in (q, k, v)),
        score_mod=_score_mod(slopes, None if bias is None else bias(row), length),
        block_mask=_block_mask(q, allowed and allowed(row), visibility),
        scale=width**-0.5,
    )[..., :width]
    blind = visibility.blind
    return out if blind is None else out.masked_fill(blind[:, None, :, None], 0.0)


def _score_mod(slopes: Tensor | None, table: Tensor | None, length: int) -> Any:
    if slopes is None and table is None:
        return None
    steep, (sb, sh, si) = _indexed(slopes, 3)
    values, (vb, vh, vi, _) = _indexed(table, 4)

    def modified(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if steep is not None:
            score = score - steep[b * sb, h * sh, i * si] * (i - j).abs()
        if values is not None:
            score = score + values[b * vb, h * vh, i * vi, j - i + length - 1]
        return score

    return modified


def _indexed(values: Tensor | None, dims: int) -> tuple[Tensor | None, list[int]]:
    """Return values with `dims` dimensions, and 0 for each that has one place for all."""
    if values is None:
        return None, [0] * dims
    values = values[(None,) * (dims - values.dim())]
    return values, [int(size > 1) for size in values.shape]


def _block_mask(q: Tensor, allowed: Tensor | None, visibility: Visibility) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    segments, causal = visibility.segments, visibility.causal
    if segments is None and not causal and allowed is None:
        return None
    batch, heads, length, _ = q.shape

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = i >= 0
        if causal:
            seen = seen & (i >= j)
        if segments is not None:
            seen = seen & (segments[b, i] == segments[b, j]) & (segments[b, i] > 0)
        if allowed is not None:
            seen = seen & allowed[h, 0, j - i + length - 1]
        return seen

    return create_block_mask(
        visible,
        None if segments is None else batch,
        None if allowed is None else heads,
        length,
        length,
        device=q.device,
    )


@functools.cache
def _kernel(device: str) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    if device == "cuda":
        compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
        return compiled

    def uncompiled(*given: Tensor, **options: Any) -> Tensor:
        with warnings.catch_warnings():  # it says that it is slow
            warnings.simplefilter("ignore")
            run: Callable[..., Tensor] = flex_attention
            return run(*given, **options)

    return uncompiled
