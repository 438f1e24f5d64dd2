"""Pre-softmax `banded` attention as sums of shifted products, each pass compiled into one.

For: long trainings. In the open it would read and write its arrays dozens of times; compiled it
does so once. The backward pass shifts the other way instead of adding into shifted places, so that
every number is written once. Length and batch are symbols: one compilation serves all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ala_encoder.kernels.banded import shift
from ala_encoder.kernels.once import once

_VARIANTS = 200
"""Of each function. Beyond its own limit, 8, the compiler would silently go on uncompiled, which is
five times slower: widths of bands, a batch of 1 or more and inference each make one."""


@cache
def compiled(backend: str = "inductor") -> Callable[..., Tensor]:
    """Return `banded_pre`, compiled when first used: once for each set of offsets, kind of bias and
    presence of segments.
    """
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, _VARIANTS)
    run_forward = torch.compile(_forward, backend=backend)
    run_backward = torch.compile(_backward, backend=backend)

    class Shifted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Tensor:
            q, k, v, bias, segments, ctx.offsets = given
            with _quiet():
                _mark(q, k, v, bias, segments)
                mixed, weights = run_forward(q, k, v, bias, segments, ctx.offsets)
            ctx.save_for_backward(q, k, v, weights)
            ctx.shape = None if bias is None else bias.shape
            return mixed

        @staticmethod
        @once
        def backward(ctx: Any, *grads: Tensor) -> Any:
            (grad,) = grads
            q, k, v, weights = ctx.saved_tensors
            with _quiet():
                _mark(grad, q, k, v, weights)
                dq, dk, dv, ds = run_backward(grad, q, k, v, weights, ctx.offsets)
            return dq, dk, dv, None if ctx.shape is None else ds.sum_to_size(ctx.shape), None, None

    def banded(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        offsets: Sequence[int],
        *,
        bias: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        if bias is not None:
            bias = bias.reshape((1,) * (4 - bias.dim()) + bias.shape)
        mixed: Tensor = Shifted.apply(  # type: ignore[no-untyped-call]
            q, k, v, bias, segments, tuple(offsets)
        )
        return mixed

    return banded


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    segments: Tensor | None,
    offsets: tuple[int, ...],
) -> tuple[Tensor, Tensor]:
    scores = _products(q, k, offsets) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~_visible(q, segments, offsets), float("-inf"))
    # An empty row stays finite.
    top = scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    weights = weights / total.masked_fill(total == 0, 1.0)
    return _sums(weights, v, offsets), weights


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, offsets: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scale = q.shape[-1] ** -0.5
    dweights = _products(grad, v, offsets)
    ds = weights * (dweights - (weights * dweights).sum(-1, keepdim=True))
    dq = _sums(ds * scale, k, offsets)
    dk = _sums(_from_keys(ds * scale, offsets), q, [-o for o in offsets])
    dv = _sums(_from_keys(weights, offsets), grad, [-o for o in offsets])
    return dq, dk, dv, ds


def _products(q: Tensor, k: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return q_i·k_{i + offset}: [B, H, T, offsets], float32 or better."""
    wide = torch.promote_types(q.dtype, torch.float32)
    return torch.stack([(q.to(wide) * shift(k, o).to(wide)).sum(-1) for o in offsets], -1)


def _sums(weights: Tensor, v: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return the sum over offsets of w_{i, offset} v_{i + offset}, in the dtype of v."""
    parts = [weights[..., n : n + 1] * shift(v, o) for n, o in enumerate(offsets)]
    return sum(parts[1:], parts[0]).to(v.dtype)


def _from_keys(weights: Tensor, offsets: Sequence[int]) -> Tensor:
    """Return w of the query that sees key j at each offset: w_{j − offset, offset}."""
    return torch.cat([shift(weights[..., n : n + 1], -o) for n, o in enumerate(offsets)], -1)


def _visible(q: Tensor, segments: Tensor | None, offsets: Sequence[int]) -> Tensor:
    """Tell which keys exist and are of the row's document: bool [(B, 1), T, offsets]."""
    length = q.shape[2]
    if segments is None:
        places = torch.arange(length, device=q.device)[:, None]
        places = places + torch.tensor(offsets, device=q.device)
        return (places >= 0) & (places < length)
    numbers = segments[:, None, :, None]
    # outside the text a shifted segment is 0, which is padding
    same = torch.cat([shift(numbers, o) for o in offsets], -1) == numbers
    return same & (numbers > 0)


def _mark(*given: Tensor | None) -> None:
    """Make batch and length symbols of the compiled code."""
    for x in given:
        if x is None:
            continue
        for dim in {0, 1 if x.dim() == 2 else 2}:
            if x.shape[dim] > 1:
                torch._dynamo.maybe_mark_dynamic(x, dim)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the compiler says when it looks at .grad of its inputs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The .grad attribute")
        yield
