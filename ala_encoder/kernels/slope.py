"""The `slope` path: a distance bias without anything of size T x T.

For: scores q_i·k_j/sqrt(d) − a_i |i − j| with a_i >= 0, one a token and head (ALiBi, distbias,
gated_distbias, several of them summed).

Short texts are computed in the open, in `tiles`. Long causal ones go to the fused kernel: for
j <= i the bias is linear in j, so two columns of q and k carry it (`features`). Where a token sees
both ways, or slopes are steep, a long text is cut into `blocks`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.blocks import near_and_far
from ala_encoder.kernels.features import (
    cut,
    document_columns,
    numbered,
    slope_columns,
    tiled,
    widen,
)
from ala_encoder.kernels.tiles import in_tiles

_SHORT = 512
"""Tokens up to which all is computed in tiles on a CPU. Its fused kernel takes keys 512 at a time,
so in a shorter text it gains nothing from causality."""


_STEEP = 128.0
"""Largest slope times length up to which the fused kernel takes causal texts whole. Its backward
pass may add the columns' large terms to small ones: at 500 gradients were off by 2e-5."""


def slope(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor,
    *,
    causal: bool,
    segments: Tensor | None = None,
) -> Tensor:
    """Compute softmax(q_i·k_j/sqrt(d) − slopes_i |i − j|) v; `causal` hides j > i.

    q, k, v: [B, H, T, d]; slopes: broadcastable to [B, H, T], not negative; segments: int [B, T],
    0 is padding, equal numbers see each other. Returns [B, H, T, d], 0 at padding. Bidirectional
    attention runs on a CPU only (on CUDA `flex` does it).
    """
    slopes = slopes.to(q.dtype).expand(q.shape[:3]).contiguous()  # a gate comes transposed
    segments = None if segments is None else numbered(segments)
    if q.device.type == "cpu" and q.shape[2] <= _SHORT:
        mixed = in_tiles(q, k, v, slopes, segments, causal=causal)
    elif causal and (q.device.type != "cpu" or float(slopes.detach().max()) * q.shape[2] <= _STEEP):
        mixed = _fused_causal(q, k, v, slopes, segments)
    else:
        mixed = near_and_far(q, k, v, slopes, segments, causal=causal)
    if segments is not None:
        mixed = mixed.masked_fill((segments == 0)[:, None, :, None], 0.0)
    return mixed


def _fused_causal(
    q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, segments: Tensor | None
) -> Tensor:
    scale = q.shape[-1] ** -0.5
    steep_q, steep_k = slope_columns(slopes, scale)
    columns_q, columns_k = [steep_q], [steep_k]
    if segments is not None:
        documents_q, documents_k = document_columns(segments)
        columns_q, columns_k = [documents_q, steep_q], [documents_k, steep_k]
    wide_q, wide_k = tiled(widen(q, columns_q)), tiled(widen(k, columns_k))
    # Unequal widths of K and V would take the CPU to its slow kernel.
    wide_v = tiled(F.pad(v, (0, wide_q.shape[-1] - v.shape[-1])))
    mixed = F.scaled_dot_product_attention(wide_q, wide_k, wide_v, is_causal=True, scale=scale)
    return cut(mixed, q.shape[2], v.shape[-1])
