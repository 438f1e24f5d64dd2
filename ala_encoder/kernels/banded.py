"""The `banded` path: local masks in O(T · offsets), without anything of size T x T.

For: heads that see few offsets j − i (prev, next, band, identity, narrow windows).

- Pre-softmax: the softmax runs over the offsets alone, sums of shifted products.
- Post-softmax (Pande et al.): w_ij = exp(s_ij − lse_i) inside the mask, lse_i over *all* keys. Only
  lse needs all keys, once for each Q/K group. With P the weights over all keys and g = dL/dlse,

      dQ_i = scale · g_i (P K)_i        dK_j = scale · (P^T (g Q))_j

  P K comes out of the fused forward call that yields lse (values := keys). P^T (g Q) is one more
  forward call with the roles exchanged: rows are keys, scores s_ij − lse_i, values g_i q_i; its
  softmax divides by exp(its own lse), which is multiplied back.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.features import document_columns, filled, numbered, tiled, widen


def banded_pre(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Sequence[int],
    *,
    bias: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Attend to the keys i + offset alone: softmax over `offsets`, times v.

    q, k, v: [B, H, T, d]; bias: float32, broadcastable to [B, H, T, offsets], −inf hides; segments:
    int [B, T]. Returns [B, H, T, d]; a row with nothing to see is 0.
    """
    scores = _scores(q, k, offsets)
    visible = _visible(q.shape[2], offsets, segments, q.device)
    if bias is not None:
        visible = visible & ~torch.isneginf(bias)
        scores = scores + bias.masked_fill(torch.isneginf(bias), 0.0)
    scores = scores.masked_fill(~visible, float("-inf"))
    # An empty row stays finite, so nothing but 0 flows back through it.
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min).detach()
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    weights = weights / total.masked_fill(total == 0, 1.0)
    return _mix(weights.to(v.dtype), v, offsets)


