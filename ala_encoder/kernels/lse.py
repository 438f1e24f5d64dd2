"""The log-sum-exp of attention over all keys, without anything of size T x T.

For: post-softmax masks (`banded`), which need only it of all the weights. With P the weights over
all keys and g = dL/dlse,

    dQ_i = scale · g_i (P K)_i        dK_j = scale · (P^T (g Q))_j

P K comes out of the fused forward call that yields lse (values := keys). P^T (g Q) is one more
forward call with the roles exchanged: rows are keys, values exp(−lse_i) g_i q_i; its softmax
divides by exp(its own lse), which is multiplied back. Where the lse_i differ by too much for
exp(−lse_i) it is computed in the open, some queries at a time. (As one more column of q, −lse_i
would cost the scores their last digits, and with them gradients that nearly cancel.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.features import document_columns, filled, numbered, tiled, widen
from ala_encoder.kernels.once import once


def log_sum_exp(q: Tensor, k: Tensor, segments: Tensor | None) -> Tensor:
    """Return log sum_j exp(q_i·k_j / sqrt(d)) over the keys of i's document.

    q, k: [B, G, T, d]; segments: int [B, T], None: one document without padding. Returns
    [B, G, T], float32 or better. CPU only.
    """
    lse: Tensor = _LogSumExp.apply(  # type: ignore[no-untyped-call]
        q, k, segments, q.shape[-1] ** -0.5
    )
    return lse


_SPREAD = 40.0
"""Largest lse minus least up to which exp(−lse) is a factor: what float32 then loses of a weight is
under exp(−87 + 40) times the number of keys."""
_ROWS = 256
"""Queries at a time, in the open."""

_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, segments: Tensor | None, scale: float) -> Tensor:
        ctx.set_materialize_grads(False)
        length, width = q.shape[2:]
        ctx.columns = _columns(segments)
        wide_q, wide_k = _wide(q, ctx.columns[0]), _wide(k, ctx.columns[1])
        pk, lse = _fused(wide_q, wide_k, wide_k, 0.0, False, scale=scale)
        lse = lse[:, :, :length]
        ctx.save_for_backward(q, k, pk[:, :, :length, -width:], lse)
        ctx.segments, ctx.scale = segments, scale
        return lse  # type: ignore[no-any-return]

    @staticmethod
    @once
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        q, k, pk, lse = ctx.saved_tensors
        known = (grad * ctx.scale)[..., None].to(q.dtype)
        dk = _to_keys(k, q, known * q, lse, ctx)
        return known * pk, dk, None, None


def _to_keys(k: Tensor, q: Tensor, values: Tensor, lse: Tensor, ctx: Any) -> Tensor:
    """Return the sum over i of exp(s_ij − lse_i) values_i: [B, G, T, d]."""
    length, width = q.shape[2:]
    top = lse.max()
    if top - lse.min() > _SPREAD:
        return _to_keys_in_the_open(k, q, values, lse, ctx)
    values = (top - lse).exp()[..., None].to(q.dtype) * values
    rows, keys = _wide(k, ctx.columns[1]), _wide(q, ctx.columns[0])
    values = _filled(values, keys.shape[2], keys.shape[3])
    mixed, own = _fused(rows, keys, values, 0.0, False, scale=ctx.scale)
    share = (own[:, :, :length] - top).exp()[..., None]
    return mixed[:, :, :length, -width:] * share.to(k.dtype)  # type: ignore[no-any-return]


def _to_keys_in_the_open(k: Tensor, q: Tensor, values: Tensor, lse: Tensor, ctx: Any) -> Tensor:
    total = torch.zeros_like(k)
    for first in range(0, q.shape[2], _ROWS):
        rows = slice(first, first + _ROWS)
        scores = ctx.scale * (k @ q[:, :, rows].transpose(-1, -2))
        scores -= lse[:, :, None, rows]
        if ctx.segments is not None:
            apart = ctx.segments[:, None, :, None] != ctx.segments[:, None, None, rows]
            scores.masked_fill_(apart, float("-inf"))
        total += scores.exp_() @ values[:, :, rows]
    return total


def _filled(x: Tensor, length: int, width: int) -> Tensor:
    """Return x with zeros in front of its columns and behind its rows."""
    more = (width - x.shape[-1], 0, 0, length - x.shape[2])
    return F.pad(x, more) if any(more) else x


def _columns(segments: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the document columns of q and k over whole tiles, whose filling is padding."""
    if segments is None:
        return None, None
    return document_columns(filled(numbered(segments)))


def _wide(x: Tensor, columns: Tensor | None) -> Tensor:
    return x if columns is None else widen(tiled(x), [columns])
