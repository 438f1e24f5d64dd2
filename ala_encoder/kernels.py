"""The ways to compute attention, all equal in value and gradient to `dense`.

For: softmax(scale · q k^T + bias, hidden keys out) · keep, times v. `dense` is the reference and
hands out the weights; `sdpa` is PyTorch's fused kernel, without anything of size T x T when there
is no bias. Not for: projections or deciding what a head sees (`attention`).

One rule everywhere: a row with nothing to see gives exactly 0 with finite gradients, and padding
never leaks, not even a NaN (`attention` empties it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.heads import Head
from ala_encoder.settings.attention import AttentionSettings, sdpa_refusal


@dataclass(frozen=True)
class Visibility:
    """What may be seen at all, worked out once for a forward pass and used by every layer.

    pairs: bool, broadcastable to [B, 1, Q, K], or None when all see all; real: bool [B, T], or
    None when there is no padding.
    """

    pairs: Tensor | None = None
    real: Tensor | None = None

    @classmethod
    def of(cls, segments: Tensor | None) -> Visibility:
        """Read segments, int [B, T]: 0 is padding, equal numbers see each other."""
        if segments is None:
            return cls()
        real = segments > 0
        same = segments[:, :, None] == segments[:, None, :]
        return cls((same & real[:, :, None])[:, None], real)


def choose_path(attention: AttentionSettings, heads: Sequence[Head]) -> str:
    """Return the path a layer will run: the one asked for, or the fastest that can (`auto`)."""
    if attention.path != "auto":
        return attention.path
    return "dense" if sdpa_refusal(attention, heads) else "sdpa"


def combine(bias: Tensor | None, visible: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Merge additive bias and visibility into one mask, filled once.

    bias: float32 broadcastable to [B, H, Q, K], −inf hides; visible: bool, likewise.
    Returns (mask, empty): an additive float mask or a bool one, with the rows that see nothing
    opened so that their softmax stays finite, and those rows as bool [..., Q, 1] (None: there are
    none) to be set to 0 afterwards.
    """
    if bias is None and visible is None:
        return None, None
    if bias is None:
        assert visible is not None
        empty = ~visible.any(-1, keepdim=True)
        return visible | empty, empty
    allowed = ~torch.isneginf(bias)
    if visible is not None:
        allowed = allowed & visible
    empty = ~allowed.any(-1, keepdim=True)
    # Rows that see nothing lose their bias too, so nothing flows back through it.
    bias = bias.masked_fill(~allowed, float("-inf")).masked_fill(empty, 0.0)
    return bias, empty


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
    """Compute attention in the open and return (mixed values, weights).

    q: [B, G, Q, d] and k: [B, G, K, d] of G Q/K groups; v: [B, H, K, d]; groups: the group of each
    of the H heads (None: head h has group h); keep: bool [H, Q, K], multiplied after the softmax
    without renormalising (Pande et al.). Heads of one group share one map: it is computed once
    unless biases differ by head. Returns [B, H, Q, d] and the weights [B, H, Q, K], `keep` applied.
    """
    # Scaled before the product, which fp16 could not hold otherwise.
    scores = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).float()
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


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    groups: Sequence[int] | None = None,
) -> Tensor:
    """Compute the same with PyTorch's fused kernel; shapes as `dense`, returns [B, H, Q, d].

    The kernel wants a bias in the dtype of q, and bf16 cannot tell distances apart (it keeps 513
    of 1,024), so in half precision a bias takes all of it to float32.
    """
    if groups is not None:
        q, k = q[:, list(groups)], k[:, list(groups)]
    mask, empty = combine(bias, visible)
    given = q.dtype
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(torch.promote_types(given, torch.float32))
        q, k, v = (t.to(mask.dtype) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).to(given)
    return mixed if empty is None else mixed.masked_fill(empty, 0.0)
