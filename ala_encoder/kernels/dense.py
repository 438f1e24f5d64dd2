"""The `dense` path: attention in the open, the reference of all others and the one with weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.visibility import combine


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    groups: Sequence[int] | None = None,
    keep: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Compute weights = keep · softmax(q_i·k_j/sqrt(d) + bias_ij), times v, in the open.

    q: [B, G, Q, d] and k: [B, G, K, d] of G Q/K groups; v: [B, H, K, d]; bias: float32,
    broadcastable to [B, H, Q, K], −inf hides; visible: bool, likewise; groups: the group of each of
    the H heads (None: head h has group h); keep: bool [H, Q, K], multiplied after the softmax
    without renormalising (Pande et al., arXiv 2008.05828); dropout: of the weights that v is mixed
    with, not of those returned. Heads of one group share one map: it is computed once unless biases
    differ by head. Returns [B, H, Q, d] and the weights [B, H, Q, K]; a row with nothing to see is
    0.
    """
    wide = torch.promote_types(q.dtype, torch.float32)  # half precision would round scores
    scores = q.to(wide) * q.shape[-1] ** -0.5 @ k.to(wide).transpose(-2, -1)
    if bias is not None and groups is not None:
        scores, groups = scores[:, list(groups)], None
    mask, empty = combine(bias, visible)
    if mask is not None:
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, float("-inf")) if hidden else scores + mask
    weights = scores.softmax(-1)
    if empty is not None:
        weights = weights.masked_fill(empty, 0.0)
    if groups is not None:
        shared = weights.shape[1] == 1
        weights = weights.expand(-1, len(groups), -1, -1) if shared else weights[:, list(groups)]
    if keep is not None:
        weights = weights * keep
    weights = weights.to(v.dtype)
    return F.dropout(weights, dropout) @ v if dropout else weights @ v, weights