@functools.cache
def compiled(backend: str = "inductor") -> Callable[..., Tensor]:
    """Return `banded_pre` compiled: once for each step of a ladder of lengths, whatever the batch.

    A text is filled with padding up to the next step, so that few lengths are ever compiled.
    """
    run = torch.compile(banded_pre, dynamic=False, backend=backend)

    def banded(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: Sequence[int],
        *,
        bias: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        length = q.shape[2]
        more = (0, 0, 0, step_above(length) - length)
        if more[3] and segments is None:
            segments = torch.ones(q.shape[0], length, dtype=torch.int, device=q.device)
        if more[3] and bias is not None and bias.dim() > 1 and bias.shape[-2] == length:
            bias = F.pad(bias, more)
        q, k, v = (F.pad(x, more) for x in (q, k, v))
        segments = None if segments is None else F.pad(segments, (0, more[3]))
        for x in (q, k, v, segments, bias):
            if x is not None and x.dim() > 1 and x.shape[0] > 1:
                torch._dynamo.maybe_mark_dynamic(x, 0)
        with warnings.catch_warnings():  # the compiler looks at .grad of its inputs
            warnings.filterwarnings("ignore", message="The .grad attribute")
            mixed: Tensor = run(q, k, v, tuple(offsets), bias=bias, segments=segments)
        return mixed[:, :, :length]

    return banded


def step_above(length: int) -> int:
    """Return the next step of the ladder 2, 3, 4, 6, 8, 12, 16, 24, … that is not shorter."""
    step = 1 << max(length.bit_length() - 2, 0)
    return -(-length // step) * step


def banded_post(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    offsets: Sequence[int],
    keep: Tensor,
    *,
    groups: Sequence[int] | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Compute keep · softmax(q k^T / sqrt(d)) v, the softmax over all keys, keep inside `offsets`.

    q, k: [B, G, T, d] of G Q/K groups; v: [B, H, T, d]; keep: bool [H, offsets]; groups: the group
    of each head (None: head h has group h). Returns [B, H, T, d], 0 at padding. CPU only.
    """
    lse = _LogSumExp.apply(q, k, segments, q.shape[-1] ** -0.5)  # type: ignore[no-untyped-call]
    scores = _scores(q, k, offsets) - lse[..., None]
    visible = _visible(q.shape[2], offsets, segments, q.device)
    weights = scores.masked_fill(~visible, float("-inf")).exp()
    if groups is not None:
        weights = weights[:, list(groups)]
    return _mix((weights * keep[:, None]).to(v.dtype), v, offsets)


def _scores(q: Tensor, k: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return q_i·k_{i + offset} / sqrt(d): [B, H, T, offsets], float32 or better."""
    scores = torch.stack([(q * shifted(k, o)).sum(-1) for o in offsets], -1)
    scaled: Tensor = scores.to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    return scaled


def banded_one(v: Tensor, offsets: Sequence[int], *, segments: Tensor | None = None) -> Tensor:
    """Return v_{i + offset} of each head's own offset, 0 where there is no such key.

    A pre-softmax head of one key: its weight is 1. v: [B, H, T, d]; offsets: one a head.
    """
    mixed = torch.cat([shifted(v[:, h : h + 1], o) for h, o in enumerate(offsets)], 1)
    if segments is None:
        return mixed
    visible = _visible(v.shape[2], offsets, segments, v.device)
    return mixed.masked_fill(~visible.transpose(1, 3), 0.0)


def shifted(x: Tensor, offset: int) -> Tensor:
    """Return y with y_i = x_{i + offset}, 0 outside: x [B, H, T, d] → [B, H, T, d]."""
    length = x.shape[2]
    if abs(offset) >= length:
        return torch.zeros_like(x)
    if offset >= 0:
        return F.pad(x[:, :, offset:], (0, 0, 0, offset))
    return F.pad(x[:, :, :offset], (0, 0, -offset, 0))


def _visible(
    length: int, offsets: Sequence[int], segments: Tensor | None, device: torch.device
) -> Tensor:
    """Tell which keys exist and are of the row's document: bool [(B, 1), T, offsets]."""
    if segments is None:
        places = torch.arange(length, device=device)[:, None] + torch.tensor(offsets, device=device)
        return (places >= 0) & (places < length)
    numbers = segments[:, None, :, None]
    # outside the text a shifted segment is 0, which is padding
    same = torch.cat([shifted(numbers, o) for o in offsets], -1) == numbers
    return same & (numbers > 0)


def _mix(weights: Tensor, v: Tensor, offsets: Sequence[int]) -> Tensor:
    mixed = torch.zeros_like(v)
    for place, offset in enumerate(offsets):
        mixed = mixed + weights[..., place : place + 1] * shifted(v, offset)
    return mixed


_fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class _LogSumExp(torch.autograd.Function):
    """lse_i = log sum_j exp(scale q_i·k_j) over the keys of i's document: [B, G, T], float32."""

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
        row = grad[..., None].to(q.dtype)
        known = (-lse / ctx.scale)[..., None]
        own_q, own_k = ctx.columns
        rows = _wide(widen(k, [torch.ones_like(known)]), own_k)
        keys = _wide(widen(q, [known]), own_q)
        values = F.pad(row * q, (keys.shape[-1] - width, 0, 0, keys.shape[2] - length))
        mixed, own = _fused(rows, keys, values, 0.0, False, scale=ctx.scale)
        mixed = mixed[:, :, :length, -width:] * own[:, :, :length].exp()[..., None]
        return row * pk * ctx.scale, (mixed * ctx.scale).to(k.dtype), None, None


def _columns(segments: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the document columns of q and k over whole tiles, whose filling is padding."""
    if segments is None:
        return None, None
    return document_columns(filled(numbered(segments)))


def _wide(x: Tensor, columns: Tensor | None) -> Tensor:
    return x if columns is None else widen(tiled(x), [columns])
