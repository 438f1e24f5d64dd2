"""The log-sum-exp of attention over all keys, without anything of size T x T.

For: post-softmax masks (`banded`), which need only it of all the weights. With P the weights over
all keys and g = dL/dlse,

    dQ_i = scale · g_i (P K)_i        dK_j = scale · (P^T (g Q))_j

P K comes out of the fused forward call that yields lse (values := keys). P^T (g Q) is one more
forward call with the roles exchanged: rows are keys, scores s_ij − lse_i, values g_i q_i; its
softmax divides by exp(its own lse), which is multiplied back. Where all lse_i are of like size,
exp(−lse_i) is a factor of the values instead; where they are not, it could overflow or vanish, and
−lse_i is one more column of q.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.features import document_columns, filled, numbered, tiled, widen


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
        ctx.scale = scale
        return lse  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        if grad is None:
            return None, None, None, None
        q, k, pk, lse = ctx.saved_tensors
        length, width = q.shape[2:]
        row = grad * ctx.scale
        top = lse.max()
        known, back = row, lse.new_zeros(())
        own_q, own_k = ctx.columns
        rows, keys = k, q
        if top - lse.min() <= _SPREAD:
            known, back = row * (top - lse).exp(), top
        else:
            column = (-lse / ctx.scale)[..., None]
            rows, keys = widen(k, [torch.ones_like(column)]), widen(q, [column])
        rows, keys = _wide(rows, own_k), _wide(keys, own_q)
        values = known[..., None].to(q.dtype) * q
        values = _filled(values, keys.shape[2], keys.shape[3])
        mixed, own = _fused(rows, keys, values, 0.0, False, scale=ctx.scale)
        share = (own[:, :, :length] - back).exp()[..., None]
        dk = mixed[:, :, :length, -width:] * share.to(k.dtype)
        return row[..., None].to(q.dtype) * pk, dk, None, None


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
