"""The `slope` path: a distance bias on fused kernels, without anything of size T x T.

For: scores q_i·k_j/sqrt(d) − a_i |i − j| with a_i >= 0, one a token and head (ALiBi, distbias,
gated_distbias, several of them summed). For j <= i the bias is linear in j, so two columns of q and
k carry it (`features`). Bidirectional attention is two causal halves: j <= i as it stands, and
j > i on reversed arrays, merged by their log-sum-exps. In the backward pass each half runs the
kernel's own backward with the *merged* output and log-sum-exp: its weights are exp(s − lse), so
they come out normalised over both halves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ala_encoder.kernels.features import document_columns, numbered, slope_columns, tiled, widen


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
    slopes = slopes.float().expand(q.shape[:3])
    segments = None if segments is None else numbered(segments)
    if causal or q.shape[2] == 1:
        wide_q, wide_k, wide_v, _ = _half(q, k, v, slopes, segments, segments, ahead=0)
        mixed = F.scaled_dot_product_attention(
            wide_q, wide_k, wide_v, is_causal=True, scale=q.shape[-1] ** -0.5
        )
    else:
        past = _half(q, k, v, slopes, segments, segments, ahead=0)
        # Queries 0 … T−2 and keys 1 … T−1, reversed: key j > i is key j' <= i' there, and its
        # distance is i' − j' + 1.
        before, after = slice(None, -1), slice(1, None)
        future = _half(
            q[:, :, before].flip(2),
            k[:, :, after].flip(2),
            v[:, :, after].flip(2),
            slopes[:, :, before].flip(2),
            None if segments is None else segments[:, before].flip(1),
            None if segments is None else segments[:, after].flip(1),
            ahead=1,
        )
        mixed = _TwoHalves.apply(  # type: ignore[no-untyped-call]
            *past, *future, q.shape[-1] ** -0.5, q.shape[2]
        )
    mixed = mixed[:, :, : q.shape[2], : v.shape[-1]]
    if segments is not None:
        mixed = mixed.masked_fill((segments == 0)[:, None, :, None], 0.0)
    return mixed


def _half(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: Tensor,
    q_segments: Tensor | None,
    k_segments: Tensor | None,
    *,
    ahead: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return q, k, v with their columns, and the error of the scores' row constants [B, H, T]."""
    steep_q, steep_k, error = slope_columns(slopes, ahead, q.shape[-1] ** -0.5)
    columns_q, columns_k = [steep_q], [steep_k]
    if q_segments is not None and k_segments is not None:
        columns_q.insert(0, document_columns(q_segments)[0])
        columns_k.insert(0, document_columns(k_segments)[1])
    wide_q, wide_k = tiled(widen(q, columns_q)), tiled(widen(k, columns_k))
    # Unequal widths of K and V would take the CPU to its slow kernel.
    wide_v = tiled(F.pad(v, (0, wide_q.shape[-1] - v.shape[-1])))
    return wide_q, wide_k, wide_v, error


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class _TwoHalves(torch.autograd.Function):
    """Causal attention over the past and over the reversed future, as one softmax."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *halves, scale, length = given
        past, future = halves[:4], halves[4:]
        out, lse = _forward(*past[:3], 0.0, True, scale=scale)
        later, later_lse = _forward(*future[:3], 0.0, True, scale=scale)
        out, lse = out[:, :, :length], lse[:, :, :length] - past[3]
        # the last query has no future
        later_lse = (later_lse[:, :, : length - 1] - future[3]).flip(2)
        merged = lse.clone()
        merged[:, :, :-1] = torch.logaddexp(lse[:, :, :-1], later_lse)
        out = out * (lse - merged).exp()[..., None].to(out.dtype)
        share = (later_lse - merged[:, :, :-1]).exp()[..., None].to(out.dtype)
        out[:, :, :-1] += later[:, :, : length - 1].flip(2) * share
        ctx.save_for_backward(*past, *future, out, merged)
        ctx.scale = scale
        mixed: Tensor = out
        return mixed

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *halves, out, merged = ctx.saved_tensors
        past, future = halves[:4], halves[4:]
        (grad,) = grads
        found = _gradients(grad, past, out, merged, ctx.scale)
        later, later_out, later_lse = (x[:, :, :-1].flip(2) for x in (grad, out, merged))
        return (
            *found,
            None,
            *_gradients(later, future, later_out, later_lse, ctx.scale),
            None,
            None,
            None,
        )


def _gradients(
    grad: Tensor, half: Any, out: Tensor, merged: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v, error = half
    rows = (0, 0, 0, q.shape[2] - grad.shape[2])
    lse = F.pad(merged + error, (0, rows[3]))
    found: tuple[Tensor, Tensor, Tensor] = _backward(
        F.pad(grad, rows), q, k, v, F.pad(out, rows), lse, 0.0, True, scale=scale
    )
    return found
